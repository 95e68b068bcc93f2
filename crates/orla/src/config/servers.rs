//! `mcpServers`: MCP servers, as clients' own configuration files have them.
//!
//! Entries for Claude Desktop, VS Code, Cursor, Windsurf, Cline or another client work unchanged. All
//! names that these files use for a key are known, keys that only concern a client are ignored, and an
//! unknown key is a warning. orla adds `prefix`, `rename`, `include`, `exclude`, `tools`,
//! `startup_timeout` and `eager`.
//!
//! Values of `env`, `headers` and `args` may be secrets: no message repeats them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use orla_document::{Key as Name, Kind as Shape, Node, Position};
use orla_marketplace::id::{Pattern, is_name_char, unused};
use orla_marketplace::rtfs::text::{is_misspelt, nearest};
use orla_oauth::AuthSettings;
use orla_process::confinement::{Declared, misspelt_key};
use orla_providers::NameRules;
use orla_providers::mcp::{Reach, ServerSettings};
use serde_json::{Value, json};

use super::forms::{
    ARGUMENTS, CONFINING, Choice, DAY, ENVIRONMENT, FALLBACK, Flag, Form, HEADERS, LIMITS,
    MORE_PATTERNS, PATH, PATTERNS, Read, Seconds, Variables, text_schema, variable,
};
use super::keys::{Key, find, key, object, own, present, properties};
use super::read::{Reader, excerpt, is_tool_name, unexpected};
use super::schema::defined;
use super::sign_in::{self, AUTH};
use super::{Config, DEFAULT_FILES, Placed, dotenv};

#[rustfmt::skip] // A table: each key has a line for its value and one for its meaning.
fn keys() -> Vec<Key<Draft>> {
    vec![
        key("command", PROGRAM, |d| &mut d.command, "the program: a path, or a name in `PATH`"),
        key("args", ARGUMENTS, |d| &mut d.args, "arguments of the program"),
        key("env", ENVIRONMENT, |d| &mut d.env, "environment variables of the program"),
        key("pass_env", Variables, |d| &mut d.pass_env,
            "environment variables of orla that the program gets in addition to the default ones: names, or patterns with `*`"),
        key("envFile", Read(env_file, text_schema), |d: &mut Draft| &mut d.env_file,
            "a file with lines `NAME=VALUE`, to which orla adds `env`").or(&["env_file"]),
        key("cwd", PATH, |d| &mut d.cwd, "the working directory of the program"),
        key("url", Read(|reader, path, node| reader.url(path, node, "https://example.com/mcp"), text_schema), |d: &mut Draft| &mut d.url,
            "the address of a server that is reached over streamable HTTP").or(&["serverUrl", "httpUrl"]),
        key("headers", HEADERS, |d: &mut Draft| &mut d.headers, "header fields of every request").or(&["http_headers"]),
        key("auth", AUTH, |d: &mut Draft| &mut d.auth,
            "how orla gets its tokens for the server: `oauth` (a person [signs in](identity.md#sign-in-at-servers)), or a mapping with `grant`"),
        key("type", Read(transport, text_schema), |d: &mut Draft| &mut d.transport,
            "`stdio` or `http`; by default, `command` or `url` determines it").or(&["transport", "transportType"]),
        key("disabled", Flag, |d| &mut d.disabled, "ignore this entry"),
        key("enabled", Flag, |d| &mut d.enabled, "if `false`, ignore this entry"),
        key("timeout", Read(timeout, timeout_schema), |d| &mut d.timeout, "maximum seconds for one call"),
        key("startup_timeout", Seconds(DAY), |d| &mut d.startup_timeout,
            "maximum seconds until the server answers its first request: 30 by default"),
        key("prefix", PREFIX, |d| &mut d.names.prefix,
            "replaces `NAME__` before the names of tools and prompts; may be empty"),
        key("rename", RENAMES, |d| &mut d.names.rename, "new names for single tools"),
        key("include", PATTERNS, |d: &mut Draft| &mut d.names.include,
            "patterns of the tools that are served; all by default").or(&["includeTools"]),
        key("exclude", MORE_PATTERNS, |d: &mut Draft| &mut d.names.exclude,
            "patterns of the tools that are not served").or(&["excludeTools", "disabledTools"]),
        own("tools", tools, tools_schema,
            "settings of single tools: `NAME: {timeout: SECONDS}`; or a list of patterns of the tools that are served"),
        key("permissions", CONFINING, |d| &mut d.declared.permissions,
            "what a server that is a process may do; it is [confined](sandbox.md) to that"),
        key("limits", LIMITS, |d| &mut d.declared.limits,
            "[limits](sandbox.md#limits) of its processes: `memory`, `cpu_seconds`, `processes`, `open_files`, `file_size`, `wall`"),
        key("sandbox_fallback", Choice(FALLBACK), |d| &mut d.declared.fallback,
            "overrides `sandbox_fallback` of the server"),
        key("eager", Flag, |d| &mut d.eager, "start the server with orla instead of at the first use"),
    ]
}

/// A program: a path as the file means it, or a name in `PATH`.
pub(super) const PROGRAM: Read<String> = Read(
    |reader, path, node| reader.line(path, node, "a program").map(|text| program(reader, &text)),
    text_schema,
);
/// The prefix of the names of an entry's tools.
pub(super) const PREFIX: Read<String> = Read(prefix, prefix_schema);
/// New names of an entry's tools, by their own names.
pub(super) const RENAMES: Read<BTreeMap<String, String>> = Read(renames, renames_schema);

/// Keys that only concern a client, such as which calls a person must approve, and how the server is shown.
const CLIENTS_OWN: [&str; 18] = [
    "alwaysAllow",
    "autoApprove",
    "autoApproveAll",
    "author",
    "description",
    "dev",
    "displayName",
    "gallery",
    "icon",
    "icons",
    "id",
    "name",
    "networkTimeout",
    "source",
    "title",
    "trust",
    "version",
    "watchPaths",
];

/// Keys of other files and of the configuration that restrict a server, with ours. Without them, more would be served than
/// was meant. Other spellings of these keys count too.
const RESTRICTING: [(&str, &str); 12] = [
    ("include", "include"),
    ("includeTools", "include"),
    ("exclude", "exclude"),
    ("excludeTools", "exclude"),
    ("disabledTools", "exclude"),
    ("allow", "include"),
    ("allowedTools", "include"),
    ("enabledTools", "include"),
    ("deny", "exclude"),
    ("deniedTools", "exclude"),
    ("sandbox", "permissions"),
    ("perms", "permissions"),
];

/// The maximum number of seconds that `timeout` may be. A larger number is taken for milliseconds, which
/// some clients use.
const MAX_SECONDS: f64 = 86_400.0;
/// The maximum length of a server's name, which leaves room for the names of its tools.
const MAX_NAME: usize = 48;
/// Bytes of a file of environment variables that are read.
const MAX_ENV_FILE: u64 = 1024 * 1024;

/// The entry of one server, before it is checked as a whole.
#[derive(Default)]
struct Draft {
    command: Option<String>,
    args: Vec<String>,
    env: BTreeMap<String, String>,
    env_file: BTreeMap<String, String>,
    pass_env: Vec<Pattern>,
    cwd: Option<PathBuf>,
    url: Option<String>,
    headers: BTreeMap<String, String>,
    auth: Option<AuthSettings>,
    transport: Option<(String, Position)>,
    disabled: bool,
    enabled: Option<bool>,
    timeout: Option<Duration>,
    startup_timeout: Option<Duration>,
    names: NameRules,
    tool_timeouts: BTreeMap<String, Duration>,
    declared: Declared,
    eager: bool,
}

pub(super) fn read(reader: &mut Reader<'_>, config: &mut Config, path: &str, node: &Node) {
    let expected = "a mapping from names of servers to how they are reached";
    let Some(pairs) = reader.pairs(path, node, expected) else { return };
    let keys = keys();
    let mut known: HashMap<String, Position> =
        config.servers.iter().map(|server| (server.value.name.clone(), server.at)).collect();
    for (name, node) in pairs {
        let place = format!("{path}.{}", excerpt(&name.text));
        let since = reader.secrets.count();
        let Some(mut settings) = server(reader, &keys, &place, name, node) else { continue };
        settings.redaction = reader.redaction(since);
        if let Some(first) = known.get(&settings.name) {
            let line = first.line;
            if settings.name == name.text {
                reader.problem(name.at, || format!("{place}: given twice, first on line {line}"));
                continue;
            }
            settings.name = unused(&settings.name, |name| known.contains_key(name));
            let called = &settings.name;
            reader.warning(name.at, || {
                format!("{place}: another server has this name in MCP; its tools are called {called}__…")
            });
        }
        known.insert(settings.name.clone(), name.at);
        config.servers.push(Placed { value: settings, at: name.at });
    }
}

/// Returns a name that consists only of characters that MCP names may have.
pub(super) fn safe_name(name: &str) -> String {
    let safe: String = name.chars().map(|c| if is_name_char(c) { c } else { '_' }).collect();
    match safe.len() {
        0 => "_".to_owned(),
        length if length > MAX_NAME => {
            let hash = orla_marketplace::id::short_hash(name.as_bytes());
            format!("{}_{hash:08x}", &safe[..MAX_NAME - 9])
        }
        _ => safe,
    }
}

/// One server, unless its entry is wrong or switched off. Unknown keys are warnings, because entries are written for
/// many clients.
fn server(
    reader: &mut Reader<'_>,
    keys: &[Key<Draft>],
    place: &str,
    name: &Name,
    node: &Node,
) -> Option<ServerSettings> {
    let pairs = reader.pairs(place, node, "a mapping with command or url")?;
    let (known, unknown): (Vec<_>, Vec<_>) =
        present(pairs).partition(|(key, _)| find(keys, &key.text).is_some());
    let is_given = |key: &str| {
        known.iter().any(|(name, _)| find(keys, &name.text).is_some_and(|found| found.name == key))
    };
    let is_reachable = is_given("command") || is_given("url");
    let mut draft = Draft::default();
    let read = reader.mapping(place, node.at, known, keys, &mut draft);
    let is_off = draft.disabled || draft.enabled == Some(false);
    for (key, _) in unknown.into_iter().filter(|(key, _)| !CLIENTS_OWN.contains(&key.text.as_str())) {
        let near = nearest(&key.text, keys.iter().flat_map(Key::all_names));
        let hint = near.map(|near| format!(", did you mean {near}?")).unwrap_or_default();
        let path = format!("{place}.{}", excerpt(&key.text));
        let ours = RESTRICTING.iter().find(|(other, _)| is_misspelt(&key.text, other));
        let meant = ours.map(|(_, ours)| *ours).or_else(|| misspelt_key(&key.text));
        if let Some(meant) = meant.filter(|_| !is_off) {
            // Without it the server would run unconfined, or serve more.
            reader.problem(key.at, || format!("{path}: unknown key, did you mean {meant}?"));
            return None;
        }
        if !is_reachable && matches!(near, Some("command" | "url")) {
            reader.problem(key.at, || format!("{path}: unknown key{hint} command or url is missing"));
            return None;
        }
        reader.warning(key.at, || format!("{path}: unknown key, ignored{hint}"));
    }
    read?;
    let reach = reach(reader, place, name, &draft)?;
    if is_itself(&reach, reader.path) {
        reader
            .warning(name.at, || format!("{place}: orla itself with this very configuration; left out"));
        return None;
    }
    let mut settings = ServerSettings::new(safe_name(&name.text), reach);
    if let Some(auth) = &draft.auth
        && let Some(problem) = unusable(auth, &settings.reach)
    {
        reader.problem(name.at, || format!("{place}.auth: {problem}"));
        return None;
    }
    settings.auth = draft.auth;
    settings.timeout = draft.declared.limits.wall_or(draft.timeout);
    settings.declared = draft.declared;
    settings.tool_timeouts = draft.tool_timeouts;
    settings.startup_timeout = draft.startup_timeout.unwrap_or(ServerSettings::STARTUP_TIMEOUT);
    settings.names = draft.names;
    settings.eager = draft.eager;
    (!is_off).then_some(settings)
}

/// Returns why a server with this kind of connection cannot have this sign-in.
fn unusable(auth: &AuthSettings, reach: &Reach) -> Option<String> {
    let Reach::Http { url, headers } = reach else {
        return Some("only a server with url has a sign-in".to_owned());
    };
    sign_in::unusable(auth, Some(url), sign_in::authorization(headers.keys()))
}

fn reach(reader: &mut Reader<'_>, place: &str, name: &Name, draft: &Draft) -> Option<Reach> {
    let kind = draft.transport.as_ref().map(|(kind, at)| (kind.to_lowercase().replace('_', "-"), *at));
    let process = match &kind {
        Some((kind, _)) if matches!(kind.as_str(), "stdio" | "local") => true,
        Some((kind, _))
            if matches!(kind.as_str(), "http" | "streamable-http" | "streamablehttp" | "remote") =>
        {
            false
        }
        Some((kind, at)) if kind == "sse" => {
            reader.warning(*at, || {
                format!("{place}.type: sse is the transport of old servers; this one is spoken to over streamable HTTP")
            });
            false
        }
        Some((kind, at)) => {
            reader.warning(*at, || {
                format!("{place}.type: expected stdio or http, got text {:?}; ignored", excerpt(kind))
            });
            draft.command.is_some()
        }
        None => {
            if draft.command.is_some() && draft.url.is_some() {
                reader.problem(name.at, || format!("{place}: command and url exclude each other"));
                return None;
            }
            draft.command.is_some()
        }
    };
    match (process, &draft.command, &draft.url) {
        (true, Some(command), _) => {
            // As in a shell, these variables take precedence over those of the variables file.
            let mut env = draft.env_file.clone();
            env.extend(draft.env.clone());
            Some(Reach::Process {
                command: command.clone(),
                args: draft.args.clone(),
                env,
                pass_env: draft.pass_env.clone(),
                cwd: draft.cwd.clone(),
            })
        }
        (false, _, Some(url)) => Some(Reach::Http { url: url.clone(), headers: draft.headers.clone() }),
        (_, None, None) => {
            reader.problem(name.at, || {
                format!("{place}: expected command (a program) or url (an endpoint)")
            });
            None
        }
        (true, None, Some(_)) => {
            reader.problem(name.at, || format!("{place}: expected command, as its type is stdio"));
            None
        }
        (false, Some(_), None) => {
            reader.problem(name.at, || format!("{place}: expected url, as its type is http"));
            None
        }
    }
}

/// Returns whether this would start orla with the file that is being read, and so itself without end:
/// clients' files have such an entry, for `orla connect` writes it.
fn is_itself(reach: &Reach, file: &Path) -> bool {
    let Reach::Process { command, args, cwd, .. } = reach else { return false };
    let is_orla = Path::new(command).file_name().is_some_and(|name| name == "orla");
    let mut words = args.iter().map(String::as_str);
    let named = words.find_map(|word| word.strip_prefix("--config"));
    let named = named.map(|rest| rest.strip_prefix('=').or_else(|| words.next()).unwrap_or_default());
    let directory = cwd.as_deref().unwrap_or_else(|| Path::new("."));
    let found = match named {
        Some(named) => Some(directory.join(named)),
        None => DEFAULT_FILES.iter().map(|name| directory.join(name)).find(|file| file.exists()),
    };
    let own = std::fs::canonicalize(file).ok();
    is_orla && own.is_some() && found.and_then(|found| std::fs::canonicalize(found).ok()) == own
}

/// Returns a program's name in `PATH` as it is, and a path as the file means it.
pub(super) fn program(reader: &Reader<'_>, text: &str) -> String {
    match text.contains('/') {
        true => reader.beside(text).to_str().map_or_else(|| text.to_owned(), str::to_owned),
        false => text.to_owned(),
    }
}

fn transport(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<(String, Position)> {
    reader.line(path, node, "text").map(|text| (text, node.at))
}

fn timeout(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Duration> {
    let number = node.as_scalar().and_then(|scalar| scalar.text.parse::<f64>().ok());
    if let Some(milliseconds) =
        number.filter(|number| *number > MAX_SECONDS && *number <= MAX_SECONDS * 1000.0)
    {
        reader.warning(node.at, || {
            format!(
                "{path}: in seconds; {milliseconds} is taken for milliseconds, as some clients have it"
            )
        });
        return Some(Duration::from_secs_f64(milliseconds / 1000.0));
    }
    Seconds(DAY).read(reader, path, node)
}

fn prefix(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<String> {
    let text = reader.word_at(path, node, "text")?;
    if text.len() <= MAX_NAME && text.chars().all(is_name_char) {
        return Some(text);
    }
    let expected = format!("at most {MAX_NAME} letters, digits, `_` or `-`");
    reader.problem(node.at, || format!("{path}{}", unexpected(&expected, node)));
    None
}

fn renames(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<BTreeMap<String, String>> {
    let pairs = reader.pairs(path, node, "a mapping from the server's names of tools to others")?;
    let (mut renames, mut taken) = (BTreeMap::new(), HashSet::new());
    for (key, node) in pairs {
        let path = format!("{path}.{}", excerpt(&key.text));
        let Some(to) = reader.line(&path, node, "a name") else { continue };
        if !is_tool_name(&to) {
            let expected = "1 to 64 letters, digits, `_` or `-`";
            reader.problem(node.at, || format!("{path}{}", unexpected(expected, node)));
        } else if !taken.insert(to.clone()) {
            reader.problem(node.at, || format!("{path}: another tool is already called {to}"));
        } else {
            renames.insert(key.text.clone(), to);
        }
    }
    Some(renames)
}

/// Reads the changes to single tools, or a list of the tools to include, which is the form of some
/// clients.
fn tools(reader: &mut Reader<'_>, draft: &mut Draft, path: &str, node: &Node) {
    if let Shape::List(_) = &node.kind {
        draft.names.include = reader.patterns(path, node);
        return;
    }
    let Some(pairs) = reader.pairs(path, node, "a mapping from names of tools to their timeout") else {
        return;
    };
    for (tool, node) in pairs {
        let path = format!("{path}.{}", excerpt(&tool.text));
        let Some(pairs) = reader.pairs(&path, node, "a mapping with timeout") else { continue };
        let mut timeout = None;
        reader.mapping(&path, node.at, pairs, &tool_keys(), &mut timeout);
        draft.tool_timeouts.extend(timeout.map(|timeout| (tool.text.clone(), timeout)));
    }
}

fn tool_keys() -> Vec<Key<Option<Duration>>> {
    vec![key("timeout", Seconds(DAY), |timeout| timeout, "maximum seconds for one call of this tool")]
}

fn env_file(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<BTreeMap<String, String>> {
    let file = reader.path_at(path, node)?;
    let read = super::read_text(&file, MAX_ENV_FILE).and_then(|text| {
        dotenv::parse(&text).map_err(|err| format!("{}:{}: {}", file.display(), err.line, err.problem))
    });
    reader.named_files.push(file);
    reader.noted(path, node, read.map_err(|problem| format!(": {problem}")))
}

fn timeout_schema() -> Value {
    json!({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, variable()]})
}

fn prefix_schema() -> Value {
    json!({"type": "string"})
}

fn renames_schema() -> Value {
    json!({"type": "object", "additionalProperties": text_schema()})
}

fn tools_schema() -> Value {
    json!({"anyOf": [{"type": "array", "items": {"type": "string"}},
        {"type": "object", "additionalProperties": object(&tool_keys(), &mut None)}]})
}

pub(super) fn schema() -> Value {
    json!({"type": "object", "additionalProperties": defined("server")})
}

/// Returns the schema of one server. It admits unknown keys, which other clients may know.
pub(super) fn definition() -> Value {
    json!({"type": "object", "properties": properties(&keys(), &mut Draft::default())})
}

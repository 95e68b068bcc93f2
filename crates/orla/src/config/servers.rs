//! `mcpServers`: MCP servers, as clients' own configuration files have them.
//!
//! What people paste here was written for Claude Desktop, VS Code, Cursor, Windsurf, Cline or another
//! client, and works unchanged: the names that these files have for one thing are all known, keys that mean
//! something to their client alone are passed over, and a key that nobody knows is a warning. What orla adds
//! (`prefix`, `rename`, `include`, `exclude`, `tools`, `startup_timeout`, `eager`) stands beside.
//!
//! Values of `env`, `headers` and `args` may be secrets: no message repeats them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

use orla_document::{Key, Kind as Shape, Node, Position};
use orla_marketplace::id::{Pattern, is_name_char};
use orla_providers::NameRules;
use orla_providers::mcp::{Reach, ServerSettings};
use serde_json::{Value, json};

use super::keys::{Own, nearest};
use super::read::{Reader, excerpt, is_tool_name, unexpected};
use super::schema::{defined, pass_env, seconds, variable};
use super::{Config, Placed, dotenv};

/// `mcpServers` and `servers`.
pub(super) const KEY: Own = Own {
    read,
    schema,
    expected: "a mapping from names of servers to how they are reached",
    variable: None,
};

/// The keys of one server that mean something here.
const KEYS: [&str; 28] = [
    "command",
    "args",
    "env",
    "pass_env",
    "envFile",
    "cwd",
    "url",
    "serverUrl",
    "httpUrl",
    "headers",
    "type",
    "transport",
    "transportType",
    "disabled",
    "enabled",
    "timeout",
    "startup_timeout",
    "prefix",
    "rename",
    "include",
    "includeTools",
    "exclude",
    "excludeTools",
    "disabledTools",
    "tools",
    "eager",
    "http_headers",
    "env_file",
];

/// The keys that mean something to a client alone: whom it asks before a call, how it shows the server.
const PASSED_OVER: [&str; 18] = [
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

/// What `timeout` may be in seconds. What is more was meant in milliseconds, as some clients have it.
const MAX_SECONDS: f64 = 86_400.0;
/// The longest name that a server is known by: room is left for those of its tools.
const MAX_NAME: usize = 48;
/// Bytes of a file of environment variables that are read.
const MAX_ENV_FILE: u64 = 1024 * 1024;

/// What is read of one server, before it is known whether it makes sense.
#[derive(Default)]
struct Draft {
    command: Option<String>,
    args: Vec<String>,
    env: BTreeMap<String, String>,
    env_file: BTreeMap<String, String>,
    pass_env: Vec<Pattern>,
    cwd: Option<std::path::PathBuf>,
    url: Option<String>,
    headers: BTreeMap<String, String>,
    transport: Option<(String, Position)>,
    disabled: bool,
    timeout: Option<Duration>,
    startup_timeout: Option<Duration>,
    names: NameRules,
    tool_timeouts: BTreeMap<String, Duration>,
    eager: bool,
    unknown: Vec<(String, Position)>,
    /// Its command or address is none.
    is_unreachable: bool,
}

fn read(reader: &mut Reader<'_>, config: &mut Config, path: &'static str, node: &Node) {
    let Some(pairs) = reader.pairs(path, node, KEY.expected) else { return };
    let mut known: HashMap<String, Position> =
        config.servers.iter().map(|server| (server.value.name.clone(), server.at)).collect();
    for (name, node) in pairs {
        let place = format!("{path}.{}", excerpt(&name.text));
        let Some(draft) = draft(reader, config, &place, node) else { continue };
        let Some(mut settings) = settings(reader, &place, name, draft) else { continue };
        if let Some(first) = known.get(&settings.name) {
            let line = first.line;
            if settings.name == name.text {
                reader.problem(name.at, || format!("{place}: given twice, first on line {line}"));
                continue;
            }
            settings.name = unused(&settings.name, &known);
            let called = &settings.name;
            reader.warning(name.at, || {
                format!("{place}: another server has this name in MCP; its tools are called {called}__…")
            });
        }
        known.insert(settings.name.clone(), name.at);
        config.servers.push(Placed { value: settings, at: name.at });
    }
}

/// A name of which every character is one that MCP's names may have.
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

fn unused(name: &str, known: &HashMap<String, Position>) -> String {
    let mut number = 2_u64;
    loop {
        let candidate = format!("{name}_{number}");
        if !known.contains_key(&candidate) {
            return candidate;
        }
        number += 1;
    }
}

fn draft(reader: &mut Reader<'_>, config: &mut Config, place: &str, node: &Node) -> Option<Draft> {
    let pairs = reader.pairs(place, node, "a mapping with command or url")?;
    let mut draft = Draft::default();
    for (key, node) in pairs {
        field(reader, config, &mut draft, &format!("{place}.{}", excerpt(&key.text)), key, node);
    }
    // What is wrong with the way to it has been said.
    (!draft.is_unreachable).then_some(draft)
}

fn field(
    reader: &mut Reader<'_>,
    config: &mut Config,
    draft: &mut Draft,
    path: &str,
    key: &Key,
    node: &Node,
) {
    // Files that programs write have keys without a value.
    if node.is_null() {
        return;
    }
    match key.text.as_str() {
        "command" => {
            draft.command = reader.line(path, node, "a program").map(|text| program(reader, &text));
            draft.is_unreachable |= draft.command.is_none();
        }
        "args" => draft.args = reader.arguments(path, node).unwrap_or_default(),
        "env" => draft.env = reader.secrets(path, node, environment).unwrap_or_default(),
        "envFile" | "env_file" => draft.env_file = env_file(reader, config, path, node),
        "pass_env" => draft.pass_env = reader.variables(path, node),
        "cwd" => draft.cwd = reader.path_at(path, node),
        "url" | "serverUrl" | "httpUrl" => {
            draft.url = reader.url(path, node, "https://example.com/mcp");
            draft.is_unreachable |= draft.url.is_none();
        }
        "headers" | "http_headers" => {
            draft.headers = reader.secrets(path, node, header).unwrap_or_default();
        }
        "type" | "transport" | "transportType" => {
            draft.transport = reader.line(path, node, "text").map(|text| (text, node.at));
        }
        "disabled" => draft.disabled |= reader.flag(path, node, "true or false") == Some(true),
        "enabled" => draft.disabled |= reader.flag(path, node, "true or false") == Some(false),
        "timeout" => draft.timeout = timeout(reader, path, node),
        "startup_timeout" => draft.startup_timeout = reader.seconds(path, node),
        "prefix" => draft.names.prefix = prefix(reader, path, node),
        "rename" => draft.names.rename = renames(reader, path, node),
        "include" | "includeTools" => draft.names.include = reader.patterns(path, node),
        "exclude" | "excludeTools" | "disabledTools" => {
            draft.names.exclude.extend(reader.patterns(path, node).unwrap_or_default());
        }
        "tools" => tools(reader, draft, path, node),
        "eager" => draft.eager = reader.flag(path, node, "true or false") == Some(true),
        other if PASSED_OVER.contains(&other) => {}
        _ => draft.unknown.push((key.text.clone(), key.at)),
    }
}

/// What the draft describes, if it makes sense and is not switched off.
fn settings(reader: &mut Reader<'_>, place: &str, name: &Key, draft: Draft) -> Option<ServerSettings> {
    let nothing = draft.command.is_none() && draft.url.is_none();
    for (key, at) in &draft.unknown {
        let near = nearest(key, KEYS);
        let hint = near.map(|near| format!(", did you mean {near}?")).unwrap_or_default();
        let key = excerpt(key);
        if nothing && matches!(near, Some("command" | "url")) {
            reader
                .problem(*at, || format!("{place}.{key}: unknown key{hint} command or url is missing"));
            return None;
        }
        reader.warning(*at, || format!("{place}.{key}: unknown key, ignored{hint}"));
    }
    let reach = reach(reader, place, name, &draft)?;
    if is_itself(&reach, reader.path) {
        reader
            .warning(name.at, || format!("{place}: orla itself with this very configuration; left out"));
        return None;
    }
    let mut settings = ServerSettings::new(safe_name(&name.text), reach);
    settings.timeout = draft.timeout;
    settings.tool_timeouts = draft.tool_timeouts;
    settings.startup_timeout = draft.startup_timeout.unwrap_or(ServerSettings::STARTUP_TIMEOUT);
    settings.names = draft.names;
    settings.eager = draft.eager;
    (!draft.disabled).then_some(settings)
}

fn reach(reader: &mut Reader<'_>, place: &str, name: &Key, draft: &Draft) -> Option<Reach> {
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
            // As in a shell, what the file of variables says gives way to what stands here.
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

/// Whether this would start orla with the file that is being read, and so itself without end: clients' files
/// have such an entry, for `orla connect` writes it.
fn is_itself(reach: &Reach, file: &Path) -> bool {
    let Reach::Process { command, args, .. } = reach else { return false };
    let is_orla = Path::new(command).file_name().is_some_and(|name| name == "orla");
    let mut words = args.iter().map(String::as_str);
    let named = words.find_map(|word| word.strip_prefix("--config"));
    let named = named.map(|rest| rest.strip_prefix('=').or_else(|| words.next()).unwrap_or_default());
    let own = std::fs::canonicalize(file).ok();
    let same = |named: &str| own.is_some() && std::fs::canonicalize(named).ok() == own;
    is_orla && named.is_some_and(same)
}

/// A program's name in `PATH` as it is, and a path as the file means it.
pub(super) fn program(reader: &Reader<'_>, text: &str) -> String {
    match text.contains('/') {
        true => reader.beside(text).to_str().map_or_else(|| text.to_owned(), str::to_owned),
        false => text.to_owned(),
    }
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
    reader.seconds(path, node)
}

pub(super) fn prefix(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<String> {
    let text = reader.word_at(path, node, "text")?;
    if text.len() <= MAX_NAME && text.chars().all(is_name_char) {
        return Some(text);
    }
    let expected = format!("at most {MAX_NAME} letters, digits, `_` or `-`");
    reader.problem(node.at, || format!("{path}{}", unexpected(&expected, node)));
    None
}

pub(super) fn renames(reader: &mut Reader<'_>, path: &str, node: &Node) -> BTreeMap<String, String> {
    let expected = "a mapping from the server's names of tools to others";
    let Some(pairs) = reader.pairs(path, node, expected) else { return BTreeMap::new() };
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
    renames
}

/// What is said of single tools; as a list, which tools there are, as some clients have it.
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
        for (key, node) in pairs {
            if key.text == "timeout" {
                if let Some(timeout) = reader.seconds(&format!("{path}.timeout"), node) {
                    draft.tool_timeouts.insert(tool.text.clone(), timeout);
                }
            } else {
                reader.unknown(key.at, &key.text, &format!("{path}."), ["timeout"]);
            }
        }
    }
}

fn env_file(
    reader: &mut Reader<'_>,
    config: &mut Config,
    path: &str,
    node: &Node,
) -> BTreeMap<String, String> {
    let Some(file) = reader.path_at(path, node) else { return BTreeMap::new() };
    let read = super::read_text(&file, MAX_ENV_FILE).and_then(|text| {
        dotenv::parse(&text).map_err(|err| format!("{}:{}: {}", file.display(), err.line, err.problem))
    });
    config.named_files.push(file);
    read.unwrap_or_else(|problem| {
        reader.problem(node.at, || format!("{path}: {problem}"));
        BTreeMap::new()
    })
}

pub(super) fn environment(name: &str, value: &str) -> Result<(), &'static str> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err("a name that an environment variable can have");
    }
    if value.contains('\0') { Err("text without NUL") } else { Ok(()) }
}

/// A header field, as HTTP has it.
pub(super) fn header(name: &str, value: &str) -> Result<(), &'static str> {
    let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if name.is_empty() || !name.chars().all(is_token) {
        return Err("a name that a header field can have");
    }
    if value.chars().any(|c| c.is_control() && c != '\t') {
        return Err("text in one line");
    }
    Ok(())
}

impl Reader<'_> {
    /// The address of an endpoint, such as `example`. What stands before an `@`, and in the query, may be a secret.
    pub(super) fn url(&mut self, path: &str, node: &Node, example: &str) -> Option<String> {
        let url = self.secret(path, node)?;
        let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
        let host = rest.map(|rest| rest.split(['/', '?', '#']).next().unwrap_or_default());
        let is_one = host.is_some_and(|host| !host.is_empty() && !host.ends_with('@'))
            && !url.contains(|c: char| c.is_whitespace() || c.is_control());
        if !is_one {
            self.problem(node.at, || {
                let hint = match url.contains("://") {
                    true => "",
                    false => "; put http:// or https:// in front",
                };
                format!("{path}: expected an address such as {example}{hint}")
            });
        }
        is_one.then_some(url)
    }

    /// A list of arguments, which may be secrets.
    pub(super) fn arguments(&mut self, path: &str, node: &Node) -> Option<Vec<String>> {
        let Shape::List(items) = &node.kind else {
            self.problem(node.at, || format!("{path}: expected a list of texts"));
            return None;
        };
        let args = items.iter().enumerate();
        Some(args.filter_map(|(index, item)| self.secret(&format!("{path}[{index}]"), item)).collect())
    }
}

fn schema() -> Value {
    json!({"type": "object", "additionalProperties": defined("server")})
}

/// The schema of one server.
pub(super) fn definition() -> Value {
    let texts = json!({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}});
    let list = json!({"type": "array", "items": {"type": "string"}});
    let flag = json!({"anyOf": [{"type": "boolean"}, variable()]});
    let seconds = json!({"anyOf": [seconds(86_400), variable()]});
    json!({"type": "object", "properties": {
        "command": {"type": "string", "description": "The program: a path, or a name in PATH."},
        "args": {"type": "array", "items": {"type": ["string", "number", "boolean"]}},
        "env": texts,
        "pass_env": pass_env(),
        "envFile": {"type": "string", "description": "A file of NAME=VALUE lines."},
        "cwd": {"type": "string", "description": "Where the program runs."},
        "url": {"type": "string", "description": "The endpoint of a server that is reached over HTTP."},
        "headers": texts,
        "type": {"type": "string", "description": "stdio or http; by default, what command or url say."},
        "disabled": flag,
        "timeout": {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, variable()],
            "description": "Seconds that one call may take."},
        "startup_timeout": {"anyOf": [seconds], "description": "Seconds that it may take to answer its first request."},
        "prefix": {"type": "string", "description": "Stands before the names of its tools instead of NAME__."},
        "rename": {"type": "object", "additionalProperties": {"type": "string"},
            "description": "Other names for single tools."},
        "include": {"anyOf": [list], "description": "Patterns of the tools that are served; all by default."},
        "exclude": {"anyOf": [list], "description": "Patterns of the tools that are not."},
        "tools": {"description": "What is different for single tools.", "anyOf": [list, {"type": "object",
            "additionalProperties": {"type": "object", "properties": {"timeout": seconds}, "additionalProperties": false}}]},
        "eager": {"anyOf": [flag], "description": "Start it with orla, and not at its first use."},
    }})
}

//! The manifest of a package: `tool.yaml`, or `orla-tool.json` (RFC 2 §6).
//!
//! | `tool.yaml` | `orla-tool.json` | meaning |
//! |---|---|---|
//! | `name`, `version`, `entrypoint` | the same | required |
//! | `description`, `permissions` | the same | what it does, and what it needs |
//! | `mcp.input_schema`, `mcp.output_schema` | the same | JSON Schema or the shorthand `field: type`; enforced |
//! | `mcp.prefix` | the same | what a capsule's tools and prompts have before their names; `NAME__` |
//! | `runtime.mode` | always `capsule` | `simple` (a process per call) or `capsule` (one that stays) |
//! | `runtime.startup_timeout_ms` | `startup_timeout_ms` | until the handshake; 5000 |
//! | `runtime.hot_load` | `hot_load` | `watch` (paths), `mode` (`restart`), `debounce_ms` (100) |
//! | `runtime.env`, `runtime.args` | `env`, `args` | environment and arguments of the process |
//! | `runtime.pass_env` | `pass_env` | patterns of the server's variables that the process gets |
//! | `runtime.eager` | `eager` | start with the server, not at the first use |
//!
//! `author`, `license`, `repository`, `homepage`, `keywords`, `dependencies` and `language` are for
//! users and other programs. Any other field is a warning, and a fault of the tool if it looks like a
//! misplaced or misspelt schema or confinement. All problems are reported, each with its place. Pure
//! functions.

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use orla_document::{Key, Kind, Node, Position, Scalar, SyntaxError};
use orla_marketplace::TaskSupport;
use orla_marketplace::id::Pattern;
use orla_marketplace::rtfs::TypeExpr;
use orla_marketplace::rtfs::text::{excerpt, nearest};
use orla_marketplace::schema::{SchemaError, doubt, input_from_declaration, schema_from_declaration};
use orla_process::confinement::Declared;
use semver::Version;

use super::packages::MANIFESTS;
use crate::tool::metadata::{
    Remark, env, limits, pass_env, permissions, stray_references, task, unread_confinement,
    unread_schema,
};

/// The manifest of a package.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// The name, unique within an instance.
    pub name: String,
    /// The version.
    pub version: Version,
    /// The program, relative to the package's directory.
    pub entrypoint: PathBuf,
    /// The place of the entrypoint in the file.
    pub entrypoint_at: Position,
    /// The description.
    pub description: Option<String>,
    /// The required permissions, and the confinement.
    pub declared: Declared,
    /// The schema of the input.
    pub input_schema: Option<TypeExpr>,
    /// The schema of the output.
    pub output_schema: Option<TypeExpr>,
    /// The prefix of the names of tools and prompts, if there is one; may be empty.
    pub prefix: Option<String>,
    /// Whether each call has its own process, or one process serves all calls.
    pub mode: Mode,
    /// The timeout of a process until it says hello.
    pub startup_timeout: Duration,
    /// When changed files restart the package; `None` means never.
    pub hot_load: Option<HotLoad>,
    /// Variables of the process.
    pub env: Vec<(String, String)>,
    /// Patterns of the server's variables that the process gets besides the usual ones.
    pub pass_env: Vec<Pattern>,
    /// The arguments of the entrypoint.
    pub args: Vec<String>,
    /// Whether the package starts with the server.
    pub eager: bool,
    /// Whether the tools are called as tasks.
    pub task: Option<TaskSupport>,
    /// The first schema that cannot be enforced. Everything else is valid.
    pub fault: Option<Remark>,
}

/// The process model of a package.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A process per call, like a file in the tools directory.
    #[default]
    Simple,
    /// One supervised process for all calls (RFC 2).
    Capsule,
}

/// The files that restart a capsule when they change (RFC 2 §6.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotLoad {
    /// Files and directories, relative to the package's directory.
    pub watch: Vec<PathBuf>,
    /// How long the files must be unchanged before the restart.
    pub debounce: Duration,
}

impl Default for HotLoad {
    fn default() -> Self {
        Self { watch: vec![PathBuf::from(".")], debounce: DEBOUNCE }
    }
}

/// The form of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `tool.yaml`.
    Yaml,
    /// `orla-tool.json`.
    Json,
}

impl Form {
    /// Returns the file's name.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Yaml => MANIFESTS[0],
            Self::Json => MANIFESTS[1],
        }
    }
}

const STARTUP_TIMEOUT: Duration = Duration::from_secs(5);
const DEBOUNCE: Duration = Duration::from_millis(100);
/// The longest duration in a manifest: a day.
const MAX_MS: u64 = 24 * 60 * 60 * 1000;
/// The maximum length of a name.
const MAX_NAME: usize = 128;
/// The maximum length of a prefix; a served name has at most 64 characters.
const MAX_PREFIX: usize = 40;

const COMMON: &[&str] = &[
    "name",
    "version",
    "entrypoint",
    "description",
    "permissions",
    "limits",
    "task",
    "mcp",
    "language",
];
const FOR_PEOPLE: &[&str] = &["author", "license", "repository", "homepage", "keywords", "dependencies"];
const RUNTIME: &[&str] = &["startup_timeout_ms", "hot_load", "env", "pass_env", "args", "eager"];

/// Reads a manifest. The remarks list its problems in the order of the text. If there is no manifest, at least one
/// remark is an error.
pub fn read(bytes: &[u8], form: Form) -> (Option<Manifest>, Vec<Remark>) {
    let mut reader = Reader { remarks: Vec::new(), faults: Vec::new(), is_unclear: false };
    let manifest = match parse(bytes, form) {
        Ok(node) => reader.manifest(&node, form),
        Err(err) => {
            reader.problem(err.at, err.problem);
            None
        }
    };
    let mut remarks = reader.remarks;
    let is_sound = remarks.iter().all(|remark| !remark.is_problem);
    remarks.append(&mut reader.faults);
    remarks.sort_by_key(|remark| (remark.at.line, remark.at.column));
    (manifest.filter(|_| is_sound), remarks)
}

/// Returns the first place at which a manifest has this value.
pub(super) fn place_of(bytes: &[u8], form: Form, value: &str) -> Option<Position> {
    fn find(node: &Node, value: &str) -> Option<Position> {
        match &node.kind {
            Kind::Scalar(scalar) => (scalar.text == value).then_some(node.at),
            Kind::List(items) => items.iter().find_map(|item| find(item, value)),
            Kind::Map(members) => members.iter().find_map(|(_, node)| find(node, value)),
        }
    }
    find(&parse(bytes, form).ok()?, value)
}

fn parse(bytes: &[u8], form: Form) -> Result<Node, SyntaxError> {
    let text = orla_document::decode(bytes)?;
    let root = match form {
        Form::Yaml => orla_document::parse(text),
        Form::Json => orla_document::parse_json(text),
    };
    Ok(root?.unwrap_or_else(Node::nothing))
}

struct Reader {
    remarks: Vec<Remark>,
    /// Problems of schemas and of confinement. They make the capability unavailable, but not the
    /// package.
    faults: Vec<Remark>,
    /// Whether a part that may concern confinement cannot be read.
    is_unclear: bool,
}

type Members = [(Key, Node)];

impl Reader {
    fn manifest(&mut self, node: &Node, form: Form) -> Option<Manifest> {
        let members = self.members(node, "a manifest")?;
        let runtime_keys: Vec<&str> = [&["mode"], RUNTIME].concat();
        let (known, runtime) = match form {
            Form::Yaml => {
                let runtime = get(members, "runtime").and_then(|node| self.members(node, "runtime"));
                (vec![COMMON, FOR_PEOPLE, &["runtime"]], runtime.unwrap_or_default())
            }
            Form::Json => (vec![COMMON, FOR_PEOPLE, RUNTIME], members),
        };
        self.unknown(members, &known.concat(), "");
        if form == Form::Yaml {
            self.unknown(runtime, &runtime_keys, "runtime.");
        }
        let mcp = get(members, "mcp").and_then(|node| self.members(node, "mcp")).unwrap_or_default();
        self.unknown(mcp, &["input_schema", "output_schema", "prefix"], "mcp.");
        let is_filled_in = |key: &Key| matches!(&*key.text, "env" | "args");
        let own = members.iter().filter(|(key, _)| COMMON.contains(&&*key.text));
        for (key, node) in own.chain(runtime.iter().filter(|(key, _)| !is_filled_in(key))) {
            for (at, message) in stray_references(&key.text, node) {
                self.problem(at, message);
            }
        }
        let in_runtime =
            |key: &str| if form == Form::Yaml { format!("runtime.{key}") } else { key.to_owned() };

        let name = self.required(node, members, "name", name);
        let version = self.required(node, members, "version", version);
        let entrypoint = self.required(node, members, "entrypoint", entrypoint);
        let description = self.optional(members, "description", "description", text);
        let permissions = self.confining(members, "permissions", permissions);
        let limits = self.confining(members, "limits", limits);
        let task = self.optional(members, "task", "task", task);
        let input_schema = self.schema(mcp, "input_schema", input_from_declaration);
        let output_schema = self.schema(mcp, "output_schema", schema_from_declaration);
        let prefix = self.optional(mcp, "prefix", "mcp.prefix", prefix);
        let mode = match form {
            Form::Yaml => self.optional(runtime, "mode", "runtime.mode", mode).unwrap_or_default(),
            Form::Json => Mode::Capsule,
        };
        let startup =
            self.optional(runtime, "startup_timeout_ms", &in_runtime("startup_timeout_ms"), |node| {
                milliseconds(node, 1)
            });
        let env = self.optional(runtime, "env", &in_runtime("env"), env);
        let pass_env = self.optional(runtime, "pass_env", &in_runtime("pass_env"), pass_env);
        let args = self.optional(runtime, "args", &in_runtime("args"), texts);
        let eager = self.optional(runtime, "eager", &in_runtime("eager"), boolean);
        let hot_load =
            get(runtime, "hot_load").and_then(|node| self.hot_load(node, &in_runtime("hot_load")));
        Some(Manifest {
            name: name?,
            version: version?,
            entrypoint_at: get(members, "entrypoint").map_or(Position::START, |node| node.at),
            entrypoint: entrypoint?,
            description,
            declared: Declared {
                permissions,
                limits: limits.unwrap_or_default(),
                is_unclear: self.is_unclear,
                ..Declared::default()
            },
            input_schema,
            output_schema,
            prefix,
            mode,
            startup_timeout: startup.unwrap_or(STARTUP_TIMEOUT),
            hot_load,
            env: env.unwrap_or_default(),
            pass_env: pass_env.unwrap_or_default(),
            args: args.unwrap_or_default(),
            eager: eager.unwrap_or_default(),
            task,
            fault: self.faults.first().cloned(),
        })
    }

    fn hot_load(&mut self, node: &Node, path: &str) -> Option<HotLoad> {
        let members = self.members(node, path)?;
        self.unknown(members, &["watch", "mode", "debounce_ms"], &format!("{path}."));
        let watch = self.optional(members, "watch", &format!("{path}.watch"), paths);
        self.optional(members, "mode", &format!("{path}.mode"), |node| match text(node)?.as_str() {
            "restart" => Ok(()),
            _ => Err(expected("restart, the only mode there is", node)),
        });
        let debounce = self.optional(members, "debounce_ms", &format!("{path}.debounce_ms"), |node| {
            milliseconds(node, 0)
        });
        let watch = watch.unwrap_or_else(|| vec![PathBuf::from(".")]);
        (!watch.is_empty()).then(|| HotLoad { watch, debounce: debounce.unwrap_or(DEBOUNCE) })
    }

    fn members<'a>(&mut self, node: &'a Node, what: &str) -> Option<&'a Members> {
        match &node.kind {
            Kind::Map(members) => Some(members),
            Kind::Scalar(scalar) if scalar.is_null() && what != "a manifest" => None,
            _ => {
                self.problem(node.at, format!("{what}: {}", expected("keys with values", node)));
                None
            }
        }
    }

    fn required<T>(
        &mut self,
        node: &Node,
        members: &Members,
        key: &str,
        read: impl Fn(&Node) -> Result<T, String>,
    ) -> Option<T> {
        if get(members, key).is_none() {
            self.problem(node.at, format!("{key}: missing, and required"));
        }
        self.optional(members, key, key, read)
    }

    fn optional<T>(
        &mut self,
        members: &Members,
        key: &str,
        path: &str,
        read: impl Fn(&Node) -> Result<T, String>,
    ) -> Option<T> {
        let node = get(members, key)?;
        match read(node) {
            Ok(value) => Some(value),
            Err(problem) => {
                self.problem(node.at, format!("{path}: {problem}"));
                None
            }
        }
    }

    /// Reads a part that concerns confinement. If it is invalid, nothing runs.
    fn confining<T>(
        &mut self,
        members: &Members,
        key: &str,
        read: impl Fn(&Node) -> Result<T, String>,
    ) -> Option<T> {
        let node = get(members, key)?;
        let fault =
            |problem| Remark { at: node.at, message: format!("{key}: {problem}"), is_problem: true };
        let value = read(node).map_err(|problem| self.faults.push(fault(problem))).ok();
        self.is_unclear |= value.is_none();
        value
    }

    fn schema(
        &mut self,
        mcp: &Members,
        key: &str,
        read: impl Fn(&serde_json::Value) -> Result<TypeExpr, SchemaError>,
    ) -> Option<TypeExpr> {
        let node = get(mcp, key)?;
        let declared = node.to_json();
        let message = doubt(&declared).map(|doubt| format!("mcp.{key}: {doubt}"));
        self.remarks.extend(message.map(|message| Remark { at: node.at, message, is_problem: false }));
        let schema = read(&declared);
        let fault = |err: SchemaError| Remark {
            at: node.place_of(&err.path),
            message: format!("mcp.{key}: {err}"),
            is_problem: true,
        };
        schema.map_err(|err| self.faults.push(fault(err))).ok()
    }

    fn unknown(&mut self, members: &Members, known: &[&str], prefix: &str) {
        for (key, node) in members {
            if !known.contains(&key.text.as_str()) {
                let hint = nearest(&key.text, known.iter().copied())
                    .map(|near| format!(", did you mean {near}?"));
                let shown = excerpt(&key.text, 60);
                let confinement =
                    || unread_confinement(&key.text, node).inspect(|_| self.is_unclear = true);
                if let Some(problem) = unread_schema(&key.text, "mcp.").or_else(confinement) {
                    let message = format!("{prefix}{shown}: {problem}");
                    self.faults.push(Remark { at: key.at, message, is_problem: true });
                    continue;
                }
                let hint = proper_place(&key.text, prefix).or(hint);
                let message = format!("{prefix}{shown}: unknown field{}", hint.unwrap_or_default());
                self.remarks.push(Remark { at: key.at, message, is_problem: false });
            }
        }
    }

    fn problem(&mut self, at: Position, message: String) {
        self.remarks.push(Remark { at, message, is_problem: true });
    }
}

/// Returns the proper place of a misplaced field, such as one from a script's header.
fn proper_place(key: &str, prefix: &str) -> Option<String> {
    match key {
        "prefix" => Some(": a package has it in `mcp` (mcp.prefix)".to_owned()),
        "timeout" => Some(": set tools.NAME.timeout in the configuration of orla".to_owned()),
        _ if prefix.is_empty() && (key == "mode" || RUNTIME.contains(&key)) => {
            Some(format!(": it belongs in `runtime` (runtime.{key})"))
        }
        _ => None,
    }
}

fn get<'a>(members: &'a Members, key: &str) -> Option<&'a Node> {
    let (_, node) = members.iter().find(|(known, _)| known.text == key)?;
    Some(node)
}

fn expected(what: &str, got: &Node) -> String {
    format!("expected {what}, got {}", excerpt(got.to_json(), 60))
}

fn text(node: &Node) -> Result<String, String> {
    match node.as_text() {
        Some(text) if text.contains('\0') => Err("text without NUL is expected".into()),
        Some(text) if !text.trim().is_empty() => Ok(text.trim().to_owned()),
        _ => Err(expected("text", node)),
    }
}

fn prefix(node: &Node) -> Result<String, String> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    match node.as_text() {
        Some(prefix) if prefix.len() <= MAX_PREFIX && prefix.bytes().all(is_part) => {
            Ok(prefix.to_owned())
        }
        _ => Err(expected(&format!("at most {MAX_PREFIX} letters, digits, _ and -"), node)),
    }
}

/// Returns a text; in `args: [-n, 5]` the number becomes text.
fn verbatim(node: &Node) -> Option<String> {
    let scalar = node.as_scalar().filter(|scalar| !scalar.is_null() && !scalar.text.contains('\0'))?;
    Some(scalar.text.clone())
}

fn texts(node: &Node) -> Result<Vec<String>, String> {
    const WHAT: &str = "a list of texts without NUL";
    let Kind::List(items) = &node.kind else { return Err(expected(WHAT, node)) };
    items.iter().map(|item| verbatim(item).ok_or_else(|| expected(WHAT, item))).collect()
}

fn paths(node: &Node) -> Result<Vec<PathBuf>, String> {
    match node.as_text() {
        Some(path) if !path.is_empty() => Ok(vec![PathBuf::from(path)]),
        _ => Ok(texts(node)?.into_iter().map(PathBuf::from).collect()),
    }
}

fn boolean(node: &Node) -> Result<bool, String> {
    let value = node.as_scalar().and_then(Scalar::as_bool);
    value.ok_or_else(|| expected("true or false", node))
}

fn milliseconds(node: &Node, least: u64) -> Result<Duration, String> {
    node.to_json()
        .as_u64()
        .filter(|number| (least..=MAX_MS).contains(number))
        .map(Duration::from_millis)
        .ok_or_else(|| expected(&format!("milliseconds from {least} to {MAX_MS}"), node))
}

fn mode(node: &Node) -> Result<Mode, String> {
    match node.as_text() {
        Some("simple") => Ok(Mode::Simple),
        Some("capsule") => Ok(Mode::Capsule),
        _ => Err(expected("simple or capsule", node)),
    }
}

fn name(node: &Node) -> Result<String, String> {
    let name = text(node)?;
    if name.len() > MAX_NAME || name.contains(|c: char| c.is_control() || c == '/') {
        return Err(expected(&format!("a name of at most {MAX_NAME} bytes without slashes"), node));
    }
    Ok(name)
}

fn version(node: &Node) -> Result<Version, String> {
    let Some(text) = node.as_text() else {
        return Err(format!("{} (in quotes)", expected("a semantic version such as \"1.2.3\"", node)));
    };
    Version::parse(text)
        .map_err(|err| format!("{} ({err})", expected("a semantic version such as 1.2.3", node)))
}

fn entrypoint(node: &Node) -> Result<PathBuf, String> {
    let path = PathBuf::from(text(node)?);
    if !stays_inside(&path) {
        return Err(expected("a path within the package, relative and without ..", node));
    }
    Ok(path)
}

/// Returns whether a path, by its text alone, leads to a place below its start.
fn stays_inside(path: &Path) -> bool {
    let mut parts = path.components().filter(|part| !matches!(part, Component::CurDir)).peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn remarks(text: &str, form: Form) -> Vec<String> {
        let (_, remarks) = read(text.as_bytes(), form);
        let kind = |remark: &Remark| if remark.is_problem { "problem" } else { "warning" };
        remarks
            .iter()
            .map(|r| format!("{}:{}: {}: {}", r.at.line, r.at.column, kind(r), r.message))
            .collect()
    }

    #[test]
    fn a_json_manifest_is_a_capsule_with_the_fields_of_the_document() {
        let text = r#"{"name": "example-tool", "version": "1.2.3", "entrypoint": "main.py", "language": "python",
            "hot_load": {"watch": ["./"], "mode": "restart", "debounce_ms": 50},
            "env": {"LOG_LEVEL": "debug", "N": 3}, "args": ["--fast", 2], "startup_timeout_ms": 700}"#;
        let (manifest, remarks) = read(text.as_bytes(), Form::Json);
        assert_eq!(remarks, []);
        let manifest = manifest.unwrap();
        assert_eq!((manifest.name.as_str(), manifest.mode), ("example-tool", Mode::Capsule));
        assert_eq!(manifest.version, Version::new(1, 2, 3));
        let hot_load = HotLoad { watch: vec!["./".into()], debounce: Duration::from_millis(50) };
        assert_eq!(manifest.hot_load, Some(hot_load));
        assert_eq!(manifest.env, [("LOG_LEVEL".into(), "debug".into()), ("N".into(), "3".into())]);
        assert_eq!(manifest.args, ["--fast", "2"]);
        assert_eq!(manifest.startup_timeout, Duration::from_millis(700));
    }

    #[test]
    fn a_yaml_manifest_is_simple_unless_it_says_otherwise() {
        let least = "name: t\nversion: 1.0.0\nentrypoint: run.sh\n";
        let (manifest, remarks) = read(least.as_bytes(), Form::Yaml);
        let manifest = manifest.unwrap();
        assert_eq!((manifest.mode, manifest.hot_load, remarks), (Mode::Simple, None, vec![]));
        assert_eq!(manifest.startup_timeout, Duration::from_secs(5));
        let whole = format!(
            "{least}description: Does.\nauthor: me\nlicense: MIT\nrepository: r\nhomepage: h\nkeywords: [a]\n\
             dependencies: {{}}\nlanguage: sh\npermissions: [net]\nmcp:\n  prefix: ''\n  input_schema:\n    path: string\n\
             runtime:\n  mode: capsule\n  hot_load: {{}}\n  env: {{A: b}}\n  args: [-n, 5]\n  eager: true\n"
        );
        let (manifest, remarks) = read(whole.as_bytes(), Form::Yaml);
        assert_eq!(remarks, []);
        let manifest = manifest.unwrap();
        assert_eq!((manifest.mode, manifest.eager), (Mode::Capsule, true));
        assert_eq!(manifest.prefix.as_deref(), Some(""));
        assert!(manifest.input_schema.is_some() && manifest.output_schema.is_none());
        assert_eq!(manifest.hot_load.unwrap().watch, [PathBuf::from(".")]);
    }

    #[test]
    fn problems_are_reported_with_their_place() {
        let with = |line: &str| format!("name: t\nversion: 1.0.0\nentrypoint: run.sh\n{line}\n");
        let problem = |text: String| -> Vec<String> { remarks(&text, Form::Yaml) };
        let cases = [
            (
                "runtime: {mode: fast}",
                "4:17: problem: runtime.mode: expected simple or capsule, got \"fast\"",
            ),
            (
                "runtime: {hot_load: {mode: patch}}",
                "4:28: problem: runtime.hot_load.mode: expected restart, the only mode there is, got \"patch\"",
            ),
            (
                "runtime: {startup_timeout_ms: -1}",
                "4:31: problem: runtime.startup_timeout_ms: expected milliseconds from 1 to 86400000, got -1",
            ),
            (
                "runtime: {env: [A]}",
                "4:16: problem: runtime.env: expected names with values, got [\"A\"]",
            ),
            (
                "runtime: {args: -n}",
                "4:17: problem: runtime.args: expected a list of texts without NUL, got \"-n\"",
            ),
            ("runtime: 3", "4:10: problem: runtime: expected keys with values, got 3"),
            ("descripton: x", "4:1: warning: descripton: unknown field, did you mean description?"),
            (
                "input_schema: {text: string}",
                "4:1: problem: input_schema: unknown key, did you mean mcp.input_schema? The tool does not run, as the schema would not be enforced",
            ),
            (
                "outputSchema: {}",
                "4:1: problem: outputSchema: unknown key, did you mean mcp.output_schema?",
            ),
            (
                "mcp: {inputSchema: {limits: {}}}",
                "4:7: problem: mcp.inputSchema: unknown key, did you mean mcp.input_schema?",
            ),
            ("mcp: {schema: {}}", "4:7: warning: mcp.schema: unknown field"),
            ("prefix: x", "4:1: warning: prefix: unknown field: a package has it in `mcp` (mcp.prefix)"),
            (
                "timeout: 5",
                "4:1: warning: timeout: unknown field: set tools.NAME.timeout in the configuration of orla",
            ),
            ("args: [-n]", "4:1: warning: args: unknown field: it belongs in `runtime` (runtime.args)"),
            ("runtime: {colour: x}", "4:11: warning: runtime.colour: unknown field"),
            ("mcp: {input_schema: {path: strng}}", "4:28: problem: mcp.input_schema: path: "),
            (
                "mcp: {prefix: a b}",
                "4:15: problem: mcp.prefix: expected at most 40 letters, digits, _ and -, got \"a b\"",
            ),
        ];
        for (line, expected) in cases {
            let got = problem(with(line));
            assert!(got.len() == 1 && got[0].starts_with(expected), "{line}: {got:?}");
        }
        assert_eq!(
            problem("name: 3\nentrypoint: ../../bin/sh\nversion: one\n".into()),
            [
                "1:7: problem: name: expected text, got 3",
                "2:13: problem: entrypoint: expected a path within the package, relative and without .., got \"../../bin/sh\"",
                "3:10: problem: version: expected a semantic version such as 1.2.3, got \"one\" (unexpected character 'o' while parsing major version number)",
            ]
        );
        assert_eq!(
            problem("version: 1.0\nname: x\n".into()),
            [
                "1:1: problem: entrypoint: missing, and required",
                "1:10: problem: version: expected a semantic version such as \"1.2.3\", got 1.0 (in quotes)",
            ]
        );
        assert_eq!(
            remarks(
                "{\"name\": \"x\",\n \"version\": \"1.0.0\", \"entrypoint\": \"/bin/sh\",}",
                Form::Json
            ),
            ["2:46: problem: trailing comma"]
        );
        assert_eq!(
            remarks("[]", Form::Json),
            ["1:1: problem: a manifest: expected keys with values, got []"]
        );
    }

    #[test]
    fn a_mark_at_the_beginning_is_no_error_and_other_bytes_are() {
        let text = b"\xef\xbb\xbfname: t\nversion: 1.0.0\nentrypoint: run.sh\n";
        assert!(read(text, Form::Yaml).0.is_some());
        let (manifest, remarks) = read(b"name: \xff\n", Form::Yaml);
        assert!(manifest.is_none());
        assert_eq!((remarks[0].at.column, remarks[0].message.as_str()), (7, "not UTF-8 (at byte 6)"));
    }

    #[test]
    fn an_entrypoint_stays_within_its_package() {
        for (path, inside) in [
            ("main.py", true),
            ("./bin/run", true),
            ("a/../b", false),
            ("..", false),
            ("/bin/sh", false),
            (".", false),
            ("../x", false),
        ] {
            assert_eq!(stays_inside(Path::new(path)), inside, "{path}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..80),
            text in r#"(name|version|entrypoint|runtime|mcp|env|args|hot_load|: |\n|  |\{|\}|\[|\]|"|,|1|-|x|\.\.|/){0,40}"#,
        ) {
            for form in [Form::Yaml, Form::Json] {
                let _ = read(&bytes, form);
                let (manifest, remarks) = read(text.as_bytes(), form);
                prop_assert!(manifest.is_some() || remarks.iter().any(|remark| remark.is_problem));
            }
        }
    }
}

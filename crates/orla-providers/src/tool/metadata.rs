//! The metadata of a tool: the keys of its metadata block, or of its sidecar `NAME.orla.yaml`.
//!
//! | key | meaning |
//! |---|---|
//! | `title` | the name for people |
//! | `description` | what it does, in words a model can choose by |
//! | `input_schema`, `output_schema` | JSON Schema, the shorthand `field: type`, or a type of RTFS; enforced |
//! | `output` | what standard output is: `text`, `json`, or `mcp` (a whole MCP tool result) |
//! | `timeout` | seconds one call may take, fractions allowed |
//! | `args` | arguments that come before those of the call |
//! | `env` | environment variables, by name |
//! | `annotations` | MCP's hints: `readOnlyHint`, `destructiveHint`, `idempotentHint`, `openWorldHint` |
//! | `permissions` | what it needs to be allowed, and is confined to |
//! | `limits` | what its processes may use |
//! | `prestart` | how many processes wait for a call before it comes; they read their arguments from standard input |
//! | `task` | whether it is called as a task: `required`, `optional` or `forbidden` |
//! | `pass_env` | patterns of the server's variables that it gets besides the usual ones |
//!
//! Each key is read independently, so that every fault is reported with its place in the file. A tool
//! with a fault is unavailable, because its declaration could not be enforced. An unknown key is a
//! warning, and a fault if it looks like a misspelt `permissions`, `limits` or schema, or has a
//! confinement below it. Pure functions.

use std::time::Duration;

use orla_document::{Key, Kind, Node, Position};
use orla_marketplace::id::Pattern;
use orla_marketplace::rtfs::TypeExpr;
use orla_marketplace::rtfs::text::{excerpt, is_misspelt, nearest};
use orla_marketplace::schema::{SchemaError, doubt, input_from_declaration, schema_from_declaration};
use orla_marketplace::{
    ANNOTATIONS, CapabilityManifest, HINTS, TITLE, TaskSupport, is_annotation, meant_hint,
};
use orla_process::confinement::{Declared, Limits};
use orla_process::environment::check_pattern;
use serde_json::Value;

use super::header::Block;

/// The metadata of a tool. Everything is optional.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    /// The name for users.
    pub title: Option<String>,
    /// The description.
    pub description: Option<String>,
    /// The schema of the input.
    pub input_schema: Option<TypeExpr>,
    /// The schema of the output.
    pub output_schema: Option<TypeExpr>,
    /// The form of the standard output.
    pub output: Option<OutputForm>,
    /// The timeout of one call.
    pub timeout: Option<Duration>,
    /// Arguments that precede those of the call.
    pub args: Vec<String>,
    /// Environment variables of its process.
    pub env: Vec<(String, String)>,
    /// MCP's hints on the tool, a JSON object.
    pub annotations: Option<Value>,
    /// The required permissions, and the confinement.
    pub declared: Declared,
    /// The number of processes that are started before a call.
    pub prestart: Option<usize>,
    /// Whether the tool is called as a task.
    pub task: Option<TaskSupport>,
    /// Patterns of the server's variables that it gets besides the usual ones.
    pub pass_env: Vec<Pattern>,
    /// The texts of `env` and `args` that may refer to secrets, with their places.
    pub(super) references: Vec<(String, Position)>,
}

impl Metadata {
    /// Adds the metadata to the tool's manifest, except for its description and its permissions.
    pub fn complete(self, manifest: &mut CapabilityManifest) {
        manifest.input_schema = self.input_schema.or(manifest.input_schema.take());
        manifest.output_schema = self.output_schema.or(manifest.output_schema.take());
        if let Some(title) = self.title {
            manifest.metadata.insert(TITLE.to_owned(), title);
        }
        if let Some(annotations) = self.annotations {
            manifest.metadata.insert(ANNOTATIONS.to_owned(), annotations.to_string());
        }
        if let Some(support) = self.task {
            manifest.set_task_support(support);
        }
    }

    /// Returns the metadata of a description that cannot be read.
    pub(super) fn unread() -> Self {
        let declared = Declared { is_unclear: true, ..Declared::default() };
        Self { declared, ..Self::default() }
    }
}

/// The maximum number of prestarted processes of one tool.
pub const MAX_PRESTART: usize = 64;

/// The form of a tool's standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputForm {
    /// Text, or bytes of any kind.
    #[default]
    Text,
    /// One JSON value.
    Json,
    /// One JSON object in the form of an MCP tool result, which is passed on unchanged.
    Mcp,
}

/// A remark on a description for its author.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// The position.
    pub at: Position,
    /// The message.
    pub message: String,
    /// Whether a declaration is not in force, so that `orla check` fails.
    pub is_problem: bool,
}

/// The kind of the described file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A file that a process runs.
    Executable,
    /// A program in RTFS. Some keys are faults for it, because no process runs it.
    Program,
}

/// Reads the metadata in a comment block. Positions refer to the surrounding file.
pub fn read_block(block: &Block, subject: Subject) -> (Metadata, Vec<Remark>) {
    // Empty lines stand for the preceding lines of the file, so that line numbers in messages are those
    // of the file.
    let before = block.first_line - 1;
    read(&format!("{}{}", "\n".repeat(before), block.yaml), subject, |at| {
        let cut = at.line.checked_sub(block.first_line).and_then(|line| block.cut.get(line));
        Position { line: at.line, column: at.column + cut.copied().unwrap_or(0) }
    })
}

/// Reads the metadata in a separate file.
pub fn read_file(bytes: &[u8], subject: Subject) -> (Metadata, Vec<Remark>) {
    match orla_document::decode(bytes) {
        Ok(yaml) => read(yaml, subject, |at| at),
        Err(err) => {
            let remark = Remark { at: err.at, message: err.problem, is_problem: true };
            (Metadata::unread(), vec![remark])
        }
    }
}

fn read(yaml: &str, subject: Subject, place: impl Fn(Position) -> Position) -> (Metadata, Vec<Remark>) {
    let mut reader = Reader { subject, metadata: Metadata::default(), remarks: Vec::new() };
    match orla_document::parse(yaml) {
        Ok(None) => {}
        Ok(Some(root)) => reader.root(&root),
        Err(err) => {
            reader.metadata = Metadata::unread();
            reader.remark(err.at, err.problem, true);
        }
    }
    for remark in &mut reader.remarks {
        remark.at = place(remark.at);
    }
    for (_, at) in &mut reader.metadata.references {
        *at = place(*at);
    }
    (reader.metadata, reader.remarks)
}

const KEYS: [&str; 14] = [
    "title",
    "description",
    "input_schema",
    "output_schema",
    "output",
    "timeout",
    "args",
    "env",
    "annotations",
    "permissions",
    "limits",
    "prestart",
    "task",
    "pass_env",
];

/// The keys whose values are enforced in every call.
const SCHEMAS: [&str; 2] = ["input_schema", "output_schema"];

/// The keys of `limits`.
const LIMITS: [&str; 6] = ["memory", "cpu_seconds", "processes", "open_files", "file_size", "wall"];

/// The keys that concern a process.
const OF_PROCESSES: [&str; 6] = ["output", "args", "env", "limits", "prestart", "pass_env"];

/// The reason why a key that concerns a process cannot apply to a program in RTFS.
pub const NO_PROCESS: &str = "a program in RTFS has no process, so this cannot hold; remove it";

/// The number of bytes of a text that a message repeats.
const SHOWN: usize = 60;
/// The maximum timeout of one call in seconds.
const MAX_TIMEOUT: u32 = 86_400;

/// The beginning of a reference to a secret.
const SECRET: &str = "${secret:";

struct Reader {
    subject: Subject,
    metadata: Metadata,
    remarks: Vec<Remark>,
}

impl Reader {
    fn root(&mut self, root: &Node) {
        let Kind::Map(members) = &root.kind else {
            self.metadata = Metadata::unread();
            return self.remark(root.at, expected("keys with values", root), true);
        };
        for (key, node) in members {
            self.member(key, node);
            if !matches!(&*key.text, "args" | "env") {
                self.references(&key.text, node);
            }
        }
        self.contradictions(root.at);
    }

    fn member(&mut self, key: &Key, node: &Node) {
        if self.subject == Subject::Program && OF_PROCESSES.contains(&&*key.text) {
            return self.remark(key.at, format!("{}: {NO_PROCESS}", key.text), true);
        }
        if let "args" | "env" = &*key.text {
            self.metadata.references.extend(possible_references(node));
        }
        let metadata = &mut self.metadata;
        let read = match key.text.as_str() {
            "input_schema" => {
                self.metadata.input_schema = self.schema(key, node, input_from_declaration);
                return;
            }
            "output_schema" => {
                self.metadata.output_schema = self.schema(key, node, schema_from_declaration);
                return;
            }
            "title" => text(node).map(|text| metadata.title = Some(text)),
            "description" => text(node).map(|text| metadata.description = Some(text)),
            "output" => output(node).map(|form| metadata.output = Some(form)),
            "timeout" => seconds(node).map(|timeout| metadata.timeout = Some(timeout)),
            "args" => texts(node).map(|args| metadata.args = args),
            "env" => env(node).map(|variables| metadata.env = variables),
            "annotations" => {
                let read = annotations(node).map(|hints| metadata.annotations = Some(hints));
                self.unknown_annotations(node);
                read
            }
            "permissions" => {
                permissions(node).map(|needed| metadata.declared.permissions = Some(needed))
            }
            "limits" => limits(node).map(|limits| metadata.declared.limits = limits),
            "prestart" => prestart(node).map(|count| metadata.prestart = Some(count)),
            "task" => task(node).map(|support| metadata.task = Some(support)),
            "pass_env" => pass_env(node).map(|patterns| metadata.pass_env = patterns),
            unknown => {
                let shown = excerpt(unknown, SHOWN);
                let confinement = || {
                    unread_confinement(unknown, node).inspect(|_| metadata.declared.is_unclear = true)
                };
                if let Some(problem) = unread_schema(unknown, "").or_else(confinement) {
                    return self.remark(key.at, format!("{shown}: {problem}"), true);
                }
                let message = format!("{shown}: unknown key{}", did_you_mean(unknown, &KEYS));
                return self.remark(key.at, message, false);
            }
        };
        if let Err(message) = read {
            self.metadata.declared.is_unclear |= matches!(&*key.text, "permissions" | "limits");
            self.remark(node.at, format!("{}: {message}", key.text), true);
        }
    }

    fn schema(
        &mut self,
        key: &Key,
        node: &Node,
        read: impl Fn(&Value) -> Result<TypeExpr, SchemaError>,
    ) -> Option<TypeExpr> {
        let declared = node.to_json();
        if let Some(doubt) = doubt(&declared) {
            self.remark(node.at, format!("{}: {doubt}", key.text), false);
        }
        let fault = |err: SchemaError| (node.place_of(&err.path), format!("{}: {err}", key.text));
        read(&declared).map_err(fault).map_err(|(at, message)| self.remark(at, message, true)).ok()
    }

    fn unknown_annotations(&mut self, node: &Node) {
        for Remark { at, message, is_problem } in unknown_annotations("annotations", node) {
            self.remark(at, message, is_problem);
        }
    }

    fn references(&mut self, path: &str, node: &Node) {
        for (at, message) in stray_references(path, node) {
            self.remark(at, message, true);
        }
    }

    fn contradictions(&mut self, at: Position) {
        if self.metadata.output_schema.is_some() && self.metadata.output == Some(OutputForm::Text) {
            let message = "output: text has no schema; with output_schema it is read as json".to_owned();
            self.remark(at, message, true);
            self.metadata.output = Some(OutputForm::Json);
        }
    }

    fn remark(&mut self, at: Position, message: String, is_problem: bool) {
        self.remarks.push(Remark { at, message, is_problem });
    }
}

/// Returns references to secrets in places where none is filled in, with their positions. They would be
/// used literally.
pub(crate) fn stray_references(path: &str, node: &Node) -> Vec<(Position, String)> {
    match &node.kind {
        Kind::Scalar(scalar) if scalar.text.contains(SECRET) => {
            let message = format!(
                "{path}: `{SECRET}NAME}}` is filled in only in `env` and `args`; write it there"
            );
            vec![(node.at, message)]
        }
        Kind::Scalar(_) => Vec::new(),
        Kind::List(items) => items.iter().flat_map(|item| stray_references(path, item)).collect(),
        Kind::Map(members) => {
            let below = |(key, node): &(Key, Node)| {
                stray_references(&format!("{path}.{}", excerpt(&key.text, SHOWN)), node)
            };
            members.iter().flat_map(below).collect()
        }
    }
}

/// Returns texts of a list or a mapping that may refer to secrets, with their positions.
fn possible_references(node: &Node) -> Vec<(String, Position)> {
    let items: Vec<&Node> = match &node.kind {
        Kind::Scalar(_) => Vec::new(),
        Kind::List(items) => items.iter().collect(),
        Kind::Map(members) => members.iter().map(|(_, node)| node).collect(),
    };
    let text = |item: &Node| Some((verbatim(item)?.to_owned(), item.at));
    items.into_iter().filter_map(text).filter(|(text, _)| text.contains("${")).collect()
}

/// The end of the reason why a tool does not run whose confinement is not read.
pub(super) const NOT_RUN: &str = "The tool does not run, as it may be meant to be confined";

/// Returns the fault of an unknown key that seems to be meant as a schema, whose proper place has this prefix.
/// Without the key, calls would be unchecked.
pub(crate) fn unread_schema(key: &str, prefix: &str) -> Option<String> {
    let meant = SCHEMAS.into_iter().find(|known| is_misspelt(key, known))?;
    Some(format!(
        "unknown key, did you mean {prefix}{meant}? The tool does not run, as the schema would not be enforced"
    ))
}

/// Returns the fault of an unknown key that seems to be meant to confine. Without the key, the tool
/// would run unconfined.
pub(crate) fn unread_confinement(key: &str, node: &Node) -> Option<String> {
    Some(match orla_process::confinement::misspelt_key(key) {
        Some("sandbox_fallback") => {
            "unknown key; a tool does not decide this itself, write it below `tools.NAME` in the configuration".to_owned()
        }
        Some(meant) => format!("unknown key, did you mean {meant}? {NOT_RUN}"),
        None if key.eq_ignore_ascii_case("sandbox") => format!(
            "unknown key; write `permissions` and `limits` at the top of the declaration, and `sandbox` in the configuration. {NOT_RUN}"
        ),
        None => {
            let below = confining_key(node)?;
            format!("unknown key with `{below}` below it; write `{below}` at the top of the declaration. {NOT_RUN}")
        }
    })
}

/// Returns the first key in a value that would confine at the top of a declaration. A parameter with the name of such a key has
/// another kind of value.
fn confining_key(node: &Node) -> Option<&str> {
    match &node.kind {
        Kind::Scalar(_) => None,
        Kind::List(items) => items.iter().find_map(confining_key),
        Kind::Map(members) => members.iter().find_map(|(key, node)| match (&*key.text, &node.kind) {
            ("permissions", Kind::List(_)) => Some("permissions"),
            ("limits", Kind::Map(limits))
                if limits.is_empty() || limits.iter().any(|(key, _)| LIMITS.contains(&&*key.text)) =>
            {
                Some("limits")
            }
            _ => confining_key(node),
        }),
    }
}

fn text(node: &Node) -> Result<String, String> {
    match verbatim(node) {
        Some(text) if !text.trim().is_empty() => Ok(text.trim().to_owned()),
        _ => Err(expected("text", node)),
    }
}

fn texts(node: &Node) -> Result<Vec<String>, String> {
    const WHAT: &str = "a list of texts";
    let Kind::List(items) = &node.kind else { return Err(expected(WHAT, node)) };
    items
        .iter()
        .map(|item| match verbatim(item) {
            Some(text) if text.contains('\0') => Err("text without NUL is expected".to_owned()),
            Some(text) => Ok(text.to_owned()),
            None => Err(expected(WHAT, item)),
        })
        .collect()
}

/// Parses permissions: a list of words, none of which is misspelt.
pub(crate) fn permissions(node: &Node) -> Result<Vec<String>, String> {
    let words = texts(node)?;
    words.iter().try_for_each(|word| orla_process::confinement::check(word))?;
    Ok(words)
}

/// Parses limits: `memory: 512Mi`, `wall: 10`, and the others as whole numbers.
///
/// # Errors
/// One of them is unknown or no such number.
pub fn limits(node: &Node) -> Result<Limits, String> {
    let Kind::Map(members) = &node.kind else {
        return Err(expected("a mapping from limits to numbers", node));
    };
    let mut limits = Limits::default();
    for (key, node) in members {
        let name = key.text.as_str();
        let whole = |limit: &mut Option<u64>, read: fn(&str) -> Result<u64, String>| {
            let text = verbatim(node).unwrap_or_default();
            read(text)
                .map(|number| *limit = Some(number))
                .map_err(|what| format!("{name}: {}", expected(&what, node)))
        };
        match name {
            "memory" => whole(&mut limits.memory, orla_process::confinement::size)?,
            "file_size" => whole(&mut limits.file_size, orla_process::confinement::size)?,
            "cpu_seconds" => whole(&mut limits.cpu_seconds, count)?,
            "processes" => whole(&mut limits.processes, count)?,
            "open_files" => whole(&mut limits.open_files, count)?,
            "wall" => limits.wall = Some(seconds(node).map_err(|problem| format!("wall: {problem}"))?),
            unknown => {
                let hint = match did_you_mean(unknown, &LIMITS) {
                    none if none.is_empty() => format!("; there are {}", LIMITS.join(", ")),
                    hint => hint,
                };
                return Err(format!("{}: unknown limit{hint}", excerpt(unknown, SHOWN)));
            }
        }
    }
    Ok(limits)
}

fn count(text: &str) -> Result<u64, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "a whole number above 0".to_owned())
}

/// Parses patterns of variables: a list of them, or one.
pub(crate) fn pass_env(node: &Node) -> Result<Vec<Pattern>, String> {
    let items = match &node.kind {
        Kind::List(items) => items.as_slice(),
        _ => std::slice::from_ref(node),
    };
    items
        .iter()
        .map(|item| match item.as_text().map(|text| (text, check_pattern(text))) {
            Some((text, Ok(()))) => Ok(Pattern::new(text)),
            Some((_, Err(what))) => Err(expected(what, item)),
            None => Err(expected("a list of patterns of variables", item)),
        })
        .collect()
}

/// Parses environment variables: a mapping from names to texts.
pub(crate) fn env(node: &Node) -> Result<Vec<(String, String)>, String> {
    let Kind::Map(members) = &node.kind else { return Err(expected("names with values", node)) };
    let variable = |(key, value): &(Key, Node)| {
        if key.text.is_empty() || key.text.contains(['=', '\0']) {
            return Err(format!("{:?} can be no variable's name", key.text));
        }
        match verbatim(value) {
            Some(text) if text.contains('\0') => {
                Err(format!("{}: text without NUL is expected", key.text))
            }
            Some(text) => Ok((key.text.clone(), text.to_owned())),
            None => Err(format!("{}: {}", key.text, expected("text", value))),
        }
    };
    members.iter().map(variable).collect()
}

/// Returns a text, or a number as it is written: `args: [-n, 5]` means the text.
fn verbatim(node: &Node) -> Option<&str> {
    let scalar = node.as_scalar()?;
    scalar.as_text().or_else(|| scalar.is_number().then_some(&*scalar.text))
}

fn output(node: &Node) -> Result<OutputForm, String> {
    match node.as_text() {
        Some("text") => Ok(OutputForm::Text),
        Some("json") => Ok(OutputForm::Json),
        Some("mcp") => Ok(OutputForm::Mcp),
        _ => Err(expected("text, json or mcp", node)),
    }
}

fn seconds(node: &Node) -> Result<Duration, String> {
    node.to_json()
        .as_f64()
        .filter(|seconds| *seconds <= f64::from(MAX_TIMEOUT))
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|timeout| !timeout.is_zero())
        .ok_or_else(|| expected(&format!("seconds above 0 and at most {MAX_TIMEOUT}"), node))
}

fn prestart(node: &Node) -> Result<usize, String> {
    let count = node.to_json().as_u64().and_then(|count| usize::try_from(count).ok());
    count
        .filter(|count| *count <= MAX_PRESTART)
        .ok_or_else(|| expected(&format!("a whole number from 0 to {MAX_PRESTART}"), node))
}

/// Parses whether a capability is called as a task.
pub(crate) fn task(node: &Node) -> Result<TaskSupport, String> {
    let support = node.as_text().and_then(TaskSupport::parse);
    support.ok_or_else(|| expected("required, optional or forbidden", node))
}

/// Parses MCP's annotations: an object whose hints are true or false.
///
/// # Errors
/// It is no such object.
pub fn annotations(node: &Node) -> Result<Value, String> {
    let Kind::Map(members) = &node.kind else { return Err(expected("an object", node)) };
    let is_boolean = |node: &Node| node.as_scalar().is_some_and(|scalar| scalar.as_bool().is_some());
    for (key, value) in members {
        let name = key.text.as_str();
        if HINTS.contains(&name) && !is_boolean(value) {
            return Err(format!("{name}: {}", expected("true or false", value)));
        }
        if name == "title" && value.as_text().is_none() {
            return Err(format!("{name}: {}", expected("text", value)));
        }
    }
    Ok(node.to_json())
}

/// Returns the annotations that MCP does not define. A misspelt hint is a problem, because rules of
/// `approve` would not see it. Clients may have annotations of their own, so another name is a warning.
pub fn unknown_annotations(path: &str, node: &Node) -> Vec<Remark> {
    let Kind::Map(members) = &node.kind else { return Vec::new() };
    let unknown = members.iter().filter(|(key, _)| !is_annotation(&key.text));
    unknown
        .map(|(key, _)| {
            let (shown, meant) = (excerpt(&key.text, SHOWN), meant_hint(&key.text));
            let meaning = match meant {
                Some(meant) => format!(", did you mean {meant}?"),
                None => "; clients see it, and orla does not use it".to_owned(),
            };
            let message = format!("{path}.{shown}: unknown annotation{meaning}");
            Remark { at: key.at, message, is_problem: meant.is_some() }
        })
        .collect()
}

fn expected(what: &str, got: &Node) -> String {
    format!("expected {what}, got {}", excerpt(got.to_json(), SHOWN))
}

/// Other names of keys, which MCP and other formats use.
const ALIASES: [(&str, &str); 3] =
    [("inputs", "input_schema"), ("parameters", "input_schema"), ("outputs", "output_schema")];

fn did_you_mean(key: &str, known: &[&str]) -> String {
    let alias = ALIASES.iter().find(|(alias, meant)| *alias == key && known.contains(meant));
    let meant = alias.map(|(_, meant)| *meant).or_else(|| nearest(key, known.iter().copied()));
    meant.map(|meant| format!(", did you mean {meant}?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::header;
    use super::*;

    fn remarks(yaml: &str) -> Vec<String> {
        remarks_about(yaml, Subject::Executable)
    }

    fn remarks_about(yaml: &str, subject: Subject) -> Vec<String> {
        let (_, remarks) = read_file(yaml.as_bytes(), subject);
        remarks.iter().map(|r| format!("{}:{}: {}", r.at.line, r.at.column, r.message)).collect()
    }

    #[test]
    fn every_key_is_read() {
        let (metadata, remarks) = read_file(
            b"title: Adder\ndescription: Adds.\noutput: json\ntimeout: 1.5\nargs: [-n, 5]\n\
              annotations: {readOnlyHint: true}\ntask: required\npermissions: ['net:example.com']\n",
            Subject::Executable,
        );
        assert_eq!(remarks, []);
        assert_eq!(metadata.title.as_deref(), Some("Adder"));
        assert_eq!(metadata.description.as_deref(), Some("Adds."));
        assert_eq!(metadata.output, Some(OutputForm::Json));
        assert_eq!(metadata.timeout, Some(Duration::from_millis(1500)));
        assert_eq!(metadata.args, ["-n", "5"]);
        assert_eq!(metadata.annotations, Some(serde_json::json!({"readOnlyHint": true})));
        assert_eq!(metadata.task, Some(TaskSupport::Required));
        assert_eq!(metadata.declared.permissions.unwrap(), ["net:example.com"]);
    }

    #[test]
    fn problems_are_reported_with_their_place() {
        let cases = [
            (
                "timeout: soon\n",
                "1:10: timeout: expected seconds above 0 and at most 86400, got \"soon\"",
            ),
            ("timeout: -1\n", "1:10: timeout: expected seconds above 0 and at most 86400, got -1"),
            ("timeout: 1e-12\n", "1:10: timeout: expected seconds above 0 and at most 86400, got 1e-12"),
            ("timeout: 1e19\n", "1:10: timeout: expected seconds above 0 and at most 86400, got 1e+19"),
            ("task: yes\n", "1:7: task: expected required, optional or forbidden, got \"yes\""),
            ("output: xml\n", "1:9: output: expected text, json or mcp, got \"xml\""),
            ("args: -n\n", "1:7: args: expected a list of texts, got \"-n\""),
            ("title: {}\n", "1:8: title: expected text, got {}"),
            (
                "annotations: {readOnlyHint: 3}\n",
                "1:14: annotations: readOnlyHint: expected true or false, got 3",
            ),
            ("title: x\ntimeuot: 3\n", "2:1: timeuot: unknown key, did you mean timeout?"),
            ("inputs: {a: number}\n", "1:1: inputs: unknown key, did you mean input_schema?"),
            (
                "annotations: {destructive: true}\n",
                "1:15: annotations.destructive: unknown annotation, did you mean destructiveHint?",
            ),
            (
                "annotations: {audience: all}\n",
                "1:15: annotations.audience: unknown annotation; clients see it, and orla does not use it",
            ),
            ("colour: red\n", "1:1: colour: unknown key"),
            (
                "Permission: []\n",
                "1:1: Permission: unknown key, did you mean permissions? The tool does not run, as it may be meant to be confined",
            ),
            (
                "x-y: [{limits: {}}]\n",
                "1:1: x-y: unknown key with `limits` below it; write `limits` at the top of the declaration. The tool does not run, as it may be meant to be confined",
            ),
            (
                "sandbox: strict\n",
                "1:1: sandbox: unknown key; write `permissions` and `limits` at the top of the declaration, and `sandbox` in the configuration. The tool does not run, as it may be meant to be confined",
            ),
            (
                "title: x\ninputSchema: {}\n",
                "2:1: inputSchema: unknown key, did you mean input_schema? The tool does not run, as the schema would not be enforced",
            ),
            (
                "inputSchema: {permissions: {type: array}, a: [{limits: {memory: 1Mi}}]}\n",
                "1:1: inputSchema: unknown key, did you mean input_schema? The tool does not run, as the schema would not be enforced",
            ),
            ("title: a\ntitle: b\n", "2:1: title: given twice, first on line 1"),
            ("a: [1\nb: 2\n", "2:2: illegal placement of ':' indicator"),
            ("- 1\n", "1:1: expected keys with values, got [1]"),
            (
                "args: [-k, 'x${secret:api/key}']\ndescription: 'x${secret:api/key}'\n",
                "2:14: description: `${secret:NAME}` is filled in only in `env` and `args`; write it there",
            ),
        ];
        for (yaml, expected) in cases {
            assert_eq!(remarks(yaml), [expected], "{yaml}");
        }
    }

    #[test]
    fn process_keys_are_refused_for_programs() {
        let about_a_program = |yaml: &str| remarks_about(yaml, Subject::Program);
        for key in OF_PROCESSES {
            assert!(KEYS.contains(&key));
            let expected = format!("2:1: {key}: {NO_PROCESS}");
            assert_eq!(about_a_program(&format!("title: x\n{key}: 1\n")), [expected]);
        }
        let all = "title: x\ndescription: x\ninput_schema: {n: integer}\noutput_schema: {n: integer}\n\
                   timeout: 1\nannotations: {readOnlyHint: true}\npermissions: ['db:prod']\ntask: optional\n";
        assert!(about_a_program(all).is_empty());
    }

    #[test]
    fn oversized_blocks_are_refused_with_a_plain_reason() {
        let mut aliases = "a0: &a0 [x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..7 {
            aliases.push_str(&format!("a{n}: &a{n} [{}]\n", format!("*a{}, ", n - 1).repeat(8)));
        }
        let cases = [
            (format!("annotations: {}", "[".repeat(60_000)), "nested too deep"),
            (format!("annotations: {}", "{a: ".repeat(10_000)), "nested deeper than 128 levels"),
            (aliases, "too large: with its aliases expanded, the text exceeds its bound"),
        ];
        for (yaml, expected) in cases {
            assert!(remarks(&yaml)[0].ends_with(expected), "{:?}", remarks(&yaml));
        }
    }

    #[test]
    fn one_broken_key_does_not_cost_the_others() {
        let (metadata, remarks) = read_file(b"timeout: soon\ndescription: Adds.\n", Subject::Executable);
        assert_eq!(metadata.description.as_deref(), Some("Adds."));
        assert_eq!(remarks.len(), 1);
    }

    #[test]
    fn an_unknown_key_is_a_warning_and_a_broken_one_a_problem() {
        let (_, remarks) = read_file(b"colour: red\noutput: xml\n", Subject::Executable);
        assert_eq!(remarks.iter().map(|remark| remark.is_problem).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn a_misspelt_schema_or_a_hidden_confinement_is_a_problem() {
        let is_problem = |key: &str| {
            let (metadata, remarks) =
                read_file(format!("{key}: {{}}\n").as_bytes(), Subject::Executable);
            assert!(!metadata.declared.is_unclear, "{key}");
            remarks[0].is_problem
        };
        for key in ["inputSchema", "input-schema", "input_shema", "InputSchemas", "output_shema"] {
            assert!(is_problem(key), "{key}");
        }
        for key in ["inputs", "parameters", "schema", "put_schma", "timeOut", "timeout_ms"] {
            assert!(!is_problem(key), "{key}");
        }
        for yaml in [
            "parameters: {limits: integer, permissions: string}",
            "schema: {properties: {limits: {type: object}, permissions: {type: array}}}",
            "examples: [{input: {limits: 3}}]",
        ] {
            let (metadata, remarks) = read_file(yaml.as_bytes(), Subject::Executable);
            assert!(!metadata.declared.is_unclear && !remarks[0].is_problem, "{yaml}");
        }
        for yaml in [
            "runtime: {permissions: []}",
            "a: {permissions: {limits: {wall: x}}}",
            "a: {b: [{limits: {}}]}",
            "Sandbox: strict",
        ] {
            let (metadata, remarks) = read_file(yaml.as_bytes(), Subject::Executable);
            assert!(metadata.declared.is_unclear && remarks[0].is_problem, "{yaml}");
        }
    }

    #[test]
    fn positions_are_those_of_the_file_around_the_block() {
        let head = b"#!/bin/sh\n# /// orla\n# title: x\n#timeout: soon\n# ///\n";
        let Some(Ok(block)) = header::read(head).block else { panic!("no block") };
        let (_, remarks) = read_block(&block, Subject::Executable);
        assert_eq!(remarks[0].at, Position { line: 4, column: 11 });
        let twice = b"#!/bin/sh\n# /// orla\n# title: a\n# title: b\n# ///\n";
        let Some(Ok(block)) = header::read(twice).block else { panic!("no block") };
        let (_, remarks) = read_block(&block, Subject::Executable);
        assert_eq!(remarks[0].at, Position { line: 4, column: 3 });
        assert_eq!(remarks[0].message, "title: given twice, first on line 3");
    }

    #[test]
    fn nothing_is_fine_and_what_is_not_utf8_is_not() {
        assert!(remarks("").is_empty());
        assert!(remarks("# only a comment\n").is_empty());
        let (_, remarks) = read_file(b"title: x\n\xff\n", Subject::Executable);
        assert_eq!((remarks[0].at.line, &*remarks[0].message), (2, "not UTF-8 (at byte 9)"));
    }
}

//! What a tool says of itself: the keys of its metadata block, or of `NAME.orla.yaml` beside it.
//!
//! | key | meaning |
//! |---|---|
//! | `title` | the name for people |
//! | `description` | what it does, in words a model can choose by |
//! | `input_schema`, `output_schema` | JSON Schema, or the shorthand `field: type`; enforced |
//! | `output` | what standard output is: `text`, `json`, or `mcp` (a whole MCP tool result) |
//! | `timeout` | seconds one call may take, fractions allowed |
//! | `args` | arguments that come before those of the call |
//! | `annotations` | MCP's hints: `readOnlyHint`, `destructiveHint`, `idempotentHint`, `openWorldHint` |
//! | `permissions` | what it needs to be allowed |
//!
//! Each key is read by itself: a broken one costs that key alone and is reported with its place in
//! the file. An unknown key is a warning. Pure functions.

use std::fmt;
use std::time::Duration;

use orla_marketplace::rtfs::TypeExpr;
use orla_marketplace::schema::schema_from_declaration;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_saphyr::Spanned;

use crate::excerpt;
use crate::header::Block;

/// What a tool says of itself. Everything is optional.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    /// The name for people.
    pub title: Option<String>,
    /// What it does.
    pub description: Option<String>,
    /// What it takes.
    pub input_schema: Option<TypeExpr>,
    /// What it gives.
    pub output_schema: Option<TypeExpr>,
    /// What its standard output is.
    pub output: Option<OutputForm>,
    /// How long one call may take.
    pub timeout: Option<Duration>,
    /// Arguments that come before those of the call.
    pub args: Vec<String>,
    /// MCP's hints on the tool, a JSON object.
    pub annotations: Option<Value>,
    /// What it needs to be allowed.
    pub permissions: Vec<String>,
}

/// What a tool's standard output is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputForm {
    /// Text, or bytes of whatever kind.
    #[default]
    Text,
    /// One JSON value.
    Json,
    /// One JSON object in the form of an MCP tool result, which goes out as it is.
    Mcp,
}

/// A place in a file, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The line.
    pub line: u64,
    /// The column, in characters.
    pub column: u64,
}

/// Something about a description that its author should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// Where.
    pub at: Position,
    /// What.
    pub message: String,
    /// Whether something that was declared is not in force: `orla check` fails then.
    pub is_problem: bool,
}

/// Reads the metadata in a comment block. Positions are those of the file around it.
pub fn read_block(block: &Block) -> (Metadata, Vec<Remark>) {
    read(&block.yaml, |at| Position {
        line: at.line + block.first_line - 1,
        column: at.column + block.cut.get(at.line as usize - 1).copied().unwrap_or(0),
    })
}

/// Reads the metadata in a file of its own.
pub fn read_file(bytes: &[u8]) -> (Metadata, Vec<Remark>) {
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    match str::from_utf8(text) {
        Ok(yaml) => read(yaml, |at| at),
        Err(err) => {
            let line =
                1 + text[..err.valid_up_to()].iter().filter(|byte| **byte == b'\n').count() as u64;
            let message = format!("not UTF-8 (at byte {})", err.valid_up_to());
            let at = Position { line, column: 1 };
            (Metadata::default(), vec![Remark { at, message, is_problem: true }])
        }
    }
}

fn read(yaml: &str, place: impl Fn(Position) -> Position) -> (Metadata, Vec<Remark>) {
    let mut reader = Reader { metadata: Metadata::default(), remarks: Vec::new() };
    match serde_saphyr::from_str::<Members>(yaml) {
        Ok(Members(members)) => {
            for (key, value) in members {
                reader.member(&key, &value);
            }
            reader.contradictions();
        }
        Err(err) => {
            let at = err.location().map_or(Position { line: 1, column: 1 }, position);
            let message = err.without_snippet().to_string();
            reader.remark(at, plainly(message.split(" at line ").next().unwrap_or(&message)), true);
        }
    }
    for remark in &mut reader.remarks {
        remark.at = place(remark.at);
    }
    (reader.metadata, reader.remarks)
}

const KEYS: [&str; 9] = [
    "title",
    "description",
    "input_schema",
    "output_schema",
    "output",
    "timeout",
    "args",
    "annotations",
    "permissions",
];

/// Bytes of a text that a message repeats.
const SHOWN: usize = 60;
/// The most seconds that one call may be given.
const MAX_TIMEOUT: u32 = 86_400;

const HINTS: [&str; 4] = ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"];

struct Reader {
    metadata: Metadata,
    remarks: Vec<Remark>,
}

impl Reader {
    fn member(&mut self, key: &Spanned<String>, value: &Spanned<Value>) {
        let metadata = &mut self.metadata;
        let at = position(value.referenced);
        let read = match key.value.as_str() {
            "title" => text(&value.value).map(|text| metadata.title = Some(text)),
            "description" => text(&value.value).map(|text| metadata.description = Some(text)),
            "input_schema" => schema(&value.value).map(|schema| metadata.input_schema = Some(schema)),
            "output_schema" => schema(&value.value).map(|schema| metadata.output_schema = Some(schema)),
            "output" => output(&value.value).map(|form| metadata.output = Some(form)),
            "timeout" => seconds(&value.value).map(|timeout| metadata.timeout = Some(timeout)),
            "args" => texts(&value.value).map(|args| metadata.args = args),
            "annotations" => annotations(&value.value).map(|hints| metadata.annotations = Some(hints)),
            "permissions" => texts(&value.value).map(|needed| metadata.permissions = needed),
            unknown => {
                let shown = excerpt::beginning(unknown, SHOWN);
                let message = format!("{shown}: unknown key{}", did_you_mean(unknown));
                return self.remark(position(key.referenced), message, false);
            }
        };
        if let Err(message) = read {
            self.remark(at, format!("{}: {message}", key.value), true);
        }
    }

    fn contradictions(&mut self) {
        if self.metadata.output_schema.is_some() && self.metadata.output == Some(OutputForm::Text) {
            let message = "output: text has no schema; with output_schema it is read as json".to_owned();
            self.remark(Position { line: 1, column: 1 }, message, true);
            self.metadata.output = Some(OutputForm::Json);
        }
    }

    fn remark(&mut self, at: Position, message: String, is_problem: bool) {
        self.remarks.push(Remark { at, message, is_problem });
    }
}

fn text(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) if !text.trim().is_empty() => Ok(text.trim().to_owned()),
        Value::Number(number) => Ok(number.to_string()),
        other => Err(expected("text", other)),
    }
}

fn texts(value: &Value) -> Result<Vec<String>, String> {
    let Value::Array(items) = value else { return Err(expected("a list of texts", value)) };
    items
        .iter()
        .map(|item| match item {
            Value::String(text) if text.contains('\0') => Err("text without NUL is expected".to_owned()),
            Value::String(text) => Ok(text.clone()),
            // `args: [-n, 5]` means the text.
            Value::Number(number) => Ok(number.to_string()),
            other => Err(expected("a list of texts", other)),
        })
        .collect()
}

fn schema(value: &Value) -> Result<TypeExpr, String> {
    schema_from_declaration(value).map_err(|err| err.to_string())
}

fn output(value: &Value) -> Result<OutputForm, String> {
    match value.as_str() {
        Some("text") => Ok(OutputForm::Text),
        Some("json") => Ok(OutputForm::Json),
        Some("mcp") => Ok(OutputForm::Mcp),
        _ => Err(expected("text, json or mcp", value)),
    }
}

fn seconds(value: &Value) -> Result<Duration, String> {
    value
        .as_f64()
        .filter(|seconds| *seconds <= f64::from(MAX_TIMEOUT))
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|timeout| !timeout.is_zero())
        .ok_or_else(|| expected(&format!("seconds above 0 and at most {MAX_TIMEOUT}"), value))
}

fn annotations(value: &Value) -> Result<Value, String> {
    let Value::Object(members) = value else { return Err(expected("an object", value)) };
    match members.iter().find(|(key, hint)| HINTS.contains(&key.as_str()) && !hint.is_boolean()) {
        Some((key, hint)) => Err(format!("{key}: {}", expected("true or false", hint))),
        None => Ok(value.clone()),
    }
}

fn expected(what: &str, got: &Value) -> String {
    format!("expected {what}, got {}", excerpt::beginning(&got.to_string(), SHOWN))
}

/// What a library says of a text that cannot be read, less its advice to programmers.
fn plainly(message: &str) -> String {
    if message.starts_with("recursion limit") || message.starts_with("budget breached: Depth") {
        return "nested too deep".to_owned();
    }
    if message.starts_with("budget breached") {
        return "too large, with its aliases expanded".to_owned();
    }
    match message.strip_prefix("duplicate mapping key: ") {
        Some(rest) => {
            let key = rest.split(", set DuplicateKeyPolicy").next().unwrap_or(rest);
            format!("{}: given twice", excerpt::beginning(key, SHOWN))
        }
        None => excerpt::beginning(message, 2 * SHOWN),
    }
}

fn did_you_mean(key: &str) -> String {
    // The comparison takes the product of the lengths.
    if key.len() > SHOWN {
        return String::new();
    }
    KEYS.iter()
        .map(|known| (strsim::damerau_levenshtein(key, known), known))
        .min()
        .filter(|(distance, _)| *distance <= 3 && *distance < key.len())
        .map(|(_, known)| format!(", did you mean {known}?"))
        .unwrap_or_default()
}

fn position(location: serde_saphyr::Location) -> Position {
    Position { line: location.line().max(1), column: location.column().max(1) }
}

/// The members of a YAML mapping, each with its place; an empty document has none.
struct Members(Vec<(Spanned<String>, Spanned<Value>)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Mapping;
        impl<'de> Visitor<'de> for Mapping {
            type Value = Members;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("keys with values")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
            fn visit_unit<E>(self) -> Result<Members, E> {
                Ok(Members(Vec::new()))
            }
        }
        deserializer.deserialize_map(Mapping)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header;

    fn remarks(yaml: &str) -> Vec<String> {
        let (_, remarks) = read_file(yaml.as_bytes());
        remarks.iter().map(|r| format!("{}:{}: {}", r.at.line, r.at.column, r.message)).collect()
    }

    #[test]
    fn every_key_is_read() {
        let (metadata, remarks) = read_file(
            b"title: Adder\ndescription: Adds.\noutput: json\ntimeout: 1.5\nargs: [-n, 5]\n\
              annotations: {readOnlyHint: true}\npermissions: ['net:example.com']\n",
        );
        assert_eq!(remarks, []);
        assert_eq!(metadata.title.as_deref(), Some("Adder"));
        assert_eq!(metadata.description.as_deref(), Some("Adds."));
        assert_eq!(metadata.output, Some(OutputForm::Json));
        assert_eq!(metadata.timeout, Some(Duration::from_millis(1500)));
        assert_eq!(metadata.args, ["-n", "5"]);
        assert_eq!(metadata.annotations, Some(serde_json::json!({"readOnlyHint": true})));
        assert_eq!(metadata.permissions, ["net:example.com"]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let cases = [
            (
                "timeout: soon\n",
                "1:10: timeout: expected seconds above 0 and at most 86400, got \"soon\"",
            ),
            ("timeout: -1\n", "1:10: timeout: expected seconds above 0 and at most 86400, got -1"),
            ("timeout: 1e-12\n", "1:10: timeout: expected seconds above 0 and at most 86400, got 1e-12"),
            ("timeout: 1e19\n", "1:10: timeout: expected seconds above 0 and at most 86400, got 1e+19"),
            ("output: xml\n", "1:9: output: expected text, json or mcp, got \"xml\""),
            ("args: -n\n", "1:7: args: expected a list of texts, got \"-n\""),
            ("title: {}\n", "1:8: title: expected text, got {}"),
            (
                "annotations: {readOnlyHint: 3}\n",
                "1:14: annotations: readOnlyHint: expected true or false, got 3",
            ),
            ("title: x\ntimeuot: 3\n", "2:1: timeuot: unknown key, did you mean timeout?"),
            ("colour: red\n", "1:1: colour: unknown key"),
            ("title: a\ntitle: b\n", "2:1: title: given twice"),
            ("a: [1\nb: 2\n", "2:2: illegal placement of ':' indicator"),
            ("- 1\n", "1:1: expected mapping start"),
        ];
        for (yaml, expected) in cases {
            assert_eq!(remarks(yaml), [expected], "{yaml}");
        }
    }

    #[test]
    fn what_explodes_is_refused_in_plain_words() {
        let mut aliases = "a0: &a0 [x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..7 {
            aliases.push_str(&format!("a{n}: &a{n} [{}]\n", format!("*a{}, ", n - 1).repeat(8)));
        }
        let cases = [
            (format!("annotations: {}", "[".repeat(60_000)), "nested too deep"),
            (format!("annotations: {}", "{a: ".repeat(10_000)), "nested too deep"),
            (aliases, "too large, with its aliases expanded"),
        ];
        for (yaml, expected) in cases {
            assert!(remarks(&yaml)[0].ends_with(expected), "{:?}", remarks(&yaml));
        }
    }

    #[test]
    fn one_broken_key_does_not_cost_the_others() {
        let (metadata, remarks) = read_file(b"timeout: soon\ndescription: Adds.\n");
        assert_eq!(metadata.description.as_deref(), Some("Adds."));
        assert_eq!(remarks.len(), 1);
    }

    #[test]
    fn an_unknown_key_is_a_warning_and_a_broken_one_a_problem() {
        let (_, remarks) = read_file(b"colour: red\noutput: xml\n");
        assert_eq!(remarks.iter().map(|remark| remark.is_problem).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn positions_are_those_of_the_file_around_the_block() {
        let head = b"#!/bin/sh\n# /// orla\n# title: x\n#timeout: soon\n# ///\n";
        let Some(Ok(block)) = header::read(head).block else { panic!("no block") };
        let (_, remarks) = read_block(&block);
        assert_eq!(remarks[0].at, Position { line: 4, column: 11 });
    }

    #[test]
    fn nothing_is_fine_and_what_is_not_utf8_is_not() {
        assert!(remarks("").is_empty());
        assert!(remarks("# only a comment\n").is_empty());
        let (_, remarks) = read_file(b"title: x\n\xff\n");
        assert_eq!((remarks[0].at.line, &*remarks[0].message), (2, "not UTF-8 (at byte 9)"));
    }
}

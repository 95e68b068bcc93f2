//! Forms of paths, lists and mappings.
#![expect(
    clippy::redundant_closure_for_method_calls,
    reason = "a method of `Reader<'a>` is not general enough to be a function of every `Reader<'_>`"
)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::SystemTime;

use orla_document::{Kind as Shape, Node};
use orla_marketplace::id::Pattern;
use orla_process::confinement::{self, Fallback, Limits, Mode};
use orla_process::environment::check_pattern;
use serde_json::{Value as Json, json};

use super::composite::{environment, header, listed};
use super::forms::{Added, Form};
use super::read::{Reader, shown, unexpected};

/// A path. In a file it is relative to that file; on the command line and in the environment, to the current
/// directory.
pub(super) struct File;

impl Form for File {
    type Value = PathBuf;

    const HAS_VARIABLE: bool = true;

    fn read(&self, reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<PathBuf> {
        let text = reader.line(path, node, "a path")?;
        let file = self.read_variable(OsStr::new(&text)).map_err(|problem| {
            reader.problem(node.at, || format!("{path}: {problem}, got {}", shown(node, &text)));
        });
        file.ok().map(|file| reader.directory().join(file))
    }

    fn schema(&self) -> Json {
        text_schema()
    }

    fn default(&self, value: &PathBuf) -> Option<Json> {
        value.to_str().filter(|path| !path.is_empty()).map(Json::from)
    }

    fn read_variable(&self, text: &OsStr) -> Result<PathBuf, String> {
        match text.to_str() {
            Some("") => Err("expected a path".to_owned()),
            Some(text) if text == "~" || text.starts_with("~/") => Err(format!(
                "expected a path in which `~` is spelt out (${{HOME}}{} in the file)",
                &text[1..]
            )),
            _ => Ok(text.into()),
        }
    }
}

/// A list of texts, none of them empty.
pub(super) struct Texts;

impl Form for Texts {
    type Value = Vec<String>;

    const HAS_VARIABLE: bool = true;

    fn read(&self, reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Vec<String>> {
        let Shape::List(items) = &node.kind else {
            reader.problem(node.at, || format!("{path}{}", unexpected("a list of texts", node)));
            return None;
        };
        let item = |(index, item)| reader.line(&format!("{path}[{index}]"), item, "text");
        items.iter().enumerate().map(item).collect()
    }

    fn schema(&self) -> Json {
        json!({"type": "array", "items": text_schema()})
    }

    fn read_variable(&self, text: &OsStr) -> Result<Vec<String>, String> {
        text.to_str().map(listed).ok_or_else(|| "expected UTF-8 text".to_owned())
    }
}

/// Patterns of the environment variables that a process gets: a list of them, or one. They are added to
/// the existing ones.
pub(super) struct Variables;

impl Form for Variables {
    type Value = Added<Pattern>;

    const HAS_VARIABLE: bool = true;

    fn read(&self, reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Self::Value> {
        let texts = reader.list(path, node, "a list of patterns of variables")?;
        for (index, text) in texts.iter().enumerate() {
            if let Err(expected) = check_pattern(text) {
                reader.problem(node.at, || format!("{path}[{index}]: expected {expected}"));
            }
        }
        Some(Added(texts.into_iter().map(Pattern::new).collect()))
    }

    fn schema(&self) -> Json {
        texts_or_text()
    }

    fn read_variable(&self, text: &OsStr) -> Result<Self::Value, String> {
        let texts = Texts.read_variable(text)?;
        for text in &texts {
            check_pattern(text).map_err(|expected| format!("expected {expected}, got {text:?}"))?;
        }
        Ok(Added(texts.into_iter().map(Pattern::new).collect()))
    }
}

/// A value that a function reads, and the function that gives its JSON Schema.
pub(super) struct Read<V>(
    pub(super) fn(&mut Reader<'_>, &str, &Node) -> Option<V>,
    pub(super) fn() -> Json,
);

impl<V: 'static> Form for Read<V> {
    type Value = V;

    fn read(&self, reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<V> {
        (self.0)(reader, path, node)
    }

    fn schema(&self) -> Json {
        (self.1)()
    }
}

/// A list of name patterns, or one.
pub(super) const PATTERNS: Read<Vec<Pattern>> =
    Read(|reader, path, node| reader.patterns(path, node), texts_or_text);
/// Like [`PATTERNS`], but added to the existing ones.
pub(super) const MORE_PATTERNS: Read<Added<Pattern>> =
    Read(|reader, path, node| reader.patterns(path, node).map(Added), texts_or_text);
/// A list of permissions, or one.
pub(super) const PERMISSIONS: Read<Vec<String>> =
    Read(|reader, path, node| reader.list(path, node, "a list of permissions"), texts_or_text);
/// A list of permissions that confine, or one. None may be misspelt.
pub(super) const CONFINING: Read<Vec<String>> = Read(confining, texts_or_text);
/// Limits of processes.
pub(super) const LIMITS: Read<Limits> = Read(limits, limits_schema);
/// A path; a relative one is relative to the file, and `~` is the home directory.
pub(super) const PATH: Read<PathBuf> =
    Read(|reader, path, node| reader.path_at(path, node), text_schema);
/// A text; a number or a boolean is one too.
pub(super) const WORD: Read<String> =
    Read(|reader, path, node| reader.word_at(path, node, "text"), word_schema);
/// A mapping from names to texts.
pub(super) const WORDS: Read<BTreeMap<String, String>> =
    Read(|reader, path, node| reader.words(path, node), words_schema);
/// A secret text.
pub(super) const SECRET: Read<String> =
    Read(|reader, path, node| reader.secret(path, node), text_schema);
/// A mapping from names to secret texts.
pub(super) const SECRETS: Read<BTreeMap<String, String>> =
    Read(|reader, path, node| reader.secrets(path, node, |_, _| Ok(())), words_schema);
/// HTTP header fields, which may be secrets.
pub(super) const HEADERS: Read<BTreeMap<String, String>> =
    Read(|reader, path, node| reader.secrets(path, node, header), words_schema);
/// Environment variables, which may be secrets.
pub(super) const ENVIRONMENT: Read<BTreeMap<String, String>> =
    Read(|reader, path, node| reader.secrets(path, node, environment), words_schema);
/// A list of arguments, which may be secrets.
pub(super) const ARGUMENTS: Read<Vec<String>> =
    Read(|reader, path, node| reader.arguments(path, node), words_list);
/// A bearer token.
pub(super) const TOKEN: Read<String> = Read(|reader, path, node| reader.token(path, node), text_schema);
/// The address of an API.
pub(super) const API_URL: Read<String> =
    Read(|reader, path, node| reader.url(path, node, "https://api.example.com/v1"), text_schema);
/// An instant, as RFC 3339 writes it.
pub(super) const INSTANT: Read<SystemTime> =
    Read(|reader, path, node| reader.instant(path, node), text_schema);

/// Returns the JSON Schema of a text that is not empty.
pub(super) fn text_schema() -> Json {
    json!({"type": "string", "minLength": 1})
}

fn word_schema() -> Json {
    json!({"type": ["string", "number", "boolean"]})
}

fn words_schema() -> Json {
    json!({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}})
}

fn words_list() -> Json {
    json!({"type": "array", "items": word_schema()})
}

/// Returns the JSON Schema of a list of texts, or one.
pub(super) fn texts_or_text() -> Json {
    json!({"anyOf": [{"type": "array", "items": text_schema()}, text_schema()]})
}

/// Returns the JSON Schema of a text with an environment variable in it, where something else than text
/// is expected.
pub(super) fn variable() -> Json {
    json!({"type": "string", "pattern": "\\$\\{"})
}

fn confining(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Vec<String>> {
    let words = reader.list(path, node, "a list of permissions")?;
    let problems: Vec<String> = words.iter().filter_map(|word| confinement::check(word).err()).collect();
    for problem in &problems {
        reader.problem(node.at, || format!("{path}: {problem}"));
    }
    problems.is_empty().then_some(words)
}

fn limits(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Limits> {
    let read = orla_providers::tool::metadata::limits(node);
    read.map_err(|problem| reader.problem(node.at, || format!("{path}.{problem}"))).ok()
}

fn limits_schema() -> Json {
    let size = json!({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]});
    let count = json!({"type": "integer", "minimum": 1});
    json!({
        "type": "object",
        "properties": {
            "memory": size,
            "cpu_seconds": count,
            "processes": count,
            "open_files": count,
            "file_size": size,
            "wall": {"type": "number"},
        },
        "additionalProperties": false,
    })
}

/// The words of `sandbox`.
pub(super) const SANDBOX: &[(&str, Mode)] =
    &[("off", Mode::Off), ("declared", Mode::Declared), ("strict", Mode::Strict)];
/// The words of `sandbox_fallback`.
pub(super) const FALLBACK: &[(&str, Fallback)] =
    &[("refuse", Fallback::Refuse), ("allow", Fallback::Allow)];

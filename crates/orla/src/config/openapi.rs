//! `openapi`: documents whose operations become capabilities. The same mapping may be an element of
//! `capabilities`.

use std::path::PathBuf;

use orla_document::{Kind as Shape, Node, Position};
use orla_marketplace::id::Pattern;
use orla_providers::openapi::{Location, OpenApiSettings, Selection};
use serde_json::{Value, json};

use super::forms::{
    API_URL, DAY, Flag, HEADERS, Read, SECRETS, Seconds, Text, listed, text_schema, texts_or_text,
};
use super::keys::{Key, key, object};
use super::read::{Reader, excerpt, unexpected};
use super::schema::defined;
use super::sign_in::AUTH;
use super::{Config, Placed};

const EXPECTED: &str = "a file, an address, a mapping with openapi, or a list of these";
const SELECTIONS: [&str; 3] = ["tag", "operation", "path"];
const METHODS: [&str; 8] = ["GET", "PUT", "POST", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE"];

/// Files, relative to the current directory, and addresses.
pub(super) fn of_variable(config: &mut Config, text: &str) -> Result<(), String> {
    config.documents = listed(text)
        .into_iter()
        .map(|place| {
            let document = match is_address(&place) {
                true => Location::Url(place),
                false => Location::File(place.into()),
            };
            Placed { value: OpenApiSettings::new(document), at: Position::START }
        })
        .collect();
    Ok(())
}

fn is_address(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

pub(super) fn read(reader: &mut Reader<'_>, config: &mut Config, path: &str, node: &Node) {
    match &node.kind {
        Shape::List(items) => {
            for (index, item) in items.iter().enumerate() {
                element(reader, config, &format!("{path}[{index}]"), item);
            }
        }
        Shape::Scalar(_) | Shape::Map(_) => element(reader, config, path, node),
    }
}

#[rustfmt::skip] // A table: each key has a line for its value and one for its meaning.
fn keys() -> Vec<Key<OpenApiSettings>> {
    vec![
        key("openapi", Read(location, text_schema), |d: &mut OpenApiSettings| &mut d.document,
            "the document: a file or an address").required(),
        key("name", Text("text that is not empty"), |d| &mut d.name,
            "the first part of the capabilities' ids; by default, the title of the document"),
        key("base_url", API_URL, |d| &mut d.base_url,
            "where orla sends requests; by default, the first server of the document"),
        key("security", SECRETS, |d| &mut d.security,
            "the credentials, by the document's names for its security schemes"),
        key("auth", AUTH, |d| &mut d.auth,
            "how orla gets its tokens for operations that need OAuth, as for [MCP servers](identity.md#sign-in-at-servers)"),
        key("headers", HEADERS, |d| &mut d.headers, "header fields of every request"),
        key("include", Read(selections, selections_schema), |d| &mut d.include,
            "the operations that become capabilities; all by default"),
        key("exclude", Read(selections, selections_schema), |d| &mut d.exclude,
            "the operations that do not become capabilities"),
        key("timeout", Seconds(DAY), |d| &mut d.timeout,
            "maximum seconds of one call, and of the download of the document"),
        key("output_schemas", Flag, |d| &mut d.output_schemas,
            "whether orla checks answers against the document's schemas"),
    ]
}

fn settings() -> OpenApiSettings {
    OpenApiSettings::new(Location::File(PathBuf::new()))
}

/// Reads one document: a text with its place, or a mapping with further keys.
pub(super) fn element(reader: &mut Reader<'_>, config: &mut Config, path: &str, node: &Node) {
    let (mut value, since) = (settings(), reader.secrets.count());
    let read = match &node.kind {
        Shape::Scalar(_) => location(reader, path, node).map(|place| value.document = place),
        Shape::Map(pairs) => reader.mapping(path, node.at, pairs, &keys(), &mut value),
        Shape::List(_) => {
            return reader.problem(node.at, || format!("{path}{}", unexpected(EXPECTED, node)));
        }
    };
    value.redaction = reader.redaction(since);
    config.documents.extend(read.map(|()| Placed { value, at: node.at }));
}

fn location(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Location> {
    let text = reader.line(path, node, "a file or an address")?;
    if is_address(&text) {
        return reader.url(path, node, "https://api.example.com/openapi.json").map(Location::Url);
    }
    let file = reader.beside(text.strip_prefix("file://").unwrap_or(&text));
    reader.named_files.push(file.clone());
    Some(Location::File(file))
}

/// Which operations: `{tag: …}`, `{operation: …}`, `{path: …}`, or a text that is an operation's id
/// or, where there is a `/` in it, a path.
fn selections(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Vec<Selection>> {
    let items = match &node.kind {
        Shape::List(items) => items.as_slice(),
        Shape::Scalar(_) | Shape::Map(_) => std::slice::from_ref(node),
    };
    let mut selections = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let path = format!("{path}[{index}]");
        match &item.kind {
            Shape::Map(pairs) => {
                for (key, node) in pairs {
                    let place = format!("{path}.{}", excerpt(&key.text));
                    let select: fn(Pattern) -> Selection = match key.text.as_str() {
                        "tag" | "tags" => Selection::Tag,
                        "operation" | "operations" => Selection::Operation,
                        "path" | "paths" => Selection::Path,
                        other => {
                            reader.unknown(key.at, other, &format!("{path}."), SELECTIONS);
                            continue;
                        }
                    };
                    let patterns = reader.patterns(&place, node).unwrap_or_default();
                    selections.extend(patterns.into_iter().map(select));
                }
            }
            Shape::Scalar(_) | Shape::List(_) => {
                let expected = "an operation, a path, or a mapping with tag, operation or path";
                let text = reader.line(&path, item, expected);
                selections.extend(text.map(|text| selection(&text)));
            }
        }
    }
    Some(selections)
}

fn selection(text: &str) -> Selection {
    let method = text.split(' ').next().filter(|word| METHODS.contains(word));
    match text.contains('/') && (text.starts_with(['/', '*']) || method.is_some()) {
        true => Selection::Path(Pattern::new(text)),
        false => Selection::Operation(Pattern::new(text)),
    }
}

fn selections_schema() -> Value {
    let words = texts_or_text();
    let selection = json!({"anyOf": [text_schema(), {"type": "object",
        "properties": {"tag": words, "operation": words, "path": words}, "additionalProperties": false}]});
    json!({"anyOf": [selection, {"type": "array", "items": selection}]})
}

/// Returns the schema of a mapping.
pub(super) fn definition() -> Value {
    object(&keys(), &mut settings())
}

pub(super) fn schema() -> Value {
    let one = json!({"anyOf": [text_schema(), defined("document")]});
    json!({"anyOf": [text_schema(), defined("document"), {"type": "array", "items": one}]})
}

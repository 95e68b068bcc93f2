//! `openapi`: documents whose operations become capabilities. The same mapping may be an element of
//! `capabilities`.

use orla_document::{Key, Kind as Shape, Node, Position};
use orla_marketplace::id::Pattern;
use orla_providers::openapi::{Location, OpenApiSettings, Selection};
use serde_json::{Value, json};

use super::keys::{Own, listed};
use super::provider::API;
use super::read::{Reader, excerpt, unexpected};
use super::schema::{defined, seconds, variable};
use super::servers::header;
use super::{Config, Placed};

/// The key.
pub(super) const KEY: Own = Own {
    read,
    schema,
    expected: "a file, an address, a mapping with openapi, or a list of these",
    variable: Some(of_variable),
};

const FIELDS: [&str; 9] = [
    "openapi",
    "name",
    "base_url",
    "security",
    "headers",
    "include",
    "exclude",
    "timeout",
    "output_schemas",
];
const SELECTIONS: [&str; 3] = ["tag", "operation", "path"];
const METHODS: [&str; 8] = ["GET", "PUT", "POST", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE"];

/// Files, relative to the current directory, and addresses.
fn of_variable(config: &mut Config, text: &str) -> Result<(), String> {
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

fn read(reader: &mut Reader<'_>, config: &mut Config, path: &'static str, node: &Node) {
    match &node.kind {
        Shape::List(items) => {
            for (index, item) in items.iter().enumerate() {
                element(reader, config, &format!("{path}[{index}]"), item);
            }
        }
        Shape::Scalar(_) | Shape::Map(_) => element(reader, config, path, node),
    }
}

/// One document: the text that says where it is, or a mapping with more.
pub(super) fn element(reader: &mut Reader<'_>, config: &mut Config, path: &str, node: &Node) {
    let settings = match &node.kind {
        Shape::Scalar(_) => location(reader, config, path, node).map(OpenApiSettings::new),
        Shape::Map(pairs) => mapping(reader, config, path, node, pairs),
        Shape::List(_) => {
            return reader.problem(node.at, || format!("{path}{}", unexpected(KEY.expected, node)));
        }
    };
    config.documents.extend(settings.map(|value| Placed { value, at: node.at }));
}

fn mapping(
    reader: &mut Reader<'_>,
    config: &mut Config,
    path: &str,
    node: &Node,
    pairs: &[(Key, Node)],
) -> Option<OpenApiSettings> {
    let Some((_, place)) = pairs.iter().find(|(key, _)| key.text == "openapi") else {
        reader.problem(node.at, || {
            format!("{path}.openapi: missing, and required: the document's file or address")
        });
        return None;
    };
    let at = format!("{path}.openapi");
    let mut settings = location(reader, config, &at, place).map(OpenApiSettings::new)?;
    for (key, node) in pairs {
        let place = format!("{path}.{}", excerpt(&key.text));
        match key.text.as_str() {
            "openapi" => {}
            "name" => settings.name = reader.line(&place, node, "text that is not empty"),
            "base_url" => settings.base_url = reader.url(&place, node, API),
            "security" => {
                settings.security = reader.secrets(&place, node, |_, _| Ok(())).unwrap_or_default();
            }
            "headers" => settings.headers = reader.secrets(&place, node, header).unwrap_or_default(),
            "include" => settings.include = selections(reader, &place, node),
            "exclude" => settings.exclude = selections(reader, &place, node),
            "timeout" => settings.timeout = reader.seconds(&place, node),
            "output_schemas" => {
                settings.output_schemas = reader.flag(&place, node, "true or false").unwrap_or_default();
            }
            other => reader.unknown(key.at, other, &format!("{path}."), FIELDS),
        }
    }
    Some(settings)
}

fn location(reader: &mut Reader<'_>, config: &mut Config, path: &str, node: &Node) -> Option<Location> {
    let text = reader.line(path, node, "a file or an address")?;
    if is_address(&text) {
        return reader.url(path, node, "https://api.example.com/openapi.json").map(Location::Url);
    }
    let file = reader.beside(text.strip_prefix("file://").unwrap_or(&text));
    config.named_files.push(file.clone());
    Some(Location::File(file))
}

/// Which operations: `{tag: …}`, `{operation: …}`, `{path: …}`, or a text that is an operation's id
/// or, where there is a `/` in it, a path.
fn selections(reader: &mut Reader<'_>, path: &str, node: &Node) -> Vec<Selection> {
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
    selections
}

fn selection(text: &str) -> Selection {
    let method = text.split(' ').next().filter(|word| METHODS.contains(word));
    match text.contains('/') && (text.starts_with(['/', '*']) || method.is_some()) {
        true => Selection::Path(Pattern::new(text)),
        false => Selection::Operation(Pattern::new(text)),
    }
}

/// The schema of a mapping.
pub(super) fn definition() -> Value {
    let text = json!({"type": "string", "minLength": 1});
    let texts = json!({"type": "object", "additionalProperties": {"type": ["string", "number"]}});
    let words = json!({"anyOf": [text, {"type": "array", "items": text}]});
    let selection = json!({"anyOf": [text, {"type": "object",
        "properties": {"tag": words, "operation": words, "path": words}, "additionalProperties": false}]});
    let selections = json!({"anyOf": [selection, {"type": "array", "items": selection}]});
    json!({
        "type": "object",
        "required": ["openapi"],
        "properties": {
            "openapi": {"type": "string", "minLength": 1, "description": "The document: a file or an address."},
            "name": {"type": "string", "description": "The first part of the capabilities' ids, instead of the document's title."},
            "base_url": {"type": "string", "description": "Where requests go, instead of the document's first server."},
            "security": {"anyOf": [texts], "description": "The credentials, by the document's names for its security schemes."},
            "headers": {"anyOf": [texts], "description": "Sent with every request."},
            "include": {"anyOf": [selections], "description": "The operations that become capabilities; all by default."},
            "exclude": {"anyOf": [selections], "description": "The operations that do not."},
            "timeout": {"anyOf": [seconds(86_400), variable()], "description": "Seconds that one call may take, and the fetching of the document."},
            "output_schemas": {"anyOf": [{"type": "boolean"}, variable()],
                "description": "Hold answers to the document's schemas."},
        },
        "additionalProperties": false,
    })
}

fn schema() -> Value {
    let text = json!({"type": "string", "minLength": 1});
    let one = json!({"anyOf": [text, defined("document")]});
    json!({"anyOf": [text, defined("document"), {"type": "array", "items": one}]})
}

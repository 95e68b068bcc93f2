//! `remotes`: other instances of orla whose catalogues are served too; and the provider of a single
//! capability of one (RTFS capability system §3.3).
//!
//! Tokens and addresses may be secrets: no message repeats them.

use std::collections::HashMap;

use orla_document::{Key, Kind as Shape, Node, Position};
use orla_marketplace::RemoteRTFSCapability;
use orla_marketplace::id::is_name_char;
use orla_providers::remote::{self, RemoteSettings};
use serde_json::{Value, json};

use super::keys::Own;
use super::provider::{MAX_MS, token};
use super::read::{Reader, excerpt, unexpected};
use super::schema::{defined, seconds, variable, whole};
use super::{Config, Placed};

/// The key.
pub(super) const KEY: Own = Own {
    read,
    schema,
    expected: "a mapping from names of instances to their addresses",
    variable: None,
};

const FIELDS: [&str; 7] = ["url", "token", "prefix", "include", "exclude", "timeout", "eager"];
const PROVIDER: [&str; 5] = ["endpoint", "timeout_ms", "auth_token", "capability", "max_answer_bytes"];
/// The longest name, and the longest prefix.
const MAX_NAME: usize = 48;

fn read(reader: &mut Reader<'_>, config: &mut Config, path: &'static str, node: &Node) {
    let Some(pairs) = reader.pairs(path, node, KEY.expected) else { return };
    let mut known: HashMap<&str, Position> = HashMap::new();
    for (name, node) in pairs {
        let place = format!("{path}.{}", excerpt(&name.text));
        if let Some(first) = known.insert(&name.text, name.at) {
            reader.problem(name.at, || format!("{place}: given twice, first on line {}", first.line));
            continue;
        }
        if !is_word(&name.text) {
            let expected = format!("a name of at most {MAX_NAME} letters, digits, `_` or `-`");
            reader.problem(name.at, || format!("{place}: expected {expected}"));
            continue;
        }
        if let Some(value) = instance(reader, &place, &name.text, node) {
            config.remotes.push(Placed { value, at: name.at });
        }
    }
}

fn is_word(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(is_name_char)
}

/// One instance: its address, or a mapping with more.
fn instance(reader: &mut Reader<'_>, path: &str, name: &str, node: &Node) -> Option<RemoteSettings> {
    if let Shape::Scalar(_) = &node.kind {
        return address(reader, path, node).map(|url| RemoteSettings::new(name, url));
    }
    let pairs = reader.pairs(path, node, "an address, or a mapping with url")?;
    let Some((_, url)) = pairs.iter().find(|(key, _)| key.text == "url") else {
        reader.problem(node.at, || format!("{path}.url: missing, and required"));
        return None;
    };
    let mut settings = RemoteSettings::new(name, address(reader, &format!("{path}.url"), url)?);
    for (key, node) in pairs {
        let place = format!("{path}.{}", excerpt(&key.text));
        match key.text.as_str() {
            "url" => {}
            "token" if node.is_null() => {}
            "token" => settings.token = Some(token(reader, &place, node)?),
            "prefix" => settings.names.prefix = Some(prefix(reader, &place, node)?),
            "include" => settings.names.include = reader.patterns(&place, node),
            "exclude" => settings.names.exclude = reader.patterns(&place, node).unwrap_or_default(),
            "timeout" => settings.timeout = reader.seconds(&place, node),
            "eager" => settings.eager = reader.flag(&place, node, "true or false") == Some(true),
            other => reader.unknown(key.at, other, &format!("{path}."), FIELDS),
        }
    }
    Some(settings)
}

fn prefix(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<String> {
    let text = reader.word_at(path, node, "text")?;
    let is_plain = |c: char| is_name_char(c) || matches!(c, '.' | '/');
    if text.len() <= MAX_NAME && text.chars().all(is_plain) {
        return Some(text);
    }
    let expected = format!("at most {MAX_NAME} letters, digits, `_`, `-`, `.` or `/`");
    reader.problem(node.at, || format!("{path}{}", unexpected(&expected, node)));
    None
}

fn address(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<String> {
    let url = reader.url(path, node, "http://lab.example.com:8080")?;
    match remote::check(&url) {
        Ok(()) => Some(url),
        Err(problem) => {
            reader.problem(node.at, || format!("{path}: {problem}"));
            None
        }
    }
}

/// The provider of a single capability.
pub(super) fn provider(
    reader: &mut Reader<'_>,
    path: &str,
    at: Position,
    pairs: &[(Key, Node)],
) -> Option<RemoteRTFSCapability> {
    let Some((_, endpoint)) = pairs.iter().find(|(key, _)| key.text == "endpoint") else {
        reader.problem(at, || format!("{path}.endpoint: missing, and required"));
        return None;
    };
    let endpoint = address(reader, &format!("{path}.endpoint"), endpoint)?;
    let mut remote = RemoteRTFSCapability::new(endpoint, 0, None);
    for (key, node) in pairs {
        let place = format!("{path}.{}", excerpt(&key.text));
        match key.text.as_str() {
            "endpoint" => {}
            "timeout_ms" => remote.timeout_ms = reader.count(&place, node, 0, MAX_MS)?,
            "auth_token" if node.is_null() => {}
            "auth_token" => remote.auth_token = Some(token(reader, &place, node)?),
            "capability" => {
                remote.options.capability = Some(reader.line(&place, node, "the id there")?);
            }
            "max_answer_bytes" => {
                remote.options.max_answer_bytes = reader.count(&place, node, 1, 1 << 30)?;
            }
            other => reader.unknown(key.at, other, &format!("{path}."), PROVIDER),
        }
    }
    Some(remote)
}

/// The schema of the provider's settings.
pub(super) fn provider_properties() -> Value {
    json!({
        "endpoint": {"type": "string", "minLength": 1, "description": "Where the instance is reached; without a path, its /rtfs."},
        "auth_token": {"type": ["string", "null"], "description": "Sent as a bearer token."},
        "timeout_ms": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": MAX_MS}, variable()],
            "description": "Milliseconds that one call may take."},
        "capability": {"type": "string", "description": "The capability's id there, where it is another than here."},
        "max_answer_bytes": {"anyOf": [whole(1, 1 << 30), variable()]},
    })
}

/// The schema of one instance.
pub(super) fn definition() -> Value {
    let text = json!({"type": "string", "minLength": 1});
    let list = json!({"anyOf": [text, {"type": "array", "items": text}]});
    json!({"anyOf": [text, {"type": "object", "required": ["url"], "properties": {
        "url": {"type": "string", "minLength": 1, "description": "Where it is reached; without a path, its /rtfs."},
        "token": {"type": ["string", "null"], "description": "Sent as a bearer token."},
        "prefix": {"type": "string", "description": "Stands before the ids of its capabilities; NAME. by default."},
        "include": {"anyOf": [list], "description": "Patterns of its ids that are served; all by default."},
        "exclude": {"anyOf": [list], "description": "Patterns of its ids that are not."},
        "timeout": {"anyOf": [seconds(86_400), variable()], "description": "Seconds that one call may take."},
        "eager": {"anyOf": [{"type": "boolean"}, variable()], "description": "Ask it when orla starts, and not at the first need."},
    }, "additionalProperties": false}]})
}

fn schema() -> Value {
    json!({"type": "object", "additionalProperties": defined("remote")})
}

//! `remotes`: other instances of orla whose catalogues are served too; and the provider of a single
//! capability of one (RTFS capability system §3.3).
//!
//! Tokens and addresses may be secrets: no message repeats them.

use std::collections::HashMap;

use orla_document::{Key as Name, Kind as Shape, Node, Position};
use orla_marketplace::RemoteRTFSCapability;
use orla_marketplace::id::is_name_char;
use orla_providers::remote::{self, RemoteSettings};
use serde_json::{Value, json};

use super::forms::{Count, DAY, DAY_MS, Flag, PATTERNS, Read, Seconds, TOKEN, Text, text_schema};
use super::keys::{Key, key, object, present};
use super::read::{Reader, excerpt, unexpected};
use super::schema::defined;
use super::sign_in::SIGN_IN;
use super::{Config, Placed};

/// The longest name, and the longest prefix.
const MAX_NAME: usize = 48;

#[rustfmt::skip] // A table: each key has a line for its value and one for its meaning.
fn keys() -> Vec<Key<RemoteSettings>> {
    vec![
        key("url", Read(address, text_schema), |r: &mut RemoteSettings| &mut r.url,
            "the address of the instance; without a path, orla uses `/rtfs`").required(),
        key("token", TOKEN, |r: &mut RemoteSettings| &mut r.token, "bearer token").or(&["auth_token"]),
        key("auth", SIGN_IN, |r| &mut r.sign_in,
            "how orla gets its tokens for the instance, as for [MCP servers](identity.md#sign-in-at-servers)"),
        key("prefix", Read(prefix, || json!({"type": "string"})), |r| &mut r.names.prefix,
            "stands before the ids of its capabilities; `NAME.` by default"),
        key("include", PATTERNS, |r| &mut r.names.include, "patterns of its ids that are served; all by default"),
        key("exclude", PATTERNS, |r| &mut r.names.exclude, "patterns of its ids that are not served"),
        key("timeout", Seconds(DAY), |r| &mut r.timeout, "maximum seconds for one call"),
        key("eager", Flag, |r| &mut r.eager, "connect when orla starts instead of at the first use"),
    ]
}

/// Returns the keys of the provider of a single capability.
#[rustfmt::skip] // A table.
pub(super) fn provider_keys() -> Vec<Key<RemoteRTFSCapability>> {
    vec![
        key("endpoint", Read(address, text_schema), |r: &mut RemoteRTFSCapability| &mut r.endpoint,
            "the address of the instance; without a path, orla uses `/rtfs`").required(),
        key("auth_token", TOKEN, |r| &mut r.auth_token, "bearer token"),
        key("timeout_ms", Count(0, DAY_MS), |r| &mut r.timeout_ms, "maximum milliseconds for one call"),
        key("capability", Text("the id of a capability"), |r| &mut r.options.capability,
            "the id of the capability at the instance, if it differs"),
        key("max_answer_bytes", Count(1, 1 << 30), |r| &mut r.options.max_answer_bytes,
            "maximum bytes of a response"),
    ]
}

pub(super) fn read(reader: &mut Reader<'_>, config: &mut Config, path: &str, node: &Node) {
    let expected = "a mapping from names of instances to their addresses";
    let Some(pairs) = reader.pairs(path, node, expected) else { return };
    let (keys, mut known) = (keys(), HashMap::<&str, Position>::new());
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
        let since = reader.secrets.count();
        if let Some(mut value) = instance(reader, &keys, &place, &name.text, node) {
            value.redaction = reader.redaction(since);
            config.remotes.push(Placed { value, at: name.at });
        }
    }
}

fn is_word(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(is_name_char)
}

/// One instance: its address, or a mapping with more.
fn instance(
    reader: &mut Reader<'_>,
    keys: &[Key<RemoteSettings>],
    path: &str,
    name: &str,
    node: &Node,
) -> Option<RemoteSettings> {
    let mut settings = RemoteSettings::new(name, String::new());
    if let Shape::Scalar(_) = &node.kind {
        settings.url = address(reader, path, node)?;
    } else {
        let pairs = reader.pairs(path, node, "an address, or a mapping with url")?;
        reader.mapping(path, node.at, present(pairs), keys, &mut settings)?;
    }
    if let Some(key) = &settings.sign_in {
        let other = settings.token.as_ref().map(|_| "token");
        reader.complete_sign_in(key, name, &settings.url, other);
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
    let checked = remote::check(&url).map_err(|problem| format!(": {problem}"));
    reader.noted(path, node, checked).map(|()| url)
}

/// Returns the provider of a single capability.
pub(super) fn provider(
    reader: &mut Reader<'_>,
    path: &str,
    at: Position,
    pairs: &[(Name, Node)],
) -> Option<RemoteRTFSCapability> {
    let mut remote = RemoteRTFSCapability::new("", 0, None);
    reader.mapping(path, at, present(pairs), &provider_keys(), &mut remote)?;
    Some(remote)
}

/// Returns the schema of one instance.
pub(super) fn definition() -> Value {
    json!({"anyOf": [text_schema(), object(&keys(), &mut RemoteSettings::new("", ""))]})
}

pub(super) fn schema() -> Value {
    json!({"type": "object", "additionalProperties": defined("remote")})
}

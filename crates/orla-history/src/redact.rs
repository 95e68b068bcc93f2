//! Redacts members of JSON: those that a schema marks, that a pattern names, or whose name is that of a
//! credential. No I/O.
//!
//! Texts are changed only where something is redacted, so numbers keep their digits.
//!
//! # Deliberately absent
//!
//! Secrets by their value: the marketplace's `Redactor` finds those.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use orla_marketplace::json::RawObject;
use orla_marketplace::{REDACTED, schema};
use regex::Regex;
use serde_json::Value;
use serde_json::value::RawValue;

/// The maximum depth of JSON that is searched. Deeper values are redacted as a whole.
const MAX_DEPTH: usize = 100;
/// Schemas that apply to one place at most. Beyond, the place is redacted.
const MAX_SCHEMAS: usize = 500;

/// Names of header fields that carry credentials, in lower case.
const CREDENTIALS: [&str; 10] = [
    "authorization",
    "proxy-authorization",
    "cookie",
    "set-cookie",
    "x-api-key",
    "api-key",
    "x-auth-token",
    "x-access-token",
    "x-csrf-token",
    "x-amz-security-token",
];

/// A JSON Pointer (RFC 6901) in which `*` matches any member or item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PointerPattern(Vec<String>);

/// The reason why a text is not a pattern.
#[derive(Debug, thiserror::Error)]
#[error("expected a JSON Pointer such as /user/password, or /items/*/token, got {0:?}")]
pub struct NoPointer(String);

impl FromStr for PointerPattern {
    type Err = NoPointer;

    fn from_str(text: &str) -> Result<Self, NoPointer> {
        let wrong = || NoPointer(text.to_owned());
        let rest = text.strip_prefix('/').ok_or_else(wrong)?;
        let is_escaped = |segment: &str| {
            let mut after = segment.split('~').skip(1);
            after.all(|rest| rest.starts_with(['0', '1']))
        };
        let read = |segment: &str| match is_escaped(segment) {
            true => Ok(segment.replace("~1", "/").replace("~0", "~")),
            false => Err(wrong()),
        };
        rest.split('/').map(read).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for PointerPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|one| write!(f, "/{}", one.replace('~', "~0").replace('/', "~1")))
    }
}

/// The rules for redacting one JSON text.
pub(crate) struct Rules<'a> {
    /// The schema of the text, if it may mark something.
    pub(crate) schema: Option<&'a Value>,
    pub(crate) patterns: &'a [PointerPattern],
}

/// A redacted JSON text, and the texts that were redacted.
pub(crate) struct Redacted {
    pub(crate) json: String,
    pub(crate) texts: Vec<String>,
}

impl Rules<'_> {
    /// Redacts a JSON text. Returns `None` if nothing in it is redacted.
    pub(crate) fn apply(&self, json: &str) -> Option<Redacted> {
        let is_unmarked = self.schema.is_none() && self.patterns.is_empty();
        if is_unmarked && !(may_have_members(json) && may_name_credentials(json)) {
            return None;
        }
        let schemas: Vec<&Value> = self.schema.into_iter().collect();
        let patterns = self.patterns.iter().map(|pattern| &pattern.0[..]).collect();
        let mut walk = Walk {
            root: self.schema,
            patterns: self.patterns,
            out: String::with_capacity(json.len()),
            texts: Vec::new(),
            hits: 0,
        };
        walk.value(json, &schemas, &patterns, 0);
        (walk.hits > 0).then_some(Redacted { json: walk.out, texts: walk.texts })
    }
}

/// Returns the data of a call without the members that its schema marks (`writeOnly`, `format:
/// password`), and without credentials by their names. Returns `None` if nothing is redacted, and
/// otherwise also the texts that were.
pub fn redacted(schema: &Value, json: &str) -> Option<(String, Vec<String>)> {
    let done = Rules { schema: Some(schema), patterns: &[] }.apply(json)?;
    Some((done.json, done.texts))
}

/// Returns whether a schema may mark something: a cheap look at its text.
pub(crate) fn may_mark(schema: &str) -> bool {
    schema.contains("writeOnly") || schema.contains("\"password\"")
}

/// Returns whether a JSON text has members or items, or is a string that may be JSON itself. Large outputs are often plain text, which need not
/// be searched.
fn may_have_members(json: &str) -> bool {
    let json = json.trim_start();
    let Some(mut text) = json.strip_prefix('"') else { return json.starts_with(['{', '[']) };
    while let Some(rest) = [" ", "\\n", "\\r", "\\t"].iter().find_map(|blank| text.strip_prefix(blank)) {
        text = rest;
    }
    // Another escape may be anything.
    text.starts_with(['{', '[', '\\']) || text.starts_with(|first: char| first.is_whitespace())
}

/// Returns whether a JSON text may contain a name of [`CREDENTIALS`]. On a text without one, which is the usual case, a regular
/// expression takes a twentieth to a third of the time of an Aho-Corasick automaton.
fn may_name_credentials(json: &str) -> bool {
    static NAMES: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(&format!("(?i-u){}", CREDENTIALS.join("|"))).ok());
    NAMES.as_ref().is_none_or(|names| names.is_match(json))
}

struct Walk<'a> {
    root: Option<&'a Value>,
    patterns: &'a [PointerPattern],
    out: String,
    texts: Vec<String>,
    hits: usize,
}

impl<'a> Walk<'a> {
    fn value(&mut self, json: &str, schemas: &[&'a Value], patterns: &Vec<&[String]>, depth: usize) {
        let Some(schemas) = self.expanded(schemas) else { return self.redact(json) };
        let is_named = patterns.iter().any(|rest| rest.is_empty());
        if is_named || schemas.iter().any(|schema| is_secret(schema)) {
            return self.redact(json);
        }
        let json = json.trim();
        if json.starts_with('"') {
            return self.text(json, depth);
        }
        let is_container = json.starts_with(['{', '[']);
        if !is_container {
            return self.out.push_str(json);
        }
        if depth >= MAX_DEPTH {
            return self.redact(json);
        }
        let below = |name: &str| -> Vec<&[String]> {
            let first = |rest: &&&[String]| rest[0] == "*" || rest[0] == name;
            patterns.iter().filter(first).map(|rest| &rest[1..]).collect()
        };
        if json.starts_with('{') {
            let Ok(RawObject(members)) = serde_json::from_str(json) else { return self.redact(json) };
            self.out.push('{');
            let names_credential = members
                .iter()
                .any(|(name, value)| matches!(&**name, "name" | "key") && is_credential(value.get()));
            for (at, (name, value)) in members.iter().enumerate() {
                if at > 0 {
                    self.out.push(',');
                }
                self.out.push_str(&Value::from(&**name).to_string());
                self.out.push(':');
                let is_credential = CREDENTIALS.contains(&name.to_ascii_lowercase().as_str());
                if is_credential || (names_credential && name == "value") {
                    self.redact(value.get());
                } else {
                    let schemas: Vec<&Value> =
                        schemas.iter().flat_map(|schema| of_member(schema, name)).collect();
                    self.value(value.get(), &schemas, &below(name), depth + 1);
                }
            }
            self.out.push('}');
        } else {
            let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(json) else {
                return self.redact(json);
            };
            self.out.push('[');
            for (at, value) in items.iter().enumerate() {
                if at > 0 {
                    self.out.push(',');
                }
                if at == 1 && items.len() == 2 && is_credential(items[0].get()) {
                    self.redact(value.get());
                    continue;
                }
                let schemas: Vec<&Value> =
                    schemas.iter().flat_map(|schema| of_item(schema, at)).collect();
                self.value(value.get(), &schemas, &below(&at.to_string()), depth + 1);
            }
            self.out.push(']');
        }
    }

    /// Searches a string. A string that is JSON itself, such as the output of a tool, is searched as a
    /// whole.
    fn text(&mut self, json: &str, depth: usize) {
        let text: String = serde_json::from_str(json).unwrap_or_default();
        let is_json = text.trim_start().starts_with(['{', '['])
            && serde_json::from_str::<&RawValue>(text.trim()).is_ok();
        if !is_json || depth >= MAX_DEPTH {
            return self.out.push_str(json);
        }
        let mut inside = Walk {
            root: None,
            patterns: self.patterns,
            out: String::with_capacity(text.len()),
            texts: Vec::new(),
            hits: 0,
        };
        let patterns = self.patterns.iter().map(|pattern| &pattern.0[..]).collect();
        inside.value(&text, &[], &patterns, depth + 1);
        if inside.hits == 0 {
            return self.out.push_str(json);
        }
        self.hits += inside.hits;
        self.texts.append(&mut inside.texts);
        self.out.push_str(&Value::from(inside.out).to_string());
    }

    fn redact(&mut self, json: &str) {
        self.hits += 1;
        self.out.push_str(&Value::from(REDACTED).to_string());
        let mut note = |text: &str| self.texts.push(text.to_owned());
        // A number is looked for as it was written.
        if json.trim().starts_with(|first: char| first == '-' || first.is_ascii_digit()) {
            return note(json.trim());
        }
        match serde_json::from_str(json) {
            Ok(value) => texts(&value, &mut note),
            Err(_) => note(json),
        }
    }

    /// Returns the schemas together with those that they refer to or consist of. Returns `None` if there
    /// are too many, or if a reference cannot be resolved, which may mark anything.
    fn expanded(&self, schemas: &[&'a Value]) -> Option<Vec<&'a Value>> {
        let mut all: Vec<&Value> = Vec::new();
        let mut rest = schemas.to_vec();
        while let Some(schema) = rest.pop() {
            if all.iter().any(|known| std::ptr::eq(*known, schema)) {
                continue;
            }
            if all.len() >= MAX_SCHEMAS {
                return None;
            }
            all.push(schema);
            for key in ["allOf", "anyOf", "oneOf"] {
                rest.extend(schema[key].as_array().into_iter().flatten());
            }
            rest.extend(["if", "then", "else"].iter().filter_map(|key| schema.get(*key)));
            for key in ["dependentSchemas", "dependencies"] {
                rest.extend(schema[key].as_object().into_iter().flat_map(|of| of.values()));
            }
            for key in ["$ref", "$dynamicRef", "$recursiveRef"] {
                if let Some(target) = schema[key].as_str() {
                    let found = self.referred(target);
                    if found.is_empty() {
                        return None;
                    }
                    rest.extend(found);
                }
            }
        }
        Some(all)
    }

    /// Returns the schemas that a reference within the document may name: one by a pointer, any number
    /// by the name of an anchor.
    fn referred(&self, target: &str) -> Vec<&'a Value> {
        let (Some(root), Some(anchor)) = (self.root, target.strip_prefix('#')) else {
            return Vec::new();
        };
        if let Some(named) = schema::target(root, target) {
            return vec![named];
        }
        let mut found = Vec::new();
        let mut rest = vec![root];
        while let Some(value) = rest.pop() {
            let is_named = |key: &&str| value[*key].as_str() == Some(anchor);
            if ["$anchor", "$dynamicAnchor"].iter().any(is_named) {
                found.push(value);
            }
            match value {
                Value::Array(items) => rest.extend(items),
                Value::Object(members) => rest.extend(members.values()),
                _ => {}
            }
        }
        found
    }
}

/// Returns whether a JSON text is the name of a header field that carries credentials.
fn is_credential(json: &str) -> bool {
    let name = json.trim().trim_matches('"').to_ascii_lowercase();
    CREDENTIALS.contains(&name.as_str())
}

fn is_secret(schema: &Value) -> bool {
    schema["writeOnly"] == true || schema["format"] == "password"
}

/// Returns the schemas for a member. Every pattern of names is taken to match.
fn of_member<'a>(schema: &'a Value, name: &str) -> Vec<&'a Value> {
    let own = schema["properties"].get(name);
    let patterns = schema["patternProperties"].as_object().into_iter().flat_map(|of| of.values());
    let others =
        ["additionalProperties", "unevaluatedProperties"].iter().filter_map(|key| schema.get(*key));
    own.into_iter().chain(patterns).chain(others.filter(|_| own.is_none())).collect()
}

fn of_item(schema: &Value, at: usize) -> Vec<&Value> {
    let first = schema["prefixItems"].get(at).or_else(|| schema["items"].get(at));
    let others = ["items", "additionalItems", "contains", "unevaluatedItems"].iter();
    let others = others.filter_map(|key| schema.get(*key)).filter(|schema| !schema.is_array());
    first.into_iter().chain(others).collect()
}

/// The texts of a value, numbers too.
fn texts(value: &Value, note: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => note(text),
        Value::Number(number) => note(&number.to_string()),
        Value::Array(items) => items.iter().for_each(|item| texts(item, note)),
        Value::Object(members) => members.values().for_each(|member| texts(member, note)),
        Value::Null | Value::Bool(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn applied(json: &str, schema: Option<&Value>, patterns: &[&str]) -> String {
        let patterns: Vec<PointerPattern> = patterns.iter().map(|text| text.parse().unwrap()).collect();
        let rules = Rules { schema, patterns: &patterns };
        rules.apply(json).map_or_else(|| json.to_owned(), |redacted| redacted.json)
    }

    #[test]
    fn marked_members_are_redacted_at_any_depth() {
        let schema = json!({
            "properties": {
                "pin": {"type": "string", "writeOnly": true},
                "users": {"items": {"$ref": "#/$defs/user"}},
                "more": {"additionalProperties": {"anyOf": [{"type": "null"}, {"format": "password"}]}},
            },
            "$defs": {"user": {"properties": {
                "pass": {"type": "string", "format": "password"},
                "friend": {"$ref": "#/$defs/user"},
            }}},
        });
        let json = r#"{"pin": 1234, "n": 18446744073709551616, "users": [{"pass": "a", "friend": {"pass": "b", "x": 1.10}}],
            "more": {"k": "v"}, "pass": "not marked"}"#;
        assert_eq!(
            applied(json, Some(&schema), &[]),
            r#"{"pin":"[redacted]","n":18446744073709551616,"users":[{"pass":"[redacted]","friend":{"pass":"[redacted]","x":1.10}}],"more":{"k":"[redacted]"},"pass":"not marked"}"#
        );
    }

    #[test]
    fn credentials_in_a_string_that_is_json_are_redacted_however_it_begins() {
        for begin in ["{", "[{", " {", "\n\r\t {", "\u{a0}{", "\u{2028}\n{"] {
            let end = if begin.contains('[') { "}]" } else { "}" };
            let text = Value::from(format!("{begin}\"cookie\": \"abc\"{end}")).to_string();
            assert!(!applied(&text, None, &[]).contains("abc"), "{text}");
            assert!(!applied(&format!(" {text}"), None, &[]).contains("abc"));
            let escaped = text.replacen('{', "\\u007b", 1);
            assert!(!applied(&escaped, None, &[]).contains("abc"), "{escaped}");
        }
        for plain in [r#""cookie: abc""#, "7", "true", "null", r#"" x {\"cookie\": \"abc\"}""#] {
            assert_eq!(applied(plain, None, &[]), plain);
        }
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        let schema = json!({"$ref": "#", "anyOf": [{"$ref": "#"}], "properties": {"a": {"$ref": "#"}}, "title": "password"});
        assert_eq!(applied(r#"{"a":{"a":1}}"#, Some(&schema), &[]), r#"{"a":{"a":1}}"#);
    }

    #[test]
    fn every_kind_of_reference_is_followed_and_missing_targets_are_redacted() {
        for (reference, defs) in [
            (json!({"$ref": "#/$defs/a%20b"}), json!({"a b": {"writeOnly": true}})),
            (json!({"$ref": "#pin"}), json!({"p": {"$anchor": "pin", "writeOnly": true}})),
            (
                json!({"$dynamicRef": "#pin"}),
                json!({"p": {"$dynamicAnchor": "pin", "format": "password"}}),
            ),
            (json!({"$ref": "https://example.com/pin.json"}), json!({"p": {"writeOnly": false}})),
            (json!({"$ref": "#/$defs/gone"}), json!({})),
        ] {
            let schema =
                json!({"properties": {"a": reference, "b": {"type": "integer"}}, "$defs": defs});
            let done = applied(r#"{"a":1234,"b":5}"#, Some(&schema), &[]);
            assert_eq!(done, r#"{"a":"[redacted]","b":5}"#, "{schema}");
        }
    }

    #[test]
    fn patterns_are_pointers_with_a_star() {
        let json = r#"{"card":{"number":"4111","kind":"visa"},"items":[{"token":"t","n":1},{"n":2}],"a/b":{"c~d":1}}"#;
        assert_eq!(
            applied(json, None, &["/card/number", "/items/*/token", "/a~1b/c~0d", "/none"]),
            r#"{"card":{"number":"[redacted]","kind":"visa"},"items":[{"token":"[redacted]","n":1},{"n":2}],"a/b":{"c~d":"[redacted]"}}"#
        );
        for wrong in ["", "card", "/a~2", "/a~"] {
            assert!(wrong.parse::<PointerPattern>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn credentials_in_headers_are_redacted_and_returned() {
        let json = r#"{"headers":{"Authorization":"Bearer x1","Accept":"*/*"},"Cookie":["c=1"]}"#;
        let done = Rules { schema: None, patterns: &[] }.apply(json).unwrap();
        assert_eq!(
            done.json,
            r#"{"headers":{"Authorization":"[redacted]","Accept":"*/*"},"Cookie":"[redacted]"}"#
        );
        assert_eq!(done.texts, ["Bearer x1", "c=1"]);
        assert!(Rules { schema: None, patterns: &[] }.apply(r#"{"a":1}"#).is_none());
        assert!(!may_name_credentials(r#"{"author":"A. Cook","token":"api"}"#));
        for name in CREDENTIALS {
            assert!(may_name_credentials(&format!("-{}-", name.to_uppercase())), "{name}");
        }
    }

    #[test]
    fn json_that_is_a_text_and_lists_of_headers_are_looked_through() {
        let printed =
            r#"{"stdout":"{\"card\": {\"number\": 4111, \"kind\": \"visa\"}}\n","stderr":"{not json"}"#;
        assert_eq!(
            applied(printed, None, &["/card/number"]),
            r#"{"stdout":"{\"card\":{\"number\":\"[redacted]\",\"kind\":\"visa\"}}","stderr":"{not json"}"#
        );
        let lists = r#"{"a":[{"name":"Authorization","value":"Bearer x"},{"name":"Accept","value":"y"}],"b":[["cookie","c=1"],["te","z"]]}"#;
        assert_eq!(
            applied(lists, None, &[]),
            r#"{"a":[{"name":"Authorization","value":"[redacted]"},{"name":"Accept","value":"y"}],"b":[["cookie","[redacted]"],["te","z"]]}"#
        );
    }

    #[test]
    fn a_redacted_number_is_returned_as_written() {
        let patterns = ["/n".parse().unwrap()];
        let done = Rules { schema: None, patterns: &patterns }
            .apply(r#"{"n": 18446744073709551617.10}"#)
            .unwrap();
        assert_eq!(done.texts, ["18446744073709551617.10"]);
    }

    #[test]
    fn values_beyond_the_depth_are_redacted_as_a_whole() {
        let deep = format!("{}\"x\"{}", "[".repeat(300), "]".repeat(300));
        let schema = json!({"writeOnly": false});
        let done = applied(&deep, Some(&schema), &["/nowhere"]);
        assert!(done.contains("[redacted]") && !done.contains('x'));
    }
}

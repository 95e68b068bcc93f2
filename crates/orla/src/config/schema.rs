//! The JSON Schema of the configuration, for editors; made from the table of keys.

use serde_json::{Map, Value, json};

use super::keys::{KEYS, Key, Kind, MAX_RETRIES, MAX_TOOL_CONCURRENCY, MAX_TOOL_TIMEOUT, TOOL_KEYS};
use super::{Config, openapi, provider, remotes, servers};

/// The schema, as `orla schema` prints it and the repository publishes it.
pub(crate) fn schema() -> Value {
    let properties = of_keys(KEYS, &mut Config::default());
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "orla.yaml",
        "description": "Configuration of orla. Every key is optional. In every text, ${VAR} and ${VAR:-default} stand for environment variables.",
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
        "$defs": {
            "server": servers::definition(),
            "document": openapi::definition(),
            "provider": provider::definition(),
            "remote": remotes::definition(),
        },
    })
}

/// Admits null for every property that is not required, also in what is nested: it stands for an absent one.
pub(super) fn admit_nulls(schema: &mut Value) {
    if let Some(Value::Array(options)) = schema.get_mut("anyOf") {
        options.iter_mut().for_each(admit_nulls);
    }
    let required = schema.get("required").cloned().unwrap_or_default();
    let is_required =
        |name: &str| required.as_array().is_some_and(|all| all.iter().any(|one| one == name));
    let Some(Value::Object(properties)) = schema.get_mut("properties") else { return };
    for (name, property) in properties {
        admit_nulls(property);
        if is_required(name) {
            continue;
        }
        if let Some(Value::Array(options)) = property.get_mut("anyOf") {
            options.push(json!({"type": "null"}));
        } else if let Some(Value::Array(values)) = property.get_mut("enum") {
            values.push(Value::Null);
        } else if let Some(kind) = property.get_mut("type") {
            match kind {
                Value::Array(names) if names.iter().all(|name| name != "null") => {
                    names.push("null".into());
                }
                Value::String(name) => *kind = json!([name, "null"]),
                _ => {}
            }
        }
    }
}

/// A reference to one of the definitions.
pub(super) fn defined(name: &str) -> Value {
    json!({"$ref": format!("#/$defs/{name}")})
}

fn of_keys(keys: &[Key], defaults: &mut Config) -> Map<String, Value> {
    let mut properties = Map::new();
    for key in keys {
        let mut property = of_kind(&key.kind, defaults);
        property.insert("description".to_owned(), key.about.into());
        properties.insert(key.name.to_owned(), property.into());
    }
    properties
}

fn of_kind(kind: &Kind, defaults: &mut Config) -> Map<String, Value> {
    let schema = match kind {
        Kind::Path(place) => {
            let mut schema = json!({"type": "string", "minLength": 1});
            if let Some(path) = place(defaults).to_str().filter(|path| !path.is_empty()) {
                schema["default"] = path.into();
            }
            schema
        }
        Kind::Text(place) => {
            let mut schema = json!({"type": "string", "minLength": 1});
            if !place(defaults).is_empty() {
                schema["default"] = json!(place(defaults));
            }
            schema
        }
        Kind::Port(place) => or_variable(
            &json!({"type": "integer", "minimum": 0, "maximum": 65535}),
            &json!(place(defaults)),
        ),
        Kind::Count { place, min, max } => or_variable(
            &json!({"type": "integer", "minimum": min, "maximum": max}),
            &json!(place(defaults)),
        ),
        Kind::Seconds { place, max } => or_variable(&seconds(*max), &json!(place(defaults).as_secs())),
        Kind::Share(place) => or_variable(
            &json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
            &json!(place(defaults)),
        ),
        Kind::Flag(place) => or_variable(&json!({"type": "boolean"}), &json!(place(defaults))),
        Kind::Choice { words, get, .. } => {
            let words = words();
            let default = json!(words[get(defaults)]);
            or_variable(&json!({"enum": words}), &default)
        }
        Kind::Texts { .. } => json!({"type": "array", "items": {"type": "string", "minLength": 1}}),
        Kind::Milliseconds { place, min, max } => or_variable(
            &json!({"type": "integer", "minimum": min, "maximum": max}),
            &json!(u64::try_from(place(defaults).as_millis()).unwrap_or(*max)),
        ),
        Kind::Section(keys) => {
            json!({"type": "object", "properties": of_keys(keys, defaults), "additionalProperties": false})
        }
        Kind::Tools => {
            let properties: Map<String, Value> =
                TOOL_KEYS.iter().map(|key| ((*key).to_owned(), of_tool_key(key))).collect();
            let tool =
                json!({"type": "object", "properties": properties, "additionalProperties": false});
            json!({"type": "object", "additionalProperties": tool})
        }
        Kind::Own(own) => (own.schema)(),
    };
    match schema {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn of_tool_key(key: &str) -> Value {
    match key {
        "timeout" => json!({"anyOf": [seconds(MAX_TOOL_TIMEOUT), variable()],
            "description": "Seconds that one call of this tool may take."}),
        "enabled" => json!({"anyOf": [{"type": "boolean"}, variable()],
            "description": "Whether the tool is served."}),
        "description" => {
            json!({"type": "string", "description": "Takes the place of the tool's own description."})
        }
        "rename" => json!({"type": "string", "pattern": "^([a-zA-Z0-9_-]{1,64}|.*\\$\\{.*)$",
            "description": "The name under which the tool is served."}),
        "max_concurrency" => json!({"anyOf": [whole(1, MAX_TOOL_CONCURRENCY), variable()],
            "description": "Calls of this tool that run at once."}),
        "retries" => json!({"anyOf": [whole(0, MAX_RETRIES as usize), variable()],
            "description": "How often a call that failed for a passing reason is made again, if the tool says that repeating it does no harm."}),
        "pass_env" => pass_env(),
        _ => json!({}),
    }
}

/// Patterns of the variables that a process gets.
pub(super) fn pass_env() -> Value {
    json!({"anyOf": [{"type": "array", "items": {"type": "string", "minLength": 1}}, {"type": "string", "minLength": 1}],
        "description": "Environment variables of orla that the process gets besides the usual ones: names, or patterns with *."})
}

/// A whole number.
pub(super) fn whole(min: usize, max: usize) -> Value {
    json!({"type": "integer", "minimum": min, "maximum": max})
}

pub(super) fn seconds(max: u32) -> Value {
    json!({"type": "number", "exclusiveMinimum": 0, "maximum": max})
}

fn or_variable(schema: &Value, default: &Value) -> Value {
    json!({"anyOf": [schema, variable()], "default": default})
}

/// A text with an environment variable in it, where something else than text is expected.
pub(super) fn variable() -> Value {
    json!({"type": "string", "pattern": "\\$\\{"})
}

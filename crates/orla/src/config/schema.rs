//! The JSON Schema of the configuration, for editors; made from the table of keys.

use serde_json::{Value, json};

use super::keys::object;
use super::table::KEYS;
use super::{Config, openapi, provider, remotes, servers};

/// Returns the schema, as `orla schema` prints it and the repository publishes it.
pub(crate) fn schema() -> Value {
    let mapping = object(&KEYS, &mut Config::default());
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "orla.yaml",
        "description": "Configuration of orla. Every key is optional. In every string, orla replaces the environment variables ${VAR} and ${VAR:-default}.",
        "type": "object",
        "properties": mapping["properties"],
        "additionalProperties": false,
        "$defs": {
            "server": servers::definition(),
            "document": openapi::definition(),
            "provider": provider::definition(),
            "remote": remotes::definition(),
        },
    })
}

/// Allows null for every optional property, including nested ones, because null means an absent
/// property.
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

/// Returns a reference to one of the definitions.
pub(super) fn defined(name: &str) -> Value {
    json!({"$ref": format!("#/$defs/{name}")})
}

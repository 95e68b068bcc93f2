//! A JSON Schema as a part of another document. No I/O.
//!
//! The references are adapted to the new position. Keywords that OpenAPI's dialect (2020-12) defines
//! differently from older dialects are translated or refused.

use orla_marketplace::schema::{Validator, type_from_json_schema};
use serde_json::{Map, Value, json};

/// The dialect of OpenAPI 3.1.
const DIALECT: &str = "json-schema.org/draft/2020-12/schema";

/// The deepest schema that is shown.
const MAX_DEPTH: usize = 100;

/// Returns the schema for the place `root`, a reference within the document, or `None` if it cannot be
/// embedded there.
pub(super) fn embedded(mut schema: Value, root: &str) -> Option<Value> {
    let is_translated = match schema.as_object_mut() {
        Some(members) => {
            let dialect = members.shift_remove("$schema");
            let id = members.shift_remove("$id");
            let has_own_names = id.is_some() && has_reference(&Value::Object(members.clone()), 0);
            if has_own_names && !only_local_references(&Value::Object(members.clone()), 0) {
                return None;
            }
            dialect.is_some_and(|dialect| !dialect.as_str().is_some_and(|text| text.contains(DIALECT)))
        }
        None => false,
    };
    translate(&mut schema, 0)?;
    if is_translated {
        let ty = type_from_json_schema(&schema);
        Validator::compile(&ty).ok()?;
    }
    let original = schema.clone();
    move_references(&mut schema, &original, root)?;
    Some(schema)
}

fn has_reference(schema: &Value, depth: usize) -> bool {
    let mut found = false;
    each(schema, depth, &mut |members| found |= members.contains_key("$ref"));
    found
}

fn only_local_references(schema: &Value, depth: usize) -> bool {
    let mut is_local = true;
    each(schema, depth, &mut |members| {
        if let Some(Value::String(target)) = members.get("$ref") {
            is_local &= target.starts_with('#');
        }
    });
    is_local
}

/// Visits the objects of a schema, also those that are no schemas.
fn each(schema: &Value, depth: usize, visit: &mut dyn FnMut(&Map<String, Value>)) {
    if depth > MAX_DEPTH {
        return;
    }
    match schema {
        Value::Object(members) => {
            visit(members);
            members.values().for_each(|value| each(value, depth + 1, visit));
        }
        Value::Array(items) => items.iter().for_each(|item| each(item, depth + 1, visit)),
        _ => {}
    }
}

/// The members that hold data and not schemas.
const DATA: [&str; 5] = ["const", "enum", "default", "examples", "example"];
/// The members that contain schemas by arbitrary names.
const NAMED: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];

/// Calls `change` with the value of each member of a schema, except for data. The schemas of [`NAMED`]
/// are passed one by one.
fn each_member(
    members: &mut Map<String, Value>,
    mut change: impl FnMut(&str, &mut Value) -> Option<()>,
) -> Option<()> {
    for (key, value) in members.iter_mut().filter(|(key, _)| !DATA.contains(&key.as_str())) {
        match value {
            Value::Object(named) if NAMED.contains(&key.as_str()) => {
                named.values_mut().try_for_each(|value| change("", value))?;
            }
            value => change(key, value)?,
        }
    }
    Some(())
}

/// Rewrites keywords that other dialects and validators interpret differently. Returns `None` if the
/// schema is nested too deeply, or defines its own names within.
fn translate(schema: &mut Value, depth: usize) -> Option<()> {
    if depth > MAX_DEPTH {
        return None;
    }
    let members = match schema {
        Value::Object(members) => members,
        Value::Array(items) => return items.iter_mut().try_for_each(|item| translate(item, depth + 1)),
        _ => return Some(()),
    };
    let is_text =
        |members: &Map<String, Value>, key: &str| members.get(key).is_some_and(Value::is_string);
    if ["$id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveRef"]
        .iter()
        .any(|key| is_text(members, key))
    {
        return None;
    }
    if members.get("items").is_some_and(Value::is_array) && !members.contains_key("prefixItems") {
        let items = members.shift_remove("items").unwrap_or_default();
        members.insert("prefixItems".to_owned(), items);
        if let Some(rest) = members.shift_remove("additionalItems") {
            members.insert("items".to_owned(), rest);
        }
    }
    if let (Some(ty), Some(default)) = (members.get("type"), members.get("default"))
        && !is_of_type(default, ty)
    {
        members.shift_remove("default");
    }
    name_required(members);
    // The meaning is the same, and some generators consider an array without it a mistake.
    if members.get("type").is_some_and(|ty| ty == "array") && !members.contains_key("prefixItems") {
        members.entry("items").or_insert_with(|| json!({}));
    }
    each_member(members, |_, value| translate(value, depth + 1))
}

/// Adds properties that are required and not described. The meaning is the same, and validators of
/// OpenAPI consider their absence a mistake.
fn name_required(members: &mut Map<String, Value>) {
    let Some(Value::Array(required)) = members.get("required") else { return };
    let names: Vec<String> =
        required.iter().filter_map(|name| Some(name.as_str()?.to_owned())).collect();
    let rest = members.get("additionalProperties").cloned().unwrap_or_else(|| json!({}));
    let properties = members.entry("properties").or_insert_with(|| json!({}));
    if let Some(properties) = properties.as_object_mut() {
        for name in names {
            properties.entry(name).or_insert_with(|| rest.clone());
        }
    }
}

fn is_of_type(value: &Value, ty: &Value) -> bool {
    match ty {
        Value::Array(types) => types.iter().any(|ty| is_of_type(value, ty)),
        Value::String(ty) => match ty.as_str() {
            "null" => value.is_null(),
            "boolean" => value.is_boolean(),
            "string" => value.is_string(),
            "number" => value.is_number(),
            "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
            "array" => value.is_array(),
            "object" => value.is_object(),
            _ => false,
        },
        _ => false,
    }
}

/// Makes references within `original` references from the document. `None` if one leads nowhere, or out of the schema.
fn move_references(schema: &mut Value, original: &Value, root: &str) -> Option<()> {
    match schema {
        Value::Object(members) => each_member(members, |key, value| match value {
            Value::String(target) if key == "$ref" => {
                let pointer = target.strip_prefix('#')?;
                let decoded = percent_encoding::percent_decode_str(pointer).decode_utf8().ok()?;
                original.pointer(&decoded)?;
                *target = format!("{root}{pointer}");
                Some(())
            }
            value => move_references(value, original, root),
        }),
        Value::Array(items) => {
            items.iter_mut().try_for_each(|item| move_references(item, original, root))
        }
        _ => Some(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn embed(schema: Value) -> Option<Value> {
        embedded(schema, "#/components/schemas/x")
    }

    #[test]
    fn references_keep_their_targets() {
        let schema = json!({"properties": {"t": {"$ref": "#/$defs/t"}, "self": {"$ref": "#"}, "$ref": {"type": "string"}},
            "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "default": {"$ref": "#/no"}});
        let schema = embed(schema).unwrap();
        assert_eq!(schema["properties"]["t"]["$ref"], "#/components/schemas/x/$defs/t");
        assert_eq!(schema["properties"]["self"]["$ref"], "#/components/schemas/x");
        assert_eq!(schema["properties"]["$ref"], json!({"type": "string"}));
        assert_eq!(schema["$defs"]["t"]["items"]["$ref"], "#/components/schemas/x/$defs/t");
        assert_eq!(schema["default"], json!({"$ref": "#/no"}));
    }

    #[test]
    fn properties_may_have_the_names_of_keywords() {
        let schema = json!({"properties": {"type": {"type": "string"}, "default": {"$ref": "#/$defs/enum"}, "$id": {"type": "array"}},
            "$defs": {"enum": {"type": "array"}}});
        let schema = embed(schema).unwrap();
        assert_eq!(schema["properties"]["default"]["$ref"], "#/components/schemas/x/$defs/enum");
        assert_eq!(schema["$defs"]["enum"], json!({"type": "array", "items": {}}));
    }

    #[test]
    fn unresolvable_references_are_not_shown() {
        for schema in [
            json!({"$ref": "#/nowhere"}),
            json!({"$ref": "https://example.com/schema"}),
            json!({"$ref": "#name", "$defs": {"a": {"$anchor": "name"}}}),
            json!({"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": true}),
        ] {
            assert_eq!(embed(schema.clone()), None, "{schema}");
        }
    }

    #[test]
    fn older_dialects_are_translated() {
        let schema = json!({"$schema": "http://json-schema.org/draft-07/schema#", "$id": "https://a.example/b",
            "items": [{"type": "string"}], "additionalItems": false, "default": 7, "type": "array"});
        let translated = json!({"type": "array", "prefixItems": [{"type": "string"}], "items": false});
        assert_eq!(embed(schema), Some(translated));
    }

    #[test]
    fn required_properties_are_named() {
        let schema =
            embed(json!({"required": ["a"], "additionalProperties": {"type": "string"}})).unwrap();
        assert_eq!(schema["properties"], json!({"a": {"type": "string"}}));
    }
}

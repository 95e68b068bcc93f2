//! Parses the schema of a tool's author: JSON Schema, a type in RTFS notation, or the shorthand.
//!
//! A text is an RTFS type: `"[:map {:city :string, :limit [:and :int [:> 0]] ?}]"`. A mapping is JSON
//! Schema or the shorthand.
//!
//! # The shorthand
//!
//! A mapping of fields to types, for an object with these fields (others are admitted, as in JSON
//! Schema):
//!
//! ```yaml
//! city: string                 # has to be there
//! limit: integer?              # may be absent
//! tags: string[]
//! unit: celsius|fahrenheit = celsius
//! near: { lat: number, lon: number }
//! radius: { type: number, minimum: 0, description: In kilometres }
//! ```
//!
//! ```text
//! field   = name ["?"] ":" (type | mapping)  ; a mapping is JSON Schema or shorthand in its turn
//! type    = base *"[]" ["?"] ["=" default]   ; `[]` an array of it; `?` or a default: may be absent
//! base    = "string" | "integer" | "int" | "number" | "float" | "boolean" | "bool"
//!         | "object" | "array" | "any" | word 1*("|" word)     ; the last is a choice of texts
//! word    = letters, digits, "_", "-" and "." ; but no name of a base
//! default = JSON, or for texts the bare text
//! ```
//!
//! # How the two are told apart
//!
//! A mapping is JSON Schema if
//! - it is empty, or
//! - it has a part that shorthand never has: a key that begins with `$`, a keyword whose value is a
//!   list, number or boolean, or `properties` whose entries are all mappings or booleans, or
//! - all of its keys are keywords of JSON Schema, and either `type` is the name of a JSON type or some
//!   value is not a type of the shorthand. The value of `not`, `if`, `then`, `contains` and similar
//!   keywords counts as such if it only restricts values: `{not: {required: [a]}}`.
//!
//! Otherwise it is shorthand. One exception makes a field called `type` possible: a whole declaration of
//! two or more keys that has only shorthand types, and whose `type` is not `object`, is shorthand,
//! because the input of a tool is usually an object. (`type: string` and `title: string?` are two
//! fields; `type: string` alone is JSON Schema for a text.)

use rtfs::text::excerpt;
use rtfs::{Definitions, TypeExpr};
use serde_json::{Map as Object, Value as Json, json};

use super::validate::JsonValidator;
use super::{SchemaError, json_schema_of, references, type_from_json_schema, walk};
use crate::json::push_key;

/// The maximum nesting of arrays in one type: `string[][][]…`.
const MAX_BRACKETS: usize = 8;

/// Parses the type that a tool's author declares, as JSON Schema, in RTFS notation or in the shorthand
/// of this module.
///
/// # Errors
/// The declaration has none of these forms: the path in it, what was expected there, and what was
/// found.
pub fn schema_from_declaration(declared: &Json) -> Result<TypeExpr, SchemaError> {
    let mapping = match declared {
        Json::Object(mapping) => mapping,
        Json::String(notation) => return rtfs_type(notation),
        _ => {
            let expected = "a JSON Schema, a mapping `field: type` or a type in RTFS notation";
            let problem = format!("expected {expected}, got {}", shown(declared));
            return Err(SchemaError { path: String::new(), problem });
        }
    };
    let schema = match kind_of(mapping, true) {
        Kind::JsonSchema => json_schema(declared, mapping, "")?,
        Kind::Shorthand => {
            let schema = shorthand(mapping, "")?;
            enforceable(&schema)?;
            schema
        }
    };
    Ok(type_from_json_schema(&schema))
}

/// Like [`schema_from_declaration`], for the input of a capability, which must be an object.
///
/// # Errors
/// Those of [`schema_from_declaration`], and a type that admits no object.
pub fn input_from_declaration(declared: &Json) -> Result<TypeExpr, SchemaError> {
    let schema = schema_from_declaration(declared)?;
    must_admit_object(&schema)?;
    Ok(schema)
}

/// Checks that a schema admits an object, according to its `type`.
///
/// # Errors
/// It does not.
pub fn must_admit_object(schema: &TypeExpr) -> Result<(), SchemaError> {
    let json = json_schema_of(schema);
    let admits = match json.get("type") {
        None => json != Json::Bool(false),
        Some(Json::Array(types)) => types.iter().any(|name| name == "object"),
        Some(name) => name == "object",
    };
    if admits {
        return Ok(());
    }
    let problem = "expected an input schema of type object, because arguments have names".to_owned();
    Err(SchemaError { path: "type".to_owned(), problem })
}

fn rtfs_type(notation: &str) -> Result<TypeExpr, SchemaError> {
    let invalid = |problem| SchemaError { path: String::new(), problem };
    let ty = TypeExpr::parse(notation).map_err(|error| {
        let at =
            error.position.map(|(line, column)| format!(" (line {line}, column {column} of the type)"));
        invalid(error.problem + &at.unwrap_or_default())
    })?;
    ty.verify(&Definitions::new()).map_err(invalid)?;
    Ok(ty)
}

#[derive(Debug, PartialEq)]
enum Kind {
    JsonSchema,
    Shorthand,
}

fn kind_of(mapping: &Object<String, Json>, is_root: bool) -> Kind {
    if mapping.is_empty() || mapping.iter().any(|(key, value)| is_unmistakable(key, value)) {
        return Kind::JsonSchema;
    }
    let all_types = mapping.iter().all(|(key, value)| match value {
        Json::Object(nested) => !is_no_field(key, nested),
        value => is_type(value),
    });
    if !mapping.keys().all(|key| is_keyword(key)) {
        return Kind::Shorthand;
    }
    match mapping.get("type").and_then(Json::as_str) {
        Some(name)
            if is_root && mapping.len() > 1 && name != "object" && mapping.values().all(is_type) =>
        {
            Kind::Shorthand
        }
        Some(name) if JSON_TYPES.contains(&name) => Kind::JsonSchema,
        _ if all_types => Kind::Shorthand,
        _ => Kind::JsonSchema,
    }
}

/// Returns whether this entry cannot belong to the shorthand.
fn is_unmistakable(key: &str, value: &Json) -> bool {
    match (key, value) {
        ("properties" | "patternProperties" | "definitions", Json::Object(entries)) => {
            entries.values().all(|entry| entry.is_object() || entry.is_boolean())
        }
        (key, _) if key.starts_with('$') => true,
        (_, Json::String(_) | Json::Object(_) | Json::Null) => false,
        (key, Json::Array(_) | Json::Number(_) | Json::Bool(_)) => is_keyword(key),
    }
}

/// Returns whether the value of a keyword that takes a schema cannot be the type of a field: it only
/// restricts values, such as `{required: [a]}`, and does not name their kind.
fn is_no_field(key: &str, value: &Object<String, Json>) -> bool {
    let restricts = |value: &Object<String, Json>| {
        value.keys().all(|key| RESTRICTIONS.contains(&&**key)) && !value.values().all(is_type)
    };
    match key {
        "dependentSchemas" => value.values().any(|value| value.as_object().is_some_and(restricts)),
        key => TAKE_A_SCHEMA.contains(&key) && restricts(value),
    }
}

/// Returns a doubt about a declaration that is taken for shorthand and looks like JSON Schema.
pub fn doubt(declared: &Json) -> Option<String> {
    let mapping = declared.as_object().filter(|mapping| kind_of(mapping, true) == Kind::Shorthand)?;
    let is_schema =
        |(key, value): (&String, &Json)| TAKE_A_SCHEMA.contains(&&**key) && value.is_object();
    let is_object = mapping.len() > 1 && mapping.get("type").is_some_and(|name| name == "object");
    if !is_object && !mapping.iter().all(is_schema) {
        return None;
    }
    let fields: Vec<&str> = mapping.keys().take(3).map(String::as_str).collect();
    let more = if mapping.len() > fields.len() { ", …" } else { "" };
    let fields = fields.join(", ");
    Some(format!(
        "it is read as an object with the fields {fields}{more}; if it is JSON Schema, add `$schema`"
    ))
}

fn is_type(value: &Json) -> bool {
    value.as_str().is_some_and(|text| parse_type(text).is_ok())
}

/// Checks a declared JSON Schema, and that no field of the shorthand was lost in it.
fn json_schema(
    declared: &Json,
    mapping: &Object<String, Json>,
    path: &str,
) -> Result<Json, SchemaError> {
    let stray = mapping.iter().find(|(key, value)| !is_keyword(key) && is_type(value));
    if let Some((key, _)) = stray.filter(|_| !mapping.contains_key("$schema")) {
        let problem =
            "expected a keyword of JSON Schema, as the others here are; put a field into `properties`";
        return Err(SchemaError { path: below(path, key), problem: problem.to_owned() });
    }
    match enforceable(declared) {
        Ok(()) => Ok(declared.clone()),
        Err(SchemaError { path: inner, problem }) => {
            let separator =
                if path.is_empty() || inner.is_empty() || inner.starts_with('[') { "" } else { "." };
            Err(SchemaError { path: format!("{path}{separator}{inner}"), problem })
        }
    }
}

/// Checks that a JSON Schema can be enforced, and that all of its references have a target.
fn enforceable(schema: &Json) -> Result<(), SchemaError> {
    JsonValidator::compile_json(schema.clone())?;
    if walk::has_references(schema) { references::all_resolve(schema) } else { Ok(()) }
}

fn shorthand(mapping: &Object<String, Json>, path: &str) -> Result<Json, SchemaError> {
    let mut properties = Object::new();
    let mut required = Vec::new();
    for (key, declared) in mapping {
        let path = below(path, key);
        let (name, may_be_absent) =
            key.strip_suffix('?').map_or((key.as_str(), false), |name| (name, true));
        let ParsedType { schema, optional } = match declared {
            Json::String(text) => {
                parse_type(text).map_err(|problem| SchemaError { path: path.clone(), problem })?
            }
            Json::Object(nested) => {
                let schema = match kind_of(nested, false) {
                    Kind::JsonSchema => json_schema(declared, nested, &path)?,
                    Kind::Shorthand => shorthand(nested, &path)?,
                };
                let optional = schema.get("default").is_some();
                ParsedType { schema, optional }
            }
            other => return Err(SchemaError { path, problem: expected_type(&shown(other)) }),
        };
        if name.is_empty() || properties.contains_key(name) {
            let problem = "expected a name that no other field has".to_owned();
            return Err(SchemaError { path, problem });
        }
        if !may_be_absent && !optional {
            required.push(name);
        }
        properties.insert(name.to_owned(), schema);
    }
    let mut schema = json!({ "type": "object", "properties": properties });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    Ok(schema)
}

/// A type of the shorthand, converted to JSON Schema.
#[derive(Debug)]
struct ParsedType {
    schema: Json,
    /// Whether the field may be absent.
    optional: bool,
}

fn parse_type(text: &str) -> Result<ParsedType, String> {
    let (notation, default) = match text.split_once('=') {
        Some((notation, default)) => (notation.trim(), Some(default.trim())),
        None => (text.trim(), None),
    };
    let (mut base, is_optional) =
        notation.strip_suffix('?').map_or((notation, false), |base| (base, true));
    let mut brackets = 0;
    while let Some(inner) = base.strip_suffix("[]") {
        (base, brackets) = (inner, brackets + 1);
    }
    if brackets > MAX_BRACKETS {
        return Err(format!("expected at most {MAX_BRACKETS} `[]`, got {brackets}"));
    }
    let item = parse_base(base).ok_or_else(|| expected_type(&format!("{:?}", excerpt(text, 80))))?;
    let mut schema = (0..brackets).fold(item, |item, _| json!({ "type": "array", "items": item }));
    if let Some(default) = default {
        let value = parse_default(default, &schema)?;
        schema["default"] = value;
    }
    Ok(ParsedType { schema, optional: is_optional || default.is_some() })
}

fn parse_base(base: &str) -> Option<Json> {
    if let Some((_, json_type)) = BASES.iter().find(|(name, _)| *name == base) {
        return Some(json_type.map_or_else(|| json!({}), |name| json!({ "type": name })));
    }
    let words: Vec<_> = base.split('|').map(str::trim).collect();
    let is_word = |word: &&str| {
        let inside = |c: char| c.is_alphanumeric() || "_-.".contains(c);
        !word.is_empty() && word.chars().all(inside) && !BASES.iter().any(|(name, _)| name == word)
    };
    let all_differ = words.iter().enumerate().all(|(i, word)| !words[..i].contains(word));
    let is_choice =
        words.len() > 1 && words.iter().all(is_word) && all_differ && !words.contains(&"null");
    is_choice.then(|| json!({ "type": "string", "enum": words }))
}

fn parse_default(text: &str, schema: &Json) -> Result<Json, String> {
    let parsed = serde_json::from_str(text).ok();
    let value = if schema["type"] == "string" {
        parsed.filter(Json::is_string).or_else(|| (!text.is_empty()).then(|| text.into()))
    } else {
        parsed
    };
    let fits = |value: &Json| {
        let validator = JsonValidator::compile_json(schema.clone()).ok()?;
        validator.check(&value.to_string(), "").ok()
    };
    value
        .filter(|value| fits(value).is_some())
        .ok_or_else(|| format!("expected a default of the declared type, got {:?}", excerpt(text, 80)))
}

fn expected_type(got: &str) -> String {
    format!(
        "expected a type (string, integer, number, boolean, object, array, any, or a choice such as \
         `low|high`; with `[]` for an array of it, `?` if it may be absent), got {got}"
    )
}

fn below(path: &str, key: &str) -> String {
    let mut below = path.to_owned();
    push_key(&mut below, key);
    below.strip_prefix('.').filter(|_| path.is_empty()).map(str::to_owned).unwrap_or(below)
}

fn shown(value: &Json) -> String {
    match value {
        Json::Null => "nothing".to_owned(),
        value => excerpt(value, 80),
    }
}

/// The names of the shorthand, with the type's name in JSON Schema (`any` has none).
const BASES: [(&str, Option<&str>); 10] = [
    ("string", Some("string")),
    ("integer", Some("integer")),
    ("int", Some("integer")),
    ("number", Some("number")),
    ("float", Some("number")),
    ("boolean", Some("boolean")),
    ("bool", Some("boolean")),
    ("object", Some("object")),
    ("array", Some("array")),
    ("any", None),
];

const JSON_TYPES: [&str; 7] = ["string", "integer", "number", "boolean", "object", "array", "null"];

/// Returns whether this is a keyword of JSON Schema (2020-12 or an earlier draft that is still in use).
fn is_keyword(key: &str) -> bool {
    key.starts_with('$') || key.starts_with("x-") || KEYWORDS.contains(&key)
}

const KEYWORDS: [&str; 52] = [
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "contains",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "default",
    "definitions",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "deprecated",
    "description",
    "else",
    "enum",
    "examples",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "if",
    "items",
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "not",
    "nullable",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "propertyNames",
    "readOnly",
    "required",
    "then",
    "title",
    "type",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
    "writeOnly",
];

/// Keywords whose value is a schema.
const TAKE_A_SCHEMA: [&str; 12] = [
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];

/// Keywords that restrict values without naming their kind.
const RESTRICTIONS: [&str; 19] = [
    "dependentRequired",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "pattern",
    "patternProperties",
    "required",
    "uniqueItems",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unambiguous_keywords_are_json_schema_and_ambiguous_ones_are_doubtful() {
        for schema in [
            json!({"not": {"required": ["a"]}}),
            json!({"if": {"required": ["a"]}, "then": {"required": ["b"]}}),
            json!({"if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}}),
            json!({"propertyNames": {"pattern": "^x"}}),
            json!({"propertyNames": {"maxLength": 3}}),
            json!({"contains": {"minimum": 3}}),
            json!({"dependentSchemas": {"a": {"required": ["b"]}}}),
        ] {
            let read = schema_from_declaration(&schema).unwrap();
            assert_eq!(json_schema_of(&read), schema);
            assert_eq!(doubt(&schema), None, "{schema}");
        }
        for fields in [
            json!({"not": {"type": "string"}}),
            json!({"if": {"type": "string"}, "then": {"type": "integer"}}),
            json!({"type": "object", "propertis": {}}),
        ] {
            let read = json_schema_of(&schema_from_declaration(&fields).unwrap());
            assert!(read["required"].is_array(), "{read}");
            assert!(
                doubt(&fields).unwrap().contains("is read as an object with the fields"),
                "{fields}"
            );
        }
        for plain in [
            json!({"city": "string"}),
            json!({"contains": "string", "not": "string?"}),
            json!({"type": "string", "name": "string"}),
            json!({"not": {"pattern": "string"}, "name": "string"}),
            json!({"type": "object"}),
            json!({"near": {"lat": "number"}}),
        ] {
            assert_eq!(doubt(&plain), None, "{plain}");
        }
    }

    fn object(properties: &Json, required: &[&str]) -> Json {
        let mut schema = json!({"type": "object", "properties": properties});
        if !required.is_empty() {
            schema["required"] = json!(required);
        }
        schema
    }

    #[test]
    fn reads_the_shorthand() {
        let cases = [
            (json!({"city": "string"}), object(&json!({"city": {"type": "string"}}), &["city"])),
            (json!({"limit": "integer?"}), object(&json!({"limit": {"type": "integer"}}), &[])),
            (json!({"limit?": "int"}), object(&json!({"limit": {"type": "integer"}}), &[])),
            (
                json!({"a": "float", "b": "bool", "c": "any", "d": "object", "e": "array"}),
                object(
                    &json!({"a": {"type": "number"}, "b": {"type": "boolean"}, "c": {},
                           "d": {"type": "object"}, "e": {"type": "array"}}),
                    &["a", "b", "c", "d", "e"],
                ),
            ),
            (
                json!({"tags": "string[]", "grid": "number[][]?"}),
                object(
                    &json!({"tags": {"type": "array", "items": {"type": "string"}},
                           "grid": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}}),
                    &["tags"],
                ),
            ),
            (
                json!({"unit": "celsius | fahrenheit = celsius", "n": "integer = 10", "s": "string = 1.0"}),
                object(
                    &json!({"unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                           "n": {"type": "integer", "default": 10}, "s": {"type": "string", "default": "1.0"}}),
                    &[],
                ),
            ),
            (
                json!({"near": {"lat": "number"}, "radius?": {"type": "number", "minimum": 0}}),
                object(
                    &json!({"near": object(&json!({"lat": {"type": "number"}}), &["lat"]),
                           "radius": {"type": "number", "minimum": 0}}),
                    &["near"],
                ),
            ),
            // Fields whose names are keywords of JSON Schema.
            (
                json!({"type": "string", "title": "string?"}),
                object(&json!({"type": {"type": "string"}, "title": {"type": "string"}}), &["type"]),
            ),
            (
                json!({"type": "object", "city": "string"}),
                object(
                    &json!({"type": {"type": "object"}, "city": {"type": "string"}}),
                    &["type", "city"],
                ),
            ),
            (
                json!({"properties": "object", "items": "string[]"}),
                object(
                    &json!({"properties": {"type": "object"}, "items": {"type": "array", "items": {"type": "string"}}}),
                    &["properties", "items"],
                ),
            ),
        ];
        for (declared, schema) in cases {
            let ty = schema_from_declaration(&declared).unwrap();
            assert_eq!(ty.json_schema(), Some(schema.to_string().as_str()), "{declared}");
        }
    }

    #[test]
    fn a_text_is_a_type_of_rtfs() {
        for (notation, printed) in
            [("[:map {:name :string}]", "[:map [:name :string]]"), ("string", ":string")]
        {
            let ty = schema_from_declaration(&json!(notation)).unwrap();
            assert_eq!((ty.to_string().as_str(), ty.json_schema()), (printed, None));
        }
    }

    #[test]
    fn leaves_json_schema_as_it_is() {
        let cases = [
            json!({}),
            json!({"type": "object"}),
            json!({"type": "object", "description": "string"}),
            json!({"type": ["object", "null"]}),
            json!({"type": "array", "items": {"type": "string"}}),
            json!({"type": "string", "description": "A name"}),
            json!({"properties": {"a": {"type": "number"}}, "required": ["a"], "x-order": 1}),
            json!({"anyOf": [{"type": "string"}]}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}),
            json!({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "unknown": "string"}),
            json!({"type": "object", "additionalProperties": false, "unknown": 1}),
        ];
        for declared in cases {
            let ty = schema_from_declaration(&declared).unwrap();
            assert_eq!(ty.json_schema(), Some(declared.to_string().as_str()));
        }
    }

    #[test]
    fn says_where_a_declaration_is_wrong_and_what_was_expected() {
        let types = "expected a type (string, integer, number, boolean, object, array, any, or a choice such as \
                     `low|high`; with `[]` for an array of it, `?` if it may be absent), got";
        let cases = [
            (
                json!("[:map {:a :strng}]"),
                "expected a type, got :strng; did you mean :string? (line 1, column 11 of the type)".to_owned(),
            ),
            (json!("[:vector Tree]"), "expected the name of a type, got Tree, which none has".to_owned()),
            (
                json!(null),
                "expected a JSON Schema, a mapping `field: type` or a type in RTFS notation, got nothing".to_owned(),
            ),
            (json!({"city": "strng"}), format!(r#"city: {types} "strng""#)),
            (json!({"city": null}), format!("city: {types} nothing")),
            (json!({"a b": 7}), format!(r#"["a b"]: {types} 7"#)),
            (json!({"a": {"b": "string?[]"}}), format!(r#"a.b: {types} "string?[]""#)),
            (json!({"a": "string|null"}), format!(r#"a: {types} "string|null""#)),
            (json!({"a": "low|low"}), format!(r#"a: {types} "low|low""#)),
            (json!({"n": "integer = x"}), r#"n: expected a default of the declared type, got "x""#.to_owned()),
            (json!({"n": "a|b = c"}), r#"n: expected a default of the declared type, got "c""#.to_owned()),
            (json!({"a": "string", "a?": "string"}), r#"["a?"]: expected a name that no other field has"#.to_owned()),
            (
                json!({"a": {"type": "string", "minLength": -1}}),
                "a.minLength: expected at least 0, got -1".to_owned(),
            ),
            (
                json!({"type": "object", "properties": {"a": "string"}}),
                r#"properties.a: expected true or false or an object, got "string""#.to_owned(),
            ),
            (
                json!({"city": "string", "required": ["city"]}),
                "city: expected a keyword of JSON Schema, as the others here are; put a field into `properties`"
                    .to_owned(),
            ),
        ];
        for (declared, text) in cases {
            assert_eq!(schema_from_declaration(&declared).unwrap_err().to_string(), text, "{declared}");
        }
    }
}

use orla_marketplace::schema::{Validator, type_from_json_schema};

use super::*;

fn converted(version: &str, side: Side, schema: &Json, components: &Json) -> Result<Json, String> {
    let document = json!({"openapi": version, "components": {"schemas": components}});
    let document = Document::parse(&document.to_string())?;
    let mut converter = Converter::new(&document, side);
    let mut schema = converter.convert(schema)?;
    let definitions = converter.definitions()?;
    if !definitions.is_empty() {
        schema["$defs"] = definitions.into();
    }
    Ok(schema)
}

#[test]
fn schemas_of_3_0_become_those_of_2020_12() {
    let cases = [
        (json!({"type": "string", "nullable": true}), json!({"type": ["string", "null"]})),
        (
            json!({"type": "string", "nullable": true, "enum": ["a"]}),
            json!({"type": ["string", "null"], "enum": ["a", null]}),
        ),
        (
            json!({"nullable": true, "allOf": [{"type": "object"}], "description": "d"}),
            json!({"description": "d", "anyOf": [{"allOf": [{"type": "object"}]}, {"type": "null"}]}),
        ),
        (
            json!({"type": "integer", "minimum": 1, "exclusiveMinimum": true, "maximum": 9, "exclusiveMaximum": false}),
            json!({"type": "integer", "maximum": 9, "exclusiveMinimum": 1}),
        ),
        (
            json!({"type": "string", "example": "x", "xml": {}, "x-y": 1, "discriminator": {}}),
            json!({"type": "string", "examples": ["x"]}),
        ),
        (
            json!({"type": "string", "format": "binary"}),
            json!({"type": "string", "contentEncoding": "base64"}),
        ),
        (json!({"type": "file", "required": true, "minLength": -1, "enum": []}), json!({})),
        (json!({"type": "string", "pattern": "(?=x)"}), json!({"type": "string", "pattern": "(?=x)"})),
        (
            json!({"type": "array", "items": {"type": "object", "properties": {"nullable": {"type": "boolean"}}}}),
            json!({"type": "array", "items": {"type": "object", "properties": {"nullable": {"type": "boolean"}}}}),
        ),
    ];
    for (schema, expected) in cases {
        assert_eq!(
            converted("3.0.3", Side::Request, &schema, &json!({})).unwrap(),
            expected,
            "{schema}"
        );
    }
}

#[test]
fn read_only_and_write_only_properties_are_left_out_of_the_other_side() {
    let schema = json!({
        "type": "object", "required": ["id", "secret", "name"],
        "properties": {"id": {"$ref": "#/components/schemas/Id"}, "secret": {"writeOnly": true}, "name": {}},
    });
    let components = json!({"Id": {"type": "integer", "readOnly": true}});
    let request = converted("3.1.0", Side::Request, &schema, &components).unwrap();
    assert_eq!(
        request,
        json!({"type": "object", "required": ["secret", "name"], "properties": {"secret": {}, "name": {}}})
    );
    let answer = converted("3.1.0", Side::Response, &schema, &components).unwrap();
    assert_eq!(answer["properties"], json!({"id": {"$ref": "#/$defs/Id"}, "name": {}}));
    assert_eq!(answer["$defs"], json!({"Id": {"type": "integer"}}));
}

#[test]
fn of_answers_the_outline_is_kept() {
    let schema = json!({
        "type": "object", "required": ["a"], "additionalProperties": false, "minProperties": 1,
        "properties": {
            "a": {"type": "string", "enum": ["x", "y"], "example": "x", "maxLength": 1},
            "b": {"oneOf": [{"type": "integer", "minimum": 3}, {"type": "number"}]},
            "c": {"type": "object", "additionalProperties": {"type": "boolean", "const": true}},
        },
    });
    assert_eq!(
        converted("3.1.0", Side::Response, &schema, &json!({})).unwrap(),
        json!({
            "type": "object",
            "properties": {
                "a": {"type": "string", "examples": ["x", "y"]},
                "b": {"anyOf": [{"type": "integer"}, {"type": "number"}]},
                "c": {"type": "object", "additionalProperties": {"type": "boolean"}},
            },
        })
    );
}

#[test]
fn a_recursive_schema_stays_recursive_and_an_endless_one_is_refused() {
    let tree = json!({"Tree Node": {"type": "object", "properties": {
        "children": {"type": "array", "items": {"$ref": "#/components/schemas/Tree Node"}}}}});
    let schema = json!({"$ref": "#/components/schemas/Tree%20Node"});
    let result = converted("3.1.0", Side::Request, &schema, &tree).unwrap();
    assert_eq!(result["$ref"], "#/$defs/Tree_Node");
    let items = &result["$defs"]["Tree_Node"]["properties"]["children"]["items"];
    assert_eq!(items["$ref"], "#/$defs/Tree_Node");
    let validator = Validator::compile(&type_from_json_schema(&result)).unwrap();
    assert!(validator.check(r#"{"children": [{"children": []}]}"#, "input").is_ok());
    assert!(validator.check(r#"{"children": [{"children": 7}]}"#, "input").is_err());

    let endless = json!({"A": {"allOf": [{"$ref": "#/components/schemas/B"}]},
        "B": {"anyOf": [{"type": "null"}, {"$ref": "#/components/schemas/A"}]}});
    let schema = json!({"$ref": "#/components/schemas/A"});
    let error = converted("3.0.0", Side::Request, &schema, &endless).unwrap_err();
    assert!(error.ends_with("refers to itself without end"), "{error}");
    let nowhere = json!({"items": {"$ref": "#/components/schemas/Gone"}});
    assert_eq!(
        converted("3.0.0", Side::Request, &nowhere, &json!({})).unwrap_err(),
        "#/components/schemas/Gone leads nowhere"
    );
}

#[test]
fn bounds_are_kept() {
    let mut deep = json!({});
    for _ in 0..80 {
        deep = json!({ "not": deep });
    }
    let error = converted("3.1.0", Side::Request, &deep, &json!({})).unwrap_err();
    assert_eq!(error, "a schema is nested deeper than 64 levels");
    let wide: Map<String, Json> = (0..50_001).map(|at| (format!("p{at}"), json!({}))).collect();
    let error =
        converted("3.1.0", Side::Request, &json!({ "properties": wide }), &json!({})).unwrap_err();
    assert_eq!(error, "a schema is larger than 50000 values");
}

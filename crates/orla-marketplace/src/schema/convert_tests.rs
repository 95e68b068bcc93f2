//! JSON Schema ⇄ types: what becomes what.

use rtfs::{Definitions, Field, MapType, Predicate, Primitive, TypeExpr, Value};
use serde_json::json;

use super::validate::JsonValidator;
use super::{Validator, json_schema_of, type_from_json_schema};

#[test]
fn says_in_rtfs_what_the_schema_says() {
    let cases = [
        (json!({}), ":any"),
        (json!(false), ":never"),
        (json!({"type": "string"}), ":string"),
        (json!({"type": ["null", "integer"]}), ":int?"),
        (
            json!({"type": "number", "minimum": 0, "exclusiveMaximum": 1.5}),
            "[:and :number [:>= 0] [:< 1.5]]",
        ),
        (
            json!({"type": "string", "minLength": 1, "pattern": "^a"}),
            r#"[:and :string [:min-length 1] [:matches-regex "^a"]]"#,
        ),
        (
            json!({"type": "array", "items": {"type": "boolean"}, "uniqueItems": true}),
            "[:and [:vector :bool] [:unique]]",
        ),
        (
            json!({"type": "array", "prefixItems": [{"type": "string"}, {}], "items": false, "minItems": 2}),
            "[:tuple :string :any]",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
                   "required": ["a", "c"], "additionalProperties": false}),
            "[:map [:a :string] [:b :int ?] [:c :never] [:* :never]]",
        ),
        (json!({"type": "object"}), "[:map]"),
        (json!({"type": "object", "additionalProperties": {"type": "null"}}), "[:map-of :keyword :nil]"),
        (json!({"enum": ["a", 1, null]}), r#"[:enum "a" 1 nil]"#),
        (json!({"const": {"a": [1]}}), "[:val {:a [1]}]"),
        (json!({"anyOf": [{"type": "null"}, {"type": "array"}]}), "[:union [:vector :any] :nil]"),
        (json!({"oneOf": [{"type": "string"}, {"$ref": "#/$defs/x"}]}), ":any"),
        (json!({"properties": {"a": {"type": "string"}}}), ":any"),
        (json!({"type": "string", "format": "email"}), "[:and :string [:is-email]]"),
        (json!({"type": "string", "format": "ipv4"}), r#"[:and :string [:format "ipv4"]]"#),
        (json!({"type": "string", "format": "int32"}), ":string"),
        (json!({"type": "string", "not": {"const": "x"}}), r#"[:and :string [:!= "x"]]"#),
        (json!({"not": {"type": "string"}}), "[:not :string]"),
        (json!({"not": {"type": "string", "contentEncoding": "base64"}}), ":any"),
        (json!({"not": {}}), ":never"),
        (
            json!({"allOf": [{"type": "integer", "minimum": 1}, {"minimum": 2}]}),
            "[:and :int [:>= 1] [:>= 2]]",
        ),
        (
            json!({"allOf": [{"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]},
                             {"properties": {"a": {"type": "integer"}, "b": {}}, "additionalProperties": {"type": "null"}}]}),
            "[:map [:a :int] [:b :any ?] [:* :nil]]",
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "integer"}, "required": ["a"]}),
            "[:map [:a :int] [:* :int]]",
        ),
        (
            json!({"type": "object", "propertyNames": {"maxLength": 3}}),
            "[:map-of [:and :keyword [:max-length 3]] :any]",
        ),
        (
            json!({"$ref": "#/$defs/p", "$defs": {"p": {"type": "array", "items": {"$ref": "#/definitions/a~1b%20c"}}},
                   "definitions": {"a/b c": {"type": "boolean"}}}),
            "[:vector :bool]",
        ),
        (
            json!({"$ref": "#/$defs/Tree", "$defs": {"Tree": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}}}}),
            "[:ref Tree]",
        ),
        (
            json!({"type": ["array", "null"], "items": {"$ref": "#"}}),
            "[:union [:vector [:ref \"#\"]] :nil]",
        ),
        (json!({"$ref": "https://example.com/x"}), ":any"),
    ];
    for (schema, notation) in cases {
        let ty = type_from_json_schema(&schema);
        assert_eq!(ty.to_string(), notation, "{schema}");
        assert_eq!(json_schema_of(&ty), schema, "the original comes back");
    }
}

#[test]
fn says_in_json_schema_what_the_type_says() {
    let field = |key: &str, ty: TypeExpr, optional| Field { key: Value::keyword(key), ty, optional };
    let int = || TypeExpr::from(Primitive::Int);
    let record = MapType {
        fields: vec![field("a", int(), false), field("b", int().optional(), true)],
        others: Some(Box::new(Primitive::Never.into())),
    };
    let and = |ty: TypeExpr, predicates| TypeExpr::And(Box::new(ty), predicates);
    let cases = [
        (
            TypeExpr::Map(record),
            json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": ["integer", "null"]}},
                   "required": ["a"], "additionalProperties": false}),
        ),
        (
            TypeExpr::Set(Box::new(Primitive::Keyword.into())),
            json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true}),
        ),
        (
            TypeExpr::Array { item: Box::new(int()), shape: vec![Some(3), None] },
            json!({"type": "array", "items": {"type": "array", "items": {"type": "integer"}}, "minItems": 3, "maxItems": 3}),
        ),
        (
            and(int(), vec![Predicate::AtLeast(1.into()), Predicate::AtLeast(2.into())]),
            json!({"allOf": [{"type": "integer", "minimum": 1}, {"minimum": 2}]}),
        ),
        (
            and(TypeExpr::MapOf(Box::new(int()), Box::new(int())), vec![Predicate::NonEmpty]),
            json!({"type": "object", "additionalProperties": {"type": "integer"}, "propertyNames": {"pattern": "^(0|-?[1-9][0-9]*)$"}, "minProperties": 1}),
        ),
        (
            TypeExpr::Union(vec![TypeExpr::Val(Value::keyword("x")), Primitive::Nil.into()]),
            json!({"anyOf": [{"const": "x"}, {"type": "null"}]}),
        ),
        (TypeExpr::Enum(vec![f64::NAN.into()]), json!({})),
    ];
    let notations = [
        ("[:enum :a \"a\" :b]", json!({"enum": ["a", "b"]})),
        ("[:val 123456789012345678901234567890]", json!({})),
        ("[:vector :any]", json!({"type": "array"})),
        ("[:tuple]", json!({"type": "array", "maxItems": 0})),
        ("[:set :number]", json!({"type": "array", "items": {"type": "number"}})),
        (
            "[:and [:vector :int] [:unique]]",
            json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true}),
        ),
        ("[:and [:vector :any] [:unique]]", json!({"type": "array"})),
        ("[:union :int :float :never]", json!({"type": ["integer", "number"]})),
        ("[:union :int :any]", json!({})),
        ("[:not :string]", json!({"not": {"type": "string"}})),
        ("[:not :keyword]", json!({})),
        ("[:not [:not [:val :a]]]", json!({"not": {"not": {"const": "a"}}})),
        ("[:not [:and :string [:is-email]]]", json!({})),
        ("[:not [:and :string [:min-length 3]]]", json!({"not": {"type": "string", "minLength": 3}})),
        ("[:not :any]", json!(false)),
        (
            "[:map {:a :int :* :any}]",
            json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}),
        ),
        ("[:map [:a :int] [\"a\" :string]]", json!({"type": "object", "properties": {"a": {}}})),
        (
            "[:map [3 :int ?] [nil :int ?]]",
            json!({"type": "object", "properties": {"3": {"type": "integer"}}}),
        ),
        (
            "[:map-of [:enum :a :b] :any]",
            json!({"type": "object", "propertyNames": {"enum": ["a", "b"]}}),
        ),
        (
            "[:and [:map {:a :any}] [:required-keys [:b :a]] [:has-key 3]]",
            json!({"type": "object", "properties": {"a": {}}, "required": ["a", "b", "3"]}),
        ),
        (
            "[:and :any [:count 2]]",
            json!({"minItems": 2, "minProperties": 2, "maxItems": 2, "maxProperties": 2}),
        ),
        ("[:and :keyword [:non-empty]]", json!({"type": "string", "minLength": 1})),
        ("[:and :int [:> :a]]", json!({"type": "integer"})),
        ("[:and :string [:matches-regex \"(?i)a\"]]", json!({"type": "string"})),
        (
            "[:and :string [:is-url]]",
            json!({"type": "string", "format": "uri", "pattern": "^[A-Za-z][A-Za-z0-9+.-]*://[^/?#]"}),
        ),
        ("[:and :string [:!= \"a\"]]", json!({"type": "string", "not": {"const": "a"}})),
        ("[:and :float [:!= 1]]", json!({"type": "number"})),
        ("[:fn [:int] :int]", json!({})),
        ("Tree", json!({})),
    ];
    let parsed = notations.map(|(notation, schema)| (notation.parse().unwrap(), schema));
    let cases: Vec<(TypeExpr, _)> = cases.into_iter().chain(parsed).collect();
    for (ty, schema) in cases {
        assert_eq!(json_schema_of(&ty), schema, "{ty}");
        assert!(JsonValidator::compile(&ty).is_ok(), "{ty}");
    }
}

#[test]
fn names_that_a_type_brings_along_become_definitions() {
    let mut definitions = Definitions::new();
    for (name, notation) in [
        (
            "Tree",
            "[:map {:leaf \"Odd name\", :kids [:vector Tree]}]"
                .replace("\"Odd name\"", "[:ref \"a/b c\"]"),
        ),
        ("a/b c", ":int?".to_owned()),
        ("Loop", "[:union Loop [:and Loop [:> 0]]]".to_owned()),
        ("Unused", ":any".to_owned()),
    ] {
        definitions.define(name, notation.parse().unwrap());
    }
    let ty: TypeExpr = "[:tuple Tree Loop]".parse().unwrap();
    let ty = ty.with_definitions(definitions.into());
    let schema = json!({
        "type": "array",
        "prefixItems": [{"$ref": "#/$defs/Tree"}, {}],
        "items": false,
        "minItems": 2,
        "maxItems": 2,
        "$defs": {
            "Tree": {
                "type": "object",
                "properties": {"leaf": {"$ref": "#/$defs/a~1b%20c"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}},
                "required": ["leaf", "kids"],
            },
            "a/b c": {"type": ["integer", "null"]},
        },
    });
    assert_eq!(json_schema_of(&ty), schema);
    let again = type_from_json_schema(&schema);
    let fits: Value =
        rtfs::json::value_from_json(r#"[{"leaf": null, "kids": [{"leaf": 1, "kids": []}]}, 7]"#)
            .unwrap();
    let breaks: Value =
        rtfs::json::value_from_json(r#"[{"leaf": null, "kids": [{"leaf": "x", "kids": []}]}, 7]"#)
            .unwrap();
    assert!(again.admits(&fits) && !again.admits(&breaks));
    let violations = Validator::compile(&again).unwrap().check(&breaks.pr_str(), "input");
    assert!(violations.is_err());
}

#[test]
fn a_schema_inside_of_a_type_keeps_its_own_references() {
    let original = json!({"$ref": "#/$defs/x", "$defs": {"x": {"type": "integer", "minimum": 3}}});
    let ty = TypeExpr::Tuple(vec![
        type_from_json_schema(&original),
        type_from_json_schema(&json!({"contentEncoding": "x"})),
    ]);
    let schema = json_schema_of(&ty);
    assert_eq!(schema["prefixItems"][0]["$id"], "nested:1");
    assert_eq!(schema["prefixItems"][1], json!({"contentEncoding": "x"}));
    let validator = JsonValidator::compile_json(schema).unwrap();
    assert!(validator.check("[3, null]", "input").is_ok());
    assert!(validator.check("[2, null]", "input").is_err());
}

#[test]
fn references_that_multiply_are_replaced_to_a_bound() {
    let mut defs = serde_json::Map::new();
    for n in 0..60 {
        let next = json!({"$ref": format!("#/$defs/d{}", n + 1)});
        defs.insert(
            format!("d{n}"),
            json!({"type": "array", "prefixItems": [next, next], "items": false, "minItems": 2}),
        );
    }
    let schema = json!({"$ref": "#/$defs/d0", "$defs": defs});
    assert!(type_from_json_schema(&schema).to_string().len() < 100_000);
}

#[path = "../../../rtfs/src/types/arbitrary.rs"]
mod arbitrary;

mod properties {
    use proptest::prelude::*;
    use rtfs::json::{value_from_json, value_to_json};
    use rtfs::{Checking, Form};

    use super::arbitrary::{Chooser, any_plain_type, any_type};
    use super::*;

    proptest! {
        #[test]
        fn the_schema_of_a_type_admits_what_the_type_does(ty in any_type(), seed in any::<u64>()) {
            let schema = json_schema_of(&ty);
            let by_schema = JsonValidator::compile_json(schema.clone());
            prop_assert!(by_schema.is_ok(), "{}: {} {:?}", ty, schema, by_schema);
            let by_schema = by_schema.unwrap();
            let by_type = Validator::compile(&ty).unwrap();
            let again = type_from_json_schema(&schema);
            let mut chooser = Chooser::new(seed);
            let as_json = Checking { form: Form::Json, ..Checking::default() };
            for _ in 0..4 {
                let Some(value) = chooser.value_of(&ty) else { continue };
                let Ok(json) = value_to_json(&value) else { continue };
                prop_assert_eq!(by_type.check_value(&value, "x"), Ok(()));
                prop_assert_eq!(by_type.check(&json, "x"), Ok(()), "{}: {}", ty, json);
                prop_assert_eq!(by_schema.check(&json, "x"), Ok(()), "{}: {} {}", ty, schema, json);
                let natural = value_from_json(&json).unwrap();
                prop_assert_eq!(as_json.check(&again, &natural, "x"), Ok(()), "{}: {} {} {}", ty, schema, json, again);
            }
        }

        #[test]
        fn a_type_that_both_can_say_means_the_same_after_both(
            ty in any_plain_type(),
            other in any_plain_type(),
            seed in any::<u64>(),
        ) {
            let schema = json_schema_of(&ty);
            let again = type_from_json_schema(&schema);
            let by_schema = JsonValidator::compile_json(schema.clone()).unwrap();
            let mut chooser = Chooser::new(seed);
            for from in [&ty, &ty, &other, &other] {
                let Some(value) = chooser.value_of(from) else { continue };
                let Ok(json) = value_to_json(&value) else { continue };
                let value = value_from_json(&json).unwrap();
                let admits = ty.admits(&value);
                prop_assert_eq!(by_schema.check(&json, "x").is_ok(), admits, "{}: {} {}", ty, schema, json);
                prop_assert_eq!(again.admits(&value), admits, "{}: {} {} {}", ty, schema, again, json);
            }
        }
    }
}

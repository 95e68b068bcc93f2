//! JSON Schema ⇄ [`TypeExpr`].

use rtfs::{Field, MapType, Predicate, Primitive, TypeExpr, Value};
use serde_json::{Map as Object, Value as Json, json};

use crate::json::{value_from_json, value_to_json};

/// The type that comes nearest to a JSON Schema, with the schema's text attached.
///
/// What a type cannot say becomes `:any` or is left out, so a type admits all that its schema
/// admits and perhaps more, with one exception: an `:int` is no `1.0`, which JSON Schema takes for
/// an integer. References, `not`, `if` and patterns of property names are left out.
pub fn type_from_json_schema(schema: &Json) -> TypeExpr {
    meaning(schema).with_json_schema(schema.to_string().into())
}

fn meaning(schema: &Json) -> TypeExpr {
    match schema {
        Json::Bool(false) => Primitive::Never.into(),
        Json::Object(schema) => meaning_of_object(schema),
        _ => TypeExpr::ANY,
    }
}

fn meaning_of_object(schema: &Object<String, Json>) -> TypeExpr {
    if let Some(value) = schema.get("const") {
        return value_of(value).map_or(TypeExpr::ANY, TypeExpr::Val);
    }
    if let Some(Json::Array(options)) = schema.get("enum") {
        let options: Option<Vec<_>> = options.iter().map(value_of).collect();
        return options.map_or(TypeExpr::ANY, TypeExpr::Enum);
    }
    match schema.get("type") {
        Some(Json::String(name)) => typed(name, schema),
        Some(Json::Array(names)) => {
            union(names.iter().filter_map(Json::as_str).map(|name| typed(name, schema)).collect())
        }
        _ => {
            let alternatives = schema.get("anyOf").or_else(|| schema.get("oneOf"));
            match alternatives.and_then(Json::as_array) {
                Some(alternatives) => union(alternatives.iter().map(meaning).collect()),
                None => TypeExpr::ANY, // `properties` without `type` admits a string, too
            }
        }
    }
}

fn union(mut types: Vec<TypeExpr>) -> TypeExpr {
    match types.len() {
        0 => TypeExpr::ANY,
        1 => types.remove(0),
        _ if types.contains(&TypeExpr::ANY) => TypeExpr::ANY,
        _ => {
            // `A?` has its nil at the end.
            types.sort_by_key(|ty| *ty == TypeExpr::Primitive(Primitive::Nil));
            TypeExpr::Union(types)
        }
    }
}

fn typed(name: &str, schema: &Object<String, Json>) -> TypeExpr {
    match name {
        "null" => Primitive::Nil.into(),
        "boolean" => Primitive::Bool.into(),
        "integer" => with(Primitive::Int.into(), number_predicates(schema)),
        "number" => with(Primitive::Number.into(), number_predicates(schema)),
        "string" => with(Primitive::String.into(), string_predicates(schema)),
        "array" => with(array_type(schema), count_predicates(schema, "minItems", "maxItems")),
        "object" => {
            with(object_type(schema), count_predicates(schema, "minProperties", "maxProperties"))
        }
        _ => TypeExpr::ANY,
    }
}

fn with(ty: TypeExpr, predicates: Vec<Predicate>) -> TypeExpr {
    if predicates.is_empty() { ty } else { TypeExpr::And(Box::new(ty), predicates) }
}

fn number_predicates(schema: &Object<String, Json>) -> Vec<Predicate> {
    // In draft 4 the exclusive limits are booleans.
    let limit = |key| schema.get(key).filter(|limit| limit.is_number()).and_then(value_of);
    [
        limit("exclusiveMinimum").map(Predicate::GreaterThan),
        limit("minimum").map(Predicate::AtLeast),
        limit("exclusiveMaximum").map(Predicate::LessThan),
        limit("maximum").map(Predicate::AtMost),
        limit("multipleOf").map(Predicate::MultipleOf),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn string_predicates(schema: &Object<String, Json>) -> Vec<Predicate> {
    let text = |key| schema.get(key).and_then(Json::as_str);
    let size = |key| schema.get(key).and_then(Json::as_u64);
    [
        size("minLength").map(Predicate::MinLength),
        size("maxLength").map(Predicate::MaxLength),
        text("pattern").map(|pattern| Predicate::MatchesRegex(pattern.into())),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn count_predicates(schema: &Object<String, Json>, min: &str, max: &str) -> Vec<Predicate> {
    let size = |key| schema.get(key).and_then(Json::as_u64);
    let unique = min == "minItems" && schema.get("uniqueItems") == Some(&Json::Bool(true));
    [
        size(min).map(Predicate::MinCount),
        size(max).map(Predicate::MaxCount),
        unique.then_some(Predicate::Unique),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn array_type(schema: &Object<String, Json>) -> TypeExpr {
    let items = schema.get("items");
    match schema.get("prefixItems").and_then(Json::as_array) {
        // Only an array whose length is fixed is a tuple.
        Some(prefix)
            if items == Some(&Json::Bool(false))
                && schema.get("minItems").and_then(Json::as_u64) == Some(prefix.len() as u64) =>
        {
            TypeExpr::Tuple(prefix.iter().map(meaning).collect())
        }
        Some(_) => TypeExpr::Vector(Box::new(TypeExpr::ANY)),
        None => TypeExpr::Vector(Box::new(items.map_or(TypeExpr::ANY, meaning))),
    }
}

fn object_type(schema: &Object<String, Json>) -> TypeExpr {
    let required: Vec<_> = schema
        .get("required")
        .and_then(Json::as_array)
        .into_iter()
        .flatten()
        .filter_map(Json::as_str)
        .collect();
    let properties = schema.get("properties").and_then(Json::as_object);
    let mut fields: Vec<_> = properties
        .into_iter()
        .flatten()
        .map(|(name, schema)| Field {
            key: Value::keyword(name.as_str()),
            ty: meaning(schema),
            optional: !required.contains(&name.as_str()),
        })
        .collect();
    let is_known = |name: &str| properties.is_some_and(|known| known.contains_key(name));
    fields.extend(required.iter().filter(|name| !is_known(name)).map(|name| Field {
        key: Value::keyword(*name),
        ty: TypeExpr::ANY,
        optional: false,
    }));
    let others = match schema.get("additionalProperties").map(meaning) {
        Some(ty) if ty != TypeExpr::ANY && !schema.contains_key("patternProperties") => Some(ty),
        _ => None,
    };
    match others {
        Some(others) if fields.is_empty() && others != TypeExpr::Primitive(Primitive::Never) => {
            TypeExpr::MapOf(Box::new(Primitive::Keyword.into()), Box::new(others))
        }
        others => TypeExpr::Map(MapType { fields, others: others.map(Box::new) }),
    }
}

fn value_of(json: &Json) -> Option<Value> {
    value_from_json(&json.to_string()).ok()
}

/// The JSON Schema of a type: the original where there is one, else the nearest that there is.
///
/// It describes the type's JSON form, so a `:keyword` is a string and a `[:set T]` an array. Named
/// types, functions and streams admit anything.
pub fn json_schema_of(ty: &TypeExpr) -> Json {
    match ty {
        TypeExpr::JsonSchema { text, meaning } => {
            serde_json::from_str(text).unwrap_or_else(|_| json_schema_of(meaning))
        }
        TypeExpr::Primitive(primitive) => schema_of_primitive(*primitive),
        TypeExpr::Union(types) => {
            let schemas: Vec<_> = types.iter().map(json_schema_of).collect();
            match names_alone(&schemas) {
                Some(names) => json!({ "type": names }),
                None => json!({ "anyOf": schemas }),
            }
        }
        TypeExpr::Vector(item) | TypeExpr::List(item) => {
            json!({ "type": "array", "items": json_schema_of(item) })
        }
        TypeExpr::Set(item) => {
            json!({ "type": "array", "items": json_schema_of(item), "uniqueItems": true })
        }
        TypeExpr::Tuple(items) => {
            let (n, items): (_, Vec<_>) = (items.len(), items.iter().map(json_schema_of).collect());
            json!({ "type": "array", "prefixItems": items, "items": false, "minItems": n, "maxItems": n })
        }
        TypeExpr::Array { item, shape } => {
            shape.iter().rev().fold(json_schema_of(item), |inner, size| match size {
                None => json!({ "type": "array", "items": inner }),
                Some(n) => json!({ "type": "array", "items": inner, "minItems": n, "maxItems": n }),
            })
        }
        TypeExpr::Map(map) => schema_of_record(map),
        TypeExpr::MapOf(_, value) => {
            json!({ "type": "object", "additionalProperties": json_schema_of(value) })
        }
        TypeExpr::Enum(values) => values
            .iter()
            .map(json_of)
            .collect::<Option<Vec<_>>>()
            .map_or_else(|| json!({}), |values| json!({ "enum": values })),
        TypeExpr::Val(value) => {
            json_of(value).map_or_else(|| json!({}), |value| json!({ "const": value }))
        }
        TypeExpr::And(ty, predicates) => predicates.iter().fold(json_schema_of(ty), constrained),
        TypeExpr::Not(ty) => json!({ "not": json_schema_of(ty) }),
        TypeExpr::Fn { .. } | TypeExpr::Ref(_) | TypeExpr::Stream(_) => json!({}),
    }
}

fn schema_of_primitive(primitive: Primitive) -> Json {
    match primitive {
        Primitive::Any | Primitive::Fn => json!({}),
        Primitive::Never => json!(false),
        Primitive::Nil => json!({ "type": "null" }),
        Primitive::Bool => json!({ "type": "boolean" }),
        Primitive::Int => json!({ "type": "integer" }),
        Primitive::Float | Primitive::Number => json!({ "type": "number" }),
        Primitive::String | Primitive::Keyword | Primitive::Symbol => json!({ "type": "string" }),
        Primitive::Instant => json!({ "type": "string", "format": "date-time" }),
        Primitive::Uuid => json!({ "type": "string", "format": "uuid" }),
    }
}

/// The names of the types, if each schema says nothing but one.
fn names_alone(schemas: &[Json]) -> Option<Vec<&Json>> {
    let name = |schema: &Json| schema.as_object().is_some_and(|schema| schema.len() == 1);
    schemas.iter().map(|schema| if name(schema) { schema.get("type") } else { None }).collect()
}

fn schema_of_record(map: &MapType) -> Json {
    let mut properties = Object::new();
    let mut required = Vec::new();
    for Field { key, ty, optional } in &map.fields {
        let name = match key {
            Value::Keyword(keyword) => keyword.name().to_owned(),
            key => key.to_string(),
        };
        if !optional {
            required.push(name.clone());
        }
        properties.insert(name, json_schema_of(ty));
    }
    let mut schema = json!({ "type": "object", "properties": properties });
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    if let Some(others) = &map.others {
        schema["additionalProperties"] = json_schema_of(others);
    }
    schema
}

/// A schema with one more condition. One that JSON Schema has no word for is left out.
fn constrained(mut schema: Json, predicate: &Predicate) -> Json {
    let is_object = schema.get("type").is_some_and(|name| name == "object");
    let (min_count, max_count) =
        if is_object { ("minProperties", "maxProperties") } else { ("minItems", "maxItems") };
    let conditions: Vec<(&str, Option<Json>)> = match predicate {
        Predicate::GreaterThan(x) => vec![("exclusiveMinimum", json_of(x))],
        Predicate::AtLeast(x) => vec![("minimum", json_of(x))],
        Predicate::LessThan(x) => vec![("exclusiveMaximum", json_of(x))],
        Predicate::AtMost(x) => vec![("maximum", json_of(x))],
        Predicate::Equals(x) => vec![("const", json_of(x))],
        Predicate::Differs(x) => vec![("not", json_of(x).map(|x| json!({ "const": x })))],
        Predicate::InRange(from, to) => vec![("minimum", json_of(from)), ("maximum", json_of(to))],
        Predicate::MultipleOf(n) => vec![("multipleOf", json_of(n))],
        Predicate::MinLength(n) => vec![("minLength", Some(json!(n)))],
        Predicate::MaxLength(n) => vec![("maxLength", Some(json!(n)))],
        Predicate::Length(n) => vec![("minLength", Some(json!(n))), ("maxLength", Some(json!(n)))],
        Predicate::MatchesRegex(regex) => vec![("pattern", Some(json!(regex.as_str())))],
        Predicate::MinCount(n) => vec![(min_count, Some(json!(n)))],
        Predicate::MaxCount(n) => vec![(max_count, Some(json!(n)))],
        Predicate::Count(n) => vec![(min_count, Some(json!(n))), (max_count, Some(json!(n)))],
        Predicate::NonEmpty if schema.get("type").is_some_and(|name| name == "string") => {
            vec![("minLength", Some(json!(1)))]
        }
        Predicate::NonEmpty => vec![(min_count, Some(json!(1)))],
        Predicate::Unique => vec![("uniqueItems", Some(json!(true)))],
        Predicate::HasKey(key) => vec![("required", required(std::slice::from_ref(key)))],
        Predicate::RequiredKeys(keys) => vec![("required", required(keys))],
        Predicate::IsUrl => vec![("format", Some(json!("uri")))],
        Predicate::IsEmail => vec![("format", Some(json!("email")))],
        Predicate::IsUuid => vec![("format", Some(json!("uuid")))],
        Predicate::IsDate => vec![("format", Some(json!("date")))],
        Predicate::Format(name) => vec![("format", Some(json!(name)))],
    };
    for (keyword, condition) in conditions {
        let Some(condition) = condition else { continue };
        match schema.as_object_mut() {
            Some(object) if !object.contains_key(keyword) => {
                object.insert(keyword.to_owned(), condition);
            }
            // Twice the same keyword: both have to hold.
            _ => schema = json!({ "allOf": [schema, { keyword: condition }] }),
        }
    }
    schema
}

fn required(keys: &[Value]) -> Option<Json> {
    keys.iter().map(json_of).collect::<Option<Vec<_>>>().map(Json::Array)
}

fn json_of(value: &Value) -> Option<Json> {
    value_to_json(value).ok().and_then(|text| serde_json::from_str(&text).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

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
                "[:and [:tuple :string :any] [:min-count 2]]",
            ),
            (
                json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
                       "required": ["a", "c"], "additionalProperties": false}),
                "[:map [:a :string] [:b :int ?] [:c :any] [:* :never]]",
            ),
            (json!({"type": "object"}), "[:map]"),
            (
                json!({"type": "object", "additionalProperties": {"type": "null"}}),
                "[:map-of :keyword :nil]",
            ),
            (json!({"enum": ["a", 1, null]}), r#"[:enum "a" 1 nil]"#),
            (json!({"const": {"a": [1]}}), "[:val {:a [1]}]"),
            (json!({"anyOf": [{"type": "null"}, {"type": "array"}]}), "[:union [:vector :any] :nil]"),
            (json!({"oneOf": [{"type": "string"}, {"$ref": "#/$defs/x"}]}), ":any"),
            (json!({"properties": {"a": {"type": "string"}}}), ":any"),
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
                json!({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1}),
            ),
            (
                TypeExpr::Union(vec![TypeExpr::Val(Value::keyword("x")), Primitive::Nil.into()]),
                json!({"anyOf": [{"const": "x"}, {"type": "null"}]}),
            ),
            (TypeExpr::Enum(vec![f64::NAN.into()]), json!({})),
        ];
        for (ty, schema) in cases {
            assert_eq!(json_schema_of(&ty), schema, "{ty}");
            assert!(crate::schema::Validator::compile(&ty).is_ok(), "{ty}");
        }
    }
}

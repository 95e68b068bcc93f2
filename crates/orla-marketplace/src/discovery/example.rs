//! Generates an example of a value that a JSON Schema admits. A pure function.
//!
//! The author's example has priority, then defaults, constants and the first of several choices. Only
//! then is a value generated from the type and its limits. An object shows its required members, and
//! others if the author gives an example of them. No value is generated for a `pattern`.

use std::cell::Cell;

use serde_json::{Map as Object, Number, Value as Json, json};

use crate::schema::target;

/// The maximum nesting of examples, references included.
const MAX_DEPTH: usize = 8;
/// The maximum number of generated items of an array and characters of a string.
const MAX_MADE: u64 = 64;
/// The maximum number of members of one object.
const MAX_MEMBERS: usize = 64;
/// The maximum number of schemas that are visited for one example, counting repetitions: a small schema
/// can lead to very many.
const MAX_SCHEMAS: usize = 2000;

/// Returns an example of an input: an object.
pub(super) fn example(schema: &Json) -> Json {
    let made = Maker { root: schema, left: Cell::new(MAX_SCHEMAS) }.of(schema, "", 0);
    if made.is_object() { made } else { json!({}) }
}

struct Maker<'a> {
    /// The schema that local references refer to.
    root: &'a Json,
    /// The remaining number of schemas that may be visited.
    left: Cell<usize>,
}

impl Maker<'_> {
    /// Returns an example of a value that `schema` admits for a member of this name.
    fn of(&self, schema: &Json, name: &str, depth: usize) -> Json {
        let Json::Object(schema) = schema else { return Json::Null };
        if let Some(given) = author_value(schema) {
            return given;
        }
        let Some(left) = self.left.get().checked_sub(1).filter(|_| depth < MAX_DEPTH) else {
            return Json::Null;
        };
        self.left.set(left);
        if let Some(target) =
            schema.get("$ref").and_then(Json::as_str).and_then(|at| target(self.root, at))
        {
            return self.of(target, name, depth + 1);
        }
        for key in ["oneOf", "anyOf"] {
            let options = schema.get(key).and_then(Json::as_array).into_iter().flatten();
            let of = options.map(|option| self.of(option, name, depth + 1));
            if let Some(made) = of.reduce(|made, next| if made.is_null() { next } else { made }) {
                return self.also(made, schema, depth);
            }
        }
        if let Some(all) = schema.get("allOf").and_then(Json::as_array) {
            let of = all.iter().map(|part| self.of(part, name, depth + 1));
            let made = of.reduce(merged).unwrap_or_default();
            return self.also(made, schema, depth);
        }
        match type_of(schema) {
            "object" => self.object(schema, depth),
            "array" => self.array(schema, name, depth),
            "string" => json!(string(schema, name)),
            "integer" => number(schema, true),
            "number" => number(schema, false),
            "boolean" => json!(true),
            _ => Json::Null,
        }
    }

    /// Returns an object from one of the alternatives, with the members that the surrounding schema
    /// requires.
    fn also(&self, made: Json, schema: &Object<String, Json>, depth: usize) -> Json {
        if made.is_object() && schema.contains_key("properties") {
            return merged(self.object(schema, depth), made);
        }
        made
    }

    fn object(&self, schema: &Object<String, Json>, depth: usize) -> Json {
        let nothing = Object::new();
        let properties = schema.get("properties").and_then(Json::as_object).unwrap_or(&nothing);
        let required: Vec<&str> = schema
            .get("required")
            .and_then(Json::as_array)
            .map(|names| names.iter().filter_map(Json::as_str).collect())
            .unwrap_or_default();
        let mut object = Object::new();
        for (name, property) in properties {
            let is_shown = required.contains(&&**name) || property.as_object().is_some_and(has_example);
            if is_shown && object.len() < MAX_MEMBERS {
                object.insert(name.clone(), self.of(property, name, depth + 1));
            }
        }
        for name in required.into_iter().take(MAX_MEMBERS) {
            if !object.contains_key(name) && !properties.contains_key(name) {
                object.insert(name.to_owned(), json!(name.to_uppercase()));
            }
        }
        Json::Object(object)
    }

    fn array(&self, schema: &Object<String, Json>, name: &str, depth: usize) -> Json {
        let first = schema.get("prefixItems").and_then(Json::as_array).into_iter().flatten();
        let mut items: Vec<Json> = first.map(|item| self.of(item, name, depth + 1)).collect();
        let least = bound(schema, "minItems").unwrap_or(u64::from(items.is_empty()));
        let most = bound(schema, "maxItems").unwrap_or(MAX_MADE).min(MAX_MADE);
        if let Some(further) = schema.get("items").filter(|items| items.is_object()) {
            while (items.len() as u64) < least.min(most) {
                items.push(self.of(further, name, depth + 1));
            }
        }
        items.truncate(usize::try_from(most).unwrap_or(usize::MAX));
        Json::Array(items)
    }
}

/// Returns a value that the author of a schema gives.
fn author_value(schema: &Object<String, Json>) -> Option<Json> {
    let examples = match schema.get("examples") {
        Some(Json::Array(examples)) => examples.first(),
        _ => None,
    };
    let single = ["example", "default", "const"].into_iter().find_map(|key| schema.get(key));
    let choice = || schema.get("enum").and_then(Json::as_array).and_then(|options| options.first());
    examples.or(single).or_else(choice).cloned()
}

fn has_example(schema: &Object<String, Json>) -> bool {
    schema.contains_key("examples") || schema.contains_key("example")
}

fn type_of(schema: &Object<String, Json>) -> &str {
    match schema.get("type") {
        Some(Json::String(name)) => name,
        Some(Json::Array(names)) => {
            let mut names = names.iter().filter_map(Json::as_str);
            names.find(|name| *name != "null").unwrap_or("null")
        }
        _ if schema.contains_key("properties") => "object",
        _ if schema.contains_key("items") => "array",
        _ => "string",
    }
}

fn merged(first: Json, second: Json) -> Json {
    match (first, second) {
        (Json::Object(mut first), Json::Object(second)) => {
            first.extend(second);
            Json::Object(first)
        }
        (Json::Null, second) => second,
        (first, _) => first,
    }
}

fn string(schema: &Object<String, Json>, name: &str) -> String {
    let made = match schema.get("format").and_then(Json::as_str).unwrap_or_default() {
        "date-time" => "2026-01-31T12:00:00Z",
        "date" => "2026-01-31",
        "time" => "12:00:00Z",
        "duration" => "PT1H",
        "email" => "ada@example.com",
        "hostname" => "example.com",
        "ipv4" => "192.0.2.1",
        "ipv6" => "2001:db8::1",
        "uri" | "url" | "uri-reference" => "https://example.com",
        "uuid" => "123e4567-e89b-12d3-a456-426614174000",
        _ if name.is_empty() => "TEXT",
        // Capitals mark a placeholder, as in the usage text of commands.
        _ => &name.to_uppercase(),
    };
    let least = usize::try_from(bound(schema, "minLength").unwrap_or(0).min(MAX_MADE)).unwrap_or(0);
    let most = bound(schema, "maxLength").and_then(|most| usize::try_from(most).ok());
    let mut made: String = made.chars().take(most.unwrap_or(usize::MAX)).collect();
    let missing = least.saturating_sub(made.chars().count());
    made.extend(std::iter::repeat_n('x', missing));
    made
}

/// Returns a number within the limits: 1 if possible, or else the nearest limit.
fn number(schema: &Object<String, Json>, is_integer: bool) -> Json {
    let of = |key: &str| schema.get(key).and_then(Json::as_f64);
    let step = of("multipleOf").filter(|step| *step > 0.0);
    // A number beyond an exclusive limit, by just enough to differ from it.
    let beside = |bound: f64| if is_integer { 1.0 } else { (bound.abs() * 1e-3).max(0.5) };
    let lowest = of("minimum").max_of(of("exclusiveMinimum").map(|bound| bound + beside(bound)));
    let highest = of("maximum").min_of(of("exclusiveMaximum").map(|bound| bound - beside(bound)));
    let mut value: f64 = step.unwrap_or(1.0);
    if let Some(highest) = highest {
        value = value.min(highest);
    }
    if let Some(lowest) = lowest {
        value = value.max(lowest);
    }
    if let Some(step) = step {
        value = (value / step).ceil() * step;
    } else if is_integer {
        value = value.ceil();
    }
    // Integers beyond 2^53 are not used as examples.
    if value.fract() == 0.0 && value.abs() < 9e15 {
        return Json::Number((value as i64).into());
    }
    Number::from_f64(value).map_or(Json::Null, Json::Number)
}

/// The greater or the lesser of two limits, each of which may be absent.
trait Bound {
    fn max_of(self, other: Self) -> Self;
    fn min_of(self, other: Self) -> Self;
}

impl Bound for Option<f64> {
    fn max_of(self, other: Self) -> Self {
        self.into_iter().chain(other).reduce(f64::max)
    }

    fn min_of(self, other: Self) -> Self {
        self.into_iter().chain(other).reduce(f64::min)
    }
}

fn bound(schema: &Object<String, Json>, key: &str) -> Option<u64> {
    schema.get(key).and_then(Json::as_u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Validator, schema_from_declaration};
    use proptest::prelude::*;

    fn input(properties: &Json) -> Json {
        let names: Vec<String> = properties.as_object().unwrap().keys().cloned().collect();
        json!({"type": "object", "properties": properties, "required": names})
    }

    #[test]
    fn examples_of_the_author_come_first() {
        let cases = [
            (json!({"type": "string", "examples": ["a", "b"], "default": "c"}), json!("a")),
            (json!({"type": "string", "example": "a", "default": "c"}), json!("a")),
            (json!({"type": "integer", "default": 7}), json!(7)),
            (json!({"const": [1]}), json!([1])),
            (json!({"enum": ["x", "y"]}), json!("x")),
            (json!({"type": "string"}), json!("P")),
            (json!({"type": "string", "format": "email"}), json!("ada@example.com")),
            (json!({"type": "string", "minLength": 3, "maxLength": 3}), json!("Pxx")),
            (json!({"type": "integer"}), json!(1)),
            (json!({"type": "integer", "minimum": 5}), json!(5)),
            (json!({"type": "integer", "maximum": 0}), json!(0)),
            (json!({"type": "integer", "exclusiveMinimum": 1, "multipleOf": 4}), json!(4)),
            (json!({"type": "number", "minimum": 0.25, "maximum": 0.5}), json!(0.5)),
            (json!({"type": ["null", "boolean"]}), json!(true)),
            (json!({"type": "array", "items": {"type": "integer"}}), json!([1])),
            (json!({"type": "array", "items": {"type": "integer"}, "minItems": 2}), json!([1, 1])),
            (
                json!({"type": "array", "prefixItems": [{"type": "integer"}, {"enum": ["z"]}]}),
                json!([1, "z"]),
            ),
            (json!({"anyOf": [{"type": "null"}, {"type": "integer"}]}), json!(1)),
            (
                json!({"allOf": [{"type": "object", "required": ["a"]}, {"type": "object", "required": ["b"]}]}),
                json!({"a": "A", "b": "B"}),
            ),
            (json!({"$ref": "#/$defs/d"}), json!("deep")),
        ];
        for (schema, expected) in cases {
            let mut root = input(&json!({"p": schema}));
            root["$defs"] = json!({"d": {"const": "deep"}});
            assert_eq!(example(&root), json!({"p": expected}), "{schema}");
        }
    }

    #[test]
    fn optional_members_are_shown_only_with_an_example() {
        let schema = json!({"type": "object", "properties": {
            "a": {"type": "string"}, "b": {"type": "integer", "examples": [3]}, "c": {"default": 1}, "d": {},
        }, "required": ["d"]});
        assert_eq!(example(&schema), json!({"b": 3, "d": "D"}));
        assert_eq!(example(&json!(true)), json!({}));
    }

    #[test]
    fn a_schema_that_leads_into_itself_ends() {
        let schema =
            json!({"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]});
        let mut at = &example(&schema);
        let mut depth = 0;
        while let Some(next) = at.get("next") {
            (at, depth) = (next, depth + 1);
        }
        assert!((2..=MAX_DEPTH).contains(&depth));
    }

    #[test]
    fn a_small_schema_does_not_lead_to_a_large_example() {
        let mut nested = json!({"type": "integer"});
        for _ in 0..6 {
            nested = json!({"type": "array", "minItems": 64, "items": nested});
        }
        let itself = vec![json!({"$ref": "#"}); 100];
        for schema in [input(&json!({"p": nested})), json!({"type": "object", "anyOf": itself})] {
            let nodes = |made: &Json| made.to_string().matches(['[', '{', ',']).count();
            assert!(nodes(&example(&schema)) < 2 * MAX_SCHEMAS);
        }
    }

    fn schema() -> impl Strategy<Value = Json> {
        let number = |kind: &'static str| {
            (-20_i32..20, 0_i32..20, any::<bool>()).prop_map(move |(from, more, both)| {
                let mut schema = json!({"type": kind, "minimum": from});
                if both {
                    schema["maximum"] = json!(from + more);
                }
                schema
            })
        };
        let text = (0_u32..10, 0_u32..10).prop_map(
            |(least, more)| json!({"type": "string", "minLength": least, "maxLength": least + more}),
        );
        let leaf = prop_oneof![
            number("integer"),
            number("number"),
            text,
            Just(json!({"type": "boolean"})),
            Just(json!({"enum": ["a", 1]})),
            Just(json!({"type": ["null", "string"]})),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            let items = inner.clone();
            prop_oneof![
                (items, 0_u32..4).prop_map(|(items, least)| {
                    json!({"type": "array", "items": items, "minItems": least})
                }),
                prop::collection::vec(inner.clone(), 1..3).prop_map(|any| json!({"anyOf": any})),
                prop::collection::hash_map("[a-c]", inner, 0..3)
                    .prop_map(|properties| input(&json!(properties))),
            ]
        })
    }

    proptest! {
        #[test]
        fn an_example_is_accepted_by_its_schema(properties in prop::collection::hash_map("[a-d]", schema(), 0..4)) {
            let schema = input(&json!(properties));
            let declared = schema_from_declaration(&schema).unwrap();
            let made = example(&schema).to_string();
            let checked = Validator::compile(&declared).unwrap().check(&made, "input");
            prop_assert!(checked.is_ok(), "{schema} {made} {checked:?}");
        }
    }
}

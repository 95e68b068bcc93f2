use proptest::prelude::*;
use serde_json::json;

use super::build::option_value;
use super::node::{Choice, Control};
use super::*;

fn input(text: &str) -> Json {
    Json::parse(text).unwrap()
}

fn fields(pairs: &[(&str, &str)]) -> Fields {
    Fields::new(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
}

/// Reads a form that was submitted with these fields.
fn read(schema: &Value, pairs: &[(&str, &str)]) -> String {
    Form::of_fields(schema, &fields(pairs)).read().to_string()
}

/// Passes an input through a form and returns the result.
fn through_a_form(schema: &Value, value: &Json) -> Json {
    let pairs = Form::of_input(schema, value).pairs();
    Form::of_fields(schema, &Fields::new(pairs)).read()
}

fn booking() -> Value {
    json!({
        "type": "object", "required": ["person", "mode"], "additionalProperties": false,
        "properties": {
            "person": {
                "type": "object", "required": ["name", "address"],
                "properties": {
                    "name": {"type": "string", "minLength": 2},
                    "age": {"type": "integer", "minimum": 0},
                    "address": {"type": "object", "required": ["zip"],
                                "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}}},
                },
            },
            "mode": {"enum": ["fast", "slow"]},
            "agree": {"type": "boolean", "default": false},
            "tags": {"type": "array", "items": {"type": "string"}},
            "labels": {"type": "object", "additionalProperties": {"type": "number"}},
            "limit": {"type": ["integer", "null"]},
        },
    })
}

#[test]
fn fields_are_named_by_their_paths() {
    let sent = [
        ("person.name", "Ada"),
        ("person.age", "7"),
        ("person.address.zip", "12345"),
        ("mode", "fast"),
        ("agree", "true"),
        ("tags.0", "a"),
        ("tags.1", ""),
        ("tags.2", "c"),
        ("labels.x", "1.10"),
        ("_key.labels.~n0", "odd.key"),
        ("labels.~n0", "18446744073709551616"),
        ("_null", "limit"),
    ];
    assert_eq!(
        read(&booking(), &sent),
        r#"{"person":{"name":"Ada","age":7,"address":{"zip":"12345"}},"mode":"fast","agree":true,"tags":["a","c"],"labels":{"x":1.10,"odd.key":18446744073709551616},"limit":null}"#
    );
}

#[test]
fn empty_fields_are_omitted_unless_required() {
    assert_eq!(read(&booking(), &[("person.name", ""), ("agree", "")]), r#"{"person":{"address":{}}}"#);
    let optional = json!({"properties": {"a": {"type": "object", "required": ["k"],
        "properties": {"k": {"const": 1}, "x": {"type": "string"}}}}});
    assert_eq!(read(&optional, &[("a.x", "")]), "{}");
    assert_eq!(read(&optional, &[("a.x", "y")]), r#"{"a":{"k":1,"x":"y"}}"#);
}

#[test]
fn a_default_is_filled_in_only_where_a_value_is_needed() {
    let schema = json!({
        "required": ["unit"],
        "properties": {
            "unit": {"enum": ["C", "F"], "default": "C"},
            "size": {"type": "integer", "default": 3},
        },
    });
    assert_eq!(Form::empty(&schema).read().to_string(), r#"{"unit":"C"}"#);
}

#[test]
fn an_invalid_number_is_left_to_the_validator() {
    assert_eq!(
        read(&booking(), &[("person.age", "seven"), ("agree", "")]),
        r#"{"person":{"age":"seven","address":{}}}"#
    );
}

#[test]
fn a_text_that_is_no_option_is_left_to_the_validator() {
    let read = read(&booking(), &[("mode", "zigzag"), ("agree", "maybe")]);
    assert!(read.contains(r#""mode":"zigzag","agree":"maybe""#), "{read}");
}

#[test]
fn problems_are_shown_at_their_fields() {
    let mut form =
        Form::of_fields(&booking(), &fields(&[("person.name", "A"), ("tags.0", ""), ("tags.1", "b")]));
    form.read();
    form.blame("input.person.name", "expected more");
    form.blame("input.person.address.zip", "expected, got nothing");
    form.blame("input.tags[0]", "expected another");
    form.blame("input.colour", "no such member");
    let html = form.render("/x").into_string();
    for (field, text) in
        [("person.name", "expected more"), ("person.address.zip", "got nothing"), ("tags.1", "another")]
    {
        let at = html.find(&format!("name=\"{field}\"")).unwrap();
        let tag = &html[html[..at].rfind('<').unwrap()..at + html[at..].find('>').unwrap()];
        assert!(tag.contains("aria-invalid=\"true\""), "{tag}");
        let ids = tag.split("aria-describedby=\"").nth(1).unwrap().split('"').next().unwrap();
        let error = ids.split(' ').next_back().unwrap();
        let message = html.split(&format!("id=\"{error}\">")).nth(1).unwrap();
        assert!(message.split('<').next().unwrap().contains(text), "{field}: {message}");
    }
    assert_eq!(form.problems, ["input.colour: no such member"]);
}

#[test]
fn alternatives_are_chosen_and_what_all_share_is_in_each() {
    let schema = json!({
        "type": "object", "properties": {"id": {"type": "string"}},
        "oneOf": [
            {"title": "Circle", "properties": {"r": {"type": "number"}}, "required": ["r"]},
            {"title": "Square", "properties": {"side": {"type": "number"}}, "required": ["side"]},
        ],
    });
    assert_eq!(read(&schema, &[("_as.", "1"), ("side", "2"), ("id", "a")]), r#"{"side":2,"id":"a"}"#);
    // Without a choice, the alternative that has the fields.
    assert_eq!(read(&schema, &[("side", "2")]), r#"{"side":2}"#);
    let html = Form::of_input(&schema, &input(r#"{"side":2}"#)).render("/x").into_string();
    assert!(html.contains("<option value=\"1\" selected>Square</option>"), "{html}");
}

#[test]
fn a_recursive_schema_opens_one_level_at_a_time() {
    let schema = json!({
        "$ref": "#/$defs/tree",
        "$defs": {"tree": {"type": "object", "properties": {
            "value": {"type": "integer"}, "left": {"$ref": "#/$defs/tree"},
        }}},
    });
    let mut sent = fields(&[("value", "1")]);
    assert!(!Form::of_fields(&schema, &sent).render("/x").into_string().contains("left.value"));
    assert!(sent.apply_button("open:left"));
    assert!(Form::of_fields(&schema, &sent).render("/x").into_string().contains("left.value"));
    let deep = input(r#"{"value":1,"left":{"left":{"left":{"value":4}}}}"#);
    assert!(through_a_form(&schema, &deep).is_same(&deep));
}

#[test]
fn schemas_without_a_field_are_edited_as_json() {
    let schema = json!({"properties": {
        "a": {"$ref": "https://a.example/b"},
        "b": {"oneOf": [{"type": "string"}, {"type": "integer"}], "anyOf": [{"minLength": 1}, {"minimum": 2}]},
    }});
    let form = Form::empty(&schema);
    let html = form.render("/x").into_string();
    assert!(html.contains("name=\"_json.a\"") && html.contains("https://a.example/b"), "{html}");
    assert!(form.why_raw().is_none());
    assert_eq!(read(&schema, &[("_json.a", "{\"x\": [1.0]}")]), r#"{"a":{"x":[1.0]}}"#);
    let mut broken = Form::of_fields(&schema, &fields(&[("_json.a", "{")]));
    broken.read();
    assert!(broken.has_problems());
}

#[test]
fn rows_of_one_name_are_a_problem() {
    let sent = fields(&[("_key.labels.~n0", "a"), ("labels.~n0", "1"), ("labels.a", "2")]);
    let mut form = Form::of_fields(&booking(), &sent);
    form.read();
    assert!(form.has_problems());
}

#[test]
fn a_large_schema_gives_a_bounded_form() {
    let leaf: serde_json::Map<_, _> =
        (0..40).map(|n| (format!("p{n}"), json!({"type": "string"}))).collect();
    let mid: serde_json::Map<_, _> =
        (0..40).map(|n| (format!("m{n}"), json!({"type": "object", "properties": leaf}))).collect();
    let schema = json!({"type": "object", "properties": mid});
    assert!(Form::empty(&schema).pairs().len() < 700);
    let value = input(r#"{"m39":{"p39":"x"},"m0":{"p0":"y"}}"#);
    assert!(through_a_form(&schema, &value).is_same(&value));
}

#[test]
fn hostile_text_is_only_text() {
    for text in [
        "\"><x-pwn a=\"",
        "</textarea><x-pwn>",
        "<script>alert('x-pwn')</script>",
        "javascript:x-pwn",
        "\u{202e}<x-pwn>",
    ] {
        let mut properties = serde_json::Map::new();
        properties.insert(
            text.to_owned(),
            json!({"title": text, "description": text, "pattern": text, "default": text}),
        );
        let schema = json!({"properties": properties, "title": text,
            "required": [text], "oneOf": [{"title": text, "const": text}, {"description": text, "enum": [text]}]});
        let mut form =
            Form::of_input(&schema, &Json::Object(vec![(text.to_owned(), Json::Text(text.to_owned()))]));
        form.read();
        form.blame(&format!("input.{text}"), text);
        let html = form.render("/x").into_string();
        assert!(!html.contains("<x-pwn") && !html.contains("<script"), "{html}");
    }
}

/// Texts that browsers send as they are, and some that they change.
fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{0,6}",
        any::<String>(),
        Just(" x ".to_owned()),
        Just("1".to_owned()),
        Just("a\r\nb".to_owned()),
        Just("2026-01-31".to_owned()),
        Just("a@b.example".to_owned()),
    ]
}

fn any_key() -> impl Strategy<Value = String> {
    prop_oneof!["[a-c]", "[a-z._~0-9]{0,4}", any::<String>()]
}

fn any_value() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::Bool),
        any::<i64>().prop_map(|number| Json::Number(number.to_string())),
        Just(Json::Number("1.10".to_owned())),
        Just(Json::Number("1e400".to_owned())),
        any_text().prop_map(Json::Text),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Json::Array),
            prop::collection::btree_map(any_key(), inner, 0..4)
                .prop_map(|members| Json::Object(members.into_iter().collect())),
        ]
    })
}

fn any_schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!({"type": "string"})),
        Just(json!({"type": "string", "pattern": "x"})),
        Just(json!({"type": "string", "format": "date"})),
        Just(json!({"type": "string", "format": "email"})),
        Just(json!({"type": "string", "default": "d"})),
        Just(json!({"type": "integer", "minimum": 0})),
        Just(json!({"type": "number", "default": 1.5})),
        Just(json!({"type": "boolean"})),
        Just(json!({"type": "boolean", "default": true})),
        Just(json!({"type": ["string", "null"]})),
        Just(json!({"type": ["string", "integer", "object"]})),
        Just(json!({"enum": ["a", "1", 1, "", null, true, [1]]})),
        Just(json!({"const": {"a": 1}})),
        Just(json!({"type": "null"})),
        Just(json!({"$ref": "#"})),
        Just(json!({"$ref": "#/nowhere"})),
        Just(json!({})),
        Just(json!(true)),
        Just(json!(false)),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let members = prop::collection::btree_map(any_key().boxed(), inner.clone(), 0..4);
        let required = prop::collection::vec("[a-c]", 0..3).boxed();
        prop_oneof![
            (inner.clone(), 0..3u8).prop_map(|(items, least)| json!({"type": "array", "items": items, "minItems": least})),
            inner.clone().prop_map(|items| json!({"prefixItems": [items], "items": false})),
            (members.clone(), required.clone(), inner.clone()).prop_map(|(properties, required, others)| {
                json!({"type": "object", "properties": properties, "required": required, "additionalProperties": others})
            }),
            (members, required).prop_map(|(properties, required)| {
                json!({"type": "object", "properties": properties, "required": required})
            }),
            prop::collection::vec(inner.clone(), 1..4).prop_map(|all| json!({"anyOf": all})),
            prop::collection::vec(inner, 1..3).prop_map(|all| json!({"allOf": all, "oneOf": [{"type": "string"}, {"type": "object"}]})),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn a_form_of_an_input_reads_as_that_input(schema in any_schema(), value in any_value()) {
        let read = through_a_form(&schema, &value);
        prop_assert!(read.is_same(&value), "{} became {}", value, read);
    }

    #[test]
    fn any_fields_are_read(schema in any_schema(), pairs in prop::collection::vec((any_key(), any_text()), 0..6)) {
        let mut form = Form::of_fields(&schema, &Fields::new(pairs));
        let read = form.read();
        form.blame("input.a", "x");
        prop_assert!(Json::parse(&read.to_string()).is_ok());
        prop_assert!(!form.render("/x").into_string().is_empty());
    }
}

impl Node {
    /// Adds the fields that a browser would send.
    pub(super) fn pairs(&self, pairs: &mut Vec<(String, String)>) {
        let mut push = |name: String, value: &str| pairs.push((name, value.replace('\n', "\r\n")));
        let path = &self.path;
        if self.null == Some(true) {
            push("_null".to_owned(), path);
        }
        match &self.control {
            Control::Text { value, .. } | Control::Number { value, .. } | Control::Any { value } => {
                push(path.clone(), value);
            }
            Control::Select { options, choice } => {
                let sent = match choice {
                    Choice::Nothing => String::new(),
                    Choice::Option(chosen) => option_value(&options[*chosen].0),
                    Choice::Other(text) => text.clone(),
                };
                push(path.clone(), &sent);
            }
            Control::Raw { value, .. } => push(format!("_json.{path}"), value),
            Control::Alternatives { names, chosen, .. } if !names.is_empty() => {
                let chosen = chosen.map(|chosen| chosen.to_string());
                push(format!("_as.{path}"), &chosen.unwrap_or_default());
            }
            Control::Object { entries, .. } => {
                for entry in entries.iter().filter(|entry| entry.has_field) {
                    push(format!("_key.{}", entry.node.path), &entry.key);
                }
            }
            Control::Array { items, .. } => {
                push("_open".to_owned(), path);
                items.iter().for_each(|item| push("_open".to_owned(), &item.path));
            }
            Control::Alternatives { .. } | Control::Fixed(_) | Control::Closed => {}
        }
        for child in self.children() {
            child.pairs(pairs);
        }
    }
}

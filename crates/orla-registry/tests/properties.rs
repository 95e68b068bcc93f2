//! Whatever a built-in is given, it answers: no panic, the same each time, and never more than the bounds allow.

#![expect(clippy::unwrap_used, reason = "all of this is a test, and what makes values for it")]

use orla_registry::{Builtin, BuiltinError, CapabilityRegistry, MAX_DEPTH, MAX_ITEMS, MAX_TEXT};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use rtfs::json::{value_from_json, value_to_json};
use rtfs::{Instant, List, Map, Set, Symbol, Uuid, Value};

/// Values that are at some edge, as JSON: texts that mean something to some parser, and numbers.
const EDGES: &[&str] = &[
    "null",
    "true",
    "0",
    "-1",
    "3",
    "1.5",
    "-0.0",
    "1e308",
    "9223372036854775807",
    "-9223372036854775808",
    "340282366920938463463374607431768211456",
    r#""""#,
    r#""a""#,
    r#""ü😀e\u0301""#,
    r#""a,b\n\"c\",d""#,
    r#""{{#a}}{{x}}{{/a}}""#,
    r#""{\"a\":[1,2.5,null]}""#,
    r#""a: &x [1, *x]""#,
    r#""- a\n- {b: !!str 1}""#,
    r#""[t]\na = 1979-05-27T07:32:00Z""#,
    r#""2026-02-29""#,
    r#""2026-03-29T02:30:00""#,
    r#""9999-12-31T23:59:59.999999999Z""#,
    r#""-009999-01-01""#,
    r#""Europe/Berlin""#,
    r#""+25:00""#,
    r#""P9999Y9999M""#,
    r#""%Y-%m-%dT%H:%M:%S%z %255Y %Q""#,
    r#""1 year 2 months -3.5h""#,
    r#""(a|b)*\\b\\w+[^x]{2,9}$""#,
    r#""\\p{L}+""#,
    r#""$..a[?@.b > 1 && match(@.c, 'x')][::-1]""#,
    r#""$.*""#,
    r#""a[?b > `1`].{c: d, e: sort_by(@, &f)} | [0]""#,
    r#""*.*[]""#,
    r#""/a/0/~1""#,
    r#""https://u:p@ex%41mple.com:8/a?b=c#d""#,
    r#""2^3^4! / (1 - pi) % x""#,
    r#""f81d4fae-7dec-11d0-a765-00a0c91e6bf6""#,
    r#""w7xiZXI=""#,
    r#""ff0""#,
    r#""sha256""#,
    "[]",
    "[1,2,3]",
    "[1,[2,[3]]]",
    r#"["b","a"]"#,
    r#"[[1,2],["a"]]"#,
    "{}",
    r#"{"a":{"b":[1,{"c":null}]},"x":2}"#,
    r#"[{"a":1,"b":"x"},{"a":2.5}]"#,
    r#"[{"op":"copy","from":"","path":"/a"},{"op":"remove","path":"/x"}]"#,
];

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        select(EDGES).prop_filter_map("texts alone", |json| match value_from_json(json) {
            Ok(Value::Str(text)) => Some(text.as_str().to_owned()),
            _ => None,
        }),
        any::<String>(),
        r"[\[\]{}()|*+?.$@&`'#:,<>=!%/0-9a-c \n\\-]{0,40}",
    ]
}

/// Returns a value that JSON can say.
fn any_json() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        4 => select(EDGES).prop_map(|json| value_from_json(json).unwrap()),
        2 => any_text().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::Int),
        1 => (-20_i64..20).prop_map(Value::Int),
        1 => any::<f64>().prop_filter("JSON has only these", |float| float.is_finite()).prop_map(Value::Float),
    ];
    scalar.prop_recursive(3, 16, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(|items| Value::vector(items).unwrap()),
            vec((any_text(), inner), 0..5).prop_map(|pairs| {
                let mut map = Map::new();
                for (key, value) in pairs {
                    map.insert(Value::keyword(key), value).unwrap();
                }
                map.into()
            }),
        ]
    })
}

/// Any value at all.
fn any_value() -> impl Strategy<Value = Value> {
    let other = prop_oneof![
        Just(Value::Float(f64::NAN)),
        Just(Value::Float(f64::INFINITY)),
        Just(Value::keyword("days")),
        Just(Value::Symbol(Symbol::new("a"))),
        Just(Value::Instant(Instant::from_unix(253_402_300_799, 999_999_999).unwrap())),
        Just(Value::Uuid(Uuid::from_u128(u128::MAX))),
        vec(any_json(), 0..3).prop_map(|items| Value::List(List::new(items).unwrap())),
        vec(any_json(), 0..3).prop_map(|items| {
            let mut set = Set::new();
            for item in items {
                set.insert(item).unwrap();
            }
            Value::Set(set)
        }),
        (any_json(), any_json()).prop_map(|(key, value)| {
            let mut map = Map::new();
            map.insert(key, value).unwrap();
            map.into()
        }),
    ];
    prop_oneof![3 => any_json(), 1 => other]
}

/// Returns a built-in with arguments: of an example, or any, or none.
fn any_call(value: impl Strategy<Value = Value>) -> impl Strategy<Value = (&'static Builtin, Value)> {
    (any::<Index>(), vec((0..4_u8, any::<Index>(), value), 12)).prop_map(|(builtin, choices)| {
        let builtins: Vec<_> = CapabilityRegistry.builtins().collect();
        let builtin = *builtin.get(&builtins);
        let mut input = Map::new();
        for (parameter, (choice, example, value)) in builtin.parameters.iter().zip(choices) {
            let examples = value_from_json(example.get(builtin.examples).input).unwrap();
            let known = match &examples {
                Value::Map(map) => map.get_keyword(parameter.name).cloned(),
                _ => None,
            };
            let value = match choice {
                0 if !parameter.required => continue,
                1 => value,
                _ => match known {
                    Some(known) => known,
                    None => continue,
                },
            };
            input.insert(Value::keyword(parameter.name), value).unwrap();
        }
        (builtin, input.into())
    })
}

fn weight(value: &Value) -> (usize, usize) {
    let sum = |(a, b): (usize, usize), (c, d): (usize, usize)| (a + c, b + d);
    match value {
        Value::Str(text) => (1, text.as_str().len()),
        Value::Keyword(keyword) => (1, keyword.name().len()),
        Value::Vector(vector) => vector.items().iter().map(weight).fold((1, 0), sum),
        Value::List(list) => list.items().iter().map(weight).fold((1, 0), sum),
        Value::Map(map) => {
            map.iter().map(|(key, value)| sum(weight(key), weight(value))).fold((1, 0), sum)
        }
        _ => (1, 0),
    }
}

fn is_sound(result: &Result<Value, BuiltinError>) {
    match result {
        Ok(value) => {
            let (items, text) = weight(value);
            // A list of results may hold a few values more than were counted on the way.
            assert!(items <= 4 * MAX_ITEMS && text <= 2 * MAX_TEXT, "{items} values, {text} bytes");
        }
        Err(error) => {
            let text = error.to_string();
            assert!(!text.is_empty() && text.chars().count() < 2_000, "{text}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3 * ProptestConfig::default().cases, ..ProptestConfig::default() })]

    #[test]
    fn every_builtin_answers_whatever_it_is_given((builtin, input) in any_call(any_value())) {
        let result = builtin.call(&input);
        is_sound(&result);
        let again = builtin.call(&input);
        prop_assert_eq!(format!("{:?}", &result), format!("{:?}", again), "{} is not a function", builtin.name);
    }

    #[test]
    fn what_comes_of_json_can_be_written_as_json((builtin, input) in any_call(any_json())) {
        if let Ok(value) = builtin.call(&input) {
            prop_assert!(value_to_json(&value).is_ok(), "{} {:?} gives {:?}", builtin.name, input, value);
        }
    }

    #[test]
    fn what_is_no_map_of_arguments_is_refused(builtin in any::<Index>(), value in any_value()) {
        let builtins: Vec<_> = CapabilityRegistry.builtins().collect();
        is_sound(&builtin.get(&builtins).call(&value));
    }

    #[test]
    fn what_was_printed_parses_as_the_same(value in any_json()) {
        for format in ["json", "yaml"] {
            let text = call(&format!("{format}.print"), "value", value.clone()).unwrap();
            let back = call(&format!("{format}.parse"), "text", text.clone());
            prop_assert_eq!(back.as_ref(), Ok(&value), "{} {}", format, text);
        }
        if let Ok(text) = call("toml.print", "value", value.clone()) {
            let back = call("toml.parse", "text", text.clone()).unwrap();
            let again = call("toml.print", "value", back).unwrap();
            prop_assert_eq!(again, text);
        }
    }

    #[test]
    fn a_patch_makes_one_value_of_the_other(before in any_json(), after in any_json()) {
        let mut input = Map::new();
        input.insert(Value::keyword("before"), before.clone()).unwrap();
        input.insert(Value::keyword("after"), after.clone()).unwrap();
        let patch = CapabilityRegistry.get("json.diff").unwrap().call(&input.into()).unwrap();
        let mut input = Map::new();
        input.insert(Value::keyword("value"), before).unwrap();
        input.insert(Value::keyword("patch"), patch.clone()).unwrap();
        let patched = CapabilityRegistry.get("json.patch").unwrap().call(&input.into());
        prop_assert_eq!(patched, Ok(after), "{:?}", patch);
    }

    #[test]
    fn what_was_encoded_decodes_as_the_same(text in any::<String>()) {
        for (encode, argument, decode) in
            [("base64.encode", "data", "base64.decode"), ("hex.encode", "data", "hex.decode"), ("url.encode", "text", "url.decode")]
        {
            let encoded = call(encode, argument, text.as_str().into()).unwrap();
            prop_assert_eq!(call(decode, "text", encoded), Ok(Value::from(text.as_str())), "{}", encode);
        }
    }
}

fn call(name: &str, argument: &str, value: Value) -> Result<Value, BuiltinError> {
    let mut input = Map::new();
    input.insert(Value::keyword(argument), value).unwrap();
    CapabilityRegistry.get(name).unwrap().call(&input.into())
}

#[test]
fn what_is_as_deep_as_can_be_is_no_problem() {
    let deepest = |levels: u16| {
        (0..levels).try_fold(Value::Int(1), |inner, _| Value::vector(vec![inner])).unwrap()
    };
    for builtin in CapabilityRegistry.builtins() {
        for levels in [rtfs::MAX_DEPTH - 1, MAX_DEPTH - 1, MAX_DEPTH - 3] {
            let mut input = Map::new();
            for parameter in builtin.parameters {
                let example = value_from_json(builtin.examples[0].input).unwrap();
                let Value::Map(example) = example else { continue };
                let known = example.get_keyword(parameter.name).cloned();
                let deep = matches!(known, Some(Value::Vector(_) | Value::Map(_)));
                let value = if deep { Some(deepest(levels)) } else { known };
                if let Some(value) = value {
                    input.insert(Value::keyword(parameter.name), value).unwrap();
                }
            }
            is_sound(&builtin.call(&input.into()));
        }
    }
}

#[test]
fn what_is_too_large_is_refused_before_it_is_worked_on() {
    let long = Value::from("x".repeat(MAX_TEXT + 1));
    assert!(matches!(call("text.upper", "text", long), Err(BuiltinError::Limit { .. })));
    // Small in memory, long to walk; what is larger is no value at all.
    let doubled = (0..22).try_fold(Value::Int(1), |inner, _| Value::vector(vec![inner.clone(), inner]));
    assert!(matches!(call("json.print", "value", doubled.unwrap()), Err(BuiltinError::Limit { .. })));
}

#[test]
fn what_would_take_the_square_of_its_input_is_refused_or_done_in_no_time() {
    let many = |text: &str, times: usize| Value::from(text.repeat(times));
    let map = |arguments: Vec<(&str, Value)>| {
        let mut input = Map::new();
        for (name, value) in arguments {
            input.insert(Value::keyword(name), value).unwrap();
        }
        Value::from(input)
    };
    // Each would take minutes at least, were it done by the letter.
    let calls = [
        (
            "text.diff",
            map(vec![("before", many("a\nb\n", 50_000)), ("after", many("b\na\na\n", 40_000))]),
        ),
        ("text.distance", map(vec![("a", many("a", 1 << 20)), ("b", many("b", 1 << 20))])),
        (
            "regex.find_all",
            map(vec![("text", many("A", 1 << 20)), ("pattern", ".*[^A-Z]|[A-Z]".into())]),
        ),
        (
            "template.render",
            map(vec![("template", many("{{!x}} ", 1 << 18)), ("data", Map::new().into())]),
        ),
        ("yaml.parse", map(vec![("text", many("- [", 1 << 18))])),
        ("toml.parse", map(vec![("text", many("[a.", 1 << 18))])),
        ("url.parse", map(vec![("url", Value::from(format!("http://a/{}", "../a/".repeat(1 << 18))))])),
        ("math.evaluate", map(vec![("expression", "9^9^9^9".into())])),
    ];
    for (name, input) in calls {
        is_sound(&CapabilityRegistry.get(name).unwrap().call(&input));
    }
}

//! Every built-in does what its examples say, and is described as a model needs it.

use std::collections::BTreeSet;

use orla_registry::{Builtin, CapabilityRegistry};
use rtfs::json::{value_from_json, value_to_json};

fn builtins() -> impl Iterator<Item = &'static Builtin> {
    CapabilityRegistry.builtins()
}

#[test]
fn every_example_is_true() {
    let mut wrong = Vec::new();
    for builtin in builtins() {
        for example in builtin.examples {
            let input = value_from_json(example.input);
            let input = input.unwrap_or_else(|error| panic!("{}: {error}", builtin.name));
            let expected = value_from_json(example.output);
            let expected = expected.unwrap_or_else(|error| panic!("{}: {error}", builtin.name));
            let expected = value_to_json(&expected).unwrap();
            let got = match builtin.call(&input) {
                Ok(value) => value_to_json(&value).unwrap_or_else(|error| error.to_string()),
                Err(error) => format!("error: {error}"),
            };
            if got != expected {
                wrong.push(format!(
                    "{} {}\n  expected {expected}\n  got      {got}",
                    builtin.name, example.input
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_builtin_is_described() {
    let mut titles = BTreeSet::new();
    for builtin in builtins() {
        let name = builtin.name;
        assert!(!builtin.examples.is_empty(), "{name} has no example");
        assert!(builtin.description.len() > 20 && builtin.description.ends_with(['.', '?']), "{name}");
        assert!(titles.insert(builtin.title), "{name}: a second {}", builtin.title);
        let mut optional = false;
        for parameter in builtin.parameters {
            assert!(parameter.description.ends_with('.'), "{name}.{}", parameter.name);
            assert!(
                !(optional && parameter.required),
                "{name}: {} comes after optional ones",
                parameter.name
            );
            optional |= !parameter.required;
            if let Some(default) = parameter.default {
                value_from_json(default).unwrap();
            }
        }
        for schema in [builtin.input_schema(), builtin.output_schema()] {
            value_from_json(&schema).unwrap_or_else(|error| panic!("{name}: {error}: {schema}"));
        }
    }
}

#[test]
fn an_error_names_the_argument() {
    let zeros = "0".repeat(9000);
    let large_range = format!(r#"{{"from":1{zeros},"to":1{}50000}}"#, &zeros[5..]);
    let cases = [
        ("math.add", r#"{"a":1}"#, "b: expected a number (required), got nothing"),
        ("math.add", r#"{"a":1,"b":"x"}"#, r#"b: expected a number, got "x""#),
        (
            "math.add",
            r#"{"a":1,"b":2,"c":3}"#,
            "c: expected one of the arguments a, b, got another name",
        ),
        ("stats.sum", r#"{"numbers":[1,null]}"#, "numbers[1]: expected a number, got nil"),
        ("math.divide", r#"{"a":1,"b":0}"#, "a quotient by zero has no value"),
        (
            "math.power",
            r#"{"base":10,"exponent":1000000}"#,
            "the number would be more than 10000 digits",
        ),
        (
            "text.repeat",
            r#"{"text":"ab","count":9223372036854775807}"#,
            "the text would be more than 16 MiB",
        ),
        ("list.range", r#"{"to":1000001}"#, "the result would be more than 1000000 values"),
        ("list.range", &large_range, "the text would be more than 16 MiB"),
    ];
    for (name, input, expected) in cases {
        let input = value_from_json(input).unwrap();
        let error = CapabilityRegistry.get(name).unwrap().call(&input).unwrap_err();
        assert_eq!(error.to_string(), expected, "{name}");
    }
}

#[test]
fn what_the_schema_accepts_is_no_invalid_argument() {
    let cases = [
        // An integer of JSON Schema has no bounds, and may be written as a float.
        ("list.slice", r#"{"items":[1,2,3],"start":-100000000000000000000,"end":2.0}"#, "[1,2]"),
        ("list.slice", r#"{"items":[1,2,3],"end":1e300}"#, "[1,2,3]"),
        ("list.flatten", r#"{"items":[[1,[2]]],"depth":18446744073709551616}"#, "[1,2]"),
        (
            "list.range",
            r#"{"from":100000000000000000000,"to":100000000000000000003,"step":2}"#,
            "[100000000000000000000,100000000000000000002]",
        ),
        ("list.range", r#"{"from":5,"to":1e300,"step":-1}"#, "[]"),
        ("list.filter", r#"{"items":["a","x",1],"operator":"in","value":"abc"}"#, r#"["a"]"#),
        ("list.filter", r#"{"items":[1,null,3],"operator":"in","value":[3,null]}"#, "[null,3]"),
        ("list.filter", r#"{"items":[1,null],"operator":"in","value":null}"#, "[]"),
    ];
    for (name, input, expected) in cases {
        let output = CapabilityRegistry.get(name).unwrap().call(&value_from_json(input).unwrap());
        let output = output.unwrap_or_else(|error| panic!("{name} {input}: {error}"));
        assert_eq!(value_to_json(&output).unwrap(), expected, "{name} {input}");
    }
}

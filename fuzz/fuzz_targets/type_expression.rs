//! A text that is a type prints as the same type, and what is checked against it ends: with reasons if
//! it does not fit. Its JSON Schema is one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use orla_marketplace::rtfs::json::value_from_json;
use orla_marketplace::rtfs::{Checking, Definitions, Form, TypeExpr};
use orla_marketplace::schema::{Validator, json_schema_of, type_from_json_schema};

// The type, a line of its own that also gives the name `T` its meaning, and JSON that is checked.
fuzz_target!(|text: &str| {
    let (notation, data) = text.split_once('\n').unwrap_or((text, "null"));
    let ty = match TypeExpr::parse(notation) {
        Ok(ty) => ty,
        Err(error) => {
            let (line, column) = error.position.expect("a text has positions");
            assert_eq!(line, 1);
            assert!(column <= notation.chars().count() + 1, "{error}");
            return;
        }
    };
    let printed = ty.to_string();
    let again = TypeExpr::parse(&printed).expect("what was printed can be read");
    // NaN equals nothing, so it is the text that is compared.
    assert_eq!(again.to_string(), printed);

    let mut definitions = Definitions::new();
    definitions.define("T", ty.clone());
    let Ok(value) = value_from_json(data) else { return };
    for form in [Form::Value, Form::Json] {
        let checking = Checking { definitions: &definitions, form, max_steps: 100_000 };
        if let Err(violations) = checking.check(&ty, &value, "input") {
            assert!(!violations.is_empty());
            assert!(violations.iter().all(|violation| violation.path.starts_with("input")));
        }
    }
    let named = ty.with_definitions(definitions.into());
    let schema = json_schema_of(&named);
    let shown = type_from_json_schema(&schema).with_json_schema("{}".into()).to_string();
    assert!(TypeExpr::parse(&shown).is_ok(), "{shown}");
    if Validator::compile(&type_from_json_schema(&schema)).is_err() {
        // A name may mean something for ever new parts of itself, but no schema is malformed.
        assert!(printed.contains("T"), "{printed}: {schema}");
    }
});

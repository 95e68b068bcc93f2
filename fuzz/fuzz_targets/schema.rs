//! A declared schema is one or is refused; checking JSON against it ends, and shows as a schema again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use orla_marketplace::schema::{Validator, json_schema_of, schema_from_declaration};

// The schema, a line of its own, and what is checked against it.
fuzz_target!(|text: &str| {
    let Some((schema, data)) = text.split_once('\n') else { return };
    let Ok(declared) = serde_json::from_str::<serde_json::Value>(schema) else { return };
    let Ok(ty) = schema_from_declaration(&declared) else { return };
    let shown = json_schema_of(&ty);
    assert!(shown.is_object() || shown.is_boolean(), "{shown}");
    let Ok(validator) = Validator::compile(&ty) else { return };
    if serde_json::from_str::<serde_json::Value>(data).is_ok()
        && let Err(violations) = validator.check(data, "input")
    {
        assert!(!violations.is_empty());
        for violation in &violations {
            assert!(violation.path.starts_with("input"), "{violation}");
        }
    }
});

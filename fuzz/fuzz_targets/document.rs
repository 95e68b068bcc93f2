//! A YAML or JSON text is read or refused with a place; JSON is read as JSON.
#![no_main]

use libfuzzer_sys::fuzz_target;
use orla_document::{SyntaxError, decode, parse, parse_json};
use serde_json::Value;

fn refused(err: &SyntaxError) {
    assert!(err.at.line >= 1 && err.at.column >= 1 && !err.problem.is_empty(), "{err:?}");
}

fuzz_target!(|bytes: &[u8]| {
    let text = match decode(bytes) {
        Ok(text) => text,
        Err(err) => return refused(&err),
    };
    match parse(text) {
        Ok(root) => drop(root.map(|root| root.to_json())),
        Err(err) => refused(&err),
    }
    match parse_json(text) {
        Ok(root) => {
            let text = text.strip_prefix('\u{feff}').unwrap_or(text);
            let theirs: Value = serde_json::from_str(text).expect("what was read as JSON is JSON");
            assert_eq!(root.map_or(Value::Null, |root| root.to_json()), theirs);
        }
        Err(err) => refused(&err),
    }
});

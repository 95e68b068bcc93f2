//! JSON text that becomes a value is the same value again after a round trip, and compacting changes
//! nothing but white space.
#![no_main]

use libfuzzer_sys::fuzz_target;
use orla_marketplace::json::{compact, value_from_json, value_to_json};
use serde_json::Value as Json;

fuzz_target!(|text: &str| {
    let theirs: Result<Json, _> = serde_json::from_str(text);
    let ours = value_from_json(text);
    if let Ok(value) = &ours {
        let written = value_to_json(value).expect("what came from JSON goes back to it");
        let again = value_from_json(&written).expect("what was written can be read");
        assert_eq!(*value, again, "{text} became {written}");
    }
    if theirs.is_ok() {
        let small = compact(text);
        assert_eq!(theirs.ok(), serde_json::from_str(&small).ok(), "{text} became {small}");
        assert_eq!(compact(&small), small);
        assert!(!small.contains('\n'));
    }
});

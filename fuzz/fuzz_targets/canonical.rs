//! A JSON text has at most one canonical form, which is JSON too; a time and a public key have one text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use orla_marketplace::attestation::{
    PublicKey, SigningKey, canonical_json, format_instant, parse_instant,
};

fuzz_target!(|text: &str| {
    if let Ok(form) = canonical_json(text) {
        // It is not its own canonical form: a number that no double represents becomes a string, and a string of
        // such digits gets a mark.
        let unmarked = |text: &str| text.replace('=', "");
        assert_eq!(canonical_json(&form).map(|again| unmarked(&again)).ok(), Some(unmarked(&form)));
        assert!(serde_json::from_str::<&serde_json::value::RawValue>(text).is_ok());
    }
    if let Some(at) = parse_instant(text) {
        assert_eq!(format_instant(at), text);
    }
    if let Ok(key) = PublicKey::parse(text) {
        assert_eq!(key.to_string(), text.trim());
    }
    let _ = SigningKey::parse(text);
});

//! A JSON text has one canonical form, which is its own, or none; and so has a time and a public key.
#![no_main]

use libfuzzer_sys::fuzz_target;
use orla_marketplace::attestation::{
    PublicKey, SigningKey, canonical_json, format_instant, parse_instant,
};

fuzz_target!(|text: &str| {
    if let Ok(form) = canonical_json(text) {
        assert_eq!(canonical_json(&form).as_deref(), Ok(form.as_str()));
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

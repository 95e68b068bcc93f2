//! Each line of a plugin is read or refused, and a value comes out as it was written.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use orla_providers::plugin::protocol::wire::{self, Body};

fuzz_target!(|bytes: &[u8]| {
    for line in bytes.split(|byte| *byte == b'\n') {
        let line = Bytes::copy_from_slice(line);
        let Some(message) = wire::read(&line) else { continue };
        if let Body::Ok(value) = message.body {
            assert!(serde_json::from_str::<serde::de::IgnoredAny>(value.as_str()).is_ok());
            if let Ok((functions, _)) = wire::functions(&value) {
                assert!(functions.len() <= wire::MAX_FUNCTIONS);
            }
            let mut call = Vec::new();
            wire::write_call(&mut call, message.id, "f", &value);
            assert_eq!(call.iter().position(|byte| *byte == b'\n'), Some(call.len() - 1));
        }
    }
});

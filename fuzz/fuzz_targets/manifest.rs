//! A package's manifest is one, or at least one remark says what keeps it from being one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use orla_providers::capsule::manifest::{Form, read};

fuzz_target!(|bytes: &[u8]| {
    for form in [Form::Yaml, Form::Json] {
        let (manifest, remarks) = read(bytes, form);
        assert!(manifest.is_some() || remarks.iter().any(|remark| remark.is_problem));
        for remark in &remarks {
            assert!(!remark.message.is_empty() && remark.at.line >= 1);
        }
    }
});

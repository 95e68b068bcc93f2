//! Arguments of a call become a command line that the system can take, or words that say why not.
#![no_main]

use libfuzzer_sys::fuzz_target;
use orla_marketplace::JsonText;
use orla_providers::tool::arguments::{MAX_ARGUMENT, line_with_meta, map};

fuzz_target!(|text: &str| {
    // The front end lets nothing else through: one well-formed object.
    let Ok(json) = JsonText::parse(text.to_owned()) else { return };
    if !json.as_str().trim_start().starts_with('{') {
        return;
    }
    match map(json.as_str(), &["fixed".to_owned()], false) {
        Ok(mapped) => {
            assert_eq!(mapped.argv[0], "fixed");
            for argument in &mapped.argv {
                assert!(!argument.contains('\0') && argument.len() <= MAX_ARGUMENT, "{argument:?}");
            }
        }
        Err(violations) => assert!(!violations.is_empty()),
    }
    if let Ok(line) = line_with_meta(json.as_str(), "id", None) {
        let line = String::from_utf8(line).expect("text");
        assert!(line.ends_with('\n') && JsonText::parse(line.clone()).is_ok(), "{line}");
    }
});

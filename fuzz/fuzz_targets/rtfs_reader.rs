//! Any text is read as values or has mistakes in places inside of it; what was read is printed so that
//! it is read as the same again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rtfs::{Source, Value, read};

fuzz_target!(|text: &str| {
    let source = Source::new("", text);
    match read(&source) {
        Ok(values) => {
            let printed: Vec<_> = values.iter().map(Value::pr_str).collect();
            let again = read(&Source::new("", printed.join(" "))).expect("what was printed can be read");
            let printed_again: Vec<_> = again.iter().map(Value::pr_str).collect();
            assert_eq!(printed, printed_again, "{text}");
        }
        Err(errors) => {
            assert!(!errors.0.is_empty() && errors.0.len() <= 20);
            for error in &errors.0 {
                assert!(error.span.start <= error.span.end && error.span.end as usize <= text.len(), "{error}");
                assert!(error.position.line >= 1 && error.position.column >= 1);
            }
        }
    }
});

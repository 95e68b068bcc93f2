//! Any text is checked in time; it has mistakes of syntax if and only if it does not compile, and findings are in order.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rtfs::{MAX_FINDINGS, Options, Source, check, compile};

fuzz_target!(|text: &str| {
    let source = Source::new("", text);
    let options = Options::default();
    let found = check(&source, &options, None);
    assert!(found.len() <= MAX_FINDINGS);
    assert!(found.is_sorted_by_key(|found| found.span.start));
    let is_broken = found.iter().any(|found| found.kind == "syntax");
    assert!(is_broken || found.len() == MAX_FINDINGS || compile(&source, &options).is_ok());
    assert!(!is_broken || compile(&source, &options).is_err());
});

//! A lock is read back as it is written, or is refused with its place.
#![no_main]

use libfuzzer_sys::fuzz_target;
use orla_packages::lock::Lock;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match Lock::parse(text) {
        Ok(lock) => assert_eq!(Lock::parse(&lock.text()), Ok(lock)),
        Err(error) => assert!(error.at.line >= 1 && !error.problem.is_empty()),
    }
});

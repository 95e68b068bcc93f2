//! Whatever is in a bundle, what is read of it stays within its bounds, and its manifest is one or is refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use orla_packages::archive::{Archive, MAX_BYTES, MAX_FILES};
use orla_packages::bundle;

fuzz_target!(|bytes: &[u8]| {
    let _ = bundle::read(bytes, "linux");
    let Ok(archive) = Archive::read(bytes) else { return };
    let names: Vec<&str> = archive.names().collect();
    assert!(names.len() <= MAX_FILES && bytes.len() as u64 <= MAX_BYTES);
    for name in names {
        assert!(!name.starts_with('/') && name.split('/').all(|part| !["", ".", ".."].contains(&part)));
        if let Ok(content) = archive.file(name, 1 << 20) {
            assert!(content.is_some_and(|content| content.len() <= 1 << 20));
        }
    }
});

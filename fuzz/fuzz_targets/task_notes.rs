//! The records of a program's journal: any bytes are read or refused, and what was read is the same when it is written and
//! read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use orla_tasks::program::{Timeline, read_notes, read_saved, write_saved};

fuzz_target!(|data: &[u8]| {
    let _ = read_notes(data);
    if let Ok(saved) = read_saved(data) {
        let mut again = read_saved(&write_saved(&saved)).expect("a written record can be read");
        if saved.used.is_none() {
            // Records of version 2 lack the running time, which a written record always has.
            again.used = None;
        }
        assert_eq!(again, saved);
    }
    let _ = Timeline::read([data], Some(data), [data], None);
    // The versions are found soon enough; this is what follows them.
    for version in [1, 2] {
        let record: Vec<u8> = std::iter::once(version).chain(data.iter().copied()).collect();
        let _ = (read_notes(&record), read_saved(&record));
        if let Ok(timeline) = Timeline::read([&record[..]], None, [], std::str::from_utf8(data).ok()) {
            let _ = orla_tasks::program::render("a task", &timeline);
        }
    }
});

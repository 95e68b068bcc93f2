//! A state file and its log that were changed: it is opened, or refused in one line and left as it is.
//!
//! The first byte says whether there is a log, which file is changed, and how: the file ends early, or one byte after the other
//! is changed, three at a time (where in two, and to what).
#![no_main]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use orla_state::{Change, Embedded, FILE, Query, StateStore as _};
use tokio::runtime::{Builder, Runtime};

/// How many records there are in the main file, and as many in its log.
const RECORDS: usize = 40;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Builder::new_current_thread().build().expect("a runtime"));

/// The files of a process that was killed.
static FILES: LazyLock<BTreeMap<String, Vec<u8>>> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    RUNTIME.block_on(async {
        for round in 0..2 {
            let store = Embedded::open(folder.path()).expect("a state");
            for number in 0..RECORDS {
                let put = Change::put(format!("task/{round}/{number}"), vec![b'x'; number * 20]);
                store.write(vec![put]).await.expect("room");
            }
            if round == 1 {
                return contents(folder.path());
            }
            store.close().await;
        }
        BTreeMap::new()
    })
});

fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder).expect("a folder").flatten();
    files
        .map(|file| {
            let bytes = fs::read(file.path()).expect("a file");
            (file.file_name().into_string().expect("a name"), bytes)
        })
        .collect()
}

fuzz_target!(|data: &[u8]| {
    let [how, rest @ ..] = data else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let log = format!("{FILE}-wal");
    let changed = if how & 1 == 0 { FILE } else { log.as_str() };
    for (name, bytes) in &*FILES {
        if name != FILE && (*name != log || how & 2 != 0) {
            continue;
        }
        let mut bytes = bytes.clone();
        if name == changed {
            let at = |two: &[u8]| usize::from(u16::from_le_bytes([two[0], two[1]]));
            match rest {
                [first, second, ..] if how & 4 != 0 => bytes.truncate(at(&[*first, *second])),
                _ => {
                    for change in rest.chunks_exact(3) {
                        let length = bytes.len();
                        bytes[at(change) % length] = change[2];
                    }
                }
            }
        }
        fs::write(folder.path().join(name), bytes).expect("room");
    }
    let before = contents(folder.path());
    RUNTIME.block_on(async {
        match Embedded::open(folder.path()) {
            Ok(store) => {
                let _ = store.list(Query::below("", usize::MAX)).await;
                let _ = store.write(vec![Change::put("more", "x")]).await;
                store.close().await;
            }
            Err(error) => {
                let line = error.to_string();
                assert!(!line.contains('\n') && line.contains(FILE), "{line}");
                assert!(contents(folder.path()) == before, "{line}: files were changed");
            }
        }
    });
});

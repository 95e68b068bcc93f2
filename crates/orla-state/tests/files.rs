//! State files that cannot be used are refused and stay unchanged.

#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect has failed")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use orla_state::{Change, Embedded, FILE, OpenError, Query, StateStore as _};

/// Returns a directory whose store holds `task/0` to `task/99`, and was closed.
async fn closed() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let store = Embedded::open(directory.path()).unwrap();
    fill(&store).await;
    store.close().await;
    directory
}

async fn fill(store: &Embedded) {
    for number in 0..100 {
        let value =
            format!(r#"{{"state":"completed","capability":"c{number}","text":"{}"}}"#, "x".repeat(700));
        store.write(vec![Change::put(format!("task/{number}"), value)]).await.unwrap();
    }
}

async fn is_whole(directory: &Path) {
    let store = Embedded::open(directory).unwrap();
    assert_eq!(store.list(Query::below("task/", 1000)).await.unwrap().len(), 100);
    store.close().await;
}

/// Returns the names and contents of all files.
fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(directory).unwrap().map(|file| file.unwrap());
    files.map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap())).collect()
}

/// Opening fails with one line that names the file, and changes nothing.
fn refused(directory: &Path) -> OpenError {
    let before = contents(directory);
    let err = Embedded::open(directory).err().expect("a refusal");
    let line = err.to_string();
    assert!(!line.contains('\n') && line.contains(FILE), "{line}");
    assert!(contents(directory) == before, "{line}: files were changed");
    err
}

/// Returns a copy of the files that a process would leave if it were killed now.
fn killed(directory: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for (name, bytes) in contents(directory) {
        fs::write(copy.path().join(name), bytes).unwrap();
    }
    copy
}

#[tokio::test]
async fn a_closed_state_is_one_private_file() {
    let above = tempfile::tempdir().unwrap();
    let directory = above.path().join("a/.orla");
    assert!(!Embedded::exists(&directory));
    let store = Embedded::open(&directory).unwrap();
    fill(&store).await;
    for name in contents(&directory).into_keys() {
        let mode = fs::metadata(directory.join(&name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    store.close().await;
    assert!(store.get("task/1").await.is_err() && store.write(vec![]).await.is_err(), "it is closed");
    assert_eq!(contents(&directory).into_keys().collect::<Vec<_>>(), [FILE]);
    assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
    assert!(Embedded::exists(&directory));
    is_whole(&directory).await;
    let dropped = Embedded::open(&directory).unwrap();
    dropped.write(vec![Change::put("x", "y")]).await.unwrap();
    drop(dropped);
    assert_eq!(contents(&directory).into_keys().collect::<Vec<_>>(), [FILE]);
}

#[tokio::test]
async fn one_process_holds_a_state_and_others_may_read_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let store = Embedded::open(directory.path()).unwrap();
    fill(&store).await;
    assert!(matches!(refused(directory.path()), OpenError::Held { .. }));
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let person = rusqlite::Connection::open_with_flags(directory.path().join(FILE), flags).unwrap();
    let seen: (u32, String) = person
        .query_row(
            "SELECT count(*), max(state) FROM tasks WHERE id < '5' AND capability > 'c'",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .unwrap();
    assert_eq!(seen, (45, "completed".to_owned()));
    store.write(vec![Change::put("task/5", "{}")]).await.unwrap();
    drop((store, person));
    is_whole(directory.path()).await;
}

#[tokio::test]
async fn a_file_that_is_cut_or_overwritten_is_refused() {
    let directory = closed().await;
    let path = directory.path().join(FILE);
    let good = fs::read(&path).unwrap();
    for end in [0, 1, 15, 16, 99, 100, 4095, 4096, good.len() / 2, good.len() - 4096, good.len() - 1] {
        fs::write(&path, &good[..end]).unwrap();
        assert!(matches!(refused(directory.path()), OpenError::Damaged { .. }), "{end}");
    }
    let overwritten = |from: usize, bytes: &[u8]| {
        let mut bad = good.clone();
        bad[from..from + bytes.len()].copy_from_slice(bytes);
        fs::write(&path, bad).unwrap();
        refused(directory.path())
    };
    assert!(matches!(overwritten(0, &[0; 512]), OpenError::NotState { .. }));
    assert!(matches!(overwritten(68, b"fake"), OpenError::NotState { .. }));
    assert!(matches!(overwritten(60, &[0, 0, 0, 9]), OpenError::Version { found: 9, .. }));
    assert!(matches!(overwritten(16, &[0, 3]), OpenError::Damaged { .. }));
    for page in 0..good.len() / 4096 {
        let err = overwritten(page * 4096 + 100, &[0xa5; 3996]);
        assert!(matches!(err, OpenError::Damaged { .. }), "page {page}: {err}");
    }
    fs::write(&path, "{}".repeat(5000)).unwrap();
    assert!(matches!(refused(directory.path()), OpenError::NotState { .. }));
    fs::write(&path, &good).unwrap();
    is_whole(directory.path()).await;
}

#[tokio::test]
async fn a_killed_state_whose_files_are_damaged_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = Embedded::open(directory.path()).unwrap();
    fill(&store).await;
    let copy = killed(directory.path());
    is_whole(copy.path()).await;

    let copy = killed(directory.path());
    fs::remove_file(copy.path().join(FILE)).unwrap();
    assert!(matches!(refused(copy.path()), OpenError::Damaged { .. }), "its log is left");

    let copy = killed(directory.path());
    let log = copy.path().join("state.db-wal");
    let mut bytes = fs::read(&log).unwrap();
    bytes[..32].fill(0);
    fs::write(&log, &bytes).unwrap();
    assert!(matches!(refused(copy.path()), OpenError::Damaged { .. }), "its log has no header");
    bytes.fill(0xa5);
    fs::write(&log, &bytes).unwrap();
    assert!(matches!(refused(copy.path()), OpenError::Damaged { .. }), "its log is garbage");

    // A process was killed before its first transaction was synced.
    let copy = killed(closed().await.path());
    fs::write(copy.path().join("state.db-wal"), [0; 9000]).unwrap();
    is_whole(copy.path()).await;

    // A process was killed while it moved the log: the main file's new pages are in the log alone.
    store.close().await;
    let store = Embedded::open(directory.path()).unwrap();
    let before = fs::read(directory.path().join(FILE)).unwrap();
    for number in 0..200 {
        store.write(vec![Change::put(format!("more/{number}"), vec![b'x'; 3000])]).await.unwrap();
    }
    let copy = killed(directory.path());
    store.close().await;
    let after = fs::read(directory.path().join(FILE)).unwrap();
    for kept in [before.len(), before.len() + 8192, after.len()] {
        fs::write(copy.path().join(FILE), &after[..kept]).unwrap();
        let copy = killed(copy.path());
        is_whole(copy.path()).await;
    }
    fs::write(copy.path().join(FILE), &after[..before.len() / 2]).unwrap();
    assert!(
        matches!(refused(copy.path()), OpenError::Damaged { .. }),
        "pages are missing that are not in the log"
    );
}

#[tokio::test]
async fn read_only_and_irregular_files_are_refused() {
    let directory = closed().await;
    let path = directory.path().join(FILE);
    for (target, mode) in [(path.as_path(), 0o400), (directory.path(), 0o500)] {
        let before = fs::metadata(target).unwrap().permissions();
        fs::set_permissions(target, fs::Permissions::from_mode(mode)).unwrap();
        let err = refused(directory.path());
        fs::set_permissions(target, before).unwrap();
        assert!(matches!(err, OpenError::ReadOnly { .. }), "{err}");
    }
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(matches!(Embedded::open(&file), Err(OpenError::Failed { .. })));
    fs::rename(&path, directory.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink("elsewhere", &path).unwrap();
    assert!(matches!(refused(directory.path()), OpenError::NotState { .. }));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(matches!(Embedded::open(directory.path()), Err(OpenError::NotState { .. })));
}

#[tokio::test]
async fn removed_records_leave_room_for_others_and_the_log_stays_small() {
    let directory = tempfile::tempdir().unwrap();
    let store = Embedded::open(directory.path()).unwrap();
    let mut sizes = Vec::new();
    // Together 80 MB.
    for round in 0..200 {
        let key = |number: u32| format!("task/{round}/{number}");
        let puts = (0..200).map(|number| Change::put(key(number), vec![b'x'; 2000]));
        store.write(puts.collect()).await.unwrap();
        let removals = (0..200).map(|number| Change::remove(key(number)));
        store.write(removals.collect()).await.unwrap();
        let log = fs::metadata(directory.path().join("state.db-wal")).unwrap().len();
        sizes.push(log);
    }
    assert!(sizes.iter().all(|log| *log < 30 << 20), "bytes of the log: {sizes:?}");
    store.close().await;
    let size = fs::metadata(directory.path().join(FILE)).unwrap().len();
    assert!(size < 2 << 20, "{size} bytes");
}

//! Each write, sync, open and similar call fails in turn. The store does not panic, and no acknowledged
//! record is lost.
//!
//! strace injects the faults into a separate process, which is this test, started again as [`child`].
//! Without strace only the limit on the size of files is tried. `ORLA_STATE_FAULTS=all` tries every call
//! instead of some (`cargo xtask state faults`).

#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect has failed")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use orla_state::{Change, Embedded, Expect, Query, StateStore as _};

/// Names the directory for [`child`], and how many batches of how many bytes it writes.
const DIRECTORY: &str = "ORLA_STATE_DIRECTORY";
const BATCHES: &str = "ORLA_STATE_BATCHES";

/// System calls and how they fail.
const FAULTS: [(&str, &str); 6] = [
    ("pwrite64", "ENOSPC"),
    ("pwrite64", "EIO"),
    ("fdatasync,fsync", "EIO"),
    ("openat", "EMFILE"),
    ("ftruncate", "EIO"),
    ("rename,unlink", "EIO"),
];

/// Writes batches of two records in turn, and reports for each whether it was acknowledged.
#[tokio::test]
async fn child() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let wanted = std::env::var(BATCHES).unwrap();
    let (batches, bytes) = wanted.split_once(' ').unwrap();
    let say = |line: String| drop(std::io::stderr().write_all(format!("{line}\n").as_bytes()));
    let store = match Embedded::open(Path::new(&directory)) {
        Ok(store) => store,
        Err(err) => return say(format!("refused {err}")),
    };
    for number in 0..batches.parse().unwrap() {
        let value = vec![b'x'; bytes.parse().unwrap()];
        let part = |part: &str, value: Vec<u8>| {
            Change::put(format!("{part}/{number:04}"), value).expecting(Expect::Absent)
        };
        match store.write(vec![part("a", value), part("b", Vec::new())]).await {
            Ok(_) => say(format!("done {number}")),
            Err(err) => say(format!("failed {number} {err}")),
        }
        drop(store.get("a/0000").await);
    }
    store.close().await;
    say("end".to_owned());
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_when_a_call_to_the_system_fails() {
    if Command::new("strace").arg("-V").output().is_err() {
        println!("strace is not installed");
        return;
    }
    let all = std::env::var("ORLA_STATE_FAULTS").is_ok_and(|which| which == "all");
    for (calls, error) in FAULTS {
        for existing in [false, true] {
            let (mut nth, mut step, mut outcomes) = (1, 1, BTreeMap::new());
            loop {
                let directory = tempfile::tempdir().unwrap();
                let state = directory.path().join("state");
                if existing {
                    let store = Embedded::open(&state).unwrap();
                    store.write(vec![Change::put("before", "x")]).await.unwrap();
                    store.close().await;
                }
                let log = directory.path().join("strace");
                let mut strace = Command::new("strace");
                strace.args(["-f", "-qq", "-o"]).arg(&log).arg("-e").arg(format!("trace={calls}"));
                strace.arg("-e").arg(format!("inject={calls}:error={error}:when={nth}"));
                let output = run(strace.arg(std::env::current_exe().unwrap()), &state, "12 3000");
                let outcome = check(&state, &output, existing).await;
                *outcomes.entry(outcome).or_insert(0) += 1;
                if !fs::read_to_string(&log).unwrap().contains("(INJECTED)") {
                    break;
                }
                nth += step;
                step = if all { 1 } else { step * 2 };
            }
            println!("{calls}: {error}, existing: {existing}, to the {nth}th: {outcomes:?}");
        }
    }
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_when_files_may_not_grow() {
    // In blocks of 512 bytes.
    for (limit, expected) in [("200", "refused"), ("1000", "failed"), ("4000", "failed")] {
        let directory = tempfile::tempdir().unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' XFSZ; ulimit -f $0; exec \"$@\"", limit]);
        let output = run(shell.arg(std::env::current_exe().unwrap()), directory.path(), "300 20000");
        assert_eq!(check(directory.path(), &output, false).await, expected, "{limit}");
    }
}

/// Runs [`child`] by a command that takes the test and its arguments.
fn run(command: &mut Command, state: &Path, batches: &str) -> Output {
    let child = command.args(["--exact", "child", "--nocapture", "--test-threads", "1"]);
    child.env(DIRECTORY, state).env(BATCHES, batches).output().unwrap()
}

/// Looks for everything that was acknowledged.
async fn check(state: &Path, output: &Output, existing: bool) -> &'static str {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("panicked"), "{said}");
    let store = Embedded::open(state).unwrap_or_else(|err| panic!("{err}: {said}"));
    assert!(!existing || store.get("before").await.unwrap().is_some(), "{said}");
    let keys = async |prefix: &str| {
        let records = store.list(Query::below(prefix, 1000)).await.unwrap();
        records.into_iter().map(|record| record.key[2..].parse().unwrap()).collect::<Vec<usize>>()
    };
    let found = keys("a/").await;
    assert_eq!(found, keys("b/").await, "batches are whole: {said}");
    let numbers = |word: &str| {
        let lines = said.lines().filter_map(|line| line.strip_prefix(word)?.split(' ').nth(1));
        lines.map(|number| number.parse().unwrap()).collect::<Vec<usize>>()
    };
    let (done, failed) = (numbers("done"), numbers("failed"));
    assert!(done.iter().all(|number| found.contains(number)), "{found:?}: {said}");
    assert!(
        found.iter().all(|number| done.contains(number) || failed.contains(number)),
        "{found:?}: {said}"
    );
    match &*said {
        said if said.contains("refused ") => "refused",
        said if !said.contains("done ") && failed.is_empty() => "not started",
        _ if failed.is_empty() => "not noticed",
        _ => "failed",
    }
}

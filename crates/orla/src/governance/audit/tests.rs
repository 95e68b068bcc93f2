use super::super::chain::{Break, Chain, Walk};
use super::writer::Place;
use super::*;
use crate::config::AuditSync;
use std::fs::{self, OpenOptions};
use std::time::Instant;

fn verify(path: &Path) -> Result<u64, Break> {
    let text = fs::read(path).unwrap();
    let mut walk = Walk::default();
    let mut rest = &text[..];
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        walk.line(&rest[..end])?;
        rest = &rest[end + 1..];
    }
    walk.finish(rest).map(|chain| chain.seq)
}

fn whole(path: &Path) -> u64 {
    verify(path).unwrap()
}

fn wait_until(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(120), "it does not come");
        std::thread::yield_now();
    }
}

fn reloaded() -> AuditEvent {
    AuditEvent::Reloaded { capabilities: 1, generation: 1 }
}

fn open(path: &Path, audit_sync: AuditSync) -> Result<Audit, String> {
    let own = GovernanceConfig { audit: path.to_owned(), audit_sync, ..GovernanceConfig::default() };
    Audit::open(&own)
}

fn write(path: &Path, events: usize) {
    let audit = open(path, AuditSync::Never).unwrap();
    for _ in 1..events {
        audit.shared.put(AuditEvent::Reloaded { capabilities: 1, generation: 1 });
    }
    audit.stopped("test");
}

#[test]
fn the_next_writer_continues_the_chain() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    write(&path, 3);
    write(&path, 2);
    assert_eq!(whole(&path), 5);
}

#[test]
fn more_than_the_queue_holds_waits_and_is_not_lost() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    write(&path, 2 * QUEUE + 10);
    assert_eq!(whole(&path), 2 * QUEUE as u64 + 10);
    assert!(!fs::read_to_string(&path).unwrap().contains("\"lost\""));
}

#[test]
fn a_log_truncated_by_a_crash_is_continued() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    write(&path, 3);
    let good = fs::read(&path).unwrap();
    let last = good[..good.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    for cut in [last + 1, last + 40, good.len() - 2, good.len() - 1] {
        let path = dir.path().join(format!("cut-{cut}"));
        fs::write(&path, &good[..cut]).unwrap();
        write(&path, 2);
        whole(&path);
        assert!(fs::read(&path).unwrap().starts_with(&good[..cut]), "nothing is taken away");
    }
    let zeros = dir.path().join("zeros");
    fs::write(&zeros, [&good[..], &[0; 5000]].concat()).unwrap();
    write(&zeros, 1);
    assert_eq!(whole(&zeros), 5);
    let nothing_else = dir.path().join("torn");
    fs::write(&nothing_else, &good[..20]).unwrap();
    write(&nothing_else, 1);
    assert_eq!(whole(&nothing_else), 2);
}

#[test]
fn a_file_that_is_no_audit_log_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notes.txt");
    fs::write(&path, "dear diary\n").unwrap();
    let problem = open(&path, AuditSync::Never).map(|_| ()).unwrap_err();
    assert!(problem.contains("notes.txt") && problem.contains("broken"), "{problem}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "dear diary\n");
    assert!(open(dir.path(), AuditSync::Never).is_err());
    assert!(open(&dir.path().join("none/x"), AuditSync::Never).is_err());
}

#[test]
fn there_is_one_writer_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    let first = open(&path, AuditSync::Second).unwrap();
    let problem = open(&path, AuditSync::Second).map(|_| ()).unwrap_err();
    assert!(problem.contains("another orla"), "{problem}");
    first.stopped("test");
    write(&path, 1);
    assert_eq!(whole(&path), 2);
}

#[test]
fn the_file_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    write(&path, 1);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn lost_events_are_counted() {
    // A device that is always full.
    let Ok(full) = OpenOptions::new().write(true).open("/dev/full") else { return };
    let shared = Shared {
        queue: Mutex::default(),
        work: Condvar::new(),
        room: Condvar::new(),
        path: "/dev/full".into(),
    };
    let mut writer = Writer {
        file: full,
        place: Place::default(),
        displaced: None,
        is_moved: false,
        chain: Chain::default(),
        pending: Vec::new(),
        sync: AuditSync::Never,
        unsynced: false,
        synced: Instant::now(),
        key: None,
        heads: None,
        log: None,
        last_head: 0,
    };
    writer.pending.extend(b"x\n");
    writer.write(&shared);
    assert_eq!(writer.pending, b"x\n", "it is kept");
    assert!(shared.queue.lock().stuck);
    for _ in 0..QUEUE + 3 {
        shared.put(AuditEvent::Stopped { reason: "test" });
    }
    assert_eq!(shared.queue.lock().lost, 3, "and nobody waits");
}

#[test]
fn a_moved_log_continues_in_a_new_file_at_the_next_reload() {
    let dir = tempfile::tempdir().unwrap();
    let (path, old) = (dir.path().join("audit.jsonl"), dir.path().join("audit.jsonl.1"));
    let audit = open(&path, AuditSync::Second).unwrap();
    audit.shared.put(reloaded());
    wait_until(|| fs::read_to_string(&path).unwrap().ends_with('\n'));
    fs::rename(&path, &old).unwrap();
    audit.shared.put(reloaded());
    audit.stopped("test");
    assert_eq!((whole(&old), whole(&path)), (2, 3));
    let last = |path: &Path, at: usize| -> serde_json::Value {
        serde_json::from_str(fs::read_to_string(path).unwrap().lines().nth(at).unwrap()).unwrap()
    };
    let (moved, continued) = (last(&old, 1), last(&path, 0));
    assert_eq!((&moved["event"], &continued["event"]), (&"moved".into(), &"continued".into()));
    assert_eq!((&continued["previous_seq"], &continued["previous_hash"]), (&2.into(), &moved["hash"]));
}

/// Changes the file of a log with two records and adds two more. Returns the broken line, if any, and
/// the events.
fn tampered(name: &str, tamper: impl Fn(&Path)) -> (Result<u64, u64>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    let audit = open(&path, AuditSync::Never).unwrap();
    let lines = || fs::read_to_string(&path).unwrap_or_default().matches("\"reloaded\"").count();
    audit.shared.put(reloaded());
    wait_until(|| lines() == 1);
    audit.shared.put(reloaded());
    wait_until(|| lines() == 2);
    tamper(&path);
    audit.shared.put(reloaded());
    audit.stopped("test");
    let text = fs::read_to_string(&path).unwrap();
    let event = |line: &str| {
        let record: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
        record["event"].as_str().unwrap_or("none").to_owned()
    };
    (verify(&path).map_err(|broken| broken.line), text.lines().map(event).collect())
}

#[test]
fn the_log_continues_at_its_path_and_verification_reports_changes_to_the_file() {
    let replace = |path: &Path, text: &str| {
        let other = path.with_extension("new");
        fs::write(&other, text).unwrap();
        fs::rename(&other, path).unwrap();
    };
    let read = |path: &Path| fs::read_to_string(path).unwrap();
    let (verified, events) = tampered("deleted", |path| fs::remove_file(path).unwrap());
    assert_eq!(verified, Err(1), "what was before is missing");
    assert_eq!(events, ["replaced", "reloaded", "stopped"]);
    let (verified, events) = tampered("edited", |path| {
        replace(path, &read(path).replacen("\"capabilities\":1", "\"capabilities\":9", 1));
    });
    assert_eq!(verified, Err(1), "the changed line");
    assert_eq!(events, ["reloaded", "reloaded", "replaced", "reloaded", "stopped"]);
    let (verified, events) = tampered("older", |path| {
        let text = read(path);
        replace(path, text.split_inclusive('\n').next().unwrap());
    });
    assert_eq!(verified, Err(2), "the second line is missing");
    assert_eq!(events, ["reloaded", "replaced", "reloaded", "stopped"]);
    let (verified, _) =
        tampered("cut", |path| fs::write(path, read(path).lines().next().unwrap()).unwrap());
    assert_eq!(verified, Err(2), "cut where it is, in the middle of a line");
    let (verified, events) = tampered("emptied", |path| fs::write(path, "").unwrap());
    assert_eq!((verified, &*events[0]), (Err(1), "replaced"));
    let (verified, events) = tampered("copied", |path| replace(path, &read(path)));
    assert_eq!((verified, &*events[2]), (Ok(5), "replaced"), "nothing is missing");
}

#[test]
fn a_file_at_the_path_that_is_no_log_is_left_alone_and_records_wait_for_its_going() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    let audit = open(&path, AuditSync::Never).unwrap();
    audit.shared.put(reloaded());
    wait_until(|| fs::read_to_string(&path).unwrap().ends_with('\n'));
    fs::remove_file(&path).unwrap();
    fs::write(&path, "dear diary\n").unwrap();
    audit.shared.put(reloaded());
    wait_until(|| audit.shared.queue.lock().stuck);
    assert_eq!(fs::read_to_string(&path).unwrap(), "dear diary\n");
    fs::remove_file(&path).unwrap();
    wait_until(|| fs::read_to_string(&path).is_ok_and(|text| text.contains("\"replaced\"")));
    audit.stopped("test");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("{\"seq\":2,") && text.contains("\"reloaded\""), "{text}");
}

#[test]
fn a_log_after_a_deleted_one_continues_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    let audit = open(&path, AuditSync::Never).unwrap();
    audit.shared.put(reloaded());
    wait_until(|| fs::read_to_string(&path).unwrap().ends_with('\n'));
    fs::remove_file(&path).unwrap();
    audit.stopped("test");
    write(&path, 1);
    assert_eq!(verify(&path).map_err(|broken| broken.line), Err(1));
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.lines().last().unwrap().starts_with("{\"seq\":4,"), "{text}");
}

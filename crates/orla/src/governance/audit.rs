//! The audit log: a file to which every call is appended, each line chained to the one before
//! ([`chain`](super::chain)).
//!
//! # How it works
//!
//! Whoever finishes a call puts its record into a bounded queue; a thread of its own writes the lines, as
//! many at once as there are. When the queue is full, the call waits for a place, at most [`PATIENCE`];
//! what then finds none is counted, and the count is a line of its own (`lost`): nothing is lost silently.
//! While the file cannot be written, nobody waits, the log says why, and writing is tried again.
//!
//! The file is opened for appending and locked for as long as the server runs: one writer at a time. The
//! next one continues its chain. A last line that a crash cut off stays as it is, and the line after it
//! vouches for its bytes.
//!
//! # What is in it, and what is not
//!
//! Who called what, when, for how long and how it ended. No input, no output, no error text: they may hold
//! secrets. The principal is a name, never a token.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use orla_marketplace::{CallRecord, CapabilityMarketplace};
use serde_json::json;

use super::chain::{Chain, Fields};
use crate::config::{AuditSync, reason};
use crate::logging::format::timestamp;

/// Records that wait to be written.
const QUEUE: usize = 8192;
/// How long a call waits for a place in the queue.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long it takes until the file is tried again, and, with `audit_sync: second`, synced again.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a server that ends may hold the file before the next one gives up.
const HANDOVER: Duration = Duration::from_millis(500);
/// The longest line, and the most of a file's end that is searched for the end of a line.
pub(crate) const MAX_LINE: usize = 1024 * 1024;

/// Writes the audit log, until it is dropped.
pub(crate) struct Audit {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

struct Shared {
    queue: Mutex<Queue>,
    /// There is something to write.
    work: Condvar,
    /// There is room.
    room: Condvar,
    path: PathBuf,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Event>,
    /// Records that found no place since the last line.
    lost: u64,
    /// The file cannot be written at the moment.
    stuck: bool,
    ending: bool,
}

struct Event {
    at: SystemTime,
    what: What,
}

/// What is recorded. A line is made of it by the thread that writes.
enum What {
    Started { capabilities: usize, generation: u64 },
    Reloaded { capabilities: usize, generation: u64 },
    Call(Box<CallRecord>),
    Stopped { reason: &'static str },
}

impl Audit {
    /// Opens the log and begins to write.
    ///
    /// # Errors
    /// A sentence with the path: it cannot be written, another server writes it, or it is no audit log.
    pub(crate) fn open(path: &Path, sync: AuditSync) -> Result<Self, String> {
        let (file, chain, first) =
            open(path).map_err(|why| format!("audit: {}: {why}", path.display()))?;
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            work: Condvar::new(),
            room: Condvar::new(),
            path: path.to_owned(),
        });
        let mut writer =
            Writer { file, chain, pending: first, sync, unsynced: false, synced: Instant::now() };
        let of_thread = Arc::clone(&shared);
        let writer = std::thread::Builder::new()
            .name("orla-audit".to_owned())
            .spawn(move || writer.run(&of_thread))
            .map_err(|err| format!("audit: no thread for it: {}", reason(&err)))?;
        Ok(Self { shared, writer: Some(writer) })
    }

    /// Records every call of a marketplace from now on.
    pub(crate) fn observe(&self, marketplace: &CapabilityMarketplace) {
        let shared = Arc::clone(&self.shared);
        marketplace.on_finished(move |record| shared.put(What::Call(Box::new(record.clone()))));
    }

    /// The server begins to serve this snapshot.
    pub(crate) fn started(&self, marketplace: &CapabilityMarketplace) {
        let now = marketplace.snapshot();
        self.shared
            .put(What::Started { capabilities: now.entries().len(), generation: now.generation() });
    }

    /// The server serves another snapshot.
    pub(crate) fn reloaded(&self, marketplace: &CapabilityMarketplace) {
        let now = marketplace.snapshot();
        self.shared
            .put(What::Reloaded { capabilities: now.entries().len(), generation: now.generation() });
    }

    /// The server has ended: everything is written, and synced unless that is switched off.
    pub(crate) fn stopped(mut self, reason: &'static str) {
        self.shared.put(What::Stopped { reason });
        self.end();
    }

    fn end(&mut self) {
        self.shared.lock().ending = true;
        self.shared.work.notify_all();
        self.shared.room.notify_all();
        if let Some(writer) = self.writer.take() {
            // A panic of the writer has been said by then.
            let _ = writer.join();
        }
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, what: What) {
        let at = SystemTime::now();
        let is_full = |queue: &mut Queue| queue.events.len() >= QUEUE && !queue.stuck && !queue.ending;
        let waited = self.room.wait_timeout_while(self.lock(), PATIENCE, is_full);
        let (mut queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        // After the end nothing is written any more.
        if queue.events.len() >= QUEUE || queue.ending {
            queue.lost += 1;
            return;
        }
        queue.events.push_back(Event { at, what });
        drop(queue);
        self.work.notify_one();
    }
}

/// The thread that writes.
struct Writer {
    file: File,
    chain: Chain,
    /// Lines that are not written yet.
    pending: Vec<u8>,
    sync: AuditSync,
    /// Something was written since the file was last synced.
    unsynced: bool,
    synced: Instant,
}

impl Writer {
    fn run(&mut self, shared: &Shared) {
        // What the file's end asks for comes first.
        self.write(shared);
        loop {
            let (events, lost, ending) = self.wait(shared);
            shared.room.notify_all();
            for event in events {
                self.pending.extend(self.chain.append(fields(event.at, &event.what)).into_bytes());
            }
            if lost > 0 {
                tracing::error!(lost, "calls are missing in the audit log");
                let mut fields = head(SystemTime::now(), "lost");
                fields.insert("count".to_owned(), json!(lost));
                self.pending.extend(self.chain.append(fields).into_bytes());
            }
            self.write(shared);
            if ending {
                if !self.pending.is_empty() {
                    tracing::error!(
                        bytes = self.pending.len(),
                        "the end of the audit log was not written"
                    );
                }
                if self.unsynced && self.sync != AuditSync::Never {
                    self.sync(shared);
                }
                return;
            }
        }
    }

    /// Waits until there is something to do, and takes what has come.
    fn wait(&self, shared: &Shared) -> (Vec<Event>, u64, bool) {
        let queue = shared.lock();
        // What is stuck is tried again after a pause, whatever comes meanwhile.
        let is_stuck = !self.pending.is_empty();
        let waits = |queue: &mut Queue| {
            !queue.ending && (is_stuck || queue.events.is_empty() && queue.lost == 0)
        };
        let is_timed = is_stuck || self.unsynced && self.sync == AuditSync::Second;
        let mut queue = if is_timed {
            let waited = shared.work.wait_timeout_while(queue, PAUSE, waits);
            waited.unwrap_or_else(PoisonError::into_inner).0
        } else {
            shared.work.wait_while(queue, waits).unwrap_or_else(PoisonError::into_inner)
        };
        if is_stuck && !queue.ending {
            return (Vec::new(), 0, false);
        }
        let lost = std::mem::take(&mut queue.lost);
        (queue.events.drain(..).collect(), lost, queue.ending)
    }

    fn write(&mut self, shared: &Shared) {
        let mut done = 0;
        let mut failure = None;
        while done < self.pending.len() {
            match self.file.write(&self.pending[done..]) {
                Ok(0) => failure = Some("nothing can be written to it".to_owned()),
                Ok(length) => done += length,
                Err(err) if err.kind() == std::io::ErrorKind::Interrupted => {}
                Err(err) => failure = Some(reason(&err)),
            }
            if failure.is_some() {
                break;
            }
        }
        self.pending.drain(..done);
        self.unsynced |= done > 0;
        let was_stuck = std::mem::replace(&mut shared.lock().stuck, failure.is_some());
        match failure {
            Some(reason) if !was_stuck => {
                tracing::error!(path = %shared.path.display(), reason, "the audit log cannot be written");
            }
            None if was_stuck => tracing::info!("the audit log is written again"),
            _ => {}
        }
        let is_due = match self.sync {
            AuditSync::Always => true,
            AuditSync::Second => self.synced.elapsed() >= PAUSE,
            AuditSync::Never => false,
        };
        if self.unsynced && is_due {
            self.sync(shared);
        }
    }

    fn sync(&mut self, shared: &Shared) {
        if let Err(err) = self.file.sync_data() {
            tracing::error!(path = %shared.path.display(), reason = reason(&err), "the audit log cannot be synced");
        }
        self.unsynced = false;
        self.synced = Instant::now();
    }
}

fn head(at: SystemTime, event: &str) -> Fields {
    let mut fields = Fields::new();
    fields.insert("time".to_owned(), json!(timestamp(at)));
    fields.insert("event".to_owned(), json!(event));
    fields
}

fn fields(at: SystemTime, what: &What) -> Fields {
    let mut fields;
    match what {
        What::Started { capabilities, generation } => {
            fields = head(at, "started");
            fields.insert("version".to_owned(), json!(env!("CARGO_PKG_VERSION")));
            fields.insert("pid".to_owned(), json!(std::process::id()));
            fields.insert("capabilities".to_owned(), json!(capabilities));
            fields.insert("generation".to_owned(), json!(generation));
        }
        What::Reloaded { capabilities, generation } => {
            fields = head(at, "reloaded");
            fields.insert("capabilities".to_owned(), json!(capabilities));
            fields.insert("generation".to_owned(), json!(generation));
        }
        What::Call(record) => {
            fields = head(at, if record.outcome == "denied" { "denied" } else { "call" });
            fields.insert("call_id".to_owned(), json!(&*record.call_id));
            fields.insert("capability".to_owned(), json!(record.entry.manifest.id));
            fields.insert("kind".to_owned(), json!(record.kind));
            if let Some(principal) = &record.principal {
                fields.insert("principal".to_owned(), json!(&*principal.0));
            }
            fields.insert("outcome".to_owned(), json!(record.outcome));
            let millis = record.duration.as_micros() as f64 / 1000.0;
            fields.insert("duration_ms".to_owned(), json!(millis));
            fields.insert("depth".to_owned(), json!(record.depth));
        }
        What::Stopped { reason } => {
            fields = head(at, "stopped");
            fields.insert("reason".to_owned(), json!(reason));
        }
    }
    fields
}

/// Opens and locks a log, finds its end, and gives what has to be written first.
fn open(path: &Path) -> Result<(File, Chain, Vec<u8>), String> {
    // Looked at before it is opened: opening a fifo would wait for its reader.
    if std::fs::metadata(path).is_ok_and(|file| !file.is_file()) {
        return Err("not a regular file".to_owned());
    }
    let mut options = OpenOptions::new();
    let opened = options.read(true).append(true).create(true).mode(0o600).open(path);
    let mut file = opened.map_err(|err| format!("cannot be written: {}", reason(&err)))?;
    lock(&file)?;
    let unreadable = |err: std::io::Error| format!("cannot be read: {}", reason(&err));
    let length = file.metadata().map_err(unreadable)?.len();
    let from = length.saturating_sub(MAX_LINE as u64 * 2);
    file.seek(SeekFrom::Start(from)).map_err(unreadable)?;
    let mut end = Vec::new();
    file.read_to_end(&mut end).map_err(unreadable)?;
    let (chain, first) = continued(&end, from == 0)?;
    Ok((file, chain, first))
}

/// Where a log goes on, by the last bytes of its file, and what has to be written first.
///
/// # Errors
/// Why it cannot be continued.
fn continued(end: &[u8], is_whole: bool) -> Result<(Chain, Vec<u8>), String> {
    let start_of = |bytes: &[u8]| bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let broken = |reason: &str| {
        format!(
            "its last line is broken: {reason}; see `orla audit verify`, and move the file away to begin another"
        )
    };
    let torn = &end[start_of(end)..];
    let whole = &end[..end.len() - torn.len()];
    if whole.is_empty() && !is_whole {
        return Err("its last line is longer than any line of an audit log".to_owned());
    }
    let last = whole.strip_suffix(b"\n").unwrap_or(whole);
    let last = &last[start_of(last)..];
    let mut chain = if whole.is_empty() { Chain::default() } else { Chain::at(last).map_err(broken)? };
    if torn.is_empty() {
        return Ok((chain, Vec::new()));
    }
    if let Ok(complete) = Chain::at(torn)
        && complete.seq == chain.seq + 1
    {
        // Only its end is missing.
        return Ok((complete, b"\n".to_vec()));
    }
    let recovered = chain.append(Chain::recovered(torn, &timestamp(SystemTime::now())));
    Ok((chain, format!("\n{recovered}").into_bytes()))
}

fn lock(file: &File) -> Result<(), String> {
    let began = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if began.elapsed() < HANDOVER => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(TryLockError::WouldBlock) => {
                return Err(
                    "another orla is writing it; every server needs an audit log of its own".to_owned()
                );
            }
            Err(TryLockError::Error(err)) => return Err(format!("cannot be locked: {}", reason(&err))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::chain::Walk;
    use super::*;
    use std::fs;

    fn whole(path: &Path) -> u64 {
        let text = fs::read(path).unwrap();
        let mut walk = Walk::default();
        let mut rest = &text[..];
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            walk.line(&rest[..end]).unwrap();
            rest = &rest[end + 1..];
        }
        walk.finish(rest).unwrap().seq
    }

    fn write(path: &Path, events: usize) {
        let audit = Audit::open(path, AuditSync::Never).unwrap();
        for _ in 1..events {
            audit.shared.put(What::Reloaded { capabilities: 1, generation: 1 });
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
    fn whatever_a_crash_leaves_is_continued() {
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
    fn what_is_no_audit_log_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes.txt");
        fs::write(&path, "dear diary\n").unwrap();
        let problem = Audit::open(&path, AuditSync::Never).map(|_| ()).unwrap_err();
        assert!(problem.contains("notes.txt") && problem.contains("broken"), "{problem}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "dear diary\n");
        assert!(Audit::open(dir.path(), AuditSync::Never).is_err());
        assert!(Audit::open(&dir.path().join("none/x"), AuditSync::Never).is_err());
    }

    #[test]
    fn there_is_one_writer_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let first = Audit::open(&path, AuditSync::Second).unwrap();
        let problem = Audit::open(&path, AuditSync::Second).map(|_| ()).unwrap_err();
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
    fn what_finds_no_place_is_counted() {
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
            chain: Chain::default(),
            pending: Vec::new(),
            sync: AuditSync::Never,
            unsynced: false,
            synced: Instant::now(),
        };
        writer.pending.extend(b"x\n");
        writer.write(&shared);
        assert_eq!(writer.pending, b"x\n", "it is kept");
        assert!(shared.lock().stuck);
        for _ in 0..QUEUE + 3 {
            shared.put(What::Stopped { reason: "test" });
        }
        assert_eq!(shared.lock().lost, 3, "and nobody waits");
    }
}

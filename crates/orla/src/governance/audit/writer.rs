//! The thread that writes the audit log, and the file that it writes.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use orla_marketplace::Principal;
use orla_marketplace::attestation::SigningKey;
use serde_json::json;

use super::super::chain::{self, Chain, Fields, MAX_LINE};
use super::super::head::{self, Head, Seal};
use super::{AuditEvent, Event, Heads, Queue, Shared};
use crate::config::{AuditSync, reason};
use crate::logging::format::timestamp;
use crate::text::cut;

/// The pause before the file is tried again, and, with `audit_sync: second`, synced again.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the next server waits for the lock of a server that is ending.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);

/// How many characters of a name that a client chose are recorded.
const SHOWN: usize = 1000;

/// The thread that writes.
pub(super) struct Writer {
    pub(super) file: File,
    /// The device and inode of the file, and its length according to the bytes read and written.
    pub(super) place: Place,
    /// Why records cannot be written to the file that is now at the path. The records wait.
    pub(super) displaced: Option<String>,
    /// The file is no longer at its path, which has been said.
    pub(super) is_moved: bool,
    pub(super) chain: Chain,
    /// Lines that are not written yet.
    pub(super) pending: Vec<u8>,
    pub(super) sync: AuditSync,
    /// Something was written since the file was last synced.
    pub(super) unsynced: bool,
    pub(super) synced: Instant,
    /// Signs heads.
    pub(super) key: Option<SigningKey>,
    /// Takes heads.
    pub(super) heads: Option<Heads>,
    /// The hash of the first record, once there is one.
    pub(super) log: Option<String>,
    /// The number of the last record when the head was last delivered.
    pub(super) last_head: u64,
}

/// Which file is written, and its length in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    id: (u64, u64),
    length: u64,
}

impl Place {
    pub(super) fn of(file: &Metadata) -> Self {
        Self { id: (file.dev(), file.ino()), length: file.len() }
    }
}

/// What happened to the file of a log while it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is at its path.
    Whole,
    /// The file was renamed, and its path has no file or an empty one.
    Moved {
        is_empty_there: bool,
    },
    Deleted,
    /// Another file is at its path.
    Replaced,
    /// The file is shorter than the bytes written to it.
    Truncated,
}

impl Fate {
    /// Determines what happened to a file from the file now at its path and from the number of its
    /// names.
    fn of(place: Place, at_path: Option<Place>, names: u64) -> Self {
        match at_path {
            Some(at_path) if at_path.id == place.id && at_path.length < place.length => Self::Truncated,
            Some(at_path) if at_path.id == place.id => Self::Whole,
            None if names == 0 => Self::Deleted,
            None => Self::Moved { is_empty_there: false },
            Some(at_path) if at_path.length == 0 && names > 0 => Self::Moved { is_empty_there: true },
            Some(_) => Self::Replaced,
        }
    }

    /// Returns the word in the record, if the file is not as it was left.
    fn fault(self) -> Option<&'static str> {
        match self {
            Self::Whole | Self::Moved { .. } => None,
            Self::Deleted => Some("deleted"),
            Self::Replaced => Some("replaced"),
            Self::Truncated => Some("truncated"),
        }
    }
}

impl Writer {
    /// Opens and locks a log, new or not.
    ///
    /// # Errors
    ///
    /// Returns why it cannot be written, or continued.
    pub(super) fn open(
        path: &Path,
        sync: AuditSync,
        key: Option<SigningKey>,
        heads: Option<Heads>,
    ) -> Result<Self, String> {
        let Opened { file, place, chain, log, first: pending } = open(path)?;
        Ok(Self {
            file,
            place,
            displaced: None,
            is_moved: false,
            chain,
            pending,
            sync,
            unsynced: false,
            synced: Instant::now(),
            key,
            heads,
            log,
            last_head: 0,
        })
    }

    /// Puts a record at the end of the log, to be written next.
    fn append(&mut self, fields: Fields) {
        let line = self.chain.append(fields);
        self.pending.extend(line.into_bytes());
        if self.chain.seq == 1 {
            self.log = Some(self.chain.hash.clone());
        }
    }

    /// Returns whether heads are delivered or signed.
    fn gives_heads(&self) -> bool {
        self.key.is_some() || self.heads.is_some()
    }

    /// Writes until the end.
    pub(super) fn run(&mut self, shared: &Shared) {
        // A line that the end of the file requires comes first.
        self.write(shared);
        loop {
            let (events, lost, ending) = self.wait(shared);
            shared.room.notify_all();
            self.notice(shared);
            for event in events {
                if matches!(event.what, AuditEvent::Reloaded { .. }) && self.is_moved {
                    self.follow(shared);
                }
                self.append(fields(event.at, &event.what));
            }
            if lost > 0 {
                tracing::error!(lost, "calls are missing in the audit log");
                let mut fields = begun(SystemTime::now(), "lost");
                fields.insert("count".to_owned(), json!(lost));
                self.append(fields);
            }
            self.write(shared);
            if ending {
                if !self.pending.is_empty() {
                    tracing::error!(
                        bytes = self.pending.len(),
                        "the end of the audit log was not written"
                    );
                }
                if self.unsynced {
                    self.settle(shared);
                }
                return;
            }
        }
    }

    /// Waits until there is something to do, and takes the queued events.
    fn wait(&self, shared: &Shared) -> (Vec<Event>, u64, bool) {
        let mut queue = shared.queue.lock();
        // Lines that could not be written are retried after a pause, even if new lines come meanwhile.
        let is_stuck = !self.pending.is_empty();
        let waits = |queue: &mut Queue| {
            !queue.ending && (is_stuck || queue.events.is_empty() && queue.lost == 0)
        };
        let is_timed = is_stuck || self.unsynced && self.settles_each_second();
        if is_timed {
            shared.work.wait_while_for(&mut queue, waits, PAUSE);
        } else {
            shared.work.wait_while(&mut queue, waits);
        }
        if is_stuck && !queue.ending {
            return (Vec::new(), 0, false);
        }
        let lost = std::mem::take(&mut queue.lost);
        (queue.events.drain(..).collect(), lost, queue.ending)
    }

    /// Returns whether written lines are synced a second later, and not at once or never.
    fn settles_each_second(&self) -> bool {
        match self.sync {
            AuditSync::Always => false,
            AuditSync::Second => true,
            AuditSync::Never => self.gives_heads(),
        }
    }

    pub(super) fn write(&mut self, shared: &Shared) {
        self.flush(shared);
        let is_due = match self.sync {
            AuditSync::Always => true,
            _ => self.settles_each_second() && self.synced.elapsed() >= PAUSE,
        };
        if self.unsynced && is_due {
            self.settle(shared);
        }
    }

    /// Writes the queued lines, as far as possible.
    fn flush(&mut self, shared: &Shared) {
        let mut done = 0;
        let mut failure = self.displaced.clone().filter(|_| !self.pending.is_empty());
        while failure.is_none() && done < self.pending.len() {
            match self.file.write(&self.pending[done..]) {
                Ok(0) => failure = Some("nothing can be written to it".to_owned()),
                Ok(length) => done += length,
                Err(err) if err.kind() == ErrorKind::Interrupted => {}
                Err(err) => failure = Some(reason(&err)),
            }
        }
        self.pending.drain(..done);
        self.place.length += done as u64;
        self.unsynced |= done > 0;
        let was_stuck = std::mem::replace(&mut shared.queue.lock().stuck, failure.is_some());
        match failure {
            Some(reason) if !was_stuck => {
                tracing::error!(path = %shared.path.display(), reason, "the audit log cannot be written");
            }
            None if was_stuck => tracing::info!("the audit log is written again"),
            _ => {}
        }
    }

    /// Checks whether the open file is still the one at its path. If not, the chain continues in the
    /// file at the path. Missing or changed lines break the chain there.
    fn notice(&mut self, shared: &Shared) {
        let at_path = match std::fs::metadata(&shared.path) {
            Ok(file) => Some(Place::of(&file)),
            Err(err) if err.kind() == ErrorKind::NotFound => None,
            // The state is unknown.
            Err(_) => return,
        };
        if self.displaced.is_none() && at_path.is_some_and(|at_path| at_path == self.place) {
            self.is_moved = false;
            return;
        }
        let Ok(names) = self.file.metadata().map(|mine| mine.nlink()) else { return };
        let path = shared.path.display();
        let fate = Fate::of(self.place, at_path, names);
        let Some(fault) = fate.fault() else {
            self.displaced = None;
            let was_moved = std::mem::replace(&mut self.is_moved, fate != Fate::Whole);
            match fate {
                Fate::Moved { is_empty_there: true } => self.follow(shared),
                Fate::Moved { .. } if !was_moved => tracing::warn!(
                    %path,
                    "the audit log was moved away: records go to the moved file until a reload begins another"
                ),
                _ => {}
            }
            return;
        };
        // A file that is still the same is locked by this writer.
        let file = match fate {
            Fate::Truncated => self.file.try_clone().map_err(unreadable),
            _ => locked(&shared.path),
        };
        match file.and_then(adopted) {
            Ok((file, place, ends_whole)) => {
                tracing::error!(
                    %path,
                    after = self.chain.seq,
                    "the audit log was {fault} while it was written; records go on in the file at its path, and \
                     `orla audit verify` shows what is missing"
                );
                (self.file, self.place, self.displaced) = (file, place, None);
                if !ends_whole {
                    self.pending.insert(0, b'\n');
                }
                let mut fields = begun(SystemTime::now(), "replaced");
                fields.insert("file".to_owned(), json!(fault));
                self.append(fields);
            }
            Err(why) => {
                if self.displaced.is_none() {
                    tracing::error!(
                        %path,
                        after = self.chain.seq,
                        reason = why,
                        "the audit log was {fault} while it was written, and cannot go on; move away what is at its path"
                    );
                }
                self.displaced = Some(why);
            }
        }
    }

    /// Continues in a new file: the old one was moved away.
    fn follow(&mut self, shared: &Shared) {
        let opened = match open(&shared.path) {
            Ok(opened) => opened,
            Err(why) => {
                let path = shared.path.display();
                tracing::error!(%path, reason = why, "the audit log was moved, but a new file cannot be opened; records go to the moved file");
                return;
            }
        };
        let now = SystemTime::now();
        self.append(begun(now, "moved"));
        self.write(shared);
        if !self.pending.is_empty() {
            // Records that cannot be written now belong to the old file.
            return;
        }
        self.settle(shared);
        let mut fields = begun(now, "continued");
        fields.insert("previous_seq".to_owned(), json!(self.chain.seq));
        fields.insert("previous_hash".to_owned(), json!(self.chain.hash));
        (self.file, self.place, self.is_moved) = (opened.file, opened.place, false);
        (self.chain, self.pending) = (opened.chain, opened.first);
        (self.log, self.last_head) = (opened.log, 0);
        self.append(fields);
    }

    /// Signs the head, syncs the file to the disk, and delivers the head.
    fn settle(&mut self, shared: &Shared) {
        let head = self.signed_head(shared);
        if self.sync != AuditSync::Never {
            self.sync(shared);
        }
        self.unsynced = false;
        self.synced = Instant::now();
        if let (Some((head, seal)), Some(heads)) = (head, &self.heads) {
            heads.give(head::line(head, seal));
        }
    }

    /// Returns the head, if it is to be delivered and everything before it is written. Its signature is
    /// the next record.
    fn signed_head(&mut self, shared: &Shared) -> Option<(Head, Option<Seal>)> {
        let is_new = self.chain.seq > self.last_head && self.pending.is_empty() && self.gives_heads();
        let log = self.log.clone().filter(|_| is_new)?;
        let time = timestamp(SystemTime::now());
        let head = Head { log, seq: self.chain.seq, hash: self.chain.hash.clone(), time };
        let seal = self.key.as_ref().map(|key| head.sign(key));
        if let Some(seal) = &seal {
            self.append(Chain::signed(seal, &head.time));
            self.flush(shared);
        }
        self.last_head = self.chain.seq;
        Some((head, seal))
    }

    fn sync(&mut self, shared: &Shared) {
        if let Err(err) = self.file.sync_data() {
            tracing::error!(path = %shared.path.display(), reason = reason(&err), "the audit log cannot be synced");
        }
    }
}

fn begun(at: SystemTime, event: &str) -> Fields {
    let mut fields = Fields::new();
    fields.insert("time".to_owned(), json!(timestamp(at)));
    fields.insert("event".to_owned(), json!(event));
    fields
}

/// Adds the caller of a call and the way of its identification, since callers that were identified in
/// different ways may share a name.
fn insert_caller(fields: &mut Fields, principal: Option<&Principal>) {
    if let Some(principal) = principal {
        fields.insert("principal".to_owned(), json!(principal.name()));
        fields.insert("identified_by".to_owned(), json!(principal.identified_by().to_string()));
    }
}

/// Adds the rule that refused a call or a request, and the reason.
fn insert_refusal(fields: &mut Fields, rule: Option<&str>, reason: Option<&str>) {
    if let Some(rule) = rule {
        fields.insert("rule".to_owned(), json!(rule));
    }
    if let Some(reason) = reason {
        fields.insert("reason".to_owned(), json!(cut(reason, SHOWN)));
    }
}

fn fields(at: SystemTime, what: &AuditEvent) -> Fields {
    let mut fields;
    match what {
        AuditEvent::Started { capabilities, generation } => {
            fields = begun(at, "started");
            fields.insert("version".to_owned(), json!(env!("CARGO_PKG_VERSION")));
            fields.insert("pid".to_owned(), json!(std::process::id()));
            fields.insert("capabilities".to_owned(), json!(capabilities));
            fields.insert("generation".to_owned(), json!(generation));
        }
        AuditEvent::Reloaded { capabilities, generation } => {
            fields = begun(at, "reloaded");
            fields.insert("capabilities".to_owned(), json!(capabilities));
            fields.insert("generation".to_owned(), json!(generation));
        }
        AuditEvent::Call(record) => {
            fields = begun(at, if record.outcome == "denied" { "denied" } else { "call" });
            fields.insert("call_id".to_owned(), json!(&*record.call_id));
            fields.insert("capability".to_owned(), json!(record.entry.manifest.id));
            fields.insert("kind".to_owned(), json!(record.kind));
            insert_caller(&mut fields, record.principal.as_ref());
            fields.insert("outcome".to_owned(), json!(record.outcome));
            insert_refusal(&mut fields, record.rule.as_deref(), record.refusal.as_deref());
            let millis = record.duration.as_micros() as f64 / 1000.0;
            fields.insert("duration_ms".to_owned(), json!(millis));
            fields.insert("depth".to_owned(), json!(record.depth));
        }
        AuditEvent::Request(record) => {
            fields = begun(at, if record.outcome == "denied" { "denied" } else { "request" });
            fields.insert("call_id".to_owned(), json!(&*record.call_id));
            fields.insert("method".to_owned(), json!(record.method));
            fields.insert("capability".to_owned(), json!(cut(&record.id, SHOWN)));
            fields.insert("name".to_owned(), json!(cut(&record.name, SHOWN)));
            fields.insert("kind".to_owned(), json!(record.kind));
            insert_caller(&mut fields, record.principal.as_ref());
            fields.insert("outcome".to_owned(), json!(record.outcome));
            insert_refusal(&mut fields, record.rule.as_deref(), record.refusal.as_deref());
            let millis = record.duration.as_micros() as f64 / 1000.0;
            fields.insert("duration_ms".to_owned(), json!(millis));
        }
        AuditEvent::Forbidden(request) => {
            fields = begun(at, "forbidden");
            fields.insert("peer".to_owned(), json!(request.peer));
            insert_caller(&mut fields, request.principal.as_ref());
            if let (Some(method), Some(path)) = (&request.method, &request.path) {
                fields.insert("method".to_owned(), json!(method));
                fields.insert("path".to_owned(), json!(path));
            }
            fields.insert("by".to_owned(), json!(request.forbidden.by.word()));
            fields.insert("reason".to_owned(), json!(request.forbidden.reason));
            if request.unreported > 0 {
                fields.insert("unreported".to_owned(), json!(request.unreported));
            }
        }
        AuditEvent::Unauthenticated(failure) => {
            fields = begun(at, "unauthenticated");
            fields.insert("peer".to_owned(), json!(failure.peer));
            fields.insert("reason".to_owned(), json!(failure.problem));
            if let Some(detail) = failure.reason {
                fields.insert("detail".to_owned(), json!(detail));
            }
        }
        AuditEvent::Approval(record) => {
            fields = begun(at, "approval");
            fields.insert("approval".to_owned(), json!(record.id));
            fields.insert("call_id".to_owned(), json!(&*record.call_id));
            fields.insert("capability".to_owned(), json!(record.capability));
            insert_caller(&mut fields, record.principal.as_ref());
            fields.insert("rule".to_owned(), json!(record.rule));
            fields.insert("input".to_owned(), json!(record.input));
            fields.insert("decision".to_owned(), json!(record.decision.word()));
            if let Some(by) = &record.by {
                fields.insert("by".to_owned(), json!(by));
            }
            if let Some(by) = &record.by_identified_by {
                fields.insert("by_identified_by".to_owned(), json!(by));
            }
            if let Some(via) = record.via {
                fields.insert("via".to_owned(), json!(via));
            }
        }
        AuditEvent::Stopped { reason } => {
            fields = begun(at, "stopped");
            fields.insert("reason".to_owned(), json!(reason));
        }
    }
    fields
}

/// A log that can be written.
struct Opened {
    file: File,
    place: Place,
    chain: Chain,
    /// The hash of the first record, if there is one.
    log: Option<String>,
    /// The lines to write first.
    first: Vec<u8>,
}

/// Opens and locks a log, and finds its beginning and its end.
fn open(path: &Path) -> Result<Opened, String> {
    let mut file = locked(path)?;
    let (place, end) = read_end(&mut file)?;
    let (chain, first) = continued(&end, end.len() as u64 == place.length)?;
    let mut log = first_record_of(&mut file)?;
    if log.is_none() && chain.seq == 1 {
        // The first record confirms a line that was cut off.
        log = Some(chain.hash.clone());
    }
    Ok(Opened { file, place, chain, log, first })
}

/// Returns the file that has taken the place of a log, and whether its last line has an end.
///
/// # Errors
///
/// Returns an error if it is neither empty nor an audit log.
fn adopted(mut file: File) -> Result<(File, Place, bool), String> {
    let (place, end) = read_end(&mut file)?;
    let is_log = first_record_of(&mut file)?.is_some()
        || continued(&end, end.len() as u64 == place.length).is_ok_and(|(chain, _)| chain.seq > 0);
    if !end.is_empty() && !is_log {
        return Err("it is not an audit log".to_owned());
    }
    Ok((file, place, end.is_empty() || end.ends_with(b"\n")))
}

fn locked(path: &Path) -> Result<File, String> {
    // Checked before it is opened: opening a fifo would wait for its reader.
    if std::fs::metadata(path).is_ok_and(|file| !file.is_file()) {
        return Err("not a regular file".to_owned());
    }
    let mut options = OpenOptions::new();
    let opened = options.read(true).append(true).create(true).mode(0o600).open(path);
    let file = opened.map_err(|err| format!("cannot be written: {}", reason(&err)))?;
    lock(&file)?;
    Ok(file)
}

/// As many of the last bytes of a log as its last lines may have.
fn read_end(file: &mut File) -> Result<(Place, Vec<u8>), String> {
    let mut place = Place::of(&file.metadata().map_err(unreadable)?);
    let from = place.length.saturating_sub(MAX_LINE as u64 * 2);
    file.seek(SeekFrom::Start(from)).map_err(unreadable)?;
    let mut end = Vec::new();
    file.read_to_end(&mut end).map_err(unreadable)?;
    place.length = from + end.len() as u64;
    Ok((place, end))
}

fn first_record_of(file: &mut File) -> Result<Option<String>, String> {
    file.seek(SeekFrom::Start(0)).map_err(unreadable)?;
    chain::first_record(&mut BufReader::new(&*file)).map_err(unreadable)
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn unreadable(err: std::io::Error) -> String {
    format!("cannot be read: {}", reason(&err))
}

/// Where a log continues, by the last bytes of its file, and the lines to write first.
///
/// # Errors
///
/// Returns why it cannot be continued.
fn continued(end: &[u8], is_whole: bool) -> Result<(Chain, Vec<u8>), String> {
    let start_of = |bytes: &[u8]| bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let broken = |reason: &str| {
        format!(
            "its last line is broken: {reason}; see `orla audit verify`, and move the file away to begin another"
        )
    };
    let torn = &end[start_of(end)..];
    let whole = &end[..end.len() - torn.len()];
    if whole.is_empty() && !is_whole || torn.len() > MAX_LINE {
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

/// The reason for a log that another process has locked.
pub(crate) const HELD: &str = "another orla is writing it";

fn lock(file: &File) -> Result<(), String> {
    let began = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if began.elapsed() < LOCK_TIMEOUT => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(TryLockError::WouldBlock) => {
                return Err(HELD.to_owned());
            }
            Err(TryLockError::Error(err)) => return Err(format!("cannot be locked: {}", reason(&err))),
        }
    }
}

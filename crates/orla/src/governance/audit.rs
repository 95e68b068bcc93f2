//! The audit log: a file to which every call is appended, each line chained to the one before
//! ([`chain`](super::chain)).
//!
//! # How it works
//!
//! A finished call puts its record into a bounded queue, and a separate thread writes all queued lines
//! at once. If the queue is full, the call waits for at most [`ENQUEUE_TIMEOUT`]. Records that still do
//! not fit are counted, and the count is written as a separate line (`lost`), so that no loss is silent.
//! While the file cannot be written, calls do not wait, the reason is logged, and the thread retries.
//!
//! The file is opened for appending and locked for as long as the server runs: one writer at a time. The
//! next one continues its chain. A last line that a crash cut off stays as it is, and the line after it
//! confirms its bytes. If the file was moved away, a reload begins another, whose first line names its
//! predecessor.
//!
//! Before each batch of lines, the thread compares the file at the path with the open file. If the open
//! file was deleted, replaced or cut, the thread logs this and continues the same chain in the file at
//! the path, so that `orla audit verify` finds the missing lines. If the file at the path is not an
//! audit log, it is left alone, and records wait.
//!
//! # Signatures
//!
//! With a key, the thread signs the head each time that it syncs the log to the disk: a record
//! (`signed`) and a line for [`Heads`], not a signature for each line. Only the lines since the last
//! sync are unsigned.
//!
//! # Content
//!
//! A record contains the caller, the capability, the time, the duration and the outcome. It contains no
//! input, no output and no error of a call that ran, because these may contain secrets. The principal is a
//! name, never a token. A refusal has its rule and its reason.

mod heads;
mod writer;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use orla_marketplace::attestation::SigningKey;
use orla_marketplace::{ApprovalRecord, CallRecord, CapabilityMarketplace, RequestRecord};
use orla_server::{ForbiddenRequest, Server, Unauthenticated};
use parking_lot::{Condvar, Mutex};

use self::heads::Heads;
pub(crate) use self::writer::HELD;
use self::writer::Writer;
use crate::config::{GovernanceConfig, read_text, reason};

/// Records that wait to be written.
const QUEUE: usize = 8192;
/// How long a call waits for a place in the queue.
const ENQUEUE_TIMEOUT: Duration = Duration::from_secs(2);
/// The largest key file that is read, in bytes.
const MAX_KEY: u64 = 64 * 1024;

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
    what: AuditEvent,
}

/// An event to record. The writing thread makes a line of it.
enum AuditEvent {
    Started { capabilities: usize, generation: u64 },
    Reloaded { capabilities: usize, generation: u64 },
    Call(Box<CallRecord>),
    Request(Box<RequestRecord>),
    Unauthenticated(Unauthenticated),
    Forbidden(Box<ForbiddenRequest>),
    Approval(Box<ApprovalRecord>),
    Stopped { reason: &'static str },
}

impl Audit {
    /// Opens the log and begins to write.
    ///
    /// # Errors
    ///
    /// A sentence with the path: it cannot be written, another server writes it, or it is not an audit
    /// log.
    pub(crate) fn open(own: &GovernanceConfig) -> Result<Self, String> {
        let path: &Path = &own.audit;
        let key = read_key(own)?;
        let heads = own.audit_heads.as_ref().map(Heads::open).transpose()?;
        let mut writer = Writer::open(path, own.audit_sync, key, heads)
            .map_err(|why| format!("audit: {}: {why}", path.display()))?;
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            work: Condvar::new(),
            room: Condvar::new(),
            path: path.to_owned(),
        });
        let of_thread = Arc::clone(&shared);
        let writer = std::thread::Builder::new()
            .name("orla-audit".to_owned())
            .spawn(move || writer.run(&of_thread))
            .map_err(|err| format!("audit: no thread for it: {}", reason(&err)))?;
        Ok(Self { shared, writer: Some(writer) })
    }

    /// Records every call of a marketplace, and every request to its surfaces, from now on.
    pub(crate) fn observe(&self, marketplace: &CapabilityMarketplace) {
        let shared = Arc::clone(&self.shared);
        marketplace.on_finished(move |record| shared.put(AuditEvent::Call(Box::new(record.clone()))));
        let shared = Arc::clone(&self.shared);
        marketplace.on_request(move |record| shared.put(AuditEvent::Request(Box::new(record.clone()))));
        let shared = Arc::clone(&self.shared);
        let approval = move |record: &ApprovalRecord| {
            shared.put(AuditEvent::Approval(Box::new(record.clone())));
        };
        marketplace.approvals().on_decided(approval);
    }

    /// Records the failed authentications and the forbidden requests of a server from now on.
    pub(crate) fn observe_server(&self, server: &Server) {
        let shared = Arc::clone(&self.shared);
        server.on_unauthenticated(move |failure| shared.put(AuditEvent::Unauthenticated(*failure)));
        let shared = Arc::clone(&self.shared);
        server.on_forbidden(move |request| shared.put(AuditEvent::Forbidden(Box::new(request.clone()))));
    }

    /// The server begins to serve this snapshot.
    pub(crate) fn started(&self, marketplace: &CapabilityMarketplace) {
        let now = marketplace.snapshot();
        self.shared.put(AuditEvent::Started {
            capabilities: now.entries().len(),
            generation: now.generation(),
        });
    }

    /// The server serves another snapshot.
    pub(crate) fn reloaded(&self, marketplace: &CapabilityMarketplace) {
        let now = marketplace.snapshot();
        self.shared.put(AuditEvent::Reloaded {
            capabilities: now.entries().len(),
            generation: now.generation(),
        });
    }

    /// The server has ended: everything is written, and synced unless that is switched off.
    pub(crate) fn stopped(mut self, reason: &'static str) {
        self.shared.put(AuditEvent::Stopped { reason });
        self.end();
    }

    fn end(&mut self) {
        self.shared.queue.lock().ending = true;
        self.shared.work.notify_all();
        self.shared.room.notify_all();
        if let Some(writer) = self.writer.take() {
            // A panic of the writer has been reported by then.
            let _ = writer.join();
        }
    }
}

/// Returns why the log cannot be opened, as far as its path shows. Opens and creates no file.
pub(crate) fn check_path(own: &GovernanceConfig) -> Option<String> {
    let path = &own.audit;
    if path.as_os_str().is_empty() {
        return None;
    }
    let why = match std::fs::metadata(path) {
        Ok(file) if !file.is_file() => "not a regular file".to_owned(),
        Ok(_) => return None,
        Err(_) => {
            let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty())?;
            let err = std::fs::read_dir(directory).err()?;
            format!("its directory cannot be used: {}", reason(&err))
        }
    };
    Some(format!("audit: {}: {why}", path.display()))
}

/// Returns the key that signs heads, if one is configured.
///
/// # Errors
///
/// A sentence with the path: it cannot be read, or is not a secret key. It never repeats the content of
/// the file.
pub(crate) fn read_key(own: &GovernanceConfig) -> Result<Option<SigningKey>, String> {
    let path = &own.audit_key;
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    let text = read_text(path, MAX_KEY).map_err(|why| format!("audit_key: {why}"))?;
    let key = SigningKey::parse(&text);
    key.map(Some).map_err(|err| format!("audit_key: {}: {err}", path.display()))
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn put(&self, event: AuditEvent) {
        let at = SystemTime::now();
        let is_full = |queue: &mut Queue| queue.events.len() >= QUEUE && !queue.stuck && !queue.ending;
        let mut queue = self.queue.lock();
        self.room.wait_while_for(&mut queue, is_full, ENQUEUE_TIMEOUT);
        // Nothing is written after the end.
        if queue.events.len() >= QUEUE || queue.ending {
            queue.lost += 1;
            return;
        }
        queue.events.push_back(Event { at, what: event });
        drop(queue);
        self.work.notify_one();
    }
}

#[cfg(test)]
mod tests;

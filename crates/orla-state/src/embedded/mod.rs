//! The engine in one file: SQLite with a write-ahead log.
//!
//! # How it works
//!
//! One thread writes ([`writer`]). It takes all waiting batches, applies them in one transaction, and
//! answers them once the log has been synced. Batches that arrive in the meantime form the next
//! transaction. Another thread reads ([`reader`]), and a third one moves the content of the log into the
//! main file ([`checkpoint`]). The futures of the store only send to these threads, so that no task
//! blocks.
//!
//! # Invariants
//!
//! - One process owns the state: it holds a lock on the directory. SQLite's own locks are unchanged, so
//!   that other programs can read the file at the same time.
//! - A refused file is not changed, and no files are left beside it ([`open`]).
//! - After [`Embedded::close`] everything is in the main file.

mod checkpoint;
mod database;
mod file;
mod open;
mod reader;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use crate::limits::{Limits, check, check_key};
use crate::{Change, Query, Record, Revision, StateError, StateStore, WriteError};

pub use open::{FILE, OpenError};
use reader::Read;
use writer::{Later, Write, Written};

/// Batches that wait to be written, and their bytes. A caller that finds the queue full waits.
const QUEUED_WRITES: usize = 4096;
const QUEUED_BYTES: usize = 64 << 20;
/// Reads that wait.
const QUEUED_READS: usize = 1024;
/// How long batches are held back for which no caller waits, and the maximum number of such batches.
const HELD_BACK: (Duration, usize) = (Duration::from_millis(2), 1024);

/// Keeps records in one file of a directory.
pub struct Embedded {
    /// Until the store is closed.
    queues: RwLock<Option<Queues>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Room for the bytes of batches that wait.
    room: Arc<Semaphore>,
    /// Batches that are written with the next one.
    later: Later,
    limits: Limits,
}

#[derive(Clone)]
struct Queues {
    writes: mpsc::Sender<Write>,
    reads: mpsc::Sender<Read>,
    /// Closed when the main file is whole and the lock is released.
    closed: mpsc::Sender<()>,
}

impl Embedded {
    /// Opens the state of a directory. Makes both if they do not exist.
    ///
    /// This takes a few milliseconds, however many records there are, and blocks meanwhile.
    ///
    /// # Errors
    ///
    /// Returns an error if the state cannot be used, or another process uses it. A file that exists is
    /// left as it is.
    pub fn open(directory: &Path) -> Result<Self, OpenError> {
        Self::open_with(directory, Limits::default())
    }

    /// Opens the state with other limits.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Embedded::open`].
    pub fn open_with(directory: &Path, limits: Limits) -> Result<Self, OpenError> {
        let opened = open::open(directory)?;
        let (writes, write_queue) = mpsc::channel(QUEUED_WRITES);
        let (reads, read_queue) = mpsc::channel(QUEUED_READS);
        let (closed, closing) = mpsc::channel(1);
        let later = Later::default();
        let thread = writer::start(opened, write_queue, Arc::clone(&later), read_queue, closing)?;
        let queues = Queues { writes, reads, closed };
        Ok(Self {
            queues: RwLock::new(Some(queues)),
            thread: Mutex::new(Some(thread)),
            room: Arc::new(Semaphore::new(QUEUED_BYTES)),
            later,
            limits,
        })
    }

    /// Returns whether a directory has a state, however it may be.
    pub fn exists(directory: &Path) -> bool {
        open::exists(directory)
    }

    fn queues(&self) -> Result<Queues, StateError> {
        self.queues.read().clone().ok_or_else(closed)
    }

    /// Returns a batch, and where its answer comes from, when there is room for it.
    async fn to_write(&self, changes: Vec<Change>) -> Result<(Write, Written), StateError> {
        let size = check(&changes, &self.limits)?.min(QUEUED_BYTES);
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room).acquire_many_owned(size).await.map_err(|_| closed())?;
        let (answer, result) = oneshot::channel();
        Ok((Write { changes, answer, _room: room }, result))
    }

    /// Holds a batch back. Returns it again if there are too many.
    fn hold_back(&self, write: Write) -> Option<Write> {
        let mut later = self.later.lock();
        if later.len() >= HELD_BACK.1 {
            return Some(write);
        }
        later.push(write);
        None
    }

    async fn read<T>(
        &self,
        read: impl FnOnce(oneshot::Sender<Result<T, StateError>>) -> Read,
    ) -> Result<T, StateError> {
        let (answer, result) = oneshot::channel();
        self.queues()?.reads.send(read(answer)).await.map_err(|_| closed())?;
        result.await.map_err(|_| closed())?
    }
}

#[async_trait]
impl StateStore for Embedded {
    async fn write(&self, changes: Vec<Change>) -> Result<Vec<Revision>, WriteError> {
        let (write, result) = self.to_write(changes).await?;
        self.queues()?.writes.send(write).await.map_err(|_| closed())?;
        result.await.map_err(|_| closed())?
    }

    async fn write_later(&self, changes: Vec<Change>) -> Result<Vec<Revision>, WriteError> {
        let (write, mut result) = self.to_write(changes).await?;
        let queues = self.queues()?;
        let next = match self.hold_back(write) {
            None => {
                if let Ok(written) = timeout(HELD_BACK.0, &mut result).await {
                    return written.map_err(|_| closed())?;
                }
                // The write includes the batches that are held back.
                self.to_write(Vec::new()).await?.0
            }
            Some(write) => write,
        };
        if queues.writes.send(next).await.is_err() {
            // No write will include the batches that are held back, and they would keep their room.
            self.later.lock().clear();
            return Err(closed().into());
        }
        result.await.map_err(|_| closed())?
    }

    async fn get(&self, key: &str) -> Result<Option<Record>, StateError> {
        check_key(key)?;
        let key = key.to_owned();
        self.read(|answer| Read::Get { key, answer }).await
    }

    async fn get_all(&self, keys: Vec<String>) -> Result<Vec<Option<Record>>, StateError> {
        keys.iter().try_for_each(|key| check_key(key))?;
        self.read(|answer| Read::GetAll { keys, answer }).await
    }

    async fn list(&self, query: Query) -> Result<Vec<Record>, StateError> {
        if query.keys.is_empty() || query.limit == 0 {
            return Ok(Vec::new());
        }
        self.read(|answer| Read::List { query, answer }).await
    }

    async fn close(&self) {
        let queues = self.queues.write().take();
        if let Some(Queues { writes, reads, closed }) = queues {
            drop((writes, reads));
            closed.closed().await;
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.queues.write().take();
        if let Some(thread) = self.thread.lock().take() {
            // A panic of the thread was its own.
            drop(thread.join());
        }
    }
}

fn closed() -> StateError {
    StateError::new("the state is closed")
}

//! Durable state: ordered records that are written atomically.
//!
//! [`StateStore`] is the interface. An engine behind it keeps records in one file, or on other machines;
//! its users cannot tell the difference. A record has a key, a value, and a revision that each write
//! changes. Keys are texts whose parts are separated by `/`, and they are ordered by their bytes. A
//! range of keys therefore reads related records together, and keys that contain a time are an index by
//! time.

mod embedded;
mod limits;
mod memory;
mod pages;
#[cfg(feature = "testing")]
#[expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a suite panics where a promise is broken, and a simulation says how to repeat it"
)]
pub mod testing;

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::broadcast;

pub use embedded::{Embedded, FILE, OpenError};
pub use limits::{Limits, MAX_CHANGES, MAX_KEY, check, check_key};
pub use memory::Memory;
pub use pages::Pages;

/// Keeps records.
#[async_trait]
pub trait StateStore: Send + Sync {
    /// Applies all changes or none of them, each to the result of the earlier ones. The changes are
    /// durable when this method returns `Ok`. The revisions are those of the changed records, in the
    /// order of the changes. If the future is dropped, the changes may be made or not.
    ///
    /// # Errors
    ///
    /// Returns [`WriteError::Conflict`] if a record was not as a change expects it, and
    /// [`WriteError::Failed`] if the changes could not be written. After `Failed`, it is unknown whether
    /// they were, unless the store says so later.
    async fn write(&self, changes: Vec<Change>) -> Result<Vec<Revision>, WriteError>;

    /// Like [`write`](Self::write), for changes for which no caller waits. An engine may hold them back
    /// for a few milliseconds, so that they become durable together with others. The next `write`, even
    /// one without changes, includes them.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`write`](Self::write).
    async fn write_later(&self, changes: Vec<Change>) -> Result<Vec<Revision>, WriteError> {
        self.write(changes).await
    }

    /// Returns the record under a key.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be read.
    async fn get(&self, key: &str) -> Result<Option<Record>, StateError>;

    /// Returns the records under several keys, in the order of the keys. An engine may read them at one
    /// moment or one after the other.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be read.
    async fn get_all(&self, keys: Vec<String>) -> Result<Vec<Option<Record>>, StateError> {
        let mut records = Vec::with_capacity(keys.len());
        for key in keys {
            records.push(self.get(&key).await?);
        }
        Ok(records)
    }

    /// Returns the records of a range of keys.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be read.
    async fn list(&self, query: Query) -> Result<Vec<Record>, StateError>;

    /// Waits until reads see every change that was acknowledged, to whichever process, before this was
    /// called.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be read.
    async fn sync(&self) -> Result<(), StateError> {
        Ok(())
    }

    /// Checks that changes can be written, as far as the engine can tell.
    ///
    /// # Errors
    ///
    /// Returns an error if they cannot. The reason names no path.
    async fn check(&self) -> Result<(), StateError> {
        Ok(())
    }

    /// Returns the keys of records as they change, including changes by other processes. Returns `None`
    /// if only this process changes them. A receiver that lags must read all records of interest.
    fn changed_keys(&self) -> Option<broadcast::Receiver<Arc<str>>> {
        None
    }

    /// Completes pending operations, and leaves the state so that another process can open it. Later
    /// operations fail.
    async fn close(&self) {}
}

/// Distinguishes the states of one record. A later state has a greater revision.
pub type Revision = u64;

/// A value under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: Bytes,
    /// Changes with each write of the record.
    pub revision: Revision,
}

/// A change of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key of the record.
    pub key: String,
    /// The new value; `None` removes the record.
    pub value: Option<Bytes>,
    /// How the record has to be for the change to be made.
    pub expect: Expect,
}

/// How a record has to be before a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// It may be there or not.
    Anything,
    /// There is none.
    Absent,
    /// It has this revision.
    Revision(Revision),
}

/// Which records are listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The keys, excluding the end.
    pub keys: Range<String>,
    /// Their order.
    pub order: Order,
    /// The maximum number of records that are returned.
    pub limit: usize,
}

/// The order of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The least key first.
    Ascending,
    /// The greatest key first.
    Descending,
}

/// The reason why changes were not made.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A record was not as a change expected it.
    #[error("{key} has been changed meanwhile")]
    Conflict {
        /// The key of that record.
        key: String,
    },
    /// The changes could not be written.
    #[error(transparent)]
    Failed(#[from] StateError),
}

/// The reason why a store cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct StateError {
    message: String,
    is_held: bool,
    /// Whether the message names files of this machine.
    names_files: bool,
}

impl Change {
    /// Puts a value under a key, and replaces an existing value.
    pub fn put(key: impl Into<String>, value: impl Into<Bytes>) -> Self {
        Self { key: key.into(), value: Some(value.into()), expect: Expect::Anything }
    }

    /// Removes the record under a key.
    pub fn remove(key: impl Into<String>) -> Self {
        Self { key: key.into(), value: None, expect: Expect::Anything }
    }

    /// Returns the change, if the record is as expected.
    #[must_use]
    pub fn expecting(mut self, expect: Expect) -> Self {
        self.expect = expect;
        self
    }
}

impl Query {
    /// Returns all records whose keys begin with `prefix`, the least key first.
    pub fn below(prefix: &str, limit: usize) -> Self {
        // No key has a character beyond ASCII, so this is after all of them.
        let end = format!("{prefix}\u{7f}");
        Self { keys: prefix.to_owned()..end, order: Order::Ascending, limit }
    }

    /// Returns the same records in the opposite order.
    #[must_use]
    pub fn reversed(mut self) -> Self {
        self.order = match self.order {
            Order::Ascending => Order::Descending,
            Order::Descending => Order::Ascending,
        };
        self
    }
}

impl StateError {
    /// Creates an error that says what failed, why, and what to do.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_held: false, names_files: false }
    }

    /// Returns whether another process has the store.
    pub fn is_held(&self) -> bool {
        self.is_held
    }

    /// Returns the message for callers, who may be on other machines: without files of this one.
    pub fn for_callers(&self) -> &str {
        match self.names_files {
            true => "the state cannot be opened; the log of the server says why",
            false => &self.message,
        }
    }
}

impl From<OpenError> for StateError {
    fn from(error: OpenError) -> Self {
        let is_held = matches!(error, OpenError::Held { .. });
        Self { message: error.to_string(), is_held, names_files: true }
    }
}

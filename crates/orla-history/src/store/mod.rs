//! The stores that keep rows.

mod disk;
mod memory;

pub(crate) use disk::Disk;
pub use disk::OpenError;
pub(crate) use memory::Memory;

use std::collections::HashSet;
use std::time::Duration;

use crate::HistoryError;
use crate::call::{Call, Row};
use crate::query::{Query, Viewer};

/// A store that keeps no rows.
pub(crate) struct Nothing;

impl Store for Nothing {
    fn room(&self) -> usize {
        0
    }

    fn write(&self, _: Vec<Row>) {}

    fn tidy(&self) {}

    fn list(&self, _: &Query, _: &Viewer) -> Result<Vec<Call>, HistoryError> {
        Ok(Vec::new())
    }

    fn get(&self, _: &str) -> Result<Option<Row>, HistoryError> {
        Ok(None)
    }

    fn within(&self, _: &str) -> Result<Vec<Call>, HistoryError> {
        Ok(Vec::new())
    }

    fn known(&self, _: HashSet<String>) -> Result<HashSet<String>, HistoryError> {
        Ok(HashSet::new())
    }
}

/// Keeps rows. All of it blocks.
pub(crate) trait Store: Send + Sync {
    /// Returns how many of the newest rows are kept, as far as that matters for a burst of calls.
    fn room(&self) -> usize {
        usize::MAX
    }

    /// Returns how long calls are gathered before they are written. Who reads the store does not wait for it.
    fn gather(&self) -> Duration {
        Duration::from_millis(50)
    }

    /// Adds rows in the order in which their calls ended. A later row of a call replaces the earlier
    /// one. Failures are logged.
    fn write(&self, rows: Vec<Row>);

    /// Writes the rows that could not be written before, and removes expired ones.
    fn tidy(&self);

    /// Writes what could not be written before, for the last time.
    fn close(&self) {}

    /// Returns why the last write failed, with the path of the file.
    fn failure(&self) -> Option<String> {
        None
    }

    /// Returns how many rows are not written.
    fn lost(&self) -> u64 {
        0
    }

    /// Returns the calls of a query that the viewer may see, the last ended one first.
    fn list(&self, query: &Query, viewer: &Viewer) -> Result<Vec<Call>, HistoryError>;

    /// Returns the call with this id.
    fn get(&self, id: &str) -> Result<Option<Row>, HistoryError>;

    /// Returns the calls with this root, which were within it.
    fn within(&self, root: &str) -> Result<Vec<Call>, HistoryError>;

    /// Returns those of these ids that belong to calls.
    fn known(&self, ids: HashSet<String>) -> Result<HashSet<String>, HistoryError>;
}

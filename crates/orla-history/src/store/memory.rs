//! Rows in memory: the newest ones, bounded by their number and their size.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::{Mutex, RwLock};

use super::Store;
use crate::call::{Body, Call, Row};
use crate::query::{MAX_LIMIT, Query, Viewer};
use crate::{HistoryError, Options};

/// Bytes of data that are kept at most.
const MAX_BYTES: usize = 64 << 20;

/// Keeps rows in memory.
pub(crate) struct Memory {
    rows: Mutex<Rows>,
    options: Arc<RwLock<Options>>,
}

#[derive(Default)]
struct Rows {
    /// The rows in the order in which their calls ended.
    rows: VecDeque<Row>,
    bytes: usize,
}

impl Memory {
    pub(crate) fn new(options: Arc<RwLock<Options>>) -> Self {
        Self { rows: Mutex::default(), options }
    }

    /// Removes rows that are too old or too many.
    fn remove(&self, rows: &mut Rows) {
        let keep = self.options.read().keep;
        let max_rows = self.room();
        let since = SystemTime::now().checked_sub(keep);
        loop {
            let is_old = |row: &Row| since.is_some_and(|since| row.call.started_at < since);
            let is_over = rows.rows.len() > max_rows || rows.bytes > MAX_BYTES;
            if !is_over && !rows.rows.front().is_some_and(is_old) {
                return;
            }
            let Some(oldest) = rows.rows.pop_front() else { return };
            rows.bytes -= size(&oldest);
        }
    }
}

impl Store for Memory {
    fn room(&self) -> usize {
        let options = self.options.read();
        if options.enabled { options.max_rows } else { 0 }
    }

    /// Nothing is lost by waiting longer, and of many calls fewer are looked at.
    fn gather(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn write(&self, new: Vec<Row>) {
        let mut rows = self.rows.lock();
        for row in new {
            if row.replaces
                && let Some(at) = rows.rows.iter().position(|old| old.call.id == row.call.id)
                && let Some(old) = rows.rows.remove(at)
            {
                rows.bytes -= size(&old);
            }
            rows.bytes += size(&row);
            rows.rows.push_back(row);
        }
        self.remove(&mut rows);
    }

    fn tidy(&self) {
        self.remove(&mut self.rows.lock());
    }

    fn list(&self, query: &Query, viewer: &Viewer) -> Result<Vec<Call>, HistoryError> {
        let rows = self.rows.lock();
        let mut newest_first = rows.rows.iter().rev().map(|row| &row.call);
        if let Some(before) = &query.before
            && !newest_first.any(|call| call.id == *before)
        {
            return Ok(Vec::new());
        }
        let wanted = newest_first.filter(|call| viewer.sees(call)).filter(|call| query.admits(call));
        Ok(wanted.take(query.limit.min(MAX_LIMIT)).cloned().collect())
    }

    fn get(&self, id: &str) -> Result<Option<Row>, HistoryError> {
        Ok(self.rows.lock().rows.iter().rev().find(|row| row.call.id == id).cloned())
    }

    fn within(&self, root: &str) -> Result<Vec<Call>, HistoryError> {
        let rows = self.rows.lock();
        let calls = rows.rows.iter().map(|row| &row.call);
        Ok(calls.filter(|call| call.root == root && call.id != root).cloned().collect())
    }

    fn known(&self, ids: HashSet<String>) -> Result<HashSet<String>, HistoryError> {
        let rows = self.rows.lock();
        let all = rows.rows.iter().map(|row| &row.call.id);
        Ok(all.filter(|id| ids.contains(*id)).cloned().collect())
    }
}

/// Returns the approximate size of a row.
pub(super) fn size(row: &Row) -> usize {
    let body = |body: &Option<Body>| body.as_ref().map_or(0, |body| body.text.len());
    let notices: usize =
        row.notices.iter().map(|line| 100 + line.message.as_deref().map_or(0, str::len)).sum();
    let texts = [&row.error, &row.stderr].into_iter().flatten().map(String::len).sum::<usize>();
    let spans: usize = row.call.spans.iter().map(|span| 80 + span.name.len()).sum();
    600 + body(&row.input) + body(&row.output) + notices + texts + spans
}

//! The stored tasks of the agent, the oldest first. Finished tasks make room for new ones.

use std::collections::VecDeque;
use std::time::Duration;

use chrono::Utc;
use orla_state::StateError;
use orla_tasks::{TaskError, TaskId, Tasks, Viewer};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::records::{Records, Row};

/// The interval between two searches for tasks that no longer exist.
const SWEEP: Duration = Duration::from_secs(60);

/// The tasks that this process knows: those that existed when it started, and its own.
pub(super) struct StoredTasks(Mutex<Rows>);

struct Rows {
    rows: VecDeque<Row>,
    /// The number of tasks about to be accepted.
    pending: usize,
    swept: Instant,
}

/// A place for a task. Dropping it gives the place back, unless a task is kept there.
pub(super) struct TaskSlot<'a>(&'a StoredTasks);

impl TaskSlot<'_> {
    pub(super) fn keep(self, row: Row) {
        self.0.0.lock().rows.push_back(row);
    }
}

impl Drop for TaskSlot<'_> {
    fn drop(&mut self) {
        self.0.0.lock().pending -= 1;
    }
}

impl StoredTasks {
    pub(super) fn new(rows: Vec<Row>) -> Self {
        Self(Mutex::new(Rows { rows: rows.into(), pending: 0, swept: Instant::now() }))
    }

    /// Reserves a place for one more task, if there are fewer than `max` tasks or if a finished task
    /// makes room. From time to time, removes the records of expired tasks.
    ///
    /// # Errors
    ///
    /// Returns an error if the state cannot be read or written.
    pub(super) async fn reserve(
        &self,
        max: usize,
        keep: Duration,
        tasks: &Tasks,
        records: &Records,
    ) -> Result<Option<TaskSlot<'_>>, TaskError> {
        let (slot, is_full, rows) = {
            let mut stored = self.0.lock();
            stored.pending += 1;
            let is_full = stored.rows.len() + stored.pending > max;
            let is_swept = stored.swept.elapsed() < SWEEP;
            if !is_swept {
                stored.swept = Instant::now();
            }
            let rows =
                if is_full || !is_swept { stored.rows.iter().cloned().collect() } else { Vec::new() };
            (TaskSlot(self), is_full, rows)
        };
        if rows.is_empty() {
            return Ok((!is_full).then_some(slot));
        }
        let ids: Vec<TaskId> = rows.iter().map(|row| row.id.clone()).collect();
        let now = tasks.get_all(&ids, Viewer::Operator).await?;
        let mut has_room = !is_full;
        for (row, task) in rows.iter().zip(now) {
            let (is_over, is_expired) = match (row.listed.ended_at, task) {
                (Some(ended_at), _) => (true, is_before(ended_at, keep)),
                (None, Some(task)) => (task.state.is_terminal(), false),
                (None, None) => (true, true),
            };
            if is_expired || (is_over && !has_room) {
                tasks.forget(&row.id).await?;
                has_room |= self.remove(row, records).await?;
            }
        }
        Ok(has_room.then_some(slot))
    }

    /// Forgets a task. Returns whether it was kept.
    ///
    /// # Errors
    ///
    /// Returns an error if the state cannot be written.
    pub(super) async fn remove(&self, row: &Row, records: &Records) -> Result<bool, StateError> {
        records.remove(row).await?;
        let rows = &mut self.0.lock().rows;
        let before = rows.len();
        rows.retain(|other| other.id != row.id);
        Ok(rows.len() < before)
    }
}

/// Returns whether `keep` has passed since a time in milliseconds since 1970.
pub(super) fn is_before(ended_at: i64, keep: Duration) -> bool {
    let keep = i64::try_from(keep.as_millis()).unwrap_or(i64::MAX);
    ended_at.saturating_add(keep) < Utc::now().timestamp_millis()
}

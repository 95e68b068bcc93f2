//! Tasks whose programs wait for nothing near: rows of the store, and nothing in memory.
//!
//! Such a task is asleep: its row below `open/` says whose it is. It is woken by a timer, by an event, or by the end of a
//! task. A task that is woken too early looks again, and sleeps on. So it never matters that it is woken twice.

use std::sync::Arc;

use bytes::Bytes;
use orla_marketplace::Principal;
use orla_marketplace::rtfs::Wait;
use orla_state::{Change, Query, Record, StateError};

use super::journal::timestamp;
use super::keys::{self, AWAITED};
use crate::error::TaskError;
use crate::keys::{OwnerKey, events, open, timer};
use crate::program::{Course, Trouble};
use crate::service::{Inner, Tasks};
use crate::state::{Repeat, State};
use crate::task::{Task, TaskId, Timestamp};

/// A sleeping task goes on.
pub(crate) const SLEEP: &str = "sleep";

impl Inner {
    /// What is written when a task falls asleep.
    pub(super) fn sleep_changes(
        &self,
        id: &TaskId,
        owner: Option<&Principal>,
        waits: &[Wait],
    ) -> Vec<Change> {
        let owner = OwnerKey::of_caller(owner);
        let mut changes = vec![Change::put(open(id), owner.as_str().to_owned())];
        let first = waits.iter().filter_map(|wait| match wait {
            Wait::Until(instant) => Some(timestamp(instant)),
            _ => None,
        });
        if let Some(first) = first.min() {
            changes.push(Change::put(timer(first, SLEEP, id.as_str()), Bytes::new()));
        }
        for wait in waits {
            if let Wait::Task(awaited) = wait
                && let Some(awaited) = TaskId::parse(awaited)
            {
                changes.push(Change::put(keys::awaiting(&awaited, id), Bytes::new()));
            }
        }
        changes
    }

    /// Wakes a task that fell asleep if what it waits for came before it slept. To be called when it runs no more.
    pub(crate) async fn look_again(&self, id: &TaskId, waits: &[Wait]) -> Result<(), StateError> {
        let mut is_due = false;
        for wait in waits {
            is_due |= match wait {
                Wait::Until(instant) => timestamp(instant) <= Timestamp::now(),
                Wait::Event(name) => {
                    !self.store.list(Query::below(&events(id, name), 1)).await?.is_empty()
                }
                Wait::Task(awaited) => match TaskId::parse(awaited) {
                    Some(awaited) => self.is_over(&awaited).await?,
                    None => true,
                },
                _ => true,
            };
        }
        if is_due { self.wake(std::slice::from_ref(id), Vec::new()).await } else { Ok(()) }
    }

    /// Counts a task that sleeps since before this process.
    pub(crate) fn count_asleep(&self, owner: OwnerKey) {
        *self.unfinished.lock().entry(owner).or_default() += 1;
        self.counts.entered(State::Working);
    }

    async fn is_over(&self, id: &TaskId) -> Result<bool, StateError> {
        Ok(self.load(id).await?.is_none_or(|(task, _)| task.state.is_terminal()))
    }

    /// Has sleeping tasks begin again, and makes `changes` with it. Tasks that are over or unknown are left out.
    pub(crate) async fn wake(&self, ids: &[TaskId], changes: Vec<Change>) -> Result<(), StateError> {
        let mut changes = changes;
        let mut awake = Vec::new();
        for id in ids {
            let Some(row) = self.store.get(&open(id)).await? else { continue };
            if let Some(owner) = OwnerKey::read(&row.value) {
                changes.push(Change::put(open(id), Bytes::new()));
                awake.push((owner, id));
            }
        }
        if !changes.is_empty() {
            self.write(changes).await?;
        }
        for (owner, id) in awake {
            self.enqueue(owner, id.clone());
        }
        Ok(())
    }

    /// Wakes the tasks that wait for the end of this one.
    pub(crate) async fn wake_awaiting(&self, id: &TaskId) -> Result<(), StateError> {
        /// How many tasks are woken at once.
        const BATCH: usize = 256;
        loop {
            let rows = self.store.list(Query::below(&keys::all_awaiting(id), BATCH)).await?;
            if rows.is_empty() {
                return Ok(());
            }
            let ids: Vec<TaskId> = rows.iter().filter_map(|row| last(&row.key)).collect();
            self.wake(&ids, rows.into_iter().map(|row| Change::remove(row.key)).collect()).await?;
        }
    }

    /// Wakes the tasks that wait for one that is over, as far as the process before this one did not.
    pub(crate) async fn wake_all_awaiting(self: &Arc<Self>) -> Result<(), StateError> {
        let mut query = Query::below(AWAITED, 1);
        loop {
            let Some(row) = self.store.list(query.clone()).await?.pop() else { return Ok(()) };
            let awaited = row.key.split('/').nth(1).and_then(TaskId::parse);
            if let Some(awaited) = &awaited
                && self.is_over(awaited).await?
            {
                self.wake_awaiting(awaited).await?;
            }
            query.keys.start = format!("{}\0", row.key);
        }
    }
}

impl Tasks {
    /// The course of a task, if it is that of a program. It is left out if it cannot be read.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn journal(&self, task: &Task) -> Result<Option<Course>, TaskError> {
        if !task.is_program && task.begun != Some(Repeat::Journaled) {
            return Ok(None);
        }
        match self.course(&task.id).await? {
            Ok(course) => Ok(Some(course)),
            Err(trouble) => {
                tracing::warn!(task = %task.id, %trouble, "the journal of a task cannot be shown");
                Ok(None)
            }
        }
    }

    /// What the program of a task did until now. Notes that are not written yet are not in it.
    ///
    /// # Errors
    /// The state cannot be read.
    pub(crate) async fn course(&self, id: &TaskId) -> Result<Result<Course, Trouble>, TaskError> {
        let store = &self.0.store;
        let state = store.get(&keys::state(id)).await?;
        let mut records = Vec::new();
        for prefix in [keys::all_trail(id), keys::all_notes(id)] {
            records.push(self.0.all(&prefix).await?);
        }
        let values = |at: usize| records[at].iter().map(|row| &row.value[..]);
        let state = state.as_ref().map(|row| &row.value[..]);
        let input = self.input(id).await?;
        let input = input.and_then(|input| serde_json::from_str::<Source>(input.as_str()).ok());
        let source = input.map(|input| input.program);
        Ok(Course::read(values(0), state, values(1), source.as_deref()))
    }

    /// Whether a task is rows of the store and nothing else.
    #[cfg(test)]
    pub(crate) async fn asleep(&self, id: &str) -> bool {
        let Some(id) = TaskId::parse(id) else { return false };
        let row = self.0.store.get(&open(&id)).await.unwrap_or_default();
        self.0.live.running(&id).is_none() && row.is_some_and(|row| OwnerKey::read(&row.value).is_some())
    }

    /// The process ends: what runs gets no further than its next write.
    #[cfg(test)]
    pub(crate) async fn abandon(&self) {
        self.0.closing.cancel();
        self.0.abort.cancel();
        self.0.live.cancel_all();
        tokio::task::yield_now().await;
    }
}

/// The source in the input of a program.
#[derive(serde::Deserialize)]
struct Source {
    program: String,
}

impl Inner {
    /// All rows below a prefix.
    async fn all(&self, prefix: &str) -> Result<Vec<Record>, StateError> {
        /// How many rows are read at once.
        const PAGE: usize = 256;
        let mut query = Query::below(prefix, PAGE);
        let mut all = Vec::new();
        loop {
            let rows = self.store.list(query.clone()).await?;
            let is_last = rows.len() < PAGE;
            all.extend(rows);
            match all.last() {
                Some(last) if !is_last => query.keys.start = format!("{}\0", last.key),
                _ => return Ok(all),
            }
        }
    }
}

/// The task at the end of a key.
fn last(key: &str) -> Option<TaskId> {
    TaskId::parse(key.rsplit_once('/')?.1)
}

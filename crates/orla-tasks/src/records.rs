//! Reads and changes the records of tasks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use orla_marketplace::{JsonText, millis_down};
use orla_state::{Change, Expect, Pages, Record, Revision, StateError, WriteError};

use crate::error::TaskError;
use crate::keys::{self, OwnerKey};
use crate::options::MAX_TIMER_WAIT;
use crate::service::Inner;
use crate::state::{Event, Repeat, State};
use crate::task::{Task, TaskId, Timestamp};

/// The reason why a task was not changed.
#[derive(Debug)]
pub(crate) enum Unchanged {
    /// The task does not exist.
    Unknown,
    /// The event cannot happen in the task's state. Contains the task.
    Refused(Box<Task>),
    /// Another node runs the task.
    Lost,
    /// Another record that is written with the task is not as expected.
    Conflict,
    /// The state cannot be read or written.
    State(StateError),
}

/// When a change is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// The change is written at once.
    Now,
    /// The change is written with the next write, or shortly after. No caller waits for it.
    Later,
}

impl From<StateError> for Unchanged {
    fn from(error: StateError) -> Self {
        Self::State(error)
    }
}

impl Unchanged {
    /// Returns the error for a client.
    pub(crate) fn into_error(self, id: &TaskId) -> TaskError {
        match self {
            Self::Unknown => TaskError::Unknown(id.to_string()),
            Self::Refused(task) => TaskError::Over(task.state),
            Self::Conflict => TaskError::State(changed_concurrently()),
            Self::Lost => TaskError::State(StateError::new("another node runs the task now")),
            Self::State(error) => TaskError::State(error),
        }
    }
}

/// Returns the error of a write that conflicts with another one.
pub(crate) fn changed_concurrently() -> StateError {
    StateError::new("another writer changes the task at this moment")
}

impl Inner {
    /// Reads the record of a task. An unreadable record counts as absent, so that it does not block
    /// other tasks.
    pub(crate) async fn load(&self, id: &TaskId) -> Result<Option<Task>, StateError> {
        Ok(self.store.get(&keys::task(id)).await?.and_then(|record| read(id, &record)))
    }

    /// Returns the record of a task that runs here and is not over, if it is known without a read.
    pub(crate) fn known(&self, id: &TaskId) -> Option<Task> {
        if self.is_shared() {
            return None;
        }
        let running = self.live.running(id)?;
        let record = running.record.lock();
        record.as_ref().filter(|task| !task.state.is_terminal()).cloned()
    }

    /// Reads the records of several tasks with one read, as [`load`](Self::load) does for one.
    pub(crate) async fn load_all(&self, ids: &[TaskId]) -> Result<Vec<Option<Task>>, StateError> {
        let records = self.store.get_all(ids.iter().map(keys::task).collect()).await?;
        let tasks =
            ids.iter().zip(records).map(|(id, record)| record.and_then(|record| read(id, &record)));
        Ok(tasks.collect())
    }

    /// Reads a text that is stored beside a task.
    pub(crate) async fn text(&self, key: &str) -> Result<Option<JsonText>, StateError> {
        self.store.get(key).await?.map(text).transpose()
    }

    /// Applies events to a task in order, durably and with one write. `edit` completes the record and
    /// returns further changes to write with it. `edit` may be called several times if the task changes
    /// in the meantime.
    pub(crate) async fn change(
        &self,
        id: &TaskId,
        events: &[Event],
        edit: impl Fn(&mut Task) -> Result<Vec<Change>, StateError> + Send,
    ) -> Result<Task, Unchanged> {
        self.change_at(Urgency::Now, id, events, edit).await
    }

    /// Like [`change`](Self::change), with a choice of when the change is written.
    pub(crate) async fn change_at(
        &self,
        urgency: Urgency,
        id: &TaskId,
        events: &[Event],
        edit: impl Fn(&mut Task) -> Result<Vec<Change>, StateError> + Send,
    ) -> Result<Task, Unchanged> {
        // The record of a task that runs here is known. If it is outdated, the write conflicts.
        let running = self.live.running(id);
        let mut known = running.as_ref().and_then(|running| running.record.lock().take());
        loop {
            let (mut task, is_known) = match known.take() {
                Some(task) => (task, true),
                None => (self.load(id).await?.ok_or(Unchanged::Unknown)?, false),
            };
            // Any node may cancel a task. All other events are for the node that runs it.
            let is_cancelled = events.contains(&Event::Cancel);
            if running.is_some() && !is_cancelled && self.is_lost(&task) {
                return Err(Unchanged::Lost);
            }
            let before = running.as_ref().map_or(task.state, |running| running.shown_state(task.state));
            let now = Timestamp::now();
            if !events.iter().all(|event| task.apply(*event, now)) {
                // The known record may be outdated.
                if is_known {
                    continue;
                }
                return Err(Unchanged::Refused(Box::new(task)));
            }
            let mut changes = edit(&mut task)?;
            // A task that is cancelled while it sleeps has no run that uncounts it. Expecting
            // its row prevents the task from falling asleep or waking at that moment.
            let open = if is_cancelled { self.store.get(&keys::open(id)).await? } else { None };
            let asleep = open.as_ref().and_then(|row| OwnerKey::read(&row.value));
            if task.state.is_terminal() {
                changes.extend(self.ended(&task, open.map(|row| row.revision)));
            }
            let record = Bytes::from(record(&task)?);
            match self.write_change(urgency, &task, record, changes).await {
                Ok(revision) => {
                    task.revision = revision;
                    if let Some(running) = &running {
                        running.keep_record(&task);
                    }
                    self.counts.moved(before, task.state);
                    self.after_change(&task, is_cancelled, asleep.as_ref()).await;
                    return Ok(task);
                }
                Err(WriteError::Conflict { key }) if key != keys::task(id) && !is_cancelled => {
                    return Err(Unchanged::Conflict);
                }
                Err(WriteError::Conflict { .. }) => {}
                Err(WriteError::Failed(error)) => return Err(self.failed(error).into()),
            }
        }
    }

    /// Writes the changed record of a task, with further changes. Returns its new revision.
    async fn write_change(
        &self,
        urgency: Urgency,
        task: &Task,
        record: Bytes,
        mut changes: Vec<Change>,
    ) -> Result<Revision, WriteError> {
        let put = Change::put(keys::task(&task.id), record.clone());
        changes.push(put.expecting(Expect::Revision(task.revision)));
        let written = match urgency {
            Urgency::Now => self.store.write(changes).await,
            Urgency::Later => self.store.write_later(changes).await,
        };
        if let (Err(WriteError::Failed(_)), false) = (&written, self.is_shared())
            && let Some(revision) = self.confirm_write(&task.id, &record, task.revision).await
        {
            return Ok(revision);
        }
        // The last change is that of the record.
        Ok(written?.last().copied().unwrap_or(task.revision))
    }

    /// Informs all that depend on a task of its change. `asleep` is the caller of a task that slept.
    async fn after_change(&self, task: &Task, is_cancelled: bool, asleep: Option<&OwnerKey>) {
        let is_over = task.state.is_terminal();
        if is_over && Duration::from_millis(self.keep_millis(task)) < MAX_TIMER_WAIT {
            self.timer_set.notify_one();
        }
        self.live.publish(task);
        if is_cancelled
            && !self.is_shared()
            && !self.local.mark_cancelled(&task.id, &task.owner_key())
            && let Some(owner) = asleep
        {
            self.uncount_unfinished(owner);
        }
        if is_over && let Err(error) = self.wake_awaiting(&task.id).await {
            let error = self.failed(error);
            tracing::error!(task = %task.id, %error, "tasks that await this one are not woken yet");
        }
    }

    /// Notes that a write failed. The write may have been made all the same, so all tasks are scanned soon.
    pub(crate) fn failed(&self, error: StateError) -> StateError {
        self.request_scan();
        error
    }

    /// Requests a scan of all tasks within about a second.
    pub(crate) fn request_scan(&self) {
        match &self.shared {
            Some(shared) => shared.request_scan(),
            None => {
                self.has_failed_write.store(true, Ordering::Release);
                self.timer_set.notify_one();
            }
        }
    }

    /// Returns the revision of a task's record whose write was reported as failed, if it was made all the same.
    /// `record` is the value that was to be written.
    async fn confirm_write(&self, id: &TaskId, record: &[u8], before: Revision) -> Option<Revision> {
        let row = self.store.get(&keys::task(id)).await.ok()??;
        (row.value == record && row.revision > before).then_some(row.revision)
    }

    /// Returns the changes to write when a task ends. `open` is the required revision of its row below
    /// `open/`, if that matters.
    fn ended(&self, task: &Task, open: Option<Revision>) -> Vec<Change> {
        let id = &task.id;
        let expires = task.updated_at.plus_millis(self.keep_millis(task));
        let open = open.map_or(Expect::Anything, Expect::Revision);
        let mut changes = vec![
            Change::remove(keys::open(id)).expecting(open),
            Change::put(keys::timer(expires, crate::timers::KEEP, id.as_str()), Bytes::new()),
        ];
        // No node continues the run.
        if self.is_shared() && task.begun == Some(Repeat::Journaled) {
            changes.push(Change::put(keys::holder(id), Bytes::new()));
        }
        changes
    }

    /// Returns how long a task is kept after its end.
    pub(crate) fn keep_millis(&self, task: &Task) -> u64 {
        let keep = millis_down(self.options.load().keep);
        task.keep_ms.map_or(keep, |wanted| wanted.min(keep))
    }

    /// Removes a task and all rows that belong to it.
    pub(crate) async fn remove(&self, task: &Task) -> Result<(), StateError> {
        /// The number of records of a run that are removed at once.
        const BATCH: usize = 1000;
        let id = &task.id;
        let mut pages = Pages::below(&*self.store, &keys::run(id), BATCH);
        loop {
            let rows = pages.next().await?;
            if rows.is_empty() {
                break;
            }
            self.write(rows.into_iter().map(|row| Change::remove(row.key)).collect()).await?;
        }
        let owner = task.owner_key();
        let mut changes = vec![
            Change::remove(keys::task(id)),
            Change::remove(keys::input(id)),
            Change::remove(keys::result(id)),
            Change::remove(keys::cancelled_output(id)),
            Change::remove(keys::open(id)),
            Change::remove(keys::owner(&owner, id)),
        ];
        let row = |key| keys::idempotency(&owner, key, task.schedule.as_deref());
        changes.extend(task.key.as_ref().map(|key| Change::remove(row(key))));
        self.write(changes).await
    }

    /// Makes changes without expectations.
    pub(crate) async fn write(&self, changes: Vec<Change>) -> Result<(), StateError> {
        match self.store.write(changes).await {
            Ok(_) => Ok(()),
            Err(WriteError::Failed(error)) => Err(self.failed(error)),
            Err(conflict @ WriteError::Conflict { .. }) => Err(StateError::new(conflict.to_string())),
        }
    }

    /// Makes all of the changes or none. Returns `false` if a record is not as a change expects it.
    pub(crate) async fn write_if(&self, changes: Vec<Change>) -> Result<bool, StateError> {
        match self.store.write(changes).await {
            Ok(_) => Ok(true),
            Err(WriteError::Conflict { .. }) => Ok(false),
            Err(WriteError::Failed(error)) => Err(self.failed(error)),
        }
    }

    /// Returns the record of a task with the notices that followed its last write.
    pub(crate) fn with_notices(&self, mut task: Task) -> Arc<Task> {
        if !task.state.is_terminal()
            && let Some(running) = self.live.running(&task.id)
        {
            running.fill(&mut task);
        }
        task.waiting_for = self.waits_for(&task);
        Arc::new(task)
    }

    /// Returns what a queued task waits for, if no node offers its capability.
    fn waits_for(&self, task: &Task) -> Option<String> {
        let is_missing = task.state == State::Queued
            && self.shared.as_ref()?.is_free(task)
            && self.market.get(&task.capability).is_none();
        is_missing.then(|| format!("no node offers {}", task.capability))
    }
}

/// Reads a task from its record.
pub(crate) fn read(id: &TaskId, record: &Record) -> Option<Task> {
    match Task::read(id.clone(), &record.value) {
        Ok(task) => Some(Task { revision: record.revision, ..task }),
        Err(error) => {
            let why = "a newer version of orla may have written it";
            tracing::error!(task = %id, %error, why, "the record of a task cannot be read");
            None
        }
    }
}

/// Reads a text that is stored beside a task.
pub(crate) fn text(record: Record) -> Result<JsonText, StateError> {
    JsonText::parse(record.value)
        .map_err(|err| StateError::new(format!("{} of the state is no JSON: {err}", record.key)))
}

/// Returns the change that writes the record of a task, if the stored record has not changed since the
/// task was read.
pub(crate) fn put(task: &Task) -> Result<Change, StateError> {
    Ok(Change::put(keys::task(&task.id), record(task)?).expecting(Expect::Revision(task.revision)))
}

/// Returns the value of a task's record.
pub(crate) fn record(task: &Task) -> Result<Vec<u8>, StateError> {
    task.write()
        .map_err(|err| StateError::new(format!("the record of task {} is no JSON: {err}", task.id)))
}

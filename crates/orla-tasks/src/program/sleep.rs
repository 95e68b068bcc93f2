//! Suspended programs, which are rows of the store and use no memory.
//!
//! The task of a suspended program is asleep. Its row below `open/` names its owner. A timer, an event,
//! or the end of another task wakes it. A task that is woken too early checks its waits again, and
//! continues to sleep.
//!
//! The revision of the row below `open/` orders concurrent operations. Every event also changes the row.
//! A task falls asleep only if the row has not changed since the task checked whether it is due. Of two
//! concurrent wakers, one succeeds.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use orla_marketplace::Principal;
use orla_marketplace::rtfs::Wait;
use orla_state::{Change, Expect, MAX_CHANGES, Pages, Query, Record, Revision, StateError, WriteError};

use super::journal::timestamp;
use super::keys::{self, AWAITED};
use super::rows::{awake_keys, woken};
use crate::awaited::KNOWN;
use crate::error::TaskError;
use crate::keys::{OwnerKey, events, open, run, timer};
use crate::preloaded::LoadedTask;
use crate::program::{RecordError, Timeline};
use crate::records::read;
use crate::service::{Inner, Tasks};
use crate::state::{Repeat, State};
use crate::task::{Task, TaskId, Timestamp};

/// The kind of a timer that wakes a sleeping task.
pub(crate) const SLEEP: &str = "sleep";

impl Inner {
    /// Returns the changes with which a task falls asleep. They conflict if an event for the task has
    /// arrived since its row below `open/` had this revision, or arrives now. Returns `None` if the task
    /// is due or over.
    pub(super) async fn fall_asleep(
        &self,
        id: &TaskId,
        owner: Option<&Principal>,
        waits: &[Wait],
        known: Option<Revision>,
    ) -> Result<Option<Vec<Change>>, StateError> {
        let revision = match known {
            Some(revision) => revision,
            None => match self.store.get(&open(id)).await? {
                Some(row) => row.revision,
                None => return Ok(None),
            },
        };
        if self.is_due(id, waits).await? {
            return Ok(None);
        }
        self.awaited.add(awaited(waits));
        let mut changes = sleep_changes(id, owner, waits, revision);
        if self.is_shared() {
            // Any node may continue the task.
            let Some(mut task) = self.load(id).await? else { return Ok(None) };
            if self.is_lost(&task) {
                return Ok(None);
            }
            task.runner = None;
            changes.push(crate::records::put(&task)?);
        }
        Ok(Some(changes))
    }

    /// Wakes a task that fell asleep if an awaited event arrived before it slept. Must be called when
    /// the task runs no more.
    pub(crate) async fn wake_if_due(&self, id: &TaskId, waits: &[Wait]) -> Result<(), StateError> {
        if self.is_due(id, waits).await? {
            // If another waker is faster, the task is awake all the same.
            self.wake(vec![Waking { id: id.clone(), with: None }]).await?;
            // An awaited task that ended before this one slept could not see that it was awaited.
            let mut ended = Vec::new();
            for awaited in awaited(waits) {
                if self.is_over(&awaited).await? {
                    ended.push(remove_awaiting(&awaited, id));
                }
            }
            if !ended.is_empty() {
                self.write(ended).await?;
            }
        }
        Ok(())
    }

    /// Returns whether one of these waits has its answer.
    async fn is_due(&self, id: &TaskId, waits: &[Wait]) -> Result<bool, StateError> {
        for wait in waits {
            let is_due = match wait {
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
            if is_due {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes an event for a task, and notifies the task.
    pub(crate) async fn deliver(&self, id: &TaskId, put: Change) -> Result<(), TaskError> {
        loop {
            let Some(row) = self.store.get(&open(id)).await? else {
                let task = self.load(id).await?.ok_or_else(|| TaskError::Unknown(id.to_string()))?;
                return Err(TaskError::Over(task.state));
            };
            let owner = OwnerKey::read(&row.value);
            let is_reserved = owner.is_some() && self.reserve_wake(id);
            let arrived = self.write_if(event_changes(id, put.clone(), row.revision)).await;
            match (&arrived, owner) {
                (Ok(true), Some(owner)) => self.enqueue_woken(owner, id.clone(), is_reserved),
                (_, owner) if is_reserved => {
                    let owner = if self.is_open(id).await { owner } else { None };
                    match (&arrived, owner) {
                        // The write may have been made. A task woken without need checks its waits
                        // again, and continues to sleep.
                        (Err(_), Some(owner)) => self.enqueue_woken(owner, id.clone(), true),
                        (_, owner) => self.put_to_sleep(id.clone(), owner),
                    }
                }
                _ => {}
            }
            if !arrived? {
                continue;
            }
            if let Some(running) = self.live.running(id) {
                running.arrived.notify_waiters();
            }
            return Ok(());
        }
    }

    /// Returns whether a task is not over. A task that cannot be read counts as over.
    async fn is_open(&self, id: &TaskId) -> bool {
        self.store.get(&open(id)).await.is_ok_and(|row| row.is_some())
    }

    /// Counts a task that has slept since before this process started.
    pub(crate) fn count_asleep(&self, owner: OwnerKey) {
        *self.unfinished.lock().entry(owner).or_default() += 1;
        self.counts.entered(State::Working);
    }

    async fn is_over(&self, id: &TaskId) -> Result<bool, StateError> {
        Ok(self.load(id).await?.is_none_or(|task| task.state.is_terminal()))
    }

    /// Wakes sleeping tasks. Returns whether all of them were handled; `false` means that some changed
    /// in the meantime.
    pub(crate) async fn wake(&self, all: Vec<Waking>) -> Result<bool, StateError> {
        /// The number of tasks woken at once. Each needs two changes.
        const MAX_BATCH: usize = MAX_CHANGES / 2;
        let mut is_done = true;
        for some in all.chunks(MAX_BATCH) {
            if self.wake_together(some).await? {
                continue;
            }
            for one in some {
                is_done &= self.wake_together(std::slice::from_ref(one)).await?;
            }
        }
        Ok(is_done)
    }

    /// Wakes sleeping tasks with one write. Returns `false` if one of them changed in the meantime, so
    /// that the write failed. Tasks that are awake, over or unknown stay as they are.
    async fn wake_together(&self, all: &[Waking]) -> Result<bool, StateError> {
        let _waking = self.waking.read().await;
        let reserved: Vec<bool> = all.iter().map(|one| self.reserve_wake(&one.id)).collect();
        let mut owners = vec![None; all.len()];
        let written = self.write_awake(all, &reserved, &mut owners).await;
        for ((Waking { id, .. }, is_reserved), found) in all.iter().zip(reserved).zip(owners) {
            match (&written, found) {
                (Err(_), Some(_)) if self.is_shared() => {}
                // A failed write may have been made. A task woken without need checks its waits again,
                // and continues to sleep.
                (Ok(true) | Err(_), Some((owner, true))) => {
                    self.enqueue_woken(owner, id.clone(), is_reserved);
                }
                (_, found) if is_reserved => {
                    self.put_to_sleep(id.clone(), found.map(|(owner, _)| owner));
                }
                _ => {}
            }
        }
        written
    }

    /// Writes that tasks are awake. Returns the owners of the tasks that are not over, and whether each
    /// was asleep.
    async fn write_awake(
        &self,
        all: &[Waking],
        reserved: &[bool],
        owners: &mut [Option<(OwnerKey, bool)>],
    ) -> Result<bool, StateError> {
        let keys = all.iter().flat_map(|Waking { id, .. }| [open(id)].into_iter().chain(awake_keys(id)));
        let mut rows = self.store.get_all(keys.collect()).await?.into_iter();
        let (mut changes, mut known) = (Vec::new(), Vec::new());
        for ((Waking { id, with }, is_reserved), owner) in all.iter().zip(reserved).zip(owners) {
            changes.extend(with.clone());
            let (row, rest) = (rows.next().flatten(), [(); 3].map(|()| rows.next().flatten()));
            let Some(row) = row else { continue };
            *owner = match OwnerKey::read(&row.value) {
                Some(owner) => Some((owner, true)),
                None => rest[0].as_ref().and_then(|record| Some((read(id, record)?.owner_key(), false))),
            };
            let to_run = woken(id, rest);
            if let Some((_, true)) = owner {
                // A task that cannot be read fails when it begins. A run in this process may continue
                // before it begins again.
                let to_run = to_run.filter(|_| *is_reserved || self.is_shared());
                known.extend(to_run.map(|to_run| (changes.len(), to_run)));
                changes.push(touch(id, row.revision));
            }
        }
        if changes.is_empty() {
            return Ok(true);
        }
        let revisions = match self.store.write(changes).await {
            Ok(revisions) => revisions,
            Err(WriteError::Conflict { .. }) => return Ok(false),
            Err(WriteError::Failed(error)) => return Err(self.failed(error)),
        };
        for (touched, to_run) in known {
            self.preloaded.keep(LoadedTask { open: revisions.get(touched).copied(), ..to_run });
        }
        Ok(true)
    }

    /// Wakes the tasks that wait for the end of this one.
    pub(crate) async fn wake_awaiting(&self, id: &TaskId) -> Result<(), StateError> {
        /// The number of tasks woken at once.
        const BATCH: usize = 256;
        if !self.awaited.has(id) {
            return Ok(());
        }
        loop {
            let rows = self.store.list(Query::below(&keys::all_awaiting(id), BATCH)).await?;
            let waking = |row: &Record| Some(Waking::by(last(&row.key)?, row));
            let all: Vec<Waking> = rows.iter().filter_map(waking).collect();
            if all.is_empty() {
                self.awaited.remove(id);
                return Ok(());
            }
            self.wake(all).await?;
        }
    }

    /// Wakes the tasks that wait for a finished task and that the previous process, or another node, did
    /// not wake.
    pub(crate) async fn wake_all_awaiting(self: &Arc<Self>) -> Result<(), StateError> {
        /// The number of rows read at once.
        const PAGE: usize = 1000;
        let mut pages = Pages::below(&*self.store, AWAITED, PAGE);
        let mut awaited_ids = HashSet::new();
        loop {
            let rows = pages.next().await?;
            if rows.is_empty() {
                // This process does not know which tasks the programs of other nodes await.
                if !self.is_shared() {
                    self.awaited.begin(awaited_ids);
                }
                return Ok(());
            }
            let awaited = |row: &Record| row.key.split('/').nth(1).and_then(TaskId::parse);
            let mut ids: Vec<TaskId> = rows.iter().filter_map(awaited).collect();
            ids.dedup();
            for (id, task) in ids.iter().zip(self.load_all(&ids).await?) {
                if task.is_none_or(|task| task.state.is_terminal()) {
                    self.wake_awaiting(id).await?;
                } else if awaited_ids.len() <= KNOWN {
                    awaited_ids.insert(id.clone());
                }
            }
        }
    }
}

/// A task to wake.
pub(crate) struct Waking {
    id: TaskId,
    /// The change that removes the row that wakes it.
    with: Option<Change>,
}

impl Waking {
    /// Returns a task that this row wakes. The row is removed if it has not changed.
    pub(crate) fn by(id: TaskId, row: &Record) -> Self {
        let remove = Change::remove(row.key.clone()).expecting(Expect::Revision(row.revision));
        Self { id, with: Some(remove) }
    }
}

/// Returns the tasks for which these waits wait.
fn awaited(waits: &[Wait]) -> impl Iterator<Item = TaskId> {
    waits.iter().filter_map(|wait| match wait {
        Wait::Task(awaited) => TaskId::parse(awaited),
        _ => None,
    })
}

/// Returns the change that removes the wait of a task for `awaited`, which is over.
pub(super) fn remove_awaiting(awaited: &TaskId, id: &TaskId) -> Change {
    Change::remove(keys::awaiting(awaited, id))
}

/// Returns a change that rewrites the task's row below `open/` if the row still has this revision. It is
/// part of each write that wakes the task or delivers to it.
pub(crate) fn touch(id: &TaskId, revision: Revision) -> Change {
    Change::put(open(id), Bytes::new()).expecting(Expect::Revision(revision))
}

/// Returns the changes to write when an event arrives for a task whose row below `open/` has this
/// revision.
pub(super) fn event_changes(id: &TaskId, put: Change, revision: Revision) -> Vec<Change> {
    vec![put, touch(id, revision)]
}

/// Returns the changes to write when a task falls asleep whose row below `open/` has this revision.
pub(super) fn sleep_changes(
    id: &TaskId,
    owner: Option<&Principal>,
    waits: &[Wait],
    revision: Revision,
) -> Vec<Change> {
    let owner = OwnerKey::of_caller(owner);
    let sleeps = Change::put(open(id), owner.as_str().to_owned());
    let mut changes = vec![sleeps.expecting(Expect::Revision(revision))];
    let first = waits.iter().filter_map(|wait| match wait {
        Wait::Until(instant) => Some(timestamp(instant)),
        _ => None,
    });
    if let Some(first) = first.min() {
        changes.push(Change::put(timer(first, SLEEP, id.as_str()), Bytes::new()));
    }
    let awaits = |awaited| Change::put(keys::awaiting(&awaited, id), Bytes::new());
    changes.extend(awaited(waits).map(awaits));
    changes
}

impl Tasks {
    /// Returns the timeline of a task that is a program. Returns `None` for other tasks, and if the timeline
    /// cannot be read.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be read.
    pub async fn journal(&self, task: &Task) -> Result<Option<Timeline>, TaskError> {
        if !task.is_program && task.begun != Some(Repeat::Journaled) {
            return Ok(None);
        }
        // Nothing of the run is written.
        if task.begun.is_none() && !task.state.is_terminal() {
            return Ok(Some(Timeline::default()));
        }
        match self.timeline(&task.id).await? {
            Ok(timeline) => Ok(Some(timeline)),
            Err(error) => {
                tracing::warn!(task = %task.id, trouble = %error, "the journal of a task cannot be shown");
                Ok(None)
            }
        }
    }

    /// Reads the timeline of a task's program. Notes that are not written yet are not part of it.
    ///
    /// # Errors
    ///
    /// Returns an error if the state cannot be read.
    pub(crate) async fn timeline(
        &self,
        id: &TaskId,
    ) -> Result<Result<Timeline, RecordError>, TaskError> {
        /// The number of rows read at once.
        const PAGE: usize = 256;
        let records = async {
            let below = run(id);
            Ok(Pages::below(&*self.0.store, &below, PAGE).rest().await?)
        };
        let (records, input) = tokio::try_join!(records, self.input(id))?;
        let values = |prefix: String| {
            let rows = records.iter().filter(move |row| row.key.starts_with(&prefix));
            rows.map(|row| &row.value[..])
        };
        let state = values(keys::state(id)).next();
        let input = input.and_then(|input| serde_json::from_str::<Source>(input.as_str()).ok());
        // A schedule may have passed secrets to the program.
        let secrets = self.0.market.redaction();
        let source = input.map(|input| secrets.text(&input.program).into_owned());
        let (trail, notes) = (values(keys::all_trail(id)), values(keys::all_notes(id)));
        let mut timeline = Timeline::read(trail, state, notes, source.as_deref());
        for step in timeline.iter_mut().flat_map(|timeline| &mut timeline.steps) {
            secrets.replace(&mut step.name);
            step.within
                .iter_mut()
                .filter_map(|level| level.name.as_mut())
                .for_each(|name| secrets.replace(name));
        }
        Ok(timeline)
    }

    /// Returns whether a task exists only as rows of the store.
    #[cfg(test)]
    pub(crate) async fn asleep(&self, id: &str) -> bool {
        let Some(id) = TaskId::parse(id) else { return false };
        let row = self.0.store.get(&open(&id)).await.unwrap_or_default();
        self.0.live.running(&id).is_none() && row.is_some_and(|row| crate::keys::is_asleep(&row))
    }

    /// Ends the process abruptly: running tasks get no further than their next write.
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

/// Returns the task at the end of a key.
fn last(key: &str) -> Option<TaskId> {
    TaskId::parse(key.rsplit_once('/')?.1)
}

//! The journal of a task's program, in the store.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use orla_marketplace::program::{Journal, JournalContents, RunRequest};
use orla_marketplace::rtfs::{self, Error, Ticket, Value, Wait, json::value_from_json};
use orla_marketplace::{JsonText, Principal};
use orla_state::{Change, Expect, Pages, Query, Revision, StateError, WriteError};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::keys;
use super::notes::{Batch, Notes, Rows, answered};
use super::record::Note;
use super::waits::Waits;
use crate::keys as tasks;
use crate::preloaded::StoredState;
use crate::records::Unchanged;
use crate::service::{Inner, Viewer};
use crate::state::{Event, Repeat};
use crate::task::{Task, TaskId, Timestamp};

/// The maximum number of note records since a state, for a store that takes about as many changes at
/// once.
const MAX_RECORDS: u64 = 800;

/// The first and the longest pause before a change of a run is retried after its answer was lost.
const RETRY_WAIT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Keeps the answers that a task's program received.
pub(crate) struct RunJournal {
    me: Weak<Self>,
    parts: Parts,
    /// `None` before the run is recalled.
    notes: Mutex<Option<Notes>>,
    /// Whether a write is under way.
    is_writing: AtomicBool,
    /// Whether the record of the task says that the task runs.
    is_marked: AtomicBool,
    written: watch::Sender<Written>,
    waits: Mutex<Waits>,
    /// When this process began or continued the run.
    began: OnceLock<Instant>,
    /// The revision of the record that says that this node continues the run, if several nodes share the
    /// store and the revision is known.
    held: Mutex<Option<Revision>>,
    /// The revision of the task's row below `open/`, if it is known. If it is outdated, falling asleep
    /// conflicts, and the next attempt reads the row.
    open: Mutex<Option<Revision>>,
    /// Whether a call is held back because the server is about to end.
    is_held: AtomicBool,
    /// The waits of a suspended run.
    suspended: Mutex<Option<Vec<Wait>>>,
}

/// The parts from which a journal is made.
pub(crate) struct Parts {
    pub(crate) tasks: Weak<Inner>,
    pub(crate) id: TaskId,
    /// The owner of the task. The program sees the tasks of this caller.
    pub(crate) owner: Option<Principal>,
    /// Notified when an event has arrived.
    pub(crate) arrived: Arc<Notify>,
    /// Whether the task has never run, so that the store has nothing of its run.
    pub(crate) is_new: bool,
    /// The rows of the program that are already known.
    pub(crate) stored: StoredState,
    /// The revision of the task's row below `open/`, if it is known.
    pub(crate) open: Option<Revision>,
    /// The maximum number of bytes of a state and the notes since then.
    pub(crate) max_bytes: usize,
    /// How long the run had run when it last fell asleep.
    pub(crate) used: Duration,
    /// Ends the run in this process.
    pub(crate) cancellation: CancellationToken,
}

/// The progress of writing the notes.
#[derive(Clone, Debug, Default)]
struct Written {
    noted: u64,
    /// The error after which no further notes are written.
    failed: Option<StateError>,
}

impl RunJournal {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            notes: Mutex::default(),
            is_writing: AtomicBool::new(false),
            is_marked: AtomicBool::new(!parts.is_new),
            written: watch::Sender::default(),
            waits: Mutex::default(),
            began: OnceLock::new(),
            held: Mutex::default(),
            open: Mutex::new(parts.open),
            is_held: AtomicBool::new(false),
            suspended: Mutex::default(),
            parts,
        })
    }

    /// The waits of the run, if it was suspended.
    pub(crate) fn suspended(&self) -> Option<Vec<Wait>> {
        self.suspended.lock().clone()
    }

    /// Returns the changes to write together with the end of the task.
    pub(crate) async fn end(&self) -> Vec<Change> {
        self.wait_written().await;
        self.notes.lock().as_mut().map(Notes::end).unwrap_or_default()
    }

    /// Waits until no write is under way.
    async fn wait_written(&self) {
        // The sender outlives `self.written`, so `wait_for` does not fail.
        let _ = self.written.subscribe().wait_for(|_| !self.is_writing.load(Ordering::Acquire)).await;
    }

    /// Makes changes of the run. The first change also notes that the task runs. Returns `false` if a
    /// record is not as a change expects it.
    ///
    /// If several nodes share the store, a change is made only if this node still continues the run. The
    /// first change checks the record of the task. The others check the record of the run, which each
    /// change rewrites.
    ///
    /// On a shared store, a failed change is retried until its outcome is known. Such a store is
    /// unreachable now and then, and the concurrent parts of the run must not be lost because of that.
    async fn put(&self, tasks: &Inner, changes: Vec<Change>) -> Result<bool, StateError> {
        if !tasks.is_shared() {
            return self.put_once(tasks, changes).await;
        }
        let id = &self.parts.id;
        let before = tasks.held_run(id).await?;
        let mut wait = RETRY_WAIT.0;
        let mut has_failed = false;
        loop {
            let put = self.put_once(tasks, changes.clone()).await;
            match &put {
                Err(_) => has_failed = true,
                Ok(false) if has_failed => {}
                Ok(_) => return put,
            }
            // Each change of the run writes its holder.
            if tasks.store.sync().await.is_ok() {
                let held = tasks.held_run(id).await?;
                if held.is_some() && held != before {
                    self.is_marked.store(true, Ordering::Release);
                    *self.held.lock() = held;
                    return Ok(true);
                }
                if put.is_ok() {
                    return put;
                }
            }
            tokio::select! {
                biased;
                () = tasks.closing.cancelled() => return put,
                () = self.parts.cancellation.cancelled() => return put,
                () = tokio::time::sleep(wait) => wait = (wait * 2).min(RETRY_WAIT.1),
            }
        }
    }

    async fn put_once(&self, tasks: &Inner, mut changes: Vec<Change>) -> Result<bool, StateError> {
        let held = *self.held.lock();
        let is_marked = self.is_marked.load(Ordering::Acquire);
        if is_marked && !tasks.is_shared() {
            return tasks.write_if(changes).await;
        }
        let Some(held) = held.filter(|_| is_marked) else { return self.mark(tasks, changes).await };
        changes.extend(tasks.hold_run(&self.parts.id, Expect::Revision(held)));
        match tasks.store.write(changes).await {
            Ok(revisions) => {
                *self.held.lock() = revisions.last().copied();
                Ok(true)
            }
            Err(WriteError::Conflict { .. }) => Ok(false),
            Err(WriteError::Failed(error)) => Err(error),
        }
    }

    /// Makes changes of the run together with the change of the task's record that says that the task
    /// runs.
    async fn mark(&self, tasks: &Inner, mut changes: Vec<Change>) -> Result<bool, StateError> {
        let id = &self.parts.id;
        changes.extend(tasks.hold_run(id, Expect::Anything));
        let marked = tasks.change(id, &[Event::Begin], |task| {
            task.begun = Some(Repeat::Journaled);
            Ok(changes.clone())
        });
        match marked.await {
            Ok(_) => {
                self.is_marked.store(true, Ordering::Release);
                *self.held.lock() = tasks.held_run(id).await?;
                Ok(true)
            }
            Err(Unchanged::Conflict) => Ok(false),
            Err(Unchanged::State(error)) => Err(error),
            // Another node has the task, or it is over.
            Err(Unchanged::Unknown | Unchanged::Lost | Unchanged::Refused(_)) if tasks.is_shared() => {
                Ok(false)
            }
            Err(over @ (Unchanged::Unknown | Unchanged::Lost | Unchanged::Refused(_))) => {
                Err(StateError::new(over.into_error(id).to_string()))
            }
        }
    }

    /// Returns the reason why an answer could not be kept. The run can continue from its durable notes.
    pub(crate) fn failure(&self) -> Option<String> {
        self.written.borrow().failed.as_ref().map(ToString::to_string)
    }

    /// Returns whether the run was ended so that another process continues it.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Acquire)
    }

    /// Ends a held run as soon as no call is under way that could not be repeated.
    fn end_if_held(&self) {
        if self.is_held() && !self.notes.lock().as_ref().is_some_and(Notes::is_under_way) {
            self.parts.cancellation.cancel();
        }
    }

    /// The state cannot be read or written.
    fn fail(&self, error: StateError) -> Error {
        let failure = broken(&error.to_string());
        self.written.send_modify(|written| written.failed = Some(error));
        failure
    }

    fn inner(&self) -> Result<Arc<Inner>, Error> {
        self.parts.tasks.upgrade().ok_or_else(|| broken("the server is shutting down"))
    }

    fn with<T>(&self, change: impl FnOnce(&mut Notes) -> T) -> Result<T, Error> {
        if let Some(error) = &self.written.borrow().failed {
            return Err(broken(&error.to_string()));
        }
        let mut notes = self.notes.lock();
        notes.as_mut().map(change).ok_or_else(|| broken("the run was not recalled"))
    }

    /// Writes the pending notes. If a write is under way, that write includes them.
    fn write(&self) {
        let (Some(me), Some(tasks)) = (self.me.upgrade(), self.parts.tasks.upgrade()) else { return };
        if self.is_writing.swap(true, Ordering::AcqRel) {
            return;
        }
        let tracker = tasks.tracker.clone();
        tracker.spawn(async move {
            loop {
                let batch = me.notes.lock().as_mut().and_then(Notes::take);
                if let Some(batch) = batch {
                    let failed = match me.put(&tasks, batch.changes).await {
                        Ok(true) => None,
                        Ok(false) => Some(lost_run_error()),
                        Err(error) => Some(error),
                    };
                    let has_failed = failed.is_some();
                    me.written.send_modify(|state| match failed {
                        None => state.noted = batch.noted,
                        failed => state.failed = failed,
                    });
                    if !has_failed {
                        continue;
                    }
                }
                me.is_writing.store(false, Ordering::Release);
                me.written.send_modify(|_| {});
                // A note that was added meanwhile saw that a write was under way.
                let is_left = me.notes.lock().as_ref().is_some_and(Notes::is_write_requested);
                let is_over = !is_left || me.written.borrow().failed.is_some();
                if is_over || me.is_writing.swap(true, Ordering::AcqRel) {
                    return;
                }
            }
        });
    }

    /// Waits until this many notes are durable.
    async fn durable(&self, noted: u64) -> Result<(), Error> {
        self.with(Notes::request_write)?;
        self.write();
        let mut written = self.written.subscribe();
        let reached = written.wait_for(|state| state.noted >= noted || state.failed.is_some()).await;
        match reached.map(|state| state.failed.clone()) {
            Ok(None) => Ok(()),
            Ok(Some(error)) => Err(broken(&error.to_string())),
            Err(_) => Err(broken("the server is shutting down")),
        }
    }

    /// Reads the stored rows of the run, or the reason why they cannot be used.
    async fn rows(&self, tasks: &Inner) -> Result<Result<Rows, &'static str>, StateError> {
        /// The number of records read at once.
        const PAGE: usize = 64;
        let id = &self.parts.id;
        let state = match &self.parts.stored {
            StoredState::State(state) => state.clone(),
            StoredState::Slept { state, last_trail } => {
                let last_trail = (*last_trail > 0).then_some(*last_trail);
                let state = Some(state.clone());
                return Ok(Ok(Rows { state, notes: Vec::new(), last_trail, used: self.parts.used }));
            }
        };
        let mut notes = Vec::new();
        let mut length = state.as_ref().map_or(0, Bytes::len);
        let mut pages = Pages::below(&*tasks.store, &keys::all_notes(id), PAGE);
        loop {
            let rows = pages.next().await?;
            if rows.is_empty() {
                break;
            }
            for row in rows {
                length += row.value.len();
                if length > self.parts.max_bytes.saturating_mul(2) {
                    return Ok(Err("it is larger than it may be"));
                }
                let Some(number) = keys::number(&row.key) else { return Ok(Err("a key has no number")) };
                notes.push((number, row.value));
            }
        }
        let trail = Query::below(&keys::all_trail(id), 1).reversed();
        let last_trail = tasks.store.list(trail).await?.first().and_then(|row| keys::number(&row.key));
        Ok(Ok(Rows { state, notes, last_trail, used: self.parts.used }))
    }

    /// Waits for an event and returns its value.
    async fn event(&self, ticket: Ticket, name: &str) -> Result<Value, Error> {
        let tasks = self.inner()?;
        self.waits.lock().wait(ticket, name);
        loop {
            let arrived = self.parts.arrived.notified();
            tokio::pin!(arrived);
            arrived.as_mut().enable();
            let below = tasks::events(&self.parts.id, name);
            let rows = tasks.store.list(Query::below(&below, crate::service::MAX_EVENTS)).await;
            let rows = rows.map_err(|error| self.fail(error))?;
            let taken = {
                let mut waits = self.waits.lock();
                rows.iter().for_each(|row| waits.add_event(name, &row.key));
                waits.take(ticket)
            };
            if let Some(key) = taken {
                let value = rows.into_iter().find(|row| row.key == key).map(|row| row.value);
                let text = value.and_then(|value| JsonText::parse(value).ok());
                let text = text.ok_or_else(|| broken("an event is no JSON"))?;
                return value_from_json(text.as_str())
                    .map_err(|error| Error::new("invalid-input", format!("the event {name}: {error}")));
            }
            arrived.await;
        }
    }

    /// Waits until a task is over and returns its result.
    async fn task(&self, id: &str) -> Result<Value, Error> {
        if id == self.parts.id.as_str() {
            return Err(Error::new("invalid-argument", "a task cannot wait for itself"));
        }
        let tasks = crate::Tasks(self.inner()?);
        let viewer = Viewer::Caller(self.parts.owner.as_ref());
        let not_visible = |error: crate::TaskError| match error {
            crate::TaskError::Unknown(_) => Error::new("unknown-task", error.to_string()),
            crate::TaskError::State(error) => self.fail(error),
            other => broken(&other.to_string()),
        };
        let mut changes = tasks.states(id, viewer).await.map_err(not_visible)?;
        let over = changes.wait_for(|task| task.state.is_terminal()).await.map(|task| Arc::clone(&task));
        let task = match over {
            Ok(task) => task,
            Err(_) => tasks.get(id, viewer).await.map_err(not_visible)?,
        };
        let result = tasks.result(&task.id).await.map_err(not_visible)?;
        outcome(&task, result.as_ref())
    }
}

#[async_trait]
impl Journal for RunJournal {
    async fn recall(&self) -> Result<JournalContents, Error> {
        self.began.get_or_init(Instant::now);
        let tasks = self.inner()?;
        let rows = match self.parts.is_new {
            true => Ok(Rows::default()),
            false => self.rows(&tasks).await.map_err(|error| self.fail(error))?,
        };
        let read =
            rows.map_err(str::to_owned).and_then(|rows| Notes::read(self.parts.id.clone(), &rows));
        let (notes, past) = read.map_err(|why| {
            let message =
                format!("the run cannot be resumed: its records cannot be used: {why}; start it again");
            Error::new("not-resumable", message)
        })?;
        *self.notes.lock() = Some(notes);
        Ok(past)
    }

    fn record_wait(&self, asked: &RunRequest) {
        // A failure is returned with the next answer.
        let had_begun = self.with(|notes| {
            let had_begun = notes.has_begun(asked.ticket);
            notes.add(Note::Waits(asked.clone()));
            if had_begun {
                notes.request_write();
            }
            had_begun
        });
        // If the process ends, this call must not be mistaken for one that may have been made.
        if had_begun.is_ok_and(|had_begun| had_begun) {
            self.write();
            self.end_if_held();
        }
    }

    async fn record_begin(&self, asked: &RunRequest, is_idempotent: bool) -> Result<(), Error> {
        if self.inner()?.closing.is_cancelled() {
            // The next process makes a call that has not begun.
            self.is_held.store(true, Ordering::Release);
            self.end_if_held();
            return std::future::pending().await;
        }
        let noted = self.with(|notes| notes.add(Note::Begun { asked: asked.clone(), is_idempotent }))?;
        self.durable(noted).await
    }

    fn record_answer(
        &self,
        asked: &RunRequest,
        answer: Vec<u8>,
        failed: Option<&str>,
    ) -> Result<(), Error> {
        let used = self.waits.lock().used(asked.ticket);
        let max = self.parts.max_bytes;
        let (left, bytes, records) = self.with(|notes| {
            let left = notes.has_begun(asked.ticket);
            notes.add(answered(asked, answer, failed));
            used.into_iter().for_each(|key| notes.also(Change::remove(key)));
            (left, notes.bytes(), notes.records())
        })?;
        if bytes > max {
            return Err(too_large(max));
        }
        if records > MAX_RECORDS && self.inner()?.is_shared() {
            let what = "the program has made too many calls while a stream was open, with which it cannot be saved";
            return Err(Error::new("limit", what));
        }
        // Answers of calls that left the process are written at once. The run does not wait for the
        // write.
        if left {
            self.with(Notes::request_write)?;
            self.write();
            self.end_if_held();
        }
        Ok(())
    }

    async fn wait(&self, ticket: Ticket, wait: &Wait) -> Result<Value, Error> {
        match wait {
            Wait::Until(instant) => {
                orla_marketplace::program::until(instant).await;
                Ok(Value::Nil)
            }
            Wait::Task(id) => self.task(id).await,
            Wait::Event(name) => self.event(ticket, name).await,
            _ => Err(Error::new("unavailable", "a task cannot wait for that")),
        }
    }

    fn record_withdrawal(&self, ticket: Ticket) {
        self.waits.lock().withdraw(ticket);
        let _ = self.with(|notes| notes.withdraw(ticket));
    }

    fn is_long(&self) -> bool {
        self.notes.lock().as_ref().is_some_and(Notes::is_long)
    }

    fn save(&self, state: Vec<u8>) -> Result<(), Error> {
        if state.len() > self.parts.max_bytes {
            return Err(too_large(self.parts.max_bytes));
        }
        self.with(|notes| notes.save(state))?;
        self.write();
        Ok(())
    }

    async fn suspend(&self, state: Vec<u8>, waits: Vec<(RunRequest, Wait)>) -> Result<bool, Error> {
        if self.waits.lock().is_due() {
            return Ok(false);
        }
        if state.len() > self.parts.max_bytes {
            return Err(too_large(self.parts.max_bytes));
        }
        let tasks = self.inner()?;
        let waits: Vec<Wait> = waits.into_iter().map(|(_, wait)| wait).collect();
        // Nothing is noted in the meantime, because the run waits.
        self.wait_written().await;
        let used = self.parts.used + self.began.get().map(Instant::elapsed).unwrap_or_default();
        let batch = self.with(|notes| {
            notes.sleep(state, used);
            notes.take()
        })?;
        let Batch { mut changes, noted } = batch.unwrap_or_default();
        // The change with which the run falls asleep also releases the task, so that no node holds it.
        if tasks.is_shared() && self.held.lock().is_none() {
            let marked = self.put(&tasks, std::mem::take(&mut changes)).await;
            if !marked.map_err(|error| self.fail(error))? {
                return Err(self.fail(lost_run_error()));
            }
        }
        let Parts { id, owner, arrived, .. } = &self.parts;
        let open = self.open.lock().take();
        let sleep = tasks.fall_asleep(id, owner.as_ref(), &waits, open).await;
        let written = match sleep.map_err(|error| self.fail(error))? {
            Some(sleep) => self.put(&tasks, [changes.clone(), sleep].concat()).await,
            None => Ok(false),
        };
        let is_asleep = match written {
            Ok(true) => Ok(true),
            Ok(false) => match self.put(&tasks, changes).await {
                Ok(true) => Ok(false),
                Ok(false) => Err(lost_run_error()),
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        let is_asleep = is_asleep.map_err(|error| self.fail(error))?;
        self.written.send_modify(|state| state.noted = noted);
        if !is_asleep {
            // The program checks for events that arrived in the meantime.
            arrived.notify_waiters();
            return Ok(false);
        }
        *self.suspended.lock() = Some(waits);
        tasks.timer_set.notify_one();
        Ok(true)
    }

    fn is_suspended(&self) -> bool {
        self.suspended.lock().is_some()
    }
}

/// Returns the error for a record of the run that another process has changed.
fn lost_run_error() -> StateError {
    StateError::new("another process continues the run")
}

/// Returns an instant in milliseconds, rounded so that the row of a timer is never due before it.
pub(super) fn timestamp(instant: &rtfs::Instant) -> Timestamp {
    let seconds = u64::try_from(instant.unix_seconds()).unwrap_or_default();
    let more = u64::from(instant.subsec_nanoseconds()).div_ceil(1_000_000);
    Timestamp(seconds.saturating_mul(1000).saturating_add(more))
}

/// Returns the result of a finished task for the program that awaits it.
fn outcome(task: &Task, result: Option<&JsonText>) -> Result<Value, Error> {
    if let Some(failure) = &task.error {
        return Err(Error::new(failure.kind.clone(), format!("task {}: {}", task.id, failure.message)));
    }
    if task.state != crate::State::Completed {
        return Err(Error::new(task.state.as_str(), format!("task {} is {}", task.id, task.state)));
    }
    let value = result.map(|text| value_from_json(text.as_str())).transpose();
    let value = value.map_err(|error| broken(&error.to_string()))?.unwrap_or_default();
    let Value::Map(result) = &value else { return Ok(value) };
    let structured = result.get_keyword("structuredContent").cloned();
    Ok(match structured {
        // The `rtfs` tool wraps the value of a program in a map, as its clients require.
        Some(Value::Map(map)) if task.is_program => {
            map.get_keyword("value").cloned().unwrap_or_default()
        }
        Some(value) => value,
        None => text_of(result.get_keyword("content")),
    })
}

/// Returns the text of an MCP content.
fn text_of(content: Option<&Value>) -> Value {
    let Some(Value::Vector(blocks)) = content else { return Value::Nil };
    let texts: Vec<&str> = blocks
        .items()
        .iter()
        .filter_map(|block| match block {
            Value::Map(block) => match block.get_keyword("text") {
                Some(Value::Str(text)) => Some(text.as_str()),
                _ => None,
            },
            _ => None,
        })
        .collect();
    texts.join("\n").into()
}

fn broken(why: &str) -> Error {
    Error::new("unavailable", format!("the journal of the program cannot be kept: {why}"))
}

fn too_large(max: usize) -> Error {
    let message = format!(
        "the records of the program are larger than {max} bytes: keep less in it, or split it into several tasks"
    );
    Error::new("limit", message)
}

//! Accepts tasks.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use orla_marketplace::program::{IDS, check_syntax};
use orla_marketplace::{Call, JsonText, Payload, Principal};
use orla_state::{Change, Expect, WriteError};

use crate::error::TaskError;
use crate::keys::{self, OwnerKey};
use crate::preloaded::{LoadedTask, StoredState};
use crate::records::record;
use crate::service::{Inner, Started, Tasks};
use crate::shared::Shared;
use crate::state::State;
use crate::task::{Owner, Task, TaskId, Terms, Timestamp, raw};

/// The maximum size of an idempotency key.
const MAX_KEY: usize = 256;

/// The maximum size of an input.
pub(crate) const MAX_INPUT: usize = 16 << 20;

/// A request to start a task.
#[derive(Clone)]
#[non_exhaustive]
pub struct NewTask {
    /// The capability, by id or MCP name.
    pub capability: String,
    /// Whether the task is shown as a program rather than as a call of `rtfs`.
    pub is_program: bool,
    /// The input.
    pub input: Payload,
    /// The idempotency key. The caller starts at most one task with it.
    pub key: Option<String>,
    /// The schedule of the configuration that starts the task.
    pub schedule: Option<String>,
    /// The caller.
    pub caller: Option<Principal>,
    /// The MCP capabilities of the caller's client, a JSON object. `None` if the client can be asked
    /// nothing.
    pub client: Option<JsonText>,
    /// How long the caller needs the task after its end, in milliseconds, if less than `task_keep`.
    pub keep_ms: Option<u64>,
    /// The terms of the call.
    pub terms: Terms,
    /// The id of the task, from [`TaskId::new`]. `None` creates an id.
    pub id: Option<TaskId>,
    /// Changes to write atomically with the task. The code that adds rows with them must also remove
    /// those rows.
    pub beside: Vec<Change>,
    /// Whether the changes of the task are watched from its acceptance on ([`Started::changes`]).
    pub is_watched: bool,
}

impl NewTask {
    /// Makes a request for a call of a capability.
    pub fn call(capability: impl Into<String>, input: Payload, caller: Option<Principal>) -> Self {
        let capability = capability.into();
        Self {
            capability,
            is_program: false,
            input,
            key: None,
            schedule: None,
            caller,
            client: None,
            keep_ms: None,
            terms: Terms::default(),
            id: None,
            beside: Vec::new(),
            is_watched: false,
        }
    }

    /// Makes a request for a program in RTFS. `input` is that of the capability `rtfs`, with `program`
    /// and `input`.
    pub fn program(input: Payload, caller: Option<Principal>) -> Self {
        Self { is_program: true, ..Self::call(IDS[0], input, caller) }
    }

    /// Returns the record of the task when this node accepts it.
    fn queued(&self, node: Option<String>) -> Task {
        let now = Timestamp::now();
        Task {
            id: self.id.as_ref().map_or_else(TaskId::new, TaskId::clone),
            revision: 0,
            capability: self.capability.clone(),
            is_program: self.is_program,
            state: State::Queued,
            owner: self.caller.as_ref().map(Owner::of),
            schedule: self.schedule.clone(),
            key: self.key.clone(),
            created_at: now,
            updated_at: now,
            begun: None,
            node,
            runner: None,
            progress: None,
            log: Vec::new(),
            client: self.client.as_ref().and_then(raw),
            waiting_for: None,
            questions: Vec::new(),
            error: None,
            keep_ms: self.keep_ms,
            terms: self.terms.clone(),
        }
    }
}

impl Tasks {
    /// Accepts a task durably. The task runs when it reaches the front of the queue.
    ///
    /// If the caller has used the idempotency key before, returns the task that was started with it.
    ///
    /// # Errors
    ///
    /// Returns an error if the call cannot be made ([`TaskError::Refused`]), the key was used for
    /// another call, there are too many tasks, or the state cannot be written.
    pub async fn start(&self, new: NewTask) -> Result<Started, TaskError> {
        let tasks = self.clone();
        self.run_detached(async move { tasks.accept(new).await }).await
    }

    /// Returns the task that the caller has started with the key of this request.
    ///
    /// # Errors
    ///
    /// Returns an error if that task makes another call ([`TaskError::KeyConflict`]), or if the state
    /// cannot be read.
    pub async fn started_with(&self, new: &NewTask) -> Result<Option<Task>, TaskError> {
        let Some(key) = &new.key else { return Ok(None) };
        self.0.find_same(new, key).await
    }

    async fn accept(&self, new: NewTask) -> Result<Started, TaskError> {
        let inner = &self.0;
        if inner.closing.is_cancelled() {
            return Err(TaskError::Closing);
        }
        if let Some(key) = &new.key {
            check_key(key)?;
            if let Some(task) = inner.find_same(&new, key).await? {
                return Ok(Started { task: inner.with_notices(task), is_new: false, changes: None });
            }
        }
        let mut call = Call::to(&*new.capability).with(new.input.clone());
        call.scope.principal.clone_from(&new.caller);
        new.terms.apply(&mut call, &inner.market);
        inner.market.check_with_quotas(call).await?;
        let input = new.input.json()?.clone();
        let bytes = input.as_str().len();
        if bytes > MAX_INPUT {
            return Err(TaskError::LargeInput { bytes });
        }
        if new.is_program {
            check_syntax(&new.input).await?;
        }
        let owner = OwnerKey::of_caller(new.caller.as_ref());
        let count = inner.count_unfinished(&owner, new.caller.is_some())?;
        let mut task = new.queued(inner.shared.as_ref().map(|shared| shared.me.node.clone()));
        // Another node may run the task too, unless the task starts here at once. Other nodes do not
        // count a node whose heartbeats they have not received.
        let can_run_here = inner.shared.as_ref().is_none_or(|shared| shared.runs(&inner.market, &task));
        let is_announced = inner.shared.as_ref().is_none_or(Shared::is_present);
        let starts_now = can_run_here && is_announced && inner.starting.available_permits() > 0;
        task.runner = inner.shared.as_ref().filter(|_| starts_now).map(|shared| shared.me.clone());
        let changes = new.is_watched.then(|| inner.live.watch(Arc::new(task.clone())));
        let key = new.key.as_ref().map(|key| keys::idempotency(&owner, key, new.schedule.as_deref()));
        let mut rows = accepted(&task.id, &owner, key, record(&task)?, input.bytes().clone());
        rows.extend(new.beside.iter().cloned());
        let accepting = Accepting::begin(inner, &task.id, &owner, count, can_run_here);
        let revisions = match inner.store.write(rows).await {
            Ok(revisions) => revisions,
            Err(WriteError::Failed(error)) => {
                // If the task was accepted all the same, a later search finds it.
                let error = inner.failed(error);
                let buffer = inner.buffer.as_ref().filter(|buffer| buffer.takes(&new));
                let (Some(buffer), Some(count)) = (buffer, accepting.withdraw()) else {
                    return Err(error.into());
                };
                // Only what the store does not refuse can be handed over.
                if inner.store.sync().await.is_ok() {
                    return Err(error.into());
                }
                task.runner = None;
                buffer.keep(&task, &input).await?;
                count.keep();
                return Ok(Started { task: Arc::new(task), is_new: true, changes });
            }
            Err(WriteError::Conflict { .. }) => {
                drop(accepting);
                // A concurrent request with the key was faster.
                let key = new.key.as_deref().unwrap_or_default();
                let task = inner.find_same(&new, key).await?.ok_or(TaskError::Closing)?;
                return Ok(Started { task: inner.with_notices(task), is_new: false, changes: None });
            }
        };
        accepting.keep();
        // The revisions of the record and of the row below `open/`, by their positions in `accepted`.
        task.revision = revisions.first().copied().unwrap_or_default();
        let open = revisions.get(3).copied();
        if can_run_here {
            inner.counts.entered(State::Queued);
            if inner.started.get().is_some() && starts_now {
                let (task, stored) = (task.clone(), StoredState::State(None));
                inner.preloaded.keep(LoadedTask { task, input, used: Duration::ZERO, stored, open });
            }
            inner.enqueue(owner, task.id.clone());
        }
        Ok(Started { task: Arc::new(task), is_new: true, changes })
    }
}

/// A task that is counted as unfinished. Dropping it undoes the count, unless it is kept.
struct UnfinishedCount<'a> {
    inner: &'a Inner,
    owner: Option<OwnerKey>,
}

impl UnfinishedCount<'_> {
    fn keep(mut self) {
        self.owner = None;
    }
}

impl Drop for UnfinishedCount<'_> {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take() {
            self.inner.uncount_unfinished(&owner);
        }
    }
}

/// A task whose acceptance is not yet confirmed. It is reserved in this process and is counted.
/// Dropping this value undoes both, unless it is kept.
struct Accepting<'a> {
    inner: &'a Inner,
    id: TaskId,
    count: Option<UnfinishedCount<'a>>,
}

impl<'a> Accepting<'a> {
    /// Offers a task that cannot run here to other nodes. The task counts on this node until another one
    /// takes it.
    fn begin(
        inner: &'a Inner,
        id: &TaskId,
        owner: &OwnerKey,
        count: UnfinishedCount<'a>,
        can_run_here: bool,
    ) -> Self {
        match &inner.shared {
            Some(shared) if !can_run_here => shared.offer(id, owner),
            _ => drop(inner.local.add(id)),
        }
        Self { inner, id: id.clone(), count: Some(count) }
    }

    fn keep(mut self) {
        if let Some(count) = self.count.take() {
            count.keep();
        }
    }

    /// Ends the reservation. Returns the count, unless another party took the task in the meantime, which has uncounted it.
    fn withdraw(mut self) -> Option<UnfinishedCount<'a>> {
        self.end()
    }

    fn end(&mut self) -> Option<UnfinishedCount<'a>> {
        let count = self.count.take()?;
        let is_offered =
            self.inner.shared.as_ref().is_some_and(|shared| shared.remove_offer(&self.id).is_some());
        if !self.inner.local.remove(&self.id) && !is_offered {
            count.keep();
            return None;
        }
        Some(count)
    }
}

impl Drop for Accepting<'_> {
    fn drop(&mut self) {
        drop(self.end());
    }
}

/// Returns the changes to write when a task is accepted, with the row of its idempotency key. They
/// conflict if the caller already has a task with the key.
pub(crate) fn accepted(
    id: &TaskId,
    owner: &OwnerKey,
    key: Option<String>,
    record: Vec<u8>,
    input: Bytes,
) -> Vec<Change> {
    let mut rows = vec![
        Change::put(keys::task(id), record).expecting(Expect::Absent),
        Change::put(keys::input(id), input),
        Change::put(keys::owner(owner, id), Bytes::new()),
        Change::put(keys::open(id), Bytes::new()),
    ];
    rows.extend(key.map(|key| Change::put(key, id.to_string()).expecting(Expect::Absent)));
    rows
}

impl Inner {
    /// Counts a task among those that wait or run, if there is room.
    fn count_unfinished(
        &self,
        owner: &OwnerKey,
        is_named: bool,
    ) -> Result<UnfinishedCount<'_>, TaskError> {
        let max = self.options.load().max_tasks;
        let mut unfinished = self.unfinished.lock();
        let all: usize = unfinished.values().sum();
        let own = unfinished.get(owner).copied().unwrap_or_default();
        let share = if is_named { (max / 4).max(1) } else { max };
        if all >= max || own >= share {
            return Err(TaskError::Full(if all >= max { all } else { own }));
        }
        *unfinished.entry(owner.clone()).or_default() += 1;
        Ok(UnfinishedCount { inner: self, owner: Some(owner.clone()) })
    }

    /// Counts a task among those that wait or run, even if there is no room.
    pub(crate) fn count_anyway(&self, owner: &OwnerKey) {
        *self.unfinished.lock().entry(owner.clone()).or_default() += 1;
    }

    /// Returns the task that the caller started with this key. A caller whom the policy denies the capability by now gets the
    /// answer of a new call.
    ///
    /// # Errors
    ///
    /// Returns an error if that task makes another call.
    async fn find_same(&self, new: &NewTask, key: &str) -> Result<Option<Task>, TaskError> {
        let catalog = self.market.snapshot();
        let entry = catalog.get(&new.capability);
        if entry.is_some_and(|entry| catalog.permits(new.caller.as_ref(), entry).is_err()) {
            return Ok(None);
        }
        let owner = OwnerKey::of_caller(new.caller.as_ref());
        let row = keys::idempotency(&owner, key, new.schedule.as_deref());
        let Some(row) = self.store.get(&row).await? else { return Ok(None) };
        let id = std::str::from_utf8(&row.value).ok().and_then(TaskId::parse);
        let Some(id) = id else { return Ok(None) };
        let Some(task) = self.load(&id).await? else { return Ok(None) };
        let input = self.text(&keys::input(&id)).await?.map(Payload::from_json);
        let is_same = self.is_one_capability(new, &task.capability)
            && input.is_some_and(|input| are_equal(&input, &new.input));
        match is_same {
            true => Ok(Some(task)),
            false => Err(TaskError::KeyConflict { key: key.to_owned(), id }),
        }
    }

    /// Returns whether a request names this capability, perhaps by its other name.
    fn is_one_capability(&self, new: &NewTask, capability: &str) -> bool {
        let catalog = self.market.snapshot();
        let entry = |name| catalog.visible(new.caller.as_ref(), name);
        let is_same_entry = || {
            let (one, other) = (entry(&new.capability), entry(capability));
            one.zip(other).is_some_and(|(one, other)| one.manifest.id == other.manifest.id)
        };
        new.capability == capability || is_same_entry()
    }
}

/// Returns whether two inputs are the same data.
fn are_equal(one: &Payload, other: &Payload) -> bool {
    match (one.json(), other.json()) {
        (Ok(one), Ok(other)) if one == other => true,
        _ => match (one.value(), other.value()) {
            (Ok(one), Ok(other)) => one == other,
            _ => false,
        },
    }
}

fn check_key(key: &str) -> Result<(), TaskError> {
    match key {
        "" => Err(TaskError::InvalidKey("is empty")),
        key if key.len() > MAX_KEY => Err(TaskError::InvalidKey("has more than 256 bytes")),
        key if key.chars().any(char::is_control) => Err(TaskError::InvalidKey("has control characters")),
        _ => Ok(()),
    }
}

//! Accepting a task.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use orla_marketplace::program::IDS;
use orla_marketplace::{Call, JsonText, Payload, Principal};
use orla_state::{Change, Expect, WriteError};

use crate::ahead::{Kept, ToRun};
use crate::error::TaskError;
use crate::keys::{self, OwnerKey};
use crate::records::record;
use crate::service::{Inner, Started, Tasks};
use crate::shared::Shared;
use crate::state::State;
use crate::task::{Owner, Task, TaskId, Terms, Timestamp, raw};

/// The most bytes of an idempotency key.
const MAX_KEY: usize = 256;

/// The most bytes of an input.
pub(crate) const MAX_INPUT: usize = 16 << 20;

/// A task to be started.
#[derive(Clone)]
#[non_exhaustive]
pub struct NewTask {
    /// The capability, by id or MCP name.
    pub capability: String,
    /// Whether it is shown as a program, not as a call of `rtfs`.
    pub is_program: bool,
    /// The input.
    pub input: Payload,
    /// Under which the caller starts the task at most once.
    pub key: Option<String>,
    /// The schedule of the configuration that starts it.
    pub schedule: Option<String>,
    /// The caller.
    pub caller: Option<Principal>,
    /// What the caller's client can be asked: the JSON object of its MCP capabilities. `None`: nothing.
    pub client: Option<JsonText>,
    /// How long the caller needs the task after its end, in milliseconds, if less than `task_keep`.
    pub keep_ms: Option<u64>,
    /// On which terms the call is made.
    pub terms: Terms,
    /// The id of the task, from [`TaskId::new`]; `None` makes one.
    pub id: Option<TaskId>,
    /// What is written with the task, all or nothing. Whoever writes it removes it.
    pub beside: Vec<Change>,
    /// Whether its changes are watched from its acceptance on ([`Started::changes`]).
    pub is_watched: bool,
}

impl NewTask {
    /// A call of a capability.
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

    /// A program in RTFS: `input` is that of the capability `rtfs`, with `program` and `input`.
    pub fn program(input: Payload, caller: Option<Principal>) -> Self {
        Self { is_program: true, ..Self::call(IDS[0], input, caller) }
    }
}

impl Tasks {
    /// Accepts a task, durably. It runs when it is its turn.
    ///
    /// With an idempotency key that the caller has used before, this is the task that it started then.
    ///
    /// # Errors
    /// The call cannot be made ([`TaskError::Refused`]), the key was used for another call, there are too many tasks, or
    /// the state cannot be written.
    pub async fn start(&self, new: NewTask) -> Result<Started, TaskError> {
        let tasks = self.clone();
        self.to_its_end(async move { tasks.accept(new).await }).await
    }

    /// The task that the caller has started with the key of this one.
    ///
    /// # Errors
    /// It makes another call ([`TaskError::KeyConflict`]), or the state cannot be read.
    pub async fn started_with(&self, new: &NewTask) -> Result<Option<Task>, TaskError> {
        let Some(key) = &new.key else { return Ok(None) };
        self.0.same(new, key).await
    }

    async fn accept(&self, new: NewTask) -> Result<Started, TaskError> {
        let inner = &self.0;
        if inner.closing.is_cancelled() {
            return Err(TaskError::Closing);
        }
        if let Some(key) = &new.key {
            check_key(key)?;
            if let Some(task) = inner.same(&new, key).await? {
                return Ok(Started { task: inner.shown(task), is_new: false, changes: None });
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
        let owner = OwnerKey::of_caller(new.caller.as_ref());
        let place = inner.take_place(&owner, new.caller.is_some())?;
        let now = Timestamp::now();
        let mut task = Task {
            id: new.id.as_ref().map_or_else(TaskId::new, TaskId::clone),
            revision: 0,
            capability: new.capability.clone(),
            is_program: new.is_program,
            state: State::Queued,
            owner: new.caller.as_ref().map(Owner::of),
            schedule: new.schedule.clone(),
            key: new.key.clone(),
            created_at: now,
            updated_at: now,
            begun: None,
            node: inner.shared.as_ref().map(|shared| shared.me.node.clone()),
            runner: None,
            progress: None,
            log: Vec::new(),
            client: new.client.as_ref().and_then(raw),
            waiting_for: None,
            questions: Vec::new(),
            error: None,
            keep_ms: new.keep_ms,
            terms: new.terms.clone(),
        };
        // Another node may run it, too, unless it can begin here at once. A node that others have not heard yet is none, for
        // them.
        let runs_here = inner.shared.as_ref().is_none_or(|shared| shared.runs(&inner.market, &task));
        let is_there = inner.shared.as_ref().is_none_or(Shared::is_there);
        let is_here = runs_here && is_there && inner.places.available_permits() > 0;
        task.runner = inner.shared.as_ref().filter(|_| is_here).map(|shared| shared.me.clone());
        let id = &task.id;
        let changes = new.is_watched.then(|| inner.live.watch(Arc::new(task.clone())));
        let key = new.key.as_ref().map(|key| keys::idempotency(&owner, key, new.schedule.as_deref()));
        let mut rows = accepted(id, &owner, key, record(&task)?, input.bytes().clone());
        rows.extend(new.beside.iter().cloned());
        // Until it is known whether it is accepted, it is nobody's to take here.
        match &inner.shared {
            Some(shared) if !runs_here => shared.offer(id, &owner),
            _ => drop(inner.here.add(id)),
        }
        // Those of the record and of the row below `open/`, by their places in `accepted`.
        let (revision, open) = match inner.store.write(rows).await {
            Ok(revisions) => (revisions.first().copied().unwrap_or_default(), revisions.get(3).copied()),
            Err(WriteError::Failed(error)) => {
                // If it was accepted all the same, it is found.
                inner.here.remove(&task.id);
                let error = inner.failed(error);
                if let Some(shared) = &inner.shared
                    && !runs_here
                    && shared.remove_offer(&task.id).is_none()
                {
                    place.keep();
                }
                return Err(error.into());
            }
            Err(WriteError::Conflict { .. }) => {
                drop(place);
                inner.here.remove(&task.id);
                if let Some(shared) = &inner.shared {
                    shared.remove_offer(&task.id);
                }
                // Another request with the key was faster.
                let key = new.key.as_deref().unwrap_or_default();
                let task = inner.same(&new, key).await?.ok_or(TaskError::Closing)?;
                return Ok(Started { task: inner.shown(task), is_new: false, changes: None });
            }
        };
        if inner.is_shared() && !runs_here {
            // Another node takes it. Until then it counts here.
            place.keep();
            task.revision = revision;
            return Ok(Started { task: Arc::new(task), is_new: true, changes });
        }
        place.keep();
        inner.counts.entered(State::Queued);
        task.revision = revision;
        if inner.started.get().is_some() && is_here {
            let (task, kept) = (task.clone(), Kept::State(None));
            inner.ahead.keep(ToRun { task, input, used: Duration::ZERO, kept, open });
        }
        inner.enqueue(owner, task.id.clone());
        Ok(Started { task: Arc::new(task), is_new: true, changes })
    }
}

/// What is written when a task is accepted, with the row of its idempotency key. It conflicts if its caller has a task with
/// the key already.
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
    /// The task that the caller started with this key.
    ///
    /// # Errors
    /// It makes another call.
    async fn same(&self, new: &NewTask, key: &str) -> Result<Option<Task>, TaskError> {
        let owner = OwnerKey::of_caller(new.caller.as_ref());
        let row = keys::idempotency(&owner, key, new.schedule.as_deref());
        let Some(row) = self.store.get(&row).await? else { return Ok(None) };
        let id = std::str::from_utf8(&row.value).ok().and_then(TaskId::parse);
        let Some(id) = id else { return Ok(None) };
        let Some(task) = self.load(&id).await? else { return Ok(None) };
        let input = self.text(&keys::input(&id)).await?.map(Payload::from_json);
        let is_same = task.capability == new.capability
            && input.is_some_and(|input| are_equal(&input, &new.input));
        match is_same {
            true => Ok(Some(task)),
            false => Err(TaskError::KeyConflict { key: key.to_owned(), id }),
        }
    }
}

/// Whether two inputs are the same data.
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

//! Runs a task as an ordinary call of the marketplace. The checkpoint of the call records that the task
//! runs.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use orla_marketplace::program::{IDS, Journal};
use orla_marketplace::{
    Call, Checkpoint, Client, Entry, JsonText, Outcome, Payload, Principal, Redactor, RuntimeError,
    RuntimeResult,
};
use orla_mcp::call_result::call_result_json;
use orla_state::{Change, StateError};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;

use crate::client::TaskClient;
use crate::error::TaskError;
use crate::keys::{self, OwnerKey};
use crate::live::{Running, sink};
use crate::local::NextStep;
use crate::preloaded::LoadedTask;
use crate::program::{Parts, RunJournal, to_run, to_run_keys, touch};
use crate::records::{Unchanged, Urgency, changed_concurrently};
use crate::service::{Inner, Tasks};
use crate::state::{Event, Repeat, State, may_begin};
use crate::take::Claim;
use crate::task::{Failure, Task, TaskId, Timestamp};
use crate::verdict::{AttemptResult, Facts, Reached, Verdict, verdict};

/// The longest wait before the state is written again after a failure, or before a call that found no
/// room is retried. A run that panicked is repeated after it.
const MAX_RETRY_WAIT: Duration = Duration::from_secs(30);

/// How long the server waits after its start for the providers of tasks that it has taken up.
const PROVIDER_START_TIME: Duration = Duration::from_secs(60);

impl Tasks {
    /// Runs the tasks of the queue as places become free.
    pub(crate) fn serve_queue(&self, settle: Duration) {
        let inner = Arc::clone(&self.0);
        self.0.tracker.spawn(async move {
            if !settle.is_zero() {
                tokio::select! {
                    () = inner.closing.cancelled() => return,
                    () = tokio::time::sleep(settle) => {}
                }
            }
            loop {
                let starting = tokio::select! {
                    () = inner.closing.cancelled() => return,
                    permit = Arc::clone(&inner.starting).acquire_owned() => permit,
                };
                // The semaphore is never closed.
                let Ok(starting) = starting else { return };
                let (owner, id) = loop {
                    let queued = inner.queued.notified();
                    let next = inner.queue.lock().pop();
                    match next {
                        Some(next) => break next,
                        None => tokio::select! {
                            () = inner.closing.cancelled() => return,
                            () = queued => {}
                        },
                    }
                };
                let own = Arc::clone(&inner);
                inner.tracker.spawn(async move { own.run(id, owner, starting).await });
            }
        });
    }
}

impl Inner {
    /// No longer counts a task of this caller as unfinished.
    pub(crate) fn uncount_unfinished(&self, owner: &OwnerKey) {
        let mut unfinished = self.unfinished.lock();
        if let Some(count) = unfinished.get_mut(owner) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                unfinished.remove(owner);
            }
        }
    }

    /// Removes a task that no longer waits or runs here, and no longer counts it as unfinished, unless that has
    /// already happened.
    pub(crate) fn leave(&self, owner: &OwnerKey, id: &TaskId) {
        if self.local.remove(id) {
            self.uncount_unfinished(owner);
        }
    }

    /// Queues a task that this process already counts among its tasks.
    pub(crate) fn enqueue(&self, owner: OwnerKey, id: TaskId) {
        self.queue.lock().push(owner, id);
        self.queued.notify_one();
    }

    /// Adds a task that is about to be woken to the tasks of this process. Returns `true` if it was
    /// absent. In this case, [`enqueue_woken`](Self::enqueue_woken) or
    /// [`put_to_sleep`](Self::put_to_sleep) must follow.
    pub(crate) fn reserve_wake(&self, id: &TaskId) -> bool {
        !self.is_shared() && self.local.add(id)
    }

    /// Queues a woken task, unless it already waits or runs here.
    pub(crate) fn enqueue_woken(&self, owner: OwnerKey, id: TaskId, is_reserved: bool) {
        if self.is_shared() {
            // The task was not counted while it slept, since any node may continue it.
            self.enter(owner, id);
        } else if is_reserved {
            self.enqueue(owner, id);
        }
    }

    /// Puts a task of this process to sleep, unless it is to begin again. Without an owner, the task may
    /// be over; if it is not, it is found later.
    pub(crate) fn put_to_sleep(&self, id: TaskId, owner: Option<OwnerKey>) {
        match (self.local.fall_asleep(&id), owner) {
            (NextStep::Sleep, _) => {}
            (NextStep::Restart, Some(owner)) => self.enqueue(owner, id),
            (NextStep::Restart, None) => {
                self.local.remove(&id);
                self.request_scan();
            }
            (NextStep::UncountUnfinished(owner), _) => self.uncount_unfinished(&owner),
        }
    }

    /// Counts a task and queues it, unless it already waits or runs here.
    pub(crate) fn enter(&self, owner: OwnerKey, id: TaskId) {
        if self.local.add(&id) {
            *self.unfinished.lock().entry(owner.clone()).or_default() += 1;
            self.enqueue(owner, id);
        }
    }

    /// Sets a task aside until fewer tasks wait for an approval.
    fn set_aside(&self, owner: OwnerKey, id: TaskId) {
        self.aside.lock().push(owner, id);
        // A place may have become free in the meantime.
        if self.asking.available_permits() > 0 {
            self.requeue_aside();
        }
    }

    /// Queues a task again that was set aside.
    fn requeue_aside(&self) {
        let next = self.aside.lock().pop();
        if let Some((owner, id)) = next {
            self.enqueue(owner, id);
        }
    }

    /// Returns whether a task is a program, which may await events.
    pub(crate) fn is_program(&self, task: &Task) -> bool {
        task.is_program
            || task.capability == IDS[0]
            || self.market.get(&task.capability).is_some_and(|entry| repeat(&entry) == Repeat::Journaled)
    }

    /// Runs a task to its end.
    async fn run(self: &Arc<Self>, id: TaskId, owner: OwnerKey, starting: OwnedSemaphorePermit) {
        let registered = self.live.register(&id);
        // Taken after the task is registered, so that a concurrent cancellation finds either the
        // registration or this value.
        let mut known = self.preloaded.take(&id);
        let running = Arc::clone(&registered.running);
        let starting = Arc::new(Mutex::new(Some(starting)));
        let (mut wait, mut is_cancelled) = (Duration::from_millis(50), false);
        loop {
            let attempt = {
                let _guard = RequeueOnPanic { inner: self, owner: &owner, id: &id };
                self.attempt(&id, &running, &starting, known.take()).await
            };
            match attempt {
                AttemptResult::Over | AttemptResult::Gone => {
                    drop(registered);
                    self.leave(&owner, &id);
                    return;
                }
                AttemptResult::Closing => return,
                AttemptResult::Aside => {
                    drop(registered);
                    self.set_aside(owner, id);
                    return;
                }
                AttemptResult::Asleep(waits) => {
                    // The task may have been woken before it slept. The check for this needs a run that
                    // is no longer registered.
                    drop(registered);
                    while let Err(error) = self.wake_if_due(&id, &waits).await {
                        tracing::warn!(task = %id, %error, "the state cannot be read");
                        tokio::select! {
                            () = self.closing.cancelled() => return,
                            () = tokio::time::sleep(wait) => wait = (wait * 2).min(MAX_RETRY_WAIT),
                        }
                    }
                    if let Some(shared) = &self.shared {
                        self.leave(&owner, &id);
                        // Another node may have woken it before it slept.
                        if self.check_task(&id).await.is_err() {
                            shared.request_scan();
                        }
                        return;
                    }
                    self.put_to_sleep(id, Some(owner));
                    return;
                }
                AttemptResult::Later(why) => {
                    tracing::warn!(task = %id, why, "the task waits and is tried again");
                    tokio::select! {
                        biased;
                        () = self.closing.cancelled() => return,
                        () = running.cancellation.cancelled(), if !is_cancelled => is_cancelled = true,
                        () = tokio::time::sleep(wait.mul_f64(0.5 + spread(&id) / 2.0)) => {}
                    }
                    wait = (wait * 2).min(MAX_RETRY_WAIT);
                }
            }
        }
    }

    async fn attempt(
        self: &Arc<Self>,
        id: &TaskId,
        running: &Arc<Running>,
        starting: &Arc<Mutex<Option<OwnedSemaphorePermit>>>,
        known: Option<LoadedTask>,
    ) -> AttemptResult {
        let to_run = match known {
            Some(known) if !self.is_lost(&known.task) => Ok(Some(known)),
            _ => match self.claim(id).await {
                Ok(Claim::Mine) => self.to_run(id).await,
                Ok(Claim::NotMine) => return AttemptResult::Gone,
                Err(error) => Err(error),
            },
        };
        let LoadedTask { task, input, used, stored, open } = match to_run {
            Ok(Some(to_run)) if !to_run.task.state.is_terminal() => to_run,
            Ok(Some(_)) => return AttemptResult::Over,
            Ok(None) => return AttemptResult::Gone,
            Err(error) => return AttemptResult::Later(error.to_string()),
        };
        running.keep_record(&task);
        let checkpoint = Arc::new(TaskCheckpoint {
            tasks: Arc::downgrade(self),
            id: id.clone(),
            owner: task.principal(),
            is_own: self.shared.as_ref().is_none_or(|shared| shared.is_own(&task)),
            running: Arc::clone(running),
            starting: Arc::clone(starting),
            begun_before: task.begun.filter(|_| !running.is_unbegun.load(Ordering::Acquire)),
            is_marked: task.state == State::Working,
            asking: Mutex::default(),
            reached: Mutex::default(),
        });
        let mut call = self.build_call(&task, input, used, running);
        call.scope.checkpoint = Some(Arc::clone(&checkpoint) as Arc<dyn Checkpoint>);
        let journal = RunJournal::new(Parts {
            tasks: Arc::downgrade(self),
            id: id.clone(),
            owner: task.principal(),
            arrived: Arc::clone(&running.arrived),
            max_bytes: self.options.load().max_state_bytes,
            is_new: task.begun.is_none(),
            stored,
            open,
            used,
            cancellation: running.cancellation.clone(),
        });
        call.scope.journal = Some(Arc::clone(&journal) as Arc<dyn Journal>);
        let result = self.market.call(call).await;
        let is_closing = self.abort.is_cancelled() || journal.is_held();
        if result.is_err() && !is_closing && self.was_withdrawn(id, running).await {
            self.request_scan();
            return AttemptResult::Gone;
        }
        let facts = Facts {
            is_closing,
            has_begun: task.begun.is_some(),
            may_be_starting: self.may_be_starting(&task),
            suspended: journal.suspended(),
            not_kept: journal.failure(),
        };
        let reached = std::mem::take(&mut *checkpoint.reached.lock());
        match verdict(reached, result.as_ref().err(), facts) {
            Verdict::Continues(attempt) => return attempt,
            Verdict::Interrupted => {
                let ending = Ending {
                    event: Event::Interrupt,
                    text: None,
                    failure: Some(Failure::interrupted(&task.capability)),
                    changes: Vec::new(),
                };
                return self.end(id, running, ending).await;
            }
            Verdict::Ends => {}
        }
        let (event, text, failure) = self.ending(&task, result);
        let ending = Ending { event, text: Some(text), failure, changes: journal.end().await };
        self.end(id, running, ending).await
    }

    /// Returns whether a run was ended because another node had taken the task, and not because the task is over. By now,
    /// the task may be this node's again.
    async fn was_withdrawn(&self, id: &TaskId, running: &Running) -> bool {
        self.is_shared()
            && running.cancellation.is_cancelled()
            && !matches!(self.load(id).await, Ok(Some(task)) if task.state.is_terminal())
    }

    /// Builds the call of a task, with its remaining time.
    fn build_call(
        self: &Arc<Self>,
        task: &Task,
        input: JsonText,
        used: Duration,
        running: &Arc<Running>,
    ) -> Call {
        let mut call = Call::to(&*task.capability).with(Payload::from_json(input));
        call.default_timeout = Some(self.options.load().timeout.saturating_sub(used));
        call.scope.principal = task.principal();
        task.terms.apply(&mut call, &self.market);
        if self.is_program(task) {
            // All attempts are one call, however often it sleeps and whichever process continues it.
            call.scope.call_id = Some(task.id.as_str().into());
        }
        call.scope.client = self.client_of(task);
        call.scope.notices = sink(&self.live, &task.id, running);
        if let Some(redactor) = self.redaction_of(task) {
            call.scope.notices = call.scope.notices.redacted(&redactor);
        }
        call.scope.cancellation = running.cancellation.clone();
        call
    }

    /// Returns the redactor for the secrets that the configuration may have passed to a task and that its
    /// capability does not know.
    fn redaction_of(&self, task: &Task) -> Option<Arc<Redactor>> {
        task.schedule.is_some().then(|| self.market.redaction())
    }

    /// Returns whether the server was started so recently that the provider of an older task may still
    /// be starting.
    fn may_be_starting(&self, task: &Task) -> bool {
        let began = self.started.get();
        task.created_at < self.opened && began.is_some_and(|began| began.elapsed() < PROVIDER_START_TIME)
    }

    /// Returns the final state of a task after its call.
    fn ending(&self, task: &Task, result: RuntimeResult<Outcome>) -> (Event, String, Option<Failure>) {
        let max = self.options.load().max_result_bytes;
        let max = task.terms.max_result_bytes.map_or(max, |own| own.min(max));
        let mut text = call_result_json(&result);
        if let Some(redactor) = self.redaction_of(task)
            && let Some(clean) = redactor.cleaned(&text)
        {
            text = clean.as_str().to_owned();
        }
        let result = match text.len() > max {
            true => Err(RuntimeError::Limit {
                id: task.capability.clone(),
                what: format!("its result has {} bytes, and a task keeps {max}", text.len()),
            }),
            false => result,
        };
        match &result {
            // A provider may report a failure in its result without returning an error.
            Ok(outcome) if outcome.is_error != Some(true) => (Event::Complete, text, None),
            Ok(outcome) => {
                let message = outcome.last_text();
                let message =
                    message.unwrap_or_else(|| format!("{} reported an error", task.capability));
                (
                    Event::Fail,
                    text,
                    Some(Failure { kind: "failed".to_owned(), message, at: None, refusal: None }),
                )
            }
            Err(error) => {
                let failure = Failure::of(error);
                let event = match failure.kind == "interrupted" {
                    true => Event::Interrupt,
                    false => Event::Fail,
                };
                let text = if text.len() > max { call_result_json(&result) } else { text };
                (event, text, Some(failure))
            }
        }
    }

    /// Writes the end of a task.
    async fn end(&self, id: &TaskId, running: &Running, ending: Ending) -> AttemptResult {
        let Ending { event, text, mut failure, changes } = ending;
        if let Some(failure) = &mut failure {
            self.market.redaction().replace(&mut failure.message);
        }
        let text = text.map(Bytes::from);
        // The note that the call ran may not be written yet.
        let events = match running.begun.get() {
            Some(_) => &[Event::Begin, event][..],
            None => &[event],
        };
        let mut wait = Duration::from_millis(50);
        loop {
            // A new watcher either sees this flag, or is seen here.
            running.ends_later.store(true, Ordering::SeqCst);
            let is_urgent = self.is_shared() || self.closing.is_cancelled() || self.live.is_watched(id);
            let urgency = if is_urgent { Urgency::Now } else { Urgency::Later };
            let ended = self.change_at(urgency, id, events, |task| {
                running.fill(task);
                task.begun = task.begun.or(running.begun.get().copied());
                task.error.clone_from(&failure);
                let result = text.iter().map(|text| Change::put(keys::result(id), text.clone()));
                Ok(result.chain(changes.iter().cloned()).collect())
            });
            match ended.await {
                Ok(_) => return AttemptResult::Over,
                Err(Unchanged::Refused(task)) => {
                    self.live.publish(&task);
                    self.keep_cancelled_output(&task, text).await;
                    return AttemptResult::Over;
                }
                Err(Unchanged::Unknown | Unchanged::Lost) => return AttemptResult::Gone,
                Err(unchanged) => {
                    // The call has run. Its result is written as soon as possible.
                    let error = unchanged.into_error(id);
                    tracing::error!(task = %id, %error, "the end of a task cannot be written yet");
                }
            }
            tokio::select! {
                () = self.closing.cancelled() => return AttemptResult::Closing,
                () = tokio::time::sleep(wait) => wait = (wait * 2).min(MAX_RETRY_WAIT),
            }
        }
    }

    /// Stores the output that a call gave before it was cancelled.
    async fn keep_cancelled_output(&self, task: &Task, text: Option<Bytes>) {
        if let (State::Cancelled, Some(text)) = (task.state, text)
            && let Err(error) =
                self.write(vec![Change::put(keys::cancelled_output(&task.id), text)]).await
        {
            tracing::warn!(task = %task.id, %error, "the output of a cancelled call is lost");
        }
    }

    async fn to_run(&self, id: &TaskId) -> Result<Option<LoadedTask>, StateError> {
        let keys = to_run_keys(id).into_iter().chain([keys::open(id)]);
        let mut rows = self.store.get_all(keys.collect()).await?.into_iter();
        let to_run = to_run(id, [(); 4].map(|()| rows.next().flatten()));
        // The write that put the task to sleep was made, but its answer was lost. The row must say that the
        // task is awake before the run writes a note.
        if let Some(row) = rows.next().flatten().filter(keys::is_asleep)
            && !self.write_if(vec![touch(id, row.revision)]).await?
        {
            return Err(changed_concurrently());
        }
        to_run
    }

    fn client_of(self: &Arc<Self>, task: &Task) -> Option<Arc<dyn Client>> {
        let capabilities = JsonText::from(task.client.clone()?);
        let tasks = Arc::downgrade(self);
        Some(Arc::new(TaskClient { tasks, id: task.id.clone(), capabilities }))
    }

    /// Removes an answered question from the record.
    pub(crate) async fn answered(
        &self,
        id: &TaskId,
        key: &str,
        running: &Running,
    ) -> Result<(), StateError> {
        let changed = self.change(id, &[Event::Ask], |task| {
            running.fill(task);
            task.questions.retain(|question| question.key != key);
            if task.questions.is_empty() {
                task.apply(Event::Answer, Timestamp::now());
            }
            Ok(Vec::new())
        });
        match changed.await {
            Ok(_) => Ok(()),
            Err(other) => match other.into_error(id) {
                TaskError::State(error) => Err(error),
                _ => Ok(()),
            },
        }
    }
}

/// Returns a number from 0 to 1 for a task, so that tasks which failed together are not retried together.
fn spread(id: &TaskId) -> f64 {
    // The end of an id is random.
    let digits = id.as_str().get(28..).and_then(|digits| u32::from_str_radix(digits, 16).ok());
    f64::from(digits.unwrap_or_default()) / f64::from(u32::MAX)
}

/// Queues a task again some time after its run panicked. Until then, the task counts as waiting.
struct RequeueOnPanic<'a> {
    inner: &'a Arc<Inner>,
    owner: &'a OwnerKey,
    id: &'a TaskId,
}

impl Drop for RequeueOnPanic<'_> {
    fn drop(&mut self) {
        // Without a runtime, the process is about to end.
        if std::thread::panicking()
            && let Ok(runtime) = Handle::try_current()
        {
            tracing::error!(task = %self.id, "the run of a task panicked");
            let (inner, owner, id) = (Arc::clone(self.inner), self.owner.clone(), self.id.clone());
            let requeue = async move {
                tokio::select! {
                    () = inner.closing.cancelled() => {}
                    () = tokio::time::sleep(MAX_RETRY_WAIT) => inner.enqueue(owner, id),
                }
            };
            self.inner.tracker.spawn_on(requeue, &runtime);
        }
    }
}

/// The outcome of a task's call.
struct Ending {
    event: Event,
    /// Its result.
    text: Option<String>,
    failure: Option<Failure>,
    /// The changes to write with the end.
    changes: Vec<Change>,
}

/// The checkpoint that records that the call of a task runs.
struct TaskCheckpoint {
    tasks: Weak<Inner>,
    id: TaskId,
    owner: Option<Principal>,
    /// Whether the task was accepted here.
    is_own: bool,
    running: Arc<Running>,
    /// Given back when the call begins.
    starting: Arc<Mutex<Option<OwnedSemaphorePermit>>>,
    /// How the call may be repeated, if an earlier attempt had begun it.
    begun_before: Option<Repeat>,
    /// Whether the record already says `working`.
    is_marked: bool,
    /// Held while the call waits for its approval.
    asking: Mutex<Option<Asking>>,
    reached: Mutex<Reached>,
}

/// A place among the tasks that wait for an approval. Giving it back lets a task continue that was set
/// aside.
struct Asking {
    permit: Option<OwnedSemaphorePermit>,
    tasks: Weak<Inner>,
}

impl Drop for Asking {
    fn drop(&mut self) {
        drop(self.permit.take());
        if let Some(tasks) = self.tasks.upgrade() {
            tasks.requeue_aside();
        }
    }
}

#[async_trait]
impl Checkpoint for TaskCheckpoint {
    fn continues(&self, capability: &Entry) -> bool {
        self.begun_before == Some(Repeat::Journaled) && repeat(capability) == Repeat::Journaled
    }

    async fn before_approval(&self, capability: &Entry) -> RuntimeResult<()> {
        // No approval is requested for a call that is not made.
        if !may_begin(self.begun_before, repeat(capability)) {
            *self.reached.lock() = Reached::MayNotRepeat;
            return Err(RuntimeError::Cancelled { id: capability.name.to_string(), outcome: None });
        }
        let later = || RuntimeError::Suspended { id: capability.name.to_string() };
        let tasks = self.tasks.upgrade().ok_or_else(later)?;
        let mut asking = self.asking.lock();
        if asking.is_none() {
            let Ok(permit) = Arc::clone(&tasks.asking).try_acquire_owned() else {
                *self.reached.lock() = Reached::NoApprovalPlace;
                return Err(later());
            };
            *asking = Some(Asking { permit: Some(permit), tasks: Weak::clone(&self.tasks) });
        }
        drop(self.starting.lock().take());
        Ok(())
    }

    async fn before_attempt(&self, capability: &Entry) -> RuntimeResult<()> {
        let Some(tasks) = self.tasks.upgrade().filter(|tasks| !tasks.closing.is_cancelled()) else {
            *self.reached.lock() = Reached::Closing;
            return Err(RuntimeError::Cancelled { id: capability.name.to_string(), outcome: None });
        };
        // The node that accepted the task knows the credential of its caller. It may be another node.
        let is_known = |owner: &Principal| !self.is_own || tasks.market.approvals().knows(owner);
        if !self.owner.as_ref().is_none_or(is_known) {
            let permission = "a credential that has not been withdrawn".to_owned();
            return Err(RuntimeError::Denied {
                id: capability.name.to_string(),
                permission,
                rule: None,
                scopes: None,
            });
        }
        let now = repeat(capability);
        // The error must be one that is never retried.
        let refused = || RuntimeError::Cancelled { id: capability.name.to_string(), outcome: None };
        let has_begun = matches!(*self.reached.lock(), Reached::Begun);
        if has_begun && now != Repeat::Never {
            return Ok(());
        }
        if has_begun || !may_begin(self.begun_before, now) {
            *self.reached.lock() = Reached::MayNotRepeat;
            return Err(refused());
        }
        // The other nodes consider this node gone, and may take the task.
        if tasks.shared.as_ref().is_some_and(|shared| !shared.is_present()) {
            let why = "this node has no contact with the other nodes of the cluster".to_owned();
            *self.reached.lock() = Reached::NotWritten(why);
            return Err(refused());
        }
        // A program notes each action before it leaves the process. A pure computation has no effects to
        // note.
        if self.begun_before.is_none()
            && (now == Repeat::Journaled || capability.manifest.provider.is_pure())
        {
            self.begin_unwritten(&tasks, now);
        } else if !self.is_marked || self.begun_before != Some(now) {
            let begun = tasks.change(&self.id, &[Event::Begin], |task| {
                task.begun = Some(now);
                Ok(Vec::new())
            });
            match begun.await {
                Ok(_) => {}
                Err(Unchanged::Unknown | Unchanged::Lost | Unchanged::Refused(_)) => {
                    return Err(refused());
                }
                Err(unchanged) => {
                    // The write may have been made all the same.
                    if self.begun_before.is_none() {
                        self.running.is_unbegun.store(true, Ordering::Release);
                    }
                    *self.reached.lock() =
                        Reached::NotWritten(unchanged.into_error(&self.id).to_string());
                    return Err(refused());
                }
            }
        }
        self.running.is_unbegun.store(false, Ordering::Release);
        *self.reached.lock() = Reached::Begun;
        drop(self.starting.lock().take());
        drop(self.asking.lock().take());
        Ok(())
    }
}

impl TaskCheckpoint {
    /// Marks the call as begun. The record of the task is updated with its next write.
    fn begin_unwritten(&self, tasks: &Inner, repeat: Repeat) {
        let recorded = self.running.record.lock().as_ref().map_or(State::Queued, |task| task.state);
        if self.running.begun.set(repeat).is_ok() {
            tasks.counts.moved(recorded, self.running.shown_state(recorded));
            tasks.live.publish_begun(&self.id, &self.running);
        }
    }
}

/// Returns whether the calls of a capability can be repeated.
pub(crate) fn repeat(entry: &Entry) -> Repeat {
    let provider = &entry.manifest.provider;
    match entry.manifest.is_idempotent() {
        _ if provider.is_journaled() => Repeat::Journaled,
        true => Repeat::Freely,
        false => Repeat::Never,
    }
}

//! [`Tasks`], the entry point to tasks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use orla_marketplace::{CapabilityMarketplace, ClientError, JsonText, Principal};
use orla_state::{Change, Pages, Query, Record, StateError, StateStore};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedRwLockWriteGuard, RwLock, Semaphore, broadcast, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::awaited::Awaited;
use crate::buffer::Buffer;
use crate::error::TaskError;
use crate::keys::{self, OwnerKey};
use crate::live::{Live, Update};
use crate::local::LocalTasks;
use crate::options::TaskOptions;
use crate::preloaded::Preloaded;
use crate::queue::Queue;
use crate::shared::{Shared, Sharing};
use crate::state::{Event, State};
use crate::task::{Failure, Owner, Task, TaskId, Timestamp};

/// The maximum number of events of a task that are not awaited yet.
pub(crate) const MAX_EVENTS: usize = 256;
/// The number of records read at once.
const BATCH: usize = 256;
/// The maximum size of the value of an event.
const MAX_EVENT: usize = 64 << 10;

/// The tasks of an instance. Clones share them.
///
/// Its methods must be called within a runtime.
#[derive(Clone)]
pub struct Tasks(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) store: Arc<dyn StateStore>,
    pub(crate) market: Arc<CapabilityMarketplace>,
    /// Set if several nodes share the store.
    pub(crate) shared: Option<Shared>,
    /// Set if the store of this node alone may have tasks for the shared one.
    pub(crate) buffer: Option<Buffer>,
    pub(crate) options: ArcSwap<TaskOptions>,
    pub(crate) live: Arc<Live>,
    pub(crate) local: LocalTasks,
    pub(crate) preloaded: Preloaded,
    pub(crate) awaited: Awaited,
    pub(crate) counts: Counts,
    pub(crate) queue: Mutex<Queue>,
    /// Notified when a task enters the queue.
    pub(crate) queued: Notify,
    /// Held by tasks that have left the queue and have not begun.
    pub(crate) starting: Arc<Semaphore>,
    /// Held by tasks that wait for an approval. These tasks hold no other place.
    pub(crate) asking: Arc<Semaphore>,
    /// Tasks that are set aside until fewer tasks wait for an approval.
    pub(crate) aside: Mutex<Queue>,
    /// How many tasks of each caller wait or run.
    pub(crate) unfinished: Mutex<HashMap<OwnerKey, usize>>,
    /// Whether a write that failed may have been made all the same.
    pub(crate) has_failed_write: AtomicBool,
    /// Notified when a timer may be due earlier than the next known one.
    pub(crate) timer_set: Notify,
    pub(crate) tracker: TaskTracker,
    /// Cancelled when no further task may begin.
    pub(crate) closing: CancellationToken,
    /// Cancelled when nothing that runs here needs another write.
    pub(crate) drained: CancellationToken,
    /// The tasks of the runtime that send the heartbeats of this node, if several share the store.
    pub(crate) node: TaskTracker,
    /// Cancelled to end everything at once.
    pub(crate) abort: CancellationToken,
    /// Locked for reading while clients change tasks, and for writing while the tasks of the previous
    /// process are taken up, so that each is counted and queued once.
    pub(crate) taking_up: Arc<RwLock<()>>,
    /// Locked for reading while sleeping tasks are woken: from the write that wakes them until they are
    /// in the queue.
    pub(crate) waking: RwLock<()>,
    /// Held from [`Tasks::hold`] to [`Tasks::resume`].
    pub(crate) held: Mutex<Option<OwnedRwLockWriteGuard<()>>>,
    /// When the process began to run tasks.
    pub(crate) started: OnceLock<Instant>,
    /// Tasks that were accepted before this time are those of an earlier process.
    pub(crate) opened: Timestamp,
}

/// The permission to see the tasks of others.
pub const READ: &str = "tasks:read";
/// The permission to cancel the tasks of others, and to send events to them.
pub const MANAGE: &str = "tasks:manage";

/// A party that views tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Viewer<'a> {
    /// The operator of the instance, or a caller with the permission: sees the tasks of all callers.
    Operator,
    /// A caller, with or without a principal: sees its own tasks.
    Caller(Option<&'a Principal>),
}

/// The answer to a request to start a task.
#[derive(Clone, Debug)]
pub struct Started {
    /// The task.
    pub task: Arc<Task>,
    /// Whether the task is new. If not, the same caller started it with the same idempotency key.
    pub is_new: bool,
    /// The later changes of the task, if it is new and was to be watched.
    pub changes: Option<watch::Receiver<Arc<Task>>>,
}

/// Selects the tasks to list, the newest first.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Filter {
    /// Only tasks in one of these states. Empty selects all.
    pub states: Vec<State>,
    /// Only tasks of this capability, by id or by the name that the caller gave.
    pub capability: Option<String>,
    /// Only tasks that are older than this one.
    pub before: Option<TaskId>,
    /// The maximum number of tasks to list: 100 by default, at most 1,000.
    pub limit: Option<usize>,
}

/// The number of tasks in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskCounts {
    /// In the order of [`State::ALL`]: for states that are not terminal, the tasks in them; for terminal
    /// states, the tasks that reached them since the start.
    pub by_state: [u64; State::ALL.len()],
}

/// The counts of tasks, updated concurrently.
#[derive(Debug, Default)]
pub(crate) struct Counts([AtomicU64; State::ALL.len()]);

impl Counts {
    fn at(state: State) -> usize {
        State::ALL.iter().position(|other| *other == state).unwrap_or_default()
    }

    pub(crate) fn entered(&self, state: State) {
        self.0[Self::at(state)].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn moved(&self, from: State, to: State) {
        let left = |count: u64| count.checked_sub(1);
        let _ = self.0[Self::at(from)].fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
        self.entered(to);
    }
}

impl Tasks {
    /// Checks whether tasks can be kept, as far as the store can tell.
    ///
    /// # Errors
    ///
    /// Returns an error if they cannot.
    pub async fn check_store(&self) -> Result<(), StateError> {
        self.0.store.check().await
    }

    /// Opens the tasks in a store. Neither reads the store nor runs a task before
    /// [`resume`](Self::resume).
    pub fn open(
        store: Arc<dyn StateStore>,
        market: Arc<CapabilityMarketplace>,
        options: TaskOptions,
    ) -> Self {
        Self::open_with(store, market, options, (None, None))
    }

    /// Opens the tasks in a store that several nodes share.
    pub fn open_shared(
        store: Arc<dyn StateStore>,
        market: Arc<CapabilityMarketplace>,
        options: TaskOptions,
        mut sharing: Sharing,
    ) -> Self {
        let buffer = sharing.own.take().map(|own| Buffer::new(own, sharing.accepts_alone));
        Self::open_with(store, market, options, (Some(Shared::new(sharing)), buffer))
    }

    fn open_with(
        store: Arc<dyn StateStore>,
        market: Arc<CapabilityMarketplace>,
        options: TaskOptions,
        (shared, buffer): (Option<Shared>, Option<Buffer>),
    ) -> Self {
        /// The maximum number of tasks that wait for a permit of the marketplace at once. The others
        /// wait in the queue of tasks, so that calls find room in the queue of the marketplace.
        const MAX_STARTING: usize = 64;
        /// The maximum number of tasks that wait for an approval at once. It is less than the number of
        /// questions kept for one caller. Further tasks are set aside.
        const MAX_ASKING: usize = 32;
        Self(Arc::new(Inner {
            store,
            market,
            shared,
            buffer,
            options: ArcSwap::from_pointee(options),
            live: Arc::default(),
            local: LocalTasks::default(),
            preloaded: Preloaded::default(),
            awaited: Awaited::default(),
            counts: Counts::default(),
            queue: Mutex::default(),
            queued: Notify::new(),
            starting: Arc::new(Semaphore::new(MAX_STARTING)),
            asking: Arc::new(Semaphore::new(MAX_ASKING)),
            aside: Mutex::default(),
            unfinished: Mutex::default(),
            has_failed_write: AtomicBool::new(false),
            timer_set: Notify::new(),
            tracker: TaskTracker::new(),
            closing: CancellationToken::new(),
            drained: CancellationToken::new(),
            node: TaskTracker::new(),
            abort: CancellationToken::new(),
            taking_up: Arc::default(),
            waking: RwLock::default(),
            held: Mutex::default(),
            started: OnceLock::new(),
            opened: Timestamp::now(),
        }))
    }

    /// Replaces the options.
    pub fn configure(&self, options: TaskOptions) {
        self.0.options.store(Arc::new(options));
    }

    /// Returns the current state of a task, including its notices so far.
    ///
    /// # Errors
    ///
    /// Returns an error if the viewer has no such task, or if the state cannot be read.
    pub async fn get(&self, id: &str, viewer: Viewer<'_>) -> Result<Arc<Task>, TaskError> {
        let unknown = || TaskError::Unknown(orla_marketplace::rtfs::text::excerpt(id, 100));
        let parsed = TaskId::parse(id).ok_or_else(unknown)?;
        let task = match self.0.known(&parsed) {
            Some(task) => task,
            None => match self.0.buffered(&parsed).await? {
                Some(task) => task,
                None => {
                    self.0.store.sync().await?;
                    self.0.load(&parsed).await?.ok_or_else(unknown)?
                }
            },
        };
        if !viewer.sees(&task) {
            return Err(unknown());
        }
        Ok(self.0.with_notices(task))
    }

    /// Returns the current state of several tasks, in the order of the ids. The entry of an absent task
    /// is `None`.
    ///
    /// # Errors
    ///
    /// Returns an error if the state cannot be read.
    pub async fn get_all(
        &self,
        ids: &[TaskId],
        viewer: Viewer<'_>,
    ) -> Result<Vec<Option<Arc<Task>>>, TaskError> {
        self.0.store.sync().await?;
        let mut tasks = Vec::with_capacity(ids.len());
        for ids in ids.chunks(BATCH) {
            let read = self.0.load_all(ids).await?.into_iter();
            tasks.extend(read.map(|task| {
                task.filter(|task| viewer.sees(task)).map(|task| self.0.with_notices(task))
            }));
        }
        Ok(tasks)
    }

    /// Returns the input of a task.
    ///
    /// # Errors
    ///
    /// Returns an error if the state cannot be read.
    pub async fn input(&self, id: &TaskId) -> Result<Option<JsonText>, TaskError> {
        Ok(self.0.text(&keys::input(id)).await?)
    }

    /// Returns the result of a task's call, in the form of
    /// [`call_result_json`](orla_mcp::call_result::call_result_json). A failed call has a result too,
    /// with `isError`. Returns `None` if there is no result yet, or if the call never ran to its end.
    ///
    /// # Errors
    ///
    /// Returns an error if the state cannot be read.
    pub async fn result(&self, id: &TaskId) -> Result<Option<JsonText>, TaskError> {
        Ok(self.0.text(&keys::result(id)).await?)
    }

    /// Returns the output of a cancelled task's call until its end, in the same form. Returns `None` if
    /// the call did not run or has not ended yet ([`wait_stopped`](Self::wait_stopped)).
    ///
    /// # Errors
    ///
    /// Returns an error if the state cannot be read.
    pub async fn cancelled_output(&self, id: &TaskId) -> Result<Option<JsonText>, TaskError> {
        Ok(self.0.text(&keys::cancelled_output(id)).await?)
    }

    /// Lists tasks, the newest first.
    ///
    /// # Errors
    ///
    /// Returns an error if the state cannot be read.
    pub async fn list(&self, filter: &Filter, viewer: Viewer<'_>) -> Result<Vec<Arc<Task>>, TaskError> {
        let limit = filter.limit.unwrap_or(100).min(1000);
        self.0.store.sync().await?;
        let prefix = match viewer {
            Viewer::Operator => keys::TASKS.to_owned(),
            Viewer::Caller(caller) => keys::owned(&OwnerKey::of_caller(caller)),
        };
        let mut query = Query::below(&prefix, BATCH).reversed();
        if let Some(before) = &filter.before {
            query.keys.end = format!("{prefix}{before}");
        }
        let mut pages = Pages::new(&*self.0.store, query);
        let mut found = Vec::new();
        while found.len() < limit {
            let rows = pages.next().await?;
            if rows.is_empty() {
                break;
            }
            let id = |row: &Record| row.key.strip_prefix(&prefix).and_then(TaskId::parse);
            let tasks: Vec<Option<Task>> = match viewer {
                Viewer::Operator => {
                    rows.iter().map(|row| Task::read(id(row)?, &row.value).ok()).collect()
                }
                Viewer::Caller(_) => {
                    let ids: Vec<TaskId> = rows.iter().filter_map(id).collect();
                    self.0.load_all(&ids).await?
                }
            };
            let shown = tasks.into_iter().flatten().map(|task| self.0.with_notices(task));
            let fitting = shown.filter(|task| viewer.sees(task) && filter.fits(task));
            found.extend(fitting.take(limit - found.len()));
        }
        Ok(found)
    }

    /// Waits until a task is over, asks its caller a question, or the deadline has passed. Returns the
    /// state of the task at that moment.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`get`](Self::get).
    pub async fn wait(
        &self,
        id: &str,
        viewer: Viewer<'_>,
        deadline: Instant,
    ) -> Result<Arc<Task>, TaskError> {
        let is_settled = |task: &Task| task.state.is_terminal() || task.state == State::InputRequired;
        let task = self.get(id, viewer).await?;
        if is_settled(&task) {
            return Ok(task);
        }
        let mut changes = self.watch_checked(self.0.live.watch_state(task), id, viewer).await?;
        let settled = changes.wait_for(|task| is_settled(task));
        // At the deadline, or if the task is over, the last seen state is returned.
        if let Ok(Ok(task)) = timeout_at(deadline, settled).await {
            return Ok(Arc::clone(&task));
        }
        self.get(id, viewer).await
    }

    /// Watches the changes of a task, from its current state to its end.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`get`](Self::get).
    pub async fn subscribe(
        &self,
        id: &str,
        viewer: Viewer<'_>,
    ) -> Result<watch::Receiver<Arc<Task>>, TaskError> {
        let changes = self.0.live.watch(self.get(id, viewer).await?);
        self.watch_checked(changes, id, viewer).await
    }

    /// Watches the states of a task, from the current one to its end, without its notices.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`get`](Self::get).
    pub(crate) async fn states(
        &self,
        id: &str,
        viewer: Viewer<'_>,
    ) -> Result<watch::Receiver<Arc<Task>>, TaskError> {
        let states = self.0.live.watch_state(self.get(id, viewer).await?);
        self.watch_checked(states, id, viewer).await
    }

    /// Watches the changes of a task that may have changed since it was read.
    async fn watch_checked(
        &self,
        changes: watch::Receiver<Arc<Task>>,
        id: &str,
        viewer: Viewer<'_>,
    ) -> Result<watch::Receiver<Arc<Task>>, TaskError> {
        let task = self.get(id, viewer).await?;
        // An empty write flushes the end of the task, which waits for the next write. If that fails, the
        // task is not over yet.
        let running = self.0.live.running(&task.id);
        if running.is_some_and(|running| running.ends_later.load(Ordering::SeqCst)) {
            drop(self.0.write(Vec::new()).await);
        }
        self.0.live.publish(&task);
        Ok(changes)
    }

    /// Cancels a task. The task is `cancelled` when this method returns; its call is ended afterwards.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`get`](Self::get), and [`TaskError::Over`] if the task was already over.
    pub async fn cancel(&self, id: &str, viewer: Viewer<'_>) -> Result<Arc<Task>, TaskError> {
        let id = self.get(id, viewer).await?.id.clone();
        let tasks = self.clone();
        self.run_detached(async move { tasks.cancel_unchecked(&id).await }).await
    }

    async fn cancel_unchecked(&self, id: &TaskId) -> Result<Arc<Task>, TaskError> {
        let running = self.0.live.running(id);
        let cancelled = self.0.change(id, &[Event::Cancel], |task| {
            if let Some(running) = &running {
                running.fill(task);
            }
            task.error = Some(Failure::cancelled());
            Ok(Vec::new())
        });
        let task = cancelled.await.map_err(|unchanged| unchanged.into_error(id))?;
        let owner = task.owner_key();
        // A concurrent waker has queued the task once this lock is acquired.
        drop(self.0.waking.write().await);
        let was_queued = self.0.queue.lock().remove(&owner, id);
        // A run that begins now must not find the older record.
        self.0.preloaded.take(id);
        if was_queued || self.0.aside.lock().remove(&owner, id) {
            self.0.leave(&owner, id);
        }
        // The task may have left the queue in the meantime.
        for running in running.into_iter().chain(self.0.live.running(id)) {
            running.keep_record(&task);
            running.cancellation.cancel();
        }
        Ok(Arc::new(task))
    }

    /// Waits until no part of a task's call runs in this process. A cancelled call takes a moment to
    /// end.
    pub async fn wait_stopped(&self, id: &TaskId) {
        if let Some(running) = self.0.live.running(id) {
            running.stopped.cancelled().await;
        }
    }

    /// Removes a finished task before its time.
    ///
    /// # Errors
    ///
    /// Returns an error if the state cannot be read or written.
    pub async fn forget(&self, id: &TaskId) -> Result<(), TaskError> {
        let task = self.0.load(id).await?.filter(|task| task.state.is_terminal());
        if let Some(task) = task {
            self.0.remove(&task).await?;
        }
        Ok(())
    }

    /// Listens to a task that runs in this process: all notices from now on, including those that its
    /// record does not keep.
    pub fn updates(&self, id: &TaskId) -> broadcast::Receiver<Update> {
        self.0.live.listen(id)
    }

    /// Returns the store of the tasks. A protocol's own data about a task belongs there too.
    pub fn store(&self) -> &Arc<dyn StateStore> {
        &self.0.store
    }

    /// Returns the name of this node, if several share the store.
    pub fn node(&self) -> Option<&str> {
        self.0.shared.as_ref().map(|shared| &*shared.me.node)
    }

    /// Sends an event to a task that is a program. The event is kept until the program awaits it.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`get`](Self::get), and an error if the task is over or not a program, or
    /// if the name is invalid.
    pub async fn event(
        &self,
        id: &str,
        viewer: Viewer<'_>,
        name: &str,
        value: JsonText,
    ) -> Result<(), TaskError> {
        let task = self.get(id, viewer).await?;
        if name.is_empty() || name.chars().count() > 256 {
            return Err(TaskError::InvalidEvent);
        }
        if task.state.is_terminal() {
            return Err(TaskError::Over(task.state));
        }
        if !self.0.is_program(&task) {
            return Err(TaskError::NoProgram);
        }
        if value.as_str().len() > MAX_EVENT {
            return Err(TaskError::LargeEvent(MAX_EVENT));
        }
        let id = task.id.clone();
        let waiting = self.0.store.list(Query::below(&keys::all_events(&id), MAX_EVENTS)).await?;
        if waiting.len() >= MAX_EVENTS {
            return Err(TaskError::ManyEvents(MAX_EVENTS));
        }
        let put = Change::put(keys::event(&id, name), value.bytes().clone());
        let tasks = self.clone();
        self.run_detached(async move { tasks.0.deliver(&id, put).await }).await
    }

    /// Answers a question of a task. `Err` means that the client refuses to answer.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`get`](Self::get), and an error if the task is over or asks no such
    /// question.
    pub async fn answer(
        &self,
        id: &str,
        viewer: Viewer<'_>,
        key: &str,
        answer: Result<JsonText, ClientError>,
    ) -> Result<(), TaskError> {
        let task = self.get(id, viewer).await?;
        if task.state.is_terminal() {
            return Err(TaskError::Over(task.state));
        }
        let (tasks, key) = (self.clone(), key.to_owned());
        self.run_detached(async move {
            let running = tasks.0.live.running(&task.id);
            let Some(running) = running.filter(|running| running.questions.answer(&key, answer)) else {
                return Err(TaskError::NotAsked(key));
            };
            tasks.0.answered(&task.id, &key, &running).await?;
            Ok(())
        })
        .await
    }

    /// Completes a change of tasks even if its caller goes away in the middle.
    pub(crate) async fn run_detached<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, TaskError>> + Send + 'static,
    ) -> Result<T, TaskError> {
        let taking_up = Arc::clone(&self.0.taking_up);
        let work = async move {
            let _taken_up = taking_up.read().await;
            work.await
        };
        self.0.tracker.spawn(work).await.unwrap_or_else(|error| {
            tracing::error!(%error, "a request for a task panicked");
            Err(TaskError::State(StateError::new("an internal error; see the server's log")))
        })
    }

    /// Returns the minimum time for which a task is kept after its acceptance. For a task that is not
    /// over, it grows with the task's age.
    pub fn lifetime(&self, task: &Task) -> Duration {
        let over = match task.state.is_terminal() {
            true => Duration::ZERO,
            false => self.0.options.load().timeout,
        };
        let seen = if task.state.is_terminal() { task.updated_at } else { Timestamp::now() };
        let age = Duration::from_millis(seen.0.saturating_sub(task.created_at.0));
        age.saturating_add(over).saturating_add(Duration::from_millis(self.0.keep_millis(task)))
    }

    /// Returns the number of tasks in each state.
    pub fn counts(&self) -> TaskCounts {
        TaskCounts { by_state: self.0.counts.0.each_ref().map(|count| count.load(Ordering::Relaxed)) }
    }

    /// Stops tasks from beginning. Running tasks may still end, until [`close`](Self::close).
    pub fn drain(&self) {
        self.0.closing.cancel();
    }

    /// Lets running tasks continue for this time, then ends them. Returns when nothing runs any more.
    /// Tasks that are not over stay in the store unchanged, as after a crash.
    pub async fn close(&self, drain: Duration) {
        self.drain();
        self.0.tracker.close();
        if tokio::time::timeout(drain, self.0.tracker.wait()).await.is_err() {
            self.0.abort.cancel();
            self.0.live.cancel_all();
            self.0.tracker.wait().await;
        }
        self.0.drained.cancel();
        // If possible, the heartbeat writes that this node is gone.
        self.0.node.close();
        self.0.node.wait().await;
    }
}

impl<'a> Viewer<'a> {
    /// The viewer for a caller that reads tasks. It sees the tasks of others if a policy grants it
    /// [`READ`], or if callers are not identified at all and all tasks belong to this instance.
    pub fn of(market: &CapabilityMarketplace, caller: Option<&'a Principal>) -> Self {
        Self::with(market, caller, READ)
    }

    /// Returns the viewer for a caller that changes a task. It may change the tasks of others if the
    /// policy grants it [`MANAGE`].
    pub fn managing(market: &CapabilityMarketplace, caller: Option<&'a Principal>) -> Self {
        Self::with(market, caller, MANAGE)
    }

    fn with(market: &CapabilityMarketplace, caller: Option<&'a Principal>, permission: &str) -> Self {
        let catalog = market.snapshot();
        // Other nodes of the cluster may identify their callers.
        let may_be_anyones = caller.is_some() || catalog.has_policy() || market.node().is_none();
        match may_be_anyones && catalog.permits_of_others(caller, "tasks", permission) {
            true => Self::Operator,
            false => Self::Caller(caller),
        }
    }

    pub(crate) fn sees(&self, task: &Task) -> bool {
        match self {
            Self::Operator => true,
            Self::Caller(caller) => {
                let owner = task.owner.as_ref().map(Owner::id);
                owner == caller.map(|caller| &**caller.id())
            }
        }
    }
}

impl Filter {
    fn fits(&self, task: &Task) -> bool {
        (self.states.is_empty() || self.states.contains(&task.state))
            && self.capability.as_ref().is_none_or(|name| *name == task.capability)
    }
}

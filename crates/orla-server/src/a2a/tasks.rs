//! The tasks of an agent and their followers. There is one lock, and nothing waits while it is held.
//!
//! If tasks are kept in the state, the first change starts a writer in the background. It runs until all changes are
//! written; changes that arrive meanwhile are written together.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};

use a2a::{
    Artifact, ListTasksRequest, ListTasksResponse, Message, Part, Role, StreamResponse, Task,
    TaskArtifactUpdateEvent, TaskPushNotificationConfig, TaskState, TaskStatus, TaskStatusUpdateEvent,
};
use chrono::{DateTime, SubsecRound, Utc};
use futures_util::Stream;
use futures_util::stream::unfold;
use orla_marketplace::Principal;
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::sync::{broadcast, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::result;
use super::store::{Row, Store, StoredTask};
use super::table::{Bounds, Changed, Hook, Live, Snapshot, Table, is_callers_turn, size};

/// How many events may wait for a follower of a task. A follower that is further behind gets the current task instead.
const BACKLOG: usize = 64;

/// The tasks.
pub(super) struct Tasks {
    table: Mutex<Table>,
    keeper: Option<Keeper>,
}

/// Where tasks are kept.
struct Keeper {
    tasks: Weak<Tasks>,
    store: Store,
    /// How many changes have been written.
    written: watch::Sender<u64>,
    tracker: TaskTracker,
    runtime: Handle,
}

/// Who follows a task, from a moment on.
pub(super) struct Following {
    /// How it stood at that moment.
    pub(super) first: Arc<Task>,
    events: Option<broadcast::Receiver<Arc<StreamResponse>>>,
}

/// Until when a task is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// Until nothing more happens unless the caller acts.
    CallersTurn,
    /// Until it is over.
    End,
}

/// Why a task accepts no message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MessageRefused {
    /// It is over.
    Over,
    /// It has asked nothing.
    NotAsking,
    /// It would be too large.
    Full,
}

/// The result of adding a push configuration.
pub(super) enum HookResult {
    /// There is no such task.
    NoTask,
    /// The task has too many push configurations.
    Full,
    /// It is finished: there are no events.
    Over,
    /// It goes on.
    Live(Following),
}

impl Tasks {
    /// Tasks that are not kept.
    pub(super) fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self { table: Mutex::new(Table::new(bounds)), keeper: None })
    }

    /// Tasks that are kept in the state, with those already in it. Tasks that were running when the last server ended
    /// have failed; returns their ids.
    pub(super) fn kept(
        bounds: Bounds,
        store: Store,
        kept: Vec<StoredTask>,
        tracker: TaskTracker,
        runtime: Handle,
    ) -> (Arc<Self>, Vec<String>) {
        let mut table = Table::new(bounds);
        let mut changed = fill(&mut table, kept);
        table.note_changes();
        changed.iter().for_each(|id| table.note(id));
        changed.retain(|id| table.get(id).is_some());
        table.expire(Utc::now());
        let tasks = Arc::new_cyclic(|tasks| Self {
            table: Mutex::new(table),
            keeper: Some(Keeper {
                tasks: Weak::clone(tasks),
                store,
                written: watch::Sender::new(0),
                tracker,
                runtime,
            }),
        });
        drop(tasks.lock());
        (tasks, changed)
    }

    /// A task of any caller, and its push configurations.
    pub(super) fn push_configs(&self, id: &str) -> Option<(Arc<Task>, Vec<TaskPushNotificationConfig>)> {
        let table = self.lock();
        let record = table.get(id)?;
        Some((Arc::clone(&record.task), record.hooks.iter().map(|hook| hook.config.clone()).collect()))
    }

    /// Waits until all changes so far are written, if tasks are kept in the state.
    pub(super) async fn settled(&self) {
        let Some(keeper) = &self.keeper else { return };
        let changes = self.lock().changes();
        // Fails when the writer has ended, which happens only when no requests are left.
        let _ = keeper.written.subscribe().wait_for(|written| *written >= changes).await;
    }

    /// Sets other bounds, from now on.
    pub(super) fn bound(&self, bounds: Bounds) {
        self.lock().bound(bounds);
    }

    /// A new task for a message; `None` if there is no room because all tasks are unfinished.
    ///
    /// # Errors
    /// The message alone is larger than a task may be.
    pub(super) fn begin(
        &self,
        mut message: Message,
        owner: Option<&Principal>,
        token: CancellationToken,
    ) -> Result<Option<Following>, MessageRefused> {
        let id = a2a::new_task_id();
        let context = message.context_id.clone().unwrap_or_else(a2a::new_context_id);
        (message.task_id, message.context_id) = (Some(id.clone()), Some(context.clone()));
        let task = Task {
            id: id.clone(),
            context_id: context,
            status: status(TaskState::Submitted, None),
            artifacts: None,
            history: Some(vec![message]),
            metadata: None,
        };
        let (events, _) = broadcast::channel(BACKLOG);
        let mut table = self.lock();
        table.expire(Utc::now());
        if !table.takes(size(&task)) {
            return Err(MessageRefused::Full);
        }
        let added = table.add(task, owner.cloned(), Some(Live { events, token, asking: None }));
        Ok(added.then(|| following(&mut table, &id, owner)).flatten())
    }

    /// Follows a task, if it belongs to this caller.
    pub(super) fn follow(&self, id: &str, caller: Option<&Principal>) -> Option<Following> {
        following(&mut self.lock(), id, caller)
    }

    /// A task, if it belongs to this caller.
    pub(super) fn get(&self, id: &str, caller: Option<&Principal>) -> Option<Arc<Task>> {
        let mut table = self.lock();
        table.expire(Utc::now());
        table.of(id, caller).map(|record| Arc::clone(&record.task))
    }

    /// Removes a task without a trace.
    pub(super) fn forget(&self, id: &str) {
        self.lock().forget(id);
    }

    /// Changes the state of an unfinished task.
    pub(super) fn become_of(&self, id: &str, state: TaskState, says: Option<Vec<Part>>) {
        become_of(&mut self.lock(), id, state, says);
    }

    /// Adds a message to a running task. A task that waits for an answer continues to wait.
    pub(super) fn say(&self, id: &str, says: Vec<Part>) {
        let mut table = self.lock();
        if table.get(id).is_some_and(|record| !is_callers_turn(&record.task.status.state)) {
            table.pass(id, |task| {
                task.status = status(TaskState::Working, Some(self::says(task, says)));
                (updated(task), 0)
            });
        }
    }

    /// Adds an artifact. Returns whether there is room for it.
    pub(super) fn give(&self, id: &str, artifact: Artifact) -> bool {
        let more = size(&artifact);
        let mut table = self.lock();
        let fits = table.fits(id, more);
        if fits {
            table.change(id, |task| {
                task.artifacts.get_or_insert_default().push(artifact.clone());
                let event = StreamResponse::ArtifactUpdate(TaskArtifactUpdateEvent {
                    task_id: task.id.clone(),
                    context_id: task.context_id.clone(),
                    artifact,
                    append: Some(false),
                    last_chunk: Some(true),
                    metadata: None,
                });
                (event, more)
            });
        }
        fits
    }

    /// Sends followers a part of a task's result before the result is complete. The part is not kept, because the
    /// whole result replaces it.
    pub(super) fn give_part(&self, id: &str, artifact: Artifact, append: bool) {
        let table = self.lock();
        let Some(record) = table.get(id) else { return };
        if let Some(live) = &record.live {
            // There may be no follower. The task itself is unchanged: it gets the complete result at the end.
            let _ =
                live.events.send(Arc::new(StreamResponse::ArtifactUpdate(TaskArtifactUpdateEvent {
                    task_id: record.task.id.clone(),
                    context_id: record.task.context_id.clone(),
                    artifact,
                    append: Some(append),
                    last_chunk: Some(false),
                    metadata: None,
                })));
        }
    }

    /// Cancels the unfinished tasks of these callers.
    pub(super) fn end_all(&self, of: impl Fn(Option<&Principal>) -> bool) {
        for live in self.lock().unfinished(of) {
            live.token.cancel();
        }
    }

    /// The token that cancels a task, if the task belongs to this caller; the inner `None` means that it is
    /// finished.
    pub(super) fn token(
        &self,
        id: &str,
        caller: Option<&Principal>,
    ) -> Option<Option<CancellationToken>> {
        let mut table = self.lock();
        let record = table.of(id, caller)?;
        Some(record.live.as_ref().map(|live| live.token.clone()))
    }

    /// Continues a task whose question has been withdrawn.
    pub(super) fn withdraw(&self, id: &str) {
        let mut table = self.lock();
        let Some(live) = table.get_mut(id).and_then(|record| record.live.as_mut()) else { return };
        if live.asking.take_if(|asking| asking.is_closed()).is_some() {
            become_of(&mut table, id, TaskState::Working, None);
        }
    }

    /// Asks a question: the next message of the task goes to the caller of this function.
    pub(super) fn ask(&self, id: &str, says: Vec<Part>) -> Option<oneshot::Receiver<Message>> {
        let mut table = self.lock();
        let (sender, receiver) = oneshot::channel();
        table.get_mut(id)?.live.as_mut()?.asking = Some(sender);
        become_of(&mut table, id, TaskState::InputRequired, Some(says));
        Some(receiver)
    }

    /// Passes a message to the task that waits for it, and follows the task from then on.
    ///
    /// # Errors
    /// The task does not wait for a message.
    pub(super) fn answer(
        &self,
        id: &str,
        mut message: Message,
    ) -> Result<Option<Following>, MessageRefused> {
        let mut table = self.lock();
        if !table.fits(id, size(&message)) && table.get(id).is_some_and(|record| record.live.is_some()) {
            return Err(MessageRefused::Full);
        }
        let Some(record) = table.get_mut(id) else { return Ok(None) };
        let Some(live) = &mut record.live else { return Err(MessageRefused::Over) };
        let asking = live.asking.take().filter(|asking| !asking.is_closed());
        let asking = asking.ok_or(MessageRefused::NotAsking)?;
        let owner = record.owner.clone();
        message.context_id = Some(record.task.context_id.clone());
        // Under one lock, because the task may ask again at once.
        let answer = message.clone();
        table.change(id, |task| {
            // The question belongs to the history.
            let grown = size(&task.status.message) + size(&answer);
            task.history.get_or_insert_default().extend(task.status.message.take());
            task.history.get_or_insert_default().push(answer);
            task.status = status(TaskState::Working, None);
            (updated(task), grown)
        });
        let following = following(&mut table, id, owner.as_ref());
        // Who waited may have gone just now: the task is about to be over.
        let _ = asking.send(message);
        Ok(following)
    }

    /// Adds a push configuration to a task of this caller.
    pub(super) fn hook(
        &self,
        id: &str,
        caller: Option<&Principal>,
        config: TaskPushNotificationConfig,
        stop: CancellationToken,
    ) -> HookResult {
        let mut table = self.lock();
        let Some(is_live) = table.of(id, caller).map(|record| record.live.is_some()) else {
            return HookResult::NoTask;
        };
        if !table.hook(id, Hook { config, stop }) {
            return HookResult::Full;
        }
        following(&mut table, id, caller).filter(|_| is_live).map_or(HookResult::Over, HookResult::Live)
    }

    /// The push configurations of a task of this caller.
    pub(super) fn hooks(
        &self,
        id: &str,
        caller: Option<&Principal>,
    ) -> Option<Vec<TaskPushNotificationConfig>> {
        let mut table = self.lock();
        table.of(id, caller).map(|record| record.hooks.iter().map(|hook| hook.config.clone()).collect())
    }

    /// Removes a push configuration. Returns whether the caller has such a task.
    pub(super) fn unhook(&self, id: &str, caller: Option<&Principal>, hook: &str) -> bool {
        let mut table = self.lock();
        let is_there = table.of(id, caller).is_some();
        if is_there {
            table.unhook(id, hook);
        }
        is_there
    }

    /// See [`Table::list`].
    pub(super) fn list(
        &self,
        asked: &ListTasksRequest,
        caller: Option<&Principal>,
    ) -> Result<ListTasksResponse, String> {
        let mut table = self.lock();
        table.expire(Utc::now());
        table.list(asked, caller)
    }

    /// Waits until a task is over.
    pub(super) async fn ended(&self, following: Following) {
        let Some(mut events) = following.events else { return };
        loop {
            match events.recv().await {
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                // The sender goes with the end.
                Err(broadcast::error::RecvError::Closed) => return,
            }
        }
    }

    /// The current state of a task, and then its events.
    pub(super) fn events(
        self: &Arc<Self>,
        following: Following,
        until: Until,
    ) -> impl Stream<Item = StreamResponse> + Send + use<> {
        let is_last = move |state: &TaskState| match until {
            Until::CallersTurn => is_callers_turn(state),
            Until::End => state.is_terminal(),
        };
        let id = following.first.id.clone();
        let state = (Arc::clone(self), id, Some(following.first), following.events);
        unfold(state, move |(tasks, id, first, events)| async move {
            if let Some(task) = first {
                let events = events.filter(|_| !is_last(&task.status.state));
                return Some((StreamResponse::Task(Task::clone(&task)), (tasks, id, None, events)));
            }
            let mut events = events?;
            let event = match events.recv().await {
                Ok(event) => StreamResponse::clone(&event),
                Err(broadcast::error::RecvError::Lagged(_)) => {
                    // Too many events were missed, so only the current state counts. No event comes in between.
                    let table = tasks.lock();
                    let record = table.get(&id)?;
                    let task = StreamResponse::Task(Task::clone(&record.task));
                    if let Some(live) = &record.live {
                        events = live.events.subscribe();
                    }
                    task
                }
                Err(broadcast::error::RecvError::Closed) => return None,
            };
            let is_over = match &event {
                StreamResponse::StatusUpdate(update) => is_last(&update.status.state),
                StreamResponse::Task(task) => is_last(&task.status.state),
                StreamResponse::Message(_) | StreamResponse::ArtifactUpdate(_) => false,
            };
            Some((event, (tasks, id, None, (!is_over).then_some(events))))
        })
    }

    fn lock(&self) -> Locked<'_> {
        // What is guarded is whole at every moment: a panic left nothing half done.
        let table = self.table.lock();
        Locked { table, keeper: self.keeper.as_ref() }
    }

    /// Writes until nothing is left to be written.
    async fn write(self: Arc<Self>) {
        let Some(keeper) = &self.keeper else { return };
        let mut fails = false;
        loop {
            let Some((count, changed)) = self.lock().take_changes() else { return };
            let written = keeper.store.write(changed.iter().map(row).collect()).await;
            if let Err(error) = &written
                && !fails
            {
                tracing::error!(%error, "tasks of the agent could not be kept");
            }
            fails = written.is_err();
            keeper.written.send_replace(count);
        }
    }
}

/// The locked table. Dropping it starts a writer if there are changes.
struct Locked<'a> {
    table: MutexGuard<'a, Table>,
    keeper: Option<&'a Keeper>,
}

impl Deref for Locked<'_> {
    type Target = Table;

    fn deref(&self) -> &Table {
        &self.table
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Table {
        &mut self.table
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if let Some(keeper) = self.keeper
            && self.table.begin_writing()
            && let Some(tasks) = keeper.tasks.upgrade()
        {
            keeper.tracker.spawn_on(tasks.write(), &keeper.runtime);
        }
    }
}

/// Adds stored tasks, and returns the ids of those that have changed.
fn fill(table: &mut Table, mut kept: Vec<StoredTask>) -> Vec<String> {
    kept.sort_by_key(|kept| kept.task.status.timestamp);
    let mut changed = Vec::new();
    let ids: Vec<String> = kept.iter().map(|kept| kept.task.id.clone()).collect();
    for StoredTask { mut task, owner, hooks } in kept {
        if !task.status.state.is_terminal() {
            let says = says(&task, result::ended());
            task.status = status(TaskState::Failed, Some(says));
            changed.push(task.id.clone());
        }
        let id = task.id.clone();
        table.add(task, owner.as_deref().map(Principal::from_id), None);
        for config in hooks {
            table.hook(&id, Hook { config, stop: CancellationToken::new() });
        }
    }
    // A task that has made room.
    changed.extend(ids.into_iter().filter(|id| table.get(id).is_none()));
    changed
}

/// A task as it is written.
fn row((id, task): &Changed) -> Row {
    let text = task.as_ref().and_then(|Snapshot { task, owner, hooks }| {
        let owner = owner.as_ref().map(|owner| owner.id().to_string());
        serde_json::to_vec(&StoredTask { task: Task::clone(task), owner, hooks: hooks.clone() }).ok()
    });
    (id.clone(), text)
}

fn following(table: &mut Table, id: &str, caller: Option<&Principal>) -> Option<Following> {
    let record = table.of(id, caller)?;
    let events = record.live.as_ref().map(|live| live.events.subscribe());
    Some(Following { first: Arc::clone(&record.task), events })
}

fn become_of(table: &mut Table, id: &str, state: TaskState, says: Option<Vec<Part>>) {
    table.change(id, |task| {
        let says = says.map(|parts| self::says(task, parts));
        task.status = status(state, says);
        (updated(task), 0)
    });
}

fn says(task: &Task, parts: Vec<Part>) -> Message {
    Message {
        task_id: Some(task.id.clone()),
        context_id: Some(task.context_id.clone()),
        ..Message::new(Role::Agent, parts)
    }
}

fn updated(task: &Task) -> StreamResponse {
    StreamResponse::StatusUpdate(TaskStatusUpdateEvent {
        task_id: task.id.clone(),
        context_id: task.context_id.clone(),
        status: task.status.clone(),
        metadata: None,
    })
}

fn status(state: TaskState, message: Option<Message>) -> TaskStatus {
    TaskStatus { state, message, timestamp: Some(now()) }
}

/// The time, in milliseconds.
fn now() -> DateTime<Utc> {
    Utc::now().trunc_subsecs(3)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use futures_util::StreamExt as _;

    fn message(text: &str) -> Message {
        Message::new(Role::User, vec![Part::text(text)])
    }

    fn tasks() -> Arc<Tasks> {
        Tasks::new(bounds())
    }

    fn bounds() -> Bounds {
        Bounds { tasks: 10, bytes: 1 << 20, task_bytes: 1 << 12, age: Duration::from_secs(60) }
    }

    fn begin(tasks: &Tasks) -> Following {
        tasks.begin(message("x"), None, CancellationToken::new()).unwrap().unwrap()
    }

    async fn states(tasks: &Arc<Tasks>, following: Following, until: Until) -> Vec<TaskState> {
        let events = tasks.events(following, until).map(|event| match event {
            StreamResponse::Task(task) => task.status.state,
            StreamResponse::StatusUpdate(update) => update.status.state,
            other => panic!("{other:?}"),
        });
        events.collect().await
    }

    #[tokio::test]
    async fn who_follows_a_task_is_told_to_its_end() {
        use TaskState::{Completed, InputRequired, Submitted, Working};
        let tasks = tasks();
        let first = begin(&tasks);
        let id = first.first.id.clone();
        let second = tasks.follow(&id, None).unwrap();
        tasks.become_of(&id, Working, None);
        let asked = tasks.ask(&id, vec![Part::text("what?")]).unwrap();
        let later = tasks.follow(&id, None).unwrap();
        let answered = tasks.answer(&id, message("this")).unwrap().unwrap();
        assert_eq!(asked.await.unwrap().text(), Some("this"));
        tasks.become_of(&id, Completed, Some(vec![Part::text("done")]));
        assert_eq!(states(&tasks, first, Until::CallersTurn).await, [Submitted, Working, InputRequired]);
        let all = [Submitted, Working, InputRequired, Working, Completed];
        assert_eq!(states(&tasks, second, Until::End).await, all);
        assert_eq!(states(&tasks, later, Until::End).await, [InputRequired, Working, Completed]);
        assert_eq!(states(&tasks, answered, Until::CallersTurn).await, [Working, Completed]);
        let over = tasks.follow(&id, None).unwrap();
        assert_eq!(
            states(&tasks, over, Until::End).await,
            [Completed],
            "one that is over is told as it is"
        );
        let said: Vec<_> = tasks.get(&id, None).unwrap().history.clone().unwrap();
        let said: Vec<_> = said.iter().map(|message| message.text().unwrap()).collect();
        assert_eq!(said, ["x", "what?", "this"]);
    }

    #[tokio::test]
    async fn who_is_too_slow_is_told_how_the_task_stands() {
        let tasks = tasks();
        let slow = begin(&tasks);
        let id = slow.first.id.clone();
        for _ in 0..=BACKLOG {
            tasks.become_of(&id, TaskState::Working, None);
        }
        let mut told = std::pin::pin!(tasks.events(slow, Until::End));
        assert!(told.next().await.is_some());
        let Some(StreamResponse::Task(task)) = told.next().await else { panic!("the task as it is") };
        assert_eq!(task.status.state, TaskState::Working);
        tasks.become_of(&id, TaskState::Completed, None);
        assert!(matches!(told.next().await, Some(StreamResponse::StatusUpdate(_))));
        assert!(told.next().await.is_none());
    }

    #[test]
    fn a_message_to_a_task_that_does_not_wait_is_refused() {
        let tasks = tasks();
        let id = begin(&tasks).first.id.clone();
        let said = |tasks: &Tasks, text: &str| tasks.answer(&id, message(text)).err();
        assert_eq!(said(&tasks, "x"), Some(MessageRefused::NotAsking));
        drop(tasks.ask(&id, Vec::new()));
        assert_eq!(said(&tasks, "x"), Some(MessageRefused::NotAsking), "who asked has gone");
        let _asked = tasks.ask(&id, Vec::new());
        assert_eq!(said(&tasks, &"x".repeat(1 << 12)), Some(MessageRefused::Full));
        assert_eq!(said(&tasks, "x"), None);
        tasks.become_of(&id, TaskState::Completed, None);
        assert_eq!(said(&tasks, "x"), Some(MessageRefused::Over));
        assert!(tasks.begin(message(&"x".repeat(1 << 12)), None, CancellationToken::new()).is_err());
    }

    #[tokio::test]
    async fn tasks_that_are_kept_are_there_again_and_what_was_at_work_has_failed() {
        let state = Arc::new(orla_state::Memory::default());
        let open = async |bounds| {
            let (store, kept) = Store::open(Arc::<orla_state::Memory>::clone(&state)).await.unwrap();
            let tracker = TaskTracker::new();
            (Tasks::kept(bounds, store, kept, tracker.clone(), Handle::current()).0, tracker)
        };
        let end = async |tasks: Arc<Tasks>, tracker: TaskTracker| {
            tasks.settled().await;
            drop(tasks);
            tracker.close();
            tracker.wait().await;
        };
        let (tasks, tracker) = open(bounds()).await;
        let done = begin(&tasks).first.id.clone();
        tasks.become_of(&done, TaskState::Completed, None);
        let (working, gone) = (begin(&tasks).first.id.clone(), begin(&tasks).first.id.clone());
        tasks.forget(&gone);
        end(tasks, tracker).await;

        let (tasks, tracker) = open(bounds()).await;
        let state = |id: &str| tasks.get(id, None).map(|task| task.status.state.clone());
        assert_eq!((state(&done), state(&gone)), (Some(TaskState::Completed), None));
        assert_eq!(state(&working), Some(TaskState::Failed));
        let said = tasks.get(&working, None).unwrap().status.message.clone().unwrap();
        assert_eq!(said.parts, result::ended());
        end(tasks, tracker).await;

        let (tasks, tracker) = open(Bounds { tasks: 1, ..bounds() }).await;
        assert!(tasks.get(&done, None).is_none() && tasks.get(&working, None).is_some());
        end(tasks, tracker).await;
        let (tasks, _) = open(bounds()).await;
        assert!(tasks.get(&done, None).is_none(), "what has had to make room is gone");
    }
}

//! The tasks of an agent, and those who follow them. One lock; nothing waits while it is held.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use a2a::{
    Artifact, ListTasksRequest, ListTasksResponse, Message, Part, Role, StreamResponse, Task,
    TaskArtifactUpdateEvent, TaskState, TaskStatus, TaskStatusUpdateEvent,
};
use chrono::{DateTime, SubsecRound, Utc};
use futures_util::Stream;
use futures_util::stream::unfold;
use orla_marketplace::Principal;
use tokio::sync::{broadcast, oneshot};
use tokio_util::sync::CancellationToken;

use super::table::{Bounds, Live, Table, is_callers_turn, size};

/// How many events may wait for who follows a task; beyond that it is told how the task stands.
const BACKLOG: usize = 64;

/// The tasks.
pub(super) struct Tasks {
    table: Mutex<Table>,
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
    /// Until nothing more happens unless the caller does something.
    CallersTurn,
    /// Until it is over.
    End,
}

/// Why a task takes no message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Deaf {
    /// It is over.
    Over,
    /// It has asked nothing.
    NotAsking,
    /// It would be too large.
    Full,
}

impl Tasks {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { table: Mutex::new(Table::new(bounds)) }
    }

    /// Other bounds, for what comes from now on.
    pub(super) fn bound(&self, bounds: Bounds) {
        self.lock().bound(bounds);
    }

    /// A new task for a message; none where there is no room, as every task is at work.
    ///
    /// # Errors
    /// The message alone is larger than a task may be.
    pub(super) fn begin(
        &self,
        mut message: Message,
        owner: Option<&Principal>,
        token: CancellationToken,
    ) -> Result<Option<Following>, Deaf> {
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
            return Err(Deaf::Full);
        }
        let added = table.add(task, owner.cloned(), Some(Live { events, token, asking: None }));
        Ok(added.then(|| following(&mut table, &id, owner)).flatten())
    }

    /// Follows a task, if it is this caller's.
    pub(super) fn follow(&self, id: &str, caller: Option<&Principal>) -> Option<Following> {
        following(&mut self.lock(), id, caller)
    }

    /// A task, if it is this caller's.
    pub(super) fn get(&self, id: &str, caller: Option<&Principal>) -> Option<Arc<Task>> {
        let mut table = self.lock();
        table.expire(Utc::now());
        table.of(id, caller).map(|record| Arc::clone(&record.task))
    }

    /// Forgets a task, as if it had never been.
    pub(super) fn forget(&self, id: &str) {
        self.lock().forget(id);
    }

    /// Puts a task into another state; not one that is over.
    pub(super) fn become_of(&self, id: &str, state: TaskState, says: Option<Vec<Part>>) {
        become_of(&mut self.lock(), id, state, says);
    }

    /// Adds an artifact. Whether there is room for it.
    pub(super) fn give(&self, id: &str, artifact: Artifact) -> bool {
        let more = size(&artifact);
        let mut table = self.lock();
        let fits = table.fits(id, more);
        if fits {
            table.change(id, |task| {
                task.artifacts.get_or_insert_default().push(artifact.clone());
                StreamResponse::ArtifactUpdate(TaskArtifactUpdateEvent {
                    task_id: task.id.clone(),
                    context_id: task.context_id.clone(),
                    artifact,
                    append: Some(false),
                    last_chunk: Some(true),
                    metadata: None,
                })
            });
        }
        fits
    }

    /// Tells who follows a task of a part of its result, which is not there yet: nothing of it is kept, as the whole
    /// takes its place.
    pub(super) fn give_part(&self, id: &str, artifact: Artifact, append: bool) {
        self.lock().change(id, |task| {
            StreamResponse::ArtifactUpdate(TaskArtifactUpdateEvent {
                task_id: task.id.clone(),
                context_id: task.context_id.clone(),
                artifact,
                append: Some(append),
                last_chunk: Some(false),
                metadata: None,
            })
        });
    }

    /// What cancels a task, if it is this caller's; `None` inside where it is over.
    pub(super) fn token(
        &self,
        id: &str,
        caller: Option<&Principal>,
    ) -> Option<Option<CancellationToken>> {
        let mut table = self.lock();
        let record = table.of(id, caller)?;
        Some(record.live.as_ref().map(|live| live.token.clone()))
    }

    /// Says something that has to be answered: the next message of the task is given to who waits for it here.
    pub(super) fn ask(&self, id: &str, says: Vec<Part>) -> Option<oneshot::Receiver<Message>> {
        let mut table = self.lock();
        let (sender, receiver) = oneshot::channel();
        table.get_mut(id)?.live.as_mut()?.asking = Some(sender);
        become_of(&mut table, id, TaskState::InputRequired, Some(says));
        Some(receiver)
    }

    /// Gives a message to who waits for it, and follows the task from then on.
    ///
    /// # Errors
    /// Nobody waits for one.
    pub(super) fn answer(&self, id: &str, mut message: Message) -> Result<Option<Following>, Deaf> {
        let mut table = self.lock();
        if !table.fits(id, size(&message)) && table.get(id).is_some_and(|record| record.live.is_some()) {
            return Err(Deaf::Full);
        }
        let Some(record) = table.get_mut(id) else { return Ok(None) };
        let Some(live) = &mut record.live else { return Err(Deaf::Over) };
        let asking = live.asking.take().filter(|asking| !asking.is_closed());
        let asking = asking.ok_or(Deaf::NotAsking)?;
        let owner = record.owner.clone();
        message.context_id = Some(record.task.context_id.clone());
        // In one piece: who waited may ask again at once.
        let told = message.clone();
        table.change(id, |task| {
            // What was asked belongs to what was said.
            task.history.get_or_insert_default().extend(task.status.message.take());
            task.history.get_or_insert_default().push(told);
            task.status = status(TaskState::Working, None);
            updated(task)
        });
        let following = following(&mut table, id, owner.as_ref());
        // Who waited may have gone just now: the task is about to be over.
        let _ = asking.send(message);
        Ok(following)
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

    /// How a task stands, and then what happens to it.
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
                    // Too much was missed: how it stands is all that counts. Nothing comes in between.
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

    fn lock(&self) -> MutexGuard<'_, Table> {
        // What is guarded is whole at every moment: a panic left nothing half done.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn following(table: &mut Table, id: &str, caller: Option<&Principal>) -> Option<Following> {
    let record = table.of(id, caller)?;
    let events = record.live.as_ref().map(|live| live.events.subscribe());
    Some(Following { first: Arc::clone(&record.task), events })
}

fn become_of(table: &mut Table, id: &str, state: TaskState, says: Option<Vec<Part>>) {
    table.change(id, |task| {
        let says = says.map(|parts| Message {
            task_id: Some(task.id.clone()),
            context_id: Some(task.context_id.clone()),
            ..Message::new(Role::Agent, parts)
        });
        task.status = status(state, says);
        updated(task)
    });
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
        let age = Duration::from_secs(60);
        Arc::new(Tasks::new(Bounds { tasks: 10, bytes: 1 << 20, task_bytes: 1 << 12, age }))
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
    fn a_message_that_nobody_waits_for_is_not_taken() {
        let tasks = tasks();
        let id = begin(&tasks).first.id.clone();
        let said = |tasks: &Tasks, text: &str| tasks.answer(&id, message(text)).err();
        assert_eq!(said(&tasks, "x"), Some(Deaf::NotAsking));
        drop(tasks.ask(&id, Vec::new()));
        assert_eq!(said(&tasks, "x"), Some(Deaf::NotAsking), "who asked has gone");
        let _asked = tasks.ask(&id, Vec::new());
        assert_eq!(said(&tasks, &"x".repeat(1 << 12)), Some(Deaf::Full));
        assert_eq!(said(&tasks, "x"), None);
        tasks.become_of(&id, TaskState::Completed, None);
        assert_eq!(said(&tasks, "x"), Some(Deaf::Over));
        assert!(tasks.begin(message(&"x".repeat(1 << 12)), None, CancellationToken::new()).is_err());
    }
}

//! The work of an agent, independent of the binding of the request.
//!
//! A message that calls a capability starts a task of the task service ([`Tasks`]). The task service
//! runs the task, keeps its state, its questions and its result, and continues it after a crash. The
//! data that only this protocol has is kept beside the task ([`Records`]). A message that starts no call
//! has only a record.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use a2a::{
    A2AError, CancelTaskRequest, GetTaskRequest, Message, Part, Role, SendMessageRequest,
    SendMessageResponse, StreamResponse, SubscribeToTaskRequest, Task, TaskPushNotificationConfig,
    TaskState, TaskStatus,
};
use chrono::{SubsecRound as _, Utc};
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use orla_marketplace::{Call, Catalog, Entry, JsonText, Principal, RuntimeError, millis_up};
use orla_mcp::call_result::call_result_json;
use orla_state::{Expect, StateError};
use orla_tasks::{Failure, NewTask, State, TaskError, TaskId, Tasks, Viewer};
use parking_lot::Mutex;
use tokio::sync::{OnceCell, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::Caller;
use super::follow::{Following, Live, Until};
use super::push::{self, POSTS, deliver};
use super::question;
use super::records::{Record, Records};
use super::result::{self, CallOutput, Form};
use super::stored::{StoredTasks, TaskSlot, is_before};
use super::view::{self, shorten, size};
use super::work::{self, Texts};
use crate::options::AgentOptions;
use crate::rtfs::federation;
use crate::tasks::other_nodes::answer_question;

/// The agent, created at the first request.
pub(crate) struct Agent {
    pub(super) tasks: Tasks,
    pub(super) records: Records,
    /// The known tasks, read when first needed.
    stored_tasks: OnceCell<StoredTasks>,
    /// The unfinished tasks that this server has started for callers with a principal. A task is removed
    /// when its end is noticed.
    unfinished: Mutex<HashMap<TaskId, Unfinished>>,
    /// The push configurations with active deliveries.
    pub(super) deliveries: Mutex<HashMap<push::DeliveryKey, Arc<CancellationToken>>>,
    /// Limits the number of concurrent posts.
    pub(super) posts: Semaphore,
    /// The generation of the snapshot that was last shown, and the time since which it has been shown.
    shown: Mutex<(u64, SystemTime)>,
}

/// A task that this server has started.
struct Unfinished {
    owner: Principal,
    changes: watch::Receiver<Arc<orla_tasks::Task>>,
}

pub(super) type A2AResult<T> = Result<T, A2AError>;

impl Agent {
    /// Creates the agent of these tasks.
    pub(crate) fn new(tasks: Tasks) -> Self {
        let shown = Mutex::new((0, SystemTime::UNIX_EPOCH));
        let records = Records::new(Arc::clone(tasks.store()));
        Self {
            tasks,
            records,
            stored_tasks: OnceCell::new(),
            unfinished: Mutex::default(),
            deliveries: Mutex::default(),
            posts: Semaphore::new(POSTS),
            shown,
        }
    }

    /// Returns the time since which a snapshot has been shown.
    pub(super) fn since(&self, generation: u64, now: SystemTime) -> SystemTime {
        let mut shown = self.shown.lock();
        if shown.0 != generation {
            *shown = (generation, now);
        }
        shown.1
    }

    /// Returns the name of this node, or the empty string if no other node shares the state.
    pub(super) fn node(&self) -> &str {
        self.tasks.node().unwrap_or_default()
    }

    /// Returns the unfinished tasks that this server has started for these callers.
    pub(crate) fn unfinished(&self, of: impl Fn(&Principal) -> bool) -> Vec<TaskId> {
        let mut unfinished = self.unfinished.lock();
        unfinished.retain(|_, task| {
            // The sender is dropped when the task ends.
            task.changes.has_changed().is_ok() && !task.changes.borrow().state.is_terminal()
        });
        let theirs = unfinished.iter().filter(|(_, task)| of(&task.owner));
        theirs.map(|(id, _)| id.clone()).collect()
    }

    /// Cancels tasks.
    pub(crate) async fn cancel_all(&self, ids: Vec<TaskId>) {
        for id in ids {
            match self.tasks.cancel(id.as_str(), Viewer::Operator).await {
                Ok(_) | Err(TaskError::Over(_) | TaskError::Unknown(_)) => {}
                Err(error) => {
                    tracing::error!(task = %id, %error, "a task of a withdrawn credential is not cancelled");
                }
            }
        }
    }

    pub(super) async fn stored_tasks(&self) -> Result<&StoredTasks, StateError> {
        self.stored_tasks
            .get_or_try_init(async || Ok(StoredTasks::new(self.records.rows(None).await?)))
            .await
    }

    /// Follows a task from now on. Returns `None` if the viewer has no task with this id.
    pub(super) async fn follow(
        &self,
        id: &str,
        viewer: Viewer<'_>,
    ) -> Result<Option<Following>, TaskError> {
        self.stored_tasks().await?;
        let Some(record) = self.records.get(id).await? else { return Ok(None) };
        if let Viewer::Caller(caller) = viewer
            && !record.is_of(caller)
        {
            return Ok(None);
        }
        if !record.is_task {
            return Ok(Some(Following { record, live: None }));
        }
        let Some(id) = TaskId::parse(id) else { return Ok(None) };
        let updates = self.tasks.updates(&id);
        match self.tasks.subscribe(id.as_str(), viewer).await {
            Ok(mut changes) => {
                let first = Arc::clone(&changes.borrow_and_update());
                Ok(Some(Following { record, live: Some(Live { first, changes, updates }) }))
            }
            // The time for which the task is kept has passed.
            Err(TaskError::Unknown(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the result of a task's call, if the task is over.
    pub(super) async fn output(&self, task: &orla_tasks::Task) -> Result<Option<CallOutput>, TaskError> {
        let text = match task.state {
            State::Cancelled => self.tasks.cancelled_output(&task.id).await?,
            state if state.is_terminal() => self.tasks.result(&task.id).await?,
            _ => None,
        };
        Ok(text.as_ref().map(read))
    }

    /// Returns a task in the form of the protocol.
    pub(super) async fn view(
        &self,
        record: &Record,
        task: &orla_tasks::Task,
    ) -> Result<Task, TaskError> {
        Ok(view::task(record, task, self.output(task).await?.as_ref()))
    }
}

fn read(text: &JsonText) -> CallOutput {
    CallOutput::read(text.as_str())
}

/// Returns the error of a state that cannot be read or written.
#[expect(clippy::needless_pass_by_value, reason = "a function for map_err")]
pub(super) fn broken(error: StateError) -> A2AError {
    A2AError::internal(error.to_string())
}

pub(super) fn refused(error: &TaskError) -> A2AError {
    match error {
        TaskError::Unknown(_) => A2AError::task_not_found(&error.to_string()),
        TaskError::Full(_) => too_many_tasks(),
        TaskError::LargeInput { .. } => too_large(),
        error => A2AError::internal(crate::tasks::message(error)),
    }
}

fn too_many_tasks() -> A2AError {
    A2AError::internal("every task is at work; try again later")
}

fn too_large() -> A2AError {
    A2AError::invalid_params("message: with it, the task would be larger than a task may be")
}

impl Caller {
    pub(super) fn viewer(&self) -> Viewer<'_> {
        Viewer::Caller(self.principal.as_ref())
    }

    /// Follows a task of this caller from now on.
    pub(super) async fn follow(&self, id: &str) -> A2AResult<Following> {
        let keep = self.options().keep;
        let following = self.agent().follow(id, self.viewer()).await.map_err(|err| refused(&err))?;
        let is_kept = |following: &Following| {
            let ended_at = following.record.task.status.timestamp.filter(|_| following.live.is_none());
            !ended_at.is_some_and(|at| is_before(at.timestamp_millis(), keep))
        };
        following.filter(is_kept).ok_or_else(|| A2AError::task_not_found(id))
    }

    pub(super) fn options(&self) -> AgentOptions {
        self.core.settings.load().options.agent.clone()
    }

    /// Returns the current state of a task.
    async fn view(&self, following: &Following) -> A2AResult<Task> {
        match &following.live {
            Some(live) => {
                let view = self.agent().view(&following.record, &live.first).await;
                view.map_err(|err| refused(&err))
            }
            None => Ok(following.record.task.clone()),
        }
    }

    /// Starts or continues the task of a message, and waits until the caller must act.
    pub(super) async fn send(&self, request: SendMessageRequest) -> A2AResult<SendMessageResponse> {
        let configuration = request.configuration.clone();
        let at_once = configuration.as_ref().and_then(|it| it.return_immediately) == Some(true);
        let is_first = request.message.task_id.is_none();
        let mut following = self.begin(request).await?;
        if !at_once && let Some(live) = &mut following.live {
            let id = live.first.id.clone();
            let is_callers_turn = |task: &Arc<orla_tasks::Task>| {
                task.state.is_terminal() || task.state == State::InputRequired
            };
            let seen = tokio::select! {
                task = live.changes.wait_for(is_callers_turn) => task.ok().map(|task| Arc::clone(&task)),
                // The next server continues the task.
                () = self.core.abort.cancelled() => None,
            };
            live.first = match seen {
                Some(task) => task,
                None => {
                    let task = self.agent().tasks.get(id.as_str(), self.viewer()).await;
                    task.map_err(|err| refused(&err))?
                }
            };
            let output = self.agent().output(&live.first).await.map_err(|err| refused(&err))?;
            if let (State::Completed, Some(output), true) = (live.first.state, &output, is_first)
                && output.form() == Form::Message
            {
                let message = Message {
                    context_id: Some(following.record.task.context_id.clone()),
                    ..Message::new(Role::Agent, output.parts())
                };
                // A direct answer replaces the task: the caller has received it.
                if let Some(row) = following.record.row() {
                    let stored = self.agent().stored_tasks().await.map_err(broken)?;
                    stored.remove(&row, &self.agent().records).await.map_err(broken)?;
                }
                return Ok(SendMessageResponse::Message(message));
            }
        }
        let mut task = self.view(&following).await?;
        shorten(&mut task, configuration.and_then(|it| it.history_length));
        Ok(SendMessageResponse::Task(task))
    }

    /// Like [`send`](Self::send), but returns a stream of events.
    pub(super) async fn stream(
        &self,
        request: SendMessageRequest,
    ) -> A2AResult<BoxStream<'static, StreamResponse>> {
        let length = request.configuration.as_ref().and_then(|it| it.history_length);
        let following = self.begin(request).await?;
        let events = following.events(self.agent(), Until::CallersTurn);
        Ok(self.until_shutdown(events.map(move |mut event| {
            if let StreamResponse::Task(task) = &mut event {
                shorten(task, length);
            }
            event
        })))
    }

    /// Streams the events of a task from now on.
    pub(super) async fn subscribe(
        &self,
        request: &SubscribeToTaskRequest,
    ) -> A2AResult<BoxStream<'static, StreamResponse>> {
        let following = self.follow(&request.id).await?;
        if following.live.as_ref().is_none_or(|live| live.first.state.is_terminal()) {
            return Err(already_ended(&request.id));
        }
        Ok(self.until_shutdown(following.events(self.agent(), Until::End)))
    }

    pub(super) async fn get(&self, request: &GetTaskRequest) -> A2AResult<Task> {
        if request.history_length.is_some_and(|length| length < 0) {
            return Err(A2AError::invalid_params("historyLength: expected 0 or more"));
        }
        let mut task = self.view(&self.follow(&request.id).await?).await?;
        shorten(&mut task, request.history_length);
        Ok(task)
    }

    /// Cancels a task and returns its state.
    pub(super) async fn cancel(&self, request: &CancelTaskRequest) -> A2AResult<Task> {
        let mut following = self.follow(&request.id).await?;
        let Some(live) = &mut following.live else {
            return Err(A2AError::task_not_cancelable(&request.id));
        };
        match self.agent().tasks.cancel(&request.id, self.viewer()).await {
            Ok(task) => {
                // The answer includes the output of the call until its end.
                self.agent().tasks.wait_stopped(&task.id).await;
                live.first = task;
            }
            // The task ended earlier.
            Err(TaskError::Over(_)) => return Err(A2AError::task_not_cancelable(&request.id)),
            Err(error) => return Err(refused(&error)),
        }
        self.view(&following).await
    }

    /// Returns a stream that ends when the server stops accepting requests.
    fn until_shutdown(
        &self,
        events: impl futures_util::Stream<Item = StreamResponse> + Send + 'static,
    ) -> BoxStream<'static, StreamResponse> {
        events.take_until(self.core.abort.clone().cancelled_owned()).boxed()
    }

    /// Starts a task, or passes a message to the task that waits for it.
    async fn begin(&self, request: SendMessageRequest) -> A2AResult<Following> {
        let message = request.message;
        work::check(&message)?;
        let push =
            request.configuration.as_ref().and_then(|it| it.task_push_notification_config.clone());
        if let Some(push) = &push {
            self.check_push(push)?;
        }
        if request.configuration.is_some_and(|it| it.history_length.is_some_and(|length| length < 0)) {
            return Err(A2AError::invalid_params("configuration.historyLength: expected 0 or more"));
        }
        match message.task_id.clone() {
            Some(id) => self.continue_task(&id, message, push).await,
            None => self.start(message, push).await,
        }
    }

    /// Handles a message for an existing task, which is the answer to its question.
    async fn continue_task(
        &self,
        id: &str,
        mut message: Message,
        push: Option<TaskPushNotificationConfig>,
    ) -> A2AResult<Following> {
        let following = self.follow(id).await?;
        let context = following.record.task.context_id.clone();
        if message.context_id.as_ref().is_some_and(|own| *own != context) {
            return Err(A2AError::invalid_params("message.contextId: it is not that of the task"));
        }
        message.context_id = Some(context);
        let task = match &following.live {
            Some(live) if !live.first.state.is_terminal() => &live.first,
            _ => return Err(already_ended(id)),
        };
        let no_open_question =
            || A2AError::unsupported_operation(format!("task {id} has asked nothing"));
        let question = task.questions.first().ok_or_else(no_open_question)?;
        if size(&following.record.task) + size(&message) > self.options().max_task_bytes {
            return Err(too_large());
        }
        if let Some(push) = push {
            self.create_push(TaskPushNotificationConfig { task_id: id.to_owned(), ..push }).await?;
        }
        let answer = question::answer(question, &message);
        let wrong = answer.as_ref().err().map(|wrong| (question.key.clone(), wrong.clone()));
        let changed = self.agent().records.change(id, |record| {
            let question_message = view::status_of(record, task, None).message;
            let history = record.task.history.get_or_insert_default();
            history.extend(question_message);
            history.push(message.clone());
            record.wrong.clone_from(&wrong);
        });
        changed.await.map_err(broken)?;
        if let Ok(answer) = answer {
            let (tasks, caller) = (&self.agent().tasks, self.principal.as_ref());
            match answer_question(&self.core, tasks, caller, task, &question.key, Ok(answer)).await {
                Ok(()) => {}
                Err(TaskError::NotAsked(_)) => return Err(no_open_question()),
                Err(TaskError::Over(_)) => return Err(already_ended(id)),
                Err(error) => return Err(refused(&error)),
            }
        }
        let mut answered = self.follow(id).await?;
        // Notices that followed the answer are sent too.
        if let (Some(after), Some(before)) = (&mut answered.live, following.live) {
            after.updates = before.updates;
        }
        Ok(answered)
    }

    async fn start(
        &self,
        mut message: Message,
        push: Option<TaskPushNotificationConfig>,
    ) -> A2AResult<Following> {
        let (agent, options) = (self.agent(), self.options());
        let call =
            work::read(&message).into_call(self.texts(&options.text, &self.core.market.snapshot()));
        let id = TaskId::new();
        let context = message.context_id.clone().unwrap_or_else(a2a::new_context_id);
        (message.task_id, message.context_id) = (Some(id.to_string()), Some(context.clone()));
        let mut record = Record {
            task: Task {
                id: id.to_string(),
                context_id: context,
                status: TaskStatus { state: TaskState::Submitted, message: None, timestamp: None },
                artifacts: None,
                history: Some(vec![message]),
                metadata: None,
            },
            owner: self.principal.as_ref().map(|caller| caller.id().to_string()),
            hooks: Vec::new(),
            told: Vec::new(),
            node: agent.node().to_owned(),
            is_task: true,
            wrong: None,
        };
        if size(&record.task) > options.max_task_bytes {
            return Err(too_large());
        }
        let hook = push.map(|push| self.prepared(id.as_str(), push)).transpose()?;
        record.hooks.extend(hook.clone());
        let mut new = match call {
            Ok(mut call) => {
                federation::apply_headers(&mut call, &self.headers)
                    .map_err(A2AError::invalid_request)?;
                self.task_of(call, &options)
            }
            Err(why) => {
                return self.record_refusal(record, TaskState::Rejected, vec![Part::text(why)]).await;
            }
        };
        new.id = Some(id);
        let caller = self.clone();
        let accepted = self.core.tracker.spawn(async move { caller.accept(record, new, hook).await });
        accepted.await.unwrap_or_else(|error| Err(A2AError::internal(error.to_string())))
    }

    /// Starts the task of a message. It must run to completion even if its client disconnects.
    async fn accept(
        &self,
        record: Record,
        mut new: NewTask,
        hook: Option<TaskPushNotificationConfig>,
    ) -> A2AResult<Following> {
        let (agent, id) = (self.agent(), new.id.clone().unwrap_or_default());
        let slot = self.reserve_slot(&self.options()).await?;
        new.beside = record.changes(Expect::Absent).map_err(broken)?;
        let updates = agent.tasks.updates(&id);
        let started = match agent.tasks.start(new).await {
            Ok(started) => started,
            Err(error) => {
                drop(slot);
                let TaskError::Refused(error) = error else { return Err(refused(&error)) };
                let is_refusal =
                    matches!(error, RuntimeError::Unknown { .. } | RuntimeError::Denied { .. });
                let state = if is_refusal { TaskState::Rejected } else { TaskState::Failed };
                let failure = Failure::of(&error);
                let output = JsonText::parse(call_result_json(&Err(error))).ok();
                let message = result::failure_parts(&failure, output.as_ref().map(read).as_ref());
                return self.record_refusal(record, state, message).await;
            }
        };
        if let Some(row) = record.row() {
            slot.keep(row);
        }
        let Some(changes) = started.changes else {
            return Err(A2AError::internal("the changes of a new task cannot be watched"));
        };
        let first = started.task;
        if let Some(owner) = &self.principal {
            let task = Unfinished { owner: owner.clone(), changes: changes.clone() };
            agent.unfinished.lock().insert(id, task);
        }
        if let Some(config) = hook {
            let (first, updates) = (Arc::clone(&first), updates.resubscribe());
            let live = Some(Live { first, changes: changes.clone(), updates });
            deliver(&self.core, Following { record: record.clone(), live }, config);
        }
        Ok(Following { record, live: Some(Live { first, changes, updates }) })
    }

    /// Records a message that starts no task, so that its caller finds the refusal under the message's
    /// id.
    async fn record_refusal(
        &self,
        mut record: Record,
        state: TaskState,
        parts: Vec<Part>,
    ) -> A2AResult<Following> {
        let (agent, options) = (self.agent(), self.options());
        let (task, now) = (&mut record.task, Utc::now());
        task.status = view::status(&task.id, &task.context_id, state, Some(parts), now.trunc_subsecs(3));
        record.is_task = false;
        let slot = self.reserve_slot(&options).await?;
        agent.records.put(&record).await.map_err(broken)?;
        if let Some(row) = record.row() {
            slot.keep(row);
        }
        for config in record.hooks.clone() {
            deliver(&self.core, Following { record: record.clone(), live: None }, config);
        }
        Ok(Following { record, live: None })
    }

    /// Reserves a place among the stored tasks.
    async fn reserve_slot(&self, options: &AgentOptions) -> A2AResult<TaskSlot<'_>> {
        let agent = self.agent();
        let stored = agent.stored_tasks().await.map_err(broken)?;
        let slot = stored.reserve(options.max_tasks, options.keep, &agent.tasks, &agent.records).await;
        slot.map_err(|err| refused(&err))?.ok_or_else(too_many_tasks)
    }

    /// Returns the task that makes a call.
    fn task_of(&self, call: Call, options: &AgentOptions) -> NewTask {
        let mut new = NewTask::call(call.target, call.input, self.principal.clone());
        new.client = question::capabilities();
        new.is_watched = true;
        new.keep_ms = Some(millis_up(options.keep));
        new.terms.hops = call.scope.hops.as_str().to_owned();
        new.terms.traceparent = call.scope.traceparent.as_deref().map(str::to_owned);
        new.terms.timeout_ms = call.timeout.map(millis_up);
        new.terms.max_result_bytes = Some(options.max_task_bytes);
        new.terms.has_only_tasks = true;
        new
    }

    /// Returns the capability that answers texts: the configured one, or else the one that answers
    /// prompts, if this caller may use it.
    fn texts<'a>(&self, configured: &'a str, catalog: &'a Catalog) -> Option<Texts<'a>> {
        let takes_prompt = |entry: &Entry| entry.manifest.provider.answers_prompts();
        if !configured.is_empty() {
            let takes_prompt = catalog.get(configured).is_some_and(|entry| takes_prompt(entry));
            return Some(Texts { name: configured, takes_prompt });
        }
        let permits = |entry: &Entry| catalog.permits(self.principal.as_ref(), entry).is_ok();
        let entries = catalog.entries().iter();
        let entry = entries
            .map(|entry| &**entry)
            .find(|entry| entry.is_available() && takes_prompt(entry) && permits(entry))?;
        Some(Texts { name: &entry.name, takes_prompt: true })
    }
}

fn already_ended(id: &str) -> A2AError {
    A2AError::unsupported_operation(format!("task {id} is over"))
}

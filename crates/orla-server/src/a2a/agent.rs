//! The work of an agent, independent of the binding of the request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use a2a::{
    A2AError, CancelTaskRequest, GetTaskRequest, ListTasksRequest, ListTasksResponse, Message, Part,
    Role, SendMessageRequest, SendMessageResponse, StreamResponse, SubscribeToTaskRequest, Task,
    TaskPushNotificationConfig, TaskState,
};
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use orla_marketplace::{
    ANSWERS_PROMPTS, Call, Catalog, Entry, Notice, NoticeSink, Outcome, Principal, Progress,
    RuntimeError, RuntimeResult,
};
use orla_state::{StateError, StateStore};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Caller;
use super::push::POSTS;
use super::question::TaskClient;
use super::result::{self, Form};
use super::store::Store;
use super::table::{Bounds, shorten};
use super::tasks::{Following, MessageRefused, Tasks, Until};
use super::work::{self, Texts};
use crate::options::AgentOptions;
use crate::rtfs::federation;

/// The agent, created at the first request.
pub(crate) struct Agent {
    pub(super) tasks: Arc<Tasks>,
    /// Capacity for posts that are sent at the same time.
    pub(super) posts: Arc<Semaphore>,
    /// The snapshot that was last shown, and since when.
    shown: Mutex<(u64, SystemTime)>,
}

impl Agent {
    pub(crate) fn new(options: &AgentOptions) -> Self {
        Self::of(Tasks::new(bounds(options)))
    }

    /// An agent whose tasks are kept in a state, and the ids of the tasks that the last server did not finish.
    ///
    /// # Errors
    /// The state cannot be read.
    pub(crate) async fn keeping(
        options: &AgentOptions,
        state: Arc<dyn StateStore>,
        tracker: TaskTracker,
    ) -> Result<(Self, Vec<String>), StateError> {
        let (store, kept) = Store::open(state).await?;
        let (tasks, unfinished) = Tasks::kept(bounds(options), store, kept, tracker, Handle::current());
        Ok((Self::of(tasks), unfinished))
    }

    fn of(tasks: Arc<Tasks>) -> Self {
        let shown = Mutex::new((0, SystemTime::UNIX_EPOCH));
        Self { tasks, posts: Arc::new(Semaphore::new(POSTS)), shown }
    }

    /// Since when a snapshot has been shown.
    pub(super) fn since(&self, generation: u64, now: SystemTime) -> SystemTime {
        let mut shown = self.shown.lock();
        if shown.0 != generation {
            *shown = (generation, now);
        }
        shown.1
    }

    /// Cancels the unfinished tasks of these callers.
    pub(crate) fn end_all(&self, of: impl Fn(Option<&Principal>) -> bool) {
        self.tasks.end_all(of);
    }

    /// Takes over other options.
    pub(crate) fn reconfigure(&self, options: &AgentOptions) {
        self.tasks.bound(bounds(options));
    }
}

fn bounds(options: &AgentOptions) -> Bounds {
    Bounds {
        tasks: options.max_tasks,
        bytes: options.max_bytes,
        task_bytes: options.max_task_bytes,
        age: options.keep,
    }
}

type A2AResult<T> = Result<T, A2AError>;

impl Caller {
    /// Starts or continues the task of a message, and waits until it is the caller's turn.
    pub(super) async fn send(&self, request: SendMessageRequest) -> A2AResult<SendMessageResponse> {
        let configuration = request.configuration.clone();
        let at_once = configuration.as_ref().and_then(|it| it.return_immediately) == Some(true);
        let length = configuration.and_then(|it| it.history_length);
        let (answer, mut answered) = oneshot::channel();
        let following = self.begin(request, (!at_once).then_some(answer))?;
        let mut task = Task::clone(&following.first);
        if !at_once {
            let tasks = Arc::clone(&self.agent().tasks);
            // The first event is the current state.
            let mut events = tasks.events(following, Until::CallersTurn).boxed();
            while events.next().await.is_some() {}
            if let Ok(message) = answered.try_recv() {
                return Ok(SendMessageResponse::Message(message));
            }
            tasks.settled().await;
            let known = tasks.get(&task.id, self.principal.as_ref());
            task = Task::clone(&*known.ok_or_else(|| A2AError::task_not_found(&task.id))?);
        }
        shorten(&mut task, length);
        Ok(SendMessageResponse::Task(task))
    }

    /// The same, as a stream of events.
    pub(super) fn stream(
        &self,
        request: SendMessageRequest,
    ) -> A2AResult<BoxStream<'static, StreamResponse>> {
        let length = request.configuration.as_ref().and_then(|it| it.history_length);
        let following = self.begin(request, None)?;
        let events = self.agent().tasks.events(following, Until::CallersTurn);
        Ok(self.until_the_end(events.map(move |mut event| {
            if let StreamResponse::Task(task) = &mut event {
                shorten(task, length);
            }
            event
        })))
    }

    /// What happens to a task from now on.
    pub(super) fn subscribe(
        &self,
        asked: &SubscribeToTaskRequest,
    ) -> A2AResult<BoxStream<'static, StreamResponse>> {
        let tasks = &self.agent().tasks;
        let following = tasks.follow(&asked.id, self.principal.as_ref());
        let following = following.ok_or_else(|| A2AError::task_not_found(&asked.id))?;
        if following.first.status.state.is_terminal() {
            return Err(A2AError::unsupported_operation(format!("task {} is over", asked.id)));
        }
        Ok(self.until_the_end(tasks.events(following, Until::End)))
    }

    pub(super) fn get(&self, asked: &GetTaskRequest) -> A2AResult<Task> {
        if asked.history_length.is_some_and(|length| length < 0) {
            return Err(A2AError::invalid_params("historyLength: expected 0 or more"));
        }
        let task = self.agent().tasks.get(&asked.id, self.principal.as_ref());
        let mut task = Task::clone(&*task.ok_or_else(|| A2AError::task_not_found(&asked.id))?);
        shorten(&mut task, asked.history_length);
        Ok(task)
    }

    pub(super) fn list(&self, asked: &ListTasksRequest) -> A2AResult<ListTasksResponse> {
        self.agent().tasks.list(asked, self.principal.as_ref()).map_err(A2AError::invalid_params)
    }

    /// Cancels a task and returns its state afterwards.
    pub(super) async fn cancel(&self, asked: &CancelTaskRequest) -> A2AResult<Task> {
        let tasks = &self.agent().tasks;
        let lost = || A2AError::task_not_found(&asked.id);
        let following = tasks.follow(&asked.id, self.principal.as_ref()).ok_or_else(lost)?;
        let token = tasks.token(&asked.id, self.principal.as_ref()).ok_or_else(lost)?;
        let Some(token) = token else { return Err(A2AError::task_not_cancelable(&asked.id)) };
        token.cancel();
        tasks.ended(following).await;
        tasks.settled().await;
        let task = tasks.get(&asked.id, self.principal.as_ref()).ok_or_else(lost)?;
        match task.status.state {
            TaskState::Canceled => Ok(Task::clone(&task)),
            // It came to its end before.
            _ => Err(A2AError::task_not_cancelable(&asked.id)),
        }
    }

    /// A stream that ends when the server stops accepting requests.
    fn until_the_end(
        &self,
        events: impl futures_util::Stream<Item = StreamResponse> + Send + 'static,
    ) -> BoxStream<'static, StreamResponse> {
        events.take_until(self.core.abort.clone().cancelled_owned()).boxed()
    }

    /// Starts a task, or passes a message to the task that waits for it. `answer` receives a message, if the
    /// result is one.
    fn begin(
        &self,
        request: SendMessageRequest,
        answer: Option<oneshot::Sender<Message>>,
    ) -> A2AResult<Following> {
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
            Some(id) => self.go_on(&id, message, push),
            None => self.start(message, push, answer),
        }
    }

    /// A message for an existing task: the answer to its question.
    fn go_on(
        &self,
        id: &str,
        message: Message,
        push: Option<TaskPushNotificationConfig>,
    ) -> A2AResult<Following> {
        let tasks = &self.agent().tasks;
        let lost = || A2AError::task_not_found(id);
        let known = tasks.get(id, self.principal.as_ref()).ok_or_else(lost)?;
        if message.context_id.as_ref().is_some_and(|context| *context != known.context_id) {
            return Err(A2AError::invalid_params("message.contextId: it is not that of the task"));
        }
        // Registered before the message is handled, because the task may finish at any time after it.
        let hooked = push.map(|push| self.hook(id, push)).transpose()?;
        let answered = tasks.answer(id, message);
        if let (Err(_), Some(hook)) = (&answered, hooked.and_then(|config| config.id)) {
            tasks.unhook(id, self.principal.as_ref(), &hook);
        }
        match answered {
            Ok(following) => following.ok_or_else(lost),
            Err(MessageRefused::Over) => {
                Err(A2AError::unsupported_operation(format!("task {id} is over")))
            }
            Err(MessageRefused::NotAsking) => {
                Err(A2AError::unsupported_operation(format!("task {id} has asked nothing")))
            }
            Err(MessageRefused::Full) => Err(too_large()),
        }
    }

    fn start(
        &self,
        message: Message,
        push: Option<TaskPushNotificationConfig>,
        answer: Option<oneshot::Sender<Message>>,
    ) -> A2AResult<Following> {
        let texts = self.core.settings.load().options.agent.text.clone();
        let mut call = work::read(&message).into_call(self.texts(&texts, &self.core.market.snapshot()));
        if let Ok(call) = &mut call {
            federation::carry(call, &self.headers).map_err(A2AError::invalid_request)?;
        }
        let token = self.core.abort.child_token();
        let begun = self.agent().tasks.begin(message, self.principal.as_ref(), token.clone());
        let begun = begun.map_err(|_| too_large())?;
        let following =
            begun.ok_or_else(|| A2AError::internal("every task is at work; try again later"))?;
        let id = following.first.id.clone();
        if let Some(push) = push {
            self.hook(&id, push).inspect_err(|_| self.agent().tasks.forget(&id))?;
        }
        self.core.tracker.spawn(self.clone().run(id, call, token, answer));
        Ok(following)
    }

    /// The capability that answers texts: the configured one, or else the one that answers prompts, if this caller
    /// may use it.
    fn texts<'a>(&self, configured: &'a str, catalog: &'a Catalog) -> Option<Texts<'a>> {
        let takes_prompt = |entry: &Entry| entry.manifest.provider.kind() == ANSWERS_PROMPTS;
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

    /// Does the work of a task, to its end.
    async fn run(
        self,
        id: String,
        call: Result<Call, String>,
        token: CancellationToken,
        answer: Option<oneshot::Sender<Message>>,
    ) {
        let tasks = &self.agent().tasks;
        let call = match call {
            Ok(call) => call,
            Err(why) => return tasks.become_of(&id, TaskState::Rejected, Some(vec![Part::text(why)])),
        };
        tasks.become_of(&id, TaskState::Working, None);
        let result = self.call(&id, call, token.clone()).await;
        if let (Ok(outcome), Some(answer)) = (&result, answer)
            && result::form(outcome) == Form::Message
            && answer.send(self.message(&id, outcome)).is_ok()
        {
            // There was no task: the caller has the answer.
            return tasks.forget(&id);
        }
        let ended_by_server = self.core.abort.is_cancelled();
        self.end(&id, &result, token.is_cancelled(), ended_by_server);
    }

    async fn call(&self, id: &str, mut call: Call, token: CancellationToken) -> RuntimeResult<Outcome> {
        let tasks = &self.agent().tasks;
        let (told, own, begun) = (Arc::clone(tasks), id.to_owned(), AtomicBool::new(false));
        call.scope.notices = NoticeSink::new(move |notice| match notice {
            Notice::Progress(Progress { message: Some(text), .. })
            | Notice::Log { message: text, .. } => {
                told.say(&own, vec![Part::text(text)]);
            }
            Notice::Text(text) => {
                let append = begun.swap(true, Ordering::Relaxed);
                told.give_part(&own, result::piece(text), append);
            }
            Notice::Progress(Progress { message: None, .. }) => {}
        });
        call.scope.client = Some(Arc::new(TaskClient {
            tasks: Arc::clone(tasks),
            task: id.to_owned(),
            turn: tokio::sync::Mutex::new(()),
            closing: self.core.draining.clone(),
            token: token.clone(),
        }));
        call.scope.principal.clone_from(&self.principal);
        call.scope.cancellation = token;
        self.core.market.call(call).await
    }

    /// Puts a task into the state that its result means.
    fn end(&self, id: &str, result: &RuntimeResult<Outcome>, cancelled: bool, ended_by_server: bool) {
        let tasks = &self.agent().tasks;
        let given = result.as_ref().map_or_else(RuntimeError::outcome, Some);
        let fits = given.and_then(result::artifact).is_none_or(|artifact| tasks.give(id, artifact));
        match result {
            Ok(_) if !fits => {
                let what = "its result is larger than a task may be".to_owned();
                let error = RuntimeError::Limit { id: "the task".to_owned(), what };
                tasks.become_of(id, TaskState::Failed, Some(result::said(&error)));
            }
            Ok(_) => tasks.become_of(id, TaskState::Completed, None),
            Err(_) if ended_by_server => {
                tasks.become_of(id, TaskState::Failed, Some(result::ended()));
            }
            Err(_) if cancelled => tasks.become_of(id, TaskState::Canceled, None),
            Err(error) => {
                let is_refusal =
                    matches!(error, RuntimeError::Unknown { .. } | RuntimeError::Denied { .. })
                        || given.is_some_and(|outcome| result::form(outcome) == Form::Rejection);
                let state = if is_refusal { TaskState::Rejected } else { TaskState::Failed };
                tasks.become_of(id, state, Some(result::said(error)));
            }
        }
    }

    /// What a call gave, as a message.
    fn message(&self, id: &str, outcome: &Outcome) -> Message {
        let task = self.agent().tasks.get(id, self.principal.as_ref());
        Message {
            context_id: task.map(|task| task.context_id.clone()),
            ..Message::new(Role::Agent, result::parts(outcome))
        }
    }
}

fn too_large() -> A2AError {
    A2AError::invalid_params("message: with it, the task would be larger than a task may be")
}

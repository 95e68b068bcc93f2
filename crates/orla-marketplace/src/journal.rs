//! What is kept of a run, so that another process can go on with it.
//!
//! A run is deterministic: the same answers in the same order make the same run. So a [`Journal`] keeps the answers
//! of a run, and now and then its whole state instead. A call that leaves the process is noted before it begins, and
//! all that was noted before it is durable by then. After a crash, the host gives the answers to the run
//! again ([`program`](crate::program)). Then the calls without an answer are made: those that had not begun, and those that are idempotent.
//! Others fail with the error `:interrupted`, because nothing says whether they were made.
//!
//! A call has a journal in its [`CallScope`](crate::CallScope). Calls within the call do not inherit it.

use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use rtfs::{Error, Position, Request, Scope, Ticket, Value, Wait};

/// Keeps the answers that a run gets.
#[async_trait]
pub trait Journal: Send + Sync {
    /// What is known of the run. It is asked once, before the run begins or goes on.
    ///
    /// # Errors
    /// It cannot be read, or it cannot be used; the run then fails with this error.
    async fn recall(&self) -> Result<Past, Error>;

    /// Notes that the run began a long wait (a timer, an event or another task), or that a call of it waits again and has
    /// not begun. Nothing waits for it to be durable.
    fn waits(&self, asked: &Asked);

    /// Notes that a call leaves the process. The call begins when this returns `Ok`: then the note is durable, and all
    /// notes before it.
    ///
    /// # Errors
    /// The note cannot be written. The call must not be made.
    async fn begins(&self, asked: &Asked, is_idempotent: bool) -> Result<(), Error>;

    /// Notes an answer, in the form that [`rtfs::Run::write_answer`] gives. `failed` is the kind of its error.
    ///
    /// # Errors
    /// An earlier note could not be written, or the journal is full. The run must end with this error.
    fn answered(&self, asked: &Asked, answer: Vec<u8>, failed: Option<&str>) -> Result<(), Error>;

    /// The answer to a wait.
    ///
    /// # Errors
    /// The error with which the wait ends.
    async fn wait(&self, ticket: Ticket, wait: &Wait) -> Result<Value, Error>;

    /// The run does not want the answer to a request any more.
    fn withdrawn(&self, ticket: Ticket);

    /// Whether so much was noted since the last saved state that saving the state again pays.
    fn is_long(&self) -> bool;

    /// Replaces the answers noted until now by the state of the run that they have led to.
    ///
    /// # Errors
    /// The state is too large to be kept.
    fn save(&self, state: Vec<u8>) -> Result<(), Error>;

    /// Saves the state of a run that waits for nothing but `waits`, durably, and arranges that the run is begun again when
    /// one of them has an answer. `false` if one has an answer already: the run goes on.
    ///
    /// # Errors
    /// The state cannot be written.
    async fn suspend(&self, state: Vec<u8>, waits: Vec<(Asked, Wait)>) -> Result<bool, Error>;

    /// Whether the run was suspended. Its program then ends without a value or an error of its own.
    fn is_suspended(&self) -> bool;
}

/// What a journal knows about a run.
#[derive(Debug, Default)]
pub struct Past {
    /// The state that was saved last, in the form of [`rtfs::Run::save`].
    pub state: Option<Vec<u8>>,
    /// The answers since then, in the order in which the run got them.
    pub answers: Vec<(Ticket, Vec<u8>)>,
    /// The calls that began and have no answer.
    pub begun: Vec<Begun>,
}

/// A call that began in an earlier process, and whose answer is unknown.
#[derive(Clone, Debug)]
pub struct Begun {
    /// What the answer would belong to.
    pub ticket: Ticket,
    /// Whether the call may be made again.
    pub is_idempotent: bool,
}

/// A request of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// What the answer belongs to.
    pub ticket: Ticket,
    /// What it is.
    pub action: Action,
    /// Its subject: the id of a capability, the name of an event, an instant, words.
    pub name: Arc<str>,
    /// Where in the program.
    pub at: Option<Position>,
    /// When.
    pub began: SystemTime,
    /// The step or branch of the program that it is in.
    pub scope: Option<Arc<Scope>>,
}

/// The kinds of requests of a run, by the forms of its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// `call`
    Call,
    /// `stream`
    Stream,
    /// The next item of a stream.
    Next,
    /// `send!`
    Send,
    /// `close!`
    Close,
    /// `capabilities`
    Capabilities,
    /// `describe`
    Describe,
    /// `sleep-until`
    SleepUntil,
    /// `await-task`
    AwaitTask,
    /// `await-event`
    AwaitEvent,
}

impl Action {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Call,
        Self::Stream,
        Self::Next,
        Self::Send,
        Self::Close,
        Self::Capabilities,
        Self::Describe,
        Self::SleepUntil,
        Self::AwaitTask,
        Self::AwaitEvent,
    ];

    /// The name of the form.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Stream => "stream",
            Self::Next => "next",
            Self::Send => "send!",
            Self::Close => "close!",
            Self::Capabilities => "capabilities",
            Self::Describe => "describe",
            Self::SleepUntil => "sleep-until",
            Self::AwaitTask => "await-task",
            Self::AwaitEvent => "await-event",
        }
    }
}

impl Asked {
    /// What a request asks for, now.
    pub(crate) fn of(
        ticket: Ticket,
        request: &Request,
        at: Option<Position>,
        scope: Option<Arc<Scope>>,
    ) -> Self {
        let stream = |stream: &Ticket| stream.0.to_string().into();
        let (action, name): (_, Arc<str>) = match request {
            Request::Open { id, .. } => (Action::Stream, id.as_str().into()),
            Request::Next { stream: of } => (Action::Next, stream(of)),
            Request::Send { stream: to, .. } => (Action::Send, stream(to)),
            Request::Close { stream: of } => (Action::Close, stream(of)),
            Request::Search { query } => (Action::Capabilities, query.as_str().into()),
            Request::Describe { id } => (Action::Describe, id.as_str().into()),
            Request::Wait(Wait::Until(instant)) => (Action::SleepUntil, instant.to_string().into()),
            Request::Wait(Wait::Task(id)) => (Action::AwaitTask, id.as_str().into()),
            Request::Wait(Wait::Event(name)) => (Action::AwaitEvent, name.as_str().into()),
            Request::Call { id, .. } => (Action::Call, id.as_str().into()),
            _ => (Action::Call, "".into()),
        };
        Self { ticket, action, name, at, began: SystemTime::now(), scope }
    }
}

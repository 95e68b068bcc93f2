//! The journal of a run, with which another process can continue the run.
//!
//! A run is deterministic: the same answers in the same order give the same run. A [`Journal`] therefore
//! stores the answers of a run, and sometimes its whole state instead. A call that leaves the process is
//! recorded before it begins, and all earlier records are durable by then. After a crash, the host
//! passes the answers to the run again ([`program`](crate::program)). Then the calls without an answer
//! are made if they had not begun or are idempotent. Other calls fail with the error `:interrupted`,
//! because it is unknown whether they were made.
//!
//! A call has a journal in its [`CallScope`](crate::CallScope). Nested calls do not inherit it.

use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use rtfs::{Error, Position, Request, Scope, Ticket, Value, Wait};

/// Stores the answers that a run gets.
#[async_trait]
pub trait Journal: Send + Sync {
    /// Returns the recorded past of the run. Called once, before the run begins or continues.
    ///
    /// # Errors
    /// It cannot be read, or it cannot be used; the run then fails with this error.
    async fn recall(&self) -> Result<JournalContents, Error>;

    /// Records that the run began a long wait (a timer, an event or another task), or that one of its
    /// calls waits again and has not begun. This function does not wait until the record is durable.
    fn record_wait(&self, request: &RunRequest);

    /// Records that a call leaves the process. The call begins when this function returns `Ok`. By then
    /// this record and all earlier ones are durable.
    ///
    /// # Errors
    /// The note cannot be written. The call must not be made.
    async fn record_begin(&self, request: &RunRequest, is_idempotent: bool) -> Result<(), Error>;

    /// Records an answer, in the form that [`rtfs::Run::write_answer`] gives. `failed` is the kind of
    /// its error.
    ///
    /// # Errors
    /// An earlier note could not be written, or the journal is full. The run must end with this error.
    fn record_answer(
        &self,
        request: &RunRequest,
        answer: Vec<u8>,
        failed: Option<&str>,
    ) -> Result<(), Error>;

    /// Waits for the answer to a long wait.
    ///
    /// # Errors
    /// The error with which the wait ends.
    async fn wait(&self, ticket: Ticket, wait: &Wait) -> Result<Value, Error>;

    /// Records that the run no longer wants the answer to a request.
    fn record_withdrawal(&self, ticket: Ticket);

    /// Returns whether the journal has grown so much since the last saved state that saving the state
    /// again pays off.
    fn is_long(&self) -> bool;

    /// Replaces the recorded answers by the state of the run that they have led to.
    ///
    /// # Errors
    /// The state is too large to be kept.
    fn save(&self, state: Vec<u8>) -> Result<(), Error>;

    /// Saves the state of a run that waits only for `waits`, durably, and arranges that the run is
    /// started again when one of them has an answer. Returns `false` if one has an answer already: the
    /// run continues.
    ///
    /// # Errors
    /// The state cannot be written.
    async fn suspend(&self, state: Vec<u8>, waits: Vec<(RunRequest, Wait)>) -> Result<bool, Error>;

    /// Returns whether the run was suspended. Its program then ends without a value or an error of its
    /// own.
    fn is_suspended(&self) -> bool;
}

/// The recorded past of a run.
#[derive(Debug, Default)]
pub struct JournalContents {
    /// The state that was saved last, in the form of [`rtfs::Run::save`].
    pub state: Option<Vec<u8>>,
    /// The answers since then, in the order in which the run got them.
    pub answers: Vec<(Ticket, Vec<u8>)>,
    /// The calls that began and have no answer.
    pub begun: Vec<BegunCall>,
}

/// A call that began in an earlier process, and whose answer is unknown.
#[derive(Clone, Debug)]
pub struct BegunCall {
    /// The ticket of the request.
    pub ticket: Ticket,
    /// Whether the call may be repeated.
    pub is_idempotent: bool,
}

/// A request of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRequest {
    /// The ticket of the answer.
    pub ticket: Ticket,
    /// The kind of the request.
    pub action: Action,
    /// Its subject: the id of a capability, the name of an event, an instant, words.
    pub name: Arc<str>,
    /// The position in the program.
    pub at: Option<Position>,
    /// The time of the request.
    pub began: SystemTime,
    /// The step or branch of the program that contains the request.
    pub scope: Option<Arc<Scope>>,
}

/// The kinds of requests of a run, named by the forms of the program.
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

    /// Returns the name of the form.
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

impl RunRequest {
    /// Returns the current request of an event.
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

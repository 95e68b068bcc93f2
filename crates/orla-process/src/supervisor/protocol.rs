//! The protocol between the server and a supervised process.

use std::fmt;
use std::sync::Arc;

use bytes::BytesMut;
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

/// The protocol of one process: it turns bytes into events and requests into bytes. It does no I/O.
///
/// The supervisor makes a new protocol for every process. It writes the [`unwritten`](Self::unwritten)
/// bytes, reads into the [`read_buffer`](Self::read_buffer), and takes events from [`next`](Self::next). `next` does
/// not return responses: the protocol sends each to the `reply` that came with its request.
///
/// Requests are identified by their tickets. No two requests of a [`Supervised`](super::Supervised) have
/// the same ticket, even if they went to different processes. A late response therefore never matches
/// another request.
pub trait Protocol: Sized + Send + 'static {
    /// A request of a caller.
    type Request: fmt::Debug + Send;
    /// The response to a request.
    type Response: fmt::Debug + Send;
    /// A process's description of what it serves.
    type Info: Default + PartialEq + fmt::Debug + Send + Sync;
    /// State that the protocols of all processes of one service share with its handles.
    type Shared: Default + fmt::Debug + Send + Sync;
    /// The answer to a question of the process.
    type Answer: Send;

    /// Returns the response to a request that the process does not get.
    fn refused(refusal: Refusal) -> Self::Response;

    /// Returns whether `now` and `before`, two reports of the service, agree on the subject of the
    /// request.
    fn is_unchanged(
        request: &Self::Request,
        before: Option<&Self::Info>,
        now: Option<&Self::Info>,
    ) -> bool;

    /// Returns the bytes to write next.
    fn unwritten(&self) -> &[u8];

    /// Records that `count` bytes of [`unwritten`](Self::unwritten) were written.
    fn advance(&mut self, count: usize);

    /// Returns the buffer to read into, which always has free space.
    fn read_buffer(&mut self) -> &mut BytesMut;

    /// Returns the next event in the bytes that were read; `None` if more bytes are needed.
    fn next(&mut self) -> Option<ProcessEvent<Self>>;

    /// Handles the end of the process's output. An unfinished last line counts as complete.
    fn end_of_output(&mut self);

    /// Returns whether the handshake has gone far enough for requests.
    fn is_open(&self) -> bool;

    /// Returns whether the process has capacity for another request. A process that works on a cancelled
    /// request may have none.
    fn is_free(&self) -> bool {
        true
    }

    /// Returns the number of sent requests that callers wait for.
    fn in_flight(&self) -> usize;

    /// Sends a request. `info` is the last report of what the service serves.
    fn send(
        &mut self,
        ticket: u64,
        request: Self::Request,
        reply: oneshot::Sender<Self::Response>,
        info: impl FnOnce() -> Option<Arc<Self::Info>>,
    );

    /// Cancels a request whose caller no longer waits.
    fn cancel(&mut self, ticket: u64) -> Cancellation;

    /// Returns information on this cancelled request if the process still works on it.
    fn still_running(&self, _ticket: u64) -> Option<StillRunning<'_>> {
        None
    }

    /// Fails every request in flight for this reason, after the process has ended.
    fn fail(&mut self, reason: &str);

    /// Returns the oldest request in flight; `None` if there is none. A protocol whose cancellation is
    /// advisory must implement this.
    fn oldest(&self) -> Option<u64> {
        None
    }

    /// Returns the newest ping that the process has not answered.
    fn unanswered_ping(&self) -> Option<u64> {
        None
    }

    /// Takes the answer to a [`ProcessEvent::Question`].
    fn answer(&mut self, answer: Self::Answer);

    /// Handles a change of the [shared](Self::Shared) state by a handle.
    fn shared_changed(&mut self) {}
}

/// The meaning of a process's output to its supervisor.
pub enum ProcessEvent<P: Protocol> {
    /// The first event of a protocol with a greeting: the process runs. Requests wait a little longer,
    /// in case a handshake begins.
    Hello,
    /// The handshake has begun. Requests wait for its end, up to the startup timeout.
    Handshaking,
    /// The process is ready. The value says what it serves, if that is known already.
    Ready(Option<P::Info>),
    /// What the process serves, when this is first known and when it has changed.
    Info(P::Info),
    /// The process violated the protocol, for this reason. The supervisor ends it.
    Broken(String),
    /// The process asks a question. The answer goes to [`Protocol::answer`].
    Question(BoxFuture<'static, P::Answer>),
}

/// The reason why a process does not get a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no process, for this reason.
    Unavailable(String),
    /// The request waited for a new process, which serves something else than the previous one.
    Changed,
    /// Too many requests wait.
    Busy {
        /// Requests that were sent.
        sent: usize,
        /// Requests that wait to be sent.
        waiting: usize,
    },
}

/// The effect of cancelling a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancellation {
    /// The process does not have this request: it was not sent yet, or was answered.
    NotSent,
    /// The process may ignore the cancellation.
    Advisory,
    /// The process must stop working on the request. If it does not, it is ended.
    Binding,
}

/// A cancelled request that a process still works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StillRunning<'a> {
    /// The function that was called.
    pub function: &'a str,
    /// Whether the process answers other requests meanwhile.
    pub answers_others: bool,
}

//! What is spoken with a supervised process.

use std::fmt;
use std::sync::Arc;

use bytes::BytesMut;
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

/// The protocol of one process: bytes in, events out; requests in, bytes out. It does no I/O.
///
/// The supervisor makes a new protocol for every process. It writes the
/// [`unwritten`](Self::unwritten) bytes, reads into the [`room`](Self::room), and takes events
/// from [`next`](Self::next). `next` does not return responses: the protocol sends each to the
/// `reply` that came with its request.
///
/// Requests are known by their tickets. No two requests of a [`Supervised`](super::Supervised) have the same ticket,
/// whichever process they went to, so a late response never matches another request.
pub trait Protocol: Sized + Send + 'static {
    /// A request of a caller.
    type Request: fmt::Debug + Send;
    /// What a caller gets for it.
    type Response: fmt::Debug + Send;
    /// What a process says of itself: what it serves.
    type Info: Default + PartialEq + fmt::Debug + Send + Sync;
    /// What the protocols of all processes of one service share with its handles.
    type Shared: Default + fmt::Debug + Send + Sync;
    /// The answer to a question of the process.
    type Answer: Send;

    /// The response to a request that the process does not get.
    fn refused(refusal: Refusal) -> Self::Response;

    /// Whether what the service says `now` of what the request is about is what it said `before`.
    fn is_unchanged(
        request: &Self::Request,
        before: Option<&Self::Info>,
        now: Option<&Self::Info>,
    ) -> bool;

    /// What is to be written next.
    fn unwritten(&self) -> &[u8];

    /// `count` bytes of [`unwritten`](Self::unwritten) were written.
    fn wrote(&mut self, count: usize);

    /// The buffer to read into; it always has free space.
    fn room(&mut self) -> &mut BytesMut;

    /// The next event in what has been read; `None` if it needs more bytes.
    fn next(&mut self) -> Option<ProcessEvent<Self>>;

    /// The process has closed its output: an unfinished last line counts as complete.
    fn end_of_output(&mut self);

    /// Whether the handshake has gone far enough for requests.
    fn is_open(&self) -> bool;

    /// Whether the process has capacity for another request; one that works on a cancelled request may not.
    fn is_free(&self) -> bool {
        true
    }

    /// Requests that were sent and that callers wait for.
    fn in_flight(&self) -> usize;

    /// Sends a request. `info` gives what the service last said that it serves.
    fn send(
        &mut self,
        ticket: u64,
        request: Self::Request,
        reply: oneshot::Sender<Self::Response>,
        info: impl FnOnce() -> Option<Arc<Self::Info>>,
    );

    /// The caller of this request waits no longer.
    fn cancel(&mut self, ticket: u64) -> Cancellation;

    /// What is known of this cancelled request if the process still works on it.
    fn still_running(&self, _ticket: u64) -> Option<StillRunning<'_>> {
        None
    }

    /// The process is gone: every request in flight fails for this reason.
    fn fail(&mut self, reason: &str);

    /// The oldest request in flight; `None` if there is none. A protocol whose cancellation is advisory must give it.
    fn oldest(&self) -> Option<u64> {
        None
    }

    /// The newest ping that the process has not answered.
    fn unanswered_ping(&self) -> Option<u64> {
        None
    }

    /// The answer to an [`ProcessEvent::Question`].
    fn answer(&mut self, answer: Self::Answer);

    /// A handle has changed what is [shared](Self::Shared).
    fn shared_changed(&mut self) {}
}

/// What the output of a process means to its supervisor.
pub enum ProcessEvent<P: Protocol> {
    /// First, in protocols with a greeting: the process runs. Requests wait a little longer, in case a handshake begins.
    Hello,
    /// Then: the handshake has begun, and requests wait for its end, up to the startup timeout.
    Handshaking,
    /// At last: the process is ready; also what it serves, if that is known already.
    Ready(Option<P::Info>),
    /// What it serves, when that is first known and when it has changed.
    Info(P::Info),
    /// It violated the protocol, for this reason; the supervisor ends it.
    Broken(String),
    /// It asks something. The answer goes to [`Protocol::answer`].
    Question(BoxFuture<'static, P::Answer>),
}

/// Why a process does not get a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no process, for this reason.
    Unavailable(String),
    /// It waited for a process that serves something else than the one before.
    Changed,
    /// Too many requests wait.
    Busy {
        /// Requests that were sent.
        sent: usize,
        /// Requests that wait to be sent.
        waiting: usize,
    },
}

/// What the cancellation of a request did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancellation {
    /// The process does not have this request: it was not sent yet, or was answered.
    NotSent,
    /// The process may ignore it.
    Advisory,
    /// The process has to stop: it is ended if it does not.
    Binding,
}

/// A cancelled request that a process still works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StillRunning<'a> {
    /// What was called.
    pub function: &'a str,
    /// Whether the process answers other requests meanwhile.
    pub answers_others: bool,
}

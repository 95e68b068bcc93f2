//! What is spoken with a supervised process.

use std::fmt;
use std::sync::Arc;

use bytes::BytesMut;
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

/// What is spoken with one process: bytes in, events out; requests in, bytes out. It does no I/O.
///
/// The supervisor makes a new protocol for every process. It writes what is [`unwritten`](Self::unwritten), reads into
/// the [`room`](Self::room), and takes what that means from [`next`](Self::next).
///
/// Requests are known by their tickets. No two requests of a [`Supervised`](super::Supervised) have the same ticket,
/// whichever process they went to, so a response that comes late meets no other request.
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

    /// What is to be written next.
    fn unwritten(&self) -> &[u8];

    /// So much of it was written.
    fn wrote(&mut self, count: usize);

    /// The buffer that what is read is appended to, with room for that.
    fn room(&mut self) -> &mut BytesMut;

    /// What the bytes that were read mean; `None` where more of them are needed.
    fn next(&mut self) -> Option<Incoming<Self>>;

    /// The process has closed its output: what has no end yet ends here.
    fn end_of_output(&mut self);

    /// Whether requests may be sent.
    fn is_open(&self) -> bool;

    /// Whether one more request may be sent now.
    fn is_free(&self) -> bool {
        true
    }

    /// Requests that were sent and that callers wait for.
    fn in_flight(&self) -> usize;

    /// Sends a request. `info` gives what was last known of the service.
    fn send(
        &mut self,
        ticket: u64,
        request: Self::Request,
        reply: oneshot::Sender<Self::Response>,
        info: impl FnOnce() -> Option<Arc<Self::Info>>,
    );

    /// The caller of this request waits no longer.
    fn cancel(&mut self, ticket: u64) -> Cancellation;

    /// The cancelled request that the process still works at, if it does.
    fn running_on(&self, _ticket: u64) -> Option<RunningOn<'_>> {
        None
    }

    /// The process is gone: every request in flight fails for this reason.
    fn fail(&mut self, reason: &str);

    /// The oldest request in flight, of a process whose silence may be a sign that it hangs.
    fn oldest(&self) -> Option<u64> {
        None
    }

    /// The newest ping that the process has not answered.
    fn unanswered_ping(&self) -> Option<u64> {
        None
    }

    /// The answer to an [`Incoming::Question`].
    fn answer(&mut self, answer: Self::Answer);

    /// A handle has changed what is [shared](Self::Shared).
    fn shared_changed(&mut self) {}
}

/// What the output of a process means to its supervisor.
pub enum Incoming<P: Protocol> {
    /// It runs. Requests wait a little longer, in case it says what it serves.
    Hello,
    /// It takes part in the handshake, so what it serves is worth waiting for.
    Handshaking,
    /// It has taken part in the handshake and is ready; also what it serves, where that is known already.
    Ready(Option<P::Info>),
    /// What it serves, when that is first known and when it has changed.
    Info(P::Info),
    /// It violates the protocol, as this says. It is ended.
    Broken(String),
    /// It asks something. The answer goes to [`Protocol::answer`].
    Question(BoxFuture<'static, P::Answer>),
}

/// Why a process does not get a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no process, for this reason.
    Unavailable(String),
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
    /// The request was not in flight.
    NotSent,
    /// The process may ignore it.
    Advisory,
    /// The process has to stop: it is ended if it does not.
    Binding,
}

/// A cancelled request that a process still works at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningOn<'a> {
    /// What was called.
    pub function: &'a str,
    /// Whether the process answers other requests meanwhile.
    pub answers_others: bool,
}

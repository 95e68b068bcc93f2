//! Answers with plain JSON if the call is quick, otherwise switches to an event stream.
//!
//! # How it works
//!
//! An [`Exchange`] owns the running request. Dropping it (the client disconnected) passes the rest to the server's
//! task tracker. A session's request continues, because its client may return; a sessionless one is cancelled, and
//! its process ends within its grace period. [`respond`] waits for the answer, a notification or the timeout,
//! whichever is first, and only then decides on the form.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::unfold;
use http::{Response, StatusCode};
use tokio_util::sync::CancellationToken;

use crate::http::body::Body;
use crate::http::response::events;
use crate::mcp::dispatch::Reply;
use crate::mcp::notify::changes::Lists;
use crate::mcp::notify::stream::{EventId, KEEP_ALIVE, Reader, Stream, event, priming};
use crate::mcp::session::{Connection, Listener, Session, other_nodes};
use crate::state::Core;

/// How long a session's client waits for a plain answer. The time is short because a stream can be
/// resumed.
const PLAIN_SESSION_RESPONSE_TIMEOUT: Duration = Duration::from_millis(250);
/// How long a sessionless client waits for a plain answer.
const PLAIN_RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a stream may be silent.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);

/// A running request. It returns no answer if it was cancelled.
pub(crate) type Work = Pin<Box<dyn Future<Output = Option<Reply>> + Send>>;

/// A running request and the connection that waits for it.
pub(crate) struct Exchange {
    pub(crate) core: Arc<Core>,
    /// `None` once the request is done.
    pub(crate) work: Option<Work>,
    /// Cancels the request.
    pub(crate) token: CancellationToken,
    /// The outlet of its notifications, if the client wants any.
    pub(crate) stream: Option<Arc<Stream>>,
    /// The session of the request, with its open connection.
    pub(crate) session: Option<(Arc<Session>, Connection)>,
}

impl Exchange {
    /// Waits until the client of a session withdraws the request. A sessionless client withdraws by
    /// disconnecting, and a request that ends with the server is answered.
    fn withdrawn(&self) -> impl Future<Output = ()> + use<> {
        let (core, token) = (Arc::clone(&self.core), self.token.clone());
        let in_session = self.session.is_some();
        async move {
            if in_session {
                token.cancelled().await;
            }
            if !in_session || core.market.is_stopping() {
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Future for Exchange {
    type Output = Option<Reply>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(work) = &mut self.work else { return Poll::Ready(None) };
        let answer = work.as_mut().poll(cx);
        if answer.is_ready() {
            self.work = None;
        }
        answer
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let Some(work) = self.work.take() else { return };
        if self.session.is_none() {
            self.token.cancel();
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let stream = self.stream.take();
        let rest = async move {
            let answer = work.await;
            if let Some(stream) = stream {
                stream.finish(answer.map(|answer| answer.message));
            }
        };
        self.core.tracker.spawn_on(rest, &runtime);
    }
}

/// Answers plainly if the answer comes first, otherwise with a stream of events.
pub(crate) async fn respond(mut exchange: Exchange) -> Response<Body> {
    let in_session = exchange.session.is_some();
    let max_wait = if in_session { PLAIN_SESSION_RESPONSE_TIMEOUT } else { PLAIN_RESPONSE_TIMEOUT };
    let stream = exchange.stream.clone();
    let withdrawn = exchange.withdrawn();
    tokio::select! {
        biased;
        answer = &mut exchange => return match (answer, stream) {
            (None, _) => events(futures_util::stream::empty()),
            // Notifications come before the answer, and so need a stream.
            (Some(answer), Some(stream)) if stream.has_messages() && answer.status == StatusCode::OK && answer.step_up.is_none() => {
                stream.finish(Some(answer.message));
                streamed(exchange, stream)
            }
            (Some(answer), _) => answer.into_response(),
        },
        () = async { if let Some(stream) = &stream { stream.ready().await } else { std::future::pending().await } } => {}
        () = withdrawn => return events(futures_util::stream::empty()),
        () = tokio::time::sleep(max_wait) => {}
    }
    let stream = exchange.stream.clone().unwrap_or_else(|| match &exchange.session {
        Some((session, _)) => session.new_stream(),
        None => Stream::transient(),
    });
    exchange.stream = Some(Arc::clone(&stream));
    streamed(exchange, stream)
}

/// Returns all messages of a request's stream as events.
fn streamed(exchange: Exchange, stream: Arc<Stream>) -> Response<Body> {
    let reader = stream.read_after(0);
    let (mut first, mut id) = (None, None);
    if let Some((session, _)) = &exchange.session {
        session.keep(&stream);
        let instance = exchange.core.instance();
        id = Some(EventId { stream: stream.number, number: 0, instance });
        first = id.as_ref().filter(|_| session.revision.knows_priming()).map(priming);
    }
    let state = Streamed { exchange, stream, reader, first, id };
    events(unfold(state, |mut state| async move { Some((state.next().await?, state)) }))
}

struct Streamed {
    exchange: Exchange,
    stream: Arc<Stream>,
    reader: Reader,
    first: Option<Bytes>,
    /// The id of the last event, if the client may return.
    id: Option<EventId>,
}

impl Streamed {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        loop {
            let running = self.exchange.work.is_some();
            let withdrawn = self.exchange.withdrawn();
            tokio::select! {
                biased;
                next = self.reader.next() => {
                    let (number, message) = next?;
                    if let Some(id) = &mut self.id {
                        id.number = number;
                    }
                    return Some(event(self.id.as_ref(), &message));
                }
                answer = &mut self.exchange, if running => {
                    self.stream.finish(answer.map(|answer| answer.message));
                }
                () = withdrawn, if running => self.stream.finish(None),
                () = tokio::time::sleep(KEEP_ALIVE_EVERY) => return Some(KEEP_ALIVE),
            }
        }
    }
}

/// Returns the rest of a stream for a client that came back, and the last event that it saw.
pub(crate) fn resumed(stream: &Arc<Stream>, last: EventId, connection: Connection) -> Response<Body> {
    let reader = stream.read_after(last.number);
    events(unfold((last, reader, connection), |(mut id, mut reader, connection)| async move {
        let chunk = tokio::select! {
            biased;
            next = reader.next() => {
                let (number, message) = next?;
                id.number = number;
                event(Some(&id), &message)
            }
            () = tokio::time::sleep(KEEP_ALIVE_EVERY) => KEEP_ALIVE,
        };
        Some((chunk, (id, reader, connection)))
    }))
}

/// Returns a session's own stream, for notifications of changes, and the last event that its client saw.
pub(crate) fn standalone(
    core: &Arc<Core>,
    session: Arc<Session>,
    last: Option<EventId>,
    connection: Connection,
) -> Response<Body> {
    let lists = core.lists.subscribe();
    let (listener, end) = session.listen();
    let instance = core.instance();
    if let Some(last) = last.as_ref().filter(|last| last.instance == instance) {
        let missed = session.changes_after(last.number);
        session.resend(missed.unwrap_or_else(|| other_nodes::all_changes(core, &session)));
    }
    {
        // Changes at other servers are sent as soon as they are known.
        let (core, session, tracker) = (Arc::clone(core), Arc::clone(&session), core.tracker.clone());
        tracker.spawn(async move { other_nodes::listen(&core, &session, last.as_ref()).await });
    }
    let id = EventId { stream: 0, number: session.last_sent(), instance };
    let first = session.revision.knows_priming().then(|| priming(&id));
    let core = Arc::clone(core);
    let state = Standalone {
        core,
        lists,
        session,
        first,
        id,
        end,
        _listener: listener,
        _connection: connection,
    };
    events(unfold(state, |mut state| async move { Some((state.next().await?, state)) }))
}

struct Standalone {
    core: Arc<Core>,
    lists: tokio::sync::watch::Receiver<Lists>,
    session: Arc<Session>,
    first: Option<Bytes>,
    /// The id of the last event.
    id: EventId,
    /// Cancelled when another server takes over notifying the client.
    end: CancellationToken,
    _listener: Listener,
    _connection: Connection,
}

impl Standalone {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        loop {
            if self.end.is_cancelled() {
                return None;
            }
            let now = *self.lists.borrow_and_update();
            let changes = self.session.changes_to_send(now);
            if !changes.is_empty() {
                let mut events = Vec::new();
                for (number, change) in changes {
                    self.id.number = number;
                    events.extend_from_slice(&event(Some(&self.id), &change.message()));
                }
                return Some(events.into());
            }
            tokio::select! {
                () = self.end.cancelled() => return None,
                changed = self.lists.changed() => changed.ok()?,
                () = self.session.subscriber().woken.notified() => {}
                () = self.session.calls.ended.cancelled() => return None,
                () = self.core.draining.cancelled() => return None,
                () = tokio::time::sleep(KEEP_ALIVE_EVERY) => return Some(KEEP_ALIVE),
            }
        }
    }
}

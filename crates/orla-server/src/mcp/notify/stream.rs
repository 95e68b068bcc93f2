//! The messages of one response stream, kept while a client may still fetch them.
//!
//! # How it works
//!
//! A [`Stream`] numbers its messages from 1. The request pushes messages; one [`Reader`] at a time takes
//! them. A session's stream keeps all messages until it is forgotten, so that a client whose connection
//! broke can return with the last number it saw; other streams drop a message once it was taken. Neither
//! side ever waits for the other. Beyond [`MAX_EVENTS`] the oldest message is dropped, so a very late
//! client misses old notifications and old questions. The answer comes last and is never dropped.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

use crate::mcp::notify::notices::Outlet;
use crate::mcp::rpc::one_line;

/// The maximum number and total size of the messages that wait or are kept on one stream. The newest
/// message is kept regardless of its size.
const MAX_EVENTS: usize = 1024;
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// One response stream.
pub(crate) struct Stream {
    /// The stream's number within its session.
    pub(crate) number: u64,
    keep: bool,
    inner: Mutex<Inner>,
    waker: AtomicWaker,
}

#[derive(Default)]
struct Inner {
    events: VecDeque<Bytes>,
    /// The number of the first message in `events`.
    first: u64,
    bytes: usize,
    finished: Option<Instant>,
    /// The number of the current reader.
    reader: u64,
}

impl Stream {
    /// Returns a stream whose messages are kept for a client that returns.
    pub(crate) fn retained(number: u64) -> Arc<Self> {
        Self::new(number, true)
    }

    /// Returns a stream whose messages are dropped once they are taken.
    pub(crate) fn transient() -> Arc<Self> {
        Self::new(0, false)
    }

    fn new(number: u64, keep: bool) -> Arc<Self> {
        let inner = Mutex::new(Inner { first: 1, ..Inner::default() });
        Arc::new(Self { number, keep, inner, waker: AtomicWaker::new() })
    }

    /// Ends the stream, with a last message if there is one.
    pub(crate) fn finish(&self, last: Option<Bytes>) {
        let mut inner = self.inner.lock();
        if inner.finished.is_none() {
            if let Some(last) = last {
                inner.add(last);
            }
            inner.finished = Some(Instant::now());
        }
        drop(inner);
        self.waker.wake();
    }

    /// Begins to read after the message with this number. An earlier reader ends.
    pub(crate) fn read_after(self: &Arc<Self>, number: u64) -> Reader {
        let mut inner = self.inner.lock();
        inner.reader += 1;
        let reader =
            Reader { stream: Arc::clone(self), turn: inner.reader, next: number.saturating_add(1) };
        drop(inner);
        self.waker.wake();
        reader
    }

    /// Continues to read after the message with this number, for the reader with this turn. Its reader
    /// ends at once if another one has begun since.
    pub(crate) fn resume(self: &Arc<Self>, turn: u64, number: u64) -> Reader {
        Reader { stream: Arc::clone(self), turn, next: number.saturating_add(1) }
    }

    /// Waits until a message waits.
    pub(crate) async fn ready(&self) {
        std::future::poll_fn(|cx| {
            self.waker.register(cx.waker());
            if self.has_messages() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Returns whether a message waits.
    pub(crate) fn has_messages(&self) -> bool {
        !self.inner.lock().events.is_empty()
    }

    /// Returns when the stream ended, if it has.
    pub(crate) fn finished_at(&self) -> Option<Instant> {
        self.inner.lock().finished
    }

    /// Returns the bytes that are kept.
    pub(crate) fn bytes(&self) -> usize {
        self.inner.lock().bytes
    }
}

impl Outlet for Stream {
    fn send(&self, message: Bytes) {
        let mut inner = self.inner.lock();
        if inner.finished.is_some() {
            return; // a straggler: the answer has gone out
        }
        inner.add(message);
        drop(inner);
        self.waker.wake();
    }
}

impl Inner {
    fn add(&mut self, message: Bytes) {
        let message = one_line(message);
        while self.events.len() >= MAX_EVENTS
            || (self.bytes + message.len() > MAX_BYTES && self.bytes > 0)
        {
            self.drop_first();
        }
        self.bytes += message.len();
        self.events.push_back(message);
    }

    fn drop_first(&mut self) {
        if let Some(message) = self.events.pop_front() {
            self.bytes -= message.len();
            self.first += 1;
        }
    }
}

/// Takes the messages of a stream in order.
pub(crate) struct Reader {
    stream: Arc<Stream>,
    turn: u64,
    next: u64,
}

impl Reader {
    /// Returns the number of this reader among those of its stream, to [resume](Stream::resume) with.
    pub(crate) fn turn(&self) -> u64 {
        self.turn
    }

    /// Returns the next message with its number; `None` after the last, or when another reader took
    /// over.
    pub(crate) fn poll_next(&mut self, cx: &Context<'_>) -> Poll<Option<(u64, Bytes)>> {
        let mut inner = self.stream.inner.lock();
        if inner.reader != self.turn {
            // Not registered, because the waker belongs to another reader.
            return Poll::Ready(None);
        }
        self.stream.waker.register(cx.waker());
        let number = self.next.max(inner.first);
        let at = usize::try_from(number - inner.first).unwrap_or(usize::MAX);
        let Some(message) = inner.events.get(at).cloned() else {
            return if inner.finished.is_some() { Poll::Ready(None) } else { Poll::Pending };
        };
        if !self.stream.keep {
            inner.drop_first();
        }
        self.next = number + 1;
        Poll::Ready(Some((number, message)))
    }

    /// Waits for [`poll_next`](Self::poll_next).
    pub(crate) async fn next(&mut self) -> Option<(u64, Bytes)> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }
}

/// The id of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EventId {
    /// The number of the stream; 0 is the session's own.
    pub(crate) stream: u64,
    pub(crate) number: u64,
    /// The process that keeps the stream, if there are several.
    pub(crate) instance: Option<Arc<str>>,
}

impl EventId {
    /// The longest name of a process.
    const MAX_INSTANCE: usize = 32;

    /// Reads an id in its text form.
    pub(crate) fn parse(id: &str) -> Option<Self> {
        let mut parts = id.splitn(3, '-');
        let (stream, number) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let instance = parts.next();
        let is_name = |name: &str| {
            (1..=Self::MAX_INSTANCE).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_hexdigit())
        };
        instance.is_none_or(is_name).then(|| Self { stream, number, instance: instance.map(Into::into) })
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.stream, self.number)?;
        self.instance.as_ref().map_or(Ok(()), |instance| write!(f, "-{instance}"))
    }
}

/// Returns one event of `text/event-stream` with this message, and with an id if the client may return.
pub(crate) fn event(id: Option<&EventId>, message: &Bytes) -> Bytes {
    let mut out = Vec::with_capacity(message.len() + 60);
    if let Some(id) = id {
        out.extend_from_slice(format!("id: {id}\n").as_bytes());
    }
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(message);
    out.extend_from_slice(b"\n\n");
    out.into()
}

/// Returns the event that says how to reconnect, before there is any message.
pub(crate) fn priming(id: &EventId) -> Bytes {
    format!("id: {id}\nretry: 3000\ndata: \n\n").into()
}

/// A comment that keeps proxies from closing a quiet stream.
pub(crate) const KEEP_ALIVE: Bytes = Bytes::from_static(b":\n\n");

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn message(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    fn take(reader: &mut Reader) -> Option<Option<(u64, Bytes)>> {
        reader.next().now_or_never()
    }

    #[test]
    fn a_returning_client_gets_the_messages_it_missed() {
        let stream = Stream::retained(3);
        let mut first = stream.read_after(0);
        stream.send(message("a"));
        stream.send(message("b\n"));
        assert_eq!(take(&mut first), Some(Some((1, message("a")))));
        let mut second = stream.read_after(1);
        assert_eq!(take(&mut first), Some(None), "one reader at a time");
        assert_eq!(take(&mut second), Some(Some((2, message("b ")))));
        assert_eq!(take(&mut second), None);
        stream.finish(Some(message("end")));
        stream.send(message("late"));
        assert_eq!(take(&mut second), Some(Some((3, message("end")))));
        assert_eq!(take(&mut second), Some(None));
        assert_eq!(take(&mut stream.read_after(2)), Some(Some((3, message("end")))));
        assert_eq!(take(&mut stream.read_after(9)), Some(None));
    }

    #[test]
    fn a_reader_that_was_replaced_does_not_take_the_wake_up_of_the_new_one() {
        use futures_util::task::{ArcWake, waker};
        use std::sync::atomic::{AtomicUsize, Ordering};

        #[derive(Default)]
        struct Woken(AtomicUsize);

        impl ArcWake for Woken {
            fn wake_by_ref(this: &Arc<Self>) {
                this.0.fetch_add(1, Ordering::Relaxed);
            }
        }

        let stream = Stream::retained(1);
        let mut old = stream.read_after(0);
        let mut new = stream.read_after(0);
        let (olds, news) = (Arc::new(Woken::default()), Arc::new(Woken::default()));
        let poll = |reader: &mut Reader, woken: &Arc<Woken>| {
            reader.poll_next(&Context::from_waker(&waker(Arc::clone(woken))))
        };
        assert!(poll(&mut new, &news).is_pending());
        assert!(poll(&mut old, &olds).is_ready());
        stream.send(message("a"));
        assert_eq!((olds.0.load(Ordering::Relaxed), news.0.load(Ordering::Relaxed)), (0, 1));
    }

    #[test]
    fn a_reader_that_resumes_does_not_replace_a_newer_one() {
        let stream = Stream::retained(1);
        let turn = stream.read_after(0).turn();
        stream.send(message("a"));
        assert_eq!(take(&mut stream.resume(turn, 0)), Some(Some((1, message("a")))));
        let mut newer = stream.read_after(1);
        assert_eq!(take(&mut stream.resume(turn, 1)), Some(None));
        assert_eq!(take(&mut newer), None);
        stream.send(message("b"));
        assert_eq!(take(&mut newer), Some(Some((2, message("b")))));
    }

    #[test]
    fn unread_messages_are_bounded_and_the_end_is_kept() {
        for stream in [Stream::retained(1), Stream::transient()] {
            for _ in 0..5000 {
                stream.send(message("note"));
            }
            stream.finish(Some(message("end")));
            let mut reader = stream.read_after(0);
            let mut seen = Vec::new();
            while let Some(Some((_, text))) = take(&mut reader) {
                seen.push(text);
            }
            assert_eq!((seen.len(), seen.last()), (MAX_EVENTS, Some(&message("end"))));
        }
    }

    #[test]
    fn large_unread_messages_are_bounded_too() {
        let stream = Stream::retained(1);
        for _ in 0..10 {
            stream.send(vec![b'x'; MAX_BYTES / 2].into());
        }
        assert_eq!(stream.bytes(), MAX_BYTES);
        stream.finish(Some(vec![b'x'; 2 * MAX_BYTES].into()));
        assert_eq!(stream.bytes(), 2 * MAX_BYTES);
    }

    #[test]
    fn events_have_the_standard_form() {
        assert_eq!(event(None, &message("{}")), "data: {}\n\n");
        let id = |number, instance: Option<&str>| EventId {
            stream: 3,
            number,
            instance: instance.map(Into::into),
        };
        assert_eq!(event(Some(&id(7, None)), &message("{}")), "id: 3-7\ndata: {}\n\n");
        assert_eq!(priming(&id(0, Some("0a"))), "id: 3-0-0a\nretry: 3000\ndata: \n\n");
        for good in [id(7, None), id(0, Some("00ff00ff00ff00ff"))] {
            assert_eq!(EventId::parse(&good.to_string()), Some(good));
        }
        for odd in ["", "3", "3-", "-7", "a-b", "3-7-", "3-7-x", "3-7-1-1", "99999999999999999999-1"] {
            assert_eq!(EventId::parse(odd), None, "{odd}");
        }
    }
}

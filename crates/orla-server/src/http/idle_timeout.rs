//! A connection that is closed when it stalls between requests or in the middle of a head.
//!
//! hyper's own timer for heads also runs while a kept-alive connection is idle, and closes connections
//! that a client wants to use again. This module has two timeouts: one for a head, from its first byte
//! on, and a longer one for the silence between requests. While a request is being answered, neither
//! runs.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::http::framing::Framing;

/// A stream with its timeouts.
pub(crate) struct IdleTimeoutStream<S> {
    stream: S,
    serving: Serving,
    header_timeout: Duration,
    keep_alive: Duration,
    state: State,
    /// One timer for the whole connection, which is checked when it fires. No timer is set for a single
    /// request.
    check: Pin<Box<Sleep>>,
    /// Whether the connection is HTTP/2, which has heads in frames, and its own pings.
    multiplexed: bool,
    seen_anything: bool,
    framing: Framing,
}

#[derive(Clone, Copy)]
enum State {
    Idle { since: Instant },
    Head { since: Instant },
}

/// The shared state of the two ends of a connection: the number of requests being answered, and findings
/// from the incoming bytes.
#[derive(Clone, Default)]
pub(crate) struct Serving {
    requests: Arc<AtomicUsize>,
    is_ambiguous: Arc<AtomicBool>,
}

impl Serving {
    /// Notes that a request is being answered, until the guard is dropped.
    pub(crate) fn begin(&self) -> ServingGuard {
        self.requests.fetch_add(1, Ordering::Relaxed);
        ServingGuard(self.clone())
    }

    fn is_serving(&self) -> bool {
        self.requests.load(Ordering::Relaxed) > 0
    }

    /// Returns whether a head arrived that declares the length of its body in two ways.
    pub(crate) fn is_ambiguous(&self) -> bool {
        self.is_ambiguous.load(Ordering::Relaxed)
    }
}

/// A request that is being answered.
pub(crate) struct ServingGuard(Serving);

impl Drop for ServingGuard {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<S> IdleTimeoutStream<S> {
    pub(crate) fn new(
        stream: S,
        serving: Serving,
        header_timeout: Duration,
        keep_alive: Duration,
    ) -> Self {
        let now = Instant::now();
        Self {
            stream,
            serving,
            header_timeout,
            keep_alive,
            // A new connection must send its first head.
            state: State::Head { since: now },
            check: Box::pin(sleep_until(now + header_timeout)),
            multiplexed: false,
            seen_anything: false,
            framing: Framing::default(),
        }
    }

    /// Returns whether the connection has stalled. Otherwise arms the timer for the next check.
    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.check.as_mut().poll(cx));
            let now = Instant::now();
            let limit = if self.serving.is_serving() || self.multiplexed {
                self.state = State::Idle { since: now };
                now + self.header_timeout
            } else {
                match self.state {
                    State::Idle { since } => (since + self.keep_alive).min(now + self.header_timeout),
                    State::Head { since } => since + self.header_timeout,
                }
            };
            let over = match self.state {
                State::Idle { since } => now >= since + self.keep_alive,
                State::Head { since } => now >= since + self.header_timeout,
            };
            if over {
                return Poll::Ready(());
            }
            self.check.as_mut().reset(limit.max(now + Duration::from_millis(1)));
        }
    }

    fn bytes_came(&mut self, bytes: &[u8]) {
        if !self.seen_anything {
            self.seen_anything = true;
            self.multiplexed = bytes.starts_with(b"PRI * ");
        }
        if !self.multiplexed && self.framing.is_ambiguous(bytes) {
            self.serving.is_ambiguous.store(true, Ordering::Relaxed);
        }
        let now = Instant::now();
        self.state = match self.state {
            _ if self.serving.is_serving() => State::Idle { since: now },
            State::Idle { .. } => State::Head { since: now },
            head @ State::Head { .. } => head,
        };
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for IdleTimeoutStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        match Pin::new(&mut this.stream).poll_read(cx, buffer) {
            Poll::Ready(read) => {
                if let Some(bytes) = buffer.filled().get(before..).filter(|bytes| !bytes.is_empty()) {
                    this.bytes_came(bytes);
                }
                Poll::Ready(read)
            }
            Poll::Pending => {
                ready!(this.poll_stalled(cx));
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client stalled")))
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for IdleTimeoutStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        // Written bytes are a response, so the next bytes that are read begin another request.
        this.state = State::Idle { since: Instant::now() };
        Pin::new(&mut this.stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.state = State::Idle { since: Instant::now() };
        Pin::new(&mut this.stream).poll_write_vectored(cx, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    const HEAD: Duration = Duration::from_secs(10);
    const QUIET: Duration = Duration::from_secs(300);

    fn watched() -> (IdleTimeoutStream<DuplexStream>, DuplexStream, Serving) {
        let (server, client) = duplex(64);
        let serving = Serving::default();
        (IdleTimeoutStream::new(server, serving.clone(), HEAD, QUIET), client, serving)
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_does_not_come_ends_the_connection_after_its_time() {
        let (mut server, mut client, _) = watched();
        let began = Instant::now();
        assert_eq!(server.read_u8().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(began.elapsed(), HEAD);
        drop(client.write_u8(1).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_trickles_in_ends_the_connection_too() {
        let (mut server, mut client, _) = watched();
        server.state = State::Idle { since: Instant::now() };
        tokio::time::advance(Duration::from_secs(60)).await;
        let began = Instant::now();
        let trickle = async {
            loop {
                drop(client.write_u8(b'x').await);
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let read = async { while server.read_u8().await.is_ok() {} };
        tokio::select! { () = trickle => {}, () = read => {} }
        assert_eq!(began.elapsed(), HEAD);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_between_requests_has_a_longer_time() {
        let (mut server, _client, _) = watched();
        server.write_u8(1).await.unwrap();
        let began = Instant::now();
        assert!(server.read_u8().await.is_err());
        assert!(began.elapsed() >= QUIET && began.elapsed() < QUIET + HEAD, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_ends_while_a_request_is_being_answered() {
        let (mut server, _client, serving) = watched();
        let guard = serving.begin();
        let hour = Duration::from_secs(3600);
        assert!(tokio::time::timeout(hour, server.read_u8()).await.is_err(), "still waiting");
        drop(guard);
        let began = Instant::now();
        assert!(server.read_u8().await.is_err());
        assert!(began.elapsed() <= QUIET + HEAD);
    }
}

//! Counts the bytes of a connection, and detects one that nobody uses any more.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::Shutdown;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The connection of a process, whose bytes are counted. Clones are the same connection.
#[derive(Clone, Debug)]
pub(crate) struct Metered(Arc<Connection>);

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    sent: AtomicU64,
    received: AtomicU64,
}

impl Metered {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self(Arc::new(Connection { stream, sent: AtomicU64::new(0), received: AtomicU64::new(0) }))
    }

    /// Returns how many bytes the process has sent and received.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.0.sent.load(Ordering::Relaxed), self.0.received.load(Ordering::Relaxed))
    }

    /// Waits until no byte was sent or received for the time of `limits`, at the latest after twice that time.
    pub(crate) async fn silent(&self, limits: Limits) {
        let (mut seen, mut silence) = (self.totals(), Duration::ZERO);
        loop {
            tokio::time::sleep(limits.closed).await;
            let now = self.totals();
            silence = if now == seen { silence + limits.closed } else { Duration::ZERO };
            seen = now;
            let is_over = match silence {
                Duration::ZERO => false,
                _ if self.is(PollFlags::RDHUP) => true,
                _ if self.is(PollFlags::IN) => silence >= limits.stalled,
                _ => silence >= limits.open,
            };
            if is_over {
                return;
            }
        }
    }

    /// Returns whether the connection is in this state.
    fn is(&self, state: PollFlags) -> bool {
        let mut connection = [PollFd::new(&self.0.stream, state)];
        poll(&mut connection, Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }
}

/// How long a connection may be silent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) open: Duration,
    /// If the process has sent what the other side does not take. That the process has ended is not seen then.
    pub(crate) stalled: Duration,
    /// If the process will send nothing more.
    pub(crate) closed: Duration,
}

fn count(total: &AtomicU64, bytes: usize) {
    total.fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
}

impl AsyncRead for Metered {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.stream.poll_read_ready(context))?;
            match self.0.stream.try_read(buffer.initialize_unfilled()) {
                Ok(read) => {
                    buffer.advance(read);
                    count(&self.0.sent, read);
                    return Poll::Ready(Ok(()));
                }
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => {}
                Err(err) => return Poll::Ready(Err(err)),
            }
        }
    }
}

impl AsyncWrite for Metered {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.stream.poll_write_ready(context))?;
            match self.0.stream.try_write(bytes) {
                Ok(written) => {
                    count(&self.0.received, written);
                    return Poll::Ready(Ok(written));
                }
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => {}
                Err(err) => return Poll::Ready(Err(err)),
            }
        }
    }

    /// Nothing is buffered.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(match rustix::net::shutdown(&self.0.stream, Shutdown::Write) {
            // The process has ended.
            Ok(()) | Err(Errno::NOTCONN) => Ok(()),
            Err(err) => Err(err.into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    const LIMITS: Limits = Limits {
        open: Duration::from_secs(600),
        stalled: Duration::from_secs(60),
        closed: Duration::from_secs(10),
    };

    /// Returns a metered connection, and the process at its other end.
    async fn connection() -> (Metered, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let process = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        (Metered::new(stream), process)
    }

    /// Returns after how many seconds of a paused clock the connection is silent.
    async fn silent(connection: &Metered) -> u64 {
        tokio::time::pause();
        let start = tokio::time::Instant::now();
        connection.silent(LIMITS).await;
        let elapsed = start.elapsed().as_secs();
        tokio::time::resume();
        elapsed
    }

    async fn until(connection: &Metered, state: PollFlags) {
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        while !connection.is(state) {
            assert!(std::time::Instant::now() < deadline);
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_connection_may_be_silent_for_long_only_while_its_process_can_still_send() {
        let (connection, mut process) = connection().await;
        assert_eq!(silent(&connection).await, 600);
        // What is sent is not read, as if the other side did not take it.
        process.write_all(b"unread").await.unwrap();
        until(&connection, PollFlags::IN).await;
        assert_eq!(silent(&connection).await, 60);
        drop(process);
        until(&connection, PollFlags::RDHUP).await;
        assert_eq!(silent(&connection).await, 10);
        assert_eq!(connection.totals(), (0, 0));
    }
}

//! Writes to a connection or a program.

use bytes::{Buf, Bytes, BytesMut};
use futures_util::SinkExt;
use futures_util::stream::SplitSink;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;

use super::source::Socket;

/// The destination of values.
pub(super) enum Sink {
    /// No destination: the stream only produces items, or has been closed.
    Closed,
    /// The body of an HTTP request, as far as it has room.
    Upload(mpsc::Sender<Bytes>),
    /// Messages of a WebSocket.
    Socket(SplitSink<Socket, Message>),
    /// Lines for a program, with the unwritten rest of the last one.
    Program { stdin: pipe::Sender, rest: BytesMut },
}

/// The reason why nothing more can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsent {
    /// The other end accepts nothing.
    Closed,
    /// The other end has gone.
    Disconnected,
}

impl Sink {
    /// Sends one item. Waits while the other end is too slow.
    pub(super) async fn send(&mut self, item: Bytes) -> Result<(), Unsent> {
        match self {
            Self::Closed => Err(Unsent::Closed),
            Self::Upload(body) => {
                let line = [&item[..], b"\n"].concat().into();
                body.send(line).await.map_err(|_| Unsent::Disconnected)
            }
            Self::Socket(socket) => {
                let Ok(text) = String::from_utf8(item.to_vec()) else { return Err(Unsent::Closed) };
                socket.send(Message::text(text)).await.map_err(|_| Unsent::Disconnected)
            }
            Self::Program { stdin, rest } => {
                // An earlier send may have been dropped in the middle of a line.
                flush(stdin, rest).await?;
                rest.extend_from_slice(&item);
                rest.extend_from_slice(b"\n");
                flush(stdin, rest).await
            }
        }
    }

    /// Pings the other end of a WebSocket.
    pub(super) async fn ping(&mut self) {
        if let Self::Socket(socket) = self {
            let _ = socket.send(Message::Ping(Bytes::new())).await;
        }
    }

    /// Declares the end of the values, if that is possible without ending the stream.
    pub(super) async fn finish(&mut self) {
        match self {
            Self::Socket(socket) => {
                let _ = socket.flush().await;
            }
            Self::Program { stdin, rest } => {
                let _ = flush(stdin, rest).await;
                *self = Self::Closed;
            }
            Self::Upload(_) | Self::Closed => *self = Self::Closed,
        }
    }

    /// Closes the connection gracefully.
    pub(super) async fn close(&mut self) {
        if let Self::Socket(socket) = self {
            let _ = socket.close().await;
        }
        self.finish().await;
        *self = Self::Closed;
    }
}

async fn flush(stdin: &mut pipe::Sender, rest: &mut BytesMut) -> Result<(), Unsent> {
    while rest.has_remaining() {
        let written = stdin.write(rest).await.map_err(|_| Unsent::Disconnected)?;
        rest.advance(written);
    }
    Ok(())
}

//! Reads from a connection or a program, piece by piece.

use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::SplitStream;
use orla_marketplace::rtfs::text::tail;
use orla_mcp::framing::Events;
use orla_process::Command;
use orla_process::supervisor::Process;
use reqwest::{Response, Upgraded};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Error as SocketError;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::error::CapacityError;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::items::Lines;

/// The maximum number of bytes of a pipe that are read at once.
const PIECE: usize = 16 * 1024;
/// The number of bytes of a program's standard error that an error repeats.
const SHOWN: usize = 500;
/// The number of bytes of standard error that are kept, so that no secret is shown in part: a part would
/// not be recognised.
const KEPT: usize = 4 * 1024;
/// How long a program that has closed its output may take to exit.
const EXIT: Duration = Duration::from_secs(5);

pub(super) type Socket = WebSocketStream<Upgraded>;

/// The source of items.
pub(super) enum Source {
    /// Server-sent events.
    Events { response: Response, events: Events },
    /// Lines of an HTTP answer.
    Lines { response: Response, lines: Lines },
    /// An HTTP answer that has not begun. It may not begin before everything was sent.
    Waiting { answer: BoxFuture<'static, Result<Response, Cut>>, max: usize },
    /// Messages of a WebSocket.
    Socket { stream: SplitStream<Socket>, next: Option<Bytes> },
    /// Lines of a program.
    Program(Box<Program>),
}

/// A program's output.
pub(super) struct Program {
    process: Process,
    command: Arc<Command>,
    stdout: Option<pipe::Receiver>,
    stderr: Option<pipe::Receiver>,
    lines: Lines,
    buffer: BytesMut,
    /// The last part of standard error.
    stderr_tail: BytesMut,
    errors: BytesMut,
}

/// One item before decoding.
pub(super) struct Raw {
    pub(super) data: Bytes,
    pub(super) id: Option<Bytes>,
    pub(super) retry: Option<u64>,
    /// Whether the event is an item, and not only an id or a pause.
    pub(super) is_item: bool,
}

/// The reason why no more data comes.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    pub(super) reason: String,
    /// Whether a later attempt may succeed.
    pub(super) is_transient: bool,
}

impl Cut {
    pub(super) fn transient(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_transient: true }
    }

    pub(super) fn permanent(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_transient: false }
    }
}

impl Source {
    /// Returns the next item of the data so far.
    pub(super) fn take(&mut self, max: usize) -> Result<Option<Raw>, Cut> {
        let plain = |data| Raw { data, id: None, retry: None, is_item: true };
        let too_large =
            || Cut::permanent(format!("an item is larger than {max} bytes (max_item_bytes)"));
        let raw = match self {
            Self::Events { events, .. } => events.next().map_err(|_| too_large())?.map(|event| Raw {
                is_item: !event.data.is_empty(),
                data: event.data,
                id: event.id,
                retry: event.retry,
            }),
            Self::Lines { lines, .. } => lines.next().map_err(|_| too_large())?.map(plain),
            Self::Program(program) => program.lines.next().map_err(|_| too_large())?.map(plain),
            Self::Socket { next, .. } => next.take().map(plain),
            Self::Waiting { .. } => None,
        };
        match raw {
            Some(raw) if raw.data.len() > max => Err(too_large()),
            raw => Ok(raw),
        }
    }

    /// Waits for more data; returns false if everything has arrived. Dropping the future loses nothing.
    pub(super) async fn fill(&mut self) -> Result<bool, Cut> {
        match self {
            Self::Events { response, events } => match chunk(response).await? {
                Some(chunk) => events.push(&chunk),
                None if events.is_within_event() => {
                    return Err(Cut::transient("the connection ended within an event"));
                }
                None => return Ok(false),
            },
            Self::Lines { response, lines } => match chunk(response).await? {
                Some(chunk) => lines.push(chunk),
                None => return Ok(false),
            },
            Self::Waiting { answer, max } => {
                let response = answer.await?;
                *self = Self::Lines { response, lines: Lines::new(*max) };
            }
            Self::Socket { stream, next } => return message(stream, next).await,
            Self::Program(program) => return program.fill().await,
        }
        Ok(true)
    }

    /// Returns the rest at the end of the data, which has no line end.
    pub(super) fn rest(&mut self) -> Option<Bytes> {
        match self {
            Self::Lines { lines, .. } => lines.rest(),
            Self::Program(program) => program.lines.rest(),
            Self::Events { .. } | Self::Waiting { .. } | Self::Socket { .. } => None,
        }
    }
}

async fn chunk(response: &mut Response) -> Result<Option<Bytes>, Cut> {
    response.chunk().await.map_err(|_| Cut::transient("the connection broke"))
}

async fn message(stream: &mut SplitStream<Socket>, next: &mut Option<Bytes>) -> Result<bool, Cut> {
    match stream.next().await {
        Some(Ok(Message::Text(text))) => *next = Some(text.into()),
        Some(Ok(Message::Binary(data))) => *next = Some(data),
        // The library has answered a ping. The message shows that the other end works.
        Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
        Some(Ok(Message::Close(frame))) => {
            return match frame {
                Some(frame) if frame.code != CloseCode::Normal => {
                    let why: String = frame.reason.chars().take(200).collect();
                    Err(Cut::transient(format!("the other end closes it with {}: {why}", frame.code)))
                }
                _ => Ok(false),
            };
        }
        Some(Err(SocketError::ConnectionClosed)) => return Ok(false),
        Some(Err(SocketError::Capacity(CapacityError::MessageTooLong { max_size, .. }))) => {
            return Err(Cut::permanent(format!(
                "an item is larger than {max_size} bytes (max_item_bytes)"
            )));
        }
        Some(Err(_)) => return Err(Cut::transient("the connection broke")),
        None => return Err(Cut::transient("the connection ended without a goodbye")),
    }
    Ok(true)
}

impl Program {
    pub(super) fn new(mut process: Process, command: Arc<Command>, max: usize) -> Self {
        Self {
            command,
            stdout: process.stdout.take(),
            stderr: process.stderr.take(),
            process,
            lines: Lines::new(max),
            buffer: BytesMut::new(),
            stderr_tail: BytesMut::new(),
            errors: BytesMut::new(),
        }
    }

    async fn fill(&mut self) -> Result<bool, Cut> {
        while let Some(stdout) = &mut self.stdout {
            self.buffer.reserve(PIECE);
            tokio::select! {
                biased;
                read = stdout.read_buf(&mut self.buffer) => match read {
                    Ok(0) | Err(_) => self.stdout = None,
                    Ok(_) => {
                        self.lines.push(self.buffer.split().freeze());
                        return Ok(true);
                    }
                },
                () = listen(&mut self.stderr, &mut self.errors, &mut self.stderr_tail) => {}
            }
        }
        // The last output may say why the program ends.
        let exited = async {
            while self.stderr.is_some() {
                listen(&mut self.stderr, &mut self.errors, &mut self.stderr_tail).await;
            }
            self.process.exited().await;
        };
        let exited = tokio::time::timeout(EXIT, exited).await;
        let status =
            if exited.is_ok() || self.process.has_exited() { self.process.reap() } else { None };
        match status {
            Some(status) if !status.success() => Err(Cut::transient(self.failure(status))),
            _ => Ok(false),
        }
    }

    fn failure(&self, status: ExitStatus) -> String {
        let how = match status.code() {
            Some(code) => format!("the program exited with code {code}"),
            None => "the program was ended by a signal".to_owned(),
        };
        let stderr = self.command.without_secrets(String::from_utf8_lossy(&self.stderr_tail));
        match tail(stderr.trim(), SHOWN) {
            "" => how,
            text => format!("{how}: {text}"),
        }
    }

    /// Waits until the program has exited by itself.
    pub(super) async fn exited(&mut self) -> Option<ExitStatus> {
        while self.stderr.is_some() {
            self.discard_output().await;
        }
        loop {
            let Self { process, stdout, stderr, buffer, errors, stderr_tail, .. } = self;
            tokio::select! {
                biased;
                () = process.exited() => break,
                () = discard_output(stdout, buffer, stderr, errors, stderr_tail) => {}
            }
        }
        self.process.reap()
    }

    /// Reads and discards some output; waits forever if the output has ended.
    pub(super) async fn discard_output(&mut self) {
        let Self { stdout, stderr, buffer, errors, stderr_tail, .. } = self;
        discard_output(stdout, buffer, stderr, errors, stderr_tail).await;
    }
}

/// Reads some of either pipe, and discards standard output. With full pipes a program would block.
async fn discard_output(
    stdout: &mut Option<pipe::Receiver>,
    buffer: &mut BytesMut,
    stderr: &mut Option<pipe::Receiver>,
    errors: &mut BytesMut,
    stderr_tail: &mut BytesMut,
) {
    let Some(pipe) = stdout else { return listen(stderr, errors, stderr_tail).await };
    buffer.clear();
    buffer.reserve(PIECE);
    tokio::select! {
        read = pipe.read_buf(buffer) => {
            if matches!(read, Ok(0) | Err(_)) {
                *stdout = None;
            }
        }
        () = listen(stderr, errors, stderr_tail) => {}
    }
}

/// Reads some of standard error and keeps its last part; waits forever if there is none.
async fn listen(stderr: &mut Option<pipe::Receiver>, buffer: &mut BytesMut, stderr_tail: &mut BytesMut) {
    let Some(pipe) = stderr else { return std::future::pending().await };
    buffer.reserve(SHOWN);
    match pipe.read_buf(buffer).await {
        Ok(0) | Err(_) => *stderr = None,
        Ok(_) => {
            stderr_tail.extend_from_slice(&buffer.split());
            let more = stderr_tail.len().saturating_sub(KEPT);
            let _ = stderr_tail.split_to(more);
        }
    }
}

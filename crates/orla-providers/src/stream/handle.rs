//! An open stream: its items and values.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use orla_marketplace::schema::Validator;
use orla_marketplace::{
    Payload, RuntimeError, RuntimeResult, SendAs, StreamCapabilityImpl, StreamHandle, StreamItems,
    StreamTransport, StreamType, seconds,
};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::connect::{Connector, failed};
use super::items;
use super::resume::{Ended, Next, Resumption};
use super::sink::{Sink, Unsent};
use super::source::{Cut, Source};

/// The time limit of closing a connection gracefully.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a WebSocket may be silent before a ping, and then again before it counts as broken, unless configured.
const SOCKET_HEARTBEAT: Duration = Duration::from_secs(60);

/// An open stream.
pub(super) struct Opened {
    name: Arc<str>,
    stream_type: StreamType,
    form: StreamItems,
    send_as: SendAs,
    /// Whether items are lines, not messages.
    are_lines: bool,
    input: Option<Validator>,
    output: Option<Validator>,
    reader: AsyncMutex<Reader>,
    writer: Arc<AsyncMutex<Sink>>,
    /// Whether nothing more is sent, with or without the consent of the other end.
    finished: AtomicBool,
    closed: CancellationToken,
    /// Cancelled when the connection that is written to has ended. Each connection has its own token.
    disconnected: Mutex<CancellationToken>,
}

/// The reading half.
struct Reader {
    connector: Connector,
    /// `None` while the stream reconnects, and at its end.
    source: Option<Source>,
    /// When to reconnect; `None` at the end.
    connect_at: Option<Instant>,
    resumption: Resumption,
    max: usize,
    heartbeat: Option<Duration>,
    idle: Option<Duration>,
    /// The part of the opening input that is still to be sent.
    feed: Option<BoxFuture<'static, ()>>,
    taken: u64,
}

impl Opened {
    pub(super) fn new(
        stream: &StreamCapabilityImpl,
        connector: Connector,
        connected: Option<(Source, Sink)>,
    ) -> RuntimeResult<Self> {
        let options = &stream.options;
        let compiled = |schema: &Option<_>| schema.as_ref().map(Validator::compile).transpose();
        let unfit =
            |err: orla_marketplace::schema::SchemaError| failed(&connector.name, &err.to_string());
        let input = compiled(&stream.input_schema).map_err(unfit)?;
        let output = compiled(&stream.output_schema).map_err(unfit)?;
        let (source, sink) = connected.unzip();
        let is_socket = options.transport == StreamTransport::WebSocket;
        let heartbeat = options.heartbeat.or(is_socket.then_some(SOCKET_HEARTBEAT));
        let reader = Reader {
            source,
            connect_at: None,
            resumption: Resumption::new(options.reconnect, options.max_reconnects),
            max: options.max_item_bytes,
            heartbeat: heartbeat.filter(|heartbeat| !heartbeat.is_zero()),
            idle: options.idle.filter(|idle| !idle.is_zero()),
            feed: None,
            taken: 0,
            connector,
        };
        Ok(Self {
            name: Arc::clone(&reader.connector.name),
            stream_type: stream.stream_type,
            form: options.items,
            send_as: items::send_as(options),
            are_lines: !is_socket,
            input,
            output,
            reader: AsyncMutex::new(reader),
            writer: Arc::new(AsyncMutex::new(sink.unwrap_or(Sink::Closed))),
            finished: AtomicBool::new(false),
            closed: CancellationToken::new(),
            disconnected: Mutex::default(),
        })
    }

    /// Sends these values while items are read, and then declares their end.
    pub(super) async fn feed(&self, values: Vec<Payload>) -> RuntimeResult<()> {
        let items: Vec<Bytes> =
            values.iter().map(|value| self.encode(value)).collect::<RuntimeResult<_>>()?;
        let writer = Arc::clone(&self.writer);
        let feed = async move {
            for item in items {
                if writer.lock().await.send(item).await.is_err() {
                    return;
                }
            }
            writer.lock().await.finish().await;
        };
        self.reader.lock().await.feed = Some(Box::pin(feed));
        self.finished.store(true, Ordering::Release);
        Ok(())
    }

    /// Declares that no more values will be sent, and waits for the remaining items.
    ///
    /// # Errors
    /// The other end refuses a value.
    pub(super) async fn settle(&self) -> RuntimeResult<()> {
        self.writer.lock().await.close().await;
        let mut reader = self.reader.lock().await;
        match &mut reader.source {
            Some(Source::Waiting { answer, .. }) => {
                let answer = answer.await;
                reader.source = None;
                answer.map(drop).map_err(|cut| self.cut_error(&cut, "it took everything, and"))
            }
            Some(Source::Program(program)) => match program.exited().await {
                Some(status) if !status.success() => {
                    let code =
                        status.code().map_or("a signal".to_owned(), |code| format!("code {code}"));
                    Err(failed(&self.name, &format!("the program ended with {code}")))
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Sends an item. The output of a program that only takes values is discarded meanwhile.
    async fn deliver(&self, item: Bytes) -> Result<(), Unsent> {
        let sending = async {
            let mut writer = self.writer.lock().await;
            let disconnected = self.disconnected().clone();
            // A connection that has ended accepts nothing and may not report that. The new connection
            // replaces it.
            let sent = disconnected
                .run_until_cancelled(writer.send(item))
                .await
                .unwrap_or(Err(Unsent::Disconnected));
            if self.finished.load(Ordering::Acquire) {
                writer.close().await;
            }
            sent
        };
        if self.stream_type != StreamType::Sink {
            return sending.await;
        }
        tokio::pin!(sending);
        let mut reader = self.reader.lock().await;
        let Some(Source::Program(program)) = &mut reader.source else { return sending.await };
        loop {
            tokio::select! {
                biased;
                sent = &mut sending => return sent,
                () = self.closed.cancelled() => break,
                () = program.discard_output() => {}
            }
        }
        // Closing waits no longer than for a graceful end.
        reader.source = None;
        Err(Unsent::Disconnected)
    }

    fn encode(&self, value: &Payload) -> RuntimeResult<Bytes> {
        let invalid = |violations| RuntimeError::InvalidInput { id: self.name.to_string(), violations };
        if !self.stream_type.takes() {
            return Err(failed(&self.name, "it is a source and accepts no values"));
        }
        if let Some(schema) = &self.input {
            schema.check_payload(value, "item").map_err(invalid)?;
        }
        items::encode(self.send_as, self.are_lines, value).map_err(|expected| {
            let got =
                value.json().map(|json| json.as_str().chars().take(40).collect()).unwrap_or_default();
            let violation = orla_marketplace::Violation { path: "item".to_owned(), expected, got };
            invalid(vec![violation])
        })
    }

    /// Decodes the item with this index.
    fn decode(&self, data: &Bytes, index: u64) -> RuntimeResult<Payload> {
        let path = || format!("items[{index}]");
        let item = items::decode(self.form, data)
            .map_err(|problem| failed(&self.name, &format!("{} is {problem}", path())))?;
        if let Some(schema) = &self.output {
            schema.check_payload(&item, &path()).map_err(|violations| RuntimeError::InvalidOutput {
                id: self.name.to_string(),
                violations,
                outcome: Box::default(),
            })?;
        }
        Ok(item)
    }

    /// Reads the next item without decoding it.
    async fn read(&self, reader: &mut Reader) -> RuntimeResult<Option<Bytes>> {
        let mut idle_end = None;
        loop {
            let Some(source) = &mut reader.source else {
                match self.reconnect(reader).await? {
                    true => continue,
                    false => return Ok(None),
                }
            };
            let taken = source
                .take(reader.max)
                .map_err(|cut| self.cut_error(&cut, "it sent an invalid item:"))?;
            if let Some(raw) = taken {
                if let Some(ms) = raw.retry {
                    reader.resumption.retry(ms);
                }
                if !raw.is_item {
                    reader.resumption.set_last_id(raw.id.as_ref());
                } else if reader.resumption.admits(raw.id.as_ref()) {
                    reader.taken += 1;
                    return Ok(Some(raw.data));
                }
                continue;
            }
            if let (None, Some(idle)) = (idle_end, reader.idle) {
                idle_end = Some(Instant::now() + idle);
            }
            let filled = {
                let data = self.wait_for_data(source, &mut reader.feed, reader.heartbeat);
                match idle_end {
                    Some(end) => {
                        timeout_at(end, data).await.map_err(|_| self.idle_error(reader.idle))?
                    }
                    None => data.await,
                }
            };
            let (how, cut) = match filled {
                Ok(true) => continue,
                Ok(false) => (Ended::Orderly, None),
                Err(cut) if !cut.is_transient => {
                    reader.source = None;
                    self.disconnected().cancel();
                    return Err(self.cut_error(&cut, &count_text(reader.taken)));
                }
                Err(cut) => (Ended::Cut, Some(cut)),
            };
            let rest = match how {
                Ended::Orderly => source.rest(),
                Ended::Cut | Ended::Refused => None,
            };
            (reader.source, reader.feed) = (None, None);
            self.disconnected().cancel();
            // A close message is answered with one.
            let _ = timeout(CLOSE_TIMEOUT, async { self.writer.lock().await.close().await }).await;
            let next = match how {
                // Items that were sent to the connection will not be sent again.
                Ended::Cut if self.finished.load(Ordering::Acquire) => Next::Fail,
                _ => reader.resumption.ended(how),
            };
            match next {
                Next::Connect(pause) => reader.connect_at = Some(Instant::now() + pause),
                Next::End => {}
                Next::Fail => {
                    let cut = cut.unwrap_or_else(|| Cut::transient("the connection ended"));
                    return Err(self.cut_error(&cut, &count_text(reader.taken)));
                }
            }
            if let Some(rest) = rest {
                reader.taken += 1;
                return Ok(Some(rest));
            }
        }
    }

    /// Waits for more, and pings a silent connection.
    async fn wait_for_data(
        &self,
        source: &mut Source,
        feed: &mut Option<BoxFuture<'static, ()>>,
        heartbeat: Option<Duration>,
    ) -> Result<bool, Cut> {
        let Some(heartbeat) = heartbeat else { return fill(source, feed).await };
        if let Ok(filled) = timeout(heartbeat / 2, fill(source, feed)).await {
            return filled;
        }
        // A concurrent sender notices a broken connection as well.
        if let Ok(mut writer) = self.writer.try_lock() {
            let _ = timeout(heartbeat / 2, writer.ping()).await;
        }
        timeout(heartbeat / 2, fill(source, feed)).await.unwrap_or_else(|_| {
            Err(Cut::transient(format!("nothing was received for {}", seconds(heartbeat))))
        })
    }

    /// Reconnects when that is due; returns false at the end.
    async fn reconnect(&self, reader: &mut Reader) -> RuntimeResult<bool> {
        let Some(at) = reader.connect_at else { return Ok(false) };
        sleep(at.saturating_duration_since(Instant::now())).await;
        let connecting = reader.connector.connect(reader.resumption.last_id());
        // The call's own time bounds the first attempt.
        let connected = match reader.heartbeat {
            None => connecting.await,
            Some(limit) => timeout(limit, connecting).await.unwrap_or_else(|_| {
                let reason = format!("it could not be connected again within {}", seconds(limit));
                Err(RuntimeError::Unavailable { id: self.name.to_string(), reason, source: None })
            }),
        };
        match connected {
            Ok(Some((source, sink))) => {
                tracing::debug!(stream = &*self.name, items = reader.taken, "the stream is resumed");
                let mut writer = self.writer.lock().await;
                *self.disconnected() = CancellationToken::new();
                *writer = sink;
                drop(writer);
                (reader.source, reader.connect_at) = (Some(source), None);
                Ok(true)
            }
            Ok(None) => {
                reader.connect_at = None;
                Ok(false)
            }
            Err(error) => {
                reader.connect_at = match reader.resumption.ended(Ended::Refused) {
                    Next::Connect(pause) if error.is_transient() => Some(Instant::now() + pause),
                    _ => return Err(error),
                };
                Ok(true)
            }
        }
    }

    fn disconnected(&self) -> MutexGuard<'_, CancellationToken> {
        self.disconnected.lock()
    }

    fn cut_error(&self, cut: &Cut, when: &str) -> RuntimeError {
        let id = self.name.to_string();
        let reason = format!("{when} {}", cut.reason);
        match cut.is_transient {
            true => RuntimeError::Unavailable { id, reason, source: None },
            false => {
                RuntimeError::Failed { message: format!("{id} failed: {reason}"), id, outcome: None }
            }
        }
    }

    fn idle_error(&self, limit: Option<Duration>) -> RuntimeError {
        let limit = limit.unwrap_or_default();
        RuntimeError::TimedOut { id: format!("the next item of {}", self.name), limit, outcome: None }
    }
}

/// Waits for more while the rest of the input is being sent.
async fn fill(source: &mut Source, feed: &mut Option<BoxFuture<'static, ()>>) -> Result<bool, Cut> {
    loop {
        let Some(feeding) = feed else { return source.fill().await };
        tokio::select! {
            biased;
            filled = source.fill() => return filled,
            () = feeding => *feed = None,
        }
    }
}

fn count_text(taken: u64) -> String {
    match taken {
        0 => "before its first item:".to_owned(),
        1 => "after one item:".to_owned(),
        taken => format!("after {taken} items:"),
    }
}

#[async_trait]
impl StreamHandle for Opened {
    async fn next(&self) -> Option<RuntimeResult<Payload>> {
        if !self.stream_type.gives() {
            return None;
        }
        let mut reader = self.reader.lock().await;
        let read = self.read(&mut reader).await;
        let index = reader.taken.saturating_sub(1);
        read.and_then(|data| data.map(|data| self.decode(&data, index)).transpose()).transpose()
    }

    async fn send(&self, value: Payload) -> RuntimeResult<()> {
        let item = self.encode(&value)?;
        let sent = match self.finished.load(Ordering::Acquire) {
            true => Err(Unsent::Closed),
            false => self.deliver(item).await,
        };
        sent.map_err(|unsent| match unsent {
            Unsent::Closed => failed(&self.name, "it accepts no more values"),
            Unsent::Disconnected => {
                let reason = "the other end no longer accepts values".to_owned();
                RuntimeError::Unavailable { id: self.name.to_string(), reason, source: None }
            }
        })
    }

    async fn finish(&self) -> bool {
        if !self.stream_type.takes() || !self.stream_type.gives() {
            self.close().await;
            return false;
        }
        // The rest of the opening input is sent, followed by the end.
        if !self.finished.swap(true, Ordering::AcqRel) {
            // If that takes long, the other end does not read, and its last value is not awaited. The
            // current sender then closes the stream.
            let closing = timeout(CLOSE_TIMEOUT, async { self.writer.lock().await.close().await });
            if closing.await.is_err()
                && let Ok(mut writer) = self.writer.try_lock()
            {
                *writer = Sink::Closed;
            }
        }
        true
    }

    async fn close(&self) {
        let closing = async {
            if self.stream_type == StreamType::Sink {
                let _ = self.settle().await;
            } else {
                self.writer.lock().await.close().await;
            }
        };
        let _ = timeout(CLOSE_TIMEOUT, closing).await;
        self.closed.cancel();
        // A task that still waits for an item, or sends one, holds the reader. The reader ends with that
        // task.
        if let Ok(mut reader) = self.reader.try_lock() {
            (reader.source, reader.connect_at, reader.feed) = (None, None, None);
        }
    }
}

//! Traces of calls, and metrics, exported by OTLP over HTTP as protobuf.
//!
//! # How it works
//!
//! The history creates a row for each ended call, and passes the rows of sampled traces to an
//! [`Exporter`]. `span` converts them into spans, without I/O. A task sends batches to the collector
//! through a [`Collector`], which the program supplies. [`Meter`] sends the values of all metrics at an
//! interval. `metrics` derives them from the text for scrapers, so that each metric is defined once.
//!
//! # Invariants
//!
//! - A slow or missing collector does not slow down calls: the queue is bounded, and spans that do not
//!   fit are left out.
//!
//! # Deliberately absent
//!
//! OTLP over gRPC and as JSON, and the SDK of OpenTelemetry: orla needs only a few messages of the
//! protocol.

mod meter;
mod metrics;
mod proto;
mod resource;
mod span;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use orla_history::{Row, SpanSink};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub use meter::Meter;
pub use resource::Resource;
pub use span::Prompt;

/// How long spans are gathered before they are sent.
const BATCH_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of calls of one request.
const MAX_BATCH: usize = 512;
/// The maximum number of calls, and of prompts, that wait to be sent. Further ones are left out.
const MAX_WAITING: usize = 8192;
/// How long the last request may take when the server ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);
/// How often a request is made again after a failure that may pass.
const RETRIES: u32 = 3;

/// The way to a collector.
#[async_trait]
pub trait Collector: Send + Sync {
    /// Posts a request for traces or for metrics as protobuf.
    ///
    /// # Errors
    ///
    /// Returns why it was not taken.
    async fn send(&self, body: Bytes) -> Result<(), SendError>;
}

/// The reason why a collector did not accept a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendError {
    /// For the log, without secrets.
    pub why: String,
    /// Whether the same request may be taken later.
    pub may_pass: bool,
}

/// Exports spans. Cloning shares it.
#[derive(Clone)]
pub struct Exporter(Arc<Inner>);

struct Inner {
    resource: Resource,
    waiting: Mutex<Vec<Row>>,
    prompts: Mutex<Vec<Prompt>>,
    enough: Notify,
    dropped: AtomicU64,
    is_failing: AtomicBool,
}

impl Exporter {
    /// Creates an exporter for the instance that `resource` describes. [`serve`](Self::serve) sends the
    /// accepted calls.
    pub fn new(resource: Resource) -> Self {
        Self(Arc::new(Inner {
            resource,
            waiting: Mutex::default(),
            prompts: Mutex::default(),
            enough: Notify::new(),
            dropped: AtomicU64::new(0),
            is_failing: AtomicBool::new(false),
        }))
    }

    /// Takes a prompt that an agent has carried out.
    pub fn take_prompt(&self, prompt: Prompt) {
        let mut prompts = self.0.prompts.lock();
        if prompts.len() < MAX_WAITING {
            prompts.push(prompt);
        } else {
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends spans until `ending` is cancelled, and then the rest, within three seconds.
    pub async fn serve(&self, collector: &dyn Collector, ending: CancellationToken) {
        while !ending.is_cancelled() {
            tokio::select! {
                () = tokio::time::sleep(BATCH_INTERVAL) => {}
                () = self.0.enough.notified() => {}
                () = ending.cancelled() => break,
            }
            // A request that is being sent is not lost when the server ends.
            let mut sending = pin!(self.send(collector));
            tokio::select! {
                () = &mut sending => {}
                () = ending.cancelled() => {
                    drop(timeout(SHUTDOWN_TIMEOUT, async { sending.await; self.send(collector).await }).await);
                    return;
                }
            }
        }
        drop(timeout(SHUTDOWN_TIMEOUT, self.send(collector)).await);
    }

    /// Sends what waits.
    async fn send(&self, collector: &dyn Collector) {
        loop {
            let batch: Vec<Row> = {
                let mut waiting = self.0.waiting.lock();
                let count = waiting.len().min(MAX_BATCH);
                waiting.drain(..count).collect()
            };
            let prompts = std::mem::take(&mut *self.0.prompts.lock());
            if batch.is_empty() && prompts.is_empty() {
                return;
            }
            let request = span::request(&self.0.resource, &batch, &prompts);
            self.post(collector, Bytes::from(request.encode_to_vec())).await;
        }
    }

    async fn post(&self, collector: &dyn Collector, body: Bytes) {
        let mut wait = Duration::from_secs(1);
        for attempt in 0..=RETRIES {
            match collector.send(body.clone()).await {
                Ok(()) => {
                    if self.0.is_failing.swap(false, Ordering::Relaxed) {
                        let dropped = self.0.dropped.swap(0, Ordering::Relaxed);
                        tracing::info!(dropped, "traces are sent again");
                    }
                    return;
                }
                Err(SendError { why, may_pass }) => {
                    if !self.0.is_failing.swap(true, Ordering::Relaxed) {
                        tracing::warn!(
                            error = why,
                            "traces cannot be sent; calls continue, and orla tries again"
                        );
                    }
                    if !may_pass || attempt == RETRIES {
                        return;
                    }
                    tokio::time::sleep(wait).await;
                    wait *= 2;
                }
            }
        }
    }
}

impl SpanSink for Exporter {
    fn take(&self, rows: &[Row]) {
        let mut waiting = self.0.waiting.lock();
        let capacity = MAX_WAITING.saturating_sub(waiting.len());
        let without_data = |row: &Row| {
            let mut bare = Row::of(row.call.clone());
            (bare.error, bare.trace) = (row.error.clone(), row.trace.clone());
            bare
        };
        waiting.extend(rows.iter().take(capacity).map(without_data));
        let is_enough = waiting.len() >= MAX_BATCH;
        drop(waiting);
        let dropped = rows.len().saturating_sub(capacity) as u64;
        self.0.dropped.fetch_add(dropped, Ordering::Relaxed);
        if is_enough {
            self.0.enough.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orla_history::{Call, Trace};

    #[derive(Default)]
    struct Recorder {
        bodies: Mutex<Vec<Bytes>>,
        failures: Mutex<u32>,
    }

    #[async_trait]
    impl Collector for Recorder {
        async fn send(&self, body: Bytes) -> Result<(), SendError> {
            let mut failures = self.failures.lock();
            if *failures > 0 {
                *failures -= 1;
                return Err(SendError { why: "503".to_owned(), may_pass: true });
            }
            self.bodies.lock().push(body);
            Ok(())
        }
    }

    fn row(id: &str) -> Row {
        let mut row = Row::of(Call::new(id.to_owned(), "add".to_owned(), "ok".to_owned()));
        let (trace_id, span_id) =
            ("4bf92f3577b34da6a3ce929d0e0e4736".to_owned(), "00f067aa0ba902b7".to_owned());
        row.trace = Some(Trace { trace_id, span_id, parent_id: None });
        row
    }

    #[tokio::test(start_paused = true)]
    async fn spans_are_sent_again_after_a_failure_that_may_pass() {
        let (exporter, collector) = (Exporter::new(Resource::default()), Arc::new(Recorder::default()));
        *collector.failures.lock() = 2;
        let ending = CancellationToken::new();
        exporter.take(&[row("a")]);
        let serving = exporter.serve(&*collector, ending.clone());
        let sent = async {
            while collector.bodies.lock().is_empty() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            exporter.take(&[row("b")]);
            ending.cancel();
        };
        tokio::join!(serving, sent);
        let bodies = collector.bodies.lock();
        assert_eq!(bodies.len(), 2, "what is left is sent at the end");
        assert!(bodies[0].windows(14).any(|part| part == b"tools/call add"));
    }

    #[test]
    fn spans_beyond_the_limit_are_dropped() {
        let exporter = Exporter::new(Resource::default());
        let rows: Vec<Row> = (0..MAX_WAITING + 5).map(|_| row("a")).collect();
        exporter.take(&rows);
        assert_eq!(exporter.0.waiting.lock().len(), MAX_WAITING);
        assert_eq!(exporter.0.dropped.load(Ordering::Relaxed), 5);
    }
}

//! Traces and metrics: the way to the collector.

use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use orla_history::{History, TraceContext, Tracing};
use orla_oauth::root_cause;
use orla_server::Server;
use orla_telemetry::{Collector, Exporter, Meter, Prompt, Resource, SendError};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, StatusCode};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::telemetry::{Target, Telemetry};
use crate::{Failure, http_client};

/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The prepared telemetry of a server.
#[derive(Default)]
pub(crate) struct Prepared {
    traces: Option<(Exporter, Http)>,
    metrics: Option<(Meter, Http)>,
}

impl Prepared {
    /// Prepares the telemetry. From now on, the calls that a history follows are traced.
    ///
    /// # Errors
    ///
    /// Returns an error if a header is invalid, or if the client cannot be created.
    pub(crate) fn new(telemetry: Telemetry, calls: Option<&History>) -> Result<Self, Failure> {
        let Telemetry { traces, sample_ratio, metrics, every, attributes } = telemetry;
        let resource = Resource { attributes, version: env!("CARGO_PKG_VERSION").to_owned() };
        let mut prepared = Self::default();
        if let (Some(target), Some(calls)) = (traces, calls) {
            let exporter = Exporter::new(resource.clone());
            calls.trace_with(Tracing { sample_ratio, sink: Arc::new(exporter.clone()) });
            prepared.traces = Some((exporter, Http::new(target)?));
        }
        if let Some(target) = metrics {
            prepared.metrics = Some((Meter::new(resource, every), Http::new(target)?));
        }
        Ok(prepared)
    }

    /// Sends until that is [ended](Sending::end).
    pub(crate) fn start(self, server: &Server) -> Sending {
        let sending = Sending::default();
        if let Some((exporter, collector)) = self.traces {
            sending.traces(exporter, collector);
        }
        if let Some((meter, collector)) = self.metrics {
            let (server, ending) = (server.clone(), sending.ending.clone());
            let read = move || server.metrics();
            sending.tasks.spawn(async move { meter.serve(read, &collector, ending).await });
        }
        sending
    }
}

/// The trace of one prompt of `orla agent`: its calls are within one span.
pub(crate) struct PromptTrace {
    context: TraceContext,
    exporter: Exporter,
    sending: Sending,
    started_at: SystemTime,
    started: Instant,
}

impl PromptTrace {
    /// Begins a trace, within the span that the variable `TRACEPARENT` names, if it does. From now on, the calls that `calls`
    /// follows are traced.
    ///
    /// # Errors
    ///
    /// Returns an error if a header is invalid, or if the client cannot be created.
    pub(crate) fn begin(telemetry: Telemetry, calls: &History) -> Result<Option<Self>, Failure> {
        let sample_ratio = telemetry.sample_ratio;
        let Some((exporter, collector)) = Prepared::new(telemetry, Some(calls))?.traces else {
            return Ok(None);
        };
        let outer = std::env::var("TRACEPARENT").ok();
        let sending = Sending::default();
        sending.traces(exporter.clone(), collector);
        // In this order: if the process is preempted in between, the span ends too late, and not before the calls in it.
        let started = Instant::now();
        let started_at = SystemTime::now();
        let context = TraceContext::within(outer.as_deref(), sample_ratio);
        Ok(Some(Self { context, exporter, sending, started_at, started }))
    }

    /// Returns the context for the calls of the prompt.
    pub(crate) fn traceparent(&self) -> Arc<str> {
        self.context.traceparent()
    }

    /// Ends the trace and sends what is not sent yet, within a few seconds. The calls must have been written.
    pub(crate) async fn end(self, model: String, tokens: (u64, u64), error: Option<String>) {
        let Self { context, exporter, sending, started_at, started } = self;
        if context.is_sampled {
            let (trace, duration) = (context.trace, started.elapsed());
            exporter.take_prompt(Prompt { trace, model, started_at, duration, tokens, error });
        }
        sending.end().await;
    }
}

/// The tasks that send.
#[derive(Default)]
pub(crate) struct Sending {
    ending: CancellationToken,
    tasks: TaskTracker,
}

impl Sending {
    fn traces(&self, exporter: Exporter, collector: Http) {
        let ending = self.ending.clone();
        self.tasks.spawn(async move { exporter.serve(&collector, ending).await });
    }

    /// Sends the remaining data, within a few seconds.
    pub(crate) async fn end(self) {
        self.ending.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// A collector that takes OTLP over HTTP.
struct Http {
    client: Client,
    url: String,
    headers: HeaderMap,
    is_gzip: bool,
}

impl Http {
    fn new(Target { url, headers, is_gzip }: Target) -> Result<Self, Failure> {
        let headers = headers.iter().map(|(name, value)| {
            let name = HeaderName::try_from(name).map_err(|_| {
                Failure::usage(format!("telemetry.headers: {name:?} is not the name of a header"))
            })?;
            let mut value = HeaderValue::try_from(value).map_err(|_| {
                Failure::usage(format!("telemetry.headers.{name}: not the value of a header"))
            })?;
            value.set_sensitive(true);
            Ok((name, value))
        });
        let headers = headers.collect::<Result<HeaderMap, Failure>>()?;
        Ok(Self { client: http_client::new()?, url, headers, is_gzip })
    }
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    // A vector takes everything.
    drop(encoder.write_all(body));
    encoder.finish().unwrap_or_default()
}

#[async_trait]
impl Collector for Http {
    async fn send(&self, body: Bytes) -> Result<(), SendError> {
        let request = self.client.post(&self.url).headers(self.headers.clone()).timeout(TIMEOUT);
        let request = request.header("content-type", "application/x-protobuf");
        let request = match self.is_gzip {
            true => request.header("content-encoding", "gzip").body(gzip(&body)),
            false => request.body(body),
        };
        let sent = request.send().await;
        let response =
            sent.map_err(|err| SendError { why: root_cause(&err.without_url()), may_pass: true })?;
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        let may_pass = matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT
        );
        Err(SendError { why: format!("the collector answered {status}"), may_pass })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    #[test]
    fn compressed_bodies_can_be_decompressed() {
        let body = b"metrics, metrics, metrics".repeat(100);
        let (compressed, mut read) = (super::gzip(&body), Vec::new());
        GzDecoder::new(&*compressed).read_to_end(&mut read).unwrap();
        assert!(read == body && compressed.len() < body.len() / 10);
    }
}

//! Traces: the way to the collector.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use orla_history::{History, Tracing};
use orla_oauth::root_cause;
use orla_telemetry::{Collector, Exporter, NotTaken, Resource};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, StatusCode};
use tokio_util::sync::CancellationToken;

use crate::config::telemetry::Traces;
use crate::{Failure, http_client};

/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Sends the traces of the calls that a history follows, until `ending` is cancelled.
///
/// # Errors
/// The client cannot be made.
pub(crate) fn serve(
    history: &History,
    traces: Traces,
    ending: CancellationToken,
) -> Result<impl Future<Output = ()> + Send + use<>, Failure> {
    let Traces { url, headers, sample_ratio, attributes } = traces;
    let headers = headers.iter().map(|(name, value)| {
        let name = HeaderName::try_from(name).map_err(|_| {
            Failure::usage(format!("telemetry.headers: {name:?} is no name of a header"))
        })?;
        let mut value = HeaderValue::try_from(value)
            .map_err(|_| Failure::usage(format!("telemetry.headers.{name}: no value of a header")))?;
        value.set_sensitive(true);
        Ok((name, value))
    });
    let headers = headers.collect::<Result<HeaderMap, Failure>>()?;
    let collector = Http { client: http_client::new()?, url, headers };
    let exporter = Exporter::new(Resource { attributes, version: env!("CARGO_PKG_VERSION").to_owned() });
    history.trace_with(Tracing { sample_ratio, sink: Arc::new(exporter.clone()) });
    Ok(async move { exporter.serve(&collector, ending).await })
}

/// A collector that takes OTLP over HTTP.
struct Http {
    client: Client,
    url: String,
    headers: HeaderMap,
}

#[async_trait]
impl Collector for Http {
    async fn send(&self, body: Bytes) -> Result<(), NotTaken> {
        let request = self.client.post(&self.url).headers(self.headers.clone()).timeout(TIMEOUT);
        let request = request.header("content-type", "application/x-protobuf").body(body);
        let sent = request.send().await;
        let response =
            sent.map_err(|err| NotTaken { why: root_cause(&err.without_url()), may_pass: true })?;
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
        Err(NotTaken { why: format!("the collector answered {status}"), may_pass })
    }
}

//! When metrics are sent.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use prost::Message as _;
use tokio_util::sync::CancellationToken;

use crate::{Collector, Resource, SHUTDOWN_TIMEOUT, metrics};

/// Sends the values of metrics at an interval.
pub struct Meter {
    resource: Resource,
    every: Duration,
    began: SystemTime,
}

impl Meter {
    /// A meter for the instance that `resource` describes, whose counters begin now.
    pub fn new(resource: Resource, every: Duration) -> Self {
        Self { resource, every, began: SystemTime::now() }
    }

    /// Sends the OpenMetrics text of `read` until `ending` is cancelled, and then once more, within
    /// three seconds. If the collector does not accept a request, the next request contains its values,
    /// because counters continue.
    pub async fn serve(
        &self,
        read: impl Fn() -> String,
        collector: &dyn Collector,
        ending: CancellationToken,
    ) {
        let mut is_failing = false;
        loop {
            let is_last = ending.run_until_cancelled(tokio::time::sleep(self.every)).await.is_none();
            let request = metrics::request(&self.resource, &read(), self.began, SystemTime::now());
            let sending = collector.send(Bytes::from(request.encode_to_vec()));
            if is_last {
                drop(tokio::time::timeout(SHUTDOWN_TIMEOUT, sending).await);
                return;
            }
            match ending.run_until_cancelled(sending).await {
                Some(Err(not_taken)) if !is_failing => {
                    is_failing = true;
                    tracing::warn!(error = not_taken.why, "metrics cannot be sent; it is tried again");
                }
                Some(Ok(())) if is_failing => {
                    is_failing = false;
                    tracing::info!("metrics are sent again");
                }
                _ => {}
            }
        }
    }
}

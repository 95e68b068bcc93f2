//! What is known of a finished call: one plain record that logs, metrics and audit all read.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::catalog::Entry;
use crate::error::{RuntimeError, RuntimeResult};
use crate::executor::{CallContext, Outcome, Principal};

/// A finished call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CallRecord {
    /// The call.
    pub call_id: Arc<str>,
    /// The capability.
    pub entry: Arc<Entry>,
    /// Its MCP name.
    pub name: Arc<str>,
    /// The provider's kind.
    pub kind: &'static str,
    /// `ok`, or the error's [`kind`](RuntimeError::kind).
    pub outcome: &'static str,
    /// From the call to its outcome, waiting included.
    pub duration: Duration,
    /// How long it waited for a place.
    pub queued: Duration,
    /// The error's text, if it failed.
    pub error: Option<String>,
    /// Who called.
    pub principal: Option<Principal>,
    /// How many calls it was nested in.
    pub depth: u32,
}

/// Records a call exactly once, also when its future is dropped: then it was cancelled.
pub(crate) struct Recording<'a> {
    entry: &'a Arc<Entry>,
    ctx: &'a CallContext,
    started: Instant,
    queued: Duration,
    observers: Option<Arc<Observers>>,
    recorded: bool,
}

/// Whoever sees every finished call, in the order in which they came.
pub(crate) type Observers = Vec<Arc<dyn Fn(&CallRecord) + Send + Sync>>;

impl<'a> Recording<'a> {
    pub(crate) fn begin(
        entry: &'a Arc<Entry>,
        ctx: &'a CallContext,
        observers: Option<Arc<Observers>>,
    ) -> Self {
        let started = Instant::now();
        Self { entry, ctx, started, queued: Duration::ZERO, observers, recorded: false }
    }

    pub(crate) fn admitted(&mut self) {
        self.queued = self.started.elapsed();
    }

    pub(crate) fn finish(mut self, result: &RuntimeResult<Outcome>) {
        match result {
            Ok(_) => self.record("ok", None),
            Err(error) => {
                let cause = std::error::Error::source(error);
                let text = match cause {
                    Some(cause) => format!("{error}: {cause}"),
                    None => error.to_string(),
                };
                self.record(error.kind(), Some(text));
            }
        }
    }

    fn record(&mut self, outcome: &'static str, error: Option<String>) {
        if std::mem::replace(&mut self.recorded, true) {
            return;
        }
        let record = CallRecord {
            call_id: Arc::clone(&self.ctx.call_id),
            entry: Arc::clone(self.entry),
            name: Arc::clone(&self.entry.name),
            kind: self.entry.manifest.provider.kind(),
            outcome,
            duration: self.started.elapsed(),
            queued: self.queued,
            error,
            principal: self.ctx.principal.clone(),
            depth: self.ctx.depth,
        };
        log(&record);
        for observer in self.observers.iter().flat_map(|observers| observers.iter()) {
            observer(&record);
        }
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        let gone = RuntimeError::Cancelled { id: self.entry.name.to_string(), outcome: None };
        self.record(gone.kind(), Some("the caller went away".to_owned()));
    }
}

fn log(record: &CallRecord) {
    macro_rules! finished {
        ($level:expr) => {
            tracing::event!(
                $level,
                capability = &*record.name,
                kind = record.kind,
                call_id = &*record.call_id,
                outcome = record.outcome,
                duration_ms = millis(record.duration),
                queued_ms = millis(record.queued),
                error = record.error,
                "call finished"
            )
        };
    }
    match record.outcome {
        "ok" => finished!(tracing::Level::INFO),
        "panicked" => finished!(tracing::Level::ERROR),
        _ => finished!(tracing::Level::WARN),
    }
}

/// Milliseconds with three decimals.
fn millis(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1000.0
}

//! What is known of a finished call: one plain record that logs, metrics and audit all read.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::catalog::Entry;
use crate::error::RuntimeError;
use crate::executor::{CallContext, Principal};
use crate::json::cut;
use crate::surface::{Item, Subject, SurfaceError};

/// How many characters of a name or an error a log line repeats.
const SHOWN: usize = 200;

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

/// A finished request for a prompt, a resource or a completion.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RequestRecord {
    /// The request.
    pub call_id: Arc<str>,
    /// The method, such as `resources/read`.
    pub method: Box<str>,
    /// `prompt`, `resource` or `template`.
    pub kind: &'static str,
    /// The name or address that was asked for.
    pub name: Box<str>,
    /// The id that policies know it by.
    pub id: Box<str>,
    /// `ok`, `denied`, `not-found`, `invalid-input`, `failed` or `cancelled`.
    pub outcome: &'static str,
    /// From the request to its outcome.
    pub duration: Duration,
    /// The error's text, if it failed.
    pub error: Option<String>,
    /// Who asked.
    pub principal: Option<Principal>,
}

/// The observers of finished requests.
pub(crate) type RequestObservers = Vec<Arc<dyn Fn(&RequestRecord) + Send + Sync>>;

/// Records a request exactly once, when it is dropped. Until its outcome is known it counts as cancelled.
pub(crate) struct RequestRecording {
    record: RequestRecord,
    started: Instant,
    observers: Option<Arc<RequestObservers>>,
}

impl RequestRecording {
    pub(crate) fn begin(
        (method, subject): (&str, Subject<'_>),
        ctx: &CallContext,
        observers: Option<Arc<RequestObservers>>,
    ) -> Self {
        let record = RequestRecord {
            call_id: Arc::clone(&ctx.call_id),
            method: method.into(),
            kind: subject.kind(),
            name: subject.name().into(),
            id: subject.name().into(),
            outcome: GONE.0,
            duration: Duration::ZERO,
            error: Some(GONE.1.to_owned()),
            principal: ctx.principal.clone(),
        };
        Self { record, started: Instant::now(), observers }
    }

    /// Takes the id that policies know the item by.
    pub(crate) fn concerns(&mut self, item: &Item) {
        self.record.id = item.id.as_str().into();
    }

    pub(crate) fn finish(mut self, result: Result<(), &SurfaceError>) {
        self.record.outcome = match result {
            Ok(()) => "ok",
            Err(SurfaceError::NotFound(_)) => "not-found",
            Err(SurfaceError::Denied { .. }) => "denied",
            Err(SurfaceError::Invalid(_)) => "invalid-input",
            Err(SurfaceError::Refused { .. } | SurfaceError::Failed(_)) => "failed",
        };
        self.record.error = result.err().map(SurfaceError::to_string);
    }
}

impl Drop for RequestRecording {
    fn drop(&mut self) {
        self.record.duration = self.started.elapsed();
        log_request(&self.record);
        for observer in self.observers.iter().flat_map(|all| all.iter()) {
            observer(&self.record);
        }
    }
}

fn log_request(record: &RequestRecord) {
    macro_rules! finished {
        ($level:expr) => {
            tracing::event!(
                $level,
                method = &*record.method,
                name = cut(&record.name, SHOWN),
                call_id = &*record.call_id,
                principal = record.principal.as_ref().map(|principal| &*principal.0),
                outcome = record.outcome,
                duration_ms = millis(record.duration),
                error = record.error.as_deref().map(|error| cut(error, SHOWN)),
                "request finished"
            )
        };
    }
    match record.outcome {
        "ok" | "not-found" => finished!(tracing::Level::INFO),
        _ => finished!(tracing::Level::WARN),
    }
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

    pub(crate) fn finish(mut self, result: Result<(), &RuntimeError>) {
        let (outcome, error) = outcome_of(result);
        self.record(outcome, error);
    }

    /// What was called is a stream, which is recorded when it ends.
    pub(crate) fn of_stream(mut self) -> StreamRecording {
        self.recorded = true;
        StreamRecording {
            entry: Arc::clone(self.entry),
            ctx: self.ctx.clone(),
            started: self.started,
            queued: self.queued,
            observers: self.observers.take(),
            recorded: false,
        }
    }

    fn record(&mut self, outcome: &'static str, error: Option<String>) {
        if std::mem::replace(&mut self.recorded, true) {
            return;
        }
        let (duration, queued) = (self.started.elapsed(), self.queued);
        let record = record(self.entry, self.ctx, (duration, queued), outcome, error);
        tell(&record, self.observers.as_deref());
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        self.record(GONE.0, Some(GONE.1.to_owned()));
    }
}

/// Records a stream exactly once, also when it is dropped: then it was cancelled.
pub(crate) struct StreamRecording {
    entry: Arc<Entry>,
    ctx: CallContext,
    started: Instant,
    queued: Duration,
    observers: Option<Arc<Observers>>,
    recorded: bool,
}

impl StreamRecording {
    /// The stream has ended, well or not. Only the first time counts.
    pub(crate) fn finish(&mut self, result: Result<(), &RuntimeError>) {
        let (outcome, error) = outcome_of(result);
        self.record(outcome, error);
    }

    fn record(&mut self, outcome: &'static str, error: Option<String>) {
        if std::mem::replace(&mut self.recorded, true) {
            return;
        }
        let (duration, queued) = (self.started.elapsed(), self.queued);
        let record = record(&self.entry, &self.ctx, (duration, queued), outcome, error);
        tell(&record, self.observers.as_deref());
    }
}

impl Drop for StreamRecording {
    fn drop(&mut self) {
        self.record(GONE.0, Some(GONE.1.to_owned()));
    }
}

/// What became of a call whose caller does not wait for it any more.
const GONE: (&str, &str) = ("cancelled", "the caller went away");

fn outcome_of(result: Result<(), &RuntimeError>) -> (&'static str, Option<String>) {
    match result {
        Ok(()) => ("ok", None),
        Err(error) => {
            let text = match std::error::Error::source(error) {
                Some(cause) => format!("{error}: {cause}"),
                None => error.to_string(),
            };
            (error.kind(), Some(text))
        }
    }
}

fn record(
    entry: &Arc<Entry>,
    ctx: &CallContext,
    (duration, queued): (Duration, Duration),
    outcome: &'static str,
    error: Option<String>,
) -> CallRecord {
    CallRecord {
        call_id: Arc::clone(&ctx.call_id),
        entry: Arc::clone(entry),
        name: Arc::clone(&entry.name),
        kind: entry.manifest.provider.kind(),
        outcome,
        duration,
        queued,
        error,
        principal: ctx.principal.clone(),
        depth: ctx.depth,
    }
}

fn tell(record: &CallRecord, observers: Option<&Observers>) {
    log(record);
    for observer in observers.into_iter().flatten() {
        observer(record);
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
                principal = record.principal.as_ref().map(|principal| &*principal.0),
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

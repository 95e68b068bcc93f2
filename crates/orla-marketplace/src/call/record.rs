//! The record of a finished call: logs, metrics and audit all read it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rtfs::text::excerpt;
use tokio::time::Instant;

use super::observe::{BegunRequest, Ending, ObservedCall, ObservedRequest};
use super::stream::OpenStream;
use super::{CallContext, CallScope};
use crate::catalog::Entry;
use crate::error::{MAX_SHOWN_CHARS, RuntimeError};
use crate::marketplace::CapabilityMarketplace;
use crate::outcome::Outcome;
use crate::payload::JsonText;
use crate::principal::{IdentifiedBy, Principal};
use crate::redaction::Redactor;
use crate::surface::{Item, Subject, SurfaceError};

/// A finished call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CallRecord {
    /// The id of the call.
    pub call_id: Arc<str>,
    /// The capability.
    pub entry: Arc<Entry>,
    /// Its MCP name.
    pub name: Arc<str>,
    /// The provider's kind.
    pub kind: &'static str,
    /// `ok`, or the error's [`kind`](RuntimeError::kind).
    pub outcome: &'static str,
    /// The time from the call to its outcome, waiting included.
    pub duration: Duration,
    /// The time that the call waited for its permits.
    pub queued: Duration,
    /// The time that its executor took, over all attempts: with its nested calls, and with what it waited for. Of a stream, the
    /// time until it was open.
    pub executed: Duration,
    /// The time that its input and its output were checked against their schemas.
    pub validated: Duration,
    /// The error's text, if it failed.
    pub error: Option<String>,
    /// The rule of the configuration that refused the call, such as `quotas[0]`, if one did.
    pub rule: Option<String>,
    /// The error's text, if a policy, a quota or a missing approval has refused the call. It contains nothing
    /// of the call's data.
    pub refusal: Option<String>,
    /// The caller.
    pub principal: Option<Principal>,
    /// The nesting depth.
    pub depth: u32,
}

/// The possible results of a recorded call.
pub(crate) trait Recorded {
    /// Returns the outcome, unless the call was only checked or opened.
    fn outcome(&self) -> Option<&Outcome>;
}

impl Recorded for Outcome {
    fn outcome(&self) -> Option<&Outcome> {
        Some(self)
    }
}

impl Recorded for () {
    fn outcome(&self) -> Option<&Outcome> {
        None
    }
}

impl Recorded for Arc<OpenStream> {
    fn outcome(&self) -> Option<&Outcome> {
        None
    }
}

/// A finished request for a prompt, a resource or a completion.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RequestRecord {
    /// The id of the request.
    pub call_id: Arc<str>,
    /// The method, such as `resources/read`.
    pub method: Box<str>,
    /// `prompt`, `resource` or `template`.
    pub kind: &'static str,
    /// The requested name or address.
    pub name: Box<str>,
    /// The id that policies use for it.
    pub id: Box<str>,
    /// `ok`, `denied`, `not-found`, `invalid-input`, `failed` or `cancelled`.
    pub outcome: &'static str,
    /// The time from the request to its outcome.
    pub duration: Duration,
    /// The error's text, if it failed.
    pub error: Option<String>,
    /// The rule of the policy that refused the request, such as `policy[0]`, if the policy did.
    pub rule: Option<String>,
    /// The error's text, if the request was refused. It contains no secrets.
    pub refusal: Option<String>,
    /// The caller.
    pub principal: Option<Principal>,
}

/// The observers of finished requests.
pub(crate) type RequestObservers = Vec<Arc<dyn Fn(&RequestRecord) + Send + Sync>>;

/// Records a request exactly once, when it is dropped. Until its outcome is known it counts as cancelled.
pub(crate) struct RequestRecording {
    record: RequestRecord,
    started: Instant,
    observers: Option<Arc<RequestObservers>>,
    observed: Option<Arc<dyn ObservedRequest>>,
    result: Option<JsonText>,
    redaction: Arc<Redactor>,
}

impl RequestRecording {
    pub(crate) fn begin(
        (method, subject): (&str, Subject<'_>),
        scope: &CallScope,
        call_id: Arc<str>,
        observers: Option<Arc<RequestObservers>>,
        redaction: Arc<Redactor>,
    ) -> Self {
        let name = redaction.text(subject.name()).into_owned().into_boxed_str();
        let record = RequestRecord {
            call_id,
            method: method.into(),
            kind: subject.kind(),
            id: name.clone(),
            name,
            outcome: GONE_OUTCOME,
            duration: Duration::ZERO,
            error: Some(GONE_ERROR.to_owned()),
            rule: None,
            refusal: None,
            principal: scope.principal.clone(),
        };
        let started = Instant::now();
        Self { record, started, observers, observed: None, result: None, redaction }
    }

    /// Lets the observer of calls follow the request, if there is one. Its notices and steps go there too.
    pub(crate) fn observe(
        &mut self,
        market: &CapabilityMarketplace,
        scope: &mut CallScope,
        params: &JsonText,
    ) {
        let RequestRecord { call_id: id, method, kind, name, .. } = &self.record;
        let request = BegunRequest { id, method, kind, name, params };
        self.observed = market.observe_request(request, scope, self.started.into_std());
        if let Some(observed) = &self.observed {
            let notices = std::mem::take(&mut scope.notices);
            let redactors = [Some(Arc::clone(&self.redaction)), None];
            scope.notices = notices.observed_by(Arc::clone(observed) as _, redactors);
        }
    }

    /// Sets the id that policies use for the item.
    pub(crate) fn concerns(&mut self, item: &Item) {
        self.record.id = self.redaction.text(&item.id).into();
    }

    /// Records that the request was cancelled, with the sentence for its caller.
    pub(crate) fn cancel(mut self, why: &str) {
        self.record.error = Some(self.redaction.text(why).into_owned());
    }

    pub(crate) fn finish(mut self, result: Result<Option<&JsonText>, &SurfaceError>) {
        if self.observed.is_some() {
            self.result = result.ok().flatten().cloned();
        }
        self.record.outcome = match result {
            Ok(_) => "ok",
            Err(SurfaceError::NotFound(_)) => "not-found",
            Err(SurfaceError::Denied { .. }) => "denied",
            Err(SurfaceError::Invalid(_)) => "invalid-input",
            Err(SurfaceError::Refused { .. } | SurfaceError::Failed(_)) => "failed",
        };
        let text = |error: &SurfaceError| self.redaction.text(&error.to_string()).into_owned();
        self.record.error = result.err().map(text);
        if let Err(SurfaceError::Denied { rule, .. }) = result {
            self.record.rule.clone_from(rule);
            self.record.refusal.clone_from(&self.record.error);
        }
    }
}

impl Drop for RequestRecording {
    fn drop(&mut self) {
        self.record.duration = self.started.elapsed();
        log_request(&self.record);
        for observer in self.observers.iter().flat_map(|all| all.iter()) {
            observer(&self.record);
        }
        if let Some(observed) = self.observed.take() {
            observed.ended(&self.record, self.result.as_ref());
        }
    }
}

fn log_request(record: &RequestRecord) {
    macro_rules! finished {
        ($level:expr) => {
            tracing::event!(
                $level,
                method = &*record.method,
                name = excerpt(&record.name, MAX_SHOWN_CHARS),
                call_id = &*record.call_id,
                principal = record.principal.as_ref().map(Principal::name),
                identified_by = record.principal.as_ref().map(identified_by),
                outcome = record.outcome,
                duration_ms = millis(record.duration),
                rule = record.rule,
                error = record.error.as_deref().map(|error| excerpt(error, MAX_SHOWN_CHARS)),
                "request finished"
            )
        };
    }
    match record.outcome {
        "ok" | "not-found" => finished!(tracing::Level::INFO),
        _ => finished!(tracing::Level::WARN),
    }
}

/// Records a call or a stream exactly once. If it is dropped before it has finished, it counts as cancelled.
pub(crate) struct Recording {
    entry: Arc<Entry>,
    call_id: Arc<str>,
    principal: Option<Principal>,
    depth: u32,
    started: Instant,
    /// The time that earlier attempts waited for permits.
    queued: Duration,
    /// Since when this attempt waits for them.
    queued_since: Option<Instant>,
    /// The time that earlier attempts ran.
    executed: Duration,
    /// Since when this attempt runs.
    executing_since: Option<Instant>,
    /// When the last attempt ended.
    executed_at: Option<Instant>,
    /// The time that the check of the input took.
    validated: Duration,
    /// Since when the input or the output is checked.
    validating_since: Option<Instant>,
    observers: Option<Arc<Observers>>,
    observed: Option<Arc<dyn ObservedCall>>,
    /// Whether calls that are abandoned now end because the server stops.
    stopping: Arc<AtomicBool>,
    is_recorded: bool,
}

/// The observers of finished calls, in the order in which they were added.
pub(crate) type Observers = Vec<Arc<dyn Fn(&CallRecord) + Send + Sync>>;

impl Recording {
    pub(crate) fn begin(
        entry: &Arc<Entry>,
        ctx: &CallContext,
        started: Instant,
        observers: Option<Arc<Observers>>,
        observed: Option<Arc<dyn ObservedCall>>,
        stopping: Arc<AtomicBool>,
    ) -> Self {
        Self {
            entry: Arc::clone(entry),
            call_id: Arc::clone(&ctx.call_id),
            principal: ctx.scope.principal.clone(),
            depth: ctx.scope.depth,
            started,
            queued: Duration::ZERO,
            queued_since: None,
            executed: Duration::ZERO,
            executing_since: None,
            executed_at: None,
            validated: Duration::ZERO,
            validating_since: None,
            observers,
            observed,
            stopping,
            is_recorded: false,
        }
    }

    /// Returns the name of the called capability.
    pub(crate) fn name(&self) -> &str {
        &self.entry.name
    }

    /// Returns the redactor for the secrets that the capability was given.
    pub(crate) fn redaction(&self) -> Option<&Arc<Redactor>> {
        self.entry.policy.redaction.as_ref()
    }

    /// Records that the call waits for its permits.
    pub(crate) fn waits_for_permits(&mut self) {
        self.queued_since = Some(Instant::now());
    }

    /// Returns how long the call has waited for permits, over all its attempts.
    fn queued_until(&self, now: Instant) -> Duration {
        self.queued + self.queued_since.map(|since| now - since).unwrap_or_default()
    }

    /// Records that the call has its permits.
    pub(crate) fn admitted(&mut self) {
        if let Some(since) = self.queued_since.take() {
            self.queued += since.elapsed();
        }
        if let Some(observed) = &self.observed {
            observed.admitted(self.queued);
        }
    }

    /// Records that the executor begins.
    pub(crate) fn executor_begins(&mut self) {
        self.executing_since = Some(Instant::now());
    }

    /// Records that the executor has ended.
    pub(crate) fn executor_ends(&mut self) {
        let now = Instant::now();
        self.executed = self.executed_until(now);
        self.executing_since = None;
        self.executed_at = Some(now);
    }

    /// Returns how long the executor has run, over all its attempts.
    fn executed_until(&self, now: Instant) -> Duration {
        self.executed + self.executing_since.map(|since| now - since).unwrap_or_default()
    }

    /// Records that the input is checked against its schema, if it has one.
    pub(crate) fn input_validation_begins(&mut self) {
        self.validating_since = self.entry.input.validator().map(|_| Instant::now());
    }

    /// Records that the input has been checked.
    pub(crate) fn input_validation_ends(&mut self) {
        if let Some(since) = self.validating_since.take() {
            self.validated = since.elapsed();
        }
    }

    /// Records that the output is checked against its schema, if it has one, from the end of the executor to that of the call.
    pub(crate) fn output_validation_begins(&mut self) {
        self.validating_since = self.entry.output.validator().and(self.executed_at);
    }

    /// Returns how long the checks against schemas have taken.
    fn validated_until(&self, now: Instant) -> Duration {
        self.validated + self.validating_since.map(|since| now - since).unwrap_or_default()
    }

    /// Records that the call starts or stops waiting for an approval.
    pub(crate) fn waits_for_approval(&self, is_waiting: bool) {
        if let Some(observed) = &self.observed {
            observed.waits_for_approval(is_waiting);
        }
    }

    /// Records the end of the call or the stream. Only the first invocation counts. A call whose program
    /// continues later has not ended: it is recorded when it ends.
    pub(crate) fn finish(&mut self, result: Result<Option<&Outcome>, &RuntimeError>) {
        if let Err(RuntimeError::Suspended { .. }) = result {
            tracing::debug!(
                capability = &*self.entry.name,
                call_id = &*self.call_id,
                "the call continues later"
            );
            self.is_recorded = true;
            if let Some(observed) = self.observed.take() {
                observed.suspended();
            }
            return;
        }
        let (outcome, error) = outcome_of(result);
        // The cause of an error is not shown to its caller, and so not redacted yet.
        let error = match self.redaction() {
            Some(redactor) => error.map(|text| redactor.text(&text).into_owned()),
            None => error,
        };
        let rule = result.err().and_then(RuntimeError::rule).map(str::to_owned);
        let refusal = error.clone().filter(|_| result.err().is_some_and(RuntimeError::is_refusal));
        let ending = match result {
            Ok(Some(outcome)) => Ending::Returned(outcome),
            Ok(None) => Ending::Closed,
            Err(error) => Ending::Failed(error),
        };
        self.record((outcome, error), (rule, refusal), ending);
    }

    fn record(
        &mut self,
        (outcome, error): (&'static str, Option<String>),
        (rule, refusal): (Option<String>, Option<String>),
        ending: Ending<'_>,
    ) {
        if std::mem::replace(&mut self.is_recorded, true) {
            return;
        }
        let now = Instant::now();
        let record = CallRecord {
            call_id: Arc::clone(&self.call_id),
            entry: Arc::clone(&self.entry),
            name: Arc::clone(&self.entry.name),
            kind: self.entry.manifest.provider.kind(),
            outcome,
            duration: now - self.started,
            queued: self.queued_until(now),
            executed: self.executed_until(now),
            validated: self.validated_until(now),
            error,
            rule,
            refusal,
            principal: self.principal.clone(),
            depth: self.depth,
        };
        log(&record);
        for observer in self.observers.iter().flat_map(|all| all.iter()) {
            observer(&record);
        }
        if let Some(observed) = self.observed.take() {
            observed.ended(&record, ending);
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if !self.is_recorded {
            let why = if self.stopping.load(Ordering::Acquire) { STOPPING } else { GONE_ERROR };
            self.record((GONE_OUTCOME, Some(why.to_owned())), (None, None), Ending::Abandoned);
        }
    }
}

/// The outcome of a call whose caller no longer waits for it, and its error.
const GONE_OUTCOME: &str = "cancelled";
const GONE_ERROR: &str = "its caller did not wait for its end";

/// The error of a call that is abandoned because the server stops.
const STOPPING: &str = "the server is stopping";

fn outcome_of(result: Result<Option<&Outcome>, &RuntimeError>) -> (&'static str, Option<String>) {
    match result {
        Ok(_) => ("ok", None),
        Err(error) => {
            let text = match std::error::Error::source(error) {
                Some(cause) => format!("{error}: {cause}"),
                None => error.to_string(),
            };
            (error.kind(), Some(text))
        }
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
                principal = record.principal.as_ref().map(Principal::name),
                identified_by = record.principal.as_ref().map(identified_by),
                outcome = record.outcome,
                duration_ms = millis(record.duration),
                queued_ms = millis(record.queued),
                rule = record.rule,
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

/// Returns the caller's identification for the log.
fn identified_by(principal: &Principal) -> tracing::field::DisplayValue<IdentifiedBy<'_>> {
    tracing::field::display(principal.identified_by())
}

/// Milliseconds with three decimals.
fn millis(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1000.0
}

//! Calls that run, and the observer that follows them.
//!
//! This is on the path of every call. Short texts of input and output are copied; longer ones, and names, are shared until the
//! writer reads them.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use orla_marketplace::catalog::Entry;
use orla_marketplace::rtfs::text::excerpt;
use orla_marketplace::{
    BegunRequest, CallContext, CallObserver, CallRecord, CallScope, Ending, JsonText, Notice,
    NoticeObserver, ObservedCall, ObservedRequest, Origin, Outcome, Payload, Principal, RequestRecord,
    Span,
};
use orla_mcp::object::Object;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::call::{Call, ClientInfo, NoticeKind, NoticeLine, Progress, RUNNING, Running, SpanLine};
use crate::intake::Intake;
use crate::query::Viewer;
use crate::trace::TraceContext;

/// The maximum number of notices that are kept of one call. The later ones are counted.
const MAX_NOTICES: usize = 200;
/// The maximum number of spans that are kept of one call.
const MAX_SPANS: usize = 32;
/// Characters that are kept of the text of a notice.
const MAX_NOTICE: usize = 2000;
/// The requests that are kept, besides calls.
const KEPT_REQUESTS: [&str; 2] = ["prompts/get", "resources/read"];
/// How the addresses of streams begin.
const STREAM: &str = "stream://";

/// The calls that run.
#[derive(Default)]
pub(crate) struct RunningCalls(Mutex<HashMap<Arc<str>, Arc<LiveCall>>>);

/// A call that runs, or has just ended.
pub(crate) struct LiveCall {
    intake: Arc<Intake>,
    pub(crate) id: Arc<str>,
    pub(crate) parent: Option<Arc<str>>,
    /// The parent, if it runs here.
    pub(crate) within: Option<Arc<Self>>,
    pub(crate) root: Option<Arc<str>>,
    pub(crate) depth: u32,
    pub(crate) target: Target,
    pub(crate) principal: Option<Principal>,
    /// Where the outermost call came from.
    origin: Origin,
    pub(crate) input: Payload,
    pub(crate) started_at: SystemTime,
    started: Instant,
    cancellation: CancellationToken,
    pub(crate) trace: Option<TraceContext>,
    pub(crate) is_kept: bool,
    /// Whether it may be a call that began before, in this process or another.
    pub(crate) goes_on: bool,
    waits_for_approval: AtomicBool,
    /// The number of the tree that knows the texts that are redacted in it.
    pub(crate) searched_for: AtomicU64,
    /// Whether calls were made within it.
    pub(crate) has_calls: AtomicBool,
    /// Whether its tree is forgotten, because it has ended.
    pub(crate) is_forgotten: AtomicBool,
    notices: Mutex<Notices>,
    pub(crate) end: OnceLock<End>,
}

/// What was called or asked for.
pub(crate) enum Target {
    /// A capability.
    Capability(Arc<Entry>),
    /// A prompt or a resource.
    Item {
        /// `prompt` or `resource`.
        kind: &'static str,
        /// The name that clients use.
        name: String,
        /// The id that policies use for it, once it is known.
        id: OnceLock<String>,
    },
}

/// The notices and the spans of a call so far, and its time in the queue.
#[derive(Clone, Default)]
pub(crate) struct Notices {
    queued: Duration,
    spans: Vec<SpanLine>,
    pub(crate) lines: Vec<NoticeLine>,
    pub(crate) more: u64,
    /// The bytes that the lines hold.
    bytes: usize,
    progress: Option<Progress>,
}

/// How a call ended.
pub(crate) struct End {
    pub(crate) outcome: &'static str,
    pub(crate) duration: Duration,
    pub(crate) queued: Duration,
    pub(crate) executed: Duration,
    pub(crate) validated: Duration,
    pub(crate) output: Option<Outcome>,
    pub(crate) error: Option<String>,
}

/// Follows the calls of a marketplace.
pub(crate) struct Observer(pub(crate) Arc<Intake>);

impl Observer {
    /// Sets the trace context of a call or a request, if it is traced.
    fn trace(&self, scope: &mut CallScope) -> Option<TraceContext> {
        let tracing = self.0.tracing.get()?;
        let context = TraceContext::within(scope.traceparent.as_deref(), tracing.sample_ratio);
        scope.traceparent = Some(context.traceparent());
        Some(context)
    }
}

impl CallObserver for Observer {
    fn begins(
        &self,
        entry: &Arc<Entry>,
        input: &Payload,
        ctx: &mut CallContext,
        started: Instant,
    ) -> Option<Arc<dyn ObservedCall>> {
        let trace = self.trace(&mut ctx.scope);
        let target = Target::Capability(Arc::clone(entry));
        let called = Called { id: &ctx.call_id, target, input: input.detached(), trace, started };
        Some(LiveCall::begin(&self.0, called, &ctx.scope))
    }

    fn request_begins(
        &self,
        request: BegunRequest<'_>,
        scope: &mut CallScope,
        started: Instant,
    ) -> Option<Arc<dyn ObservedRequest>> {
        let BegunRequest { id, method, kind, name, params, .. } = request;
        let is_kept = self.0.is_keeping.load(Ordering::Relaxed);
        if !KEPT_REQUESTS.contains(&method) || !is_kept && self.0.tracing.get().is_none() {
            return None;
        }
        let trace = self.trace(scope);
        let target = Target::Item { kind, name: name.to_owned(), id: OnceLock::new() };
        let input = Payload::from_json(parameters(params));
        Some(LiveCall::begin(&self.0, Called { id, target, input, trace, started }, scope))
    }
}

/// Returns the parameters of a request without those of the protocol, such as the answers of a person.
fn parameters(params: &JsonText) -> JsonText {
    const OF_PROTOCOL: [&str; 3] = ["_meta", "inputResponses", "requestState"];
    let Some(mut object) = Object::parse(params.as_str()) else { return params.clone() };
    object.retain(|name| !OF_PROTOCOL.contains(&name));
    object.to_json()
}

impl NoticeObserver for LiveCall {
    fn on_notice(&self, notice: &Notice) {
        let at_ms = crate::call::millis(self.started.elapsed());
        let cut = |text: &str| excerpt(text, MAX_NOTICE);
        let mut line = NoticeLine {
            at_ms,
            kind: NoticeKind::Log,
            level: None,
            message: None,
            progress: None,
            total: None,
        };
        match notice {
            Notice::Progress(progress) => {
                line.kind = NoticeKind::Progress;
                line.message = progress.message.as_deref().map(cut);
                (line.progress, line.total) = (Some(progress.progress), progress.total);
            }
            Notice::Log { level, message } => {
                (line.level, line.message) = (Some(level.as_str().to_owned()), Some(cut(message)));
            }
            Notice::Text(text) => {
                (line.kind, line.message) = (NoticeKind::Text, Some(cut(text)));
            }
        }
        let mut notices = self.notices.lock();
        if let Some(progress) = line.progress {
            notices.progress =
                Some(Progress { progress, total: line.total, message: line.message.clone() });
        }
        if notices.lines.len() < MAX_NOTICES {
            notices.bytes += size_of::<NoticeLine>() + line.message.as_deref().map_or(0, str::len);
            notices.lines.push(line);
        } else {
            notices.more += 1;
        }
        drop(notices);
        self.intake.changed();
    }

    fn on_span(&self, span: Span) {
        let mut notices = self.notices.lock();
        if notices.spans.len() < MAX_SPANS && self.end.get().is_none() {
            let after = span.started.saturating_duration_since(self.started);
            notices.bytes += size_of::<SpanLine>() + span.name.len();
            notices.spans.push(SpanLine::of(span, after));
        }
    }
}

impl ObservedRequest for LiveCall {
    fn ended(self: Arc<Self>, record: &RequestRecord, result: Option<&JsonText>) {
        if let Target::Item { id, .. } = &self.target {
            id.set(record.id.to_string()).unwrap_or_default();
        }
        // The items of a stream are not kept.
        let result = result.filter(|_| !record.name.starts_with(STREAM));
        let output = result.map(|result| Payload::from_json(result.detached()));
        self.close(End {
            outcome: record.outcome,
            duration: record.duration,
            queued: Duration::ZERO,
            executed: record.duration,
            validated: Duration::ZERO,
            output: output.map(|value| Outcome { structured: Some(value), ..Outcome::default() }),
            error: record.error.clone(),
        });
    }
}

impl ObservedCall for LiveCall {
    fn admitted(&self, queued: Duration) {
        self.notices.lock().queued = queued;
    }

    fn waits_for_approval(&self, is_waiting: bool) {
        self.waits_for_approval.store(is_waiting, Ordering::Relaxed);
        self.intake.changed();
    }

    fn suspended(&self) {
        self.intake.running.remove(&self.id);
        self.intake.changed();
    }

    fn ended(self: Arc<Self>, record: &CallRecord, ending: Ending<'_>) {
        let (output, error) = match ending {
            Ending::Returned(outcome) => (Some(outcome), None),
            Ending::Failed(error) => (error.outcome(), Some(error.to_string())),
            Ending::Closed => (None, None),
            Ending::Abandoned => (None, record.error.clone()),
        };
        self.close(End {
            outcome: record.outcome,
            duration: record.duration,
            queued: record.queued,
            executed: record.executed,
            validated: record.validated,
            // The output does not count towards the budget of the running calls, because the queue has
            // its own bound.
            output: output.map(Outcome::detached),
            error,
        });
    }
}

/// A call or a request that begins.
struct Called<'a> {
    id: &'a Arc<str>,
    target: Target,
    input: Payload,
    trace: Option<TraceContext>,
    started: Instant,
}

impl LiveCall {
    /// Follows a call from now on.
    fn begin(intake: &Arc<Intake>, called: Called<'_>, scope: &CallScope) -> Arc<Self> {
        let Called { id, target, input, trace, started } = called;
        let within = intake.within(scope);
        // The calls of a tree are timed by one clock, so that none of them ends after the one around it.
        let started_at = match &within {
            Some(outer) => outer.started_at + started.saturating_duration_since(outer.started),
            // If the process is preempted in between, it seems to have begun and ended a little earlier.
            None => {
                let now = SystemTime::now();
                now.checked_sub(started.elapsed()).unwrap_or(now)
            }
        };
        let call = Arc::new(Self {
            intake: Arc::clone(intake),
            id: Arc::clone(id),
            parent: scope.parent.clone(),
            within,
            root: scope.root.clone(),
            depth: scope.depth,
            target,
            principal: scope.principal.clone(),
            origin: scope.origin.clone(),
            input,
            started_at,
            started,
            cancellation: scope.cancellation.clone(),
            trace,
            goes_on: scope.journal.is_some(),
            is_kept: intake.is_keeping.load(Ordering::Relaxed),
            waits_for_approval: AtomicBool::new(false),
            searched_for: AtomicU64::new(u64::MAX),
            has_calls: AtomicBool::new(false),
            is_forgotten: AtomicBool::new(false),
            notices: Mutex::default(),
            end: OnceLock::new(),
        });
        intake.running.add(&call);
        intake.changed();
        call
    }

    /// Passes the ended call on to the writer.
    fn close(self: Arc<Self>, end: End) {
        self.end.set(end).unwrap_or_default();
        let (intake, id) = (Arc::clone(&self.intake), Arc::clone(&self.id));
        // In this order, it can be found at every moment.
        intake.take(self);
        intake.running.remove(&id);
    }

    /// Returns the notices so far.
    pub(crate) fn notices(&self) -> Notices {
        self.notices.lock().clone()
    }

    /// Returns the number of bytes that the call holds while it waits for the writer, as far as they are
    /// known.
    pub(crate) fn bytes(&self) -> usize {
        let target = match &self.target {
            Target::Capability(_) => 0,
            Target::Item { id, name, .. } => id.get().map_or(0, String::len) + name.len(),
        };
        let end = self.end.get().map_or(0, |End { output, error, .. }| {
            output.as_ref().map_or(0, Outcome::bytes) + error.as_ref().map_or(0, String::len)
        });
        self.input.text_bytes() + target + end + self.notices.lock().bytes
    }

    /// Returns the calls that it runs within, the direct one first. A chain is as long as the bound on nested calls; a foreign
    /// parent ends it.
    pub(crate) fn outer(&self) -> impl Iterator<Item = &Arc<Self>> + Clone {
        std::iter::successors(self.within.as_ref(), |call| call.within.as_ref())
    }

    /// Returns whether its span is exported.
    pub(crate) fn is_sampled(&self) -> bool {
        self.trace.as_ref().is_some_and(|trace| trace.is_sampled)
    }

    /// Returns the row without data.
    pub(crate) fn call(&self) -> Call {
        let end = self.end.get();
        let (queued, spans) = {
            let notices = self.notices.lock();
            (notices.queued, notices.spans.clone())
        };
        let (capability, name, kind) = match &self.target {
            Target::Capability(entry) => {
                (entry.manifest.id.clone(), entry.name.to_string(), entry.manifest.provider.kind())
            }
            Target::Item { kind, id, name } => (id.get().unwrap_or(name).clone(), name.clone(), *kind),
        };
        Call {
            id: self.id.to_string(),
            parent: self.parent.as_deref().map(str::to_owned),
            root: self.root.as_ref().unwrap_or(&self.id).to_string(),
            depth: self.depth,
            capability,
            name,
            kind: kind.to_owned(),
            principal: self.principal.as_ref().map(|principal| principal.name().to_owned()),
            principal_id: self.principal.as_ref().map(|principal| principal.id().to_string()),
            client: self.origin.client.as_deref().and_then(ClientInfo::of),
            session: self.origin.session.as_deref().map(str::to_owned),
            outcome: end.map_or(RUNNING, |end| end.outcome).to_owned(),
            started_at: self.started_at,
            duration: end.map_or_else(|| self.started.elapsed(), |end| end.duration),
            queued: end.map_or(queued, |end| end.queued),
            executed: end.map(|end| end.executed),
            validated: end.map(|end| end.validated),
            spans,
            waits_for_approval: end.is_none() && self.waits_for_approval.load(Ordering::Relaxed),
        }
    }

    /// Returns the call so far, with texts that may have secrets.
    pub(crate) fn running(&self) -> Running {
        Running { call: self.call(), progress: self.notices.lock().progress.clone() }
    }

    fn is_seen_by(&self, viewer: &Viewer) -> bool {
        let principal = self.principal.as_ref().map(|principal| &**principal.id());
        viewer.sees_of(principal, self.end.get().map_or(RUNNING, |end| end.outcome))
    }
}

impl RunningCalls {
    fn add(&self, call: &Arc<LiveCall>) {
        self.0.lock().insert(Arc::clone(&call.id), Arc::clone(call));
    }

    fn remove(&self, id: &str) {
        // It may be the last reference, which is dropped without the lock.
        let removed = self.0.lock().remove(id);
        drop(removed);
    }

    /// Returns the calls that this viewer may see, the last begun one first.
    pub(crate) fn list(&self, viewer: &Viewer) -> Vec<Arc<LiveCall>> {
        let all = self.0.lock();
        let running = all.values().filter(|call| call.end.get().is_none());
        let mut calls: Vec<Arc<LiveCall>> = running.map(Arc::clone).collect();
        drop(all);
        calls.retain(|call| call.is_seen_by(viewer));
        calls.sort_by_key(|call| Reverse(call.started_at));
        calls
    }

    /// The call with this id.
    pub(crate) fn of(&self, id: &str) -> Option<Arc<LiveCall>> {
        self.0.lock().get(id).cloned()
    }

    /// Returns the call with this id, if this viewer sees it.
    pub(crate) fn get(&self, id: &str, viewer: &Viewer) -> Option<Arc<LiveCall>> {
        self.0.lock().get(id).filter(|call| call.is_seen_by(viewer)).cloned()
    }
}

impl LiveCall {
    /// Cancels the call, and the whole tree that it is in.
    pub(crate) fn cancel(&self) {
        self.cancellation.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_request_only_its_own_parameters_are_kept() {
        let text = r#"{"name":"greet","arguments":{"to":"Ada"},"_meta":{"a":1},"inputResponses":{"k":"pin"},"requestState":"s"}"#;
        let kept = parameters(&JsonText::parse(text).unwrap());
        assert_eq!(kept.as_str(), r#"{"name":"greet","arguments":{"to":"Ada"}}"#);
    }
}

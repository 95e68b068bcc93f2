//! The interface for observers of running calls, such as a history or a trace.
//!
//! A [`CallObserver`] is notified when a call begins, and may follow it with an [`ObservedCall`]. Both
//! run on the path of the call. They must not block, and should take the data they need as shared data. Requests to surfaces
//! are observed likewise.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::record::{CallRecord, RequestRecord};
use super::{CallContext, CallScope};
use crate::catalog::Entry;
use crate::error::RuntimeError;
use crate::notice::NoticeObserver;
use crate::outcome::Outcome;
use crate::payload::{JsonText, Payload};

/// Observes the beginning of calls.
pub trait CallObserver: Send + Sync {
    /// Called when a call begins: its capability was found, and no other step has happened. The observer
    /// may set a trace context for the call (`ctx.scope.traceparent`), which the executor and nested
    /// calls see. The duration of the call counts from `started`.
    fn begins(
        &self,
        entry: &Arc<Entry>,
        input: &Payload,
        ctx: &mut CallContext,
        started: Instant,
    ) -> Option<Arc<dyn ObservedCall>>;

    /// Called when a request for a prompt, a resource or a completion begins. The observer may set a trace context in `scope`. The
    /// duration of the request counts from `started`.
    fn request_begins(
        &self,
        _request: BegunRequest<'_>,
        _scope: &mut CallScope,
        _started: Instant,
    ) -> Option<Arc<dyn ObservedRequest>> {
        None
    }
}

/// A request for a prompt, a resource or a completion that begins.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct BegunRequest<'a> {
    /// The id of the request.
    pub id: &'a Arc<str>,
    /// Its method, such as `resources/read`.
    pub method: &'a str,
    /// `prompt`, `resource` or `template`.
    pub kind: &'static str,
    /// The requested name or address.
    pub name: &'a str,
    /// The parameters of its method.
    pub params: &'a JsonText,
}

/// Follows one request for a prompt, a resource or a completion.
pub trait ObservedRequest: NoticeObserver {
    /// Called when the request has ended, with its result, if it has one. This happens exactly once, also if the caller goes
    /// away.
    fn ended(self: Arc<Self>, record: &RequestRecord, result: Option<&JsonText>);
}

/// Follows one call.
pub trait ObservedCall: NoticeObserver {
    /// Called when the call has its permits, with the time it waited. A repeated call waits again.
    fn admitted(&self, queued: Duration);

    /// Called when the call starts or stops waiting for an approval.
    fn waits_for_approval(&self, _is_waiting: bool) {}

    /// Called when the call stops here and continues later as another call.
    fn suspended(&self);

    /// Called when the call has ended. This happens exactly once, also if the caller goes away, unless
    /// the call was suspended.
    fn ended(self: Arc<Self>, record: &CallRecord, ending: Ending<'_>);
}

/// The end of a call.
#[derive(Clone, Copy, Debug)]
pub enum Ending<'a> {
    /// The call returned this outcome.
    Returned(&'a Outcome),
    /// The call was a stream, which has been closed.
    Closed,
    /// The call failed.
    Failed(&'a RuntimeError),
    /// The caller disconnected.
    Abandoned,
}

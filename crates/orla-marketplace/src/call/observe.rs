//! The interface for observers of running calls, such as a history or a trace.
//!
//! A [`CallObserver`] is notified when a call begins, and may follow it with an [`ObservedCall`]. Both
//! run on the path of the call. They must not block, and should take the data they need as shared data. Of a request to a
//! surface, the observer learns when it has ended.

use std::sync::Arc;
use std::time::Duration;

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
    /// calls see.
    fn begins(
        &self,
        entry: &Arc<Entry>,
        input: &Payload,
        ctx: &mut CallContext,
    ) -> Option<Arc<dyn ObservedCall>>;

    /// Called when a request for a prompt, a resource or a completion has ended. This happens exactly once, also if the caller
    /// goes away.
    fn requested(&self, _request: &ObservedRequest<'_>) {}
}

/// A finished request for a prompt, a resource or a completion, with its data.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct ObservedRequest<'a> {
    /// The record of the request.
    pub record: &'a RequestRecord,
    /// The caller and its context.
    pub scope: &'a CallScope,
    /// The parameters of its method.
    pub params: &'a JsonText,
    /// Its result, if it has one.
    pub result: Option<&'a JsonText>,
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

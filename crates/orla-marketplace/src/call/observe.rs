//! The seam for what follows calls while they run, such as a history or a trace.
//!
//! A [`CallObserver`] sees each call when it begins and may follow it with an [`ObservedCall`]. Both are called on the path
//! of the call, so they must not block, and should take over what they need as shared data.

use std::sync::Arc;
use std::time::Duration;

use super::CallContext;
use super::record::CallRecord;
use crate::catalog::Entry;
use crate::error::RuntimeError;
use crate::notice::NoticeObserver;
use crate::outcome::Outcome;
use crate::payload::Payload;

/// Sees calls begin.
pub trait CallObserver: Send + Sync {
    /// A call begins: its capability was found, and nothing else has happened. The observer may give the call a trace
    /// context of its own (`ctx.scope.traceparent`), which the executor and calls within the call see.
    fn begins(
        &self,
        entry: &Arc<Entry>,
        input: &Payload,
        ctx: &mut CallContext,
    ) -> Option<Arc<dyn ObservedCall>>;
}

/// Follows one call.
pub trait ObservedCall: NoticeObserver {
    /// The call has its permits, after waiting for so long. A call that is made again waits again.
    fn admitted(&self, queued: Duration);

    /// The call begins to wait for an approval, or no longer waits for it.
    fn waits_for_approval(&self, _is_waiting: bool) {}

    /// The call stops here, and goes on later as another call.
    fn suspended(&self);

    /// The call has ended. This is called exactly once, also if the caller goes away, unless it was suspended.
    fn ended(self: Arc<Self>, record: &CallRecord, ending: Ending<'_>);
}

/// How a call ended.
#[derive(Clone, Copy, Debug)]
pub enum Ending<'a> {
    /// It returned this.
    Returned(&'a Outcome),
    /// It was a stream, which has been closed.
    Closed,
    /// It failed.
    Failed(&'a RuntimeError),
    /// Its caller disconnected.
    Abandoned,
}

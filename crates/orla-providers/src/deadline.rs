//! The deadline of a call.

use std::time::Duration;

use orla_marketplace::CallContext;
use tokio::time::Instant;

/// Returns the deadline of a call, and its timeout, if the capability allows it this many milliseconds.
/// 0 means as long as the caller allows.
pub(crate) fn effective_deadline(timeout_ms: u64, ctx: &CallContext) -> (Instant, Duration) {
    let own = Duration::from_millis(timeout_ms);
    let end = Instant::now() + own;
    if timeout_ms > 0 && end < ctx.deadline { (end, own) } else { (ctx.deadline, ctx.timeout) }
}

//! How long a call may take.

use std::time::Duration;

use orla_marketplace::CallContext;
use tokio::time::Instant;

/// When a call has to be over, and how long it had, where the capability grants it so many milliseconds; 0 is as many
/// as the caller does.
pub(crate) fn patience(timeout_ms: u64, ctx: &CallContext) -> (Instant, Duration) {
    let own = Duration::from_millis(timeout_ms);
    let end = Instant::now() + own;
    if timeout_ms > 0 && end < ctx.deadline { (end, own) } else { (ctx.deadline, ctx.timeout) }
}

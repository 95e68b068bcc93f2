//! The moment at which a call may run and has not begun.

use async_trait::async_trait;

use crate::catalog::Entry;
use crate::error::RuntimeResult;

/// Learns that a call is about to run, and can delay or refuse it.
///
/// A task records the start of its call before the call runs, so that after a crash it is known
/// what may have happened. Calls within the call do not inherit its checkpoint.
#[async_trait]
pub trait Checkpoint: Send + Sync {
    /// Whether the call goes on with one that has begun before. That one was approved, if it had to be, so that no one is
    /// asked again.
    fn goes_on(&self, capability: &Entry) -> bool {
        let _ = capability;
        false
    }

    /// Called before the call waits for an approval, which may take days.
    ///
    /// # Errors
    /// Why the call must not wait now; it is the result of the call.
    async fn waits(&self, capability: &Entry) -> RuntimeResult<()> {
        let _ = capability;
        Ok(())
    }

    /// Called once the call has its permits, before each attempt. The executor begins when this returns `Ok`.
    ///
    /// # Errors
    /// Why the call must not run; it is the result of the call.
    async fn begins(&self, capability: &Entry) -> RuntimeResult<()>;

    /// Called after [`begins`](Self::begins), if the call waits for an approval at another instance. Nothing of it has
    /// happened.
    async fn waits_elsewhere(&self) {}

    /// Called after [`waits_elsewhere`](Self::waits_elsewhere), before the call runs there.
    ///
    /// # Errors
    /// Why the call must not run. The other instance refuses it.
    async fn begins_elsewhere(&self, is_idempotent: bool) -> RuntimeResult<()> {
        let _ = is_idempotent;
        Ok(())
    }
}

//! The moment at which a call is allowed to run and has not begun.

use async_trait::async_trait;

use crate::catalog::Entry;
use crate::error::RuntimeResult;

/// Observes that a call is about to run, and can delay or refuse it.
///
/// A task records the start of its call before the call runs. After a crash, the record shows whether
/// the call may have run. Nested calls do not inherit the checkpoint.
#[async_trait]
pub trait Checkpoint: Send + Sync {
    /// Returns whether the call continues one that has already begun. That call was approved, if
    /// required, so no approval is requested again.
    fn continues(&self, capability: &Entry) -> bool {
        let _ = capability;
        false
    }

    /// Called before the call waits for an approval, which may take days.
    ///
    /// # Errors
    /// Why the call must not wait now; it is the result of the call.
    async fn before_approval(&self, capability: &Entry) -> RuntimeResult<()> {
        let _ = capability;
        Ok(())
    }

    /// Called before each attempt, once the call has its permits. The executor begins when this function
    /// returns `Ok`.
    ///
    /// # Errors
    /// Why the call must not run; it is the result of the call.
    async fn before_attempt(&self, capability: &Entry) -> RuntimeResult<()>;

    /// Called after [`before_attempt`](Self::before_attempt), if the call waits for an approval at another
    /// instance. The call has not run.
    async fn on_remote_approval(&self) {}

    /// Called after [`on_remote_approval`](Self::on_remote_approval), before the call runs at the other
    /// instance.
    ///
    /// # Errors
    /// Why the call must not run. The other instance refuses it.
    async fn before_remote_attempt(&self, is_idempotent: bool) -> RuntimeResult<()> {
        let _ = is_idempotent;
        Ok(())
    }
}

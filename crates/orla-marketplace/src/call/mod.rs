//! The one path on which every capability is called (RTFS capability system §4, RFC 1 §5).
//!
//! Start with [`CapabilityMarketplace::call`]: it contains all steps of a call from any front end, in
//! order. Executors do not repeat these steps. [`CapabilityMarketplace::open`] does the same for
//! streams.
//!
//! - [`scope`]: a call, and its context for an executor
//! - [`lookup`]: which capability a call calls, and in which snapshot
//! - [`prepared`]: the implementation of the other steps
//! - [`admission`](crate::admission): how many calls run at once, fair queueing, and the circuit breakers of failing
//!   providers
//! - [`retry`]: when a failed call is retried
//! - [`checkpoint`]: the moment before a call runs
//! - [`answers`]: recorded answers instead of executors
//! - [`clock`]: the time of a call
//! - [`record`]: the records of finished calls
//! - [`observe`]: observers of running calls
//! - [`stream`]: streams, whose items are read one by one
//! - [`request`]: the path of requests for prompts, resources and completions
//! - [`hops`]: the instances that a call has passed through

mod answers;
mod checkpoint;
mod clock;
pub(crate) mod hops;
mod lookup;
mod observe;
mod prepared;
pub(crate) mod record;
mod request;
pub(crate) mod retry;
mod scope;
pub(crate) mod stream;

use std::sync::Arc;

pub use answers::{Answering, Answers};
pub use checkpoint::Checkpoint;
pub use clock::Paused;
pub use observe::{BegunRequest, CallObserver, Ending, ObservedCall, ObservedRequest};
pub use scope::{Call, CallContext, CallScope, Origin};

use crate::error::RuntimeResult;
use crate::marketplace::CapabilityMarketplace;
use crate::outcome::Outcome;
use prepared::PreparedCall;
use stream::OpenStream;

impl CapabilityMarketplace {
    /// Calls a capability and returns its outcome (RTFS capability system §4).
    ///
    /// Dropping the future withdraws the call, and ends everything that the call started.
    ///
    /// # Errors
    /// See [`RuntimeError`](crate::RuntimeError); each step has its own variants.
    pub async fn call(&self, call: Call) -> RuntimeResult<Outcome> {
        // Looks up the capability and computes the deadline.
        let mut prepared = self.prepare(call).await?;
        // From here on the call is recorded exactly once, even if this future is dropped.
        let mut recording = prepared.begin_recording();
        let result = async {
            // Policy, depth, node, attestation, availability, task support.
            prepared.authorize().await?;
            // The provider may have changed the capability while it started.
            if prepared.settle().await? {
                prepared.authorize().await?;
            }
            recording.input_validation_begins();
            prepared.validate_input().await?;
            recording.input_validation_ends();
            // A call with a wrong input must not be charged or put before an approver. Any other call is checked by the
            // executor when it runs.
            if prepared.is_charged_or_approved() {
                prepared.check_input()?;
            }
            // Quotas, approval. The quotas count the call until it ends.
            let _charge = prepared.pass_gates(&recording).await?;
            let mut retries = prepared.retries();
            let outcome = loop {
                let attempt = {
                    // Permits, policy and approval again, circuit breaker, checkpoint. The permits are dropped at the
                    // end of each attempt: a retry waits without them.
                    let (_permits, circuit) = prepared.enter(&mut recording).await?;
                    recording.executor_begins();
                    let executed = prepared.execute().await;
                    recording.executor_ends();
                    circuit.report(executed)
                };
                match attempt {
                    Ok(outcome) => break outcome,
                    Err(error) => retries.wait_or_fail(&prepared, error).await?,
                }
            };
            recording.output_validation_begins();
            prepared.validate_output(outcome).await
        }
        .await;
        prepared.finish(recording, result)
    }

    /// Checks a call without making it: lookup, policy, availability, input. The check counts for no
    /// quota, and is recorded only if it is refused.
    ///
    /// # Errors
    /// Those of [`call`](Self::call) up to the validation of the input.
    pub async fn check(&self, call: Call) -> RuntimeResult<()> {
        self.check_then(call, |_| Ok(())).await
    }

    /// Checks a call as [`check`](Self::check) does, and the quotas that this process counts. Concurrency limits are not
    /// checked.
    ///
    /// # Errors
    /// Those of [`check`](Self::check), and that of the quota.
    pub async fn check_with_quotas(&self, call: Call) -> RuntimeResult<()> {
        self.check_then(call, PreparedCall::check_quotas).await
    }

    /// Waits until the provider of a call's capability has reported it, as long as the call may take. No other provider is
    /// waited for.
    pub async fn learn_of(&self, call: Call) {
        if let Ok(mut prepared) = self.prepare(call).await
            && prepared.is_unlearned()
            && prepared.authorize().await.is_ok()
        {
            // The call itself reports why the provider does not start.
            let _ = prepared.settle().await;
        }
    }

    /// Performs the steps of a call up to the validation of its input, and then `extra_check`.
    async fn check_then<'m>(
        &'m self,
        call: Call,
        extra_check: impl FnOnce(&PreparedCall<'m>) -> RuntimeResult<()>,
    ) -> RuntimeResult<()> {
        let mut prepared = self.prepare(call).await?;
        let checked = async {
            prepared.authorize().await?;
            // A provider that has not reported its capabilities yet declares their inputs when it starts.
            if prepared.is_unlearned() && prepared.settle().await? {
                prepared.authorize().await?;
            }
            prepared.validate_input().await?;
            prepared.check_input()?;
            extra_check(&prepared)
        };
        match checked.await {
            Ok(()) => Ok(()),
            refused => {
                let recording = prepared.begin_recording();
                prepared.finish(recording, refused)
            }
        }
    }

    /// Opens a stream (RTFS capability system §3.2). The steps are those of a call, with these differences:
    /// it does not wait for a provider that starts, the executor alone checks the rest of the input, opening
    /// is not retried, and an open stream holds no permit. The stream is recorded when it ends.
    ///
    /// # Errors
    /// Those of [`call`](Self::call); [`RuntimeError::Structured`](crate::RuntimeError::Structured) of kind `type` if the capability
    /// is not a stream.
    pub async fn open(&self, call: Call) -> RuntimeResult<Arc<OpenStream>> {
        let mut prepared = self.prepare(call).await?;
        let mut recording = prepared.begin_recording();
        let opened = async {
            prepared.authorize().await?;
            recording.input_validation_begins();
            prepared.validate_input().await?;
            recording.input_validation_ends();
            let charge = prepared.pass_gates(&recording).await?;
            let (_permits, circuit) = prepared.enter(&mut recording).await?;
            recording.executor_begins();
            let opened = prepared.open().await;
            recording.executor_ends();
            Ok((circuit.report(opened)?, charge))
        }
        .await;
        match opened {
            Ok((handle, charge)) => Ok(OpenStream::new(handle, recording, charge)),
            Err(error) => prepared.finish(recording, Err(error)),
        }
    }
}

#[cfg(test)]
mod tests;

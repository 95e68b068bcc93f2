//! The checkpoint at which a call of a run with a journal leaves the process.

use std::sync::Arc;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use crate::call::Checkpoint;
use crate::catalog::Entry;
use crate::error::{RuntimeError, RuntimeResult};
use crate::journal::{Journal, RunRequest};

/// Records in a journal that a call of its run begins, unless no part of the call leaves the process.
pub(super) struct JournalCheckpoint {
    pub(super) journal: Arc<dyn Journal>,
    pub(super) request: RunRequest,
    /// Cancelled when the run no longer wants the answer. The call must not begin then.
    pub(super) token: CancellationToken,
}

#[async_trait]
impl Checkpoint for JournalCheckpoint {
    async fn before_attempt(&self, capability: &Entry) -> RuntimeResult<()> {
        if capability.manifest.provider.is_pure() {
            return Ok(());
        }
        self.before_remote_attempt(capability.manifest.is_idempotent()).await
    }

    async fn on_remote_approval(&self) {
        self.journal.record_wait(&self.request);
    }

    async fn before_remote_attempt(&self, is_idempotent: bool) -> RuntimeResult<()> {
        let id = || self.request.name.to_string();
        let withdrawn = || RuntimeError::Cancelled { id: id(), outcome: None };
        if self.token.is_cancelled() {
            return Err(withdrawn());
        }
        let noted = self.journal.record_begin(&self.request, is_idempotent).await;
        noted.map_err(|error| RuntimeError::Structured {
            id: id(),
            message: error.message.clone(),
            error: Box::new(error),
            outcome: None,
        })?;
        // The call may have been withdrawn while the record was written.
        if self.token.is_cancelled() { Err(withdrawn()) } else { Ok(()) }
    }
}

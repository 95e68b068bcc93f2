//! Capabilities that are streams: opened once, then read and written item by item
//! (RTFS capability system §3.2).
//!
//! An executor returns a [`StreamHandle`] when a stream is opened ([`CapabilityExecutor::open`]). The marketplace
//! takes the same steps as for a call (look up, authorise, validate, admit, record) and gives the caller an
//! [`OpenStream`].
//!
//! # Invariants
//!
//! - Dropping an [`OpenStream`] ends all parts of the stream.
//! - Every stream is recorded exactly once, when it ends.
//!
//! # What is deliberately absent
//!
//! An open stream holds no permit; only opening it does. A program's limit of calls bounds how many
//! streams it opens.
//!
//! [`CapabilityExecutor::open`]: crate::CapabilityExecutor::open

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::CallContext;
use super::prepared::CLUSTER_PERMIT_LOST;
use super::record::Recording;
use crate::error::{RuntimeError, RuntimeResult};
use crate::payload::Payload;
use crate::quota::Charge;
use crate::redaction::Redactor;

/// An open stream, as the executor returns it.
///
/// One consumer at a time reads the stream, and values are sent one after the other. Reading and sending
/// may happen at the same time. Every future may be dropped, and dropping the handle ends the stream.
#[async_trait]
pub trait StreamHandle: Send + Sync {
    /// Returns the next item; `None` at the end and ever after. The implementation reads ahead only as
    /// far as its own bounded buffer. An item is not lost when the future is dropped.
    ///
    /// # Errors
    /// The stream broke, or an item does not match its type. The stream is not used after an error.
    async fn next(&self) -> Option<RuntimeResult<Payload>>;

    /// Sends a value, and waits while the other end is too slow to take more.
    ///
    /// # Errors
    /// The stream accepts no values, or cannot be reached.
    async fn send(&self, value: Payload) -> RuntimeResult<()>;

    /// Declares that no more values will be sent. Returns whether items may still arrive. If none can,
    /// this function acts as [`close`](Self::close), and the stream is not used afterwards.
    async fn finish(&self) -> bool {
        self.close().await;
        false
    }

    /// Closes the stream gracefully. Values that were already sent are delivered, within the time that
    /// the executor allows. No item is read afterwards.
    async fn close(&self);
}

/// An open stream, as the caller receives it.
pub struct OpenStream {
    handle: Box<dyn StreamHandle>,
    recording: Mutex<Recording>,
    /// For quotas, an open stream is a running call.
    charge: Mutex<Charge>,
    /// Cancelled when a cluster-wide quota of the stream is lost.
    lost: Option<CancellationToken>,
    redaction: Option<Arc<Redactor>>,
    is_over: AtomicBool,
}

impl OpenStream {
    pub(super) fn new(handle: Box<dyn StreamHandle>, recording: Recording, charge: Charge) -> Arc<Self> {
        let redaction = recording.redaction().cloned();
        let lost = charge.lost();
        let (recording, charge) = (Mutex::new(recording), Mutex::new(charge));
        Arc::new(Self { handle, recording, charge, lost, redaction, is_over: AtomicBool::new(false) })
    }

    /// Returns the next item; `None` at the end, and after an error.
    ///
    /// # Errors
    /// See [`StreamHandle::next`].
    pub async fn next(&self) -> Option<RuntimeResult<Payload>> {
        if self.is_over.load(Ordering::Acquire) {
            return None;
        }
        let item = match &self.lost {
            Some(lost) => tokio::select! {
                biased;
                () = lost.cancelled() => Some(Err(self.lost_error())),
                item = self.handle.next() => item,
            },
            None => self.handle.next().await,
        };
        let item = match &self.redaction {
            Some(redactor) => item.map(|item| {
                item.map(|item| redactor.payload(item)).map_err(|error| redactor.error(error))
            }),
            None => item,
        };
        match &item {
            Some(Ok(_)) => {}
            Some(Err(error)) => self.ended(Err(error)),
            None => self.ended(Ok(())),
        }
        item
    }

    /// Sends a value.
    ///
    /// # Errors
    /// See [`StreamHandle::send`].
    pub async fn send(&self, value: Payload) -> RuntimeResult<()> {
        self.handle.send(value).await
    }

    /// Declares that no more values will be sent. This ends a stream that accepts or produces no values.
    /// Returns whether items may still arrive.
    pub async fn finish(&self) -> bool {
        let may_give_items = self.handle.finish().await;
        if !may_give_items {
            self.ended(Ok(()));
        }
        may_give_items
    }

    /// Ends the stream gracefully. Further invocations have no effect.
    pub async fn close(&self) {
        self.handle.close().await;
        self.ended(Ok(()));
    }

    fn lost_error(&self) -> RuntimeError {
        let id = self.recording.lock().name().to_owned();
        RuntimeError::Unavailable { id, reason: CLUSTER_PERMIT_LOST.to_owned(), source: None }
    }

    fn ended(&self, how: Result<(), &RuntimeError>) {
        self.is_over.store(true, Ordering::Release);
        self.recording.lock().finish(how.map(|()| None));
        drop(std::mem::take(&mut *self.charge.lock()));
    }
}

impl fmt::Debug for OpenStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenStream").field("is_over", &self.is_over).finish_non_exhaustive()
    }
}

/// Returns the error of opening a capability that is not a stream.
pub(crate) fn not_a_stream(ctx: &CallContext) -> RuntimeError {
    let message = format!("{} is not a stream: call it instead", ctx.name);
    let error = Box::new(rtfs::Error::new("type", message.clone()));
    RuntimeError::Structured { id: ctx.name.to_string(), message, error, outcome: None }
}

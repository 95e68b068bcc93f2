//! Capabilities that are streams: opened once, then read and written item by item
//! (RTFS capability system §3.2).
//!
//! An executor gives a [`StreamHandle`] when a stream is opened ([`CapabilityExecutor::open`]); the
//! marketplace takes the same path to it as to a call (look up, authorise, validate, admit, record) and
//! gives the caller an [`OpenStream`].
//!
//! # Invariants
//!
//! - Dropping an [`OpenStream`] ends everything that the stream consists of.
//! - Every stream is recorded exactly once, when it ends.
//!
//! # What is deliberately absent
//!
//! A stream holds no place among the calls that run: only opening it does. How many one program may open,
//! its limit of calls says.
//!
//! [`CapabilityExecutor::open`]: crate::CapabilityExecutor::open

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;

use super::CallContext;
use super::record::Recording;
use crate::error::{RuntimeError, RuntimeResult};
use crate::payload::Payload;

/// An open stream, as an executor gives it.
///
/// One consumer at a time reads it, and values are sent one after the other; reading and sending may go
/// on at once. Every future may be dropped, and dropping the handle ends the stream.
#[async_trait]
pub trait StreamHandle: Send + Sync {
    /// The next item; none at the end, and from then on. It reads ahead by no more than its own bounded
    /// buffer. An item is not lost when the future is dropped.
    ///
    /// # Errors
    /// The stream broke or an item breaks its type. Nothing is asked of the stream after an error.
    async fn next(&self) -> Option<RuntimeResult<Payload>>;

    /// Sends a value, and waits while the other end is too slow to take more.
    ///
    /// # Errors
    /// The stream takes no values, or cannot be reached.
    async fn send(&self, value: Payload) -> RuntimeResult<()>;

    /// Says that nothing more is sent. Whether items may still come; where none can, that is
    /// [`close`](Self::close), and nothing is asked of the stream afterwards.
    async fn finish(&self) -> bool {
        self.close().await;
        false
    }

    /// Says goodbye. What is still on its way to the other end is delivered, in the time that the executor
    /// grants for it; no item is asked for afterwards.
    async fn close(&self);
}

/// An open stream, as the marketplace gives it.
pub struct OpenStream {
    handle: Box<dyn StreamHandle>,
    recording: Mutex<Recording>,
    is_over: AtomicBool,
}

impl OpenStream {
    pub(super) fn new(handle: Box<dyn StreamHandle>, recording: Recording) -> Arc<Self> {
        let recording = Mutex::new(recording);
        Arc::new(Self { handle, recording, is_over: AtomicBool::new(false) })
    }

    /// The next item; none at the end, and after an error.
    ///
    /// # Errors
    /// See [`StreamHandle::next`].
    pub async fn next(&self) -> Option<RuntimeResult<Payload>> {
        if self.is_over.load(Ordering::Acquire) {
            return None;
        }
        let item = self.handle.next().await;
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

    /// Says that nothing more is sent: what takes no values, or gives none, ends with that. Whether items may
    /// still come.
    pub async fn finish(&self) -> bool {
        let gives = self.handle.finish().await;
        if !gives {
            self.ended(Ok(()));
        }
        gives
    }

    /// Ends the stream in good order. Once is enough.
    pub async fn close(&self) {
        self.handle.close().await;
        self.ended(Ok(()));
    }

    fn ended(&self, how: Result<(), &RuntimeError>) {
        self.is_over.store(true, Ordering::Release);
        self.recording.lock().finish(how);
    }
}

impl fmt::Debug for OpenStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenStream").field("is_over", &self.is_over).finish_non_exhaustive()
    }
}

/// The error of opening a capability that is called instead.
pub(crate) fn not_a_stream(ctx: &CallContext) -> RuntimeError {
    let message = format!("{} is no stream: it is called", ctx.name);
    let error = Box::new(rtfs::Error::new("type", message.clone()));
    RuntimeError::Told { id: ctx.name.to_string(), message, error, outcome: None }
}

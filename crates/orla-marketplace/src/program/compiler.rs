//! Where the texts of callers are compiled and checked.
//!
//! The time grows with the length of a text and with the work of its macros. So texts are compiled on threads of their
//! own, a few at once. Small texts without macros are compiled on the caller's thread, as another thread would cost more.
//! The limit on the steps of macros ([`rtfs::Options::macro_steps`]) bounds the time in any case.

use std::sync::Arc;
use std::thread::available_parallelism;

use tokio::sync::Semaphore;
use tokio::time::sleep_until;

use crate::call::CallContext;
use crate::error::{RuntimeError, RuntimeResult};

/// The longest text in bytes that is compiled on the caller's thread: it takes less than a millisecond.
const SMALL: usize = 2_048;

/// What the text of a program that defines a macro contains.
const MACRO: &str = "defmacro";

/// Compiles as many texts at once as there are processors.
pub(super) struct Compiler {
    permits: Arc<Semaphore>,
}

impl Compiler {
    pub(super) fn new() -> Self {
        let processors = available_parallelism().map_or(1, usize::from);
        Self { permits: Arc::new(Semaphore::new(processors)) }
    }

    /// The result of `work` for a text.
    ///
    /// # Errors
    /// [`RuntimeError::TimedOut`] and [`RuntimeError::Cancelled`], as the call says. The work then continues to
    /// its end and keeps its permit until then. [`RuntimeError::Panicked`] if it panicked.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        text: &str,
        ctx: &CallContext,
        work: impl FnOnce(&str) -> T + Send + 'static,
    ) -> RuntimeResult<T> {
        if text.len() <= SMALL && !text.contains(MACRO) {
            return Ok(work(text));
        }
        let id = || ctx.name.to_string();
        let permits = Arc::clone(&self.permits);
        let text = text.to_owned();
        let done = async move {
            let permit = permits.acquire_owned().await;
            let work = move || {
                let _permit = permit;
                work(&text)
            };
            tokio::task::spawn_blocking(work).await
        };
        tokio::select! {
            biased;
            done = done => done.map_err(|_| RuntimeError::Panicked { id: id() }),
            () = ctx.scope.cancellation.cancelled() => Err(RuntimeError::Cancelled { id: id(), outcome: None }),
            () = sleep_until(ctx.deadline) => {
                Err(RuntimeError::TimedOut { id: id(), limit: ctx.timeout, outcome: None })
            }
        }
    }
}

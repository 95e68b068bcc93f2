//! Compiles and checks the texts of callers.
//!
//! The time grows with the length of a text and with the work of its macros. Texts are therefore
//! compiled on separate threads, a few at once. Small texts without macros are compiled on the caller's
//! thread, as another thread would cost more. The limit on the steps of macros
//! ([`rtfs::Options::macro_steps`]) bounds the time in any case.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::available_parallelism;

use parking_lot::Mutex;
use rtfs::Program;
use tokio::sync::Semaphore;
use tokio::time::sleep_until;

use super::timeout_error;
use super::tool::run_error;
use crate::call::CallContext;
use crate::error::{RuntimeError, RuntimeResult};

/// The maximum length of a text in bytes that is compiled on the caller's thread: it takes less than a
/// millisecond.
const MAX_INLINE_TEXT: usize = 2_048;

/// A text that defines a macro contains this word.
const MACRO: &str = "defmacro";

/// The number of compiled programs that are kept.
const MAX_CACHED: usize = 16;

/// The maximum length in bytes of a text whose program is kept.
const MAX_CACHED_TEXT: usize = 16_384;

/// Compiles as many texts at once as there are processors.
pub(super) struct Compiler {
    permits: Arc<Semaphore>,
    /// The most recently used programs, the newest first. Many runs of one text, such as programs that
    /// wake together, need it compiled once.
    cache: Mutex<VecDeque<Compiled>>,
}

/// A program with the text and settings that it was compiled from.
struct Compiled {
    text: Box<str>,
    macro_steps: u64,
    program: Arc<Program>,
}

impl Compiler {
    pub(super) fn new() -> Self {
        let processors = available_parallelism().map_or(1, usize::from);
        Self { permits: Arc::new(Semaphore::new(processors)), cache: Mutex::default() }
    }

    /// Returns the program of a text that was compiled with this limit of macro steps, if it is kept.
    pub(super) fn cached(&self, text: &str, macro_steps: u64) -> Option<Arc<Program>> {
        let mut cache = self.cache.lock();
        let is_same = |one: &Compiled| one.macro_steps == macro_steps && *one.text == *text;
        let at = cache.iter().position(is_same)?;
        if at > 0 {
            let found = cache.remove(at)?;
            cache.push_front(found);
        }
        cache.front().map(|found| Arc::clone(&found.program))
    }

    /// Keeps a program for later runs of the same text, if it is short.
    pub(super) fn cache(&self, text: &str, macro_steps: u64, program: &Arc<Program>) {
        if text.len() <= MAX_CACHED_TEXT {
            let mut cache = self.cache.lock();
            cache.truncate(MAX_CACHED - 1);
            cache.push_front(Compiled { text: text.into(), macro_steps, program: Arc::clone(program) });
        }
    }

    /// Runs `work` for a text.
    ///
    /// # Errors
    /// `limit` when the call's time is over, and [`RuntimeError::Cancelled`]. The work then continues to its end and
    /// keeps its permit until then. [`RuntimeError::Panicked`] if it panicked.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        text: &str,
        ctx: &CallContext,
        work: impl FnOnce(&str) -> T + Send + 'static,
    ) -> RuntimeResult<T> {
        if is_small(text) {
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
            () = sleep_until(ctx.deadline) => Err(run_error(ctx, &timeout_error(ctx))),
        }
    }
}

/// Returns whether a text may be compiled on the caller's thread.
pub(super) fn is_small(text: &str) -> bool {
    text.len() <= MAX_INLINE_TEXT && !text.contains(MACRO)
}

#[cfg(test)]
mod tests {
    use rtfs::{Options, Source, compile};

    use super::*;

    #[test]
    fn the_most_recently_used_programs_are_cached() {
        let compiler = Compiler::new();
        let program = compile(&Source::new("", "1"), &Options::default()).unwrap();
        for text in 0..MAX_CACHED {
            compiler.cache(&text.to_string(), 7, &program);
        }
        assert!(compiler.cached("0", 7).is_some_and(|kept| Arc::ptr_eq(&kept, &program)));
        assert!(compiler.cached("0", 8).is_none(), "its macros may do more");
        compiler.cache("new", 7, &program);
        assert!(compiler.cached("1", 7).is_none(), "it was needed the longest ago");
        assert!(compiler.cached("0", 7).is_some());
        let long = "1".repeat(MAX_CACHED_TEXT + 1);
        compiler.cache(&long, 7, &program);
        assert!(compiler.cached(&long, 7).is_none());
        assert_eq!(compiler.cache.lock().len(), MAX_CACHED);
    }
}

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

use super::late;
use super::tool::unfinished;
use crate::call::CallContext;
use crate::error::{RuntimeError, RuntimeResult};

/// The maximum length of a text in bytes that is compiled on the caller's thread: it takes less than a
/// millisecond.
const SMALL: usize = 2_048;

/// A text that defines a macro contains this word.
const MACRO: &str = "defmacro";

/// The number of compiled programs that are kept.
const KEPT: usize = 16;

/// The maximum length in bytes of a text whose program is kept.
const KEPT_TEXT: usize = 16_384;

/// Compiles as many texts at once as there are processors.
pub(super) struct Compiler {
    permits: Arc<Semaphore>,
    /// The most recently used programs, the newest first. Many runs of one text, such as programs that
    /// wake together, need it compiled once.
    kept: Mutex<VecDeque<Compiled>>,
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
        Self { permits: Arc::new(Semaphore::new(processors)), kept: Mutex::default() }
    }

    /// Returns the program of a text that was compiled with this limit of macro steps, if it is kept.
    pub(super) fn kept(&self, text: &str, macro_steps: u64) -> Option<Arc<Program>> {
        let mut kept = self.kept.lock();
        let is_same = |one: &Compiled| one.macro_steps == macro_steps && *one.text == *text;
        let at = kept.iter().position(is_same)?;
        if at > 0 {
            let found = kept.remove(at)?;
            kept.push_front(found);
        }
        kept.front().map(|found| Arc::clone(&found.program))
    }

    /// Keeps a program for later runs of the same text, if it is short.
    pub(super) fn keep(&self, text: &str, macro_steps: u64, program: &Arc<Program>) {
        if text.len() <= KEPT_TEXT {
            let mut kept = self.kept.lock();
            kept.truncate(KEPT - 1);
            kept.push_front(Compiled { text: text.into(), macro_steps, program: Arc::clone(program) });
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
            () = sleep_until(ctx.deadline) => Err(unfinished(ctx, &late(ctx))),
        }
    }
}

#[cfg(test)]
mod tests {
    use rtfs::{Options, Source, compile};

    use super::*;

    #[test]
    fn the_programs_that_were_needed_last_are_kept() {
        let compiler = Compiler::new();
        let program = compile(&Source::new("", "1"), &Options::default()).unwrap();
        for text in 0..KEPT {
            compiler.keep(&text.to_string(), 7, &program);
        }
        assert!(compiler.kept("0", 7).is_some_and(|kept| Arc::ptr_eq(&kept, &program)));
        assert!(compiler.kept("0", 8).is_none(), "its macros may do more");
        compiler.keep("new", 7, &program);
        assert!(compiler.kept("1", 7).is_none(), "it was needed the longest ago");
        assert!(compiler.kept("0", 7).is_some());
        let long = "1".repeat(KEPT_TEXT + 1);
        compiler.keep(&long, 7, &program);
        assert!(compiler.kept(&long, 7).is_none());
        assert_eq!(compiler.kept.lock().len(), KEPT);
    }
}

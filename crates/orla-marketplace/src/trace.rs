//! What a run did, for its observer.

use std::sync::Arc;
use std::time::Duration;

use rtfs::{Error, Position, Value};

/// One thing that a run did.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Trace {
    /// A call has ended.
    Called {
        /// The capability's id, as the program gave it.
        id: String,
        /// What it was given.
        input: Value,
        /// What it gave.
        result: Result<Value, Error>,
        /// How long it took.
        duration: Duration,
        /// Where in the program it is.
        at: Option<Position>,
    },
    /// A named stretch of work began.
    Step {
        /// Its name.
        name: String,
    },
    /// The program logged something.
    Logged {
        /// `debug`, `info`, `warn` or `error`.
        level: String,
        /// What it said.
        message: String,
        /// What it gave with it; nil if nothing.
        data: Value,
    },
}

/// Receives what a run does. Sending never blocks.
#[derive(Clone, Default)]
pub struct TraceSink(Option<Arc<dyn Fn(Trace) + Send + Sync>>);

impl TraceSink {
    /// A sink that passes each trace to `take`, which must not block.
    pub fn new(take: impl Fn(Trace) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(take)))
    }

    /// Whether anyone watches. If not, traces need not be made.
    pub fn is_wanted(&self) -> bool {
        self.0.is_some()
    }

    /// Passes a trace to the observer.
    pub fn send(&self, trace: Trace) {
        if let Some(take) = &self.0 {
            take(trace);
        }
    }
}

//! The trace of a run, for its observer.

use std::sync::Arc;
use std::time::Duration;

use rtfs::{Error, Position, Value};

/// One event of a run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Trace {
    /// A call has ended.
    Called {
        /// The capability's id, as given by the program.
        id: String,
        /// The input.
        input: Value,
        /// The result.
        result: Result<Value, Error>,
        /// The duration.
        duration: Duration,
        /// The position in the program.
        at: Option<Position>,
    },
    /// A named step began.
    Step {
        /// Its name.
        name: String,
    },
    /// The program logged something.
    Logged {
        /// `debug`, `info`, `warn` or `error`.
        level: String,
        /// The message.
        message: String,
        /// Additional data; nil if none.
        data: Value,
    },
}

/// Receives the trace of a run. Sending never blocks.
#[derive(Clone, Default)]
pub struct TraceSink(Option<Arc<dyn Fn(Trace) + Send + Sync>>);

impl TraceSink {
    /// Returns a sink that passes each trace to `take`, which must not block.
    pub fn new(take: impl Fn(Trace) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(take)))
    }

    /// Returns whether there is an observer. If not, traces need not be created.
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

//! Recorded answers instead of executors.

use futures_util::future::BoxFuture;

use crate::catalog::Entry;
use crate::error::RuntimeResult;
use crate::outcome::Outcome;
use crate::payload::Payload;

/// A future answer. It may never come: the call then waits for its deadline or its cancellation.
pub type Answering = BoxFuture<'static, RuntimeResult<Outcome>>;

/// Answers calls in place of their executors, for example from a recording. All other steps of a call stay as they are.
pub trait Answers: Send + Sync {
    /// Returns the answer to a call at this nesting depth; `None` runs its executor. A stream is not
    /// opened if there is an answer: it fails with the answer's error, or because an answer has no
    /// items.
    fn answer(&self, entry: &Entry, input: &Payload, depth: u32) -> Option<Answering>;
}

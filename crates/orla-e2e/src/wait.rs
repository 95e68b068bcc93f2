//! Waiting for something to become true, never for time to pass.

use std::time::{Duration, Instant};

/// The timeout of waits in tests. Only a failure takes this long, so the timeout allows for a machine
/// that is busy with other work.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(5);

/// A condition for [`eventually`]: `true`, or `Some(value)`.
pub trait Sign {
    /// The value that is returned once the condition holds.
    type Value;
    /// Returns the value, if it is there.
    fn value(self) -> Option<Self::Value>;
}

impl Sign for bool {
    type Value = ();
    fn value(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Sign for Option<T> {
    type Value = T;
    fn value(self) -> Self {
        self
    }
}

/// Polls until the condition holds; panics with `what` after [`TEST_TIMEOUT`].
pub fn eventually<S: Sign>(what: &str, condition: impl FnMut() -> S) -> S::Value {
    within(TEST_TIMEOUT, what, condition)
}

/// Polls until the condition holds; panics with `what` when the time is over.
pub fn within<S: Sign>(limit: Duration, what: &str, mut condition: impl FnMut() -> S) -> S::Value {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = condition().value() {
            return value;
        }
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        std::thread::sleep(PAUSE);
    }
}

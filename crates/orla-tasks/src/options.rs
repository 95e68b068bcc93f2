//! The options of tasks.

use std::time::Duration;

/// The longest time between two reads of the timer rows. The clock may be set, and other processes write
/// rows.
pub(crate) const MAX_TIMER_WAIT: Duration = Duration::from_secs(60);

/// The options of tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskOptions {
    /// The timeout of a task's call, if its capability declares none: 1 hour. Time spent waiting in the
    /// queue, waiting for an approval or sleeping does not count.
    pub timeout: Duration,
    /// How long a task is kept after its end: 7 days.
    pub keep: Duration,
    /// The maximum number of tasks that wait or run: 200,000. A caller with a principal has at most a
    /// quarter of them.
    pub max_tasks: usize,
    /// The maximum size of one result: 16 MiB.
    pub max_result_bytes: usize,
    /// The maximum number of bytes kept of a running program, from which it continues after a crash: 14
    /// MiB. The store takes records of up to 16 MiB.
    pub max_state_bytes: usize,
}

impl Default for TaskOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(3600),
            keep: Duration::from_secs(7 * 24 * 3600),
            max_tasks: 200_000,
            max_result_bytes: 16 << 20,
            max_state_bytes: 14 << 20,
        }
    }
}

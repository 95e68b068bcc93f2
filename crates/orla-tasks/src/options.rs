//! What can be set of tasks.

use std::time::Duration;

/// The longest time until the rows are looked at again: clocks are set, and other processes write rows.
pub(crate) const LOOK: Duration = Duration::from_secs(60);

/// The options of tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskOptions {
    /// How long a task's call may run, if its capability has no time of its own: 1 hour. Waiting for its turn, for an
    /// approval, and sleeping do not count.
    pub timeout: Duration,
    /// How long a task is kept after its end: 7 days.
    pub keep: Duration,
    /// The most tasks that wait or run: 200,000. A caller with a principal has at most a quarter of them.
    pub max_tasks: usize,
    /// The most bytes of one result: 16 MiB.
    pub max_result_bytes: usize,
    /// The most bytes that are kept of a program that runs, to go on with it after a crash: 14 MiB. The store takes records
    /// of 16 MiB.
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

//! The limits of a child process, and how it is ended.

use std::time::Duration;

/// Limits of one child process, set for every call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of bytes that are kept of standard output and of standard error, each. Further
    /// output is read, counted and dropped. 1 MiB by default.
    pub max_output_bytes: usize,
    /// The time between SIGTERM and SIGKILL. 2 s by default.
    pub grace: Duration,
    /// How long a process may take to exit after SIGKILL before the call continues without it. A process
    /// that is stuck in a device driver thus does not block the caller. 2 s by default.
    pub kill_wait: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_output_bytes: 1024 * 1024,
            grace: Duration::from_secs(2),
            kill_wait: Duration::from_secs(2),
        }
    }
}

/// Limits of the threads that run child processes, one process each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// The maximum number of threads, and so of concurrent processes. Threads are started on demand. 64
    /// by default.
    pub max_threads: usize,
    /// The maximum number of calls that wait for a thread. No call waits if the caller admits at most
    /// `max_threads` calls at once. 4,096 by default.
    pub max_waiting: usize,
    /// How long an idle thread is kept. 5 s by default.
    pub idle: Duration,
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self { max_threads: 64, max_waiting: 4096, idle: Duration::from_secs(5) }
    }
}

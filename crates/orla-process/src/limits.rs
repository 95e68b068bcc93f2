//! What a child process may use, and how it is ended.

use std::time::Duration;

/// Bounds on one child process. Every call has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most that is kept of standard output, and of standard error, in bytes each. What comes
    /// after it is read, counted and dropped. 1 MiB by default.
    pub max_output_bytes: usize,
    /// The time between SIGTERM and SIGKILL. 2 s by default.
    pub grace: Duration,
    /// How long a process may take to exit after SIGKILL before the call continues without it: a
    /// process that is stuck in a device driver does not block the caller. 2 s by default.
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

/// Bounds on the threads that run child processes, one process each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// The most threads, and so the most processes at once. They are started when they are needed.
    /// 64 by default.
    pub max_threads: usize,
    /// The most calls that wait for a thread. There are none if the caller admits at most
    /// `max_threads` calls at once. 4,096 by default.
    pub max_waiting: usize,
    /// How long a thread without work is kept. 5 s by default.
    pub idle: Duration,
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self { max_threads: 64, max_waiting: 4096, idle: Duration::from_secs(5) }
    }
}

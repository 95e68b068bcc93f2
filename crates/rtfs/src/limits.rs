//! What a run may use.

/// What a run may use. The host says; no program can change it.
///
/// Reaching `steps`, `memory`, `calls` or `output` ends the run, and no handler of the program is
/// asked. Too deep a recursion is an error that a program may catch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Calls of functions and turns of loops, and more for operations on large data.
    pub steps: u64,
    /// Bytes of values that are alive, about.
    pub memory: usize,
    /// Calls of functions that wait for each other. Tail calls do not count.
    pub depth: usize,
    /// Requests to the host.
    pub calls: u64,
    /// Requests that the host is asked to serve at the same time; others wait for these.
    pub calls_at_once: usize,
    /// Bytes of the result as it is printed, about.
    pub output: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            steps: 10_000_000,
            memory: 64 << 20,
            depth: 10_000,
            calls: 1_000,
            calls_at_once: 32,
            output: 8 << 20,
        }
    }
}

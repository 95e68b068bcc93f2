//! The limits of a run.

/// The limits of a run. The host sets them, and no program can change them.
///
/// Reaching `steps`, `memory`, `calls` or `output` ends the run without calling a handler of the
/// program. Too deep a recursion is an error that a program may catch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The number of function calls and loop iterations, with a surcharge for operations on large data.
    pub steps: u64,
    /// The approximate size of live values in bytes.
    pub memory: usize,
    /// The maximum nesting of function calls. Tail calls do not count.
    pub depth: usize,
    /// The number of requests to the host.
    pub calls: u64,
    /// The maximum number of concurrent requests to the host; further requests wait.
    pub calls_at_once: usize,
    /// The approximate size of the printed result in bytes.
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

//! Why a declaration cannot be enforced, which decides whether `sandbox_fallback` covers it.

/// Why a profile cannot be enforced.
#[derive(Debug)]
pub(super) struct Unenforced {
    /// A sentence for each problem.
    pub(super) problems: Vec<String>,
    pub(super) cause: Cause,
}

/// Who can change that a profile cannot be enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only Linux confines"))]
pub(super) enum Cause {
    /// The system lacks something.
    System,
    /// Something that is declared does not exist.
    Declaration,
    /// A confined program may have brought it about: it has made or removed what a path leads to, or used something up. It must not free
    /// itself.
    Program,
}

impl Unenforced {
    /// The system cannot enforce it.
    pub(super) fn by_system(problem: impl Into<String>) -> Self {
        Self { problems: vec![problem.into()], cause: Cause::System }
    }
}

//! The failures that are expected, and why.

/// Cases of a suite that fail for one reason.
pub(super) struct KnownFailures {
    pub(super) suite: &'static str,
    /// A part of the group's name.
    pub(super) group: &'static str,
    /// A part of the case's name.
    pub(super) case: &'static str,
    /// A part of what is said about the failure.
    pub(super) problem: &'static str,
    /// How many cases fail for it.
    pub(super) cases: usize,
    pub(super) cause: Cause,
    pub(super) reason: &'static str,
}

/// Whose a failure is.
#[derive(Clone, Copy)]
pub(super) enum Cause {
    /// orla's, on purpose; the documentation says so.
    Design,
    /// The suite contradicts itself or its standard.
    Suite,
}

impl Cause {
    pub(super) fn blames(self) -> &'static str {
        match self {
            Self::Design => "by design",
            Self::Suite => "the suite's fault",
        }
    }
}

impl KnownFailures {
    pub(super) fn explains(&self, group: &str, case: &str, problem: &str) -> bool {
        group.contains(self.group) && case.contains(self.case) && problem.contains(self.problem)
    }

    pub(super) fn name(&self) -> String {
        [self.group, self.case, self.problem]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join(" … ")
    }
}

pub(super) const KNOWN: &[KnownFailures] = &[
    KnownFailures {
        suite: "json-schema",
        group: "",
        case: "",
        problem: "unavailable: ",
        cases: 158,
        cause: Cause::Design,
        reason: "the schema refers to another document, and no reference leads out of a schema; such a capability is not served",
    },
    KnownFailures {
        suite: "json-schema",
        group: "draft7 format",
        case: "idn-hostname: ",
        problem: "",
        cases: 54,
        cause: Cause::Design,
        reason: "the format is not checked",
    },
    KnownFailures {
        suite: "json-schema",
        group: "draft7 format",
        case: "idn-email: ",
        problem: "",
        cases: 2,
        cause: Cause::Design,
        reason: "the format is not checked",
    },
    KnownFailures {
        suite: "toml",
        group: "valid",
        case: "",
        problem: "is no finite number",
        cases: 3,
        cause: Cause::Design,
        reason: "JSON, and so a value, has neither infinity nor NaN",
    },
    KnownFailures {
        suite: "csv",
        group: "files",
        case: "location_coordinates",
        problem: "",
        cases: 1,
        cause: Cause::Suite,
        reason: "its JSON has another telephone number than its CSV",
    },
];

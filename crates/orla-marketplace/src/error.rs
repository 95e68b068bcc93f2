//! The errors of calls: one sentence for the caller, the cause for the log.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::time::Duration;

use rtfs::{TypeExpr, Value};
use serde_json::json;

use crate::json::JsonError;
use crate::outcome::Outcome;
use crate::payload::{JsonText, Payload};

/// The result of a function that runs a capability.
pub type RuntimeResult<T> = Result<T, RuntimeError>;

/// The cause of an error, for the log.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// The source of a [`RuntimeError::Unavailable`] if no part of the call was sent, so that it has
/// certainly not run.
#[derive(Debug, thiserror::Error)]
#[error("nothing was sent")]
pub struct NotSent(#[source] pub BoxError);

/// The source of a [`RuntimeError::Unavailable`] if the same call will fail until a declaration is
/// changed.
#[derive(Debug, thiserror::Error)]
#[error("the declaration admits no such call")]
pub struct Undeclared;

/// The source of a [`RuntimeError::Unavailable`] if the provider answered that it cannot serve the call now.
#[derive(Debug, thiserror::Error)]
#[error("the provider refused the call in a response, which is kept")]
pub struct Answered(pub Box<Outcome>);

/// The reason why a call returned no value (RTFS capability system §4).
///
/// `Display` is for the caller, who may be a model or untrusted. It names the capability, says what
/// happened and how to fix it. The `source` chain is for the log only.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// No capability has this id or name.
    #[error("{}", unknown("tool", .id, .similar))]
    Unknown {
        /// The requested name.
        id: String,
        /// The nearest existing names, the nearest first.
        similar: Vec<String>,
    },
    /// The input violates the declared schema. Every violation is listed.
    #[error("{id}: invalid input: {}", list(.violations))]
    InvalidInput {
        /// The capability's name.
        id: String,
        /// All violations.
        violations: Vec<Violation>,
    },
    /// The output violates the declared schema.
    #[error("{id}: invalid output: {}", list(.violations))]
    InvalidOutput {
        /// The capability's name.
        id: String,
        /// All violations.
        violations: Vec<Violation>,
        /// The output.
        outcome: Box<Outcome>,
    },
    /// The caller may not do this.
    #[error("{id}: permission denied: requires {permission}")]
    Denied {
        /// The capability's name.
        id: String,
        /// The missing permission.
        permission: String,
        /// The rule that refused the call, such as `policy[0]`, if a rule did. It is not shown to the
        /// caller.
        rule: Option<String>,
        /// If the policy refused the call: the scopes with which the policy would allow it. Empty if no
        /// scope helps.
        scopes: Option<Vec<String>>,
    },
    /// The call reached its deadline.
    #[error("{id} timed out after {}", seconds(*.limit))]
    TimedOut {
        /// The capability's name.
        id: String,
        /// The call's timeout.
        limit: Duration,
        /// The output until then.
        outcome: Option<Box<Outcome>>,
    },
    /// The caller withdrew the call.
    #[error("{id} was cancelled")]
    Cancelled {
        /// The capability's name.
        id: String,
        /// The output until then.
        outcome: Option<Box<Outcome>>,
    },
    /// The call was still running when the server had to end.
    #[error("{id} was cancelled: the server is stopping")]
    Stopped {
        /// The capability's name.
        id: String,
        /// The output until then.
        outcome: Option<Box<Outcome>>,
    },
    /// Too many calls are running and waiting.
    #[error("{id} is busy: {}; try again later", queue(*.running, *.waiting))]
    Busy {
        /// The capability's name.
        id: String,
        /// The number of running calls.
        running: usize,
        /// The number of waiting calls.
        waiting: usize,
    },
    /// The provider cannot be reached now; the same call may succeed later.
    #[error("{id} is unavailable: {reason}")]
    Unavailable {
        /// The capability's name.
        id: String,
        /// The reason, in words for the caller.
        reason: String,
        /// The cause, for the log.
        source: Option<BoxError>,
    },
    /// The provider ran and reported a failure.
    #[error("{message}")]
    Failed {
        /// The capability's name.
        id: String,
        /// What happened, as one sentence that names the capability.
        message: String,
        /// The output in spite of the failure.
        outcome: Option<Box<Outcome>>,
    },
    /// The provider returned a complete MCP result with `isError`, which is passed on unchanged.
    /// [`RuntimeError::reported`] creates this variant.
    #[error("{message}")]
    Reported {
        /// The capability's name.
        id: String,
        /// The last text of the result.
        message: String,
        /// The result.
        outcome: Box<Outcome>,
    },
    /// A structured RTFS error from a program, a plugin or a remote instance. Passed on unchanged, also to RTFS's
    /// `catch`.
    #[error("{message}")]
    Structured {
        /// The capability's name.
        id: String,
        /// All information that the caller needs to fix the error. For an error of a program, this
        /// includes the place and its text.
        message: String,
        /// The error.
        error: Box<rtfs::Error>,
        /// The error as data (`{"error": …}`), for callers that receive data.
        outcome: Option<Box<Outcome>>,
    },
    /// The provider answered with an error of the Model Context Protocol, which is passed on unchanged.
    #[error("{id} refused the call: {message} (code {code})")]
    Refused {
        /// The capability's name.
        id: String,
        /// The JSON-RPC code.
        code: i64,
        /// The provider's message.
        message: String,
        /// Additional data.
        data: Option<JsonText>,
    },
    /// A quota refuses the call, which has not begun. [`RuntimeError::quota`] creates this variant.
    #[error("{id}: quota exceeded: {limit}; try again in {}", wait(*.retry_after))]
    Quota {
        /// The capability's name.
        id: String,
        /// The rule, such as `quotas[0]`. It is not shown to the caller.
        rule: String,
        /// The exceeded limit: `5 calls per minute`.
        limit: String,
        /// The time until the call can be made.
        retry_after: Duration,
        /// `_meta["orla/quota"]` with `limit` and `retry_after_ms`.
        outcome: Box<Outcome>,
    },
    /// The call needs an approval and did not get it. It has not begun.
    #[error("{id}: not approved: {reason}")]
    Unapproved {
        /// The capability's name.
        id: String,
        /// The rule, such as `approve[0]`. It is not shown to the caller.
        rule: String,
        /// The reason why there is no approval.
        reason: String,
    },
    /// The program of a task waits for an instant, an event or another task. The task then calls
    /// it again.
    #[error("{id} is suspended and resumes later")]
    Suspended {
        /// The capability's name.
        id: String,
    },
    /// A limit of the host was reached.
    #[error("{id} reached a limit: {what}")]
    Limit {
        /// The capability's name.
        id: String,
        /// The limit and its value.
        what: String,
    },
    /// The executor panicked; only this call is affected (RTFS capability system §6).
    #[error("{id} failed: an internal error; see the server's log")]
    Panicked {
        /// The capability's name.
        id: String,
    },
    /// Any other error, such as a provider given to an executor of another kind.
    #[error("{0}")]
    Generic(String),
}

impl RuntimeError {
    /// Returns the error for a provider's own MCP result with `isError`.
    pub fn reported(id: impl Into<String>, outcome: Outcome) -> Self {
        let id = id.into();
        let message = outcome.last_text().unwrap_or_else(|| format!("{id} reported an error"));
        Self::Reported { id, message, outcome: Box::new(outcome) }
    }

    /// Returns the error of a call that exceeds a quota.
    pub fn quota(
        id: impl Into<String>,
        rule: impl Into<String>,
        limit: impl Into<String>,
        retry_after: Duration,
    ) -> Self {
        let (rule, limit) = (rule.into(), limit.into());
        let outcome = Box::new(Outcome { meta: quota_meta(&limit, retry_after), ..Outcome::default() });
        Self::Quota { id: id.into(), rule, limit, retry_after, outcome }
    }

    /// Returns the error of a program, here or at another instance, also as data.
    pub fn structured(
        id: impl Into<String>,
        message: impl Into<String>,
        error: rtfs::Error,
        data: Option<Payload>,
    ) -> Self {
        let exceeded = exceeded_quota(&error);
        let meta = exceeded.and_then(|(limit, retry_after)| quota_meta(limit, retry_after));
        let outcome = Some(Box::new(Outcome { structured: data, meta, ..Outcome::default() }));
        Self::Structured { id: id.into(), message: message.into(), error: Box::new(error), outcome }
    }

    /// Returns the time until the call can be repeated, if that is known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Quota { retry_after, .. } => Some(*retry_after),
            Self::Structured { error, .. } => Some(exceeded_quota(error)?.1),
            _ => None,
        }
    }

    /// Returns the rule of the configuration that refused the call, such as `quotas[0]`. `policy` means
    /// that no rule of the policy allows it.
    pub fn rule(&self) -> Option<&str> {
        match self {
            Self::Quota { rule, .. } | Self::Unapproved { rule, .. } => Some(rule),
            Self::Denied { rule, .. } => rule.as_deref(),
            _ => None,
        }
    }

    /// Returns whether the host has refused the call, which has not begun. The error of a program or a
    /// provider may have the same [`kind`](Self::kind).
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Denied { .. } | Self::Quota { .. } | Self::Unapproved { .. })
    }

    /// Returns one stable word per variant, for logs, metrics and RTFS's `catch`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => "unknown-capability",
            Self::InvalidInput { .. } => "invalid-input",
            Self::InvalidOutput { .. } => "invalid-output",
            Self::Denied { .. } => "denied",
            Self::TimedOut { .. } => "timeout",
            Self::Cancelled { .. } | Self::Stopped { .. } => "cancelled",
            Self::Busy { .. } => "busy",
            Self::Unavailable { .. } => "unavailable",
            Self::Failed { .. } | Self::Reported { .. } | Self::Refused { .. } | Self::Generic(_) => {
                "failed"
            }
            Self::Structured { error, .. } => {
                KINDS.iter().find(|kind| ***kind == *error.kind).copied().unwrap_or("failed")
            }
            Self::Quota { .. } => "quota",
            Self::Unapproved { .. } => "approval",
            Self::Suspended { .. } => "suspended",
            Self::Limit { .. } => "limit",
            Self::Panicked { .. } => "panicked",
        }
    }

    /// Returns whether the same call may succeed later without a change.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unavailable { source, .. } => {
                !source.as_ref().is_some_and(|source| source.is::<Undeclared>())
            }
            Self::TimedOut { .. } | Self::Busy { .. } | Self::Quota { .. } => true,
            _ => false,
        }
    }

    /// Returns whether the call has certainly not run: it was refused for lack of room, or no part of it
    /// was sent.
    pub fn never_ran(&self) -> bool {
        match self {
            Self::Busy { .. } | Self::Quota { .. } => true,
            Self::Unavailable { source: Some(source), .. } => source.is::<NotSent>(),
            _ => false,
        }
    }

    /// Returns the output of the capability before it failed.
    pub fn outcome(&self) -> Option<&Outcome> {
        match self {
            Self::InvalidOutput { outcome, .. }
            | Self::Reported { outcome, .. }
            | Self::Quota { outcome, .. } => Some(outcome),
            Self::TimedOut { outcome, .. }
            | Self::Cancelled { outcome, .. }
            | Self::Stopped { outcome, .. }
            | Self::Structured { outcome, .. }
            | Self::Failed { outcome, .. } => outcome.as_deref(),
            Self::Unavailable { source: Some(source), .. } => {
                source.downcast_ref::<Answered>().map(|Answered(outcome)| &**outcome)
            }
            _ => None,
        }
    }
}

/// The kinds of calls that a program's error may have.
const KINDS: [&str; 12] = [
    "unknown-capability",
    "invalid-input",
    "invalid-output",
    "denied",
    "timeout",
    "cancelled",
    "busy",
    "quota",
    "approval",
    "unavailable",
    "interrupted",
    "limit",
];

/// The documentation of a kind of error.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ErrorKind {
    /// The word: the result of [`RuntimeError::kind`], or the kind of a program's error.
    pub word: &'static str,
    /// When a call fails with this kind.
    pub meaning: &'static str,
    /// What the caller can do.
    pub remedy: &'static str,
}

const fn kind(word: &'static str, meaning: &'static str, remedy: &'static str) -> ErrorKind {
    ErrorKind { word, meaning, remedy }
}

/// All kinds of errors of a call.
pub const ERROR_KINDS: [ErrorKind; 15] = [
    kind(
        "unknown-capability",
        "No capability has this id or name, or the policy conceals it",
        "Use the name that the message suggests, or search",
    ),
    kind(
        "invalid-input",
        "The input violates the schema; nothing has run",
        "Correct what the violations name, and call again",
    ),
    kind(
        "invalid-output",
        "The capability ran, and its output violates its schema",
        "Tell the author of the capability",
    ),
    kind(
        "denied",
        "The policy does not allow the call, or a confinement does not; nothing has run",
        "Ask the administrator of the server",
    ),
    kind(
        "approval",
        "The call was denied, or not approved in time; nothing has run",
        "Ask the approver",
    ),
    kind("quota", "A quota is exceeded; nothing has run", "Call again after the time in the message"),
    kind("busy", "Too many calls run and wait; nothing has run", "Call again later"),
    kind(
        "unavailable",
        "The provider cannot be reached, or its declaration cannot be enforced",
        "Call again later; `orla list` shows the reason",
    ),
    kind(
        "timeout",
        "The call reached its deadline. It may have had an effect",
        "Call again only if that is safe, or give it more time",
    ),
    kind(
        "cancelled",
        "The caller, or a person at the server, withdrew the call, or the server stopped",
        "Nothing; after a stop, call again if that is safe",
    ),
    kind(
        "interrupted",
        "The server ended during a task that must not be repeated. It may have had an effect",
        "Check what was done before you start it again",
    ),
    kind(
        "limit",
        "A program or a run reached a limit of the server",
        "Do less at once, or raise the limit",
    ),
    kind(
        "failed",
        "The capability ran and reports a failure",
        "Read the message: it is the capability's own",
    ),
    kind(
        "suspended",
        "A program of a task waits; the task calls it again",
        "Nothing: callers do not see it",
    ),
    kind(
        "panicked",
        "An internal error; only this call is lost",
        "Look at the server's log, and report it",
    ),
];

/// The member of `_meta` that contains the exceeded quota.
const QUOTA: &str = "orla/quota";

/// Returns the `_meta` of a result for an exceeded quota.
fn quota_meta(limit: &str, retry_after: Duration) -> Option<JsonText> {
    let about = json!({"limit": limit, "retry_after_ms": millis_up(retry_after)});
    JsonText::of(&json!({ QUOTA: about })).ok()
}

/// Returns the quota that a nested call of a program exceeded, and the time until the call can be made.
fn exceeded_quota(error: &rtfs::Error) -> Option<(&str, Duration)> {
    let Value::Map(data) = &error.data else { return None };
    match (&*error.kind, data.get_keyword("limit")?, data.get_keyword("retry_after_ms")?) {
        ("quota", Value::Str(limit), Value::Int(ms)) => {
            Some((limit.as_str(), Duration::from_millis(u64::try_from(*ms).ok()?)))
        }
        _ => None,
    }
}

/// The maximum number of characters of a text of any client that an error or a log line repeats.
pub const MAX_SHOWN_CHARS: usize = 200;

/// Returns milliseconds, rounded up.
pub fn millis_up(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Returns milliseconds, rounded down.
pub fn millis_down(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// One place where data violates its schema: `input.city: expected a string, got 7`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The path from the root: `input.items[3].price`.
    pub path: String,
    /// The requirement of the schema. For an RTFS type, this is its notation (`:string`); users see it
    /// in words.
    pub expected: String,
    /// The actual value, cut to a readable length.
    pub got: String,
}

impl Violation {
    /// Returns the violation of data that no value, or no JSON, can represent. `root` is the beginning
    /// of the path, such as `input`.
    pub(crate) fn unreadable(error: &JsonError, root: &str) -> Self {
        Self {
            path: error.path.replacen('$', root, 1),
            expected: "JSON that can be checked".to_owned(),
            got: format!("a problem: {}", error.problem),
        }
    }
}

/// The expectation in the violation of a missing required property.
pub(crate) const REQUIRED: &str = "a value (required)";
/// The value in the violation of a missing property.
pub(crate) const NOTHING: &str = "nothing";
/// The beginning of the expectation for a property that the schema does not have.
pub(crate) const UNKNOWN: &str = "no such property";

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expected = in_words(&self.expected);
        // The property path without the root: `user.name` of `input.user.name`.
        if let Some((_, property)) = self.path.split_once('.') {
            if self.got == NOTHING {
                write!(f, "missing required property {property:?}")?;
                return if expected == REQUIRED { Ok(()) } else { write!(f, " ({expected})") };
            }
            if let Some(known) = expected.strip_prefix(UNKNOWN) {
                return write!(f, "unknown property {property:?}{known}");
            }
        }
        write!(f, "{}: expected {expected}, got {}", self.path, self.got)
    }
}

/// Returns the expectation, in words if an RTFS type has them.
fn in_words(expected: &str) -> Cow<'_, str> {
    if !expected.starts_with([':', '[']) {
        return expected.into();
    }
    let words = expected.parse::<TypeExpr>().ok().and_then(|ty| ty.in_words());
    words.map_or(expected.into(), Cow::from)
}

/// The maximum number of violations in a sentence; the rest are counted.
const LISTED: usize = 20;

fn list(violations: &[Violation]) -> String {
    let mut text = String::new();
    for violation in violations.iter().take(LISTED) {
        if !text.is_empty() {
            text.push_str("; ");
        }
        text.push_str(&violation.to_string());
    }
    if let Some(more) = violations.len().checked_sub(LISTED).filter(|more| *more > 0) {
        text.push_str(&format!("; and {more} more"));
    }
    text
}

/// Returns the text of [`RuntimeError::Unknown`] for a caller to whom capabilities are `noun`s.
pub(crate) fn unknown(noun: &str, id: &str, similar: &[String]) -> String {
    format!("unknown {noun}: {id}{}", did_you_mean(similar))
}

fn did_you_mean(similar: &[String]) -> String {
    match similar {
        [] => String::new(),
        [nearest, ..] => format!("; did you mean {nearest}?"),
    }
}

/// `1 call is running and 2 are waiting`
fn queue(running: usize, waiting: usize) -> String {
    let be = |count: usize| if count == 1 { "is" } else { "are" };
    let calls = if running == 1 { "call" } else { "calls" };
    format!("{running} {calls} {} running and {waiting} {} waiting", be(running), be(waiting))
}

/// Formats a duration for users: `30 s`, `0.5 s`, `0.989 s`.
pub fn seconds(duration: Duration) -> String {
    let millis = duration.as_micros().div_ceil(1_000);
    format!("{} s", millis as f64 / 1_000.0)
}

/// Formats a time to wait: in seconds if they are few, else in minutes, hours or days.
pub(crate) fn wait(duration: Duration) -> String {
    let whole = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    match whole {
        0..120 => seconds(duration),
        120..7_200 => format!("{} min", whole.div_ceil(60)),
        7_200..172_800 => format!("{} h", whole.div_ceil(3_600)),
        _ => format!("{} d", whole.div_ceil(86_400)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_wait_is_shown_in_human_units() {
        for (ms, text) in [
            (1_200, "1.2 s"),
            (119_000, "119 s"),
            (119_500, "2 min"),
            (43_199_550, "12 h"),
            (600_000_000, "7 d"),
        ] {
            assert_eq!(wait(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn every_kind_is_explained_once() {
        let id = || "id".to_owned();
        let outcome = || Box::new(Outcome::default());
        let program = |word: &'static str| RuntimeError::Structured {
            id: id(),
            message: String::new(),
            error: Box::new(rtfs::Error::new(word, "")),
            outcome: None,
        };
        let others = [
            RuntimeError::Failed { id: id(), message: String::new(), outcome: None },
            RuntimeError::Reported { id: id(), message: String::new(), outcome: outcome() },
            RuntimeError::Suspended { id: id() },
            RuntimeError::Panicked { id: id() },
        ];
        let mut given: Vec<&str> = others.iter().map(RuntimeError::kind).collect();
        given.extend(KINDS.iter().map(|word| program(word).kind()));
        given.sort_unstable();
        given.dedup();
        let mut explained: Vec<&str> = ERROR_KINDS.iter().map(|kind| kind.word).collect();
        explained.sort_unstable();
        assert_eq!(explained, given);
    }

    #[test]
    fn says_what_happened_in_one_sentence() {
        let wrong =
            |path: &str| Violation { path: path.into(), expected: ":string".into(), got: "7".into() };
        let cases: [(RuntimeError, &str); 7] = [
            (
                RuntimeError::Unknown { id: "lss".into(), similar: vec!["ls".into()] },
                "unknown tool: lss; did you mean ls?",
            ),
            (
                RuntimeError::TimedOut {
                    id: "ls".into(),
                    limit: Duration::from_secs(30),
                    outcome: None,
                },
                "ls timed out after 30 s",
            ),
            (
                RuntimeError::TimedOut {
                    id: "ls".into(),
                    limit: Duration::from_millis(500),
                    outcome: None,
                },
                "ls timed out after 0.5 s",
            ),
            (
                RuntimeError::InvalidInput {
                    id: "w".into(),
                    violations: vec![wrong("input.city"), wrong("input.x[0]")],
                },
                "w: invalid input: input.city: expected a string, got 7; input.x[0]: expected a string, got 7",
            ),
            (
                RuntimeError::Busy { id: "w".into(), running: 8, waiting: 2 },
                "w is busy: 8 calls are running and 2 are waiting; try again later",
            ),
            (
                RuntimeError::Busy { id: "w".into(), running: 1, waiting: 1 },
                "w is busy: 1 call is running and 1 is waiting; try again later",
            ),
            (
                RuntimeError::TimedOut {
                    id: "ls".into(),
                    limit: Duration::from_nanos(988_369_352),
                    outcome: None,
                },
                "ls timed out after 0.989 s",
            ),
        ];
        for (error, text) in cases {
            assert_eq!(error.to_string(), text);
        }
    }
}

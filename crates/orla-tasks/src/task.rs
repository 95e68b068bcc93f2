//! The record of a task.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use orla_marketplace::rtfs;
use orla_marketplace::{
    Call, CapabilityMarketplace, Hops, JsonText, Permission, Principal, RuntimeError, TaskSupport,
    millis_down,
};
use orla_state::Revision;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::keys::OwnerKey;
use crate::state::{Event, Repeat, State};

/// The id of a task: a UUID of version 7 in lower case. Ids therefore sort by the time of their
/// creation.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(Arc<str>);

/// An instant, in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp(pub u64);

/// A call that outlives its caller. The input and the result are stored separately
/// ([`Tasks::input`](crate::Tasks::input), [`Tasks::result`](crate::Tasks::result)).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// The id. It is the key of the record, and therefore not part of it.
    #[serde(skip)]
    pub id: TaskId,
    /// The revision of the record. A later state of the record has a greater revision.
    #[serde(skip)]
    pub(crate) revision: Revision,
    /// The capability that it calls. A program is a call of `rtfs`.
    pub capability: String,
    /// Whether it was started as a program.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_program: bool,
    /// The state.
    pub state: State,
    /// The caller that started it; `None` for a caller without a principal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// The schedule of the configuration that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// The idempotency key that the caller provided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When its record last changed.
    pub updated_at: Timestamp,
    /// Set once the call may have run, to what may be done after a crash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<Repeat>,
    /// The node that accepted it, if several share the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
    /// The node that runs it, if several share the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) runner: Option<Runner>,
    /// The last progress that the call reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<TaskProgress>,
    /// The last lines of the log.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<LogLine>,
    /// The MCP capabilities of the caller's client, a JSON object. `None` if the client can be asked
    /// nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<Box<RawValue>>,
    /// What the task waits for while no node runs it, if it does not merely wait in the queue.
    #[serde(skip)]
    pub waiting_for: Option<String>,
    /// The questions that wait for an answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub questions: Vec<Question>,
    /// The reason why the task gave no result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// The time after which the caller no longer needs the task, if sooner than `task_keep` after its
    /// end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_ms: Option<u64>,
    /// The terms of the call.
    #[serde(default, skip_serializing_if = "Terms::are_usual")]
    pub(crate) terms: Terms,
}

/// Terms of a task's call that differ from the usual ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Terms {
    /// The instances that the call has passed through, in the form of [`Hops`](orla_marketplace::Hops).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hops: String,
    /// The caller's W3C trace context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// The maximum duration of the call in milliseconds, if the caller set one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The maximum size of the result in bytes, if smaller than the usual limit of tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_result_bytes: Option<usize>,
    /// Whether capabilities may be called that never run as tasks, because the caller's protocol has no
    /// other calls.
    #[serde(skip_serializing_if = "is_false")]
    pub has_only_tasks: bool,
}

impl Terms {
    fn are_usual(&self) -> bool {
        *self == Self::default()
    }

    /// Applies the terms to a call.
    pub(crate) fn apply(&self, call: &mut Call, market: &CapabilityMarketplace) {
        let is_direct = self.has_only_tasks
            && market
                .get(&call.target)
                .is_some_and(|entry| entry.manifest.task_support() == Some(TaskSupport::Forbidden));
        call.scope.is_task = !is_direct;
        call.scope.traceparent = self.traceparent.as_deref().map(Into::into);
        // The text was validated when the task was accepted.
        call.scope.hops = Hops::read(&self.hops).unwrap_or_default();
        call.timeout = self.timeout_ms.map(Duration::from_millis);
    }
}

/// The caller that started a task. It suffices to act in the caller's name later, without its
/// credential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    id: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    groups: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    scopes: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    permissions: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fingerprint: Option<[u8; 32]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_at: Option<Timestamp>,
}

/// One life of a node: its name, and a number that no other life of the node has. It is the fencing
/// token of the node's tasks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Runner {
    pub(crate) node: String,
    pub(crate) life: String,
}

/// The progress of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskProgress {
    /// The current value, which grows.
    pub progress: f64,
    /// The final value of `progress`, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<f64>,
    /// The current activity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A line of a task's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// The level, as MCP names it.
    pub level: String,
    /// The text.
    pub message: String,
}

/// A question of a task's call to the client of its caller.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Question {
    /// The key, unique within the task.
    pub key: String,
    /// The MCP method: `elicitation/create`, `sampling/createMessage` or `roots/list`.
    pub method: String,
    /// The parameters.
    pub params: Box<RawValue>,
}

/// The reason why a task gave no result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// One of [`RuntimeError::kind`]'s words, a program's own kind, or `interrupted`.
    pub kind: String,
    /// The message, one sentence.
    pub message: String,
    /// The place in the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Place>,
    /// The MCP error with which the provider refused the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
}

impl Failure {
    /// Returns the failure of a cancelled task.
    pub(crate) fn cancelled() -> Self {
        Self {
            kind: State::Cancelled.as_str().to_owned(),
            message: "the task was cancelled".to_owned(),
            at: None,
            refusal: None,
        }
    }
}

/// An error of the Model Context Protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The JSON-RPC code.
    pub code: i64,
    /// The message of the provider.
    pub message: String,
    /// The data of the error, as JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
}

/// A place in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The line, starting at 1.
    pub line: u32,
    /// The column, starting at 1.
    pub column: u32,
}

impl TaskId {
    /// Creates an id that is greater than all ids that this process created before.
    #[must_use]
    pub fn new() -> Self {
        Self(uuid::Uuid::now_v7().to_string().into())
    }

    /// Parses an id that a client sent. Returns `None` if the text cannot be the id of a task.
    pub fn parse(text: &str) -> Option<Self> {
        let id = uuid::Uuid::try_parse(text).ok()?;
        // Other notations of the same number are not ids.
        (id.to_string() == text).then(|| Self(text.into()))
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for TaskId {
    /// Returns the empty text, which is not the id of any task.
    fn default() -> Self {
        Self("".into())
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Timestamp {
    /// Returns the current time.
    pub fn now() -> Self {
        SystemTime::now().into()
    }

    /// Returns the instant this many milliseconds later.
    #[must_use]
    pub fn plus_millis(self, millis: u64) -> Self {
        Self(self.0.saturating_add(millis))
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self(millis_down(since))
    }
}

impl fmt::Display for Timestamp {
    /// Formats the instant as RFC 3339 with milliseconds: `2026-07-28T12:00:00.000Z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = i64::try_from(self.0).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        write!(f, "{:.3}", at.unwrap_or(jiff::Timestamp::MAX))
    }
}

impl Owner {
    /// Returns the stored parts of a caller.
    pub fn of(principal: &Principal) -> Self {
        Self {
            id: principal.id().to_string(),
            groups: principal.groups().map(str::to_owned).collect(),
            scopes: principal.scopes().map(str::to_owned).collect(),
            permissions: principal.permissions().iter().map(Permission::to_string).collect(),
            fingerprint: principal.fingerprint().copied(),
            expires_at: principal.expires_at().map(Timestamp::from),
        }
    }

    /// Returns the caller, without its credential.
    pub fn principal(&self) -> Principal {
        let permissions = self.permissions.iter().filter_map(|text| text.parse().ok()).collect();
        let mut principal = Principal::from_id(&self.id)
            .with_groups(self.groups.iter().map(String::as_str))
            .with_scopes(self.scopes.iter().map(String::as_str))
            .with_permissions(permissions);
        if let Some(digest) = self.fingerprint {
            principal = principal.with_fingerprint(digest);
        }
        match self.expires_at {
            Some(Timestamp(ms)) => {
                principal.with_expiry(SystemTime::UNIX_EPOCH + Duration::from_millis(ms))
            }
            None => principal,
        }
    }

    /// Returns the id of the principal.
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl Task {
    /// Returns the name of the principal that started the task, for people.
    pub fn principal_name(&self) -> Option<String> {
        self.owner.as_ref().map(|owner| Principal::from_id(&owner.id).name().to_owned())
    }

    /// Returns the name of the node that runs the task, if several share the store.
    pub fn runner(&self) -> Option<&str> {
        self.runner.as_ref().map(|runner| &*runner.node)
    }

    /// Returns the owner, in the form of the store's keys.
    pub(crate) fn owner_key(&self) -> OwnerKey {
        OwnerKey::of(self.owner.as_ref().map(Owner::id))
    }

    /// Returns the principal that started the task, without its credential.
    pub fn principal(&self) -> Option<Principal> {
        self.owner.as_ref().map(Owner::principal)
    }

    /// Applies an event. Returns whether it is possible; if not, nothing changes.
    pub(crate) fn apply(&mut self, event: Event, now: Timestamp) -> bool {
        let Some(state) = self.state.after(event) else { return false };
        self.state = state;
        self.updated_at = now.max(self.updated_at);
        if state != State::InputRequired {
            self.questions.clear();
        }
        true
    }

    /// Reads a record.
    pub(crate) fn read(id: TaskId, value: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(value).map(|task: Self| Self { id, ..task })
    }

    /// Returns the record.
    pub(crate) fn write(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }
}

impl Failure {
    /// The maximum size kept of a message.
    const SHOWN: usize = 64 << 10;

    /// Returns the stored parts of an error.
    pub fn of(error: &RuntimeError) -> Self {
        let own = match error {
            RuntimeError::Structured { error, .. } => Some(error),
            _ => None,
        };
        let kind = own.map_or_else(|| error.kind().to_owned(), |own| own.kind.to_string());
        let message = match own {
            Some(own) => own.message.clone(),
            None => error.to_string(),
        };
        let refusal = match error {
            RuntimeError::Refused { code, message, data, .. } => Some(Refusal {
                code: *code,
                message: rtfs::text::excerpt(message, Self::SHOWN),
                data: data.as_ref().map(JsonText::to_string),
            }),
            _ => None,
        };
        let at = own
            .and_then(|own| own.at.as_deref())
            .map(|at| Place { line: at.position.line, column: at.position.column });
        Self { kind, message: rtfs::text::excerpt(&message, Self::SHOWN), at, refusal }
    }

    /// Returns the failure of a call that was running when its server ended and cannot be repeated.
    pub fn interrupted(capability: &str) -> Self {
        let message = format!(
            "{capability} was running when the server ended; it is not idempotent, so it was not run again"
        );
        Self { kind: "interrupted".to_owned(), message, at: None, refusal: None }
    }
}

/// JSON text in the form in which serde reads and writes it within a record.
pub(crate) fn raw(text: &JsonText) -> Option<Box<RawValue>> {
    RawValue::from_string(text.as_str().to_owned()).ok()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

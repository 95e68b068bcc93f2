//! A task, as it is kept.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use orla_marketplace::rtfs;
use orla_marketplace::{
    Call, CapabilityMarketplace, Hops, JsonText, Permission, Principal, RuntimeError, TaskSupport,
    full_millis,
};
use orla_state::Revision;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::keys::OwnerKey;
use crate::state::{Event, Repeat, State};

/// The id of a task: a UUID of version 7 in lower case, so ids sort by the time at which they were made.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(Arc<str>);

/// A moment, in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp(pub u64);

/// A call that outlives its caller. Its input and its result are kept beside it
/// ([`Tasks::input`](crate::Tasks::input), [`Tasks::result`](crate::Tasks::result)).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// Its id. It is the key of the record, and so not in it.
    #[serde(skip)]
    pub id: TaskId,
    /// Tells states of the record apart: a later one has a greater revision.
    #[serde(skip)]
    pub(crate) revision: Revision,
    /// The capability that it calls. A program is a call of `rtfs`.
    pub capability: String,
    /// Whether it was started as a program.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_program: bool,
    /// Where it stands.
    pub state: State,
    /// Who started it; `None` for a caller without a principal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// The schedule of the configuration that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// The idempotency key that its caller gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When its record last changed.
    pub updated_at: Timestamp,
    /// Set once its call may have run: what may be done after a crash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<Repeat>,
    /// The node that accepted it, if several share the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
    /// The node that runs it, if several share the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) runner: Option<Runner>,
    /// How far it is, as it last said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<TaskProgress>,
    /// The last lines of its log.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<LogLine>,
    /// What the client of its caller can be asked: the JSON object of its MCP capabilities. `None`: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<Box<RawValue>>,
    /// What it waits for while nobody runs it, if that is not its turn.
    #[serde(skip)]
    pub waiting_for: Option<String>,
    /// The questions that wait for an answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub questions: Vec<Question>,
    /// Why it gave no result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// When its caller no longer needs it, if sooner than `task_keep` after its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_ms: Option<u64>,
    /// On which terms its call is made.
    #[serde(default, skip_serializing_if = "Terms::are_usual")]
    pub(crate) terms: Terms,
}

/// On which terms the call of a task is made, where they are not the usual ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Terms {
    /// The instances that the call has come through, as [`Hops`](orla_marketplace::Hops) writes them.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hops: String,
    /// The caller's W3C trace context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// How long the call may take at most, in milliseconds, if its caller said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The most bytes of the result, if fewer than tasks usually keep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_result_bytes: Option<usize>,
    /// Whether a capability is called that never runs as a task: the caller's protocol has no other calls.
    #[serde(skip_serializing_if = "is_false")]
    pub has_only_tasks: bool,
}

impl Terms {
    fn are_usual(&self) -> bool {
        *self == Self::default()
    }

    /// Puts the terms into a call.
    pub(crate) fn apply(&self, call: &mut Call, market: &CapabilityMarketplace) {
        let is_direct = self.has_only_tasks
            && market
                .get(&call.target)
                .is_some_and(|entry| entry.manifest.task_support() == Some(TaskSupport::Forbidden));
        call.scope.is_task = !is_direct;
        call.scope.traceparent = self.traceparent.as_deref().map(Into::into);
        // It was read when the task was accepted.
        call.scope.hops = Hops::read(&self.hops).unwrap_or_default();
        call.timeout = self.timeout_ms.map(Duration::from_millis);
    }
}

/// Who started a task. It is all that is needed to act in the caller's name later, without its credential.
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

/// One life of a node: its name, and a number that no other life of it has. It is the fencing token of what the node runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Runner {
    pub(crate) node: String,
    pub(crate) life: String,
}

/// How far a task is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskProgress {
    /// Grows.
    pub progress: f64,
    /// The final value of `progress`, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<f64>,
    /// What is being done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A line of a task's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// Its level, in the words of MCP.
    pub level: String,
    /// What it says.
    pub message: String,
}

/// A question of a task's call to the client of its caller.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Question {
    /// Unique within the task.
    pub key: String,
    /// The method of MCP: `elicitation/create`, `sampling/createMessage` or `roots/list`.
    pub method: String,
    /// Its parameters.
    pub params: Box<RawValue>,
}

/// Why a task gave no result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// One of [`RuntimeError::kind`]'s words, a program's own kind, or `interrupted`.
    pub kind: String,
    /// One sentence.
    pub message: String,
    /// Where in the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Place>,
    /// The error of the Model Context Protocol with which the provider refused the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
}

impl Failure {
    /// That of a task that was cancelled.
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
    /// What the provider said.
    pub message: String,
    /// What it added, as JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
}

/// A place in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// From 1 on.
    pub line: u32,
    /// From 1 on.
    pub column: u32,
}

impl TaskId {
    /// An id that is greater than all that this process made before.
    #[must_use]
    pub fn new() -> Self {
        Self(uuid::Uuid::now_v7().to_string().into())
    }

    /// Reads an id as a client wrote it. `None` if it can be no task's.
    pub fn parse(text: &str) -> Option<Self> {
        let id = uuid::Uuid::try_parse(text).ok()?;
        // Other notations of the same number are no ids.
        (id.to_string() == text).then(|| Self(text.into()))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for TaskId {
    /// The empty text, which is no task's id.
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
    /// Now.
    pub fn now() -> Self {
        SystemTime::now().into()
    }

    /// The moment so many milliseconds later.
    #[must_use]
    pub fn plus_millis(self, millis: u64) -> Self {
        Self(self.0.saturating_add(millis))
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self(full_millis(since))
    }
}

impl fmt::Display for Timestamp {
    /// As RFC 3339 has it, with milliseconds: `2026-07-28T12:00:00.000Z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = i64::try_from(self.0).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        write!(f, "{:.3}", at.unwrap_or(jiff::Timestamp::MAX))
    }
}

impl Owner {
    /// What is kept of a caller.
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

    /// The caller, without its credential.
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

    /// The id of the principal.
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl Task {
    /// The name of the principal that started it, as people read it.
    pub fn principal_name(&self) -> Option<String> {
        self.owner.as_ref().map(|owner| Principal::from_id(&owner.id).name().to_owned())
    }

    /// The name of the node that runs it, if several share the store.
    pub fn runner(&self) -> Option<&str> {
        self.runner.as_ref().map(|runner| &*runner.node)
    }

    /// Whose it is, as the keys of the store have it.
    pub(crate) fn owner_key(&self) -> OwnerKey {
        OwnerKey::of(self.owner.as_ref().map(Owner::id))
    }

    /// The principal that started it, without its credential.
    pub fn principal(&self) -> Option<Principal> {
        self.owner.as_ref().map(Owner::principal)
    }

    /// Applies an event. Gives whether it could happen; if not, nothing changes.
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

    /// The record.
    pub(crate) fn write(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }
}

impl Failure {
    /// The most bytes of a message that are kept.
    const SHOWN: usize = 64 << 10;

    /// What is kept of an error.
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

    /// The call was running when its server ended, and cannot be repeated.
    pub fn interrupted(capability: &str) -> Self {
        let message = format!(
            "{capability} was running when the server ended; it is not idempotent, so it was not run again"
        );
        Self { kind: "interrupted".to_owned(), message, at: None, refusal: None }
    }
}

/// JSON text as serde reads and writes it within a record.
pub(crate) fn raw(text: &JsonText) -> Option<Box<RawValue>> {
    RawValue::from_string(text.as_str().to_owned()).ok()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

//! The data of a call, and its JSON.

use std::fmt;
use std::time::{Duration, SystemTime};

use orla_marketplace::{REDACTED, Span, SpanKind};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// The maximum number of bytes of the name and of the version of a client.
const MAX_CLIENT: usize = 100;

/// A finished or running call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Call {
    /// Unique among the calls of all instances.
    pub id: String,
    /// The call that it was made in.
    pub parent: Option<String>,
    /// The outermost call around it; its own id for an outermost call.
    pub root: String,
    /// How many calls it was nested in.
    pub depth: u32,
    /// The capability's id; of a prompt or a resource, the id that policies use.
    pub capability: String,
    /// The capability's MCP name; the name of a prompt, or the address of a resource.
    pub name: String,
    /// The kind of its provider, or `prompt` or `resource`.
    pub kind: String,
    /// The name of the caller, if it was identified.
    pub principal: Option<String>,
    /// The [id](orla_marketplace::Principal::id) of the caller, if it was identified. It decides which
    /// viewers may see the call, and is not shown.
    pub principal_id: Option<String>,
    /// The client program that the outermost call came from, as it describes itself.
    pub client: Option<ClientInfo>,
    /// A name for the session of MCP that the outermost call was made in.
    pub session: Option<String>,
    /// `ok`, `running`, or the [kind](orla_marketplace::RuntimeError::kind) of the error.
    pub outcome: String,
    /// When it began.
    pub started_at: SystemTime,
    /// From its beginning to its end, waiting included; of a call that runs, until now.
    pub duration: Duration,
    /// How long it waited for its permits.
    pub queued: Duration,
    /// How long its provider took, with the calls that it made; `None` until the call ends, and in rows of earlier versions.
    pub executed: Option<Duration>,
    /// How long its input and its output were checked against their schemas; `None` like `executed`.
    pub validated: Option<Duration>,
    /// The processes that its provider has started, and the requests that it has sent, in the order in which they ended. Empty in
    /// lists of a file.
    pub spans: Vec<SpanLine>,
    /// Whether it runs and waits for an approval.
    pub waits_for_approval: bool,
}

/// A client program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientInfo {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: Option<String>,
}

impl ClientInfo {
    /// Returns what a `clientInfo` of MCP says, if it has a name.
    pub(crate) fn of(text: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct Info {
            name: String,
            #[serde(default)]
            version: Value,
        }
        let Info { name, version } = serde_json::from_str(text).ok()?;
        let version = version.as_str().map(str::to_owned);
        Some(Self { name, version }).filter(|client| !client.name.is_empty())
    }

    /// Changes its texts, and cuts long ones afterwards.
    pub(crate) fn change(&mut self, change: impl Fn(&mut String)) {
        for text in std::iter::once(&mut self.name).chain(&mut self.version) {
            change(text);
            text.truncate(text.floor_char_boundary(MAX_CLIENT));
        }
    }
}

impl fmt::Display for ClientInfo {
    /// Writes the name and the version.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.version.as_ref().map_or(Ok(()), |version| write!(f, " {version}"))
    }
}

/// The outcome of a call that has not ended.
pub const RUNNING: &str = "running";
/// The state of a call that waits for an approval.
pub const WAITING: &str = "waiting for approval";

impl Call {
    /// An outermost call that took no time.
    pub fn new(id: String, capability: String, outcome: String) -> Self {
        Self {
            parent: None,
            root: id.clone(),
            id,
            depth: 0,
            name: capability.clone(),
            capability,
            kind: String::new(),
            principal: None,
            principal_id: None,
            client: None,
            session: None,
            outcome,
            started_at: SystemTime::UNIX_EPOCH,
            duration: Duration::ZERO,
            queued: Duration::ZERO,
            executed: None,
            validated: None,
            spans: Vec::new(),
            waits_for_approval: false,
        }
    }

    /// Returns whether it ended otherwise than with a value.
    pub fn is_failed(&self) -> bool {
        self.outcome != "ok" && self.outcome != RUNNING
    }

    /// Returns whether it is a request for a prompt or a resource, which is no call of a capability.
    pub fn is_request(&self) -> bool {
        matches!(&*self.kind, "prompt" | "resource")
    }

    /// Writes the members of its JSON object.
    fn members<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        map.serialize_entry("id", &self.id)?;
        map.serialize_entry("parent", &self.parent)?;
        map.serialize_entry("capability", &self.capability)?;
        map.serialize_entry("kind", &self.kind)?;
        map.serialize_entry("principal", &self.principal)?;
        map.serialize_entry("client", &self.client)?;
        map.serialize_entry("session", &self.session)?;
        map.serialize_entry("outcome", &self.outcome)?;
        if self.waits_for_approval {
            map.serialize_entry("state", WAITING)?;
        }
        map.serialize_entry("started_at", &timestamp(self.started_at))?;
        map.serialize_entry("duration_ms", &millis(self.duration))?;
        map.serialize_entry("queued_ms", &millis(self.queued))?;
        map.serialize_entry("executed_ms", &self.executed.map(millis))?;
        map.serialize_entry("validated_ms", &self.validated.map(millis))
    }
}

impl Serialize for Call {
    /// Returns the object of `GET /calls`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.members(&mut map)?;
        map.end()
    }
}

/// A call that runs.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Running {
    /// The call so far.
    pub call: Call,
    /// The progress, if the call reports it.
    pub progress: Option<Progress>,
}

impl Serialize for Running {
    /// Returns the object of `GET /calls?running`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.call.members(&mut map)?;
        if let Some(progress) = &self.progress {
            map.serialize_entry("progress", progress)?;
        }
        map.end()
    }
}

/// How far a call is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Grows.
    pub progress: f64,
    /// The final value of `progress`, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<f64>,
    /// The current activity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A call with its data, without the calls within it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Row {
    /// The call.
    pub call: Call,
    /// Its input; `None` if bodies are not kept.
    pub input: Option<Body>,
    /// The output, as plain JSON. A failed call may have output too.
    pub output: Option<Body>,
    /// The sentence of its error for the caller.
    pub error: Option<String>,
    /// The notices of the call, the oldest first.
    pub notices: Vec<NoticeLine>,
    /// How many notices more it sent.
    pub more_notices: u64,
    /// The standard error of its process.
    pub stderr: Option<String>,
    /// The trace that it is part of.
    pub trace: Option<Trace>,
    /// Whether there may be an earlier row of this call: that of a program which went on.
    pub(crate) replaces: bool,
}

impl Row {
    /// A call without data.
    pub fn of(call: Call) -> Self {
        Self {
            call,
            input: None,
            output: None,
            error: None,
            notices: Vec::new(),
            more_notices: 0,
            stderr: None,
            trace: None,
            replaces: false,
        }
    }
}

/// JSON text, which may have been cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    /// JSON; of a text that was cut, its beginning.
    pub text: String,
    /// Bytes of the whole text.
    pub bytes: u64,
}

impl Body {
    /// Returns whether only the beginning is there.
    pub fn is_cut(&self) -> bool {
        self.text.len() as u64 != self.bytes
    }

    /// Returns the whole JSON text, as it was; `None` if only the beginning is there, or if a part of it
    /// was a secret.
    pub fn original(&self) -> Option<&str> {
        self.whole().filter(|text| !text.contains(REDACTED))
    }

    /// Returns the whole JSON text; `None` if only the beginning is there.
    pub fn whole(&self) -> Option<&str> {
        (!self.is_cut()).then_some(&self.text)
    }
}

impl Serialize for Body {
    /// Returns the JSON itself. Of a text that was cut, its beginning as a string.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw = self.whole().and_then(|text| serde_json::from_str::<&RawValue>(text).ok());
        match raw {
            Some(raw) => raw.serialize(serializer),
            None => serializer.serialize_str(&self.text),
        }
    }
}

/// A notice of a running call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NoticeLine {
    /// Milliseconds since the call began.
    pub at_ms: f64,
    /// The kind of the notice.
    pub kind: NoticeKind,
    /// The level of a message: one of the syslog levels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// The text of the notice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// How far the call was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<f64>,
    /// The final value of `progress`, if it was known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<f64>,
}

/// The kinds of notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NoticeKind {
    /// How far the call was.
    Progress,
    /// A message for the caller's log.
    Log,
    /// A part of its text.
    Text,
}

/// A process of a call, or a request that it sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpanLine {
    /// What it was.
    pub kind: SpanWord,
    /// The file name of the program, or the method and the origin of the request.
    pub name: String,
    /// The exit code by the shell's conventions, or the status of the answer; `None` if there is none.
    pub code: Option<i32>,
    /// Milliseconds from the beginning of the call to its own.
    pub at_ms: f64,
    /// Milliseconds from its beginning to its end.
    pub duration_ms: f64,
}

/// The kinds of spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpanWord {
    /// A process.
    Process,
    /// A request over HTTP.
    Request,
}

impl SpanLine {
    /// Returns the line of a span that began so long after its call.
    pub(crate) fn of(span: Span, after: Duration) -> Self {
        let kind = match span.kind {
            SpanKind::Process => SpanWord::Process,
            SpanKind::Request => SpanWord::Request,
        };
        let (at_ms, duration_ms) = (millis(after), millis(span.duration));
        Self { kind, name: span.name, code: span.code, at_ms, duration_ms }
    }

    /// Returns how it ended, in words.
    pub fn outcome(&self) -> String {
        let (word, none) = match self.kind {
            SpanWord::Process => ("exit code", "no exit code"),
            SpanWord::Request => ("status", "no answer"),
        };
        self.code.map_or_else(|| none.to_owned(), |code| format!("{word} {code}"))
    }

    /// Returns whether its code tells of a failure.
    pub fn is_failed(&self) -> bool {
        match (self.kind, self.code) {
            (SpanWord::Process, code) => code != Some(0),
            (SpanWord::Request, code) => code.is_none_or(|status| status >= 400),
        }
    }
}

/// The trace of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// 32 hexadecimal digits.
    pub trace_id: String,
    /// 16 hexadecimal digits: the span of the call.
    pub span_id: String,
    /// The span around it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<String>,
}

/// A call with its data and the calls within it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Detail {
    /// The call.
    pub row: Row,
    /// The calls directly within it, the first one first.
    pub children: Vec<Node>,
}

/// A call within another, with the calls within it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Node {
    /// The call.
    pub call: Call,
    /// The calls directly within it, the first one first.
    pub children: Vec<Self>,
}

impl Detail {
    /// A call with the calls directly within it.
    pub fn of(row: Row, children: Vec<Node>) -> Self {
        Self { row, children }
    }
}

impl Node {
    /// A call with the calls directly within it.
    pub fn of(call: Call, children: Vec<Self>) -> Self {
        Self { call, children }
    }
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.call.members(&mut map)?;
        map.serialize_entry("spans", &self.call.spans)?;
        map.serialize_entry("children", &self.children)?;
        map.end()
    }
}

impl Serialize for Detail {
    /// Returns the object of `GET /calls/ID`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Failure<'a> {
            kind: &'a str,
            message: &'a str,
        }
        #[derive(Serialize)]
        struct Cut {
            #[serde(skip_serializing_if = "Option::is_none")]
            input: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            output: Option<u64>,
        }
        let Row { call, input, output, error, notices, more_notices, stderr, trace, .. } = &self.row;
        let mut map = serializer.serialize_map(None)?;
        call.members(&mut map)?;
        map.serialize_entry("input", input)?;
        map.serialize_entry("output", output)?;
        let cut =
            |body: &Option<Body>| body.as_ref().filter(|body| body.is_cut()).map(|body| body.bytes);
        let cut = Cut { input: cut(input), output: cut(output) };
        if cut.input.or(cut.output).is_some() {
            map.serialize_entry("truncated", &cut)?;
        }
        let kind = &call.outcome;
        map.serialize_entry("error", &error.as_ref().map(|message| Failure { kind, message }))?;
        map.serialize_entry("notices", notices)?;
        if *more_notices > 0 {
            map.serialize_entry("more_notices", more_notices)?;
        }
        map.serialize_entry("stderr", stderr)?;
        if let Some(trace) = trace {
            map.serialize_entry("trace", trace)?;
        }
        map.serialize_entry("spans", &call.spans)?;
        map.serialize_entry("children", &self.children)?;
        map.end()
    }
}

/// Milliseconds with three decimals.
pub fn millis(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1000.0
}

/// Returns a time by RFC 3339, in UTC with milliseconds.
pub fn timestamp(at: SystemTime) -> String {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let millis = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
    format!("{:.3}", jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX))
}

/// The maximum number of levels of a tree.
const MAX_DEPTH: usize = 200;

/// Builds the tree of the calls within `id` from rows of one root in any order. Each level is ordered by
/// the times at which its calls began.
pub(crate) fn tree(id: &str, rows: Vec<Call>) -> Vec<Node> {
    use std::collections::HashMap;
    let mut of: HashMap<String, Vec<Call>> = HashMap::new();
    for call in rows {
        if let Some(parent) = call.parent.clone() {
            of.entry(parent).or_default().push(call);
        }
    }
    fn below(id: &str, depth: usize, of: &mut HashMap<String, Vec<Call>>) -> Vec<Node> {
        // Each list is taken once, so that rows of a foreign file that name each other do not loop.
        let mut calls = of.remove(id).filter(|_| depth < MAX_DEPTH).unwrap_or_default();
        calls.sort_by_key(|call| call.started_at);
        let node = |call: Call| Node { children: below(&call.id, depth + 1, of), call };
        calls.into_iter().map(node).collect()
    }
    below(id, 0, &mut of)
}

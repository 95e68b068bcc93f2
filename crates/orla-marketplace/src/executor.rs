//! The one seam: whatever can be called is called through a [`CapabilityExecutor`]
//! (RTFS capability system §2.2).

use std::any::TypeId;
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use async_trait::async_trait;
use rtfs::Value;

use crate::call::CallContext;
use crate::call::memory::Reservation;
use crate::call::stream::{StreamHandle, not_a_stream};
use crate::error::{RuntimeError, RuntimeResult};
use crate::manifest::CapabilityManifest;
use crate::payload::{JsonText, Payload};
use crate::program::TraceSink;
use crate::provider::ProviderType;

/// Runs the calls of one kind of provider (RTFS capability system §2.2).
///
/// An executor neither validates, authorises, queues, retries nor logs: the marketplace does that
/// once for all of them. It is safe to drop the future of [`execute`](Self::execute) at any await
/// point, and whatever it started ends then.
///
/// It departs from the document in two places, both on purpose: input and output are lazy
/// ([`Payload`], [`Outcome`]), so that a relay parses nothing, and the future is `Send`, so that
/// calls run on every core.
#[async_trait]
pub trait CapabilityExecutor: Send + Sync {
    /// The type of the settings struct whose calls this executor runs.
    fn provider_type_id(&self) -> TypeId;

    /// Runs one call.
    ///
    /// The deadline in `ctx` is the executor's where it has something to end or to keep (a process
    /// group with its grace, the output so far); the marketplace's own timer is the backstop.
    ///
    /// # Errors
    /// [`RuntimeError::Failed`] when the provider says so, [`RuntimeError::Unavailable`] when it
    /// cannot be reached, [`RuntimeError::TimedOut`] and [`RuntimeError::Cancelled`] with what was
    /// given so far.
    async fn execute(
        &self,
        provider: &ProviderType,
        inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<Outcome>;

    /// Opens a stream (RTFS capability system §3.2). An executor whose capabilities are no streams has
    /// nothing to say here.
    ///
    /// `ctx` has the time and the cancellation of opening it: the stream itself lasts until it ends, is
    /// closed, or is dropped.
    ///
    /// # Errors
    /// Those of [`execute`](Self::execute).
    async fn open(
        &self,
        _provider: &ProviderType,
        _inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<Box<dyn StreamHandle>> {
        Err(not_a_stream(ctx))
    }

    /// Whether it refuses, by itself and with [`RuntimeError::InvalidInput`], whatever the input type of this
    /// manifest does not admit, and gives nothing that its output type does not admit. The calls are then not
    /// checked a second time, and no schema is compiled for them.
    fn checks_types(&self, _manifest: &CapabilityManifest) -> bool {
        false
    }

    /// What can be said of the provider's health without asking it.
    fn status(&self, _provider: &ProviderType) -> ProviderStatus {
        ProviderStatus::default()
    }
}

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Principal(pub Arc<str>);

/// Makes the sink of a call that a program makes, by the id of what is called.
type MakeSink = dyn Fn(&str) -> NoticeSink + Send + Sync;

/// Takes what a call says while it runs. Sending never blocks and works from any thread.
#[derive(Clone, Default)]
pub struct NoticeSink {
    take: Option<Arc<dyn Fn(Notice) + Send + Sync>>,
    calls: Option<Arc<MakeSink>>,
    trace: TraceSink,
}

impl NoticeSink {
    /// A sink that gives each notice to `take`, which must not block.
    pub fn new(take: impl Fn(Notice) + Send + Sync + 'static) -> Self {
        Self { take: Some(Arc::new(take)), ..Self::default() }
    }

    /// The same, and each call that a program makes within this one has a sink of its own: `make` is given the
    /// id of what is called. Without this, they are part of the program's own progress.
    pub fn with_calls(self, make: impl Fn(&str) -> Self + Send + Sync + 'static) -> Self {
        Self { calls: Some(Arc::new(make)), ..self }
    }

    /// The sink of a call that a program makes within this one, where each has its own.
    pub fn of_call(&self, id: &str) -> Option<Self> {
        self.calls.as_ref().map(|make| make(id))
    }

    /// The same, and what a program does in the call goes to `trace`.
    pub fn traced(self, trace: TraceSink) -> Self {
        Self { trace, ..self }
    }

    /// Whether anyone listens: where not, notices need not be made.
    pub fn is_wanted(&self) -> bool {
        self.take.is_some()
    }

    /// Gives a notice to whoever listens.
    pub fn send(&self, notice: Notice) {
        if let Some(take) = &self.take {
            take(notice);
        }
    }

    /// Takes what a program does, where the call is one of a program.
    pub fn trace(&self) -> &TraceSink {
        &self.trace
    }
}

impl fmt::Debug for NoticeSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NoticeSink({})", if self.is_wanted() { "wanted" } else { "unwanted" })
    }
}

/// What a call says while it runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// How far it is.
    Progress(Progress),
    /// A message for the caller's log.
    Log {
        /// How grave it is.
        level: LogLevel,
        /// What it says.
        message: String,
    },
    /// A part of the text that it gives in the end, for who wants to read along.
    Text(String),
}

/// How far a call is.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// Grows from notice to notice.
    pub progress: f64,
    /// What `progress` grows to, if that is known.
    pub total: Option<f64>,
    /// What is being done.
    pub message: Option<String>,
}

/// The levels of syslog, which MCP uses too. The least grave is the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogLevel {
    /// For those who look for a fault.
    Debug,
    /// What is normal.
    Info,
    /// What is normal and worth knowing.
    Notice,
    /// What may become an error.
    Warning,
    /// What went wrong.
    Error,
    /// What a part of the system failed by.
    Critical,
    /// What needs action at once.
    Alert,
    /// What makes the system unusable.
    Emergency,
}

impl LogLevel {
    /// Every level, the least grave first.
    pub const ALL: [Self; 8] = [
        Self::Debug,
        Self::Info,
        Self::Notice,
        Self::Warning,
        Self::Error,
        Self::Critical,
        Self::Alert,
        Self::Emergency,
    ];

    /// The level's name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
            Self::Alert => "alert",
            Self::Emergency => "emergency",
        }
    }
}

impl FromStr for LogLevel {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|level| level.as_str() == text).ok_or(())
    }
}

/// What a call gave.
///
/// A result that came as MCP content goes out as the same content; a plain value is rendered by
/// whoever shows it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The value: MCP's `structuredContent`.
    pub structured: Option<Payload>,
    /// A JSON array of MCP content blocks, exactly as they go out.
    pub content: Option<JsonText>,
    /// A JSON object that goes out as `_meta`.
    pub meta: Option<JsonText>,
    /// MCP's `isError` as the provider wrote it; `None` where it wrote none. A result goes out with it.
    pub is_error: Option<bool>,
    /// The memory that it holds, where that counts to a [`MemoryBudget`](crate::MemoryBudget).
    pub reservation: Option<Arc<Reservation>>,
}

impl Outcome {
    /// An outcome that is a value and nothing else.
    pub fn from_value(value: Value) -> Self {
        Self { structured: Some(Payload::from_value(value)), ..Self::default() }
    }

    /// The bytes of its JSON texts.
    pub fn bytes(&self) -> usize {
        let structured = self.structured.as_ref().map_or(0, Payload::text_bytes);
        let of = |text: &Option<JsonText>| text.as_ref().map_or(0, |text| text.as_str().len());
        structured + of(&self.content) + of(&self.meta)
    }

    /// The outcome as an RTFS value: the structured one, else the content blocks; the text itself
    /// where the content is a single block of text.
    ///
    /// # Errors
    /// JSON that no value can hold.
    pub fn value(&self) -> RuntimeResult<Value> {
        if let Some(structured) = &self.structured {
            return structured.value().cloned();
        }
        let Some(content) = &self.content else { return Ok(Value::Nil) };
        match &self.blocks()?[..] {
            [TextBlock { kind, text: Some(text) }] if kind == "text" => Ok(Value::from(&**text)),
            _ => Payload::from_json(content.clone()).value().cloned(),
        }
    }

    /// The value as a payload: the structured one; else the text of the blocks that are texts, read as JSON where it
    /// is JSON, and as a string where it is not; else the content blocks.
    ///
    /// # Errors
    /// Content that is no list of blocks.
    pub fn payload(&self) -> RuntimeResult<Payload> {
        if let Some(structured) = &self.structured {
            return Ok(structured.clone());
        }
        let Some(content) = &self.content else { return Ok(Payload::from_value(Value::Nil)) };
        let blocks = self.blocks()?.into_iter().filter(|block| block.kind == "text");
        let texts: Vec<Cow<'_, str>> = blocks.filter_map(|block| block.text).collect();
        if texts.is_empty() {
            return Ok(Payload::from_json(content.clone()));
        }
        let text = texts.join("\n");
        let json = JsonText::parse(text.clone()).or_else(|_| JsonText::of(&text));
        json.map(Payload::from_json).map_err(|err| RuntimeError::Generic(err.to_string()))
    }

    /// The text of the last content block that is a text.
    pub fn last_text(&self) -> Option<String> {
        let texts = self.blocks().ok()?.into_iter().rev().filter(|block| block.kind == "text");
        texts.filter_map(|block| block.text).map(Cow::into_owned).next()
    }

    fn blocks(&self) -> RuntimeResult<Vec<TextBlock<'_>>> {
        let content = self.content.as_ref().map_or("[]", JsonText::as_str);
        serde_json::from_str(content)
            .map_err(|err| RuntimeError::Generic(format!("content is not a list of blocks: {err}")))
    }
}

impl From<Value> for Outcome {
    fn from(value: Value) -> Self {
        Self::from_value(value)
    }
}

#[derive(serde::Deserialize)]
struct TextBlock<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
}

/// What a surface or an executor can say of a provider without asking it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProviderStatus {
    /// Where the thing comes from: a path or an address.
    pub source: Option<String>,
    /// What runs it, such as `python3`.
    pub interpreter: Option<String>,
    /// The life cycle's state.
    pub state: Option<String>,
    /// The process that serves it.
    pub pid: Option<u32>,
    /// How long that process has been up, in milliseconds.
    pub uptime_ms: Option<u64>,
    /// How often it was started anew.
    pub restarts: Option<u64>,
    /// Why it last failed.
    pub last_failure: Option<String>,
    /// How calls find their provider, where there are several.
    pub route: Option<String>,
    /// The providers of a capability that has several.
    pub providers: Vec<RoutedStatus>,
}

/// What is known of one of the providers of a capability that has several.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RoutedStatus {
    /// What it is called.
    pub name: String,
    /// Its kind.
    pub kind: &'static str,
    /// `available`, or `unavailable` while it is not tried.
    pub state: &'static str,
    /// Calls that run there.
    pub running: usize,
    /// Calls that were made there so far.
    pub calls: u64,
    /// Whether it was used last.
    pub is_last: bool,
    /// Why its last call failed, if it did.
    pub last_failure: Option<String>,
}

//! Notices of a running call.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::Arc;

use crate::payload::JsonText;
use crate::redaction::Redactor;
use crate::span::{OpenSpan, Span, SpanKind};
use crate::trace::TraceSink;

/// Creates the sink for a nested call of a program, by the id of the called capability.
type MakeSink = dyn Fn(&str) -> NoticeSink + Send + Sync;

/// Receives progress and log messages of a call while it runs. Sending never blocks and works from any thread.
#[derive(Clone, Default)]
pub struct NoticeSink {
    take: Option<Arc<dyn Fn(Notice) + Send + Sync>>,
    calls: Option<Arc<MakeSink>>,
    trace: TraceSink,
    observed: Option<Observed>,
}

/// Observes the notices of one call, in addition to the listener, and its spans.
pub trait NoticeObserver: Send + Sync {
    /// Handles a notice. Secrets that the capability was given are hidden.
    fn on_notice(&self, notice: &Notice);

    /// Handles a span that has ended. Secrets are hidden.
    fn on_span(&self, span: Span);
}

/// The observer of the call itself. Nested calls have their own.
#[derive(Clone)]
pub(crate) struct Observed {
    call: Arc<dyn NoticeObserver>,
    redactors: [Option<Arc<Redactor>>; 2],
}

impl Observed {
    /// Returns a text without the secrets that the redactors know.
    pub(crate) fn clean(&self, text: String) -> String {
        let clean = |text: String, redactor: &Arc<Redactor>| redactor.text(&text).into_owned();
        self.redactors.iter().flatten().fold(text, clean)
    }

    pub(crate) fn on_span(&self, span: Span) {
        self.call.on_span(span);
    }
}

impl NoticeSink {
    /// Returns a sink that passes each notice to `take`, which must not block.
    pub fn new(take: impl Fn(Notice) + Send + Sync + 'static) -> Self {
        Self { take: Some(Arc::new(take)), ..Self::default() }
    }

    /// Gives each nested call of a program its own sink: `make` receives the id of the called
    /// capability. Without this, the notices of nested calls are part of the program's progress.
    pub fn with_calls(self, make: impl Fn(&str) -> Self + Send + Sync + 'static) -> Self {
        Self { calls: Some(Arc::new(make)), ..self }
    }

    /// Returns the sink for a nested call of a program, if each call has its own.
    pub fn of_call(&self, id: &str) -> Option<Self> {
        self.calls.as_ref().map(|make| make(id))
    }

    /// Sends the trace of a program in the call to `trace`.
    pub fn traced(self, trace: TraceSink) -> Self {
        Self { trace, ..self }
    }

    /// Hides the secrets that `redactor` knows in all notices.
    #[must_use]
    pub fn redacted(self, redactor: &Arc<Redactor>) -> Self {
        let redactor = Arc::clone(redactor);
        let take = self.take.map(|take| -> Arc<dyn Fn(Notice) + Send + Sync> {
            Arc::new(move |notice| take(redactor.notice(notice)))
        });
        Self { take, ..self }
    }

    /// Also passes the notices to `call`, without the secrets that the redactors know.
    #[must_use]
    pub(crate) fn observed_by(
        self,
        call: Arc<dyn NoticeObserver>,
        redactors: [Option<Arc<Redactor>>; 2],
    ) -> Self {
        let observed = Observed { call, redactors };
        Self { observed: Some(observed), ..self }
    }

    /// Returns whether the caller or an observer listens. If not, notices need not be created.
    pub fn is_wanted(&self) -> bool {
        self.take.is_some() || self.observed.is_some()
    }

    /// Passes a notice to the listener.
    pub fn send(&self, notice: Notice) {
        if let Some(Observed { call, redactors }) = &self.observed {
            let clean = |notice: Notice, redactor: &Arc<Redactor>| redactor.notice(notice);
            call.on_notice(&redactors.iter().flatten().fold(notice.clone(), clean));
        }
        if let Some(take) = &self.take {
            take(notice);
        }
    }

    /// Begins a span of the call, which ends when the returned guard is dropped. `name` is the file name of a program, or
    /// the method and the origin of a request.
    pub fn begin_span(&self, kind: SpanKind, name: impl FnOnce() -> String) -> OpenSpan {
        OpenSpan::new(self.observed.as_ref(), kind, name)
    }

    /// Returns the sink for the trace of a program, if the call runs a program.
    pub fn trace(&self) -> &TraceSink {
        &self.trace
    }
}

impl fmt::Debug for NoticeSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NoticeSink({})", if self.is_wanted() { "wanted" } else { "unwanted" })
    }
}

/// A message of a running call.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// Progress.
    Progress(Progress),
    /// A message for the caller's log.
    Log {
        /// Its severity.
        level: LogLevel,
        /// The message.
        message: LogText,
    },
    /// A part of the final text, for clients that show text as it arrives.
    Text(String),
}

/// The message of a log entry: a text for users, and the original message of an MCP server.
#[derive(Clone, Debug, PartialEq)]
pub struct LogText {
    text: String,
    sent: Option<Box<SentLog>>,
}

/// The original log message of an MCP server.
#[derive(Clone, Debug, PartialEq)]
pub struct SentLog {
    /// The server's name for the part that sent the message.
    pub logger: Option<String>,
    /// The message, which may be any JSON.
    pub data: JsonText,
}

impl LogText {
    /// Creates a message that came from a server.
    pub fn sent(logger: Option<String>, data: JsonText) -> Self {
        // A string is used as text; any other value is shown as JSON.
        let text = serde_json::from_str(data.as_str()).unwrap_or_else(|_| data.as_str().to_owned());
        Self { text, sent: Some(Box::new(SentLog { logger, data })) }
    }

    /// Returns the original message of a server; `None` if the message was created here.
    pub fn as_sent(&self) -> Option<&SentLog> {
        self.sent.as_deref()
    }

    /// Returns the text.
    pub fn into_text(self) -> String {
        self.text
    }
}

impl From<String> for LogText {
    fn from(text: String) -> Self {
        Self { text, sent: None }
    }
}

impl From<&str> for LogText {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl fmt::Display for LogText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Deref for LogText {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

/// The progress of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// The progress so far, which grows from notice to notice.
    pub progress: f64,
    /// The final value of `progress`, if known.
    pub total: Option<f64>,
    /// A description of the current work.
    pub message: Option<String>,
}

/// The log levels of syslog, which MCP uses too. The least severe is the smallest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogLevel {
    /// For debugging.
    Debug,
    /// Normal operation.
    Info,
    /// A normal but significant event.
    Notice,
    /// A possible error.
    Warning,
    /// An error.
    Error,
    /// A failure of a part of the system.
    Critical,
    /// Action is needed at once.
    Alert,
    /// The system is unusable.
    Emergency,
}

impl LogLevel {
    /// Every level, the least severe first.
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

    /// Returns the level's name on the wire.
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

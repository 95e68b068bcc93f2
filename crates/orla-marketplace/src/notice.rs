//! What a call says while it runs.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::trace::TraceSink;

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

    /// Passes a notice to the listener.
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

//! What a run wants of its host.

use std::fmt;
use std::sync::Arc;

use crate::scalar::Instant;
use crate::syntax::Position;
use crate::value::Value;

/// What an answer belongs to. Ascending in the order in which they were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What a host does for a run, in the order of the events.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// Something to be answered with [`Run::resolve`](super::Run::resolve).
    Request {
        /// What the answer belongs to.
        ticket: Ticket,
        /// What is wanted.
        request: Request,
        /// Where in the text.
        at: Option<Position>,
        /// The step or branch that it is in. Known of a run that is [resumable](super::Run::resumable).
        scope: Option<Arc<Scope>>,
    },
    /// The answer is not wanted any more; one that comes all the same is ignored.
    Cancel {
        /// Of what.
        ticket: Ticket,
    },
    /// A stream is not read any more.
    CloseStream {
        /// The ticket that opened it.
        stream: Ticket,
    },
    /// `(log :info "…" data)`
    Log {
        /// `debug`, `info`, `warn` or `error`.
        level: String,
        /// The text.
        message: String,
        /// What was given with it; nil if nothing.
        data: Value,
    },
    /// A named stretch of work begins.
    StepBegin {
        /// Its name.
        name: String,
    },
    /// The stretch that began last in this strand is over, well or not.
    StepEnd,
}

/// A step or a branch that a run is in. Two are the same if they are equal, also in a run that was saved and loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// What it is.
    pub part: Part,
    /// The number of the step, or of the form whose branch it is. Ascending in the order in which they began.
    pub number: u64,
    /// The step or branch around it. Of those that are nested deeper than [`DEEPEST`](Self::DEEPEST), only the outer ones
    /// are known.
    pub outer: Option<Arc<Self>>,
}

/// A part of what a run does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// `(step "name" …)`, with the first 80 characters of the name.
    Step(Box<str>),
    /// A branch of a form whose parts run at the same time.
    Branch {
        /// The form: `parallel`, `race`, `settle` or `pmap`.
        form: &'static str,
        /// Which of its branches, from 0 on.
        index: u64,
    },
}

impl Scope {
    /// How many scopes within each other are known.
    pub const DEEPEST: usize = 16;

    /// Returns how many scopes there are from the outermost to this one.
    pub fn depth(&self) -> usize {
        std::iter::successors(Some(self), |scope| scope.outer.as_deref()).count()
    }
}

/// What is wanted of the host.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Request {
    /// The result of a capability.
    Call {
        /// Its id.
        id: CapabilityName,
        /// One value, mostly a map; the arguments as a vector if they were given by position.
        input: Value,
        /// What the program asks for; never more than the host allows.
        options: CallOptions,
    },
    /// To open a stream. The answer is anything but an error; its items are asked for by
    /// [`Request::Next`] with this ticket.
    Open {
        /// The id of the stream capability.
        id: CapabilityName,
        /// Its input.
        input: Value,
    },
    /// The next item of a stream: `[item]`, or nil at its end.
    Next {
        /// The ticket that opened it.
        stream: Ticket,
    },
    /// To send a value to a sink or a duplex stream.
    Send {
        /// The ticket that opened it.
        stream: Ticket,
        /// What to send.
        value: Value,
    },
    /// To close a sink or a duplex stream.
    Close {
        /// The ticket that opened it.
        stream: Ticket,
    },
    /// The manifests of the capabilities that fit these words, as a vector of maps.
    Search {
        /// The words.
        query: String,
    },
    /// The manifest of one capability, as a map.
    Describe {
        /// Its id.
        id: CapabilityName,
    },
    /// A long wait: a timer, an event or another task. See [`Wait`].
    Wait(Wait),
}

/// What a run waits for that no call gives. Such a request takes none of the places of
/// [`calls_at_once`](crate::Limits::calls_at_once). A run that waits for nothing else may be saved and dropped until
/// then.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// An instant. The answer is ignored unless it is an error.
    Until(Instant),
    /// The end of a task, by its id. The answer is its result.
    Task(String),
    /// An event for this run, by its name. The answer is its value.
    Event(String),
}

/// The id of a capability, as a program wrote it: a keyword, a string or a symbol.
#[derive(Clone)]
pub struct CapabilityName(Value);

impl CapabilityName {
    pub(super) fn value(&self) -> &Value {
        &self.0
    }

    /// Gives the value back if it cannot be a name.
    #[inline]
    pub(super) fn of(value: Value) -> Result<Self, Value> {
        match value {
            Value::Keyword(name) => Ok(Self(Value::Keyword(name))),
            Value::Str(_) | Value::Symbol(_) => Ok(Self(value)),
            other => Err(other),
        }
    }

    /// Returns the id, without the colon of a keyword.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Value::Keyword(keyword) => keyword.name(),
            Value::Symbol(symbol) => symbol.name(),
            Value::Str(text) => text.as_str(),
            _ => "",
        }
    }
}

impl fmt::Display for CapabilityName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for CapabilityName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// The options of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallOptions {
    /// As long may it take, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// So often may it be tried again.
    pub retries: Option<u32>,
}

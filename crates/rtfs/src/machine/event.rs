//! The events of a run for its host.

use std::fmt;
use std::sync::Arc;

use crate::scalar::Instant;
use crate::syntax::Position;
use crate::value::Value;

/// The identifier of a request, ascending in the order of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// An event that the host handles for a run, in order.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A request, to be answered with [`Run::resolve`](super::Run::resolve).
    Request {
        /// The ticket for the answer.
        ticket: Ticket,
        /// The request.
        request: Request,
        /// The position in the text.
        at: Option<Position>,
        /// The step or branch that contains the request. Known for a run that is
        /// [resumable](super::Run::resumable).
        scope: Option<Arc<Scope>>,
    },
    /// The answer to a request is no longer wanted. A later answer is ignored.
    Cancel {
        /// The ticket of the request.
        ticket: Ticket,
    },
    /// A stream is no longer read.
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
        /// Additional data; nil if none.
        data: Value,
    },
    /// A named step begins.
    StepBegin {
        /// Its name.
        name: String,
    },
    /// The newest step of this strand has ended, successfully or not.
    StepEnd,
}

/// A step or a branch of a run. Two scopes are the same if they are equal, also in a run that was saved
/// and loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The kind.
    pub part: Part,
    /// The number of the step, or of the form that has the branch, ascending in the order of their
    /// beginnings.
    pub number: u64,
    /// The surrounding step or branch. Of scopes that are nested deeper than [`DEEPEST`](Self::DEEPEST),
    /// only the outer ones are known.
    pub outer: Option<Arc<Self>>,
}

/// A named part of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// `(step "name" …)`, with the first 80 characters of the name.
    Step(Box<str>),
    /// A branch of a form whose parts run concurrently.
    Branch {
        /// The form: `parallel`, `race`, `settle` or `pmap`.
        form: &'static str,
        /// The index of the branch.
        index: u64,
    },
}

impl Scope {
    /// The maximum nesting of known scopes.
    pub const DEEPEST: usize = 16;

    /// Returns the number of scopes from the outermost to this one.
    pub fn depth(&self) -> usize {
        std::iter::successors(Some(self), |scope| scope.outer.as_deref()).count()
    }
}

/// A request to the host.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Request {
    /// Call a capability.
    Call {
        /// Its id.
        id: CapabilityName,
        /// One value, usually a map; a vector of the arguments if they were positional.
        input: Value,
        /// The requested options, never more than the host allows.
        options: CallOptions,
    },
    /// Open a stream. Any answer other than an error opens it. Its items are requested by
    /// [`Request::Next`] with this ticket.
    Open {
        /// The id of the stream capability.
        id: CapabilityName,
        /// Its input.
        input: Value,
    },
    /// Get the next item of a stream: `[item]`, or nil at its end.
    Next {
        /// The ticket that opened it.
        stream: Ticket,
    },
    /// Send a value to a sink or a duplex stream.
    Send {
        /// The ticket that opened it.
        stream: Ticket,
        /// The value.
        value: Value,
    },
    /// Close a sink or a duplex stream.
    Close {
        /// The ticket that opened it.
        stream: Ticket,
    },
    /// Get the manifests of the capabilities that match these words, as a vector of maps.
    Search {
        /// The words.
        query: String,
    },
    /// Get the manifest of one capability, as a map.
    Describe {
        /// Its id.
        id: CapabilityName,
    },
    /// A long wait: a timer, an event or another task. See [`Wait`].
    Wait(Wait),
}

/// A wait that is not a call. Such a request is not counted by
/// [`calls_at_once`](crate::Limits::calls_at_once). A run that only waits in this way may be saved and
/// dropped until the answer arrives.
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

    /// Returns the value as an error if it cannot be a name.
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
    /// The timeout, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// The maximum number of retries.
    pub retries: Option<u32>,
}

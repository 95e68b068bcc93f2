//! The states of a task, and which of them follows which. No I/O.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It waits for its turn. Nothing of its call has happened.
    Queued,
    /// Its call runs, or may have run.
    Working,
    /// It waits for an answer to a question: of its call, or whether the call is approved.
    InputRequired,
    /// Its call gave a result.
    Completed,
    /// Its call failed.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// The server ended while its call ran, and the call cannot be repeated.
    Interrupted,
}

/// What happens to a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// Its call is about to run. It may do so several times if it can be repeated.
    Begin,
    /// Its call asks a question.
    Ask,
    /// The last open question of its call was answered.
    Answer,
    /// Its call gave a result.
    Complete,
    /// Its call failed, or was refused before it began.
    Fail,
    /// Its caller withdraws it.
    Cancel,
    /// The server ended while its call ran.
    Interrupt,
}

impl State {
    /// All states, in the order of a task's life.
    pub const ALL: [Self; 7] = [
        Self::Queued,
        Self::Working,
        Self::InputRequired,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::Interrupted,
    ];

    /// The state after an event; `None` if the event cannot happen in this state. Nothing follows a terminal state.
    pub fn after(self, event: Event) -> Option<Self> {
        use State::{Cancelled, Completed, Failed, InputRequired, Interrupted, Queued, Working};
        match (self, event) {
            (Completed | Failed | Cancelled | Interrupted, _) => None,
            (Queued | Working | InputRequired, Event::Begin) => Some(Working),
            // A person may have to approve the call before it runs.
            (Queued | Working | InputRequired, Event::Ask) => Some(InputRequired),
            (Working | InputRequired, Event::Answer) => Some(Working),
            (Working | InputRequired, Event::Complete) => Some(Completed),
            (Working | InputRequired, Event::Interrupt) => Some(Interrupted),
            (Queued | Working | InputRequired, Event::Fail) => Some(Failed),
            (Queued | Working | InputRequired, Event::Cancel) => Some(Cancelled),
            // Nothing has run.
            (Queued, Event::Answer | Event::Complete | Event::Interrupt) => None,
        }
    }

    /// Whether the task is over.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled | Self::Interrupted)
    }

    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Working => "working",
            Self::InputRequired => "input_required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for State {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|state| state.as_str() == text).ok_or(())
    }
}

/// Whether a call that may have run can be made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Repeat {
    /// It must not be.
    Never,
    /// Making it twice does no more than making it once.
    Freely,
    /// It is a program with a journal, which goes on where it was.
    Journaled,
}

/// What is done with a task of a server that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Nothing: it is over.
    Leave,
    /// It runs, for the first time, again, or from where it was.
    Run,
    /// It ends as [`State::Interrupted`].
    Interrupt,
}

/// What is done with a task that was in this state when its server ended. `begun` says whether its call may have run.
pub fn recovery(state: State, begun: Option<Repeat>) -> Recovery {
    match (state, begun) {
        (state, _) if state.is_terminal() => Recovery::Leave,
        (_, None | Some(Repeat::Freely | Repeat::Journaled)) => Recovery::Run,
        (_, Some(Repeat::Never)) => Recovery::Interrupt,
    }
}

/// Whether a call may run now. It may be for the first time, or if it could be repeated when it ran and still can.
pub fn may_begin(begun: Option<Repeat>, now: Repeat) -> bool {
    match (begun, now) {
        (None, _) => true,
        (Some(before), now) => before == now && now != Repeat::Never,
    }
}

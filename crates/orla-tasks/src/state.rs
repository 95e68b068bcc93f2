//! The states of a task and the transitions between them. No I/O.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The task waits in the queue. No part of its call has run.
    Queued,
    /// The call runs, or may have run.
    Working,
    /// The task waits for an answer to a question: a question of the call, or whether the call is
    /// approved.
    InputRequired,
    /// The call returned a result.
    Completed,
    /// The call failed.
    Failed,
    /// The task was cancelled.
    Cancelled,
    /// The server ended while the call ran, and the call cannot be repeated.
    Interrupted,
}

/// An event in the life of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The call is about to run. This happens several times if the call can be repeated.
    Begin,
    /// The call asks a question.
    Ask,
    /// The last open question of the call was answered.
    Answer,
    /// The call returned a result.
    Complete,
    /// The call failed, or was refused before it began.
    Fail,
    /// The caller cancels the task.
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

    /// Returns the state after an event, or `None` if the event cannot happen in this state. No event
    /// follows a terminal state.
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

    /// Returns whether the task is over.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled | Self::Interrupted)
    }

    /// Returns the word for the state.
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

/// The reason why a text is not a state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected queued, working, input_required, completed, failed, cancelled or interrupted, got {0:?}"
)]
pub struct UnknownState(pub String);

impl FromStr for State {
    type Err = UnknownState;

    fn from_str(text: &str) -> Result<Self, UnknownState> {
        let found = Self::ALL.into_iter().find(|state| state.as_str() == text);
        found.ok_or_else(|| UnknownState(text.to_owned()))
    }
}

/// Whether a call that may have run can be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Repeat {
    /// The call must not be repeated.
    Never,
    /// The call is idempotent.
    Freely,
    /// The call is a program with a journal, which continues where it stopped.
    Journaled,
}

/// What to do with a task of a server that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Nothing. The task is over.
    Leave,
    /// Run the task: for the first time, again, or from where it stopped.
    Run,
    /// End the task as [`State::Interrupted`].
    Interrupt,
}

/// Decides what to do with a task that was in this state when its server ended. `begun` is set if its
/// call may have run.
pub fn recovery(state: State, begun: Option<Repeat>) -> Recovery {
    match (state, begun) {
        (state, _) if state.is_terminal() => Recovery::Leave,
        (_, None | Some(Repeat::Freely | Repeat::Journaled)) => Recovery::Run,
        (_, Some(Repeat::Never)) => Recovery::Interrupt,
    }
}

/// Returns whether a call may run now: for the first time, or again if it was repeatable when it ran and
/// still is.
pub fn may_begin(begun: Option<Repeat>, now: Repeat) -> bool {
    match (begun, now) {
        (None, _) => true,
        (Some(before), now) => before == now && now != Repeat::Never,
    }
}

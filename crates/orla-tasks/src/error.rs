//! Why a request about a task is refused.

use orla_marketplace::RuntimeError;
use orla_state::StateError;

use crate::start::MAX_INPUT;
use crate::state::State;
use crate::task::TaskId;

/// Why a request about a task is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// There is no such task, or it is another caller's.
    #[error("unknown task: {0}")]
    Unknown(String),
    /// The call cannot be made: its capability does not exist, is denied or unavailable, or its input is invalid.
    #[error(transparent)]
    Refused(#[from] RuntimeError),
    /// The idempotency key is malformed.
    #[error("the idempotency key {0}")]
    InvalidKey(&'static str),
    /// The caller used this idempotency key for another input.
    #[error("the idempotency key {key:?} was used for another call, by task {id}; use another key")]
    KeyConflict {
        /// The key.
        key: String,
        /// The task that it started.
        id: TaskId,
    },
    /// The input is larger than the state holds.
    #[error("the input has {bytes} bytes, and a task takes at most {MAX_INPUT}")]
    LargeInput {
        /// Its size.
        bytes: usize,
    },
    /// Too many tasks wait or run.
    #[error("{0} tasks wait or run already; try again later")]
    Full(usize),
    /// The task has ended.
    #[error("the task has already ended: {0}")]
    Over(State),
    /// The task is not a program, so it awaits no events.
    #[error("the task is not a program, so it awaits no events")]
    NoProgram,
    /// The value of an event is too large.
    #[error("the value of an event has at most {0} bytes")]
    LargeEvent(usize),
    /// Too many events have been sent to the task that it has not awaited.
    #[error("too many undelivered events: {0}; try again when the task has awaited some")]
    ManyEvents(usize),
    /// The name of an event is empty or too long.
    #[error("invalid event name: expected 1 to 256 characters")]
    InvalidEvent,
    /// No question of the task has this key.
    #[error("the task has no open question {0:?}")]
    NotAsked(String),
    /// Tasks end with this process, and it is shutting down.
    #[error("the server is shutting down; try again later")]
    Closing,
    /// The state cannot be read or written.
    #[error("{0}")]
    State(#[from] StateError),
}

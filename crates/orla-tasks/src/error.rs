use orla_marketplace::RuntimeError;
use orla_state::StateError;

use crate::start::MAX_INPUT;
use crate::state::State;
use crate::task::TaskId;

/// The reason why a request about a task is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// The task does not exist or belongs to another caller.
    #[error("unknown task: {0}")]
    Unknown(String),
    /// The call cannot be made. Its capability does not exist, is denied or unavailable, or its input is
    /// invalid.
    #[error(transparent)]
    Refused(#[from] RuntimeError),
    /// The idempotency key is malformed.
    #[error("the idempotency key {0}")]
    InvalidKey(&'static str),
    /// The caller has already used this idempotency key with another input.
    #[error("the idempotency key {key:?} was used for another call, by task {id}; use another key")]
    KeyConflict {
        /// The idempotency key.
        key: String,
        /// The task that was started with the key.
        id: TaskId,
    },
    /// The input is larger than the state store accepts.
    #[error("the input has {bytes} bytes, and a task takes at most {MAX_INPUT}")]
    LargeInput {
        /// The size of the input.
        bytes: usize,
    },
    /// Too many tasks are waiting or running.
    #[error("{0} tasks wait or run already; try again later")]
    Full(usize),
    /// The task has ended.
    #[error("the task has already ended: {0}")]
    Over(State),
    /// The task is not a program, so it cannot await events.
    #[error("the task is not a program, so it awaits no events")]
    NoProgram,
    /// The value of an event is too large.
    #[error("the value of an event has at most {0} bytes")]
    LargeEvent(usize),
    /// The task has too many events that it has not awaited yet.
    #[error("too many undelivered events: {0}; try again when the task has awaited some")]
    ManyEvents(usize),
    /// The name of an event is empty or too long.
    #[error("invalid event name: expected 1 to 256 characters")]
    InvalidEvent,
    /// No question of the task has this key.
    #[error("the task has no open question {0:?}")]
    NotAsked(String),
    /// The node that runs the task did not confirm that it has taken the answer to a question.
    #[error("node {node}, which runs the task, did not confirm the answer: {why}")]
    Unreachable {
        /// The name of the node.
        node: String,
        /// The reason.
        why: String,
    },
    /// The process is shutting down, and its tasks end with it.
    #[error("the server is shutting down; try again later")]
    Closing,
    /// The state store cannot be read or written.
    #[error("{0}")]
    State(#[from] StateError),
}

impl TaskError {
    /// Returns the message for callers, who may be on other machines: without files of this one.
    pub fn for_callers(&self) -> String {
        match self {
            Self::State(error) => error.for_callers().to_owned(),
            error => error.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orla_state::{Embedded, OpenError};

    #[test]
    fn callers_do_not_see_where_the_state_is() {
        // A file, where a directory is needed.
        let place = std::env::current_exe().unwrap();
        let error: OpenError = Embedded::open(&place).err().unwrap();
        let error = TaskError::State(error.into());
        assert!(error.to_string().contains(&place.display().to_string()), "{error}");
        assert!(!error.to_string().contains("os error"), "{error}");
        assert_eq!(error.for_callers(), "the state cannot be opened; the log of the server says why");
        let other = TaskError::State(StateError::new("the disk is full"));
        assert_eq!(other.for_callers(), "the disk is full");
    }
}

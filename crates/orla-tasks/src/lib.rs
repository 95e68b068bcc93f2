//! Tasks: calls that outlive their callers.
//!
//! # How it works
//!
//! [`Tasks`] is the only entry point: HTTP, MCP, A2A and the command line use it. A task is accepted
//! when its record is durable ([`StateStore`](orla_state::StateStore)), waits in the queue (`queue.rs`),
//! and is then an ordinary call of the marketplace (`run.rs`). The call's checkpoint records the start
//! before the call runs. The progress and the log of a running task exist only in memory (`live.rs`)
//! until they are written with its next change of state.
//!
//! Every change of a record names the revision that it is based on. Of two concurrent changes, such as
//! an end and a cancellation, one succeeds, and the other sees the result of the first (`records.rs`).
//!
//! # Invariants
//!
//! - No terminal state changes ([`State::after`]).
//! - A call that cannot be repeated does not run a second time ([`may_begin`]). It ends as interrupted
//!   ([`recovery`]).
//! - A caller sees only its own tasks. Another caller's task looks like an unknown one.
//! - A task that does not run, and for which no caller waits, exists only in the store.

#![warn(missing_docs)]

mod awaited;
mod buffer;
mod client;
#[cfg(test)]
mod counting;
mod error;
#[cfg(test)]
mod faults_tests;
mod follow;
mod keys;
mod live;
mod local;
#[cfg(test)]
mod nodes_simulation;
#[cfg(test)]
mod nodes_tests;
mod options;
mod preloaded;
pub mod program;
mod queue;
mod records;
mod resume;
mod run;
mod schedule;
mod service;
mod shared;
mod start;
mod state;
mod take;
mod task;
#[cfg(test)]
mod tests;
mod timers;
mod verdict;

pub use error::TaskError;
pub use live::Update;
pub use options::TaskOptions;
pub use schedule::{Expression, ExpressionError, Overlap, Schedule, ScheduleStatus, Schedules};
pub use service::{Filter, MANAGE, READ, Started, TaskCounts, Tasks, Viewer};
pub use shared::{Foreign, Sharing};
pub use start::NewTask;
pub use state::{Event, Recovery, Repeat, State, UnknownState, may_begin, recovery};
pub use task::{
    Failure, LogLine, Owner, Place, Question, Refusal, Task, TaskId, TaskProgress, Terms, Timestamp,
};

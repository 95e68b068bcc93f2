//! Tasks: calls that outlive their callers.
//!
//! # How it works
//!
//! [`Tasks`] is the one door: HTTP, MCP, A2A and the command line use it. A task is accepted when its record is durable
//! ([`StateStore`](orla_state::StateStore)), waits in the queue (`queue.rs`), and is then an ordinary call of the marketplace
//! (`run.rs`). The call's checkpoint writes down that the call runs before it does. What a task says while it runs is in
//! memory alone (`live.rs`) and is written with the next change of its state.
//!
//! Every change of a record expects the revision that it was made from. So of two changes at once, such as an end and a
//! cancellation, one is made, and the other sees its result (`records.rs`).
//!
//! # Invariants
//!
//! - No terminal state changes ([`State::after`]).
//! - A call that cannot be repeated does not run a second time ([`may_begin`]): it ends as
//!   interrupted ([`recovery`]).
//! - A caller sees its own tasks alone. Another's task and an unknown one have the same answer.
//! - A task that nobody waits for and that does not run is in the store alone.

#![warn(missing_docs)]

mod ahead;
mod awaited;
mod client;
#[cfg(test)]
mod counting;
mod error;
mod follow;
mod here;
mod keys;
mod live;
#[cfg(test)]
mod nodes_tests;
mod options;
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

pub use error::TaskError;
pub use live::Said;
pub use options::TaskOptions;
pub use schedule::{Expression, ExpressionError, Overlap, Schedule, ScheduleStatus, Schedules};
pub use service::{Filter, MANAGE, READ, Started, TaskCounts, Tasks, Viewer};
pub use shared::{Foreign, Sharing};
pub use start::NewTask;
pub use state::{Event, Recovery, Repeat, State, may_begin, recovery};
pub use task::{
    Failure, LogLine, Owner, Place, Question, Refusal, Task, TaskId, TaskProgress, Terms, Timestamp,
};

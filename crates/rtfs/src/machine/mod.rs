//! The machine: a resumable interpreter of register code.
//!
//! A [`Run`] is a state machine. [`Run::advance`] runs until the program is done, has failed, needs
//! answers of the host, or has used its quota. Requests to the host are returned as [`Event`]s; its
//! answers are passed to [`Run::resolve`]. There are no callbacks, nothing blocks, and all state is data
//! in vectors.

mod arith;
mod call;
mod context;
mod event;
mod exec;
mod fork;
mod host;
pub(crate) mod merge;
pub(crate) mod op;
pub(crate) mod program;
mod run;
mod saved;
mod strand;
pub(crate) mod typing;
mod unwind;
mod walk;

pub(crate) use arith::{
    MAX_BITS, arithmetic, compare_ordered, float as float_of, integer as big_of, numeric_cmp, too_big,
};
pub(crate) use call::equal;
pub(crate) use context::{Context, Fault, fault};
pub use event::{CallOptions, CapabilityName, Event, Part, Request, Scope, Ticket, Wait};
pub use program::{Global, Program};
pub use run::{Outcome, Run};
pub use saved::{InvalidRun, Unsaved};

//! Durable programs, which continue where they stopped.
//!
//! The run of a program consists of a state and the notes since then (`record`). `notes` decides which
//! notes are written together. `journal` reads and writes them. While a run waits only for an instant,
//! an event or a task, it consists of a few rows of the store. `sleep` starts the task again when the
//! wait is over.
//!
//! # Invariants
//!
//! - Before a call leaves the process, the note of its start and all earlier notes are durable.
//! - The notes of a run have consecutive numbers. If two processes continue one run, one of them fails
//!   to write.
//! - One write removes an event and adds the note of its answer. One event therefore gives one answer.

mod journal;
pub(crate) mod keys;
mod notes;
mod record;
mod rows;
mod sleep;
mod timeline;
mod tree;
mod waits;

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

pub(crate) use journal::{Parts, RunJournal};
pub use record::{Note, RecordError, Saved, Used, read as read_notes, read_saved, write_saved};
pub(crate) use rows::{to_run, to_run_keys};
pub(crate) use sleep::{SLEEP, Waking, touch};
pub use timeline::{CurrentPlace, Level, Step, Timeline};
pub use tree::render;

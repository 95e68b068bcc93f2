//! The permissions and limits that a declaration gives a process.
//!
//! A declaration has *words* (`fs:read:./data`, `net:loopback`, `exec:git`) and *limits* (`memory:
//! 512Mi`). [`Word`] parses one word, [`Limits`] holds the limits, and [`Profile`] combines them in one
//! canonical form with a hash. `orla-process` enforces a profile. [`refusal`] finds the refused
//! operation in a program's output.
//!
//! # Invariants
//!
//! - No I/O: [`Places`] resolves paths and names on this machine.
//! - A word of a confining kind is either understood or an error. It is never dropped.
//! - Words of other kinds (`db:prod`) are for policies. They neither confine nor fail.

#![warn(missing_docs)]

mod limits;
mod profile;
mod reach;
mod refusal;
mod trace;
mod word;

pub use limits::{Limits, size};
pub use profile::{Network, Places, Profile};
pub use reach::Reach;
pub use refusal::{Allowed, Refusal, refusal};
pub use trace::{Environment, STRACE, Trace, Traced};
pub use word::{Preset, Word, check, confines, forms, misspelt_key, placed};

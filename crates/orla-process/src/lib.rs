//! Child processes: what is in a tools directory, and how one short program is run for each call
//! (RFC 1).
//!
//! # How it works
//!
//! [`tool::Loader`] makes capabilities of a directory's executable files: [`discovery`] looks at them;
//! [`mod@plan`], [`naming`], [`shebang`], [`header`] and [`metadata`] make sense of names and first bytes.
//! [`tool::ToolExecutor`] runs a call: [`arguments`] makes a command line of its JSON, [`runner`] runs
//! the program, [`directives`] takes progress and log messages out of its standard error,
//! [`start_failure`] explains what could not start and [`mod@result`] says what happened. [`reaper`] ends
//! what is left when the server dies, and [`init`] reaps for others where the server is a container's first
//! process. [`watch`] notices changes of files.
//!
//! Most modules are pure functions; processes are touched in [`child`], [`runner`] and [`reaper`],
//! files in [`discovery`] and [`watch`].
//!
//! # Invariants
//!
//! - No process, no descriptor and no zombie outlives its call, and no process its server.
//! - Every buffer, queue and thread pool is bounded ([`limits`]).
//! - Arguments are a vector from end to end; no shell ever parses them.
//! - No `unsafe`, and no fork of the server: `posix_spawn` alone.

#![warn(missing_docs)]

pub mod arguments;
pub mod capsule;
pub mod child;
pub mod directives;
pub mod discovery;
pub mod environment;
mod exit_watch;
pub mod file_version;
pub mod header;
pub mod inheritance;
pub mod init;
pub mod limits;
pub mod metadata;
pub mod naming;
pub mod plan;
pub mod plugin;
pub mod reaper;
pub mod result;
pub mod runner;
mod sealed;
pub mod shebang;
pub mod start_failure;
pub mod tool;
pub mod watch;

pub use discovery::{DirectoryError, Finding, ProgramFile};
pub use limits::{Limits, PoolLimits};
pub use reaper::Instance;
pub use tool::{Loaded, Loader, ToolExecutor, ToolProvider};

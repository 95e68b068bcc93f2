//! Programs as processes: started, fed, read, supervised, confined and ended.
//!
//! # How it works
//!
//! [`runner`] runs one short program for each call, and [`standby`] starts such programs before they are
//! called. [`supervisor`] keeps programs running that serve many calls, in any protocol. Both start a
//! [`child::Program`] with the variables that [`environment`] passes to it. [`reaper`] ends the
//! remaining processes when the server dies, and [`init`] reaps orphans if the server is a container's
//! first process. [`shebang`] determines how the kernel treats a program's file, and [`start_failure`]
//! explains why a program could not start. [`foreground`] runs one program with the terminal of this
//! process. [`confinement`] confines processes to their declarations. [`watch`] notices changes of
//! files.
//!
//! # Invariants
//!
//! - No process, descriptor or zombie of a simple tool outlives its call. No process outlives the
//!   server.
//! - Every buffer, queue and thread pool is bounded ([`limits`]).
//! - No shell parses an argument.
//! - The server never forks: it uses only `posix_spawn`. Launchers, which have one thread, make
//!   processes through `orla-sys`.
//!
//! # What is deliberately absent
//!
//! This crate knows no protocol, file format or tool. A provider implements the [`supervisor::Protocol`]
//! for its supervised programs.

#![warn(missing_docs)]

#[cfg(target_os = "linux")]
mod cgroup;
pub mod child;
mod command;
pub mod confinement;
pub mod environment;
mod exit_watch;
pub mod file;
pub mod foreground;
pub mod inheritance;
pub mod init;
pub mod limits;
mod process;
pub mod reaper;
pub mod runner;
mod sealed;
pub mod shebang;
pub mod signal;
pub mod standby;
pub mod start_failure;
pub mod supervisor;
mod wake;
pub mod watch;

pub use command::Command;
pub use limits::{Limits, PoolLimits};
pub use reaper::Instance;

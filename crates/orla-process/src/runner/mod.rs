//! Runs short programs, one per call: start, feed, capture, wait, and end the whole group.
//!
//! # How it works
//!
//! Each running program has its own thread, from a pool that grows on demand and shrinks when idle
//! (`pool`). The thread starts the program and then sleeps in one `poll` over the child's exit, its
//! three pipes and a wake-up for cancellation. The deadline is that poll's timeout (`follow`). This
//! costs less than an async process with a reader task per pipe, and keeps every decision about one
//! child on one thread. No signal is ever sent to an id that may already belong to another process.
//!
//! At its deadline, or when it is cancelled, the group gets SIGTERM and, after a grace period, SIGKILL.
//! When the leader ends, the runner ends the rest of its group and reads the rest of the pipes. Only
//! then does it reap the leader.
//!
//! # What is deliberately absent
//!
//! This module knows nothing of tools. There is no shell, no `pre_exec` (it would fork the server) and
//! no unbounded buffer.

mod capture;
mod follow;
mod pool;

pub use capture::{Captured, OutputFilter};
pub use follow::{Cause, Ended, Status};
pub use pool::{Runners, Running};

use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use crate::child::Program;
use crate::environment::Environment;
use crate::limits::Limits;
use crate::process::Child;
use crate::standby::Started;

/// One program to run.
#[derive(Debug)]
pub struct Job {
    /// The process to run.
    pub process: Process,
    /// The bytes that are written to standard input before it is closed.
    pub stdin: Vec<u8>,
    /// When the program is asked to end.
    pub deadline: Instant,
    /// The limits of the process.
    pub limits: Limits,
    /// Filters standard error while the program runs; without a filter, everything is kept.
    pub stderr: Option<Box<dyn OutputFilter>>,
}

/// The source of a job's process.
#[derive(Debug)]
pub enum Process {
    /// The process is started for the job.
    New(Start),
    /// The process was started before, and waits for its input.
    Waiting(Started),
}

/// How a process is started.
#[derive(Debug)]
pub struct Start {
    /// The program to run.
    pub program: Arc<Program>,
    /// The arguments, without the program's name.
    pub args: Vec<OsString>,
    /// The required hash of the program's file, if an attestation is required.
    pub attested: Option<Arc<str>>,
    /// The environment that the process is started from.
    pub environment: Arc<Environment>,
    /// Additional variables.
    pub env: Vec<(&'static str, OsString)>,
}

impl Process {
    fn child(self) -> io::Result<Child> {
        match self {
            Self::New(Start { program, args, attested, environment, env }) => match &attested {
                Some(hash) => program.start_attested(hash, &args, &env, &environment),
                None => program.start(&args, &env, &environment),
            },
            Self::Waiting(started) => started.into_child(),
        }
    }
}

#[cfg(test)]
mod tests;

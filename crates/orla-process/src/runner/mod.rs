//! Runs short programs, one per call: start, feed, capture, wait, and end the whole group.
//!
//! # How it works
//!
//! Each running program has its own thread, from a pool that grows on demand and shrinks when idle
//! (`pool`). The thread starts the program and then sleeps in one `poll` over the child's exit,
//! its three pipes and a wake-up for cancellation; the deadline is that poll's timeout (`follow`).
//! This costs less than an async process with a reader task per pipe, and keeps every decision
//! about one child on one thread: no signal is ever sent to an id that may already belong to
//! someone else.
//!
//! At its deadline, or when it is cancelled, the group gets SIGTERM, up to a grace, then SIGKILL.
//! When the leader ends, the runner ends the rest of its group and reads what is left in the
//! pipes. Only then does it reap the leader.
//!
//! # What is deliberately absent
//!
//! Nothing here knows what a tool is. There is no shell, no `pre_exec` (it would fork the server) and
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
    /// What runs.
    pub process: Process,
    /// What standard input gets before it is closed.
    pub stdin: Vec<u8>,
    /// When the program is asked to end.
    pub deadline: Instant,
    /// What it may use.
    pub limits: Limits,
    /// Reads its standard error while it runs, and selects what is kept; without it, everything is
    /// kept.
    pub stderr: Option<Box<dyn OutputFilter>>,
}

/// Where the process of a job comes from.
#[derive(Debug)]
pub enum Process {
    /// It is started for the job.
    New(Start),
    /// It was started before, and waits for its input.
    Waiting(Started),
}

/// How a process is started.
#[derive(Debug)]
pub struct Start {
    /// What to run.
    pub program: Arc<Program>,
    /// Its arguments, without its own name.
    pub args: Vec<OsString>,
    /// The hash of the only content of the program's file that may run, where an attestation is required.
    pub attested: Option<Arc<str>>,
    /// What it gets of the server's environment.
    pub environment: Arc<Environment>,
    /// Added to that.
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

//! The steps of a call that leave this process: processes that it starts, and requests that it sends.
//!
//! An executor begins a step with [`NoticeSink::begin`](crate::NoticeSink::begin). Only the observer of the call learns of it.

use std::time::{Duration, Instant};

use crate::notice::Observed;

/// A step that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// What was done.
    pub kind: StepKind,
    /// The file name of the program, or the method and the host of the request.
    pub name: String,
    /// The exit code by the shell's conventions, or the status of the answer; `None` if there is none.
    pub code: Option<i32>,
    /// When it began.
    pub started: Instant,
    /// From its beginning to its end.
    pub duration: Duration,
}

/// The kinds of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// A process ran.
    Process,
    /// A request was sent over HTTP.
    Request,
}

/// A step that has begun. It ends when it is dropped.
#[must_use]
pub struct OpenStep(Option<Open>);

struct Open {
    observed: Observed,
    step: Step,
}

impl OpenStep {
    /// Begins a step, if somebody observes the call.
    pub(crate) fn new(
        observed: Option<&Observed>,
        kind: StepKind,
        name: impl FnOnce() -> String,
    ) -> Self {
        Self(observed.map(|observed| Open {
            observed: observed.clone(),
            step: Step {
                kind,
                name: observed.clean(name()),
                code: None,
                started: Instant::now(),
                duration: Duration::ZERO,
            },
        }))
    }

    /// Sets the exit code, or the status of the answer.
    pub fn set_code(&mut self, code: i32) {
        if let Some(Open { step, .. }) = &mut self.0 {
            step.code = Some(code);
        }
    }
}

impl Drop for OpenStep {
    fn drop(&mut self) {
        if let Some(Open { observed, mut step }) = self.0.take() {
            step.duration = step.started.elapsed();
            observed.on_step(step);
        }
    }
}

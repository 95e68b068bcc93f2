//! Evaluates one text to one value, for programs without calls.

use std::fmt;

use crate::compiler::{Options, compile};
use crate::error::Error;
use crate::limits::Limits;
use crate::machine::{Event, Outcome, Run};
use crate::syntax::{Diagnostic, Diagnostics, Position, Source};
use crate::value::Value;

/// The reason why a text has no value.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The text cannot be compiled.
    Invalid(Diagnostics),
    /// The program failed.
    Failed(Error),
}

impl Failure {
    /// Returns the kind of the error, without its colon.
    pub fn kind(&self) -> &str {
        match self {
            Self::Invalid(_) => "syntax",
            Self::Failed(error) => &error.kind,
        }
    }

    /// Returns the problem in a sentence.
    pub fn message(&self) -> &str {
        match self {
            Self::Invalid(Diagnostics(all)) => {
                all.first().map_or("", |first: &Diagnostic| &first.message)
            }
            Self::Failed(error) => &error.message,
        }
    }

    /// Returns the position, if known.
    pub fn position(&self) -> Option<Position> {
        match self {
            Self::Invalid(Diagnostics(all)) => all.first().map(|first| first.position),
            Self::Failed(error) => error.at.as_ref().map(|at| at.position),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(all) => all.fmt(f),
            Self::Failed(error) => f.write_str(&error.report()),
        }
    }
}

impl std::error::Error for Failure {}

/// Runs a text without capabilities: each call fails with `unknown-capability`.
///
/// # Errors
/// The text cannot be compiled, or fails when it runs.
pub fn eval_pure(text: &str) -> Result<Value, Failure> {
    let source = Source::new("", text);
    let program = compile(&source, &Options::default()).map_err(Failure::Invalid)?;
    let mut run = Run::new(program, Limits::default(), &[]);
    loop {
        match run.advance(u64::MAX) {
            Outcome::Done(value) => return Ok(value),
            Outcome::Failed(error) => return Err(Failure::Failed(error)),
            Outcome::Yielded => {}
            Outcome::Waiting => {
                let events: Vec<_> = run.events().collect();
                for event in events {
                    if let Event::Request { ticket, .. } = event {
                        let nothing = Error::new("unknown-capability", "there are no capabilities here");
                        run.resolve(ticket, Err(nothing));
                    }
                }
            }
        }
    }
}

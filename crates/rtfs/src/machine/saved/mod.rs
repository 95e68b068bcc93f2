//! Saves a run as bytes, to continue it in another process.
//!
//! All state of a run is data, so it can be saved at every pause: its strands with their stacks,
//! callers and handlers, its definitions, its meters, and what it waits for. [`Run::save`] gives the bytes and
//! [`Run::load`] makes a run of them, given the same program: compiled from the same texts by the same version
//! of this crate, which a fingerprint checks.
//!
//! Requests to the host without an answer are made again, under the same tickets. The code that
//! loads a run decides whether a call that may have been made is repeated. For that, the run must
//! keep its requests from its beginning ([`Run::resumable`]). Open streams are not saved: further
//! reads are an error that the program may catch.
//!
//! # How it works
//!
//! The data begins with a table of all values that are not immediate, each after its parts (`write`). A
//! shared value is stored once. Then follows the run, which refers to that table. A cell in which
//! `memoize` keeps its data may contain itself, so these cells are created first and filled last.
//!
//! # Invariants
//!
//! - No input makes reading panic, run forever, or use more memory than the limit of the run: everything
//!   is checked (`read` for values, `check` for the invariants of a run).
//! - The result is no deeper, and no more cyclic, than values that a program can make.

mod bytes;
mod check;
mod read;
mod write;

use std::fmt;
use std::sync::{Arc, LazyLock};

use super::program::Program;
use super::run::Run;
use crate::error::Error;
use crate::limits::Limits;
use crate::value::Value;
use bytes::Input;

/// The prefix of the bytes, before the version of the format.
const NAME: &[u8; 7] = b"rtfsrun";

/// The version of the format.
const VERSION: u8 = 3;

/// The reason why a run cannot be saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unsaved {
    /// The run has ended.
    Ended,
    /// The run has events that were not taken yet: see [`Run::events`].
    Events,
    /// The run waits for a request that it did not keep: see [`Run::resumable`].
    NotResumable,
}

impl fmt::Display for Unsaved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ended => "the run has ended",
            Self::Events => "the run has events that have not been taken",
            Self::NotResumable => "the run waits for answers, and was not made resumable",
        })
    }
}

impl std::error::Error for Unsaved {}

/// The reason why bytes are not a run of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidRun(pub(super) &'static str);

impl fmt::Display for InvalidRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this is no saved run of the program: {}", self.0)
    }
}

impl std::error::Error for InvalidRun {}

impl Run {
    /// Returns the run as bytes, between two calls of [`advance`](Self::advance), when its
    /// [`events`](Self::events) have been taken.
    ///
    /// The bytes are about as long as the values of the run are large. They contain the data that the
    /// program was given, and must be protected like that data.
    ///
    /// # Errors
    /// The run has ended, has events, or was not made [resumable](Self::resumable) before it asked for what it
    /// waits for.
    ///
    /// ```
    /// use rtfs::{Event, Limits, Options, Outcome, Run, Source, Value, compile};
    ///
    /// let program = compile(&Source::new("", "(* 2 (call :ask))"), &Options::default()).unwrap();
    /// let mut run = Run::new(program.clone(), Limits::default(), &[]).resumable();
    /// assert!(matches!(run.advance(20_000), Outcome::Waiting));
    /// assert_eq!(run.events().count(), 1);
    /// let bytes = run.save().unwrap();
    ///
    /// let mut run = Run::load(program, Limits::default(), &bytes).unwrap();
    /// assert!(matches!(run.advance(20_000), Outcome::Waiting));
    /// let Some(Event::Request { ticket, .. }) = run.events().next() else { panic!() };
    /// run.resolve(ticket, Ok(Value::Int(21)));
    /// let Outcome::Done(value) = run.advance(20_000) else { panic!() };
    /// assert_eq!(value, Value::Int(42));
    /// ```
    pub fn save(&self) -> Result<Vec<u8>, Unsaved> {
        if self.finished.is_some() {
            return Err(Unsaved::Ended);
        }
        if !self.events.is_empty() {
            return Err(Unsaved::Events);
        }
        write::run(self)
    }

    /// Loads a run that [`save`](Self::save) wrote. The run is resumable.
    ///
    /// `limits` apply from here on. Steps and calls from before count.
    ///
    /// # Errors
    /// They are of another program or version, are damaged, or need more than `limits` allow.
    pub fn load(program: Arc<Program>, limits: Limits, bytes: &[u8]) -> Result<Self, InvalidRun> {
        let mut input = Input::new(bytes, limits.memory);
        if input.take(NAME.len())? != NAME {
            return Err(InvalidRun("it does not begin like one"));
        }
        if input.byte()? != VERSION {
            return Err(InvalidRun("it was saved in another version of the format"));
        }
        if input.fixed()? != program.fingerprint() {
            return Err(InvalidRun(
                "it is one of another program, or of another version of the language",
            ));
        }
        let mut run = read::run(program, limits, &mut input)?;
        if !input.is_empty() {
            return Err(InvalidRun("something follows its end"));
        }
        check::run(&mut run)?;
        Ok(run)
    }

    /// Returns an answer as bytes that this run can [read](Self::read_answer), also after it was saved
    /// and loaded.
    pub fn write_answer(&self, answer: &Result<Value, Error>) -> Vec<u8> {
        write::answer(self, answer)
    }

    /// Parses an answer that [`write_answer`](Self::write_answer) wrote.
    ///
    /// # Errors
    /// The bytes are damaged, or need more memory than the run may use.
    pub fn read_answer(&mut self, bytes: &[u8]) -> Result<Result<Value, Error>, InvalidRun> {
        let mut input = Input::new(bytes, self.limits.memory);
        let answer = read::answer(self, &mut input)?;
        if input.is_empty() { Ok(answer) } else { Err(InvalidRun("something follows its end")) }
    }
}

impl Program {
    /// Returns a hash that is equal for equal code. Different code has another hash, unless it was
    /// constructed to collide.
    fn fingerprint(&self) -> u64 {
        *self.fingerprint.get_or_init(|| fingerprint(self))
    }
}

fn fingerprint(program: &Program) -> u64 {
    use fmt::Write as _;
    /// FNV-1a.
    #[derive(Clone, Copy)]
    struct Hash(u64);
    impl fmt::Write for Hash {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            for byte in text.bytes() {
                self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
            Ok(())
        }
    }
    // Writing to a hash cannot fail.
    static LANGUAGE: LazyLock<Hash> = LazyLock::new(|| {
        let mut hash = Hash(0xcbf2_9ce4_8422_2325);
        let _ = write!(hash, "{} {}", env!("CARGO_PKG_VERSION"), crate::builtins::PRELUDE);
        for name in crate::builtins::native_names() {
            let _ = write!(hash, " {name}");
        }
        hash
    });
    let mut hash = *LANGUAGE;
    for global in &program.globals {
        let _ = write!(hash, " {}", global.name);
    }
    for proto in &program.own {
        let _ = write!(hash, "\n{:?} {:?} {:?}", proto.code, proto.consts, proto.arities);
        let _ = write!(hash, " {} {} {}", proto.arity, proto.rest, proto.registers);
        for check in &proto.types {
            let _ = write!(hash, " {:?}", check.ty);
        }
    }
    hash.0
}

//! The RTFS language: values, types, and programs that compose capabilities.
//!
//! RTFS 2.0 is the typed Lisp in which capabilities are composed. This crate is the language alone:
//! it does no I/O, shows programs no clock and no randomness, and does not know capabilities. The
//! same program with the same answers gives the same result.
//!
//! # What is here
//!
//! - [`Value`]: immutable data, cheap to clone and to share between threads, compared by value.
//! - [`TypeExpr`]: what a value may be: read from and printed in RTFS notation, and checked.
//! - [`json`]: JSON text read and written, losing nothing.
//! - [`text`]: excerpts and suggestions for messages.
//! - [`read`] and [`compile`]: text to values and to a [`Program`], or all its mistakes, each with its
//!   line, column and an excerpt.
//! - [`check()`]: the mistakes of a program that compiles, found before it runs.
//! - [`Run`]: a program that runs. [`Run::advance`] runs until it is done, has failed, has used its quota,
//!   or needs its host. [`Run::events`] says what it needs, and [`Run::resolve`] gives the answer.
//!   [`Limits`] bound it. [`Run::save`] turns a run into bytes, and [`Run::load`] continues it in
//!   another process. [`eval_pure`] does all of this for a text that calls nothing.
//!
//! # How it works
//!
//! A reader makes forms (`syntax`), a compiler makes code for a register machine of them
//! (`compiler`), and the machine runs it (`machine`) with the standard library (`builtins`),
//! which is partly written in RTFS. Macros run on the machine while a program is compiled. Native
//! functions never call back into a program: functions that take functions are RTFS code, so each
//! call can be metered, suspended, and named in an error.
//!
//! ```
//! use rtfs::{Event, Limits, Options, Outcome, Run, Source, Value, compile};
//!
//! let source = Source::new("greet.rtfs", "(str \"It is \" (call :weather {:city \"Paris\"}))");
//! let program = compile(&source, &Options::default()).unwrap();
//! let mut run = Run::new(program, Limits::default(), &[]);
//! assert!(matches!(run.advance(20_000), Outcome::Waiting));
//! let Some(Event::Request { ticket, .. }) = run.events().next() else { panic!() };
//! run.resolve(ticket, Ok(Value::from("sunny")));
//! let Outcome::Done(value) = run.advance(20_000) else { panic!() };
//! assert_eq!(value, Value::from("It is sunny"));
//! ```
//!
//! # What is deliberately absent
//!
//! Code that drives a run or talks to people: the host does both.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

// What the tests of other crates use as well calls this one by its name.
#[cfg(test)]
extern crate self as rtfs;

#[cfg(test)]
mod arbitrary;
mod builtins;
mod calendar;
mod check;
mod compiler;
mod error;
mod eval;
mod function;
pub mod json;
mod kinds;
pub mod layout;
mod lazy;
mod limits;
mod machine;
mod map;
mod order;
mod print;
mod scalar;
mod sequence;
mod syntax;
pub mod text;
mod types;
mod value;

pub use builtins::{Documentation, all_names, documentation, documented};
pub use check::{Capability, MAX_FINDINGS, Signatures, check};
pub use compiler::{Modules, Options, compile, imports, special_forms};
pub use error::{Error, Origin, counted};
pub use eval::{Failure, eval_pure};
pub use function::{Closure, Code, Native};
pub use lazy::Seq;
pub use limits::Limits;
pub use machine::{
    CallOptions, CapabilityName, Event, Global, InvalidRun, Outcome, Part, Program, Request, Run, Scope,
    Ticket, Unsaved, Wait,
};
pub use map::{Map, Set};
pub use scalar::{BigInt, Instant, Keyword, Str, Symbol, Uuid};
pub use sequence::{List, MAX_DEPTH, MAX_PARTS, TooLarge, Vector};
pub use syntax::{Diagnostic, Diagnostics, Position, Severity, Source, Span, read};
pub use types::{
    Checking, Definitions, Field, Form, InvalidType, MAX_TYPE_DEPTH, MapType, Pattern, Predicate,
    Primitive, TypeExpr, Violation, text_formats,
};
pub use value::Value;

//! The RTFS language: values, types, and programs that compose capabilities.
//!
//! RTFS 2.0 is the typed Lisp in which capabilities are composed. This crate is the language alone: it
//! does no I/O, gives programs no clock and no randomness, and does not know capabilities. The same
//! program with the same answers gives the same result.
//!
//! # What is here
//!
//! - [`Value`]: immutable data, cheap to clone and to share between threads, compared by value.
//! - [`TypeExpr`]: a type: read from and printed in RTFS notation, and checked.
//! - [`json`]: lossless reading and writing of JSON text.
//! - [`text`]: excerpts and suggestions for messages.
//! - [`read`] and [`compile`]: text to values and to a [`Program`], or all its mistakes, each with its
//!   line, column and an excerpt.
//! - [`check()`]: the mistakes of a program that compiles, found before it runs.
//! - [`Run`]: a running program. [`Run::advance`] runs until it is done, has failed, has used its quota,
//!   or needs its host. [`Run::events`] returns its requests, and [`Run::resolve`] passes the answer.
//!   [`Limits`] bound it. [`Run::save`] turns a run into bytes, and [`Run::load`] continues it in
//!   another process. [`eval_pure`] does all of this for a text without calls.
//!
//! # How it works
//!
//! A reader parses forms (`syntax`), a compiler generates code for a register machine (`compiler`), and
//! the machine runs it (`machine`) with the standard library (`builtins`), which is partly written in
//! RTFS. Macros run on the machine while a program is compiled. Native functions never call back into a
//! program: higher-order functions are RTFS code, so each call can be metered, suspended, and named in
//! an error.
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
//! Code that drives a run or interacts with users: the host does both.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

// Tests that other crates share use this name.
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

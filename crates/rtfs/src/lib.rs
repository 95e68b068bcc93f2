//! The RTFS language: values and types.
//!
//! RTFS 2.0 is the typed Lisp in which capabilities are composed. This crate is the language alone:
//! it does no I/O, knows no clock and no randomness that a program could see, and has no idea what
//! a capability is.
//!
//! # What is here
//!
//! - [`Value`]: immutable data, cheap to clone and to share between threads, compared by value.
//! - [`TypeExpr`]: what a value may be: read from and printed in RTFS notation, and checked.
//! - [`json`]: JSON text read and written, losing nothing.
//!
//! # What is deliberately absent
//!
//! The reader of programs and the machine are not here yet. [`Value`] therefore has only the kinds
//! that are data; functions and sequences join it together with the machine.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

// What the tests of other crates use as well calls this one by its name.
#[cfg(test)]
extern crate self as rtfs;

#[cfg(test)]
mod arbitrary;
mod builtins;
mod compiler;
mod error;
mod eval;
mod function;
pub mod json;
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
mod types;
mod typing;
mod value;

pub use eval::{Failure, eval_pure};
pub use compiler::{Modules, Options, compile, imports};
pub use builtins::all_names;
pub use error::{Error, Origin};
pub use function::{Closure, Code, Native};
pub use lazy::Seq;
pub use limits::Limits;
pub use machine::{CallOptions, Event, Global, Outcome, Program, Request, Run, Ticket};
pub use map::{Map, Set};
pub use scalar::{BigInt, Instant, Keyword, Str, Symbol, Uuid};
pub use sequence::{List, MAX_DEPTH, TooDeep, Vector};
pub use syntax::{Diagnostic, Diagnostics, Position, Source, Span, read};
pub use types::{
    Checking, Definitions, Field, Form, InvalidType, MAX_TYPE_DEPTH, MapType, Pattern, Predicate,
    Primitive, TypeExpr, Violation, text_formats,
};
pub use value::Value;

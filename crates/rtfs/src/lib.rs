//! The RTFS language: values and types.
//!
//! RTFS 2.0 is the typed Lisp in which capabilities are composed. This crate is the language alone:
//! it does no I/O, knows no clock and no randomness that a program could see, and has no idea what
//! a capability is.
//!
//! # What is here
//!
//! - [`Value`]: immutable data, cheap to clone and to share between threads, compared by value.
//! - [`TypeExpr`]: what a value may be, as data; it prints in RTFS notation.
//!
//! # What is deliberately absent
//!
//! The reader, the checker and the machine are not here yet. [`Value`] therefore has only the kinds
//! that are data; functions and sequences join it together with the machine.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(test)]
mod arbitrary;
mod function;
mod lazy;
mod map;
mod order;
mod print;
mod scalar;
mod sequence;
mod types;
mod value;

pub use function::{Closure, Code, Native};
pub use lazy::Seq;
pub use map::{Map, Set};
pub use scalar::{BigInt, Instant, Keyword, Str, Symbol, Uuid};
pub use sequence::{List, MAX_DEPTH, TooDeep, Vector};
pub use types::{Field, MapType, Predicate, Primitive, TypeExpr};
pub use value::Value;

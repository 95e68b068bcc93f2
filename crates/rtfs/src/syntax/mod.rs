//! Parses text to forms: the reader and its errors.
//!
//! [`Tree::read`] parses a text into an arena of [`Node`]s, each with its place in the text; names are
//! interned. [`read`] returns the text as values, and reads plain data without the arena ([`plain`]).
//! Reading is one pass without recursion, linear in the text, and continues after an error, so several
//! errors are reported at once.

mod data;
mod diagnostic;
mod number;
mod plain;
mod reader;
mod tokens;
mod tree;

pub use data::read;
pub use diagnostic::{Diagnostic, Diagnostics, Position, Severity, Source, Span};
pub(crate) use number::{parse_float, parse_integer};
pub(crate) use reader::MAX_ERRORS;
pub(crate) use tree::{Kind, NodeId, Tree};

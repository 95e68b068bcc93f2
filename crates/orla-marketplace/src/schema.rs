//! JSON Schema ⇄ RTFS types, what a tool's author may declare, and the check of data against it.
//!
//! A schema arrives as JSON Schema (2020-12 unless it says otherwise) or as the shorthand
//! `field: type` ([`schema_from_declaration`]), travels as a [`TypeExpr`](rtfs::TypeExpr) that keeps the original
//! text, and is enforced by a [`Validator`] on that text. So nothing that JSON Schema can say is
//! lost, although a type of RTFS can say less.
//!
//! # What is deliberately absent
//!
//! No reference leads out of a schema: neither the network nor the file system is ever asked.
//! Regular expressions run in linear time, so look-around and back-references are errors. `format`
//! is an annotation, as in the standard. Checking RTFS values against types is the language's
//! affair, not this module's.

mod convert;
mod declaration;
mod validate;

pub use convert::{json_schema_of, type_from_json_schema};
pub use declaration::schema_from_declaration;
pub use validate::Validator;

/// Why a schema or a declaration is none. Reads
/// `properties.limit.type: expected a type, got "integr"`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{problem}", prefix(.path))]
pub struct SchemaError {
    /// Where in the declaration, such as `properties.limit.type`; empty for the whole of it.
    pub path: String,
    /// What was expected there, and what came.
    pub problem: String,
}

fn prefix(path: &str) -> String {
    if path.is_empty() { String::new() } else { format!("{path}: ") }
}

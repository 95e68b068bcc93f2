//! Conversion between JSON Schema and RTFS types, the declarations of tools, and the check of data.
//!
//! A schema is JSON Schema (2020-12 unless it names another draft), the shorthand `field: type` or a
//! type in RTFS notation ([`schema_from_declaration`]), and is represented as a
//! [`TypeExpr`](rtfs::TypeExpr). JSON Schema keeps the original text, and a [`Validator`] enforces it,
//! so nothing is lost although an RTFS type expresses less. A type in RTFS notation is enforced as such,
//! and clients see the nearest JSON Schema ([`json_schema_of`]).
//!
//! # What is deliberately absent
//!
//! No reference leads out of a schema: nothing is fetched from the network or the file system. Regular
//! expressions run in linear time and are limited in size, so look-around and back-references are
//! errors. A check against a JSON Schema is limited in steps; one against a type in RTFS notation is
//! not. In JSON Schema, `format` is an annotation, as in the standard; in RTFS notation it is checked.

mod conditions;
#[cfg(test)]
mod convert_tests;
mod declaration;
mod from_json;
mod metered;
mod portable;
mod references;
mod to_json;
mod validate;
mod validator;
mod walk;

use percent_encoding::percent_decode_str;
use serde_json::Value as Json;

pub use declaration::{doubt, input_from_declaration, must_admit_object, schema_from_declaration};
pub use from_json::{type_from_json_schema, type_from_schema_text};
pub(crate) use metered::until;
pub use to_json::json_schema_of;
pub use validator::Validator;
pub(crate) use walk::MAX_PATTERNS;

/// Returns the part of a schema that a reference names by a JSON Pointer, percent-encoded or not; `None`
/// for an anchor, and for other documents.
pub fn target<'s>(schema: &'s Json, reference: &str) -> Option<&'s Json> {
    let pointer = percent_decode_str(reference.strip_prefix('#')?).decode_utf8().ok()?;
    schema.pointer(&pointer)
}

/// The reason why a schema or a declaration is invalid. Displayed as `properties.limit.type: expected a
/// type, got "integr"`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{problem}", prefix(.path))]
pub struct SchemaError {
    /// The place in the declaration, such as `properties.limit.type`; empty for the whole
    /// declaration.
    pub path: String,
    /// The expectation, and the actual value.
    pub problem: String,
}

fn prefix(path: &str) -> String {
    if path.is_empty() { String::new() } else { format!("{path}: ") }
}

//! JSON Schema ⇄ RTFS types, what a tool's author may declare, and the check of data against it.
//!
//! A schema arrives as JSON Schema (2020-12 unless it says otherwise), as the shorthand `field: type`
//! or as a type in RTFS notation ([`schema_from_declaration`]), and travels as a
//! [`TypeExpr`](rtfs::TypeExpr). One that came as JSON Schema keeps the original text and is enforced
//! by a [`Validator`] on that, so nothing that JSON Schema can say is lost, although a type of RTFS
//! can say less. One that came in RTFS notation is enforced as that, so nothing is lost either, and
//! clients are shown the JSON Schema that comes nearest to it ([`json_schema_of`]).
//!
//! # What is deliberately absent
//!
//! No reference leads out of a schema: neither the network nor the file system is ever asked.
//! Regular expressions run in linear time, so look-around and back-references are errors, and they are bounded
//! in size. A check against a JSON Schema is bounded in steps; one against a type in RTFS notation is not. In JSON
//! Schema `format` is an annotation, as in the standard; in RTFS notation it is asked for.

mod conditions;
#[cfg(test)]
mod convert_tests;
mod declaration;
mod from_json;
mod metered;
mod portable;
mod to_json;
mod validate;
mod validator;
mod walk;

pub use declaration::{input_from_declaration, must_admit_object, schema_from_declaration};
pub use from_json::{type_from_json_schema, type_from_schema_text};
pub(crate) use metered::until;
pub use to_json::json_schema_of;
pub use validator::Validator;
pub(crate) use walk::MAX_PATTERNS;

/// Why a schema or a declaration is invalid. Reads
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

//! Forms from JSON Schemas, and inputs from forms. Pure: no I/O, and no page around it.
//!
//! A [`Form`] is built from a schema and optionally an input or the fields of a submitted form
//! ([`Fields`]). It is a tree of [`Node`]s, one for each value, which `render.rs` writes as HTML and
//! [`Form::read`] reads as JSON.
//!
//! # How it works
//!
//! An empty field means an absent value. An optional object is present if any of its parts is. A value
//! that this cannot express (an empty text, an empty optional list, a value of another type) has a field
//! of JSON text instead of its fields. [`Form::of_input`] reads back each part that it made, and uses
//! JSON text if the value differs.
//!
//! # Invariants
//!
//! - The form of an input reads as that input (`a_form_of_an_input_reads_as_that_input`).
//! - The size of a form and of its input is bounded, and recursive schemas are shown one level at a
//!   time.
//!
//! # Deliberately absent
//!
//! Validation. The validator of the call path checks the input, and [`Form::blame`] puts its messages
//! beside their fields.

mod build;
mod fields;
mod node;
mod read;
mod render;
mod schema;
#[cfg(test)]
mod tests;

use serde_json::Value;

use crate::exact::Json;
use build::{Builder, Source};

pub(crate) use fields::Fields;
pub(crate) use node::Node;

/// The maximum number of bytes of an input that has a form.
pub(crate) const MAX_INPUT: usize = 256 * 1024;

/// The form of an input.
pub(crate) struct Form {
    root: Node,
    /// Problems that concern no single field.
    pub(crate) problems: Vec<String>,
}

impl Form {
    /// Returns an empty form, with the defaults of the schema.
    pub(crate) fn empty(schema: &Value) -> Self {
        Self::build(schema, Source::Input(None))
    }

    /// Returns the form of an input.
    pub(crate) fn of_input(schema: &Value, input: &Json) -> Self {
        Self::build(schema, Source::Input(Some(input)))
    }

    /// Returns the form as it was submitted.
    pub(crate) fn of_fields(schema: &Value, fields: &Fields) -> Self {
        Self::build(schema, Source::Fields(fields))
    }

    /// Returns a form without fields, with the reason. Its problems concern the whole input.
    pub(crate) fn without_fields(why: &str) -> Self {
        Self { root: Node::raw(why), problems: Vec::new() }
    }

    fn build(schema: &Value, source: Source<'_>) -> Self {
        Self { root: Builder::new(schema).root(source), problems: Vec::new() }
    }

    /// Returns why there is only a field of JSON text, if that is the case.
    pub(crate) fn why_raw(&self) -> Option<&str> {
        self.root.why_raw()
    }

    /// Returns whether the form has no fields.
    pub(crate) fn is_empty(&self) -> bool {
        self.root.is_empty()
    }

    /// Returns the input in the form. Fields without a valid value are noted as problems.
    pub(crate) fn read(&mut self) -> Json {
        let value = self.root.read("input").value;
        value.unwrap_or_else(|| Json::Object(Vec::new()))
    }

    /// Returns whether a field cannot be read.
    pub(crate) fn has_problems(&self) -> bool {
        !self.problems.is_empty() || self.root.has_problems()
    }

    /// Notes a problem at a place of the input that was [read](Self::read): `input.person.age`.
    pub(crate) fn blame(&mut self, place: &str, problem: &str) {
        if !self.root.blame(place, problem) {
            self.problems.push(format!("{place}: {problem}"));
        }
    }

    /// Returns the names and values that a browser would send for the current form.
    #[cfg(test)]
    fn pairs(&self) -> Vec<(String, String)> {
        let mut pairs = Vec::new();
        self.root.pairs(&mut pairs);
        pairs
    }
}

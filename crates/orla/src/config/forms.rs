//! The forms of values: how each is parsed, described and offered to editors.
//!
//! A [`Scalar`] is one number, word or text ([`scalars`](super::scalars)). A [`Read`] is any value that a function reads ([`values`](super::values)). The functions of
//! [`Reader`] that they use take the path of the value for messages (`capabilities[2].timeout`) and its node ([`composite`](super::composite)). They note every
//! problem with its place and then return nothing. No message repeats what [`Reader::secret`] and [`Reader::secrets`] read.

use std::ffi::OsStr;

use orla_document::Node;
use serde_json::Value as Json;

pub(super) use super::composite::{check_token, header, listed};
use super::read::Reader;
pub(super) use super::scalars::{
    Amount, Choice, Count, Flag, Milliseconds, Scalar, Seconds, Share, Span, Text,
};
pub(super) use super::values::{
    API_URL, ARGUMENTS, CONFINING, ENVIRONMENT, FALLBACK, File, HEADERS, INSTANT, LIMITS, MORE_PATTERNS,
    PATH, PATTERNS, PERMISSIONS, Read, SANDBOX, SECRET, SECRETS, TOKEN, Texts, Variables, WORD, WORDS,
    text_schema, texts_or_text, variable,
};

/// A day, in seconds: the longest time limit of a call.
pub(super) const DAY: u32 = 86_400;
/// A day, in milliseconds.
pub(super) const DAY_MS: u64 = 86_400_000;

/// Checks a name and its value. An error contains the expected form.
pub(super) type Check = fn(&str, &str) -> Result<(), &'static str>;

/// The form of a value.
pub(super) trait Form: Send + Sync + 'static {
    type Value;

    /// Whether the text of a flag or an environment variable can have this form.
    const HAS_VARIABLE: bool = false;

    /// Reads a value; a problem is noted with its place.
    fn read(&self, reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Self::Value>;

    /// Returns its JSON Schema.
    fn schema(&self) -> Json;

    /// Returns how the JSON Schema shows a default, if it does.
    fn default(&self, _value: &Self::Value) -> Option<Json> {
        None
    }

    /// Reads the text of a flag or of an environment variable.
    ///
    /// # Errors
    ///
    /// Returns the expected form and the received text.
    fn read_variable(&self, _text: &OsStr) -> Result<Self::Value, String> {
        Err("expected a configuration file to set this key".to_owned())
    }
}

/// A field for a value: a field of its type, an option of the type, or a list that grows.
pub(super) trait Slot<V> {
    fn put(&mut self, value: V);

    /// Returns the value that is there, if there is one.
    fn get(&self) -> Option<&V>;
}

impl<V> Slot<V> for V {
    fn put(&mut self, value: V) {
        *self = value;
    }

    fn get(&self) -> Option<&V> {
        Some(self)
    }
}

impl<V> Slot<V> for Option<V> {
    fn put(&mut self, value: V) {
        *self = Some(value);
    }

    fn get(&self) -> Option<&V> {
        self.as_ref()
    }
}

/// Values that are added to the existing ones.
pub(super) struct Added<V>(pub(super) Vec<V>);

impl<V> Slot<Added<V>> for Vec<V> {
    fn put(&mut self, added: Added<V>) {
        self.extend(added.0);
    }

    fn get(&self) -> Option<&Added<V>> {
        None
    }
}

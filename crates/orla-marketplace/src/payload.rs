//! The input and output of capabilities: text or value, converted once and on demand.
//!
//! A call that is only passed on is never parsed into a tree. Its JSON travels as the original bytes, so
//! that numbers keep their text (`1.10`, `1e400`, 2^64) and a relay costs no parsing. Code that needs an
//! RTFS [`Value`] requests it; the conversion is cached.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use bytestring::ByteString;
use rtfs::Value;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::error::{RuntimeError, RuntimeResult, Violation};
use crate::json::{self, JsonError};

/// The longest text that is copied rather than kept with the buffer that it arrived in. Buffers of connections are larger.
const MAX_COPIED: usize = 4096;

/// An input or output of a capability: JSON text or an RTFS value, whichever existed first.
///
/// Cloning shares the data. Each form is created at most once, on demand.
#[derive(Clone)]
pub struct Payload(Arc<Forms>);

struct Forms {
    came_as_json: bool,
    json: OnceLock<JsonText>,
    value: OnceLock<Value>,
}

impl Payload {
    /// Creates a payload from JSON text.
    pub fn from_json(json: JsonText) -> Self {
        Self(Arc::new(Forms { came_as_json: true, json: json.into(), value: OnceLock::new() }))
    }

    /// Creates a payload from an RTFS value.
    pub fn from_value(value: Value) -> Self {
        Self(Arc::new(Forms { came_as_json: false, json: OnceLock::new(), value: value.into() }))
    }

    /// Returns the empty object, the input of a call without arguments.
    pub fn empty() -> Self {
        static EMPTY: OnceLock<Payload> = OnceLock::new();
        EMPTY.get_or_init(|| Self::from_json(JsonText(ByteString::from_static("{}")))).clone()
    }

    /// Returns whether the payload was created from JSON text, which has fewer kinds of values.
    pub fn came_as_json(&self) -> bool {
        self.0.came_as_json
    }

    /// Returns the payload as JSON text.
    ///
    /// # Errors
    /// A value that JSON cannot express (a function, `NaN`, an infinity); the error names its
    /// path.
    pub fn json(&self) -> RuntimeResult<&JsonText> {
        if let Some(json) = self.0.json.get() {
            return Ok(json);
        }
        let value = self.0.value.get().map_or(&Value::Nil, |value| value);
        let text = json::value_to_json(value).map_err(|err| RuntimeError::Generic(err.to_string()))?;
        Ok(self.0.json.get_or_init(|| JsonText(text.into())))
    }

    /// Returns the length of the JSON text in bytes, if the text has been created.
    pub fn text_bytes(&self) -> usize {
        self.0.json.get().map_or(0, |text| text.0.len())
    }

    /// Returns the payload for keeping it: see [`JsonText::detached`]. Its value is not shared.
    #[must_use]
    pub fn detached(&self) -> Self {
        match self.0.json.get() {
            Some(json) if json.as_str() == "{}" => Self::empty(),
            Some(json) if self.0.came_as_json => Self::from_json(json.detached()),
            _ => self.clone(),
        }
    }

    /// Returns the payload as an RTFS value.
    ///
    /// # Errors
    /// JSON that no value can hold (nested beyond 1,000 levels, duplicate keys, `1e400`).
    pub fn value(&self) -> RuntimeResult<&Value> {
        if let Some(value) = self.0.value.get() {
            return Ok(value);
        }
        self.read().map_err(|err| RuntimeError::Generic(err.to_string()))
    }

    /// Returns the input of a call as an RTFS value.
    ///
    /// # Errors
    /// Where it is what no value can hold, as for [`value`](Self::value).
    pub(crate) fn value_or_violation(&self) -> Result<&Value, Violation> {
        match self.0.value.get() {
            Some(value) => Ok(value),
            None => self.read().map_err(|err| Violation::unreadable(&err, "input")),
        }
    }

    fn read(&self) -> Result<&Value, JsonError> {
        let text = self.0.json.get().map_or("null", JsonText::as_str);
        let value = json::value_from_json(text)?;
        Ok(self.0.value.get_or_init(|| value))
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.json.get(), self.0.value.get()) {
            (Some(json), _) => write!(f, "Payload({json:?})"),
            (None, value) => write!(f, "Payload({value:?})"),
        }
    }
}

/// The text of exactly one well-formed JSON value, without white space around it.
///
/// Cloning and slicing share the bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct JsonText(ByteString);

impl JsonText {
    /// Checks that `text` is one JSON value (to any depth, without recursion) and stores it unchanged.
    ///
    /// # Errors
    /// What is wrong with the text, with line and column.
    pub fn parse(text: impl Into<Bytes>) -> Result<Self, serde_json::Error> {
        let bytes: Bytes = text.into();
        let Ok(text) = ByteString::try_from(bytes.clone()) else {
            // The reader of JSON says where the text is not UTF-8.
            return serde_json::from_slice::<&RawValue>(&bytes).map(Self::from);
        };
        let raw: &RawValue = serde_json::from_str(&text)?;
        Ok(Self::slice_of_text(&text, raw))
    }

    /// Returns the JSON of anything that can be serialised.
    ///
    /// # Errors
    /// The type cannot be JSON, such as a map whose keys are not strings.
    pub fn of(value: &(impl Serialize + ?Sized)) -> Result<Self, serde_json::Error> {
        serde_json::to_string(value).map(|text| Self(text.into()))
    }

    /// Returns the part `raw` of `body`: shared if `raw` borrows from it, else copied.
    pub fn slice_of(body: &Bytes, raw: &RawValue) -> Self {
        let part = raw.get();
        if !is_within(part, body) {
            return Self::from(raw);
        }
        // It is UTF-8, as `raw` is, but only a check gives it the type.
        ByteString::try_from(body.slice_ref(part.as_bytes())).map_or_else(|_| Self::from(raw), Self)
    }

    /// Returns the part `raw` of `text`: shared if `raw` borrows from it, else copied.
    pub fn slice_of_text(text: &ByteString, raw: &RawValue) -> Self {
        let part = raw.get();
        if is_within(part, text.as_bytes()) { Self(text.slice_ref(part)) } else { Self::from(raw) }
    }

    /// Returns the part `raw` of this text: shared if `raw` borrows from it, else copied.
    #[must_use]
    pub fn slice(&self, raw: &RawValue) -> Self {
        Self::slice_of_text(&self.0, raw)
    }

    /// Returns the part of the text in this range, which must be one whole value; shared. `None` if the
    /// range is not within the text.
    pub fn part(&self, range: Range<usize>) -> Option<Self> {
        let part = self.0.get(range).filter(|part| !part.is_empty())?;
        Some(Self(self.0.slice_ref(part)))
    }

    /// Returns the text for keeping it longer than a call. A short text is copied, because the bytes that it shares may be a
    /// whole buffer of a connection, which could not be used for the next message.
    #[must_use]
    pub fn detached(&self) -> Self {
        if self.0.len() > MAX_COPIED { self.clone() } else { Self((*self.0).into()) }
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the bytes of the text, shared.
    pub fn bytes(&self) -> &Bytes {
        self.0.as_bytes()
    }

    /// Returns the text as serde's raw value.
    ///
    /// # Errors
    /// None in practice: the text was checked when it was made.
    pub fn as_raw(&self) -> Result<&RawValue, serde_json::Error> {
        serde_json::from_str(&self.0)
    }
}

/// Returns whether a text lies within these bytes.
fn is_within(part: &str, whole: &[u8]) -> bool {
    let (part, whole) = (part.as_bytes().as_ptr_range(), whole.as_ptr_range());
    whole.start <= part.start && part.end <= whole.end
}

impl Default for JsonText {
    /// `null`.
    fn default() -> Self {
        Self(ByteString::from_static("null"))
    }
}

impl From<&RawValue> for JsonText {
    fn from(raw: &RawValue) -> Self {
        Self(raw.get().into())
    }
}

impl From<Box<RawValue>> for JsonText {
    fn from(raw: Box<RawValue>) -> Self {
        let text: Box<str> = raw.into();
        Self(String::from(text).into())
    }
}

impl Serialize for JsonText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.as_raw().map_err(serde::ser::Error::custom)?.serialize(serializer)
    }
}

impl fmt::Debug for JsonText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for JsonText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_passes_through_untouched() {
        let text = r#"{"b":1.10,"a":1e400,"n":18446744073709551616}"#;
        let payload = Payload::from_json(JsonText::parse(text).unwrap());
        assert_eq!(payload.json().unwrap().as_str(), text);
    }

    #[test]
    fn a_part_of_a_body_is_shared_and_not_copied() {
        let body = Bytes::from_static(br#"  {"x": [1, 2]} "#);
        let text = JsonText::parse(body.clone()).unwrap();
        assert_eq!(text.as_str(), r#"{"x": [1, 2]}"#);
        assert_eq!(text.bytes().as_ptr() as usize, body.as_ptr() as usize + 2);
    }

    #[test]
    fn a_short_text_that_is_kept_does_not_hold_its_body() {
        let body = Bytes::from(format!("{{}}{}", " ".repeat(2 * MAX_COPIED)));
        let kept = Payload::from_json(JsonText::parse(body.clone()).unwrap()).detached();
        assert!(body.is_unique());
        assert_eq!(kept.json().unwrap().as_str(), "{}");

        let long = format!("[{}1]", "1,".repeat(MAX_COPIED));
        let text = JsonText::parse(long).unwrap();
        assert_eq!(text.detached().bytes().as_ptr(), text.bytes().as_ptr(), "a long one is shared");
    }

    #[test]
    fn nesting_of_any_depth_is_checked_without_recursion() {
        let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
        assert_eq!(JsonText::parse(deep.clone()).unwrap().as_str(), deep);
        assert!(JsonText::parse("[".repeat(200_000)).is_err());
    }

    #[test]
    fn a_second_value_after_the_first_is_refused() {
        assert!(JsonText::parse("{} {}").is_err());
    }

    #[test]
    fn a_value_is_converted_once_it_is_asked_for() {
        let payload = Payload::from_json(JsonText::parse("[1,true,null]").unwrap());
        let first: *const Value = payload.value().unwrap();
        assert_eq!(first, std::ptr::from_ref(payload.clone().value().unwrap()));
    }
}

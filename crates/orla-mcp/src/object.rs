//! A JSON object one level deep: its keys, and the text of their values.
//!
//! For bodies that are passed on after one member was read, replaced or removed. All other text stays
//! unchanged, numbers and order included.

use std::borrow::Cow;

use bytes::Bytes;
use orla_marketplace::JsonText;
use orla_marketplace::json::RawObject;
use serde_json::value::RawValue;

/// The members of an object, in their original order.
#[derive(Debug)]
pub struct Object<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Object<'a> {
    /// Parses a text that is one JSON object.
    pub fn parse(text: &'a str) -> Option<Self> {
        let RawObject(members) = serde_json::from_str(text).ok()?;
        Some(Self(members.into_iter().map(|(name, value)| (name, value.get().into())).collect()))
    }

    /// Returns the text of the first member with this key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| &**value)
    }

    /// Returns the member with this key, if it is a string.
    pub fn text(&self, key: &str) -> Option<String> {
        serde_json::from_str(self.get(key)?).ok()
    }

    /// Returns the members, in their order.
    pub fn members(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Removes every member with this key.
    pub fn remove(&mut self, key: &str) {
        self.retain(|name| name != key);
    }

    /// Keeps the members whose key matches.
    pub fn retain(&mut self, fits: impl Fn(&str) -> bool) {
        self.0.retain(|(name, _)| fits(name));
    }

    /// Sets a member to a value, which is JSON text. A new member is appended.
    pub fn set(&mut self, key: &'a str, value: impl Into<Cow<'a, str>>) {
        let value = value.into();
        match self.0.iter_mut().find(|(name, _)| name == key) {
            Some((_, place)) => *place = value,
            None => self.0.push((Cow::Borrowed(key), value)),
        }
    }

    /// Returns the object's text.
    pub fn to_json(&self) -> JsonText {
        let mut out = vec![b'{'];
        for (name, value) in &self.0 {
            if out.len() > 1 {
                out.push(b',');
            }
            push_text(&mut out, name);
            out.push(b':');
            out.extend_from_slice(value.as_bytes());
        }
        out.push(b'}');
        trusted(out)
    }
}

/// Converts a text that was assembled from JSON texts.
pub fn trusted(text: impl Into<Bytes>) -> JsonText {
    let text = text.into();
    // The text is checked although it is trusted, because this is off the hot path, and invalid JSON
    // must not be sent.
    JsonText::parse(text).unwrap_or_else(|_| empty())
}

/// Returns the empty object.
pub fn empty() -> JsonText {
    let empty = orla_marketplace::Payload::empty();
    // A payload that was created from JSON text has it.
    empty.json().cloned().unwrap_or_else(|_| JsonText::from(Box::<RawValue>::default()))
}

/// Returns a text as a JSON string.
pub fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Appends a text as a JSON string.
pub fn push_text(out: &mut Vec<u8>, text: &str) {
    // Writing a string to memory does not fail.
    let _ = serde_json::to_writer(out, text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unchanged_members_keep_their_text() {
        let mut object = Object::parse(r#" {"b": 1.10, "a\n": [1e400, {"x": 2}], "c":null} "#).unwrap();
        assert_eq!(object.get("a\n"), Some(r#"[1e400, {"x": 2}]"#));
        assert_eq!(object.get("z"), None);
        object.remove("c");
        object.set("b", "7");
        object.set("new", "[]");
        assert_eq!(object.to_json().as_str(), r#"{"b":7,"a\n":[1e400, {"x": 2}],"new":[]}"#);
        assert_eq!(Object::parse("{}").unwrap().to_json().as_str(), "{}");
        assert!(Object::parse("[1]").is_none() && Object::parse("{} {}").is_none());
    }
}

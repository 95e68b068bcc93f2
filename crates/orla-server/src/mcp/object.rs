//! A JSON object one level deep: its keys, and the text of their values.
//!
//! For bodies that are passed on and need one member looked at, added or taken away: everything else
//! in them stays as it was written, numbers and order included.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The members of an object, in the order they were written.
pub(crate) struct Object<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Object<'a> {
    /// Reads a text that is one JSON object.
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// The value of the first member with this key.
    pub(crate) fn get(&self, key: &str) -> Option<&'a RawValue> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| *value)
    }

    /// The names of the members.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| &**name)
    }

    /// The members, in their order.
    pub(crate) fn members(&self) -> impl Iterator<Item = (&str, &'a str)> {
        self.0.iter().map(|(name, value)| (&**name, value.get()))
    }

    /// The object's text without the members of these keys.
    pub(crate) fn without(&self, keys: &[&str]) -> String {
        let mut out = String::from("{");
        for (name, value) in self.0.iter().filter(|(name, _)| !keys.contains(&&**name)) {
            if out.len() > 1 {
                out.push(',');
            }
            out.push_str(&serde_json::to_string(name).unwrap_or_default());
            out.push(':');
            out.push_str(value.get());
        }
        out.push('}');
        out
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(Key(name)) = map.next_key()? {
                    members.push((name, map.next_value()?));
                }
                Ok(Object(members))
            }
        }

        from.deserialize_map(Members)
    }
}

#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_stays_as_it_was_written() {
        let object = Object::parse(r#" {"b": 1.10, "a\n": [1e400, {"x": 2}], "c":null} "#).unwrap();
        assert_eq!(object.get("a\n").unwrap().get(), r#"[1e400, {"x": 2}]"#);
        assert_eq!(object.without(&["c", "z"]), r#"{"b":1.10,"a\n":[1e400, {"x": 2}]}"#);
        assert_eq!(object.without(&["a\n", "b", "c"]), "{}");
        assert!(Object::parse("[1]").is_none() && Object::parse("{} {}").is_none());
    }
}

//! The input of a call as named arguments, each as the JSON text it came in.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use orla_marketplace::rtfs::text::excerpt;
use orla_marketplace::{RuntimeError, Violation};
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The members of an object, in their order.
#[derive(Debug)]
pub(super) struct Arguments<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Arguments<'a> {
    /// The members of `json`, or why it has none.
    pub(super) fn parse(json: &'a str) -> Result<Self, Refused> {
        serde_json::from_str(json).map_err(|err| {
            if json.starts_with('{') {
                Refused::new("input", "each argument once", &err.to_string())
            } else {
                Refused::new("input", "an object", json)
            }
        })
    }

    /// An argument; an absent one and `null` are the same.
    pub(super) fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.iter().find(|(known, raw)| *known == name && raw.get() != "null").map(|(_, raw)| raw)
    }

    /// An argument, `null` included: as a body, that is something.
    pub(super) fn any(&self, name: &str) -> Option<&'a RawValue> {
        self.iter().find(|(known, _)| *known == name).map(|(_, raw)| raw)
    }

    pub(super) fn into_members(self) -> Vec<(Cow<'a, str>, &'a RawValue)> {
        self.0
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.0.iter().map(|(name, raw)| (&**name, *raw))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Arguments<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members: Self::Value = Vec::new();
                let mut known = HashSet::new();
                while let Some((Key(key), value)) = map.next_entry()? {
                    if !known.insert(key.clone()) {
                        return Err(A::Error::custom(format!("`{key}` comes twice")));
                    }
                    members.push((key, value));
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(Members).map(Self)
    }
}

/// A key, borrowed if it has no escapes.
#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

/// An argument in the forms that URLs, headers and form fields have.
#[derive(Debug, PartialEq)]
pub(super) enum Shape<'a> {
    /// A string itself; for numbers and booleans, their JSON text.
    One(Cow<'a, str>),
    /// A list's items.
    Many(Vec<Cow<'a, str>>),
    /// An object's members.
    Members(Vec<(Cow<'a, str>, Cow<'a, str>)>),
}

/// Takes an argument apart, one level deep: deeper values stay JSON text.
pub(super) fn shape(raw: &RawValue) -> Shape<'_> {
    match raw.get().as_bytes().first() {
        Some(b'[') => serde_json::from_str::<Vec<&RawValue>>(raw.get()).map_or_else(
            |_| Shape::One(raw.get().into()),
            |items| {
                Shape::Many(items.into_iter().filter(|item| item.get() != "null").map(text).collect())
            },
        ),
        Some(b'{') => Arguments::parse(raw.get()).map_or_else(
            |_| Shape::One(raw.get().into()),
            |members| {
                let members = members.0.into_iter().filter(|(_, value)| value.get() != "null");
                Shape::Members(members.map(|(key, value)| (key, text(value))).collect())
            },
        ),
        _ => Shape::One(text(raw)),
    }
}

/// The content of a JSON string, or else the JSON text.
pub(super) fn text(raw: &RawValue) -> Cow<'_, str> {
    let json = raw.get();
    match json.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        None => Cow::Borrowed(json),
        Some(plain) if !plain.contains('\\') => Cow::Borrowed(plain),
        Some(_) => serde_json::from_str(json).map_or(Cow::Borrowed(json), Cow::Owned),
    }
}

/// Why an input cannot become a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Refused(Violation);

impl Refused {
    pub(super) fn new(path: &str, expected: &str, got: &str) -> Self {
        const SHOWN: usize = 80;
        let got = excerpt(got, SHOWN);
        Self(Violation { path: path.to_owned(), expected: expected.to_owned(), got })
    }

    /// The refusal of one argument.
    pub(super) fn argument(name: &str, expected: &str, got: &str) -> Self {
        Self::new(&format!("input.{name}"), expected, got)
    }

    pub(super) fn missing(name: &str) -> Self {
        Self::argument(name, "a value (required)", "nothing")
    }

    pub(super) fn of(self, id: &str) -> RuntimeError {
        RuntimeError::InvalidInput { id: id.to_owned(), violations: vec![self.0] }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_keep_their_text_and_order() {
        let arguments = Arguments::parse(r#"{"b": 1.10, "a\u0041": "x\ny", "n": null}"#).unwrap();
        let all: Vec<_> = arguments.iter().map(|(name, raw)| (name.to_owned(), raw.get())).collect();
        assert_eq!(all, [("b".into(), "1.10"), ("aA".into(), r#""x\ny""#), ("n".to_owned(), "null")]);
        assert!(arguments.get("n").is_none(), "null is absence");
        assert_eq!(text(arguments.get("aA").unwrap()), "x\ny");
    }

    #[test]
    fn what_is_no_object_or_says_a_thing_twice_is_refused() {
        for (json, message) in [
            ("[1]", "input: expected an object, got [1]"),
            (
                r#"{"a":1,"a":2}"#,
                "input: expected each argument once, got `a` comes twice at line 1 column 13",
            ),
        ] {
            assert_eq!(Arguments::parse(json).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn shapes() {
        let cases = [
            (r#""a b""#, Shape::One("a b".into())),
            ("1e400", Shape::One("1e400".into())),
            (r#"[1, "x", null, [2]]"#, Shape::Many(vec!["1".into(), "x".into(), "[2]".into()])),
            (r#"{"a": 1, "b": null}"#, Shape::Members(vec![("a".into(), "1".into())])),
        ];
        for (json, expected) in cases {
            let raw: &RawValue = serde_json::from_str(json).unwrap();
            assert_eq!(shape(raw), expected, "{json}");
        }
    }
}

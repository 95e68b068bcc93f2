//! The input of a call as named arguments, each with its original JSON text.

use std::borrow::Cow;
use std::fmt;

use orla_marketplace::json::RawObject;
use orla_marketplace::rtfs::text::excerpt;
use orla_marketplace::{RuntimeError, Violation};
use serde_json::value::RawValue;

/// The members of an object, in their order.
#[derive(Debug)]
pub(super) struct Arguments<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Arguments<'a> {
    /// Parses the members of `json`.
    pub(super) fn parse(json: &'a str) -> Result<Self, Refused> {
        let members: RawObject<'_> =
            serde_json::from_str(json).map_err(|err| match json.starts_with('{') {
                true => Refused::new("input", "a JSON object", &err.to_string()),
                false => Refused::new("input", "an object", json),
            })?;
        if let Some(name) = members.repeated().next() {
            return Err(Refused::argument(name, "one value", "the name twice"));
        }
        Ok(Self(members.0))
    }

    /// Returns an argument; `null` counts as absent.
    pub(super) fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.iter().find(|(known, raw)| *known == name && raw.get() != "null").map(|(_, raw)| raw)
    }

    /// Returns an argument, `null` included: as a body, `null` is a value.
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

/// An argument in the forms of URLs, headers and form fields.
#[derive(Debug, PartialEq)]
pub(super) enum Shape<'a> {
    /// A string, or the JSON text of a number or boolean.
    One(Cow<'a, str>),
    /// The items of a list.
    Many(Vec<Cow<'a, str>>),
    /// The members of an object.
    Members(Vec<(Cow<'a, str>, Cow<'a, str>)>),
}

/// Splits an argument one level deep. Deeper values stay JSON text.
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

/// Returns the content of a JSON string, and otherwise the JSON text.
pub(super) fn text(raw: &RawValue) -> Cow<'_, str> {
    let json = raw.get();
    match json.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        None => Cow::Borrowed(json),
        Some(plain) if !plain.contains('\\') => Cow::Borrowed(plain),
        Some(_) => serde_json::from_str(json).map_or(Cow::Borrowed(json), Cow::Owned),
    }
}

/// The reason why an input cannot become a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Refused(Violation);

impl Refused {
    pub(super) fn new(path: &str, expected: &str, got: &str) -> Self {
        const SHOWN: usize = 80;
        let got = excerpt(got, SHOWN);
        Self(Violation { path: path.to_owned(), expected: expected.to_owned(), got })
    }

    /// Returns the refusal of one argument.
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
    fn non_objects_and_duplicate_names_are_refused() {
        for (json, message) in [
            ("[1]", "input: expected an object, got [1]"),
            (r#"{"a":1,"a":2}"#, "input.a: expected one value, got the name twice"),
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

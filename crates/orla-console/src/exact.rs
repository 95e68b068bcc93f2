//! JSON that preserves the text of numbers and the order of members. Pure.
//!
//! Values in a form must arrive exactly as they were typed, including `1.10`, `1e400` and integers of
//! any size.

use std::collections::HashMap;
use std::fmt;

use orla_marketplace::rtfs::json::{push_string, string_length};
use serde_json::value::RawValue;

/// The deepest nesting that is read.
const MAX_DEPTH: usize = 100;

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    /// The number's text.
    Number(String),
    Text(String),
    Array(Vec<Self>),
    Object(Vec<(String, Self)>),
}

/// Text that is not JSON, or that no form and no page shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotJson(pub(crate) String);

impl Json {
    /// Reads JSON text.
    ///
    /// # Errors
    ///
    /// Returns an error if it is not JSON, is nested deeper than 100 levels, or has a string that no
    /// text can hold.
    pub(crate) fn parse(text: &str) -> Result<Self, NotJson> {
        let raw: &RawValue = serde_json::from_str(text).map_err(|err| NotJson(err.to_string()))?;
        let mut reader = Reader { rest: raw.get() };
        reader.value(0)
    }

    /// The same value as `serde_json` reads it: numbers may lose digits.
    pub(crate) fn of(value: &serde_json::Value) -> Self {
        use serde_json::Value;
        match value {
            Value::Null => Self::Null,
            Value::Bool(is) => Self::Bool(*is),
            Value::Number(number) => Self::Number(number.to_string()),
            Value::String(text) => Self::Text(text.clone()),
            Value::Array(items) => Self::Array(items.iter().map(Self::of).collect()),
            Value::Object(members) => {
                Self::Object(members.iter().map(|(key, value)| (key.clone(), Self::of(value))).collect())
            }
        }
    }

    /// Returns the member of an object with this name.
    pub(crate) fn get(&self, name: &str) -> Option<&Self> {
        match self {
            Self::Object(members) => members.iter().find(|(key, _)| key == name).map(|(_, value)| value),
            _ => None,
        }
    }

    /// Returns the text, if it is one.
    pub(crate) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns whether both values are the same data. Members may have any order, and numbers must have
    /// the same text.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Array(a), Self::Array(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.is_same(b))
            }
            (Self::Object(a), Self::Object(b)) => {
                let members: HashMap<&str, &Self> =
                    b.iter().map(|(key, value)| (key.as_str(), value)).collect();
                // Of a name that is given twice, the order matters.
                if members.len() < b.len() {
                    return self == other;
                }
                let is_same = |(key, value): &(String, Self)| {
                    members.get(key.as_str()).is_some_and(|other| value.is_same(other))
                };
                a.len() == b.len() && a.iter().all(is_same)
            }
            (a, b) => a == b,
        }
    }

    /// Over several lines, indented by two spaces a level.
    pub(crate) fn pretty(&self) -> String {
        orla_history::indented(&self.to_string())
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let string = |text: &str| {
            let mut out = String::with_capacity(text.len() + 2);
            push_string(&mut out, text);
            out
        };
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(is) => write!(f, "{is}"),
            Self::Number(number) => f.write_str(number),
            Self::Text(text) => f.write_str(&string(text)),
            Self::Array(items) => {
                f.write_str("[")?;
                for (at, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if at > 0 { "," } else { "" })?;
                }
                f.write_str("]")
            }
            Self::Object(members) => {
                f.write_str("{")?;
                for (at, (key, value)) in members.iter().enumerate() {
                    write!(f, "{}{}:{value}", if at > 0 { "," } else { "" }, string(key))?;
                }
                f.write_str("}")
            }
        }
    }
}

/// Reads text that is known to be JSON.
struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn value(&mut self, depth: usize) -> Result<Json, NotJson> {
        if depth > MAX_DEPTH {
            return Err(NotJson(format!("it is nested deeper than {MAX_DEPTH} levels")));
        }
        self.rest = self.rest.trim_ascii_start();
        match self.rest.as_bytes().first() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => self.string().map(Json::Text),
            Some(_) => Ok(self.word()),
            None => Err(NotJson("it ends early".to_owned())),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json, NotJson> {
        let mut members = Vec::new();
        while self.next_part(b'}') {
            let key = self.string()?;
            // The colon.
            self.rest = &self.rest.trim_ascii_start()[1..];
            members.push((key, self.value(depth + 1)?));
        }
        Ok(Json::Object(members))
    }

    fn array(&mut self, depth: usize) -> Result<Json, NotJson> {
        let mut items = Vec::new();
        while self.next_part(b']') {
            items.push(self.value(depth + 1)?);
        }
        Ok(Json::Array(items))
    }

    /// Skips the bracket or the comma before the next part. Returns whether there is one.
    fn next_part(&mut self, end: u8) -> bool {
        let rest = self.rest.trim_ascii_start();
        let is_end = rest.as_bytes().first() == Some(&end);
        self.rest = rest[1..].trim_ascii_start();
        // An empty array or object.
        if !is_end && self.rest.as_bytes().first() == Some(&end) {
            self.rest = &self.rest[1..];
            return false;
        }
        !is_end
    }

    fn string(&mut self) -> Result<String, NotJson> {
        let (string, rest) = self.rest.split_at(string_length(self.rest.as_bytes()));
        self.rest = rest;
        serde_json::from_str(string).map_err(|err| NotJson(err.to_string()))
    }

    /// Returns a number, `true`, `false` or `null`.
    fn word(&mut self) -> Json {
        let is_end = |byte: &u8| matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace();
        let end = self.rest.as_bytes().iter().position(is_end).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        match word {
            "null" => Json::Null,
            "true" => Json::Bool(true),
            "false" => Json::Bool(false),
            number => Json::Number(number.to_owned()),
        }
    }
}

/// Returns whether a text is a JSON number.
pub(crate) fn is_number(text: &str) -> bool {
    let starts = text.starts_with(|c: char| c == '-' || c.is_ascii_digit());
    starts && serde_json::from_str::<&RawValue>(text).is_ok_and(|raw| raw.get() == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        for text in [
            "null",
            "true",
            "[]",
            "{}",
            "[[],{}]",
            r#"{"a":1.10,"b":[1e400,18446744073709551616,-0.0],"":"x\"y\\"}"#,
            r#"[1,[2,[3]],{"a":{"b":{}}},"",false]"#,
            r#"{"a":1,"a":2}"#,
        ] {
            assert_eq!(Json::parse(text).unwrap().to_string(), text);
            assert_eq!(Json::parse(&Json::parse(text).unwrap().pretty()).unwrap().to_string(), text);
        }
        assert_eq!(Json::parse(" [ 1 , { \"a\" : [ ] } ] ").unwrap().to_string(), r#"[1,{"a":[]}]"#);
    }

    #[test]
    fn members_are_the_same_in_any_order() {
        let is_same = |one: &str, other: &str| {
            let read = |text: &str| Json::parse(text).unwrap();
            read(one).is_same(&read(other)) && read(other).is_same(&read(one))
        };
        assert!(is_same(r#"{"a":1,"b":{"c":[1],"d":2}}"#, r#"{"b":{"d":2,"c":[1]},"a":1}"#));
        assert!(is_same(r#"{"a":1,"a":2}"#, r#"{"a":1,"a":2}"#));
        for (one, other) in [
            (r#"{"a":1,"a":2}"#, r#"{"a":2,"a":1}"#),
            (r#"{"a":1,"a":1}"#, r#"{"a":1,"b":1}"#),
            (r#"{"a":1}"#, r#"{"a":1.0}"#),
            (r#"{"a":1}"#, r#"{"a":1,"b":2}"#),
            ("[1,2]", "[2,1]"),
        ] {
            assert!(!is_same(one, other), "{one} {other}");
        }
        let members: Vec<String> = (0..80_000).map(|n| format!("\"{n}\":{n}")).collect();
        let (one, other) =
            (members.join(","), members.iter().rev().cloned().collect::<Vec<_>>().join(","));
        assert!(is_same(&format!("{{{one}}}"), &format!("{{{other}}}")));
    }

    #[test]
    fn invalid_json_is_an_error() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        for text in ["", "{", "[1,]", "nul", r#""\ud800""#, "01", &deep] {
            assert!(Json::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_are_those_of_json() {
        for text in ["0", "-1", "1.10", "1e400", "18446744073709551616"] {
            assert!(is_number(text), "{text}");
        }
        for text in ["", "1 ", "+1", "01", ".5", "1.", "true", "0x1", "NaN", "[1]", "\"1\""] {
            assert!(!is_number(text), "{text}");
        }
    }
}

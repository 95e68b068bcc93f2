//! Lossless conversion between JSON text and values.
//!
//! Objects become maps with keyword keys, arrays vectors, `null` nil. The order of keys is kept, and
//! integers of any length stay exact. Input that would lose information is an error: a repeated key, a
//! number beyond the largest float, half of a surrogate pair.
//!
//! # How it works
//!
//! The reader is written by hand, since serde's data model has no long integers. It keeps open arrays
//! and objects on an explicit stack, so that no nesting can exhaust the thread's stack. Equal keys
//! within one text share one keyword. The writer recurses, which is safe because the depth of a value is
//! bounded ([`MAX_DEPTH`](crate::MAX_DEPTH)).

mod read;
mod write;

use std::fmt;

pub use read::value_from_json;
pub(crate) use write::value_to_json_within;
pub use write::{key_name, value_to_json};

/// The maximum number of characters of a path in an error: keys may be of any length.
pub const MAX_PATH: usize = 200;

/// The reason why JSON text is not a value, or a value has no JSON text. Displayed as `$.items[3].price:
/// 1e400 is beyond the largest number (line 1, column 35)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonError {
    /// The path in the data: `$` is its root.
    pub path: String,
    /// The problem there.
    pub problem: String,
    /// The line and column in the text, both from 1; the column counts characters. `None` for a value.
    pub position: Option<(usize, usize)>,
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.problem)?;
        match self.position {
            None => Ok(()),
            Some((line, column)) => write!(f, " (line {line}, column {column})"),
        }
    }
}

impl std::error::Error for JsonError {}

/// Appends a step into an object to a path: `.name`, or `["odd name"]`.
pub fn push_key(path: &mut String, key: &str) {
    let is_plain = |c: char| c.is_alphanumeric() || c == '_' || c == '-' || c == '$';
    if !key.is_empty() && key.chars().all(is_plain) {
        path.push('.');
        path.push_str(key);
    } else {
        path.push('[');
        push_string(path, key);
        path.push(']');
    }
}

/// Appends a step into an array to a path.
pub fn push_index(path: &mut String, index: usize) {
    path.push_str(&format!("[{index}]"));
}

/// Returns the length of the string literal at the beginning of JSON text, with its quotes; the whole
/// length if the string has no end.
pub fn string_length(json: &[u8]) -> usize {
    let mut at = 1;
    while let Some(found) = memchr::memchr2(b'"', b'\\', json.get(at..).unwrap_or_default()) {
        at += found + 1;
        if json[at - 1] == b'"' {
            return at;
        }
        at += 1;
    }
    json.len()
}

/// Appends a JSON string literal.
pub fn push_string(out: &mut String, text: &str) {
    out.push('"');
    let mut rest = text;
    // Escaped characters are one byte long, and so never part of another character.
    while let Some(at) = rest.bytes().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f)) {
        out.push_str(&rest[..at]);
        match rest.as_bytes()[at] {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            8 => out.push_str("\\b"),
            12 => out.push_str("\\f"),
            control => out.push_str(&format!("\\u{control:04x}")),
        }
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
    out.push('"');
}

#[cfg(test)]
mod tests {
    use crate::{Instant, List, Map, Set, Uuid, Value};
    use num_bigint::BigInt;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_each_kind_as_its_own() {
        let cases = [
            ("null", "nil"),
            (" true ", "true"),
            ("-7", "-7"),
            ("-0", "0"),
            ("-0.0", "-0.0"),
            ("1.0", "1.0"),
            ("1e2", "100.0"),
            ("9223372036854775808", "9223372036854775808"),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
            (r#""a\"\\\/\b\f\n\r\tA\u00e9\ud83d\ude00ü""#, r#""a\"\\/\u{8}\u{C}\n\r\tAé😀ü""#),
            ("[]", "[]"),
            ("{}", "{}"),
            ("[1, [2, {}], []]", "[1 [2 {}] []]"),
            (
                r#"{"b": 1, "a": {"ns/k": null, "odd key": [{"b": 2}]}}"#,
                r#"{:b 1, :a {:ns/k nil, :"odd key" [{:b 2}]}}"#,
            ),
        ];
        for (json, value) in cases {
            assert_eq!(value_from_json(json).unwrap().pr_str(), value, "{json}");
        }
    }

    #[test]
    fn values_that_json_would_lose_are_refused_with_the_path() {
        let cases = [
            (
                r#"{"items": [0, {"price": 1e400}]}"#,
                "$.items[1].price: 1e400 is beyond the largest number (line 1, column 25)",
            ),
            ("{\"a\": 1,\n \"a\": 2}", "$.a: this key comes twice (line 2, column 6)"),
            (
                r#"{"a": "\ud800"}"#,
                "$.a: half of a surrogate pair is not a character (line 1, column 8)",
            ),
            (
                r#"["\udc00\ud800"]"#,
                "$[0]: half of a surrogate pair is not a character (line 1, column 3)",
            ),
            (
                r#"["\ud800\u0041"]"#,
                "$[0]: half of a surrogate pair is not a character (line 1, column 3)",
            ),
            ("", "$: expected a value, got the end of the text (line 1, column 1)"),
            ("[1", "$[1]: expected `,` or `]`, got the end of the text (line 1, column 3)"),
            ("[1,]", "$[1]: expected a value, got ']' (line 1, column 4)"),
            ("{\"ü b\": x}", "$[\"ü b\"]: expected a value, got 'x' (line 1, column 9)"),
            ("{a: 1}", "$: expected a key in quotes, got 'a' (line 1, column 2)"),
            ("{'a': 1}", "$: expected a key in quotes, got a single quote (line 1, column 2)"),
            ("1 2", "$: expected the end of the text, got '2' (line 1, column 3)"),
            ("01", "$: a number has no leading zeros (line 1, column 1)"),
            ("-", "$: expected a digit, got the end of the text (line 1, column 2)"),
            ("1.e3", "$: expected a digit, got 'e' (line 1, column 3)"),
            ("truth", "$: expected a value, got 't' (line 1, column 1)"),
            ("\"a\nb\"", "$: a control character in a string has to be escaped (line 1, column 3)"),
            (r#""\x""#, "$: unknown escape in a string (line 1, column 2)"),
            (r#""\"#, "$: unknown escape in a string (line 1, column 2)"),
            (r#""\ü"#, "$: unknown escape in a string (line 1, column 2)"),
            (r#""\u00g0""#, "$: `\\u` has to be followed by four hexadecimal digits (line 1, column 4)"),
            (r#""abc"#, "$: the string does not end (line 1, column 5)"),
        ];
        for (json, text) in cases {
            assert_eq!(value_from_json(json).unwrap_err().to_string(), text, "{json}");
        }
        let long = "9".repeat(10_001);
        assert_eq!(
            value_from_json(&long).unwrap_err().problem,
            "an integer of 10001 digits is too long, at most 10000 are possible"
        );
    }

    #[test]
    fn bounds_depth_without_recursion() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert_eq!(value_from_json(&nested(1_000)).unwrap().depth(), 1_000);
        assert_eq!(
            value_from_json(&nested(1_001)).unwrap_err().problem,
            "nested deeper than 1000 levels"
        );
        assert!(value_from_json(&"[".repeat(1_000_000)).is_err());
        assert!(value_from_json(&r#"{"a":"#.repeat(1_000_000)).is_err());
        let deepest = nested(1_000);
        assert_eq!(value_to_json(&value_from_json(&deepest).unwrap()).unwrap(), deepest);
    }

    #[test]
    fn writes_what_only_rtfs_has_as_what_json_has() {
        let mut set = Set::new();
        set.insert(Value::keyword("a/b")).unwrap();
        let mut map = Map::new();
        for (key, value) in [
            (Value::from("text"), Value::Set(set)),
            (Value::from(3), Value::List(List::new(vec![Value::Nil]).unwrap())),
            (Value::keyword("at"), Value::Instant(Instant::from_unix(0, 0).unwrap())),
            (Value::keyword("id"), Value::Uuid(Uuid::from_u128(1))),
        ] {
            map.insert(key, value).unwrap();
        }
        assert_eq!(
            value_to_json(&map.into()).unwrap(),
            r#"{"text":["a/b"],"3":[null],"at":"1970-01-01T00:00:00Z","id":"00000000-0000-0000-0000-000000000001"}"#
        );
    }

    #[test]
    fn refuses_what_json_cannot_say_and_names_the_path() {
        let map = |entries: Vec<(Value, Value)>| {
            let mut map = Map::new();
            for (key, value) in entries {
                map.insert(key, value).unwrap();
            }
            Value::from(map)
        };
        let nan = Value::vector(vec![1.into(), f64::NAN.into()]).unwrap();
        let cases = [
            (map(vec![(Value::keyword("a"), nan)]), "$.a[1]: ##NaN cannot be written as JSON"),
            (Value::from(f64::NEG_INFINITY), "$: ##-Inf cannot be written as JSON"),
            (map(vec![(Value::from(1.5), Value::Nil)]), "$: the key 1.5 cannot be written as JSON"),
            (
                map(vec![(Value::keyword("1"), Value::Nil), (Value::from(1), Value::Nil)]),
                "$.1: two keys become this one in JSON",
            ),
        ];
        for (value, text) in cases {
            assert_eq!(value_to_json(&value).unwrap_err().to_string(), text);
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Nil),
            any::<bool>().prop_map(Value::Bool),
            any::<i64>().prop_map(Value::Int),
            any::<i128>().prop_map(|integer| BigInt::from(integer).into()),
            any::<f64>()
                .prop_filter("JSON has only these", |float| float.is_finite())
                .prop_map(Value::Float),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 64, 12, |inner| {
            let entries = proptest::collection::hash_map(any::<String>(), inner.clone(), 0..12);
            prop_oneof![
                proptest::collection::vec(inner, 0..12).prop_map(|items| Value::vector(items).unwrap()),
                entries.prop_map(|entries| {
                    let mut map = Map::new();
                    for (key, value) in entries {
                        map.insert(Value::keyword(key), value).unwrap();
                    }
                    map.into()
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn written_json_round_trips(value in any_json()) {
            let json = value_to_json(&value).unwrap();
            prop_assert_eq!(&value_from_json(&json).unwrap(), &value);
        }

        #[test]
        fn accepts_what_serde_accepts_and_nothing_else(text in r#"[\[\]{}:,"\\u0-9a-f.eE+\- \n\u{0}tru]{0,24}"#) {
            let ours = value_from_json(&text);
            let theirs = serde_json::from_str::<serde_json::Value>(&text);
            let lossy = ours.as_ref().is_err_and(|error| error.problem.contains("twice"));
            prop_assert!(lossy || ours.is_ok() == theirs.is_ok(), "{:?} {:?}", ours, theirs);
        }
    }
}

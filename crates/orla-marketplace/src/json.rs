//! Helpers for JSON text. The language converts between JSON text and RTFS values ([`rtfs::json`]).

pub use rtfs::json::{JsonError, string_length, value_from_json, value_to_json};
pub(crate) use rtfs::json::{MAX_PATH, push_index, push_key};

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use rtfs::json::push_string;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value as Json;
use serde_json::value::RawValue;

/// The members of a JSON object in their original order, each with the text of its value. Repeated names
/// stay repeated.
#[derive(Debug)]
pub struct RawObject<'a>(pub Vec<(Cow<'a, str>, &'a RawValue)>);

impl RawObject<'_> {
    /// Returns the names that occur more than once.
    pub fn repeated(&self) -> impl Iterator<Item = &str> {
        let mut seen = HashSet::with_capacity(self.0.len());
        self.0.iter().map(|(name, _)| &**name).filter(move |name| !seen.insert(*name))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for RawObject<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        /// A name that is borrowed if the text has no escapes.
        #[derive(Deserialize)]
        struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = RawObject<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some((Name(name), value)) = map.next_entry()? {
                    members.push((name, value));
                }
                Ok(RawObject(members))
            }
        }

        from.deserialize_map(Members)
    }
}

/// Removes the white space around the tokens of valid JSON text, and so all line breaks. Replaces
/// needless escapes (`\u00e9`, `\/`) with the characters themselves: some writers escape all non-ASCII
/// characters, which is hard to read in a shell. Numbers stay unchanged, and so does a string that no
/// text can represent (a lone surrogate).
pub fn compact(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(quote) = rest.find('"') {
        let (outside, string) = rest.split_at(quote);
        out.extend(outside.split_ascii_whitespace());
        let end = string_length(string.as_bytes());
        let literal = &string[..end];
        match literal.contains('\\').then(|| serde_json::from_str::<String>(literal)) {
            Some(Ok(text)) => push_string(&mut out, &text),
            Some(Err(_)) | None => out.push_str(literal),
        }
        rest = &string[end..];
    }
    out.extend(rest.split_ascii_whitespace());
    out
}

/// Converts doubles that are whole numbers to integers, if a double represents them exactly. Where all
/// numbers travel as doubles (a `Struct` of protobuf), a count of 1 would otherwise be 1.0.
pub fn whole_numbers(value: &mut Json) {
    /// The largest range in which a double represents every whole number.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match value {
        Json::Number(number) => {
            let double = number.as_f64().filter(|double| double.fract() == 0.0 && double.abs() <= EXACT);
            if let Some(double) = double {
                *value = Json::from(double as i64);
            }
        }
        Json::Array(items) => items.iter_mut().for_each(whole_numbers),
        Json::Object(members) => members.values_mut().for_each(whole_numbers),
        Json::Null | Json::Bool(_) | Json::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use serde_json::json;

    #[test]
    fn compacting_keeps_numbers_and_unescapes_what_needs_no_escape() {
        let cases = [
            (r#"{"caf\u00e9": "\ud83d\ude00 \/ \u0041"}"#, "{\"café\":\"😀 / A\"}"),
            (r#""\u0022 \u005c \u000a \n \u0000""#, r#""\" \\ \n \n \u0000""#),
            (r#""\ud800 \u00e9""#, r#""\ud800 \u00e9""#),
            (" { \"a b\" : [ 1.10 ,\n\t1e400 ] }\r\n", "{\"a b\":[1.10,1e400]}"),
            (r#"[ "x \" y \\" , "\\" , " " ]"#, r#"["x \" y \\","\\"," "]"#),
            ("7", "7"),
        ];
        for (json, compacted) in cases {
            assert_eq!(compact(json), compacted);
        }
    }

    #[test]
    fn an_object_has_its_members_as_they_are_written() {
        let text = r#" {"b": 1.10, "a\n": [1e400, {"x": 2}], "b":null} "#;
        let object: RawObject<'_> = serde_json::from_str(text).unwrap();
        let members: Vec<_> = object.0.iter().map(|(name, value)| (&**name, value.get())).collect();
        assert_eq!(members, [("b", "1.10"), ("a\n", r#"[1e400, {"x": 2}]"#), ("b", "null")]);
        assert_eq!(object.repeated().collect::<Vec<_>>(), ["b"]);
        for text in ["[1]", "{} {}", "7", "{\"\\ud800\": 1}"] {
            assert!(serde_json::from_str::<RawObject<'_>>(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn compact_json_stays_and_indented_json_becomes_compact(text in ".{0,20}", n in any::<i64>()) {
            let json = serde_json::json!({ "a b": [text, n, { text.clone(): null }], "c": {} });
            prop_assert_eq!(compact(&json.to_string()), json.to_string());
            prop_assert_eq!(compact(&format!("{json:#}")), json.to_string());
        }
    }

    #[test]
    fn numbers_that_are_whole_are_whole_again() {
        let mut value =
            json!({"a": [1.0, -2.0, 1.5, 1e300, "1.0"], "b": {"c": 9_007_199_254_740_992.0}, "d": null});
        whole_numbers(&mut value);
        assert_eq!(
            value.to_string(),
            r#"{"a":[1,-2,1.5,1e+300,"1.0"],"b":{"c":9007199254740992},"d":null}"#
        );
    }
}

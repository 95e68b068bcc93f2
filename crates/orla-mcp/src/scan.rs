//! Scans the members of an object whose text is known to be JSON, without parsing it again.
//!
//! A result was checked with its message. Only the ends of its values are searched here. Strings are
//! skipped and nothing is decoded, which costs a small part of parsing it again.

use std::ops::Range;

use orla_marketplace::json::string_length;

/// The members of an object, in order: the text between the quotes of each key, and the range of its
/// value.
///
/// The text must be one JSON value. A value that is not an object has no members.
pub(super) struct Members<'a> {
    text: &'a [u8],
    at: usize,
}

/// See [`Members`].
pub(super) fn members(text: &[u8]) -> Members<'_> {
    let open = blank(text, 0);
    let at = if text.get(open) == Some(&b'{') { open + 1 } else { text.len() };
    Members { text, at }
}

/// Returns the range of the item of a list that has only one.
///
/// The text must be one JSON value.
pub(super) fn only_item(text: &[u8]) -> Option<Range<usize>> {
    let open = blank(text, 0);
    let start = blank(text, open + 1);
    if text.get(open) != Some(&b'[') || text.get(start) == Some(&b']') {
        return None;
    }
    let end = value(text, start);
    (text.get(blank(text, end)) == Some(&b']')).then_some(start..end)
}

impl<'a> Iterator for Members<'a> {
    type Item = (&'a [u8], Range<usize>);

    fn next(&mut self) -> Option<Self::Item> {
        let mut at = blank(self.text, self.at);
        if self.text.get(at) == Some(&b',') {
            at = blank(self.text, at + 1);
        }
        if self.text.get(at) != Some(&b'"') {
            self.at = self.text.len();
            return None;
        }
        let end = at + string_length(&self.text[at..]);
        let key = self.text.get(at + 1..end.checked_sub(1)?)?;
        let colon = blank(self.text, end);
        let start = blank(self.text, colon + 1);
        let end = value(self.text, start);
        self.at = end;
        (start < end).then_some((key, start..end))
    }
}

/// Returns the first index from `at` on that is not white space.
fn blank(text: &[u8], at: usize) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    at + rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count()
}

/// Returns the index after the value that begins at `at`.
fn value(text: &[u8], mut at: usize) -> usize {
    let mut depth = 0_usize;
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => at += string_length(&text[at..]),
            b'{' | b'[' => {
                depth += 1;
                at += 1;
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                at += 1;
            }
            // Separators and spaces between the values of a list or an object.
            b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' => at += 1,
            _ => {
                let rest = &text[at..];
                let is_over =
                    |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r');
                at += rest.iter().position(is_over).unwrap_or(rest.len());
            }
        }
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Object;
    use proptest::prelude::*;

    fn scanned(text: &str) -> Vec<(String, String)> {
        let text_of = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let found = members(text.as_bytes());
        found.map(|(key, range)| (text_of(key), text_of(&text.as_bytes()[range]))).collect()
    }

    #[test]
    fn members_are_found_between_white_space() {
        let text = " { \"a\" : 1.10 ,\n\"b\":\"x\\\"}, \\\\\" , \"c\\\"\": [ {\"d\": [1, {}]}, \"]\" ] ,\"e\":null}";
        let expected = [
            ("a", "1.10"),
            ("b", r#""x\"}, \\""#),
            (r#"c\""#, r#"[ {"d": [1, {}]}, "]" ]"#),
            ("e", "null"),
        ];
        assert_eq!(scanned(text), expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
        for text in ["{}", " { } ", "[1]", "7", "\"{\""] {
            assert!(scanned(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn the_item_of_a_list_is_found_if_it_is_the_only_one() {
        for (text, item) in [
            ("[1]", Some("1")),
            (" [ {\"a\": \"]\"} ] ", Some("{\"a\": \"]\"}")),
            ("[[1,2]]", Some("[1,2]")),
            ("[1, 2]", None),
            ("[]", None),
            ("{\"a\": 1}", None),
            ("7", None),
        ] {
            assert_eq!(only_item(text.as_bytes()).map(|range| &text[range]), item, "{text}");
        }
    }

    fn json() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            Just("null".to_owned()),
            Just("true".to_owned()),
            "-?(0|[1-9][0-9]{0,6})(\\.[0-9]{1,3})?",
            any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            let blank = "[ \n]{0,2}";
            let list = proptest::collection::vec((blank, inner.clone(), blank), 0..5);
            let object = proptest::collection::vec((any::<String>(), blank, inner, blank), 0..5);
            prop_oneof![
                list.prop_map(|items| {
                    let items: Vec<String> =
                        items.into_iter().map(|(a, item, b)| a + &item + &b).collect();
                    format!("[{}]", items.join(","))
                }),
                object.prop_map(|members| {
                    let member = |(key, a, value, b): (String, String, String, String)| {
                        format!("{a}{}{b}:{a}{value}{b}", serde_json::to_string(&key).unwrap())
                    };
                    format!("{{{}}}", members.into_iter().map(member).collect::<Vec<_>>().join(","))
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn scanned_members_equal_parsed_members(text in json()) {
            let read: Vec<(String, String)> = Object::parse(&text).map_or_else(Vec::new, |object| {
                object.members().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
            });
            let scanned: Vec<(String, String)> = scanned(&text)
                .into_iter()
                .map(|(key, value)| (serde_json::from_str(&format!("\"{key}\"")).unwrap(), value))
                .collect();
            prop_assert_eq!(scanned, read);
        }

        #[test]
        fn any_bytes_make_no_trouble(bytes in proptest::collection::vec(any::<u8>(), 0..100), text in "[{}\\[\\]\",:\\\\ 1a]{0,30}") {
            let _ = (members(&bytes).count(), members(text.as_bytes()).count());
            let _ = (only_item(&bytes), only_item(text.as_bytes()));
        }
    }
}

//! Assembles the calls of an answer in OpenAI's format from their parts.
//!
//! Servers of every kind use this format, so no value that they send is used as a size or a position. A
//! part without the name of a capability continues the previous call. Some servers repeat the name in
//! every part, and some give all calls the same id. Both variants are understood.

use genai::chat::ToolCall;
use serde_json::Value;

/// The size of a call besides its name and its arguments, in bytes, so that calls are bounded too.
const CALL: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Calls {
    calls: Vec<Part>,
    /// Bytes of all calls.
    pub(super) size: usize,
}

#[derive(Debug)]
struct Part {
    id: String,
    name: String,
    arguments: String,
}

impl Calls {
    /// Takes the next part.
    pub(super) fn push(&mut self, part: ToolCall) {
        let ToolCall { call_id, fn_name, fn_arguments, .. } = part;
        let arguments = match fn_arguments {
            Value::String(text) => text,
            Value::Null => String::new(),
            // Some servers send an object instead of its text.
            whole => whole.to_string(),
        };
        self.size += fn_name.len() + arguments.len();
        let begins =
            |last: &Part| !fn_name.is_empty() && (last.id != call_id || is_whole(&last.arguments));
        match self.calls.last_mut() {
            Some(last) if !begins(last) => last.arguments.push_str(&arguments),
            _ => {
                self.size += CALL;
                self.calls.push(Part { id: call_id, name: fn_name, arguments });
            }
        }
    }

    /// Returns all calls, each with its own id. Arguments that are not JSON stay text.
    pub(super) fn finish(self) -> Vec<ToolCall> {
        let mut calls: Vec<ToolCall> = Vec::with_capacity(self.calls.len());
        for Part { id, name, arguments } in self.calls {
            let is_taken = id.is_empty() || calls.iter().any(|call| call.call_id == id);
            calls.push(ToolCall {
                call_id: if is_taken { format!("{id}_{}", calls.len()) } else { id },
                fn_name: name,
                fn_arguments: serde_json::from_str(&arguments).unwrap_or(Value::String(arguments)),
                thought_signatures: None,
            });
        }
        calls
    }
}

fn is_whole(arguments: &str) -> bool {
    arguments.ends_with('}') && serde_json::from_str::<serde::de::IgnoredAny>(arguments).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn calls(parts: &[(&str, &str, &str)]) -> Vec<(String, String, Value)> {
        let mut calls = Calls::default();
        for (id, name, arguments) in parts {
            calls.push(ToolCall {
                call_id: (*id).to_owned(),
                fn_name: (*name).to_owned(),
                fn_arguments: (*arguments).into(),
                thought_signatures: None,
            });
        }
        let calls = calls.finish().into_iter();
        calls.map(|call| (call.call_id, call.fn_name, call.fn_arguments)).collect()
    }

    #[test]
    fn parts_are_put_together_as_servers_of_all_kinds_mean_them() {
        let one = |id: &str, name: &str, value: Value| (id.to_owned(), name.to_owned(), value);
        let cases = [
            // As OpenAI sends them.
            (
                &[("a", "f", ""), ("call_0", "", "{\"n\""), ("call_0", "", ":1}"), ("b", "g", "{}")][..],
                vec![one("a", "f", json!({"n": 1})), one("b", "g", json!({}))],
            ),
            // The name in every part.
            (&[("a", "f", "{\"n\""), ("a", "f", ":1}")], vec![one("a", "f", json!({"n": 1}))]),
            // Whole calls under one id.
            (
                &[("call_0", "f", "{}"), ("call_0", "g", "{}"), ("call_0", "f", "{}")],
                vec![
                    one("call_0", "f", json!({})),
                    one("call_0_1", "g", json!({})),
                    one("call_0_2", "f", json!({})),
                ],
            ),
            (&[("", "f", "{"), ("", "", "oops")], vec![one("_0", "f", json!("{oops"))]),
            (&[("a", "", "{}")], vec![one("a", "", json!({}))]),
            (&[], vec![]),
        ];
        for (parts, expected) in cases {
            assert_eq!(calls(parts), expected, "{parts:?}");
        }
    }

    proptest! {
        /// For any input, no part is lost and no id occurs twice.
        #[test]
        fn nothing_is_lost(parts in prop::collection::vec(("[ab]?", "[fg]?", r#"[{}":1]{0,3}"#), 0..12)) {
            let parts: Vec<(&str, &str, &str)> =
                parts.iter().map(|(id, name, text)| (id.as_str(), name.as_str(), text.as_str())).collect();
            let calls = calls(&parts);
            let mut ids: Vec<&String> = calls.iter().map(|(id, ..)| id).collect();
            let count = ids.len();
            ids.sort();
            ids.dedup();
            prop_assert!(ids.len() == count && count <= parts.len());
        }
    }
}

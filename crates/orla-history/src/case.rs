//! A call as a case for `orla test`. No I/O.

use orla_marketplace::json::RawObject;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::call::{Body, Detail, Node, Row, millis};

/// Kinds of capabilities that compute within the process: a case runs them, and does not replay their answers.
const COMPUTED: [&str; 3] = ["local", "rtfs", "discovery"];

/// The maximum depth at which matchers are inserted.
const MAX_DEPTH: usize = 100;

/// Returns the ids of the calls within a call whose answers a case replays: the innermost ones that
/// leave the process.
pub fn recorded(detail: &Detail) -> Vec<&str> {
    fn walk<'n>(nodes: &'n [Node], found: &mut Vec<&'n str>) {
        for node in nodes {
            match node.children.iter().all(|child| child.call.is_request()) {
                true if !COMPUTED.contains(&&*node.call.kind) && !node.call.is_request() => {
                    found.push(&node.call.id);
                }
                _ => walk(&node.children, found),
            }
        }
    }
    let mut found = Vec::new();
    walk(&detail.children, &mut found);
    found
}

/// Returns the case of a call, as JSON. `within` contains the rows of [`recorded`]. Texts that differ
/// each time, such as times, become matchers. Numbers keep their text.
///
/// # Errors
///
/// Returns which body was not kept as a whole, or that the row is no call of a capability.
pub fn case(row: &Row, within: &[Row]) -> Result<String, String> {
    if row.call.is_request() {
        return Err(format!("{}: a {} is not tested by a case", row.call.id, row.call.kind));
    }
    let name = Value::from(format!("{} {}", row.call.capability, row.call.id));
    let capability = Value::from(&*row.call.capability);
    let input = body(row, "input", row.input.as_ref())?;
    let expect = match row.call.is_failed() {
        true => json!({"error": row.call.outcome}).to_string(),
        false => {
            let mut out = String::from("{\"output\":");
            loosen(body(row, "output", row.output.as_ref())?, 0, &mut out);
            out + "}"
        }
    };
    let calls = within.iter().map(call).collect::<Result<Vec<_>, _>>()?;
    let calls = match calls.is_empty() {
        true => String::new(),
        false => format!(",\"calls\":[{}]", calls.join(",")),
    };
    Ok(format!(
        "{{\"name\":{name},\"capability\":{capability},\"input\":{input},\"expect\":{expect}{calls}}}"
    ))
}

fn call(row: &Row) -> Result<String, String> {
    let capability = Value::from(&*row.call.capability);
    let input = body(row, "input", row.input.as_ref())?;
    let answer = match row.call.is_failed() {
        true => {
            let error = json!({"kind": row.call.outcome, "message": row.error});
            format!("\"error\":{error}")
        }
        false => format!("\"output\":{}", body(row, "output", row.output.as_ref())?),
    };
    let took = millis(row.call.duration);
    Ok(format!("{{\"capability\":{capability},\"input\":{input},{answer},\"duration_ms\":{took}}}"))
}

fn body<'b>(row: &Row, what: &str, body: Option<&'b Body>) -> Result<&'b str, String> {
    body.and_then(Body::original).ok_or_else(|| {
        let why = "only the beginning of it (history.max_body_bytes), or a part of it is a secret";
        format!("{}: its whole {what} was not kept: {why}", row.call.id)
    })
}

/// Writes JSON with matchers in place of values that differ each time.
fn loosen(json: &str, depth: usize, out: &mut String) {
    let json = json.trim();
    let is = |first| depth < MAX_DEPTH && json.starts_with(first);
    let separate = |out: &mut String, at: usize| {
        if at > 0 {
            out.push(',');
        }
    };
    if is('{')
        && let Ok(RawObject(members)) = serde_json::from_str(json)
    {
        out.push('{');
        for (at, (name, value)) in members.iter().enumerate() {
            separate(out, at);
            out.push_str(&Value::from(&**name).to_string());
            out.push(':');
            loosen(value.get(), depth + 1, out);
        }
        out.push('}');
    } else if is('[')
        && let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(json)
    {
        out.push('[');
        for (at, value) in items.iter().enumerate() {
            separate(out, at);
            loosen(value.get(), depth + 1, out);
        }
        out.push(']');
    } else if differs(json) {
        out.push_str(r#"{"$type":"string"}"#);
    } else {
        out.push_str(json);
    }
}

/// Returns whether this is a text that differs each time: a time or a UUID.
fn differs(json: &str) -> bool {
    let text: Option<String> = json.starts_with('"').then(|| serde_json::from_str(json).ok()).flatten();
    text.is_some_and(|text| text.parse::<jiff::Timestamp>().is_ok() || is_uuid(&text))
}

/// Formats JSON over several lines, indented by two spaces per level. Numbers and texts are unchanged.
pub fn indented(json: &str) -> String {
    let mut out = String::with_capacity(json.len() * 2);
    let (mut depth, mut is_text, mut is_escaped) = (0_usize, false, false);
    let line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n("  ", depth));
    };
    let mut chars = json.chars().peekable();
    while let Some(c) = chars.next() {
        if is_text {
            out.push(c);
            is_text = is_escaped || c != '"';
            is_escaped = c == '\\' && !is_escaped;
            continue;
        }
        match c {
            ' ' | '\t' | '\n' | '\r' => {}
            '{' | '[' => {
                out.push(c);
                while chars.next_if(char::is_ascii_whitespace).is_some() {}
                match chars.next_if(|next| matches!(next, '}' | ']')) {
                    Some(end) => out.push(end),
                    None => {
                        depth += 1;
                        line(&mut out, depth);
                    }
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c => {
                is_text = c == '"';
                out.push(c);
            }
        }
    }
    out
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varying_values_become_matchers() {
        let mut out = String::new();
        loosen(
            r#"{"at": "2026-11-20T08:00:00Z", "id": "0198c5f2-1111-7222-8333-444455556666", "n": [1.10, "x", 18446744073709551617]}"#,
            0,
            &mut out,
        );
        assert_eq!(
            out,
            r#"{"at":{"$type":"string"},"id":{"$type":"string"},"n":[1.10,"x",18446744073709551617]}"#
        );
    }

    #[test]
    fn json_is_indented_and_keeps_its_texts() {
        let json = r#"[ {"a b":1.10,"c":"{\\\",[","d":[ ],"e":{}} ]"#;
        let expected = "[\n  {\n    \"a b\": 1.10,\n    \"c\": \"{\\\\\\\",[\",\n    \"d\": [],\n    \"e\": {}\n  }\n]";
        assert_eq!(indented(json), expected);
    }
}

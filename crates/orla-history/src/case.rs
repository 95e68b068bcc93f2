//! A call as a case for `orla test`. No I/O.

use serde_json::{Map, Value, json};

use crate::call::{Body, Detail, Node, Row};

/// Kinds of capabilities that compute within the process: a case runs them, and does not replay their answers.
const COMPUTED: [&str; 4] = ["local", "rtfs", "program", "discovery"];

/// The ids of the calls within a call whose answers a case replays: the innermost ones that leave the process.
pub fn recorded(detail: &Detail) -> Vec<&str> {
    fn walk<'n>(nodes: &'n [Node], found: &mut Vec<&'n str>) {
        for node in nodes {
            match node.children.is_empty() {
                true if !COMPUTED.contains(&&*node.call.kind) => found.push(&node.call.id),
                _ => walk(&node.children, found),
            }
        }
    }
    let mut found = Vec::new();
    walk(&detail.children, &mut found);
    found
}

/// The case of a call; `within` are the rows of [`recorded`]. Texts that differ each time, such as times, become matchers.
///
/// # Errors
/// Says which body was not kept as a whole.
pub fn case(row: &Row, within: &[Row]) -> Result<Value, String> {
    let mut case = Map::new();
    case.insert("name".to_owned(), format!("{} {}", row.call.capability, row.call.id).into());
    case.insert("capability".to_owned(), row.call.capability.clone().into());
    case.insert("input".to_owned(), body(row, "input", row.input.as_ref())?);
    let expect = match row.call.is_failed() {
        true => json!({"error": row.call.outcome}),
        false => {
            let mut output = body(row, "output", row.output.as_ref())?;
            loosen(&mut output);
            json!({ "output": output })
        }
    };
    case.insert("expect".to_owned(), expect);
    if !within.is_empty() {
        let calls = within.iter().map(call).collect::<Result<Vec<_>, _>>()?;
        case.insert("calls".to_owned(), calls.into());
    }
    Ok(case.into())
}

fn call(row: &Row) -> Result<Value, String> {
    let (capability, input) = (&row.call.capability, body(row, "input", row.input.as_ref())?);
    Ok(match row.call.is_failed() {
        true => json!({"capability": capability, "input": input,
            "error": {"kind": row.call.outcome, "message": row.error}}),
        false => {
            let output = body(row, "output", row.output.as_ref())?;
            json!({"capability": capability, "input": input, "output": output})
        }
    })
}

fn body(row: &Row, what: &str, body: Option<&Body>) -> Result<Value, String> {
    let missing = || {
        let why = "only the beginning of it (history.max_body_bytes), or a part of it is a secret";
        format!("{}: its whole {what} was not kept: {why}", row.call.id)
    };
    serde_json::from_str(body.and_then(Body::original).ok_or_else(missing)?)
        .map_err(|err| format!("{}: its {what} cannot be read: {err}", row.call.id))
}

/// Replaces what differs each time by matchers.
fn loosen(value: &mut Value) {
    match value {
        Value::String(text) if text.parse::<jiff::Timestamp>().is_ok() || is_uuid(text) => {
            *value = json!({"$type": "string"});
        }
        Value::Array(items) => items.iter_mut().for_each(loosen),
        Value::Object(members) => members.values_mut().for_each(loosen),
        _ => {}
    }
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
    fn what_differs_each_time_becomes_a_matcher() {
        let mut value = json!({"at": "2026-11-20T08:00:00Z", "id": "0198c5f2-1111-7222-8333-444455556666", "n": [1, "x"]});
        loosen(&mut value);
        assert_eq!(value, json!({"at": {"$type": "string"}, "id": {"$type": "string"}, "n": [1, "x"]}));
    }
}

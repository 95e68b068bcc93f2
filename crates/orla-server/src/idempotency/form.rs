//! What tells one call from another: the capability and the input, in one form. No I/O.

use std::collections::BTreeMap;

use orla_marketplace::JsonText;
use orla_marketplace::id::mcp_name;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

/// Returns the fingerprint of a call. It is the same for every way to write its input.
pub(super) fn fingerprint(id: &str, input: &JsonText) -> String {
    // Ids and MCP names are the same call, also while the capability is not there.
    let mut form = format!("{}\n", mcp_name(id));
    push_form(&mut form, input.as_str(), 0);
    hash(form.as_bytes())
}

/// Returns the first 128 bits of a text's hash.
pub(super) fn hash(text: &[u8]) -> String {
    hex::encode(&Sha256::digest(text)[..16])
}

/// Writes JSON in one form for each value: without spaces, with sorted members, numbers as they were written. What is
/// nested deeper than usual is written as it is, since each level is read again.
fn push_form(out: &mut String, json: &str, depth: usize) {
    const MAX_DEPTH: usize = 16;
    let json = json.trim();
    if depth < MAX_DEPTH
        && json.starts_with('{')
        && let Ok(members) = serde_json::from_str::<BTreeMap<String, &RawValue>>(json)
    {
        out.push('{');
        for (key, value) in members {
            out.push_str(&serde_json::to_string(&key).unwrap_or_default());
            out.push(':');
            push_form(out, value.get(), depth + 1);
            out.push(',');
        }
        out.push('}');
    } else if depth < MAX_DEPTH
        && json.starts_with('[')
        && let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(json)
    {
        out.push('[');
        for item in items {
            push_form(out, item.get(), depth + 1);
            out.push(',');
        }
        out.push(']');
    } else if let Ok(text) = serde_json::from_str::<String>(json) {
        out.push_str(&serde_json::to_string(&text).unwrap_or_default());
    } else {
        out.push_str(json);
    }
}

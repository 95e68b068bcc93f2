//! Identifies a call by its capability and its input, in a canonical form. No I/O.

use std::collections::BTreeMap;

use orla_marketplace::JsonText;
use orla_marketplace::id::mcp_name;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

/// Returns the fingerprint of a call. All notations of the same input have the same fingerprint.
pub(super) fn fingerprint(id: &str, input: &JsonText) -> String {
    // An id and its MCP name identify the same call, even while the capability is absent.
    let mut form = format!("{}\n", mcp_name(id));
    push_form(&mut form, input.as_str(), 0);
    hash(form.as_bytes())
}

/// Returns the first 128 bits of a text's hash.
pub(super) fn hash(text: &[u8]) -> String {
    hex::encode(&Sha256::digest(text)[..16])
}

/// Writes JSON in a canonical form: without spaces, with sorted members, and with numbers as they were
/// written. A value that is nested too deeply is copied unchanged, since each level is read again.
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

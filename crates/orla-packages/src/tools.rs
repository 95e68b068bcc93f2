//! The list of a package's tools: its digest, and the differences between two lists. No I/O.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::sha256;

/// A tool in its package's description.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    /// The name, without the package's prefix.
    pub name: String,
    /// The title for users.
    #[serde(default)]
    pub title: Option<String>,
    /// The description.
    pub description: String,
    /// The JSON Schema of its input; `null` if there is none.
    pub input: Value,
    /// The JSON Schema of its output; `null` if there is none.
    pub output: Value,
    /// Its annotations; `null` if it has none.
    pub annotations: Value,
}

/// A difference between two lists of tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The previous tool; `None` if it is new.
    pub old: Option<Tool>,
    /// The current tool; `None` if it was removed.
    pub new: Option<Tool>,
}

/// Returns the digest of tools. It does not depend on their order, nor on the order of members.
pub fn digest(tools: &[Tool]) -> String {
    let mut sorted: Vec<&Tool> = tools.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    let mut form = String::new();
    for tool in sorted {
        push(&mut form, &serde_json::to_value(tool).unwrap_or_default());
        form.push('\n');
    }
    sha256(form.as_bytes())
}

/// Returns the digest of each tool, by its name.
pub fn digests(tools: &[Tool]) -> BTreeMap<String, String> {
    tools.iter().map(|tool| (tool.name.clone(), digest(std::slice::from_ref(tool)))).collect()
}

/// Writes JSON with sorted members and without spaces.
fn push(out: &mut String, value: &Value) {
    match value {
        Value::Object(members) => {
            out.push('{');
            for (key, value) in members.iter().collect::<BTreeMap<_, _>>() {
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push(':');
                push(out, value);
                out.push(',');
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for item in items {
                push(out, item);
                out.push(',');
            }
            out.push(']');
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}

/// Returns the differences, by name.
pub fn changes(old: &[Tool], new: &[Tool]) -> Vec<Change> {
    let by_name = |tools: &[Tool]| -> BTreeMap<String, Tool> {
        tools.iter().map(|tool| (tool.name.clone(), tool.clone())).collect()
    };
    let (old, mut new) = (by_name(old), by_name(new));
    let mut changes = Vec::new();
    for (name, old) in old {
        let new = new.remove(&name);
        let is_same = new
            .as_ref()
            .is_some_and(|new| digest(std::slice::from_ref(new)) == digest(std::slice::from_ref(&old)));
        if !is_same {
            changes.push(Change { old: Some(old), new });
        }
    }
    changes.extend(new.into_values().map(|tool| Change { old: None, new: Some(tool) }));
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tool(name: &str, description: &str, input: Value) -> Tool {
        let description = description.to_owned();
        Tool { name: name.to_owned(), description, input, ..Tool::default() }
    }

    #[test]
    fn order_does_not_matter_and_any_word_does() {
        let a = tool("a", "A.", json!({"type": "object", "properties": {"x": {"type": "string"}}}));
        let b = tool("b", "B.", json!(null));
        let again = tool("a", "A.", json!({"properties": {"x": {"type": "string"}}, "type": "object"}));
        assert_eq!(digest(&[a.clone(), b.clone()]), digest(&[b.clone(), again]));
        for other in [
            tool("a", "A!", a.input.clone()),
            tool("c", "A.", a.input.clone()),
            tool("a", "A.", json!({})),
        ] {
            assert_ne!(digest(std::slice::from_ref(&a)), digest(&[other]));
        }
        let new = tool("a", "Other.", a.input.clone());
        let c = tool("c", "C.", json!(null));
        assert_eq!(
            changes(&[a.clone(), b.clone()], &[new.clone(), c.clone()]),
            [
                Change { old: Some(a), new: Some(new) },
                Change { old: Some(b), new: None },
                Change { old: None, new: Some(c) }
            ]
        );
    }
}

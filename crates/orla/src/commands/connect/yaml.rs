//! Sets one extension in Goose's YAML and leaves every other line unchanged.
//!
//! The lines of the entry are inserted into the file, and the result is parsed again. If anything but
//! the entry differs, the file is not written.

use orla_document::{Kind, Node, parse};
use serde_json::{Value, json};

const BELOW: &str = "extensions";

/// Returns whether `extensions.KEY` exists.
pub(super) fn has(text: &str, key: &str) -> bool {
    let Ok(root) = read(text) else { return false };
    member(root.as_ref(), BELOW).is_some_and(|extensions| member(Some(extensions), key).is_some())
}

/// Sets `extensions.KEY`, and creates missing parts.
///
/// # Errors
///
/// Returns why the file cannot be edited.
pub(super) fn set(text: &str, key: &str, own: &Value) -> Result<String, String> {
    let old = read(text)?;
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let extensions = member(old.as_ref(), BELOW);
    match extensions.map(|node| &node.kind) {
        None => {
            lines.push(format!("{BELOW}:"));
            lines.extend(entry(key, own, "  "));
        }
        Some(Kind::Map(pairs)) if !pairs.is_empty() => {
            let (first, _) = &pairs[0];
            let indent = " ".repeat(first.at.column - 1);
            let at = match pairs.iter().find(|(name, _)| name.text == key) {
                Some((name, _)) => {
                    let start = name.at.line - 1;
                    let more = |line: &String| line.trim().is_empty() || indent_of(line) > indent.len();
                    let end =
                        start + 1 + lines[start + 1..].iter().take_while(|line| more(line)).count();
                    lines.drain(start..end);
                    start
                }
                None => first.at.line - 1,
            };
            lines.splice(at..at, entry(key, own, &indent));
        }
        Some(_) => {
            let empty = [format!("{BELOW}:"), format!("{BELOW}: {{}}")];
            let at = lines.iter().position(|line| empty.iter().any(|empty| line.trim_end() == empty));
            let at = at.ok_or_else(|| format!("{BELOW} is written in a form that cannot be edited"))?;
            lines[at] = format!("{BELOW}:");
            lines.splice(at + 1..at + 1, entry(key, own, "  "));
        }
    }
    let new = format!("{}\n", lines.join("\n"));
    let kept = without(old.as_ref(), key) == without(read(&new)?.as_ref(), key);
    if kept {
        Ok(new)
    } else {
        Err("the file is written in a form that cannot be edited safely".to_owned())
    }
}

/// Returns the lines of an extension. `own` contains its type and the members of that type.
fn entry(key: &str, own: &Value, indent: &str) -> Vec<String> {
    let (enabled, name, timeout) = (json!(true), json!(key), json!(300));
    let description = json!("The tools that orla serves");
    let common = [("enabled", &enabled), ("name", &name), ("description", &description)];
    let own = own.as_object().into_iter().flatten().map(|(key, value)| (key.as_str(), value));
    // JSON's texts, lists and objects are YAML's too.
    let line = |(key, value): (&str, &Value)| format!("{indent}  {key}: {value}");
    let lines = common.into_iter().chain(own).chain([("timeout", &timeout)]).map(line);
    std::iter::once(format!("{indent}{key}:")).chain(lines.collect::<Vec<_>>()).collect()
}

fn read(text: &str) -> Result<Option<Node>, String> {
    let root = parse(text).map_err(|err| err.to_string())?;
    match &root {
        Some(Node { kind: Kind::Map(_), .. }) | None => Ok(root),
        Some(_) => Err("1:1: expected a mapping".to_owned()),
    }
}

fn member<'a>(node: Option<&'a Node>, key: &str) -> Option<&'a Node> {
    match node.map(|node| &node.kind) {
        Some(Kind::Map(pairs)) => pairs.iter().find(|(name, _)| name.text == key).map(|(_, node)| node),
        _ => None,
    }
}

/// Everything in the file but the entry, without places, to be compared.
fn without(root: Option<&Node>, key: &str) -> Vec<String> {
    fn walk(node: &Node, path: &str, skip: &str, out: &mut Vec<String>) {
        match &node.kind {
            _ if path == skip => {}
            Kind::Scalar(scalar) if scalar.is_null() => {}
            Kind::Scalar(scalar) => out.push(format!("{path}={scalar:?}")),
            Kind::List(items) => {
                items
                    .iter()
                    .enumerate()
                    .for_each(|(n, item)| walk(item, &format!("{path}/{n}"), skip, out));
            }
            Kind::Map(pairs) => {
                pairs
                    .iter()
                    .for_each(|(name, node)| walk(node, &format!("{path}/{}", name.text), skip, out));
            }
        }
    }
    let mut out = Vec::new();
    if let Some(root) = root {
        walk(root, "", &format!("/{BELOW}/{key}"), &mut out);
    }
    out
}

fn indent_of(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set_orla(text: &str) -> Result<String, String> {
        let own = json!({"type": "stdio", "cmd": "/bin/orla", "args": ["--stdio"], "envs": {}});
        set(text, "orla", &own)
    }

    const ENTRY: &str = "  orla:\n    enabled: true\n    name: \"orla\"\n    description: \"The tools that orla serves\"\n    type: \"stdio\"\n    cmd: \"/bin/orla\"\n    args: [\"--stdio\"]\n    envs: {}\n    timeout: 300\n";

    #[test]
    fn the_entry_is_added_to_files_of_every_shape() {
        let cases = [
            ("", format!("extensions:\n{ENTRY}")),
            ("# mine\nGOOSE_MODEL: x\n", format!("# mine\nGOOSE_MODEL: x\nextensions:\n{ENTRY}")),
            ("extensions: {}\na: 1\n", format!("extensions:\n{ENTRY}a: 1\n")),
            (
                "extensions:\n  a: # note\n    cmd: x\nb: 1\n",
                format!("extensions:\n{ENTRY}  a: # note\n    cmd: x\nb: 1\n"),
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(set_orla(text).unwrap(), expected, "{text}");
            assert_eq!(set_orla(&expected).unwrap(), expected, "twice: {text}");
        }
    }

    #[test]
    fn an_old_entry_is_replaced() {
        let text = "extensions:\n  orla:\n    cmd: old\n\n    args: []\n  b:\n    cmd: y\n";
        assert_eq!(set_orla(text).unwrap(), format!("extensions:\n{ENTRY}  b:\n    cmd: y\n"));
    }

    #[test]
    fn files_that_cannot_be_edited_safely_are_refused() {
        for text in ["extensions: {a: {cmd: x}}\n", "- a\n", "a: [\n", "extensions: 7\n", "a: 1\n...\n"]
        {
            assert!(set_orla(text).is_err(), "{text}");
        }
    }
}

//! `approve`: the calls that a person has to approve.

use std::time::Duration;

use orla_document::{Kind as Shape, Node};
use orla_marketplace::{ApprovalRule, HINTS, meant_hint};
use serde_json::{Value, json};

use super::Config;
use super::access::CALLERS;
use super::forms::{Flag, Form, Read, Span};
use super::keys::{Key, key, object};
use super::read::{Reader, excerpt, unexpected};
use super::subjects::SERVED;
use crate::text::list_of;

const RULES: &str = "a list of rules (with capabilities, annotations, to, expires, by)";
/// The longest that a call may wait for its approval.
const MAX_EXPIRES: Duration = Duration::from_secs(7 * 86_400);

#[rustfmt::skip] // A table: each key has a line for its value and one for its meaning.
fn rule_keys() -> Vec<Key<ApprovalRule>> {
    vec![
        key("capabilities", SERVED, |r| &mut r.capabilities,
            "name patterns of capabilities; all by default"),
        key("annotations", Read(read_annotations, annotations_schema), |r| &mut r.annotations,
            "MCP annotations that the capability must declare with these values, such as `destructiveHint: true`"),
        key("to", CALLERS, |r| &mut r.to,
            "callers: name patterns, `group:NAME`, `scope:NAME`, `token:NAME`, `cert:NAME` or `anonymous`; all by default"),
        key("expires", Span(MAX_EXPIRES), |r| &mut r.expires,
            "how long a call waits for its approval, such as `30s` or `5m`"),
        key("by", CALLERS, |r| &mut r.by,
            "callers who may approve; by default, the caller's own client and those with the permission `approvals:answer`"),
    ]
}

pub(super) fn read(reader: &mut Reader<'_>, config: &mut Config, path: &str, node: &Node) {
    let Shape::List(items) = &node.kind else {
        return reader.problem(node.at, || format!("{path}{}", unexpected(RULES, node)));
    };
    let (keys, mut rules) = (rule_keys(), Vec::new());
    for (index, item) in items.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let mut rule = ApprovalRule::new(path.clone());
        let Some(pairs) = reader.pairs(&path, item, "a mapping with capabilities or annotations") else {
            continue;
        };
        if reader.mapping(&path, item.at, pairs, &keys, &mut rule).is_some() {
            rules.push(rule);
        }
    }
    config.approve = rules;
}

fn read_annotations(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Vec<(String, bool)>> {
    let pairs = reader.pairs(path, node, "a mapping from MCP annotations to true or false")?;
    let mut annotations = Vec::with_capacity(pairs.len());
    for (name, node) in pairs {
        if !HINTS.contains(&name.text.as_str()) {
            let hint = match meant_hint(&name.text) {
                Some(meant) => format!(", did you mean {meant}?"),
                None => format!(": expected {}", list_of(&HINTS)),
            };
            let shown = excerpt(&name.text);
            reader.problem(name.at, || format!("{path}.{shown}: unknown annotation{hint}"));
            return None;
        }
        annotations
            .push((name.text.clone(), Flag.read(reader, &format!("{path}.{}", name.text), node)?));
    }
    Some(annotations)
}

fn annotations_schema() -> Value {
    let hint = |name: &str| (name.to_owned(), json!({"type": "boolean"}));
    let hints: serde_json::Map<String, Value> = HINTS.into_iter().map(hint).collect();
    json!({"type": "object", "properties": hints, "additionalProperties": false})
}

pub(super) fn schema() -> Value {
    json!({"type": "array", "items": object(&rule_keys(), &mut ApprovalRule::new(""))})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(rules: &str) -> Result<Vec<ApprovalRule>, String> {
        let config = Config::of(&format!("approve: {rules}\n"));
        config
            .map(|config| config.approve)
            .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
    }

    #[test]
    fn a_rule_is_read_with_its_time() {
        let rules = read(
            "[{capabilities: [rm], expires: 3s, by: [ada, 'group:ops']}, {annotations: {destructiveHint: true}, expires: 1.5h}]",
        );
        let rules = rules.unwrap();
        assert_eq!((rules[0].expires, rules[1].expires.as_secs()), (Duration::from_secs(3), 5400));
        assert_eq!(rules[0].by.as_ref().map(|by| by.entries().len()), Some(2));
        assert_eq!(rules[1].annotations, [("destructiveHint".to_owned(), true)]);
        assert_eq!(read("[{expires: 90}]").unwrap()[0].expires.as_secs(), 90);
    }

    #[test]
    fn a_rule_that_says_nothing_sensible_is_refused() {
        for (rules, words) in [
            ("{capabilities: [rm]}", "expected a list"),
            ("[{expires: soon}]", "approve[0].expires"),
            ("[{expires: 0s}]", "approve[0].expires"),
            ("[{expires: 8d}]", "at most 7d"),
            (
                "[{annotations: {destructive: true}}]",
                "unknown annotation, did you mean destructiveHint?",
            ),
            (
                "[{annotations: {wild: true}}]",
                "unknown annotation: expected readOnlyHint, destructiveHint, ",
            ),
            ("[{annotations: {destructiveHint: 1}}]", "true or false"),
            ("[{capability: [rm]}]", "unknown key"),
        ] {
            let problem = read(rules).unwrap_err();
            assert!(problem.contains(words), "{rules}: {problem}");
        }
    }
}

//! `quotas`: how much callers may use.

use orla_document::{Kind as Shape, Node};
use orla_marketplace::id::Pattern;
use orla_marketplace::{CountScope, Counting, Period, QuotaRule, Rate};
use serde_json::{Value, json};

use super::Config;
use super::access::CALLERS;
use super::forms::{Choice, Count, Form, Read};
use super::keys::{Key, key, object};
use super::read::{Reader, unexpected};
use super::subjects::SERVED;

const RULES: &str =
    "a list of quotas (with to, capabilities, per, calls, cost, concurrent, count, scope)";
/// The maximum number of calls of a quota.
const MAX_CALLS: u64 = 1_000_000_000;

const PERIODS: &[(&str, Period)] = &[
    ("second", Period::Second),
    ("minute", Period::Minute),
    ("hour", Period::Hour),
    ("day", Period::Day),
];
const COUNTING: &[(&str, Counting)] = &[("each", Counting::Each), ("together", Counting::Together)];

/// A quota as it is read.
struct Draft {
    rule: QuotaRule,
    per: Option<Period>,
    calls: Option<u64>,
    cost: Vec<(Pattern, u64)>,
}

#[rustfmt::skip] // A table: each key has a line for its value and one for its meaning.
fn quota_keys() -> Vec<Key<Draft>> {
    vec![
        key("to", CALLERS, |d| &mut d.rule.to,
            "callers: name patterns, `group:NAME`, `scope:NAME`, `token:NAME`, `cert:NAME` or `anonymous`; all by default"),
        key("capabilities", SERVED, |d| &mut d.rule.capabilities,
            "name patterns of capabilities, whose calls count together; all by default"),
        key("per", Choice(PERIODS), |d| &mut d.per,
            "the time of `calls`: `second`, `minute`, `hour` or `day`; what is used of a day is kept over a restart"),
        key("calls", Count(1, MAX_CALLS), |d| &mut d.calls,
            "the size of the bucket from which calls are taken; it is refilled evenly"),
        key("cost", Read(read_cost, cost_schema), |d| &mut d.cost,
            "what one call takes from the bucket: a number, or a mapping from name patterns of capabilities to numbers, of which the first counts; 1 by default"),
        key("concurrent", Count(1_usize, 1_000_000), |d| &mut d.rule.concurrent,
            "maximum number of calls at once; another one is refused at once"),
        key("count", Choice(COUNTING), |d| &mut d.rule.count,
            "whether callers count `each` for themselves or all `together`; by default, each caller counts alone, and the members of a group or the holders of a scope that `to` names count together"),
        key("scope", Read(read_scope, scope_schema), |d| &mut d.rule.scope,
            "where calls are counted: on this `node`, or over all nodes of the [`cluster`](cluster.md#limits); `node` by default"),
    ]
}

fn draft(name: String) -> Draft {
    Draft { rule: QuotaRule::new(name), per: None, calls: None, cost: Vec::new() }
}

pub(super) fn read(reader: &mut Reader<'_>, config: &mut Config, path: &str, node: &Node) {
    let Shape::List(items) = &node.kind else {
        return reader.problem(node.at, || format!("{path}{}", unexpected(RULES, node)));
    };
    let (keys, mut rules) = (quota_keys(), Vec::new());
    for (index, item) in items.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let mut draft = draft(path.clone());
        let Some(pairs) = reader.pairs(&path, item, "a mapping with to, capabilities, per and calls")
        else {
            continue;
        };
        if reader.mapping(&path, item.at, pairs, &keys, &mut draft).is_none() {
            continue;
        }
        match draft.finish() {
            Ok(rule) => rules.push(rule),
            Err(problem) => reader.problem(item.at, || format!("{path}{problem}")),
        }
    }
    config.quotas = rules;
}

impl Draft {
    /// # Errors
    ///
    /// Returns the contradiction between the keys, as a text that continues the path.
    fn finish(self) -> Result<QuotaRule, &'static str> {
        let Self { mut rule, per, calls, cost } = self;
        rule.rate = match (calls, per) {
            (Some(calls), _) if cost.iter().any(|(_, cost)| *cost > calls) => {
                return Err(".cost: a call costs more than `calls`, so it could never be made");
            }
            (Some(calls), Some(per)) => Some(Rate { cost, ..Rate::new(calls, per) }),
            (Some(_), None) => return Err(".per: missing; `calls` needs second, minute, hour or day"),
            (None, Some(_)) => return Err(".calls: missing; `per` needs the number of calls"),
            (None, None) if !cost.is_empty() => return Err(".calls: missing; `cost` is taken from it"),
            (None, None) if rule.concurrent.is_none() => {
                return Err(": expected `calls` and `per`, or `concurrent`; this bounds nothing");
            }
            (None, None) => None,
        };
        Ok(rule)
    }
}

const SCOPE: Choice<CountScope> = Choice(&CountScope::WORDS);

/// Where calls are counted. Without a cluster, none can be counted there.
pub(super) fn read_scope(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<CountScope> {
    let scope = SCOPE.read(reader, path, node)?;
    if scope == CountScope::Cluster {
        reader.in_cluster.push((node.at, path.to_owned()));
    }
    Some(scope)
}

pub(super) fn scope_schema() -> Value {
    Form::schema(&SCOPE)
}

const COST: Count<u64> = Count(0, MAX_CALLS);

fn read_cost(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Vec<(Pattern, u64)>> {
    let Shape::Map(pairs) = &node.kind else {
        return COST.read(reader, path, node).map(|cost| vec![(Pattern::new("*"), cost)]);
    };
    let cost = |(name, node): &(orla_document::Key, Node)| {
        let cost = COST.read(reader, &format!("{path}.{}", name.text), node)?;
        reader.note_served(path, name.at, &name.text);
        Some((Pattern::new(name.text.as_str()), cost))
    };
    pairs.iter().map(cost).collect()
}

fn cost_schema() -> Value {
    let cost = Form::schema(&COST);
    json!({"anyOf": [cost, {"type": "object", "additionalProperties": cost}]})
}

pub(super) fn schema() -> Value {
    json!({"type": "array", "items": object(&quota_keys(), &mut draft(String::new()))})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(quotas: &str) -> Result<Vec<QuotaRule>, String> {
        let config = Config::of(&format!("quotas: {quotas}\n"));
        config
            .map(|config| config.quotas)
            .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
    }

    #[test]
    fn a_quota_is_read_with_its_bounds() {
        let rules = read(
            "[{to: [bob, 'group:dev'], capabilities: [a], per: minute, calls: 5, cost: {'gpu.*': 5, a: 2}},
              {concurrent: 2, count: together}]",
        );
        let rules = rules.unwrap();
        assert_eq!(
            rules.iter().map(|rule| rule.name.as_str()).collect::<Vec<_>>(),
            ["quotas[0]", "quotas[1]"]
        );
        let rate = rules[0].rate.as_ref().unwrap();
        assert_eq!((rate.to_string().as_str(), rate.cost[1].1), ("5 calls per minute", 2));
        assert_eq!((rules[1].concurrent, rules[1].count), (Some(2), Counting::Together));
    }

    #[test]
    fn a_quota_that_bounds_nothing_or_everything_is_refused() {
        for (quotas, words) in [
            ("{calls: 5}", "expected a list"),
            ("[{to: [bob]}]", "quotas[0]: expected `calls` and `per`"),
            ("[{calls: 5}]", "quotas[0].per: missing"),
            ("[{per: day}]", "quotas[0].calls: missing"),
            ("[{concurrent: 1, cost: 2}]", "quotas[0].calls: missing"),
            ("[{calls: 5, per: day, cost: 6}]", "quotas[0].cost: a call costs more"),
            ("[{calls: 0, per: day}]", "a whole number from 1"),
            ("[{calls: 5, per: week}]", "quotas[0].per"),
            ("[{calls: 5, per: day, to: ['group:']}]", "quotas[0].to"),
            (
                "[{calls: 5, per: day, scope: cluster}]",
                "quotas[0].scope: `cluster` needs the option `cluster` at orla.yaml:1:",
            ),
            ("[{calls: 5, per: day, scope: all}]", "quotas[0].scope"),
            ("[{calls: 5, per: day, capability: [a]}]", "quotas[0].capability: unknown key"),
        ] {
            let problem = read(quotas).unwrap_err();
            assert!(problem.contains(words), "{quotas}: {problem}");
        }
    }
}

//! The rules of quotas: data of the configuration.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::bucket::Pace;
use crate::id::Pattern;
use crate::manifest::CountScope;
use crate::principal::{CallerPattern, Callers, Principal};

/// A limit on the use of some capabilities by some callers. A rule limits a rate, concurrency, or both.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuotaRule {
    /// Its name in logs, metrics and the audit, such as `quotas[0]`.
    pub name: String,
    /// The callers.
    pub to: Callers,
    /// The capabilities, by id or MCP name. Their calls are counted together.
    pub capabilities: Vec<Pattern>,
    /// The maximum rate of calls.
    pub rate: Option<Rate>,
    /// The maximum number of concurrent calls.
    pub concurrent: Option<usize>,
    /// The callers that share a count.
    pub count: Counting,
    /// The scope in which calls are counted.
    pub scope: CountScope,
}

/// A bucket of calls that is refilled evenly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The size of the bucket, at least 1.
    pub calls: u64,
    /// The time in which an empty bucket is full again.
    pub per: Period,
    /// The cost of one call: the first entry whose pattern matches the capability; 1 if there is none.
    pub cost: Vec<(Pattern, u64)>,
}

/// The period of a [`Rate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Period {
    /// A second.
    Second,
    /// A minute.
    Minute,
    /// An hour.
    Hour,
    /// 24 hours. The count is kept across a restart ([`Quotas::stored`](super::Quotas::stored)).
    Day,
}

/// The callers of a rule that share a count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counting {
    /// According to the entry of `to`: each caller has a separate count, but the members of a group, or
    /// the holders of a scope, share one. The first entry that matches the caller decides.
    #[default]
    AsNamed,
    /// Each caller has a separate count.
    Each,
    /// All callers share one count.
    Together,
}

/// The callers that share a count.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    /// One caller, by the id of its principal; `None` for callers without a principal.
    Caller(Option<Arc<str>>),
    /// The callers of an entry of `to`, by its index.
    Entry(usize),
    /// All callers of the rule.
    Everyone,
}

impl QuotaRule {
    /// Creates a rule for all callers and capabilities that limits nothing yet.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            to: Callers::everyone(),
            capabilities: vec![Pattern::new("*")],
            rate: None,
            concurrent: None,
            count: Counting::default(),
            scope: CountScope::default(),
        }
    }

    /// Creates a limit of `size` concurrent calls of the capability with this id, over all nodes of the
    /// cluster and for all callers.
    pub(super) fn permits_in_cluster(id: &str, size: usize) -> Self {
        Self {
            capabilities: vec![Pattern::new(id)],
            concurrent: Some(size),
            count: Counting::Together,
            scope: CountScope::Cluster,
            ..Self::new("max_concurrency")
        }
    }

    /// Returns whether calls of this capability are counted.
    pub(super) fn concerns(&self, id: &str, name: &str) -> bool {
        self.capabilities.iter().any(|pattern| pattern.fits(id, name))
    }

    /// Returns the count that a call of this caller adds to; `None` if the rule does not concern the
    /// caller.
    pub(super) fn subject(&self, caller: Option<&Principal>) -> Option<Subject> {
        let entries = self.to.entries();
        let at = entries.iter().position(|entry| entry.matches(caller))?;
        let is_shared = matches!(entries[at], CallerPattern::Group(_) | CallerPattern::Scope(_));
        Some(match self.count {
            Counting::Together => Subject::Everyone,
            Counting::AsNamed if is_shared => Subject::Entry(at),
            Counting::AsNamed | Counting::Each => {
                Subject::Caller(caller.map(|caller| Arc::clone(caller.id())))
            }
        })
    }

    pub(super) fn pace(&self) -> Option<Pace> {
        self.rate.as_ref().map(|rate| Pace { calls: rate.calls.max(1), period: rate.per.duration() })
    }

    /// Returns the cost of a call of this capability.
    pub(super) fn cost(&self, id: &str, name: &str) -> u64 {
        let costs = self.rate.iter().flat_map(|rate| &rate.cost);
        let found = costs.into_iter().find(|(pattern, _)| pattern.fits(id, name));
        found.map_or(1, |(_, cost)| *cost)
    }

    /// Returns a text that identifies its counts across a reload and a restart: everything except the
    /// limits.
    pub(super) fn identity(&self) -> String {
        let to: Vec<String> = self.to.entries().iter().map(CallerPattern::to_string).collect();
        let capabilities: Vec<&str> = self.capabilities.iter().map(Pattern::as_str).collect();
        let per = self.rate.as_ref().map_or("-", |rate| rate.per.name());
        let count = match self.count {
            Counting::AsNamed => "as named",
            Counting::Each => "each",
            Counting::Together => "together",
        };
        // Rules without a cost keep the text that existing files contain.
        let cost = self.rate.as_ref().map_or(&[][..], |rate| &rate.cost);
        let cost: Vec<_> = cost.iter().map(|(pattern, cost)| (pattern.as_str(), cost)).collect();
        let cost = if cost.is_empty() { String::new() } else { format!(" {cost:?}") };
        let scope = if self.scope == CountScope::Cluster { " cluster" } else { "" };
        format!("{to:?} {capabilities:?} {per} {count}{cost}{scope}")
    }

    /// Returns whether this process keeps its counts across a restart.
    pub(super) fn is_kept(&self) -> bool {
        self.scope == CountScope::Node && self.rate.as_ref().is_some_and(|rate| rate.per == Period::Day)
    }
}

impl Rate {
    /// Creates a rate of this many calls in a period, at a cost of 1.
    pub fn new(calls: u64, per: Period) -> Self {
        Self { calls, per, cost: Vec::new() }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calls = if self.calls == 1 { "call" } else { "calls" };
        write!(f, "{} {calls} per {}", self.calls, self.per.name())
    }
}

impl Period {
    /// Returns the word: `second`, `minute`, `hour` or `day`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }

    /// Returns the length of the period.
    pub fn duration(self) -> Duration {
        Duration::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3600,
            Self::Day => 86_400,
        })
    }
}

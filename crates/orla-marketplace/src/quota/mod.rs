//! Quotas: how much each caller may use (`quotas` of the configuration).
//!
//! # How it works
//!
//! A [`QuotaRule`] bounds the calls that its callers make in a time (`bucket`) and at once. [`Quotas`] counts what has been
//! used, for each rule and caller. It is one step of a call ([`Quotas::charge`]), before any work is done: either all rules
//! that concern the call admit it and count it, or the first thing that happens is its refusal, and nothing is counted.
//! A call that fails counts like one that succeeds.
//!
//! # Invariants
//!
//! - At no time has a caller made more calls than its buckets have had (property-tested in `bucket`), with any number
//!   of threads: the counts have one lock, which is held for no longer than the arithmetic takes.
//! - The table is bounded ([`MAX_COUNTS`]). If it is full of counts that still matter, callers without one are refused.
//! - A reload keeps the counts of every rule that it keeps, also if its bounds change.
//!
//! # What is deliberately absent
//!
//! Files: [`Quotas::stored`] and [`Quotas::restore`] are what a server needs to keep days over a restart.

mod bucket;
mod rule;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::error::RuntimeError;
use crate::principal::{ANONYMOUS, Principal};
use bucket::Bucket;
use rule::Subject;

pub use rule::{Counting, Period, QuotaRule, Rate};

/// The most counts at once.
const MAX_COUNTS: usize = 200_000;
/// The number of counts from which full buckets are removed.
const FIRST_SWEEP: usize = 1024;
/// The `retry_after` of a caller with too many calls at once. It is not known when one of them ends.
const CONCURRENT_RETRY: Duration = Duration::from_secs(1);

/// What has been used of the quotas.
pub struct Quotas {
    ledger: ArcSwap<Vec<Counter>>,
    counts: Mutex<Counts>,
    epoch: Instant,
    /// A count that is kept over a restart has changed.
    changed: Notify,
}

/// One rule in force.
struct Counter {
    rule: QuotaRule,
    /// What its counts have in their keys.
    number: u32,
    /// The calls that it refused.
    refused: Arc<AtomicU64>,
}

#[derive(Default)]
struct Counts {
    by_key: HashMap<Key, Count>,
    next_sweep: usize,
    last_number: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    number: u32,
    subject: Subject,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    bucket: Bucket,
    /// Calls that run, of rules that bound them.
    running: usize,
}

/// What one rule has to say about one call.
struct Claim<'a> {
    counter: &'a Counter,
    key: Key,
    cost: u64,
}

/// The count of a call while it runs. Dropping it ends the call for rules that bound calls at once.
#[must_use]
#[derive(Default)]
pub(crate) struct Charge(Option<(Arc<Quotas>, Vec<Key>)>);

/// A call that a quota refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OverQuota {
    rule: String,
    limit: String,
    retry_after: Duration,
}

/// What has been used of one rule by one caller, or by the callers that share a count.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct QuotaUsage {
    /// The rule.
    pub rule: QuotaRule,
    /// The caller's name; the entry of `to` whose callers share the count; or `*` for all callers. `None` if the rule has
    /// not counted anything yet.
    pub caller: Option<String>,
    /// How the caller was identified, if the count is that of one caller.
    pub identified_by: Option<String>,
    /// The whole calls that are left, each at the cost of 1, if the rule bounds calls in a time.
    pub remaining: Option<u64>,
    /// Calls that run, if the rule bounds them.
    pub running: usize,
    /// The time until another call can be made; zero if it can be made now.
    pub retry_after: Duration,
}

/// A count that is kept over a restart.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StoredCount {
    /// Identifies the rule.
    pub rule: String,
    /// Identifies the caller, or the callers that share the count.
    pub caller: String,
    /// The calls that have been made and not been refilled.
    pub spent: f64,
}

impl StoredCount {
    /// A count that was stored.
    pub fn new(rule: impl Into<String>, caller: impl Into<String>, spent: f64) -> Self {
        Self { rule: rule.into(), caller: caller.into(), spent }
    }
}

impl OverQuota {
    /// The error of the call of this capability.
    pub(crate) fn of_call(self, id: String) -> RuntimeError {
        RuntimeError::quota(id, self.rule, self.limit, self.retry_after)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let Some((quotas, keys)) = self.0.take() else { return };
        let mut counts = quotas.counts.lock();
        for key in keys {
            // The rule may have been removed meanwhile.
            if let Some(count) = counts.by_key.get_mut(&key) {
                count.running = count.running.saturating_sub(1);
            }
        }
    }
}

impl Claim<'_> {
    /// How long the call must wait by this rule, if it must, and by which bound.
    fn refusal(&self, count: &Count, now: Duration) -> Option<OverQuota> {
        let rule = &self.counter.rule;
        let refused =
            |limit: String, retry_after| Some(OverQuota { rule: rule.name.clone(), limit, retry_after });
        if let (Some(rate), Some(pace)) = (&rule.rate, rule.pace()) {
            let wait = count.bucket.wait_for(self.cost, now, pace);
            if !wait.is_zero() {
                return refused(rate.to_string(), wait);
            }
        }
        match rule.concurrent {
            Some(most) if count.running >= most => {
                let calls = if most == 1 { "call" } else { "calls" };
                refused(format!("{most} {calls} at once"), CONCURRENT_RETRY)
            }
            _ => None,
        }
    }

    fn count(&self, count: &mut Count, now: Duration) {
        let rule = &self.counter.rule;
        if let Some(pace) = rule.pace() {
            count.bucket.take(self.cost, now, pace);
        }
        count.running += usize::from(rule.concurrent.is_some());
    }
}

impl Counts {
    /// Whether there is room for these counts. Removes those that no longer matter, at intervals that make this cheap.
    fn has_room(&mut self, claims: &[Claim<'_>], ledger: &[Counter], now: Duration) -> bool {
        let is_new = |claim: &&Claim<'_>| !self.by_key.contains_key(&claim.key);
        let more = claims.iter().filter(is_new).count();
        if more == 0 {
            return true;
        }
        if self.by_key.len() + more > self.next_sweep.max(FIRST_SWEEP) {
            self.by_key.retain(|key, count| {
                let rule = ledger.iter().find(|counter| counter.number == key.number);
                let pace = rule.and_then(|counter| counter.rule.pace());
                count.running > 0 || pace.is_some_and(|pace| !count.bucket.is_full(now, pace))
            });
            self.next_sweep = (2 * self.by_key.len()).min(MAX_COUNTS);
        }
        self.by_key.len() + more <= MAX_COUNTS
    }
}

impl Default for Quotas {
    fn default() -> Self {
        Self {
            ledger: ArcSwap::default(),
            counts: Mutex::default(),
            epoch: Instant::now(),
            changed: Notify::new(),
        }
    }
}

impl Quotas {
    /// Puts these rules in force. A rule that differs from one of before in its bounds alone continues its counts.
    pub fn configure(&self, rules: Vec<QuotaRule>) {
        let before = self.ledger.load();
        if before.iter().map(|counter| &counter.rule).eq(&rules) {
            return;
        }
        let mut kept: Vec<(String, &Counter)> =
            before.iter().map(|counter| (counter.rule.identity(), counter)).collect();
        let mut counts = self.counts.lock();
        let counter = |rule: QuotaRule| {
            let identity = rule.identity();
            // Rules may differ only in their bounds. Each takes over the first of the kept ones that is left.
            match kept.iter().position(|(known, _)| *known == identity) {
                Some(at) => {
                    let (_, before) = kept.remove(at);
                    Counter { rule, number: before.number, refused: Arc::clone(&before.refused) }
                }
                None => {
                    counts.last_number += 1;
                    Counter { rule, number: counts.last_number, refused: Arc::default() }
                }
            }
        };
        let ledger: Vec<Counter> = rules.into_iter().map(counter).collect();
        counts.by_key.retain(|key, _| ledger.iter().any(|counter| counter.number == key.number));
        self.ledger.store(Arc::new(ledger));
    }

    /// Counts a call of this capability by this caller, until the charge is dropped.
    ///
    /// # Errors
    /// The rule that refuses the call; of several, the one with the longest wait. Nothing is counted then.
    pub(crate) fn charge(
        self: &Arc<Self>,
        caller: Option<&Principal>,
        id: &str,
        name: &str,
    ) -> Result<Charge, OverQuota> {
        let ledger = self.ledger.load();
        let claim = |counter: &'_ Counter| {
            let rule = &counter.rule;
            let subject = rule.concerns(id, name).then(|| rule.subject(caller)).flatten()?;
            Some((Key { number: counter.number, subject }, rule.cost(id, name)))
        };
        let claims: Vec<Claim<'_>> = ledger
            .iter()
            .filter_map(|counter| claim(counter).map(|(key, cost)| Claim { counter, key, cost }))
            .collect();
        if claims.is_empty() {
            return Ok(Charge::default());
        }
        self.count(&claims, &ledger)?;
        if claims.iter().any(|claim| claim.counter.rule.is_kept()) {
            self.changed.notify_one();
        }
        let bounds_running = |claim: &Claim<'_>| claim.counter.rule.concurrent.is_some();
        let running: Vec<Key> =
            claims.into_iter().filter(bounds_running).map(|claim| claim.key).collect();
        Ok(Charge((!running.is_empty()).then(|| (Arc::clone(self), running))))
    }

    /// Counts a call for all of its rules, or for none.
    fn count(&self, claims: &[Claim<'_>], ledger: &[Counter]) -> Result<(), OverQuota> {
        let mut counts = self.counts.lock();
        let now = self.now();
        let refusals = claims.iter().filter_map(|claim| {
            let count = counts.by_key.get(&claim.key).copied().unwrap_or_default();
            claim.refusal(&count, now).map(|over| (claim, over))
        });
        if let Some((claim, over)) = refusals.max_by_key(|(_, over)| over.retry_after) {
            claim.counter.refused.fetch_add(1, Ordering::Relaxed);
            return Err(over);
        }
        if !counts.has_room(claims, ledger, now) {
            let limit = format!("{MAX_COUNTS} callers");
            let rule = claims.first().map(|claim| claim.counter.rule.name.clone());
            return Err(OverQuota {
                rule: rule.unwrap_or_default(),
                limit,
                retry_after: CONCURRENT_RETRY,
            });
        }
        for claim in claims {
            claim.count(counts.by_key.entry(claim.key.clone()).or_default(), now);
        }
        Ok(())
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// The rules in force that concern this caller, with what it has used.
    pub fn usage_of(&self, caller: Option<&Principal>) -> Vec<QuotaUsage> {
        let ledger = self.ledger.load();
        let counts = self.counts.lock();
        let now = self.now();
        let own = ledger.iter().filter_map(|counter| {
            let key = Key { number: counter.number, subject: counter.rule.subject(caller)? };
            let count = counts.by_key.get(&key).copied().unwrap_or_default();
            Some(counter.usage(Some(&key.subject), &count, now))
        });
        own.collect()
    }

    /// All rules in force with all that has been used, in the order of the rules and the callers' names. A rule that has
    /// counted nothing has one row.
    pub fn usage(&self) -> Vec<QuotaUsage> {
        let ledger = self.ledger.load();
        let counts = self.counts.lock();
        let now = self.now();
        let mut rows = Vec::new();
        for counter in ledger.iter() {
            let of_rule = counts.by_key.iter().filter(|(key, _)| key.number == counter.number);
            let mut used: Vec<QuotaUsage> =
                of_rule.map(|(key, count)| counter.usage(Some(&key.subject), count, now)).collect();
            used.sort_by(|a, b| a.caller.cmp(&b.caller));
            if used.is_empty() {
                used.push(counter.usage(None, &Count::default(), now));
            }
            rows.append(&mut used);
        }
        rows
    }

    /// The calls that each rule in force has refused, by the rule's name.
    pub fn refusals(&self) -> Vec<(String, u64)> {
        let refused =
            |counter: &Counter| (counter.rule.name.clone(), counter.refused.load(Ordering::Relaxed));
        self.ledger.load().iter().map(refused).collect()
    }

    /// Waits until a count that is kept over a restart has changed since the last time.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The counts that are kept over a restart: those of days.
    pub fn stored(&self) -> Vec<StoredCount> {
        let ledger = self.ledger.load();
        let counts = self.counts.lock();
        let now = self.now();
        let kept = ledger.iter().filter(|counter| counter.rule.is_kept());
        let rows = kept.flat_map(|counter| {
            let pace = counter.rule.pace();
            let of_rule = counts.by_key.iter().filter(|(key, _)| key.number == counter.number);
            of_rule.filter_map(move |(key, count)| {
                let spent = count.bucket.spent(now, pace?);
                let caller = counter.rule.stored_subject(&key.subject);
                (spent > 0.0).then(|| StoredCount { rule: counter.rule.identity(), caller, spent })
            })
        });
        rows.collect()
    }

    /// Continues counts that were stored this long ago. Those of rules that are no longer in force are ignored.
    pub fn restore(&self, stored: &[StoredCount], ago: Duration) {
        let ledger = self.ledger.load();
        let mut counts = self.counts.lock();
        let now = self.now();
        for counter in ledger.iter().filter(|counter| counter.rule.is_kept()) {
            let (identity, Some(pace)) = (counter.rule.identity(), counter.rule.pace()) else {
                continue;
            };
            let of_rule = stored.iter().filter(|count| count.rule == identity);
            for StoredCount { caller, spent, .. } in of_rule.take(MAX_COUNTS) {
                let Some(subject) = counter.rule.subject_stored_as(caller) else { continue };
                let refilled = ago.as_secs_f64() / pace.period.as_secs_f64() * pace.calls as f64;
                let bucket = Bucket::with_spent((spent - refilled).max(0.0), now, pace);
                let key = Key { number: counter.number, subject };
                counts.by_key.insert(key, Count { bucket, running: 0 });
            }
        }
    }
}

impl Counter {
    fn usage(&self, subject: Option<&Subject>, count: &Count, now: Duration) -> QuotaUsage {
        let rule = &self.rule;
        let remaining = rule.pace().map(|pace| count.bucket.remaining(now, pace));
        let wait = rule.pace().map(|pace| count.bucket.wait_for(1, now, pace)).unwrap_or_default();
        let is_full = rule.concurrent.is_some_and(|most| count.running >= most);
        QuotaUsage {
            rule: rule.clone(),
            caller: subject.map(|subject| rule.name_of(subject)),
            identified_by: subject.and_then(Subject::identified_by),
            remaining,
            running: count.running,
            retry_after: if is_full { wait.max(CONCURRENT_RETRY) } else { wait },
        }
    }
}

impl Subject {
    fn identified_by(&self) -> Option<String> {
        match self {
            Self::Caller(Some(id)) => Some(Principal::from_id(id).identified_by().to_string()),
            Self::Caller(None) | Self::Entry(_) | Self::Everyone => None,
        }
    }
}

impl QuotaRule {
    /// Who shares a count, for people.
    fn name_of(&self, subject: &Subject) -> String {
        match subject {
            Subject::Caller(Some(id)) => Principal::from_id(id).name().to_owned(),
            subject => self.stored_subject(subject),
        }
    }

    /// A text for a subject that no other subject of the rule has. The ids of principals begin with their kinds, which the
    /// other texts do not.
    fn stored_subject(&self, subject: &Subject) -> String {
        match subject {
            Subject::Caller(Some(id)) => id.to_string(),
            Subject::Caller(None) => ANONYMOUS.to_owned(),
            Subject::Entry(at) => {
                self.to.entries().get(*at).map(ToString::to_string).unwrap_or_default()
            }
            Subject::Everyone => "*".to_owned(),
        }
    }

    fn subject_stored_as(&self, text: &str) -> Option<Subject> {
        match text {
            "" => None,
            "*" => Some(Subject::Everyone),
            ANONYMOUS => Some(Subject::Caller(None)),
            text if text.starts_with("group:") || text.starts_with("scope:") => {
                let at = self.to.entries().iter().position(|entry| entry.to_string() == text)?;
                Some(Subject::Entry(at))
            }
            id => Some(Subject::Caller(Some(id.into()))),
        }
    }
}

#[cfg(test)]
mod tests;

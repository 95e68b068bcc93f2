//! Quotas: how many calls each caller may make (`quotas` of the configuration).
//!
//! # How it works
//!
//! A [`QuotaRule`] limits the calls that its callers make in a period (`bucket`) and at once. [`Quotas`]
//! counts the use, for each rule and caller. Charging is one step of a call ([`Quotas::charge`]), before
//! any work is done. Either all rules that concern the call admit and count it, or the call is refused
//! and not counted. A failed call counts like a successful one.
//!
//! [`Permits`] counts calls: in this process (`local`), or over all nodes for rules of the scope
//! `cluster`. [`Quotas::count_in_cluster`] sets the counter of the cluster; without one, such rules
//! refuse every call.
//!
//! # Invariants
//!
//! - At no time has a caller made more calls than its buckets have held (property-tested in `bucket`),
//!   with any number of threads. One lock protects the counts and is held only for the arithmetic.
//! - The table is bounded ([`MAX_COUNTS`]). If it is full of counts that are still needed, callers
//!   without one are refused.
//! - A reload keeps the counts of every rule that it keeps, even if its limits change.
//!
//! # What is deliberately absent
//!
//! Files: with [`Quotas::stored`] and [`Quotas::restore`], a server keeps daily counts across a restart.

mod bucket;
mod local;
mod permits;
mod rule;

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::Guard;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::error::RuntimeError;
use crate::principal::{ANONYMOUS, Principal};
use bucket::Bucket;
use local::{Key, LocalPermits};
use rule::Subject;

pub use crate::manifest::CountScope;
pub use permits::{Claim, Count, CountedRule, NotTaken, Permits, Taken};
pub use rule::{Counting, Period, QuotaRule, Rate};

/// The maximum number of counts.
pub const MAX_COUNTS: usize = 200_000;
/// The number of counts from which full buckets are removed.
const FIRST_SWEEP: usize = 1024;
/// The `retry_after` of a caller with too many concurrent calls. It is not known when one of them ends.
const CONCURRENT_RETRY: Duration = Duration::from_secs(1);

/// The use of the quotas.
#[derive(Default)]
pub struct Quotas {
    local: Arc<LocalPermits>,
    /// Counts over all nodes of the cluster, if this process is one of them.
    cluster: OnceLock<Arc<dyn Permits>>,
    /// Notified when a count that is kept across a restart has changed.
    changed: Notify,
}

/// The counts of a running call. Dropping it ends the call for rules that limit concurrency.
#[must_use]
#[derive(Default)]
pub(crate) struct Charge {
    taken: Vec<Taken>,
    /// The cluster-wide counts that include the call.
    pub(crate) counted: Vec<Arc<str>>,
}

/// A permit for a call of a capability, counted over all nodes of the cluster.
pub(crate) struct ClusterPermit {
    claim: Claim,
    name: Arc<str>,
}

/// A call that a quota refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    rule: String,
    why: NotTaken,
}

/// The use of one rule by one caller, or by the callers that share a count.
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
    /// The whole calls that are left, each at the cost of 1, if the rule limits a rate.
    pub remaining: Option<u64>,
    /// The number of running calls, if the rule limits them.
    pub running: usize,
    /// The time until another call can be made; zero if it can be made now.
    pub retry_after: Duration,
}

/// A count that is kept across a restart.
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
    /// Returns a count that was stored.
    pub fn new(rule: impl Into<String>, caller: impl Into<String>, spent: f64) -> Self {
        Self { rule: rule.into(), caller: caller.into(), spent }
    }
}

impl Refused {
    /// Returns a refusal by one of these rules, which counts it.
    fn by(rules: &[Arc<CountedRule>], why: NotTaken) -> Self {
        let at = match &why {
            NotTaken::Over { at, .. } => *at,
            NotTaken::Unavailable(_) => 0,
        };
        let rule = rules.get(at);
        if let (Some(rule), NotTaken::Over { .. }) = (rule, &why) {
            rule.refused.fetch_add(1, Ordering::Relaxed);
        }
        Self { rule: rule.map(|rule| rule.rule.name.clone()).unwrap_or_default(), why }
    }

    /// Returns the error for the call of this capability.
    pub(crate) fn of_call(self, id: String) -> RuntimeError {
        let rule = self.rule;
        match self.why {
            NotTaken::Over { limit, retry_after, .. } => {
                RuntimeError::quota(id, rule, limit, retry_after)
            }
            NotTaken::Unavailable(why) => {
                let reason =
                    format!("{rule} holds in the whole cluster, where it cannot be counted: {why}");
                RuntimeError::Unavailable { id, reason, source: None }
            }
        }
    }
}

impl ClusterPermit {
    /// One of `size` permits for the capability with this id.
    pub(crate) fn new(id: &str, size: usize) -> Self {
        let rule = QuotaRule::permits_in_cluster(id, size);
        let identity = format!("max_concurrency {id}");
        let of = Arc::new(CountedRule { rule, number: 0, identity, refused: Arc::default() });
        let claim = Claim { of, subject: Subject::Everyone, cost: 1 };
        let name = claim.name().into();
        Self { claim, name }
    }

    /// Returns the name of its count.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }
}

/// Claims of a call on counts of this process. Dropping it reverses the counts: the cluster refused the call,
/// or the time of the call ended meanwhile.
struct Refund<'a> {
    permits: &'a LocalPermits,
    claims: Vec<Claim>,
}

impl Drop for Refund<'_> {
    fn drop(&mut self) {
        self.permits.refund(&self.claims);
    }
}

impl Charge {
    /// Returns a token that is cancelled when a cluster-wide count is lost.
    pub(crate) fn lost(&self) -> Option<CancellationToken> {
        self.taken.iter().find_map(|taken| taken.lost().cloned())
    }
}

impl Quotas {
    /// Sets the counter over all nodes of a cluster. The first one stays.
    pub fn count_in_cluster(&self, permits: Arc<dyn Permits>) {
        drop(self.cluster.set(permits));
    }

    /// Sets the rules. A rule that differs from an earlier one only in its limits keeps its counts.
    pub fn configure(&self, rules: Vec<QuotaRule>) {
        let before = self.local.ledger.load();
        if before.iter().map(|counted| &counted.rule).eq(&rules) {
            return;
        }
        let mut kept: Vec<&Arc<CountedRule>> = before.iter().collect();
        let mut counts = self.local.counts.lock();
        let mut in_cluster: Vec<String> = Vec::new();
        let counted = |rule: QuotaRule| {
            let mut identity = rule.identity();
            if rule.scope == CountScope::Cluster {
                let same = in_cluster.iter().filter(|known| **known == identity).count();
                in_cluster.push(identity.clone());
                // Rules that differ only in their limits have separate counts.
                if same > 0 {
                    identity = format!("{identity} #{same}");
                }
            }
            // Rules may differ only in their limits. Each takes over the first remaining kept rule.
            let (number, refused) = match kept.iter().position(|known| known.identity == identity) {
                Some(at) => {
                    let before = kept.remove(at);
                    (before.number, Arc::clone(&before.refused))
                }
                None => {
                    counts.last_number += 1;
                    (counts.last_number, Arc::default())
                }
            };
            Arc::new(CountedRule { rule, number, identity, refused })
        };
        let ledger: Vec<Arc<CountedRule>> = rules.into_iter().map(counted).collect();
        counts.by_key.retain(|key, _| ledger.iter().any(|counted| counted.number == key.number));
        self.local.ledger.store(Arc::new(ledger));
    }

    fn ledger(&self) -> Guard<Arc<Vec<Arc<CountedRule>>>> {
        self.local.ledger.load()
    }

    /// Returns the counter for the calls of a rule.
    ///
    /// # Errors
    /// This process is no node of a cluster that it has joined.
    fn permits(&self, scope: CountScope) -> Result<Arc<dyn Permits>, NotTaken> {
        let none = || NotTaken::Unavailable("this process is not a node of it".to_owned());
        match scope {
            CountScope::Node => Ok(Arc::clone(&self.local) as Arc<dyn Permits>),
            CountScope::Cluster => self.cluster.get().cloned().ok_or_else(none),
        }
    }

    /// Counts a call of this capability by this caller, until the charge is dropped. `counted` are the
    /// cluster-wide counts to which another node has already added the call.
    ///
    /// # Errors
    /// The rule that refuses the call; if there are several, the rule with the longest wait.
    /// Nothing is counted then.
    pub(crate) async fn charge(
        &self,
        caller: Option<&Principal>,
        id: &str,
        name: &str,
        counted: &[Arc<str>],
    ) -> Result<Charge, Refused> {
        let (local, in_cluster) = self.claims(caller, id, name);
        let mut charge = Charge::default();
        let mut uncounted = Refund { permits: &self.local, claims: Vec::new() };
        if !local.is_empty() {
            let is_kept = local.iter().any(|claim| claim.of.rule.is_kept());
            charge.taken.push(self.take(CountScope::Node, local.clone()).await?);
            uncounted.claims = local;
            if is_kept {
                self.changed.notify_one();
            }
        }
        let (names, in_cluster): (Vec<Arc<str>>, Vec<Claim>) = in_cluster
            .into_iter()
            .map(|claim| (claim.name().into(), claim))
            .filter(|(name, _)| !counted.contains(name))
            .unzip();
        if !in_cluster.is_empty() {
            charge.taken.push(self.take(CountScope::Cluster, in_cluster).await?);
            charge.counted = names;
        }
        uncounted.claims.clear();
        Ok(charge)
    }

    /// Checks whether a call of this capability by this caller would be refused now, as far as this
    /// process knows. Nothing is counted.
    ///
    /// # Errors
    /// The rule that would refuse it.
    pub(crate) fn check(&self, caller: Option<&Principal>, id: &str, name: &str) -> Result<(), Refused> {
        let (local, _) = self.claims(caller, id, name);
        let rules: Vec<Arc<CountedRule>> = local.iter().map(|claim| Arc::clone(&claim.of)).collect();
        self.local.check(&local).map_err(|why| Refused::by(&rules, why))
    }

    /// Returns whether a rule concerns calls of this capability by this caller.
    pub(crate) fn concern(&self, caller: Option<&Principal>, id: &str, name: &str) -> bool {
        let concerns = |rule: &QuotaRule| rule.concerns(id, name) && rule.subject(caller).is_some();
        self.ledger().iter().any(|of| concerns(&of.rule))
    }

    /// Returns the claims of the rules in force on a call: those of this process, and those of the
    /// cluster.
    fn claims(&self, caller: Option<&Principal>, id: &str, name: &str) -> (Vec<Claim>, Vec<Claim>) {
        let claim = |of: &Arc<CountedRule>| {
            let rule = &of.rule;
            let subject = rule.concerns(id, name).then(|| rule.subject(caller)).flatten()?;
            Some(Claim { of: Arc::clone(of), subject, cost: rule.cost(id, name) })
        };
        self.ledger().iter().filter_map(claim).partition(|claim| claim.of.rule.scope == CountScope::Node)
    }

    async fn take(&self, scope: CountScope, claims: Vec<Claim>) -> Result<Taken, Refused> {
        let rules: Vec<Arc<CountedRule>> = claims.iter().map(|claim| Arc::clone(&claim.of)).collect();
        let taken = match self.permits(scope) {
            Ok(permits) => permits.take(claims).await,
            Err(none) => Err(none),
        };
        taken.map_err(|why| Refused::by(&rules, why))
    }

    /// Waits for one of the cluster-wide permits.
    ///
    /// # Errors
    /// The permits cannot be counted.
    pub(crate) async fn enter(&self, permit: ClusterPermit) -> Result<Charge, Refused> {
        let ClusterPermit { claim, name } = permit;
        let refused = |why| Refused { rule: claim.of.rule.name.clone(), why };
        let permits = self.permits(CountScope::Cluster).map_err(refused)?;
        let mut changes = permits.changes();
        loop {
            changes.mark_unchanged();
            match Arc::clone(&permits).take(vec![claim.clone()]).await {
                Ok(taken) => return Ok(Charge { taken: vec![taken], counted: vec![name] }),
                // The counter lives as long as the cluster.
                Err(NotTaken::Over { .. }) if changes.changed().await.is_ok() => {}
                Err(why) => return Err(refused(why)),
            }
        }
    }

    /// Returns the rules in force that concern this caller, with the caller's use.
    pub fn usage_of(&self, caller: Option<&Principal>) -> Vec<QuotaUsage> {
        let own = self.ledger();
        let own = own.iter().filter_map(|of| {
            let subject = of.rule.subject(caller)?;
            let claim = Claim { of: Arc::clone(of), subject, cost: 1 };
            let (count, now) = match self.permits(of.rule.scope) {
                Ok(permits) => (permits.count_of(&claim), permits.now()),
                Err(_) => Default::default(),
            };
            Some(of.usage(Some(&claim.subject), &count, now))
        });
        own.collect()
    }

    /// Returns all rules in force with their use, in the order of the rules and the callers' names. A
    /// rule that has counted nothing has one row.
    pub fn usage(&self) -> Vec<QuotaUsage> {
        let mut rows = Vec::new();
        for of in self.ledger().iter() {
            let (counts, now) = match self.permits(of.rule.scope) {
                Ok(permits) => (permits.counts_of(of), permits.now()),
                Err(_) => Default::default(),
            };
            let used = counts.iter().filter_map(|(caller, count)| {
                Some(of.usage(Some(&of.rule.subject_stored_as(caller)?), count, now))
            });
            let mut used: Vec<QuotaUsage> = used.collect();
            used.sort_by(|a, b| a.caller.cmp(&b.caller));
            if used.is_empty() {
                used.push(of.usage(None, &Count::default(), now));
            }
            rows.append(&mut used);
        }
        rows
    }

    /// The calls that each rule in force has refused, by the rule's name.
    pub fn refusals(&self) -> Vec<(String, u64)> {
        let refused = |of: &Arc<CountedRule>| (of.rule.name.clone(), of.refused.load(Ordering::Relaxed));
        self.ledger().iter().map(refused).collect()
    }

    /// Waits until a count that is kept across a restart has changed since the last time.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns the counts that are kept across a restart: those of days.
    pub fn stored(&self) -> Vec<StoredCount> {
        let ledger = self.ledger();
        let counts = self.local.counts.lock();
        let now = self.local.now();
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

    /// Restores counts that were stored this long ago. Counts of rules that are no longer in force are
    /// ignored.
    pub fn restore(&self, stored: &[StoredCount], ago: Duration) {
        let ledger = self.ledger();
        let mut counts = self.local.counts.lock();
        let now = self.local.now();
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

impl CountedRule {
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
    /// Returns the callers that share a count, for users.
    fn name_of(&self, subject: &Subject) -> String {
        match subject {
            Subject::Caller(Some(id)) => Principal::from_id(id).name().to_owned(),
            subject => self.stored_subject(subject),
        }
    }

    /// Returns a text that identifies a subject within the rule. The ids of principals begin with their
    /// kinds, which the other texts do not.
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

//! The counts of this process.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::permits::{Claim, Count, CountedRule, NotTaken, Permits, Taken};
use super::rule::Subject;
use super::{FIRST_SWEEP, MAX_COUNTS};

/// The counts of this process, and the rules in force.
pub(super) struct LocalPermits {
    pub(super) ledger: ArcSwap<Vec<Arc<CountedRule>>>,
    pub(super) counts: Mutex<Counts>,
    epoch: Instant,
    changes: watch::Sender<u64>,
}

#[derive(Default)]
pub(super) struct Counts {
    pub(super) by_key: HashMap<Key, Count>,
    next_sweep: usize,
    pub(super) last_number: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) number: u32,
    pub(super) subject: Subject,
}

/// The places of a running call.
struct Places {
    permits: Arc<LocalPermits>,
    keys: Vec<Key>,
}

impl Drop for Places {
    fn drop(&mut self) {
        {
            let mut counts = self.permits.counts.lock();
            for key in &self.keys {
                // The rule may have been removed meanwhile.
                if let Some(count) = counts.by_key.get_mut(key) {
                    count.running = count.running.saturating_sub(1);
                }
            }
        }
        self.permits.changes.send_modify(|number| *number += 1);
    }
}

impl Claim {
    fn key(&self) -> Key {
        Key { number: self.of.number, subject: self.subject.clone() }
    }
}

impl Counts {
    fn of(&self, claim: &Claim) -> Count {
        self.by_key.get(&claim.key()).copied().unwrap_or_default()
    }

    /// Returns whether there is room for these counts. Removes unneeded counts, at intervals that make
    /// this cheap.
    fn has_room(&mut self, claims: &[Claim], ledger: &[Arc<CountedRule>], now: Duration) -> bool {
        let is_new = |claim: &&Claim| !self.by_key.contains_key(&claim.key());
        let more = claims.iter().filter(is_new).count();
        if more == 0 {
            return true;
        }
        if self.by_key.len() + more > self.next_sweep.max(FIRST_SWEEP) {
            self.by_key.retain(|key, count| {
                let rule = ledger.iter().find(|counted| counted.number == key.number);
                let pace = rule.and_then(|counted| counted.rule.pace());
                count.running > 0 || pace.is_some_and(|pace| !count.bucket.is_full(now, pace))
            });
            self.next_sweep = (2 * self.by_key.len()).min(MAX_COUNTS);
        }
        self.by_key.len() + more <= MAX_COUNTS
    }
}

/// Fails with the refused claim that has the longest wait, if any is refused.
fn refusal<'a>(claims: impl Iterator<Item = (&'a Claim, Count)>, now: Duration) -> Result<(), NotTaken> {
    let refusals = claims.enumerate().filter_map(|(at, (claim, count))| claim.refusal(at, &count, now));
    refusals.max_by_key(NotTaken::retry_after).map_or(Ok(()), Err)
}

impl Default for LocalPermits {
    fn default() -> Self {
        Self {
            ledger: ArcSwap::default(),
            counts: Mutex::default(),
            epoch: Instant::now(),
            changes: watch::Sender::new(0),
        }
    }
}

impl LocalPermits {
    /// Checks whether the rates of its rules would refuse a call now. Nothing is counted. Concurrency is
    /// not checked, because the number of running calls at its turn is unknown.
    pub(super) fn check(&self, claims: &[Claim]) -> Result<(), NotTaken> {
        let counts = self.counts.lock();
        let now = self.now();
        let in_time = |claim: &Claim| Count { running: 0, ..counts.of(claim) };
        refusal(claims.iter().map(|claim| (claim, in_time(claim))), now)
    }

    /// Counts a call for all of its rules, or for none. If several rules refuse it, the one with the
    /// longest wait is reported.
    fn count(&self, claims: &[Claim]) -> Result<(), NotTaken> {
        let mut counts = self.counts.lock();
        let now = self.now();
        refusal(claims.iter().map(|claim| (claim, counts.of(claim))), now)?;
        if !counts.has_room(claims, &self.ledger.load(), now) {
            return Err(NotTaken::no_room());
        }
        for claim in claims {
            let count = counts.by_key.entry(claim.key()).or_default();
            *count = claim.added_to(*count, now);
        }
        Ok(())
    }

    /// Reverses the count of a call that is not made. Its places are returned separately.
    pub(super) fn refund(&self, claims: &[Claim]) {
        let mut counts = self.counts.lock();
        let now = self.now();
        for claim in claims {
            if let Some(count) = counts.by_key.get_mut(&claim.key()) {
                claim.refunded_to(count, now);
            }
        }
    }
}

#[async_trait]
impl Permits for LocalPermits {
    async fn take(self: Arc<Self>, claims: Vec<Claim>) -> Result<Taken, NotTaken> {
        self.count(&claims)?;
        let bounded = claims.iter().filter(|claim| claim.bounds_running());
        let keys: Vec<Key> = bounded.map(Claim::key).collect();
        Ok(match keys.is_empty() {
            true => Taken::default(),
            false => Taken::holding(Places { permits: self, keys }),
        })
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn count_of(&self, claim: &Claim) -> Count {
        self.counts.lock().of(claim)
    }

    fn counts_of(&self, rule: &CountedRule) -> Vec<(String, Count)> {
        let counts = self.counts.lock();
        let of_rule = counts.by_key.iter().filter(|(key, _)| key.number == rule.number);
        of_rule.map(|(key, count)| (rule.rule.stored_subject(&key.subject), *count)).collect()
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }
}

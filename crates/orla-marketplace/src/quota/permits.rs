//! Counters of calls: in this process, or over all nodes of a cluster.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::bucket::Bucket;
use super::rule::{QuotaRule, Subject};
use super::{CONCURRENT_RETRY, MAX_COUNTS};
use crate::attestation::hash_text;
use crate::principal::Principal;

/// The maximum number of characters in the name of a count.
const NAME: usize = 32;

/// Counts calls against limits, in this process or in a cluster.
#[async_trait]
pub trait Permits: Send + Sync {
    /// Takes all of these claims, or none.
    ///
    /// # Errors
    /// Which claim is refused, or why the counts cannot be used.
    async fn take(self: Arc<Self>, claims: Vec<Claim>) -> Result<Taken, NotTaken>;

    /// Returns a number that grows whenever a claim that was refused may be admitted.
    fn changes(&self) -> watch::Receiver<u64>;

    /// Returns the use of the count of a claim.
    fn count_of(&self, claim: &Claim) -> Count;

    /// Returns the use of a rule, with the callers as [`Claim::caller`] names them.
    fn counts_of(&self, rule: &CountedRule) -> Vec<(String, Count)>;

    /// Returns the time by which counts are refilled.
    fn now(&self) -> Duration;
}

/// A rule in force.
#[derive(Debug)]
pub struct CountedRule {
    pub(super) rule: QuotaRule,
    /// A part of the keys of its counts in this process.
    pub(super) number: u32,
    pub(super) identity: String,
    /// The number of calls that it refused.
    pub(super) refused: Arc<AtomicU64>,
}

/// The claim of one call on one count.
#[derive(Clone, Debug)]
pub struct Claim {
    pub(super) of: Arc<CountedRule>,
    pub(super) subject: Subject,
    pub(super) cost: u64,
}

/// The use of a count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub(super) bucket: Bucket,
    /// The number of running calls, for rules that limit them.
    pub(super) running: usize,
}

/// The counts that a call has taken. Dropping it ends the call for rules that limit concurrency.
#[must_use]
#[derive(Default)]
pub struct Taken {
    _places: Option<Box<dyn Any + Send + Sync>>,
    lost: Option<CancellationToken>,
}

/// The reason why a call may not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// A count is exhausted.
    Over {
        /// The index of the claim.
        at: usize,
        /// The limit, for users.
        limit: String,
        /// The time until the same call may be admitted.
        retry_after: Duration,
    },
    /// The counts cannot be used, for this reason.
    Unavailable(String),
}

impl CountedRule {
    /// Returns a text that identifies its counts in all processes: everything except the limits.
    pub fn id(&self) -> &str {
        &self.identity
    }
}

impl Claim {
    /// Returns the claim of a call of this caller on a rule, at the cost of 1; `None` if the rule does
    /// not concern the caller.
    pub fn new(rule: QuotaRule, caller: Option<&Principal>) -> Option<Self> {
        let (subject, identity) = (rule.subject(caller)?, rule.identity());
        let of = Arc::new(CountedRule { rule, number: 0, identity, refused: Arc::default() });
        Some(Self { of, subject, cost: 1 })
    }

    /// Returns the rule.
    pub fn rule(&self) -> &CountedRule {
        &self.of
    }

    /// Returns a text for the callers that share the count, unique within the rule.
    pub fn caller(&self) -> String {
        self.of.rule.stored_subject(&self.subject)
    }

    /// Returns the name of the count, unique over all rules.
    pub fn name(&self) -> String {
        let mut name = hash_text(format!("{}\0{}", self.of.identity, self.caller()).as_bytes());
        if let Some((_, hex)) = name.split_once(':') {
            name = hex.to_owned();
        }
        name.truncate(NAME);
        name
    }

    /// Returns whether the rule limits concurrency.
    pub fn bounds_running(&self) -> bool {
        self.of.rule.concurrent.is_some()
    }

    /// Returns why `count` does not admit the call, if it does not.
    pub fn refusal(&self, at: usize, count: &Count, now: Duration) -> Option<NotTaken> {
        let rule = &self.of.rule;
        let over = |limit, retry_after| Some(NotTaken::Over { at, limit, retry_after });
        if let (Some(rate), Some(pace)) = (&rule.rate, rule.pace()) {
            let wait = count.bucket.wait_for(self.cost, now, pace);
            if !wait.is_zero() {
                return over(rate.to_string(), wait);
            }
        }
        match rule.concurrent {
            Some(most) if count.running >= most => {
                let calls = if most == 1 { "call" } else { "calls" };
                over(format!("{most} {calls} at once"), CONCURRENT_RETRY)
            }
            _ => None,
        }
    }

    /// Returns the count with the call added.
    #[must_use]
    pub fn added_to(&self, mut count: Count, now: Duration) -> Count {
        if let Some(pace) = self.of.rule.pace() {
            count.bucket.take(self.cost, now, pace);
        }
        count.running += usize::from(self.bounds_running());
        count
    }

    /// Reverses the count of a call that is not made. Its place is returned separately.
    pub(super) fn refunded_to(&self, count: &mut Count, now: Duration) {
        if let Some(pace) = self.of.rule.pace() {
            count.bucket.give_back(self.cost, now, pace);
        }
    }

    /// Returns when the bucket is full.
    pub fn full_at(&self, count: &Count) -> Duration {
        self.of.rule.pace().map_or(Duration::ZERO, |pace| count.bucket.full_at(pace))
    }
}

impl Count {
    /// Creates a count from stored data: the missing part of the bucket in the units of
    /// [`Count::spent`], at a point in time, and the running calls.
    pub fn new(spent: u128, at: Duration, running: usize) -> Self {
        Self { bucket: Bucket::of(spent, at), running }
    }

    /// Returns the missing part of the bucket, and the time. One call has as many units as the period of
    /// the rule has nanoseconds.
    pub fn spent(&self) -> (u128, Duration) {
        self.bucket.parts()
    }
}

impl Taken {
    /// Creates the counts of a call, which are held until `places` is dropped.
    pub fn holding(places: impl Any + Send + Sync) -> Self {
        Self { _places: Some(Box::new(places)), lost: None }
    }

    /// Sets a token that is cancelled if the counts are lost while the call runs.
    pub fn until(mut self, lost: CancellationToken) -> Self {
        self.lost = Some(lost);
        self
    }

    /// Returns the token that is cancelled when the counts are lost, if that is possible.
    pub fn lost(&self) -> Option<&CancellationToken> {
        self.lost.as_ref()
    }
}

impl NotTaken {
    /// Returns the time until the same call may be admitted; zero if that is unknown.
    pub fn retry_after(&self) -> Duration {
        match self {
            Self::Over { retry_after, .. } => *retry_after,
            Self::Unavailable(_) => Duration::ZERO,
        }
    }

    /// Returns the refusal for a full table.
    pub fn no_room() -> Self {
        let limit = format!("{MAX_COUNTS} callers");
        Self::Over { at: 0, limit, retry_after: CONCURRENT_RETRY }
    }
}

//! The known counts of the cluster, and the decisions that follow from them. No I/O; the caller provides
//! the time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use orla_marketplace::{Claim, Count, MAX_COUNTS, NotTaken};
use orla_state::{Change, Expect, Revision};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::record::Tally;
use crate::presence::is_name;

/// The records of counts.
pub(super) const COUNTS: &str = "limit/count/";
/// The records of lives of nodes.
pub(super) const LIVES: &str = "limit/life/";
/// Another node is gone when its record has not changed for this long.
pub(super) const LEASE: Duration = Duration::from_secs(10);
/// A node takes its own places for lost somewhat sooner than others do.
pub(super) const OWN_LEASE: Duration = Duration::from_secs(8);

/// The record of a life, which names its node for people.
#[derive(Default, Serialize, Deserialize)]
struct LifeRecord {
    node: String,
}

pub(super) fn life_of(node: &str) -> Vec<u8> {
    serde_json::to_vec(&LifeRecord { node: node.to_owned() }).unwrap_or_default()
}

fn node_of(value: &[u8]) -> String {
    let record: LifeRecord = serde_json::from_slice(value).unwrap_or_default();
    if is_name(&record.node) { record.node } else { String::new() }
}

/// The last known counts and lives of nodes.
#[derive(Default)]
pub(super) struct Ledger {
    counts: HashMap<String, KnownCount>,
    lives: HashMap<String, KnownLife>,
    /// The life of this node that has these places.
    pub(super) own_life: Option<String>,
    /// The places that calls of this node have.
    own_places: BTreeMap<String, usize>,
    /// Counts whose records may contain outdated values of this node.
    stale: BTreeSet<String>,
    /// Counts for which it is unknown whether this node's last write was made.
    unconfirmed: BTreeSet<String>,
}

struct KnownCount {
    revision: Revision,
    /// `None` if the record cannot be read. No call is admitted in this case.
    tally: Option<Tally>,
}

struct KnownLife {
    node: String,
    revision: Revision,
    /// When it was first seen.
    since: Instant,
}

/// Changes that admit some calls.
pub(super) struct Plan {
    pub(super) changes: Vec<Change>,
    /// The outcome of each call if the changes are made.
    pub(super) answers: Vec<Result<(), NotTaken>>,
    tallies: Vec<(String, Tally)>,
}

impl Ledger {
    /// Takes in the current state of a record.
    pub(super) fn apply_record(&mut self, key: &str, record: Option<(Revision, &[u8])>, now: Instant) {
        if let Some(name) = key.strip_prefix(COUNTS) {
            match record {
                Some((revision, value)) => {
                    let tally = Tally::read(value).inspect_err(|error| {
                        tracing::error!(key, error, "a count of the cluster cannot be read");
                    });
                    self.counts.insert(name.to_owned(), KnownCount { revision, tally: tally.ok() });
                }
                None => drop(self.counts.remove(name)),
            }
        } else if let Some(life) = key.strip_prefix(LIVES) {
            match record {
                Some((revision, _))
                    if self.lives.get(life).is_some_and(|known| known.revision == revision) => {}
                Some((revision, value)) => {
                    let node = node_of(value);
                    self.lives.insert(life.to_owned(), KnownLife { node, revision, since: now });
                }
                None => drop(self.lives.remove(life)),
            }
        }
    }

    /// Returns the revision of the record of a life.
    pub(super) fn life(&self, life: &str) -> Option<Revision> {
        self.lives.get(life).map(|known| known.revision)
    }

    /// Returns the lives that a count names and whose records are unknown.
    pub(super) fn missing_lives(&self, name: &str) -> Vec<String> {
        let tally = self.counts.get(name).and_then(|known| known.tally.as_ref());
        let named = tally.into_iter().flat_map(|tally| tally.held.keys());
        named.filter(|life| !self.lives.contains_key(*life)).cloned().collect()
    }

    /// Returns all keys that are known.
    pub(super) fn keys(&self) -> Vec<String> {
        let counts = self.counts.keys().map(|name| format!("{COUNTS}{name}"));
        counts.chain(self.lives.keys().map(|life| format!("{LIVES}{life}"))).collect()
    }

    /// Returns the lives of other nodes that have been silent for so long that they may be gone, the longest
    /// silent first.
    pub(super) fn expired_lives(&self, now: Instant) -> Vec<(String, Revision)> {
        let others = self.lives.iter().filter(|(life, _)| self.own_life.as_ref() != Some(life));
        let expired = others.filter(|(_, known)| now.saturating_duration_since(known.since) >= LEASE);
        let mut expired: Vec<(String, Revision)> =
            expired.map(|(life, known)| (life.clone(), known.revision)).collect();
        expired.sort_unstable_by_key(|(_, revision)| *revision);
        expired
    }

    /// Returns whether this node has no places, and no record claims otherwise.
    pub(super) fn is_idle(&self) -> bool {
        self.own_places.is_empty() && self.stale.is_empty()
    }

    /// Returns whether a record must be corrected.
    pub(super) fn is_stale(&self) -> bool {
        !self.stale.is_empty()
    }

    /// The call with these places has ended.
    pub(super) fn release(&mut self, names: &[String]) {
        for name in names {
            if let Some(held) = self.own_places.get_mut(name) {
                *held -= 1;
                if *held == 0 {
                    self.own_places.remove(name);
                }
                self.stale.insert(name.clone());
            }
        }
    }

    /// The life of this node has ended, with all its places.
    pub(super) fn end_life(&mut self) -> Option<String> {
        self.own_places.clear();
        self.stale.clear();
        self.unconfirmed.clear();
        self.own_life.take()
    }

    /// Returns the record of a count with the places of the nodes that are present, and the current
    /// places of this node.
    fn tally(&self, name: &str) -> Result<Option<Tally>, NotTaken> {
        let Some(known) = self.counts.get(name) else { return Ok(None) };
        let tally = known.tally.clone();
        let unreadable = || NotTaken::Unavailable("its record cannot be read".to_owned());
        let mut tally = tally.ok_or_else(unreadable)?;
        tally
            .held
            .retain(|life, _| self.own_life.as_ref() != Some(life) && self.lives.contains_key(life));
        if let (Some(life), Some(held)) = (&self.own_life, self.own_places.get(name)) {
            tally.held.insert(life.clone(), *held);
        }
        Ok(Some(tally))
    }

    /// Decides about calls, in their order, and corrects at most `max` records besides. `life` is the life of this node
    /// that takes places.
    pub(super) fn plan(&self, takes: &[Vec<Claim>], max: usize, life: &str, now: Duration) -> Plan {
        let mut work: BTreeMap<String, Tally> = BTreeMap::new();
        for name in self.stale.iter().take(max) {
            if let Ok(Some(tally)) = self.tally(name) {
                work.insert(name.clone(), tally);
            }
        }
        let answers = takes.iter().map(|claims| self.admit(claims, &mut work, life, now)).collect();
        let mut plan = Plan { changes: Vec::new(), answers, tallies: Vec::new() };
        for (name, tally) in work {
            let known = self.counts.get(&name);
            let is_known = known.is_some_and(|known| known.tally.as_ref() == Some(&tally));
            if is_known && !self.unconfirmed.contains(&name) {
                continue;
            }
            let expect = known.map_or(Expect::Absent, |known| Expect::Revision(known.revision));
            plan.changes.push(Change::put(format!("{COUNTS}{name}"), tally.write()).expecting(expect));
            plan.tallies.push((name, tally));
        }
        plan
    }

    /// Adds a call to all of its counts, or to none.
    fn admit(
        &self,
        claims: &[Claim],
        work: &mut BTreeMap<String, Tally>,
        life: &str,
        now: Duration,
    ) -> Result<(), NotTaken> {
        let mut next = Vec::with_capacity(claims.len());
        let mut refused: Option<NotTaken> = None;
        for (at, claim) in claims.iter().enumerate() {
            let name = claim.name();
            let tally = match work.get(&name) {
                Some(tally) => tally.clone(),
                None => match self.tally(&name)? {
                    Some(tally) => tally,
                    None if self.counts.len() + work.len() >= MAX_COUNTS => {
                        return Err(NotTaken::no_room());
                    }
                    None => Tally::of(claim),
                },
            };
            // Of several that refuse it, the one with the longest wait does.
            if let Some(over) = claim.refusal(at, &tally.count(), now)
                && refused.as_ref().is_none_or(|known| known.retry_after() < over.retry_after())
            {
                refused = Some(over);
            }
            next.push((name, tally));
        }
        if let Some(refused) = refused {
            return Err(refused);
        }
        for (claim, (name, mut tally)) in claims.iter().zip(next) {
            tally.add(claim, life, now);
            work.insert(name, tally);
        }
        Ok(())
    }

    /// The changes of a plan were made, and their records have these revisions.
    pub(super) fn commit(
        &mut self,
        takes: &[Vec<Claim>],
        plan: &Plan,
        revisions: &[Revision],
        life: &str,
    ) {
        for ((name, tally), revision) in plan.tallies.iter().zip(revisions) {
            if tally.held.contains_key(life) {
                self.own_life = Some(life.to_owned());
            }
            let known = KnownCount { revision: *revision, tally: Some(tally.clone()) };
            self.counts.insert(name.clone(), known);
            self.stale.remove(name);
            self.unconfirmed.remove(name);
        }
        for (claims, answer) in takes.iter().zip(&plan.answers) {
            if answer.is_ok() {
                for claim in claims.iter().filter(|claim| claim.bounds_running()) {
                    *self.own_places.entry(claim.name()).or_default() += 1;
                }
            }
        }
    }

    /// Whether the changes of a plan were made is unknown: the records may name this node for calls that were not made.
    pub(super) fn mark_unconfirmed(&mut self, plan: &Plan) {
        for (name, _) in &plan.tallies {
            self.stale.insert(name.clone());
            self.unconfirmed.insert(name.clone());
        }
    }

    /// Marks corrections without an effect as done.
    pub(super) fn drop_settled(&mut self, max: usize) {
        for name in self.stale.iter().take(max).cloned().collect::<Vec<_>>() {
            let known = self.counts.get(&name).and_then(|known| known.tally.as_ref());
            let is_known = self.tally(&name).is_ok_and(|tally| tally.as_ref() == known);
            if is_known && (known.is_none() || !self.unconfirmed.contains(&name)) {
                self.stale.remove(&name);
                self.unconfirmed.remove(&name);
            }
        }
    }

    /// Returns counts that no longer matter, at most `most` of them.
    pub(super) fn unused(&self, now: Duration, most: usize) -> Vec<Change> {
        let unused = self.counts.iter().filter(|(name, _)| {
            self.tally(name).is_ok_and(|tally| tally.is_some_and(|tally| tally.is_unused(now)))
        });
        let remove = |(name, known): (&String, &KnownCount)| {
            Change::remove(format!("{COUNTS}{name}")).expecting(Expect::Revision(known.revision))
        };
        let mut changes: Vec<Change> = unused.take(most).map(remove).collect();
        changes.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        changes
    }

    /// Returns the usage of a count.
    pub(super) fn count(&self, name: &str) -> Count {
        self.tally(name).ok().flatten().map(|tally| tally.count()).unwrap_or_default()
    }

    /// Returns the callers of a rule with their usage.
    pub(super) fn counts_of(&self, rule: &str) -> Vec<(String, Count)> {
        let of_rule = self.counts.iter().filter_map(|(name, known)| {
            let tally = known.tally.as_ref().filter(|tally| tally.rule == rule)?;
            Some((tally.caller.clone(), self.count(name)))
        });
        of_rule.collect()
    }

    /// Returns the places of all nodes, for people.
    pub(super) fn places(&self) -> BTreeMap<String, usize> {
        let mut places = BTreeMap::new();
        for tally in self.counts.values().filter_map(|known| known.tally.as_ref()) {
            for (life, held) in &tally.held {
                if let Some(known) = self.lives.get(life) {
                    *places.entry(known.node.clone()).or_default() += held;
                }
            }
        }
        places
    }
}

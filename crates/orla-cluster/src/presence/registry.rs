//! The known state of the nodes, and the decisions that follow from it. It has no clock: the caller
//! provides the time.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use orla_marketplace::millis_down;
use tokio::time::Instant;

use super::lease::Lease;
use super::offer::{Offered, Offers};

/// How long a node is there after its last lease.
pub(crate) const LEASE: Duration = Duration::from_secs(10);
/// How long a node that is gone is shown.
const FORGET_AFTER: Duration = Duration::from_secs(600);
/// The maximum number of nodes.
const MAX_NODES: usize = 256;
/// The maximum number of bytes that the offers of all nodes have together.
const MAX_OFFERS: usize = 256 * 1024 * 1024;

/// All other known nodes.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    nodes: BTreeMap<String, Node>,
    /// The nodes that take calls of each version of a capability, by its digest.
    takers: HashMap<String, Vec<String>>,
    turn: AtomicUsize,
}

#[derive(Debug)]
struct Node {
    lease: Lease,
    /// The time at which its last lease was received.
    last_lease: Instant,
    /// The time from which its lease counts. It is later than `last_lease` after a period in which no lease
    /// could be received.
    lease_start: Instant,
    is_alive: bool,
    offer: Option<KnownOffer>,
    /// Calls that went there since the last lease, which does not count them.
    sent: Arc<AtomicUsize>,
}

/// The offer of a node.
#[derive(Debug)]
struct KnownOffer {
    digest: String,
    /// The creation time that the node claims.
    claimed_since: u64,
    /// When it was made: not later than it was written.
    since: u64,
    bytes: usize,
    offers: Offers,
}

/// The offer of a node as it was read.
#[derive(Debug)]
pub(crate) struct Learned {
    pub(crate) offers: Offers,
    /// The number of its bytes.
    pub(crate) bytes: usize,
    /// The revision of the lease in its bucket.
    pub(crate) revision: u64,
}

/// The consequences of a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaseUpdate {
    /// The node's offer is not known.
    pub(crate) wants_offer: bool,
    /// Whether the served capabilities changed.
    pub(crate) is_news: bool,
}

/// A node that a call can go to.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) node: String,
    /// See [`Lease::instance`].
    pub(crate) instance: String,
    /// Counts the calls that go there.
    pub(crate) sent: Arc<AtomicUsize>,
}

/// A node that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) node: String,
    /// See [`Lease::instance`].
    pub(crate) instance: String,
}

/// A node in `orla cluster status`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStatus {
    /// Its name.
    pub node: String,
    /// Whether the node renews its lease. The node that answers is alive as long as no other node has
    /// taken its name.
    pub alive: bool,
    /// Whether the node is the one that answers, and currently receives no messages of others.
    pub cut_off: bool,
    /// Whether it takes no more calls of other nodes.
    pub draining: bool,
    /// The ids of its capabilities.
    pub capabilities: Vec<String>,
    /// Calls that run there.
    pub running: usize,
    /// The places that its calls have of bounds that hold over all nodes. The registry does not know them.
    pub places: usize,
    /// The number of milliseconds since its lease was received here.
    pub lag_ms: u64,
    /// For how many milliseconds its copy of the store has not kept up, because its consumer is stuck.
    pub stuck_ms: Option<u64>,
}

impl Registry {
    /// Takes a lease.
    pub(crate) fn apply_lease(&mut self, lease: Lease, now: Instant) -> LeaseUpdate {
        let is_full = self.nodes.len() >= MAX_NODES;
        let node = match self.nodes.entry(lease.node.clone()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if is_full => return LeaseUpdate::default(),
            Entry::Vacant(free) => {
                free.insert(Node {
                    lease,
                    last_lease: now,
                    lease_start: now,
                    is_alive: true,
                    offer: None,
                    sent: Arc::default(),
                });
                return LeaseUpdate { wants_offer: true, is_news: false };
            }
        };
        // Of an instance that was stopped for a while, and has been replaced.
        let is_same = lease.instance == node.lease.instance;
        if node.is_alive && !is_same && lease.epoch < node.lease.epoch {
            return LeaseUpdate::default();
        }
        let takes_otherwise = !node.is_alive || lease.draining != node.lease.draining;
        node.sent.store(0, Ordering::Relaxed);
        (node.last_lease, node.lease_start, node.is_alive) = (now, now, true);
        let of = |known: &KnownOffer| known.digest == lease.offer && known.claimed_since == lease.since;
        let is_known = node.offer.as_ref().is_some_and(of);
        node.lease = lease;
        let is_news = takes_otherwise && node.offer.is_some();
        if is_news {
            self.index();
        }
        LeaseUpdate { wants_offer: !is_known, is_news }
    }

    /// Takes in the offer that a lease named. Returns whether the served capabilities change.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no room for the offer.
    pub(crate) fn learn(&mut self, named: &Lease, learned: Learned) -> Result<bool, String> {
        let others = self.nodes.iter().filter(|(name, _)| **name != named.node);
        let held: usize = others.filter_map(|(_, node)| Some(node.offer.as_ref()?.bytes)).sum();
        if held + learned.bytes > MAX_OFFERS {
            return Err(format!("the offers of all nodes have more than {MAX_OFFERS} bytes"));
        }
        let Some(node) = self.nodes.get_mut(&named.node) else { return Ok(false) };
        if node.lease.offer != named.offer {
            return Ok(false);
        }
        let Learned { offers, bytes, revision } = learned;
        let (digest, claimed_since) = (named.offer.clone(), named.since);
        node.offer = Some(KnownOffer {
            digest,
            claimed_since,
            since: claimed_since.min(revision),
            bytes,
            offers,
        });
        let is_alive = node.is_alive;
        self.index();
        Ok(is_alive)
    }

    /// Removes a node that has left. Returns whether the served capabilities change.
    pub(crate) fn forget(&mut self, node: &str) -> bool {
        let was_alive = self.nodes.get_mut(node).is_some_and(|node| std::mem::take(&mut node.is_alive));
        if was_alive {
            self.index();
        }
        was_alive
    }

    /// Removes the nodes whose leases were not renewed. Returns whether the served capabilities change.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        let since = |then: Instant| now.saturating_duration_since(then);
        self.nodes.retain(|_, node| node.is_alive || since(node.last_lease) < FORGET_AFTER);
        let mut is_news = false;
        for node in
            self.nodes.values_mut().filter(|node| node.is_alive && since(node.lease_start) > LEASE)
        {
            node.is_alive = false;
            is_news = true;
        }
        if is_news {
            self.index();
        }
        is_news
    }

    /// Extends the leases of all present nodes by a full lease, after a period in which no lease could
    /// be received.
    pub(crate) fn restart_leases(&mut self, now: Instant) {
        self.nodes.values_mut().filter(|node| node.is_alive).for_each(|node| node.lease_start = now);
    }

    /// Returns every id that is offered, in the version that was offered last.
    pub(crate) fn served(&self) -> Vec<Arc<Offered>> {
        let mut newest = BTreeMap::<&str, (u64, &Arc<Offered>)>::new();
        for node in self.nodes.values().filter(|node| node.takes_calls()) {
            let since = node.offer.as_ref().map_or(0, |known| known.since);
            for offered in node.offered() {
                let candidate = (since, offered);
                let known = newest.entry(&offered.id).or_insert(candidate);
                if (known.0, &known.1.digest) < (candidate.0, &candidate.1.digest) {
                    *known = candidate;
                }
            }
        }
        newest.into_values().map(|(_, offered)| Arc::clone(offered)).collect()
    }

    /// Returns the nodes that take calls of this version, the least loaded first. Equal ones take turns.
    pub(crate) fn candidates(&self, digest: &str) -> Vec<Candidate> {
        let names = self.takers.get(digest).into_iter().flatten();
        let nodes = names.filter_map(|name| self.nodes.get(name));
        let mut nodes: Vec<(u64, &Node)> = nodes.map(|node| (node.load(), node)).collect();
        if !nodes.is_empty() {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % nodes.len();
            nodes.rotate_left(turn);
        }
        nodes.sort_by_key(|(load, _)| *load);
        let candidate = |(_, node): (u64, &Node)| Candidate {
            node: node.lease.node.clone(),
            instance: node.lease.instance.clone(),
            sent: Arc::clone(&node.sent),
        };
        nodes.into_iter().map(candidate).collect()
    }

    /// Returns those of the wanted versions that nodes take calls of. A wanted version is an id and the beginning of its
    /// digest.
    pub(crate) fn versions(&self, wanted: &HashMap<&str, &str>) -> Vec<Arc<Offered>> {
        let is_wanted = |offered: &Offered| {
            wanted.get(offered.id.as_str()).is_some_and(|digest| offered.digest.starts_with(digest))
        };
        let mut found = BTreeMap::new();
        for node in self.nodes.values().filter(|node| node.takes_calls()) {
            for offered in node.offered().filter(|offered| is_wanted(offered)) {
                found.entry(&offered.id).or_insert(offered);
            }
        }
        found.into_values().cloned().collect()
    }

    /// Returns the names of the nodes that take calls of this version.
    pub(crate) fn names(&self, digest: &str) -> Vec<String> {
        self.takers.get(digest).cloned().unwrap_or_default()
    }

    /// Returns the nodes that are there.
    pub(crate) fn peers(&self) -> Vec<Peer> {
        self.nodes.values().filter(|node| node.is_alive).map(Node::peer).collect()
    }

    /// Returns the node that is there as this instance.
    pub(crate) fn peer(&self, instance: &str) -> Option<Peer> {
        let mut alive = self.nodes.values().filter(|node| node.is_alive);
        alive.find(|node| node.lease.instance == instance).map(Node::peer)
    }

    /// Returns the other nodes, for people.
    pub(crate) fn status(&self, now: Instant) -> Vec<NodeStatus> {
        let status = |node: &Node| {
            let lag = now.saturating_duration_since(node.last_lease);
            NodeStatus {
                node: node.lease.node.clone(),
                alive: node.is_alive,
                cut_off: false,
                draining: node.is_alive && node.lease.draining,
                capabilities: node.offered().map(|offered| offered.id.clone()).collect(),
                running: if node.is_alive { node.lease.running } else { 0 },
                places: 0,
                lag_ms: millis_down(lag),
                stuck_ms: node.lease.stuck_ms.filter(|_| node.is_alive),
            }
        };
        self.nodes.values().map(status).collect()
    }

    fn index(&mut self) {
        self.takers.clear();
        for (name, node) in self.nodes.iter().filter(|(_, node)| node.takes_calls()) {
            for offered in node.offered() {
                let names = self.takers.entry(offered.digest.clone()).or_default();
                // A node may list a name twice.
                if names.last() != Some(name) {
                    names.push(name.clone());
                }
            }
        }
    }
}

impl Node {
    fn peer(&self) -> Peer {
        Peer { node: self.lease.node.clone(), instance: self.lease.instance.clone() }
    }

    fn takes_calls(&self) -> bool {
        self.is_alive && !self.lease.draining
    }

    fn offered(&self) -> impl Iterator<Item = &Arc<Offered>> {
        self.offer.iter().flat_map(|known| &known.offers.capabilities)
    }

    /// Millionths of its places that are taken.
    fn load(&self) -> u64 {
        let running = self.lease.running.saturating_add(self.sent.load(Ordering::Relaxed));
        (running as u64).saturating_mul(1_000_000) / self.lease.limit.max(1) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::lease::VERSION;
    use super::*;

    fn lease(node: &str, epoch: u64) -> Lease {
        let offer = "0".repeat(64);
        Lease {
            v: VERSION,
            node: node.to_owned(),
            instance: format!("{epoch:016x}"),
            epoch,
            offer,
            since: epoch,
            parts: 1,
            running: 0,
            limit: 10,
            draining: false,
            stuck_ms: None,
        }
    }

    fn learned(tool: &str) -> Learned {
        let capabilities = vec![Arc::new(Offered::new("x", tool, None, None))];
        Learned { offers: Offers { capabilities, left_out: 0 }, bytes: 10, revision: 1000 }
    }

    fn with(nodes: &[(&str, u64, &str)], now: Instant) -> Registry {
        let mut registry = Registry::default();
        for (node, epoch, tool) in nodes {
            assert!(registry.apply_lease(lease(node, *epoch), now).wants_offer);
            assert_eq!(registry.learn(&lease(node, *epoch), learned(tool)), Ok(true));
        }
        registry
    }

    fn order(registry: &Registry, digest: &str) -> Vec<String> {
        registry.candidates(digest).into_iter().map(|one| one.node).collect()
    }

    #[test]
    fn a_node_is_alive_during_its_lease() {
        let now = Instant::now();
        let mut registry = with(&[("a", 1, "{}")], now);
        assert!(!registry.expire(now + LEASE));
        assert_eq!(registry.served().len(), 1);
        assert!(registry.expire(now + LEASE + Duration::from_millis(1)));
        assert!(registry.served().is_empty() && !registry.status(now)[0].alive);
        let back = registry.apply_lease(lease("a", 1), now + LEASE * 2);
        assert_eq!(back, LeaseUpdate { wants_offer: false, is_news: true });
        assert_eq!(registry.served().len(), 1);
        registry.restart_leases(now + LEASE * 5);
        assert!(!registry.expire(now + LEASE * 6));
        assert!(registry.forget("a") && !registry.forget("a") && registry.served().is_empty());
        registry.expire(now + LEASE * 6 + FORGET_AFTER);
        assert!(registry.status(now).is_empty());
    }

    #[test]
    fn the_newest_version_is_served_and_older_ones_can_be_called() {
        let now = Instant::now();
        let registry = with(&[("a", 1, "{}"), ("b", 3, r#"{"v":2}"#), ("c", 2, "{}")], now);
        let served = registry.served();
        assert_eq!((served.len(), &*served[0].tool), (1, r#"{"v":2}"#));
        let old = Offered::new("x", "{}", None, None).digest;
        assert_eq!(order(&registry, &served[0].digest), ["b"]);
        assert_eq!(order(&registry, &old).len(), 2);
        assert!(order(&registry, "other").is_empty());
    }

    #[test]
    fn a_version_is_found_while_a_node_takes_its_calls() {
        let now = Instant::now();
        let mut registry = with(&[("a", 1, "{}"), ("b", 2, r#"{"v":2}"#)], now);
        let old = Offered::new("x", "{}", None, None).digest;
        let found = |registry: &Registry, id: &str, digest: &str| {
            let found = registry.versions(&HashMap::from([(id, digest)]));
            found.into_iter().map(|offered| offered.digest.clone()).collect::<Vec<_>>()
        };
        assert_eq!(found(&registry, "x", &old[..32]), std::slice::from_ref(&old));
        assert!(found(&registry, "y", &old).is_empty() && found(&registry, "x", "other").is_empty());
        registry.apply_lease(Lease { draining: true, ..lease("a", 1) }, now);
        assert!(found(&registry, "x", &old).is_empty());
    }

    #[test]
    fn the_least_loaded_is_asked_first_and_equals_take_turns() {
        let now = Instant::now();
        let mut registry = with(&[("a", 1, "{}"), ("b", 1, "{}")], now);
        let digest = registry.served()[0].digest.clone();
        assert_ne!(order(&registry, &digest), order(&registry, &digest));
        let first = registry.candidates(&digest).remove(0);
        first.sent.fetch_add(1, Ordering::Relaxed);
        for _ in 0..2 {
            assert_ne!(order(&registry, &digest)[0], first.node);
        }
        registry.apply_lease(Lease { running: 9, ..lease("a", 1) }, now);
        registry.apply_lease(Lease { running: 10, limit: 20, ..lease("b", 1) }, now);
        assert_eq!(order(&registry, &digest), ["b", "a"]);
    }

    #[test]
    fn leases_of_a_replaced_instance_are_ignored() {
        let now = Instant::now();
        let mut registry = with(&[("a", 2, "{}")], now);
        let late = Lease { running: 7, ..lease("a", 1) };
        assert_eq!(registry.apply_lease(late, now), LeaseUpdate::default());
        assert_eq!(registry.status(now)[0].running, 0);
        let digest = registry.served()[0].digest.clone();
        assert_eq!(registry.candidates(&digest)[0].instance, lease("a", 2).instance);
        let again = Lease { running: 7, epoch: 1, ..lease("a", 2) };
        registry.apply_lease(again, now);
        assert_eq!(
            registry.status(now)[0].running,
            7,
            "after a loss of the bucket, revisions are smaller"
        );
    }

    #[test]
    fn a_draining_node_is_alive_and_gets_no_calls() {
        let now = Instant::now();
        let mut registry = with(&[("a", 1, "{}"), ("b", 1, "{}")], now);
        let digest = registry.served()[0].digest.clone();
        let draining = Lease { draining: true, ..lease("a", 1) };
        assert_eq!(
            registry.apply_lease(draining, now),
            LeaseUpdate { wants_offer: false, is_news: true }
        );
        assert_eq!(
            (order(&registry, &digest), registry.names(&digest)),
            (vec!["b".to_owned()], vec!["b".to_owned()])
        );
        let status = &registry.status(now)[0];
        assert!(status.alive && status.draining && status.capabilities == ["x"]);
        registry.forget("b");
        assert!(registry.served().is_empty());
        assert!(registry.apply_lease(lease("a", 1), now).is_news);
        assert_eq!(order(&registry, &digest), ["a"]);
    }

    #[test]
    fn an_offer_is_not_newer_than_its_record() {
        let now = Instant::now();
        let mut registry = with(&[("honest", 5, r#"{"v":2}"#)], now);
        let liar = Lease { since: u64::MAX, ..lease("liar", 1) };
        registry.apply_lease(liar.clone(), now);
        assert_eq!(registry.learn(&liar, Learned { revision: 4, ..learned("{}") }), Ok(true));
        assert_eq!(&*registry.served()[0].tool, r#"{"v":2}"#);
    }

    #[test]
    fn all_offers_together_are_bounded() {
        let (mut registry, now) = (Registry::default(), Instant::now());
        for node in ["a", "b"] {
            registry.apply_lease(lease(node, 1), now);
        }
        let large = || Learned { bytes: MAX_OFFERS, ..learned("{}") };
        assert_eq!(registry.learn(&lease("a", 1), large()), Ok(true));
        assert_eq!(registry.learn(&lease("a", 1), large()), Ok(true), "it takes the place of itself");
        assert!(registry.learn(&lease("b", 1), learned("{}")).is_err());
    }

    #[test]
    fn a_lost_connection_keeps_the_time_of_the_last_lease() {
        let now = Instant::now();
        let mut registry = with(&[("a", 1, "{}")], now);
        registry.restart_leases(now + LEASE);
        assert!(!registry.expire(now + LEASE * 2));
        assert_eq!(registry.status(now + LEASE)[0].lag_ms, 10_000);
    }

    #[test]
    fn the_number_of_nodes_is_bounded() {
        let (mut registry, now) = (Registry::default(), Instant::now());
        for number in 0..MAX_NODES + 5 {
            registry.apply_lease(lease(&format!("n{number}"), 1), now);
        }
        assert_eq!(registry.status(now).len(), MAX_NODES);
    }
}

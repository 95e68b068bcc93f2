//! What is known of the nodes, and what follows from it. It knows no clock: the caller says what time it is.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::lease::Lease;
use super::offer::{Offered, Offers};

/// How long a node is there after its last lease.
pub(crate) const LEASE: Duration = Duration::from_secs(10);
/// How long a node that is gone is shown.
const REMEMBERED: Duration = Duration::from_secs(600);
/// The most nodes.
const MAX_NODES: usize = 256;

/// Every other node that was heard of.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    nodes: BTreeMap<String, Node>,
    turn: AtomicUsize,
}

#[derive(Debug)]
struct Node {
    lease: Lease,
    heard: Instant,
    is_alive: bool,
    /// The digest of the offer that is known, and the offer.
    offer: Option<(String, Offers)>,
    /// Calls that went there since the last lease, which does not count them.
    sent: Arc<AtomicUsize>,
}

/// What a lease brings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// The node's offer is not known.
    pub(crate) wants_offer: bool,
    /// What is served changed.
    pub(crate) is_news: bool,
}

/// A node that a call can go to.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) node: String,
    /// Counts the calls that go there.
    pub(crate) sent: Arc<AtomicUsize>,
}

/// A node in `orla cluster status`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStatus {
    /// Its name.
    pub node: String,
    /// Whether it renews its lease.
    pub alive: bool,
    /// The ids of what it offers.
    pub capabilities: Vec<String>,
    /// Calls that run there.
    pub running: usize,
    /// Milliseconds since its lease was heard here.
    pub lag_ms: u64,
}

impl Registry {
    /// Takes a lease.
    pub(crate) fn hear(&mut self, lease: Lease, now: Instant) -> Heard {
        let is_full = self.nodes.len() >= MAX_NODES;
        let node = match self.nodes.entry(lease.node.clone()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if is_full => return Heard::default(),
            Entry::Vacant(free) => {
                free.insert(Node {
                    lease,
                    heard: now,
                    is_alive: true,
                    offer: None,
                    sent: Arc::default(),
                });
                return Heard { wants_offer: true, is_news: false };
            }
        };
        // Of an instance that was stopped for a while, and has been replaced.
        if node.is_alive && lease.epoch < node.lease.epoch {
            return Heard::default();
        }
        let is_back = !node.is_alive;
        node.sent.store(0, Ordering::Relaxed);
        (node.lease, node.heard, node.is_alive) = (lease, now, true);
        let is_known = node.offer.as_ref().is_some_and(|(digest, _)| *digest == node.lease.offer);
        Heard { wants_offer: !is_known, is_news: is_back && is_known }
    }

    /// Takes the offer of a node. Returns whether that changes what is served.
    pub(crate) fn learn(&mut self, node: &str, digest: &str, offers: Offers) -> bool {
        let Some(node) = self.nodes.get_mut(node).filter(|node| node.lease.offer == digest) else {
            return false;
        };
        node.offer = Some((digest.to_owned(), offers));
        node.is_alive
    }

    /// Takes that a node has left. Returns whether that changes what is served.
    pub(crate) fn forget(&mut self, node: &str) -> bool {
        self.nodes.get_mut(node).is_some_and(|node| std::mem::take(&mut node.is_alive))
    }

    /// Ends what was not renewed. Returns whether that changes what is served.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        let since = |node: &Node| now.saturating_duration_since(node.heard);
        self.nodes.retain(|_, node| node.is_alive || since(node) < REMEMBERED);
        let mut is_news = false;
        for node in self.nodes.values_mut().filter(|node| node.is_alive && since(node) > LEASE) {
            node.is_alive = false;
            is_news = true;
        }
        is_news
    }

    /// Gives all that are there the time of a whole lease, after a time in which none could be heard.
    pub(crate) fn excuse(&mut self, now: Instant) {
        self.nodes.values_mut().filter(|node| node.is_alive).for_each(|node| node.heard = now);
    }

    /// Every id that is offered, in the version that was offered last.
    pub(crate) fn served(&self) -> Vec<Arc<Offered>> {
        let mut newest = BTreeMap::<&str, (u64, &Arc<Offered>)>::new();
        for node in self.nodes.values().filter(|node| node.is_alive) {
            for offered in node.offered() {
                let candidate = (node.lease.since, offered);
                let known = newest.entry(&offered.id).or_insert(candidate);
                if (known.0, &known.1.digest) < (candidate.0, &candidate.1.digest) {
                    *known = candidate;
                }
            }
        }
        newest.into_values().map(|(_, offered)| Arc::clone(offered)).collect()
    }

    /// The nodes that offer this version, the least loaded first. Equal ones take turns.
    pub(crate) fn candidates(&self, digest: &str) -> Vec<Candidate> {
        let offers = |node: &&Node| node.offered().any(|offered| offered.digest == digest);
        let nodes = self.nodes.values().filter(|node| node.is_alive).filter(offers);
        let mut nodes: Vec<(u64, &Node)> = nodes.map(|node| (node.load(), node)).collect();
        if !nodes.is_empty() {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % nodes.len();
            nodes.rotate_left(turn);
        }
        nodes.sort_by_key(|(load, _)| *load);
        let candidate = |(_, node): (u64, &Node)| Candidate {
            node: node.lease.node.clone(),
            sent: Arc::clone(&node.sent),
        };
        nodes.into_iter().map(candidate).collect()
    }

    /// The other nodes, for people.
    pub(crate) fn status(&self, now: Instant) -> Vec<NodeStatus> {
        let status = |node: &Node| {
            let lag = now.saturating_duration_since(node.heard);
            NodeStatus {
                node: node.lease.node.clone(),
                alive: node.is_alive,
                capabilities: node.offered().map(|offered| offered.id.clone()).collect(),
                running: if node.is_alive { node.lease.running } else { 0 },
                lag_ms: u64::try_from(lag.as_millis()).unwrap_or(u64::MAX),
            }
        };
        self.nodes.values().map(status).collect()
    }
}

impl Node {
    fn offered(&self) -> impl Iterator<Item = &Arc<Offered>> {
        self.offer.iter().flat_map(|(_, offers)| &offers.capabilities)
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
            epoch,
            offer,
            since: epoch,
            parts: 1,
            running: 0,
            limit: 10,
        }
    }

    fn offers(tool: &str) -> Offers {
        Offers { capabilities: vec![Arc::new(Offered::new("x", tool, None))], left_out: 0 }
    }

    fn with(nodes: &[(&str, u64, &str)], now: Instant) -> Registry {
        let mut registry = Registry::default();
        for (node, epoch, tool) in nodes {
            assert!(registry.hear(lease(node, *epoch), now).wants_offer);
            assert!(registry.learn(node, &"0".repeat(64), offers(tool)));
        }
        registry
    }

    fn order(registry: &Registry, digest: &str) -> Vec<String> {
        registry.candidates(digest).into_iter().map(|one| one.node).collect()
    }

    #[test]
    fn a_node_is_there_as_long_as_its_lease() {
        let now = Instant::now();
        let mut registry = with(&[("a", 1, "{}")], now);
        assert!(!registry.expire(now + LEASE));
        assert_eq!(registry.served().len(), 1);
        assert!(registry.expire(now + LEASE + Duration::from_millis(1)));
        assert!(registry.served().is_empty() && !registry.status(now)[0].alive);
        let back = registry.hear(lease("a", 1), now + LEASE * 2);
        assert_eq!(back, Heard { wants_offer: false, is_news: true });
        assert_eq!(registry.served().len(), 1);
        registry.excuse(now + LEASE * 5);
        assert!(!registry.expire(now + LEASE * 6));
        assert!(registry.forget("a") && !registry.forget("a") && registry.served().is_empty());
        registry.expire(now + LEASE * 6 + REMEMBERED);
        assert!(registry.status(now).is_empty());
    }

    #[test]
    fn the_version_that_was_offered_last_is_served_and_older_ones_can_be_called() {
        let now = Instant::now();
        let registry = with(&[("a", 1, "{}"), ("b", 3, r#"{"v":2}"#), ("c", 2, "{}")], now);
        let served = registry.served();
        assert_eq!((served.len(), &*served[0].tool), (1, r#"{"v":2}"#));
        let old = Offered::new("x", "{}", None).digest;
        assert_eq!(order(&registry, &served[0].digest), ["b"]);
        assert_eq!(order(&registry, &old).len(), 2);
        assert!(order(&registry, "other").is_empty());
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
        registry.hear(Lease { running: 9, ..lease("a", 1) }, now);
        registry.hear(Lease { running: 10, limit: 20, ..lease("b", 1) }, now);
        assert_eq!(order(&registry, &digest), ["b", "a"]);
    }

    #[test]
    fn an_instance_that_was_replaced_is_not_heard() {
        let now = Instant::now();
        let mut registry = with(&[("a", 2, "{}")], now);
        let late = Lease { running: 7, ..lease("a", 1) };
        assert_eq!(registry.hear(late, now), Heard::default());
        assert_eq!(registry.status(now)[0].running, 0);
    }

    #[test]
    fn there_is_a_bound_to_the_nodes() {
        let (mut registry, now) = (Registry::default(), Instant::now());
        for number in 0..MAX_NODES + 5 {
            registry.hear(lease(&format!("n{number}"), 1), now);
        }
        assert_eq!(registry.status(now).len(), MAX_NODES);
    }
}

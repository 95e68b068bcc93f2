//! Decides which nodes are present. No I/O.
//!
//! A node changes its record every few seconds. All times are those of the local clock, so no clock is
//! compared with another.

use std::collections::BTreeMap;
use std::time::Duration;

use orla_state::Revision;
use tokio::time::Instant;

use crate::task::Runner;

/// A node that has written no heartbeat for this long is gone.
pub(crate) const LEASE: Duration = Duration::from_secs(10);

/// A node considers itself gone somewhat sooner than others do.
pub(crate) const OWN_LEASE: Duration = Duration::from_secs(8);

/// The nodes whose heartbeats were received.
#[derive(Debug, Default)]
pub(crate) struct Nodes(BTreeMap<String, NodeRecord>);

#[derive(Debug)]
struct NodeRecord {
    life: String,
    /// The revision of the node's record. A heartbeat counts only if the revision has changed.
    revision: Revision,
    at: Instant,
    is_gone: bool,
}

impl Nodes {
    /// Notes that the record of a node has this revision. Returns whether that ends another life of the
    /// node.
    pub(crate) fn record_heartbeat(&mut self, runner: Runner, revision: Revision, now: Instant) -> bool {
        let Runner { node, life } = runner;
        if self.0.get(&node).is_some_and(|known| known.revision == revision) {
            return false;
        }
        let record = NodeRecord { life: life.clone(), revision, at: now, is_gone: false };
        let before = self.0.insert(node, record);
        before.is_some_and(|before| before.life != life)
    }

    /// Removes a node that announced its end, or that others found to be gone.
    pub(crate) fn remove(&mut self, node: &str) -> bool {
        self.0.remove(node).is_some()
    }

    /// Restarts the leases of all nodes after a time without heartbeats of any.
    pub(crate) fn restart_leases(&mut self, now: Instant) {
        self.0.values_mut().filter(|record| !record.is_gone).for_each(|record| record.at = now);
    }

    /// Returns whether any node has been silent for so long that it may be gone.
    pub(crate) fn has_silent_node(&self, now: Instant) -> bool {
        self.0.values().any(|record| record.is_silent(now))
    }

    /// Removes the nodes that are gone and returns them, with the revisions of their records.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<(String, Revision)> {
        let silent = self.0.iter_mut().filter(|(_, record)| record.is_silent(now));
        let expired = silent.map(|(node, record)| {
            record.is_gone = true;
            (node.clone(), record.revision)
        });
        expired.collect()
    }

    pub(crate) fn is_alive(&self, runner: &Runner) -> bool {
        self.0.get(&runner.node).is_some_and(|record| record.life == runner.life && !record.is_gone)
    }
}

impl NodeRecord {
    fn is_silent(&self, now: Instant) -> bool {
        !self.is_gone && now.duration_since(self.at) >= LEASE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(node: &str, life: &str) -> Runner {
        Runner { node: node.to_owned(), life: life.to_owned() }
    }

    #[test]
    fn a_node_is_alive_while_its_heartbeats_arrive() {
        let (mut nodes, start) = (Nodes::default(), Instant::now());
        let (first, second) = (life("a", "1"), life("a", "2"));
        assert!(!nodes.is_alive(&first), "it was never heard");
        assert!(!nodes.record_heartbeat(first.clone(), 1, start));
        assert!(nodes.is_alive(&first) && !nodes.is_alive(&second));
        assert!(!nodes.has_silent_node(start + LEASE / 2));
        assert!(!nodes.record_heartbeat(first.clone(), 2, start + LEASE / 2));
        assert_eq!(nodes.expire(start + LEASE), [], "it was heard in between");
        nodes.restart_leases(start + LEASE * 2);
        assert_eq!(nodes.expire(start + LEASE * 2), [], "no heartbeat arrived");
        assert!(nodes.has_silent_node(start + LEASE * 3));
        assert_eq!(nodes.expire(start + LEASE * 3), [("a".to_owned(), 2)]);
        assert!(!nodes.is_alive(&first) && !nodes.has_silent_node(start + LEASE * 3));
        assert!(!nodes.record_heartbeat(first.clone(), 3, start + LEASE * 3));
        assert!(nodes.is_alive(&first), "it is back");
        // The store was created anew, and its revisions begin again.
        nodes.record_heartbeat(first.clone(), 1, start + LEASE * 6);
        assert!(!nodes.has_silent_node(start + LEASE * 6) && nodes.is_alive(&first));
    }

    #[test]
    fn a_known_revision_is_no_heartbeat() {
        let (mut nodes, start) = (Nodes::default(), Instant::now());
        let node = life("a", "1");
        nodes.record_heartbeat(node.clone(), 7, start);
        // The record is read again.
        nodes.record_heartbeat(node.clone(), 7, start + LEASE);
        assert_eq!(nodes.expire(start + LEASE).len(), 1);
        nodes.record_heartbeat(node.clone(), 7, start + LEASE);
        assert!(!nodes.is_alive(&node));
    }

    #[test]
    fn a_new_life_of_a_node_ends_the_previous_one() {
        let (mut nodes, now) = (Nodes::default(), Instant::now());
        nodes.record_heartbeat(life("a", "1"), 1, now);
        assert!(nodes.record_heartbeat(life("a", "2"), 2, now));
        assert!(!nodes.is_alive(&life("a", "1")));
        assert!(nodes.remove("a") && !nodes.is_alive(&life("a", "2")));
    }
}

//! Decides which offers to read, and when. It has no clock: the caller provides the time.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use super::lease::Lease;

/// The maximum number of offers that are read at once.
const MAX_READS: usize = 8;
/// The least time between two reads of one node's offer.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest time until an offer is read again that could not be read.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Nodes that are remembered before those are left out that need not be.
const MAX_REMEMBERED: usize = 512;

/// The offers to read: at most one for each node, so that no node delays the others.
#[derive(Debug, Default)]
pub(crate) struct ReadQueue {
    waiting: BTreeMap<String, Lease>,
    reads: HashMap<String, Read>,
    running: usize,
}

/// How the reads of one node's offer go.
#[derive(Debug)]
struct Read {
    is_running: bool,
    not_before: Instant,
    failures: u32,
}

impl ReadQueue {
    /// Requests the offer that this lease names.
    pub(crate) fn request(&mut self, lease: Lease, now: Instant) {
        if self.reads.len() >= MAX_REMEMBERED {
            self.reads.retain(|_, read| read.is_running || read.not_before > now);
        }
        self.waiting.insert(lease.node.clone(), lease);
    }

    /// Returns the next one to read now.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Lease> {
        if self.running >= MAX_READS {
            return None;
        }
        let free = |node: &&String| {
            self.reads.get(*node).is_none_or(|read| !read.is_running && read.not_before <= now)
        };
        let node = self.waiting.keys().find(free)?.clone();
        let read = Read { is_running: true, not_before: now, failures: 0 };
        self.reads.entry(node.clone()).or_insert(read).is_running = true;
        self.running += 1;
        self.waiting.remove(&node)
    }

    /// Returns when there is one to read, unless something else happens before.
    pub(crate) fn due(&self) -> Option<Instant> {
        let of = |node: &String| match self.reads.get(node) {
            Some(read) if read.is_running => None,
            Some(read) => Some(read.not_before),
            None => None,
        };
        self.waiting.keys().filter_map(of).min().filter(|_| self.running < MAX_READS)
    }

    /// The read of a node's offer is over.
    pub(crate) fn done(&mut self, node: &str, is_read: bool, now: Instant) {
        let Some(read) = self.reads.get_mut(node) else { return };
        self.running -= usize::from(std::mem::take(&mut read.is_running));
        read.failures = if is_read { 0 } else { read.failures.saturating_add(1) };
        let pause = PAUSE * 2_u32.saturating_pow(read.failures.saturating_sub(1).min(10));
        read.not_before = now + pause.min(MAX_PAUSE);
    }

    /// Returns whether no offer waits or is being read.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running == 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::lease::VERSION;
    use super::*;

    fn lease(node: &str) -> Lease {
        Lease {
            v: VERSION,
            node: node.to_owned(),
            instance: "0".repeat(16),
            epoch: 1,
            offer: "0".repeat(64),
            since: 1,
            parts: 1,
            running: 0,
            limit: 1,
            draining: false,
            stuck_ms: None,
        }
    }

    #[test]
    fn a_node_waits_once_for_any_number_of_requests() {
        let (mut queue, now) = (ReadQueue::default(), Instant::now());
        for _ in 0..1000 {
            queue.request(lease("flood"), now);
        }
        queue.request(lease("other"), now);
        let read: Vec<String> = std::iter::from_fn(|| queue.next(now)).map(|lease| lease.node).collect();
        assert_eq!(read, ["flood", "other"]);
        queue.request(lease("flood"), now);
        assert!(queue.next(now).is_none() && queue.due().is_none(), "it is being read");
        queue.done("flood", true, now);
        assert_eq!(queue.due(), Some(now + PAUSE));
        assert!(queue.next(now).is_none() && queue.next(now + PAUSE).is_some());
    }

    #[test]
    fn unreadable_offers_are_retried_with_longer_pauses() {
        let (mut queue, mut now, start) = (ReadQueue::default(), Instant::now(), Instant::now());
        for _ in 0..20 {
            queue.request(lease("liar"), now);
            now = queue.due().unwrap_or(now);
            assert!(queue.next(now).is_some());
            queue.done("liar", false, now);
        }
        queue.request(lease("liar"), now);
        assert_eq!(queue.due(), Some(now + MAX_PAUSE));
        assert!(now > start + MAX_PAUSE * 10);
        assert!(!queue.is_idle());
    }

    #[test]
    fn concurrent_reads_are_bounded() {
        let (mut queue, now) = (ReadQueue::default(), Instant::now());
        for number in 0..MAX_READS + 2 {
            queue.request(lease(&format!("n{number}")), now);
        }
        let mut reads = Vec::new();
        while let Some(lease) = queue.next(now) {
            reads.push(lease.node);
        }
        assert_eq!((reads.len(), queue.due()), (MAX_READS, None));
        for node in &reads {
            queue.done(node, true, now);
        }
        assert!(queue.next(now).is_some() && queue.next(now).is_some() && !queue.is_idle());
    }

    #[test]
    fn remembered_offers_are_bounded() {
        let (mut queue, mut now) = (ReadQueue::default(), Instant::now());
        for number in 0..MAX_REMEMBERED * 3 {
            let node = format!("n{number}");
            queue.request(lease(&node), now);
            assert!(queue.next(now).is_some());
            queue.done(&node, true, now);
            now += PAUSE;
        }
        assert!(queue.is_idle() && queue.reads.len() <= MAX_REMEMBERED);
    }
}

//! Digests that are remembered for a limited time in bounded memory: refused tokens, and used proofs.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::cache::Digest;

/// The maximum number of digests. Beyond it, expired ones are dropped, and then those that expire first.
const MAX: usize = 16_384;

/// Digests, each with the time until which it is remembered.
#[derive(Default)]
pub(crate) struct RememberedDigests(Mutex<HashMap<Digest, Instant>>);

impl RememberedDigests {
    pub(crate) fn contains(&self, digest: &Digest) -> bool {
        self.0.lock().get(digest).is_some_and(|until| Instant::now() < *until)
    }

    /// Remembers a digest. Returns whether it was not remembered before.
    pub(crate) fn add(&self, digest: Digest, keep: Duration) -> bool {
        let (mut known, now) = (self.0.lock(), Instant::now());
        if known.get(&digest).is_some_and(|until| now < *until) {
            return false;
        }
        if known.len() >= MAX {
            known.retain(|_, until| now < *until);
        }
        if known.len() >= MAX {
            let mut ends: Vec<Instant> = known.values().copied().collect();
            let middle = ends.len() / 2;
            let (_, median, _) = ends.select_nth_unstable(middle);
            let median = *median;
            known.retain(|_, until| *until > median);
        }
        known.insert(digest, now + keep);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_digest_is_remembered_for_its_time_in_bounded_memory() {
        let known = RememberedDigests::default();
        let keep = Duration::from_secs(30);
        assert!(known.add([1; 32], keep));
        assert!(!known.add([1; 32], keep) && known.contains(&[1; 32]));
        tokio::time::advance(keep).await;
        assert!(!known.contains(&[1; 32]) && known.add([1; 32], keep));
        for n in 0..2 * MAX {
            let mut digest = [2; 32];
            digest[..8].copy_from_slice(&n.to_le_bytes());
            tokio::time::advance(Duration::from_nanos(1)).await;
            known.add(digest, keep);
        }
        assert!(known.0.lock().len() <= MAX);
    }
}

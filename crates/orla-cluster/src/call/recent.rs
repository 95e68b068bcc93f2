//! The calls that came from other nodes lately.

use std::collections::{HashSet, VecDeque};

/// How many calls are remembered: a message is repeated soon, if at all.
const MAX_CALLS: usize = 100_000;

/// The tokens of the last calls that came, whether they were refused, run or are over.
#[derive(Debug, Default)]
pub(super) struct RecentCalls {
    known: HashSet<u128>,
    /// The same, the oldest first.
    order: VecDeque<u128>,
}

impl RecentCalls {
    /// Remembers a call. Returns whether it is a new one.
    pub(super) fn remember(&mut self, token: u128) -> bool {
        if !self.known.insert(token) {
            return false;
        }
        self.order.push_back(token);
        if self.order.len() > MAX_CALLS
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_calls_are_remembered() {
        let (mut recent, count) = (RecentCalls::default(), MAX_CALLS as u128);
        assert!((0..=count).all(|token| recent.remember(token)));
        assert!(!(1..=count).any(|token| recent.remember(token)), "each of them is known");
        assert!(recent.remember(0), "it was the oldest");
        assert_eq!((recent.known.len(), recent.order.len()), (MAX_CALLS, MAX_CALLS));
    }
}

//! The resources of a server whose changes callers have subscribed to.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// The maximum number of subscribed resources of one server.
const MAX_SUBSCRIPTIONS: usize = 10_000;

/// Counts the subscribers of each resource of a server.
#[derive(Debug, Default)]
pub struct Subscriptions(Mutex<BTreeMap<String, usize>>);

/// The error for too many subscribed resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many resources are subscribed to")]
pub struct TooMany;

impl Subscriptions {
    /// Adds a subscriber.
    ///
    /// # Errors
    /// Too many other resources are subscribed to.
    pub fn add(&self, uri: &str) -> Result<(), TooMany> {
        let mut counts = self.0.lock();
        if counts.len() >= MAX_SUBSCRIPTIONS && !counts.contains_key(uri) {
            return Err(TooMany);
        }
        *counts.entry(uri.to_owned()).or_default() += 1;
        Ok(())
    }

    /// Removes a subscriber. Returns whether it was the last one.
    pub fn remove(&self, uri: &str) -> bool {
        let mut counts = self.0.lock();
        let Some(count) = counts.get_mut(uri) else { return true };
        *count = count.saturating_sub(1);
        let is_last = *count == 0;
        if is_last {
            counts.remove(uri);
        }
        is_last
    }

    /// Returns the resources that are subscribed to.
    pub fn uris(&self) -> Vec<String> {
        self.0.lock().keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_is_subscribed_to_until_its_last_subscriber_is_removed() {
        let subscriptions = Subscriptions::default();
        for uri in ["b", "a", "a"] {
            subscriptions.add(uri).unwrap();
        }
        assert_eq!(subscriptions.uris(), ["a", "b"]);
        assert_eq!(["a", "a", "a"].map(|uri| subscriptions.remove(uri)), [false, true, true]);
        assert_eq!(subscriptions.uris(), ["b"]);
    }

    #[test]
    fn one_more_resource_than_the_limit_is_refused() {
        let subscriptions = Subscriptions::default();
        for number in 0..MAX_SUBSCRIPTIONS {
            subscriptions.add(&number.to_string()).unwrap();
        }
        assert_eq!((subscriptions.add("new"), subscriptions.add("7")), (Err(TooMany), Ok(())));
    }
}

//! Assigns events to waits. No I/O.
//!
//! One event wakes one wait: the oldest event of a name wakes the oldest wait for that name. An event
//! that no wait has taken stays stored.

use std::collections::{BTreeMap, BTreeSet};

use orla_marketplace::rtfs::Ticket;

/// The waits of a run for events, and the available events.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// The names of the awaited events, in the order of the requests.
    waiting: BTreeMap<Ticket, String>,
    /// The keys of the available events by their names, the oldest first.
    events: BTreeMap<String, BTreeSet<String>>,
    /// The taken events whose answers are not noted yet, by the waits that took them.
    taken: BTreeMap<Ticket, (String, String)>,
    /// The used events. Their rows may still exist.
    used: BTreeSet<String>,
}

impl Waits {
    /// Adds a wait for an event of this name.
    pub(super) fn wait(&mut self, ticket: Ticket, name: &str) {
        self.waiting.insert(ticket, name.to_owned());
    }

    /// Adds an event with this key. The same event may be added several times.
    pub(super) fn add_event(&mut self, name: &str, key: &str) {
        if !self.used.contains(key) && !self.taken.values().any(|(_, taken)| taken == key) {
            self.events.entry(name.to_owned()).or_default().insert(key.to_owned());
        }
    }

    /// Returns the key of the event for a wait, if one is available and it is the wait's turn.
    pub(super) fn take(&mut self, ticket: Ticket) -> Option<String> {
        let name = self.waiting.get(&ticket)?.clone();
        let before = self.waiting.range(..ticket).filter(|(_, other)| **other == name).count();
        let events = self.events.get_mut(&name)?;
        if events.len() <= before {
            return None;
        }
        // Earlier waits take the older events.
        let key = events.iter().nth(before)?.clone();
        events.remove(&key);
        self.waiting.remove(&ticket);
        self.taken.insert(ticket, (name, key.clone()));
        Some(key)
    }

    /// Marks the event of a wait as used, because its answer was noted. Returns the key of the event.
    pub(super) fn used(&mut self, ticket: Ticket) -> Option<String> {
        let (_, key) = self.taken.remove(&ticket)?;
        self.used.insert(key.clone());
        Some(key)
    }

    /// Withdraws a wait. An event that it took becomes available again.
    pub(super) fn withdraw(&mut self, ticket: Ticket) {
        self.waiting.remove(&ticket);
        if let Some((name, key)) = self.taken.remove(&ticket) {
            self.events.entry(name).or_default().insert(key);
        }
    }

    /// Returns whether an event is available for a wait.
    pub(super) fn is_due(&self) -> bool {
        let has = |name: &String| self.events.get(name).is_some_and(|events| !events.is_empty());
        !self.taken.is_empty() || self.waiting.values().any(has)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_event_wakes_one_wait_in_order() {
        let mut waits = Waits::default();
        waits.add_event("a", "1");
        waits.add_event("b", "2");
        let [first, second, third] = [1, 2, 3].map(Ticket);
        waits.wait(first, "a");
        waits.wait(second, "a");
        waits.wait(third, "a");
        assert_eq!(waits.take(second), None, "the only event is for the wait before it");
        assert_eq!(waits.take(first).as_deref(), Some("1"));
        waits.add_event("a", "1");
        assert_eq!(waits.take(second), None, "an event that was taken is there once");
        waits.add_event("a", "3");
        waits.add_event("a", "4");
        assert_eq!(waits.take(third).as_deref(), Some("4"));
        assert_eq!(waits.take(second).as_deref(), Some("3"));
        assert_eq!(waits.used(first).as_deref(), Some("1"));
        waits.add_event("a", "1");
        waits.wait(Ticket(9), "a");
        assert_eq!(waits.take(Ticket(9)), None, "its row is there, but it was used up");
        assert!(waits.is_due(), "two were taken");
    }

    #[test]
    fn an_event_whose_wait_is_withdrawn_is_available_to_others() {
        let mut waits = Waits::default();
        let [first, second] = [1, 2].map(Ticket);
        waits.wait(first, "a");
        waits.wait(second, "a");
        waits.add_event("a", "1");
        assert!(waits.is_due());
        assert_eq!(waits.take(first).as_deref(), Some("1"));
        waits.withdraw(first);
        assert_eq!(waits.take(second).as_deref(), Some("1"));
        assert_eq!(waits.used(second).as_deref(), Some("1"));
        assert!(!waits.is_due());
    }
}

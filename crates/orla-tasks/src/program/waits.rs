//! Which event wakes which wait. No I/O.
//!
//! One event wakes one wait: the oldest event of a name the wait that was asked first. An event that no wait has taken stays
//! where it is kept.

use std::collections::{BTreeMap, BTreeSet};

use orla_marketplace::rtfs::Ticket;

/// The waits of a run for events, and the events that are there.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// The names of what is waited for, in the order in which it was asked for.
    waiting: BTreeMap<Ticket, String>,
    /// The keys of the events that wait for being awaited, by their names, the oldest first.
    events: BTreeMap<String, BTreeSet<String>>,
    /// The events that were taken and whose answers are not noted, by the waits that took them.
    taken: BTreeMap<Ticket, (String, String)>,
    /// The events that were used up. Their rows may still be there.
    used: BTreeSet<String>,
}

impl Waits {
    /// A wait for an event of a name.
    pub(super) fn wait(&mut self, ticket: Ticket, name: &str) {
        self.waiting.insert(ticket, name.to_owned());
    }

    /// An event is there under this key. It may be told several times.
    pub(super) fn came(&mut self, name: &str, key: &str) {
        if !self.used.contains(key) && !self.taken.values().any(|(_, taken)| taken == key) {
            self.events.entry(name.to_owned()).or_default().insert(key.to_owned());
        }
    }

    /// The key of the event for a wait, if one has come and it is the turn of the wait.
    pub(super) fn take(&mut self, ticket: Ticket) -> Option<String> {
        let name = self.waiting.get(&ticket)?.clone();
        let before = self.waiting.range(..ticket).filter(|(_, other)| **other == name).count();
        let events = self.events.get_mut(&name)?;
        if events.len() <= before {
            return None;
        }
        // Those before it take the older ones.
        let key = events.iter().nth(before)?.clone();
        events.remove(&key);
        self.waiting.remove(&ticket);
        self.taken.insert(ticket, (name, key.clone()));
        Some(key)
    }

    /// The answer to a wait was noted: its event is used up. Gives the key.
    pub(super) fn used(&mut self, ticket: Ticket) -> Option<String> {
        let (_, key) = self.taken.remove(&ticket)?;
        self.used.insert(key.clone());
        Some(key)
    }

    /// The wait is not wanted any more. An event that it took is there for others again.
    pub(super) fn withdraw(&mut self, ticket: Ticket) {
        self.waiting.remove(&ticket);
        if let Some((name, key)) = self.taken.remove(&ticket) {
            self.events.entry(name).or_default().insert(key);
        }
    }

    /// Whether an event is there for a wait.
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
        waits.came("a", "1");
        waits.came("b", "2");
        let [first, second, third] = [1, 2, 3].map(Ticket);
        waits.wait(first, "a");
        waits.wait(second, "a");
        waits.wait(third, "a");
        assert_eq!(waits.take(second), None, "the only event is for the wait before it");
        assert_eq!(waits.take(first).as_deref(), Some("1"));
        waits.came("a", "1");
        assert_eq!(waits.take(second), None, "an event that was taken is there once");
        waits.came("a", "3");
        waits.came("a", "4");
        assert_eq!(waits.take(third).as_deref(), Some("4"));
        assert_eq!(waits.take(second).as_deref(), Some("3"));
        assert_eq!(waits.used(first).as_deref(), Some("1"));
        waits.came("a", "1");
        waits.wait(Ticket(9), "a");
        assert_eq!(waits.take(Ticket(9)), None, "its row is there, but it was used up");
        assert!(waits.is_due(), "two were taken");
    }

    #[test]
    fn an_event_whose_wait_is_withdrawn_is_there_for_others() {
        let mut waits = Waits::default();
        let [first, second] = [1, 2].map(Ticket);
        waits.wait(first, "a");
        waits.wait(second, "a");
        waits.came("a", "1");
        assert!(waits.is_due());
        assert_eq!(waits.take(first).as_deref(), Some("1"));
        waits.withdraw(first);
        assert_eq!(waits.take(second).as_deref(), Some("1"));
        assert_eq!(waits.used(second).as_deref(), Some("1"));
        assert!(!waits.is_due());
    }
}

//! A node's copy of the records: their keys, their revisions, and small values. No I/O.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use bytes::Bytes;
use orla_state::{Order, Query, Revision};

use super::plan::Last;

/// A value of at most this many bytes is kept in the copy. Larger values are read from the server.
const SMALL: usize = 4 * 1024;
/// The maximum number of bytes of values that are kept here.
const ALL: usize = 64 << 20;
/// How long the number of a removal is known. Later, the server is asked for it.
const REMOVED: Duration = Duration::from_secs(300);

/// Where a value is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// Here.
    Here(Bytes),
    /// In the message with the number of the record.
    Message,
    /// The value has its own messages.
    Parts(Parts),
}

/// A value in separate messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    /// Random.
    pub(super) id: String,
    /// How many messages there are.
    pub(super) count: usize,
    /// The bytes of the value.
    pub(super) bytes: usize,
}

/// A change as it is in the stream.
#[derive(Clone, Debug)]
pub(super) struct Applied {
    pub(super) key: String,
    pub(super) revision: Revision,
    /// `None` if the record was removed.
    pub(super) value: Option<Value>,
}

/// The records, as far as a node knows them.
#[derive(Debug, Default)]
pub(super) struct Replica {
    records: BTreeMap<String, (Revision, Value)>,
    removed: HashMap<String, (Revision, Instant)>,
    bytes: usize,
    sweep_at: usize,
}

impl Replica {
    /// Applies a change, unless a later one of its key is known. Returns the parts that no record has
    /// any more, and whether it was applied.
    pub(super) fn apply(&mut self, change: Applied, now: Instant) -> (bool, Option<Parts>) {
        let Applied { key, revision, value } = change;
        if self.last(&key).is_some_and(|last| last.sequence >= revision) {
            return (false, None);
        }
        self.removed.remove(&key);
        let before = self.records.remove(&key);
        if let Some((_, Value::Here(value))) = &before {
            self.bytes -= value.len();
        }
        match value {
            Some(value) => {
                let value = match value {
                    Value::Here(value) if value.len() > SMALL || self.bytes + value.len() > ALL => {
                        Value::Message
                    }
                    // A part of a larger buffer would keep all of it.
                    Value::Here(value) => {
                        self.bytes += value.len();
                        Value::Here(Bytes::copy_from_slice(&value))
                    }
                    other => other,
                };
                self.records.insert(key, (revision, value));
            }
            None => {
                if self.removed.len() >= self.sweep_at {
                    self.removed.retain(|_, (_, at)| now.duration_since(*at) < REMOVED);
                    self.sweep_at = 2 * self.removed.len() + 1024;
                }
                self.removed.insert(key, (revision, now));
            }
        }
        let parts = before.and_then(|(_, value)| match value {
            Value::Parts(parts) => Some(parts),
            _ => None,
        });
        (true, parts)
    }

    /// Returns the last known message of a key, or `None` if none is known.
    pub(super) fn last(&self, key: &str) -> Option<Last> {
        let record = self.records.get(key).map(|(sequence, _)| (*sequence, true));
        let removed = || self.removed.get(key).map(|(sequence, _)| (*sequence, false));
        let (sequence, is_record) = record.or_else(removed)?;
        Some(Last { sequence, is_record })
    }

    /// Forgets a removal that the server does not know any more.
    pub(super) fn forget(&mut self, key: &str, sequence: u64) {
        if self.removed.get(key).is_some_and(|(known, _)| *known == sequence) {
            self.removed.remove(key);
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<(Revision, Value)> {
        self.records.get(key).cloned()
    }

    pub(super) fn list(&self, query: &Query) -> Vec<(String, Revision, Value)> {
        if query.keys.is_empty() {
            return Vec::new();
        }
        let found = self.records.range(query.keys.clone());
        let copy = |(key, (revision, value)): (&String, &(Revision, Value))| {
            (key.clone(), *revision, value.clone())
        };
        match query.order {
            Order::Ascending => found.take(query.limit).map(copy).collect(),
            Order::Descending => found.rev().take(query.limit).map(copy).collect(),
        }
    }

    /// Returns the known changes after this number.
    pub(super) fn later(&self, sequence: u64) -> Vec<Applied> {
        let records = self.records.iter().map(|(key, (at, value))| (key, *at, Some(value)));
        let removed = self.removed.iter().map(|(key, (at, _))| (key, *at, None));
        let later = records.chain(removed).filter(|(_, at, _)| *at > sequence);
        let applied = |(key, revision, value): (&String, u64, Option<&Value>)| Applied {
            key: key.clone(),
            revision,
            value: value.cloned(),
        };
        later.map(applied).collect()
    }

    /// Returns the keys of all records.
    pub(super) fn keys(&self) -> Vec<String> {
        self.records.keys().cloned().collect()
    }
}

impl Parts {
    /// As a header has it.
    pub(super) fn write(&self) -> String {
        format!("{} {} {}", self.id, self.count, self.bytes)
    }

    /// Reads a header. Returns `None` if no value can have it.
    pub(super) fn read(text: &str, max: usize) -> Option<Self> {
        let mut words = text.split(' ');
        let mut next = || words.next();
        let (id, count, bytes) = (next()?, next()?.parse().ok()?, next()?.parse().ok()?);
        let is_id = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let fits = is_id && bytes <= max && count <= bytes && next().is_none();
        fits.then(|| Self { id: id.to_owned(), count, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, revision: u64, value: &'static [u8]) -> Applied {
        let value = Some(Value::Here(Bytes::from_static(value)));
        Applied { key: key.to_owned(), revision, value }
    }

    fn remove(key: &str, revision: u64) -> Applied {
        Applied { key: key.to_owned(), revision, value: None }
    }

    #[test]
    fn the_latest_change_of_a_key_wins_in_any_order() {
        let changes =
            [put("a", 1, b"1"), put("a", 3, b"3"), remove("a", 2), put("b", 4, b""), remove("b", 5)];
        for first in 0..changes.len() {
            let mut replica = Replica::default();
            for at in 0..changes.len() {
                replica.apply(changes[(first + at) % changes.len()].clone(), Instant::now());
            }
            assert_eq!(replica.get("a"), Some((3, Value::Here(Bytes::from_static(b"3")))));
            assert_eq!(replica.get("b"), None);
            assert_eq!(replica.last("b"), Some(Last { sequence: 5, is_record: false }));
            assert_eq!(replica.bytes, 1);
        }
    }

    #[test]
    fn large_values_stay_at_the_server() {
        let mut replica = Replica::default();
        let large = Value::Here(vec![0; SMALL + 1].into());
        replica.apply(Applied { key: "a".to_owned(), revision: 1, value: Some(large) }, Instant::now());
        assert_eq!(replica.get("a"), Some((1, Value::Message)));
        assert_eq!(replica.bytes, 0);
    }

    #[test]
    fn parts_that_no_record_uses_are_returned() {
        let parts = Parts { id: "0".repeat(32), count: 2, bytes: 9 };
        assert_eq!(Parts::read(&parts.write(), 10), Some(parts.clone()));
        for bad in ["", "x 1 1", &format!("{} 2 11", "0".repeat(32)), &format!("{} 3 2", "0".repeat(32))]
        {
            assert_eq!(Parts::read(bad, 10), None, "{bad:?}");
        }
        let mut replica = Replica::default();
        let change =
            Applied { key: "a".to_owned(), revision: 1, value: Some(Value::Parts(parts.clone())) };
        assert_eq!(replica.apply(change.clone(), Instant::now()), (true, None));
        assert_eq!(replica.apply(change, Instant::now()), (false, None));
        assert_eq!(replica.apply(remove("a", 2), Instant::now()), (true, Some(parts)));
    }
}

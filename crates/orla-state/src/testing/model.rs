//! A map with the behaviour of a store, and arbitrary operations on both.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;

use crate::{Change, Expect, Order, Query, Revision, StateStore, WriteError};

/// The expected content of a store.
#[derive(Clone, Debug, Default)]
pub struct Model {
    records: BTreeMap<String, (Bytes, Revision)>,
    last: Revision,
}

/// One operation on a store.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Changes. Each condition is chosen from the content of the model.
    Write(Vec<(u8, Option<u8>, Condition)>),
    /// One record.
    Get(u8),
    /// A range.
    List {
        /// The first key.
        from: u8,
        /// The key behind the last one.
        to: u8,
        /// From the end.
        descending: bool,
        /// The maximum number of records.
        limit: usize,
    },
}

/// A condition of a change.
#[derive(Clone, Copy, Debug)]
pub enum Condition {
    /// None.
    Anything,
    /// The record is absent.
    Absent,
    /// It has the revision that it had before the batch.
    Current,
    /// It has a revision that no record has.
    Stale,
}

/// Operations on few keys, so that they meet.
pub fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let condition = prop_oneof![
        3 => Just(Condition::Anything),
        1 => Just(Condition::Absent),
        3 => Just(Condition::Current),
        1 => Just(Condition::Stale),
    ];
    let change = (0_u8..12, proptest::option::weighted(0.7, any::<u8>()), condition);
    let operation = prop_oneof![
        4 => proptest::collection::vec(change, 0..5).prop_map(Operation::Write),
        1 => (0_u8..12).prop_map(Operation::Get),
        2 => (0_u8..13, 0_u8..13, any::<bool>(), 0_usize..8)
            .prop_map(|(from, to, descending, limit)| Operation::List { from, to, descending, limit }),
    ];
    proptest::collection::vec(operation, 0..40)
}

impl Model {
    /// Asks the store and the model the same.
    ///
    /// # Panics
    /// They differ.
    pub async fn compare(&mut self, store: &dyn StateStore, operation: Operation) {
        match operation {
            Operation::Write(changes) => self.write(store, changes).await,
            Operation::Get(at) => {
                let found = store.get(&key(at)).await.unwrap();
                let found = found.map(|record| (record.value, record.revision));
                assert_eq!(found.as_ref(), self.records.get(&key(at)));
            }
            Operation::List { from, to, descending, limit } => {
                let order = if descending { Order::Descending } else { Order::Ascending };
                let query = Query { keys: key(from)..key(to), order, limit };
                let found = store.list(query).await.unwrap().into_iter();
                let found: Vec<_> =
                    found.map(|record| (record.key, (record.value, record.revision))).collect();
                let held = self.records.iter().filter(|(at, _)| (key(from)..key(to)).contains(*at));
                let mut held: Vec<_> = held.map(|(key, record)| (key.clone(), record.clone())).collect();
                if descending {
                    held.reverse();
                }
                held.truncate(limit);
                assert_eq!(found, held);
            }
        }
    }

    /// Compares all records with the store.
    ///
    /// # Panics
    ///
    /// Panics if the store's content differs from the model's.
    pub async fn compare_all(&self, store: &dyn StateStore) {
        let all = Query::below("", usize::MAX);
        let found = store.list(all).await.unwrap().into_iter();
        let found: BTreeMap<_, _> =
            found.map(|record| (record.key, (record.value, record.revision))).collect();
        assert_eq!(found, self.records);
    }

    async fn write(&mut self, store: &dyn StateStore, changes: Vec<(u8, Option<u8>, Condition)>) {
        let current = |at: u8| self.records.get(&key(at)).map(|(_, revision)| *revision);
        let changes: Vec<Change> = changes
            .into_iter()
            .map(|(at, value, condition)| Change {
                key: key(at),
                value: value.map(|value| Bytes::from(vec![value; usize::from(value)])),
                expect: match condition {
                    Condition::Anything => Expect::Anything,
                    Condition::Absent => Expect::Absent,
                    Condition::Current => current(at).map_or(Expect::Absent, Expect::Revision),
                    Condition::Stale => Expect::Revision(u64::MAX / 3),
                },
            })
            .collect();
        let mut after = self.records.clone();
        let conflict = changes.iter().find(|change| {
            let revision = after.get(&change.key).map(|(_, revision)| *revision);
            // A record of the same batch has a revision that is not known yet.
            after.remove(&change.key);
            after.extend(change.value.clone().map(|value| (change.key.clone(), (value, 0))));
            match change.expect {
                Expect::Anything => false,
                Expect::Absent => revision.is_some(),
                Expect::Revision(expected) => revision != Some(expected),
            }
        });
        match (store.write(changes.clone()).await, conflict) {
            (Err(WriteError::Conflict { key }), Some(change)) => assert_eq!(key, change.key),
            (Ok(revisions), None) => {
                assert_eq!(revisions.len(), changes.len());
                for (change, revision) in changes.into_iter().zip(revisions) {
                    assert!(revision > self.last, "{revision} follows {}", self.last);
                    self.last = revision;
                    match change.value {
                        Some(value) => drop(self.records.insert(change.key, (value, revision))),
                        None => drop(self.records.remove(&change.key)),
                    }
                }
            }
            (result, conflict) => panic!("{result:?} although the conflict is {conflict:?}"),
        }
    }
}

fn key(at: u8) -> String {
    format!("{}/{at:02}", if at.is_multiple_of(3) { "a" } else { "b" })
}

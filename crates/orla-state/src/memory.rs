//! An engine that keeps records in memory, for `state: memory` and for tests.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::limits::{Limits, check, check_key};
use crate::{Change, Expect, Order, Query, Record, Revision, StateError, StateStore, WriteError};

/// Keeps records until the process ends.
#[derive(Debug, Default)]
pub struct Memory {
    records: Mutex<Records>,
    limits: Limits,
}

/// The records, without their limits.
#[derive(Debug, Default)]
pub(crate) struct Records {
    pub(crate) by_key: BTreeMap<String, (Bytes, Revision)>,
    revision: Revision,
}

impl Memory {
    /// A store without records.
    pub fn new(limits: Limits) -> Self {
        Self { records: Mutex::default(), limits }
    }
}

#[async_trait]
impl StateStore for Memory {
    async fn write(&self, changes: Vec<Change>) -> Result<Vec<Revision>, WriteError> {
        check(&changes, &self.limits)?;
        self.records.lock().apply(changes)
    }

    async fn get(&self, key: &str) -> Result<Option<Record>, StateError> {
        check_key(key)?;
        let records = self.records.lock();
        Ok(records.by_key.get_key_value(key).map(record))
    }

    async fn list(&self, query: Query) -> Result<Vec<Record>, StateError> {
        if query.keys.is_empty() {
            return Ok(Vec::new());
        }
        let records = self.records.lock();
        let found = records.by_key.range(query.keys);
        Ok(match query.order {
            Order::Ascending => found.take(query.limit).map(record).collect(),
            Order::Descending => found.rev().take(query.limit).map(record).collect(),
        })
    }
}

impl Records {
    /// Applies all changes, or undoes those before a conflict.
    pub(crate) fn apply(&mut self, changes: Vec<Change>) -> Result<Vec<Revision>, WriteError> {
        let mut undo = Vec::with_capacity(changes.len());
        let mut revisions = Vec::with_capacity(changes.len());
        for Change { key, value, expect } in changes {
            let current = self.by_key.get(&key).map(|(_, revision)| *revision);
            let as_expected = match expect {
                Expect::Anything => true,
                Expect::Absent => current.is_none(),
                Expect::Revision(expected) => current == Some(expected),
            };
            if !as_expected {
                for (key, before) in undo.into_iter().rev() {
                    self.set(key, before);
                }
                return Err(WriteError::Conflict { key });
            }
            self.revision += 1;
            revisions.push(self.revision);
            let before = self.set(key.clone(), value.map(|value| (value, self.revision)));
            undo.push((key, before));
        }
        Ok(revisions)
    }

    fn set(&mut self, key: String, to: Option<(Bytes, Revision)>) -> Option<(Bytes, Revision)> {
        match to {
            Some(to) => self.by_key.insert(key, to),
            None => self.by_key.remove(&key),
        }
    }
}

fn record((key, (value, revision)): (&String, &(Bytes, Revision))) -> Record {
    Record { key: key.clone(), value: value.clone(), revision: *revision }
}

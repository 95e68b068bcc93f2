//! The same engine on redb: one thread writes all batches that wait in one transaction.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use orla_state::{
    Change, Expect, Order, Query, Record, Revision, StateError, StateStore, WriteError,
};
use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use tokio::sync::{mpsc, oneshot};

const RECORDS: TableDefinition<'_, &str, (u64, &[u8])> = TableDefinition::new("records");
const COUNTERS: TableDefinition<'_, &str, u64> = TableDefinition::new("counters");

type Answer = oneshot::Sender<Result<Vec<Revision>, WriteError>>;

pub struct Redb {
    database: Arc<Database>,
    writes: mpsc::Sender<(Vec<Change>, Answer)>,
}

impl Redb {
    pub fn open(directory: &Path) -> Self {
        let database = Database::builder()
            .set_cache_size(4 << 20)
            .create(directory.join("state.redb"))
            .expect("a file");
        let database = Arc::new(database);
        let begun = database.begin_write().expect("a transaction");
        begun.open_table(RECORDS).expect("a table");
        begun.open_table(COUNTERS).expect("a table");
        begun.commit().expect("a commit");
        let (writes, mut queue) = mpsc::channel::<(Vec<Change>, Answer)>(4096);
        let shared = Arc::clone(&database);
        std::thread::spawn(move || {
            while let Some(first) = queue.blocking_recv() {
                let mut group = vec![first];
                for _ in 0..queue.len() {
                    group.extend(queue.try_recv());
                }
                commit(&shared, group);
            }
        });
        Self { database, writes }
    }
}

fn commit(database: &Database, group: Vec<(Vec<Change>, Answer)>) {
    let writing = database.begin_write().expect("a transaction");
    let mut results = Vec::new();
    {
        let mut records = writing.open_table(RECORDS).expect("a table");
        let mut counters = writing.open_table(COUNTERS).expect("a table");
        let mut revision = counters.get("revision").expect("a read").map_or(0, |value| value.value());
        for (changes, _) in &group {
            let conflict = changes.iter().find(|change| {
                let current = records.get(&*change.key).expect("a read").map(|row| row.value().0);
                match change.expect {
                    Expect::Anything => false,
                    Expect::Absent => current.is_some(),
                    Expect::Revision(expected) => current != Some(expected),
                }
            });
            if let Some(change) = conflict {
                results.push(Err(WriteError::Conflict { key: change.key.clone() }));
                continue;
            }
            let mut revisions = Vec::new();
            for change in changes {
                revision += 1;
                revisions.push(revision);
                match &change.value {
                    Some(value) => drop(records.insert(&*change.key, (revision, &**value)).expect("a write")),
                    None => drop(records.remove(&*change.key).expect("a write")),
                }
            }
            results.push(Ok(revisions));
        }
        counters.insert("revision", revision).expect("a write");
    }
    writing.commit().expect("a commit");
    for ((_, answer), result) in group.into_iter().zip(results) {
        drop(answer.send(result));
    }
}

#[async_trait]
impl StateStore for Redb {
    async fn write(&self, changes: Vec<Change>) -> Result<Vec<Revision>, WriteError> {
        let (answer, result) = oneshot::channel();
        self.writes.send((changes, answer)).await.expect("the thread");
        result.await.expect("an answer")
    }

    async fn get(&self, key: &str) -> Result<Option<Record>, StateError> {
        let (database, key) = (Arc::clone(&self.database), key.to_owned());
        let read = move || {
            let reading = database.begin_read().expect("a transaction");
            let records = reading.open_table(RECORDS).expect("a table");
            let row = records.get(&*key).expect("a read")?;
            let (revision, value) = row.value();
            Some(Record { value: value.to_vec().into(), revision, key: key.clone() })
        };
        Ok(tokio::task::spawn_blocking(read).await.expect("a read"))
    }

    async fn list(&self, query: Query) -> Result<Vec<Record>, StateError> {
        let database = Arc::clone(&self.database);
        let read = move || {
            let reading = database.begin_read().expect("a transaction");
            let records = reading.open_table(RECORDS).expect("a table");
            let rows = records.range(&*query.keys.start..&*query.keys.end).expect("a read");
            let record = |row: Result<(redb::AccessGuard<'_, &str>, redb::AccessGuard<'_, (u64, &[u8])>), _>| {
                let (key, value) = row.expect("a row");
                let (revision, value) = value.value();
                Record { key: key.value().to_owned(), value: value.to_vec().into(), revision }
            };
            match query.order {
                Order::Ascending => rows.take(query.limit).map(record).collect(),
                Order::Descending => rows.rev().take(query.limit).map(record).collect::<Vec<_>>(),
            }
        };
        Ok(tokio::task::spawn_blocking(read).await.expect("a read"))
    }
}

//! The agent's tasks in the state of the instance, so that they survive a restart of the server.
//!
//! A task is one record: its JSON, its owner and its push configurations, under `a2a/ID`.

use std::sync::Arc;

use a2a::{Task, TaskPushNotificationConfig};
use orla_state::{Change, MAX_CHANGES, Query, StateError, StateStore, WriteError};
use serde::{Deserialize, Serialize};

const PREFIX: &str = "a2a/";
/// Records that are read at once.
const PAGE: usize = 64;
/// Bytes from which on the records after them are a batch of their own.
const BATCH: usize = 8 << 20;

/// The records of tasks.
pub(super) struct Store(Arc<dyn StateStore>);

/// A task as it is kept.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(super) struct StoredTask {
    pub(super) task: Task,
    /// The id of its owner; `None` if callers are anonymous.
    pub(super) owner: Option<String>,
    /// Its push configurations.
    #[serde(default)]
    pub(super) hooks: Vec<TaskPushNotificationConfig>,
}

/// A record to write: JSON, or `None` to remove it.
pub(super) type Row = (String, Option<Vec<u8>>);

impl Store {
    /// Reads the tasks of a state.
    ///
    /// # Errors
    /// The state cannot be read.
    pub(super) async fn open(state: Arc<dyn StateStore>) -> Result<(Self, Vec<StoredTask>), StateError> {
        let mut kept = Vec::new();
        let mut query = Query::below(PREFIX, PAGE);
        loop {
            let page = state.list(query.clone()).await?;
            // A record that cannot be read is from another version, and is left alone.
            kept.extend(
                page.iter().filter_map(|row| serde_json::from_slice::<StoredTask>(&row.value).ok()),
            );
            match page.last() {
                // No key lies between a key and the same with a space.
                Some(last) if page.len() == PAGE => query.keys.start = format!("{} ", last.key),
                _ => return Ok((Self(state), kept)),
            }
        }
    }

    /// Writes records. A record that cannot be written does not hold up the others.
    ///
    /// # Errors
    /// Why the last of those that could not be written could not.
    pub(super) async fn write(&self, rows: Vec<Row>) -> Result<(), WriteError> {
        let mut result = Ok(());
        let mut rows = rows.into_iter().peekable();
        while rows.peek().is_some() {
            let mut bytes = 0;
            let mut batch = Vec::new();
            while let Some((id, text)) = rows.next_if(|(_, text)| {
                batch.len() < MAX_CHANGES
                    && (bytes == 0 || bytes + text.as_ref().map_or(0, Vec::len) <= BATCH)
            }) {
                bytes += text.as_ref().map_or(0, Vec::len);
                batch.push(change(&id, text));
            }
            if let Err(err) = self.0.write(batch).await {
                result = Err(err);
            }
        }
        result
    }
}

fn change(id: &str, text: Option<Vec<u8>>) -> Change {
    let key = format!("{PREFIX}{id}");
    match text {
        Some(text) => Change::put(key, text),
        None => Change::remove(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2a::{TaskState, TaskStatus};
    use orla_state::Memory;

    fn kept(id: &str) -> StoredTask {
        let status = TaskStatus { state: TaskState::Completed, message: None, timestamp: None };
        let task = Task {
            id: id.to_owned(),
            context_id: "c".to_owned(),
            status,
            artifacts: None,
            history: None,
            metadata: None,
        };
        StoredTask { task, owner: Some("ada".to_owned()), hooks: Vec::new() }
    }

    fn row(id: &str) -> Row {
        (id.to_owned(), serde_json::to_vec(&kept(id)).ok())
    }

    #[tokio::test]
    async fn what_was_written_is_there_again() {
        let state = Arc::new(Memory::default());
        let (store, found) = Store::open(Arc::<Memory>::clone(&state)).await.unwrap();
        assert!(found.is_empty());
        store.write(vec![row("a"), row("b")]).await.unwrap();
        store.write(vec![row("b"), ("a".to_owned(), None), ("c".to_owned(), None)]).await.unwrap();
        state.write(vec![Change::put("a2a/x", "nothing of the kind")]).await.unwrap();
        assert_eq!(Store::open(Arc::<Memory>::clone(&state)).await.unwrap().1, [kept("b")]);
        let ids: Vec<String> = (1000..1000 + 3 * PAGE).map(|id| id.to_string()).collect();
        store.write(ids.iter().map(|id| row(id)).collect()).await.unwrap();
        let found = Store::open(state).await.unwrap().1;
        assert_eq!(found.len(), ids.len() + 1);
    }

    #[tokio::test]
    async fn large_tasks_are_written_one_by_one_and_one_that_is_too_large_alone_is_lost() {
        let state = Arc::new(Memory::new(orla_state::Limits {
            value: BATCH,
            batch: BATCH + 100,
            ..orla_state::Limits::default()
        }));
        let (store, _) = Store::open(Arc::<Memory>::clone(&state)).await.unwrap();
        let large = |id: &str, bytes: usize| (id.to_owned(), Some(vec![b'x'; bytes]));
        let rows = vec![large("a", BATCH), large("b", BATCH + 1), row("c"), large("d", BATCH)];
        assert!(store.write(rows).await.is_err());
        let keys = state.list(Query::below(PREFIX, 10)).await.unwrap();
        assert_eq!(keys.into_iter().map(|row| row.key).collect::<Vec<_>>(), ["a2a/a", "a2a/c", "a2a/d"]);
    }
}

//! The data that the protocol stores besides a task: its context, its messages and its push
//! configurations.
//!
//! | key | value |
//! |---|---|
//! | `a2a/ID` | a [`Record`], JSON |
//! | `a2a-list/OWNER/ID` | the [`Listed`] of the record, JSON: the tasks of a caller |
//!
//! Both rows are written with the task, and removed after it.

use std::sync::Arc;

use a2a::{Task, TaskPushNotificationConfig};
use orla_marketplace::Principal;
use orla_state::{Change, Expect, Pages, Revision, StateError, StateStore, WriteError};
use orla_tasks::TaskId;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

const RECORDS: &str = "a2a/";
const LISTS: &str = "a2a-list/";
/// The number of rows of a list read at once.
const ROWS: usize = 1000;

/// The records of the agent's tasks.
#[derive(Clone)]
pub(super) struct Records(Arc<dyn StateStore>);

/// The stored data of a task.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(super) struct Record {
    /// The id, context and messages. The status and artifacts are those of the task with this id
    /// ([`orla_tasks`]), if there ever was one.
    pub(super) task: Task,
    /// The id of its owner; `None` if callers are anonymous.
    pub(super) owner: Option<String>,
    /// The push configurations.
    pub(super) hooks: Vec<TaskPushNotificationConfig>,
    /// The ids of the push configurations to which the end of the task was posted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) told: Vec<String>,
    /// The node that posts to the push configurations; empty if no other node shares this state.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) node: String,
    /// Whether a task with this id was started. A refused message has a record without a task.
    pub(super) is_task: bool,
    /// The key of a question, and the problem with the last answer to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) wrong: Option<(String, String)>,
}

/// The part of a record that lists need.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(super) struct Listed {
    pub(super) context_id: String,
    /// The end in milliseconds since 1970, if the record has no task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ended_at: Option<i64>,
    /// The node that must post to the push configurations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) posts: Option<String>,
}

/// A row of a list.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) id: TaskId,
    pub(super) key: String,
    pub(super) listed: Listed,
}

impl Record {
    pub(super) fn is_of(&self, caller: Option<&Principal>) -> bool {
        self.owner.as_deref() == caller.map(|caller| &**caller.id())
    }

    fn listed(&self) -> Listed {
        let is_told = |hook: &TaskPushNotificationConfig| {
            hook.id.as_ref().is_some_and(|id| self.told.contains(id))
        };
        let ended_at = self.task.status.timestamp.filter(|_| !self.is_task);
        Listed {
            context_id: self.task.context_id.clone(),
            ended_at: ended_at.map(|at| at.timestamp_millis()),
            posts: (!self.hooks.iter().all(is_told)).then(|| self.node.clone()),
        }
    }

    /// Returns the row of the record.
    pub(super) fn row(&self) -> Option<Row> {
        let id = TaskId::parse(&self.task.id)?;
        let key = format!("{}{id}", list_of(self.owner.as_deref()));
        Some(Row { id, key, listed: self.listed() })
    }

    /// Returns the changes that write the record.
    ///
    /// # Errors
    ///
    /// Returns an error if the record cannot be written as JSON.
    pub(super) fn changes(&self, expect: Expect) -> Result<Vec<Change>, StateError> {
        let broken = |err: serde_json::Error| StateError::new(err.to_string());
        let record = serde_json::to_vec(self).map_err(broken)?;
        let mut changes = vec![Change::put(key(&self.task.id), record).expecting(expect)];
        if let Some(row) = self.row() {
            changes.push(Change::put(row.key, serde_json::to_vec(&row.listed).map_err(broken)?));
        }
        Ok(changes)
    }
}

impl Records {
    pub(super) fn new(state: Arc<dyn StateStore>) -> Self {
        Self(state)
    }

    /// Reads a record, if it exists.
    ///
    /// # Errors
    ///
    /// Returns an error if the state cannot be read.
    pub(super) async fn get(&self, id: &str) -> Result<Option<Record>, StateError> {
        Ok(self.read(id).await?.map(|(record, _)| record))
    }

    async fn read(&self, id: &str) -> Result<Option<(Record, Revision)>, StateError> {
        // A text that is not an id cannot be a key.
        let Some(id) = TaskId::parse(id) else { return Ok(None) };
        self.0.sync().await?;
        let record = self.0.get(&key(id.as_str())).await?;
        // A record that cannot be parsed is from a newer version, and is left alone.
        Ok(record.and_then(|it| Some((serde_json::from_slice(&it.value).ok()?, it.revision))))
    }

    /// Writes a new record.
    ///
    /// # Errors
    ///
    /// Returns an error if the state cannot be written.
    pub(super) async fn put(&self, record: &Record) -> Result<(), StateError> {
        self.write(record.changes(Expect::Absent)?).await.map(drop)
    }

    /// Changes a record, if it exists, and returns it. `change` may be called several times.
    ///
    /// # Errors
    ///
    /// Returns an error if the state cannot be read or written.
    pub(super) async fn change(
        &self,
        id: &str,
        change: impl Fn(&mut Record) + Send,
    ) -> Result<Option<Record>, StateError> {
        loop {
            let Some((mut record, revision)) = self.read(id).await? else { return Ok(None) };
            let before = record.clone();
            change(&mut record);
            if record == before || self.write(record.changes(Expect::Revision(revision))?).await? {
                return Ok(Some(record));
            }
        }
    }

    /// Returns the rows of a caller, or of all callers, the oldest first.
    ///
    /// # Errors
    ///
    /// Returns an error if the state cannot be read.
    pub(super) async fn rows(&self, of: Option<Option<&Principal>>) -> Result<Vec<Row>, StateError> {
        let below =
            of.map_or_else(|| LISTS.to_owned(), |caller| list_of(caller.map(|caller| &**caller.id())));
        self.0.sync().await?;
        let mut pages = Pages::below(&*self.0, &below, ROWS);
        let mut found: Vec<Row> = Vec::new();
        loop {
            let rows = pages.next().await?;
            if rows.is_empty() {
                break;
            }
            found.extend(rows.into_iter().filter_map(|row| {
                let id = TaskId::parse(row.key.rsplit('/').next()?)?;
                Some(Row { id, listed: serde_json::from_slice(&row.value).ok()?, key: row.key })
            }));
        }
        found.sort_by(|one, other| one.id.cmp(&other.id));
        Ok(found)
    }

    /// Removes a record.
    ///
    /// # Errors
    ///
    /// Returns an error if the state cannot be written.
    pub(super) async fn remove(&self, row: &Row) -> Result<(), StateError> {
        let changes = vec![Change::remove(key(row.id.as_str())), Change::remove(row.key.clone())];
        self.write(changes).await.map(drop)
    }

    /// Makes changes. Returns `false` if a record was not as expected.
    async fn write(&self, changes: Vec<Change>) -> Result<bool, StateError> {
        match self.0.write(changes).await {
            Ok(_) => Ok(true),
            Err(WriteError::Conflict { .. }) => Ok(false),
            Err(WriteError::Failed(error)) => Err(error),
        }
    }
}

fn key(id: &str) -> String {
    format!("{RECORDS}{id}")
}

/// Returns the key prefix of a caller's list. The caller is hashed, so that its name is not part of the
/// key.
fn list_of(owner: Option<&str>) -> String {
    let hash = Sha256::digest(owner.unwrap_or_default());
    format!("{LISTS}{}/", hex::encode(&hash[..16]))
}

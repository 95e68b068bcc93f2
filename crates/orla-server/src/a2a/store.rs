//! Tasks in a file, if one is configured: they survive a restart of the server.
//!
//! A task is one row: its JSON and its owner, by its id. All rows that have changed are written together, and each
//! time synced to the disk. The file may contain secrets of push configurations, so only its owner can read it.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use serde::{Deserialize, Serialize};

use a2a::{Task, TaskPushNotificationConfig};

/// The tasks, as JSON, by their ids.
const TASKS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("tasks");
/// Memory that the file's pages may take.
const CACHE: usize = 1024 * 1024;

/// A file of tasks.
pub(super) struct Store(Database);

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

/// A row to write: JSON, or `None` to delete it.
pub(super) type Row = (String, Option<Vec<u8>>);

impl Store {
    /// Opens or creates the file, and returns its tasks in no order.
    ///
    /// # Errors
    /// Another server uses the file, or it is not a file of tasks.
    pub(super) fn open(path: &Path) -> Result<(Self, Vec<StoredTask>), redb::Error> {
        // An empty file is one without tasks.
        OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        let file = Database::builder().set_cache_size(CACHE).create(path)?;
        let begun = file.begin_write()?;
        begun.open_table(TASKS)?;
        begun.commit()?;
        let mut kept = Vec::new();
        for row in file.begin_read()?.open_table(TASKS)?.iter()? {
            // A row that cannot be read is from another version, and is dropped.
            kept.extend(serde_json::from_slice::<StoredTask>(row?.1.value()).ok());
        }
        Ok((Self(file), kept))
    }

    /// Writes rows, all or none.
    ///
    /// # Errors
    /// They could not be written; the file is as it was.
    pub(super) fn write(&self, rows: &[Row]) -> Result<(), redb::Error> {
        let writing = self.0.begin_write()?;
        {
            let mut table = writing.open_table(TASKS)?;
            for (id, text) in rows {
                match text {
                    Some(text) => drop(table.insert(id.as_str(), text.as_slice())?),
                    None => drop(table.remove(id.as_str())?),
                }
            }
        }
        writing.commit()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2a::{TaskState, TaskStatus};
    use std::os::unix::fs::PermissionsExt as _;

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

    #[test]
    fn what_was_written_is_there_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.redb");
        let (store, found) = Store::open(&path).unwrap();
        assert!(found.is_empty());
        store.write(&[row("a"), row("b")]).unwrap();
        store.write(&[row("b"), ("a".to_owned(), None), ("c".to_owned(), None)]).unwrap();
        assert!(Store::open(&path).is_err(), "one server at a time");
        drop(store);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Store::open(&path).unwrap().1, [kept("b")]);
        let none = folder.path().join("none");
        std::fs::write(&none, "nothing of the kind").unwrap();
        assert!(Store::open(&none).is_err());
        assert!(Store::open(folder.path()).is_err());
    }
}

//! The operations on SQLite.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use rusqlite::wal::CheckpointMode;
use rusqlite::{ErrorCode, OpenFlags, OptionalExtension as _, Row, Statement, params};

use super::file::{APPLICATION, FORMAT, PAGE};
use crate::{Change, Expect, Order, Query, Record, Revision, StateError, WriteError};

/// How long another program may lock the file, for example a person's `sqlite3` with a transaction.
const LOCKED: Duration = Duration::from_secs(5);

/// The number of revisions reserved at once. Revisions that are left when the file is closed are never
/// used.
const RESERVED: i64 = 1 << 16;

/// The tables, with views for people who use `sqlite3`.
const SCHEMA: &str = "
CREATE TABLE records (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, revision INTEGER NOT NULL, value BLOB NOT NULL);
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO counters VALUES ('revision', 0);
CREATE VIEW tasks AS
SELECT id, json ->> '$.state' AS state, json ->> '$.capability' AS capability, json ->> '$.owner.id' AS principal,
  json ->> '$.created_at' AS created_at, json ->> '$.updated_at' AS updated_at, json
FROM (SELECT substr(key, 6) AS id, CAST(value AS TEXT) AS json FROM records WHERE key >= 'task/' AND key < 'task0');
";

/// A connection with SQLite.
pub(super) struct Connection {
    pub(super) sqlite: rusqlite::Connection,
    /// Pages of the log after this connection's last transaction.
    log_pages: Arc<AtomicI32>,
}

/// The reason why an operation of SQLite failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The disk is full.
    NoRoom,
    /// The file is damaged.
    Damaged,
    /// Anything else, in SQLite's words.
    Other(String),
}

/// Writes batches.
pub(super) struct Writer<'c> {
    connection: &'c Connection,
    put: Statement<'c>,
    put_absent: Statement<'c>,
    put_revision: Statement<'c>,
    remove: Statement<'c>,
    remove_revision: Statement<'c>,
    exists: Statement<'c>,
    count: Statement<'c>,
    begin: Statement<'c>,
    commit: Statement<'c>,
    savepoint: Statement<'c>,
    release: Statement<'c>,
    undo: Statement<'c>,
    revision: i64,
    /// The revision that the file has: no record has a greater one, and none gets one before the file does.
    reserved: i64,
}

/// Reads records.
pub(super) struct Reader<'c> {
    connection: &'c Connection,
    get: Statement<'c>,
    ascending: Statement<'c>,
    descending: Statement<'c>,
}

/// A batch that was not applied.
enum Refused {
    Conflict { key: String },
    Failed(rusqlite::Error),
}

impl Connection {
    /// Creates a file with its tables, and no file beside it.
    pub(super) fn create(path: &Path) -> Result<(), rusqlite::Error> {
        let sqlite = rusqlite::Connection::open_with_flags(path, flags())?;
        sqlite.pragma_update(None, "page_size", PAGE)?;
        sqlite.pragma_update(None, "application_id", APPLICATION)?;
        sqlite.pragma_update(None, "user_version", FORMAT)?;
        sqlite.pragma_update(None, "synchronous", "FULL")?;
        sqlite.execute_batch(&format!("BEGIN; {SCHEMA} COMMIT;"))?;
        // Set last, so that all data is in the main file and nothing is left to move.
        sqlite.pragma_update(None, "journal_mode", "WAL")?;
        sqlite.close().map_err(|(_, err)| err)
    }

    /// Opens an existing file. Closing this connection does not move the log into the file, unless
    /// [`Connection::checkpoint_at_close`] enables that.
    pub(super) fn open(path: &Path, cache_kib: i32) -> Result<Self, rusqlite::Error> {
        use rusqlite::config::DbConfig;
        let mut sqlite = rusqlite::Connection::open_with_flags(path, flags())?;
        sqlite.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        sqlite.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
        sqlite.busy_timeout(LOCKED)?;
        sqlite.pragma_update(None, "synchronous", "FULL")?;
        sqlite.pragma_update(None, "fullfsync", true)?;
        sqlite.pragma_update(None, "checkpoint_fullfsync", true)?;
        sqlite.pragma_update(None, "cache_size", -cache_kib)?;
        sqlite.pragma_update(None, "temp_store", "MEMORY")?;
        let log_pages = Arc::new(AtomicI32::new(0));
        let counted = Arc::clone(&log_pages);
        // This takes the place of SQLite's own checkpoints.
        sqlite.wal_hook(Some(move |_: &mut _, pages| {
            counted.store(pages, Ordering::Relaxed);
            Ok(())
        }))?;
        Ok(Self { sqlite, log_pages })
    }

    /// Pages of the log after this connection's last transaction.
    pub(super) fn log_pages(&self) -> i32 {
        self.log_pages.load(Ordering::Relaxed)
    }

    /// Lets the last connection that is closed move the log into the main file and remove it.
    pub(super) fn checkpoint_at_close(&self) -> Result<(), rusqlite::Error> {
        use rusqlite::config::DbConfig;
        self.sqlite.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false).map(drop)
    }

    /// Moves the log into the main file. If that fails, the log keeps everything.
    pub(super) fn finish(&self) {
        drop(self.sqlite.wal_checkpoint_v2(None::<&str>, CheckpointMode::TRUNCATE));
    }

    /// Reads the tables' description, and with `thoroughly` every page.
    pub(super) fn check(&self, thoroughly: bool) -> Result<(), Failure> {
        self.sqlite.query_row("SELECT value FROM counters WHERE name = 'revision'", [], |_| Ok(()))?;
        if thoroughly {
            let verdict: String =
                self.sqlite.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
            if verdict != "ok" {
                return Err(Failure::Damaged);
            }
        }
        Ok(())
    }
}

fn flags() -> OpenFlags {
    OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW
        | OpenFlags::SQLITE_OPEN_EXRESCODE
}

impl<'c> Writer<'c> {
    pub(super) fn new(connection: &'c Connection) -> Result<Self, Failure> {
        let sqlite = &connection.sqlite;
        let revision =
            sqlite
                .query_row("SELECT value FROM counters WHERE name = 'revision'", [], |row| row.get(0))?;
        Ok(Self {
            connection,
            put: sqlite.prepare(
                "INSERT INTO records (key, revision, value) VALUES (?1, ?2, ?3)
                 ON CONFLICT (key) DO UPDATE SET revision = ?2, value = ?3",
            )?,
            put_absent: sqlite.prepare(
                "INSERT INTO records (key, revision, value) VALUES (?1, ?2, ?3) ON CONFLICT (key) DO NOTHING",
            )?,
            put_revision: sqlite
                .prepare("UPDATE records SET revision = ?2, value = ?3 WHERE key = ?1 AND revision = ?4")?,
            remove: sqlite.prepare("DELETE FROM records WHERE key = ?1")?,
            remove_revision: sqlite.prepare("DELETE FROM records WHERE key = ?1 AND revision = ?2")?,
            exists: sqlite.prepare("SELECT 1 FROM records WHERE key = ?1")?,
            count: sqlite.prepare("UPDATE counters SET value = ?1 WHERE name = 'revision'")?,
            begin: sqlite.prepare("BEGIN IMMEDIATE")?,
            commit: sqlite.prepare("COMMIT")?,
            savepoint: sqlite.prepare("SAVEPOINT batch")?,
            release: sqlite.prepare("RELEASE batch")?,
            undo: sqlite.prepare("ROLLBACK TO batch")?,
            revision,
            reserved: revision,
        })
    }

    /// Writes batches in one transaction, which is durable afterwards. A batch that conflicts is left out.
    pub(super) fn commit<'b>(
        &mut self,
        batches: impl Iterator<Item = &'b [Change]>,
    ) -> Result<Vec<Result<Vec<Revision>, WriteError>>, Failure> {
        let before = (self.revision, self.reserved);
        let result = self.try_commit(batches);
        if result.is_err() {
            (self.revision, self.reserved) = before;
            // SQLite may have done so already.
            if !self.connection.sqlite.is_autocommit() {
                drop(self.connection.sqlite.execute_batch("ROLLBACK"));
            }
        }
        Ok(result?)
    }

    fn try_commit<'b>(
        &mut self,
        batches: impl Iterator<Item = &'b [Change]>,
    ) -> Result<Vec<Result<Vec<Revision>, WriteError>>, rusqlite::Error> {
        self.begin.execute([])?;
        let mut results = Vec::new();
        for batch in batches {
            let applied = self.revision;
            results.push(match self.apply(batch) {
                Ok(revisions) => Ok(revisions),
                Err(Refused::Conflict { key }) => {
                    self.revision = applied;
                    Err(WriteError::Conflict { key })
                }
                Err(Refused::Failed(err)) => return Err(err),
            });
        }
        if self.revision > self.reserved {
            // Many at once, so that few transactions write this page.
            self.reserved = self.revision + RESERVED;
            self.count.execute([self.reserved])?;
        }
        self.commit.execute([])?;
        Ok(results)
    }

    fn apply(&mut self, batch: &[Change]) -> Result<Vec<Revision>, Refused> {
        // A single change that conflicts has changed nothing.
        if let [change] = batch {
            return Ok(vec![self.change(change)?]);
        }
        self.savepoint.execute([])?;
        let revisions = batch.iter().map(|change| self.change(change)).collect();
        if matches!(revisions, Err(Refused::Conflict { .. })) {
            self.undo.execute([])?;
        }
        self.release.execute([])?;
        revisions
    }

    fn change(&mut self, Change { key, value, expect }: &Change) -> Result<Revision, Refused> {
        self.revision += 1;
        let revision = self.revision;
        let changed = match (value, expect) {
            (Some(value), Expect::Anything) => self.put.execute(params![key, revision, &**value])?,
            (Some(value), Expect::Absent) => {
                self.put_absent.execute(params![key, revision, &**value])?
            }
            (Some(value), Expect::Revision(expected)) => {
                self.put_revision.execute(params![key, revision, &**value, signed(*expected)])?
            }
            (None, Expect::Anything) => self.remove.execute([key]).map(|_| 1)?,
            (None, Expect::Absent) => usize::from(!self.exists.exists([key])?),
            (None, Expect::Revision(expected)) => {
                self.remove_revision.execute(params![key, signed(*expected)])?
            }
        };
        match changed {
            0 => Err(Refused::Conflict { key: key.clone() }),
            _ => Ok(revision.unsigned_abs()),
        }
    }
}

/// Returns a revision in the form of SQLite. A revision that is too large belongs to no record.
fn signed(revision: Revision) -> i64 {
    i64::try_from(revision).unwrap_or(-1)
}

impl<'c> Reader<'c> {
    pub(super) fn new(connection: &'c Connection) -> Result<Self, Failure> {
        let prepare = |sql| connection.sqlite.prepare(sql);
        Ok(Self {
            connection,
            get: prepare("SELECT key, revision, value FROM records WHERE key = ?1")?,
            ascending: prepare(
                "SELECT key, revision, value FROM records WHERE key >= ?1 AND key < ?2 ORDER BY key LIMIT ?3",
            )?,
            descending: prepare(
                "SELECT key, revision, value FROM records WHERE key >= ?1 AND key < ?2 ORDER BY key DESC LIMIT ?3",
            )?,
        })
    }

    pub(super) fn get(&mut self, key: &str) -> Result<Option<Record>, Failure> {
        Ok(self.get.query_row([key], record).optional()?)
    }

    /// Returns the records under several keys, at one moment. An earlier read stays valid for the next
    /// one.
    pub(super) fn get_all(&mut self, keys: &[String]) -> Result<Vec<Option<Record>>, Failure> {
        let moment = self.connection.sqlite.unchecked_transaction()?;
        let records = keys.iter().map(|key| self.get(key)).collect();
        moment.finish()?;
        records
    }

    pub(super) fn list(&mut self, query: &Query) -> Result<Vec<Record>, Failure> {
        let statement = match query.order {
            Order::Ascending => &mut self.ascending,
            Order::Descending => &mut self.descending,
        };
        let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
        let rows = statement.query_map(params![query.keys.start, query.keys.end, limit], record)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}

fn record(row: &Row<'_>) -> Result<Record, rusqlite::Error> {
    let value = row.get_ref(2)?.as_bytes()?.to_vec();
    Ok(Record { key: row.get(0)?, revision: row.get::<_, i64>(1)?.unsigned_abs(), value: value.into() })
}

impl Failure {
    /// Returns the error of a write.
    pub(super) fn writing(&self) -> StateError {
        self.of("written")
    }

    /// Returns the error of a read.
    pub(super) fn reading(&self) -> StateError {
        self.of("read")
    }

    /// Returns the error for a failed operation.
    fn of(&self, done: &str) -> StateError {
        StateError::new(match self {
            Self::NoRoom => {
                format!("the state cannot be {done}: the disk is full; free some room and try again")
            }
            Self::Damaged => {
                format!("the state cannot be {done}: its file is damaged; restore it from a backup")
            }
            Self::Other(why) => format!("the state cannot be {done}: {why}"),
        })
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(err: rusqlite::Error) -> Self {
        match err.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::NoRoom,
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged,
            _ => Self::Other(err.to_string()),
        }
    }
}

impl From<rusqlite::Error> for Refused {
    fn from(err: rusqlite::Error) -> Self {
        Self::Failed(err)
    }
}

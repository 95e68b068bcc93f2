//! Rows in a file of SQLite, with columns that people can read with `sqlite3`.
//!
//! The file is created with the first row, and opened again after each failure. A full disk or a locked
//! file therefore loses at most the calls that end in the meantime. Several processes may share it.

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use orla_marketplace::ANONYMOUS;
use parking_lot::{Mutex, RwLock};
use rusqlite::types::Value as Sql;
use rusqlite::{
    Connection, ErrorCode, OpenFlags, OptionalExtension as _, TransactionBehavior, params,
    params_from_iter,
};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Store;
use super::memory::size;
use crate::call::{Body, Call, ClientInfo, Row, Trace, millis};
use crate::query::{CONCEALED, MAX_LIMIT, Query, Viewer};
use crate::{HistoryError, Options};

/// `orlc`: marks a file as a history.
const APPLICATION: u32 = 0x6f72_6c63;
/// The format of the tables.
const FORMAT: u32 = 1;
/// How long a lock of another program is waited for, and while the file cannot be written anyway.
const LOCKED: Duration = Duration::from_secs(1);
const STILL_LOCKED: Duration = Duration::from_millis(10);
/// How long a question may take.
const MAX_QUESTION: Duration = Duration::from_secs(1);
/// Instructions of SQLite between two looks at the clock.
const CLOCK_CHECK_STEPS: i32 = 20_000;
/// Rows that are kept while the file cannot be written, and their bytes.
const MAX_PENDING: usize = 10_000;
const MAX_PENDING_BYTES: usize = 64 << 20;
/// How often old rows are removed while no new ones are written.
const TIDY: Duration = Duration::from_secs(30);
/// Rows that are removed at once because of their age.
const MAX_REMOVED: i64 = 5_000;
/// The maximum number of calls within one call that are read.
const MAX_WITHIN: usize = 10_000;

const SCHEMA: &str = "
CREATE TABLE calls (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  parent TEXT,
  root TEXT NOT NULL,
  depth INTEGER NOT NULL,
  capability TEXT NOT NULL,
  name TEXT NOT NULL,
  kind TEXT NOT NULL,
  principal TEXT,
  principal_id TEXT,
  outcome TEXT NOT NULL,
  started_at TEXT NOT NULL,
  duration_ms REAL NOT NULL,
  queued_ms REAL NOT NULL,
  error TEXT,
  trace_id TEXT,
  span_id TEXT,
  parent_span_id TEXT
);
CREATE TABLE bodies (
  seq INTEGER PRIMARY KEY REFERENCES calls (seq),
  input TEXT,
  input_bytes INTEGER,
  output TEXT,
  output_bytes INTEGER,
  stderr TEXT,
  notices TEXT,
  more_notices INTEGER NOT NULL
);
CREATE INDEX calls_within ON calls (root) WHERE depth > 0;
CREATE INDEX calls_of_principal ON calls (principal_id, seq);
CREATE INDEX calls_of_capability ON calls (capability, seq);
CREATE INDEX calls_by_time ON calls (started_at);
CREATE INDEX calls_of_name ON calls (principal, seq) WHERE principal IS NOT NULL;
CREATE INDEX calls_failed ON calls (seq) WHERE outcome <> 'ok';
CREATE INDEX calls_outermost ON calls (seq) WHERE parent IS NULL;
";

/// The name and the type of a column.
type Column = (&'static str, &'static str);

/// The columns that files of earlier versions lack. Those versions can use a file that has them.
const LATER_COLUMNS: [Column; 6] = [
    ("client", "TEXT"),
    ("client_version", "TEXT"),
    ("session", "TEXT"),
    ("executed_ms", "REAL"),
    ("validated_ms", "REAL"),
    SPANS,
];

/// The processes and requests of a call, as JSON.
const SPANS: Column = ("spans", "TEXT");

/// The indexes of these columns.
const LATER_INDEXES: &str = "
CREATE INDEX IF NOT EXISTS calls_of_client ON calls (client, seq) WHERE client IS NOT NULL;
CREATE INDEX IF NOT EXISTS calls_of_session ON calls (session, seq) WHERE session IS NOT NULL;
";

const FIRST_COLUMNS: &str = "id, parent, root, depth, capability, name, kind, principal, principal_id, outcome, \
                             started_at, duration_ms, queued_ms";

/// The reason why a file cannot be used as a history: one line that names the file and says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file is something else.
    #[error("`{}` is not a history file of orla: move it away, or choose another history.path", .path.display())]
    NotHistory {
        /// The file.
        path: PathBuf,
    },
    /// The file has the format of another version.
    #[error(
        "`{}` has format {found}, and this version of orla reads format {FORMAT}: use the version that wrote it, or choose \
         another history.path",
        .path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// The file cannot be read.
    #[error("`{}` cannot be read: {source}", .path.display())]
    Failed {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Keeps rows in a file.
pub(crate) struct Disk {
    path: PathBuf,
    options: Arc<RwLock<Options>>,
    writer: Mutex<Writer>,
    /// Two, so that one slow question does not hold up the others.
    readers: [Mutex<Option<Connection>>; 2],
    /// Whether it has been said that the file cannot be written.
    is_failing: AtomicBool,
}

#[derive(Default)]
struct Writer {
    connection: Option<Connection>,
    /// The rows that could not be written yet.
    pending: Vec<Row>,
    pending_bytes: usize,
    dropped: u64,
    tried: Option<Instant>,
    /// Why the last write failed.
    failure: Option<String>,
}

impl Disk {
    /// Returns the history in this file. It need not exist.
    pub(crate) fn open(path: &Path, options: Arc<RwLock<Options>>) -> Result<Self, OpenError> {
        let path = std::path::absolute(path)
            .map_err(|source| OpenError::Failed { path: path.to_owned(), source })?;
        check(&path, LOCKED)?;
        Ok(Self {
            path,
            options,
            writer: Mutex::default(),
            readers: Default::default(),
            is_failing: AtomicBool::new(false),
        })
    }

    fn try_write(&self, writer: &mut Writer) -> Result<(), String> {
        let connection = match &mut writer.connection {
            Some(connection) => connection,
            none => {
                let max_wait = match self.is_failing.load(Ordering::Relaxed) {
                    true => STILL_LOCKED,
                    false => LOCKED,
                };
                check(&self.path, max_wait).map_err(|err| err.to_string())?;
                create(&self.path).map_err(|err| err.to_string())?;
                let connected = connect(&self.path, max_wait).and_then(with_later_columns);
                none.insert(connected.map_err(|err| err.to_string())?)
            }
        };
        let written = insert(connection, &writer.pending, &self.options.read().clone());
        if written.is_err() {
            // The connection may be the cause.
            writer.connection = None;
        }
        written.map_err(|err| err.to_string())
    }

    fn read<T>(
        &self,
        none: T,
        read: impl FnOnce(&Connection) -> Result<T, rusqlite::Error>,
    ) -> Result<T, HistoryError> {
        let [first, second] = &self.readers;
        let mut reader = first.try_lock().or_else(|| second.try_lock()).unwrap_or_else(|| first.lock());
        let connection = match &mut *reader {
            Some(connection) => connection,
            empty => {
                check(&self.path, LOCKED).map_err(|err| HistoryError::Failed(err.to_string()))?;
                if !self.path.exists() {
                    return Ok(none);
                }
                let opened = connect(&self.path, LOCKED).and_then(|connection| {
                    connection.pragma_update(None, "query_only", true)?;
                    Ok(connection)
                });
                empty.insert(opened.map_err(|err| HistoryError::Failed(err.to_string()))?)
            }
        };
        let end = Instant::now() + MAX_QUESTION;
        let done = connection
            .progress_handler(CLOCK_CHECK_STEPS, Some(move || Instant::now() > end))
            .and_then(|()| read(connection));
        match done {
            Ok(done) => Ok(done),
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) => {
                Err(HistoryError::TooSlow)
            }
            Err(error) => {
                *reader = None;
                Err(HistoryError::Failed(error.to_string()))
            }
        }
    }
}

impl Disk {
    /// Writes the waiting rows. A failure is logged once.
    fn write_pending(&self, writer: &mut Writer) {
        writer.tried = Some(Instant::now());
        let written = self.try_write(writer);
        writer.failure = written.as_ref().err().cloned();
        match written {
            Ok(()) => {
                writer.pending = Vec::new();
                writer.pending_bytes = 0;
                let dropped = std::mem::take(&mut writer.dropped);
                if self.is_failing.swap(false, Ordering::Relaxed) {
                    // The next one is as patient as the first was.
                    writer.connection = None;
                    tracing::info!(dropped, "the history is written again");
                }
            }
            Err(error) if !self.is_failing.swap(true, Ordering::Relaxed) => {
                tracing::warn!(
                    path = %self.path.display(),
                    error,
                    "the history cannot be written; calls continue, and orla tries again"
                );
            }
            Err(_) => {}
        }
    }
}

impl Store for Disk {
    fn write(&self, rows: Vec<Row>) {
        let mut writer = self.writer.lock();
        // Waiting rows are kept in preference to new ones.
        for row in rows {
            let bytes = writer.pending_bytes + size(&row);
            if writer.pending.len() >= MAX_PENDING
                || (bytes > MAX_PENDING_BYTES && !writer.pending.is_empty())
            {
                writer.dropped += 1;
                continue;
            }
            writer.pending_bytes = bytes;
            writer.pending.push(row);
        }
        self.write_pending(&mut writer);
    }

    fn tidy(&self) {
        let mut writer = self.writer.lock();
        let is_due = writer.tried.is_none_or(|tried| tried.elapsed() >= TIDY);
        if !writer.pending.is_empty() || (writer.connection.is_some() && is_due) {
            self.write_pending(&mut writer);
        }
    }

    fn close(&self) {
        self.tidy();
        let lost = self.lost();
        if lost > 0 {
            tracing::warn!(path = %self.path.display(), lost, "calls are missing in the history: it could not be written");
        }
    }

    fn failure(&self) -> Option<String> {
        let failure = self.writer.lock().failure.clone()?;
        let path = self.path.display().to_string();
        let text = if failure.contains(&path) { failure } else { format!("{path}: {failure}") };
        Some(text.split(" (os error").next().unwrap_or(&text).to_owned())
    }

    fn lost(&self) -> u64 {
        let writer = self.writer.lock();
        writer.pending.len() as u64 + writer.dropped
    }

    fn list(&self, query: &Query, viewer: &Viewer) -> Result<Vec<Call>, HistoryError> {
        self.read(Vec::new(), |connection| {
            let missing = missing_columns(connection)?;
            let lacks = |name| missing.iter().any(|(missing, _)| *missing == name);
            if (query.client.is_some() && lacks("client"))
                || (query.session.is_some() && lacks("session"))
            {
                return Ok(Vec::new());
            }
            // Lists do not show them.
            let unread: Vec<Column> = missing.into_iter().chain([SPANS]).collect();
            let (sql, values) = select(&columns(&unread), query, viewer);
            let mut statement = connection.prepare(&sql)?;
            let rows = statement.query_map(params_from_iter(values), call)?;
            rows.collect()
        })
    }

    fn get(&self, id: &str) -> Result<Option<Row>, HistoryError> {
        self.read(None, |connection| {
            let mut statement = connection.prepare(&format!(
                "SELECT {}, error, trace_id, span_id, parent_span_id, input, input_bytes, output, \
                 output_bytes, stderr, notices, more_notices FROM calls LEFT JOIN bodies USING (seq) WHERE id = ?1",
                columns(&missing_columns(connection)?)
            ))?;
            statement.query_row([id], row).optional()
        })
    }

    fn within(&self, root: &str) -> Result<Vec<Call>, HistoryError> {
        self.read(Vec::new(), |connection| {
            let mut statement = connection.prepare(&format!(
                "SELECT {} FROM calls WHERE root = ?1 AND depth > 0 ORDER BY seq LIMIT {MAX_WITHIN}",
                columns(&missing_columns(connection)?)
            ))?;
            let rows = statement.query_map([root], call)?;
            rows.collect()
        })
    }

    fn known(&self, ids: HashSet<String>) -> Result<HashSet<String>, HistoryError> {
        self.read(HashSet::new(), |connection| {
            let mut statement = connection.prepare("SELECT 1 FROM calls WHERE id = ?1")?;
            let mut known = HashSet::new();
            for id in ids {
                if statement.exists([&id])? {
                    known.insert(id);
                }
            }
            Ok(known)
        })
    }
}

/// Checks that a file is a history of this version, or does not exist. A locked file passes; the later
/// use reports the lock.
///
/// Closing any descriptor of a file releases all POSIX locks of the process on it, so only SQLite opens
/// the file.
fn check(path: &Path, max_wait: Duration) -> Result<(), OpenError> {
    let failed = |source| OpenError::Failed { path: path.to_owned(), source };
    let foreign = || OpenError::NotHistory { path: path.to_owned() };
    // Looked at before it is opened: opening a fifo would wait for its writer.
    match fs::metadata(path) {
        Ok(file) if !file.is_file() => return Err(foreign()),
        Ok(_) => {}
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(err) => return Err(failed(err)),
    }
    let numbers = || {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(max_wait)?;
        let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
        Ok((number("application_id")?.cast_unsigned(), number("user_version")?.cast_unsigned()))
    };
    match numbers() {
        Ok((APPLICATION, FORMAT)) => Ok(()),
        Ok((APPLICATION, found)) => Err(OpenError::Version { path: path.to_owned(), found }),
        Ok(_) => Err(foreign()),
        Err(err) => match rusqlite::Error::sqlite_error_code(&err) {
            Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => Err(foreign()),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Ok(()),
            // SQLite does not report the reason.
            Some(ErrorCode::CannotOpen) => Err(failed(
                fs::metadata(path).err().unwrap_or_else(|| io::ErrorKind::PermissionDenied.into()),
            )),
            _ => Err(failed(io::Error::other(err))),
        },
    }
}

/// Makes the file if it is not there. It has its name only when it is whole.
fn create(path: &Path) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    if let Some(parent) = path.parent().filter(|parent| !parent.exists()) {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".new-{}", std::process::id()));
    let new = path.with_file_name(name);
    drop(fs::remove_file(&new));
    drop(OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?);
    let made = (|| {
        let connection = Connection::open_with_flags(&new, flags())?;
        connection.pragma_update(None, "application_id", APPLICATION)?;
        connection.pragma_update(None, "user_version", FORMAT)?;
        let later = with_columns(&LATER_COLUMNS);
        connection.execute_batch(&format!("BEGIN; {SCHEMA} {later} {LATER_INDEXES} COMMIT;"))?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.close().map_err(|(_, err)| err)
    })();
    // A link does not replace what another process has made meanwhile.
    let linked = made.map_err(io::Error::other).and_then(|()| match fs::hard_link(&new, path) {
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    });
    drop(fs::remove_file(&new));
    linked
}

fn connect(path: &Path, max_wait: Duration) -> Result<Connection, rusqlite::Error> {
    let connection = Connection::open_with_flags(path, flags())?;
    connection.busy_timeout(max_wait)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    // In WAL mode, a crash of the process loses nothing, and a crash of the machine loses the last
    // moments.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    Ok(connection)
}

/// Returns those of the later columns that a file lacks.
fn missing_columns(connection: &Connection) -> Result<Vec<Column>, rusqlite::Error> {
    let mut statement = connection.prepare("SELECT name FROM pragma_table_info('calls')")?;
    let names = statement.query_map([], |row| row.get(0))?;
    let names = names.collect::<Result<HashSet<String>, _>>()?;
    Ok(LATER_COLUMNS.into_iter().filter(|(name, _)| !names.contains(*name)).collect())
}

/// Returns the statements that add columns.
fn with_columns(columns: &[Column]) -> String {
    columns.iter().map(|(name, kind)| format!("ALTER TABLE calls ADD COLUMN {name} {kind};")).collect()
}

/// Adds the columns that a file of an earlier version lacks.
fn with_later_columns(mut connection: Connection) -> Result<Connection, rusqlite::Error> {
    if !missing_columns(&connection)?.is_empty() {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Another process may have added them meanwhile.
        let missing = with_columns(&missing_columns(&transaction)?);
        transaction.execute_batch(&format!("{missing} {LATER_INDEXES}"))?;
        transaction.commit()?;
    }
    Ok(connection)
}

fn flags() -> OpenFlags {
    OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX
}

/// Writes all rows or none, and removes rows beyond the limits.
fn insert(connection: &mut Connection, rows: &[Row], options: &Options) -> Result<(), rusqlite::Error> {
    let transaction = connection.transaction()?;
    {
        let mut call = transaction.prepare(
            "INSERT OR IGNORE INTO calls (id, parent, root, depth, capability, name, kind, principal, principal_id, outcome, \
             started_at, duration_ms, queued_ms, error, trace_id, span_id, parent_span_id, client, client_version, session, executed_ms, \
             validated_ms, spans) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23)",
        )?;
        let mut body = transaction.prepare(
            "INSERT OR IGNORE INTO bodies (seq, input, input_bytes, output, output_bytes, stderr, notices, more_notices) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?;
        for row in rows {
            let Row { call: one, input, output, error, notices, more_notices, stderr, trace, replaces } =
                row;
            if *replaces {
                transaction.execute(
                    "DELETE FROM bodies WHERE seq = (SELECT seq FROM calls WHERE id = ?1)",
                    [&one.id],
                )?;
                transaction.execute("DELETE FROM calls WHERE id = ?1", [&one.id])?;
            }
            let is_new = call.execute(params![
                one.id,
                one.parent,
                one.root,
                one.depth,
                one.capability,
                one.name,
                one.kind,
                one.principal,
                one.principal_id,
                one.outcome,
                instant(one.started_at),
                millis(one.duration),
                millis(one.queued),
                error,
                trace.as_ref().map(|trace| &trace.trace_id),
                trace.as_ref().map(|trace| &trace.span_id),
                trace.as_ref().and_then(|trace| trace.parent_id.as_ref()),
                one.client.as_ref().map(|client| &client.name),
                one.client.as_ref().and_then(|client| client.version.as_ref()),
                one.session,
                one.executed.map(millis),
                one.validated.map(millis),
                list_text(&one.spans),
            ])?;
            let has_body =
                input.is_some() || output.is_some() || stderr.is_some() || !notices.is_empty();
            if is_new == 0 || !has_body {
                continue;
            }
            let text = |body: &Option<Body>| body.as_ref().map(|body| body.text.clone());
            let bytes = |body: &Option<Body>| body.as_ref().map(|body| signed(body.bytes));
            body.execute(params![
                transaction.last_insert_rowid(),
                text(input),
                bytes(input),
                text(output),
                bytes(output),
                stderr,
                list_text(notices),
                signed(*more_notices),
            ])?;
        }
    }
    remove_old(&transaction, options)?;
    transaction.commit()
}

/// Returns a list as JSON; `None` if it is empty.
fn list_text<T: Serialize>(list: &[T]) -> Option<String> {
    if list.is_empty() { None } else { serde_json::to_string(list).ok() }
}

/// Reads a list that [`list_text`] has written.
fn read_list<T: DeserializeOwned>(text: Option<String>) -> Vec<T> {
    text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// Removes the oldest rows: those beyond the limit, and some expired ones.
fn remove_old(connection: &Connection, options: &Options) -> Result<(), rusqlite::Error> {
    let newest: Option<i64> =
        connection.query_row("SELECT max(seq) FROM calls", [], |row| row.get(0))?;
    let Some(newest) = newest else { return Ok(()) };
    let max_rows = i64::try_from(options.max_rows).unwrap_or(i64::MAX);
    let over = newest.saturating_sub(max_rows);
    let since = SystemTime::now().checked_sub(options.keep).map(instant);
    // A clock that was wrong for a while makes rows old that are not the first ones.
    const OLD: &str = "SELECT seq FROM calls WHERE started_at < ?1 ORDER BY started_at, seq LIMIT ?2";
    for table in ["bodies", "calls"] {
        connection.prepare(&format!("DELETE FROM {table} WHERE seq <= ?1"))?.execute([over])?;
        if let Some(since) = &since {
            let removal = format!("DELETE FROM {table} WHERE seq IN ({OLD})");
            connection.prepare(&removal)?.execute(params![since, MAX_REMOVED])?;
        }
    }
    Ok(())
}

/// Returns the columns of a call, with `NULL` for those that a file lacks.
fn columns(missing: &[Column]) -> String {
    let later =
        LATER_COLUMNS.iter().map(|column| if missing.contains(column) { "NULL" } else { column.0 });
    std::iter::once(FIRST_COLUMNS).chain(later).collect::<Vec<_>>().join(", ")
}

/// Returns the question for a list, with its values.
fn select(columns: &str, query: &Query, viewer: &Viewer) -> (String, Vec<Sql>) {
    let (mut conditions, mut values): (Vec<String>, Vec<Sql>) = Default::default();
    let mut value = |value: Sql| {
        values.push(value);
        format!("?{}", values.len())
    };
    match viewer {
        Viewer::All => {}
        Viewer::Own(Some(id)) | Viewer::OwnPermitted(Some(id)) => {
            conditions.push(format!("principal_id = {}", value(id.clone().into())));
        }
        Viewer::Own(None) | Viewer::OwnPermitted(None) => {
            conditions.push("principal_id IS NULL".to_owned());
        }
    }
    if matches!(viewer, Viewer::OwnPermitted(_)) {
        conditions.push(format!("outcome NOT IN ('{}')", CONCEALED.join("', '")));
    }
    if let Some(pattern) = &query.capability {
        let pattern = value(glob(pattern.as_str()).into());
        conditions.push(format!("(capability GLOB {pattern} OR name GLOB {pattern})"));
    }
    if query.failed {
        conditions.push("outcome <> 'ok'".to_owned());
    }
    if let Some(since) = query.since {
        conditions.push(format!("started_at >= {}", value(instant(since).into())));
    }
    if let Some(name) = &query.principal {
        let unnamed = if name == ANONYMOUS { " OR principal IS NULL" } else { "" };
        conditions.push(format!("(principal = {}{unnamed})", value(name.clone().into())));
    }
    if let Some(name) = &query.client {
        conditions.push(format!("client = {}", value(name.clone().into())));
    }
    if let Some(session) = &query.session {
        conditions.push(format!("session = {}", value(session.clone().into())));
    }
    if query.outermost {
        conditions.push("parent IS NULL".to_owned());
    }
    if let Some(before) = &query.before {
        let before = value(before.clone().into());
        conditions.push(format!("seq < (SELECT seq FROM calls WHERE id = {before})"));
    }
    let condition = match conditions.is_empty() {
        true => String::new(),
        false => format!(" WHERE {}", conditions.join(" AND ")),
    };
    let limit = query.limit.min(MAX_LIMIT);
    (format!("SELECT {columns} FROM calls{condition} ORDER BY seq DESC LIMIT {limit}"), values)
}

/// Returns a pattern, whose only special character is `*`, as SQLite has it.
fn glob(pattern: &str) -> String {
    pattern.replace('[', "[[]").replace('?', "[?]")
}

fn call(row: &rusqlite::Row<'_>) -> Result<Call, rusqlite::Error> {
    let time: String = row.get(10)?;
    let duration = |at: usize| {
        let millis: Option<f64> = row.get(at)?;
        let duration = |millis| Duration::try_from_secs_f64(millis / 1000.0).unwrap_or_default();
        Ok::<_, rusqlite::Error>(millis.map(duration))
    };
    let (client, version): (Option<String>, Option<String>) = (row.get(13)?, row.get(14)?);
    Ok(Call {
        id: row.get(0)?,
        parent: row.get(1)?,
        root: row.get(2)?,
        depth: row.get(3)?,
        capability: row.get(4)?,
        name: row.get(5)?,
        kind: row.get(6)?,
        principal: row.get(7)?,
        principal_id: row.get(8)?,
        outcome: row.get(9)?,
        started_at: read_instant(&time),
        duration: duration(11)?.unwrap_or_default(),
        queued: duration(12)?.unwrap_or_default(),
        client: client.map(|name| ClientInfo { name, version }),
        session: row.get(15)?,
        executed: duration(16)?,
        validated: duration(17)?,
        spans: read_list(row.get(18)?),
        waits_for_approval: false,
    })
}

fn row(row: &rusqlite::Row<'_>) -> Result<Row, rusqlite::Error> {
    let body = |at: usize| {
        let (text, bytes): (Option<String>, Option<i64>) = (row.get(at)?, row.get(at + 1)?);
        let bytes = bytes.map_or(0, i64::unsigned_abs);
        Ok::<_, rusqlite::Error>(text.map(|text| Body { text, bytes }))
    };
    let (trace_id, span_id): (Option<String>, Option<String>) = (row.get(20)?, row.get(21)?);
    let parent_id = row.get(22)?;
    Ok(Row {
        call: call(row)?,
        error: row.get(19)?,
        trace: trace_id.zip(span_id).map(|(trace_id, span_id)| Trace { trace_id, span_id, parent_id }),
        input: body(23)?,
        output: body(25)?,
        stderr: row.get(27)?,
        notices: read_list(row.get(28)?),
        more_notices: row.get::<_, Option<i64>>(29)?.map_or(0, i64::unsigned_abs),
        replaces: false,
    })
}

/// Returns a time as the file has it. Texts of times are ordered as the times are.
fn instant(at: SystemTime) -> String {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let micros = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
    format!("{:.6}", jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX))
}

fn read_instant(text: &str) -> SystemTime {
    let micros = text.parse::<jiff::Timestamp>().map_or(0, jiff::Timestamp::as_microsecond);
    SystemTime::UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

//! The state of an instance, stored in `state_dir` or in memory.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use orla_state::{
    Change, Embedded, Limits, Memory, OpenError, Query, Record, Revision, StateError, StateStore,
    WriteError,
};
use rustix::fs::{Access, StatVfsMountFlags};
use tokio::sync::{Mutex, OnceCell};
use tokio::time::Instant;

use crate::Failure;
use crate::config::{Config, StateKind, Transport};

/// How long a server over HTTP waits for a state in use. If the one before it was killed as it started a process, that process
/// holds the state until it has become another program.
const HELD: Duration = Duration::from_secs(1);

/// The state of a server.
pub(crate) enum ServerState {
    /// The state can be used. An existing store is open, and a new one is created with the first write.
    Usable(Arc<dyn StateStore>),
    /// Another process uses the state. The sentence says so.
    InUse(String),
}

/// Opens the state of a server. On stdio it may be in use: clients start several servers in one
/// directory, and most of them need no tasks.
///
/// # Errors
///
/// Returns an error if it exists and cannot be used.
pub(crate) async fn of_server(config: &Config) -> Result<ServerState, Failure> {
    let max_wait = if config.transport == Transport::Stdio { Duration::ZERO } else { HELD };
    match open(config, max_wait).await {
        Ok(store) => Ok(ServerState::Usable(store)),
        Err(held @ OpenError::Held { .. }) if config.transport == Transport::Stdio => {
            Ok(ServerState::InUse(held.to_string()))
        }
        Err(held @ OpenError::Held { .. }) => {
            Err(Failure::usage(format!("{held}: stop that one, or choose another state_dir")))
        }
        Err(error) => Err(Failure::usage(error.to_string())),
    }
}

/// Returns the state for a command that opens it itself.
///
/// # Errors
///
/// Returns an error if it cannot be used.
pub(crate) async fn of_command(config: &Config) -> Result<Arc<dyn StateStore>, Failure> {
    if config.state == StateKind::Memory {
        return Err(server_needed_error("state: memory keeps nothing for a command", config));
    }
    if config.cluster.is_some() {
        return Err(server_needed_error("the tasks of a cluster are kept by NATS", config));
    }
    open(config, HELD).await.map_err(|error| match error {
        held @ OpenError::Held { .. } => server_needed_error(&held.to_string(), config),
        error => Failure::usage(error.to_string()),
    })
}

/// The state cannot be used by a command, for this reason, but that of a server can.
fn server_needed_error(what: &str, config: &Config) -> Failure {
    Failure::usage(format!("{what}: name a server with {}", config.own_url()))
}

/// Opens a state, retrying until this time while it is in use. Blocks.
fn until_free<T>(
    deadline: Instant,
    mut open: impl FnMut() -> Result<T, OpenError>,
) -> Result<T, OpenError> {
    const PAUSE: Duration = Duration::from_millis(20);
    loop {
        match open() {
            Err(OpenError::Held { .. }) if Instant::now() < deadline => std::thread::sleep(PAUSE),
            opened => return opened,
        }
    }
}

/// Opens the state. While another process uses it, the first attempt is repeated for `max_wait`.
async fn open(config: &Config, max_wait: Duration) -> Result<Arc<dyn StateStore>, OpenError> {
    if config.state == StateKind::Memory {
        return Ok(Arc::new(Memory::new(Limits::default())));
    }
    let lazy = Lazy::new(config, max_wait);
    if Embedded::exists(&lazy.dir) {
        lazy.opened().await?;
    }
    Ok(Arc::new(lazy))
}

/// A state in a directory. It is made when it is first written, and is empty until then.
struct Lazy {
    dir: PathBuf,
    max_wait: Duration,
    /// Until when attempts to open it wait for another process, from the first attempt on. They run one after another, so later
    /// ones do not wait.
    deadline: OnceLock<Instant>,
    store: OnceCell<Embedded>,
    /// Whether the configuration speaks of it. Otherwise, a directory that cannot be written is no trouble until something
    /// is kept in it.
    is_wanted: bool,
    /// Whether the last write failed.
    has_failed: AtomicBool,
    /// The result of the last check, and its time.
    checking: Mutex<Option<(Instant, Result<(), StateError>)>>,
}

impl Lazy {
    fn new(config: &Config, max_wait: Duration) -> Self {
        Self {
            dir: config.state_dir.clone(),
            max_wait,
            deadline: OnceLock::new(),
            store: OnceCell::new(),
            is_wanted: !config.is_default("state_dir") || !config.schedules.is_empty(),
            has_failed: AtomicBool::new(false),
            checking: Mutex::new(None),
        }
    }

    /// Notes whether a write failed.
    fn noted<T>(&self, written: Result<T, WriteError>) -> Result<T, WriteError> {
        let has_failed = matches!(written, Err(WriteError::Failed(_)));
        self.has_failed.store(has_failed, Ordering::Relaxed);
        written
    }

    /// Writes a record and removes it again.
    async fn probe(&self) -> Result<(), StateError> {
        for change in [Change::put(PROBE, Vec::new()), Change::remove(PROBE)] {
            match self.write(vec![change]).await {
                Ok(_) | Err(WriteError::Conflict { .. }) => {}
                Err(WriteError::Failed(_)) => {
                    return Err(StateError::new("the last write to it failed; see the log"));
                }
            }
        }
        Ok(())
    }

    async fn opened(&self) -> Result<&Embedded, OpenError> {
        self.store
            .get_or_try_init(|| async {
                let dir = self.dir.clone();
                let deadline = *self.deadline.get_or_init(|| Instant::now() + self.max_wait);
                let opening =
                    tokio::task::spawn_blocking(move || until_free(deadline, || Embedded::open(&dir)));
                opening.await.unwrap_or_else(|broken| Err(join_error(&self.dir, broken)))
            })
            .await
    }

    /// Returns the state, if it exists.
    async fn existing(&self) -> Result<Option<&Embedded>, StateError> {
        if self.store.initialized() || Embedded::exists(&self.dir) {
            return Ok(Some(self.opened().await?));
        }
        Ok(None)
    }
}

/// The record that is written to find out whether one can be.
const PROBE: &str = "probe";
/// How long the answer of a check holds.
const CHECKED: Duration = Duration::from_secs(1);

/// Checks that the file system of a directory, or of its nearest ancestor that exists, has room for more
/// data.
fn check_space(dir: &Path) -> Result<(), StateError> {
    let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let Some(place) = dir.ancestors().find(|place| place.exists()) else { return Ok(()) };
    let system = rustix::fs::statvfs(place).ok();
    let why = if !place.is_dir() {
        "the place of its directory is a file"
    } else if system.as_ref().is_some_and(|system| system.f_flag.contains(StatVfsMountFlags::RDONLY)) {
        "its file system is read-only"
    } else if system.as_ref().is_some_and(|system| system.f_blocks > 0 && system.f_bavail == 0) {
        "the disk is full"
    } else if rustix::fs::access(place, Access::WRITE_OK | Access::EXEC_OK).is_err() {
        "its directory is not writable"
    } else {
        return Ok(());
    };
    Err(StateError::new(why))
}

fn join_error(dir: &Path, broken: tokio::task::JoinError) -> OpenError {
    OpenError::Failed { path: dir.to_owned(), source: std::io::Error::other(broken) }
}

#[async_trait]
impl StateStore for Lazy {
    async fn write(&self, changes: Vec<Change>) -> Result<Vec<Revision>, WriteError> {
        let written = match self.opened().await {
            Ok(store) => store.write(changes).await,
            Err(error) => Err(StateError::from(error).into()),
        };
        self.noted(written)
    }

    async fn write_later(&self, changes: Vec<Change>) -> Result<Vec<Revision>, WriteError> {
        let store = self.opened().await.map_err(StateError::from)?;
        self.noted(store.write_later(changes).await)
    }

    async fn check(&self) -> Result<(), StateError> {
        if !self.is_wanted && !self.store.initialized() {
            return Ok(());
        }
        // Concurrent callers wait for the same check.
        let mut last = self.checking.lock().await;
        if let Some((_, found)) = last.as_ref().filter(|(at, _)| at.elapsed() < CHECKED) {
            return found.clone();
        }
        // A network file system may hang.
        let dir = self.dir.clone();
        let checked = tokio::task::spawn_blocking(move || check_space(&dir)).await;
        let found = match checked.unwrap_or_else(|broken| Err(StateError::new(broken.to_string()))) {
            Ok(()) if self.has_failed.load(Ordering::Relaxed) => self.probe().await,
            found => found,
        };
        *last = Some((Instant::now(), found.clone()));
        found
    }

    async fn get(&self, key: &str) -> Result<Option<Record>, StateError> {
        match self.existing().await? {
            Some(store) => store.get(key).await,
            None => Ok(None),
        }
    }

    async fn get_all(&self, keys: Vec<String>) -> Result<Vec<Option<Record>>, StateError> {
        match self.existing().await? {
            Some(store) => store.get_all(keys).await,
            None => Ok(keys.iter().map(|_| None).collect()),
        }
    }

    async fn list(&self, query: Query) -> Result<Vec<Record>, StateError> {
        match self.existing().await? {
            Some(store) => store.list(query).await,
            None => Ok(Vec::new()),
        }
    }

    async fn close(&self) {
        if let Some(store) = self.store.get() {
            store.close().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_state_in_use_is_waited_for_and_any_other_error_is_not() {
        let times = Cell::new(0);
        let after = |wait| Instant::now() + wait;
        let held = || OpenError::Held { path: "s".into() };
        let freed = || {
            times.set(times.get() + 1);
            if times.get() < 3 { Err(held()) } else { Ok(()) }
        };
        assert!(until_free(after(Duration::from_secs(600)), freed).is_ok());
        assert_eq!(times.get(), 3);
        let never = until_free(after(Duration::from_millis(30)), || Err::<(), _>(held()));
        assert!(matches!(never, Err(OpenError::Held { .. })));
        let other = || {
            times.set(times.get() + 1);
            Err::<(), _>(OpenError::NotState { path: "s".into() })
        };
        assert!(until_free(after(Duration::from_secs(600)), other).is_err());
        assert_eq!(times.get(), 4);
    }

    #[tokio::test]
    async fn requests_do_not_wait_one_after_another_for_a_state_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { state_dir: dir.path().join("state"), ..Config::default() };
        let _command = Embedded::open(&config.state_dir).unwrap_or_else(|error| panic!("{error}"));
        let state = Lazy::new(&config, Duration::from_millis(50));
        assert!(state.deadline.get().is_none(), "nobody has waited yet");
        assert!(state.get("task").await.is_err());
        // Each of these would wait for an hour.
        let state = Lazy::new(&config, Duration::from_secs(3600));
        state.deadline.set(Instant::now()).unwrap();
        let requests = (0..100).map(|_| state.get("task"));
        let answers = futures_util::future::join_all(requests).await;
        assert!(answers.iter().all(Result::is_err));
    }
}

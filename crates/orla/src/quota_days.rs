//! Keeps the usage of daily quotas across restarts, in `quotas.json` of `state_dir`.
//!
//! # How it works
//!
//! [`QuotaDays::follow`] writes the file soon after a count has changed, and [`QuotaDays::end`] writes
//! it a last time. Each write replaces the previous file atomically, so the file is always complete. A
//! server that is killed loses the counts of the last moments: at most those of [`MIN_PAUSE`], or of as
//! long as twenty writes take.
//!
//! A file that cannot be read is moved aside, and the counts start at zero: the numbers in it may matter
//! to a person.
//!
//! The first server that uses a `state_dir` keeps the file. A second server reports that it counts only
//! in memory.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use orla_marketplace::{Quotas, StoredCount};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::config::{Config, read_text, reason};

const FILE: &str = "quotas.json";
/// Where a file is moved that cannot be read.
const UNREADABLE: &str = "quotas.unreadable.json";
const LOCK: &str = "quotas.lock";
/// The largest file that is read.
const MAX_FILE: u64 = 256 << 20;
/// The least time between two writes.
const MIN_PAUSE: Duration = Duration::from_millis(50);

/// The daily counts of a server.
pub(crate) struct QuotaDays(Arc<Inner>);

struct Inner {
    quotas: Arc<Quotas>,
    dir: PathBuf,
    lock: Mutex<Lock>,
}

enum Lock {
    /// The file has not been read or written yet.
    Open,
    /// The file is this server's, as long as the lock's file is open.
    Held(#[expect(dead_code, reason = "the lock lasts as long as the file is open")] File),
    /// The counts stay in memory.
    Refused,
}

#[derive(Deserialize, Serialize)]
struct Document {
    version: u32,
    written_at_ms: u64,
    days: Vec<Row>,
}

#[derive(Deserialize, Serialize)]
struct Row {
    rule: String,
    caller: String,
    spent: f64,
}

impl QuotaDays {
    /// Continues the counts of the last server, if it kept some.
    pub(crate) fn open(config: &Config, quotas: &Arc<Quotas>) -> Self {
        let inner = Inner {
            quotas: Arc::clone(quotas),
            dir: config.state_dir.clone(),
            lock: Mutex::new(Lock::Open),
        };
        if inner.dir.join(FILE).exists()
            && inner.has_lock()
            && let Err(why) = inner.read()
        {
            inner.set_aside(&why);
        }
        Self(Arc::new(inner))
    }

    /// Writes changed counts for as long as the server runs.
    pub(crate) fn follow(&self) -> impl Future<Output = ()> + Send + use<> {
        let inner = Arc::clone(&self.0);
        async move {
            loop {
                inner.quotas.changed().await;
                let writing = Arc::clone(&inner);
                let began = Instant::now();
                // A panic has been reported by then.
                drop(tokio::task::spawn_blocking(move || writing.write()).await);
                tokio::time::sleep(MIN_PAUSE.max(20 * began.elapsed())).await;
            }
        }
    }

    /// Writes the final counts.
    pub(crate) fn end(self) {
        if !self.0.quotas.stored().is_empty() {
            self.0.write();
        }
    }
}

impl Inner {
    /// Returns whether the file is this server's. Makes the directory.
    fn has_lock(&self) -> bool {
        let mut lock = self.lock.lock();
        if matches!(*lock, Lock::Open) {
            *lock = match lock_file(&self.dir) {
                Ok(file) => Lock::Held(file),
                Err(why) => {
                    let dir = self.dir.display();
                    tracing::warn!(state_dir = %dir, why, "daily quotas are counted only in memory");
                    Lock::Refused
                }
            };
        }
        matches!(*lock, Lock::Held(_))
    }

    /// Moves the file aside. If that fails, the counts stay in memory, so that the file is not
    /// overwritten.
    fn set_aside(&self, why: &str) {
        let path = self.dir.join(FILE);
        let path = path.display();
        match fs::rename(self.dir.join(FILE), self.dir.join(UNREADABLE)) {
            Ok(()) => {
                tracing::warn!(%path, why, moved_to = UNREADABLE, "daily quotas start at zero");
            }
            Err(err) => {
                let not_moved = reason(&err);
                tracing::error!(%path, why, not_moved, "daily quotas are counted only in memory");
                *self.lock.lock() = Lock::Refused;
            }
        }
    }

    fn read(&self) -> Result<(), String> {
        let text = read_text(&self.dir.join(FILE), MAX_FILE)?;
        let document: Document = serde_json::from_str(&text).map_err(|err| err.to_string())?;
        if document.version != 1 {
            let version = document.version;
            return Err(format!("another orla wrote it: expected version 1, got {version}"));
        }
        let stored: Vec<StoredCount> = document
            .days
            .into_iter()
            .map(|row| StoredCount::new(row.rule, row.caller, row.spent))
            .collect();
        let ago = now_ms().saturating_sub(document.written_at_ms);
        self.quotas.restore(&stored, Duration::from_millis(ago));
        Ok(())
    }

    fn write(&self) {
        if !self.has_lock() {
            return;
        }
        let days = self.quotas.stored().into_iter();
        let days = days.map(|count| Row { rule: count.rule, caller: count.caller, spent: count.spent });
        let days = days.collect();
        // The time is read last and rounded up, so that no quota is refilled twice.
        let document = Document { version: 1, written_at_ms: now_ms() + 1, days };
        let path = self.dir.join(FILE);
        if let Err(why) = replace(&self.dir, &path, &document) {
            tracing::error!(path = %path.display(), why, "daily quotas cannot be kept");
        }
    }
}

fn lock_file(dir: &Path) -> Result<File, String> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|err| format!("cannot be made: {}", reason(&err)))?;
    let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(dir.join(LOCK));
    let file = opened.map_err(|err| format!("cannot be used: {}", reason(&err)))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err("another orla uses it: stop that one, or choose another state_dir".to_owned())
        }
        Err(TryLockError::Error(err)) => Err(format!("cannot be locked: {}", reason(&err))),
    }
}

fn replace(dir: &Path, path: &Path, document: &Document) -> Result<(), String> {
    let text = serde_json::to_vec(document).map_err(|err| err.to_string())?;
    let write = || {
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        file.write_all(&text)?;
        file.as_file().sync_data()?;
        file.persist(path).map(drop).map_err(|err| err.error)
    };
    let written: std::io::Result<()> = write();
    match written {
        // The directory was removed meanwhile.
        Err(err) if err.kind() == ErrorKind::NotFound => {
            fs::create_dir_all(dir).and_then(|()| write()).map_err(|err| reason(&err))
        }
        written => written.map_err(|err| reason(&err)),
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use orla_marketplace::{Period, QuotaRule, Rate};

    /// The identity of the only rule.
    const RULE: &str = r#"["*"] ["*"] day as named"#;

    fn server(dir: &Path) -> (Arc<Quotas>, QuotaDays) {
        let quotas = Arc::new(Quotas::default());
        let mut rule = QuotaRule::new("quotas[0]");
        rule.rate = Some(Rate::new(10, Period::Day));
        quotas.configure(vec![rule]);
        let config = Config { state_dir: dir.join("state"), ..Config::default() };
        let days = QuotaDays::open(&config, &quotas);
        (quotas, days)
    }

    /// Returns a server that has the file for itself. A process that another test starts may hold the lock of an earlier one until
    /// it executes its program.
    fn next_server(dir: &Path) -> (Arc<Quotas>, QuotaDays) {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let (quotas, days) = server(dir);
            if days.0.has_lock() || Instant::now() > end {
                return (quotas, days);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn remaining(quotas: &Quotas) -> Option<u64> {
        quotas.usage_of(None)[0].remaining
    }

    #[test]
    fn days_are_kept_and_one_server_keeps_them() {
        let dir = tempfile::tempdir().unwrap();
        let (first, days) = server(dir.path());
        assert!(!dir.path().join("state").exists(), "nothing is made before it is needed");
        first.restore(&[StoredCount::new(RULE, "anonymous", 4.0)], Duration::ZERO);
        days.0.write();
        let (beside, other) = server(dir.path());
        assert_eq!(remaining(&beside), Some(10), "it is in use");
        other.end();
        days.end();
        let (second, _days) = next_server(dir.path());
        assert_eq!(remaining(&second), Some(6));
    }

    #[test]
    fn a_broken_file_is_moved_aside() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("state")).unwrap();
        for text in ["", "{", r#"{"version":2,"written_at_ms":0,"days":[]}"#] {
            let state = dir.path().join("state");
            fs::write(state.join(FILE), text).unwrap();
            let (quotas, days) = next_server(dir.path());
            assert_eq!(remaining(&quotas), Some(10));
            days.0.write();
            assert!(state.join(FILE).exists());
            assert_eq!(fs::read_to_string(state.join(UNREADABLE)).unwrap(), text);
        }
    }
}

//! The directory of what is installed, the lock beside it, and the cache of archives.
//!
//! ```text
//! PROJECT/orla.lock                     what is installed
//! PROJECT/.orla/packages/.lock          held by the process that changes it
//! PROJECT/.orla/packages/NAME-SHA/      a package, named by the SHA-256 of its archive
//! PROJECT/.orla/packages/NAME-SHA.json  what it said its tools are when it was accepted
//! CACHE/SHA256                          an archive
//! ```
//!
//! A package is unpacked into a directory whose name begins with a dot, made durable, and renamed. Then the lock is
//! replaced by one rename: before that the old directories are in force, after it the new ones. What no lock names is
//! removed by the next transaction.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{FlockOperation, flock};

use crate::archive::{Archive, ArchiveError, MAX_BYTES};
use crate::lock::{Entry, FILE, Lock, LockError, MAX_LOCK};
use crate::sha256;

/// The most bytes of all archives in the cache.
const MAX_CACHE: u64 = 1 << 30;

/// What a project has installed.
#[derive(Clone, Debug)]
pub struct Store {
    project: PathBuf,
    cache: Option<PathBuf>,
}

/// The right to change what is installed. It is given back when this is dropped, or when the process ends.
#[derive(Debug)]
pub struct Transaction<'a> {
    store: &'a Store,
    _held: File,
}

/// Why what is installed cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The lock is no lock.
    #[error("{}:{error}", path.display())]
    Lock {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, with its place.
        error: LockError,
    },
    /// The archive is not the one that was locked.
    #[error(
        "the archive has the SHA-256 {found}, and {wanted} is expected: it was changed at its source"
    )]
    Hash {
        /// That of the lock, or of the registry.
        wanted: String,
        /// Its own.
        found: String,
    },
    /// The archive is refused.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { path, source }
}

impl Store {
    /// The store of the project in a directory, with a cache that projects share.
    pub fn new(project: impl Into<PathBuf>, cache: Option<PathBuf>) -> Self {
        Self { project: project.into(), cache }
    }

    /// The lock's file.
    pub fn lock_file(&self) -> PathBuf {
        self.project.join(FILE)
    }

    /// The lock as it is now; an empty one if there is none.
    ///
    /// # Errors
    /// It cannot be read, or is no lock.
    pub fn lock(&self) -> Result<Lock, StoreError> {
        let path = self.lock_file();
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Lock::default()),
            Err(error) => return Err(io_at(&path)(error)),
        };
        let mut text = String::new();
        file.take(MAX_LOCK + 1).read_to_string(&mut text).map_err(io_at(&path))?;
        if text.len() as u64 > MAX_LOCK {
            return Err(io_at(&path)(io::Error::other("it is too large to be a lock")));
        }
        Lock::parse(&text).map_err(|error| StoreError::Lock { path, error })
    }

    /// Where a package is, installed or not.
    pub fn directory(&self, entry: &Entry) -> PathBuf {
        self.place(&entry.name, &entry.sha256)
    }

    /// Whether a package is installed.
    pub fn has(&self, entry: &Entry) -> bool {
        self.directory(entry).is_dir()
    }

    /// What the package said its tools are when it was accepted, if that is known here.
    pub fn accepted_tools(&self, entry: &Entry) -> Option<Vec<u8>> {
        fs::read(self.directory(entry).with_extension("json")).ok()
    }

    fn place(&self, name: &str, sha256: &str) -> PathBuf {
        self.root().join(format!("{name}-{}", sha256.get(..16).unwrap_or(sha256)))
    }

    fn root(&self) -> PathBuf {
        self.project.join(".orla/packages")
    }

    /// Takes the right to change what is installed, and waits for it if another process has it: `waits` is called then.
    /// What a killed process left is removed.
    ///
    /// # Errors
    /// The directory cannot be written, or the lock is no lock.
    pub fn change(&self, waits: impl FnOnce()) -> Result<Transaction<'_>, StoreError> {
        let root = self.root();
        let private = |path: &Path| fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        private(&self.project.join(".orla")).map_err(io_at(&self.project))?;
        private(&root).map_err(io_at(&root))?;
        let path = root.join(".lock");
        let held = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let held = held.map_err(io_at(&path))?;
        if flock(&held, FlockOperation::NonBlockingLockExclusive).is_err() {
            waits();
            flock(&held, FlockOperation::LockExclusive).map_err(|error| io_at(&path)(error.into()))?;
        }
        let transaction = Transaction { store: self, _held: held };
        transaction.sweep(&self.lock()?)?;
        Ok(transaction)
    }

    /// An archive of the cache.
    pub fn cached(&self, digest: &str) -> Option<Vec<u8>> {
        let bytes = read_bounded(&self.cache.as_ref()?.join(digest)).ok()?;
        (sha256(&bytes) == digest).then_some(bytes)
    }

    /// Keeps an archive in the cache, in which the oldest ones make room. A cache that cannot be written is no error.
    pub fn keep(&self, bytes: &[u8]) {
        let Some(cache) = &self.cache else { return };
        let kept = fs::DirBuilder::new().recursive(true).mode(0o700).create(cache);
        let kept = kept.and_then(|()| write_whole(&cache.join(sha256(bytes)), bytes));
        if kept.is_ok() {
            make_room(cache);
        }
    }
}

impl Transaction<'_> {
    /// Unpacks an archive, so that a lock can name it. The package is where [`Store::directory`] says.
    ///
    /// # Errors
    /// The archive is not the one with this digest, is refused, or cannot be unpacked: then nothing is installed.
    pub fn install(&self, name: &str, digest: &str, bytes: &[u8]) -> Result<PathBuf, StoreError> {
        let place = self.store.place(name, digest);
        if place.is_dir() {
            return Ok(place);
        }
        let found = sha256(bytes);
        if found != digest {
            return Err(StoreError::Hash { wanted: digest.to_owned(), found });
        }
        let archive = Archive::read(bytes)?;
        let staging = self.store.root().join(format!(".new-{name}"));
        remove(&staging).map_err(io_at(&staging))?;
        fs::DirBuilder::new().mode(0o755).create(&staging).map_err(io_at(&staging))?;
        if let Err(error) = archive.unpack(&staging) {
            remove(&staging).map_err(io_at(&staging))?;
            return Err(error.into());
        }
        sync_directories(&staging).map_err(io_at(&staging))?;
        fs::rename(&staging, &place).map_err(io_at(&place))?;
        sync(&self.store.root()).map_err(io_at(&place))?;
        Ok(place)
    }

    /// Keeps what a package said its tools are, to be shown when it says something else.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn accept_tools(&self, entry: &Entry, tools: &[u8]) -> Result<(), StoreError> {
        let path = self.store.directory(entry).with_extension("json");
        write_whole(&path, tools).map_err(io_at(&path))
    }

    /// Puts a lock in force, durably, and removes what it does not name.
    ///
    /// # Errors
    /// It cannot be written: then the old one is in force.
    pub fn commit(&self, lock: &Lock) -> Result<(), StoreError> {
        let path = self.store.lock_file();
        write_whole(&path, lock.text().as_bytes()).map_err(io_at(&path))?;
        self.sweep(lock)
    }

    /// Gives up: removes what was installed and no lock names.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn abandon(self) -> Result<(), StoreError> {
        self.sweep(&self.store.lock()?)
    }

    /// Removes what the lock does not name.
    fn sweep(&self, lock: &Lock) -> Result<(), StoreError> {
        let named: Vec<PathBuf> =
            lock.entries().iter().map(|entry| self.store.directory(entry)).collect();
        let root = self.store.root();
        for found in fs::read_dir(&root).map_err(io_at(&root))? {
            let path = found.map_err(io_at(&root))?.path();
            let is_named =
                named.iter().any(|named| *named == path || named.with_extension("json") == path);
            if !is_named && path.file_name().is_some_and(|name| name != ".lock") {
                remove(&path).map_err(io_at(&path))?;
            }
        }
        let half = temporary(&self.store.lock_file());
        remove(&half).map_err(io_at(&half))
    }
}

/// Reads a file of at most [`MAX_BYTES`].
///
/// # Errors
/// It cannot be read, or is larger.
pub fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > MAX_BYTES {
        true => Err(io::Error::other(format!("it has more than {} MiB", MAX_BYTES >> 20))),
        false => Ok(bytes),
    }
}

/// A file that is there as a whole or not at all.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let half = temporary(path);
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&half)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&half, path)?;
    path.parent().map_or(Ok(()), sync)
}

fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.new"))
}

fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn sync_directories(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_directories(&entry.path())?;
        }
    }
    sync(directory)
}

/// Removes the oldest archives until the others fit.
fn make_room(cache: &Path) {
    let Ok(entries) = fs::read_dir(cache) else { return };
    let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?;
            Some((metadata.modified().ok()?, metadata.len(), entry.path()))
        })
        .collect();
    files.sort();
    let mut total: u64 = files.iter().map(|(_, size, _)| size).sum();
    for (_, size, path) in files {
        if total <= MAX_CACHE {
            return;
        }
        if fs::remove_file(path).is_ok() {
            total -= size;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::pack;
    use crate::lock::PackageKind;

    fn archive(text: &str) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), text).unwrap();
        pack(folder.path()).unwrap()
    }

    fn entry(name: &str, bytes: &[u8]) -> Entry {
        Entry {
            name: name.to_owned(),
            source: "./x".to_owned(),
            registry: None,
            resolved: None,
            kind: PackageKind::Folder,
            version: "1.0.0".to_owned(),
            sha256: sha256(bytes),
            tools_digest: "0".repeat(64),
            permissions: Vec::new(),
        }
    }

    #[test]
    fn a_transaction_that_is_not_committed_leaves_nothing() {
        let project = tempfile::tempdir().unwrap();
        let store = Store::new(project.path(), None);
        let (old, new) = (archive("old"), archive("new"));
        let transaction = store.change(|| {}).unwrap();
        transaction.install("a", &sha256(&old), &old).unwrap();
        let mut lock = Lock::default();
        lock.put(entry("a", &old));
        transaction.commit(&lock).unwrap();
        drop(transaction);

        let transaction = store.change(|| {}).unwrap();
        let installed = transaction.install("a", &sha256(&new), &new).unwrap();
        assert!(installed.is_dir() && store.has(&entry("a", &old)));
        drop(transaction);
        drop(store.change(|| {}).unwrap());
        assert!(!installed.exists() && store.has(&entry("a", &old)));
        assert_eq!(store.lock().unwrap(), lock);

        let transaction = store.change(|| {}).unwrap();
        transaction.install("a", &sha256(&new), &new).unwrap();
        lock.put(entry("a", &new));
        transaction.commit(&lock).unwrap();
        assert!(store.has(&entry("a", &new)) && !store.has(&entry("a", &old)));
        transaction.commit(&Lock::default()).unwrap();
        assert_eq!(fs::read_dir(store.root()).unwrap().count(), 1, "the lock file alone");
    }

    #[test]
    fn an_archive_that_is_not_the_locked_one_is_not_installed() {
        let project = tempfile::tempdir().unwrap();
        let store = Store::new(project.path(), None);
        let transaction = store.change(|| {}).unwrap();
        let refused = transaction.install("a", &"0".repeat(64), &archive("x"));
        assert!(matches!(refused, Err(StoreError::Hash { .. })));
        let broken = b"PK".to_vec();
        assert!(transaction.install("a", &sha256(&broken), &broken).is_err());
        assert_eq!(fs::read_dir(store.root()).unwrap().count(), 1);
    }

    #[test]
    fn a_cached_archive_is_the_right_one() {
        let (project, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = Store::new(project.path(), Some(cache.path().join("c")));
        let bytes = archive("x");
        assert_eq!(store.cached(&sha256(&bytes)), None);
        store.keep(&bytes);
        assert_eq!(store.cached(&sha256(&bytes)), Some(bytes.clone()));
        fs::write(cache.path().join("c").join(sha256(&bytes)), "other").unwrap();
        assert_eq!(store.cached(&sha256(&bytes)), None);
    }
}

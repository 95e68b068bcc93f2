//! The directory of installed packages, the lock beside it, and the user's cache.
//!
//! ```text
//! PROJECT/orla.lock                     what is installed
//! PROJECT/.orla/packages/.lock          held by the process that changes it
//! PROJECT/.orla/packages/NAME-SHA/      a package, named by the SHA-256 of its archive
//! PROJECT/.orla/packages/NAME-SHA.json  the accepted descriptions of its tools, once they were seen here
//! ARCHIVES/SHA                          an archive
//! CONTENTS/SHA                          the digest of what that archive unpacks to
//! CONTENTS/SHA.agreed                   the user agreed to what SHA is the digest of
//! CONTENTS/SHA.ROOT.signed              who signed that archive, as verified here with this root of trust
//! ```
//!
//! A package is unpacked into a directory whose name begins with a dot, made durable, and renamed. Then
//! one rename replaces the lock: before it the old directories are in force, after it the new ones. The
//! next transaction removes directories that no lock names. [`Transaction::install`] compares an archive
//! with the SHA-256 in the lock.
//!
//! A project may come from a third party, and may contain directories that look like installed packages.
//! A package therefore counts as installed only if its files are those that its archive unpacked to on
//! this machine. `CONTENTS`, which belongs to the user, records this.

mod notes;
mod tree;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::archive::{Archive, ArchiveError, MAX_BYTES, pack};
use crate::lock::{Entry, FILE, Lock, LockError, MAX_LOCK, is_digest};
use crate::sha256;
use crate::tools::{self, Tool};

/// The maximum total size of archives in the cache, in bytes.
const MAX_CACHE: u64 = 1 << 30;
/// How long a change waits for a change by another process.
const WAIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);

/// The installed packages of a project.
#[derive(Clone, Debug)]
pub struct Store {
    project: PathBuf,
    own: Option<Own>,
}

/// The directories of the user, which all projects share.
#[derive(Clone, Debug)]
pub struct Own {
    /// The cache of archives. It may be removed at any time.
    pub archives: PathBuf,
    /// The digests of the unpacked contents of archives.
    pub contents: PathBuf,
}

/// Whether a package of the lock can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Its files are those of its archive.
    Installed,
    /// It does not exist.
    Missing,
    /// It exists, but is not known to be the content of its archive.
    Changed,
}

/// The exclusive right to change the installation. It ends when this is dropped, or when the process
/// ends.
#[derive(Debug)]
pub struct Transaction<'a> {
    store: &'a Store,
    _held: File,
}

/// The reason why the installation cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The lock is invalid.
    #[error("{}:{error}", path.display())]
    Lock {
        /// The file.
        path: PathBuf,
        /// The error, with its position.
        error: LockError,
    },
    /// The archive is not the one that was locked.
    #[error(
        "the archive has the SHA-256 {found}, and {wanted} is expected: it was changed at its source"
    )]
    Hash {
        /// The SHA-256 in the lock, or in the registry.
        wanted: String,
        /// The SHA-256 of the archive.
        found: String,
    },
    /// The archive is refused.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The program of a source archive cannot be built.
    #[error("{0}")]
    Build(String),
    /// Another process does not finish its change.
    #[error("another orla has been changing the packages of this project for {} s: try again when it has ended", WAIT.as_secs())]
    Busy,
    /// The user has no directory.
    #[error(
        "packages need a directory of the user, to know them again: set HOME, or XDG_CACHE_HOME and XDG_STATE_HOME"
    )]
    Homeless,
    /// A file cannot be read or written.
    #[error("{}: {}", path.display(), reason(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

/// Returns the system's error message without its number.
fn reason(err: &io::Error) -> String {
    let text = err.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { path, source }
}

impl Store {
    /// Creates the store of the project in a directory. Without directories of the user, nothing is or
    /// can be installed.
    pub fn new(project: impl Into<PathBuf>, own: Option<Own>) -> Self {
        Self { project: project.into(), own }
    }

    /// Returns the directory of the project.
    pub fn project(&self) -> &Path {
        &self.project
    }

    /// Returns the lock's file.
    pub fn lock_file(&self) -> PathBuf {
        self.project.join(FILE)
    }

    /// Returns the current lock; an empty one if there is none.
    ///
    /// # Errors
    /// It cannot be read, or is no lock.
    pub fn lock(&self) -> Result<Lock, StoreError> {
        let path = self.lock_file();
        let text = match read(&path, MAX_LOCK) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Lock::default()),
            Err(error) => return Err(io_at(&path)(error)),
        };
        let text =
            String::from_utf8(text).map_err(|_| io_at(&path)(io::Error::other("it is not UTF-8")))?;
        Lock::parse(&text).map_err(|error| StoreError::Lock { path, error })
    }

    /// Returns the directory of a package, installed or not.
    pub fn directory(&self, entry: &Entry) -> PathBuf {
        self.place(&entry.name, &entry.sha256)
    }

    /// Returns whether a package can be used. Reads all of its files.
    pub fn presence(&self, entry: &Entry) -> Presence {
        self.presence_at(&self.directory(entry), &entry.sha256)
    }

    fn presence_at(&self, place: &Path, sha256: &str) -> Presence {
        if fs::symlink_metadata(place).is_err() {
            return Presence::Missing;
        }
        let known =
            self.own.as_ref().map(|own| contents_of(&own.contents.join(sha256))).unwrap_or_default();
        // The files of an archive that was never unpacked here may be anything.
        if known.is_empty() {
            return Presence::Changed;
        }
        match tree::digest(place).is_ok_and(|found| known.contains(&found)) {
            true => Presence::Installed,
            false => Presence::Changed,
        }
    }

    /// Returns the tools that were accepted for the package, if their descriptions are stored here.
    pub fn accepted_tools(&self, entry: &Entry) -> Option<Vec<Tool>> {
        let text = read(&accepted(&self.directory(entry)), MAX_TOOLS).ok()?;
        let tools: Vec<Tool> = serde_json::from_slice(&text).ok()?;
        (tools::digest(&tools) == entry.tools_digest).then_some(tools)
    }

    fn place(&self, name: &str, sha256: &str) -> PathBuf {
        self.root().join(format!("{name}-{sha256}"))
    }

    /// Returns the directory of the project's installed packages.
    pub fn root(&self) -> PathBuf {
        self.project.join(".orla/packages")
    }

    /// Begins a transaction. If another process has one, `waits` is called and this function waits.
    /// Leftovers of a killed process are removed.
    ///
    /// # Errors
    /// Another process has it for too long, the directory cannot be written or leads elsewhere, or the lock is no lock.
    pub fn change(&self, waits: impl FnOnce()) -> Result<Transaction<'_>, StoreError> {
        let root = self.root();
        for directory in [self.project.join(".orla"), root.clone()] {
            real_directory(&directory).map_err(io_at(&directory))?;
        }
        let path = root.join(".lock");
        let mut held = OpenOptions::new();
        held.write(true).create(true).truncate(false).mode(0o600).custom_flags(NOT_THROUGH_LINKS);
        let held = held.open(&path).map_err(io_at(&path))?;
        let (mut waits, end) = (Some(waits), Instant::now() + WAIT);
        while let Err(error) = flock(&held, FlockOperation::NonBlockingLockExclusive) {
            // Some file systems have no such locks.
            if error != Errno::WOULDBLOCK && error != Errno::INTR {
                return Err(io_at(&path)(error.into()));
            }
            if let Some(waits) = waits.take() {
                waits();
            }
            if Instant::now() > end {
                return Err(StoreError::Busy);
            }
            thread::sleep(PAUSE);
        }
        let transaction = Transaction { store: self, _held: held };
        transaction.sweep(&self.lock()?, None)?;
        let ignored = root.join(".gitignore");
        if fs::symlink_metadata(&ignored).is_err() {
            write_whole(&ignored, b"*\n").map_err(io_at(&ignored))?;
        }
        Ok(transaction)
    }

    /// Returns an archive of the cache.
    pub fn cached(&self, digest: &str) -> Option<Vec<u8>> {
        let bytes = read_bounded(&self.own.as_ref()?.archives.join(digest)).ok()?;
        (sha256(&bytes) == digest).then_some(bytes)
    }

    /// Returns the directory of the cache, which only the user can write to. It is made if it is missing.
    ///
    /// # Errors
    /// The user has none, or it cannot be made.
    pub fn make_cache(&self) -> Result<&Path, StoreError> {
        let Own { archives, .. } = self.own.as_ref().ok_or(StoreError::Homeless)?;
        make_private(archives).map_err(io_at(archives))?;
        Ok(archives)
    }

    /// Stores an archive in the cache, and removes the oldest files if necessary. A failure to write is
    /// ignored.
    pub fn keep(&self, bytes: &[u8]) {
        self.keep_as(&sha256(bytes), bytes);
    }

    /// Returns the last stored answer of a registry to a request, and when it was stored.
    pub fn kept_answer(&self, url: &str) -> Option<(Vec<u8>, SystemTime)> {
        let path = self.own.as_ref()?.archives.join(answer_name(url));
        Some((read_bounded(&path).ok()?, fs::metadata(&path).ok()?.modified().ok()?))
    }

    /// Like [`keep`](Self::keep), for an answer of a registry.
    pub fn keep_answer(&self, url: &str, bytes: &[u8]) {
        self.keep_as(&answer_name(url), bytes);
    }

    fn keep_as(&self, name: &str, bytes: &[u8]) {
        let Some(Own { archives, .. }) = &self.own else { return };
        if make_private(archives).and_then(|()| write_shared(&archives.join(name), bytes)).is_ok() {
            make_room(archives);
        }
    }
}

impl Transaction<'_> {
    /// Unpacks an archive, so that a lock can name it. [`Store::directory`] returns its directory.
    ///
    /// # Errors
    /// The archive is not the one with this digest, is refused, or cannot be unpacked: then nothing is installed.
    pub fn install(&self, name: &str, digest: &str, bytes: &[u8]) -> Result<PathBuf, StoreError> {
        self.install_by(name, digest, bytes, |staging, archive, _| Ok(archive.unpack(staging)?))
    }

    /// Like [`install`](Self::install), for an archive of source code, of which `build` makes the files of
    /// the package in a directory. They are cached, because another build may differ in some bytes.
    ///
    /// # Errors
    /// Those of [`install`](Self::install), and those of `build`.
    pub fn install_built(
        &self,
        name: &str,
        digest: &str,
        bytes: &[u8],
        build: impl FnOnce(&Archive<'_>, &Path) -> Result<(), String>,
    ) -> Result<PathBuf, StoreError> {
        self.install_by(name, digest, bytes, |staging, archive, own| {
            let known = own.contents.join(format!("{digest}.built"));
            let built = read(&known, 64).ok().and_then(|known| String::from_utf8(known).ok());
            if let Some(built) = built.and_then(|built| self.store.cached(&built)) {
                return Ok(Archive::read(&built)?.unpack(staging)?);
            }
            build(archive, staging).map_err(StoreError::Build)?;
            let built = pack(staging)?;
            self.store.keep(&built);
            let noted = make_private(&own.contents)
                .and_then(|()| write_shared(&known, sha256(&built).as_bytes()));
            noted.map_err(io_at(&known))
        })
    }

    fn install_by(
        &self,
        name: &str,
        digest: &str,
        bytes: &[u8],
        fill: impl FnOnce(&Path, &Archive<'_>, &Own) -> Result<(), StoreError>,
    ) -> Result<PathBuf, StoreError> {
        let own = self.store.own.as_ref().ok_or(StoreError::Homeless)?;
        let place = self.store.place(name, digest);
        if self.store.presence_at(&place, digest) == Presence::Installed {
            return Ok(place);
        }
        let found = sha256(bytes);
        if found != digest {
            return Err(StoreError::Hash { wanted: digest.to_owned(), found });
        }
        let archive = Archive::read(bytes)?;
        let root = self.store.root();
        let (staging, replaced) = (root.join(format!(".new-{name}")), root.join(format!(".old-{name}")));
        for left in [&staging, &replaced] {
            remove(left).map_err(io_at(left))?;
        }
        fs::DirBuilder::new().mode(0o755).create(&staging).map_err(io_at(&staging))?;
        if let Err(error) = fill(&staging, &archive, own) {
            remove(&staging).map_err(io_at(&staging))?;
            return Err(error);
        }
        sync_tree(&staging).map_err(io_at(&staging))?;
        let content = own.contents.join(digest);
        let noted = tree::digest(&staging).and_then(|tree| {
            let mut known = contents_of(&content);
            known.retain(|known| *known != tree);
            known.insert(0, tree);
            known.truncate(MAX_CONTENTS);
            make_private(&own.contents)?;
            write_shared(&content, known.join("\n").as_bytes())
        });
        noted.map_err(io_at(&content))?;
        if fs::symlink_metadata(&place).is_ok() {
            fs::rename(&place, &replaced).map_err(io_at(&place))?;
        }
        fs::rename(&staging, &place).map_err(io_at(&place))?;
        sync(&root).map_err(io_at(&place))?;
        remove(&replaced).map_err(io_at(&replaced))?;
        Ok(place)
    }

    /// Stores the accepted tools of a package, as [`keep_tools`] does.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn accept_tools(&self, entry: &Entry, tools: &[Tool]) -> Result<(), StoreError> {
        let directory = self.store.directory(entry);
        keep_tools(&directory, tools).map_err(io_at(&accepted(&directory)))
    }

    /// Puts a lock in force, durably, and removes directories that it does not name. The directory of
    /// `previous` stays until the next transaction, for servers that still use it.
    ///
    /// # Errors
    /// It cannot be written: then the old one is in force.
    pub fn commit(&self, lock: &Lock, previous: Option<&Entry>) -> Result<(), StoreError> {
        let (path, text) = (self.store.lock_file(), lock.text());
        // The lock contains text from packages. A lock that cannot be parsed again would stop all
        // packages.
        if text.len() as u64 > MAX_LOCK {
            let what = "it would have more than 4 MiB: remove a package, or keep it in another project";
            return Err(io_at(&path)(io::Error::other(what)));
        }
        if Lock::parse(&text).as_ref() != Ok(lock) {
            let what = "the names of its tools cannot be locked: they are too long, too many, or have control characters";
            return Err(io_at(&path)(io::Error::other(what)));
        }
        write_whole(&path, text.as_bytes()).map_err(io_at(&path))?;
        self.sweep(lock, previous)
    }

    /// Abandons the transaction: removes installed directories that no lock names.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn abandon(self) -> Result<(), StoreError> {
        self.sweep(&self.store.lock()?, None)
    }

    /// Removes directories that orla has created here and the lock does not name.
    fn sweep(&self, lock: &Lock, previous: Option<&Entry>) -> Result<(), StoreError> {
        let named = lock.entries().iter().chain(previous).map(|entry| self.store.directory(entry));
        let named: Vec<PathBuf> = named.collect();
        let root = self.store.root();
        for found in fs::read_dir(&root).map_err(io_at(&root))? {
            let path = found.map_err(io_at(&root))?.path();
            let is_named = named.iter().any(|named| *named == path || accepted(named) == path);
            if !is_named && is_made_here(&path) {
                remove(&path).map_err(io_at(&path))?;
            }
        }
        let half = temporary(&self.store.lock_file());
        remove(&half).map_err(io_at(&half))
    }
}

/// Returns the digests of the files that an archive was unpacked to, or built to, on this machine, the newest first. Two
/// builds of a crate differ.
fn contents_of(note: &Path) -> Vec<String> {
    let text = read(note, MAX_CONTENTS as u64 * 65).ok().and_then(|text| String::from_utf8(text).ok());
    text.unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Returns whether an entry of the packages directory has a name that a [`Transaction`] gives.
fn is_made_here(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
    if let Some(rest) = name.strip_prefix('.') {
        return rest.starts_with("new-") || rest.starts_with("old-") || rest.ends_with(".new");
    }
    let name = name.strip_suffix(".json").unwrap_or(name);
    name.rsplit_once('-').is_some_and(|(name, digest)| crate::is_name(name) && is_digest(digest))
}

/// Returns where the accepted tools of the package in a directory are.
fn accepted(directory: &Path) -> PathBuf {
    let mut name = directory.as_os_str().to_owned();
    name.push(".json");
    name.into()
}

/// Stores the accepted tools of the package in a directory, to compare them with a later list, and to
/// serve them before its server has listed its tools. No transaction is needed: the file is replaced at
/// once, and another process would write the same.
///
/// # Errors
/// They cannot be written.
pub fn keep_tools(directory: &Path, tools: &[Tool]) -> io::Result<()> {
    // The directories of a project may be links of somebody else.
    for directory in directory.ancestors().skip(1).take(2).collect::<Vec<_>>().into_iter().rev() {
        real_directory(directory)?;
    }
    write_shared(&accepted(directory), &serde_json::to_vec(tools)?)
}

/// Creates a missing directory, and refuses a link: a project can contain links.
fn real_directory(path: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    match fs::symlink_metadata(path)?.is_dir() {
        true => Ok(()),
        false => Err(io::Error::other("it is not a directory, or a link to one: remove it")),
    }
}

/// The maximum number of different contents of one archive that are known.
const MAX_CONTENTS: usize = 16;
/// The maximum size of a package's list of tools, in bytes.
const MAX_TOOLS: u64 = 64 << 20;
/// `O_NOFOLLOW | O_NONBLOCK`.
const NOT_THROUGH_LINKS: i32 = (OFlags::NOFOLLOW.bits() | OFlags::NONBLOCK.bits()).cast_signed();

/// Reads a file of at most [`MAX_BYTES`].
///
/// # Errors
/// It cannot be read, or is larger.
pub fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    read(path, MAX_BYTES)
}

/// Reads a file of at most `max` bytes, without waiting on a pipe.
fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > max {
        true if max < 1 << 20 => Err(io::Error::other(format!("it has more than {max} bytes"))),
        true => Err(io::Error::other(format!("it has more than {} MiB", max >> 20))),
        false => Ok(bytes),
    }
}

/// Writes a file atomically.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_by(&temporary(path), path, bytes)
}

/// Like `write_whole`, for a file that other processes may write at the same time, with the same content.
fn write_shared(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let half = path.with_file_name(format!(".{name}.{}.new", std::process::id()));
    write_by(&half, path, bytes)
}

fn write_by(half: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o644).custom_flags(NOT_THROUGH_LINKS);
    let mut file = options.open(half)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(half, path)?;
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

/// Makes everything below a directory durable by one flush of its file system, since npm packages have
/// thousands of files.
#[cfg(target_os = "linux")]
fn sync_tree(directory: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(File::open(directory)?)?)
}

/// Makes everything below a directory durable.
#[cfg(not(target_os = "linux"))]
fn sync_tree(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        match entry.file_type()? {
            kind if kind.is_dir() => sync_tree(&entry.path())?,
            kind if kind.is_file() => sync(&entry.path())?,
            _ => {}
        }
    }
    sync(directory)
}

/// Creates a missing directory of the user, which only the user can write to.
fn make_private(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The name of the file with a registry's answer.
fn answer_name(url: &str) -> String {
    format!("answer-{}", sha256(url.as_bytes()))
}

/// Removes the oldest files until the others fit the limit.
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
    use crate::lock::PackageKind;
    use std::os::unix::fs::symlink;

    struct World {
        project: tempfile::TempDir,
        user: tempfile::TempDir,
    }

    impl World {
        fn new() -> Self {
            Self { project: tempfile::tempdir().unwrap(), user: tempfile::tempdir().unwrap() }
        }

        fn store(&self) -> Store {
            let at = |name: &str| self.user.path().join(name);
            let own = Own { archives: at("archives"), contents: at("contents") };
            Store::new(self.project.path(), Some(own))
        }
    }

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
            signed_by: None,
            requires: Vec::new(),
            kind: PackageKind::Folder,
            version: "1.0.0".to_owned(),
            sha256: sha256(bytes),
            tools_digest: "0".repeat(64),
            tools: std::collections::BTreeMap::new(),
            arguments: Vec::new(),
            permissions: Vec::new(),
        }
    }

    fn is_installed(store: &Store, entry: &Entry) -> bool {
        store.presence(entry) == Presence::Installed
    }

    /// Returns the names of unexpected entries in the packages directory.
    fn found(store: &Store) -> Vec<String> {
        let names = fs::read_dir(store.root()).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> =
            names.filter(|name| ![".lock", ".gitignore"].contains(&name.as_str())).collect();
        names.sort();
        names
    }

    #[test]
    fn a_transaction_that_is_not_committed_leaves_nothing() {
        let world = World::new();
        let store = world.store();
        let (old, new) = (archive("old"), archive("new"));
        let transaction = store.change(|| {}).unwrap();
        transaction.install("a", &sha256(&old), &old).unwrap();
        let mut lock = Lock::default();
        lock.put(entry("a", &old));
        transaction.commit(&lock, None).unwrap();
        drop(transaction);

        let transaction = store.change(|| {}).unwrap();
        let installed = transaction.install("a", &sha256(&new), &new).unwrap();
        assert!(installed.is_dir() && is_installed(&store, &entry("a", &old)));
        drop(transaction);
        drop(store.change(|| {}).unwrap());
        assert!(!installed.exists() && is_installed(&store, &entry("a", &old)));
        assert_eq!(store.lock().unwrap(), lock);

        let transaction = store.change(|| {}).unwrap();
        transaction.install("a", &sha256(&new), &new).unwrap();
        lock.put(entry("a", &new));
        transaction.commit(&lock, Some(&entry("a", &old))).unwrap();
        let both = is_installed(&store, &entry("a", &new)) && is_installed(&store, &entry("a", &old));
        assert!(both, "a running server still uses the old one");
        transaction.commit(&Lock::default(), None).unwrap();
        assert_eq!(found(&store), [""; 0]);
    }

    #[test]
    fn a_lock_that_could_not_be_read_again_is_not_written() {
        let world = World::new();
        let store = world.store();
        let bytes = archive("x");
        for name in ["n".repeat(1100), "\u{7f}\u{85}".to_owned()] {
            let mut lock = Lock::default();
            let mut bad = entry("a", &bytes);
            bad.tools.insert(name, "0".repeat(64));
            lock.put(bad);
            let is_read = Lock::parse(&lock.text()).is_ok_and(|read| read == lock);
            let transaction = store.change(|| {}).unwrap();
            assert_eq!(transaction.commit(&lock, None).is_ok(), is_read);
            assert!(store.lock().is_ok());
        }
    }

    #[test]
    fn an_archive_that_is_not_the_locked_one_is_not_installed() {
        let world = World::new();
        let store = world.store();
        let transaction = store.change(|| {}).unwrap();
        let refused = transaction.install("a", &"0".repeat(64), &archive("x"));
        assert!(matches!(refused, Err(StoreError::Hash { .. })));
        let broken = b"PK".to_vec();
        assert!(transaction.install("a", &sha256(&broken), &broken).is_err());
        assert_eq!(found(&store), [""; 0]);
    }

    #[test]
    fn a_cached_archive_is_the_right_one() {
        let world = World::new();
        let store = world.store();
        let bytes = archive("x");
        assert_eq!(store.cached(&sha256(&bytes)), None);
        store.keep(&bytes);
        assert_eq!(store.cached(&sha256(&bytes)), Some(bytes.clone()));
        fs::write(world.user.path().join("archives").join(sha256(&bytes)), "other").unwrap();
        assert_eq!(store.cached(&sha256(&bytes)), None);
    }

    #[test]
    fn files_that_are_not_those_of_the_archive_are_not_installed_and_are_repaired() {
        let world = World::new();
        let store = world.store();
        let bytes = archive("good");
        let entry = entry("a", &bytes);
        let directory = store.directory(&entry);
        // A directory that a project contains.
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("file"), "good").unwrap();
        assert_eq!(store.presence(&entry), Presence::Changed);
        let mut lock = Lock::default();
        lock.put(entry.clone());
        let transaction = store.change(|| {}).unwrap();
        transaction.commit(&lock, None).unwrap();
        type Change = fn(&Path);
        let changes: [Change; 5] = [
            |_| {},
            |at| fs::write(at.join("file"), "evil").unwrap(),
            |at| fs::write(at.join("more"), "").unwrap(),
            |at| fs::remove_file(at.join("file")).unwrap(),
            |at| {
                fs::rename(at.join("file"), at.with_extension("x")).unwrap();
                symlink(at.with_extension("x"), at.join("file")).unwrap();
            },
        ];
        for change in changes {
            transaction.install("a", &entry.sha256, &bytes).unwrap();
            assert!(is_installed(&store, &entry));
            assert_eq!(fs::read(directory.join("file")).unwrap(), b"good");
            change(&directory);
        }
        assert_eq!(store.presence(&entry), Presence::Changed);
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(store.presence(&entry), Presence::Missing);
    }

    #[test]
    fn nothing_is_removed_through_a_link_or_that_was_not_made_here() {
        let world = World::new();
        let store = world.store();
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join("precious"), "").unwrap();
        fs::create_dir(world.project.path().join(".orla")).unwrap();
        symlink(elsewhere.path(), store.root()).unwrap();
        assert!(store.change(|| {}).unwrap_err().to_string().contains("link"));
        fs::remove_file(store.root()).unwrap();
        drop(store.change(|| {}).unwrap());
        for kept in ["notes.txt", "a-b", "-x"] {
            fs::write(store.root().join(kept), "").unwrap();
        }
        fs::write(store.root().join(format!("a-{}", "0".repeat(64))), "").unwrap();
        fs::write(store.root().join(".new-a"), "").unwrap();
        drop(store.change(|| {}).unwrap());
        assert_eq!(found(&store), ["-x", "a-b", "notes.txt"]);
        assert!(elsewhere.path().join("precious").exists());
    }

    #[test]
    fn a_lock_that_is_a_pipe_is_not_waited_for() {
        let world = World::new();
        let path = world.store().lock_file();
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
        assert!(world.store().lock().is_err());
    }
}

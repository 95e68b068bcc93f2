//! Opens a state: takes the lock, makes the checks that change nothing, and creates a new file.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::database::{Connection, Failure};
use super::file::{self, FORMAT, HEADER, Problem};

/// The name of the main file.
pub const FILE: &str = "state.db";
/// A new file until it is whole.
const NEW: &str = "state.db.new";
/// The files that SQLite creates beside the main file while it is open.
const BESIDE: [&str; 2] = ["-wal", "-shm"];
/// Files up to this size are checked page by page.
const CHECKED_BYTES: u64 = 8 << 20;
/// There has to be as much room before a state is opened: SQLite needs about half of it.
const ROOM: usize = 128 << 10;
/// KiB of pages that the writer keeps in memory, and the others.
const WRITER_CACHE: i32 = 2048;
const READER_CACHE: i32 = 1024;
const CHECKPOINT_CACHE: i32 = 64;

/// The reason why a state cannot be opened: one line that names the file and says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has it.
    #[error("`{}` is in use by another orla", .path.display())]
    Held { path: PathBuf },
    /// The file is something else.
    #[error("`{}` is not a state file of orla: move it away, or choose another state_dir", .path.display())]
    NotState { path: PathBuf },
    /// The file is not whole.
    #[error("`{}` is damaged: {why}; restore it from a backup, or move it away to begin anew", .path.display())]
    Damaged { path: PathBuf, why: String },
    /// The file has the format of another version.
    #[error(
        "`{}` has format {found}, and this version of orla reads format {FORMAT}: use the version that wrote it, or \
         choose another state_dir",
        .path.display()
    )]
    Version { path: PathBuf, found: u32 },
    /// The file, its directory or its file system cannot be written to.
    #[error("`{}` is read-only: make it and its directory writable, or choose another state_dir", .path.display())]
    ReadOnly { path: PathBuf },
    /// The disk is full.
    #[error("`{}` cannot be opened: the disk is full; free some room, or choose another state_dir", .path.display())]
    NoRoom { path: PathBuf },
    /// Anything else.
    #[error("`{}` cannot be opened: {}", .path.display(), reason(source))]
    Failed { path: PathBuf, source: io::Error },
}

/// A state that was opened: a connection for each thread, and the lock.
pub(super) struct Opened {
    pub(super) writer: Connection,
    pub(super) reader: Connection,
    pub(super) checkpoints: Connection,
    pub(super) path: PathBuf,
    /// Released when it is closed.
    pub(super) lock: File,
}

/// Returns the system's error message without its number.
fn reason(err: &io::Error) -> String {
    let text = err.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// Returns whether a directory has a state, however it may be.
pub(super) fn exists(directory: &Path) -> bool {
    fs::symlink_metadata(directory.join(FILE)).is_ok()
}

/// Opens the state of a directory, or makes it.
pub(super) fn open(directory: &Path) -> Result<Opened, OpenError> {
    // SQLite follows no links, and neither do relative paths follow a later change of directory.
    let directory = make_directory(directory)?;
    let path = directory.join(FILE);
    let failed = |source| failure(&path, source);
    let lock = File::open(&directory).map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(OpenError::Held { path }),
        Err(TryLockError::Error(err)) => return Err(failure(&path, err)),
    }
    let size = match fs::symlink_metadata(&path) {
        Ok(metadata) if !metadata.is_file() => return Err(OpenError::NotState { path }),
        Ok(metadata) => Some(metadata.len()),
        Err(err) if err.kind() == io::ErrorKind::NotFound => None,
        Err(err) => return Err(failure(&path, err)),
    };
    match size {
        Some(size) => check(&path, size)?,
        None if beside(&path).iter().any(|file| file.exists()) => {
            let why = format!("it is missing, but its log `{FILE}-wal` is there");
            return Err(OpenError::Damaged { path, why });
        }
        None => {}
    }
    writable(&directory, &path)?;
    if size.is_none() {
        create(&directory, &path)?;
    }
    let thoroughly = size.is_some_and(|size| size <= CHECKED_BYTES);
    let absent: Vec<PathBuf> = beside(&path).into_iter().filter(|file| !file.exists()).collect();
    match connect(&path, thoroughly) {
        Ok([writer, reader, checkpoints]) => Ok(Opened { writer, reader, checkpoints, path, lock }),
        Err(failure) => {
            for file in absent {
                drop(fs::remove_file(file));
            }
            Err(match failure {
                Failure::NoRoom => OpenError::NoRoom { path },
                Failure::Damaged => {
                    OpenError::Damaged { path, why: "a part of it was overwritten".to_owned() }
                }
                Failure::Other(why) => OpenError::Failed { path, source: io::Error::other(why) },
            })
        }
    }
}

/// Returns the directory as an absolute path without links. It is made for its owner alone.
fn make_directory(directory: &Path) -> Result<PathBuf, OpenError> {
    let made = match fs::canonicalize(directory) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .and_then(|()| fs::canonicalize(directory))
            .and_then(|made| {
                // Its entry in the directory above has to survive a loss of power too.
                made.parent().map_or(Ok(()), |above| File::open(above)?.sync_all())?;
                Ok(made)
            }),
        found => found,
    };
    made.map_err(|source| failure(&directory.join(FILE), source))
}

/// Checks the files, as far as that is cheap, and reads only.
fn check(path: &Path, size: u64) -> Result<(), OpenError> {
    let failed = |source| failure(path, source);
    let mut header = [0; HEADER];
    let mut main = File::open(path).map_err(failed)?;
    let got = file::fill(&mut main, &mut header).map_err(failed)?;
    let mut unreadable = None;
    let [log, _] = beside(path);
    let checked = file::check(&header[..got], size, |page| {
        let looked = match File::open(&log) {
            Ok(log) => file::log(io::BufReader::new(log), page),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(Ok(None)),
            Err(err) => Err(err),
        };
        looked.unwrap_or_else(|err| {
            unreadable = Some(err);
            Ok(None)
        })
    });
    if let Some(err) = unreadable {
        return Err(failure(path, err));
    }
    let path = path.to_owned();
    checked.map_err(|problem| match problem {
        Problem::NotState => OpenError::NotState { path },
        Problem::Damaged(why) => OpenError::Damaged { path, why },
        Problem::Version(found) => OpenError::Version { path, found },
    })
}

/// Tries whether the main file and its directory can be written to, and whether there is room.
fn writable(directory: &Path, path: &Path) -> Result<(), OpenError> {
    for existing in [directory, path] {
        // The superuser may write to them all the same, but they were made so on purpose.
        if fs::metadata(existing).is_ok_and(|metadata| metadata.permissions().readonly()) {
            return Err(OpenError::ReadOnly { path: path.to_owned() });
        }
    }
    let new = directory.join(NEW);
    let tried = || -> io::Result<()> {
        if exists(directory) {
            OpenOptions::new().write(true).open(path)?;
        }
        let mut file = create_private(&new)?;
        file.write_all(&[0; ROOM])
    };
    let tried = tried();
    drop(fs::remove_file(new));
    tried.map_err(|source| failure(path, source))
}

/// Makes a new file. It has its name only when it is whole.
fn create(directory: &Path, path: &Path) -> Result<(), OpenError> {
    let new = directory.join(NEW);
    let make = || -> Result<(), Failure> {
        create_private(&new)?;
        Connection::create(&new)?;
        let file = File::open(&new)?;
        file.sync_all()?;
        check(&new, file.metadata()?.len()).map_err(|err| Failure::Other(err.to_string()))?;
        fs::rename(&new, path)?;
        Ok(File::open(directory)?.sync_all()?)
    };
    // The remains of a process that was killed here would be mistaken for a part of this state.
    remove(&new).map_err(|source| failure(path, source))?;
    make().map_err(|err| {
        // The error that matters is the first one.
        drop(remove(&new));
        match err {
            Failure::NoRoom => OpenError::NoRoom { path: path.to_owned() },
            Failure::Damaged => {
                OpenError::Damaged { path: path.to_owned(), why: "it could not be made".to_owned() }
            }
            Failure::Other(why) => failure(path, io::Error::other(why)),
        }
    })
}

/// Removes a new file with all that SQLite puts beside it.
fn remove(new: &Path) -> io::Result<()> {
    let [log, index] = beside(new);
    let journal = new.with_extension("new-journal");
    [new, &log, &index, &journal].into_iter().try_for_each(|file| match fs::remove_file(file) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => Err(err),
        _ => Ok(()),
    })
}

/// Returns an empty file that its owner alone can read.
fn create_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// Opens a connection for each thread, after a check of the files.
fn connect(path: &Path, thoroughly: bool) -> Result<[Connection; 3], Failure> {
    let writer = Connection::open(path, WRITER_CACHE)?;
    writer.check(thoroughly)?;
    let reader = Connection::open(path, READER_CACHE)?;
    let checkpoints = Connection::open(path, CHECKPOINT_CACHE)?;
    for connection in [&writer, &reader, &checkpoints] {
        connection.checkpoint_at_close()?;
    }
    Ok([writer, reader, checkpoints])
}

/// Returns the log of a file, and the index of that.
fn beside(path: &Path) -> [PathBuf; 2] {
    BESIDE.map(|suffix| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        name.into()
    })
}

fn failure(path: &Path, source: io::Error) -> OpenError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            OpenError::ReadOnly { path }
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            OpenError::NoRoom { path }
        }
        _ => OpenError::Failed { path, source },
    }
}

impl From<io::Error> for Failure {
    fn from(err: io::Error) -> Self {
        match failure(Path::new(""), err) {
            OpenError::NoRoom { .. } => Self::NoRoom,
            OpenError::Failed { source, .. } => Self::Other(source.to_string()),
            other => Self::Other(other.to_string()),
        }
    }
}

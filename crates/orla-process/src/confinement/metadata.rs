//! Changes metadata on behalf of a confined program, of files that the program may write.
//!
//! Landlock does not control metadata, and on a read-only mount writes fail with `EROFS` where programs
//! expect `EACCES`. The first process of a compartment therefore opens the file of a call, determines
//! where that file is, and changes it in the program's place.
//!
//! # Invariants
//!
//! - No path leads through a magic link of procfs. Such a link would lead to files that the first
//!   process has open, beyond its mount namespace.
//! - The location of a file is decided as Landlock does it, by the directories above the file and not by
//!   the text of a path.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use orla_sys::Notification;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, Timespec, Timestamps};

use super::answers::{Errno, Named, own, read_exact_memory, read_memory};
use super::inside::open_real;

/// The calls that are answered here.
pub(super) const CALLS: &[i64] = &[
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    SYS_FCHMODAT2,
    libc::SYS_utimensat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    SYS_SETXATTRAT,
    SYS_REMOVEXATTRAT,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
];

// These have the same number on every architecture.
const SYS_FCHMODAT2: i64 = 452;
const SYS_SETXATTRAT: i64 = 463;
const SYS_REMOVEXATTRAT: i64 = 466;

/// The maximum length of a path in bytes, with its terminator.
const MAX_PATH: usize = libc::PATH_MAX.unsigned_abs() as usize;
/// The maximum number of directories above a file.
const MAX_DEPTH: usize = 256;
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW };

/// The files whose metadata a program may change.
pub(super) struct Metadata {
    /// Writable files, and directories with their content.
    writable: Vec<Identity>,
    /// A directory whose own metadata must not change. The metadata of its content may.
    around: Identity,
}

/// A file by its device and inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity(u64, u64);

impl From<Stat> for Identity {
    fn from(stat: Stat) -> Self {
        Self(stat.st_dev, stat.st_ino)
    }
}

/// A change that is allowed.
pub(super) struct Change {
    file: OwnedFd,
    to: To,
}

#[derive(Clone, Debug)]
enum To {
    Mode(u32),
    Times(Timestamps),
    /// A user and a group; `u32::MAX` keeps the current one.
    Owner(u32, u32),
    /// An extended attribute.
    Attribute,
}

/// How a call identifies its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Descriptor(u64),
    /// A path in memory, from an open directory or [`AT_FDCWD`](libc::AT_FDCWD), with flags.
    Path(u64, u64, u64),
}

/// How a call gives times. A null pointer means the current time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Times {
    /// Two pairs of seconds and nanoseconds.
    Nanoseconds(u64),
    /// Two pairs of seconds and microseconds.
    #[cfg(target_arch = "x86_64")]
    Microseconds(u64),
    /// Two values in seconds.
    #[cfg(target_arch = "x86_64")]
    Seconds(u64),
}

impl Change {
    pub(super) fn apply(&self) -> Result<(), Errno> {
        // The descriptor is used, because another file may be at the path by now.
        let file = own(&self.file);
        let stat = || rustix::fs::fstat(&self.file).map_err(rustix::io::Errno::raw_os_error);
        let changed = match &self.to {
            To::Mode(mode) => {
                let is_directory = FileType::from_raw_mode(stat()?.st_mode) == FileType::Directory;
                // A file that runs with the rights of its owner or group would have the server's rights
                // outside of the sandbox.
                if mode & (libc::S_ISUID | libc::S_ISGID) != 0 && !is_directory {
                    return Err(libc::EPERM);
                }
                rustix::fs::chmodat(CWD, file, Mode::from_raw_mode(*mode), AtFlags::empty())
            }
            To::Times(times) => rustix::fs::utimensat(CWD, file, times, AtFlags::empty()),
            // Programs that copy a file with its attributes set the owner that it already has.
            To::Owner(user, group) => {
                let stat = stat()?;
                let is_same = [(*user, stat.st_uid), (*group, stat.st_gid)]
                    .iter()
                    .all(|(wanted, own)| *wanted == u32::MAX || wanted == own);
                return if is_same { Ok(()) } else { Err(libc::EPERM) };
            }
            // The same error as on a file system without extended attributes, so that programs continue
            // without them.
            To::Attribute => return Err(libc::EOPNOTSUPP),
        };
        changed.map_err(rustix::io::Errno::raw_os_error)
    }
}

impl Metadata {
    /// Allows changes of `writable` and of everything below, and of everything below `around`.
    ///
    /// # Errors
    /// The reason of the system.
    pub(super) fn of(writable: &[OwnedFd], around: &OwnedFd) -> io::Result<Self> {
        let identity = |fd: &OwnedFd| Ok::<_, io::Error>(rustix::fs::fstat(fd)?.into());
        Ok(Self {
            writable: writable.iter().map(identity).collect::<Result<_, _>>()?,
            around: identity(around)?,
        })
    }

    /// Returns the change that a call asks for.
    ///
    /// # Errors
    /// `EPERM` if the file is not among those that the program may write, or another number of the call.
    pub(super) fn change(&self, call: &Notification) -> Result<Change, Errno> {
        let [a, b, c, d, e, _] = call.arguments;
        let here = u64::from(libc::AT_FDCWD.unsigned_abs()).wrapping_neg();
        let link = u64::from(libc::AT_SYMLINK_NOFOLLOW.unsigned_abs());
        let mode = |mode: u64| Ok::<_, Errno>(To::Mode(mode as u32 & 0o7777));
        let times = |times| read_times(call.thread, times).map(To::Times);
        let owner = |user: u64, group: u64| Ok(To::Owner(user as u32, group as u32));
        let attribute = Ok(To::Attribute);
        let (place, to) = match call.number {
            libc::SYS_fchmod => (Place::Descriptor(a), mode(b)),
            libc::SYS_fchmodat => (Place::Path(a, b, 0), mode(c)),
            SYS_FCHMODAT2 => (Place::Path(a, b, d), mode(c)),
            libc::SYS_utimensat if b == 0 => (Place::Descriptor(a), times(Times::Nanoseconds(c))),
            libc::SYS_utimensat => (Place::Path(a, b, d), times(Times::Nanoseconds(c))),
            libc::SYS_fchown => (Place::Descriptor(a), owner(b, c)),
            libc::SYS_fchownat => (Place::Path(a, b, e), owner(c, d)),
            libc::SYS_setxattr | libc::SYS_removexattr => (Place::Path(here, a, 0), attribute),
            libc::SYS_lsetxattr | libc::SYS_lremovexattr => (Place::Path(here, a, link), attribute),
            libc::SYS_fsetxattr | libc::SYS_fremovexattr => (Place::Descriptor(a), attribute),
            SYS_SETXATTRAT | SYS_REMOVEXATTRAT => (Place::Path(a, b, c), attribute),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_chmod => (Place::Path(here, a, 0), mode(b)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_chown => (Place::Path(here, a, 0), owner(b, c)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_lchown => (Place::Path(here, a, link), owner(b, c)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_utime => (Place::Path(here, a, 0), times(Times::Seconds(b))),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_utimes => (Place::Path(here, a, 0), times(Times::Microseconds(b))),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_futimesat if b == 0 => (Place::Descriptor(a), times(Times::Microseconds(c))),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_futimesat => (Place::Path(a, b, 0), times(Times::Microseconds(c))),
            _ => return Err(libc::ENOSYS),
        };
        let to = to?;
        let file = open(call.thread, place)?;
        match self.allows(&file) {
            Ok(true) => Ok(Change { file, to }),
            Ok(false) | Err(_) => Err(libc::EPERM),
        }
    }

    /// Returns whether a file is writable or lies below a writable directory.
    ///
    /// # Errors
    /// It is not known where the file is: it has no name any more, or is moved at this moment.
    fn allows(&self, file: &OwnedFd) -> rustix::io::Result<bool> {
        let stat = rustix::fs::fstat(file)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let itself = Identity::from(stat);
        if self.writable.contains(&itself) {
            return Ok(true);
        }
        let mut above = if is_directory {
            rustix::fs::openat(file, c"..", flags, Mode::empty())?
        } else {
            let path = rustix::fs::readlink(own(file), Vec::new())?;
            let path = Path::new(OsStr::from_bytes(path.as_bytes()));
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(false) };
            // The path is a snapshot, perhaps from another mount namespace.
            let parent = open_real(parent).map_err(|_| rustix::io::Errno::NOENT)?;
            let found = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
            if Identity::from(found) != itself {
                return Ok(false);
            }
            parent
        };
        let mut below = itself;
        for _ in 0..MAX_DEPTH {
            let directory = Identity::from(rustix::fs::fstat(&above)?);
            if self.writable.contains(&directory) || directory == self.around {
                return Ok(true);
            }
            // The parent of the root is the root.
            if directory == below {
                return Ok(false);
            }
            below = directory;
            above = rustix::fs::openat(&above, c"..", flags, Mode::empty())?;
        }
        Ok(false)
    }
}

/// Opens the file of a call to identify it, not to read it.
fn open(thread: i32, place: Place) -> Result<OwnedFd, Errno> {
    let thread = Named(thread);
    let (directory, pointer, flags) = match place {
        Place::Descriptor(number) => return thread.descriptor(number),
        Place::Path(directory, pointer, flags) => (directory, pointer, flags as u32 as i32),
    };
    if flags & !(libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH) != 0 {
        return Err(libc::EINVAL);
    }
    let mut bytes = [0; MAX_PATH];
    let count = read_memory(thread.0, pointer, &mut bytes)?;
    let path = terminated(&bytes[..count])?;
    let directory = || match directory as u32 as i32 {
        libc::AT_FDCWD => thread.directory(),
        _ => thread.descriptor(directory),
    };
    if path.as_os_str().is_empty() {
        let is_itself = flags & libc::AT_EMPTY_PATH != 0;
        return if is_itself { directory() } else { Err(libc::ENOENT) };
    }
    if let Some((start, path)) = of_process(path) {
        let start = match start {
            Start::Descriptor(number) => thread.descriptor(number)?,
            Start::Directory => thread.directory()?,
        };
        return if path.as_os_str().is_empty() {
            Ok(start)
        } else {
            thread.open(&start, path, nofollow(flags))
        };
    }
    thread.open(&directory()?, path, nofollow(flags))
}

fn nofollow(flags: i32) -> OFlags {
    if flags & libc::AT_SYMLINK_NOFOLLOW != 0 { OFlags::NOFOLLOW } else { OFlags::empty() }
}

/// Returns the text up to its terminator.
fn terminated(bytes: &[u8]) -> Result<&Path, Errno> {
    let end = bytes.iter().position(|byte| *byte == 0);
    let end = end.ok_or(if bytes.len() < MAX_PATH { libc::EFAULT } else { libc::ENAMETOOLONG })?;
    Ok(Path::new(OsStr::from_bytes(&bytes[..end])))
}

/// The start of a path that leads through a process's own entries of procfs.
#[derive(Debug, PartialEq)]
enum Start {
    Descriptor(u64),
    /// The current directory.
    Directory,
}

/// Returns what a path of procfs means to its process, and the rest of the path.
fn of_process(path: &Path) -> Option<(Start, &Path)> {
    let below = |entries: &[&str]| entries.iter().find_map(|entry| path.strip_prefix(entry).ok());
    let streams = ["/dev/stdin", "/dev/stdout", "/dev/stderr"];
    for (number, stream) in (0..).zip(streams) {
        if let Some(rest) = below(&[stream]) {
            return Some((Start::Descriptor(number), rest));
        }
    }
    if let Some(rest) = below(&["/proc/self/cwd", "/proc/thread-self/cwd"]) {
        return Some((Start::Directory, rest));
    }
    let mut rest = below(&["/dev/fd", "/proc/self/fd", "/proc/thread-self/fd"])?.components();
    let name = rest.next()?.as_os_str().to_str()?;
    let number: u64 = name.parse().ok()?;
    // The kernel knows the descriptor by this name only, not by `+3` or `03`.
    (number.to_string() == name).then_some((Start::Descriptor(number), rest.as_path()))
}

fn read_times(thread: i32, times: Times) -> Result<Timestamps, Errno> {
    let (pointer, is_pair) = match times {
        Times::Nanoseconds(pointer) => (pointer, true),
        #[cfg(target_arch = "x86_64")]
        Times::Microseconds(pointer) => (pointer, true),
        #[cfg(target_arch = "x86_64")]
        Times::Seconds(pointer) => (pointer, false),
    };
    if pointer == 0 {
        return Ok(Timestamps { last_access: NOW, last_modification: NOW });
    }
    let mut bytes = [0; 32];
    let bytes = &mut bytes[..if is_pair { 32 } else { 16 }];
    read_exact_memory(thread, pointer, bytes)?;
    let number =
        |at: usize| i64::from_ne_bytes(bytes[8 * at..8 * at + 8].try_into().unwrap_or_default());
    let nanoseconds = |number: i64| match times {
        Times::Nanoseconds(_) => Ok(number),
        #[cfg(target_arch = "x86_64")]
        Times::Microseconds(_) if (0..1_000_000).contains(&number) => Ok(number * 1000),
        #[cfg(target_arch = "x86_64")]
        Times::Microseconds(_) | Times::Seconds(_) => Err(libc::EINVAL),
    };
    let time = |at: usize| match is_pair {
        true => {
            nanoseconds(number(2 * at + 1)).map(|tv_nsec| Timespec { tv_sec: number(2 * at), tv_nsec })
        }
        false => Ok(Timespec { tv_sec: number(at), tv_nsec: 0 }),
    };
    Ok(Timestamps { last_access: time(0)?, last_modification: time(1)? })
}

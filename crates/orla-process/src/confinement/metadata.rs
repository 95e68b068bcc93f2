//! Changes of modes and times on behalf of a confined program, of files that it may write.
//!
//! Landlock knows nothing of metadata, and a read-only mount would have refused writes fail with `EROFS` where programs expect `EACCES`. So
//! the first process of a compartment opens the file that a call is about, looks where that file is, and changes it in the program's place.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use orla_sys::Notification;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps};

use super::answers::{Errno, own, read_exact_memory, read_memory};

/// The calls that are answered here.
pub(super) const CALLS: &[i64] = &[
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    SYS_FCHMODAT2,
    libc::SYS_utimensat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
];

/// The same on every architecture.
const SYS_FCHMODAT2: i64 = 452;
/// A file that runs with the rights of its owner or group would have those of the server, outside of the sandbox.
const PRIVILEGED: u32 = libc::S_ISUID | libc::S_ISGID;
/// The most bytes of a path, with its end.
const MAX_PATH: usize = libc::PATH_MAX.unsigned_abs() as usize;
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW };

/// Where a program may change metadata.
pub(super) struct Metadata {
    /// Files, and directories with what is below them.
    writable: Vec<OwnedFd>,
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
}

/// What a call names as its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Descriptor(u64),
    /// A path in memory, from an open directory or [`AT_FDCWD`](libc::AT_FDCWD), with flags.
    Path(u64, u64, u64),
}

/// How a call gives times. Without a pointer they are now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Times {
    /// Two of seconds and nanoseconds.
    Nanoseconds(u64),
    /// Two of seconds and microseconds.
    #[cfg(target_arch = "x86_64")]
    Microseconds(u64),
    /// Two of seconds.
    #[cfg(target_arch = "x86_64")]
    Seconds(u64),
}

impl Change {
    pub(super) fn apply(&self) -> Result<(), Errno> {
        // By its descriptor: another file may be at the path by now.
        let file = own(&self.file);
        let changed = match &self.to {
            To::Mode(mode) => {
                rustix::fs::chmodat(CWD, file, Mode::from_raw_mode(*mode), AtFlags::empty())
            }
            To::Times(times) => rustix::fs::utimensat(CWD, file, times, AtFlags::empty()),
        };
        changed.map_err(rustix::io::Errno::raw_os_error)
    }
}

impl Metadata {
    /// What is below these may be changed.
    ///
    /// # Errors
    /// One cannot be kept open.
    pub(super) fn of<'f>(writable: impl Iterator<Item = &'f OwnedFd>) -> io::Result<Self> {
        Ok(Self { writable: writable.map(OwnedFd::try_clone).collect::<Result<_, _>>()? })
    }

    /// The change that a call asks for.
    ///
    /// # Errors
    /// `EPERM` if the file is not among those that the program may write, or another number of the call.
    pub(super) fn change(&self, call: &Notification) -> Result<Change, Errno> {
        let [a, b, c, d, ..] = call.arguments;
        let here = u64::from(libc::AT_FDCWD.unsigned_abs()).wrapping_neg();
        let mode = |mode: u64| Ok::<_, Errno>(To::Mode(mode as u32 & 0o7777));
        let times = |times| read_times(call.thread, times).map(To::Times);
        let (place, to) = match call.number {
            libc::SYS_fchmod => (Place::Descriptor(a), mode(b)),
            libc::SYS_fchmodat => (Place::Path(a, b, 0), mode(c)),
            SYS_FCHMODAT2 => (Place::Path(a, b, d), mode(c)),
            libc::SYS_utimensat if b == 0 => (Place::Descriptor(a), times(Times::Nanoseconds(c))),
            libc::SYS_utimensat => (Place::Path(a, b, d), times(Times::Nanoseconds(c))),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_chmod => (Place::Path(here, a, 0), mode(b)),
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
        let is_privileged = matches!(to, To::Mode(mode) if mode & PRIVILEGED != 0);
        if is_privileged || !self.allows(&file) {
            return Err(libc::EPERM);
        }
        Ok(Change { file, to })
    }

    fn allows(&self, file: &OwnedFd) -> bool {
        let Ok(real) = fs::read_link(own(file)) else { return false };
        let is_below =
            |place: &OwnedFd| fs::read_link(own(place)).is_ok_and(|place| real.starts_with(place));
        self.writable.iter().any(is_below)
    }
}

/// Opens the file of a call, to name it and not to read it.
fn open(thread: i32, place: Place) -> Result<OwnedFd, Errno> {
    let open = |path: &Path, flags: OFlags| {
        rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC | flags, Mode::empty())
            .map_err(rustix::io::Errno::raw_os_error)
    };
    // The kernel looks at the lower half of a descriptor.
    let descriptor = |number: u64| match number as u32 as i32 {
        number if number < 0 => Err(libc::EBADF),
        number => Ok(PathBuf::from(format!("/proc/{thread}/fd/{number}"))),
    };
    let (directory, pointer, flags) = match place {
        Place::Descriptor(number) => {
            return open(&descriptor(number)?, OFlags::empty()).map_err(|_| libc::EBADF);
        }
        Place::Path(directory, pointer, flags) => (directory, pointer, flags as u32 as i32),
    };
    if flags & !(libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH) != 0 {
        return Err(libc::EINVAL);
    }
    let mut bytes = [0; MAX_PATH];
    let count = read_memory(thread, pointer, &mut bytes)?;
    let path = terminated(&bytes[..count])?;
    let directory = || match directory as u32 as i32 {
        libc::AT_FDCWD => Ok(PathBuf::from(format!("/proc/{thread}/cwd"))),
        _ => descriptor(directory),
    };
    if path.as_os_str().is_empty() {
        let is_itself = flags & libc::AT_EMPTY_PATH != 0;
        return if is_itself { open(&directory()?, OFlags::empty()) } else { Err(libc::ENOENT) };
    }
    let path = if path.is_absolute() { as_thread(path, thread) } else { directory()?.join(path) };
    let is_link = flags & libc::AT_SYMLINK_NOFOLLOW != 0;
    open(&path, if is_link { OFlags::NOFOLLOW } else { OFlags::empty() })
}

/// The text up to its end.
fn terminated(bytes: &[u8]) -> Result<&Path, Errno> {
    let end = bytes.iter().position(|byte| *byte == 0);
    let end = end.ok_or(if bytes.len() < MAX_PATH { libc::EFAULT } else { libc::ENAMETOOLONG })?;
    Ok(Path::new(OsStr::from_bytes(&bytes[..end])))
}

/// An absolute path as the thread means it: `/proc/self` is another process there.
fn as_thread(path: &Path, thread: i32) -> PathBuf {
    for own in ["/proc/self", "/proc/thread-self"] {
        if let Ok(rest) = path.strip_prefix(own) {
            return Path::new(&format!("/proc/{thread}")).join(rest);
        }
    }
    path.to_owned()
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

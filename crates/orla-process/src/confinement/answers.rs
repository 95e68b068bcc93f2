//! Answers the system calls of a confined program on which the kernel alone cannot decide.
//!
//! # How it works
//!
//! Filters see the arguments of a system call, but not the memory that they point to. Each such call
//! therefore waits for the first process of the compartment. That process copies the memory, decides on
//! the copy, and performs the call with the copy. If the program changes its memory or its descriptors
//! meanwhile, the decision is not affected.
//!
//! | calls | decided by |
//! |---|---|
//! | `connect`, for `net:loopback` and `unix:PATH` | the address (`connects`) |
//! | changes of modes and times | where the file is (`metadata`) |

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use orla_sys::{Notification, Notifications};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

use super::connects::Connects;
use super::metadata::{self, Metadata};
use super::walk;
use super::wire::{self, Message};

/// The maximum number of calls of one compartment that block at a time. Each has a thread.
const MAX_BLOCKED: usize = 64;
/// Bytes of the stack of a thread. The allocator of a debug build alone takes 64 KiB; unused stack takes no memory.
const STACK: usize = 256 * 1024;

/// The error number of a failed call.
pub(super) type Errno = i32;

/// In the spawner: makes the calls of its children wait for the first process from now on. Returns false
/// if another program, such as a container runtime, already answers system calls. In that case all
/// changes of metadata are refused.
///
/// # Errors
/// The reason of the system.
pub(super) fn ask(connects: &Connects, channel: &UnixStream) -> io::Result<bool> {
    let mut calls = metadata::CALLS.to_vec();
    if connects.need_answers() {
        calls.push(libc::SYS_connect);
    }
    let (fds, is_asked) = match Notifications::install(&calls) {
        Ok(notifications) => (Some(notifications), true),
        Err(err) if connects.need_answers() => {
            let busy = match err.raw_os_error() {
                Some(libc::EBUSY) => {
                    "; another program, such as that of a container, already answers system calls here"
                }
                _ => "",
            };
            return Err(io::Error::other(format!(
                "net:loopback and unix:PATH need notifications of seccomp: {err}{busy}"
            )));
        }
        Err(_) => (None, false),
    };
    let fds: Vec<_> = fds.iter().map(Notifications::as_fd).collect();
    wire::write(channel.as_fd(), &Message::default(), &fds)?;
    Ok(is_asked)
}

/// In the first process: answers the calls of the compartment on another thread, until this process
/// ends. Returns the counter of calls in progress.
///
/// # Errors
/// The reason of the system.
pub(super) fn answer(
    connects: &Connects,
    metadata: Metadata,
    channel: &UnixStream,
) -> io::Result<Arc<AtomicUsize>> {
    let (_, fds) = wire::read(channel.as_fd())?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let in_progress = Arc::new(AtomicUsize::new(0));
    if let Some(notifications) = fds.into_iter().next() {
        let answers = Answers {
            notifications: Notifications::received(notifications)?,
            connects: connects.clone(),
            metadata,
            in_progress: Arc::clone(&in_progress),
        };
        thread::Builder::new().stack_size(STACK).spawn(move || Arc::new(answers).serve())?;
    }
    Ok(in_progress)
}

struct Answers {
    notifications: Notifications,
    connects: Connects,
    metadata: Metadata,
    in_progress: Arc<AtomicUsize>,
}

impl Answers {
    fn serve(self: &Arc<Self>) {
        loop {
            let call = match self.notifications.next() {
                Ok(call) => call,
                Err(err) if matches!(err.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => continue,
                Err(_) => return,
            };
            // The call is counted before it is examined, because the program may be killed at any
            // moment.
            let others = self.in_progress.fetch_add(1, Ordering::SeqCst);
            if call.number == libc::SYS_connect {
                self.connect(call, others);
            } else {
                let changed = self
                    .metadata
                    .change(&call)
                    .and_then(|change| self.still_waits(&call).and_then(|()| change.apply()));
                self.end(&call, changed);
            }
        }
    }

    fn connect(self: &Arc<Self>, call: Notification, others: usize) {
        let target = self.connects.target(&call);
        let target = match target.and_then(|target| self.still_waits(&call).map(|()| target)) {
            Ok(target) => target,
            Err(errno) => return self.end(&call, Err(errno)),
        };
        if !target.blocks() {
            return self.end(&call, target.connect());
        }
        if others >= MAX_BLOCKED {
            return self.end(&call, Err(libc::EAGAIN));
        }
        let waiting = Arc::clone(self);
        let run = move || {
            let connected = target.connect();
            drop(target);
            waiting.end(&call, connected);
        };
        if thread::Builder::new().stack_size(STACK).spawn(run).is_err() {
            self.end(&call, Err(libc::EAGAIN));
        }
    }

    fn end(&self, call: &Notification, result: Result<(), Errno>) {
        self.in_progress.fetch_sub(1, Ordering::SeqCst);
        let _ = self.notifications.answer(call, result);
    }

    /// Checks that the caller still waits. If it does not, the memory that was read may belong to
    /// another process.
    fn still_waits(&self, call: &Notification) -> Result<(), Errno> {
        if self.notifications.waits(call) { Ok(()) } else { Err(libc::EINTR) }
    }
}

/// Copies memory of a thread, as much as exists.
pub(super) fn read_memory(thread: i32, pointer: u64, into: &mut [u8]) -> Result<usize, Errno> {
    let memory = fs::File::open(format!("/proc/{thread}/mem")).map_err(|_| libc::EACCES)?;
    match memory.read_at(into, pointer) {
        Ok(0) | Err(_) => Err(libc::EFAULT),
        Ok(count) => Ok(count),
    }
}

/// Copies as much memory of a thread as fits.
pub(super) fn read_exact_memory(thread: i32, pointer: u64, into: &mut [u8]) -> Result<(), Errno> {
    match read_memory(thread, pointer, into)? {
        count if count == into.len() => Ok(()),
        _ => Err(libc::EFAULT),
    }
}

/// A thread of a confined program. Its files are opened to identify them, not to read them.
#[derive(Clone, Copy)]
pub(super) struct Named(pub(super) i32);

impl Named {
    /// Opens the file of a descriptor of the thread.
    pub(super) fn descriptor(self, number: u64) -> Result<OwnedFd, Errno> {
        // The kernel uses only the lower half.
        match number as u32 as i32 {
            number if number < 0 => Err(libc::EBADF),
            number => open(&format!("/proc/{}/fd/{number}", self.0)).map_err(|_| libc::EBADF),
        }
    }

    /// Opens the working directory of the thread.
    pub(super) fn directory(self) -> Result<OwnedFd, Errno> {
        open(&format!("/proc/{}/cwd", self.0))
    }

    /// Opens a path that the thread has given, relative to a directory. Magic links of procfs are
    /// refused, because they would lead to files of this process.
    pub(super) fn open(self, from: &OwnedFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let all = OFlags::PATH | OFlags::CLOEXEC | flags;
        match rustix::fs::openat2(from, path, all, Mode::empty(), ResolveFlags::NO_MAGICLINKS) {
            Err(rustix::io::Errno::NOSYS) => walk::open(from, path, flags),
            opened => opened,
        }
        .map_err(rustix::io::Errno::raw_os_error)
    }
}

fn open(path: &str) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(rustix::io::Errno::raw_os_error)
}

/// Returns the path of an open file of this process.
pub(super) fn own(file: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

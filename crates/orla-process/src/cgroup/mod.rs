//! Control groups of version 2, in which the kernel limits what a call uses.
//!
//! # How it works
//!
//! [`enter`] looks once, when a server starts, whether the control group of this process is delegated to it with the
//! controllers `memory` and `pids`. If so, this process moves to a group below it ([`SERVER`]), because a group that has
//! processes cannot pass controllers on, and passes the controllers on to the groups beside it. Each compartment of a profile
//! with limits then gets a [`Group`]:
//!
//! ```text
//! orla.service                 delegated by systemd
//!    ├── orla.server           the server, its launchers, the first processes of compartments, unlimited programs
//!    ├── orla.call.123-0       one compartment: its spawner and the program
//!    └── orla.call.123-1
//! ```
//!
//! The kernel ends a group at its limit of memory, refuses processes beyond their limit, and counts processor time
//! ([`Meter`]).
//!
//! # Invariants
//!
//! - Without a delegated group, nothing is changed.
//! - A group is removed when its compartment ends. The groups of an instance that was killed are removed by its reaper, and
//!   else by the next instance: a group belongs to a running instance if its directory is locked ([`sweep`]).

mod meter;
mod place;

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use orla_confine::Limits;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, FlockOperation, Mode, OFlags, access, flock, getxattr};
use rustix::io::Errno;

pub(crate) use meter::Meter;

/// The name of the group of this process below the delegated one.
const SERVER: &str = "orla.server";
/// The beginning of the names of groups for calls.
const CALL: &str = "orla.call.";
/// The controllers that limits need.
const CONTROLLERS: [&str; 2] = ["memory", "pids"];
/// How long the processes of a group may take to end when they are killed.
const ENDING: Duration = Duration::from_secs(10);
/// How often a new group is tried if another instance takes it for one that was left.
const TRIES: usize = 3;

/// The delegated group of this process, or the reason why there is none.
static DELEGATED: OnceLock<Result<Delegated, String>> = OnceLock::new();

/// Looks for a delegated group, and enters it. Only the first call has an effect. Call this function before the first child
/// starts: children in the delegated group itself would keep it from passing controllers on.
pub(crate) fn enter() {
    DELEGATED.get_or_init(|| {
        let read = |file: &str| fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
        let place = place::find(&read("cgroup"), &read("mountinfo"));
        let place = place.ok_or("there are no control groups of version 2")?;
        let delegated = Delegated::of(place)?;
        sweep(&delegated.base);
        Ok(delegated)
    });
}

/// Returns the delegated group.
pub(crate) fn delegated() -> Option<&'static Delegated> {
    DELEGATED.get()?.as_ref().ok()
}

/// Returns why limits are not enforced by control groups; `None` if they are.
pub(crate) fn missing() -> Option<&'static str> {
    match DELEGATED.get() {
        Some(Ok(_)) => None,
        Some(Err(why)) => Some(why),
        None => Some("this command does not use control groups"),
    }
}

/// A delegated group that passes the controllers on.
#[derive(Debug)]
pub(crate) struct Delegated {
    base: PathBuf,
    next: AtomicU64,
}

impl Delegated {
    /// Enters the group of this process if it is delegated. With systemd's `DelegateSubgroup=`, the group around it is.
    fn of(place: place::Place) -> Result<Self, String> {
        let group = place.directory;
        if is_named(&group, CALL) {
            return Err("this program runs in the control group of a call".to_owned());
        }
        let is_inside = group.file_name().is_some_and(|name| name == SERVER);
        let around =
            group.parent().filter(|around| !place.is_top && has_own_groups_alone(around, &group));
        let base = if is_delegated(&group, place.is_top) {
            group.clone()
        } else {
            let around =
                around.filter(|around| is_delegated(around, false) || is_inside && is_writable(around));
            around.ok_or("the control group of this process is not delegated to it")?.to_owned()
        };
        let problem = |what: &str, err: io::Error| format!("{what}: {err}");
        let text = |file: &str| fs::read_to_string(base.join(file)).map_err(|err| problem(file, err));
        let has = |text: &str, name: &str| text.split_whitespace().any(|known| known == name);
        let available = text("cgroup.controllers")?;
        if let Some(missing) = CONTROLLERS.iter().find(|name| !has(&available, name)) {
            return Err(format!("the controller {missing} is not delegated"));
        }
        let own = std::process::id().to_string();
        if text("cgroup.procs")?.split_whitespace().any(|process| process != own) {
            return Err("other processes run in the control group of this process".to_owned());
        }
        if base == group {
            let server = base.join(SERVER);
            make(&server).map_err(|err| problem(SERVER, err))?;
            // 0 stands for the process that writes.
            write(&server.join("cgroup.procs"), "0").map_err(|err| problem(SERVER, err))?;
        }
        let passed = text("cgroup.subtree_control")?;
        let missing = CONTROLLERS.iter().filter(|name| !has(&passed, name));
        let missing: Vec<String> = missing.map(|name| format!("+{name}")).collect();
        if !missing.is_empty() {
            let file = "cgroup.subtree_control";
            if let Err(err) = write(&base.join(file), &missing.join(" ")) {
                if base == group {
                    let _ = write(&base.join("cgroup.procs"), "0");
                    let _ = fs::remove_dir(base.join(SERVER));
                }
                return Err(problem(file, err));
            }
        }
        Ok(Self { base, next: AtomicU64::new(0) })
    }

    /// Returns the directory of the delegated group.
    pub(crate) fn directory(&self) -> &Path {
        &self.base
    }

    /// Creates a group for a compartment with these limits.
    ///
    /// # Errors
    /// The system's reason.
    pub(crate) fn group(&self, limits: &Limits) -> io::Result<Group> {
        let mut tries = 0;
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let path = self.base.join(format!("{CALL}{}-{number}", std::process::id()));
            tries += 1;
            match Group::create(path, limits) {
                // Another instance has removed it before it was locked, or one with this process id has left it.
                Err(err)
                    if tries < TRIES
                        && matches!(
                            err.kind(),
                            io::ErrorKind::NotFound
                                | io::ErrorKind::AlreadyExists
                                | io::ErrorKind::WouldBlock
                        ) => {}
                created => return created,
            }
        }
    }
}

/// The group of one compartment. Dropping it ends all its processes.
#[derive(Debug)]
pub(crate) struct Group {
    path: PathBuf,
    /// The locked directory, until the group is removed.
    lock: Option<OwnedFd>,
    has_memory: bool,
}

impl Group {
    fn create(path: PathBuf, limits: &Limits) -> io::Result<Self> {
        fs::create_dir(&path)?;
        let mut group = Self { path, lock: None, has_memory: limits.memory.is_some() };
        let lock = open(&group.path, OFlags::RDONLY)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        group.lock = Some(lock);
        for (file, value) in settings(limits) {
            match write(&group.path.join(file), &value.to_string()) {
                Err(err) if file == SWAP && err.kind() == io::ErrorKind::NotFound => {}
                written => written?,
            }
        }
        Ok(group)
    }

    /// Opens the directory for a process that will [`join`] the group. The lock stays here alone.
    ///
    /// # Errors
    /// The system's reason.
    pub(crate) fn open(&self) -> io::Result<OwnedFd> {
        open(&self.path, OFlags::PATH)
    }

    /// Returns whether the kernel ended the group at its limit of memory.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        let is_out = || meter::is_out_of_memory(self.open()?.as_fd());
        self.has_memory && is_out().unwrap_or(false)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let lock = self.lock.take();
        if fs::remove_dir(&self.path).is_ok() {
            return;
        }
        // Its processes take a moment to end.
        let path = std::mem::take(&mut self.path);
        let _ = thread::Builder::new().spawn(move || {
            remove(&path);
            drop(lock);
        });
    }
}

/// The file of a group that a kernel without swap does not have.
const SWAP: &str = "memory.swap.max";

/// Returns the files of a group for these limits, with their values.
fn settings(limits: &Limits) -> Vec<(&'static str, u64)> {
    let memory = |bytes| [("memory.max", bytes), (SWAP, 0), ("memory.oom.group", 1)];
    let processes = limits.processes.map(|processes| ("pids.max", with_spawner(processes)));
    limits.memory.map(memory).into_iter().flatten().chain(processes).collect()
}

/// Returns the number of processes in a group whose program may have this many: the spawner is in the group too.
fn with_spawner(processes: u64) -> u64 {
    processes.saturating_add(1)
}

/// Moves this process, which has one thread, to a group. Its later children begin there.
///
/// # Errors
/// The system's reason.
pub(crate) fn join(group: BorrowedFd<'_>) -> io::Result<()> {
    let processes = meter::open(group, "cgroup.procs", OFlags::WRONLY)?;
    // 0 stands for the process that writes.
    rustix::io::write(&processes, b"0")?;
    Ok(())
}

/// Returns where control groups are mounted, for this process.
///
/// # Errors
/// The system's reason.
pub(crate) fn mounts() -> io::Result<Vec<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(place::cgroup2_mounts(&mounts).map(|(_, point)| point).collect())
}

/// Removes the groups below a delegated one that belong to no running instance, with their processes.
pub(crate) fn sweep(base: &Path) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        if !is_named(&entry.path(), CALL) {
            continue;
        }
        let Ok(directory) = open(&entry.path(), OFlags::RDONLY) else { continue };
        if flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok() {
            remove(&entry.path());
        }
    }
}

/// Kills the processes of a group and removes it.
fn remove(path: &Path) {
    let _ = write(&path.join("cgroup.kill"), "1");
    let until = Instant::now() + ENDING;
    let events = fs::File::open(path.join("cgroup.events"));
    loop {
        // Reading tells the kernel which state is known.
        if let Ok(events) = &events {
            let _ = std::os::unix::fs::FileExt::read_at(events, &mut [0; 64], 0);
        }
        match fs::remove_dir(path) {
            Err(err) if err.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {}
            _ => return,
        }
        let left = until.saturating_duration_since(Instant::now());
        let (Ok(events), false, Ok(left)) = (&events, left.is_zero(), Timespec::try_from(left)) else {
            return;
        };
        let _ = poll(&mut [PollFd::from_borrowed_fd(events.as_fd(), PollFlags::PRI)], Some(&left));
    }
}

fn open(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, flags | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Writes to a file of a group. Groups make their files themselves.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = fs::File::options().write(true).open(path)?;
    io::Write::write_all(&mut file, text.as_bytes())
}

fn make(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Returns whether a group is delegated to this process, which is more than that it may be written: systemd marks the groups
/// that it delegates, and manages all others itself.
fn is_delegated(group: &Path, is_top: bool) -> bool {
    // The root of the hierarchy, which is not a group to be limited, has no such file.
    if !group.join("cgroup.events").exists() || !is_writable(group) {
        return false;
    }
    let is_marked = |name: &str| {
        let mut value = [0; 8];
        getxattr(group, name, &mut value).is_ok_and(|count| value.get(..count) == Some(b"1".as_slice()))
    };
    // The topmost group that a user may write has been given to that user. The groups below it may belong to the user's systemd.
    let is_foreign = |around: &Path| around.join("cgroup.procs").exists() && !is_writable(around);
    let is_given = || !rustix::process::geteuid().is_root() && group.parent().is_some_and(is_foreign);
    is_top || is_marked("user.delegate") || is_marked("trusted.delegate") || is_given()
}

/// Returns whether the groups in a group are this one and those that orla makes. If there are others, somebody else manages it.
fn has_own_groups_alone(around: &Path, own: &Path) -> bool {
    let Ok(entries) = fs::read_dir(around) else { return false };
    let mut groups = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
    groups.all(|group| group == own || is_named(&group, SERVER) || is_named(&group, CALL))
}

fn is_named(group: &Path, beginning: &str) -> bool {
    group.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(beginning.as_bytes()))
}

/// Returns whether this process may make groups in a group and move processes there.
pub(crate) fn is_writable(group: &Path) -> bool {
    let files = ["", "cgroup.procs", "cgroup.subtree_control"];
    files.iter().all(|file| access(group.join(file), Access::WRITE_OK).is_ok())
}

#[cfg(test)]
mod tests;

//! A compartment: the namespaces in which programs of a profile run, one after the other.
//!
//! # How it works
//!
//! ```text
//! server ── launcher (user and network namespaces of the profile)
//!    :         └── spawner (mount and IPC namespaces of the compartment; seccomp; trusted)
//!    :..socket........:  ├── first process (PID namespace of the compartment; trusted)
//!                        └── program (in that PID namespace; Landlock, seccomp, no capabilities)
//! ```
//!
//! The spawner sets up once everything that confines and takes time: namespaces, `/proc`, a file system
//! in memory and the seccomp filters. Its children inherit this state. To start a program, the spawner
//! makes a process that shares its memory. This process restricts itself and executes the program. The
//! spawner is outside of the PID namespace, so the program cannot see it.
//!
//! When the program ends, the first process kills the remaining processes of its namespace, and the
//! spawner removes the remaining files of the temporary directory. Only then does the next program run
//! there. A compartment that cannot be emptied ends, and the kernel removes its namespaces.
//!
//! # Protocol
//!
//! A message to the spawner is a start request. The spawner answers with the process id once the program
//! runs, or with the error. When the program ends, the spawner sends its status. The server then says
//! that it needs the process id no longer, and the spawner answers when the compartment is empty again.
//!
//! # Invariants
//!
//! - The program stays a zombie until the server says that it needs the process id no longer. No other
//!   process gets the id meanwhile.
//! - The spawner ends when the server ends. The first process ends with the spawner, and the kernel ends
//!   everything in the namespace with it.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use landlock::RulesetCreated;
use nix::sched::CloneFlags;
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use orla_sys::{Fork, Starter};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount, mount_bind, mount_remount};
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, pidfd_open,
    set_dumpable_behavior, set_parent_process_death_signal, setpgid, wait, waitid, waitpid,
};

use super::inside::{
    OwnAccess, POLL_INTERVAL, Probe, Request, Rules, answer, drop_capabilities, enforce, keep_watched,
    landlock, open_real, probe, receive,
};
use super::metadata::Metadata;
use super::usage::Watch;
use super::wire::Message;
use super::{NO_LIMIT, READY, REFUSED, answers, usage};
use crate::cgroup::{self, Meter};

/// The directory below the mount point that holds the temporary directories of programs.
const TEMPORARY: &str = "tmp";
/// The file below the mount point that a probe must not be able to read.
const BAIT: &str = "bait";
/// The maximum number of programs whose Landlock rules a spawner keeps.
const MAX_RULESETS: usize = 16;

/// Serves start requests, in a control group if there is one. Ends when the server closes the socket.
pub(super) fn serve(
    rules: &Rules,
    mount_point: PathBuf,
    socket: OwnedFd,
    group: Option<OwnedFd>,
) -> io::Result<()> {
    let mut socket = Some(socket);
    let mut compartment = match Compartment::enter(rules, mount_point, &mut socket, group) {
        Ok(compartment) => compartment,
        Err(err) => return answer(&socket, err.to_string()),
    };
    answer(&socket, READY)?;
    while let Some((request, fds)) = receive(&socket)? {
        match compartment.start(request, fds) {
            Ok(None) => answer(&socket, REFUSED)?,
            Ok(Some(program)) => {
                answer(&socket, program.as_raw_nonzero().get().to_le_bytes())?;
                if !compartment.follow(program, &socket)? {
                    return Ok(());
                }
            }
            Err(err) => answer(&socket, encode_error(&err))?,
        }
    }
    Ok(())
}

/// The spawner's state.
struct Compartment<'a> {
    rules: &'a Rules,
    /// The mount point of the file system in memory. Programs do not use the path for anything else.
    mount_point: PathBuf,
    first: First,
    /// The rules by the identity of the program's own files. A replaced file has another identity.
    rulesets: HashMap<Vec<Identity>, RulesetCreated>,
    starter: Starter,
}

/// A file by its device and inode number, and the access that the program has to it.
type Identity = (u64, u64, OwnAccess);

/// A request to the first process.
#[derive(Clone, Copy)]
enum Order {
    /// Look at the resources that the program uses.
    Watch = 1,
    /// End the remaining processes, and report the limit for which the program was ended.
    Clear = 2,
}

impl<'a> Compartment<'a> {
    fn enter(
        rules: &'a Rules,
        mount_point: PathBuf,
        socket: &mut Option<OwnedFd>,
        group: Option<OwnedFd>,
    ) -> io::Result<Self> {
        // Signals to the group of the launcher or of a program must not reach the spawner.
        setpgid(None, None)?;
        nix::sched::unshare(
            CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWPID,
        )?;
        let channel = (!rules.is_open).then(UnixStream::pair).transpose()?;
        let first = First::start(rules, &mount_point, socket, channel.as_ref(), group.as_ref())?;
        // The first process stays outside: what it does is not the program's, and it watches the group.
        if let Some(group) = group {
            let joined = cgroup::join(group.as_fd());
            joined.map_err(|err| io::Error::other(format!("control groups: {err}")))?;
        }
        // The programs inherit all this. The filters also allow what the spawner itself does from here
        // on.
        match &channel {
            None => keep_watched()?,
            Some((_, asking)) => {
                let is_answered = answers::ask(&rules.connects, asking)?;
                drop_capabilities()?;
                rules.filters.apply(is_answered)?;
            }
        }
        Ok(Self { rules, mount_point, first, rulesets: HashMap::new(), starter: Starter::default() })
    }

    /// Starts a program, or probes the profile; `None` if the probe succeeds.
    fn start(&mut self, request: Message, fds: Vec<OwnedFd>) -> io::Result<Option<Pid>> {
        let request = Request::of(request)?;
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or(io::Error::from(io::ErrorKind::InvalidData));
        let streams = [next()?, next()?, next()?];
        let sealed = next().ok();
        let place = self.temporary_directory(&request)?;
        let ruleset = if self.rules.is_open { None } else { Some(self.ruleset(&request)?) };
        if let Some(expected) = request.probe {
            self.probe(ruleset.as_ref(), &place, expected)?;
            return Ok(None);
        }
        let program = request.exec(self.rules, &place, sealed.as_ref())?;
        if usage::is_watched(&self.rules.limits) {
            self.first.order(Order::Watch)?;
        }
        let rules = self.rules;
        let restrict = || request.restrict(rules, ruleset.as_ref(), &streams, sealed.as_ref());
        let program = self.starter.start(&program, &restrict)?;
        let program = Pid::from_raw(program.as_raw()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Some(program))
    }

    /// Tests the profile in a copy of this process.
    ///
    /// # Errors
    /// The profile does not hold.
    fn probe(&self, ruleset: Option<&RulesetCreated>, place: &Path, expected: Probe) -> io::Result<()> {
        let (mut found, finding) = io::pipe()?;
        match orla_sys::fork()? {
            Fork::Parent(_) => {
                drop(finding);
                let mut output = Vec::new();
                found.read_to_end(&mut output)?;
                if output == REFUSED.as_bytes() { Ok(()) } else { Err(decode_error(&output)) }
            }
            Fork::Child => {
                let bait = self.mount_point.join(BAIT);
                let probed = enforce(ruleset).and_then(|()| probe(self.rules, &bait, place, expected));
                let output = match probed {
                    Ok(()) => REFUSED.into(),
                    Err(err) => encode_error(&err),
                };
                let _ = rustix::io::write(&finding, &output);
                std::process::exit(1)
            }
        }
    }

    /// Returns the Landlock rules for a program.
    fn ruleset(&mut self, request: &Request) -> io::Result<RulesetCreated> {
        let reads = request.read.iter().map(|path| (path, OwnAccess::Read));
        let all = reads.chain(request.run.iter().map(|path| (path, OwnAccess::Run)));
        let own = all.map(|(path, access)| Ok((open_real(path)?, access)));
        let own: Vec<_> = own.collect::<Result<_, String>>().map_err(io::Error::other)?;
        let identity = own.iter().map(|(fd, access)| {
            let stat = rustix::fs::fstat(fd)?;
            Ok((stat.st_dev, stat.st_ino, *access))
        });
        let identity: Vec<Identity> = identity.collect::<io::Result<_>>()?;
        if let Some(known) = self.rulesets.get(&identity) {
            return known.try_clone();
        }
        let made = landlock(self.rules, &own, &self.mount_point.join(TEMPORARY));
        let made = made.map_err(io::Error::other)?;
        if self.rulesets.len() >= MAX_RULESETS {
            self.rulesets.clear();
        }
        let ruleset = made.try_clone()?;
        self.rulesets.insert(identity, made);
        Ok(ruleset)
    }

    fn temporary_directory(&self, request: &Request) -> io::Result<PathBuf> {
        if self.rules.is_open {
            return Ok(PathBuf::new());
        }
        if request.probe.is_some() {
            let mut bait = fs::File::options();
            let bait = bait.write(true).create(true).mode(0o777).open(self.mount_point.join(BAIT));
            bait?.write_all(b"#!/bin/sh\n")?;
        }
        let random = getrandom::u64().map_err(io::Error::other)?;
        let place = self.mount_point.join(TEMPORARY).join(format!("{random:016x}"));
        fs::DirBuilder::new().mode(0o700).create(&place)?;
        Ok(place)
    }

    /// Follows a program to its end. Returns false if the server is gone, or if the compartment cannot
    /// be used again.
    fn follow(&self, program: Pid, socket: &Option<OwnedFd>) -> io::Result<bool> {
        let exit = pidfd_open(program, PidfdFlags::empty())?;
        let Some(server) = socket else { return Ok(false) };
        // The server sends nothing until the program has ended. If the socket is readable, the server is
        // gone.
        if is_readable(server.as_fd(), exit.as_fd())? {
            return Ok(false);
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(program), options)?.map_or(libc::SIGKILL, |status| {
            match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => (code & 0xff) << 8,
                (None, signal) => signal.unwrap_or(libc::SIGKILL),
            }
        });
        let (mut breach, mut is_empty) = (NO_LIMIT, true);
        let is_watched = usage::is_watched(&self.rules.limits);
        if is_watched {
            let cleared = self.first.clear()?;
            (breach, is_empty) = (cleared.breach, cleared.is_empty);
        }
        if breach == NO_LIMIT {
            breach = usage::exceeded(&self.rules.limits, status).map_or(NO_LIMIT, super::limit_number);
        }
        let [a, b, c, d] = status.to_le_bytes();
        answer(socket, [a, b, c, d, breach])?;
        if receive(socket)?.is_none() {
            return Ok(false);
        }
        let _ = waitpid(Some(program), WaitOptions::empty());
        if !is_watched {
            is_empty = self.first.clear()?.is_empty;
        }
        // A program that only limits confine may have changed its first process.
        if !is_empty || self.rules.is_open {
            return Ok(false);
        }
        self.tidy()?;
        answer(socket, READY)?;
        Ok(true)
    }

    /// Removes everything that the program has left behind.
    ///
    /// # Errors
    /// Something stays.
    fn tidy(&self) -> io::Result<()> {
        // Memory, queues and semaphores of System V outlive their processes. Each has one line below a
        // heading.
        for kind in ["shm", "sem", "msg"] {
            let mut lines = [0; 512];
            let count = fs::File::open(format!("/proc/sysvipc/{kind}"))?.read(&mut lines)?;
            if lines[..count].iter().filter(|byte| **byte == b'\n').count() > 1 {
                return Err(io::ErrorKind::ResourceBusy.into());
            }
        }
        let temporary = self.mount_point.join(TEMPORARY);
        // With `fs:write:/` a program could move the directory.
        let is_as_it_was =
            fs::symlink_metadata(&temporary)?.is_dir() && fs::read_dir(&self.mount_point)?.count() == 1;
        if !is_as_it_was {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        for entry in fs::read_dir(temporary)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => fs::remove_dir_all(entry.path())?,
                false => fs::remove_file(entry.path())?,
            }
        }
        Ok(())
    }
}

/// Encodes an error as an answer: its negative number in place of a process id, and its text.
fn encode_error(err: &io::Error) -> Vec<u8> {
    let mut bytes = (-err.raw_os_error().unwrap_or(0)).to_le_bytes().to_vec();
    bytes.extend_from_slice(err.to_string().as_bytes());
    bytes
}

/// Decodes the error in an answer.
pub(super) fn decode_error(answer: &[u8]) -> io::Error {
    match answer.split_first_chunk::<4>().map(|(number, text)| (i32::from_le_bytes(*number), text)) {
        Some((number @ ..0, _)) => io::Error::from_raw_os_error(-number),
        Some((0, text)) => io::Error::other(String::from_utf8_lossy(text).into_owned()),
        _ => io::ErrorKind::InvalidData.into(),
    }
}

/// Waits until one of the two can be read. Returns whether the first can.
fn is_readable(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> io::Result<bool> {
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(one, PollFlags::IN),
            PollFd::from_borrowed_fd(other, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) if !fds[1].revents().is_empty() => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(err) => return Err(err.into()),
        }
    }
}

/// The spawner's handle to the first process.
struct First {
    orders: OwnedFd,
    answers: OwnedFd,
}

/// The report of the first process on a program that has ended.
struct Cleared {
    /// The number of the limit for which the program was ended.
    breach: u8,
    /// Whether the compartment is empty. A connect that blocks, or a change of a file on a hanging disk,
    /// cannot be ended.
    is_empty: bool,
}

impl First {
    fn start(
        rules: &Rules,
        mount_point: &Path,
        socket: &mut Option<OwnedFd>,
        channel: Option<&(UnixStream, UnixStream)>,
        group: Option<&OwnedFd>,
    ) -> io::Result<Self> {
        let (their_orders, orders) = io::pipe()?;
        let (answers, their_answers) = io::pipe()?;
        match orla_sys::fork()? {
            Fork::Parent(_) => {}
            Fork::Child => {
                drop((socket.take(), orders, answers));
                let (orders, answers) = (OwnedFd::from(their_orders), OwnedFd::from(their_answers));
                let result = first_process(rules, mount_point, &orders, &answers, channel, group);
                if let Err(err) = result {
                    let _ = rustix::io::write(&answers, &encode_error(&err));
                }
                std::process::exit(0)
            }
        }
        drop((their_orders, their_answers));
        let first = Self { orders: orders.into(), answers: answers.into() };
        let mut answer = [0; 256];
        match rustix::io::read(&first.answers, &mut answer)? {
            1 => Ok(first),
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => Err(decode_error(answer.get(..count).unwrap_or_default())),
        }
    }

    fn order(&self, order: Order) -> io::Result<()> {
        rustix::io::write(&self.orders, &[order as u8])?;
        Ok(())
    }

    /// Ends all remaining processes.
    fn clear(&self) -> io::Result<Cleared> {
        self.order(Order::Clear)?;
        let mut answer = [NO_LIMIT, 0];
        loop {
            match rustix::io::read(&self.answers, &mut answer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => return Ok(Cleared { breach: answer[0], is_empty: answer[1] == 0 }),
                Err(Errno::INTR) => {}
                Err(err) => return Err(err.into()),
            }
        }
    }
}

/// A look at many processes takes long. The pause after it is so many times as long, so that looking does not take a processor, but at
/// most `MAX_PAUSE`.
const PAUSES: u32 = 10;
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// Runs as the first process of a compartment's PID namespace. The kernel ends all processes of the
/// namespace when this process ends.
fn first_process(
    rules: &Rules,
    mount_point: &Path,
    orders: &OwnedFd,
    answers: &OwnedFd,
    channel: Option<&(UnixStream, UnixStream)>,
    group: Option<&OwnedFd>,
) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // Programs must not see the state of this process: `/proc/1` belongs to root.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    prepare(rules, mount_point, group.is_some())?;
    let children = SigSet::from(nix::sys::signal::Signal::SIGCHLD);
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&children), None)?;
    let ends = SignalFd::with_flags(&children, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    // The group is measured while nothing runs in it: a program may be faster than this process.
    let meter = group.map(|group| Meter::new(group.as_fd(), &rules.limits));
    let mut meter = meter.transpose()?;
    rustix::io::write(answers, &[NO_LIMIT])?;
    let answered = channel.map(|(answering, _)| {
        let temporary = open_real(&mount_point.join(TEMPORARY)).map_err(io::Error::other)?;
        let metadata = Metadata::of(&rules.write, &temporary)?;
        answers::answer(&rules.connects, metadata, answering)
    });
    let answered = answered.transpose()?;
    let are_answered = || answered.as_ref().is_some_and(|count| count.load(Ordering::SeqCst) > 0);
    let (mut watch, mut breach) = (None::<Watch<'_>>, NO_LIMIT);
    let (mut pause, mut looked) = (POLL_INTERVAL, Instant::now());
    loop {
        let mut fds = vec![
            PollFd::from_borrowed_fd(orders.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(ends.as_fd(), PollFlags::IN),
        ];
        let watched = watch.as_ref().filter(|_| breach == NO_LIMIT);
        let reports = watched.and_then(Watch::reports);
        fds.extend(reports.map(|reports| PollFd::from_borrowed_fd(reports, PollFlags::PRI)));
        let is_polled = watched.is_some_and(Watch::must_poll);
        let nap = is_polled.then(|| Timespec::try_from(pause).ok()).flatten();
        match poll(&mut fds, nap.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(err) => return Err(err.into()),
        }
        let (is_asked, has_lost) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
        if has_lost {
            while let Ok(Some(_)) = ends.read_signal() {}
            while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        }
        let has_report = fds.get(2).is_some_and(|reports| !reports.revents().is_empty());
        let is_due = pause == POLL_INTERVAL || looked.elapsed() >= pause;
        if breach == NO_LIMIT && (is_due || is_asked || has_report) {
            let begun = usage::own_time();
            if let Some(limit) = watch.as_mut().and_then(Watch::breach) {
                breach = super::limit_number(limit);
                kill_others();
            }
            looked = Instant::now();
            let spent = usage::own_time().saturating_sub(begun);
            pause = POLL_INTERVAL.max(spent * PAUSES).min(MAX_PAUSE);
        }
        if is_asked {
            let mut order = [0];
            match rustix::io::read(orders, &mut order) {
                Ok(0) => return Ok(()),
                Ok(_) if order[0] == Order::Watch as u8 => {
                    watch = Some(Watch::new(&rules.limits, meter.take()));
                    pause = POLL_INTERVAL;
                }
                Ok(_) => {
                    // The program may have ended before the kernel's report was read.
                    if breach == NO_LIMIT
                        && let Some(limit) = watch.as_ref().and_then(Watch::last_breach)
                    {
                        breach = super::limit_number(limit);
                    }
                    kill_others();
                    // Processes that lose their parents become children of this process.
                    while wait(WaitOptions::empty()).is_ok() {}
                    if let Some(watch) = watch.take() {
                        meter = watch.end()?;
                    }
                    rustix::io::write(answers, &[breach, u8::from(are_answered())])?;
                    breach = NO_LIMIT;
                }
                Err(Errno::INTR) => {}
                Err(err) => return Err(err.into()),
            }
        }
    }
}

/// Kills every other process of the namespace.
fn kill_others() {
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(-1), nix::sys::signal::Signal::SIGKILL);
}

/// Settings and requests of the host's kernel. The user root may write them without any capability, and
/// they take effect beyond the sandbox.
const KERNEL: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// With a limit of memory, the number of files in the temporary directory is bounded: one for so many bytes, and at least so many.
const FILE_SHARE: u64 = 4096;
const LEAST_FILES: u64 = 1024;

/// Mounts the compartment's own file systems. A program with permissions must not change control groups, of its own call or of
/// others.
fn prepare(rules: &Rules, mount_point: &Path, is_in_group: bool) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", flags, None)?;
    if rules.is_open {
        return Ok(());
    }
    // An empty file takes memory too: about a kilobyte.
    let size = |bytes: u64| format!(",size={bytes},nr_inodes={}", (bytes / FILE_SHARE).max(LEAST_FILES));
    let size = rules.limits.memory.map(size).unwrap_or_default();
    let options = std::ffi::CString::new(format!("mode=755{size}"))?;
    mount("orla", mount_point, "tmpfs", flags, Some(options.as_c_str()))?;
    fs::create_dir(mount_point.join(TEMPORARY))?;
    // Programs in memory are refused here as well. Older kernels do not know the setting.
    let _ = fs::write("/proc/sys/vm/memfd_noexec", "2");
    let read_only = |path: &Path| {
        mount_remount(path, MountFlags::BIND | MountFlags::RDONLY | flags, "").map_err(|err| {
            io::Error::other(format!("{} cannot be made read-only: {err}", path.display()))
        })
    };
    for path in cgroup::mounts()? {
        match read_only(&path) {
            Err(problem) if is_in_group || cgroup::is_writable(&path) => return Err(problem),
            _ => {}
        }
    }
    // Other write permissions do not cover this `/proc`.
    let root = rustix::fs::stat("/")?;
    let is_root = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino) == (root.st_dev, root.st_ino);
    if !rules.write.iter().any(|directory| rustix::fs::fstat(directory).is_ok_and(is_root)) {
        return Ok(());
    }
    KERNEL.iter().filter(|path| Path::new(path).exists()).try_for_each(|path| {
        mount_bind(*path, *path)
            .map_err(|err| io::Error::other(format!("{path} cannot be bound: {err}")))?;
        read_only(Path::new(path))
    })
}

//! The server's side of a launcher.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use orla_broker::{Allowed, Broker, Clients};
use orla_confine::Profile;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::compartment::decode_error;
use super::current::{Targets, identity, targets};
use super::resolve::{is_decided_in, real_path, unchangeable};
use super::unenforced::{Cause, Unenforced};
use super::wire::{self, Message};
use super::{ANSWER, BASE_EXECUTE, COMMAND, Limits, NetworkMode, READY, REFUSED, is_wide, usage};
use crate::cgroup::{self, Delegated, Group};
use crate::process::{Child, Guardian, Streams};
use crate::sealed::STARTS;

/// The process name that the command line shows.
const ARG0: &str = "tool-launcher";
/// How long a start waits for a compartment to become empty before it uses another one.
const CLEARING: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// The maximum number of idle compartments of a profile. Each consists of two small processes.
const MAX_IDLE: usize = 8;
/// A compartment that has been idle for this long ends when the next one becomes idle, if it is not the only one.
const IDLE: Duration = Duration::from_secs(10);
/// Directories on which a temporary directory can be mounted, in a separate namespace. The first one
/// that the program does not use is taken.
const MOUNT_POINTS: &[&str] = &[
    "/mnt",
    "/media",
    "/srv",
    "/opt",
    "/var/tmp",
    "/var/empty",
    "/var/opt",
    "/home",
    "/run",
    "/tmp",
    "/root",
];

/// Starts the programs of one profile, for the files to which its paths led when it was created.
#[derive(Debug)]
pub(crate) struct Launcher {
    setup: [Vec<Vec<u8>>; 6],
    /// The paths in the profile.
    paths: Vec<PathBuf>,
    /// The paths that programs may write.
    writable: Vec<PathBuf>,
    /// The hosts that the brokers connect to, the hash of the profile, and whom they serve; `None` without a
    /// broker.
    hosts: Option<(Allowed, String, Clients)>,
    declared: Targets,
    limits: Limits,
    /// Whether only limits are in force. Then each compartment runs one program.
    is_open: bool,
    running: Mutex<Option<Running>>,
    idle: Arc<Idle>,
}

/// The idle compartments of a profile, the longest idle first.
#[derive(Debug, Default)]
struct Idle(Mutex<VecDeque<(Compartment, Instant)>>);

impl Idle {
    fn take(&self, mount_point: &str) -> Option<Compartment> {
        let mut all = self.0.lock();
        let fitting = all.iter().position(|(idle, _)| idle.mount_point == mount_point)?;
        all.remove(fitting).map(|(compartment, _)| compartment)
    }

    fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Keeps a compartment, unless enough are idle already.
    fn keep(&self, compartment: Compartment) {
        let mut all = self.0.lock();
        let is_unused = all.front().is_some_and(|(_, since)| since.elapsed() > IDLE);
        let unused = is_unused.then(|| all.pop_front());
        if all.len() < MAX_IDLE {
            all.push_back((compartment, Instant::now()));
        }
        // The compartment is dropped outside the lock.
        drop(all);
        drop(unused);
    }
}

/// A program to start.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    /// The file to execute.
    pub(crate) file: &'a Path,
    /// The program's argument zero.
    pub(crate) arg0: &'a OsStr,
    pub(crate) directory: Option<&'a Path>,
    pub(crate) args: Vec<&'a OsStr>,
    pub(crate) env: Vec<(&'a OsStr, &'a OsStr)>,
    /// The program's own files and directories, which it may read.
    pub(crate) read: Vec<PathBuf>,
    /// The program's own files and directories from which it may also run programs.
    pub(crate) run: Vec<PathBuf>,
    /// Whether the program is a shell that gets the script as its first argument.
    pub(crate) is_by_shell: bool,
    pub(crate) streams: Streams,
    /// An open copy of the program or script that runs instead of the original.
    pub(crate) sealed: Option<BorrowedFd<'a>>,
}

/// The server's end of a compartment. Dropping it ends all processes of the compartment.
#[derive(Debug)]
struct Compartment {
    socket: UnixStream,
    mount_point: &'static str,
    /// Whether it runs one program alone: a program that only limits confine may have changed its first process.
    is_used_once: bool,
    /// Whether the last program must be gone before the next one starts.
    is_left: bool,
    /// The broker of its namespace, which outlives the launcher.
    _broker: Option<Arc<Broker>>,
    /// The control group of its spawner and of the program, if the profile has limits that it enforces.
    group: Option<Group>,
}

impl Compartment {
    /// Returns whether nothing is left of the last program; waits briefly for that.
    ///
    /// # Errors
    /// Something stays, or the compartment is gone.
    fn is_empty(&mut self) -> io::Result<bool> {
        if !self.is_left {
            return Ok(true);
        }
        let mut fds = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)];
        if poll(&mut fds, Some(&CLEARING))? == 0 {
            return Ok(false);
        }
        if answer(&self.socket)? != READY.as_bytes() {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        self.is_left = false;
        Ok(true)
    }

    /// Returns whether the kernel ended the compartment because a program reached its limit of memory.
    fn is_out_of_memory(&self) -> bool {
        self.group.as_ref().is_some_and(Group::is_out_of_memory)
    }
}

/// A compartment in which a program runs.
#[derive(Debug)]
struct Occupied {
    compartment: Compartment,
    idle: Arc<Idle>,
    exit: OwnedFd,
}

impl Guardian for Occupied {
    fn has_exited(&self, waits: bool) -> io::Result<bool> {
        if waits {
            return Ok(
                poll(&mut [PollFd::from_borrowed_fd(self.exit.as_fd(), PollFlags::IN)], None)? > 0
            );
        }
        // Once the spawner has reported how the program ended, there is nothing to wait for.
        let socket = PollFd::from_borrowed_fd(self.compartment.socket.as_fd(), PollFlags::IN);
        Ok(poll(&mut [socket], Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? > 0)
    }

    fn release(self: Box<Self>) -> io::Result<(ExitStatus, Option<&'static str>)> {
        let Self { mut compartment, idle, .. } = *self;
        let answer = match answer(&compartment.socket) {
            Err(_) if compartment.is_out_of_memory() => {
                return Ok((ExitStatus::from_raw(libc::SIGKILL), Some("memory")));
            }
            answer => answer?,
        };
        let (status, breach) = answer.split_first_chunk::<4>().ok_or(io::ErrorKind::InvalidData)?;
        let breach =
            breach.first().and_then(|number| Limits::ENFORCED.get(usize::from(*number)).copied());
        if !compartment.is_used_once
            && wire::write(compartment.socket.as_fd(), &Message::default(), &[]).is_ok()
        {
            compartment.is_left = true;
            idle.keep(compartment);
        }
        Ok((ExitStatus::from_raw(i32::from_le_bytes(*status)), breach))
    }
}

#[derive(Debug)]
struct Running {
    socket: UnixStream,
    process: std::process::Child,
    broker: Option<Arc<Broker>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // The compartments that the launcher opened end with their sockets.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The real paths that the profiles of this process let programs write.
static WRITABLE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Returns whether an error says that something has run out, or that there was no answer in time. A program can bring that about.
pub(super) fn is_exhausted(err: &io::Error) -> bool {
    const ERRORS: [Errno; 4] = [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE];
    // The launcher's errors arrive as texts.
    let text = err.to_string();
    let has = |errno: Errno| text.contains(&format!("(os error {})", errno.raw_os_error()));
    let kinds = [io::ErrorKind::TimedOut, io::ErrorKind::UnexpectedEof];
    kinds.into_iter().any(|kind| text.contains(&io::Error::from(kind).to_string()))
        || ERRORS.into_iter().any(has)
}

/// Returns who can change that a launcher of this profile fails: the system, if it also fails without the paths and with wide limits. Otherwise a
/// program may have changed what a path leads to while the launcher was made, or the limits leave nothing to run with.
fn cause_of_failure(err: &io::Error, profile: &Profile, is_open: bool, clients: &Clients) -> Cause {
    if is_exhausted(err) {
        return Cause::Program;
    }
    // A path that nobody can change, for what UNIX sockets need.
    let root = profile.unix.iter().next().map(|_| PathBuf::from("/"));
    let without_paths = Profile {
        read: BTreeSet::new(),
        write: BTreeSet::new(),
        execute: BTreeSet::new(),
        caches: BTreeMap::new(),
        optional: BTreeSet::new(),
        unix: root.into_iter().collect(),
        limits: profile.limits.widened(),
        ..profile.clone()
    };
    let is_other = without_paths != *profile;
    match is_other.then(|| Launcher::new(&without_paths, is_open, None, clients)) {
        Some(Ok(_)) => Cause::Program,
        Some(Err(unenforced)) => unenforced.cause,
        None => Cause::System,
    }
}

impl Launcher {
    /// Creates a launcher for a profile, starts it and tests it.
    ///
    /// # Errors
    /// What cannot be enforced, a sentence for each.
    pub(super) fn new(
        profile: &Profile,
        is_open: bool,
        home: Option<&Path>,
        clients: &Clients,
    ) -> Result<Self, Unenforced> {
        let (mut missing, cause) = (Vec::new(), Cell::new(Cause::Declaration));
        let network = NetworkMode::of(&profile.network);
        let allowed = match network {
            NetworkMode::Hosts => Allowed::of(&profile.network),
            NetworkMode::None | NetworkMode::Loopback | NetworkMode::All => Ok(Allowed::default()),
        };
        let allowed = allowed.unwrap_or_else(|problems| {
            missing.extend(problems);
            Allowed::default()
        });
        // Taken first: a path that changes from now on makes the launcher outdated.
        let declared = targets(profile);
        let caches = || profile.caches.keys().chain(&profile.optional);
        let places = unchangeable(profile.write.iter().chain(caches()));
        let is_writable = |path: &Path| places.iter().any(|place| path.starts_with(place));
        // A program of another profile may write elsewhere.
        let written = profile.write.iter().chain(caches());
        let written: Vec<PathBuf> = written.filter_map(|path| path.canonicalize().ok()).collect();
        WRITABLE.lock().extend(written);
        let may_be_changed = |path: &Path| {
            is_writable(path) || WRITABLE.lock().iter().any(|place| path.starts_with(place))
        };
        // Every program may read and run what is in the system's directories, but not write there.
        let is_usable = |path: &Path| is_writable(path) || is_system(path);
        let real = |path: &PathBuf, word: &str, may_lead_to: &dyn Fn(&Path) -> bool| {
            real_path(path, is_writable, may_lead_to).map_err(|err| {
                let refusal = err.get_ref();
                if refusal.is_some() || is_decided_in(path, may_be_changed) {
                    cause.set(Cause::Program);
                }
                match refusal {
                    Some(reason) => {
                        format!("{word}:{}: {reason}; declare where it leads to", path.display())
                    }
                    None => format!("{word}:{}: {}", path.display(), crate::file::reason(&err)),
                }
            })
        };
        let mut all = |paths: &BTreeSet<PathBuf>, word: &str, may_lead_to: &dyn Fn(&Path) -> bool| {
            let (found, failed): (Vec<_>, Vec<_>) =
                paths.iter().map(|path| real(path, word, may_lead_to)).partition(Result::is_ok);
            missing.extend(failed.into_iter().filter_map(Result::err));
            found.into_iter().flatten().collect::<Vec<_>>()
        };
        let (read, mut write, mut execute, unix) = (
            all(&profile.read, "fs:read", &is_usable),
            all(&profile.write, "fs:write", &is_writable),
            all(&profile.execute, "exec", &is_usable),
            all(&profile.unix, "unix", &is_usable),
        );
        for (path, preset) in profile.caches.iter().filter(|(path, _)| !path.is_dir()) {
            if is_decided_in(path, may_be_changed) {
                cause.set(Cause::Program);
            }
            missing.push(format!(
                "preset:{preset}: {} does not exist; run {preset} once, which makes it",
                path.display()
            ));
        }
        for path in caches().filter(|path| path.exists()) {
            match real(path, "fs:write", &is_writable) {
                Ok(cache) => {
                    write.push(cache.clone());
                    execute.push(cache);
                }
                Err(problem) => missing.push(problem),
            }
        }
        if !missing.is_empty() {
            return Err(Unenforced { problems: missing, cause: cause.get() });
        }
        let home = home.and_then(|home| std::fs::canonicalize(home).ok());
        let has_home =
            home.is_some_and(|home| read.iter().chain(&write).any(|path| home.starts_with(path)));
        let bytes = |paths: &[PathBuf]| {
            paths.iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect::<Vec<_>>()
        };
        let text = |text: &str| text.as_bytes().to_vec();
        let settings = vec![
            text(network.name()),
            text(if has_home { "own" } else { "temporary" }),
            text(if is_open { "open" } else { "confined" }),
        ];
        let limits = usage::encode(&profile.limits);
        let (reads, writes) = (read.contains(&PathBuf::from("/")), write.contains(&PathBuf::from("/")));
        let launcher = Self {
            setup: [bytes(&read), bytes(&write), bytes(&execute), settings, limits, bytes(&unix)],
            writable: write.clone(),
            declared,
            paths: [read, write, execute, unix, std::env::current_dir().into_iter().collect()].concat(),
            hosts: (network == NetworkMode::Hosts).then(|| (allowed, profile.hash(), clients.clone())),
            limits: profile.limits.clone(),
            is_open,
            running: Mutex::new(None),
            idle: Arc::default(),
        };
        let expected =
            format!("probe{}{}", if reads || writes { "" } else { "R" }, if writes { "" } else { "W" });
        let tried = if is_open { launcher.ready() } else { launcher.probe(&expected) };
        match tried {
            Ok(()) => Ok(launcher),
            Err(err) => Err(Unenforced {
                problems: vec![err.to_string()],
                cause: cause_of_failure(&err, profile, is_open, clients),
            }),
        }
    }

    /// Starts a program in its own process group, with pipes on all three standard streams.
    ///
    /// # Errors
    /// The system's reason.
    pub(crate) fn start(self: &Arc<Self>, mut start: Start<'_>) -> io::Result<Child> {
        for path in start.read.iter_mut().chain(&mut start.run) {
            *path = self.real(path)?;
        }
        let (ends, pipes) = streams(start.streams)?;
        let (compartment, answer) = self.send(&start, ends, "")?;
        // If the answer is an error, the compartment is dropped.
        let pid = pid_of(&answer)?;
        let exit = pidfd_open(pid, PidfdFlags::empty())?;
        self.open_next(compartment.mount_point);
        let occupied = Occupied { compartment, idle: Arc::clone(&self.idle), exit };
        Ok(Child::guarded(pid, Box::new(occupied), pipes))
    }

    /// Returns the real path of one of the program's own files.
    ///
    /// # Errors
    /// A link leads to it out of what the profile may write: the program may have made it.
    pub(crate) fn real(&self, path: &Path) -> io::Result<PathBuf> {
        if self.writable.is_empty() {
            return std::fs::canonicalize(path);
        }
        let is_writable = |path: &Path| self.writable.iter().any(|place| path.starts_with(place));
        real_path(path, is_writable, |real| is_writable(real) || is_system(real))
            .map_err(|err| io::Error::new(err.kind(), format!("{}: {err}", path.display())))
    }

    /// Returns whether the paths of the profile still lead to the same files.
    pub(super) fn is_current(&self) -> bool {
        self.declared.iter().all(|(path, led_to)| identity(path) == *led_to)
    }

    fn ready(&self) -> io::Result<()> {
        let mut running = self.running.lock();
        if running.is_none() {
            *running = Some(self.run()?);
        }
        Ok(())
    }

    /// Attempts, inside the profile, the operations that it refuses.
    fn probe(&self, expected: &str) -> io::Result<()> {
        let nothing = Path::new("/");
        let start = Start {
            file: nothing,
            arg0: OsStr::new(""),
            directory: None,
            args: Vec::new(),
            env: Vec::new(),
            read: Vec::new(),
            run: Vec::new(),
            is_by_shell: false,
            streams: Streams::Piped,
            sealed: None,
        };
        let sent = streams(start.streams).and_then(|(ends, _)| self.send(&start, ends, expected));
        let probed = sent.and_then(|(_, answer)| match answer == REFUSED.as_bytes() {
            true => Ok(()),
            false => Err(decode_error(&answer)),
        });
        probed.map_err(|err| io::Error::other(format!("a probe inside of the profile: {err}")))
    }

    /// Sends a start to a compartment, with the standard streams. Returns the compartment and its
    /// answer.
    fn send(
        &self,
        start: &Start<'_>,
        streams: [OwnedFd; 3],
        probe: &str,
    ) -> io::Result<(Compartment, Vec<u8>)> {
        let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
        let program = [
            bytes(start.file),
            start.arg0.as_bytes().to_vec(),
            start.directory.map(bytes).unwrap_or_default(),
            probe.as_bytes().to_vec(),
            if start.is_by_shell { b"shell".to_vec() } else { Vec::new() },
        ];
        let message = Message::default()
            .with(program)
            .with(start.args.iter().map(|arg| arg.as_bytes()))
            .with(start.env.iter().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]))
            .with(start.read.iter().map(|path| bytes(path)))
            .with(start.run.iter().map(|path| bytes(path)));
        let fds: Vec<_> = streams.iter().map(AsFd::as_fd).chain(start.sealed).collect();
        let compartment = self.request(&message, &fds, self.mount_point(start)?)?;
        drop(fds);
        drop(streams);
        match answer(&compartment.socket) {
            Ok(answer) => Ok((compartment, answer)),
            Err(_) if compartment.is_out_of_memory() => {
                Err(io::Error::other("its limit of memory is too low to start it"))
            }
            Err(err) => Err(err),
        }
    }

    /// Sends a start to a compartment that accepts it.
    fn request(
        &self,
        message: &Message,
        fds: &[BorrowedFd<'_>],
        mount_point: &'static str,
    ) -> io::Result<Compartment> {
        let mut busy = Vec::new();
        let sent = loop {
            let Some(mut compartment) = self.idle.take(mount_point) else { break None };
            match compartment.is_empty() {
                Ok(true) => match wire::write(compartment.socket.as_fd(), message, fds) {
                    Ok(()) => break Some(Ok(compartment)),
                    Err(err) if Errno::from_io_error(&err) == Some(Errno::TOOBIG) => {
                        break Some(Err(err));
                    }
                    // The compartment has died, and so has not read the request.
                    Err(_) => {}
                },
                Ok(false) => busy.push(compartment),
                Err(_) => {}
            }
        };
        busy.into_iter().for_each(|compartment| self.idle.keep(compartment));
        if let Some(sent) = sent {
            return sent;
        }
        let compartment = self.open(mount_point)?;
        wire::write(compartment.socket.as_fd(), message, fds)?;
        Ok(compartment)
    }

    /// Opens a compartment for the next program if this one's is used once and has a control group: it takes many milliseconds
    /// to enter the group.
    fn open_next(self: &Arc<Self>, mount_point: &'static str) {
        if !self.is_open || self.delegated().is_none() || !self.idle.is_empty() {
            return;
        }
        let launcher = Arc::clone(self);
        // Without a thread, the next program opens its own.
        let _ = thread::Builder::new().spawn(move || {
            if let Ok(compartment) = launcher.open(mount_point) {
                launcher.idle.keep(compartment);
            }
        });
    }

    /// Returns the control group in which compartments get theirs; `None` if no limit needs one.
    fn delegated(&self) -> Option<&'static Delegated> {
        cgroup::delegated().filter(|_| usage::is_watched(&self.limits))
    }

    /// Makes the launcher open a compartment. Restarts the launcher if it has died.
    fn open(&self, mount_point: &'static str) -> io::Result<Compartment> {
        let (socket, other) = UnixStream::pair()?;
        socket.set_read_timeout(Some(ANSWER))?;
        socket.set_write_timeout(Some(ANSWER))?;
        let message = Message::default().with([mount_point]);
        let group = self.delegated().map(|delegated| delegated.group(&self.limits)).transpose();
        let group = group.map_err(|err| io::Error::other(format!("control groups: {err}")))?;
        let directory = group.as_ref().map(Group::open).transpose()?;
        let fds: Vec<_> =
            [other.as_fd()].into_iter().chain(directory.as_ref().map(AsFd::as_fd)).collect();
        let mut running = self.running.lock();
        let mut is_new = false;
        let broker = loop {
            let launcher = match running.take() {
                Some(launcher) => launcher,
                None => {
                    is_new = true;
                    self.run()?
                }
            };
            let answered = wire::write(launcher.socket.as_fd(), &message, &fds)
                .and_then(|()| answer(&launcher.socket));
            match answered {
                Ok(answer) => {
                    let broker = launcher.broker.clone();
                    *running = Some(launcher);
                    pid_of(&answer)?;
                    break broker;
                }
                Err(err) if is_new => return Err(err),
                Err(_) => {}
            }
        };
        drop((running, fds));
        drop(other);
        let answer = answer(&socket)?;
        if answer != READY.as_bytes() {
            return Err(io::Error::other(String::from_utf8_lossy(&answer).into_owned()));
        }
        Ok(Compartment {
            socket,
            mount_point,
            is_used_once: self.is_open,
            is_left: false,
            _broker: broker,
            group,
        })
    }

    fn run(&self) -> io::Result<Running> {
        let (socket, other) = UnixStream::pair()?;
        socket.set_read_timeout(Some(ANSWER))?;
        socket.set_write_timeout(Some(ANSWER))?;
        let others = STARTS.read();
        // The reaper module explains the path. The working directory is the server's, as for every
        // program.
        let process = Command::new("/proc/self/exe")
            .arg0(ARG0)
            .arg(COMMAND)
            .env_clear()
            .process_group(0)
            .stdin(Stdio::from(OwnedFd::from(other)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        drop(others);
        let process = process?;
        let mut running = Running { socket, process, broker: None };
        let setup = self
            .setup
            .iter()
            .fold(Message::default(), |message, list| message.with(list.iter().cloned()));
        wire::write(running.socket.as_fd(), &setup, &[])?;
        let (answer, fds) = answer_with(&running.socket)?;
        if answer != READY.as_bytes() {
            return Err(io::Error::other(String::from_utf8_lossy(&answer).into_owned()));
        }
        if let Some((allowed, profile, clients)) = self.hosts.clone() {
            let listener = fds.into_iter().next().ok_or(io::ErrorKind::InvalidData)?;
            let broker = Broker::serve(listener.into(), allowed, profile, clients)?;
            running.broker = Some(Arc::new(broker));
        }
        Ok(running)
    }

    /// Returns a mount point for the temporary directory of a program that hides nothing that the
    /// program may use.
    fn mount_point(&self, start: &Start<'_>) -> io::Result<&'static str> {
        let concerns = |place: &Path| {
            let own = start.read.iter().chain(&start.run).map(PathBuf::as_path);
            let all = self
                .paths
                .iter()
                .map(PathBuf::as_path)
                .chain(own)
                .chain([start.file])
                .chain(start.directory);
            all.into_iter().any(|path| path.starts_with(place))
        };
        let free =
            MOUNT_POINTS.iter().find(|place| Path::new(place).is_dir() && !concerns(Path::new(place)));
        free.copied()
            .ok_or_else(|| io::Error::other("there is no directory to mount a temporary one on"))
    }
}

/// Returns the ends of the standard streams for the program, and the ends that the server keeps.
fn streams(streams: Streams) -> io::Result<([OwnedFd; 3], Option<[OwnedFd; 3]>)> {
    if streams != Streams::Piped {
        let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
        let output = if streams == Streams::Errors { stderr.as_fd() } else { stdout.as_fd() };
        let own = [stdin.as_fd(), output, stderr.as_fd()];
        let [stdin, stdout, stderr] = own.map(|stream| stream.try_clone_to_owned());
        return Ok(([stdin?, stdout?, stderr?], None));
    }
    let (input, stdin) = io::pipe()?;
    let (stdout, output) = io::pipe()?;
    let (stderr, errors) = io::pipe()?;
    Ok((
        [input.into(), output.into(), errors.into()],
        Some([stdin.into(), stdout.into(), stderr.into()]),
    ))
}

/// Extracts the process id of an answer.
///
/// # Errors
/// The number of an error is in its place.
fn pid_of(answer: &[u8]) -> io::Result<Pid> {
    let pid = answer.try_into().ok().map(i32::from_le_bytes).filter(|pid| *pid > 0);
    pid.and_then(Pid::from_raw).ok_or_else(|| decode_error(answer))
}

/// Receives one answer of a launcher or a spawner.
fn answer(socket: &UnixStream) -> io::Result<Vec<u8>> {
    answer_with(socket).map(|(answer, _)| answer)
}

/// Receives one answer with its descriptors.
fn answer_with(socket: &UnixStream) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let (message, fds) = wire::read(socket.as_fd())?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let [mut answer] = message.lists::<1>()?;
    let answer = answer.pop().ok_or(io::ErrorKind::InvalidData)?;
    Ok((answer, fds))
}

/// Returns whether the path belongs to the system directories, which every program may read and run.
fn is_system(path: &Path) -> bool {
    BASE_EXECUTE.iter().any(|base| path.starts_with(base))
}

/// Returns the directories of an interpreter's installation outside the system directories. This is the
/// directory around the directory of its program, if it looks like an installation, and otherwise the
/// file alone.
pub(crate) fn installation(program: &Path, home: Option<&OsString>) -> Vec<PathBuf> {
    // Real directories are compared: `/tmp/../bin` is `/bin`. The program itself may be a link, as in a
    // virtual environment.
    let directory = program.parent().and_then(|directory| std::fs::canonicalize(directory).ok());
    let named = directory.zip(program.file_name()).map(|(directory, name)| directory.join(name));
    let mut all: Vec<PathBuf> = Vec::new();
    for place in named.into_iter().chain(std::fs::canonicalize(program)) {
        if is_system(&place) {
            continue;
        }
        let prefix = place.parent().filter(|directory| {
            directory.file_name().is_some_and(|name| {
                ["bin", "shims", "sbin", "libexec"].iter().any(|known| name == *known)
            })
        });
        let prefix = prefix.and_then(Path::parent).filter(|prefix| {
            !is_wide(prefix, home.map(OsString::as_os_str))
                && !prefix.ends_with(".local")
                && (prefix.join("pyvenv.cfg").exists()
                    || ["lib", "libexec", "installs"].iter().any(|name| prefix.join(name).is_dir()))
        });
        all.push(prefix.map_or(place.clone(), Path::to_owned));
    }
    all.dedup();
    all
}

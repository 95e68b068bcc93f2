//! Ends tools when their server ends, even if SIGKILL ended the server.
//!
//! # How it works
//!
//! Every child carries the server's mark in its environment (`ORLA_INSTANCE`). Before the first child
//! starts, the server starts a *reaper*: its own program with a hidden command, in its own process
//! group. The reaper's standard input is a pipe that only the server holds. However the server ends,
//! that pipe reads end-of-file. The reaper then kills every process with the mark, and its process
//! group, until four looks in a row find none. It also finds a process that has moved to its own
//! session. A call only pays for a check whether the reaper still runs.
//!
//! A child that clears its environment loses the mark. To end such children too, the server notifies the
//! reaper through the pipe when it starts children, at most ten times a second. The reaper then looks a
//! few times which children the server has (`Children`).
//!
//! If control groups enforce limits, the reaper also removes those that the server has left.
//!
//! Signals to the server do not end the reaper. It ignores SIGHUP, SIGINT and SIGTERM. Its name and its
//! command line do not contain the server's name, so that `kill -HUP $(pgrep …)` does not find it.
//!
//! # What is deliberately absent
//!
//! A process that leaves both its group and its environment (`setsid env -i …`) is not found. A child
//! that has just cleared its environment when the server is killed is not found either: the first look
//! comes 10 ms after its start. Other systems than Linux do not show a process's environment, and have
//! no reaper.

mod children;

use std::env;
use std::ffi::OsStr;
use std::io::{self, PipeWriter};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use children::Children;
use parking_lot::{Mutex, RwLock};
use rustix::fs::{OFlags, fcntl_setfl};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::confinement::Sandboxes;
use crate::environment::Environment;

/// The hidden command of the server's program.
const COMMAND: &str = "__reaper";
/// The process name that the command line shows.
const ARG0: &str = "tool-reaper";
/// The variable that holds the mark.
pub const INSTANCE: &str = "ORLA_INSTANCE";

/// The minimum time between two starts of the reaper.
const RESTART_AFTER: Duration = Duration::from_secs(1);

/// The minimum time between two notifications about started children.
const NOTIFY_INTERVAL: Duration = Duration::from_millis(100);
/// When the reaper looks for children after a notification: for the child that was started then, for
/// children that were started before the next notification was due, and for children that had to wait
/// for a thread.
const LOOKS: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(120), Duration::from_secs(1)];

/// One running server, as its children identify it.
#[derive(Debug)]
pub struct Instance {
    mark: String,
    /// The reaper; `None` if the program cannot run as one.
    reaper: Option<Mutex<Reaper>>,
    /// The environment that children are started from.
    environment: RwLock<Arc<Environment>>,
    /// The sandboxes of children.
    sandboxes: Sandboxes,
}

#[derive(Debug, Default)]
struct Reaper {
    alive: Option<(Child, PipeWriter)>,
    last_start: Option<Instant>,
    /// When the reaper was last notified. A new reaper needs no notification.
    last_notification: Option<Instant>,
    warned: bool,
}

impl Instance {
    /// Creates an instance whose children end with it: all that carry its mark, and all that lead a
    /// process group. The running program must begin with [`run_if_asked`] and
    /// [`confinement::run_if_asked`](crate::confinement::run_if_asked), as the reaper and the launchers
    /// are the same program.
    pub fn guarded() -> Arc<Self> {
        Self::with(cfg!(target_os = "linux").then(Mutex::default))
    }

    /// Creates an instance whose children outlive it when it is killed: for programs that embed the
    /// runner and for tests.
    pub fn unguarded() -> Arc<Self> {
        Self::with(None)
    }

    fn with(reaper: Option<Mutex<Reaper>>) -> Arc<Self> {
        let sandboxes = Sandboxes::new(reaper.is_some());
        Arc::new(Self { mark: mark(), reaper, environment: RwLock::default(), sandboxes })
    }

    /// Returns the environment that children are started from.
    pub fn environment(&self) -> Arc<Environment> {
        Arc::clone(&self.environment.read())
    }

    /// Sets the environment that children are started from. Setting an equal environment changes
    /// nothing.
    pub fn set_environment(&self, environment: Environment) {
        let mut current = self.environment.write();
        if **current != environment {
            *current = Arc::new(environment);
        }
    }

    /// Returns the sandboxes of children.
    pub fn sandboxes(&self) -> &Sandboxes {
        &self.sandboxes
    }

    /// Returns the value of [`INSTANCE`] in every child.
    pub fn mark(&self) -> &str {
        &self.mark
    }

    /// Makes sure that the reaper runs. Call this function before each start of a child. A failure is
    /// logged once, and does not prevent the child from running.
    pub fn watch_over_children(&self) {
        let Some(reaper) = &self.reaper else { return };
        let mut reaper = reaper.lock();
        let Reaper { alive, last_notification, .. } = &mut *reaper;
        if let Some((child, lifeline)) = alive
            && matches!(child.try_wait(), Ok(None))
        {
            if last_notification.is_none_or(|at| at.elapsed() >= NOTIFY_INTERVAL) {
                *last_notification = Some(Instant::now());
                // A full pipe notifies the reaper as well.
                let _ = rustix::io::write(lifeline, &[0]);
            }
            return;
        }
        if reaper.last_start.is_some_and(|at| at.elapsed() < RESTART_AFTER) {
            return;
        }
        reaper.last_start = Some(Instant::now());
        match start(&self.mark) {
            Ok(alive) => (reaper.alive, reaper.last_notification) = (Some(alive), Some(Instant::now())),
            Err(err) if !reaper.warned => {
                reaper.warned = true;
                tracing::warn!(error = %err, "tools would outlive this server if it were killed: its reaper cannot start");
            }
            Err(_) => {}
        }
    }

    /// Returns the process id of the reaper.
    #[doc(hidden)]
    pub fn reaper_id(&self) -> Option<u32> {
        let reaper = self.reaper.as_ref()?.lock();
        reaper.alive.as_ref().map(|(child, _)| child.id())
    }
}

fn start(mark: &str) -> io::Result<(Child, PipeWriter)> {
    let (lifeline, held) = io::pipe()?;
    fcntl_setfl(&held, OFlags::NONBLOCK)?;
    // Through this path, the process is named `exe` and not after the program's file. The file may also
    // have been replaced or removed since the server started.
    let _others = crate::sealed::STARTS.read();
    #[cfg(target_os = "linux")]
    let groups = crate::cgroup::delegated().map(crate::cgroup::Delegated::directory);
    #[cfg(not(target_os = "linux"))]
    let groups = None::<&std::path::Path>;
    let child = Command::new("/proc/self/exe")
        .arg0(ARG0)
        .args([COMMAND, mark, &std::process::id().to_string()])
        .args(groups)
        .env_clear()
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::from(lifeline))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    Ok((child, held))
}

/// Serves as the reaper if this process was started as one, and returns true when it has finished. Call
/// this function first in `main`.
pub fn run_if_asked() -> bool {
    let mut args = env::args_os().skip(1);
    if args.next().as_deref() != Some(OsStr::new(COMMAND)) {
        return false;
    }
    if let (Some(mark), Some(server)) = (args.next(), args.next()) {
        reap(&mark, server.to_str().and_then(|server| server.parse().ok()));
        #[cfg(target_os = "linux")]
        if let Some(groups) = args.next() {
            crate::cgroup::sweep(groups.as_ref());
        }
    }
    true
}

/// Waits for the end of standard input, then kills every process that carries `mark` and was a child of `server`.
fn reap(mark: &OsStr, server: Option<i32>) {
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        // A handler that only records the signal: safe code has no way to ignore one.
        let _ = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
    let mut children = Children::of(server);
    children.follow(&io::stdin());
    let mut entry = format!("{INSTANCE}=").into_bytes();
    entry.extend_from_slice(mark.as_encoded_bytes());
    let mut quiet = 0;
    while quiet < 4 {
        quiet = if sweep(&entry) + children.kill() == 0 { quiet + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(8));
    }
}

/// Kills every process whose environment has `entry`. Returns how many there were.
#[cfg(target_os = "linux")]
fn sweep(entry: &[u8]) -> usize {
    use rustix::process::{
        Pid, PidfdFlags, Signal, getpgid, getpgrp, kill_process_group, pidfd_open, pidfd_send_signal,
    };
    let kill = |process: std::fs::DirEntry| -> Option<()> {
        let pid = Pid::from_raw(process.file_name().to_str()?.parse().ok()?)?;
        // The descriptor is opened before the look, so that no reused id is hit.
        let fd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let environment = std::fs::read(process.path().join("environ")).ok()?;
        environment.split(|byte| *byte == 0).any(|variable| variable == entry).then_some(())?;
        // The group may contain a process that has cleared its environment.
        if let Ok(group) = getpgid(Some(pid))
            && group != getpgrp()
        {
            let _ = kill_process_group(group, Signal::KILL);
        }
        pidfd_send_signal(&fd, Signal::KILL).ok()
    };
    std::fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(kill).count()
}

#[cfg(not(target_os = "linux"))]
fn sweep(_entry: &[u8]) -> usize {
    0
}

/// Returns a mark that differs for every instance on every machine.
fn mark() -> String {
    let random = getrandom::u64().unwrap_or_else(|_| {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        now.as_nanos() as u64
    });
    format!("{:x}-{random:016x}", std::process::id())
}

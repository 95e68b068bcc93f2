//! Tools die with their server, even when the server is killed by SIGKILL.
//!
//! # How it works
//!
//! Every child carries the server's mark in its environment (`ORLA_INSTANCE`). Before the first one
//! starts, the server starts a *reaper*: its own program with a hidden command, in a process group of
//! its own, whose standard input is a pipe that only the server holds. However the server ends, that
//! pipe reads end-of-file, and the reaper kills every process with the mark, and its process group,
//! until four looks in a row find none. A process that has moved to a session of its own is found
//! too. A call pays nothing for this but one look whether the reaper still lives.
//!
//! A child that clears its environment loses the mark. So that it dies as well, the server tells the
//! reaper through the pipe that it starts children, at most ten times a second, and the reaper then looks
//! a few times which children the server has (`Children`).
//!
//! The reaper survives what hits its server: it ignores SIGHUP, SIGINT and SIGTERM, and neither its
//! name nor its command line say the server's name, so that `kill -HUP $(pgrep …)` does not find it.
//!
//! # What is deliberately absent
//!
//! A process that leaves both its group and its environment behind (`setsid env -i …`) is not found, nor
//! is a child that has just cleared its environment when the server is killed: the first look comes 10 ms
//! after its start.
//! Other systems than Linux do not show a process's environment, and have no reaper.

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
/// What the command line shows instead of the program.
const ARG0: &str = "tool-reaper";
/// The variable that holds the mark.
pub const INSTANCE: &str = "ORLA_INSTANCE";

/// A reaper that keeps dying is not started more often than this.
const RESTART_AFTER: Duration = Duration::from_secs(1);

/// The server tells of children that it starts not more often than this.
const WORD_EVERY: Duration = Duration::from_millis(100);
/// When the reaper looks for children after such a word: for the one that was started then, for those
/// that were started before the next word was due, and for those that had to wait for a thread.
const LOOKS: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(120), Duration::from_secs(1)];

/// One running server, as its children know it.
#[derive(Debug)]
pub struct Instance {
    mark: String,
    /// None where the program cannot be a reaper.
    reaper: Option<Mutex<Reaper>>,
    /// What children get of the server's environment.
    environment: RwLock<Arc<Environment>>,
    /// What children are confined in.
    sandboxes: Sandboxes,
}

#[derive(Debug, Default)]
struct Reaper {
    alive: Option<(Child, PipeWriter)>,
    last_start: Option<Instant>,
    /// When it was last told that children start. A new one knows.
    last_word: Option<Instant>,
    warned: bool,
}

impl Instance {
    /// An instance whose children die with it: all that carry its mark, and all that lead a process group.
    /// The running program must begin with [`run_if_asked`] and
    /// [`confinement::run_if_asked`](crate::confinement::run_if_asked), as the reaper and the launchers are the same program.
    pub fn guarded() -> Arc<Self> {
        let reaper = cfg!(target_os = "linux").then(Mutex::default);
        Self::with(reaper)
    }

    /// An instance whose children outlive it when it is killed: for programs that embed the runner
    /// and for tests.
    pub fn unguarded() -> Arc<Self> {
        Self::with(None)
    }

    fn with(reaper: Option<Mutex<Reaper>>) -> Arc<Self> {
        let sandboxes = Sandboxes::new(reaper.is_some());
        Arc::new(Self { mark: mark(), reaper, environment: RwLock::default(), sandboxes })
    }

    /// The environment that children are started from.
    pub fn environment(&self) -> Arc<Environment> {
        Arc::clone(&self.environment.read())
    }

    /// Sets the environment that children are started from. The same environment changes nothing.
    pub fn set_environment(&self, environment: Environment) {
        let mut current = self.environment.write();
        if **current != environment {
            *current = Arc::new(environment);
        }
    }

    /// What children are confined in.
    pub fn sandboxes(&self) -> &Sandboxes {
        &self.sandboxes
    }

    /// What every child has in [`INSTANCE`].
    pub fn mark(&self) -> &str {
        &self.mark
    }

    /// Makes sure that the reaper runs. To be called before each start of a child; a failure is
    /// logged once, and does not prevent the child from running.
    pub fn watch_over_children(&self) {
        let Some(reaper) = &self.reaper else { return };
        let mut reaper = reaper.lock();
        let Reaper { alive, last_word, .. } = &mut *reaper;
        if let Some((child, lifeline)) = alive
            && matches!(child.try_wait(), Ok(None))
        {
            if last_word.is_none_or(|at| at.elapsed() >= WORD_EVERY) {
                *last_word = Some(Instant::now());
                // A full pipe says it as well.
                let _ = rustix::io::write(lifeline, &[0]);
            }
            return;
        }
        if reaper.last_start.is_some_and(|at| at.elapsed() < RESTART_AFTER) {
            return;
        }
        reaper.last_start = Some(Instant::now());
        match start(&self.mark) {
            Ok(alive) => (reaper.alive, reaper.last_word) = (Some(alive), Some(Instant::now())),
            Err(err) if !reaper.warned => {
                reaper.warned = true;
                tracing::warn!(error = %err, "tools would outlive this server if it were killed: its reaper cannot start");
            }
            Err(_) => {}
        }
    }

    /// The process id of the reaper.
    #[doc(hidden)]
    pub fn reaper_id(&self) -> Option<u32> {
        let reaper = self.reaper.as_ref()?.lock();
        reaper.alive.as_ref().map(|(child, _)| child.id())
    }
}

fn start(mark: &str) -> io::Result<(Child, PipeWriter)> {
    let (lifeline, held) = io::pipe()?;
    fcntl_setfl(&held, OFlags::NONBLOCK)?;
    // By this path the process is called `exe` and not as the program's file, and the file
    // may have been replaced or removed since the server started.
    let _others = crate::sealed::STARTS.read();
    let child = Command::new("/proc/self/exe")
        .arg0(ARG0)
        .args([COMMAND, mark, &std::process::id().to_string()])
        .env_clear()
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::from(lifeline))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    Ok((child, held))
}

/// Serves as the reaper if this process was started to be one, and returns true when that is done.
/// To be called first thing in `main`.
pub fn run_if_asked() -> bool {
    let mut args = env::args_os().skip(1);
    if args.next().as_deref() != Some(OsStr::new(COMMAND)) {
        return false;
    }
    if let (Some(mark), Some(server)) = (args.next(), args.next()) {
        reap(&mark, server.to_str().and_then(|server| server.parse().ok()));
    }
    true
}

/// Waits for the end of standard input, then kills every process that carries `mark` and was a child of `server`.
fn reap(mark: &OsStr, server: Option<i32>) {
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        // A handler that only notes the signal: safe code has no way to ignore one.
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
        // Opened before the look, so that no reused id is hit.
        let fd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let environment = std::fs::read(process.path().join("environ")).ok()?;
        environment.split(|byte| *byte == 0).any(|variable| variable == entry).then_some(())?;
        // Its group may hold someone who has cleared the environment.
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

/// Different in every instance on every machine.
fn mark() -> String {
    let random = getrandom::u64().unwrap_or_else(|_| {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        now.as_nanos() as u64
    });
    format!("{:x}-{random:016x}", std::process::id())
}

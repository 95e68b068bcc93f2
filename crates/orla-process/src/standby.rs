//! Starts programs before they are called, and lets them wait for their input.
//!
//! # How it works
//!
//! One thread starts the processes, watches them, and ends those that are no longer wanted. A call takes
//! the process that has waited longest ([`Standby::take`]), and the thread starts the next. Before its
//! call, a process may only start and wait. A process that exits or writes to standard output has
//! failed. After three failures in a row, no more processes are started until the file changes.
//!
//! A process belongs to one version of its file and of the files that its declaration names. A call
//! compares the versions, so that the current content of the file runs, confined to the current files,
//! also without a reload.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitStatus;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};

use crate::child::{Program, ProgramVersion};
use crate::environment::Environment;
use crate::exit_watch::ExitWatch;
use crate::process::{Child, kill};
use crate::reaper::Instance;
use crate::signal::{KILLED, exit_code};
use crate::start_failure::StartFailure;
use crate::wake::Wake;

/// A process that ends after this time has waited as it should. Its end is not a failure of the program.
const EARLY: Duration = Duration::from_secs(10);

/// After this many failures in a row, no more processes are started.
const MAX_FAILURES: u32 = 3;

/// The number of bytes of each output that the reason of a failure quotes.
const MAX_QUOTED: usize = 4096;

/// How long a killed process may take to end before its status is given up.
const KILL_WAIT: Duration = Duration::from_secs(1);

/// How often the thread checks for the end of processes that it has killed.
const REAP_EVERY: Duration = Duration::from_millis(5);

/// The limits of waiting processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandbyLimits {
    /// The maximum number of waiting processes, of all programs together.
    pub max_processes: usize,
    /// The maximum time that a process waits. After that, none of its program is started until the next
    /// call.
    pub max_idle: Duration,
}

impl Default for StandbyLimits {
    fn default() -> Self {
        Self { max_processes: 32, max_idle: Duration::from_secs(3600) }
    }
}

/// A program to prestart.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The program to start.
    pub program: Arc<Program>,
    /// The arguments, without the program's name.
    pub args: Vec<OsString>,
    /// Additional variables.
    pub env: Vec<(&'static str, OsString)>,
    /// The number of processes that wait for a call.
    pub count: usize,
}

/// Keeps processes waiting. Dropping it ends the processes.
#[derive(Debug)]
pub struct Standby {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    instance: Arc<Instance>,
    state: Mutex<State>,
    wake: Wake,
}

#[derive(Debug, Default)]
struct State {
    limits: StandbyLimits,
    pools: Vec<Pool>,
    /// Processes that were killed and are not reaped yet.
    ending: Vec<Child>,
    has_thread: bool,
    is_closing: bool,
}

/// The waiting processes of one program.
#[derive(Debug)]
struct Pool {
    wanted: Wanted,
    /// The environment that the processes were started from.
    environment: Arc<Environment>,
    /// The version of the program before the last start; `None` if there was no start.
    version: Option<ProgramVersion>,
    waiting: VecDeque<Waiting>,
    /// Processes that failed in a row.
    failures: u32,
    activity: Activity,
}

/// Whether processes are started.
#[derive(Debug)]
enum Activity {
    /// As many processes as wanted are started.
    Active,
    /// The processes waited too long, or one could not be started. None is started until the next call.
    Asleep,
    /// The program failed too often in a row, with the reason. None is started until the file changes.
    Failed(Arc<StartFailure>),
}

#[derive(Debug)]
struct Waiting {
    child: Child,
    watched: Arc<PolledDescriptors>,
    since: Instant,
}

/// The descriptors that the thread polls while a call may take the process.
#[derive(Debug)]
struct PolledDescriptors {
    exit: ExitWatch,
    stdout: Option<OwnedFd>,
}

/// A process that waits for its input. Dropping it ends the process and its group.
#[derive(Debug)]
pub struct Started {
    child: Option<Child>,
    /// Where the process is reaped if it is not used.
    home: Weak<Shared>,
}

impl Standby {
    /// Creates a standby without programs; see [`prestart`](Self::prestart).
    ///
    /// # Errors
    /// The server has no file descriptors left.
    pub fn new(instance: Arc<Instance>) -> io::Result<Self> {
        Ok(Self { shared: Arc::new(Shared { instance, state: Mutex::default(), wake: Wake::new()? }) })
    }

    /// Sets which programs are prestarted. Waiting processes of unchanged programs are kept, all others
    /// are ended.
    pub fn prestart(&self, wanted: Vec<Wanted>, limits: StandbyLimits) {
        let environment = self.shared.instance.environment();
        let mut state = self.shared.lock();
        state.limits = limits;
        let total: usize = wanted.iter().map(|wanted| wanted.count).sum();
        if total > limits.max_processes {
            tracing::warn!(
                wanted = total,
                limit = limits.max_processes,
                "not all prestarted processes are started: raise max_prestarted, or lower prestart of some tools"
            );
        }
        let mut before = std::mem::take(&mut state.pools);
        for wanted in wanted {
            let same = before.iter().position(|pool| pool.serves(&wanted, &environment));
            let mut pool = match same {
                Some(index) => before.swap_remove(index),
                None => Pool::new(wanted.clone(), Arc::clone(&environment)),
            };
            if pool.version != wanted.program.version() {
                state.ending.extend(pool.renew().map(Waiting::kill));
            }
            pool.wanted = wanted;
            let excess = pool.waiting.len().saturating_sub(pool.wanted.count);
            state.ending.extend(pool.waiting.drain(..excess).map(Waiting::kill));
            // A reload allows another attempt.
            (pool.failures, pool.activity) = (0, Activity::Active);
            state.pools.push(pool);
        }
        state.end_excess();
        state.ending.extend(before.into_iter().flat_map(|pool| pool.waiting).map(Waiting::kill));
        let needs_thread = !state.has_thread && !state.pools.is_empty();
        state.has_thread |= needs_thread;
        drop(state);
        if needs_thread {
            let shared = Arc::clone(&self.shared);
            let thread = thread::Builder::new().name("standby".to_owned());
            if let Err(err) = thread.spawn(move || shared.tend()) {
                self.shared.lock().has_thread = false;
                tracing::warn!(error = %err, "no process can be prestarted: the thread for them cannot start");
            }
        }
        self.shared.wake.wake();
    }

    /// Takes a waiting process of this program; `None` if none waits, and the caller starts one.
    ///
    /// # Errors
    /// The program fails when it is prestarted; the reason.
    pub fn take(&self, program: &Arc<Program>) -> Result<Option<Started>, Arc<StartFailure>> {
        // Looked up outside of the lock: the file system may be slow.
        let version = program.version();
        let mut state = self.shared.lock();
        let State { pools, ending, .. } = &mut *state;
        let Some(pool) = pools.iter_mut().find(|pool| Arc::ptr_eq(&pool.wanted.program, program)) else {
            return Ok(None);
        };
        if pool.version != version {
            ending.extend(pool.renew().map(Waiting::kill));
        }
        // Failed processes stay for the thread, which determines the reason.
        let index = pool.waiting.iter().position(|waiting| !waiting.has_failed());
        let taken = index.and_then(|index| pool.waiting.remove(index));
        if taken.is_some() || matches!(pool.activity, Activity::Asleep) {
            pool.activity = Activity::Active;
        }
        self.shared.wake.wake();
        match (taken, &pool.activity) {
            (Some(waiting), _) => {
                pool.failures = 0;
                Ok(Some(Started { child: Some(waiting.child), home: Arc::downgrade(&self.shared) }))
            }
            (None, Activity::Failed(failure)) => Err(Arc::clone(failure)),
            (None, _) => Ok(None),
        }
    }
}

impl Standby {
    /// Ends every waiting process, and starts no more. A process would treat the end of its input as a
    /// call.
    pub fn end(&self) {
        let mut state = self.shared.lock();
        state.is_closing = true;
        state.end_all();
        drop(state);
        self.shared.wake.wake();
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Runs the thread: starts missing processes, and watches waiting ones.
    fn tend(&self) {
        loop {
            let mut state = self.lock();
            state.reap();
            if state.is_closing && state.ending.is_empty() {
                return;
            }
            let now = Instant::now();
            state.end_idle(now);
            if let Some(start) = state.next_start() {
                // Starting takes time, and no call may wait for it.
                drop(state);
                let (version, child) = self.start(&start);
                self.lock().add(&start, version, child);
                continue;
            }
            let watched: Vec<Arc<PolledDescriptors>> = state.watched().cloned().collect();
            let until = state.next_look(now);
            drop(state);
            self.sleep(&watched, until);
            let failed = self.lock().take_failed();
            for (start, waiting) in failed {
                // Determining the reason takes time, and no call may wait for it.
                let is_early = waiting.since.elapsed() < EARLY;
                let mut child = waiting.kill();
                let failure = is_early.then(|| failure(&mut child));
                self.lock().count_failure(&start, failure, child);
            }
        }
    }

    fn start(&self, start: &Start) -> (Option<ProgramVersion>, io::Result<Child>) {
        let Wanted { program, args, env, .. } = &start.wanted;
        // The version is read before the start, so that a later change is noticed.
        let version = program.version();
        self.instance.watch_over_children();
        (version, program.start(args, env, &start.environment))
    }

    /// Sleeps until a process acts, a call arrives, or this much time has passed.
    fn sleep(&self, watched: &[Arc<PolledDescriptors>], until: Option<Duration>) {
        let mut fds = vec![PollFd::from_borrowed_fd(self.wake.fd(), PollFlags::IN)];
        for watched in watched {
            let pipes = [watched.exit.fd(), watched.stdout.as_ref().map(AsFd::as_fd)];
            fds.extend(
                pipes.into_iter().flatten().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)),
            );
        }
        let until = watched.iter().fold(until, |until, it| {
            let nap = it.exit.poll_timeout(until.unwrap_or(Duration::MAX));
            (nap < Duration::MAX).then_some(nap)
        });
        let timeout = until.and_then(|until| Timespec::try_from(until).ok());
        // After an interruption, the thread looks again.
        let _ = poll(&mut fds, timeout.as_ref());
        self.wake.clear();
    }
}

/// A process to start.
#[derive(Debug)]
struct Start {
    wanted: Wanted,
    environment: Arc<Environment>,
}

impl State {
    /// Ends every waiting process.
    fn end_all(&mut self) {
        self.ending.extend(self.pools.drain(..).flat_map(|pool| pool.waiting).map(Waiting::kill));
    }

    fn reap(&mut self) {
        self.ending.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }

    /// Ends processes that have waited too long.
    fn end_idle(&mut self, now: Instant) {
        for pool in &mut self.pools {
            let is_idle = |waiting: &Waiting| now.duration_since(waiting.since) >= self.limits.max_idle;
            if pool.waiting.front().is_some_and(is_idle) {
                pool.activity = Activity::Asleep;
                self.ending.extend(pool.waiting.drain(..).map(Waiting::kill));
            }
        }
    }

    fn next_start(&self) -> Option<Start> {
        let total: usize = self.pools.iter().map(|pool| pool.waiting.len()).sum();
        if total >= self.limits.max_processes {
            return None;
        }
        let pool = self.pools.iter().find(|pool| {
            matches!(pool.activity, Activity::Active) && pool.waiting.len() < pool.wanted.count
        })?;
        Some(pool.start())
    }

    /// Adds a started process, if it is still wanted.
    fn add(&mut self, start: &Start, version: Option<ProgramVersion>, child: io::Result<Child>) {
        let pool = self.pools.iter_mut().find(|pool| pool.serves(&start.wanted, &start.environment));
        let child = match child {
            Ok(child) => child,
            Err(err) => {
                tracing::debug!(program = %start.wanted.program.path().display(), error = %err, "not prestarted");
                if let Some(pool) = pool {
                    pool.activity = Activity::Asleep;
                }
                return;
            }
        };
        let waiting = Waiting::new(child);
        let Some(pool) = pool.filter(|pool| pool.waiting.len() < pool.wanted.count) else {
            return self.ending.push(waiting.kill());
        };
        if pool.version != version {
            self.ending.extend(pool.renew().map(Waiting::kill));
            pool.version = version;
        }
        pool.waiting.push_back(waiting);
    }

    /// Removes the processes that did more than wait.
    fn take_failed(&mut self) -> Vec<(Start, Waiting)> {
        let mut failed = Vec::new();
        for pool in &mut self.pools {
            for _ in 0..pool.waiting.len() {
                let Some(waiting) = pool.waiting.pop_front() else { break };
                if waiting.has_failed() {
                    failed.push((pool.start(), waiting));
                } else {
                    pool.waiting.push_back(waiting);
                }
            }
        }
        failed
    }

    /// Counts a failure of a program. `None` means that the process had waited as it should.
    fn count_failure(&mut self, start: &Start, failure: Option<StartFailure>, child: Child) {
        self.ending.push(child);
        let pool = self.pools.iter_mut().find(|pool| pool.serves(&start.wanted, &start.environment));
        let (Some(pool), Some(failure)) = (pool, failure) else { return };
        pool.failures += 1;
        if pool.failures >= MAX_FAILURES {
            tracing::warn!(program = %pool.wanted.program.path().display(), "{}", failure.reason);
            pool.activity = Activity::Failed(failure.into());
        }
    }

    /// Ends processes that exceed the limit.
    fn end_excess(&mut self) {
        let mut left = self.limits.max_processes;
        for pool in &mut self.pools {
            let excess = pool.waiting.len().saturating_sub(left);
            self.ending.extend(pool.waiting.drain(..excess).map(Waiting::kill));
            left -= pool.waiting.len();
        }
    }

    fn watched(&self) -> impl Iterator<Item = &Arc<PolledDescriptors>> {
        self.pools.iter().flat_map(|pool| &pool.waiting).map(|waiting| &waiting.watched)
    }

    /// Returns the time until the thread's next look.
    fn next_look(&self, now: Instant) -> Option<Duration> {
        if !self.ending.is_empty() {
            return Some(REAP_EVERY);
        }
        let fronts = self.pools.iter().filter_map(|pool| pool.waiting.front());
        fronts.map(|waiting| (waiting.since + self.limits.max_idle).saturating_duration_since(now)).min()
    }
}

impl Pool {
    fn new(wanted: Wanted, environment: Arc<Environment>) -> Self {
        Self {
            wanted,
            environment,
            version: None,
            waiting: VecDeque::new(),
            failures: 0,
            activity: Activity::Active,
        }
    }

    /// Returns whether the processes match `wanted`.
    fn serves(&self, wanted: &Wanted, environment: &Arc<Environment>) -> bool {
        self.wanted.program == wanted.program
            && self.wanted.args == wanted.args
            && self.wanted.env == wanted.env
            && Arc::ptr_eq(&self.environment, environment)
    }

    fn start(&self) -> Start {
        Start { wanted: self.wanted.clone(), environment: Arc::clone(&self.environment) }
    }

    /// Starts again with another version of the file; returns the processes of the old one.
    fn renew(&mut self) -> impl Iterator<Item = Waiting> + use<> {
        (self.version, self.failures, self.activity) = (None, 0, Activity::Active);
        std::mem::take(&mut self.waiting).into_iter()
    }
}

impl Waiting {
    fn new(child: Child) -> Self {
        let exit = ExitWatch::new(child.pid());
        let stdout = child.stdout.as_ref().and_then(|pipe| pipe.as_fd().try_clone_to_owned().ok());
        Self { child, watched: Arc::new(PolledDescriptors { exit, stdout }), since: Instant::now() }
    }

    /// Returns whether the process did anything but wait: it has exited, has written, or has closed its
    /// output.
    fn has_failed(&self) -> bool {
        let is_readable = |pipe: &OwnedFd| {
            let mut fds = [PollFd::new(pipe, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
        };
        self.watched.exit.has_exited() || self.watched.stdout.as_ref().is_some_and(is_readable)
    }

    /// Kills the group. The process still has to be reaped.
    fn kill(self) -> Child {
        kill(self.child.pid());
        self.child
    }
}

/// Describes what a killed process did instead of waiting, with its standard error.
fn failure(child: &mut Child) -> StartFailure {
    let output = child.stdout.take().map(File::from).map(quote).unwrap_or_default();
    let stderr = child.stderr.take().map(File::from).map(quote).unwrap_or_default();
    let status = status(child);
    let what = match status.and_then(|status| status.code()) {
        _ if !output.is_empty() => "writes to standard output before a call".to_owned(),
        Some(code) => format!("exits before a call (exit code {code})"),
        None => "ends or closes standard output before a call".to_owned(),
    };
    let colon = if stderr.is_empty() { "" } else { ": " };
    let reason = format!(
        "a prestarted process {what}{colon}{stderr}; read standard input to its end first, or remove `prestart`"
    );
    let exit_code = status.map_or(KILLED, exit_code);
    StartFailure { exit_code, reason, detail: Some(stderr) }
}

/// Returns the status of a process that was killed, or ended before.
fn status(child: &mut Child) -> Option<ExitStatus> {
    let end = Instant::now() + KILL_WAIT;
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < end => thread::sleep(Duration::from_millis(1)),
            status => return status.ok().flatten(),
        }
    }
}

/// Returns the bytes in the pipe, without waiting for more.
fn quote(mut pipe: impl io::Read + AsFd) -> String {
    let mut bytes = vec![0; MAX_QUOTED];
    let read = fcntl_setfl(&pipe, OFlags::NONBLOCK).map_or(0, |()| pipe.read(&mut bytes).unwrap_or(0));
    String::from_utf8_lossy(&bytes[..read]).trim().to_owned()
}

impl Started {
    /// Returns the process. The caller then has to end and reap it.
    ///
    /// # Errors
    /// It was taken already.
    pub(crate) fn into_child(mut self) -> io::Result<Child> {
        self.child.take().ok_or_else(|| io::Error::other("the process was taken already"))
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        kill(child.pid());
        match self.home.upgrade() {
            Some(home) => {
                home.lock().ending.push(child);
                home.wake.wake();
            }
            // The thread has ended. The killed process exits in a moment.
            None => drop(child.wait()),
        }
    }
}

#[cfg(test)]
mod tests;

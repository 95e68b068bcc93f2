//! Follows one program from its start to its end. Runs on a thread of the [pool](super::pool).

use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};

use super::Job;
use super::capture::{Captured, OutputFilter, Reader};
use super::pool::Control;
use crate::exit_watch::ExitWatch;
use crate::limits::Limits;
use crate::process::{Child, kill};
use crate::wake::Wake;

/// How a program ended, and what it wrote.
#[derive(Debug)]
pub struct Ended {
    /// Why it ended.
    pub cause: Cause,
    /// The outcome for its process.
    pub status: Status,
    /// The captured standard output.
    pub stdout: Captured,
    /// The captured standard error, as far as it was kept.
    pub stderr: Captured,
    /// The limit for which the program was ended.
    pub breach: Option<&'static str>,
    /// The time from the beginning of the start to the end.
    pub duration: Duration,
}

/// The outcome for a program's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// There was no process: the deadline or the cancellation came before the start.
    NeverStarted,
    /// The process has exited.
    Exited(ExitStatus),
    /// The process was killed, but the kernel has not released it yet.
    Lost,
}

impl Status {
    /// Returns the exit status, if the process has exited.
    pub fn exit(self) -> Option<ExitStatus> {
        match self {
            Self::Exited(status) => Some(status),
            Self::NeverStarted | Self::Lost => None,
        }
    }
}

/// Why a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The program ended itself, or a signal from elsewhere ended it.
    Itself,
    /// The deadline passed.
    Deadline,
    /// The call was cancelled.
    Cancelled,
}

/// Runs `job` to its end. A child that does not exit after SIGKILL goes to `unreaped`.
///
/// # Errors
/// The program could not be started.
pub(super) fn run(
    job: Job,
    control: &Control,
    wake: &Wake,
    buffer: &mut [u8],
    unreaped: &mut dyn FnMut(Child),
) -> io::Result<Ended> {
    let started = Instant::now();
    if control.is_cancelled() {
        return Ok(Ended::never(Cause::Cancelled));
    }
    if started >= job.deadline {
        return Ok(Ended::never(Cause::Deadline));
    }
    let mut child = job.process.child()?;
    let streams = Streams::of(&mut child, job.stdin, &job.limits, job.stderr);
    let leader = Leader::new(child, unreaped);
    let mut following = Following {
        streams: streams?,
        group: leader.group,
        watch: ExitWatch::new(leader.group),
        phase: Phase::Running { until: job.deadline },
        cause: Cause::Itself,
        exited: false,
        limits: job.limits,
    };
    following.until_it_ends(control, wake, buffer);
    kill(leader.group);
    let Following { streams, watch, cause, exited, .. } = following;
    let (stdout, stderr) = streams.finish(buffer);
    let reaped = if exited || watch.has_exited() { leader.reap() } else { None };
    let (status, breach) =
        reaped.map_or((Status::Lost, None), |(status, breach)| (Status::Exited(status), breach));
    Ok(Ended { cause, status, stdout, stderr, breach, duration: started.elapsed() })
}

impl Ended {
    /// Returns the result for a program that was not started in time.
    pub fn never(cause: Cause) -> Self {
        Self {
            cause,
            status: Status::NeverStarted,
            stdout: Captured::default(),
            stderr: Captured::default(),
            breach: None,
            duration: Duration::ZERO,
        }
    }
}

/// A started program. Dropping it kills the group, also after an error or a panic. A program that has
/// not been reaped goes to `unreaped`.
struct Leader<'a> {
    child: Option<Child>,
    group: Pid,
    unreaped: &'a mut dyn FnMut(Child),
}

impl<'a> Leader<'a> {
    fn new(child: Child, unreaped: &'a mut dyn FnMut(Child)) -> Self {
        let group = child.pid();
        Self { child: Some(child), group, unreaped }
    }

    /// Returns the status of a program that has exited.
    fn reap(mut self) -> Option<(ExitStatus, Option<&'static str>)> {
        let mut child = self.child.take()?;
        let status = child.wait().ok()?;
        Some((status, child.breach()))
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            kill(self.group);
            (self.unreaped)(child);
        }
    }
}

struct Following {
    streams: Streams,
    group: Pid,
    watch: ExitWatch,
    phase: Phase,
    cause: Cause,
    /// Whether the leader has exited. It stays a zombie until the end.
    exited: bool,
    limits: Limits,
}

/// The progress of ending a group.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Running {
        until: Instant,
    },
    /// SIGTERM was sent.
    Terminating {
        until: Instant,
    },
    /// SIGKILL was sent.
    Killed {
        until: Instant,
    },
}

impl Phase {
    fn until(self) -> Instant {
        match self {
            Self::Running { until } | Self::Terminating { until } | Self::Killed { until } => until,
        }
    }
}

impl Following {
    /// Feeds and reads until the leader has exited. A grandchild that holds the pipes does not delay the
    /// call. Only after SIGTERM does the rest of the group get the grace period too.
    fn until_it_ends(&mut self, control: &Control, wake: &Wake, buffer: &mut [u8]) {
        loop {
            self.wait(wake, buffer);
            if self.exited
                && !(matches!(self.phase, Phase::Terminating { .. }) && self.streams.are_open())
            {
                return;
            }
            if matches!(self.phase, Phase::Running { .. }) && control.is_cancelled() {
                self.ask(Cause::Cancelled);
            }
            if Instant::now() >= self.phase.until() {
                match self.phase {
                    Phase::Running { .. } => self.ask(Cause::Deadline),
                    Phase::Terminating { .. } if self.exited => return,
                    Phase::Terminating { .. } => self.kill(),
                    Phase::Killed { .. } => return,
                }
            }
        }
    }

    /// Sleeps until an event occurs, and handles it.
    fn wait(&mut self, wake: &Wake, buffer: &mut [u8]) {
        self.streams.feed();
        let left = self.phase.until().saturating_duration_since(Instant::now());
        // The timeout is rounded up. Otherwise the last millisecond would be spent in a busy loop.
        let nap = self.watch.poll_timeout(left).saturating_add(Duration::from_nanos(1));
        let mut fds = Vec::with_capacity(5);
        let mut slot = |fd, flags| {
            fds.push(PollFd::from_borrowed_fd(fd, flags));
            fds.len() - 1
        };
        let woken = slot(wake.fd(), PollFlags::IN);
        let exit = (!self.exited).then(|| self.watch.fd()).flatten().map(|fd| slot(fd, PollFlags::IN));
        let out = self.streams.stdout.pipe().map(|fd| slot(fd, PollFlags::IN));
        let err = self.streams.stderr.pipe().map(|fd| slot(fd, PollFlags::IN));
        if let Some(fd) = self.streams.stdin_waiting() {
            slot(fd, PollFlags::OUT);
        }
        let timeout = Timespec::try_from(nap).ok();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) | Err(Errno::INTR) if self.watch.fd().is_some() => return,
            Ok(_) | Err(_) => {}
        }
        let ready = |slot: Option<usize>| slot.is_some_and(|slot| !fds[slot].revents().is_empty());
        let (woken, exit, out, err) = (ready(Some(woken)), ready(exit), ready(out), ready(err));
        drop(fds);
        if woken {
            wake.clear();
        }
        if out {
            self.streams.stdout.read(buffer);
        }
        if err {
            self.streams.stderr.read(buffer);
        }
        self.exited = self.exited || exit || (self.watch.fd().is_none() && self.watch.has_exited());
    }

    fn ask(&mut self, cause: Cause) {
        self.cause = cause;
        if self.limits.grace.is_zero() {
            return self.kill();
        }
        self.phase = Phase::Terminating { until: Instant::now() + self.limits.grace };
        signal(self.group, Signal::TERM);
        // A stopped process would not handle the signal.
        signal(self.group, Signal::CONT);
    }

    fn kill(&mut self) {
        self.phase = Phase::Killed { until: Instant::now() + self.limits.kill_wait };
        kill(self.group);
    }
}

/// Signals a group. A missing group is not an error.
fn signal(group: Pid, signal: Signal) {
    let _ = kill_process_group(group, signal);
}

/// The parent's ends of a child's three pipes.
struct Streams {
    stdin: Option<OwnedFd>,
    unsent: Vec<u8>,
    sent: usize,
    stdout: Reader,
    stderr: Reader,
}

impl Streams {
    fn of(
        child: &mut Child,
        input: Vec<u8>,
        limits: &Limits,
        filter: Option<Box<dyn OutputFilter>>,
    ) -> io::Result<Self> {
        let stdin = child.stdin.take();
        if let Some(pipe) = &stdin {
            fcntl_setfl(pipe, OFlags::NONBLOCK)?;
        }
        let limit = limits.max_output_bytes;
        let stdout = Reader::new(child.stdout.take(), limit, None)?;
        let stderr = Reader::new(child.stderr.take(), limit, filter)?;
        Ok(Self { stdin, unsent: input, sent: 0, stdout, stderr })
    }

    /// Writes as much as the pipe accepts, and closes it when all is written. A program need not read
    /// its input.
    fn feed(&mut self) {
        while let Some(pipe) = &self.stdin {
            match &self.unsent[self.sent..] {
                [] => self.stdin = None,
                rest => match rustix::io::write(pipe, rest) {
                    Ok(count) => self.sent += count,
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => return,
                    Err(_) => self.stdin = None,
                },
            }
        }
        if self.sent > 0 {
            (self.unsent, self.sent) = (Vec::new(), 0);
        }
    }

    fn stdin_waiting(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        use std::os::fd::AsFd as _;
        self.stdin.as_ref().map(|pipe| pipe.as_fd())
    }

    /// Returns whether a process may still write.
    fn are_open(&self) -> bool {
        self.stdout.pipe().is_some() || self.stderr.pipe().is_some()
    }

    fn finish(self, buffer: &mut [u8]) -> (Captured, Captured) {
        (self.stdout.finish(buffer), self.stderr.finish(buffer))
    }
}

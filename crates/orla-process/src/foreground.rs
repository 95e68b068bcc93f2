//! Runs one program in the foreground, with the standard streams and the terminal of this process.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd as _;
use std::process::ExitStatus;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal as Blocked};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};
use rustix::process::{Signal, kill_process_group};

use crate::Instance;
use crate::child::Program;
use crate::process::{Child, Streams, kill};
use crate::reaper::INSTANCE;

/// How a program in the foreground ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// The exit status.
    pub status: ExitStatus,
    /// The limit for which the program was ended.
    pub breach: Option<&'static str>,
}

/// How often a program with a time limit is checked for its end.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Runs a program to its end. The program leads its own process group, which is the foreground group of
/// the terminal meanwhile, so that only this group gets the signals of the terminal's keys.
///
/// # Errors
/// It could not be started; the system's reason.
pub fn run(
    program: &Program,
    args: &[OsString],
    wall: Option<Duration>,
    instance: &Instance,
) -> io::Result<Ended> {
    run_with(Streams::Inherited, program, args, wall, instance)
}

/// Like [`run`], but redirects the program's standard output to the standard error of this process.
///
/// # Errors
/// Those of [`run`].
pub fn run_aside(program: &Program, args: &[OsString], instance: &Instance) -> io::Result<Ended> {
    run_with(Streams::Errors, program, args, None, instance)
}

fn run_with(
    streams: Streams,
    program: &Program,
    args: &[OsString],
    wall: Option<Duration>,
    instance: &Instance,
) -> io::Result<Ended> {
    instance.watch_over_children();
    let mark = [(INSTANCE, OsString::from(instance.mark()))];
    let mut child = program.start_attached(streams, args, &mark, &instance.environment())?;
    let group = child.pid();
    let terminal = Terminal::lend(group);
    let ended = wait(&mut child, wall);
    drop(terminal);
    ended
}

fn wait(child: &mut Child, wall: Option<Duration>) -> io::Result<Ended> {
    let until = wall.map(|wall| Instant::now() + wall);
    let status = loop {
        let Some(until) = until else { break child.wait()? };
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= until {
            kill(child.pid());
            return Ok(Ended { status: child.wait()?, breach: Some("wall") });
        }
        thread::sleep(POLL_INTERVAL);
    };
    Ok(Ended { status, breach: child.breach() })
}

/// The terminal of this process, lent to another process group.
struct Terminal {
    owner: Pid,
}

impl Terminal {
    /// Makes a group the foreground group of the terminal, if this process has a terminal and is its
    /// foreground.
    fn lend(group: rustix::process::Pid) -> Option<Self> {
        let stdin = io::stdin();
        let owner = tcgetpgrp(stdin.as_fd()).ok().filter(|owner| *owner == getpgrp())?;
        tcsetpgrp(stdin.as_fd(), Pid::from_raw(group.as_raw_nonzero().get())).ok()?;
        // The program may have read from the terminal before, and was stopped for that.
        let _ = kill_process_group(group, Signal::CONT);
        Some(Self { owner })
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A background process that takes the terminal is stopped, unless it has blocked the signal for
        // that.
        let mut blocked = SigSet::empty();
        blocked.add(Blocked::SIGTTOU);
        let _ = blocked.thread_block();
        let _ = tcsetpgrp(io::stdin().as_fd(), self.owner);
        let _ = blocked.thread_unblock();
    }
}

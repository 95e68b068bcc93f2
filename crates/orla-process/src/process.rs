//! A started process: a child of this one, or of a launcher.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process, kill_process_group, waitid, waitpid,
};

/// The standard streams of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Streams {
    /// Pipes to this process.
    Piped,
    /// The streams of this process.
    Inherited,
    /// The streams of this process, with output sent to its standard error.
    Errors,
}

/// Kills the group of a process, and the process itself even if it has moved to another group. The
/// process must not have been reaped, because only until then the id is its own. A process that has
/// already ended is not an error.
pub(crate) fn kill(leader: Pid) {
    let _ = kill_process_group(leader, Signal::KILL);
    let _ = kill_process(leader, Signal::KILL);
}

/// A process that waits for a child of another process.
pub(crate) trait Guardian: std::fmt::Debug + Send + Sync {
    /// Returns whether the process has ended; waits for that if `waits`.
    ///
    /// # Errors
    /// The system's reason.
    fn has_exited(&self, waits: bool) -> io::Result<bool>;

    /// Returns how the process ended, and the limit for which it was ended. Kills every other process
    /// that it started.
    ///
    /// # Errors
    /// The guardian has been killed, and the process with it.
    fn release(self: Box<Self>) -> io::Result<(ExitStatus, Option<&'static str>)>;
}

/// A started process with its three pipes. Dropping it neither ends nor reaps the process, unless it is
/// confined.
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
    status: Option<ExitStatus>,
    /// Present if another process has started the process.
    guardian: Option<Box<dyn Guardian>>,
    breach: Option<&'static str>,
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
}

impl From<std::process::Child> for Child {
    /// `std` keeps only the id and the pipes of a child, so nothing is lost.
    fn from(mut child: std::process::Child) -> Self {
        Self {
            pid: Pid::from_child(&child),
            status: None,
            guardian: None,
            breach: None,
            stdin: child.stdin.take().map(OwnedFd::from),
            stdout: child.stdout.take().map(OwnedFd::from),
            stderr: child.stderr.take().map(OwnedFd::from),
        }
    }
}

impl Child {
    /// Creates a handle to a process that another process has started.
    #[cfg(target_os = "linux")]
    pub(crate) fn guarded(pid: Pid, guardian: Box<dyn Guardian>, pipes: Option<[OwnedFd; 3]>) -> Self {
        let [stdin, stdout, stderr] = pipes.map_or([None, None, None], |pipes| pipes.map(Some));
        Self { pid, status: None, guardian: Some(guardian), breach: None, stdin, stdout, stderr }
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns the limit for which the program was ended. Known once the program has been waited for.
    pub(crate) fn breach(&self) -> Option<&'static str> {
        self.breach
    }

    /// Closes standard input, waits for the end of the process and reaps it.
    pub(crate) fn wait(&mut self) -> io::Result<ExitStatus> {
        drop(self.stdin.take());
        loop {
            match self.look(WaitOptions::empty()) {
                Ok(Some(status)) => return Ok(status),
                Ok(None) => {}
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => return Err(err),
            }
        }
    }

    /// Reaps the process if it has ended.
    pub(crate) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.look(WaitOptions::NOHANG)
    }

    /// Returns whether a signal has stopped the process.
    pub(crate) fn is_stopped(&self) -> bool {
        if self.guardian.is_some() {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid.as_raw_nonzero()));
            // The state follows the name, which may contain any characters.
            return stat.is_ok_and(|stat| {
                stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
            });
        }
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        matches!(waitid(WaitId::Pid(self.pid), options), Ok(Some(_)))
    }

    fn look(&mut self, options: WaitOptions) -> io::Result<Option<ExitStatus>> {
        if self.status.is_some() {
            return Ok(self.status);
        }
        if let Some(guardian) = &self.guardian {
            if !guardian.has_exited(!options.contains(WaitOptions::NOHANG))? {
                return Ok(None);
            }
            let killed = (ExitStatus::from_raw(libc::SIGKILL), None);
            let released = self.guardian.take().map(Guardian::release);
            let (status, breach) = released.and_then(Result::ok).unwrap_or(killed);
            (self.status, self.breach) = (Some(status), breach);
            return Ok(self.status);
        }
        if let Some((_, status)) = waitpid(Some(self.pid), options)? {
            self.status = Some(ExitStatus::from_raw(status.as_raw()));
        }
        Ok(self.status)
    }
}

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
    /// The same, but its output goes to the standard error of this process.
    Errors,
}

/// Kills the group of a process, and the process itself even if it has moved to another group. It must not have been
/// reaped: until then the id is theirs. A process that has ended already is not an error.
pub(crate) fn kill(leader: Pid) {
    let _ = kill_process_group(leader, Signal::KILL);
    let _ = kill_process(leader, Signal::KILL);
}

/// What stands for a process of which this one is not the parent.
pub(crate) trait Guardian: std::fmt::Debug + Send + Sync {
    /// Whether the process has ended; waits for that if `waits`.
    ///
    /// # Errors
    /// The system's reason.
    fn has_exited(&self, waits: bool) -> io::Result<bool>;

    /// How the process ended, and the limit that it was ended for. Everything else that it started is killed.
    ///
    /// # Errors
    /// The guardian has been killed, and the process with it.
    fn release(self: Box<Self>) -> io::Result<(ExitStatus, Option<&'static str>)>;
}

/// A started process with its three pipes. It is neither ended nor reaped when it is dropped, unless it is confined.
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
    status: Option<ExitStatus>,
    /// Present if another process has started this one.
    guardian: Option<Box<dyn Guardian>>,
    breach: Option<&'static str>,
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
}

impl From<std::process::Child> for Child {
    /// `std` keeps no more of a child than its id and its pipes, so nothing is lost.
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
    /// A process that another one has started.
    #[cfg(target_os = "linux")]
    pub(crate) fn guarded(pid: Pid, guardian: Box<dyn Guardian>, pipes: Option<[OwnedFd; 3]>) -> Self {
        let [stdin, stdout, stderr] = pipes.map_or([None, None, None], |pipes| pipes.map(Some));
        Self { pid, status: None, guardian: Some(guardian), breach: None, stdin, stdout, stderr }
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// The limit that the program was ended for. Known once it has been waited for.
    pub(crate) fn breach(&self) -> Option<&'static str> {
        self.breach
    }

    /// Waits for its end and reaps it. Its standard input is closed first.
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

    /// Reaps it if it has ended.
    pub(crate) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.look(WaitOptions::NOHANG)
    }

    /// Whether it is stopped by a signal.
    pub(crate) fn is_stopped(&self) -> bool {
        if self.guardian.is_some() {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid.as_raw_nonzero()));
            // The state comes after the name, which may hold anything.
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

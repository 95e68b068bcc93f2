//! A started process: a child of this one, whoever started it.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use rustix::process::{Pid, WaitOptions, waitpid};

/// A child process with its three pipes. It is neither ended nor reaped when it is dropped.
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
    status: Option<ExitStatus>,
    /// Where the first process of a confined tree says how the program ended.
    report: Option<OwnedFd>,
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
            report: None,
            breach: None,
            stdin: child.stdin.take().map(OwnedFd::from),
            stdout: child.stdout.take().map(OwnedFd::from),
            stderr: child.stderr.take().map(OwnedFd::from),
        }
    }
}

impl Child {
    /// The first process of a confined tree, which writes to `report` how the program ended.
    #[cfg(target_os = "linux")]
    pub(crate) fn confined(pid: Pid, report: OwnedFd, [stdin, stdout, stderr]: [OwnedFd; 3]) -> Self {
        Self {
            pid,
            status: None,
            report: Some(report),
            breach: None,
            stdin: Some(stdin),
            stdout: Some(stdout),
            stderr: Some(stderr),
        }
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

    fn look(&mut self, options: WaitOptions) -> io::Result<Option<ExitStatus>> {
        if self.status.is_none()
            && let Some((_, status)) = waitpid(Some(self.pid), options)?
        {
            let own = ExitStatus::from_raw(status.as_raw());
            self.status = Some(self.reported().unwrap_or(own));
        }
        Ok(self.status)
    }

    /// How the program ended, as the first process of its tree said; `None` if that was killed.
    fn reported(&mut self) -> Option<ExitStatus> {
        let mut bytes = [0; REPORT];
        let report = self.report.take()?;
        let read = rustix::io::read(&report, &mut bytes).ok()?;
        let (status, breach) = read_report(bytes.get(..read)?)?;
        self.breach = breach;
        Some(ExitStatus::from_raw(status))
    }
}

/// The bytes of a report: a status and the index of a limit.
const REPORT: usize = 5;

/// The limits that a report can name.
const LIMITS: [&str; 5] = ["memory", "cpu_seconds", "processes", "open_files", "file_size"];

#[cfg(target_os = "linux")]
pub(crate) fn report(status: i32, breach: Option<&'static str>) -> [u8; REPORT] {
    let limit = LIMITS.iter().position(|name| Some(*name) == breach);
    let limit = limit.and_then(|index| u8::try_from(index + 1).ok()).unwrap_or(0);
    let [a, b, c, d] = status.to_le_bytes();
    [a, b, c, d, limit]
}

/// The status of a program, and the limit that it was ended for.
fn read_report(bytes: &[u8]) -> Option<(i32, Option<&'static str>)> {
    let (status, limit) = bytes.split_first_chunk::<4>()?;
    let limit = usize::from(*limit.first()?).checked_sub(1).and_then(|index| LIMITS.get(index).copied());
    Some((i32::from_le_bytes(*status), limit))
}

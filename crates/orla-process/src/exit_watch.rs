//! Notices that a child process has exited, without reaping it.
//!
//! On Linux this uses a descriptor to poll (pidfd). If the system does not support pidfd or is out of
//! descriptors, the caller polls every few milliseconds. The child stays a zombie until it is waited
//! for, so its id cannot pass to another process meanwhile.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

/// The polling interval without a descriptor.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Watches one child process, which must not have been reaped.
#[derive(Debug)]
pub(crate) struct ExitWatch {
    pid: Pid,
    fd: Option<OwnedFd>,
}

impl ExitWatch {
    pub(crate) fn new(pid: Pid) -> Self {
        Self { pid, fd: open(pid) }
    }

    /// Returns a descriptor that is readable once the child has exited.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Returns the maximum time to sleep before the next check.
    pub(crate) fn poll_timeout(&self, left: Duration) -> Duration {
        if self.fd.is_some() { left } else { left.min(POLL_INTERVAL) }
    }

    /// Returns whether the child has exited.
    pub(crate) fn has_exited(&self) -> bool {
        // This process is not the parent of a confined program.
        if let Some(fd) = &self.fd {
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            return poll(&mut [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)], Some(&now))
                != Ok(0);
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::Pid(self.pid), options), Ok(None))
    }
}

#[cfg(target_os = "linux")]
fn open(pid: Pid) -> Option<OwnedFd> {
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
}

#[cfg(not(target_os = "linux"))]
fn open(_pid: Pid) -> Option<OwnedFd> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Instant;

    #[test]
    fn an_exit_is_noticed_with_a_descriptor_and_without() {
        for without in [false, true] {
            let mut child = Command::new("/bin/sh").args(["-c", "exit 3"]).spawn().unwrap();
            let mut watch = ExitWatch::new(Pid::from_child(&child));
            if without {
                watch.fd = None;
            }
            let deadline = Instant::now() + Duration::from_secs(10);
            while !watch.has_exited() {
                assert!(Instant::now() < deadline);
                std::thread::yield_now();
            }
            assert_eq!(child.wait().unwrap().code(), Some(3));
        }
    }
}

//! Copies of this process. In a copy of a process with several threads, the locks of the other threads
//! would stay locked forever, so that is refused.

use std::io;

use nix::sched::CloneFlags;
use nix::unistd::{ForkResult, Pid};

/// Identifies the process after a fork.
#[derive(Debug)]
pub enum Fork {
    /// The process that forked, with the id of the copy.
    Parent(Pid),
    /// The copy.
    Child,
}

/// Forks this process.
///
/// # Errors
/// It has more than one thread, or the reason of the system.
pub fn fork() -> io::Result<Fork> {
    has_one_thread()?;
    #[expect(unsafe_code, reason = "a system call that copies the process")]
    // SAFETY: there is no other thread, so no lock and no allocator state belongs to one.
    let result = unsafe { nix::unistd::fork() }?;
    Ok(match result {
        ForkResult::Parent { child } => Fork::Parent(child),
        ForkResult::Child => Fork::Child,
    })
}

pub(crate) fn has_one_thread() -> io::Result<()> {
    // The call changes nothing, and fails in a process with several threads.
    nix::sched::unshare(CloneFlags::CLONE_THREAD).map_err(|errno| match errno {
        nix::errno::Errno::EINVAL => io::Error::other("a process with several threads cannot be copied"),
        errno => errno.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_several_threads_is_not_copied() {
        // The harness runs each test on a separate thread.
        assert!(fork().is_err());
    }
}

//! Copies of this process. After a copy of a process with several threads, locks of the other threads stay locked for ever, so
//! both functions refuse that.

use std::fs;
use std::io;

use nix::sched::CloneFlags;
use nix::unistd::{ForkResult, Pid};

/// Which of the two processes this is.
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

/// Runs `child` in a copy of this process that is made with `flags`, and returns the copy's id. The copy has its own memory, runs on
/// `stack` and exits with what `child` returns.
///
/// # Errors
/// This process has more than one thread, `flags` would make the copy share memory with it, the stack is smaller than
/// 64 KiB, or the reason of the system.
pub fn clone(child: impl FnMut() -> isize, stack: &mut [u8], flags: CloneFlags) -> io::Result<Pid> {
    has_one_thread()?;
    let shares = CloneFlags::CLONE_VM | CloneFlags::CLONE_THREAD | CloneFlags::CLONE_SIGHAND;
    if flags.intersects(shares) || stack.len() < MIN_STACK {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    #[expect(unsafe_code, reason = "a system call that copies the process")]
    // SAFETY: there is no other thread, and the copy shares no memory, so what it does to the stack and to what `child` borrows it
    // does to its own copy.
    let pid = unsafe { nix::sched::clone(Box::new(child), stack, flags, None) }?;
    Ok(pid)
}

/// Room for a few calls.
const MIN_STACK: usize = 64 * 1024;

fn has_one_thread() -> io::Result<()> {
    match fs::read_dir("/proc/self/task")?.count() {
        1 => Ok(()),
        _ => Err(io::Error::other("a process with several threads cannot be copied")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_several_threads_is_not_copied() {
        // The harness runs each test on a thread of its own.
        assert!(fork().is_err());
        assert!(clone(|| 0, &mut [0; MIN_STACK], CloneFlags::CLONE_NEWNS).is_err());
    }
}

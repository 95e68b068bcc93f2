//! Starts a program without copying this process.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::ptr;

use nix::sched::CloneFlags;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, signal, sigprocmask};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use crate::fork::has_one_thread;

/// The stack size in bytes of a new process until it runs its program.
const STACK: usize = 128 * 1024;

/// Starts programs without copying this process.
#[derive(Debug)]
pub struct Starter {
    stack: Vec<u8>,
}

/// The arguments of an exec: a file, its arguments, the first of which is its name, and its environment.
#[derive(Debug)]
pub struct Exec {
    file: CString,
    args: Vec<CString>,
    env: Vec<CString>,
}

impl Exec {
    /// Creates the arguments of an exec of a file, which is not searched for in `PATH`.
    ///
    /// # Errors
    /// Something contains a NUL byte.
    pub fn new<'a>(
        file: &OsStr,
        args: impl IntoIterator<Item = &'a OsStr>,
        env: impl IntoIterator<Item = (&'a OsStr, &'a OsStr)>,
    ) -> io::Result<Self> {
        let text = |bytes: &[u8]| CString::new(bytes).map_err(io::Error::from);
        let args = args.into_iter().map(|arg| text(arg.as_bytes())).collect::<io::Result<_>>()?;
        let env = env.into_iter().map(|(name, value)| {
            let mut variable = name.as_bytes().to_vec();
            variable.push(b'=');
            variable.extend_from_slice(value.as_bytes());
            CString::new(variable).map_err(io::Error::from)
        });
        Ok(Self { file: text(file.as_bytes())?, args, env: env.collect::<io::Result<_>>()? })
    }
}

impl Default for Starter {
    fn default() -> Self {
        Self { stack: vec![0; STACK] }
    }
}

impl Starter {
    /// Starts a process that runs `prepare` and then becomes the program. Until then the new process
    /// shares the memory of this one, which waits meanwhile: nothing is copied (`vfork(2)`). Its
    /// descriptors, working directory, limits and signals are separate.
    ///
    /// The program begins with an empty signal mask and the default action for SIGPIPE, which Rust's runtime ignores.
    ///
    /// # Errors
    /// This process has more than one thread; what `prepare` failed with; or the system's reason. There is no new process then.
    pub fn start(&mut self, program: &Exec, prepare: &dyn Fn() -> io::Result<()>) -> io::Result<Pid> {
        has_one_thread()?;
        let pointers = |texts: &[CString]| -> Vec<*const libc::c_char> {
            texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
        };
        let (args, env) = (pointers(&program.args), pointers(&program.env));
        let execute = || -> io::Error {
            if let Err(err) = prepare() {
                return err;
            }
            #[expect(unsafe_code, reason = "the last steps before a program runs")]
            // SAFETY: the action is one of the system's own; the arrays end with null and outlive the call, and so do their texts.
            unsafe {
                if let Err(errno) = signal(Signal::SIGPIPE, SigHandler::SigDfl) {
                    return errno.into();
                }
                if let Err(errno) = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None) {
                    return errno.into();
                }
                libc::execve(program.file.as_ptr(), args.as_ptr(), env.as_ptr());
            }
            io::Error::last_os_error()
        };
        let mut failed = None;
        let new_process = Box::new(|| {
            failed = Some(execute());
            1
        });
        let flags = CloneFlags::CLONE_VM | CloneFlags::CLONE_VFORK;
        #[expect(unsafe_code, reason = "a system call that makes a process")]
        // SAFETY: there is no other thread, and this one runs again when the new process has another memory or is gone. What the
        // closures do to this memory they have done in turn, as a call would have, and they end without dropping what is borrowed.
        let started =
            unsafe { nix::sched::clone(new_process, &mut self.stack, flags, Some(libc::SIGCHLD)) };
        let pid = started?;
        match failed {
            None => Ok(pid),
            Some(err) => {
                let _ = waitpid(pid, None);
                Err(err)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_several_threads_starts_nothing() {
        // The harness runs each test on a separate thread.
        let program = Exec::new("/bin/true".as_ref(), ["true".as_ref()], []).unwrap();
        assert!(Starter::default().start(&program, &|| Ok(())).is_err());
    }

    #[test]
    fn a_text_with_a_nul_is_refused() {
        assert!(Exec::new("a\0b".as_ref(), [], []).is_err());
        assert!(Exec::new("a".as_ref(), [], [("n".as_ref(), "v\0".as_ref())]).is_err());
    }
}

//! The process of a service: its pipes, its end, its group.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;

use crate::child::Program;
use crate::confinement::Declared;
use crate::exit_watch::ExitWatch;
use crate::process::{Child, kill};
use crate::reaper::{INSTANCE, Instance};

/// A running process with its three pipes. Dropping it kills the rest of its group.
#[derive(Debug)]
pub struct Process {
    /// `None` once the process has been reaped.
    child: Option<Child>,
    /// The limit that the process exceeded, if it was ended for that.
    breach: Option<&'static str>,
    group: Pid,
    exit: Exit,
    /// `None` once closed.
    pub stdin: Option<pipe::Sender>,
    /// `None` once ended.
    pub stdout: Option<pipe::Receiver>,
    /// `None` once ended.
    pub stderr: Option<pipe::Receiver>,
}

#[derive(Debug)]
enum Exit {
    Watched(AsyncFd<ExitDescriptor>),
    /// Without a descriptor to wait for, the process is polled.
    Polled(ExitWatch),
}

#[derive(Debug)]
struct ExitDescriptor(ExitWatch, RawFd);

impl AsRawFd for ExitDescriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.1
    }
}

/// The polling interval without a descriptor.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

impl Process {
    /// Starts `program`, which carries the mark of `instance`.
    ///
    /// # Errors
    /// The system's reason; nothing runs then.
    pub(crate) async fn start(
        program: Program,
        args: Vec<OsString>,
        instance: Arc<Instance>,
    ) -> io::Result<Self> {
        // Starting a process blocks for as long as the system needs to load it. If the caller is gone
        // when the process has started, the process is dropped, and so killed.
        let started = tokio::task::spawn_blocking(move || {
            instance.watch_over_children();
            let mark = [(INSTANCE, OsString::from(instance.mark()))];
            // A program that declares no sandbox is confined too if the mode confines all processes.
            let undeclared = || instance.sandboxes().of(&Declared::default(), Path::new("/"));
            let program = match program.sandbox().map_or_else(undeclared, |_| None) {
                Some(sandbox) => {
                    let files = program.files().to_vec();
                    program.confined(sandbox, files)
                }
                None => program,
            };
            program.start(&args, &mark, &instance.environment()).map(Unwatched::new)
        });
        let mut started =
            started.await.map_err(|_| io::Error::other("the start of the process failed"))??;
        let child = started.0.as_mut().ok_or_else(|| io::Error::other("no process"))?;
        let group = child.pid();
        let stdin = child.stdin.take().map(pipe::Sender::from_owned_fd).transpose()?;
        let stdout = child.stdout.take().map(pipe::Receiver::from_owned_fd).transpose()?;
        let stderr = child.stderr.take().map(pipe::Receiver::from_owned_fd).transpose()?;
        let exit = Exit::new(ExitWatch::new(group))?;
        Ok(Self { child: started.0.take(), breach: None, group, exit, stdin, stdout, stderr })
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.group.as_raw_nonzero().get().unsigned_abs()
    }

    /// Waits until the process has exited. It stays a zombie until it is [reaped](Self::reap).
    pub async fn exited(&self) {
        loop {
            match &self.exit {
                Exit::Watched(fd) => {
                    let Ok(mut ready) = fd.readable().await else { return };
                    if fd.get_ref().0.has_exited() {
                        return;
                    }
                    ready.clear_ready();
                }
                Exit::Polled(watch) => {
                    if watch.has_exited() {
                        return;
                    }
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            }
        }
    }

    /// Returns whether the process has exited.
    pub fn has_exited(&self) -> bool {
        match &self.exit {
            Exit::Watched(fd) => fd.get_ref().0.has_exited(),
            Exit::Polled(watch) => watch.has_exited(),
        }
    }

    /// Returns whether a signal has stopped the process.
    pub(crate) fn is_stopped(&self) -> bool {
        self.child.as_ref().is_some_and(Child::is_stopped)
    }

    /// Signals the group, which exists as long as the process has not been reaped, and the process
    /// itself if it has left the group.
    pub(crate) fn signal(&self, signal: Signal) {
        if self.child.is_none() {
            return;
        }
        let group = kill_process_group(self.group, signal);
        if group.is_err() || signal == Signal::KILL {
            let _ = kill_process(self.group, signal);
        }
    }

    /// Kills the rest of the group of a process that has exited, and returns its status.
    pub fn reap(&mut self) -> Option<ExitStatus> {
        self.signal(Signal::KILL);
        let mut child = self.child.take()?;
        let status = child.wait().ok();
        self.breach = child.breach();
        status
    }

    /// Returns the limit that the process exceeded, if it was ended for that and has been reaped.
    pub(super) fn breach(&self) -> Option<&'static str> {
        self.breach
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(Unwatched(self.child.take()));
    }
}

impl Exit {
    #[expect(
        deprecated,
        reason = "the successor is unsafe; the descriptor belongs to what is registered, and lives as long"
    )]
    fn new(watch: ExitWatch) -> io::Result<Self> {
        match watch.fd().map(|fd| fd.as_raw_fd()) {
            Some(fd) => {
                AsyncFd::with_interest(ExitDescriptor(watch, fd), Interest::READABLE).map(Self::Watched)
            }
            None => Ok(Self::Polled(watch)),
        }
    }
}

/// A process that is killed when it is dropped.
struct Unwatched(Option<Child>);

impl Unwatched {
    fn new(child: Child) -> Self {
        Self(Some(child))
    }
}

impl Drop for Unwatched {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        kill(child.pid());
        if matches!(child.try_wait(), Ok(None)) {
            // The process is about to exit. A separate thread may wait for that; nothing depends on it.
            let _ = std::thread::Builder::new().name("reap".to_owned()).spawn(move || child.wait());
        }
    }
}

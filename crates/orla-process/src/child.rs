//! Starts one child process: what to run, and how the kernel is asked to run it.
//!
//! # How it works
//!
//! `std` starts the process, on its `posix_spawn` path: no fork of a large server. That path needs an
//! absolute program and no code between fork and exec, and both hold here. The child leads a process
//! group of its own, so that it can be ended with everything it started.
//!
//! A text file that names no interpreter is not a program to the kernel. As `execvp` does, it is then
//! given to `/bin/sh`; [`Program`] remembers this for as long as the file stays the same, which spares
//! the next call the attempt.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use crate::file_version::FileVersion;
use crate::shebang::FileKind;

/// A program on disk, by its absolute path.
#[derive(Debug)]
pub struct Program {
    path: PathBuf,
    /// Where it runs; in the server's directory where absent.
    directory: Option<PathBuf>,
    /// Added to the server's environment at every start.
    env: Vec<(String, String)>,
    /// The file that the kernel refused to run and the shell did, if it is still that one.
    run_by_shell: Mutex<Option<FileVersion>>,
}

/// A file that is being written cannot be run; this often it is tried again, first after this long and then after
/// twice as long each time, 1.3 s in all.
const BUSY_RETRIES: u32 = 7;
const BUSY_PAUSE: Duration = Duration::from_millis(10);

impl Program {
    /// The program at `path`, which is made absolute: with a bare name `std` would have to fork.
    ///
    /// # Errors
    /// The current directory is gone, or the path is empty.
    pub fn new(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: std::path::absolute(path)?,
            directory: None,
            env: Vec::new(),
            run_by_shell: Mutex::new(None),
        })
    }

    /// The program with these variables in its environment.
    #[must_use]
    pub fn with_env(mut self, env: Vec<(String, String)>) -> Self {
        self.env = env;
        self
    }

    /// The program in a directory of its own.
    #[must_use]
    pub fn in_directory(mut self, directory: PathBuf) -> Self {
        self.directory = Some(directory);
        self
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Starts it in a process group of its own, with pipes on all three standard streams and with the
    /// server's environment plus its own plus `env`.
    pub(crate) fn start(&self, args: &[OsString], env: &[(&str, OsString)]) -> io::Result<Child> {
        let mut by_shell = self.is_known_to_be_run_by_shell();
        let mut tries = 0;
        loop {
            let mut command = if by_shell {
                let mut shell = std::process::Command::new("/bin/sh");
                shell.arg(&self.path);
                shell
            } else {
                std::process::Command::new(&self.path)
            };
            command
                .args(args)
                .envs(self.env.iter().map(|(key, value)| (key, value)))
                .envs(env.iter().map(|(key, value)| (key, value)))
                .process_group(0)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            if let Some(directory) = &self.directory {
                command.current_dir(directory);
            }
            match command.spawn() {
                Err(err) if is(&err, Errno::NOEXEC) && !by_shell && self.is_text() => {
                    *self.memory() = FileVersion::of(&self.path);
                    by_shell = true;
                }
                Err(err) if is(&err, Errno::TXTBSY) && tries < BUSY_RETRIES => {
                    thread::sleep(BUSY_PAUSE * (1 << tries));
                    tries += 1;
                }
                result => return result,
            }
        }
    }

    fn is_known_to_be_run_by_shell(&self) -> bool {
        let mut memory = self.memory();
        if memory.is_some() && *memory != FileVersion::of(&self.path) {
            *memory = None;
        }
        memory.is_some()
    }

    fn is_text(&self) -> bool {
        read_head(&self.path).is_ok_and(|head| FileKind::of(&head) != FileKind::Binary)
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, Option<FileVersion>> {
        self.run_by_shell.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first bytes of a file, for saying what it is.
pub(crate) fn read_head(path: &Path) -> io::Result<Vec<u8>> {
    use io::Read as _;
    let mut head = Vec::new();
    crate::discovery::open_regular(path)?.take(4096).read_to_end(&mut head)?;
    Ok(head)
}

pub(crate) fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

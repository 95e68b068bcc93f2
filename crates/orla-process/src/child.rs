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

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::iter;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use orla_marketplace::id::Pattern;
use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;

use crate::environment::Environment;
use crate::file::{FileVersion, open_regular, read_head};
use crate::sealed::Sealed;
use crate::shebang::FileKind;

/// The environment of a process.
pub type Variables = Arc<[(OsString, OsString)]>;

/// Keeps Python from its caches of compiled modules: they lie in a package and are no part of what is attested, so
/// they may neither run nor change the package.
pub const NO_PYTHON_CACHE: (&str, &str) = ("PYTHONPYCACHEPREFIX", "/dev/null");

/// A program on disk, by its absolute path.
#[derive(Debug)]
pub struct Program {
    path: PathBuf,
    /// Where it runs; in the server's directory where absent.
    directory: Option<PathBuf>,
    /// Its own variables.
    env: Vec<(String, String)>,
    /// Which variables of the server it gets besides the usual ones.
    pass_env: Vec<Pattern>,
    /// The variables of its processes, and what they were taken from.
    variables: Mutex<Option<(Arc<Environment>, Variables)>>,
    /// The copy that runs where only the attested bytes may.
    sealed: Mutex<Option<Arc<Sealed>>>,
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
            pass_env: Vec::new(),
            variables: Mutex::new(None),
            sealed: Mutex::new(None),
            run_by_shell: Mutex::new(None),
        })
    }

    /// The program with these variables in its environment, and with those of the server that `pass_env` matches.
    #[must_use]
    pub fn with_env(mut self, env: Vec<(String, String)>, pass_env: Vec<Pattern>) -> Self {
        self.env = env;
        self.pass_env = pass_env;
        self
    }

    /// The program with one more variable, which goes before any other of that name.
    #[must_use]
    pub(crate) fn with_variable(mut self, (name, value): (&str, &str)) -> Self {
        self.env.retain(|(known, _)| known != name);
        self.env.push((name.to_owned(), value.to_owned()));
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

    /// The variables that every process of it gets: those that `environment` passes to it, and its own.
    pub fn variables(&self, environment: &Arc<Environment>) -> Variables {
        let mut known = self.variables.lock();
        if let Some((same, variables)) = &*known
            && Arc::ptr_eq(same, environment)
        {
            return Arc::clone(variables);
        }
        let mut variables = environment.passed_to(&self.pass_env);
        variables.retain(|(name, _)| self.env.iter().all(|(own, _)| name != own.as_str()));
        variables.extend(self.env.iter().map(|(name, value)| (name.into(), value.into())));
        let variables = Variables::from(variables);
        *known = Some((Arc::clone(environment), Arc::clone(&variables)));
        variables
    }

    /// The beginning of its file, if that is text.
    pub fn script(&self) -> Option<String> {
        read_script(&self.path)
    }

    /// What its files mention of the server's variables and is not passed to it. `args` may name scripts.
    pub fn withheld(&self, args: &[OsString], environment: &Environment) -> BTreeSet<String> {
        let directory = self.directory.as_deref().unwrap_or(Path::new(""));
        let files = iter::once(self.path.clone()).chain(args.iter().map(|arg| directory.join(arg)));
        let scripts = files.filter_map(|file| read_script(&file));
        let own = |name: &String| self.env.iter().any(|(known, _)| known == name);
        scripts
            .flat_map(|script| environment.withheld(&script, &self.pass_env))
            .filter(|name| !own(name))
            .collect()
    }

    /// Starts it in a process group of its own, with pipes on all three standard streams, and with its
    /// [`variables`](Self::variables) and `env` for an environment.
    pub(crate) fn start(
        &self,
        args: &[OsString],
        env: &[(&str, OsString)],
        environment: &Arc<Environment>,
    ) -> io::Result<Child> {
        self.spawn(None, args, env, environment)
    }

    /// As [`start`](Self::start), but runs a sealed copy of the file, whose content has this hash.
    ///
    /// # Errors
    /// The content of the file has another hash, or cannot be copied.
    pub(crate) fn start_attested(
        &self,
        hash: &Arc<str>,
        args: &[OsString],
        env: &[(&str, OsString)],
        environment: &Arc<Environment>,
    ) -> io::Result<Child> {
        let sealed = self.sealed(hash)?;
        self.spawn(Some(&sealed), args, env, environment)
    }

    fn sealed(&self, hash: &Arc<str>) -> io::Result<Arc<Sealed>> {
        let mut known = self.sealed.lock();
        if let Some(sealed) = known.as_ref().filter(|sealed| sealed.has(hash)) {
            return Ok(Arc::clone(sealed));
        }
        let sealed = Arc::new(Sealed::of(&self.path, hash)?);
        *known = Some(Arc::clone(&sealed));
        Ok(sealed)
    }

    fn spawn(
        &self,
        sealed: Option<&Sealed>,
        args: &[OsString],
        env: &[(&str, OsString)],
        environment: &Arc<Environment>,
    ) -> io::Result<Child> {
        let variables = self.variables(environment);
        let file = &sealed.map_or_else(|| self.path.clone(), Sealed::path);
        let mut by_shell = self.is_known_to_be_run_by_shell();
        let mut tries = 0;
        loop {
            let mut command = if by_shell {
                let mut shell = std::process::Command::new("/bin/sh");
                shell.arg(file);
                shell
            } else {
                let mut program = std::process::Command::new(file);
                program.arg0(&self.path);
                program
            };
            command
                .args(args)
                .env_clear()
                .envs(variables.iter().map(|(key, value)| (key, value)))
                .envs(env.iter().map(|(key, value)| (key, value)))
                .process_group(0)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            if let Some(directory) = &self.directory {
                command.current_dir(directory);
            }
            // Locked for the start alone, not for the pauses.
            let started = match sealed {
                // No other child may inherit the copy.
                Some(sealed) => {
                    let _alone = STARTS.write();
                    sealed.inheritable(|| command.spawn())
                }
                None => {
                    let _others = STARTS.read();
                    command.spawn()
                }
            };
            match started {
                Err(err) if is(&err, Errno::NOEXEC) && !by_shell && is_text(file) => {
                    *self.run_by_shell.lock() = FileVersion::of(&self.path);
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
        let mut memory = self.run_by_shell.lock();
        if memory.is_some() && *memory != FileVersion::of(&self.path) {
            *memory = None;
        }
        memory.is_some()
    }
}

fn is_text(file: &Path) -> bool {
    read_head(file).is_ok_and(|head| FileKind::of(&head) != FileKind::Binary)
}

/// Held by each start of a process: alone by one whose process inherits a descriptor.
static STARTS: RwLock<()> = RwLock::new(());

/// Bytes of a script that are searched for the variables that it mentions.
const MAX_SCRIPT: u64 = 256 * 1024;

/// The beginning of a file, if that is text.
fn read_script(path: &Path) -> Option<String> {
    use io::Read as _;
    let mut script = Vec::new();
    open_regular(path).ok()?.take(MAX_SCRIPT).read_to_end(&mut script).ok()?;
    let is_text = FileKind::of(&script[..script.len().min(4096)]) != FileKind::Binary;
    is_text.then(|| String::from_utf8_lossy(&script).into_owned())
}

/// Whether an error has this number.
pub fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

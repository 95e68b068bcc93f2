//! Starts one child process.
//!
//! # How it works
//!
//! In a sandbox, `Launcher::start` (`confinement/`) starts the process. Otherwise `std` starts it on its
//! `posix_spawn` path, which does not fork a large server. That path needs an absolute program path and
//! no code between fork and exec. Both conditions hold here. The child leads its own process group, so
//! that it can be ended together with everything it started.
//!
//! The kernel does not run a text file that names no interpreter. As `execvp` does, this module then
//! runs the file with `/bin/sh`. [`Program`] remembers this for as long as the file stays the same,
//! which spares the next call the first attempt.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::iter;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use orla_marketplace::id::Pattern;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::confinement::Sandbox;
#[cfg(target_os = "linux")]
use crate::confinement::{Start, installation};
use crate::environment::Environment;
use crate::file::{FileVersion, open_regular, read_head};
use crate::process::{Child, Streams};
use crate::sealed::{STARTS, Sealed};
use crate::shebang::FileKind;

/// The environment of a process.
pub type Variables = Arc<[(OsString, OsString)]>;

/// Stops Python from using its caches of compiled modules. The caches lie in the package but are not
/// attested. They must not run, and writing them must not change the package.
pub const NO_PYTHON_CACHE: (&str, &str) = ("PYTHONPYCACHEPREFIX", "/dev/null");

/// The version of a program. A process that waits for its call belongs to one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProgramVersion {
    file: FileVersion,
    /// The version of the files that its declaration names.
    declared: u64,
}

/// A program on disk, by its absolute path. Two programs are equal if their settings are equal; cached
/// state is not compared.
pub struct Program {
    path: PathBuf,
    /// The working directory; the server's directory if absent.
    directory: Option<PathBuf>,
    /// The variables that the declaration sets.
    env: Vec<(String, String)>,
    /// Patterns of the server's variables that the program gets besides the usual ones.
    pass_env: Vec<Pattern>,
    /// The sandbox of its processes; `None` for no confinement.
    sandbox: Option<Arc<Sandbox>>,
    /// Files of the program besides its executable: a package, or scripts among its arguments.
    files: Vec<PathBuf>,
    /// Whether the program was found by name in the server's `PATH`. The installation around it then
    /// belongs to it.
    is_installed: bool,
    /// The variables of its processes, and the environment that they were made from.
    variables: Mutex<Option<(Arc<Environment>, Variables)>>,
    /// The sealed copy that runs if only the attested bytes may run.
    sealed: Mutex<Option<Arc<Sealed>>>,
    /// The version of the file that the kernel refused to run and the shell ran.
    run_by_shell: Mutex<Option<FileVersion>>,
}

impl PartialEq for Program {
    fn eq(&self, other: &Self) -> bool {
        (&self.path, &self.directory, &self.files) == (&other.path, &other.directory, &other.files)
            && (&self.env, &self.pass_env) == (&other.env, &other.pass_env)
            && (&self.sandbox, self.is_installed) == (&other.sandbox, other.is_installed)
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("path", &self.path)
            .field("directory", &self.directory)
            .field("env", &self.env)
            .field("pass_env", &self.pass_env)
            .field("sandbox", &self.sandbox)
            .field("files", &self.files)
            .field("is_installed", &self.is_installed)
            .finish_non_exhaustive()
    }
}

/// One attempt to start the program.
struct Attempt<'a> {
    /// The copy that runs, if only the attested bytes may.
    sealed: Option<&'a Sealed>,
    streams: Streams,
    /// The file that the kernel is asked to execute.
    file: &'a Path,
    /// Whether the shell runs the file.
    by_shell: bool,
    args: &'a [OsString],
    /// The program's variables, and the variables of this call, which take precedence.
    variables: &'a Variables,
    env: &'a [(&'a str, OsString)],
}

impl Attempt<'_> {
    fn env(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        let own = self.variables.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()));
        own.chain(self.env.iter().map(|(name, value)| (OsStr::new(name), value.as_os_str())))
    }
}

/// The number of retries when the file is busy. A file that is open for writing cannot be run. The first
/// retry comes after this pause, each later one after twice the previous pause: 1.3 s in all.
const BUSY_RETRIES: u32 = 7;
const BUSY_PAUSE: Duration = Duration::from_millis(10);

impl Program {
    /// Creates a program from `path`, which is made absolute: with a bare name `std` would have to fork.
    ///
    /// # Errors
    /// The current directory is gone, or the path is empty.
    pub fn new(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: std::path::absolute(path)?,
            directory: None,
            env: Vec::new(),
            pass_env: Vec::new(),
            sandbox: None,
            files: Vec::new(),
            is_installed: false,
            variables: Mutex::new(None),
            sealed: Mutex::new(None),
            run_by_shell: Mutex::new(None),
        })
    }

    /// Sets the program's own variables and the patterns of server variables that it gets.
    #[must_use]
    pub fn with_env(mut self, env: Vec<(String, String)>, pass_env: Vec<Pattern>) -> Self {
        self.env = env;
        self.pass_env = pass_env;
        self
    }

    /// Adds a variable, which replaces any other of that name.
    #[must_use]
    pub(crate) fn with_variable(mut self, (name, value): (&str, &str)) -> Self {
        self.env.retain(|(known, _)| known != name);
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the working directory.
    #[must_use]
    pub fn in_directory(mut self, directory: PathBuf) -> Self {
        self.directory = Some(directory);
        self
    }

    /// Marks the program as found by name in the server's `PATH`. It may then read and run the
    /// installation around it. For example, `python3` may be a script that starts the chosen version,
    /// which lies beside it.
    #[must_use]
    pub fn installed(mut self) -> Self {
        self.is_installed = true;
        self
    }

    /// Confines the program to a sandbox, in which it may read these files and directories besides its
    /// own file.
    #[must_use]
    pub fn confined(mut self, sandbox: Arc<Sandbox>, files: Vec<PathBuf>) -> Self {
        self.pass_env.extend_from_slice(sandbox.env());
        let is_own = |name: &str| self.env.iter().any(|(known, _)| known == name);
        let named: Vec<_> =
            sandbox.variables().iter().filter(|(name, _)| !is_own(name)).cloned().collect();
        self.env.extend(named);
        let own = iter::once(&self.path).chain(&files);
        let packages: Vec<PathBuf> = own.filter_map(|file| sandbox.package_of(file)).collect();
        self.files = [files, packages].concat();
        self.sandbox = Some(sandbox);
        self
    }

    /// Sets the files and directories that the program may read besides its own file, if it is confined
    /// later.
    #[must_use]
    pub fn with_files(self, files: Vec<PathBuf>) -> Self {
        Self { files, ..self }
    }

    /// Returns these files and directories.
    pub(crate) fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Returns the sandbox of the program's processes.
    pub fn sandbox(&self) -> Option<&Arc<Sandbox>> {
        self.sandbox.as_ref()
    }

    /// Returns the path of the program.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the working directory; `None` for the directory of this process.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// Returns the variables that every process of the program gets: those that `environment` passes to
    /// it, and its own.
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

    /// Returns the files that the program may read in every sandbox: its file, its package, the
    /// installation of its interpreter.
    pub fn own_files(&self, environment: &Arc<Environment>) -> Vec<PathBuf> {
        let own = iter::once(self.path.clone()).chain(self.files.iter().cloned());
        own.chain(self.installation(environment)).collect()
    }

    #[cfg(target_os = "linux")]
    fn installation(&self, environment: &Arc<Environment>) -> Vec<PathBuf> {
        let variables = self.variables(environment);
        let variables: Vec<(&OsStr, &OsStr)> =
            variables.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str())).collect();
        let home = value_of(&variables, "HOME");
        let programs = self.programs(&self.path, &variables);
        programs.flat_map(|program| installation(&program, home.as_ref())).collect()
    }

    /// Returns the programs whose installations this program may use: its interpreter, and itself if it
    /// is installed, or is Python.
    #[cfg(target_os = "linux")]
    fn programs(&self, file: &Path, env: &[(&OsStr, &OsStr)]) -> impl Iterator<Item = PathBuf> + use<> {
        let sandbox = self.sandbox.as_ref();
        let is_foreign = sandbox.is_some_and(|sandbox| sandbox.is_foreign());
        // A `PATH` in `env` comes from the declaration, which must not choose what the program may read.
        let path = std::env::var_os("PATH").unwrap_or_default();
        let of_server = [(OsStr::new("PATH"), path.as_os_str())];
        let interpreter = interpreter(file, if is_foreign { &of_server } else { env });
        // The command may name the interpreter of a virtual environment by its path.
        let is_python = interpreter.is_none()
            && !is_foreign
            && is_named_python(&self.path)
            && sandbox.is_some_and(|sandbox| sandbox.is_for_python());
        let own = (self.is_installed || is_python).then(|| self.path.clone());
        let interpreter = interpreter.filter(|(_, by_path)| !(is_foreign && *by_path));
        interpreter.map(|(program, _)| program).into_iter().chain(own)
    }

    #[cfg(not(target_os = "linux"))]
    fn installation(&self, _: &Arc<Environment>) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Returns the beginning of the program's file, if the file is text.
    pub fn script(&self) -> Option<String> {
        read_script(&self.path)
    }

    /// Returns the server's variables that the program's files mention and that are not passed to it.
    /// `args` may name scripts.
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

    /// Starts the program in its own process group, with pipes on all three standard streams. Its
    /// environment consists of [`variables`](Self::variables) and `env`.
    pub(crate) fn start(
        &self,
        args: &[OsString],
        env: &[(&str, OsString)],
        environment: &Arc<Environment>,
    ) -> io::Result<Child> {
        self.spawn(None, Streams::Piped, args, env, environment)
    }

    /// Like [`start`](Self::start), but with standard streams of this process.
    pub(crate) fn start_attached(
        &self,
        streams: Streams,
        args: &[OsString],
        env: &[(&str, OsString)],
        environment: &Arc<Environment>,
    ) -> io::Result<Child> {
        self.spawn(None, streams, args, env, environment)
    }

    /// Like [`start`](Self::start), but runs a sealed copy of the file, whose content has this hash.
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
        self.spawn(Some(&sealed), Streams::Piped, args, env, environment)
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
        streams: Streams,
        args: &[OsString],
        env: &[(&str, OsString)],
        environment: &Arc<Environment>,
    ) -> io::Result<Child> {
        if let Some(sandbox) = &self.sandbox {
            sandbox.available().map_err(io::Error::other)?;
        }
        let variables = self.variables(environment);
        let file = sealed.map_or_else(|| self.path.clone(), Sealed::path);
        let by_shell = self.is_known_to_be_run_by_shell();
        let variables = &variables;
        let mut attempt = Attempt { sealed, streams, file: &file, by_shell, args, variables, env };
        let mut tries = 0;
        loop {
            let started = match self.launch(&attempt) {
                Some(started) => started,
                None => self.run(&attempt),
            };
            match started {
                Err(err) if is(&err, Errno::NOEXEC) && !attempt.by_shell && is_text(&file) => {
                    *self.run_by_shell.lock() = FileVersion::of(&self.path);
                    attempt.by_shell = true;
                }
                Err(err) if is(&err, Errno::TXTBSY) && tries < BUSY_RETRIES => {
                    thread::sleep(BUSY_PAUSE * (1 << tries));
                    tries += 1;
                }
                result => return result,
            }
        }
    }

    /// Starts the program as a child of this process, unconfined.
    fn run(&self, attempt: &Attempt<'_>) -> io::Result<Child> {
        let stream = || match attempt.streams {
            Streams::Piped => Stdio::piped(),
            Streams::Inherited | Streams::Errors => Stdio::inherit(),
        };
        let output = match attempt.streams {
            Streams::Errors => Stdio::from(io::stderr().as_fd().try_clone_to_owned()?),
            _ => stream(),
        };
        let mut command = if attempt.by_shell {
            let mut shell = Command::new(SHELL);
            shell.arg(attempt.file);
            shell
        } else {
            let mut program = Command::new(attempt.file);
            program.arg0(&self.path);
            program
        };
        command
            .args(attempt.args)
            .env_clear()
            .envs(attempt.env())
            .process_group(0)
            .stdin(stream())
            .stdout(output)
            .stderr(stream());
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        // The lock is held for the start alone, not during the pauses.
        let started = match attempt.sealed {
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
        started.map(Child::from)
    }

    /// Starts the program through the launcher of its sandbox; `None` if nothing confines it.
    #[cfg(target_os = "linux")]
    fn launch(&self, attempt: &Attempt<'_>) -> Option<io::Result<Child>> {
        let launcher = match self.sandbox.as_ref()?.launcher() {
            Ok(launcher) => launcher?,
            Err(err) => return Some(Err(err)),
        };
        let env: Vec<(&OsStr, &OsStr)> = attempt.env().collect();
        let home = value_of(&env, "HOME");
        let mut run = vec![self.path.clone()];
        for program in self.programs(attempt.file, &env) {
            match launcher.real(&program) {
                Ok(_) => run.extend(installation(&program, home.as_ref())),
                Err(err) => return Some(Err(err)),
            }
        }
        // For a sealed copy, the launcher replaces these paths with its own.
        let file = attempt.sealed.map_or(attempt.file, |_| &self.path);
        let shell = attempt.by_shell.then_some(file.as_os_str());
        Some(launcher.start(Start {
            file: if attempt.by_shell { Path::new(SHELL) } else { file },
            arg0: if attempt.by_shell { OsStr::new(SHELL) } else { self.path.as_os_str() },
            directory: self.directory.as_deref(),
            args: shell.into_iter().chain(attempt.args.iter().map(OsString::as_os_str)).collect(),
            env,
            read: self.files.clone(),
            run,
            is_by_shell: attempt.by_shell,
            streams: attempt.streams,
            sealed: attempt.sealed.map(Sealed::descriptor),
        }))
    }

    #[cfg(not(target_os = "linux"))]
    fn launch(&self, _: &Attempt<'_>) -> Option<io::Result<Child>> {
        None
    }

    /// Returns the version of the program's file and of the files that its declaration names; `None` if
    /// the program cannot be examined.
    pub(crate) fn version(&self) -> Option<ProgramVersion> {
        let declared = self.sandbox.as_ref().map_or(0, |sandbox| sandbox.version());
        Some(ProgramVersion { file: FileVersion::of(&self.path)?, declared })
    }

    fn is_known_to_be_run_by_shell(&self) -> bool {
        let mut memory = self.run_by_shell.lock();
        if memory.is_some() && *memory != FileVersion::of(&self.path) {
            *memory = None;
        }
        memory.is_some()
    }
}

/// Returns the interpreter that a script names, and whether the script gives its path.
#[cfg(target_os = "linux")]
fn interpreter(file: &Path, env: &[(&OsStr, &OsStr)]) -> Option<(PathBuf, bool)> {
    let head = read_head(file).unwrap_or_default();
    let FileKind::Script(shebang) = FileKind::of(&head) else { return None };
    if !shebang.is_env() {
        return Some((shebang.program, true));
    }
    let name = Path::new(shebang.searched()?);
    let is_path = name.components().count() > 1;
    let found = crate::file::program_in(&value_of(env, "PATH").unwrap_or_default(), name);
    found.map(|program| (program, is_path))
}

/// Returns the value of a variable in `env`.
#[cfg(target_os = "linux")]
fn value_of(env: &[(&OsStr, &OsStr)], name: &str) -> Option<OsString> {
    env.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| value.to_os_string())
}

/// The interpreter of text files that name none.
const SHELL: &str = "/bin/sh";

fn is_text(file: &Path) -> bool {
    read_head(file).is_ok_and(|head| FileKind::of(&head) != FileKind::Binary)
}

/// The number of bytes of a script that are searched for variables.
const MAX_SCRIPT: u64 = 256 * 1024;

/// Returns the beginning of a file, if the file is text.
fn read_script(path: &Path) -> Option<String> {
    use io::Read as _;
    let mut script = Vec::new();
    open_regular(path).ok()?.take(MAX_SCRIPT).read_to_end(&mut script).ok()?;
    let is_text = FileKind::of(&script[..script.len().min(4096)]) != FileKind::Binary;
    is_text.then(|| String::from_utf8_lossy(&script).into_owned())
}

/// Returns whether an error has this number.
pub fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

/// Returns whether a program has the name of a Python interpreter.
#[cfg(target_os = "linux")]
fn is_named_python(program: &Path) -> bool {
    let name = program.file_name().and_then(OsStr::to_str);
    name.is_some_and(|name| name.starts_with("python") || name.starts_with("pypy"))
}

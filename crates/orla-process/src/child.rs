//! Starts one child process: what to run, and how the kernel is asked to run it.
//!
//! # How it works
//!
//! In a sandbox, `Launcher::start` (`confinement/`) starts the process. Otherwise `std` does, on its `posix_spawn` path: no fork of a large server. That path needs an
//! absolute program and no code between fork and exec, and both hold here. The child leads a process
//! group of its own, so that it can be ended with everything it started.
//!
//! A text file that names no interpreter is not a program to the kernel. As `execvp` does, it is then
//! given to `/bin/sh`; [`Program`] remembers this for as long as the file stays the same, which spares
//! the next call the attempt.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::iter;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
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

/// Stops Python from using its caches of compiled modules. They lie in the package but are not
/// attested, so they may neither run nor change the package.
pub const NO_PYTHON_CACHE: (&str, &str) = ("PYTHONPYCACHEPREFIX", "/dev/null");

/// A program on disk, by its absolute path. Two programs are equal if the same is said of them, whatever has run of them.
pub struct Program {
    path: PathBuf,
    /// Where it runs; in the server's directory where absent.
    directory: Option<PathBuf>,
    /// Its own variables.
    env: Vec<(String, String)>,
    /// Which variables of the server it gets besides the usual ones.
    pass_env: Vec<Pattern>,
    /// What its processes run in; `None` for no confinement at all.
    sandbox: Option<Arc<Sandbox>>,
    /// Its own files besides the program: a package, scripts among its arguments.
    files: Vec<PathBuf>,
    /// Whether it was found by its name in the server's `PATH`, so that the installation around it belongs to it.
    is_installed: bool,
    /// The variables of its processes, and what they were taken from.
    variables: Mutex<Option<(Arc<Environment>, Variables)>>,
    /// The copy that runs where only the attested bytes may.
    sealed: Mutex<Option<Arc<Sealed>>>,
    /// The file that the kernel refused to run and the shell did, if it is still that one.
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

/// One attempt at a start.
struct Attempt<'a> {
    /// The copy that runs, if only the attested bytes may.
    sealed: Option<&'a Sealed>,
    streams: Streams,
    /// What the kernel is asked to run.
    file: &'a Path,
    /// Whether the shell runs it.
    by_shell: bool,
    args: &'a [OsString],
    /// The program's variables, and those of this call, which go before them.
    variables: &'a Variables,
    env: &'a [(&'a str, OsString)],
}

impl Attempt<'_> {
    fn env(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        let own = self.variables.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()));
        own.chain(self.env.iter().map(|(name, value)| (OsStr::new(name), value.as_os_str())))
    }
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
            sandbox: None,
            files: Vec::new(),
            is_installed: false,
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

    /// The program as one that was found by its name in the server's `PATH`: it may read and run the installation around
    /// it. `python3` may be a script that starts the chosen version, which lies beside it.
    #[must_use]
    pub fn installed(mut self) -> Self {
        self.is_installed = true;
        self
    }

    /// The program in a sandbox, in which it may read these files and directories besides its own file.
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

    /// What its processes run in.
    pub fn sandbox(&self) -> Option<&Arc<Sandbox>> {
        self.sandbox.as_ref()
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where it runs; `None` for the directory of this process.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
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

    /// Its own files, which it may read in every sandbox: its file, its package, the installation
    /// of its interpreter.
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

    /// The programs whose installations it may use: its interpreter, and itself if it is installed.
    #[cfg(target_os = "linux")]
    fn programs(&self, file: &Path, env: &[(&OsStr, &OsStr)]) -> impl Iterator<Item = PathBuf> + use<> {
        let own = self.is_installed.then(|| self.path.clone());
        let is_foreign = self.sandbox.as_ref().is_some_and(|sandbox| sandbox.is_foreign());
        // A `PATH` of its own is the declaration's, which must not choose what it may read.
        let path = std::env::var_os("PATH").unwrap_or_default();
        let of_server = [(OsStr::new("PATH"), path.as_os_str())];
        let interpreter = interpreter(file, if is_foreign { &of_server } else { env });
        let interpreter = interpreter.filter(|(_, by_path)| !(is_foreign && *by_path));
        interpreter.map(|(program, _)| program).into_iter().chain(own)
    }

    #[cfg(not(target_os = "linux"))]
    fn installation(&self, _: &Arc<Environment>) -> Vec<PathBuf> {
        Vec::new()
    }

    /// The beginning of its file, if that is text.
    pub fn script(&self) -> Option<String> {
        read_script(&self.path)
    }

    /// The variables of the server that its files mention and that are not passed to it. `args`
    /// may name scripts.
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
        self.spawn(None, Streams::Piped, args, env, environment)
    }

    /// As [`start`](Self::start), but with standard streams of this process.
    pub(crate) fn start_attached(
        &self,
        streams: Streams,
        args: &[OsString],
        env: &[(&str, OsString)],
        environment: &Arc<Environment>,
    ) -> io::Result<Child> {
        self.spawn(None, streams, args, env, environment)
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

    /// Starts it as a process of this one, unconfined.
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
        // Locked for the start alone, not for the pauses.
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

    /// Has it started by the launcher of its sandbox; `None` if nothing confines it.
    #[cfg(target_os = "linux")]
    fn launch(&self, attempt: &Attempt<'_>) -> Option<io::Result<Child>> {
        let launcher = self.sandbox.as_ref()?.launcher()?;
        let env: Vec<(&OsStr, &OsStr)> = attempt.env().collect();
        let home = value_of(&env, "HOME");
        let mut run = vec![self.path.clone()];
        for program in self.programs(attempt.file, &env) {
            match launcher.real(&program) {
                Ok(_) => run.extend(installation(&program, home.as_ref())),
                Err(err) => return Some(Err(err)),
            }
        }
        // The launcher puts its own name of a sealed copy in place of these.
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

    fn is_known_to_be_run_by_shell(&self) -> bool {
        let mut memory = self.run_by_shell.lock();
        if memory.is_some() && *memory != FileVersion::of(&self.path) {
            *memory = None;
        }
        memory.is_some()
    }
}

/// The interpreter that a file names, if it is a script, and whether it names it by its path.
#[cfg(target_os = "linux")]
fn interpreter(file: &Path, env: &[(&OsStr, &OsStr)]) -> Option<(PathBuf, bool)> {
    let head = read_head(file).unwrap_or_default();
    let FileKind::Script(shebang) = FileKind::of(&head) else { return None };
    let mut words =
        shebang.argument.iter().flat_map(|words| words.as_encoded_bytes().split(|byte| *byte == b' '));
    if shebang.program.ends_with("env") {
        let word =
            words.find(|word| !word.is_empty() && !word.starts_with(b"-") && !word.contains(&b'='));
        let name = word.map(|word| PathBuf::from(OsStr::from_bytes(word)));
        let name = name?;
        let is_path = name.components().count() > 1;
        let found = crate::file::program_in(&value_of(env, "PATH").unwrap_or_default(), &name);
        found.map(|program| (program, is_path))
    } else {
        Some((shebang.program, true))
    }
}

/// A variable of an environment.
#[cfg(target_os = "linux")]
fn value_of(env: &[(&OsStr, &OsStr)], name: &str) -> Option<OsString> {
    env.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| value.to_os_string())
}

/// Runs text that names no interpreter.
const SHELL: &str = "/bin/sh";

fn is_text(file: &Path) -> bool {
    read_head(file).is_ok_and(|head| FileKind::of(&head) != FileKind::Binary)
}

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

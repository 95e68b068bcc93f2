//! A directory with tools, prompts and a configuration, and the binary that runs in it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio as Pipe};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use parking_lot::Mutex;
use tempfile::TempDir;

use crate::process::{Process, processes_with};
use crate::server::Server;
use crate::stdio::Stdio;
use crate::terminal::Terminal;
use crate::wait::eventually;

/// Held while a file is written and while a process is started. A process that starts while a file is
/// being written inherits its descriptor for a moment, and that file cannot be executed then.
static FILES_AND_PROCESSES: Mutex<()> = Mutex::new(());
static WORLDS: AtomicU64 = AtomicU64::new(0);

/// Returns a port of this machine that nothing uses. It is below those that the system chooses, so that
/// no other test gets it.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 16_000 + u16::try_from(std::process::id() % 10_000).expect("it is small");
    loop {
        let port = first + NEXT.fetch_add(1, Ordering::Relaxed) % 6_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A temporary directory in which the binary runs. Every process that was started there ends with it.
#[derive(Debug)]
pub struct World {
    binary: PathBuf,
    dir: TempDir,
    mark: String,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    wrapper: Vec<OsString>,
}

/// A command that ran to its end.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl World {
    /// An empty directory for this binary.
    pub fn new(binary: impl Into<PathBuf>) -> Self {
        let dir = tempfile::Builder::new().prefix("orla-e2e-").tempdir().expect("a temporary directory");
        let number = WORLDS.fetch_add(1, Ordering::Relaxed);
        let mark = format!("E2E_WORLD={}x{number}y", std::process::id());
        Self {
            binary: binary.into(),
            dir,
            mark,
            arguments: Vec::new(),
            environment: Vec::new(),
            wrapper: Vec::new(),
        }
    }

    /// Adds an executable to `tools/`.
    #[must_use]
    pub fn tool(self, name: impl AsRef<OsStr>, contents: impl AsRef<[u8]>) -> Self {
        self.write(Path::new("tools").join(name.as_ref()), contents, 0o755);
        self
    }

    /// Adds a file that is not executable.
    #[must_use]
    pub fn file(self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Self {
        self.write(path, contents, 0o644);
        self
    }

    /// Writes `orla.yaml`.
    #[must_use]
    pub fn config(self, yaml: &str) -> Self {
        self.file("orla.yaml", yaml)
    }

    /// Adds an argument of the server's command line.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Sets a variable of the environment of everything that is started.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Starts every process through another command, for example `sh -c 'ulimit …; exec "$@"' --`.
    #[must_use]
    pub fn through(mut self, command: &[&str]) -> Self {
        self.wrapper = command.iter().map(OsString::from).collect();
        self
    }

    /// Serves HTTP on a free port. Returns when the server listens.
    pub fn serve(mut self) -> Server {
        if !self.arguments.iter().any(|argument| argument == "--port") {
            self.arguments.extend(["--port".into(), "0".into()]);
        }
        Server::start(self)
    }

    /// Like [`Self::serve`], for a log that does not contain the server's address.
    pub fn serve_quietly(mut self) -> Server {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        self.arguments.extend(["--port".into(), address.port().to_string().into()]);
        Server::start_at(self, address)
    }

    /// Serves standard input and output.
    pub fn serve_stdio(mut self) -> Stdio {
        self.arguments.push("--stdio".into());
        Stdio::start(self)
    }

    /// Runs one command to its end.
    pub fn run<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Finished {
        self.run_with_input(arguments, b"")
    }

    /// Runs one command to its end, with this on its standard input.
    pub fn run_with_input<A: AsRef<OsStr>>(&self, arguments: &[A], input: &[u8]) -> Finished {
        let (out, err) = (self.path(".run.stdout"), self.path(".run.stderr"));
        self.write(".run.stdin", input, 0o644);
        let mut command = self.command();
        command
            .args(arguments)
            .stdin(fs::File::open(self.path(".run.stdin")).expect("its input"))
            .stdout(fs::File::create(&out).expect("a file for its output"))
            .stderr(fs::File::create(&err).expect("a file for its errors"));
        let mut child = Guarded(spawn(&mut command));
        let shown: Vec<_> = arguments.iter().map(|a| a.as_ref().to_string_lossy()).collect();
        let status = eventually(&format!("`orla {}` ends", shown.join(" ")), || {
            child.0.try_wait().expect("a child can be waited for")
        });
        let text = |path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
        Finished { code: status.code(), stdout: text(out), stderr: text(err) }
    }

    /// Starts one command, which writes its output and its errors to this file of the world.
    pub fn spawn<A: AsRef<OsStr>>(&self, arguments: &[A], output: &str) -> Child {
        let file = || fs::File::options().append(true).open(self.path(output)).expect("its output");
        self.write(output, b"", 0o644);
        let mut command = self.command();
        spawn(command.args(arguments).stdout(file()).stderr(file()))
    }

    /// Runs one command at its own terminal. The world ends with the command.
    pub fn at_terminal<A: AsRef<OsStr>>(self, arguments: &[A]) -> Terminal {
        // A controlling terminal sends the signals of its keys. It requires a session, which `setsid`
        // creates.
        let world = self.through(&["setsid", "--ctty"]);
        let mut command = world.command();
        command.args(arguments);
        Terminal::start(world, command)
    }

    /// Returns the world's directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns a path in the world's directory.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(path)
    }

    /// Writes a file as careful people do: complete, under another name, then renamed.
    pub fn write(&self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>, mode: u32) -> PathBuf {
        let path = self.path(path);
        let dir = path.parent().expect("a path below the world's directory");
        fs::create_dir_all(dir).expect("a directory");
        let temporary = self.path(format!(".{:x}.partial", WORLDS.fetch_add(1, Ordering::Relaxed)));
        let _held = FILES_AND_PROCESSES.lock();
        fs::write(&temporary, contents).expect("a file can be written");
        fs::set_permissions(&temporary, Permissions::from_mode(mode)).expect("a mode can be set");
        fs::rename(&temporary, &path).expect("a file can be renamed");
        path
    }

    /// Removes a file.
    pub fn remove(&self, path: impl AsRef<Path>) {
        fs::remove_file(self.path(path)).expect("a file can be removed");
    }

    /// Returns the text of a file; empty if the file does not exist.
    pub fn read(&self, path: impl AsRef<Path>) -> String {
        fs::read(self.path(path))
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// Returns all live processes that descend from the started ones, including those.
    pub fn processes(&self) -> Vec<Process> {
        processes_with(&self.mark)
    }

    /// Returns the processes of [`Self::processes`] that run for a tool.
    pub fn tool_processes(&self) -> Vec<Process> {
        let mut processes = self.processes();
        processes.retain(|process| process.environment.contains("ORLA_TOOL="));
        processes
    }

    /// Returns the command of the server, with its arguments and no pipes.
    pub(crate) fn server_command(&self) -> Command {
        let mut command = self.command();
        command.args(&self.arguments);
        command
    }

    fn command(&self) -> Command {
        let mut command = match self.wrapper.split_first() {
            Some((program, arguments)) => {
                let mut command = Command::new(program);
                command.args(arguments).arg(&self.binary);
                command
            }
            None => Command::new(&self.binary),
        };
        let (name, value) = self.mark.split_once('=').expect("a mark is an assignment");
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("ORLA_") {
                command.env_remove(variable);
            }
        }
        command.current_dir(self.dir()).env("HOME", self.dir()).env(name, value);
        // The mark finds the processes of tools, so they have to get it.
        command.env("ORLA_PASS_ENV", name);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Pipe::null()).stdout(Pipe::null()).stderr(Pipe::null());
        command
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Servers have been stopped by now. Remaining processes belong to a failed test or outlive their server on purpose.
        for process in self.processes() {
            kill(process.id, rustix::process::Signal::KILL);
        }
    }
}

impl Finished {
    /// Standard output and standard error.
    pub fn all(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

/// Starts a process while no file of a world is open for writing.
pub(crate) fn spawn(command: &mut Command) -> Child {
    let _held = FILES_AND_PROCESSES.lock();
    command.spawn().unwrap_or_else(|err| panic!("{command:?}: {err}"))
}

/// Sends a signal to one process.
pub(crate) fn kill(id: u32, signal: rustix::process::Signal) {
    if let Some(id) = i32::try_from(id).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(id, signal);
    }
}

/// Ends a child that is still there when its test is over.
struct Guarded(Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

//! The release binary as a running server.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long a server may take to listen.
const START: Duration = Duration::from_secs(120);

/// A serving `orla`, ended when dropped. Its log goes to a file, as it would under a supervisor.
pub(crate) struct Server {
    child: Child,
    log: BufReader<File>,
    /// The beginning of a line whose end has not been written yet.
    unfinished: String,
    /// `127.0.0.1:PORT`.
    pub(crate) address: String,
}

/// Builds the release binary and says where it is.
pub(crate) fn build() -> Result<PathBuf, String> {
    cargo(&["build", "--release", "--package", "orla"])?;
    Ok(crate::target("release")?.join("orla"))
}

/// Returns the binary to test: that of `$ORLA_BIN`, or else the release binary, which is built.
pub(crate) fn binary() -> Result<PathBuf, String> {
    match std::env::var_os("ORLA_BIN") {
        Some(binary) => Ok(binary.into()),
        None => build(),
    }
}

/// Returns the address in a line of the server's log.
pub(crate) fn address(line: &str) -> Option<String> {
    let line: Value = serde_json::from_str(line).ok()?;
    (line["message"] == "listening").then(|| line["address"].as_str().map(str::to_owned)).flatten()
}

/// Runs cargo in the repository, its output on the terminal.
pub(crate) fn cargo(arguments: &[&str]) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // `cargo run` tells a program about its package. Build scripts see it too, and one that asks to be
    // run again when it changes would be, with all that depends on it, each time we change places with
    // a plain `cargo build`.
    for (name, _) in std::env::vars_os() {
        let is_of_our_package = name.to_str().is_some_and(|name| {
            name.starts_with("CARGO_PKG_")
                || name.starts_with("CARGO_MANIFEST_")
                || name == "CARGO_BIN_NAME"
        });
        if is_of_our_package {
            command.env_remove(name);
        }
    }
    let status = command
        .args(arguments)
        .current_dir(crate::root())
        .status()
        .map_err(|err| format!("cargo: {err}"))?;
    if status.success() { Ok(()) } else { Err(format!("cargo {} failed", arguments.join(" "))) }
}

impl Server {
    /// Starts a server in `folder` on a port of the system's choice and waits until it listens. Its
    /// log goes to `server.log` in `logs`.
    pub(crate) fn start(binary: &Path, folder: &Path, logs: &Path) -> Result<Self, String> {
        let mut command = Command::new(binary);
        command.args(["--port", "0", "--log-format", "json"]).current_dir(folder);
        Self::listening(command, &logs.join("server.log"), address)
    }

    /// Starts any server that tells its address on standard error.
    pub(crate) fn listening(
        command: Command,
        log: &Path,
        address_of: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut server = Self::spawn(command, log)?;
        server.address = server
            .wait_for(START, address_of)
            .map_err(|problem| format!("{name} did not start: {problem}"))?;
        Ok(server)
    }

    /// Starts any server that was told its address, and waits until it accepts connections there.
    pub(crate) fn reachable(command: Command, log: &Path, address: &str) -> Result<Self, String> {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut server = Self::spawn(command, log)?;
        let end = Instant::now() + START;
        while TcpStream::connect(address).is_err() {
            if let Ok(Some(status)) = server.child.try_wait() {
                return Err(format!("{name} did not start: {status}"));
            }
            if Instant::now() > end {
                return Err(format!("{name} does not listen on {address}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        address.clone_into(&mut server.address);
        Ok(server)
    }

    /// Starts a program whose standard error goes to a file.
    fn spawn(mut command: Command, log: &Path) -> Result<Self, String> {
        let name = command.get_program().to_string_lossy().into_owned();
        let problem = |err: std::io::Error| format!("{}: {err}", log.display());
        let stderr = File::create(log).map_err(problem)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .map_err(|err| format!("{name}: {err}"))?;
        let log = BufReader::new(File::open(log).map_err(problem)?);
        Ok(Self { child, log, unfinished: String::new(), address: String::new() })
    }

    /// Reads the log on until a line gives what is looked for.
    pub(crate) fn wait_for<T>(
        &mut self,
        limit: Duration,
        find: impl Fn(&str) -> Option<T>,
    ) -> Result<T, String> {
        let end = Instant::now() + limit;
        let mut last = String::new();
        loop {
            while let Some(line) = self.next_line()? {
                if let Some(found) = find(&line) {
                    return Ok(found);
                }
                last = line;
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("it ended ({status}); last log line: {last}"));
            }
            if Instant::now() > end {
                return Err(format!("timed out; last log line: {last}"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the next whole line of the log, if it has been written.
    pub(crate) fn next_line(&mut self) -> Result<Option<String>, String> {
        self.log.read_line(&mut self.unfinished).map_err(|err| format!("log: {err}"))?;
        if !self.unfinished.ends_with('\n') {
            return Ok(None);
        }
        let line = std::mem::take(&mut self.unfinished);
        Ok(Some(line.trim_end().to_owned()))
    }

    /// Returns the process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends the reload signal.
    pub(crate) fn hang_up(&self) -> Result<(), String> {
        signal(&self.child, rustix::process::Signal::HUP)
    }

    /// Lets it stand still.
    pub(crate) fn pause(&self) -> Result<(), String> {
        signal(&self.child, rustix::process::Signal::STOP)
    }

    /// Ends it as a supervisor would, and says how it ended.
    pub(crate) fn end(mut self, limit: Duration) -> Result<ExitStatus, String> {
        signal(&self.child, rustix::process::Signal::TERM)?;
        let end = Instant::now() + limit;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
                Ok(None) => return Err(format!("it had not ended {limit:?} after SIGTERM")),
                Err(err) => return Err(err.to_string()),
            }
        }
    }

    /// Ends it as a failure would: with SIGKILL.
    pub(crate) fn kill(mut self) -> Result<(), String> {
        self.child.kill().and_then(|()| self.child.wait()).map_err(|err| err.to_string())?;
        Ok(())
    }

    /// Resident memory in bytes.
    pub(crate) fn resident(&self) -> Result<u64, String> {
        resident(self.pid())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let asked = signal(&self.child, rustix::process::Signal::TERM);
        let end = Instant::now() + Duration::from_secs(12);
        while asked.is_ok() && Instant::now() < end {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                Ok(Some(_)) | Err(_) => return,
            }
        }
        // It did not end by itself: nothing of a job may stay behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Resident memory of a process in bytes, where the system has `/proc`.
pub(crate) fn resident(pid: u32) -> Result<u64, String> {
    memory(&format!("/proc/{pid}/status"), "VmRSS:")
}

/// The most of it that there ever was.
pub(crate) fn peak(pid: u32) -> Result<u64, String> {
    memory(&format!("/proc/{pid}/status"), "VmHWM:")
}

/// The part of it that the process has written, so that nothing else shares it.
pub(crate) fn private(pid: u32) -> Result<u64, String> {
    memory(&format!("/proc/{pid}/smaps_rollup"), "Private_Dirty:")
}

/// Returns a field of a file in `/proc`, whose unit is 1,024 bytes.
fn memory(path: &str, name: &str) -> Result<u64, String> {
    let text = std::fs::read_to_string(path).map_err(|err| format!("{path}: {err}"))?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"));
    let kilobytes = value.and_then(|value| value.trim().parse::<u64>().ok());
    kilobytes.map(|kilobytes| kilobytes * 1024).ok_or_else(|| format!("{path}: no {name}"))
}

/// Returns the processor time that a process and the children that it has reaped have taken, where the
/// system has `/proc`.
pub(crate) fn processor_time(pid: u32) -> Result<Duration, String> {
    /// The unit of times in `/proc`: a hundredth of a second on every kernel.
    const TICK: Duration = Duration::from_millis(10);
    let path = format!("/proc/{pid}/stat");
    let stat = std::fs::read_to_string(&path).map_err(|err| format!("{path}: {err}"))?;
    // The name in parentheses may hold anything; what follows it are numbers. The times (user and system, its own and its
    // children's) are the 14th to 17th of all fields, so the 12th to 15th of these.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let ticks: Vec<u32> = fields.skip(11).take(4).filter_map(|field| field.parse().ok()).collect();
    match ticks[..] {
        [user, system, children_user, children_system] => {
            Ok(TICK * (user + system + children_user + children_system))
        }
        _ => Err(format!("{path}: no processor time")),
    }
}

fn signal(child: &Child, signal: rustix::process::Signal) -> Result<(), String> {
    let pid = i32::try_from(child.id())
        .ok()
        .and_then(rustix::process::Pid::from_raw)
        .ok_or("no process id")?;
    rustix::process::kill_process(pid, signal).map_err(|err| format!("kill: {err}"))
}

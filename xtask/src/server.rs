//! The release binary as a running server.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How many log lines may wait to be read; a server that logs more is not held up, its newest
/// lines are dropped.
const LOG_LINES: usize = 100_000;

/// A serving `orla`, ended when dropped.
pub(crate) struct Server {
    child: Child,
    log: Receiver<Value>,
    /// `127.0.0.1:PORT`.
    pub(crate) address: String,
}

/// Builds the release binary and says where it is.
pub(crate) fn build() -> Result<PathBuf, String> {
    cargo(&["build", "--release", "--package", "orla"])?;
    Ok(crate::target("release")?.join("orla"))
}

/// Runs cargo in the repository, its output on the terminal.
pub(crate) fn cargo(arguments: &[&str]) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(arguments)
        .current_dir(crate::root())
        .status()
        .map_err(|err| format!("cargo: {err}"))?;
    if status.success() { Ok(()) } else { Err(format!("cargo {} failed", arguments.join(" "))) }
}

impl Server {
    /// Starts a server in `folder` on a port of the system's choice and waits until it listens.
    pub(crate) fn start(binary: &Path, folder: &Path, arguments: &[&str]) -> Result<Self, String> {
        let mut command = Command::new(binary);
        command.args(["--port", "0", "--log-format", "json"]).args(arguments).current_dir(folder);
        Self::listening(command, |line| {
            (line["message"] == "listening" || line["fields"]["message"] == "listening")
                .then(|| field(line, "address").as_str().map(str::to_owned))
                .flatten()
        })
    }

    /// Starts any server that tells its address on standard error as JSON lines.
    pub(crate) fn listening(
        mut command: Command,
        address_of: impl Fn(&Value) -> Option<String>,
    ) -> Result<Self, String> {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|err| format!("{name}: {err}"))?;
        let stderr = child.stderr.take().ok_or("no standard error")?;
        let (sender, log) = sync_channel(LOG_LINES);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let value = serde_json::from_str(&line).unwrap_or(Value::String(line));
                // Full: the line is dropped, the server must not wait for whoever reads its log.
                let _ = sender.try_send(value);
            }
        });
        let mut server = Self { child, log, address: String::new() };
        let line = server
            .wait_for_line(Duration::from_secs(20), |line| address_of(line).is_some())
            .map_err(|problem| format!("{name} did not start: {problem}"))?;
        server.address = address_of(&line).unwrap_or_default();
        Ok(server)
    }

    /// Takes log lines until one fits.
    pub(crate) fn wait_for_line(
        &self,
        limit: Duration,
        fits: impl Fn(&Value) -> bool,
    ) -> Result<Value, String> {
        let end = Instant::now() + limit;
        let mut last = Value::Null;
        loop {
            match self.log.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) if fits(&line) => return Ok(line),
                Ok(line) => last = line,
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("timed out; last log line: {last}"));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(format!("it ended; last log line: {last}"));
                }
            }
        }
    }

    /// The process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends the reload signal.
    pub(crate) fn hang_up(&self) -> Result<(), String> {
        signal(&self.child, rustix::process::Signal::HUP)
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
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).map_err(|err| format!("{path}: {err}"))?;
    status
        .lines()
        .find_map(|line| {
            line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
        })
        .map(|kilobytes| kilobytes * 1024)
        .ok_or_else(|| format!("{path}: no VmRSS"))
}

/// A field of a log line, whether the fields lie at the top or below `fields`.
pub(crate) fn field<'a>(line: &'a Value, name: &str) -> &'a Value {
    line.get(name).unwrap_or_else(|| &line["fields"][name])
}

fn signal(child: &Child, signal: rustix::process::Signal) -> Result<(), String> {
    let pid = i32::try_from(child.id())
        .ok()
        .and_then(rustix::process::Pid::from_raw)
        .ok_or("no process id")?;
    rustix::process::kill_process(pid, signal).map_err(|err| format!("kill: {err}"))
}

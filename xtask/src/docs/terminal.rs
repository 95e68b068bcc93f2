//! A shell that is typed into, as a person would.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::session::{is_shown, shown_until};

/// How long a command may take, or what it prints may be waited for.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Comes before the number and the status of a command that ended.
const MARK: char = '\u{1}';

/// One shell with its processes, which end with it.
pub(super) struct Terminal {
    shell: Child,
    /// What it and all that it runs have printed.
    output: PathBuf,
    /// How many bytes of that belong to earlier commands, or were waited for.
    seen: usize,
    /// The number of the last command.
    count: usize,
    is_running: bool,
}

impl Terminal {
    /// Starts a shell. What it prints goes to a file.
    pub(super) fn open(mut shell: Command, output: &Path) -> Result<Self, String> {
        let file = File::create(output).map_err(|err| format!("{}: {err}", output.display()))?;
        let problem = |err: std::io::Error| format!("bash: {err}");
        let mut shell = shell
            .stdin(Stdio::piped())
            .stdout(file.try_clone().map_err(problem)?)
            .stderr(file)
            .process_group(0)
            .spawn()
            .map_err(problem)?;
        // Ctrl-C ends what runs in a shell, and not the shell.
        let typed = shell.stdin.as_mut().map(|stdin| stdin.write_all(b"trap : INT\n"));
        typed.ok_or("no standard input")?.map_err(problem)?;
        Ok(Self { shell, output: output.to_owned(), seen: 0, count: 0, is_running: false })
    }

    fn type_in(&mut self, command: &str) -> Result<(), String> {
        if self.is_running {
            return Err("the command before has not ended".to_owned());
        }
        self.seen = self.text()?.len();
        self.count += 1;
        self.is_running = true;
        let line = format!("{{ {command}\n}} </dev/null\nprintf '{MARK}{} %s\\n' $?\n", self.count);
        let stdin = self.shell.stdin.as_mut().ok_or("no standard input")?;
        stdin.write_all(line.as_bytes()).map_err(|err| format!("bash: {err}"))
    }

    /// Types a command, and compares all that it prints with what is shown. An error is what it printed.
    pub(super) fn run(&mut self, command: &str, shown: &[String]) -> Result<(), Vec<String>> {
        self.type_in(command).map_err(|err| vec![err])?;
        let printed = self.end().map_err(|err| vec![err])?;
        let lines: Vec<&str> = printed.lines().collect();
        if is_shown(shown, &lines) {
            Ok(())
        } else {
            Err(lines.into_iter().map(str::to_owned).collect())
        }
    }

    /// Types a command that goes on, and waits until it has printed what is shown.
    pub(super) fn start(&mut self, command: &str, shown: &[String]) -> Result<(), Vec<String>> {
        self.type_in(command).map_err(|err| vec![err])?;
        self.wait_for(shown)
    }

    /// Waits until the running command has printed what is shown.
    pub(super) fn wait_for(&mut self, shown: &[String]) -> Result<(), Vec<String>> {
        let end = Instant::now() + TIMEOUT;
        loop {
            let text = self.text().map_err(|err| vec![err])?;
            let new = text.get(self.seen..).unwrap_or_default();
            let whole = new.rfind('\n').map_or("", |at| &new[..=at]);
            let lines: Vec<&str> = whole.lines().collect();
            if shown.is_empty() {
                return Ok(());
            }
            if let Some(until) = shown_until(shown, &lines) {
                self.seen += whole.split_inclusive('\n').take(until).map(str::len).sum::<usize>();
                return Ok(());
            }
            if whole.contains(MARK) || Instant::now() > end {
                return Err(lines.into_iter().map(str::to_owned).collect());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ctrl-C, and the end of the command.
    pub(super) fn interrupt(&mut self) -> Result<(), String> {
        if !self.is_running {
            return Err("no command runs that Ctrl-C could end".to_owned());
        }
        self.signal(Signal::INT)?;
        self.end().map(drop)
    }

    /// Waits for the end of the command, and says what it printed.
    fn end(&mut self) -> Result<String, String> {
        let end = Instant::now() + TIMEOUT;
        let mark = format!("{MARK}{} ", self.count);
        loop {
            let text = self.text()?;
            let new = text.get(self.seen..).unwrap_or_default();
            if let Some(at) = new.find(&mark).filter(|_| new.ends_with('\n')) {
                self.is_running = false;
                return Ok(new[..at].to_owned());
            }
            if Instant::now() > end {
                return Err(format!("it has not ended after {TIMEOUT:?}; it printed: {new}"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn text(&self) -> Result<String, String> {
        let bytes =
            std::fs::read(&self.output).map_err(|err| format!("{}: {err}", self.output.display()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn signal(&self, signal: Signal) -> Result<(), String> {
        let group =
            i32::try_from(self.shell.id()).ok().and_then(Pid::from_raw).ok_or("no process id")?;
        kill_process_group(group, signal).map_err(|err| format!("kill: {err}"))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A server ends what it started when it is asked to.
        if self.is_running && self.interrupt().is_ok() {
            self.is_running = false;
        }
        let _ = self.signal(Signal::KILL);
        let _ = self.shell.wait();
    }
}

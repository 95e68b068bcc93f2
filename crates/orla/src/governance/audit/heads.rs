//! The destination for heads of the audit log: a file, or a command that reads one line.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::config::{AuditHeads, reason};

/// How long the command may take.
const LIMIT: Duration = Duration::from_secs(10);

/// Receives heads. The newest head confirms all earlier lines.
pub(super) enum Heads {
    File(PathBuf),
    Command(Runner),
}

impl Heads {
    /// # Errors
    ///
    /// Returns an error if the file cannot be written, or the thread cannot be started.
    pub(super) fn open(to: &AuditHeads) -> Result<Self, String> {
        match to {
            AuditHeads::File(path) => {
                // Checked before it is opened: opening a fifo would wait for its reader.
                if std::fs::metadata(path).is_ok_and(|file| !file.is_file()) {
                    return Err(format!("audit_heads: {}: not a regular file", path.display()));
                }
                append(path, "")?;
                Ok(Self::File(path.clone()))
            }
            AuditHeads::Command(words) => Runner::start(words.clone()).map(Self::Command),
        }
    }

    /// Writes a line. A file has it when this returns; a command receives it soon after.
    pub(super) fn give(&self, line: String) {
        match self {
            Self::File(path) => {
                if let Err(reason) = append(path, &line) {
                    tracing::error!(reason, "the head of the audit log was not written");
                }
            }
            Self::Command(runner) => runner.give(line),
        }
    }
}

fn append(path: &Path, line: &str) -> Result<(), String> {
    let opened = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
    let written = opened.and_then(|mut file| {
        file.write_all(line.as_bytes())?;
        file.sync_data()
    });
    written.map_err(|err| format!("audit_heads: {} cannot be written: {}", path.display(), reason(&err)))
}

/// A thread that runs the command for the newest head, so that the log does not wait for it.
pub(super) struct Runner {
    next: Arc<(Mutex<Next>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Next {
    line: Option<String>,
    ending: bool,
}

impl Runner {
    fn start(words: Vec<String>) -> Result<Self, String> {
        let next: Arc<(Mutex<Next>, Condvar)> = Arc::default();
        let shared = Arc::clone(&next);
        let thread = std::thread::Builder::new().name("orla-heads".to_owned());
        let thread = thread.spawn(move || {
            let (next, came) = &*shared;
            loop {
                let mut next = next.lock();
                came.wait_while(&mut next, |next| next.line.is_none() && !next.ending);
                let line = next.line.take();
                // The lock is not held while the command runs.
                drop(next);
                let Some(line) = line else { return };
                if let Err(reason) = run(&words, &line) {
                    tracing::error!(command = words[0], reason, "audit_heads: the command failed");
                }
            }
        });
        let thread = thread.map_err(|err| format!("audit_heads: no thread for it: {}", reason(&err)))?;
        Ok(Self { next, thread: Some(thread) })
    }

    fn give(&self, line: String) {
        self.next.0.lock().line = Some(line);
        self.next.1.notify_one();
    }
}

impl Drop for Runner {
    /// Waits until the last head has been delivered.
    fn drop(&mut self) {
        self.next.0.lock().ending = true;
        self.next.1.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(words: &[String], line: &str) -> Result<(), String> {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    // A separate process group, so that a Ctrl-C that ends the server does not end the command for the
    // last head.
    let mut child = command.process_group(0).spawn().map_err(|err| reason(&err))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A command that does not read the head decides by its exit code whether that is an error.
        let _ = stdin.write_all(line.as_bytes());
    }
    let deadline = Instant::now() + LIMIT;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(status.to_string()),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
            Ok(None) => {
                let _ = child.kill().and_then(|()| child.wait());
                return Err(format!("it was not done within {} s", LIMIT.as_secs()));
            }
            Err(err) => return Err(reason(&err)),
        }
    }
}

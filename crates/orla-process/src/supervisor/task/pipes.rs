//! Reads and writes the pipes of a process, and handles its end.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::FutureExt as _;
use tokio::io::{self, AsyncReadExt as _};
use tokio::time::Instant;

use super::super::process::Process;
use super::super::protocol::{ProcessEvent, Protocol as _};
use super::super::service::Service;
use super::super::shared::Info;
use super::super::state::{Event, State};
use super::Task;
use super::pace::LINES_A_SECOND;
use crate::signal::signal_name;

/// How long requests wait for a process that may take no part in the handshake. The delay is not
/// noticeable.
const HANDSHAKE: Duration = Duration::from_millis(250);
/// How long a process that has closed a standard stream may take to exit by itself.
const EXIT_GRACE: Duration = Duration::from_millis(200);
/// The maximum number of unwritten bytes: 64 MiB. Requests wait elsewhere long before. The limit
/// concerns answers to a process that asks questions and never reads.
const MAX_UNREAD: usize = 64 * 1024 * 1024;
/// How often a pipe is read in a row before other tasks run.
const READS: usize = 8;
/// How often the output of a process that has exited is read.
const MAX_LAST_READS: usize = 1024;
/// The maximum length of a line of standard error that is logged at once.
const MAX_LOG_LINE: usize = 8 * 1024;
/// The maximum length of a line of standard error that an error repeats.
const MAX_LAST_LINE: usize = 200;

impl<S: Service> Task<S> {
    /// Writes as many bytes as the pipe accepts.
    pub(super) fn write(&mut self) {
        let Some(process) = &mut self.process else { return };
        let Some(stdin) = &process.stdin else { return };
        while !self.protocol.unwritten().is_empty() {
            match stdin.try_write(self.protocol.unwritten()) {
                Ok(count) => self.protocol.advance(count),
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => return,
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return self.input_closed(),
            }
        }
    }

    /// Handles a process that has closed its standard input. It is ended if it does not exit by itself in time.
    pub(super) fn input_closed(&mut self) {
        if let Some(process) = &mut self.process {
            process.stdin = None;
            self.stream_closed("it hung: it closed its standard input and does not exit");
        }
    }

    fn stream_closed(&mut self, reason: &'static str) {
        self.stream_closed.get_or_insert((Instant::now() + EXIT_GRACE, reason));
    }

    /// Reads the available output, a bounded part at a time.
    pub(super) async fn read(&mut self) {
        for _ in 0..READS {
            let Some(stdout) = self.process.as_mut().and_then(|process| process.stdout.as_mut()) else {
                return;
            };
            // Unlike `try_read_buf`, this treats a pipe as empty if it returned less than there was room
            // for.
            match stdout.read_buf(self.protocol.read_buffer()).now_or_never() {
                Some(Ok(0)) => return self.output_ended().await,
                Some(Ok(_)) => {
                    self.silence.heard();
                    self.take_events().await;
                }
                None => return,
                Some(Err(err)) if err.kind() == io::ErrorKind::Interrupted => {}
                Some(Err(_)) => return self.output_ended().await,
            }
        }
    }

    async fn take_events(&mut self) {
        while let Some(event) = self.protocol.next() {
            if let Err(reason) = self.take_event(event).await {
                return self.broken(&reason).await;
            }
        }
        if self.protocol.unwritten().len() > MAX_UNREAD {
            return self.broken("it keeps asking questions and does not read the answers").await;
        }
        self.end_if_drained().await;
    }

    /// Ends a process that violates the protocol. No more of its output is read.
    async fn broken(&mut self, reason: &str) {
        if let Some(process) = &mut self.process {
            process.stdout = None;
        }
        self.failure.get_or_insert_with(|| reason.to_owned());
        self.handle_event(Event::Broken, reason).await;
    }

    fn set_info(&mut self, info: Info<S>) {
        self.takes_part = Some(info != Info::<S>::default());
        self.shared.set_info(info);
    }

    /// Handles an event of the process.
    ///
    /// # Errors
    /// Why the process is ended.
    async fn take_event(&mut self, event: ProcessEvent<S::Protocol>) -> Result<(), String> {
        if matches!(event, ProcessEvent::Hello | ProcessEvent::Ready(_)) {
            // The files may no longer be those that the process was allowed to start from.
            self.shared.may_start(&self.service, Some(self.started)).await?;
        }
        match event {
            ProcessEvent::Hello => {
                let max_wait = match self.takes_part {
                    Some(true) => self.service.startup_timeout(),
                    Some(false) => Duration::ZERO,
                    None => HANDSHAKE,
                };
                self.handshake = Some(Instant::now() + max_wait);
                self.handle_event(Event::Hello, "it said hello").await;
            }
            ProcessEvent::Handshaking => {
                self.takes_part = Some(true);
                if self.handshake.is_some() {
                    self.handshake = Some(Instant::now() + self.service.startup_timeout());
                }
            }
            ProcessEvent::Ready(info) => {
                self.handle_event(Event::Hello, "it answered").await;
                self.takes_part = Some(true);
                match info {
                    Some(info) => self.set_info(info),
                    None => self.handshake = Some(Instant::now() + self.service.startup_timeout()),
                }
            }
            ProcessEvent::Info(info) => {
                self.handshake = None;
                self.set_info(info);
            }
            ProcessEvent::Broken(reason) => return Err(reason),
            ProcessEvent::Question(answer) => self.questions.push(answer),
        }
        Ok(())
    }

    async fn output_ended(&mut self) {
        if let Some(process) = &mut self.process {
            process.stdout = None;
        }
        self.protocol.end_of_output();
        self.take_events().await;
        if self.process.as_ref().is_some_and(Process::has_exited) {
            return self.exited().await;
        }
        self.stream_closed("it closed its standard output");
    }

    pub(super) fn read_stderr(&mut self) {
        for _ in 0..READS {
            let Some(process) = &mut self.process else { return };
            let Some(stderr) = &process.stderr else { return };
            self.stderr.reserve(4096);
            match stderr.try_read_buf(&mut self.stderr) {
                Ok(count) if count > 0 => {
                    self.silence.heard();
                    while let Some(end) = memchr::memchr(b'\n', &self.stderr) {
                        let line = self.stderr.split_to(end + 1);
                        self.take_line(line);
                    }
                    if self.stderr.len() > MAX_LOG_LINE {
                        let line = self.stderr.split();
                        self.take_line(line);
                    }
                    if self.stderr.is_empty() {
                        self.stderr = BytesMut::new();
                    }
                }
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => return,
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => {
                    process.stderr = None;
                    let rest = std::mem::take(&mut self.stderr);
                    self.end_pace();
                    self.log_line(&rest);
                }
            }
        }
    }

    fn take_line(&mut self, line: BytesMut) {
        let now = Instant::now();
        if self.pace.is_over(now) {
            self.end_pace();
        }
        let is_error = |line: &[u8]| is_error_line(&String::from_utf8_lossy(line));
        if let Some(line) = self.pace.take(line, is_error, now) {
            self.log_line(&line);
        }
    }

    /// Resumes logging, and reports how many lines were omitted.
    pub(super) fn end_pace(&mut self) {
        let Some((lines, kept)) = self.pace.end() else { return };
        let [capsule, server, plugin] = self.log_fields();
        tracing::warn!(
            capsule,
            server,
            plugin,
            lines,
            "lines of standard error are left out: more than {LINES_A_SECOND} in a second"
        );
        kept.for_each(|line| self.log_line(&line));
    }

    fn log_line(&mut self, line: &[u8]) {
        let line = self.service.without_secrets(String::from_utf8_lossy(line.trim_ascii_end()));
        if !line.is_empty() {
            let [capsule, server, plugin] = self.log_fields();
            tracing::info!(capsule, server, plugin, line = &*line, "stderr");
            self.shared.record_stderr_line(&line);
            if is_error_line(&line) || !(is_error_line(&self.last_line) || line.contains(NPM_TRAILER)) {
                let shown = line.chars().take(MAX_LAST_LINE);
                self.last_line = shown.map(|c| if c.is_control() { ' ' } else { c }).collect();
                if line.chars().nth(MAX_LAST_LINE).is_some() {
                    self.last_line.push('…');
                }
            }
        }
    }

    pub(super) async fn exited(&mut self) {
        // Output from before the exit counts. A grandchild may hold the pipes and go on writing.
        for _ in 0..MAX_LAST_READS {
            let Some(stdout) = self.process.as_ref().and_then(|process| process.stdout.as_ref()) else {
                break;
            };
            match stdout.try_read_buf(self.protocol.read_buffer()) {
                Ok(count) if count > 0 => self.take_events().await,
                _ => break,
            }
        }
        if self.process.as_ref().is_some_and(|process| process.stdout.is_some()) {
            self.protocol.end_of_output();
            self.take_events().await;
        }
        self.read_stderr();
        self.end_pace();
        let Some(mut process) = self.process.take() else { return };
        let status = process.reap();
        let mut reason = match process.breach() {
            Some(limit) => format!("it was ended because it went over its limit of {limit}"),
            None => exit_reason(status),
        };
        drop(process);
        if matches!(self.state, State::Starting { .. }) {
            let [_, handshake] = S::HANDSHAKE;
            reason.push_str(&format!(" before it {handshake}"));
        }
        if !self.last_line.is_empty() && !matches!(self.state, State::Ending { .. }) {
            reason.push_str(&format!("; it last wrote to standard error: {}", self.last_line));
        }
        self.handshake = None;
        self.stream_closed = None;
        let reason = self.failure.get_or_insert(reason).clone();
        self.handle_event(Event::Exited, &reason).await;
    }
}

fn exit_reason(status: Option<ExitStatus>) -> String {
    match status {
        Some(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("it exited with code {code}"),
            (None, Some(signal)) => format!("it was killed by {}", signal_name(signal)),
            (None, None) => "it ended".to_owned(),
        },
        None => "it ended".to_owned(),
    }
}

/// npm's last line of any failed run.
const NPM_TRAILER: &str = "A complete log of this run can be found in";

/// Returns whether a line of standard error looks like the reason of an exit. Programs write more after
/// it (a stack, a version, a blank line). The last such line helps most.
fn is_error_line(line: &str) -> bool {
    // npm begins every line with this text.
    let line = line.trim_start_matches("npm error").trim_start_matches("npm ERR!");
    let line = line.to_ascii_lowercase();
    ["error", "exception", "panicked", "cannot ", "failed", "not found"]
        .iter()
        .any(|word| line.contains(word))
}

#[cfg(test)]
mod tests {
    use super::is_error_line;

    #[test]
    fn the_reason_is_distinguished_from_trailing_lines() {
        for line in [
            "Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'x'",
            "ModuleNotFoundError: No module named 'x'",
            "thread 'main' (7) panicked at src/main.rs:1:1:",
            "sh: 1: nothing: not found",
            "npm error 404 Not Found - GET https://npm.example/nopkg - Not found",
        ] {
            assert!(is_error_line(line), "{line}");
        }
        for line in [
            "Node.js v20.20.2",
            "  13: <unknown>",
            "    at node:internal/main:5",
            "npm error 404 Note that you can also install from a",
            "npm error A complete log of this run can be found in: /tmp/x-debug-0.log",
        ] {
            assert!(!is_error_line(line), "{line}");
        }
    }
}

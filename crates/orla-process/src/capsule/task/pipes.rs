//! What goes through the pipes of a process, and its end.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use orla_marketplace::ClientError;
use orla_mcp::Learned;
use orla_mcp::conversation::{Heard, Question};
use orla_mcp::framing::{Lines, MAX_MESSAGE, TooLong, quoted};
use orla_mcp::wire;
use tokio::io::{self, AsyncReadExt as _};
use tokio::time::Instant;

use super::super::state::{Event, State};
use super::Task;
use crate::result::signal_name;

/// How long calls wait for `initialize` to be answered: not noticeable where it never is.
const OPENING: Duration = Duration::from_millis(250);
/// How long a process that has closed a standard stream may take to exit by itself.
const AFTER_CLOSED: Duration = Duration::from_millis(200);
/// Questions to clients that one process may have open.
const MAX_QUESTIONS: usize = 64;
/// How much may wait to be written. Calls wait elsewhere long before; this is for answers to requests of a
/// process that goes on asking and never reads.
const MAX_UNREAD: usize = 4 * MAX_MESSAGE;
/// How often a pipe is read in a row before others have their turn.
const READS: usize = 8;
/// The most of a line of standard error that is logged at once.
const MAX_LOG_LINE: usize = 8 * 1024;

impl Task {
    /// Writes what the pipe takes.
    pub(super) fn write(&mut self) {
        let Some(process) = &mut self.process else { return };
        let Some(stdin) = &process.stdin else { return };
        while !self.talk.unwritten().is_empty() {
            match stdin.try_write(self.talk.unwritten()) {
                Ok(count) => self.talk.wrote(count),
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => return,
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return self.input_closed(),
            }
        }
    }

    /// The process reads no more. It is about to exit, or it is ended.
    pub(super) fn input_closed(&mut self) {
        if let Some(process) = &mut self.process {
            process.stdin = None;
            self.stream_closed("it hung: it closed its standard input and does not exit");
        }
    }

    fn stream_closed(&mut self, reason: &'static str) {
        self.stream_closed.get_or_insert((Instant::now() + AFTER_CLOSED, reason));
    }

    /// Reads what is there, a bounded part at a time.
    pub(super) async fn read(&mut self) {
        for _ in 0..READS {
            let Some(stdout) = self.process.as_mut().and_then(|process| process.stdout.as_mut()) else {
                return;
            };
            // Unlike `try_read_buf`, this knows a pipe for empty that gave less than there was room for.
            match stdout.read_buf(self.lines.room()).now_or_never() {
                Some(Ok(0)) => return self.output_ended().await,
                Some(Ok(_)) => {
                    self.silence.broken();
                    self.take_lines().await;
                }
                None => return,
                Some(Err(err)) if err.kind() == io::ErrorKind::Interrupted => {}
                Some(Err(_)) => return self.output_ended().await,
            }
        }
    }

    pub(super) async fn take_lines(&mut self) {
        loop {
            match self.lines.next() {
                Ok(Some(line)) => {
                    self.hear(line).await;
                    if self.talk.unwritten().len() > MAX_UNREAD {
                        return self.broken("it asks and asks, and does not read the answers").await;
                    }
                }
                Ok(None) => break,
                Err(TooLong) => {
                    let reason = format!("it wrote a message of more than {} MiB", MAX_MESSAGE >> 20);
                    return self.broken(&reason).await;
                }
            }
        }
        if self.talk.wrong_answer() != self.shared.status().wrong_answer.as_ref() {
            self.publish();
        }
        self.drained().await;
    }

    /// It does what no capsule may. Nothing more of it is heard, and it is ended.
    async fn broken(&mut self, reason: &str) {
        if let Some(process) = &mut self.process {
            process.stdout = None;
        }
        self.lines = Lines::default();
        self.failure.get_or_insert_with(|| reason.to_owned());
        self.happened(Event::Broken, reason).await;
    }

    fn learned(&mut self, learned: Learned) {
        self.speaks_mcp = Some(learned.tools.is_some());
        self.shared.learned(learned);
    }

    /// Lets a process know which resources matter to those who asked one before it.
    fn resubscribe(&mut self) {
        let subscriptions = self.shared.subscriptions();
        self.talk.resubscribe(&subscriptions);
    }

    /// Takes a line, which may be a batch of messages.
    async fn hear(&mut self, line: Bytes) {
        if !line.starts_with(b"[") {
            let heard = self.talk.hear(&line);
            return self.heard(heard).await;
        }
        for message in wire::messages(line) {
            let heard = self.talk.hear(&message);
            self.heard(heard).await;
        }
    }

    pub(super) async fn heard(&mut self, heard: Heard) {
        match heard {
            Heard::Nothing => {}
            Heard::Hello(_) | Heard::Ready(_) if self.has_changed().await => {}
            Heard::Hello(_) => {
                let patience = match self.speaks_mcp {
                    Some(true) => self.definition.startup_timeout(),
                    Some(false) => Duration::ZERO,
                    None => OPENING,
                };
                self.opening = Some(Instant::now() + patience);
                self.happened(Event::Hello, "it said hello").await;
            }
            Heard::Ready(learned) => {
                self.happened(Event::Hello, "it answered").await;
                self.speaks_mcp = Some(true);
                self.resubscribe();
                if let Some(learned) = learned {
                    self.learned(learned);
                }
            }
            Heard::Unusable(reason) => self.broken(&reason).await,
            Heard::Learned(learned) => {
                if self.opening.take().is_some() {
                    self.resubscribe();
                }
                self.learned(learned);
            }
            // Fails where nobody listens.
            Heard::Told(notice) => drop(self.shared.told.send(notice)),
            Heard::Question(question) => self.asked(question),
        }
        if !self.talk.is_initializing() && self.opening.is_some() && self.speaks_mcp != Some(true) {
            // It has answered `initialize`: its list of tools is worth waiting for.
            self.speaks_mcp = Some(true);
            self.opening = Some(Instant::now() + self.definition.startup_timeout());
        }
    }

    /// Ends a process whose files are no longer those that it was allowed to start from.
    async fn has_changed(&mut self) -> bool {
        match self.shared.may_start(&self.definition, Some(self.started)).await {
            Ok(()) => false,
            Err(reason) => {
                self.broken(&reason).await;
                true
            }
        }
    }

    /// Asks a client on behalf of the process; the answer is awaited beside everything else.
    pub(super) fn asked(&mut self, question: Question) {
        let Question { id, method, params, client } = question;
        if self.questions.len() >= MAX_QUESTIONS {
            return self.talk.answer_question(&id, Err(ClientError::Gone));
        }
        self.questions.push(Box::pin(async move {
            let answer = client.request(&method, params).await;
            (id, answer)
        }));
    }

    pub(super) async fn output_ended(&mut self) {
        if let Some(process) = &mut self.process {
            process.stdout = None;
            if process.has_exited() {
                return self.exited().await;
            }
        }
        if let Some(rest) = self.lines.rest() {
            self.hear(rest).await;
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
                    self.silence.broken();
                    while let Some(end) = memchr::memchr(b'\n', &self.stderr) {
                        let line = self.stderr.split_to(end + 1);
                        self.log_line(&line);
                    }
                    if self.stderr.len() > MAX_LOG_LINE {
                        let line = self.stderr.split();
                        self.log_line(&line);
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
                    self.log_line(&rest);
                }
            }
        }
    }

    pub(super) fn log_line(&mut self, line: &[u8]) {
        let line = self.definition.without_secrets(String::from_utf8_lossy(line.trim_ascii_end()));
        if !line.is_empty() {
            let (_, [capsule, server, plugin]) = self.definition.shown();
            tracing::info!(capsule, server, plugin, line = &*line, "stderr");
            if tells_why(&line) || !tells_why(&self.last_words) {
                self.last_words = quoted(line.as_bytes());
            }
        }
    }

    pub(super) async fn exited(&mut self) {
        // What it wrote before it ended counts. A grandchild may hold the pipes and go on writing.
        for _ in 0..1024 {
            let Some(stdout) = self.process.as_ref().and_then(|process| process.stdout.as_ref()) else {
                break;
            };
            match stdout.try_read_buf(self.lines.room()) {
                Ok(count) if count > 0 => self.take_lines().await,
                _ => break,
            }
        }
        if let Some(rest) = self.lines.rest() {
            self.hear(rest).await;
        }
        self.read_stderr();
        let Some(mut process) = self.process.take() else { return };
        let status = process.reap();
        drop(process);
        let mut reason = ended(status);
        if matches!(self.state, State::Starting { .. }) {
            let [_, opening] = self.definition.opening();
            reason.push_str(&format!(" before it {opening}"));
        }
        if !self.last_words.is_empty() && !matches!(self.state, State::Ending { .. }) {
            reason.push_str(&format!("; its last words were: {}", self.last_words));
        }
        self.opening = None;
        self.stream_closed = None;
        let reason = self.failure.get_or_insert(reason).clone();
        self.happened(Event::Exited, &reason).await;
    }
}

fn ended(status: Option<ExitStatus>) -> String {
    match status {
        Some(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("it exited with code {code}"),
            (None, Some(signal)) => format!("it was killed by {}", signal_name(signal)),
            (None, None) => "it ended".to_owned(),
        },
        None => "it ended".to_owned(),
    }
}

/// Whether a line of standard error looks like the reason of an end. Programs say more after it (a stack,
/// a version, a blank), and the last such line is what helps.
fn tells_why(line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    ["error", "exception", "panicked", "cannot ", "failed", "not found"]
        .iter()
        .any(|word| line.contains(word))
}

#[cfg(test)]
mod tests {
    use super::tells_why;

    #[test]
    fn the_reason_is_told_from_what_follows_it() {
        for line in [
            "Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'x'",
            "ModuleNotFoundError: No module named 'x'",
            "thread 'main' (7) panicked at src/main.rs:1:1:",
            "sh: 1: nothing: not found",
        ] {
            assert!(tells_why(line), "{line}");
        }
        for line in ["Node.js v20.20.2", "  13: <unknown>", "    at node:internal/main:5"] {
            assert!(!tells_why(line), "{line}");
        }
    }
}

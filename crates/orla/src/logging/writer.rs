//! One thread writes the log, so that logging never waits for the reader of standard error.
//!
//! A line is written whole, by one call, and lines keep their order. The first line after a silence is written at
//! once; those within the next [`BATCH_DELAY`] are written together after it, because waking a thread costs more
//! than writing a line. If standard error is not read, the queue fills up; further lines are dropped and counted,
//! and the count is logged when there is room again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::{Settings, format};
use crate::config::Severity;
use crate::render::{self, Styled};

/// Lines that wait to be written.
const QUEUE: usize = 4096;
/// How long the thread sleeps after it has written, unless the log is flushed. Shorter than a person notices, longer than
/// the interval between the calls of a busy server.
const BATCH_DELAY: Duration = Duration::from_millis(10);
/// Bytes that are written together.
const BATCH_BYTES: usize = 64 * 1024;
/// Bytes of the thread's stack. The allocator of a debug build alone takes 64 KiB; unused stack takes no memory.
const STACK: usize = 256 * 1024;

#[derive(Clone)]
pub(super) struct Writer {
    queue: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
    /// Absent if it could not be started.
    thread: Option<Thread>,
}

enum Message {
    Line(Styled),
    /// Answered once everything before it is written.
    Flush(SyncSender<()>),
}

impl Writer {
    /// Returns a writer that reports dropped lines in the form of `settings`.
    pub(super) fn start(settings: Arc<Settings>) -> Self {
        let (queue, messages) = sync_channel(QUEUE);
        let dropped = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&dropped);
        let thread = std::thread::Builder::new().name("log".to_owned()).stack_size(STACK);
        // Without a thread, the channel is closed and every line is written by its logger.
        let thread = thread.spawn(move || write_all(&messages, &counter, &settings)).ok();
        Self { queue, dropped, thread: thread.map(|thread| thread.thread().clone()) }
    }

    /// Queues a line; it ends in a line feed.
    pub(super) fn write(&self, line: Styled) {
        match self.queue.try_send(Message::Line(line)) {
            Ok(()) | Err(TrySendError::Disconnected(Message::Flush(_))) => {}
            Err(TrySendError::Full(_)) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
            Err(TrySendError::Disconnected(Message::Line(line))) => render::log(&line),
        }
    }

    /// Waits until everything queued so far is written, at most `limit`.
    pub(super) fn flush(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let (done, wait) = sync_channel(1);
        let mut message = Message::Flush(done);
        loop {
            match self.queue.try_send(message) {
                Ok(()) => break,
                Err(TrySendError::Disconnected(_)) => return,
                Err(TrySendError::Full(back)) if Instant::now() < deadline => {
                    message = back;
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(TrySendError::Full(_)) => return,
            }
        }
        if let Some(thread) = &self.thread {
            thread.unpark();
        }
        let _ = wait.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

fn write_all(messages: &Receiver<Message>, dropped: &AtomicU64, settings: &Settings) {
    let mut lines = Styled::default();
    while let Ok(first) = messages.recv() {
        for message in std::iter::once(first).chain(messages.try_iter()) {
            match message {
                Message::Line(line) => lines.append(&line),
                Message::Flush(done) => {
                    render::log(&lines);
                    lines.clear(BATCH_BYTES);
                    let _ = done.try_send(());
                }
            }
            if lines.len() > BATCH_BYTES {
                render::log(&lines);
                lines.clear(BATCH_BYTES);
            }
        }
        let lost = dropped.swap(0, Ordering::Relaxed);
        if lost > 0 {
            lines.append(&settings.line(Severity::Warn, &loss(lost)));
        }
        render::log(&lines);
        lines.clear(BATCH_BYTES);
        std::thread::park_timeout(BATCH_DELAY);
    }
}

fn loss(count: u64) -> format::Fields {
    let mut fields = format::Fields::default();
    let text = "log lines were dropped because standard error was not read in time".to_owned();
    fields.add("message", format::Field::Text(text));
    fields.add("count", format::Field::Unsigned(count));
    fields
}

#[cfg(test)]
impl Writer {
    /// Returns a writer whose lines a test reads.
    pub(super) fn for_tests() -> (Self, Lines) {
        let (queue, messages) = sync_channel(QUEUE);
        (Self { queue, dropped: Arc::default(), thread: None }, Lines(messages))
    }
}

#[cfg(test)]
pub(super) struct Lines(Receiver<Message>);

#[cfg(test)]
impl Lines {
    pub(super) fn try_iter(&self) -> impl Iterator<Item = Styled> {
        self.0.try_iter().filter_map(|message| match message {
            Message::Line(line) => Some(line),
            Message::Flush(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_dropped_is_said_in_the_form_of_the_log() {
        for (pretty, shown) in [(true, "WARN  log lines were dropped"), (false, "\"count\":7")] {
            let line = Settings::of(Severity::Info, pretty).line(Severity::Warn, &loss(7));
            assert!(line.as_str().contains(shown), "{line:?}");
        }
    }

    #[test]
    fn an_unread_log_drops_lines_and_never_blocks() {
        let (writer, lines) = Writer::for_tests();
        for n in 0..QUEUE + 10 {
            writer.write(Styled::lines(&format!("{n}\n")));
        }
        assert_eq!(writer.dropped.load(Ordering::Relaxed), 10);
        writer.flush(Duration::from_millis(10));
        assert_eq!(lines.try_iter().count(), QUEUE);
    }
}

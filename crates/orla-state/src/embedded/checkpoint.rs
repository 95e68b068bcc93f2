//! Moves the content of the log into the main file, so that the log stays small.
//!
//! A separate thread does so while batches are written. The log begins anew only when all of it has been
//! moved. Once little is left, the writer therefore moves the rest itself, which is quick. If the thread
//! cannot keep up, the writer moves everything.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use rusqlite::wal::CheckpointMode;

use super::database::Connection;

/// The number of log pages from which on the log is moved (4 MiB).
const LOG_PAGES: i32 = 1024;
/// As many pages the writer moves itself.
const REST_PAGES: i32 = 128;
/// With as many pages in the log the writer stops for them (64 MiB).
const MAX_LOG_PAGES: i32 = 16 * LOG_PAGES;

/// The writer's knowledge of the log.
pub(super) struct Checkpoints {
    start: mpsc::SyncSender<()>,
    progress: Arc<Progress>,
}

#[derive(Default)]
struct Progress {
    running: AtomicBool,
    /// Pages of the log that are in the main file.
    moved: AtomicI32,
}

/// The next action for the log.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Nothing,
    /// The thread moves it.
    Start,
    /// The writer moves the rest.
    Finish,
}

impl Checkpoints {
    /// Starts the thread. It ends when this value is dropped.
    pub(super) fn start(connection: Connection) -> io::Result<(Self, JoinHandle<()>)> {
        let (start, starts) = mpsc::sync_channel(1);
        let progress = Arc::new(Progress::default());
        let shared = Arc::clone(&progress);
        let thread = thread::Builder::new().name("state-log".to_owned()).spawn(move || {
            while starts.recv().is_ok() {
                shared.moved.store(checkpoint(&connection), Ordering::Release);
                shared.running.store(false, Ordering::Release);
            }
        })?;
        Ok((Self { start, progress }, thread))
    }

    /// Keeps the log small after a transaction.
    pub(super) fn after_commit(&mut self, connection: &Connection) {
        let running = self.progress.running.load(Ordering::Acquire);
        let moved = self.progress.moved.load(Ordering::Acquire);
        match step(connection.log_pages(), moved, running) {
            Step::Nothing => {}
            Step::Start => {
                self.progress.running.store(true, Ordering::Release);
                if self.start.try_send(()).is_err() {
                    self.progress.running.store(false, Ordering::Release);
                }
            }
            Step::Finish => {
                checkpoint(connection);
                self.progress.moved.store(0, Ordering::Release);
            }
        }
    }
}

fn step(log: i32, moved: i32, running: bool) -> Step {
    // The number of moved pages refers to the previous log if that was longer.
    let rest = if moved <= log { log - moved } else { log };
    match log {
        ..LOG_PAGES => Step::Nothing,
        MAX_LOG_PAGES.. => Step::Finish,
        _ if running => Step::Nothing,
        _ if rest <= REST_PAGES => Step::Finish,
        _ => Step::Start,
    }
}

/// Moves the pages that can be moved without waiting. A failure loses nothing: the log keeps its
/// content, and the next checkpoint moves it.
fn checkpoint(connection: &Connection) -> i32 {
    let moved = connection.sqlite.wal_checkpoint_v2(None::<&str>, CheckpointMode::PASSIVE);
    moved.map_or(0, |(_, moved)| moved.max(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_moves_most_and_the_writer_the_rest() {
        assert_eq!(step(10, 0, false), Step::Nothing);
        assert_eq!(step(LOG_PAGES, 0, false), Step::Start);
        assert_eq!(step(LOG_PAGES + 500, 0, true), Step::Nothing);
        assert_eq!(step(LOG_PAGES + 500, LOG_PAGES, false), Step::Start);
        assert_eq!(step(LOG_PAGES + 500, LOG_PAGES + 400, false), Step::Finish);
        assert_eq!(step(MAX_LOG_PAGES, 0, true), Step::Finish);
        // The log has begun anew since.
        assert_eq!(step(LOG_PAGES, LOG_PAGES + 500, false), Step::Start);
    }
}

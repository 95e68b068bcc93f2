//! The progress that a run's caller sees: named steps at once, calls and computing often enough to show that the
//! run is alive, but not more.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::notice::{Notice, NoticeSink, Progress};

/// Calls are reported no more often than this.
const PACE: Duration = Duration::from_millis(100);
/// After so much silence, a run reports what it does.
pub(super) const SILENCE: Duration = Duration::from_secs(5);

/// The progress of one run. Its number grows with every report, as MCP requires.
#[derive(Clone)]
pub(super) struct Reporter {
    notices: NoticeSink,
    last: Arc<Mutex<Last>>,
}

struct Last {
    reports: u32,
    at: Instant,
}

impl Reporter {
    pub(super) fn new(notices: &NoticeSink) -> Self {
        let last = Last { reports: 0, at: Instant::now() };
        Self { notices: notices.clone(), last: Arc::new(Mutex::new(last)) }
    }

    /// A step began.
    pub(super) fn step(&self, name: &str) {
        self.report(Duration::ZERO, || name.to_owned());
    }

    /// A call ended or reported progress.
    pub(super) fn call(&self, message: impl FnOnce() -> String) {
        self.report(PACE, message);
    }

    /// The run has been silent for a while.
    pub(super) fn idle(&self, message: impl FnOnce() -> String) {
        self.report(SILENCE, message);
    }

    fn report(&self, pace: Duration, message: impl FnOnce() -> String) {
        if !self.notices.is_wanted() {
            return;
        }
        let progress = {
            let mut last = self.last.lock();
            if last.at.elapsed() < pace {
                return;
            }
            *last = Last { reports: last.reports + 1, at: Instant::now() };
            f64::from(last.reports)
        };
        let message = Some(message());
        self.notices.send(Notice::Progress(Progress { progress, total: None, message }));
    }
}

//! The progress that a run's caller sees. Named steps are reported immediately. Calls and computing are
//! reported just often enough to show that the run is still active.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::notice::{Notice, NoticeSink, Progress};

/// The minimum time between reports of calls.
const PACE: Duration = Duration::from_millis(100);
/// After this time without a report, a run reports its activity.
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

    /// Reports a new step.
    pub(super) fn step(&self, name: &str) {
        self.report(Duration::ZERO, || name.to_owned());
    }

    /// Reports that a call ended or made progress.
    pub(super) fn call(&self, message: impl FnOnce() -> String) {
        self.report(PACE, message);
    }

    /// Reports the activity of a run after a silence.
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

//! Reports on the task in the log and in its status.

use tokio::time::Instant;

use super::super::process::Process;
use super::super::service::{Kind, Service};
use super::super::state::{State, Then};
use super::Task;

impl<S: Service> Task<S> {
    /// Returns the values of the fields `capsule`, `server` and `plugin` of a log entry.
    pub(super) fn log_fields(&self) -> [Option<&str>; 3] {
        S::KIND.fields(&self.shared.name)
    }

    pub(super) fn stopped_because(&self) -> String {
        let again = match S::KIND {
            Kind::Capsule => "; it starts again when its files change, or after a reload (SIGHUP)",
            _ => "",
        };
        match &self.failure {
            Some(failure) if self.state == State::Stopped => match self.shared.policy().max_failures {
                0 | 1 => format!("it was stopped after its first failure: {failure}{again}"),
                count => format!(
                    "it was stopped after {count} failures in a row, the last of which was: {failure}{again}"
                ),
            },
            _ => "it was stopped".to_owned(),
        }
    }

    pub(super) fn log(&self, before: State, cause: &str) {
        if before.name() == self.state.name() {
            return;
        }
        let (kind, [capsule, server, plugin]) = (S::KIND.name(), self.log_fields());
        let (from, to) = (before.name(), self.state.name());
        let pid = self.process.as_ref().map(Process::id);
        let is_given_up = self.failure.is_some() && !self.inbox.stop.is_cancelled();
        match self.state {
            State::Crashed { .. } | State::Ending { then: Then::Crash { .. }, .. } => {
                tracing::warn!(capsule, server, plugin, from, to, cause, pid, "{kind}");
            }
            State::Stopped if is_given_up => {
                tracing::error!(capsule, server, plugin, from, to, cause, pid, "{kind}");
            }
            _ => tracing::info!(capsule, server, plugin, from, to, cause, pid, "{kind}"),
        }
    }

    /// Updates the status that handles show.
    pub(super) fn publish(&self) {
        let mut status = self.shared.status();
        status.state = self.state;
        let pid = self.process.as_ref().map(Process::id);
        if status.pid != pid {
            status.pid = pid;
            status.since = Instant::now();
        }
        status.restarts = self.starts.saturating_sub(1);
        let has_failed = matches!(self.state, State::Crashed { .. } | State::Stopped);
        if has_failed && self.failure.is_some() {
            status.last_failure.clone_from(&self.failure);
        }
        drop(status);
        if has_failed {
            self.shared.mark_learned();
        }
    }
}

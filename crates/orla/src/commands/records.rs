//! The records of calls that a command makes in its own process: the audit log, and the history if it
//! has a file.

use std::time::Duration;

use orla_history::History;

use crate::app::App;
use crate::config::Config;
use crate::governance::audit::Audit;
use crate::{Failure, render};

/// How long the end of the history may take to be written.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Keeps the records of calls. Dropping it writes the audit log to its end.
pub(super) struct CallRecords {
    _audit: Option<Audit>,
    history: Option<History>,
}

impl CallRecords {
    /// Keeps the calls of this app from now on. A history that cannot be used costs a warning.
    ///
    /// # Errors
    ///
    /// Returns an error if the audit log cannot be written.
    pub(super) fn of(app: &App, config: &Config) -> Result<Self, Failure> {
        let audit = super::serve::open_audit(config)?;
        if let Some(audit) = &audit {
            audit.observe(app.marketplace());
        }
        let path = config.history_file().filter(|_| config.history.enabled);
        let history = path.and_then(|path| {
            let options = crate::history::options(config, true);
            let opened = History::in_file(app.marketplace(), options, &path);
            opened.map_err(|error| render::warning(&format!("no call is kept: {error}"))).ok()
        });
        Ok(Self { _audit: audit, history })
    }

    /// Returns what follows the calls, for their traces: the history, or else one that keeps nothing.
    ///
    /// # Errors
    ///
    /// Returns an error if the system provides no thread.
    pub(super) fn followed(&mut self, app: &App, config: &Config) -> Result<&History, Failure> {
        let followed = match self.history.take() {
            Some(history) => history,
            None => History::of_nothing(app.marketplace(), crate::history::options(config, false))
                .map_err(|err| Failure::failed(format!("calls cannot be followed: {err}")))?,
        };
        Ok(self.history.insert(followed))
    }

    /// Writes the history to its end.
    pub(super) async fn end(self) {
        let Some(history) = self.history else { return };
        let ended = tokio::time::timeout(END_TIMEOUT, history.close()).await;
        if ended.is_err() || history.lost() > 0 {
            let why = history.failure();
            let why = why.as_deref().unwrap_or("its file could not be written in time");
            render::warning(&format!("calls are missing in the history: {why}"));
        }
    }
}

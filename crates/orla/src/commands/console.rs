//! What the console shows of the program itself.

use std::sync::Arc;

use orla_console::{Connection, Inside, Setting};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::connect;
use crate::app::App;
use crate::config::{Config, Source};

/// The program, as the console sees it.
pub(crate) struct Facts {
    source: Source,
    newest: Mutex<(Vec<Setting>, Vec<String>)>,
    /// Wakes the server to read everything again.
    wanted: Notify,
}

impl Facts {
    /// Of a program that was started like this. There are none before [`update`](Self::update).
    pub(crate) fn new(source: &Source) -> Arc<Self> {
        Arc::new(Self { source: source.clone(), newest: Mutex::default(), wanted: Notify::new() })
    }

    /// Takes over the configuration in force, and what was found in it.
    pub(crate) fn update(&self, config: &Config, app: &App) {
        let found = app.findings();
        let warnings = config.warnings.iter().map(ToString::to_string);
        let findings = found.problems.iter().chain(&found.warnings).cloned().chain(warnings);
        *self.newest.lock() = (config.settings(), findings.collect());
    }

    /// Waits until someone wants everything to be read again.
    pub(crate) async fn reload_wanted(&self) {
        self.wanted.notified().await;
    }
}

impl Inside for Facts {
    fn connections(&self) -> Vec<Connection> {
        connect::entries(&self.source)
    }

    fn settings(&self) -> Vec<Setting> {
        self.newest.lock().0.clone()
    }

    fn findings(&self) -> Vec<String> {
        self.newest.lock().1.clone()
    }

    fn reload(&self) {
        self.wanted.notify_one();
    }
}

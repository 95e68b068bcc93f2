//! Watches the files of a service, and rereads the service when they change.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use tokio::time::Instant;

use super::super::service::Service;
use super::super::state::Event;
use super::Task;
use crate::watch::{Change, Target, Watcher};

/// The next change of watched files. The future lives across several wakes of the task. Otherwise the
/// required time without changes would begin anew each time.
pub(super) type Watching = Pin<Box<dyn Future<Output = (Watcher, Change)> + Send>>;

impl<S: Service> Task<S> {
    /// Watches the files that the service names.
    pub(super) fn watch(&mut self) {
        if self.watch_failed || self.watching.is_some() {
            return;
        }
        let Some((paths, debounce)) = self.service.watched() else { return };
        let target = |path: PathBuf| Target { recursive: path.is_dir(), path };
        match Watcher::new(paths.into_iter().map(target).collect(), debounce) {
            Ok(watcher) => self.watching = Some(next_change(watcher)),
            Err(err) => {
                self.watch_failed = true;
                let [capsule, server, plugin] = self.log_fields();
                tracing::warn!(capsule, server, plugin, error = %err, "its files cannot be watched");
            }
        }
    }

    pub(super) async fn changed(&mut self, change: &Change) {
        let shown = change.paths.first().map(|path| path.display().to_string()).unwrap_or_default();
        if let Some(service) = self.service.reread() {
            self.replace(Arc::new(service));
        }
        // The new code may take part in the handshake even if the old one did not.
        self.takes_part.take_if(|takes_part| !*takes_part);
        let now = self.created_at.elapsed();
        if let Some(wait) = self.reloads.reload(now, &self.shared.policy()) {
            let [capsule, server, plugin] = self.log_fields();
            tracing::warn!(
                capsule,
                server,
                plugin,
                file = shown,
                wait_ms = wait.as_millis() as u64,
                "it is reloaded again and again without a call in between; does it write below what it watches?"
            );
            self.held.get_or_insert(Instant::now() + wait);
        } else if self.held.is_none() {
            self.handle_event(Event::Changed, &format!("{shown} has changed")).await;
        }
    }

    /// Sets another version of the service for the next process.
    pub(in crate::supervisor) fn replace(&mut self, service: Arc<S>) {
        self.shared.set_service(Arc::clone(&service));
        self.takes_part.take_if(|takes_part| !*takes_part);
        self.service = service;
        let was_watching = self.watching.take().is_some();
        self.watch_failed = false;
        if was_watching {
            self.watch();
        }
    }
}

pub(super) fn next_change(mut watcher: Watcher) -> Watching {
    Box::pin(async move {
        let change = watcher.changed().await;
        (watcher, change)
    })
}

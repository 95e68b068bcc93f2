//! The files of a capsule or a plugin: when they change, and what a manifest says then.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use tokio::time::Instant;

use super::super::definition::Definition;
use super::super::packages;
use super::super::state::Event;
use super::Task;
use crate::watch::{Change, Target, Watcher};

/// The next change of watched files. It lasts from one wake of the task to the next, or the time without
/// changes that it waits for would begin anew each time.
pub(super) type Watching = Pin<Box<dyn Future<Output = (Watcher, Change)> + Send>>;

impl Task {
    /// Watches what the definition names.
    pub(super) fn watch(&mut self) {
        if self.watch_failed || self.watching.is_some() {
            return;
        }
        let Some((paths, debounce)) = self.definition.watched() else { return };
        let target = |path: PathBuf| Target { recursive: path.is_dir(), path };
        match Watcher::new(paths.into_iter().map(target).collect(), debounce) {
            Ok(watcher) => self.watching = Some(next_change(watcher)),
            Err(err) => {
                self.watch_failed = true;
                tracing::warn!(capsule = &*self.shared.name, error = %err, "its files cannot be watched");
            }
        }
    }

    pub(super) async fn changed(&mut self, change: &Change) {
        let shown = change.paths.first().map(|path| path.display().to_string()).unwrap_or_default();
        self.reload_manifest();
        // The new code may speak what the old did not, and the other way.
        self.speaks_mcp = None;
        let now = self.born.elapsed();
        if let Some(wait) = self.reloads.reload(now, &self.shared.policy()) {
            tracing::warn!(
                capsule = &*self.shared.name,
                file = shown,
                wait_ms = wait.as_millis() as u64,
                "it is reloaded again and again without a call in between; does it write below what it watches?"
            );
            self.held.get_or_insert(Instant::now() + wait);
        } else if self.held.is_none() {
            self.happened(Event::Changed, &format!("{shown} has changed")).await;
        }
    }

    /// Reads the manifest of a package anew; one that is none leaves the old in force.
    fn reload_manifest(&mut self) {
        let Some(current) = self.definition.package() else { return };
        let loaded = packages::load(&current.directory).map(|(mut package, findings)| {
            // It is watched at the server's wish where its manifest does not say so itself.
            if package.manifest.hot_load.is_none() {
                package.manifest.hot_load.clone_from(&current.manifest.hot_load);
            }
            package.pass_env.clone_from(&current.pass_env);
            (package, findings)
        });
        match loaded {
            Ok((package, _)) if package.manifest.name != current.manifest.name => {
                tracing::warn!(
                    capsule = &*self.shared.name,
                    "its new name takes effect when the configuration is loaded anew"
                );
            }
            Ok((package, _)) if package != *current => {
                self.replace(Arc::new(Definition::Package(package)));
            }
            Ok(_) => {}
            Err(findings) => {
                for finding in findings {
                    tracing::warn!(
                        capsule = &*self.shared.name,
                        "the manifest in force stays: {finding}"
                    );
                }
            }
        }
    }

    /// Takes another definition of the same name, for the next process.
    pub(crate) fn replace(&mut self, definition: Arc<Definition>) {
        self.shared.set_definition(Arc::clone(&definition));
        self.speaks_mcp = None;
        self.definition = definition;
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

//! Reload (RFC 1 §7): the next snapshot is built beside the running one and put in its place in one
//! step. If anything fails, the running one stays.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use orla_marketplace::{Catalog, Entry};

use crate::app::App;
use crate::config::{Config, Source};
use crate::logging::Logging;

/// The parts that a running server needs to reload.
pub(crate) struct Reloader {
    source: Source,
    config: Config,
    logging: Logging,
}

impl Reloader {
    pub(crate) fn new(source: Source, config: Config, logging: Logging) -> Self {
        Self { source, config, logging }
    }

    /// Returns the configuration in force.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Reads everything again. Returns whether a new configuration is in force; else the old one stays. Both are
    /// logged.
    pub(crate) fn reload(&mut self, app: &mut App) -> bool {
        let began = Instant::now();
        let mut config = match self.source.load() {
            Ok(config) => config,
            Err(problems) => {
                for problem in &problems {
                    tracing::error!(error = %problem, "the new configuration is invalid, the old one stays");
                }
                return false;
            }
        };
        let kept = config.keep_restart_keys(&self.config);
        crate::itself::leave_out(&mut config);
        // The listener stays where it is, and has to fit the rest of the new configuration.
        let problems = config.contradictions();
        if !problems.is_empty() {
            for problem in &problems {
                tracing::error!(error = %problem, "the new configuration is invalid, the old one stays");
            }
            return false;
        }
        let old = app.marketplace().snapshot();
        if let Err(problem) = app.load(&config) {
            tracing::error!(error = problem, "reload failed, the old tools stay");
            return false;
        }
        self.logging.change(config.log_level, config.log_format);
        self.logging.redact(app.marketplace().redaction());
        for key in kept {
            tracing::warn!(key, "a change of this key needs a restart");
        }
        let took = began.elapsed();
        let new = app.marketplace().snapshot();
        let changes = Changes::between(&old, &new);
        tracing::info!(
            added = changes.added,
            removed = changes.removed,
            changed = changes.changed,
            capabilities = config.expose.count(&new),
            generation = new.generation(),
            duration_ms = (took.as_micros() as f64) / 1000.0,
            "reloaded"
        );
        app.findings().log();
        self.config = config;
        true
    }
}

/// How two snapshots differ, as counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Changes {
    added: usize,
    removed: usize,
    changed: usize,
}

impl Changes {
    fn between(old: &Catalog, new: &Catalog) -> Self {
        // Both are in the order of the names.
        let mut left = old.entries().iter().peekable();
        let mut changes = Self::default();
        for entry in new.entries() {
            while left.next_if(|gone| gone.name < entry.name).is_some() {
                changes.removed += 1;
            }
            match left.next_if(|known| known.name == entry.name) {
                Some(known) => changes.changed += usize::from(differ(known, entry)),
                None => changes.added += 1,
            }
        }
        changes.removed += left.count();
        changes
    }
}

/// Returns whether clients see a difference, or calls run differently. What is in a tool's file
/// shows at its next call and is no change here.
fn differ(old: &Arc<Entry>, new: &Arc<Entry>) -> bool {
    let (a, b) = (&old.manifest, &new.manifest);
    if Arc::ptr_eq(old, new) {
        return false;
    }
    a.description != b.description
        || a.version != b.version
        || a.metadata != b.metadata
        || a.permissions != b.permissions
        || old.policy != new.policy
        // If the declared schemas are the same, so are the shown ones, unless the provider says otherwise.
        || a.input_schema != b.input_schema
        || a.output_schema != b.output_schema
        || a.input_schema.is_none() && old.input_schema() != new.input_schema()
        || a.output_schema.is_none() && old.output_schema() != new.output_schema()
        || debug(&a.provider) != debug(&b.provider)
}

fn debug(value: &impl fmt::Debug) -> String {
    format!("{value:?}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn two_snapshots_are_compared_by_what_clients_see() {
        let dir = tempfile::tempdir().unwrap();
        let tool = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        };
        for name in ["same", "described", "edited", "gone"] {
            tool(name, "#!/bin/sh\n# Does something.\n");
        }
        let config = Config { tools_dir: dir.path().to_owned(), ..Config::default() };
        let mut app = App::build(&config).unwrap();
        let old = app.marketplace().snapshot();
        tool("described", "#!/bin/sh\n# Does something else.\n");
        tool("edited", "#!/bin/sh\n# Does something.\n\necho new\n");
        tool("new", "#!/bin/sh\n");
        fs::remove_file(dir.path().join("gone")).unwrap();
        app.load(&config).unwrap();
        let new = app.marketplace().snapshot();
        assert_eq!(Changes::between(&old, &new), Changes { added: 1, removed: 1, changed: 1 });
        assert_eq!(Changes::between(&new, &new), Changes::default());
        let limited = Config { max_output_bytes: 10, ..config };
        app.load(&limited).unwrap();
        let limited = app.marketplace().snapshot();
        assert_eq!(Changes::between(&new, &limited).changed, new.listed().count());
    }
}

//! The configuration of a plugin.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use orla_marketplace::Redactor;
use orla_marketplace::id::Pattern;
use orla_process::confinement::{Declared, Sandbox};

use crate::names::NameRules;

/// The prefix of an entry of `plugins`, in place of a path.
pub const ENTRY: &str = "plugin:";

/// One entry of `plugins`.
#[derive(Clone, PartialEq)]
pub struct PluginSettings {
    /// Its key: unique, and the first part of the ids of its functions.
    pub name: String,
    /// A program's path, or its name in `PATH`.
    pub command: String,
    /// The arguments, passed without a shell.
    pub args: Vec<String>,
    /// Added to the environment.
    pub env: BTreeMap<String, String>,
    /// Patterns of orla's variables that it gets besides the usual ones.
    pub pass_env: Vec<Pattern>,
    /// Its working directory; `None` means orla's own.
    pub cwd: Option<PathBuf>,
    /// The directory for relative paths in the permissions of a component; orla's own if empty.
    pub base: PathBuf,
    /// The number of its processes, each of which receives one call at a time. `None` means one process,
    /// which receives every call immediately.
    pub processes: Option<usize>,
    /// The fuel of a component for one call. An instruction uses about one unit.
    pub fuel: u64,
    /// The maximum memory of a component's instance, in bytes.
    pub memory: u64,
    /// Files and directories whose changes restart the plugin, besides the program itself.
    pub watch: Vec<PathBuf>,
    /// The timeout of one call; `None` means the marketplace's default.
    pub timeout: Option<Duration>,
    /// The timeout of `describe`.
    pub startup_timeout: Duration,
    /// The names of its functions, and which of them are served.
    pub names: NameRules,
    /// The permissions that its functions need besides running it.
    pub permissions: Vec<String>,
    /// The confinement of its processes: the permissions, if there are any, and limits.
    pub declared: Declared,
    /// The sandbox of its processes; `None` for no confinement.
    pub sandbox: Option<Arc<Sandbox>>,
    /// Whether it is started with orla instead of at the first use.
    pub eager: bool,
    /// Hides the secrets of the settings in everything that the plugin returns.
    pub redaction: Option<Arc<Redactor>>,
}

impl PluginSettings {
    /// Returns whether the plugin is a WebAssembly component, which has no process.
    pub fn is_component(&self) -> bool {
        super::is_component(Path::new(&self.command))
    }

    /// The default timeout of `describe`.
    pub const STARTUP_TIMEOUT: Duration = Duration::from_secs(10);
    /// The default fuel of a component for one call: about a minute's work.
    pub const FUEL: u64 = 100_000_000_000;
    /// The default memory of a component's instance: 256 MiB.
    pub const MEMORY: u64 = 256 * 1024 * 1024;
    /// The maximum number of processes of one plugin.
    pub const MAX_PROCESSES: usize = 64;

    /// Creates settings with only a name and a program.
    pub fn new(name: impl Into<String>, command: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            command: command.into(),
            args: Vec::new(),
            env: BTreeMap::new(),
            pass_env: Vec::new(),
            cwd: None,
            base: PathBuf::new(),
            processes: None,
            fuel: Self::FUEL,
            memory: Self::MEMORY,
            watch: Vec::new(),
            timeout: None,
            startup_timeout: Self::STARTUP_TIMEOUT,
            names: NameRules::default(),
            permissions: Vec::new(),
            declared: Declared::default(),
            sandbox: None,
            eager: false,
            redaction: None,
        }
    }
}

impl fmt::Debug for PluginSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Arguments and variables may contain keys.
        f.debug_struct("PluginSettings")
            .field("name", &self.name)
            .field("command", &self.command)
            .field("args", &self.args.len())
            .field("env", &self.env.keys())
            .field("processes", &self.processes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let mut settings = PluginSettings::new("p", "run");
        settings.args = vec!["--key=s3cret".to_owned()];
        settings.env.insert("KEY".to_owned(), "s3cret".to_owned());
        let shown = format!("{settings:?}");
        assert!(!shown.contains("s3cret") && shown.contains("KEY"), "{shown}");
    }
}

//! What is configured of a plugin.

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
    /// Its arguments; no shell is involved.
    pub args: Vec<String>,
    /// Added to the environment.
    pub env: BTreeMap<String, String>,
    /// Patterns of orla's variables that it gets besides the usual ones.
    pub pass_env: Vec<Pattern>,
    /// Its working directory; `None` means orla's own.
    pub cwd: Option<PathBuf>,
    /// The directory for relative paths in the permissions of a component; orla's own if empty.
    pub base: PathBuf,
    /// The number of its processes, each of which is given one call at a time. `None` means one process, which is
    /// given every call at once.
    pub processes: Option<usize>,
    /// The fuel of a component in one call; an instruction uses about one unit.
    pub fuel: u64,
    /// The bytes of memory that an instance of a component may have.
    pub memory: u64,
    /// What restarts it when it changes, besides the program itself.
    pub watch: Vec<PathBuf>,
    /// How long one call may take; `None` means the marketplace's default.
    pub timeout: Option<Duration>,
    /// The timeout of `describe`.
    pub startup_timeout: Duration,
    /// The names of its functions, and which of them are served.
    pub names: NameRules,
    /// What its functions need besides running it.
    pub permissions: Vec<String>,
    /// What confines its processes: the permissions, if there are any, and limits.
    pub declared: Declared,
    /// What its processes run in; `None` for no confinement at all.
    pub sandbox: Option<Arc<Sandbox>>,
    /// Whether it is started with orla instead of at the first use.
    pub eager: bool,
    /// Replaces the secrets that its settings refer to in everything that it returns.
    pub redaction: Option<Arc<Redactor>>,
}

impl PluginSettings {
    /// Whether it is a WebAssembly component, which has no process.
    pub fn is_component(&self) -> bool {
        super::is_component(Path::new(&self.command))
    }

    /// The timeout of `describe`, unless configured.
    pub const STARTUP_TIMEOUT: Duration = Duration::from_secs(10);
    /// The fuel of a component in one call, unless configured: about a minute's work.
    pub const FUEL: u64 = 100_000_000_000;
    /// The memory of a component's instance, unless configured: 256 MiB.
    pub const MEMORY: u64 = 256 * 1024 * 1024;
    /// The most processes of one plugin.
    pub const MAX_PROCESSES: usize = 64;

    /// A plugin with only a name and a program.
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

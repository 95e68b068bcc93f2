//! The configuration of a Model Context Protocol server.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use orla_marketplace::id::Pattern;
use orla_marketplace::{HttpCapability, Redactor};
use orla_mcp::answer::ListedTool;
use orla_oauth::AuthSettings;
use orla_process::confinement::{Declared, Sandbox};

use crate::names::NameRules;

/// One entry of `mcpServers`.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerSettings {
    /// Its key: unique, and the first part of the ids of its tools.
    pub name: String,
    /// The transport.
    pub reach: Reach,
    /// The sign-in at a server behind HTTP.
    pub auth: Option<AuthSettings>,
    /// The timeout of one call; `None` means the marketplace's default.
    pub timeout: Option<Duration>,
    /// The timeouts of single tools, by the server's own names for them.
    pub tool_timeouts: BTreeMap<String, Duration>,
    /// The timeout of its first request.
    pub startup_timeout: Duration,
    /// The names of its tools, and which of them are served. The prefix also applies to its prompts.
    pub names: NameRules,
    /// The confinement of a server that is a process.
    pub declared: Declared,
    /// The sandbox of its process; `None` for no confinement.
    pub sandbox: Option<Arc<Sandbox>>,
    /// Whether it is started with orla instead of at the first use.
    pub eager: bool,
    /// Hides the secrets of the settings in everything that the server returns.
    pub redaction: Option<Arc<Redactor>>,
    /// The tools that the server is expected to list, served until it has listed its own. None of them is
    /// called before that.
    pub expected_tools: Vec<ListedTool>,
}

/// The transport of a server.
#[derive(Clone, PartialEq, Eq)]
pub enum Reach {
    /// A child process that uses its standard input and output.
    Process {
        /// A program's path, or its name in `PATH`.
        command: String,
        /// The arguments, passed without a shell.
        args: Vec<String>,
        /// Added to the environment.
        env: BTreeMap<String, String>,
        /// Patterns of orla's variables that it gets besides the usual ones.
        pass_env: Vec<Pattern>,
        /// Its working directory; `None` means orla's own.
        cwd: Option<PathBuf>,
    },
    /// Streamable HTTP.
    Http {
        /// The endpoint.
        url: String,
        /// Header fields of every request.
        headers: BTreeMap<String, String>,
    },
}

impl fmt::Debug for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Arguments, variables, header fields and queries may contain keys.
        match self {
            Self::Process { command, args, env, pass_env, cwd } => f
                .debug_struct("Process")
                .field("command", command)
                .field("args", &args.len())
                .field("env", &env.keys())
                .field("pass_env", pass_env)
                .field("cwd", cwd)
                .finish(),
            Self::Http { url, headers } => f
                .debug_struct("Http")
                .field("url", &HttpCapability::new(url.as_str(), None, 0).address())
                .field("headers", &headers.keys())
                .finish(),
        }
    }
}

impl ServerSettings {
    /// Returns whether the server is a child process.
    pub fn is_process(&self) -> bool {
        matches!(self.reach, Reach::Process { .. })
    }

    /// The default timeout of a server's first request.
    pub const STARTUP_TIMEOUT: Duration = Duration::from_secs(30);

    /// Creates settings with only a name and a transport.
    pub fn new(name: impl Into<String>, reach: Reach) -> Self {
        Self {
            name: name.into(),
            reach,
            auth: None,
            timeout: None,
            tool_timeouts: BTreeMap::new(),
            startup_timeout: Self::STARTUP_TIMEOUT,
            names: NameRules::default(),
            declared: Declared::default(),
            sandbox: None,
            eager: false,
            redaction: None,
            expected_tools: Vec::new(),
        }
    }

    /// Returns the timeout of a call of a tool.
    pub(super) fn timeout_of(&self, tool: &str) -> Option<Duration> {
        self.tool_timeouts.get(tool).copied().or(self.timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let pair = |name: &str| BTreeMap::from([(name.to_owned(), "s3cret".to_owned())]);
        let process = Reach::Process {
            command: "run".to_owned(),
            args: vec!["--key=s3cret".to_owned()],
            env: pair("KEY"),
            pass_env: Vec::new(),
            cwd: None,
        };
        let url = "https://me:s3cret@example.com/mcp?key=s3cret".to_owned();
        for reach in [process, Reach::Http { url, headers: pair("Authorization") }] {
            let shown = format!("{:?}", ServerSettings::new("a", reach));
            assert!(!shown.contains("s3cret"), "{shown}");
            assert!(shown.contains("KEY") || shown.contains("https://example.com/mcp"), "{shown}");
        }
    }
    #[test]
    fn single_tools_may_have_a_time_of_their_own() {
        let reach = Reach::Http { url: "http://localhost".into(), headers: Default::default() };
        let mut timed = ServerSettings::new("s", reach);
        assert_eq!(timed.timeout_of("a"), None);
        timed.timeout = Some(Duration::from_secs(2));
        timed.tool_timeouts.insert("a".into(), Duration::from_secs(9));
        assert_eq!(
            (timed.timeout_of("a"), timed.timeout_of("b")),
            (Some(Duration::from_secs(9)), Some(Duration::from_secs(2)))
        );
    }
}

//! The settings of capabilities of MCP servers (RTFS capability system §3.3).

use super::Connection;
use crate::id::Pattern;

/// A tool of a Model Context Protocol server (RTFS capability system §3.3).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MCPCapability {
    /// `http(s)://…`, `stdio:COMMAND ARGS…` (split into words as a shell does, but run without a shell), or
    /// `mcp:NAME` for an entry of `mcpServers`.
    pub server_url: String,
    /// The tool, or a pattern of tools (`get*`, RTFS capability system §7.3). Empty means all of them, as `*` does.
    pub tool_name: String,
    /// The timeout of one call, in milliseconds; 0 means as long as the caller allows.
    pub timeout_ms: u64,
    /// Settings beyond the RTFS document.
    pub options: McpOptions,
}

impl MCPCapability {
    /// Settings with every field of the document, and the options' defaults.
    pub fn new(server_url: impl Into<String>, tool_name: impl Into<String>, timeout_ms: u64) -> Self {
        Self {
            server_url: server_url.into(),
            tool_name: tool_name.into(),
            timeout_ms,
            options: McpOptions::default(),
        }
    }

    /// Returns the pattern of tools, if `tool_name` is not the name of one tool.
    pub fn pattern(&self) -> Option<Pattern> {
        match self.tool_name.as_str() {
            "" => Some(Pattern::new("*")),
            name => name.contains('*').then(|| Pattern::new(name)),
        }
    }
}

impl MCPCapability {
    /// Returns the permission that a call needs: the server's tool if the server has a name, or else its
    /// address.
    pub(crate) fn requires(&self) -> String {
        if let Some(server) = self.server_url.strip_prefix("mcp:") {
            let tool = if self.tool_name.is_empty() { "*" } else { &self.tool_name };
            return format!("mcp:{server}/{tool}");
        }
        match self.server_url.strip_prefix("stdio:") {
            Some(command) => {
                let program = command.split_whitespace().next().unwrap_or("*");
                format!("exec:{program}")
            }
            None => super::network_permission(&self.server_url),
        }
    }
}

/// Settings of the connection to a server beyond the RTFS document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct McpOptions {
    /// The connection for calls, if the executor already knows it. A capability that holds one keeps the
    /// server, which ends with its last user.
    pub connection: Option<Connection>,
    /// The permissions to which a program in the address is confined, with absolute paths.
    pub permissions: Vec<String>,
}

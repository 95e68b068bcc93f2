//! The settings of capabilities of MCP servers (RTFS capability system §3.3).

/// A tool of a Model Context Protocol server (RTFS capability system §3.3).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MCPCapability {
    /// `http(s)://…`, `stdio:COMMAND ARGS…` (split as a shell splits words, and given to no shell), or
    /// `mcp:NAME` for an entry of `mcpServers`.
    pub server_url: String,
    /// The tool; empty or `*` means all of them.
    pub tool_name: String,
    /// How long one call may take, in milliseconds.
    pub timeout_ms: u64,
    /// What the document leaves open.
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
}

/// What the document leaves open of how a server is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct McpOptions {}

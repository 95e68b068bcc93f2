//! Processes that use MCP over their standard input and output: capsules and the servers of
//! `mcpServers`.

mod peer;
mod protocol;
mod service;

pub use peer::McpProcess;
pub use protocol::{McpProtocol, Shared as SharedOfProcess};
pub(super) use service::StdioServer;

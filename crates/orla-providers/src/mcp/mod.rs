//! Model Context Protocol servers as providers (RTFS capability system §3.3, §7).

mod executor;
mod servers;
mod settings;

pub use executor::McpExecutor;
pub use servers::McpServers;
pub use settings::{Reach, ServerSettings};

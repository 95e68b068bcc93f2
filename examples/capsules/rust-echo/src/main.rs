//! An MCP server as a capsule, with the official Rust SDK.
//!
//! ```sh
//! cargo build --release --manifest-path examples/capsules/rust-echo/Cargo.toml
//! orla dev examples/capsules/rust-echo
//! orla call echo text=hello --url http://127.0.0.1:8080
//! ```
//!
//! The only line that is about orla is the one that says hello. With one tool, the tool is served under
//! the capsule's name.

use std::error::Error;

use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::{Implementation, ServerCapabilities, ServerConfig};
use rmcp::transport::stdio;
use rmcp::{ServerHandler, ServiceExt, schemars, tool, tool_handler, tool_router};

#[derive(Clone)]
struct Echo;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Said {
    /// What to say.
    text: String,
}

#[tool_router]
impl Echo {
    /// Repeats its input.
    #[tool]
    fn echo(&self, Parameters(said): Parameters<Said>) -> String {
        said.text
    }
}

#[tool_handler]
impl ServerHandler for Echo {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("echo", "1.0.0"))
    }
}

// One thread is enough, and faster than several for calls this short.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    println!(
        r#"{{"jsonrpc": "2.0", "method": "orla.hello", "params": {{"name": "echo", "version": "1.0.0", "capabilities": ["tools"]}}}}"#
    );
    Echo.serve(stdio()).await?.waiting().await?;
    Ok(())
}

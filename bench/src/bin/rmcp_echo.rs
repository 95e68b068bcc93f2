//! The official SDK's own HTTP service with one tool, `echo`, which gives back its arguments. `cargo xtask bench` measures it beside
//! ours.
//!
//! `rmcp_echo` listens on a port of the system's choice and writes `listening on http://ADDRESS/mcp` to standard error.

#![forbid(unsafe_code)]
#![expect(clippy::print_stderr, reason = "the address is what the bench waits for")]

use std::error::Error;
use std::sync::Arc;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ListToolsResult, PaginatedRequestParams,
    ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Map, Value, json};

#[derive(Clone)]
struct Echo;

impl ServerHandler for Echo {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema: Map<String, Value> = Map::from_iter([("type".to_owned(), json!("object"))]);
        Ok(ListToolsResult::with_all_items(vec![Tool::new(
            "echo",
            "Says what it is told.",
            Arc::new(schema),
        )]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        Ok(CallToolResult::structured(arguments).into())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let config =
        StreamableHttpServerConfig::default().with_legacy_session_mode(false).with_json_response(true);
    let service =
        StreamableHttpService::new(|| Ok(Echo), Arc::new(LocalSessionManager::default()), config);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    eprintln!("listening on http://{}/mcp", listener.local_addr()?);
    axum::serve(listener, axum::Router::new().nest_service("/mcp", service)).await?;
    Ok(())
}

//! A server of the official SDK, which knows sessions and does without.

use std::future::ready;
use std::sync::Arc;

use orla_marketplace::NoticeSink;
use rmcp::ErrorData;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, InputRequest,
    InputRequiredResult, ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig,
    Tool,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::super::settings::{Reach, ServerSettings};
use super::super::tests::{Named, World, call, text_of, with_client};

#[derive(Clone)]
struct Probe;

impl ServerHandler for Probe {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> impl Future<Output = Result<ListToolsResult, ErrorData>> + Send + '_ {
        let tool = |name: &str| -> Tool {
            serde_json::from_value(json!({"name": name, "inputSchema": {"type": "object"}})).unwrap()
        };
        ready(Ok(ListToolsResult::with_all_items(vec![tool("mode"), tool("ask")])))
    }

    fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> impl Future<Output = Result<CallToolResponse, ErrorData>> + Send + '_ {
        let mode = context.protocol_version().map(|version| version.to_string()).unwrap_or_default();
        let text = |text: String| CallToolResult::success(vec![ContentBlock::text(text)]).into();
        let answer = match (&*request.name, request.input_responses) {
            ("mode", _) => Ok(text(mode)),
            ("ask", None) => {
                let question = json!({"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}});
                let question: InputRequest = serde_json::from_value(question).unwrap();
                let questions = [("q".to_owned(), question)].into_iter().collect();
                Ok(InputRequiredResult::new(Some(questions), Some("state".to_owned())).into())
            }
            ("ask", Some(answers)) => {
                let state = request.request_state.unwrap_or_default();
                Ok(text(format!("{state} {}", serde_json::to_string(&answers).unwrap())))
            }
            (other, _) => Err(ErrorData::invalid_params(format!("Unknown tool: {other}"), None)),
        };
        ready(answer)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_the_sdk_is_spoken_to_as_its_callers_speak() {
    let sessions = Arc::new(LocalSessionManager::default());
    let service =
        StreamableHttpService::new(|| Ok(Probe), sessions, StreamableHttpServerConfig::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        axum::serve(listener, axum::Router::new().nest_service("/mcp", service)).await.unwrap();
    });
    let settings = ServerSettings::new("sdk", Reach::Http { url, headers: Default::default() });
    let world = World::new([settings], []).await;
    assert_eq!(world.names(), "sdk__ask sdk__mode");

    let mode = async |session: Option<u64>| {
        let mut called = with_client(call("sdk__mode", "{}"), Named("me", session));
        // Where progress is wanted, the answer may come as a stream.
        called.scope.notices = NoticeSink::new(drop);
        text_of(&world.call_with(called).await.unwrap())
    };
    assert_eq!((mode(Some(1)).await.as_str(), mode(None).await.as_str()), ("2025-11-25", "2026-07-28"));
    assert_eq!(world.text("sdk__mode", "{}").await, "2026-07-28");

    let question = with_client(call("sdk__ask", "{}"), Named("me", None));
    let answered = text_of(&world.call_with(question).await.unwrap());
    assert_eq!(answered, r#"state {"q":{"me":"elicitation/create"}}"#);
}

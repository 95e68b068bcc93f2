//! Registers the seven built-in executors by hand, and calls a capability through each (RTFS capability system §2.2,
//! §5.1). It needs no network: the server that four of them reach is part of this process, on a loopback port.

use std::error::Error;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use orla::front_end::{Server, ServerOptions};
use orla::marketplace::{
    A2ACapability, Call, CapabilityManifest, CapabilityMarketplace, HttpCapability, JsonText, Limits,
    LocalCapability, MCPCapability, Payload, PluginCapability, ProviderType, RemoteRTFSCapability,
    StreamCapabilityImpl, StreamTransport, StreamType,
};
use orla::providers::a2a::A2AExecutor;
use orla::providers::builtin::{self, LocalExecutor};
use orla::providers::http::HttpExecutor;
use orla::providers::mcp::MCPExecutor;
use orla::providers::plugin::PluginExecutor;
use orla::providers::remote::RemoteRTFSExecutor;
use orla::providers::stream::StreamExecutor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

#[tokio::main]
#[expect(clippy::print_stdout, reason = "an example says what it does")]
async fn main() -> Result<(), Box<dyn Error>> {
    let marketplace = CapabilityMarketplace::new(Limits::default());
    marketplace.register_executor(Arc::new(MCPExecutor::new()))?;
    marketplace.register_executor(Arc::new(A2AExecutor::new()))?;
    marketplace.register_executor(Arc::new(LocalExecutor))?;
    marketplace.register_executor(Arc::new(HttpExecutor::new()))?;
    marketplace.register_executor(Arc::new(PluginExecutor::new()))?;
    marketplace.register_executor(Arc::new(RemoteRTFSExecutor::new()))?;
    marketplace.register_executor(Arc::new(StreamExecutor::new()))?;

    let (tasks, shutdown) = (TaskTracker::new(), CancellationToken::new());
    let server = format!("http://{}", serve(&tasks, shutdown.clone()).await?);
    for (id, provider, input) in capabilities(&server) {
        marketplace.register_capability(CapabilityManifest::new(id, "An example.", provider))?;
        let call = Call::to(id).with(Payload::from_json(JsonText::parse(input)?));
        println!("{id}: {:?}", marketplace.call(call).await?.value()?);
    }
    // The connections and processes of the calls end with the executors.
    drop(marketplace);
    shutdown.cancel();
    tasks.close();
    tasks.wait().await;
    Ok(())
}

/// One capability of each kind, with its input. All but two add 1 and 2.
fn capabilities(server: &str) -> [(&'static str, ProviderType, &'static str); 7] {
    let sum = r#"{"a": 1, "b": 2}"#;
    let mut http = HttpCapability::new(server, None, 5_000);
    http.options.method = Some("GET".to_owned());
    http.options.path = "/healthz".to_owned();
    let mut agent = A2ACapability::new("calculator", server, "http", 5_000);
    agent.options.skill = Some("math.add".to_owned());
    let mut remote = RemoteRTFSCapability::new(server, 5_000, None);
    remote.options.capability = Some("math.add".to_owned());
    let plugin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/plugins/calc.py");
    let program = ProviderType::Plugin(PluginCapability::new("/bin/sh", ""));
    let mut stream = StreamCapabilityImpl::new(program, StreamType::Source);
    stream.options.transport = StreamTransport::Lines;
    stream.options.args = ["-c", "echo 1; echo 2; echo 3"].map(str::to_owned).into();
    [
        ("local", ProviderType::Local(LocalCapability::new("math.add")), sum),
        ("http", ProviderType::Http(http), "{}"),
        ("mcp", ProviderType::MCP(MCPCapability::new(format!("{server}/mcp"), "math__add", 5_000)), sum),
        ("a2a", ProviderType::A2A(agent), sum),
        ("plugin", ProviderType::Plugin(PluginCapability::new(plugin.to_string_lossy(), "add")), sum),
        ("remote", ProviderType::RemoteRTFS(remote), sum),
        ("stream", ProviderType::Stream(stream), "{}"),
    ]
}

/// Serves the built-ins over MCP, A2A and RTFS until the shutdown.
async fn serve(tasks: &TaskTracker, shutdown: CancellationToken) -> Result<SocketAddr, Box<dyn Error>> {
    let marketplace = CapabilityMarketplace::new(Limits::default());
    marketplace.register_executor(Arc::new(LocalExecutor))?;
    for builtin in builtin::registrations() {
        marketplace.register_capability(builtin.clone())?;
    }
    let bound =
        Server::new(Arc::new(marketplace), ServerOptions::default()).bind("127.0.0.1", 0).await?;
    let address = bound.local_addr();
    tasks.spawn(async move { bound.serve(shutdown).await });
    Ok(address)
}

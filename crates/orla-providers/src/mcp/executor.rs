//! Runs the calls of MCP capabilities.

use std::any::TypeId;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use orla_marketplace::id::Pattern;
use orla_marketplace::{
    CallContext, CapabilityExecutor, JsonText, MCPCapability, Outcome, Payload, ProviderStatus,
    ProviderType, RuntimeError, RuntimeResult, Violation,
};
use orla_mcp::object::{self, Object};
use orla_mcp::{Ending, Peer};
use serde_json::json;
use tokio::time::Instant;

use super::server::Server;
use super::servers::{Connected, McpServers};

/// Runs the calls of [`MCPCapability`] providers (RTFS capability system §3.3, §7).
///
/// The configured tool is called; the input cannot choose another one. A provider for several tools of its server
/// (a pattern) is called with `{"tool": NAME, "arguments": {…}}`; without `tool`, it returns the list of tools.
///
/// Capabilities with the same `server_url` share one connection, or one process for the same permissions. The first call creates it.
/// It ends when the executor and its clones are dropped.
#[derive(Clone, Debug, Default)]
pub struct MCPExecutor {
    servers: Arc<McpServers>,
}

impl MCPExecutor {
    /// Creates an executor with its own servers: those that capabilities reach by `http(s)://…` and
    /// `stdio:COMMAND ARGS…`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an executor that shares `servers`. `mcp:NAME` reaches their entries, and all other
    /// connections live as long as `servers`.
    pub fn with_servers(servers: Arc<McpServers>) -> Self {
        Self { servers }
    }

    /// Returns the server of a provider that holds no connection.
    fn server(&self, settings: &MCPCapability, ctx: &CallContext) -> RuntimeResult<Arc<Server>> {
        self.servers.reach(settings).map_err(|reason| RuntimeError::Unavailable {
            id: ctx.name.to_string(),
            reason,
            source: None,
        })
    }
}

#[async_trait]
impl CapabilityExecutor for MCPExecutor {
    fn provider_type_id(&self) -> TypeId {
        TypeId::of::<MCPCapability>()
    }

    async fn execute(
        &self,
        provider: &ProviderType,
        inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<Outcome> {
        let settings: &MCPCapability = provider.settings()?;
        let shorter = within(ctx, settings.timeout_ms);
        let ctx = shorter.as_ref().unwrap_or(ctx);
        let arguments = inputs.json()?;
        if let Some(connected) = connected(settings) {
            if connected.is_expected {
                return Err(unlisted(&connected.server, ctx));
            }
            return call(&connected.server, &connected.tool, arguments, ctx).await;
        }
        let server = self.server(settings, ctx)?;
        let Some(pattern) = settings.pattern() else {
            return call(&server, &settings.tool_name.as_str().into(), arguments, ctx).await;
        };
        match chosen(arguments, &pattern, ctx)? {
            Some((tool, arguments)) => call(&server, &tool.into(), &arguments, ctx).await,
            None => {
                server.learn().await;
                list(&server, &pattern, ctx)
            }
        }
    }

    fn is_settled(&self, provider: &ProviderType) -> bool {
        let connected = provider.settings::<MCPCapability>().ok().and_then(connected);
        connected.is_none_or(|connected| match &*connected.server {
            Server::Process(process) => process.0.is_current() && !connected.is_expected,
            Server::Remote(_) | Server::Broken(..) => !connected.is_expected,
        })
    }

    async fn settle(&self, provider: &ProviderType, ctx: &CallContext) -> RuntimeResult<()> {
        let settings: &MCPCapability = provider.settings()?;
        let Some(connected) = connected(settings) else { return Ok(()) };
        let shorter = within(ctx, settings.timeout_ms);
        let ctx = shorter.as_ref().unwrap_or(ctx);
        match &*connected.server {
            Server::Process(process) => {
                let settled = crate::process::settle(&process.0, ctx).await;
                settled.map_err(|ending| orla_mcp::failure(ending, ctx))
            }
            // The call itself reports why the server cannot be reached.
            remote => {
                tokio::select! {
                    _ = tokio::time::timeout_at(ctx.deadline, remote.learn()) => Ok(()),
                    () = ctx.scope.cancellation.cancelled() => {
                        Err(orla_mcp::failure(Ending::Cancelled, ctx))
                    }
                }
            }
        }
    }

    fn status(&self, provider: &ProviderType) -> ProviderStatus {
        let Ok(settings) = provider.settings::<MCPCapability>() else {
            return ProviderStatus::default();
        };
        match connected(settings) {
            Some(connected) => connected.server.status(),
            None => self.servers.status(settings),
        }
    }
}

fn connected(settings: &MCPCapability) -> Option<&Connected> {
    settings.options.connection.as_ref()?.get()
}

/// Returns the error of a call of a tool that its server has not listed.
fn unlisted(server: &Server, ctx: &CallContext) -> RuntimeError {
    let reason = match server.info() {
        Some(_) => "its server has listed its tools meanwhile; call it again".to_owned(),
        None => {
            let failure = server.status().last_failure;
            failure.unwrap_or_else(|| "its server has not listed its tools yet".to_owned())
        }
    };
    RuntimeError::Unavailable { id: ctx.name.to_string(), reason, source: None }
}

async fn call(
    server: &Server,
    tool: &Arc<str>,
    arguments: &JsonText,
    ctx: &CallContext,
) -> RuntimeResult<Outcome> {
    match server {
        Server::Process(process) => process.call(Some(tool), arguments, ctx).await,
        other => orla_mcp::call(other, Some(tool), arguments, ctx).await,
    }
}

/// Returns the context of a call whose provider gives it less time than its caller.
fn within(ctx: &CallContext, timeout_ms: u64) -> Option<CallContext> {
    let timeout = Duration::from_millis(timeout_ms);
    let deadline = Instant::now().checked_add(timeout)?;
    (timeout_ms > 0 && deadline < ctx.deadline).then(|| {
        let mut shorter = ctx.clone();
        (shorter.deadline, shorter.timeout) = (deadline, timeout);
        shorter
    })
}

/// Returns the tool that the input of a call names, and its arguments.
fn chosen(
    inputs: &JsonText,
    pattern: &Pattern,
    ctx: &CallContext,
) -> RuntimeResult<Option<(String, JsonText)>> {
    let invalid = |path: &str, expected: &str, got: &str| {
        let got: String = got.chars().take(40).collect();
        let violation = Violation { path: path.to_owned(), expected: expected.to_owned(), got };
        RuntimeError::InvalidInput { id: ctx.name.to_string(), violations: vec![violation] }
    };
    let read =
        Object::parse(inputs.as_str()).ok_or_else(|| invalid("input", "an object", inputs.as_str()))?;
    let Some(tool) = read.get("tool").filter(|tool| *tool != "null") else { return Ok(None) };
    let name = read.text("tool").ok_or_else(|| invalid("input.tool", "the name of a tool", tool))?;
    if !pattern.matches(&name) {
        return Err(invalid("input.tool", &format!("a tool that fits {}", pattern.as_str()), &name));
    }
    let arguments = match read.get("arguments") {
        None | Some("null") => object::empty(),
        Some(arguments) if arguments.starts_with('{') => object::trusted(arguments.to_owned()),
        Some(other) => return Err(invalid("input.arguments", "an object", other)),
    };
    Ok(Some((name, arguments)))
}

/// Returns the list of a server's tools, as a value.
fn list(server: &Server, pattern: &Pattern, ctx: &CallContext) -> RuntimeResult<Outcome> {
    if server.info().is_none() {
        return Err(unlisted(server, ctx));
    }
    let tools: Vec<_> = server.tools(|tools| {
        let shown = tools.iter().filter(|tool| pattern.matches(&tool.name)).map(|tool| {
            let mut shown = json!({ "name": tool.name });
            let members = [
                ("title", tool.title.clone().map(Into::into)),
                ("description", tool.description.clone().map(Into::into)),
                ("inputSchema", tool.input_schema.clone()),
                ("outputSchema", tool.output_schema.clone()),
                ("annotations", tool.annotations.clone()),
            ];
            for (name, value) in members {
                if let Some(value) = value {
                    shown[name] = value;
                }
            }
            shown
        });
        shown.collect()
    });
    let listed = JsonText::of(&json!({ "tools": tools }))
        .map_err(|err| RuntimeError::Generic(err.to_string()))?;
    Ok(Outcome { structured: Some(Payload::from_json(listed)), ..Outcome::default() })
}

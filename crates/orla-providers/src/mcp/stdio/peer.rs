//! A supervised process as an MCP server.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use orla_marketplace::{CallContext, JsonText, Outcome, RuntimeResult, SurfaceNotice};
use orla_mcp::answer::Offers;
use orla_mcp::conversation::Request;
use orla_mcp::{Ask, Caller, Ending, Peer, RequestMode};
use orla_process::supervisor::{Service, Supervised};
use tokio::sync::broadcast;

use super::protocol::McpProtocol;
use crate::confined::explained;
use crate::process::ending;

/// A supervised process that speaks MCP.
pub struct McpProcess<S: Service>(pub(crate) Arc<Supervised<S>>);

impl<S: Service> fmt::Debug for McpProcess<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<S: Service<Protocol = McpProtocol>> McpProcess<S> {
    /// Calls one of the tools. A failure includes the operation that the sandbox probably refused.
    pub(crate) async fn call(
        &self,
        tool: Option<&Arc<str>>,
        arguments: &JsonText,
        ctx: &CallContext,
    ) -> RuntimeResult<Outcome> {
        let called = orla_mcp::call(self, tool, arguments, ctx).await;
        called.map_err(|error| explained(error, self.0.service().sandbox().map(Arc::as_ref)))
    }

    fn is_sessionless(&self) -> bool {
        self.0.info().is_some_and(|info| info.mode == RequestMode::Sessionless)
    }
}

#[async_trait]
impl<S: Service<Protocol = McpProtocol>> Peer for McpProcess<S> {
    fn name(&self) -> &str {
        self.0.name()
    }

    async fn ask(&self, ask: Ask, ctx: &CallContext) -> Result<JsonText, Ending> {
        let traceparent = ctx.scope.traceparent.clone();
        let request = Request { ask, caller: Caller::from(ctx), traceparent };
        let reply = self.0.request(request, ctx.deadline, &ctx.scope.cancellation).await;
        reply.map_err(ending)?.map_err(Ending::Fault)
    }

    fn offers(&self) -> Option<Offers> {
        match self.0.info() {
            Some(info) => Some(info.offers.clone()),
            None => self.0.is_learned().then(Offers::default),
        }
    }

    async fn learn(&self) {
        self.0.learn().await;
    }

    fn notices(&self) -> broadcast::Receiver<SurfaceNotice> {
        self.0.shared().notices.subscribe()
    }

    async fn subscribe(&self, uri: &str, ctx: &CallContext) -> Result<(), Ending> {
        if self.is_sessionless() {
            self.0.shared().subscriptions.add(uri)?;
            self.0.shared_changed();
            return Ok(());
        }
        self.ask(Ask::about("resources/subscribe", uri), ctx).await?;
        Ok(self.0.shared().subscriptions.add(uri)?)
    }

    async fn unsubscribe(&self, uri: &str, ctx: &CallContext) -> Result<(), Ending> {
        if !self.0.shared().subscriptions.remove(uri) {
            // Other callers are still subscribed.
            return Ok(());
        }
        if self.is_sessionless() {
            self.0.shared_changed();
            return Ok(());
        }
        self.ask(Ask::about("resources/unsubscribe", uri), ctx).await.map(drop)
    }
}

//! One server, over any transport.

use std::sync::Arc;

use async_trait::async_trait;
use orla_marketplace::{CallContext, JsonText, ProviderStatus, ShownTo, SurfaceNotice};
use orla_mcp::answer::{ListedTool, Offers};
use orla_mcp::{Ask, Ending, Fault, Peer, ServerInfo};
use orla_process::supervisor::Managed;
use tokio::sync::broadcast;

use super::http::Remote;
use super::stdio::{McpProcess, StdioServer};

/// One server.
#[derive(Debug)]
pub(super) enum Server {
    /// A child process.
    Process(McpProcess<StdioServer>),
    /// A server behind streamable HTTP.
    Remote(Remote),
    /// A server whose configuration is invalid: its name, and why.
    Broken(String, String),
}

impl Server {
    /// Returns the process, if the server is one of this machine.
    pub(super) fn managed(&self) -> Option<Arc<dyn Managed>> {
        match self {
            Self::Process(process) => Some(Arc::clone(&process.0) as Arc<dyn Managed>),
            Self::Remote(_) | Self::Broken(..) => None,
        }
    }

    /// Returns what the server serves, as far as that is known.
    pub(super) fn info(&self) -> Option<Arc<ServerInfo>> {
        match self {
            Self::Process(process) => process.0.info(),
            Self::Remote(remote) => remote.info(),
            Self::Broken(..) => None,
        }
    }

    /// Calls `read` with the tools, as far as they are known.
    pub(super) fn tools<T>(&self, read: impl FnOnce(&[ListedTool]) -> T) -> T {
        let info = self.info();
        read(info.as_deref().and_then(|info| info.tools.as_deref()).unwrap_or_default())
    }

    /// Returns the callers that see a tool; `None` if all do.
    pub(super) fn shown_to(&self, tool: &str) -> Option<ShownTo> {
        match self {
            Self::Remote(remote) => remote.shown_to(tool),
            Self::Process(_) | Self::Broken(..) => None,
        }
    }

    /// Returns whether callers have to sign in before the server lists its tools.
    pub(super) fn needs_callers(&self) -> bool {
        match self {
            Self::Remote(remote) => self.info().is_none() || remote.is_shown_to_callers(),
            Self::Process(_) | Self::Broken(..) => self.info().is_none(),
        }
    }

    /// Returns why the server serves nothing, if it has reported an empty list to everyone.
    pub(super) fn why_empty(&self) -> Option<&'static str> {
        if self.needs_callers() { None } else { self.info()?.why_empty() }
    }

    /// Returns whether the server can be asked for its tools and has not answered yet.
    pub(super) fn is_unlearned(&self) -> bool {
        !matches!(self, Self::Broken(..)) && self.info().is_none()
    }

    /// Returns whether a listing need not wait for the server.
    pub(super) fn is_learned(&self) -> bool {
        match self {
            Self::Process(process) => process.0.is_learned(),
            Self::Remote(remote) => remote.is_learned(),
            Self::Broken(..) => true,
        }
    }

    /// Starts the server, if it does not run.
    pub(super) fn request_start(&self) {
        match self {
            Self::Process(process) => process.0.request_start(),
            Self::Remote(remote) => remote.request_start(),
            Self::Broken(..) => {}
        }
    }

    /// Returns the status.
    pub(super) fn status(&self) -> ProviderStatus {
        match self {
            Self::Process(process) => process.0.status(),
            Self::Remote(remote) => remote.status(),
            Self::Broken(_, problem) => {
                let mut status = ProviderStatus::default();
                status.state = Some("STOPPED".to_owned());
                status.last_failure = Some(problem.clone());
                status
            }
        }
    }
}

#[async_trait]
impl Peer for Server {
    fn name(&self) -> &str {
        match self {
            Self::Process(process) => process.name(),
            Self::Remote(remote) => remote.name(),
            Self::Broken(name, _) => name,
        }
    }

    async fn ask(&self, ask: Ask, ctx: &CallContext) -> Result<JsonText, Ending> {
        match self {
            Self::Process(process) => process.ask(ask, ctx).await,
            Self::Remote(remote) => remote.ask(ask, ctx).await,
            Self::Broken(_, problem) => Err(Ending::Fault(Fault::Unavailable(problem.clone()))),
        }
    }

    fn offers(&self) -> Option<Offers> {
        match self {
            Self::Process(process) => process.offers(),
            Self::Remote(remote) => remote.offers(),
            Self::Broken(..) => Some(Offers::default()),
        }
    }

    async fn learn(&self) {
        match self {
            Self::Process(process) => process.learn().await,
            Self::Remote(remote) => remote.learn().await,
            Self::Broken(..) => {}
        }
    }

    fn notices(&self) -> broadcast::Receiver<SurfaceNotice> {
        match self {
            Self::Process(process) => process.notices(),
            Self::Remote(remote) => remote.notices(),
            Self::Broken(..) => broadcast::Sender::new(1).subscribe(),
        }
    }

    async fn subscribe(&self, uri: &str, ctx: &CallContext) -> Result<(), Ending> {
        match self {
            Self::Process(process) => process.subscribe(uri, ctx).await,
            Self::Remote(remote) => remote.subscribe(uri, ctx).await,
            Self::Broken(_, problem) => Err(Ending::Fault(Fault::Unavailable(problem.clone()))),
        }
    }

    async fn unsubscribe(&self, uri: &str, ctx: &CallContext) -> Result<(), Ending> {
        match self {
            Self::Process(process) => process.unsubscribe(uri, ctx).await,
            Self::Remote(remote) => remote.unsubscribe(uri, ctx).await,
            Self::Broken(..) => Ok(()),
        }
    }
}

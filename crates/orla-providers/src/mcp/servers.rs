//! Every MCP server that is configured, and what they serve.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use orla_marketplace::{Registration, Source, Surface};
use orla_process::Instance;
use orla_process::capsule::Policy;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::settings::ServerSettings;

/// Every MCP server of an instance.
pub struct McpServers {
    instance: Arc<Instance>,
    changes: watch::Sender<u64>,
    stop: CancellationToken,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    policy: Policy,
    settings: Vec<ServerSettings>,
    wildcards: Vec<Registration>,
}

impl McpServers {
    /// No servers yet. Their processes carry the mark of `instance`.
    pub fn new(instance: Arc<Instance>, policy: Policy) -> Self {
        let known = Known { policy, ..Known::default() };
        Self {
            instance,
            changes: watch::Sender::new(0),
            stop: CancellationToken::new(),
            known: Mutex::new(known),
        }
    }

    /// Takes what a configuration that was loaded says. A server whose name stays is carried over:
    /// unchanged it keeps its process or its connection, changed it is started anew. The others end when
    /// nobody uses them any more. Starts nothing.
    ///
    /// `wildcards` are capabilities of the configuration that name a server and no tool
    /// ([`MCPCapability::is_every_tool`](orla_marketplace::MCPCapability::is_every_tool)): each becomes one
    /// capability for each of the server's tools, `ID.TOOL`.
    pub fn load(
        &self,
        servers: impl IntoIterator<Item = ServerSettings>,
        wildcards: impl IntoIterator<Item = Registration>,
        policy: Policy,
    ) {
        let mut known = self.known();
        known.policy = policy;
        known.settings = servers.into_iter().collect();
        known.wildcards = wildcards.into_iter().collect();
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // What is guarded is whole at every moment: a panic left nothing half done.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for McpServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.known();
        let names: Vec<&str> = known.settings.iter().map(|server| server.name.as_str()).collect();
        f.debug_struct("McpServers").field("instance", &self.instance).field("servers", &names).finish()
    }
}

#[async_trait]
impl Source for McpServers {
    fn registrations(&self) -> Vec<Registration> {
        Vec::new()
    }

    fn surfaces(&self) -> Vec<Arc<dyn Surface>> {
        Vec::new()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn may_serve(&self, _name: &str) -> bool {
        !self.known().settings.is_empty()
    }

    fn start_eager(&self, _all: bool) {}

    async fn learn(&self) {}

    async fn shutdown(&self) {
        self.stop.cancel();
    }
}

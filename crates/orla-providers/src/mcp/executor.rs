//! Runs the calls of MCP capabilities.

use std::any::TypeId;
use std::sync::Arc;

use async_trait::async_trait;
use orla_marketplace::{
    CallContext, CapabilityExecutor, MCPCapability, Outcome, Payload, ProviderStatus, ProviderType,
    RuntimeError, RuntimeResult,
};

use super::servers::McpServers;

/// Runs the calls of [`MCPCapability`] providers (RTFS capability system §3.3, §7).
#[derive(Clone, Debug)]
pub struct McpExecutor {
    servers: Arc<McpServers>,
}

impl McpExecutor {
    /// An executor whose `mcp:NAME` are the entries of `servers`, and whose other connections live with
    /// them.
    pub fn new(servers: Arc<McpServers>) -> Self {
        Self { servers }
    }
}

#[async_trait]
impl CapabilityExecutor for McpExecutor {
    fn provider_type_id(&self) -> TypeId {
        TypeId::of::<MCPCapability>()
    }

    async fn execute(
        &self,
        provider: &ProviderType,
        _inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<Outcome> {
        let _settings: &MCPCapability = provider.settings()?;
        Err(RuntimeError::Unavailable {
            id: ctx.name.to_string(),
            reason: format!("{:?} has not started it", self.servers),
            source: None,
        })
    }

    fn status(&self, _provider: &ProviderType) -> ProviderStatus {
        ProviderStatus::default()
    }
}

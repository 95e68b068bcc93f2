//! Runs the calls of plugins' functions.

use std::any::TypeId;
use std::sync::Arc;

use async_trait::async_trait;
use orla_marketplace::json::value_from_json;
use orla_marketplace::rtfs::Error;
use orla_marketplace::{
    CallContext, CapabilityExecutor, Outcome, Payload, PluginCapability, ProviderStatus, ProviderType,
    RuntimeError, RuntimeResult,
};
use orla_process::mcp::{self, Ending, Fault};

use super::plugins::{Connected, Plugins};
use super::pool::Plugin;

/// Runs the calls of [`PluginCapability`] providers (RTFS capability system §3.3, §4).
///
/// Capabilities with the same `plugin_path` share its processes. They are started by calls, and end when the executor
/// and its clones are dropped.
#[derive(Clone, Debug, Default)]
pub struct PluginExecutor {
    plugins: Arc<Plugins>,
}

impl PluginExecutor {
    /// An executor with plugins of its own: those that capabilities name by their path, relative to the current
    /// directory.
    pub fn new() -> Self {
        Self::default()
    }

    /// An executor that shares `plugins`: `plugin:NAME` reaches their entries, and all other processes live as long as
    /// they do.
    pub fn with_plugins(plugins: Arc<Plugins>) -> Self {
        Self { plugins }
    }
}

#[async_trait]
impl CapabilityExecutor for PluginExecutor {
    fn provider_type_id(&self) -> TypeId {
        TypeId::of::<PluginCapability>()
    }

    async fn execute(
        &self,
        provider: &ProviderType,
        inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<Outcome> {
        let settings: &PluginCapability = provider.settings()?;
        let input = inputs.json()?;
        let reached;
        let (plugin, function, permissions) = match connected(settings) {
            Some(Connected { plugin, function, permissions }) => (plugin, function, permissions),
            None => {
                let unavailable = |reason| RuntimeError::Unavailable {
                    id: ctx.name.to_string(),
                    reason,
                    source: None,
                };
                let plugin = self.plugins.reach(&settings.plugin_path).map_err(unavailable)?;
                reached = (plugin, settings.function_name.as_str().into(), Arc::default());
                (&reached.0, &reached.1, &reached.2)
            }
        };
        match plugin.call(function, input, permissions, ctx).await {
            Ok(value) => {
                Ok(Outcome { structured: Some(Payload::from_json(value)), ..Outcome::default() })
            }
            Err(ending) => Err(failure(ending, plugin, function, ctx)),
        }
    }

    fn status(&self, provider: &ProviderType) -> ProviderStatus {
        let settings = provider.settings::<PluginCapability>().ok();
        let connected = settings.and_then(connected);
        connected.map(|connected| connected.plugin.status()).unwrap_or_default()
    }
}

fn connected(settings: &PluginCapability) -> Option<&Connected> {
    settings.options.connection.as_ref()?.get()
}

/// Why a call gave no value, for its caller: it names the function and the plugin.
fn failure(ending: Ending, plugin: &Plugin, function: &str, ctx: &CallContext) -> RuntimeError {
    let id = ctx.name.to_string();
    let whose = format!("function {function} of plugin {}", plugin.name);
    match ending {
        Ending::Fault(Fault::Failed(failure)) => {
            // Programs are given its own words, whatever else it says with them.
            let data = failure.whole.and_then(|json| value_from_json(json.as_str()).ok());
            let text = |text: String, absent: &str| match text.trim() {
                "" => absent.to_owned(),
                _ => text,
            };
            let message = text(failure.message, "it does not say why");
            let kind = text(failure.kind, "");
            let kind = if kind.is_empty() { kind } else { format!(" ({kind})") };
            let message = format!("{id} failed: {message}{kind}; {whose}");
            let error = Error::new("failed", message.clone()).with_data(data.unwrap_or_default());
            RuntimeError::Told { id, message, error: Box::new(error), outcome: None }
        }
        Ending::Fault(Fault::Gone(reason)) => {
            RuntimeError::Unavailable { id, reason: format!("{whose}: {reason}"), source: None }
        }
        Ending::TimedOut { not_ready: None } => {
            let id = format!("{id} ({whose})");
            RuntimeError::TimedOut { id, limit: ctx.timeout, outcome: None }
        }
        Ending::TimedOut { not_ready: Some(reason) } => {
            let not_ready = Some(format!("{reason}; {whose}"));
            mcp::failure(Ending::TimedOut { not_ready }, ctx)
        }
        other => mcp::failure(other, ctx),
    }
}

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
use orla_mcp::{Ending, Fault};
use orla_process::supervisor::Supervised;

use super::plugins::{Connected, Plugins};
use super::pool::Plugin;

/// Runs the calls of [`PluginCapability`] providers (RTFS capability system §3.3, §4).
///
/// Capabilities with the same `plugin_path` and the same permissions share its processes. Calls start the processes, which end
/// when the executor and its clones are dropped.
#[derive(Clone, Debug, Default)]
pub struct PluginExecutor {
    plugins: Arc<Plugins>,
}

impl PluginExecutor {
    /// Creates an executor with its own plugins: those that capabilities name by path, relative to the
    /// current directory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an executor that shares `plugins`. `plugin:NAME` reaches their entries, and all other
    /// processes live as long as `plugins`.
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
                let plugin = self.plugins.reach(settings).map_err(unavailable)?;
                let permissions = settings.options.permissions.as_slice().into();
                reached = (plugin, settings.function_name.as_str().into(), permissions);
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

    fn is_settled(&self, provider: &ProviderType) -> bool {
        let connected = provider.settings::<PluginCapability>().ok().and_then(connected);
        let process = connected.and_then(|connected| connected.plugin.only_process());
        process.is_none_or(Supervised::is_current)
    }

    async fn settle(&self, provider: &ProviderType, ctx: &CallContext) -> RuntimeResult<()> {
        let Some(connected) = connected(provider.settings::<PluginCapability>()?) else { return Ok(()) };
        let Some(process) = connected.plugin.only_process() else { return Ok(()) };
        let settled = crate::process::settle(process, ctx).await;
        settled.map_err(|ending| failure(ending, &connected.plugin, &connected.function, ctx))
    }

    fn status(&self, provider: &ProviderType) -> ProviderStatus {
        let Ok(settings) = provider.settings::<PluginCapability>() else {
            return ProviderStatus::default();
        };
        if let Some(connected) = connected(settings) {
            return connected.plugin.status(Some(&connected.permissions));
        }
        self.plugins.status(settings)
    }
}

fn connected(settings: &PluginCapability) -> Option<&Connected> {
    settings.options.connection.as_ref()?.get()
}

/// Returns the error of a failed call for its caller. It names the function and the plugin.
fn failure(ending: Ending, plugin: &Plugin, function: &str, ctx: &CallContext) -> RuntimeError {
    let id = ctx.name.to_string();
    let whose = format!("function {function} of plugin {}", plugin.name);
    match ending {
        Ending::Fault(Fault::Failed(failure)) => {
            // Programs receive the plugin's own message and the rest of its error.
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
            RuntimeError::Structured { id, message, error: Box::new(error), outcome: None }
        }
        Ending::Fault(Fault::Unavailable(reason)) => {
            RuntimeError::Unavailable { id, reason: format!("{whose}: {reason}"), source: None }
        }
        Ending::TimedOut { not_ready: None, wrong_answer } => {
            let wrong = wrong_answer.map(|wrong| format!("; {wrong}")).unwrap_or_default();
            let id = format!("{id} ({whose}{wrong})");
            RuntimeError::TimedOut { id, limit: ctx.timeout, outcome: None }
        }
        Ending::TimedOut { not_ready: Some(reason), wrong_answer } => {
            let not_ready = Some(format!("{reason}; {whose}"));
            orla_mcp::failure(Ending::TimedOut { not_ready, wrong_answer }, ctx)
        }
        other => orla_mcp::failure(other, ctx),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

    use orla_marketplace::{Call, CapabilityManifest, CapabilityMarketplace, Limits};

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn an_executor_of_its_own_shares_a_process_and_ends_it_when_it_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pid.py");
        let program = "#!/usr/bin/env python3\nimport json, os, sys\nfor line in sys.stdin:\n    \
            print(json.dumps({'id': json.loads(line)['id'], 'ok': os.getpid()}), flush=True)\n";
        std::fs::write(&path, program).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let market = CapabilityMarketplace::new(Limits::default());
        market.register_executor(Arc::new(PluginExecutor::new())).unwrap();
        for id in ["one", "two"] {
            let plugin = PluginCapability::new(path.to_string_lossy(), id);
            let manifest = CapabilityManifest::new(id, "Its process.", ProviderType::Plugin(plugin));
            market.register_capability(manifest).unwrap();
        }
        let process = async |id: &str| {
            let outcome = market.call(Call::to(id)).await.unwrap();
            PathBuf::from(format!("/proc/{}", outcome.value().unwrap()))
        };
        let (one, two) = (process("one").await, process("two").await);
        assert!(one == two && one.exists());
        drop(market);
        let ended = async {
            while one.exists() {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(20), ended).await.expect("it ends");
    }
}

//! Capsules as capabilities: a provider and its executor for the marketplace's public interface.

use std::any::{Any, TypeId};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use orla_marketplace::attestation::ContentSource;
use orla_marketplace::{
    Availability, CallContext, CapabilityExecutor, CustomProvider, Outcome, Payload, ProviderStatus,
    ProviderType, Registration, RuntimeError, RuntimeResult,
};
use orla_mcp::describe;
use orla_process::supervisor::{Service as _, Supervised};

use super::packages::Package;
use crate::mcp::McpProcess;
use crate::tool::{ToolProvider, requires};

/// One tool of a capsule.
pub(super) struct CapsuleProvider {
    capsule: McpProcess<Package>,
    /// The tool's name in the capsule; `None` for the only tool of a capsule that has not reported its
    /// tools.
    tool: Option<Arc<str>>,
}

impl fmt::Debug for CapsuleProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CapsuleProvider({:?}, {:?})", self.capsule, self.tool)
    }
}

impl CapsuleProvider {
    /// Returns why the capability must not be called yet, or any more. Once the capsule has reported its
    /// tools, these are called instead, with their schemas and under their rules. The tools of a foreign
    /// package are first compared with what was accepted.
    fn unaccepted(&self) -> Option<String> {
        if self.tool.is_some() {
            return None;
        }
        let capsule = &self.capsule.0;
        match capsule.info() {
            Some(info) if info.tools.is_some() => {
                Some("it has said what its tools are since; list them again".to_owned())
            }
            None if capsule.service().manifest.declared.is_foreign => {
                let failure = capsule.status().last_failure;
                Some(failure.unwrap_or_else(|| "it has not said yet what its tools are".to_owned()))
            }
            _ => None,
        }
    }
}

impl CustomProvider for CapsuleProvider {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn kind(&self) -> &'static str {
        "capsule"
    }

    fn content(&self) -> ContentSource {
        self.capsule.0.service().content()
    }

    fn requires(&self) -> Vec<String> {
        vec![requires(&self.capsule.0.service().entrypoint())]
    }
}

/// Returns whether this is a capsule that has not reported its tools yet.
pub fn is_unlearned(provider: &ProviderType) -> bool {
    let capsule = provider.settings::<CapsuleProvider>();
    capsule.is_ok_and(|capsule| capsule.tool.is_none() && capsule.capsule.0.info().is_none())
}

/// Returns whether this belongs to a capsule, including one that cannot be served.
pub fn is_capsule(provider: &ProviderType) -> bool {
    provider.settings::<CapsuleProvider>().is_ok()
        || provider.settings::<ToolProvider>().is_ok_and(|tool| tool.is_capsule)
}

/// Returns the name of the capsule that a capability is a tool of, if any.
pub fn capsule_of(provider: &ProviderType) -> Option<String> {
    let capsule = provider.settings::<CapsuleProvider>().ok()?;
    Some(capsule.capsule.0.service().manifest.name.clone())
}

/// Returns the directory of the package that a capability belongs to, if any.
pub fn package_of(provider: &ProviderType) -> Option<PathBuf> {
    let capsule = provider.settings::<CapsuleProvider>();
    let capsule = capsule.ok().map(|capsule| capsule.capsule.0.service().directory.clone());
    capsule.or_else(|| Some(provider.settings::<ToolProvider>().ok()?.package()?.to_owned()))
}

/// Returns the capabilities of a capsule, as far as they are known: those that it lists; before that, or
/// if it lists none, the capsule itself.
///
/// A single tool has the capsule's name instead of its own; several have ids of the form `CAPSULE.TOOL`. If the
/// manifest gives a prefix, the id is the prefix and the tool's own name.
pub(super) fn registrations(capsule: &Arc<Supervised<Package>>) -> Vec<Registration> {
    let info = capsule.info();
    let tools = info.as_deref().and_then(|info| info.tools.as_deref());
    let package = capsule.service();
    let provider = |tool: Option<&str>| {
        let provider =
            CapsuleProvider { capsule: McpProcess(Arc::clone(capsule)), tool: tool.map(Arc::from) };
        ProviderType::Custom(Arc::new(provider))
    };
    let registration = |tool: Option<&str>| {
        let mut registration = Registration::from(package.capability(provider(tool)));
        registration.policy.timeout = package.manifest.declared.limits.wall;
        registration.policy.redaction.clone_from(&package.redaction);
        registration
    };
    match tools {
        None => {
            let mut registration = registration(None);
            if info.is_none() && registration.policy.availability == Availability::Available {
                // The tools may have other names, and have schemas. The capsule is asked before the
                // first call.
                registration.policy.availability = Availability::Unlearned;
            }
            vec![registration]
        }
        Some([only]) if package.manifest.prefix.is_none() => {
            let mut registration = registration(Some(&only.name));
            // The manifest's description of a single tool takes precedence over the tool's own.
            let own = &package.manifest;
            describe(&mut registration, only, own.description.is_some());
            vec![registration]
        }
        Some(tools) => tools
            .iter()
            .map(|tool| {
                let mut registration = registration(Some(&tool.name));
                let manifest = &mut registration.manifest;
                manifest.id = match &package.manifest.prefix {
                    Some(prefix) => format!("{prefix}{}", tool.name),
                    None => format!("{}.{}", package.manifest.name, tool.name),
                };
                manifest.name.clone_from(&manifest.id);
                manifest.input_schema = None;
                manifest.output_schema = None;
                describe(&mut registration, tool, false);
                registration
            })
            .collect(),
    }
}

/// Runs the calls of capsules' tools.
#[derive(Clone, Copy, Debug, Default)]
pub struct CapsuleExecutor;

#[async_trait]
impl CapabilityExecutor for CapsuleExecutor {
    fn provider_type_id(&self) -> TypeId {
        TypeId::of::<CapsuleProvider>()
    }

    async fn execute(
        &self,
        provider: &ProviderType,
        inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<Outcome> {
        let provider: &CapsuleProvider = provider.settings()?;
        if let Some(reason) = provider.unaccepted() {
            let id = ctx.name.to_string();
            return Err(RuntimeError::Unavailable { id, reason, source: None });
        }
        let called = provider.capsule.call(provider.tool.as_ref(), inputs.json()?, ctx).await;
        called.map_err(|error| match error {
            // An error in a capsule is a result, because its caller's model may be able to correct it.
            RuntimeError::Refused { ref id, .. } => {
                RuntimeError::Failed { id: id.clone(), message: error.to_string(), outcome: None }
            }
            other => other,
        })
    }

    fn is_settled(&self, provider: &ProviderType) -> bool {
        let provider = provider.settings::<CapsuleProvider>();
        provider.is_ok_and(|provider| provider.capsule.0.is_current())
    }

    async fn settle(&self, provider: &ProviderType, ctx: &CallContext) -> RuntimeResult<()> {
        let provider: &CapsuleProvider = provider.settings()?;
        let settled = crate::process::settle(&provider.capsule.0, ctx).await;
        settled.map_err(|ending| orla_mcp::failure(ending, ctx))
    }

    fn status(&self, provider: &ProviderType) -> ProviderStatus {
        provider
            .settings::<CapsuleProvider>()
            .map(|provider| provider.capsule.0.status())
            .unwrap_or_default()
    }
}

//! Capsules as capabilities: a provider and its executor on the marketplace's public seam.

use std::any::{Any, TypeId};
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use orla_marketplace::schema::{Validator, type_from_json_schema};
use orla_marketplace::{
    ANNOTATIONS, CallContext, CapabilityExecutor, CapabilityManifest, CustomProvider, JsonText, Outcome,
    Payload, ProviderStatus, ProviderType, Registration, RuntimeError, RuntimeResult, TITLE, seconds,
};
use serde_json::Value;

use super::answer::{self, ListedTool, ToolResult};
use super::conversation::{Ask, Fault};
use super::{Capsule, Ending};

/// One tool of a capsule.
pub struct CapsuleProvider {
    capsule: Arc<Capsule>,
    /// Its name in the capsule; none for the only tool of one that has not said what it serves.
    tool: Option<Arc<str>>,
}

impl fmt::Debug for CapsuleProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let package = self.capsule.package();
        write!(f, "CapsuleProvider({package:?}, {:?})", self.tool)
    }
}

impl CustomProvider for CapsuleProvider {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn kind(&self) -> &'static str {
        "capsule"
    }
}

/// The capabilities of a capsule, as far as they are known: those that it lists; before that, and where
/// it lists none, itself.
///
/// One tool has the capsule's name, whatever its own; several have ids of the form `CAPSULE.TOOL`. Where
/// the manifest gives a prefix, it and the tool's own name are the id.
pub fn registrations(capsule: &Arc<Capsule>) -> Vec<Registration> {
    let knowledge = capsule.shared.knowledge.borrow().clone();
    let tools = knowledge.learned.as_deref().and_then(|learned| learned.tools.as_deref());
    let package = capsule.package();
    let provider = |tool: Option<&str>| {
        let provider = CapsuleProvider { capsule: Arc::clone(capsule), tool: tool.map(Arc::from) };
        ProviderType::Custom(Arc::new(provider))
    };
    match tools {
        None => vec![package.capability(provider(None)).into()],
        Some([only]) if package.manifest.prefix.is_none() => {
            let mut manifest = package.capability(provider(Some(&only.name)));
            // What the manifest says of its one tool goes before what the tool says of itself.
            let own = &package.manifest;
            describe(&mut manifest, only, &own.name, own.description.is_some());
            vec![manifest.into()]
        }
        Some(tools) => tools
            .iter()
            .map(|tool| {
                let mut manifest = package.capability(provider(Some(&tool.name)));
                manifest.id = match &package.manifest.prefix {
                    Some(prefix) => format!("{prefix}{}", tool.name),
                    None => format!("{}.{}", package.manifest.name, tool.name),
                };
                manifest.name.clone_from(&manifest.id);
                manifest.input_schema = None;
                manifest.output_schema = None;
                let id = manifest.id.clone();
                describe(&mut manifest, tool, &id, false);
                manifest.into()
            })
            .collect(),
    }
}

/// Adds what a tool says of itself.
fn describe(manifest: &mut CapabilityManifest, tool: &ListedTool, id: &str, has_description: bool) {
    if !has_description {
        let given = tool.description.clone().filter(|text| !text.trim().is_empty());
        manifest.description = given.unwrap_or_else(|| format!("The tool {} of a capsule.", tool.name));
    }
    let declared = |schema: &Option<Value>, which: &str| {
        let schema = type_from_json_schema(schema.as_ref()?);
        match Validator::compile(&schema) {
            Ok(_) => Some(schema),
            Err(err) => {
                tracing::warn!(tool = id, error = %err, "its {which} schema is none, and is not enforced");
                None
            }
        }
    };
    if manifest.input_schema.is_none() {
        manifest.input_schema = declared(&tool.input_schema, "input");
    }
    if manifest.output_schema.is_none() {
        manifest.output_schema = declared(&tool.output_schema, "output");
    }
    if let Some(title) = &tool.title {
        manifest.metadata.insert(TITLE.to_owned(), title.clone());
    }
    if let Some(annotations) = tool.annotations.as_ref().filter(|annotations| annotations.is_object()) {
        manifest.metadata.insert(ANNOTATIONS.to_owned(), annotations.to_string());
    }
}

/// Runs the calls of [`CapsuleProvider`]s.
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
        let ask = Ask::Call { tool: provider.tool.clone(), arguments: inputs.json()?.clone() };
        let result = provider.capsule.ask(ask, ctx).await.map_err(|ending| failure(ending, ctx))?;
        outcome(&result, ctx)
    }

    fn status(&self, provider: &ProviderType) -> ProviderStatus {
        provider
            .settings::<CapsuleProvider>()
            .map(|provider| provider.capsule.status())
            .unwrap_or_default()
    }
}

fn outcome(result: &JsonText, ctx: &CallContext) -> RuntimeResult<Outcome> {
    let id = || ctx.name.to_string();
    match answer::tool_result(result) {
        Ok(ToolResult::Success(outcome)) => Ok(outcome),
        Ok(ToolResult::Failure(outcome)) => Err(RuntimeError::reported(id(), outcome)),
        Err(problem) => {
            let message = format!("{} gave a result that is none: {problem}", ctx.name);
            Err(RuntimeError::Failed { id: id(), message, outcome: None })
        }
    }
}

/// Why a call gave no result, for its caller.
pub(crate) fn failure(ending: Ending, ctx: &CallContext) -> RuntimeError {
    let id = ctx.name.to_string();
    match ending {
        Ending::Fault(Fault::Refused(error)) => {
            let message = format!("{id} refused the call: {} (code {})", error.message, error.code);
            RuntimeError::Failed { id, message, outcome: None }
        }
        Ending::Fault(Fault::Gone(reason)) => RuntimeError::Unavailable { id, reason, source: None },
        Ending::Fault(Fault::Busy { sent, waiting }) => {
            RuntimeError::Busy { id, running: sent, waiting }
        }
        Ending::Cancelled => RuntimeError::Cancelled { id, outcome: None },
        Ending::TimedOut { not_ready: None } => {
            RuntimeError::TimedOut { id, limit: ctx.timeout, outcome: None }
        }
        Ending::TimedOut { not_ready: Some(reason) } => {
            let reason = format!("it was not ready within {}: {reason}", seconds(ctx.timeout));
            RuntimeError::Unavailable { id, reason, source: None }
        }
    }
}

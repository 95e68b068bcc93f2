//! Runs the calls of built-ins.

use std::any::TypeId;

use async_trait::async_trait;
use orla_marketplace::rtfs::TypeExpr;
use orla_marketplace::schema::{Validator, type_from_schema_text};
use orla_marketplace::{
    CallContext, CapabilityExecutor, CapabilityManifest, LocalCapability, Outcome, Payload,
    ProviderStatus, ProviderType, RuntimeError, RuntimeResult, Violation,
};
use orla_registry::{Builtin, BuiltinError, CapabilityRegistry};

use super::source::{SOURCE, registration_of};

/// Runs [`LocalCapability`] providers (RTFS capability system §2.2).
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalExecutor;

#[async_trait]
impl CapabilityExecutor for LocalExecutor {
    fn provider_type_id(&self) -> TypeId {
        TypeId::of::<LocalCapability>()
    }

    /// Returns the types of the built-in itself, or no types, need no check. The marketplace checks all
    /// others.
    fn checks_types(&self, manifest: &CapabilityManifest) -> bool {
        let settings = manifest.provider.settings::<LocalCapability>().ok();
        let Some(known) = settings.and_then(|settings| registration_of(&settings.function)) else {
            return false;
        };
        let own =
            |declared: &Option<TypeExpr>, own: &Option<TypeExpr>| declared.is_none() || declared == own;
        own(&manifest.input_schema, &known.manifest.input_schema)
            && own(&manifest.output_schema, &known.manifest.output_schema)
    }

    async fn execute(
        &self,
        provider: &ProviderType,
        inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<Outcome> {
        let settings: &LocalCapability = provider.settings()?;
        let builtin = CapabilityRegistry.get(&settings.function).ok_or_else(|| {
            RuntimeError::Generic(format!("there is no built-in named {}", settings.function))
        })?;
        let input = inputs.value()?;
        let result = if CapabilityRegistry.is_quick(input) {
            builtin.call(input)
        } else {
            let input = input.clone();
            let work = tokio::task::spawn_blocking(move || builtin.call(&input));
            work.await.map_err(|_| RuntimeError::Panicked { id: ctx.name.to_string() })?
        };
        result.map(Outcome::from_value).map_err(|error| failure(builtin, error, inputs, ctx))
    }

    /// Runs the function, which has no side effects. Large inputs are not checked, because that could block.
    fn check_input(
        &self,
        provider: &ProviderType,
        inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<()> {
        let settings: &LocalCapability = provider.settings()?;
        let (builtin, input) = (CapabilityRegistry.get(&settings.function), inputs.value()?);
        let Some(builtin) = builtin.filter(|_| CapabilityRegistry.is_quick(input)) else {
            return Ok(());
        };
        match builtin.call(input) {
            Err(error @ BuiltinError::Argument { .. }) => Err(failure(builtin, error, inputs, ctx)),
            _ => Ok(()),
        }
    }

    fn status(&self, _provider: &ProviderType) -> ProviderStatus {
        let mut status = ProviderStatus::default();
        status.source = Some(SOURCE.to_owned());
        status
    }
}

fn failure(builtin: &Builtin, error: BuiltinError, inputs: &Payload, ctx: &CallContext) -> RuntimeError {
    let id = ctx.name.to_string();
    match error {
        BuiltinError::Argument { argument, expected, got } => {
            let violations = violations(builtin, inputs)
                .unwrap_or_else(|| vec![Violation { path: format!("input.{argument}"), expected, got }]);
            RuntimeError::InvalidInput { id, violations }
        }
        BuiltinError::Limit { what, limit } => {
            RuntimeError::Limit { id, what: format!("{what} would be more than {limit}") }
        }
        other => {
            let message = format!("{id} failed: {other}");
            RuntimeError::Failed { id, message, outcome: None }
        }
    }
}

/// Returns all violations of the schema by an input, if any.
fn violations(builtin: &Builtin, inputs: &Payload) -> Option<Vec<Violation>> {
    let schema = type_from_schema_text(builtin.input_schema().into());
    let validator = Validator::compile(&schema).ok()?;
    validator.check(inputs.json().ok()?.as_str(), "input").err()
}

//! The built-in capabilities as capabilities (RTFS capability system §2.3, §4).
//!
//! [`registrations`] describes each function of the [`CapabilityRegistry`], and [`LocalExecutor`] runs
//! it: synchronously, in microseconds, without I/O.
//!
//! # How it works
//!
//! A built-in reads each of its arguments by its type, so the marketplace checks neither its input nor
//! its output, and compiles no schema for it ([`CapabilityExecutor::checks_types`]). Only where one
//! refuses its arguments is the schema compiled, to tell the caller of all mistakes at once. A large
//! input is worked on beside the threads that serve.

use std::any::TypeId;
use std::sync::LazyLock;
use std::time::SystemTime;

use async_trait::async_trait;
use orla_registry::{Builtin, BuiltinError, CapabilityRegistry};
use rtfs::TypeExpr;

use crate::attestation::hash_text;
use crate::error::{RuntimeError, RuntimeResult, Violation};
use crate::executor::{CallContext, CapabilityExecutor, Outcome, ProviderStatus};
use crate::manifest::{
    ANNOTATIONS, CapabilityManifest, CapabilityProvenance, Listing, Policy, Registration, TITLE,
};
use crate::payload::Payload;
use crate::provider::{LocalCapability, ProviderType};
use crate::schema::{Validator, type_from_schema_text};

/// The source that the provenance of every built-in names.
pub const SOURCE: &str = "built-in";

/// They compute a value from their arguments and touch nothing.
const HINTS: &str =
    r#"{"readOnlyHint":true,"destructiveHint":false,"idempotentHint":true,"openWorldHint":false}"#;

/// Runs [`LocalCapability`] providers (RTFS capability system §2.2).
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalExecutor;

#[async_trait]
impl CapabilityExecutor for LocalExecutor {
    fn provider_type_id(&self) -> TypeId {
        TypeId::of::<LocalCapability>()
    }

    /// With the types of the built-in itself, or none; others are the marketplace's to check.
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

    fn status(&self, _provider: &ProviderType) -> ProviderStatus {
        ProviderStatus { source: Some(SOURCE.to_owned()), ..ProviderStatus::default() }
    }
}

/// Every built-in, ready to be registered: it can be called and is found by search, and is listed
/// where its [`Policy::listing`] is set to [`Listing::Listed`]. In the order of their ids; made when they are first asked
/// for, and once.
pub fn registrations() -> &'static [Registration] {
    static ALL: LazyLock<Vec<Registration>> =
        LazyLock::new(|| CapabilityRegistry.builtins().map(registration).collect());
    &ALL
}

/// The built-in with this name, ready to be registered.
pub fn registration_of(name: &str) -> Option<&'static Registration> {
    let all = registrations();
    let at = all.binary_search_by(|registration| registration.manifest.id.as_str().cmp(name)).ok()?;
    all.get(at)
}

fn registration(builtin: &'static Builtin) -> Registration {
    let (input, output) = (builtin.input_schema(), builtin.output_schema());
    let provider = ProviderType::Local(LocalCapability::new(builtin.name));
    let version = CapabilityRegistry.version();
    let mut manifest = CapabilityManifest::new(builtin.name, builtin.description, provider);
    manifest.name = builtin.title.to_owned();
    manifest.version = version.to_owned();
    // What runs is part of the program: its version and what it promises say which one it is.
    let definition = [version, builtin.name, builtin.description, &input, &output].join("\n");
    manifest.input_schema = Some(type_from_schema_text(input.into()));
    manifest.output_schema = Some(type_from_schema_text(output.into()));
    manifest.provenance = Some(CapabilityProvenance {
        source: SOURCE.to_owned(),
        version: Some(version.to_owned()),
        content_hash: hash_text(definition.as_bytes()),
        custody_chain: Vec::new(),
        registered_at: SystemTime::now(),
    });
    manifest.metadata.insert(TITLE.to_owned(), builtin.title.to_owned());
    manifest.metadata.insert(ANNOTATIONS.to_owned(), HINTS.to_owned());
    let policy = Policy { listing: Listing::Unlisted, ..Policy::default() };
    Registration { manifest, policy }
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

/// All that the schema finds wrong with an input, if it finds anything.
fn violations(builtin: &Builtin, inputs: &Payload) -> Option<Vec<Violation>> {
    let schema = type_from_schema_text(builtin.input_schema().into());
    let validator = Validator::compile(&schema).ok()?;
    validator.check(inputs.json().ok()?.as_str(), "input").err()
}

#[cfg(test)]
#[path = "local_tests.rs"]
mod tests;

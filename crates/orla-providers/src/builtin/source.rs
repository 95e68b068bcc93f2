//! The built-ins, ready to be registered.

use std::sync::LazyLock;
use std::time::SystemTime;

use orla_marketplace::attestation::hash_text;
use orla_marketplace::schema::type_from_schema_text;
use orla_marketplace::{
    ANNOTATIONS, CallPolicy, CapabilityManifest, CapabilityProvenance, Listing, LocalCapability,
    ProviderType, Registration, TITLE,
};
use orla_registry::{Builtin, CapabilityRegistry};

/// The source that the provenance of every built-in names.
pub const SOURCE: &str = "built-in";

/// The hints of built-ins, which compute a value from their arguments without side effects.
const HINTS: &str =
    r#"{"readOnlyHint":true,"destructiveHint":false,"idempotentHint":true,"openWorldHint":false}"#;

/// Returns every built-in, ready to be registered, in the order of their ids. Each can be called and
/// found by search, and is listed if its [`CallPolicy::listing`] is [`Listing::Listed`]. The list is
/// made once, at the first use.
pub fn registrations() -> &'static [Registration] {
    static ALL: LazyLock<Vec<Registration>> =
        LazyLock::new(|| CapabilityRegistry.builtins().map(registration).collect());
    &ALL
}

/// Returns the built-in with this name, ready to be registered.
pub fn registration_of(name: &str) -> Option<&'static Registration> {
    let all = registrations();
    let at = all.binary_search_by(|registration| registration.manifest.id.as_str().cmp(name)).ok()?;
    all.get(at)
}

pub(super) fn registration(builtin: &'static Builtin) -> Registration {
    let (input, output) = (builtin.input_schema(), builtin.output_schema());
    let provider = ProviderType::Local(LocalCapability::new(builtin.name));
    let version = CapabilityRegistry.version();
    let mut manifest = CapabilityManifest::new(builtin.name, builtin.description, provider);
    manifest.name = builtin.title.to_owned();
    manifest.version = version.to_owned();
    // The content is part of the program: its version and its manifest identify it.
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
    let mut policy = CallPolicy::default();
    policy.listing = Listing::Unlisted;
    Registration { manifest, policy }
}

//! Builds a catalogue: checks registrations, and takes over unchanged entries from the previous snapshot.
//!
//! Most capabilities are the same after a reload. A capability with an unchanged registration keeps its
//! entry, with its compiled schemas, its queue and the state of its upstream. None of them is built
//! again.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use super::access::Access;
use super::{Catalog, Choice, Enforcement, Entry, Limits, RegistrationError};
use crate::admission::breaker::Breaker;
use crate::admission::{Admission, Bounds};
use crate::attestation::ContentSource;
use crate::executors::Executors;
use crate::id::{Pattern, mcp_names};
use crate::manifest::{
    Availability, CallPolicy, CapabilityManifest, CapabilityProvenance, DeclaredBy, Listing,
    Registration,
};
use crate::permission::Permission;
use crate::policy::AccessPolicy;
use crate::provider::ProviderType;
use crate::schema::{MAX_PATTERNS, SchemaError, Validator, must_admit_object};
use crate::surface::Surface;

/// The default number of retries of an idempotent capability with an upstream.
const RETRIES: u32 = 2;

/// Builds a [`Catalog`]. [`CapabilityMarketplace::builder`] creates it.
///
/// [`CapabilityMarketplace::builder`]: crate::CapabilityMarketplace::builder
pub struct CatalogBuilder {
    pub(crate) executors: Arc<Executors>,
    capabilities: BTreeMap<String, Candidate>,
    surfaces: Vec<Arc<dyn Surface>>,
    limits: Limits,
    choice: Arc<Choice>,
    access: Access,
    /// The snapshot from which unchanged parts are taken over: validators, and waiting calls.
    previous: Option<Arc<Catalog>>,
    /// The cost of the regular expressions in each provider's schemas so far.
    pattern_costs: HashMap<String, u64>,
}

/// A candidate for an entry.
enum Candidate {
    /// An unchanged registration.
    Same(Arc<Entry>),
    New(Box<Checked>),
}

struct Checked {
    registration: Registration,
    input: Enforcement,
    output: Enforcement,
    needs: Arc<[Permission]>,
}

/// A capability that cannot be registered.
#[derive(Debug)]
pub struct Rejected {
    /// The reason.
    pub error: RegistrationError,
    /// The rejected registration.
    pub registration: Registration,
}

/// Returns the permissions that a capability declares and those that its provider needs.
fn needs(manifest: &CapabilityManifest) -> Arc<[Permission]> {
    let mut needs: Vec<Permission> = Vec::new();
    for need in manifest.permissions.iter().cloned().chain(manifest.provider.requires()) {
        let need = Permission::needed(&need);
        if !needs.contains(&need) {
            needs.push(need);
        }
    }
    needs.into()
}

impl CatalogBuilder {
    pub(crate) fn new(
        executors: Arc<Executors>,
        limits: Limits,
        previous: Option<Arc<Catalog>>,
    ) -> Self {
        Self {
            executors,
            capabilities: BTreeMap::new(),
            surfaces: Vec::new(),
            choice: Arc::default(),
            access: previous.as_ref().map(|previous| previous.access.successor()).unwrap_or_default(),
            previous,
            limits,
            pattern_costs: HashMap::new(),
        }
    }

    /// Adds a capability.
    ///
    /// # Errors
    /// The id is taken, the kind of provider has no executor, or a schema of the user cannot be enforced.
    pub fn capability(
        &mut self,
        registration: impl Into<Registration>,
    ) -> Result<(), RegistrationError> {
        self.offer(registration.into()).map_err(|rejected| rejected.error)
    }

    /// Like [`capability`](Self::capability), but returns the rejected registration.
    ///
    /// # Errors
    /// The same, with the registration.
    pub fn offer(&mut self, registration: Registration) -> Result<(), Box<Rejected>> {
        match self.check(&registration) {
            Ok(Verdict::Same(entry)) => {
                for (schema, declared_by) in [
                    (&entry.input, entry.policy.input_declared_by),
                    (&entry.output, entry.policy.output_declared_by),
                ] {
                    // The schema was within the budget before. Its cost counts against those that come
                    // after it.
                    self.within_budget(&entry.manifest.id, declared_by, schema.clone());
                }
                self.capabilities.insert(registration.manifest.id, Candidate::Same(entry));
            }
            Ok(Verdict::New { input, output }) => {
                let needs = needs(&registration.manifest);
                let id = registration.manifest.id.clone();
                let policy = &registration.policy;
                let input = self.within_budget(&id, policy.input_declared_by, input);
                let output = self.within_budget(&id, policy.output_declared_by, output);
                for (which, schema) in [("input", &input), ("output", &output)] {
                    if let Some(fault) = schema.fault() {
                        tracing::warn!(capability = id, %fault, "the {which} schema is not enforced");
                    }
                }
                let checked = Box::new(Checked { registration, input, output, needs });
                self.capabilities.insert(id, Candidate::New(checked));
            }
            Err(error) => return Err(Box::new(Rejected { error, registration })),
        }
        Ok(())
    }

    fn check(&self, registration: &Registration) -> Result<Verdict, RegistrationError> {
        let manifest = &registration.manifest;
        let id = &manifest.id;
        if self.capabilities.contains_key(id) {
            return Err(RegistrationError::Duplicate(id.clone()));
        }
        let Some(executor) = self.executors.find(&manifest.provider) else {
            return Err(RegistrationError::NoExecutor {
                id: id.clone(),
                kind: manifest.provider.kind(),
            });
        };
        let policy = &registration.policy;
        let is_unavailable = matches!(policy.availability, Availability::Unavailable { .. });
        let checked = !executor.checks_types(manifest) && !is_unavailable;
        let declares = |schema: &Option<rtfs::TypeExpr>| checked && schema.is_some();
        let before = self.previous.as_ref().and_then(|catalog| catalog.with_id(id));
        let same = before.filter(|entry| {
            is_same(entry, registration)
                && !matches!(entry.input, Enforcement::None) == declares(&manifest.input_schema)
                && !matches!(entry.output, Enforcement::None) == declares(&manifest.output_schema)
        });
        if let Some(entry) = same {
            return Ok(Verdict::Same(Arc::clone(entry)));
        }
        // A built-in schema is known to be valid, and most built-ins are never called.
        let own = manifest.provider.custom().filter(|_| checked);
        let is_own = own.is_some_and(|custom| custom.content() == ContentSource::Program);
        let deferred = |schema| Ok(Arc::new(Validator::deferred(schema)));
        let known = before.map(|entry| (&entry.manifest.input_schema, entry.input.validator()));
        let declared = manifest.input_schema.as_ref().filter(|_| checked);
        let compile = |schema| if is_own { deferred(schema) } else { input_validator(schema, known) };
        let input = enforcement(declared.map(compile), policy.input_declared_by);
        let input = input.map_err(|source| RegistrationError::InputSchema { id: id.clone(), source })?;
        let known = before.map(|entry| (&entry.manifest.output_schema, entry.output.validator()));
        let declared = manifest.output_schema.as_ref().filter(|_| checked);
        let compile = |schema| if is_own { deferred(schema) } else { validator(schema, known) };
        let output = enforcement(declared.map(compile), policy.output_declared_by);
        let output =
            output.map_err(|source| RegistrationError::OutputSchema { id: id.clone(), source })?;
        Ok(Verdict::New { input, output })
    }

    /// Counts the cost of the regular expressions in a provider's schema. If the total is too high, the
    /// schema is left to the provider.
    fn within_budget(&mut self, id: &str, declared_by: DeclaredBy, schema: Enforcement) -> Enforcement {
        let cost = schema.validator().map_or(0, |validator| validator.pattern_cost());
        if declared_by == DeclaredBy::User || cost == 0 {
            return schema;
        }
        let provider = id.split_once('.').map_or(id, |(provider, _)| provider);
        let spent = self.pattern_costs.entry(provider.to_owned()).or_default();
        if *spent + cost > MAX_PATTERNS {
            let problem = format!("the regular expressions of {provider} are too large together");
            return Enforcement::NotEnforced(Arc::new(SchemaError { path: String::new(), problem }));
        }
        *spent += cost;
        schema
    }

    /// Adds everything of the previous snapshot except the capability with this id. The entries are not
    /// checked again. An entry whose executor has been removed stays, and is unavailable.
    pub(crate) fn copy_current(&mut self, without: Option<&str>) {
        let Some(previous) = self.previous.clone() else { return };
        for entry in previous.entries().iter().filter(|entry| Some(&*entry.manifest.id) != without) {
            self.capabilities.insert(entry.manifest.id.clone(), Candidate::Same(Arc::clone(entry)));
        }
        self.surfaces.extend(previous.surfaces().iter().cloned());
        self.choice = Arc::clone(&previous.choice);
        self.access.own.clone_from(&previous.access.own);
    }

    /// Adds a surface: prompts, resources or completions.
    pub fn surface(&mut self, surface: Arc<dyn Surface>) {
        self.surfaces.push(surface);
    }

    /// Keeps only capabilities whose MCP name or id matches one of the patterns. The others can be
    /// neither listed nor called.
    pub fn allow(&mut self, patterns: Vec<Pattern>) {
        Arc::make_mut(&mut self.choice).allow = Some(patterns);
    }

    /// Removes capabilities whose MCP name or id matches one of the patterns, even if allowed.
    pub fn deny(&mut self, patterns: Vec<Pattern>) {
        Arc::make_mut(&mut self.choice).deny = patterns;
    }

    /// Sets the access policy. Without one, every caller may use everything.
    pub fn access(&mut self, policy: AccessPolicy) {
        self.access.own = Some(Arc::new(policy));
    }

    /// Lists only the capabilities with these ids, regardless of their policies. The others are found by
    /// a search or by their names. The listed capabilities are also allowed.
    pub fn list_only(&mut self, ids: &[&'static str]) {
        Arc::make_mut(&mut self.choice).list_only = Some(ids.to_vec());
    }

    /// Builds the snapshot. Its names depend only on the ids in it.
    pub fn build(self) -> Catalog {
        let Self { capabilities, surfaces, limits, choice, access, previous, .. } = self;
        let names = mcp_names(capabilities.keys().map(String::as_str));
        let names: HashMap<String, String> =
            names.into_iter().map(|(id, name)| (id.to_owned(), name)).collect();
        let mut shared =
            Shared { limits: &limits, previous: previous.as_deref(), breakers: HashMap::new() };
        let mut entries: Vec<Arc<Entry>> = capabilities
            .into_iter()
            .filter_map(|(id, candidate)| {
                let listing = choice.of(names.get(&id)?, &id, candidate.policy())?;
                Some(shared.entry(names.get(&id)?, listing, candidate))
            })
            .collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let names = entries.iter().map(|entry| Arc::clone(&entry.name)).zip(0..);
        let ids = entries.iter().map(|entry| entry.manifest.id.as_str().into()).zip(0..);
        let by_key = names.chain(ids).collect();
        let (bounds, before) = (limits.bounds(&entries), previous.as_ref());
        let admission = admission_for(before.map(|catalog| &catalog.admission), bounds);
        let internal = admission_for(before.map(|catalog| &catalog.internal), bounds);
        let breakers = shared.breakers;
        Catalog {
            generation: 0,
            loaded: 0,
            by_key,
            entries,
            surfaces,
            admission,
            internal,
            choice,
            access,
            breakers,
            limits,
            index: OnceLock::new(),
            ids: OnceLock::new(),
            names: OnceLock::new(),
        }
    }
}

/// The state that the entries of a new snapshot share with each other and with those of the previous
/// one. Running and waiting calls stay counted, and the state of upstreams is kept.
struct Shared<'a> {
    limits: &'a Limits,
    previous: Option<&'a Catalog>,
    breakers: HashMap<Arc<str>, Arc<Breaker>>,
}

impl Candidate {
    fn policy(&self) -> &CallPolicy {
        match self {
            Self::Same(entry) => &entry.policy,
            Self::New(checked) => &checked.registration.policy,
        }
    }
}

impl Checked {
    /// Returns the registration of an entry, which is not checked again. An entry whose executor has
    /// been removed stays, and is unavailable.
    fn of(entry: &Entry) -> Self {
        let registration =
            Registration { manifest: entry.manifest.clone(), policy: entry.policy.clone() };
        Self {
            registration,
            input: entry.input.clone(),
            output: entry.output.clone(),
            needs: Arc::clone(&entry.needs),
        }
    }
}

enum Verdict {
    Same(Arc<Entry>),
    New { input: Enforcement, output: Enforcement },
}

/// Returns whether an entry was certainly made from this registration, by a quick comparison. The time
/// of registration is that of the first one.
fn is_same(entry: &Entry, registration: &Registration) -> bool {
    let CapabilityManifest {
        id,
        name,
        description,
        provider,
        version,
        input_schema,
        output_schema,
        attestation,
        provenance,
        permissions,
        metadata,
    } = &registration.manifest;
    let before = &entry.manifest;
    provider.is_the_same_as(&before.provider)
        && *id == before.id
        && *name == before.name
        && *description == before.description
        && *version == before.version
        && *input_schema == before.input_schema
        && *output_schema == before.output_schema
        && *attestation == before.attestation
        && origin(provenance.as_ref()) == origin(before.provenance.as_ref())
        && *permissions == before.permissions
        && *metadata == before.metadata
        && registration.policy == entry.policy
}

type Origin<'a> = (&'a str, Option<&'a str>, &'a str, &'a [String]);

/// Returns the origin of a capability, without the time of registration.
fn origin(provenance: Option<&CapabilityProvenance>) -> Option<Origin<'_>> {
    let one = provenance?;
    Some((&one.source, one.version.as_deref(), &one.content_hash, &one.custody_chain))
}

impl Shared<'_> {
    fn entry(&mut self, name: &str, listing: Listing, candidate: Candidate) -> Arc<Entry> {
        let Checked { registration: Registration { manifest, mut policy }, input, output, needs } =
            match candidate {
                Candidate::Same(entry) if self.holds_for(&entry, name, listing) => {
                    if let Some((upstream, breaker)) =
                        entry.policy.upstream.as_ref().zip(entry.breaker.as_ref())
                    {
                        self.breakers.insert(Arc::clone(upstream), Arc::clone(breaker));
                    }
                    return entry;
                }
                Candidate::Same(entry) => Checked::of(&entry),
                Candidate::New(checked) => *checked,
            };
        policy.listing = listing;
        let before = self.previous.and_then(|catalog| catalog.with_id(&manifest.id));
        let admission = policy.max_concurrency.map(|size| {
            admission_for(
                before.and_then(|entry| entry.admission.as_ref()),
                self.limits.bounds_of_one(size),
            )
        });
        let breaker = policy.upstream.as_ref().map(|upstream| self.breaker(upstream));
        let by_itself = if policy.upstream.is_some() { RETRIES } else { 0 };
        let retries = match policy.retries.unwrap_or(by_itself) {
            retries if retries > 0 && manifest.is_idempotent() => retries,
            _ => 0,
        };
        let name = name.into();
        let provider = provider_of(&manifest, &policy);
        Arc::new(Entry {
            manifest,
            name,
            policy,
            input,
            output,
            needs,
            provider,
            admission,
            breaker,
            retries,
        })
    }

    /// Returns whether an entry of the previous snapshot equals the one that this registration would
    /// give.
    fn holds_for(&self, entry: &Entry, name: &str, listing: Listing) -> bool {
        let same_limits = self.previous.is_some_and(|catalog| catalog.limits == *self.limits);
        same_limits && &*entry.name == name && entry.policy.listing == listing
    }

    fn breaker(&mut self, upstream: &Arc<str>) -> Arc<Breaker> {
        if let Some(breaker) = self.breakers.get(upstream) {
            return Arc::clone(breaker);
        }
        let limits = &self.limits.breaker;
        let same = |breaker: &&Arc<Breaker>| breaker.limits == *limits;
        let before = self.previous.and_then(|catalog| catalog.breakers.get(upstream)).filter(same);
        let breaker = before.map_or_else(|| Breaker::new(limits.clone()), Arc::clone);
        self.breakers.insert(Arc::clone(upstream), Arc::clone(&breaker));
        breaker
    }
}

/// Returns the admission of the previous snapshot, which still counts its running and waiting calls. Its
/// limits change when the snapshot is published.
fn admission_for(before: Option<&Arc<Admission>>, bounds: Bounds) -> Arc<Admission> {
    before.map_or_else(|| Arc::new(Admission::new(bounds)), Arc::clone)
}

/// Returns the provider whose share of permits a capability's calls use: its connection, or else the
/// part of its id before the first dot.
fn provider_of(manifest: &CapabilityManifest, policy: &CallPolicy) -> Arc<str> {
    let id = || manifest.id.split_once('.').map_or(&*manifest.id, |(provider, _)| provider);
    match (&policy.upstream, &manifest.provider) {
        (Some(upstream), _) => Arc::clone(upstream),
        (None, provider) if provider.is_internal() => provider.kind().into(),
        (None, ProviderType::MCP(mcp)) => mcp.server_url.as_str().into(),
        (None, ProviderType::Plugin(plugin)) => plugin.plugin_path.as_str().into(),
        (None, _) => id().into(),
    }
}

/// Decides how a schema is enforced, by its validity and by who declared it.
fn enforcement(
    compiled: Option<Result<Arc<Validator>, SchemaError>>,
    declared_by: DeclaredBy,
) -> Result<Enforcement, SchemaError> {
    match compiled {
        None => Ok(Enforcement::None),
        Some(Ok(validator)) => Ok(Enforcement::Enforced(validator)),
        Some(Err(fault)) if declared_by == DeclaredBy::Provider => {
            Ok(Enforcement::NotEnforced(Arc::new(fault)))
        }
        Some(Err(fault)) => Err(fault),
    }
}

/// A schema and its validator in an earlier snapshot.
type PreviousSchema<'a> = (&'a Option<rtfs::TypeExpr>, Option<&'a Arc<Validator>>);

/// Returns the validator of a schema. Compiling takes long, so the previous one is used if the schema is
/// the same. A validator that was never used may turn out to be invalid.
fn validator(
    schema: &rtfs::TypeExpr,
    known: Option<PreviousSchema<'_>>,
) -> Result<Arc<Validator>, SchemaError> {
    match known {
        Some((Some(same), Some(validator))) if same == schema && validator.is_good() => {
            Ok(Arc::clone(validator))
        }
        _ => Validator::compile(schema).map(Arc::new),
    }
}

/// Returns the validator of an input, which must be an object.
fn input_validator(
    schema: &rtfs::TypeExpr,
    known: Option<PreviousSchema<'_>>,
) -> Result<Arc<Validator>, SchemaError> {
    let validator = validator(schema, known)?;
    let is_known =
        known.and_then(|(_, known)| known).is_some_and(|known| Arc::ptr_eq(known, &validator));
    if !is_known {
        must_admit_object(schema)?;
    }
    Ok(validator)
}

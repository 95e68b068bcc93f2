//! The catalogue: an immutable snapshot of all capabilities.
//!
//! A reload builds the next snapshot beside the old one and swaps a pointer. A holder of the old one
//! continues with it. The old one is freed after its last use.

mod access;
mod builder;
mod likeness;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::{Value as Json, json};

use crate::admission::breaker::{Breaker, BreakerLimits};
use crate::admission::{Admission, Bounds};
use crate::custody::Custody;
use crate::error::RuntimeError;
use crate::id::Pattern;
use crate::manifest::{
    Availability, CallPolicy, CapabilityAttestation, CapabilityManifest, CapabilityProvenance, Listing,
    TaskSupport,
};
use crate::payload::{JsonText, Payload};
use crate::permission::Permission;
use crate::principal::Principal;
use crate::schema::{SchemaError, Validator, json_schema_of};
use crate::search::{Index, Words};
use crate::surface::{Item, Surface};

use access::Access;
pub use access::Denial;
use likeness::Name;

pub use builder::{CatalogBuilder, Rejected};

/// All capabilities at one moment, with the prompts and resources that are served.
pub struct Catalog {
    pub(crate) generation: u64,
    /// The generation in which its sources were loaded.
    pub(crate) loaded: u64,
    entries: Vec<Arc<Entry>>,
    /// Where an entry is, by its id and by its MCP name. An id takes precedence over the name of another entry.
    by_key: HashMap<Arc<str>, usize, foldhash::fast::RandomState>,
    surfaces: Vec<Arc<dyn Surface>>,
    pub(crate) limits: Limits,
    /// Limits calls of providers outside this process.
    admission: Arc<Admission>,
    /// Limits calls that are computed within this process, so that they do not wait for processes and
    /// networks.
    internal: Arc<Admission>,
    choice: Arc<Choice>,
    access: Access,
    /// The circuit breakers by upstream.
    breakers: HashMap<Arc<str>, Arc<Breaker>>,
    /// The search index, built by the first search.
    index: OnceLock<Index>,
    /// Ids and names for suggestions, in the order of the entries. Computed at the first lookup of an unknown name.
    ids: OnceLock<Vec<Name>>,
    names: OnceLock<Vec<Name>>,
}

/// Selects which of the registered capabilities are served, and which of them are listed.
#[derive(Clone, Default)]
struct Choice {
    allow: Option<Vec<Pattern>>,
    deny: Vec<Pattern>,
    /// The ids of the listed capabilities; `None` leaves that to the policies.
    list_only: Option<Vec<&'static str>>,
}

impl Choice {
    /// Returns how a capability is listed; `None` if it is not served.
    fn of(&self, name: &str, id: &str, policy: &CallPolicy) -> Option<Listing> {
        let is_chosen = self.list_only.as_ref().map(|ids| ids.contains(&id));
        let fits = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.fits(id, name));
        let allowed = self.allow.as_deref().is_none_or(fits) || is_chosen == Some(true);
        let listing = match is_chosen {
            Some(true) => Listing::Listed,
            Some(false) => Listing::Unlisted,
            None => policy.listing,
        };
        (allowed && !fits(&self.deny)).then_some(listing)
    }
}

/// A capability that a search found.
#[derive(Clone, Debug)]
pub struct Hit {
    /// The capability.
    pub entry: Arc<Entry>,
    /// The relevance: above 0, and comparable only within one search.
    pub score: f32,
}

/// One capability in a catalogue.
pub struct Entry {
    /// The manifest of the capability.
    pub manifest: CapabilityManifest,
    /// Its MCP name, unique within the catalogue.
    pub name: Arc<str>,
    /// The policy for its calls.
    pub policy: CallPolicy,
    pub(crate) input: Enforcement,
    pub(crate) output: Enforcement,
    /// The permissions that its calls need: the declared ones and those of its provider.
    needs: Arc<[Permission]>,
    /// The provider whose share of permits the calls use.
    pub(crate) provider: Arc<str>,
    /// Its own permits, if its limit is lower than that of all capabilities together.
    pub(crate) admission: Option<Arc<Admission>>,
    /// The circuit breaker, shared by all capabilities with the same upstream.
    pub(crate) breaker: Option<Arc<Breaker>>,
    /// The maximum number of retries after transient failures.
    pub(crate) retries: u32,
}

/// Whether a declared schema is enforced on a capability's calls.
#[derive(Clone, Debug, Default)]
pub(crate) enum Enforcement {
    /// No schema is declared, or the executor checks the data itself.
    #[default]
    None,
    /// Every call is checked.
    Enforced(Arc<Validator>),
    /// The schema is shown unchanged. The provider checks the data itself.
    NotEnforced(Arc<SchemaError>),
}

impl Enforcement {
    pub(crate) fn validator(&self) -> Option<&Arc<Validator>> {
        match self {
            Self::Enforced(validator) => Some(validator),
            Self::None | Self::NotEnforced(_) => None,
        }
    }

    /// Returns why the schema is declared but not enforced.
    pub(crate) fn fault(&self) -> Option<&SchemaError> {
        match self {
            Self::NotEnforced(fault) => Some(fault),
            Self::None | Self::Enforced(_) => None,
        }
    }
}

/// The limits for all calls together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The timeout of one call, waiting included: 30 s (RFC 1 §5.2).
    pub timeout: Duration,
    /// The maximum number of running calls: 64. A call whose client is being asked is not counted.
    pub max_concurrency: usize,
    /// The maximum number of running calls of one of several providers, so that a slow one leaves
    /// permits to the others: 48.
    pub max_provider_calls: usize,
    /// The maximum number of waiting calls: 1,024.
    pub max_queue: usize,
    /// The maximum memory of request bodies and the values of programs together, in bytes: unlimited.
    pub max_memory_bytes: usize,
    /// How long the lists of an MCP client wait for each provider that has not reported its capabilities
    /// yet: 8 s.
    pub listing_timeout: Duration,
    /// The maximum nesting depth of calls: 64.
    pub max_depth: u32,
    /// When an unreachable upstream is not called for a while.
    pub breaker: BreakerLimits,
    /// The limits of each program in RTFS.
    pub programs: rtfs::Limits,
}

impl Limits {
    /// Returns the limits of all calls of these entries together. If there is only one provider, it may
    /// use all permits.
    fn bounds(&self, entries: &[Arc<Entry>]) -> Bounds {
        let Self { max_concurrency, max_provider_calls, max_queue, .. } = *self;
        let external = entries.iter().filter(|entry| !entry.manifest.provider.is_internal());
        let mut providers = external.map(|entry| &entry.provider);
        let is_only_one = providers.next().is_none_or(|first| providers.all(|other| other == first));
        let of_one_provider = if is_only_one { max_concurrency } else { max_provider_calls };
        Bounds { running: max_concurrency, of_one_provider, waiting: max_queue }
    }

    /// Returns the bounds of one capability, of which `size` calls may run at once.
    fn bounds_of_one(&self, size: usize) -> Bounds {
        Bounds { running: size, of_one_provider: size, waiting: self.max_queue }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            max_memory_bytes: usize::MAX,
            max_concurrency: 64,
            max_provider_calls: 48,
            max_queue: 1024,
            listing_timeout: Duration::from_secs(8),
            max_depth: 64,
            breaker: BreakerLimits::default(),
            programs: rtfs::Limits::default(),
        }
    }
}

/// The reason why a capability cannot be registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistrationError {
    /// The id is already registered.
    #[error("a capability with the id {0} is registered already")]
    Duplicate(String),
    /// No executor exists for the provider.
    #[error("{id} cannot be registered: no executor for providers of kind {kind}")]
    NoExecutor {
        /// The capability's id.
        id: String,
        /// The provider's kind.
        kind: &'static str,
    },
    /// Its input schema cannot be enforced.
    #[error("{id}: its input schema cannot be enforced: {source}")]
    InputSchema {
        /// The capability's id.
        id: String,
        /// What is wrong with the schema.
        source: SchemaError,
    },
    /// Its output schema cannot be enforced.
    #[error("{id}: its output schema cannot be enforced: {source}")]
    OutputSchema {
        /// The capability's id.
        id: String,
        /// What is wrong with the schema.
        source: SchemaError,
    },
    /// The kind of provider has an executor already.
    #[error("an executor for this kind of provider is registered already")]
    SecondExecutor,
}

impl fmt::Debug for Catalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Catalog(generation {}, {} capabilities)", self.generation, self.entries.len())
    }
}

impl Catalog {
    /// Counts the swaps since the marketplace was made.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns whether the other snapshot has the same sources. The two then differ only in the
    /// information that these sources have provided since.
    pub fn is_of_the_same_sources(&self, other: &Self) -> bool {
        self.loaded == other.loaded
    }

    /// Returns every capability, in the order of their MCP names.
    pub fn entries(&self) -> &[Arc<Entry>] {
        &self.entries
    }

    /// Returns the capability with this id or MCP name.
    pub fn get(&self, id_or_name: &str) -> Option<&Arc<Entry>> {
        self.by_key.get(id_or_name).and_then(|at| self.entries.get(*at))
    }

    pub(crate) fn with_id(&self, id: &str) -> Option<&Arc<Entry>> {
        self.get(id).filter(|entry| entry.manifest.id == id)
    }

    /// Returns up to three names similar to one that does not exist, the nearest first.
    pub fn similar(&self, name: &str) -> Vec<String> {
        self.similar_where(name, |_| true)
    }

    /// Like [`similar`](Self::similar), among the capabilities that this caller may use.
    pub fn similar_for(&self, principal: Option<&Principal>, name: &str) -> Vec<String> {
        self.similar_where(name, |entry| self.permits(principal, entry).is_ok())
    }

    /// Returns ids for an id, which has a dot, and otherwise MCP names.
    fn similar_where(&self, name: &str, admits: impl Fn(&Entry) -> bool) -> Vec<String> {
        let is_id = name.contains('.');
        let called = |entry: &Entry| match is_id {
            true => entry.manifest.id.clone(),
            false => entry.name.to_string(),
        };
        let read = || self.entries.iter().map(|entry| Name::new(&called(entry))).collect();
        let names = if is_id { &self.ids } else { &self.names };
        let near = likeness::nearest(names.get_or_init(read), name, |at| admits(&self.entries[at]));
        near.into_iter().map(|at| called(&self.entries[at])).collect()
    }

    /// Returns at most `limit` capabilities that match the words, the best first. They are ranked by
    /// BM25 over names, titles, descriptions and parameters. The first search of a snapshot builds the
    /// index.
    pub fn search(&self, words: &str, limit: usize) -> Vec<Hit> {
        self.search_where(words, limit, |_| true)
    }

    /// Like [`search`](Self::search), among the capabilities that `admits` accepts.
    pub fn search_where(&self, words: &str, limit: usize, admits: impl Fn(&Entry) -> bool) -> Vec<Hit> {
        let index = self.index.get_or_init(|| {
            Index::new(self.entries.iter().map(|entry| {
                let schema = entry.input_schema();
                Words::of(&entry.manifest, schema.as_str())
            }))
        });
        let found = index.search(words).into_iter();
        let hits = found.filter_map(|(at, score)| {
            let entry = self.entries.get(at)?;
            (entry.is_available() && admits(entry)).then(|| Hit { entry: Arc::clone(entry), score })
        });
        hits.take(limit).collect()
    }

    /// Returns the capabilities that are listed, in the order of their MCP names, including unavailable
    /// ones.
    pub fn listed(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.entries.iter().filter(|entry| entry.is_listed())
    }

    /// Returns the capabilities that clients see when they list, in the order of their MCP names: those
    /// that are listed and available.
    pub fn offered(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.entries.iter().filter(|entry| entry.is_offered())
    }

    /// Returns whether a capability runs only as a task.
    pub fn requires_task(&self, name: &str) -> bool {
        self.get(name).is_some_and(|entry| entry.manifest.task_support() == Some(TaskSupport::Required))
    }

    /// Checks that this caller may call a capability.
    ///
    /// # Errors
    /// What the caller lacks.
    pub fn permits(&self, principal: Option<&Principal>, entry: &Entry) -> Result<(), Denial> {
        if !entry.is_shown_to(principal) {
            let permission = "a sign-in at its server that shows it".to_owned();
            return Err(Denial { permission, decision: None });
        }
        self.access.permits(principal, &entry.manifest.id, &entry.name, &entry.needs)
    }

    /// Returns the capabilities that this caller may call, in the order of their MCP names, including
    /// unlisted and unavailable ones.
    pub fn permitted(&self, principal: Option<&Principal>) -> impl Iterator<Item = &Arc<Entry>> {
        self.entries.iter().filter(move |entry| self.permits(principal, entry).is_ok())
    }

    /// Checks that this caller may use a prompt or a resource of a [`Surface`].
    ///
    /// # Errors
    /// The permission that the caller lacks.
    pub fn permits_item(&self, principal: Option<&Principal>, item: &Item) -> Result<(), Denial> {
        self.access.permits(principal, &item.id, &item.name, &item.needs)
    }

    /// Checks whether this caller may use a part of the server itself. Its id in policies is
    /// `orla.PART`.
    pub fn permits_part(&self, principal: Option<&Principal>, part: &str, permission: &str) -> bool {
        let item = Item {
            id: format!("orla.{part}"),
            name: format!("orla__{part}"),
            needs: vec![Permission::needed(permission)],
        };
        self.permits_item(principal, &item).is_ok()
    }

    /// Like [`permits_part`](Self::permits_part), for parts that also concern other callers. Without a
    /// policy, no identified caller may use these.
    pub fn permits_of_others(
        &self,
        principal: Option<&Principal>,
        part: &str,
        permission: &str,
    ) -> bool {
        self.permits_part(principal, part, permission) && (principal.is_none() || self.has_policy())
    }

    /// Returns whether the policy lets no caller use a capability.
    pub fn excludes_everyone(&self, entry: &Entry) -> bool {
        self.access.excludes_everyone(&entry.manifest.id, &entry.name, &entry.needs)
    }

    /// Returns whether a policy says what callers may do. Without one, everybody may do everything.
    pub fn has_policy(&self) -> bool {
        self.access.is_some()
    }

    /// Returns the scopes that would allow this caller what the policy denies.
    pub(crate) fn helpful_scopes(&self, principal: Option<&Principal>, item: &Item) -> Vec<String> {
        principal.map(|principal| self.access.helpful_scopes(principal, item)).unwrap_or_default()
    }

    /// Returns whether this caller may use everything whose id has this prefix, with any permission that
    /// it needs.
    pub(crate) fn permits_prefix(&self, principal: Option<&Principal>, prefix: &str) -> bool {
        let (id, name) = (format!("{prefix}*"), format!("{}*", prefix.replace('.', "__")));
        let needs = vec![Permission::needed("*")];
        self.permits_item(principal, &Item { id, name, needs }).is_ok()
    }

    /// Returns the capability with this id or MCP name, if this caller may know about it.
    pub fn visible(&self, principal: Option<&Principal>, id_or_name: &str) -> Option<&Arc<Entry>> {
        self.get(id_or_name).filter(|entry| self.permits(principal, entry).is_ok())
    }

    /// Returns whether a denied name is answered like one that does not exist.
    pub fn conceals(&self) -> bool {
        self.access.conceals()
    }

    /// Makes the policy of this snapshot apply to older ones too.
    pub(crate) fn publish_access(&self) {
        self.access.publish();
    }

    /// Applies the limits of this snapshot to running and waiting calls, including those of `previous`.
    pub(crate) fn publish_bounds(&self, previous: &Self) {
        let bounds = self.limits.bounds(&self.entries);
        self.admissions().for_each(|admission| admission.resize(bounds));
        let of_one = |entry: &Entry| {
            let size = entry.policy.max_concurrency.unwrap_or(usize::MAX);
            self.limits.bounds_of_one(size)
        };
        for entry in &self.entries {
            entry.admission.iter().for_each(|admission| admission.resize(of_one(entry)));
        }
        for before in &previous.entries {
            let Some(admission) = &before.admission else { continue };
            let now = self.with_id(&before.manifest.id).filter(|now| now.admission.is_none());
            now.into_iter().for_each(|now| admission.resize(of_one(now)));
        }
    }

    /// Returns the surfaces: prompts, resources and completions.
    pub fn surfaces(&self) -> &[Arc<dyn Surface>] {
        &self.surfaces
    }

    /// Returns the admission that bounds the calls of a capability.
    pub(crate) fn admission_of(&self, entry: &Entry) -> &Arc<Admission> {
        if entry.manifest.provider.is_internal() { &self.internal } else { &self.admission }
    }

    pub(crate) fn admissions(&self) -> impl Iterator<Item = &Arc<Admission>> {
        [&self.admission, &self.internal].into_iter()
    }

    /// Returns the bounds for calls of this snapshot.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({})", self.manifest.id)
    }
}

impl Entry {
    /// Returns whether its provider shows it to this caller.
    pub fn is_shown_to(&self, caller: Option<&Principal>) -> bool {
        self.policy.shown_to.as_ref().is_none_or(|shown_to| shown_to.includes(caller))
    }

    /// Returns the capability in the form that a policy examines.
    pub fn item(&self) -> Item {
        Item { id: self.manifest.id.clone(), name: self.name.to_string(), needs: self.needs.to_vec() }
    }

    /// Returns the permissions that its calls need: the declared ones and those of its kind of provider.
    pub fn needs(&self) -> &[Permission] {
        &self.needs
    }

    /// Returns whether its calls may reach other capabilities, as programs and the discovery tools do.
    pub fn reaches_others(&self) -> bool {
        self.manifest.provider.reaches_others()
    }

    /// Returns whether it is listed, available or not. Other capabilities are found only by search and
    /// by name.
    pub fn is_listed(&self) -> bool {
        self.policy.listing == Listing::Listed
    }

    /// Returns whether it can be called.
    pub fn is_available(&self) -> bool {
        self.unavailable().is_none()
    }

    /// Returns why it cannot be called.
    pub fn unavailable(&self) -> Option<&str> {
        match &self.policy.availability {
            Availability::Available | Availability::Unlearned => None,
            Availability::Unavailable { reason } => Some(reason),
        }
    }

    /// Returns whether clients see it in lists.
    pub fn is_offered(&self) -> bool {
        self.is_listed() && self.is_available()
    }

    /// Checks an input as a call would, with a limited number of steps.
    ///
    /// # Errors
    /// The sentence of the call that such an input would fail.
    pub fn check_input(&self, input: &JsonText) -> Result<(), RuntimeError> {
        let Some(schema) = self.input.validator() else { return Ok(()) };
        let checked = schema.check_payload(&Payload::from_json(input.clone()), "input");
        let id = self.name.to_string();
        checked.map_err(|violations| RuntimeError::InvalidInput { id, violations })
    }

    /// Returns why its input schema is declared but not enforced. The provider then enforces the schema.
    pub fn input_not_enforced(&self) -> Option<&SchemaError> {
        self.input.fault()
    }

    /// Returns why its output schema is declared but not enforced. The provider then enforces the
    /// schema.
    pub fn output_not_enforced(&self) -> Option<&SchemaError> {
        self.output.fault()
    }

    /// Returns the JSON Schema of the input that clients see: the declared one unchanged, or else the
    /// one that the provider advertises, or else any object. MCP requires `type: object`, so it is added
    /// if it is missing.
    pub fn input_schema(&self) -> JsonText {
        let declared = self.manifest.input_schema.as_ref().map(schema_text);
        let advertised = || self.manifest.provider.custom()?.advertised_input();
        let schema = declared.or_else(advertised).map(of_an_object);
        schema.unwrap_or_else(|| text(&json!({"type": "object"})))
    }

    /// Returns the JSON Schema of the output that clients are shown, if there is one.
    pub fn output_schema(&self) -> Option<JsonText> {
        let declared = self.manifest.output_schema.as_ref().map(schema_text);
        declared.or_else(|| self.manifest.provider.custom()?.advertised_output())
    }
}

/// Returns the schema with the type `object`; its other keywords stay.
fn of_an_object(schema: JsonText) -> JsonText {
    match serde_json::from_str(schema.as_str()) {
        Ok(Json::Object(of)) if of.get("type").is_some_and(|kind| kind == "object") => schema,
        Ok(Json::Object(mut of)) => {
            of.shift_remove("type");
            of.shift_insert(0, "type".to_owned(), json!("object"));
            text(&Json::Object(of))
        }
        _ => text(&json!({"type": "object"})),
    }
}

fn schema_text(schema: &rtfs::TypeExpr) -> JsonText {
    // The original text, byte for byte, if there is one.
    let original = schema.json_schema().and_then(|json| JsonText::parse(json.to_owned()).ok());
    original.unwrap_or_else(|| text(&json_schema_of(schema)))
}

fn text(value: &Json) -> JsonText {
    JsonText::from(serde_json::value::to_raw_value(value).unwrap_or_default())
}

impl Entry {
    /// Returns the custody of the content, if only attested content may run.
    pub(crate) fn required_custody(&self) -> Option<Custody> {
        self.policy.custody.clone().filter(|custody| custody.required().is_some())
    }

    /// Returns the attestation of the capability in its present state. An invalid attestation is
    /// ignored. May block: reads the content if it may have changed.
    pub fn attestation(&self) -> Option<&CapabilityAttestation> {
        let holds = self.policy.custody.as_ref().is_some_and(Custody::holds);
        self.manifest.attestation.as_ref().filter(|_| holds)
    }

    /// Returns the origin of the capability, with the hash of its present content, which is empty if the
    /// content cannot be read. May block: reads the content if it may have changed.
    pub fn provenance(&self) -> Option<CapabilityProvenance> {
        let mut provenance = self.manifest.provenance.clone()?;
        if let Some(custody) = &self.policy.custody {
            provenance.content_hash = custody.content_hash().unwrap_or_default();
        }
        Some(provenance)
    }
}

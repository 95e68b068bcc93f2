//! The catalogue: an immutable snapshot of everything that can be called.
//!
//! A reload builds the next snapshot beside the old one and swaps a pointer. Whoever holds the old
//! one goes on with it, and it dies with its last user.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::{Value as Json, json};

use crate::admission::Admission;
use crate::breaker::{Breaker, BreakerLimits};
use crate::executor::Principal;
use crate::executors::Executors;
use crate::id::{Pattern, mcp_names};
use crate::manifest::{CapabilityManifest, Listing, Policy, Registration};
use crate::payload::JsonText;
use crate::permission::{AccessPolicy, Permission};
use crate::schema::{SchemaError, Validator, json_schema_of};
use crate::search::{Index, Words};
use crate::surface::Surface;

/// Every capability that can be called at one moment, and what is served besides.
pub struct Catalog {
    pub(crate) generation: u64,
    /// The generation in which its sources were loaded.
    pub(crate) loaded: u64,
    entries: Vec<Arc<Entry>>,
    by_id: HashMap<Arc<str>, usize>,
    by_name: HashMap<Arc<str>, usize>,
    surfaces: Vec<Arc<dyn Surface>>,
    pub(crate) limits: Limits,
    pub(crate) admission: Arc<Admission>,
    choice: Arc<Choice>,
    /// Without one, everything is permitted.
    access: Option<Arc<AccessPolicy>>,
    /// By upstream.
    breakers: HashMap<Arc<str>, Arc<Breaker>>,
    /// Made by the first search.
    index: OnceLock<Index>,
}

/// Which of the registered capabilities are served, and which of them are listed.
#[derive(Clone, Default)]
struct Choice {
    allow: Option<Vec<Pattern>>,
    deny: Vec<Pattern>,
    /// The ids of all that is listed, where that is not left to the policies.
    list_only: Option<Vec<&'static str>>,
}

impl Choice {
    /// Whether a capability is served; says in its policy whether it is listed.
    fn takes(&self, name: &str, registration: &mut Registration) -> bool {
        let is_chosen = self.list_only.as_ref().map(|ids| ids.contains(&&*registration.manifest.id));
        if let Some(is_chosen) = is_chosen {
            let listing = if is_chosen { Listing::Listed } else { Listing::Unlisted };
            registration.policy.listing = listing;
        }
        let fits = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(name));
        let allowed = self.allow.as_deref().is_none_or(fits) || is_chosen == Some(true);
        allowed && !fits(&self.deny)
    }
}

/// A capability that a search found.
#[derive(Clone, Debug)]
pub struct Hit {
    /// The capability.
    pub entry: Arc<Entry>,
    /// How well it fits: above 0, and comparable within one search alone.
    pub score: f32,
}

/// One capability in a catalogue.
pub struct Entry {
    /// What it is.
    pub manifest: CapabilityManifest,
    /// Its MCP name, unique within the catalogue.
    pub name: Arc<str>,
    /// How its calls are treated.
    pub policy: Policy,
    pub(crate) input: Option<Arc<Validator>>,
    pub(crate) output: Option<Arc<Validator>>,
    /// What its calls need: what it declares, and what its provider needs.
    needs: Arc<[Permission]>,
    /// Its own places, where fewer calls may run at once than of all capabilities together.
    pub(crate) admission: Option<Arc<Admission>>,
    /// Shared with all that have the same upstream.
    pub(crate) breaker: Option<Arc<Breaker>>,
    /// How often a call that failed for a passing reason is made again.
    pub(crate) retries: u32,
}

/// Retries of what is idempotent and has an upstream, unless its policy says otherwise.
const RETRIES: u32 = 2;

/// The bounds that hold for all calls together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// How long one call may take, waiting included: 30 s (RFC 1 §5.2).
    pub timeout: Duration,
    /// Calls that run at once: 64. One whose client is being asked something is not counted.
    pub max_concurrency: usize,
    /// Calls that wait for their turn: 1,024.
    pub max_queue: usize,
    /// Calls within calls: 64.
    pub max_depth: u32,
    /// When what cannot be reached is left alone for a while.
    pub breaker: BreakerLimits,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            max_concurrency: 64,
            max_queue: 1024,
            max_depth: 64,
            breaker: BreakerLimits::default(),
        }
    }
}

/// Why a capability cannot be registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistrationError {
    /// The id is taken.
    #[error("a capability with the id {0} is registered already")]
    Duplicate(String),
    /// Nobody could run it.
    #[error("{id} cannot be registered: no executor for providers of kind {kind}")]
    NoExecutor {
        /// The capability's id.
        id: String,
        /// The provider's kind.
        kind: &'static str,
    },
    /// Its input schema is none.
    #[error("{id} has an input schema that is none: {source}")]
    InputSchema {
        /// The capability's id.
        id: String,
        /// What is wrong with the schema.
        source: SchemaError,
    },
    /// Its output schema is none.
    #[error("{id} has an output schema that is none: {source}")]
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

    /// Whether the other one is of the same sources: then it differs by what has become known of them, and
    /// by nothing that anyone decided.
    pub fn is_of_the_same_sources(&self, other: &Self) -> bool {
        self.loaded == other.loaded
    }

    /// Every capability, in the order of their MCP names.
    pub fn entries(&self) -> &[Arc<Entry>] {
        &self.entries
    }

    /// The capability with this id or MCP name.
    pub fn get(&self, id_or_name: &str) -> Option<&Arc<Entry>> {
        let at = self.by_id.get(id_or_name).or_else(|| self.by_name.get(id_or_name))?;
        self.entries.get(*at)
    }

    fn with_id(&self, id: &str) -> Option<&Arc<Entry>> {
        self.by_id.get(id).and_then(|at| self.entries.get(*at))
    }

    /// Up to three names near to one that does not exist, the nearest first.
    pub fn similar(&self, name: &str) -> Vec<String> {
        // Case and the kind of dash are what people mistake most.
        let folded = |name: &str| name.to_lowercase().replace('-', "_");
        let wanted = folded(name);
        let mut near: Vec<(f64, &Arc<str>)> = self
            .entries
            .iter()
            .map(|entry| (strsim::jaro_winkler(&wanted, &folded(&entry.name)), &entry.name))
            .filter(|(score, _)| *score > 0.75)
            .collect();
        near.sort_by(|a, b| b.0.total_cmp(&a.0));
        near.into_iter().take(3).map(|(_, name)| name.to_string()).collect()
    }

    /// The capabilities that fit the words, the best first, `limit` at most: ranked by BM25 over names,
    /// titles, descriptions and parameters. The index is made by the first search of a snapshot.
    pub fn search(&self, words: &str, limit: usize) -> Vec<Hit> {
        self.search_where(words, limit, |_| true)
    }

    /// As [`search`](Self::search), among the capabilities that `admits` lets through.
    pub fn search_where(&self, words: &str, limit: usize, admits: impl Fn(&Entry) -> bool) -> Vec<Hit> {
        let index =
            self.index.get_or_init(|| Index::new(self.entries.iter().map(|entry| Words::of(entry))));
        let found = index.search(words).into_iter();
        let hits = found.filter_map(|(at, score)| {
            let entry = self.entries.get(at)?;
            admits(entry).then(|| Hit { entry: Arc::clone(entry), score })
        });
        hits.take(limit).collect()
    }

    /// The capabilities that clients see when they list, in the order of their MCP names.
    pub fn listed(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.entries.iter().filter(|entry| entry.is_listed())
    }

    /// Whether this caller may call a capability.
    ///
    /// # Errors
    /// What the caller lacks.
    pub fn permits(&self, principal: Option<&Principal>, entry: &Entry) -> Result<(), String> {
        let Some(access) = &self.access else { return Ok(()) };
        let missing = access.missing(principal, &entry.manifest.id, &entry.name, &entry.needs);
        missing.map_or(Ok(()), |need| Err(need.to_string()))
    }

    /// What is served besides capabilities.
    pub fn surfaces(&self) -> &[Arc<dyn Surface>] {
        &self.surfaces
    }

    /// The bounds that hold for calls of this snapshot.
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
    /// What its calls need: what it declares, and what its provider needs by its kind.
    pub fn needs(&self) -> &[Permission] {
        &self.needs
    }

    /// Whether clients see it when they list.
    pub fn is_listed(&self) -> bool {
        self.policy.listing == Listing::Listed
    }

    /// The JSON Schema of the input that clients are shown: the declared one as it was written,
    /// else what the provider advertises, else any object. MCP asks that it says `type: object`,
    /// so where that is left out it is added.
    pub fn input_schema(&self) -> JsonText {
        let declared = self.manifest.input_schema.as_ref().map(schema_text);
        let advertised = || self.manifest.provider.custom()?.advertised_input();
        let schema = declared.or_else(advertised).map(of_an_object);
        schema.unwrap_or_else(|| text(&json!({"type": "object"})))
    }

    /// The JSON Schema of the output that clients are shown, if there is one.
    pub fn output_schema(&self) -> Option<JsonText> {
        let declared = self.manifest.output_schema.as_ref().map(schema_text);
        declared.or_else(|| self.manifest.provider.custom()?.advertised_output())
    }
}

/// The schema as one of an object; whatever it says besides stays.
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

/// Whether a schema admits an object, as far as its `type` says.
fn admits_object(schema: &rtfs::TypeExpr) -> bool {
    match json_schema_of(schema).get("type") {
        None => true,
        Some(Json::Array(types)) => types.iter().any(|name| name == "object"),
        Some(name) => name == "object",
    }
}

fn schema_text(schema: &rtfs::TypeExpr) -> JsonText {
    // The original where there is one, byte for byte.
    let original = schema.json_schema().and_then(|json| JsonText::parse(json.to_owned()).ok());
    original.unwrap_or_else(|| text(&json_schema_of(schema)))
}

fn text(value: &Json) -> JsonText {
    JsonText::from(serde_json::value::to_raw_value(value).unwrap_or_default())
}

/// A schema and its validator, as an earlier snapshot has them.
type Known<'a> = (&'a Option<rtfs::TypeExpr>, &'a Option<Arc<Validator>>);

/// The validator of a schema: the known one if the schema is the same, as compiling takes long.
fn validator(schema: &rtfs::TypeExpr, known: Option<Known<'_>>) -> Result<Arc<Validator>, SchemaError> {
    match known {
        Some((Some(same), Some(validator))) if same == schema => Ok(Arc::clone(validator)),
        _ => Validator::compile(schema).map(Arc::new),
    }
}

/// The validator of an input, which has to be an object.
fn input_validator(
    schema: &rtfs::TypeExpr,
    known: Option<Known<'_>>,
) -> Result<Arc<Validator>, SchemaError> {
    let validator = validator(schema, known)?;
    let is_known = known
        .is_some_and(|(_, known)| known.as_ref().is_some_and(|known| Arc::ptr_eq(known, &validator)));
    if is_known || admits_object(schema) {
        return Ok(validator);
    }
    let problem = "expected `object`, as arguments are named".to_owned();
    Err(SchemaError { path: "type".to_owned(), problem })
}

/// Builds a [`Catalog`]; made by [`CapabilityMarketplace::builder`].
///
/// [`CapabilityMarketplace::builder`]: crate::CapabilityMarketplace::builder
pub struct CatalogBuilder {
    pub(crate) executors: Arc<Executors>,
    capabilities: BTreeMap<String, Checked>,
    surfaces: Vec<Arc<dyn Surface>>,
    limits: Limits,
    choice: Arc<Choice>,
    access: Option<Arc<AccessPolicy>>,
    /// What the new one takes over as far as it is the same: validators, and who waits for a place.
    previous: Option<Arc<Catalog>>,
}

struct Checked {
    registration: Registration,
    input: Option<Arc<Validator>>,
    output: Option<Arc<Validator>>,
    needs: Arc<[Permission]>,
}

/// What a capability declares and what its provider needs.
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
            access: None,
            previous,
            limits,
        }
    }

    /// Adds a capability.
    ///
    /// # Errors
    /// The id is taken, the kind of provider has no executor, or a schema is none.
    pub fn capability(
        &mut self,
        registration: impl Into<Registration>,
    ) -> Result<(), RegistrationError> {
        let registration = registration.into();
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
        let checked = !executor.checks_types(manifest);
        let before = self.previous.as_ref().and_then(|catalog| catalog.with_id(id));
        let known = before.map(|entry| (&entry.manifest.input_schema, &entry.input));
        let declared = manifest.input_schema.as_ref().filter(|_| checked);
        let input = declared.map(|schema| input_validator(schema, known));
        let input = input.transpose();
        let input = input.map_err(|source| RegistrationError::InputSchema { id: id.clone(), source })?;
        let known = before.map(|entry| (&entry.manifest.output_schema, &entry.output));
        let declared = manifest.output_schema.as_ref().filter(|_| checked);
        let output = declared.map(|schema| validator(schema, known)).transpose();
        let output =
            output.map_err(|source| RegistrationError::OutputSchema { id: id.clone(), source })?;
        let needs = needs(manifest);
        self.capabilities.insert(id.clone(), Checked { registration, input, output, needs });
        Ok(())
    }

    /// Adds everything of the previous snapshot but the capability with this id. It was checked when it
    /// came in; one whose executor is gone since stays, and is unavailable.
    pub(crate) fn take_over(&mut self, without: Option<&str>) {
        let Some(previous) = self.previous.clone() else { return };
        for entry in previous.entries().iter().filter(|entry| Some(&*entry.manifest.id) != without) {
            let registration =
                Registration { manifest: entry.manifest.clone(), policy: entry.policy.clone() };
            let checked = Checked {
                registration,
                input: entry.input.clone(),
                output: entry.output.clone(),
                needs: Arc::clone(&entry.needs),
            };
            self.capabilities.insert(entry.manifest.id.clone(), checked);
        }
        self.surfaces.extend(previous.surfaces().iter().cloned());
        self.choice = Arc::clone(&previous.choice);
        self.access.clone_from(&previous.access);
    }

    /// Adds what is served besides capabilities.
    pub fn surface(&mut self, surface: Arc<dyn Surface>) {
        self.surfaces.push(surface);
    }

    /// Keeps only capabilities whose MCP name fits one of the patterns. The others can be neither
    /// listed nor called.
    pub fn allow(&mut self, patterns: Vec<Pattern>) {
        Arc::make_mut(&mut self.choice).allow = Some(patterns);
    }

    /// Leaves out capabilities whose MCP name fits one of the patterns, allowed or not.
    pub fn deny(&mut self, patterns: Vec<Pattern>) {
        Arc::make_mut(&mut self.choice).deny = patterns;
    }

    /// Says who may use what; without it, everyone may use everything.
    pub fn access(&mut self, policy: AccessPolicy) {
        self.access = Some(Arc::new(policy));
    }

    /// Lists the capabilities with these ids and no others, whatever their policies say; the others are
    /// found by search and by their names. What is listed so is allowed, too.
    pub fn list_only(&mut self, ids: &[&'static str]) {
        Arc::make_mut(&mut self.choice).list_only = Some(ids.to_vec());
    }

    /// The snapshot. Its names depend on nothing but the ids in it.
    pub fn build(self) -> Catalog {
        let Self { capabilities, surfaces, limits, choice, access, previous, .. } = self;
        let names = mcp_names(capabilities.keys().map(String::as_str));
        let names: HashMap<String, String> =
            names.into_iter().map(|(id, name)| (id.to_owned(), name)).collect();
        let mut shared =
            Shared { limits: &limits, previous: previous.as_deref(), breakers: HashMap::new() };
        let mut entries: Vec<Arc<Entry>> = capabilities
            .into_iter()
            .filter_map(|(id, mut checked)| {
                let name: Arc<str> = names.get(&id)?.as_str().into();
                let is_served = choice.takes(&name, &mut checked.registration);
                is_served.then(|| Arc::new(shared.entry(name, checked)))
            })
            .collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let keyed = |key: fn(&Entry) -> Arc<str>| {
            entries.iter().enumerate().map(|(at, entry)| (key(entry), at)).collect::<HashMap<_, _>>()
        };
        let before = previous.as_ref().map(|catalog| &catalog.admission);
        let admission = shared.admission(before, limits.max_concurrency);
        let breakers = shared.breakers;
        Catalog {
            generation: 0,
            loaded: 0,
            by_id: keyed(|entry| entry.manifest.id.as_str().into()),
            by_name: keyed(|entry| Arc::clone(&entry.name)),
            entries,
            surfaces,
            admission,
            choice,
            access,
            breakers,
            limits,
            index: OnceLock::new(),
        }
    }
}

/// What the entries of a new snapshot share with each other and with those of the previous one: who runs
/// and waits counts on, and what an upstream did is not forgotten.
struct Shared<'a> {
    limits: &'a Limits,
    previous: Option<&'a Catalog>,
    breakers: HashMap<Arc<str>, Arc<Breaker>>,
}

impl Shared<'_> {
    fn entry(&mut self, name: Arc<str>, checked: Checked) -> Entry {
        let Checked { registration: Registration { manifest, policy }, input, output, needs } = checked;
        let before = self.previous.and_then(|catalog| catalog.with_id(&manifest.id));
        let admission = policy
            .max_concurrency
            .map(|size| self.admission(before.and_then(|entry| entry.admission.as_ref()), size));
        let breaker = policy.upstream.as_ref().map(|upstream| self.breaker(upstream));
        let by_itself = if policy.upstream.is_some() { RETRIES } else { 0 };
        let retries = match policy.retries.unwrap_or(by_itself) {
            retries if retries > 0 && manifest.is_idempotent() => retries,
            _ => 0,
        };
        Entry { manifest, name, policy, input, output, needs, admission, breaker, retries }
    }

    fn admission(&self, before: Option<&Arc<Admission>>, size: usize) -> Arc<Admission> {
        let same = before.filter(|admission| admission.has(size, self.limits.max_queue));
        same.map_or_else(|| Arc::new(Admission::new(size, self.limits.max_queue)), Arc::clone)
    }

    fn breaker(&mut self, upstream: &Arc<str>) -> Arc<Breaker> {
        if let Some(breaker) = self.breakers.get(upstream) {
            return Arc::clone(breaker);
        }
        let limits = &self.limits.breaker;
        let same = |breaker: &&Arc<Breaker>| breaker.limits == *limits;
        let before = self.previous.and_then(|catalog| catalog.breakers.get(upstream)).filter(same);
        let breaker = before.map_or_else(|| Arc::new(Breaker::new(limits.clone())), Arc::clone);
        self.breakers.insert(Arc::clone(upstream), Arc::clone(&breaker));
        breaker
    }
}

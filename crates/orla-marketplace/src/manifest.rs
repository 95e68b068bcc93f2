//! The manifest of a capability (RTFS capability system §3.1).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::RwLock;
use rtfs::TypeExpr;
use rtfs::text::nearest;

use crate::custody::Custody;
use crate::principal::Principal;
use crate::provider::ProviderType;
use crate::redaction::Redactor;

/// Describes a capability and how to execute it (RTFS capability system §3.1).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CapabilityManifest {
    /// The id, unique within a catalogue. A provider of several capabilities uses `PROVIDER.NAME`.
    pub id: String,
    /// The name for users.
    pub name: String,
    /// The description, in words that help a model choose. Never empty in a catalogue.
    pub description: String,
    /// The provider that implements it.
    pub provider: ProviderType,
    /// The version, usually a semantic version.
    pub version: String,
    /// The input schema, enforced if declared.
    pub input_schema: Option<TypeExpr>,
    /// The output schema, enforced if declared.
    pub output_schema: Option<TypeExpr>,
    /// The signature of an authority over the capability.
    pub attestation: Option<CapabilityAttestation>,
    /// The origin.
    pub provenance: Option<CapabilityProvenance>,
    /// The required permissions, such as `net:api.example.com`.
    pub permissions: Vec<String>,
    /// Further metadata. Known keys: [`TITLE`], [`ANNOTATIONS`], [`TASK`], [`LISTED`].
    pub metadata: HashMap<String, String>,
}

/// Metadata key: the title that clients show to users.
pub const TITLE: &str = "title";
/// Metadata key: the JSON text of MCP's tool annotations (`readOnlyHint`, …).
pub const ANNOTATIONS: &str = "annotations";
/// The annotations of MCP that are true or false.
pub const HINTS: [&str; 4] = ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"];
/// Metadata key: whether the capability is called as a task, as [`TaskSupport`] writes it.
pub const TASK: &str = "task";
/// Metadata key: the JSON text of an object whose members clients see in lists, beside those that the manifest has
/// fields for: `icons`, `_meta` and other members from its provider.
pub const LISTED: &str = "listed";

impl CapabilityManifest {
    /// Hides secrets in the texts for readers: names, description, metadata and provenance. The id,
    /// permissions and schemas have effects, and stay unchanged.
    pub fn redact(&mut self, redactor: &Redactor) {
        if redactor.is_empty() {
            return;
        }
        let texts = [&mut self.name, &mut self.description, &mut self.version];
        let texts = texts.into_iter().chain(self.metadata.values_mut());
        texts.for_each(|text| redactor.replace(text));
        if let Some(provenance) = &mut self.provenance {
            let texts = [&mut provenance.source].into_iter().chain(&mut provenance.version);
            texts.chain(&mut provenance.custody_chain).for_each(|text| redactor.replace(text));
        }
    }

    /// Creates a manifest with the required parts; everything else is empty.
    pub fn new(id: impl Into<String>, description: impl Into<String>, provider: ProviderType) -> Self {
        let id = id.into();
        Self {
            name: id.clone(),
            id,
            description: description.into(),
            provider,
            version: String::new(),
            input_schema: None,
            output_schema: None,
            attestation: None,
            provenance: None,
            permissions: Vec::new(),
            metadata: HashMap::new(),
        }
    }

    /// Returns the title that clients show to users: the explicit one, or else the name, unless the name
    /// is the id.
    pub fn title(&self) -> Option<&str> {
        let name = Some(self.name.as_str()).filter(|name| !name.is_empty() && *name != self.id);
        self.metadata.get(TITLE).map(String::as_str).or(name)
    }

    /// Returns the metadata that lists show and that has no field of its own.
    pub fn other_metadata(&self) -> BTreeMap<&str, &str> {
        let others = self
            .metadata
            .iter()
            .filter(|(key, _)| ![TITLE, ANNOTATIONS, TASK, LISTED].contains(&&***key));
        others.map(|(key, value)| (key.as_str(), value.as_str())).collect()
    }

    /// Returns whether it is called as a task; `None` if nothing is declared. Then it may be called
    /// either way, and clients get a task only if they ask for one.
    pub fn task_support(&self) -> Option<TaskSupport> {
        self.metadata.get(TASK).and_then(|word| TaskSupport::parse(word))
    }

    /// Declares whether it is called as a task.
    pub fn set_task_support(&mut self, support: TaskSupport) {
        self.metadata.insert(TASK.to_owned(), support.as_str().to_owned());
    }

    /// Returns whether repeating a call has no further effect: the annotations say that the capability
    /// only reads (`readOnlyHint`) or that repeating a call has no effect (`idempotentHint`).
    pub fn is_idempotent(&self) -> bool {
        is_idempotent(self.metadata.get(ANNOTATIONS).map_or("{}", String::as_str))
    }
}

/// Returns the hint that a name is probably meant to be, such as `destructivHint` or `destructive`. It
/// returns nothing for a known name: one of the [`HINTS`], or `title`.
pub fn meant_hint(name: &str) -> Option<&'static str> {
    if is_annotation(name) {
        return None;
    }
    nearest(name, HINTS).or_else(|| nearest(&format!("{name}Hint"), HINTS))
}

/// Returns whether MCP defines an annotation of this name.
pub fn is_annotation(name: &str) -> bool {
    HINTS.contains(&name) || name == TITLE
}

/// Whether a capability is called as a task: a call that outlives its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskSupport {
    /// Only as a task. A caller that cannot have one gets an error.
    Required,
    /// Either way. A client that can have tasks gets one.
    Optional,
    /// Never as a task.
    Forbidden,
}

impl TaskSupport {
    /// All variants, with their words in declarations and in MCP's `execution.taskSupport`.
    pub const WORDS: [(&str, Self); 3] =
        [("required", Self::Required), ("optional", Self::Optional), ("forbidden", Self::Forbidden)];

    /// Parses a word of [`WORDS`](Self::WORDS).
    pub fn parse(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(known, _)| *known == word).map(|(_, support)| *support)
    }

    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Required => "required",
            Self::Optional => "optional",
            Self::Forbidden => "forbidden",
        }
    }
}

/// Returns whether the JSON text of MCP's tool annotations says that repeating a call has no further
/// effect.
pub fn is_idempotent(annotations: &str) -> bool {
    let hints: Hints = serde_json::from_str(annotations).unwrap_or_default();
    hints.read_only_hint == Some(true) || hints.idempotent_hint == Some(true)
}

/// The MCP tool annotations that decide on retries.
#[derive(Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Hints {
    read_only_hint: Option<bool>,
    idempotent_hint: Option<bool>,
}

/// A signature over a manifest (RTFS capability system §3.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapabilityAttestation {
    /// The signature, base64.
    pub signature: String,
    /// The authority whose key signed.
    pub authority: String,
    /// The time of signing.
    pub created_at: SystemTime,
    /// The expiry, if any.
    pub expires_at: Option<SystemTime>,
    /// Further data of the signer.
    pub metadata: BTreeMap<String, String>,
}

/// The origin of a capability (RTFS capability system §3.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapabilityProvenance {
    /// A path, address or name of the source.
    pub source: String,
    /// The version at the source, if it has one.
    pub version: Option<String>,
    /// The hash of the content that runs.
    pub content_hash: String,
    /// The parties that it passed through.
    pub custody_chain: Vec<String>,
    /// When it was registered.
    pub registered_at: SystemTime,
}

/// The marketplace's treatment of one capability's calls, apart from its manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallPolicy {
    /// The timeout of one call; `None` means the marketplace's default.
    pub timeout: Option<Duration>,
    /// The maximum number of running calls of this capability; `None` means that only the marketplace's
    /// limit applies.
    pub max_concurrency: Option<usize>,
    /// The scope in which those calls are counted.
    pub concurrency_scope: CountScope,
    /// The maximum number of retries after transient failures. `None` means two if the capability has an
    /// upstream. Only idempotent capabilities are retried (see [`CapabilityManifest::is_idempotent`]).
    pub retries: Option<u32>,
    /// Whether clients see the capability in lists.
    pub listing: Listing,
    /// The upstream that the capability depends on, such as the origin of its address. When calls fail
    /// because the upstream cannot be reached, calls of all its capabilities are refused for a while
    /// (circuit breaker).
    pub upstream: Option<Arc<str>>,
    /// Hides the secrets that the capability was given in everything that its calls return; `None` if it
    /// was given none.
    pub redaction: Option<Arc<Redactor>>,
    /// The content that runs, and its attestation, if there is one.
    pub custody: Option<Custody>,
    /// The callers to whom its provider has shown it; `None` if it shows the same to all.
    pub shown_to: Option<ShownTo>,
    /// Whether it can be called at all.
    pub availability: Availability,
    /// Who declared the input schema.
    pub input_declared_by: DeclaredBy,
    /// Who declared the output schema.
    pub output_declared_by: DeclaredBy,
}

/// The scope in which calls are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CountScope {
    /// In this process.
    #[default]
    Node,
    /// Over all nodes of the cluster.
    Cluster,
}

impl CountScope {
    /// The scopes with their words in configuration files.
    pub const WORDS: [(&'static str, Self); 2] = [("node", Self::Node), ("cluster", Self::Cluster)];
}

/// The callers to whom a provider with a separate list for each caller has shown a capability. For
/// others, the capability does not exist. Cloning shares the set.
#[derive(Clone, Debug, Default)]
pub struct ShownTo(Arc<RwLock<HashSet<Arc<str>>>>);

impl ShownTo {
    /// Records whether the provider shows the capability to the caller with this [id](Principal::id).
    /// Returns whether this is a change.
    pub fn set(&self, id: &Arc<str>, is_shown: bool) -> bool {
        let mut callers = self.0.write();
        if is_shown { callers.insert(Arc::clone(id)) } else { callers.remove(id) }
    }

    /// Returns whether this caller has been shown the capability.
    pub fn includes(&self, caller: Option<&Principal>) -> bool {
        caller.is_some_and(|caller| self.0.read().contains(caller.id()))
    }
}

impl PartialEq for ShownTo {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ShownTo {}

/// The availability of a capability.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Availability {
    /// The capability can be called.
    #[default]
    Available,
    /// The capability can be called, but its input is not known yet: its provider is asked before the
    /// first call.
    Unlearned,
    /// The declaration has a fault. The capability is shown with the reason and never runs.
    Unavailable {
        /// The fault, its place, and what was expected.
        reason: String,
    },
}

/// The party that declared a schema. It decides what happens if the schema cannot be enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeclaredBy {
    /// The user: the capability is unavailable.
    #[default]
    User,
    /// The provider: the schema is passed on unchanged, and the provider checks the data itself.
    Provider,
}

/// Whether clients see a capability in lists. It can be called either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Listing {
    /// The capability is listed.
    #[default]
    Listed,
    /// Only a search or its name finds it.
    Unlisted,
}

impl CallPolicy {
    /// Returns the policy with this timeout per call.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Returns the policy of a capability that cannot be called, for this reason.
    #[must_use]
    pub fn unavailable(mut self, reason: impl Into<String>) -> Self {
        self.availability = Availability::Unavailable { reason: reason.into() };
        self
    }
}

/// A manifest together with the policy for its calls.
#[derive(Clone, Debug)]
pub struct Registration {
    /// The manifest.
    pub manifest: CapabilityManifest,
    /// The policy for its calls.
    pub policy: CallPolicy,
}

impl From<CapabilityManifest> for Registration {
    fn from(manifest: CapabilityManifest) -> Self {
        Self { manifest, policy: CallPolicy::default() }
    }
}

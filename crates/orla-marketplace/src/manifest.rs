//! What a capability is (RTFS capability system §3.1).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::RwLock;
use rtfs::TypeExpr;

use crate::custody::Custody;
use crate::principal::Principal;
use crate::provider::ProviderType;
use crate::redaction::Redactor;

/// Describes a capability and how to execute it (RTFS capability system §3.1).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CapabilityManifest {
    /// Unique within a catalogue. A provider of several capabilities uses `PROVIDER.NAME`.
    pub id: String,
    /// The name for people.
    pub name: String,
    /// What it does, in words that help a model choose. Never empty in a catalogue.
    pub description: String,
    /// The provider that implements it.
    pub provider: ProviderType,
    /// Its version, mostly a semantic one.
    pub version: String,
    /// What it takes, enforced where declared.
    pub input_schema: Option<TypeExpr>,
    /// What it gives, enforced where declared.
    pub output_schema: Option<TypeExpr>,
    /// Who vouches for it.
    pub attestation: Option<CapabilityAttestation>,
    /// Where it comes from.
    pub provenance: Option<CapabilityProvenance>,
    /// What it needs to be allowed, such as `net:api.example.com`.
    pub permissions: Vec<String>,
    /// Everything else. Known keys: [`TITLE`], [`ANNOTATIONS`], [`TASK`], [`LISTED`].
    pub metadata: HashMap<String, String>,
}

/// Metadata key: the title that clients show to people.
pub const TITLE: &str = "title";
/// Metadata key: the JSON text of MCP's tool annotations (`readOnlyHint`, …).
pub const ANNOTATIONS: &str = "annotations";
/// Metadata key: whether the capability is called as a task, as [`TaskSupport`] writes it.
pub const TASK: &str = "task";
/// Metadata key: the JSON text of an object whose members clients see in lists, beside those that the manifest has
/// fields for: `icons`, `_meta` and other members from its provider.
pub const LISTED: &str = "listed";

impl CapabilityManifest {
    /// Replaces secrets in the texts for readers: names, description, metadata and provenance. Its
    /// id, permissions and schemas have effects, and stay unchanged.
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

    /// A manifest with the required parts; everything else is empty.
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

    /// The title that clients show to people: the explicit one, or else the name, unless the name is the id.
    pub fn title(&self) -> Option<&str> {
        let name = Some(self.name.as_str()).filter(|name| !name.is_empty() && *name != self.id);
        self.metadata.get(TITLE).map(String::as_str).or(name)
    }

    /// The metadata without a field of its own in lists.
    pub fn other_metadata(&self) -> BTreeMap<&str, &str> {
        let others = self
            .metadata
            .iter()
            .filter(|(key, _)| ![TITLE, ANNOTATIONS, TASK, LISTED].contains(&&***key));
        others.map(|(key, value)| (key.as_str(), value.as_str())).collect()
    }

    /// Whether it is called as a task; `None` if nothing is declared. Then it may be called either way, and clients
    /// get a task only if they ask for one.
    pub fn task_support(&self) -> Option<TaskSupport> {
        self.metadata.get(TASK).and_then(|word| TaskSupport::parse(word))
    }

    /// Declares whether it is called as a task.
    pub fn set_task_support(&mut self, support: TaskSupport) {
        self.metadata.insert(TASK.to_owned(), support.as_str().to_owned());
    }

    /// Whether making a call twice does no more than making it once: its annotations say that it only reads
    /// (`readOnlyHint`) or that repeating it has no effect (`idempotentHint`).
    pub fn is_idempotent(&self) -> bool {
        is_idempotent(self.metadata.get(ANNOTATIONS).map_or("{}", String::as_str))
    }
}

/// Whether a capability is called as a task: a call that outlives its caller (design §15).
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

    /// The one of this word.
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

/// Whether the JSON text of MCP's tool annotations says that making a call twice does no more than making it once.
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
    /// Whose key made it.
    pub authority: String,
    /// When it was made.
    pub created_at: SystemTime,
    /// When it expires, if it does.
    pub expires_at: Option<SystemTime>,
    /// Everything else the signer said.
    pub metadata: BTreeMap<String, String>,
}

/// Where a capability comes from (RTFS capability system §3.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapabilityProvenance {
    /// A path, address or name of the source.
    pub source: String,
    /// The version at the source, if it has one.
    pub version: Option<String>,
    /// The hash of what runs.
    pub content_hash: String,
    /// The parties that it passed through.
    pub custody_chain: Vec<String>,
    /// When it was registered.
    pub registered_at: SystemTime,
}

/// How the marketplace treats one capability's calls, apart from what its manifest says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallPolicy {
    /// How long one call may take; `None` means the marketplace's default.
    pub timeout: Option<Duration>,
    /// Calls of this capability that run at once; `None` means that only the marketplace's limit applies.
    pub max_concurrency: Option<usize>,
    /// Where those calls are counted.
    pub concurrency_scope: CountScope,
    /// How often a call with a transient failure is retried. `None` means twice if the capability has an upstream.
    /// Only idempotent capabilities are retried (see [`CapabilityManifest::is_idempotent`]).
    pub retries: Option<u32>,
    /// Whether clients see it when they list.
    pub listing: Listing,
    /// The upstream that it depends on, such as the origin of its address. When calls fail because the upstream
    /// cannot be reached, calls of all its capabilities are refused for a while (circuit breaker).
    pub upstream: Option<Arc<str>>,
    /// Replaces the secrets that it was given in everything that its calls return; `None` if it was given none.
    pub redaction: Option<Arc<Redactor>>,
    /// What runs, and its attested content, if it is attested.
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

/// Where calls are counted.
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
    /// Notes whether the provider shows the capability to the caller with this
    /// [id](Principal::id). Returns whether this is a change.
    pub fn set(&self, id: &Arc<str>, is_shown: bool) -> bool {
        let mut callers = self.0.write();
        if is_shown { callers.insert(Arc::clone(id)) } else { callers.remove(id) }
    }

    /// Whether this caller has been shown the capability.
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

/// Whether a capability can be called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Availability {
    /// It can.
    #[default]
    Available,
    /// It can, but its input is not known yet: its provider is asked before the first call.
    Unlearned,
    /// Its declaration has a fault. It is shown with the reason and is never run.
    Unavailable {
        /// What is wrong, where, and what was expected.
        reason: String,
    },
}

/// Who declared a schema. This decides what happens if the schema cannot be enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeclaredBy {
    /// The user: the capability is unavailable.
    #[default]
    User,
    /// The provider: the schema is passed on as it came, and the provider checks for itself.
    Provider,
}

/// Whether clients see a capability when they list. It can be called either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Listing {
    /// It is listed.
    #[default]
    Listed,
    /// Only a search or its name finds it.
    Unlisted,
}

impl CallPolicy {
    /// The policy with this timeout per call.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The policy of a capability that cannot be called, for this reason.
    #[must_use]
    pub fn unavailable(mut self, reason: impl Into<String>) -> Self {
        self.availability = Availability::Unavailable { reason: reason.into() };
        self
    }
}

/// A manifest together with the policy for its calls.
#[derive(Clone, Debug)]
pub struct Registration {
    /// What the capability is.
    pub manifest: CapabilityManifest,
    /// How its calls are treated.
    pub policy: CallPolicy,
}

impl From<CapabilityManifest> for Registration {
    fn from(manifest: CapabilityManifest) -> Self {
        Self { manifest, policy: CallPolicy::default() }
    }
}

//! Discovery for agents: three capabilities through which all others are found, described and called.
//!
//! With them, a client needs no other tools in its list, so a catalogue of thousands takes no space in
//! its context. [`capability_search`](IDS) returns the best matches for some words,
//! `capability_describe` returns the types and an example call of one capability, and `capability_call`
//! calls it.
//!
//! # How it works
//!
//! They are ordinary capabilities, with their own kind of provider ([`Discovery`]) and executor
//! ([`DiscoveryExecutor`]). They use the same snapshot as their caller: the one that a session last
//! listed, or else the newest. They do not find capabilities that the access policy denies to the
//! caller.
//!
//! A call through `capability_call` is a nested call, one level deeper. Its deadline is at most
//! that of the outer call, and it has the same principal, notices and client. Its result is passed
//! through unchanged.

mod describe;
mod example;

use std::any::{Any, TypeId};
use std::borrow::Cow;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use rtfs::text::excerpt;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value as Json, json};

use crate::attestation::ContentSource;
use crate::call::Call;
use crate::call::CallContext;
use crate::catalog::{Catalog, Entry, Hit};
use crate::error::{RuntimeError, RuntimeResult};
use crate::executor::CapabilityExecutor;
use crate::outcome::Outcome;

use crate::manifest::{ANNOTATIONS, CapabilityManifest, Listing, Registration, TITLE};
use crate::marketplace::CapabilityMarketplace;
use crate::payload::{JsonText, Payload};
use crate::principal::Principal;
use crate::provider::{CustomProvider, Language, ProviderType};
use crate::schema::type_from_json_schema;

pub use describe::{description, description_text};

/// The ids of the discovery capabilities.
pub const IDS: [&str; 3] = ["capability_search", "capability_describe", "capability_call"];

/// The default number of capabilities that a search returns.
pub const LIMIT: usize = 10;
/// The maximum number of capabilities that a search returns.
pub const MAX_LIMIT: usize = 100;

/// The maximum number of characters of a description, and of a type, in a search result.
const SHOWN: usize = 300;
/// The maximum time of a call through `capability_call`, which is that of the called capability.
const LONGEST: Duration = Duration::from_secs(86_400);

/// The provider of a discovery capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discovery {
    /// `capability_search`
    Search,
    /// `capability_describe`
    Describe,
    /// `capability_call`
    Call,
}

impl CustomProvider for Discovery {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn kind(&self) -> &'static str {
        "discovery"
    }

    fn is_internal(&self) -> bool {
        true
    }

    fn is_pure(&self) -> bool {
        *self != Self::Call
    }

    fn reaches_others(&self) -> bool {
        true
    }

    fn content(&self) -> ContentSource {
        ContentSource::Program
    }
}

/// Returns the discovery capabilities, unlisted; the caller decides whether to list them.
pub fn registrations() -> Vec<Registration> {
    let all = [Discovery::Search, Discovery::Describe, Discovery::Call];
    all.into_iter().zip(IDS).map(|(tool, id)| tool.registration(id)).collect()
}

impl Discovery {
    fn registration(self, id: &str) -> Registration {
        let (title, description, read_only) = match self {
            Self::Search => ("Search capabilities", SEARCH, true),
            Self::Describe => ("Describe a capability", DESCRIBE, true),
            Self::Call => ("Call a capability", CALL, false),
        };
        let mut manifest =
            CapabilityManifest::new(id, description, ProviderType::Custom(Arc::new(self)));
        manifest.version = env!("CARGO_PKG_VERSION").to_owned();
        manifest.input_schema = Some(type_from_json_schema(&self.input()));
        manifest.output_schema = self.output().map(|schema| type_from_json_schema(&schema));
        manifest.metadata.insert(TITLE.to_owned(), title.to_owned());
        if read_only {
            let hints = r#"{"readOnlyHint":true,"openWorldHint":false}"#;
            manifest.metadata.insert(ANNOTATIONS.to_owned(), hints.to_owned());
        }
        let mut registration = Registration::from(manifest);
        registration.policy.listing = Listing::Unlisted;
        if self == Self::Call {
            registration.policy.timeout = Some(LONGEST);
        }
        registration
    }

    fn input(self) -> Json {
        let id = json!({"type": "string", "description": "The capability's id or name, as a search gives it."});
        match self {
            Self::Search => json!({
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "What you want to do, in a few words, such as: send an email."},
                    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": LIMIT,
                              "description": "How many capabilities to give at most."},
                },
                "required": ["query"],
            }),
            Self::Describe => {
                json!({"type": "object", "properties": {"id": id}, "required": ["id"]})
            }
            Self::Call => json!({
                "type": "object",
                "properties": {
                    "id": id,
                    "input": {"type": "object", "default": {}, "description": "What the capability takes; capability_describe says what that is."},
                },
                "required": ["id"],
            }),
        }
    }

    /// Returns the output schema of a search. The output of a call is declared by the called capability.
    fn output(self) -> Option<Json> {
        let text = json!({"type": "string"});
        (self == Self::Search).then(|| {
            json!({
                "type": "object",
                "properties": {
                    "results": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {"id": text, "name": text, "title": text, "description": text,
                                           "kind": text, "input": text, "score": {"type": "number"}},
                            "required": ["id", "name", "description", "kind", "score"],
                        },
                    },
                    "total": {"type": "integer", "description": "How many capabilities fit in all."},
                },
                "required": ["results", "total"],
            })
        })
    }
}

const SEARCH: &str = "Finds capabilities by words: what they are called, what they do and what they take. \
    Gives the best ones first, each with its id and the type of its input. Call one with capability_call.";
const DESCRIBE: &str = "Tells everything about one capability: what it does, the types of its input and output in \
    RTFS notation and as JSON Schema, what it needs permission for, where it comes from, and an example call.";
const CALL: &str =
    "Calls one capability, found by capability_search, with an input, and returns its result unchanged.";

/// Runs [`Discovery`] providers against a marketplace, which it does not keep alive.
pub struct DiscoveryExecutor {
    marketplace: Weak<CapabilityMarketplace>,
}

impl DiscoveryExecutor {
    /// Creates an executor that finds and calls the capabilities of this marketplace.
    pub fn new(marketplace: &Arc<CapabilityMarketplace>) -> Self {
        Self { marketplace: Arc::downgrade(marketplace) }
    }

    /// Returns the snapshot that the caller sees. Before the newest one is read, providers that have not
    /// been asked yet are asked.
    async fn catalog(&self, ctx: &CallContext) -> RuntimeResult<Arc<Catalog>> {
        if let Some(catalog) = &ctx.scope.catalog {
            return Ok(Arc::clone(catalog));
        }
        let marketplace = self.marketplace(ctx)?;
        marketplace.prepare_listing().await;
        Ok(marketplace.snapshot())
    }

    fn marketplace(&self, ctx: &CallContext) -> RuntimeResult<Arc<CapabilityMarketplace>> {
        self.marketplace.upgrade().ok_or_else(|| RuntimeError::Unavailable {
            id: ctx.name.to_string(),
            reason: "the marketplace is gone".to_owned(),
            source: None,
        })
    }

    async fn search(&self, inputs: &Payload, ctx: &CallContext) -> RuntimeResult<Outcome> {
        let arguments: SearchArguments<'_> = arguments(inputs, ctx)?;
        let limit = arguments.limit.unwrap_or(LIMIT).min(MAX_LIMIT);
        let catalog = self.catalog(ctx).await?;
        let found = search(&catalog, &arguments.query, limit, ctx.scope.principal.as_ref());
        let text = found.text(&arguments.query);
        outcome(&found.json(), &text)
    }

    async fn describe(&self, inputs: &Payload, ctx: &CallContext) -> RuntimeResult<Outcome> {
        let arguments: DescribeArguments<'_> = arguments(inputs, ctx)?;
        let catalog = self.catalog(ctx).await?;
        let entry = Arc::clone(find(&catalog, &arguments.id, ctx)?);
        // The content may have to be read for its hash.
        let described = tokio::task::spawn_blocking(move || description(&entry)).await;
        let described = described.map_err(|_| RuntimeError::Panicked { id: ctx.name.to_string() })?;
        let text = description_text(&described);
        outcome(&described, &text)
    }

    async fn call(&self, inputs: &Payload, ctx: &CallContext) -> RuntimeResult<Outcome> {
        let arguments: CallArguments<'_> = arguments(inputs, ctx)?;
        let marketplace = self.marketplace(ctx)?;
        let mut call = Call::within(ctx, arguments.id);
        if let Some(input) = arguments.input {
            let body = inputs.json()?.bytes();
            call = call.with(Payload::from_json(JsonText::slice_of(body, input)));
        }
        match ctx.wait_for(marketplace.call(call)).await {
            // The tool that the client named is known; the capability in its input is not.
            Err(unknown @ RuntimeError::Unknown { .. }) => {
                Err(failed(ctx, format!("{unknown}{}", hint(&unknown))))
            }
            result => result,
        }
    }
}

#[async_trait]
impl CapabilityExecutor for DiscoveryExecutor {
    fn provider_type_id(&self) -> TypeId {
        TypeId::of::<Discovery>()
    }

    async fn execute(
        &self,
        provider: &ProviderType,
        inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<Outcome> {
        match provider.settings::<Discovery>()? {
            Discovery::Search => self.search(inputs, ctx).await,
            Discovery::Describe => self.describe(inputs, ctx).await,
            Discovery::Call => self.call(inputs, ctx).await,
        }
    }
}

#[derive(Deserialize)]
struct SearchArguments<'a> {
    #[serde(borrow)]
    query: Cow<'a, str>,
    limit: Option<usize>,
}

#[derive(Deserialize)]
struct DescribeArguments<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
}

#[derive(Deserialize)]
struct CallArguments<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
}

/// The result of a search.
#[derive(Debug)]
pub struct Found {
    /// The best matches, the best first.
    pub hits: Vec<Hit>,
    /// The total number of matches.
    pub total: usize,
}

/// Searches a catalogue for capabilities that a caller may use. Leaves out the capabilities of discovery
/// and of the language: the caller has them already, and a text that teaches a language matches any
/// query.
pub fn search(catalog: &Catalog, query: &str, limit: usize, principal: Option<&Principal>) -> Found {
    let mut hits = catalog.search_where(query, usize::MAX, |entry| {
        !is_discovery(entry) && is_visible(catalog, entry, principal)
    });
    let total = hits.len();
    hits.truncate(limit);
    Found { hits, total }
}

impl Found {
    /// Returns the structured result of `capability_search`.
    pub fn json(&self) -> Json {
        json!({"results": self.hits.iter().map(result).collect::<Vec<_>>(), "total": self.total})
    }

    fn text(&self, query: &str) -> String {
        if self.hits.is_empty() {
            return format!(
                "No capability fits {query:?}. Try other words, or fewer: what it is about, not how it is done."
            );
        }
        let mut text = String::new();
        for Hit { entry, .. } in &self.hits {
            let manifest = &entry.manifest;
            text.push_str(&format!(
                "{}: {}\n",
                manifest.id,
                excerpt(manifest.description.trim(), SHOWN)
            ));
            if let Some(input) = input_type(entry) {
                text.push_str(&format!("  input {input}\n"));
            }
        }
        match self.total - self.hits.len() {
            0 => {}
            more => text.push_str(&format!("{more} more fit; a larger limit shows them.\n")),
        }
        text.push_str("capability_describe tells more of one, capability_call calls it.");
        text
    }
}

fn result(hit: &Hit) -> Json {
    let manifest = &hit.entry.manifest;
    let mut result = json!({"id": manifest.id, "name": &*hit.entry.name});
    if let Some(title) = manifest.title() {
        result["title"] = json!(excerpt(title, SHOWN));
    }
    result["description"] = json!(excerpt(manifest.description.trim(), SHOWN));
    result["kind"] = json!(manifest.provider.kind());
    if let Some(input) = input_type(&hit.entry) {
        result["input"] = json!(input);
    }
    // More digits would be useless.
    result["score"] = json!((f64::from(hit.score) * 1000.0).round() / 1000.0);
    result
}

/// Returns the type of the input in RTFS notation, if it is short.
fn input_type(entry: &Entry) -> Option<String> {
    let text = describe::type_of(entry.manifest.input_schema.as_ref(), Some(&entry.input_schema()))?;
    (text.len() <= SHOWN).then_some(text)
}

/// Returns whether a caller may know about a capability. A caller without permission does not learn that
/// it exists.
fn is_visible(catalog: &Catalog, entry: &Entry, principal: Option<&Principal>) -> bool {
    catalog.permits(principal, entry).is_ok()
}

fn is_discovery(entry: &Entry) -> bool {
    let provider = &entry.manifest.provider;
    [TypeId::of::<Discovery>(), TypeId::of::<Language>()].contains(&provider.settings_type())
}

fn find<'a>(catalog: &'a Catalog, id: &str, ctx: &CallContext) -> RuntimeResult<&'a Arc<Entry>> {
    let principal = ctx.scope.principal.as_ref();
    catalog.visible(principal, id).ok_or_else(|| {
        let similar = catalog.similar_for(principal, id);
        let unknown = RuntimeError::Unknown { id: excerpt(id, SHOWN), similar };
        failed(ctx, format!("{unknown}{}", hint(&unknown)))
    })
}

/// Returns advice about an unknown name if no name is similar.
fn hint(unknown: &RuntimeError) -> &'static str {
    match unknown {
        RuntimeError::Unknown { similar, .. } if similar.is_empty() => {
            "; capability_search finds what there is"
        }
        _ => "",
    }
}

fn arguments<'a, T: Deserialize<'a>>(inputs: &'a Payload, ctx: &CallContext) -> RuntimeResult<T> {
    let text = inputs.json()?.as_str();
    serde_json::from_str(text).map_err(|err| failed(ctx, format!("{}: {err}", ctx.name)))
}

fn failed(ctx: &CallContext, message: String) -> RuntimeError {
    RuntimeError::Failed { id: ctx.name.to_string(), message, outcome: None }
}

/// Returns an outcome of a value, and the text for clients that show only text.
fn outcome(value: &Json, text: &str) -> RuntimeResult<Outcome> {
    let json = |value: &Json| JsonText::of(value).map_err(|err| RuntimeError::Generic(err.to_string()));
    Ok(Outcome {
        structured: Some(Payload::from_json(json(value)?)),
        content: Some(json(&json!([{"type": "text", "text": text}]))?),
        ..Outcome::default()
    })
}

#[cfg(test)]
mod tests;

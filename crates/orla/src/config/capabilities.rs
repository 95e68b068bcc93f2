//! `capabilities`: a list of manifests (RTFS capability system §3.1), and of OpenAPI documents.
//!
//! An element uses the names of the manifest. In addition, it may have the policy of its calls
//! (`timeout`, `max_concurrency`, `retries`) and its metadata in MCP (`title`, `annotations`). How a
//! provider is written is in [`provider`](super::provider).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use orla_document::{Key as Name, Kind as Shape, Node, Position};
use orla_marketplace::schema::{
    SchemaError, doubt, json_schema_of, must_admit_object, schema_from_declaration,
};
use orla_marketplace::{
    ANNOTATIONS, CapabilityAttestation, CapabilityManifest, CapabilityProvenance, CountScope,
    Expression, ProviderType, Registration, Route, Routed, TITLE, TaskSupport, is_idempotent,
    rtfs::TypeExpr,
};
use orla_providers::plugin::ENTRY;
use orla_providers::tool::metadata::{self, Remark};
use serde_json::{Value, json};

use super::forms::{
    Choice, Count, DAY, INSTANT, PERMISSIONS, Read, Seconds, Text, WORD, WORDS, text_schema,
    texts_or_text,
};
use super::keys::{Key, MAX_RETRIES, MAX_TOOL_CONCURRENCY, key, object, own};
use super::provider;
use super::quotas::{read_scope, scope_schema};
use super::read::{Reader, excerpt, unexpected};
use super::schema::{admit_nulls, defined};
use super::{Config, Placed, Problem, openapi, servers};
use crate::text::suggestion;

#[rustfmt::skip] // A table: each key has a line for its value and one for its meaning.
fn keys() -> Vec<Key<Draft>> {
    let text = || Text("text that is not empty");
    vec![
        own("id", id, text_schema, "unique; `PROVIDER.NAME` is served as `PROVIDER__NAME`").required(),
        key("name", text(), |d| &mut d.name, "the name for people"),
        key("title", text(), |d| &mut d.title, "the title that clients show"),
        key("description", text(), |d| &mut d.description, "what it does, in words by which a model can choose"),
        key("version", WORD, |d| &mut d.version, "the version"),
        key("provider", Read(provider::read, || defined("provider")), |d| &mut d.provider, "what implements it"),
        key("providers", Read(providers, providers_schema), |d| &mut d.providers,
            "several providers of one capability; `route` determines which one a call uses"),
        key("route", Read(route, route_schema), |d| &mut d.route,
            "which provider a call uses first; if it cannot be reached, the call uses the next"),
        own("input_schema", |reader, draft, path, node| {
            draft.input = schema_of(reader, draft, path, node).map(|schema| (schema, node.at));
        }, type_schema, "the type of its input"),
        own("output_schema", |reader, draft, path, node| {
            draft.output = schema_of(reader, draft, path, node);
        }, type_schema, "the type of its output"),
        key("permissions", PERMISSIONS, |d| &mut d.permissions, "permissions that it needs, such as `net:api.example.com`"),
        key("metadata", WORDS, |d| &mut d.metadata, "texts by name"),
        key("annotations", Read(annotations, || json!({"type": "object"})), |d| &mut d.annotations,
            "MCP's tool annotations: `readOnlyHint`, `idempotentHint`, `destructiveHint`, `openWorldHint`"),
        key("task", Choice(&TaskSupport::WORDS), |d| &mut d.task,
            "whether it is called as a [task](tasks.md): `required`, `optional` or `forbidden`"),
        key("attestation", Read(attestation, || object(&attestation_keys(), &mut AttestationDraft::default())), |d| &mut d.attestation,
            "who vouches for it"),
        key("provenance", Read(provenance, || object(&provenance_keys(), &mut ProvenanceDraft::default())), |d| &mut d.provenance,
            "where it comes from"),
        key("timeout", Seconds(DAY), |d| &mut d.timeout, "maximum seconds for one call"),
        key("max_concurrency", Count(1, MAX_TOOL_CONCURRENCY), |d| &mut d.max_concurrency,
            "maximum number of its calls at once"),
        key("scope", Read(read_scope, scope_schema), |d| &mut d.scope,
            "where `max_concurrency` holds: on this `node`, or over all nodes of the [`cluster`](cluster.md#limits)"),
        key("retries", Count(0, MAX_RETRIES), |d| &mut d.retries,
            "how often orla repeats a call that failed for a temporary reason, if the annotations say that repeating it is harmless"),
    ]
}

/// The longest id, in bytes.
const MAX_ID: usize = 256;

pub(super) fn read(reader: &mut Reader<'_>, config: &mut Config, path: &str, node: &Node) {
    let Shape::List(items) = &node.kind else {
        return reader
            .problem(node.at, || format!("{path}{}", unexpected("a list of capabilities", node)));
    };
    let (keys, mut ids) = (keys(), HashMap::<String, Position>::new());
    for (index, item) in items.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let expected = "a mapping with id and provider, or with openapi";
        let item = &without_nulls(item, false);
        let Some(pairs) = reader.pairs(&path, item, expected) else { continue };
        if pairs.iter().any(|(key, _)| key.text == "openapi") {
            openapi::element(reader, config, &path, item);
            continue;
        }
        let since = reader.secrets.count();
        let manifest = manifest(reader, &keys, &path, item.at, pairs);
        let Some((mut registration, at)) = manifest else { continue };
        registration.policy.redaction = reader.redaction(since);
        let id = &registration.manifest.id;
        reader.name_sign_ins(&path, id);
        if let Some(first) = ids.insert(id.clone(), at) {
            reader.problem(at, || {
                format!("{path}.id: {id} is declared twice, first on line {}", first.line)
            });
            continue;
        }
        config.capabilities.push(Placed { value: registration, at });
    }
}

/// Returns a manifest without its fields that are null: a dump of the document's structs writes every
/// optional field, and one that is null is absent. Schemas and annotations are data, in which null has a
/// meaning, and so is a kind of provider without settings (`{Local: null}`).
fn without_nulls(node: &Node, is_provider: bool) -> Node {
    const DATA: [&str; 3] = ["input_schema", "output_schema", "annotations"];
    let kind = match &node.kind {
        Shape::Map(pairs) => {
            let is_kind = is_provider && pairs.len() == 1;
            let kept = pairs.iter().filter(|(_, value)| is_kind || !value.is_null());
            let kept = kept.map(|(key, value)| match DATA.contains(&&*key.text) {
                true => (key.clone(), value.clone()),
                false => (key.clone(), without_nulls(value, key.text.starts_with("provider"))),
            });
            Shape::Map(kept.collect())
        }
        Shape::List(items) => {
            Shape::List(items.iter().map(|item| without_nulls(item, is_provider)).collect())
        }
        Shape::Scalar(scalar) => Shape::Scalar(scalar.clone()),
    };
    Node { kind, ..node.clone() }
}

/// Checks that need all keys.
pub(super) fn finish(reader: &mut Reader<'_>, config: &mut Config) {
    let entries = Entries {
        servers: config.servers.iter().map(|one| one.value.name.as_str()).collect(),
        plugins: config.plugins.iter().map(|one| one.value.name.as_str()).collect(),
    };
    let all = reader.redaction(0);
    for Placed { value, at } in &mut config.capabilities {
        if uses_entry(&value.manifest.provider) {
            // Which secrets an entry has is known to it alone.
            value.policy.redaction.clone_from(&all);
        }
        if let Err(problem) = entries.resolve(&mut value.manifest.provider) {
            let id = &value.manifest.id;
            reader.problem(*at, || format!("{id}: {problem}"));
        }
        for name in undeclared_in_path(&value.manifest) {
            let id = &value.manifest.id;
            reader.warning(*at, || {
                format!("{id}: its path contains {{{name}}}, which input_schema does not declare")
            });
        }
    }
}

/// Returns whether a provider is, or may be, an entry of `mcpServers` or `plugins`.
fn uses_entry(provider: &ProviderType) -> bool {
    match provider {
        ProviderType::MCP(mcp) => mcp.server_url.starts_with("mcp:"),
        ProviderType::Plugin(plugin) => plugin.plugin_path.starts_with(ENTRY),
        ProviderType::Custom(custom) => custom.as_any().is::<Routed>(),
        _ => false,
    }
}

/// Returns the arguments in the path of an HTTP endpoint that its own input schema, which declares
/// others, does not.
fn undeclared_in_path(manifest: &CapabilityManifest) -> Vec<&str> {
    let (ProviderType::Http(http), Some(schema)) = (&manifest.provider, &manifest.input_schema) else {
        return Vec::new();
    };
    let schema = json_schema_of(schema);
    let Some(declared) = schema["properties"].as_object() else { return Vec::new() };
    let mut names = orla_providers::http::path_arguments(http);
    names.retain(|name| !declared.contains_key(*name));
    names
}

/// The names of the entries that providers may refer to.
struct Entries<'a> {
    servers: Vec<&'a str>,
    plugins: Vec<&'a str>,
}

impl Entries<'_> {
    /// Replaces the written name of an entry by the name under which it is served.
    fn resolve(&self, provider: &mut ProviderType) -> Result<(), String> {
        let (place, kind, known, nothing) = match provider {
            ProviderType::MCP(mcp) => {
                (&mut mcp.server_url, "mcp:", &self.servers, "mcpServers has no server")
            }
            ProviderType::Plugin(plugin) => {
                (&mut plugin.plugin_path, ENTRY, &self.plugins, "plugins has no plugin")
            }
            ProviderType::Custom(custom) => {
                let Some(routed) = custom.as_any().downcast_ref::<Routed>() else { return Ok(()) };
                let mut providers: Vec<(String, ProviderType)> = routed
                    .providers()
                    .map(|(name, provider)| (name.to_owned(), provider.clone()))
                    .collect();
                providers.iter_mut().try_for_each(|(_, provider)| self.resolve(provider))?;
                let routed = Routed::new(routed.route().clone(), providers, routed.is_idempotent());
                *custom = Arc::new(routed);
                return Ok(());
            }
            _ => return Ok(()),
        };
        let Some(name) = place.strip_prefix(kind) else { return Ok(()) };
        let safe = servers::safe_name(name);
        if known.contains(&safe.as_str()) {
            *place = format!("{kind}{safe}");
            return Ok(());
        }
        let hint = suggestion(name, known.iter().copied());
        Err(format!("{nothing} {}{hint}", excerpt(name)))
    }
}

/// The parts of one element that have been read.
#[derive(Default)]
struct Draft {
    id: Option<(String, Position)>,
    name: Option<String>,
    description: Option<String>,
    version: Option<String>,
    provider: Option<ProviderType>,
    providers: Option<Vec<ProviderType>>,
    route: Option<Route>,
    input: Option<(TypeExpr, Position)>,
    output: Option<TypeExpr>,
    /// The first schema that cannot be enforced, with its place.
    fault: Option<String>,
    permissions: Vec<String>,
    metadata: BTreeMap<String, String>,
    attestation: Option<CapabilityAttestation>,
    provenance: Option<CapabilityProvenance>,
    timeout: Option<Duration>,
    max_concurrency: Option<usize>,
    scope: Option<CountScope>,
    retries: Option<u32>,
    annotations: Option<String>,
    task: Option<TaskSupport>,
    title: Option<String>,
}

fn manifest(
    reader: &mut Reader<'_>,
    keys: &[Key<Draft>],
    path: &str,
    at: Position,
    pairs: &[(Name, Node)],
) -> Option<(Registration, Position)> {
    let mut draft = Draft::default();
    let read = reader.mapping(path, at, pairs, keys, &mut draft);
    let is_given = |name: &str| pairs.iter().any(|(key, _)| key.text == name);
    match (is_given("provider"), is_given("providers")) {
        (true, true) => {
            reader.problem(at, || format!("{path}: `provider` and `providers` exclude each other"));
            return None;
        }
        (false, false) => reader.missing(at, path, "provider"),
        (true, false) if is_given("route") => {
            reader.problem(at, || format!("{path}.route: there is one provider; use `providers`"));
        }
        _ => {}
    }
    if draft.scope.is_some() && draft.max_concurrency.is_none() {
        reader.problem(at, || format!("{path}.scope: needs `max_concurrency`, whose scope it is"));
    }
    read?;
    let (id, at) = draft.id?;
    let base = std::path::absolute(reader.beside(".")).unwrap_or_else(|_| "/".into());
    let placed = draft.permissions.iter().map(|word| orla_process::confinement::placed(word, &base));
    let placed: Vec<String> = placed.collect();
    let own = draft.provider.iter_mut().chain(draft.providers.iter_mut().flatten());
    own.for_each(|provider| bind(provider, &placed));
    let idempotent = draft.annotations.as_deref().is_some_and(is_idempotent);
    let provider = match (draft.provider, draft.providers) {
        (Some(provider), _) => provider::of(provider, &id),
        (None, Some(providers)) => {
            let route = draft.route.unwrap_or(Route::Failover);
            match provider::routed(route, providers, &id, idempotent) {
                Ok(provider) => provider,
                Err(problem) => {
                    reader.problem(at, || format!("{path}.providers{problem}"));
                    return None;
                }
            }
        }
        (None, None) => return None,
    };
    let mut manifest = CapabilityManifest::new(id, draft.description.unwrap_or_default(), provider);
    if let Some(name) = draft.name {
        manifest.name = name;
    }
    manifest.version = draft.version.unwrap_or_default();
    let input_at = draft.input.as_ref().map_or(at, |(_, at)| *at);
    manifest.input_schema = draft.input.map(|(schema, _)| schema);
    manifest.output_schema = draft.output;
    manifest.permissions = draft.permissions;
    manifest.attestation = draft.attestation;
    manifest.provenance = draft.provenance;
    manifest.metadata.extend(draft.metadata);
    manifest.metadata.extend(draft.title.map(|title| (TITLE.to_owned(), title)));
    manifest.metadata.extend(draft.annotations.map(|hints| (ANNOTATIONS.to_owned(), hints)));
    if let Some(support) = draft.task {
        manifest.set_task_support(support);
    }
    if let Err(problem) = provider::complete(&mut manifest) {
        reader.problem(at, || format!("{path}: {problem}"));
        return None;
    }
    let not_named = manifest.input_schema.as_ref().and_then(|schema| must_admit_object(schema).err());
    let not_named = not_named.map(|err| {
        Problem::at(reader.path, input_at, format!("{path}.input_schema: {err}")).to_string()
    });
    let fault = draft.fault.or(not_named);
    let mut registration = Registration::from(manifest);
    let own = provider::timeout(&registration.manifest.provider);
    registration.policy.timeout = draft.timeout.or(own);
    registration.policy.max_concurrency = draft.max_concurrency;
    registration.policy.concurrency_scope = draft.scope.unwrap_or_default();
    registration.policy.retries = draft.retries;
    registration.policy.upstream = provider::upstream(&registration.manifest.provider);
    if let Some(fault) = fault {
        registration.policy = registration.policy.unavailable(fault);
    }
    Some((registration, at))
}

/// Gives a provider the permissions to which a program that it starts is confined.
fn bind(provider: &mut ProviderType, permissions: &[String]) {
    let bound = match provider {
        ProviderType::Plugin(plugin) => &mut plugin.options.permissions,
        ProviderType::MCP(mcp) => &mut mcp.options.permissions,
        ProviderType::Stream(stream) => &mut stream.options.permissions,
        _ => return,
    };
    *bound = permissions.to_vec();
}

fn annotations(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<String> {
    reader.pairs(path, node, "a mapping of MCP's tool annotations")?;
    for Remark { at, message, is_problem } in metadata::unknown_annotations(path, node) {
        match is_problem {
            true => reader.problem(at, || message),
            false => reader.warning(at, || message),
        }
    }
    match metadata::annotations(node) {
        Ok(annotations) => Some(annotations.to_string()),
        Err(problem) => {
            reader.problem(node.at, || format!("{path}.{problem}"));
            None
        }
    }
}

fn providers(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Vec<ProviderType>> {
    let items = match &node.kind {
        Shape::List(items) if !items.is_empty() => items,
        _ => {
            reader.problem(node.at, || {
                format!("{path}{}", unexpected("a list of at least one provider", node))
            });
            return None;
        }
    };
    let read = |(index, item)| provider::read(reader, &format!("{path}[{index}]"), item);
    items.iter().enumerate().map(read).collect()
}

/// `failover`, `round_robin`, `least_busy`, or `{by: EXPRESSION}`.
fn route(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Route> {
    let expected = "failover, round_robin, least_busy or {by: EXPRESSION}";
    if let Shape::Map(pairs) = &node.kind
        && let [(key, expression)] = pairs.as_slice()
        && key.text == "by"
    {
        let path = format!("{path}.by");
        let text = reader.line(&path, expression, "an expression of RTFS over `input`")?;
        return match Expression::new(&text) {
            Ok(expression) => Some(Route::By(expression)),
            Err(problems) => {
                for found in problems.0 {
                    let at = found.position;
                    reader.problem(expression.at, || {
                        format!("{path}: {}:{}: {}", at.line, at.column, found.message)
                    });
                }
                None
            }
        };
    }
    match node.as_scalar().map(|scalar| scalar.text.as_str()) {
        Some("failover") => Some(Route::Failover),
        Some("round_robin") => Some(Route::RoundRobin),
        Some("least_busy") => Some(Route::LeastBusy),
        _ => {
            reader.problem(node.at, || format!("{path}{}", unexpected(expected, node)));
            None
        }
    }
}

fn id(reader: &mut Reader<'_>, draft: &mut Draft, path: &str, node: &Node) {
    let Some(id) = reader.line(path, node, "an id such as weather.current") else { return };
    if id.len() <= MAX_ID && !id.contains(char::is_control) && id.trim() == id {
        draft.id = Some((id, node.at));
        return;
    }
    let expected = format!("at most {MAX_ID} bytes in one line, without blanks around");
    reader.problem(node.at, || format!("{path}{}", unexpected(&expected, node)));
}

/// Returns the schema of a capability. An unenforceable schema makes only that capability unavailable.
fn schema_of(reader: &mut Reader<'_>, draft: &mut Draft, path: &str, node: &Node) -> Option<TypeExpr> {
    let declared = node.to_json();
    if let Some(doubt) = doubt(&declared) {
        reader.warning(node.at, || format!("{path}: {doubt}"));
    }
    let schema = schema_from_declaration(&declared);
    let fault = |err: SchemaError| {
        Problem::at(reader.path, node.place_of(&err.path), format!("{path}: {err}")).to_string()
    };
    schema.map_err(|err| draft.fault.get_or_insert_with(|| fault(err))).ok()
}

/// JSON Schema, the shorthand, or a type expression of RTFS.
pub(super) fn type_of(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<TypeExpr> {
    match schema_from_declaration(&node.to_json()) {
        Ok(schema) => Some(schema),
        Err(err) => {
            let dot = if err.path.is_empty() { ": " } else { "." };
            reader.problem(node.place_of(&err.path), || format!("{path}{dot}{err}"));
            None
        }
    }
}

#[derive(Default)]
struct AttestationDraft {
    signature: String,
    authority: String,
    created_at: Option<SystemTime>,
    expires_at: Option<SystemTime>,
    metadata: BTreeMap<String, String>,
}

#[rustfmt::skip] // A table.
fn attestation_keys() -> Vec<Key<AttestationDraft>> {
    vec![
        key("signature", Text("text"), |a: &mut AttestationDraft| &mut a.signature, "the signature").required(),
        key("authority", Text("text"), |a: &mut AttestationDraft| &mut a.authority, "who signed").required(),
        key("created_at", INSTANT, |a: &mut AttestationDraft| &mut a.created_at, "since when it is valid").required(),
        key("expires_at", INSTANT, |a| &mut a.expires_at, "until when it is valid"),
        key("metadata", WORDS, |a| &mut a.metadata, "texts by name"),
    ]
}

fn attestation(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<CapabilityAttestation> {
    let pairs = reader.pairs(path, node, "a mapping with signature, authority and created_at")?;
    let mut draft = AttestationDraft::default();
    reader.mapping(path, node.at, pairs, &attestation_keys(), &mut draft)?;
    let AttestationDraft { signature, authority, created_at, expires_at, metadata } = draft;
    Some(CapabilityAttestation { signature, authority, created_at: created_at?, expires_at, metadata })
}

#[derive(Default)]
struct ProvenanceDraft {
    source: String,
    version: Option<String>,
    content_hash: String,
    custody_chain: Vec<String>,
    registered_at: Option<SystemTime>,
}

#[rustfmt::skip] // A table.
fn provenance_keys() -> Vec<Key<ProvenanceDraft>> {
    vec![
        key("source", WORD, |p: &mut ProvenanceDraft| &mut p.source, "where it comes from").required(),
        key("version", WORD, |p| &mut p.version, "the version there"),
        key("content_hash", WORD, |p| &mut p.content_hash, "the hash of its content"),
        key("custody_chain", Read(|reader, path, node| reader.list(path, node, "a list of texts"), texts_or_text),
            |p| &mut p.custody_chain, "through whose hands it went"),
        key("registered_at", INSTANT, |p| &mut p.registered_at, "when it was registered"),
    ]
}

fn provenance(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<CapabilityProvenance> {
    let pairs = reader.pairs(path, node, "a mapping with source")?;
    let mut draft = ProvenanceDraft::default();
    reader.mapping(path, node.at, pairs, &provenance_keys(), &mut draft)?;
    let ProvenanceDraft { source, version, content_hash, custody_chain, registered_at } = draft;
    let registered_at = registered_at.unwrap_or_else(SystemTime::now);
    Some(CapabilityProvenance { source, version, content_hash, custody_chain, registered_at })
}

fn providers_schema() -> Value {
    json!({"type": "array", "minItems": 1, "items": defined("provider")})
}

fn route_schema() -> Value {
    let by = json!({"type": "string", "minLength": 1,
        "description": "an expression of RTFS over `input`; calls with the same value use the same provider"});
    json!({"anyOf": [{"enum": ["failover", "round_robin", "least_busy"]},
        {"type": "object", "properties": {"by": by}, "required": ["by"], "additionalProperties": false}],
        "default": "failover"})
}

/// Returns the JSON Schema of a type.
pub(super) fn type_schema() -> Value {
    json!({"type": ["object", "string"], "description": "JSON Schema, the shorthand `field: type`, or a type of RTFS"})
}

pub(super) fn schema() -> Value {
    let mut manifest = object(&keys(), &mut Draft::default());
    manifest["oneOf"] = json!([{"required": ["provider"]}, {"required": ["providers"]}]);
    admit_nulls(&mut manifest);
    json!({"type": "array", "items": {"anyOf": [manifest, defined("document")]}})
}

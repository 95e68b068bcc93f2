//! `capabilities`: a list of manifests (RTFS capability system §3.1), and of OpenAPI documents.
//!
//! An element has the document's own names. Beside them stand the policy of its calls (`timeout`,
//! `max_concurrency`, `retries`) and what MCP shows of it (`title`, `annotations`). How a provider is
//! written is in [`provider`](super::provider).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use orla_document::{Key, Kind as Shape, Node, Position};
use orla_marketplace::schema::{json_schema_of, must_admit_object, schema_from_declaration};
use orla_marketplace::{
    ANNOTATIONS, CapabilityAttestation, CapabilityManifest, CapabilityProvenance, Expression,
    ProviderType, Registration, Route, Routed, TITLE, is_idempotent, rtfs::TypeExpr,
};
use orla_providers::plugin::ENTRY;
use serde_json::{Value, json};

use super::keys::{MAX_RETRIES, MAX_TOOL_CONCURRENCY, Own, nearest};
use super::provider;
use super::read::{Reader, excerpt, unexpected};
use super::schema::{admit_nulls, defined, seconds, variable, whole};
use super::{Config, Placed, Problem, openapi, servers};

/// The key.
pub(super) const KEY: Own = Own { read, schema, expected: "a list of capabilities", variable: None };

const FIELDS: [&str; 18] = [
    "id",
    "name",
    "description",
    "version",
    "provider",
    "providers",
    "route",
    "input_schema",
    "output_schema",
    "permissions",
    "metadata",
    "attestation",
    "provenance",
    "timeout",
    "max_concurrency",
    "retries",
    "annotations",
    "title",
];
const ATTESTATION: [&str; 5] = ["signature", "authority", "created_at", "expires_at", "metadata"];
const PROVENANCE: [&str; 5] = ["source", "version", "content_hash", "custody_chain", "registered_at"];
/// The longest id, in bytes.
const MAX_ID: usize = 256;

fn read(reader: &mut Reader<'_>, config: &mut Config, path: &'static str, node: &Node) {
    let Shape::List(items) = &node.kind else {
        return reader.problem(node.at, || format!("{path}{}", unexpected(KEY.expected, node)));
    };
    let mut ids: HashMap<String, Position> = HashMap::new();
    for (index, item) in items.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let expected = "a mapping with id and provider, or with openapi";
        let item = &without_nulls(item, false);
        let Some(pairs) = reader.pairs(&path, item, expected) else { continue };
        if pairs.iter().any(|(key, _)| key.text == "openapi") {
            openapi::element(reader, config, &path, item);
            continue;
        }
        let Some((registration, at)) = manifest(reader, &path, item.at, pairs) else { continue };
        let id = &registration.manifest.id;
        if let Some(first) = ids.insert(id.clone(), at) {
            reader.problem(at, || {
                format!("{path}.id: {id} is declared twice, first on line {}", first.line)
            });
            continue;
        }
        config.capabilities.push(Placed { value: registration, at });
    }
}

/// A manifest without its fields that are null: a dump of the document's structs writes every optional field, and one
/// that is null is absent. Schemas and annotations are data, in which null has a meaning, and so is a kind of
/// provider without settings (`{Local: null}`).
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

/// What can only be said when every key is read.
pub(super) fn finish(reader: &mut Reader<'_>, config: &mut Config) {
    let entries = Entries {
        servers: config.servers.iter().map(|one| one.value.name.as_str()).collect(),
        plugins: config.plugins.iter().map(|one| one.value.name.as_str()).collect(),
    };
    for Placed { value, at } in &mut config.capabilities {
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

/// The arguments in the path of an HTTP endpoint that its own input schema, which declares others, does not.
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
    /// Puts the name that an entry is served under in the place of the one that it was written with.
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
        let hint = nearest(name, known.iter().copied());
        let hint = hint.map(|near| format!(", did you mean {near}?")).unwrap_or_default();
        Err(format!("{nothing} {}{hint}", excerpt(name)))
    }
}

/// What is read of one element.
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
    retries: Option<u32>,
    annotations: Option<String>,
    title: Option<String>,
}

fn manifest(
    reader: &mut Reader<'_>,
    path: &str,
    at: Position,
    pairs: &[(Key, Node)],
) -> Option<(Registration, Position)> {
    let mut draft = Draft::default();
    for (key, node) in pairs {
        field(reader, &mut draft, path, key, node);
    }
    let is_given = |name: &str| pairs.iter().any(|(key, _)| key.text == name);
    if !is_given("id") {
        reader.problem(at, || format!("{path}.id: missing, and required"));
    }
    match (is_given("provider"), is_given("providers")) {
        (true, true) => {
            reader.problem(at, || format!("{path}: `provider` and `providers` exclude each other"));
            return None;
        }
        (false, false) => reader.problem(at, || format!("{path}.provider: missing, and required")),
        (true, false) if is_given("route") => {
            reader.problem(at, || format!("{path}.route: there is one provider; use `providers`"));
        }
        _ => {}
    }
    let (id, at) = draft.id?;
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
    registration.policy.retries = draft.retries;
    registration.policy.upstream = provider::upstream(&registration.manifest.provider);
    if let Some(fault) = fault {
        registration.policy = registration.policy.unavailable(fault);
    }
    Some((registration, at))
}

fn field(reader: &mut Reader<'_>, draft: &mut Draft, path: &str, key: &Key, node: &Node) {
    let place = || format!("{path}.{}", key.text);
    match key.text.as_str() {
        "id" => draft.id = id(reader, &place(), node).map(|id| (id, node.at)),
        "name" => draft.name = reader.line(&place(), node, "text that is not empty"),
        "description" => draft.description = reader.line(&place(), node, "text that is not empty"),
        "title" => draft.title = reader.line(&place(), node, "text that is not empty"),
        "version" => draft.version = reader.word_at(&place(), node, "text"),
        "provider" => draft.provider = provider::read(reader, &place(), node),
        "providers" => draft.providers = providers(reader, &place(), node),
        "route" => draft.route = route(reader, &place(), node),
        "input_schema" => {
            draft.input = schema_of(reader, draft, &place(), node).map(|schema| (schema, node.at));
        }
        "output_schema" => draft.output = schema_of(reader, draft, &place(), node),
        "permissions" => {
            draft.permissions = reader.list(&place(), node, "a list of permissions").unwrap_or_default();
        }
        "metadata" => draft.metadata = reader.words(&place(), node).unwrap_or_default(),
        "attestation" => draft.attestation = attestation(reader, &place(), node),
        "provenance" => draft.provenance = provenance(reader, &place(), node),
        "timeout" => draft.timeout = reader.seconds(&place(), node),
        "max_concurrency" => {
            draft.max_concurrency = reader.count(&place(), node, 1, MAX_TOOL_CONCURRENCY);
        }
        "retries" => draft.retries = reader.count(&place(), node, 0, MAX_RETRIES),
        "annotations" => {
            if reader.pairs(&place(), node, "a mapping of MCP's tool annotations").is_some() {
                draft.annotations = Some(node.to_json().to_string());
            }
        }
        other => reader.unknown(key.at, other, &format!("{path}."), FIELDS),
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
                reader.problem(expression.at, || format!("{path}: {problems}"));
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

fn id(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<String> {
    let id = reader.line(path, node, "an id such as weather.current")?;
    if id.len() <= MAX_ID && !id.contains(char::is_control) && id.trim() == id {
        return Some(id);
    }
    let expected = format!("at most {MAX_ID} bytes in one line, without blanks around");
    reader.problem(node.at, || format!("{path}{}", unexpected(&expected, node)));
    None
}

/// The schema of a capability. One that cannot be enforced makes that capability unavailable and no other.
fn schema_of(reader: &Reader<'_>, draft: &mut Draft, path: &str, node: &Node) -> Option<TypeExpr> {
    let schema = schema_from_declaration(&node.to_json());
    let fault = |err| Problem::at(reader.path, node.at, format!("{path}: {err}")).to_string();
    schema.map_err(|err| draft.fault.get_or_insert_with(|| fault(err))).ok()
}

/// JSON Schema, the shorthand, or a type expression of RTFS.
pub(super) fn type_of(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<TypeExpr> {
    match schema_from_declaration(&node.to_json()) {
        Ok(schema) => Some(schema),
        Err(err) => {
            let dot = if err.path.is_empty() { ": " } else { "." };
            reader.problem(node.at, || format!("{path}{dot}{err}"));
            None
        }
    }
}

fn attestation(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<CapabilityAttestation> {
    let pairs = reader.pairs(path, node, "a mapping with signature, authority and created_at")?;
    let (mut texts, mut times, mut metadata) = (HashMap::new(), HashMap::new(), BTreeMap::new());
    for (key, node) in pairs {
        let place = format!("{path}.{}", excerpt(&key.text));
        match key.text.as_str() {
            name @ ("signature" | "authority") => {
                texts.extend(reader.line(&place, node, "text").map(|text| (name, text)));
            }
            name @ ("created_at" | "expires_at") => {
                times.extend(time(reader, &place, node).map(|time| (name, time)));
            }
            "metadata" => metadata = reader.words(&place, node).unwrap_or_default(),
            other => reader.unknown(key.at, other, &format!("{path}."), ATTESTATION),
        }
    }
    require(reader, path, node.at, pairs, &["signature", "authority", "created_at"]);
    Some(CapabilityAttestation {
        signature: texts.remove("signature")?,
        authority: texts.remove("authority")?,
        created_at: times.remove("created_at")?,
        expires_at: times.remove("expires_at"),
        metadata,
    })
}

fn provenance(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<CapabilityProvenance> {
    let pairs = reader.pairs(path, node, "a mapping with source")?;
    let (mut texts, mut custody_chain, mut registered_at) = (HashMap::new(), Vec::new(), None);
    for (key, node) in pairs {
        let place = format!("{path}.{}", excerpt(&key.text));
        match key.text.as_str() {
            name @ ("source" | "version" | "content_hash") => {
                texts.extend(reader.word_at(&place, node, "text").map(|text| (name, text)));
            }
            "custody_chain" => {
                custody_chain = reader.list(&place, node, "a list of texts").unwrap_or_default();
            }
            "registered_at" => registered_at = time(reader, &place, node),
            other => reader.unknown(key.at, other, &format!("{path}."), PROVENANCE),
        }
    }
    require(reader, path, node.at, pairs, &["source"]);
    Some(CapabilityProvenance {
        source: texts.remove("source")?,
        version: texts.remove("version"),
        content_hash: texts.remove("content_hash").unwrap_or_default(),
        custody_chain,
        registered_at: registered_at.unwrap_or_else(SystemTime::now),
    })
}

fn require(reader: &mut Reader<'_>, path: &str, at: Position, pairs: &[(Key, Node)], names: &[&str]) {
    for name in names {
        if !pairs.iter().any(|(key, _)| key.text == *name) {
            reader.problem(at, || format!("{path}.{name}: missing, and required"));
        }
    }
}

/// An instant, as RFC 3339 writes it.
fn time(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<SystemTime> {
    let expected = "an instant such as 2026-01-31T12:00:00Z";
    let text = reader.word_at(path, node, expected)?;
    let instant = text.parse::<jiff::Timestamp>().ok().map(|instant| {
        let since = Duration::try_from(instant.duration_since(jiff::Timestamp::UNIX_EPOCH));
        SystemTime::UNIX_EPOCH + since.unwrap_or_default()
    });
    if instant.is_none() {
        reader.problem(node.at, || format!("{path}{}", unexpected(expected, node)));
    }
    instant
}

fn schema() -> Value {
    let text = json!({"type": "string", "minLength": 1});
    let texts =
        json!({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}});
    let list = json!({"type": "array", "items": text});
    let described = |schema: &Value, about: &str| {
        let mut schema = schema.clone();
        schema["description"] = about.into();
        schema
    };
    let schema = json!({"description": "JSON Schema, the shorthand `field: type`, or a type of RTFS.", "type": ["object", "string"]});
    let mut manifest = json!({
        "type": "object",
        "required": ["id"],
        "oneOf": [{"required": ["provider"]}, {"required": ["providers"]}],
        "properties": {
            "id": described(&text, "Unique; PROVIDER.NAME is served as PROVIDER__NAME."),
            "name": described(&text, "The name for people."),
            "title": described(&text, "The title that clients show."),
            "description": described(&text, "What it does, in words that a model can choose by."),
            "version": {"type": ["string", "number"]},
            "provider": defined("provider"),
            "providers": {"type": "array", "minItems": 1, "items": defined("provider"),
                "description": "Several providers of one capability; `route` says which one a call uses."},
            "route": {"anyOf": [{"enum": ["failover", "round_robin", "least_busy"]},
                {"type": "object", "properties": {"by": described(&text, "An expression of RTFS over `input`; the same value goes to the same provider.")},
                    "required": ["by"], "additionalProperties": false}],
                "default": "failover", "description": "Which of the providers a call uses first; it goes on to the next where that one cannot be reached."},
            "input_schema": schema,
            "output_schema": schema,
            "permissions": described(&list, "What it needs, such as net:api.example.com."),
            "metadata": texts,
            "annotations": {"type": "object", "description": "MCP's tool annotations: readOnlyHint, idempotentHint, destructiveHint, openWorldHint."},
            "attestation": {"type": "object", "required": ["signature", "authority", "created_at"],
                "properties": {"signature": text, "authority": text, "created_at": text, "expires_at": text, "metadata": texts},
                "additionalProperties": false},
            "provenance": {"type": "object", "required": ["source"],
                "properties": {"source": text, "version": {"type": ["string", "number"]}, "content_hash": text, "custody_chain": list, "registered_at": text},
                "additionalProperties": false},
            "timeout": {"anyOf": [seconds(86_400), variable()], "description": "Seconds that one call may take."},
            "max_concurrency": {"anyOf": [whole(1, MAX_TOOL_CONCURRENCY), variable()],
                "description": "Calls of it that run at once."},
            "retries": {"anyOf": [whole(0, MAX_RETRIES as usize), variable()],
                "description": "How often a call that failed for a passing reason is made again, if the annotations say that repeating it does no harm."},
        },
        "additionalProperties": false,
    });
    admit_nulls(&mut manifest);
    json!({"type": "array", "items": {"anyOf": [manifest, defined("document")]}})
}

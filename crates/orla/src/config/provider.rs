//! `provider` of a capability (RTFS capability system §3.2–§3.3), in the forms in which people write it.
//!
//! `{Http: {base_url: …}}` as the document has it, whatever the case of the kind; `{type: http, base_url: …}`; and
//! `local` alone, where nothing more is to be said. What the document leaves open stands beside its fields,
//! or below `options`.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use orla_document::{Key, Kind as Shape, Node, Position};
use orla_marketplace::{
    BodyMapping, CapabilityManifest, CredentialPlace, CustomProvider, HttpCapability, HttpCredential,
    HttpOptions, LocalCapability, MCPCapability, PluginCapability, ProviderType, Redirects, Route,
    Routed,
};
use orla_providers::builtin;
use orla_providers::plugin::ENTRY;
use serde_json::{Value, json};

use super::agents;
use super::fields::Check;
use super::keys::{list_of, nearest};
use super::plugins::file;
use super::read::{Reader, excerpt, shown, unexpected};
use super::remotes;
use super::schema::{admit_nulls, variable, whole};
use super::servers::header;
use super::streams;
use crate::extensions::Unusable;

/// The kinds that have an executor.
const KINDS: [&str; 9] =
    ["Local", "Http", "MCP", "A2A", "Plugin", "RemoteRTFS", "Remote", "Stream", "Custom"];

const LOCAL: [&str; 1] = ["function"];
pub(super) const HTTP: [&str; 15] = [
    "base_url",
    "auth_token",
    "timeout_ms",
    "options",
    "method",
    "path",
    "query",
    "headers",
    "body",
    "media_type",
    "credentials",
    "accept",
    "redirects",
    "max_redirects",
    "max_answer_bytes",
];
const MCP: [&str; 3] = ["server_url", "tool_name", "timeout_ms"];
const PLUGIN: [&str; 2] = ["plugin_path", "function_name"];
const METHODS: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
/// A day.
pub(super) const MAX_MS: u64 = 86_400_000;

/// The provider of the capability with this id: a built-in that has no name is the one of that name, and so is
/// what another instance serves.
pub(super) fn of(mut provider: ProviderType, id: &str) -> ProviderType {
    if let ProviderType::Local(local) = &mut provider
        && local.function.is_empty()
    {
        id.clone_into(&mut local.function);
    }
    if let ProviderType::RemoteRTFS(remote) = &mut provider {
        remote.options.capability.get_or_insert_with(|| id.to_owned());
    }
    provider
}

/// The provider of a capability that has several.
///
/// # Errors
/// One of them cannot stand beside others; the text begins with its index.
pub(super) fn routed(
    route: Route,
    providers: Vec<ProviderType>,
    id: &str,
    is_idempotent: bool,
) -> Result<ProviderType, String> {
    let mut named: Vec<(String, ProviderType)> = Vec::with_capacity(providers.len());
    for (index, provider) in providers.into_iter().enumerate() {
        let provider = of(provider, id);
        if let ProviderType::Stream(_) = provider {
            return Err(format!("[{index}]: a stream cannot be one of several providers"));
        }
        let mut manifest = CapabilityManifest::new(id, "", provider);
        complete(&mut manifest).map_err(|problem| format!("[{index}]: {problem}"))?;
        let provider = manifest.provider;
        let name =
            upstream(&provider).map_or_else(|| provider.kind().to_owned(), |name| name.to_string());
        let same = named.iter().filter(|(known, _)| known.split(" #").next() == Some(&name)).count();
        let name = if same == 0 { name } else { format!("{name} #{}", same + 1) };
        named.push((name, provider));
    }
    Ok(ProviderType::Custom(Arc::new(Routed::new(route, named, is_idempotent))))
}

/// A provider in any of its forms.
pub(super) fn read(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<ProviderType> {
    let expected = "a mapping such as {Http: {base_url: …}} or {type: http, base_url: …}";
    let pairs = match &node.kind {
        Shape::Scalar(_) => {
            let kind = reader.line(path, node, expected)?;
            return settings(reader, path, node.at, &kind, &[]);
        }
        Shape::Map(pairs) => pairs,
        Shape::List(_) => {
            reader.problem(node.at, || format!("{path}{}", unexpected(expected, node)));
            return None;
        }
    };
    if let Some((_, kind)) = pairs.iter().find(|(key, _)| key.text == "type") {
        let kind = reader.line(&format!("{path}.type"), kind, "a kind of provider")?;
        let others: Vec<(Key, Node)> =
            pairs.iter().filter(|(key, _)| key.text != "type").cloned().collect();
        return settings(reader, path, node.at, &kind, &others);
    }
    match pairs.as_slice() {
        [(kind, inner)] => {
            let path = format!("{path}.{}", excerpt(&kind.text));
            if inner.is_null() {
                return settings(reader, &path, kind.at, &kind.text, &[]);
            }
            let inner = reader.pairs(&path, inner, "a mapping of the provider's settings")?;
            settings(reader, &path, kind.at, &kind.text, inner)
        }
        _ => {
            reader.problem(node.at, || format!("{path}: expected {expected}, got {} keys", pairs.len()));
            None
        }
    }
}

fn settings(
    reader: &mut Reader<'_>,
    path: &str,
    at: Position,
    kind: &str,
    pairs: &[(Key, Node)],
) -> Option<ProviderType> {
    let plain = |name: &str| name.to_lowercase().replace(['_', '-'], "");
    let is = |name: &&&str| plain(name) == plain(kind);
    match KINDS.iter().find(is) {
        Some(&"Local") => local_of(reader, path, pairs).map(ProviderType::Local),
        Some(&"Http") => http(reader, path, at, pairs).map(ProviderType::Http),
        Some(&"Plugin") => plugin(reader, path, at, pairs).map(ProviderType::Plugin),
        Some(&("RemoteRTFS" | "Remote")) => {
            remotes::provider(reader, path, at, pairs).map(ProviderType::RemoteRTFS)
        }
        Some(&"Stream") => streams::provider(reader, path, at, pairs).map(ProviderType::Stream),
        Some(&"MCP") => mcp(reader, path, at, pairs).map(ProviderType::MCP),
        Some(&"Custom") => custom(reader, path, at, pairs).map(ProviderType::Custom),
        Some(_) => agents::provider(reader, path, at, pairs).map(ProviderType::A2A),
        None => {
            let kinds = list_of(&KINDS);
            let kind = excerpt(kind);
            reader.problem(at, || format!("{path}: unknown kind {kind:?}; supported are {kinds}"));
            None
        }
    }
}

fn local_of(reader: &mut Reader<'_>, path: &str, pairs: &[(Key, Node)]) -> Option<LocalCapability> {
    let mut settings = LocalCapability::new("");
    for (key, node) in pairs {
        if key.text == "function" {
            settings.function =
                reader.line(&format!("{path}.function"), node, "the name of a built-in")?;
        } else {
            reader.unknown(key.at, &key.text, &format!("{path}."), LOCAL);
        }
    }
    Some(settings)
}

fn mcp(
    reader: &mut Reader<'_>,
    path: &str,
    at: Position,
    pairs: &[(Key, Node)],
) -> Option<MCPCapability> {
    let (mut server, mut tool, mut timeout) = (None, String::new(), 0);
    for (key, node) in pairs {
        let place = format!("{path}.{}", excerpt(&key.text));
        match key.text.as_str() {
            "server_url" => server = Some(server_url(reader, &place, node)?),
            "tool_name" => {
                tool = reader.word_at(&place, node, "the name of a tool, or a pattern of names")?;
            }
            "timeout_ms" => timeout = reader.count(&place, node, 0, MAX_MS)?,
            other => reader.unknown(key.at, other, &format!("{path}."), MCP),
        }
    }
    if server.is_none() {
        reader.problem(at, || format!("{path}.server_url: missing, and required"));
    }
    Some(MCPCapability::new(server?, tool, timeout))
}

fn plugin(
    reader: &mut Reader<'_>,
    path: &str,
    at: Position,
    pairs: &[(Key, Node)],
) -> Option<PluginCapability> {
    let (mut program, mut function) = (None, None);
    for (key, node) in pairs {
        let place = format!("{path}.{}", excerpt(&key.text));
        match key.text.as_str() {
            "plugin_path" => {
                let text = reader.line(&place, node, "a program's path, or plugin:NAME")?;
                program = Some(if text.starts_with(ENTRY) { text } else { file(reader, &text) });
            }
            "function_name" => function = Some(reader.line(&place, node, "the name of a function")?),
            other => reader.unknown(key.at, other, &format!("{path}."), PLUGIN),
        }
    }
    for (name, is_given) in PLUGIN.into_iter().zip([program.is_some(), function.is_some()]) {
        if !is_given {
            reader.problem(at, || format!("{path}.{name}: missing, and required"));
        }
    }
    Some(PluginCapability::new(program?, function?))
}

/// A kind that the program adds, with the settings that it takes.
fn custom(
    reader: &mut Reader<'_>,
    path: &str,
    at: Position,
    pairs: &[(Key, Node)],
) -> Option<Arc<dyn CustomProvider>> {
    let (mut kind, mut settings) = (None, serde_json::Map::new());
    for (key, node) in pairs {
        let place = format!("{path}.{}", excerpt(&key.text));
        if key.text == "kind" {
            kind =
                Some((reader.line(&place, node, "the name of a kind that the program adds")?, node.at));
        } else {
            settings.insert(key.text.clone(), reader.json(&place, node)?);
        }
    }
    let Some((kind, kind_at)) = kind else {
        reader.problem(at, || format!("{path}.kind: missing, and required"));
        return None;
    };
    match reader.extensions.provider(&kind, settings.into()) {
        Ok(provider) => return Some(provider),
        Err(Unusable::Kind(problem)) => {
            reader.problem(kind_at, || format!("{path}.kind: {problem}"));
        }
        Err(Unusable::Settings(problem)) => reader.problem(at, || format!("{path}: {problem}")),
    }
    None
}

fn server_url(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<String> {
    // An address or a command line may hold a secret.
    let url = reader.secret(path, node)?;
    if url.starts_with("http://") || url.starts_with("https://") {
        return reader.url(path, node, "https://example.com/mcp");
    }
    let rest = url.strip_prefix("stdio:").or_else(|| url.strip_prefix("mcp:"));
    if rest.is_none_or(|rest| rest.trim().is_empty()) {
        reader.problem(node.at, || {
            format!(
                "{path}: expected http(s)://…, stdio:COMMAND ARGS… or mcp:NAME (a server of mcpServers)"
            )
        });
        return None;
    }
    match orla_providers::mcp::check(&url) {
        Ok(()) => Some(url),
        Err(problem) => {
            reader.problem(node.at, || format!("{path}: {problem}"));
            None
        }
    }
}

/// An address of an API, as an example.
pub(super) const API: &str = "https://api.example.com/v1";

pub(super) fn http(
    reader: &mut Reader<'_>,
    path: &str,
    at: Position,
    pairs: &[(Key, Node)],
) -> Option<HttpCapability> {
    let mut http = HttpCapability::new("", None, 0);
    let mut given = HashSet::new();
    for (key, node) in pairs {
        let place = format!("{path}.{}", excerpt(&key.text));
        given.insert(key.text.as_str());
        match key.text.as_str() {
            "base_url" => http.base_url = reader.url(&place, node, API)?,
            "auth_token" if node.is_null() => {}
            "auth_token" => http.auth_token = Some(token(reader, &place, node)?),
            "timeout_ms" => http.timeout_ms = reader.count(&place, node, 0, MAX_MS)?,
            "options" => {
                for (key, node) in reader.pairs(&place, node, "a mapping of options")? {
                    let place = format!("{place}.{}", excerpt(&key.text));
                    option(reader, &mut http.options, &place, path, key, node);
                }
            }
            _ => option(reader, &mut http.options, &place, path, key, node),
        }
    }
    if !given.contains("base_url") {
        reader.problem(at, || format!("{path}.base_url: missing, and required"));
        return None;
    }
    if let Err(problem) = orla_providers::http::check(&http) {
        reader.problem(at, || format!("{path}: {problem}"));
        return None;
    }
    Some(http)
}

pub(super) fn token(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<String> {
    let token = reader.secret(path, node)?;
    if !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Some(token);
    }
    reader.problem(node.at, || format!("{path}: expected a token of visible ASCII characters"));
    None
}

fn option(
    reader: &mut Reader<'_>,
    options: &mut HttpOptions,
    place: &str,
    path: &str,
    key: &Key,
    node: &Node,
) {
    match key.text.as_str() {
        "method" => {
            let expected = list_of(&METHODS);
            let Some(method) = reader.line(place, node, &expected) else { return };
            let method = method.to_ascii_uppercase();
            if METHODS.contains(&method.as_str()) {
                options.method = Some(method);
            } else {
                reader.problem(node.at, || format!("{place}{}", unexpected(&expected, node)));
            }
        }
        "path" => options.path = reader.secret(place, node).unwrap_or_default(),
        "query" => options.query = reader.secrets(place, node, |_, _| Ok(())).unwrap_or_default(),
        "headers" => options.headers = reader.secrets(place, node, header).unwrap_or_default(),
        "body" => options.body = body(reader, place, node).unwrap_or_default(),
        "media_type" => options.media_type = reader.line(place, node, "a media type"),
        "credentials" => options.credentials = credentials(reader, place, node),
        "accept" => {
            options.accept = reader.list(place, node, "a list of media types").unwrap_or_default();
        }
        "redirects" => {
            options.redirects = match reader.line(place, node, REDIRECTS).as_deref() {
                Some("none") => Redirects::None,
                Some("same_origin") => Redirects::SameOrigin,
                Some("any") | None => Redirects::Any,
                Some(other) => {
                    let got = shown(node, other);
                    return reader
                        .problem(node.at, || format!("{place}: expected {REDIRECTS}, got {got}"));
                }
            }
        }
        "max_redirects" => {
            options.max_redirects = reader.count(place, node, 0, 20).unwrap_or_default();
        }
        "max_answer_bytes" => {
            options.max_answer_bytes = reader.count(place, node, 1, 1 << 30).unwrap_or_default();
        }
        "allow_private_redirects" => {
            options.allow_private_redirects =
                reader.flag(place, node, "true or false").unwrap_or_default();
        }
        other => reader.unknown(key.at, other, &format!("{path}."), HTTP),
    }
}

const REDIRECTS: &str = "none, same_origin or any";

/// `rest`, `none`, or `{argument: NAME}`.
fn body(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<BodyMapping> {
    let expected = "rest, none or {argument: NAME}";
    if let Shape::Map(pairs) = &node.kind
        && let [(key, name)] = pairs.as_slice()
        && key.text == "argument"
    {
        let name = reader.word_at(&format!("{path}.argument"), name, "the name of an argument");
        return name.map(BodyMapping::Argument);
    }
    match node.as_scalar().map(|scalar| scalar.text.as_str()) {
        Some("rest") => Some(BodyMapping::Rest),
        Some("none") => Some(BodyMapping::None),
        _ => {
            reader.problem(node.at, || format!("{path}{}", unexpected(expected, node)));
            None
        }
    }
}

/// `{header: {X-Key: …}, query: {key: …}, cookie: {session: …}}`
fn credentials(reader: &mut Reader<'_>, path: &str, node: &Node) -> Vec<HttpCredential> {
    let expected = "a mapping with header, query or cookie";
    let mut credentials = Vec::new();
    for (key, node) in reader.pairs(path, node, expected).unwrap_or_default() {
        let place = format!("{path}.{}", excerpt(&key.text));
        let (make, check): (fn(String) -> CredentialPlace, Check) = match key.text.as_str() {
            "header" => (CredentialPlace::Header, header),
            "query" => (CredentialPlace::Query, |_, _| Ok(())),
            "cookie" => (CredentialPlace::Cookie, header),
            other => {
                reader.unknown(key.at, other, &format!("{path}."), ["header", "query", "cookie"]);
                continue;
            }
        };
        let secrets = reader.secrets(&place, node, check).unwrap_or_default();
        let credential = |(name, value)| HttpCredential { place: make(name), value };
        credentials.extend(secrets.into_iter().map(credential));
    }
    credentials
}

/// Completes the manifest of a built-in with what the built-in says of itself, and that of a stream.
///
/// # Errors
/// There is no such built-in.
pub(super) fn complete(manifest: &mut CapabilityManifest) -> Result<(), String> {
    streams::complete(manifest);
    let ProviderType::Local(settings) = &manifest.provider else { return Ok(()) };
    let Some(builtin) = builtin::registration_of(&settings.function) else {
        let all = builtin::registrations();
        let near = nearest(&settings.function, all.iter().map(|one| one.manifest.id.as_str()));
        let hint = near.map(|near| format!(", did you mean {near}?")).unwrap_or_default();
        return Err(format!("no built-in is named {}{hint}", excerpt(&settings.function)));
    };
    let own = builtin.manifest.clone();
    if manifest.description.is_empty() {
        manifest.description = own.description;
    }
    manifest.input_schema = manifest.input_schema.take().or(own.input_schema);
    manifest.output_schema = manifest.output_schema.take().or(own.output_schema);
    for (key, value) in own.metadata {
        manifest.metadata.entry(key).or_insert(value);
    }
    Ok(())
}

/// A description of a capability that has none of its own.
pub(crate) fn description(provider: &ProviderType) -> String {
    match provider {
        ProviderType::Http(http) => {
            let method = http.options.method.as_deref().unwrap_or("POST");
            let path = http.options.path.split('?').next().unwrap_or_default();
            format!("Sends {method} {}{path} and gives the answer.", http.address())
        }
        ProviderType::MCP(mcp) => match origin(&mcp.server_url) {
            Some(origin) => format!("The tool {} of the MCP server at {origin}.", mcp.tool_name),
            None => {
                let server = mcp.server_url.strip_prefix("mcp:");
                let server = server.map(|name| format!(" {name}")).unwrap_or_default();
                format!("The tool {} of the MCP server{server}.", mcp.tool_name)
            }
        },
        ProviderType::Plugin(plugin) => {
            let name = plugin.plugin_path.rsplit('/').next().unwrap_or_default();
            format!("The function {} of the plugin {name}.", plugin.function_name)
        }
        ProviderType::RemoteRTFS(remote) => {
            let capability = remote.options.capability.as_deref().unwrap_or_default();
            format!("The capability {capability} of the instance at {}.", remote.address())
        }
        ProviderType::Stream(stream) => streams::description(stream),
        ProviderType::A2A(agent) if !agent.agent_id.is_empty() => {
            format!("Sends a message to the agent {} and gives what it answers.", agent.agent_id)
        }
        other => match other.settings::<Routed>() {
            Ok(routed) => {
                let names: Vec<&str> = routed.providers().map(|(name, _)| name).collect();
                format!("A capability of several providers ({}): {}.", routed.route(), names.join(", "))
            }
            Err(_) => format!("A capability of kind {}.", other.kind()),
        },
    }
}

/// How long one call may take, where the provider's settings say so.
pub(super) fn timeout(provider: &ProviderType) -> Option<Duration> {
    let ms = match provider {
        ProviderType::Http(http) => http.timeout_ms,
        ProviderType::MCP(mcp) => mcp.timeout_ms,
        ProviderType::A2A(agent) => agent.timeout_ms,
        ProviderType::RemoteRTFS(remote) => remote.timeout_ms,
        _ => 0,
    };
    (ms > 0).then(|| Duration::from_millis(ms))
}

/// What the provider shares its fate with.
pub(super) fn upstream(provider: &ProviderType) -> Option<Arc<str>> {
    match provider {
        ProviderType::Http(http) => origin(&http.base_url).map(Into::into),
        ProviderType::MCP(mcp) => match mcp.server_url.starts_with("mcp:") {
            true => Some(mcp.server_url.as_str().into()),
            false => origin(&mcp.server_url).map(Into::into),
        },
        ProviderType::A2A(agent) => origin(&agent.endpoint).map(Into::into),
        ProviderType::RemoteRTFS(remote) => origin(&remote.endpoint).map(Into::into),
        ProviderType::Stream(stream) => upstream(&stream.provider),
        _ => None,
    }
}

/// `scheme://host:port` of an address.
fn origin(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit('@').next()?;
    Some(format!("{}://{}", scheme.to_ascii_lowercase(), host.to_ascii_lowercase()))
}

/// The schema of a provider in all its forms.
pub(super) fn definition() -> Value {
    let text = json!({"type": "string", "minLength": 1});
    let texts =
        json!({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}});
    let ms = json!({"anyOf": [{"type": "integer", "minimum": 0, "maximum": MAX_MS}, variable()],
        "description": "Milliseconds that one call may take."});
    let local = json!({"function": {"type": "string", "description": "The built-in; by default, the one of the capability's id."}});
    let mcp = json!({
        "server_url": {"type": "string", "description": "http(s)://…, stdio:COMMAND ARGS…, or mcp:NAME for a server of mcpServers."},
        "tool_name": {"type": ["string", "null"], "description": "The tool, or a pattern of tools (get*); empty is all of them."},
        "timeout_ms": ms,
    });
    let plugin = json!({
        "plugin_path": {"type": "string", "description": "The program, relative to this file; or plugin:NAME for one of plugins."},
        "function_name": {"type": "string", "description": "The function."},
    });
    let http = json!({
        "base_url": {"type": "string", "description": "The origin, and the path below which requests go."},
        "auth_token": {"type": ["string", "null"], "description": "Sent as a bearer token."},
        "timeout_ms": ms,
        "method": {"type": "string", "description": "POST by default."},
        "path": {"type": "string", "description": "Appended to base_url; {name} stands for that argument."},
        "query": texts,
        "headers": texts,
        "body": {"description": "What of the arguments becomes the body.", "anyOf": [{"enum": ["rest", "none"]},
            {"type": "object", "properties": {"argument": text}, "required": ["argument"], "additionalProperties": false}]},
        "media_type": {"type": "string", "description": "Of the body; application/json by default."},
        "credentials": {"type": "object", "properties": {"header": texts, "query": texts, "cookie": texts}, "additionalProperties": false},
        "accept": {"type": "array", "items": text, "description": "The media types of answers; any by default."},
        "redirects": {"enum": ["none", "same_origin", "any"]},
        "max_redirects": {"anyOf": [whole(0, 20), variable()]},
        "max_answer_bytes": {"anyOf": [whole(1, 1 << 30), variable()]},
        "allow_private_redirects": {"type": "boolean"},
        "options": {"type": "object"},
    });
    let kind = json!({"type": "string", "minLength": 1,
        "description": "A kind that a program built on orla adds; the other keys are its settings."});
    let named = |name: &str, properties: &Value, required: &Value| {
        json!({"type": "object", "properties": {name: {"type": ["object", "null"], "properties": properties, "required": required,
            "additionalProperties": false}}, "required": [name], "additionalProperties": false})
    };
    let typed = |names: &Value, properties: &Value, required: &Value| {
        let mut properties = properties.clone();
        properties["type"] = json!({"enum": names});
        json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
    };
    let mut definition = json!({"anyOf": [
        named("Local", &local, &json!([])),
        named("Http", &http, &json!(["base_url"])),
        named("MCP", &mcp, &json!(["server_url"])),
        named("A2A", &agents::provider_properties(), &json!(["endpoint"])),
        named("Plugin", &plugin, &json!(["plugin_path", "function_name"])),
        named("RemoteRTFS", &remotes::provider_properties(), &json!(["endpoint"])),
        named("Stream", &streams::properties(&http), &json!([])),
        named("Remote", &remotes::provider_properties(), &json!(["endpoint"])),
        typed(&json!(["local", "Local"]), &local, &json!(["type"])),
        typed(&json!(["http", "Http", "HTTP"]), &http, &json!(["type", "base_url"])),
        typed(&json!(["mcp", "MCP"]), &mcp, &json!(["type", "server_url"])),
        typed(&json!(["a2a", "A2A"]), &agents::provider_properties(), &json!(["type", "endpoint"])),
        typed(&json!(["plugin", "Plugin"]), &plugin, &json!(["type", "plugin_path", "function_name"])),
        typed(&json!(["stream", "Stream"]), &streams::properties(&http), &json!(["type"])),
        typed(&json!(["remote", "Remote", "RemoteRTFS"]), &remotes::provider_properties(), &json!(["type", "endpoint"])),
        {"type": "object", "properties": {"Custom": {"type": "object", "properties": {"kind": kind}, "required": ["kind"]}},
            "required": ["Custom"], "additionalProperties": false},
        {"type": "object", "properties": {"type": {"enum": ["custom", "Custom"]}, "kind": kind}, "required": ["type", "kind"]},
        {"enum": ["local", "Local"]},
    ]});
    admit_nulls(&mut definition);
    definition
}

//! `provider` of a capability (RTFS capability system §3.2–§3.3), in all supported notations.
//!
//! `{Http: {base_url: …}}` as in the document, in upper or lower case; `{type: http, base_url: …}`; and
//! `local` alone, which needs no settings. Settings that the document does not define are placed beside
//! its fields, or below `options`.

use std::sync::Arc;
use std::time::Duration;

use orla_document::{Key as Name, Kind as Shape, Node, Position};
use orla_marketplace::rtfs::text::nearest;
use orla_marketplace::{
    A2ACapability, BodyMapping, CapabilityManifest, CredentialPlace, CustomProvider, HttpCapability,
    HttpCredential, LocalCapability, MCPCapability, PluginCapability, ProviderType, Redirects,
    RemoteRTFSCapability, Route, Routed,
};
use orla_providers::builtin;
use orla_providers::plugin::ENTRY;
use serde_json::{Value, json};

use super::agents;
use super::forms::{
    API_URL, Check, Choice, Count, DAY_MS, Flag, Form, HEADERS, Read, SECRET, SECRETS, TOKEN, Text,
    WORD, header, text_schema, texts_or_text,
};
use super::keys::{Key, key, object, present, section};
use super::plugins::file;
use super::read::{Reader, excerpt, unexpected};
use super::remotes;
use super::schema::admit_nulls;
use super::sign_in::{SIGN_IN, authorization};
use super::streams;
use crate::extensions::Unusable;
use crate::text::{list_of, suggestion};

/// Reads the settings of a provider from the entries of the mapping at the path and position.
type ReadSettings = fn(&mut Reader<'_>, &str, Position, &[(Name, Node)]) -> Option<ProviderType>;

/// The words for kinds of provider in a configuration, each with the function that reads its settings.
#[rustfmt::skip] // A table.
const KINDS: [(&str, ReadSettings); 9] = [
    ("Local", local),
    ("Http", |reader, path, at, pairs| http(reader, path, at, pairs).map(ProviderType::Http)),
    ("MCP", mcp),
    ("A2A", |reader, path, at, pairs| agents::provider(reader, path, at, pairs).map(ProviderType::A2A)),
    ("Plugin", plugin),
    ("RemoteRTFS", remote),
    ("Remote", remote),
    ("Stream", |reader, path, at, pairs| streams::provider(reader, path, at, pairs).map(ProviderType::Stream)),
    ("Custom", |reader, path, at, pairs| custom(reader, path, at, pairs).map(ProviderType::Custom)),
];

const METHODS: &[(&str, &str)] = &[
    ("GET", "GET"),
    ("POST", "POST"),
    ("PUT", "PUT"),
    ("PATCH", "PATCH"),
    ("DELETE", "DELETE"),
    ("HEAD", "HEAD"),
    ("OPTIONS", "OPTIONS"),
];
const REDIRECTS: &[(&str, Redirects)] =
    &[("none", Redirects::None), ("same_origin", Redirects::SameOrigin), ("any", Redirects::Any)];
const TIMEOUT: &str = "maximum milliseconds for one call";

#[rustfmt::skip] // A table: each key has a line for its value and one for its meaning.
fn local_keys() -> Vec<Key<LocalCapability>> {
    vec![
        key("function", Text("the name of a built-in"), |l| &mut l.function,
            "the built-in; by default, the one with the id of the capability"),
    ]
}

#[rustfmt::skip] // A table.
fn mcp_keys() -> Vec<Key<MCPCapability>> {
    vec![
        key("server_url", Read(server_url, text_schema), |m: &mut MCPCapability| &mut m.server_url,
            "`http(s)://…`, `stdio:COMMAND ARGS…`, or `mcp:NAME` for a server of `mcpServers`").required(),
        key("tool_name", WORD, |m| &mut m.tool_name,
            "the tool, or a pattern of tools (`get*`); all tools by default"),
        key("timeout_ms", Count(0, DAY_MS), |m| &mut m.timeout_ms, TIMEOUT),
    ]
}

#[rustfmt::skip] // A table.
fn plugin_keys() -> Vec<Key<PluginCapability>> {
    vec![
        key("plugin_path", Read(plugin_path, text_schema), |p: &mut PluginCapability| &mut p.plugin_path,
            "the program, relative to this file; or `plugin:NAME` for an entry of `plugins`").required(),
        key("function_name", Text("the name of a function"), |p: &mut PluginCapability| &mut p.function_name, "the function").required(),
    ]
}

#[rustfmt::skip] // A table.
pub(super) fn http_keys() -> Vec<Key<HttpCapability>> {
    let mut keys = vec![
        key("base_url", API_URL, |h: &mut HttpCapability| &mut h.base_url,
            "the origin, and the path that precedes the path of every request").required(),
        key("auth_token", TOKEN, |h| &mut h.auth_token, "bearer token"),
        key("auth", SIGN_IN, |h| &mut h.options.sign_in,
            "how orla gets its tokens for the API, as for [MCP servers](identity.md#sign-in-at-servers)"),
        key("timeout_ms", Count(0, DAY_MS), |h| &mut h.timeout_ms, TIMEOUT),
    ];
    keys.extend(http_options());
    keys.push(section("options", http_options(), "the other keys may stand here too"));
    keys
}

#[rustfmt::skip] // A table.
fn http_options() -> Vec<Key<HttpCapability>> {
    vec![
        key("method", Read(method, || Choice(METHODS).schema()), |h| &mut h.options.method, "`POST` by default"),
        key("path", SECRET, |h| &mut h.options.path,
            "appended to `base_url`; `{name}` stands for the argument `name`"),
        key("query", SECRETS, |h| &mut h.options.query, "parameters of the query"),
        key("headers", HEADERS, |h| &mut h.options.headers, "header fields of the request"),
        key("body", Read(body, body_schema), |h| &mut h.options.body,
            "which arguments become the body: `rest`, `none`, or `{argument: NAME}`"),
        key("media_type", Text("a media type"), |h| &mut h.options.media_type,
            "media type of the body; `application/json` by default"),
        key("credentials", Read(credentials, credentials_schema), |h| &mut h.options.credentials,
            "secrets, as `header`, `query` or `cookie` parameters"),
        key("accept", Read(|reader, path, node| reader.list(path, node, "a list of media types"), texts_or_text),
            |h| &mut h.options.accept, "accepted media types of responses; all by default"),
        key("redirects", Choice(REDIRECTS), |h| &mut h.options.redirects, "which redirects orla follows"),
        key("max_redirects", Count(0, 20), |h| &mut h.options.max_redirects, "maximum number of redirects"),
        key("max_answer_bytes", Count(1, 1 << 30), |h| &mut h.options.max_answer_bytes,
            "maximum bytes of a response"),
        key("allow_private_redirects", Flag, |h| &mut h.options.allow_private_redirects,
            "whether redirects may lead to this machine and to local networks"),
    ]
}

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

/// Returns the provider of a capability that has several.
///
/// # Errors
///
/// Returns an error if a provider cannot be combined with others. The text begins with its index.
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

/// Returns a provider in any of its forms.
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
        let others: Vec<(Name, Node)> =
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
    pairs: &[(Name, Node)],
) -> Option<ProviderType> {
    let plain = |name: &str| name.to_lowercase().replace(['_', '-'], "");
    match KINDS.iter().find(|(name, _)| plain(name) == plain(kind)) {
        Some((_, read)) => read(reader, path, at, pairs),
        None => {
            let names = KINDS.map(|(name, _)| name);
            let near = nearest(kind, names);
            let hint = near.map(|near| format!(" (did you mean {near}?)")).unwrap_or_default();
            let kinds = list_of(&names);
            let kind = excerpt(kind);
            reader.problem(at, || format!("{path}: unknown kind {kind:?}{hint}; supported are {kinds}"));
            None
        }
    }
}

fn local(
    reader: &mut Reader<'_>,
    path: &str,
    at: Position,
    pairs: &[(Name, Node)],
) -> Option<ProviderType> {
    let mut local = LocalCapability::new("");
    reader.mapping(path, at, pairs, &local_keys(), &mut local)?;
    Some(ProviderType::Local(local))
}

fn mcp(
    reader: &mut Reader<'_>,
    path: &str,
    at: Position,
    pairs: &[(Name, Node)],
) -> Option<ProviderType> {
    let mut mcp = MCPCapability::new("", "", 0);
    reader.mapping(path, at, pairs, &mcp_keys(), &mut mcp)?;
    Some(ProviderType::MCP(mcp))
}

fn plugin(
    reader: &mut Reader<'_>,
    path: &str,
    at: Position,
    pairs: &[(Name, Node)],
) -> Option<ProviderType> {
    let mut plugin = PluginCapability::new("", "");
    reader.mapping(path, at, pairs, &plugin_keys(), &mut plugin)?;
    Some(ProviderType::Plugin(plugin))
}

fn remote(
    reader: &mut Reader<'_>,
    path: &str,
    at: Position,
    pairs: &[(Name, Node)],
) -> Option<ProviderType> {
    remotes::provider(reader, path, at, pairs).map(ProviderType::RemoteRTFS)
}

fn plugin_path(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<String> {
    let text = reader.line(path, node, "a program's path, or plugin:NAME")?;
    Some(if text.starts_with(ENTRY) { text } else { file(reader, &text) })
}

/// Returns a kind that the program adds, with the settings that it takes.
fn custom(
    reader: &mut Reader<'_>,
    path: &str,
    at: Position,
    pairs: &[(Name, Node)],
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
        reader.missing(at, path, "kind");
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
    let checked = orla_providers::mcp::check(&url).map_err(|problem| format!(": {problem}"));
    reader.noted(path, node, checked).map(|()| url)
}

pub(super) fn http(
    reader: &mut Reader<'_>,
    path: &str,
    at: Position,
    pairs: &[(Name, Node)],
) -> Option<HttpCapability> {
    let mut http = HttpCapability::new("", None, 0);
    reader.mapping(path, at, present(pairs), &http_keys(), &mut http)?;
    let checked = orla_providers::http::check(&http);
    checked.map_err(|problem| reader.problem(at, || format!("{path}: {problem}"))).ok()?;
    if let Some(key) = http.options.sign_in.clone() {
        let other = http.auth_token.as_ref().map(|_| "auth_token");
        let other = other.or_else(|| authorization(http.options.headers.keys()));
        reader.complete_sign_in(&key, path, &http.base_url, other);
    }
    Some(http)
}

fn method(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<String> {
    Choice(METHODS).read(reader, path, node).map(str::to_owned)
}

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
fn credentials(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Vec<HttpCredential>> {
    let expected = "a mapping with header, query or cookie";
    let mut credentials = Vec::new();
    for (key, node) in reader.pairs(path, node, expected)? {
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
    Some(credentials)
}

/// Completes the manifest of a built-in with the built-in's own metadata, and the manifest of a stream.
///
/// # Errors
///
/// Returns an error if the built-in does not exist.
pub(super) fn complete(manifest: &mut CapabilityManifest) -> Result<(), String> {
    streams::complete(manifest);
    let ProviderType::Local(settings) = &manifest.provider else { return Ok(()) };
    let Some(builtin) = builtin::registration_of(&settings.function) else {
        let all = builtin::registrations();
        let hint = suggestion(&settings.function, all.iter().map(|one| one.manifest.id.as_str()));
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

/// Returns a default description of a capability.
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

/// Returns the timeout of one call, if the provider's settings contain one.
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

/// Returns the upstream on which the availability of the provider depends.
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

fn body_schema() -> Value {
    json!({"anyOf": [{"enum": ["rest", "none"]}, {"type": "object", "properties": {"argument": text_schema()},
        "required": ["argument"], "additionalProperties": false}]})
}

fn credentials_schema() -> Value {
    let texts = SECRETS.schema();
    json!({"type": "object", "properties": {"header": texts, "query": texts, "cookie": texts},
        "additionalProperties": false})
}

/// Returns the schema of a provider in all its forms.
pub(super) fn definition() -> Value {
    let local = object(&local_keys(), &mut LocalCapability::new(""));
    let mcp = object(&mcp_keys(), &mut MCPCapability::new("", "", 0));
    let plugin = object(&plugin_keys(), &mut PluginCapability::new("", ""));
    let http = object(&http_keys(), &mut HttpCapability::new("", None, 0));
    let agent = object(&agents::provider_keys(), &mut A2ACapability::new("", "", "http", 0));
    let remote = object(&remotes::provider_keys(), &mut RemoteRTFSCapability::new("", 0, None));
    let stream = streams::definition(&http);
    let kind = json!({"type": "string", "minLength": 1,
        "description": "a kind that a program built on orla adds; the other keys are its settings"});
    let named = |name: &str, settings: &Value| {
        let mut settings = settings.clone();
        settings["type"] = json!(["object", "null"]);
        json!({"type": "object", "properties": {name: settings}, "required": [name],
            "additionalProperties": false})
    };
    let typed = |names: &[&str], settings: &Value| {
        let mut settings = settings.clone();
        settings["properties"]["type"] = json!({ "enum": names });
        let required = settings["required"].as_array().cloned().unwrap_or_default();
        settings["required"] = std::iter::once(json!("type")).chain(required).collect();
        settings
    };
    let mut definition = json!({"anyOf": [
        named("Local", &local),
        named("Http", &http),
        named("MCP", &mcp),
        named("A2A", &agent),
        named("Plugin", &plugin),
        named("RemoteRTFS", &remote),
        named("Stream", &stream),
        named("Remote", &remote),
        typed(&["local", "Local"], &local),
        typed(&["http", "Http", "HTTP"], &http),
        typed(&["mcp", "MCP"], &mcp),
        typed(&["a2a", "A2A"], &agent),
        typed(&["plugin", "Plugin"], &plugin),
        typed(&["stream", "Stream"], &stream),
        typed(&["remote", "Remote", "RemoteRTFS"], &remote),
        {"type": "object", "properties": {"Custom": {"type": "object", "properties": {"kind": kind}, "required": ["kind"]}},
            "required": ["Custom"], "additionalProperties": false},
        {"type": "object", "properties": {"type": {"enum": ["custom", "Custom"]}, "kind": kind}, "required": ["type", "kind"]},
        {"enum": ["local", "Local"]},
    ]});
    admit_nulls(&mut definition);
    definition
}

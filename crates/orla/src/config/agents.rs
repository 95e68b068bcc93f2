//! `agents`: agents that speak the Agent2Agent protocol, by name (RTFS capability system §3.3).
//!
//! An address alone is an agent too. Values of `token` and `headers` are secrets: no message repeats them.

use std::collections::HashMap;

use orla_document::{Key, Node, Position};
use orla_marketplace::A2ACapability;
use orla_providers::a2a::{self, AgentSettings, Protocol};
use serde_json::{Value, json};

use super::keys::Own;
use super::read::{Reader, excerpt};
use super::schema::{seconds, variable};
use super::servers::{header, prefix, safe_name};
use super::{Config, Placed};

/// The key.
pub(super) const KEY: Own = Own {
    read,
    schema,
    expected: "a mapping from names of agents to how they are reached",
    variable: None,
};

const FIELDS: [&str; 11] = [
    "url",
    "protocol",
    "token",
    "headers",
    "origins",
    "timeout",
    "startup_timeout",
    "prefix",
    "include",
    "exclude",
    "keys",
];
/// The members of the provider of a single capability.
const PROVIDER: [&str; 8] =
    ["agent_id", "endpoint", "protocol", "timeout_ms", "skill", "auth_token", "headers", "origins"];
/// The names of protocols, as the document and as cards have them.
const PROTOCOLS: [&str; 7] = ["http", "websocket", "grpc", "JSONRPC", "HTTP+JSON", "GRPC", "WEBSOCKET"];
/// A day.
const MAX_MS: u64 = 86_400_000;
/// Bytes of a file of keys that are read.
const MAX_KEYS: u64 = 1024 * 1024;

fn read(reader: &mut Reader<'_>, config: &mut Config, path: &'static str, node: &Node) {
    let Some(pairs) = reader.pairs(path, node, KEY.expected) else { return };
    let mut known: HashMap<String, Position> = HashMap::new();
    for (name, node) in pairs {
        let place = format!("{path}.{}", excerpt(&name.text));
        let Some(settings) = agent(reader, config, &place, name, node) else { continue };
        if let Some(first) = known.insert(settings.name.clone(), name.at) {
            let line = first.line;
            reader.problem(name.at, || {
                format!("{place}: another agent has this name in MCP, on line {line}")
            });
            continue;
        }
        config.agents.push(Placed { value: settings, at: name.at });
    }
}

fn agent(
    reader: &mut Reader<'_>,
    config: &mut Config,
    place: &str,
    name: &Key,
    node: &Node,
) -> Option<AgentSettings> {
    let mut settings = AgentSettings::new(safe_name(&name.text), "");
    if node.as_scalar().is_some() {
        settings.url = address(reader, place, node)?;
    } else {
        for (key, node) in reader.pairs(place, node, "an address, or a mapping with url")? {
            if !node.is_null() {
                field(
                    reader,
                    config,
                    &mut settings,
                    &format!("{place}.{}", excerpt(&key.text)),
                    key,
                    node,
                );
            }
        }
        if settings.url.is_empty() {
            reader.problem(name.at, || format!("{place}.url: missing, and required"));
            return None;
        }
    }
    if let Err(problem) = reachable(&settings.url, settings.protocol) {
        reader.problem(name.at, || format!("{place}: {problem}"));
        return None;
    }
    Some(settings)
}

fn field(
    reader: &mut Reader<'_>,
    config: &mut Config,
    settings: &mut AgentSettings,
    path: &str,
    key: &Key,
    node: &Node,
) {
    match key.text.as_str() {
        "url" => settings.url = address(reader, path, node).unwrap_or_default(),
        "protocol" => settings.protocol = protocol(reader, path, node).unwrap_or_default(),
        "token" => settings.token = super::provider::token(reader, path, node),
        "headers" => settings.headers = reader.secrets(path, node, header).unwrap_or_default(),
        "origins" => settings.origins = origins(reader, path, node),
        "timeout" => settings.timeout = reader.seconds(path, node),
        "startup_timeout" => {
            settings.startup_timeout =
                reader.seconds(path, node).unwrap_or(AgentSettings::STARTUP_TIMEOUT);
        }
        "prefix" => settings.names.prefix = prefix(reader, path, node),
        "include" => settings.names.include = reader.patterns(path, node),
        "exclude" => settings.names.exclude = reader.patterns(path, node).unwrap_or_default(),
        "keys" => settings.keys = keys(reader, config, path, node),
        other => {
            let parent = path.rsplit_once('.').map_or("", |(parent, _)| parent);
            reader.unknown(key.at, other, &format!("{parent}."), FIELDS);
        }
    }
}

/// The provider of a single capability.
pub(super) fn provider(
    reader: &mut Reader<'_>,
    path: &str,
    at: Position,
    pairs: &[(Key, Node)],
) -> Option<A2ACapability> {
    let mut agent = A2ACapability::new("", "", Protocol::default().as_str(), 0);
    for (key, node) in pairs {
        let place = format!("{path}.{}", excerpt(&key.text));
        let options = &mut agent.options;
        match key.text.as_str() {
            "agent_id" => agent.agent_id = reader.line(&place, node, "the id of an agent")?,
            "endpoint" => agent.endpoint = address(reader, &place, node)?,
            "protocol" => agent.protocol = protocol(reader, &place, node)?.as_str().to_owned(),
            "timeout_ms" => agent.timeout_ms = reader.count(&place, node, 0, MAX_MS)?,
            "skill" => options.skill = Some(reader.line(&place, node, "the id of a skill")?),
            "auth_token" if node.is_null() => {}
            "auth_token" => options.auth_token = Some(super::provider::token(reader, &place, node)?),
            "headers" => options.headers = reader.secrets(&place, node, header)?,
            "origins" => options.origins = origins(reader, &place, node),
            other => reader.unknown(key.at, other, &format!("{path}."), PROVIDER),
        }
    }
    if agent.endpoint.is_empty() {
        reader.problem(at, || format!("{path}.endpoint: missing, and required"));
        return None;
    }
    let protocol = Protocol::named(&agent.protocol).unwrap_or_default();
    if let Err(problem) = reachable(&agent.endpoint, protocol) {
        reader.problem(at, || format!("{path}: {problem}"));
        return None;
    }
    Some(agent)
}

/// The schema of that provider's members.
pub(super) fn provider_properties() -> Value {
    let texts =
        json!({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}});
    json!({
        "agent_id": {"type": "string", "description": "The agent's name, for people."},
        "endpoint": {"type": "string", "description": "Where its card is found (below /.well-known), or its card, or one of its endpoints."},
        "protocol": {"enum": PROTOCOLS},
        "timeout_ms": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": MAX_MS}, variable()],
            "description": "Milliseconds that one call may take."},
        "skill": {"type": "string", "description": "The skill that is meant, as its card has it."},
        "auth_token": {"type": ["string", "null"], "description": "Sent as a bearer token."},
        "headers": texts,
        "origins": {"type": "array", "items": {"type": "string"}, "description": "Other origins that its card may lead to."},
    })
}

/// Whether an address goes with a protocol.
fn reachable(address: &str, protocol: Protocol) -> Result<(), String> {
    if protocol != Protocol::Grpc && !address.contains("://") {
        return Err("expected an address such as https://agent.example.com, as only grpc has HOST:PORT"
            .to_owned());
    }
    a2a::check(address, protocol.as_str())
}

/// An address by any of the protocols, or `HOST:PORT`, as cards have those of gRPC. Whatever stands before an `@`, and in the query, may be a secret.
fn address(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<String> {
    let url = reader.secret(path, node)?;
    let is_known = ["http", "https", "ws", "wss", "grpc", "grpcs"]
        .iter()
        .any(|scheme| url.strip_prefix(scheme).is_some_and(|rest| rest.starts_with("://")));
    let is_bare = url.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && !host.contains(['/', '@']) && port.parse::<u16>().is_ok()
    });
    if (is_known || is_bare) && !url.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Some(url);
    }
    reader.problem(node.at, || {
        format!("{path}: expected an address such as https://agent.example.com, or wss://… or grpc://…")
    });
    None
}

/// The other origins that a card may lead to.
fn origins(reader: &mut Reader<'_>, path: &str, node: &Node) -> Vec<String> {
    let origins = reader.list(path, node, "a list of origins").unwrap_or_default();
    for origin in &origins {
        if let Err(problem) = a2a::check(origin, "http") {
            reader.problem(node.at, || format!("{path}: {problem}"));
        }
    }
    origins
}

fn protocol(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Protocol> {
    let expected = "http, websocket or grpc";
    let text = reader.line(path, node, expected)?;
    let protocol = Protocol::named(&text);
    if protocol.is_none() {
        reader.problem(node.at, || format!("{path}: expected {expected}, got {:?}", excerpt(&text)));
    }
    protocol
}

/// A JSON Web Key Set in a file.
fn keys(reader: &mut Reader<'_>, config: &mut Config, path: &str, node: &Node) -> Option<String> {
    let file = reader.path_at(path, node)?;
    let text = super::read_text(&file, MAX_KEYS);
    config.named_files.push(file);
    match text {
        Ok(text) => Some(text),
        Err(problem) => {
            reader.problem(node.at, || format!("{path}: {problem}"));
            None
        }
    }
}

fn schema() -> Value {
    let list = json!({"type": "array", "items": {"type": "string"}});
    let texts = json!({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}});
    let seconds = |about: &str| json!({"anyOf": [seconds(86_400), variable()], "description": about});
    let agent = json!({"type": "object", "required": ["url"], "properties": {
        "url": {"type": "string", "description": "Where its card is found (below /.well-known), or its card, or one of its endpoints."},
        "protocol": {"enum": PROTOCOLS, "description": "http (JSON-RPC or HTTP and JSON, as its card says) by default."},
        "token": {"type": "string", "description": "Sent as a bearer token, to the origin of url and to origins alone."},
        "headers": texts,
        "origins": {"anyOf": [list], "description": "Other origins that its card may lead to."},
        "timeout": seconds("Seconds that one call may take."),
        "startup_timeout": seconds("Seconds that it may take to give its card."),
        "prefix": {"type": "string", "description": "Stands before the names of its skills instead of NAME__."},
        "include": {"anyOf": [list], "description": "Patterns of the skills that are served; all by default."},
        "exclude": {"anyOf": [list], "description": "Patterns of the skills that are not."},
        "keys": {"type": "string", "description": "A file with the JSON Web Key Set that its card has to be signed with."},
    }, "additionalProperties": false});
    json!({"type": "object", "additionalProperties": {"anyOf": [{"type": "string"}, agent]}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_an_address_or_a_mapping() {
        let config = Config::of(
            "agents:\n  a: https://a.example\n  d: {url: '127.0.0.1:50051', protocol: GRPC}\n  b c:\n    url: grpc://b.example:50051\n    protocol: grpc\n    token: t0ken\n    prefix: ''\n    origins: [https://c.example]\n    include: 'x*'\n    timeout: 2\n",
        )
        .unwrap_or_else(|problems| panic!("{problems:?}"));
        let [a, d, b] = &config.agents[..] else { panic!("three agents") };
        assert_eq!((d.value.protocol, d.value.url.as_str()), (Protocol::Grpc, "127.0.0.1:50051"));
        assert_eq!((a.value.name.as_str(), a.value.url.as_str()), ("a", "https://a.example"));
        assert_eq!(b.value.name, "b_c");
        assert_eq!((b.value.protocol, b.value.token.as_deref()), (Protocol::Grpc, Some("t0ken")));
        assert_eq!(b.value.timeout, Some(std::time::Duration::from_secs(2)));
        assert_eq!(b.value.origins, ["https://c.example"]);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place_and_without_secrets() {
        for (text, problem) in [
            ("agents: {a: {}}", "agents.a.url: missing, and required at orla.yaml:1:10"),
            (
                "agents: {a: {url: 'ftp://s3cret'}}",
                "agents.a.url: expected an address such as https://agent.example.com, or wss://… or grpc://… at orla.yaml:1:19",
            ),
            (
                "agents: {a: 'a.example:50051'}",
                "agents.a: expected an address such as https://agent.example.com, as only grpc has HOST:PORT at orla.yaml:1:10",
            ),
            (
                "agents: {a: {url: 'http://a', protocol: smtp}}",
                "agents.a.protocol: expected http, websocket or grpc, got \"smtp\" at orla.yaml:1:41",
            ),
            (
                "agents: {a: {url: 'http://a', tokn: s3cret}}",
                "agents.a.tokn: unknown key, did you mean token? at orla.yaml:1:31",
            ),
        ] {
            let Err(problems) = Config::of(text) else { panic!("{text}") };
            assert_eq!(problems[0].to_string(), problem);
        }
    }
}

//! `agents`: agents that speak the Agent2Agent protocol, by name (RTFS capability system §3.3).
//!
//! An address alone is an agent too. Values of `token` and `headers` are secrets: no message repeats them.

use std::collections::HashMap;

use orla_document::{Key as Name, Node, Position};
use orla_marketplace::A2ACapability;
use orla_providers::a2a::{self, AgentSettings, Protocol};
use serde_json::{Value, json};

use super::forms::{
    Count, DAY, DAY_MS, HEADERS, PATTERNS, Read, Seconds, TOKEN, Text, text_schema, texts_or_text,
};
use super::keys::{Key, key, object, present};
use super::read::{Reader, excerpt};
use super::servers::{PREFIX, safe_name};
use super::sign_in::{SIGN_IN, authorization};
use super::{Config, Placed};

/// The names of protocols in the Capability System's document and in cards.
const PROTOCOLS: [&str; 7] = ["http", "websocket", "grpc", "JSONRPC", "HTTP+JSON", "GRPC", "WEBSOCKET"];
/// Bytes of a file of keys that are read.
const MAX_KEYS: u64 = 1024 * 1024;

#[rustfmt::skip] // A table: each key has a line for its value and one for its meaning.
fn keys() -> Vec<Key<AgentSettings>> {
    vec![
        key("url", Read(address, text_schema), |a: &mut AgentSettings| &mut a.url,
            "the address of the agent's card (its directory `/.well-known` is searched), or of one of its endpoints").required(),
        key("protocol", Read(protocol, protocol_schema), |a| &mut a.protocol,
            "`http` by default: JSON-RPC, or HTTP and JSON, as the card says"),
        key("token", TOKEN, |a| &mut a.token,
            "bearer token, which orla sends only to the origin of `url` and to `origins`"),
        key("auth", SIGN_IN, |a| &mut a.sign_in,
            "how orla gets its tokens for the agent, as for [MCP servers](identity.md#sign-in-at-servers)"),
        key("headers", HEADERS, |a| &mut a.headers, "header fields of every request"),
        key("origins", Read(origins, texts_or_text), |a| &mut a.origins,
            "other origins that the card may refer to"),
        key("timeout", Seconds(DAY), |a| &mut a.timeout, "maximum seconds for one call"),
        key("startup_timeout", Seconds(DAY), |a| &mut a.startup_timeout,
            "maximum seconds until the agent returns its card"),
        key("prefix", PREFIX, |a| &mut a.names.prefix,
            "replaces `NAME__` before the names of skills; may be empty"),
        key("include", PATTERNS, |a| &mut a.names.include, "patterns of the skills that are served; all by default"),
        key("exclude", PATTERNS, |a| &mut a.names.exclude, "patterns of the skills that are not served"),
        key("keys", Read(json_web_keys, text_schema), |a| &mut a.keys,
            "a file with the JSON Web Key Set that must sign the card"),
    ]
}

/// Returns the keys of the provider of a single capability.
#[rustfmt::skip] // A table.
pub(super) fn provider_keys() -> Vec<Key<A2ACapability>> {
    vec![
        key("agent_id", Text("the id of an agent"), |a| &mut a.agent_id, "the agent's name, for people"),
        key("endpoint", Read(address, text_schema), |a: &mut A2ACapability| &mut a.endpoint,
            "the address of the agent's card (its directory `/.well-known` is searched), or of one of its endpoints").required(),
        key("protocol", Read(|reader, path, node| Some(protocol(reader, path, node)?.as_str().to_owned()), protocol_schema),
            |a| &mut a.protocol, "`http` by default: JSON-RPC, or HTTP and JSON, as the card says"),
        key("timeout_ms", Count(0, DAY_MS), |a| &mut a.timeout_ms, "maximum milliseconds for one call"),
        key("skill", Text("the id of a skill"), |a| &mut a.options.skill, "the id of the skill in the card"),
        key("auth_token", TOKEN, |a| &mut a.options.auth_token, "bearer token"),
        key("headers", HEADERS, |a| &mut a.options.headers, "header fields of every request"),
        key("origins", Read(origins, texts_or_text), |a| &mut a.options.origins,
            "other origins that the card may refer to"),
    ]
}

pub(super) fn read(reader: &mut Reader<'_>, config: &mut Config, path: &str, node: &Node) {
    let expected = "a mapping from names of agents to how they are reached";
    let Some(pairs) = reader.pairs(path, node, expected) else { return };
    let (keys, mut known) = (keys(), HashMap::<String, Position>::new());
    for (name, node) in pairs {
        let place = format!("{path}.{}", excerpt(&name.text));
        let since = reader.secrets.count();
        let Some(mut settings) = agent(reader, &keys, &place, name, node) else { continue };
        settings.redaction = reader.redaction(since);
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
    keys: &[Key<AgentSettings>],
    place: &str,
    name: &Name,
    node: &Node,
) -> Option<AgentSettings> {
    let mut settings = AgentSettings::new(safe_name(&name.text), "");
    if node.as_scalar().is_some() {
        settings.url = address(reader, place, node)?;
    } else {
        let pairs = reader.pairs(place, node, "an address, or a mapping with url")?;
        reader.mapping(place, name.at, present(pairs), keys, &mut settings)?;
    }
    if let Some(key) = &settings.sign_in {
        let other = settings.token.as_ref().map(|_| "token");
        let other = other.or_else(|| authorization(settings.headers.keys()));
        reader.complete_sign_in(key, &settings.name, &settings.url, other);
    }
    let checked = reachable(&settings.url, settings.protocol);
    checked.map_err(|problem| reader.problem(name.at, || format!("{place}: {problem}"))).ok()?;
    Some(settings)
}

/// Returns the provider of a single capability.
pub(super) fn provider(
    reader: &mut Reader<'_>,
    path: &str,
    at: Position,
    pairs: &[(Name, Node)],
) -> Option<A2ACapability> {
    let mut agent = A2ACapability::new("", "", Protocol::default().as_str(), 0);
    reader.mapping(path, at, present(pairs), &provider_keys(), &mut agent)?;
    let protocol = Protocol::named(&agent.protocol).unwrap_or_default();
    let checked = reachable(&agent.endpoint, protocol);
    checked.map_err(|problem| reader.problem(at, || format!("{path}: {problem}"))).ok()?;
    Some(agent)
}

/// Checks that an address has the form that its protocol requires.
fn reachable(address: &str, protocol: Protocol) -> Result<(), String> {
    if protocol != Protocol::Grpc && !address.contains("://") {
        return Err("expected an address such as https://agent.example.com, as only grpc has HOST:PORT"
            .to_owned());
    }
    a2a::check(address, protocol.as_str())
}

/// Returns an address of any of the protocols, or `HOST:PORT`, the form of gRPC addresses in cards. Its
/// user information and its query may be secrets.
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

/// Returns the other origins that a card may refer to.
fn origins(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Vec<String>> {
    let origins = reader.list(path, node, "a list of origins")?;
    for origin in &origins {
        if let Err(problem) = a2a::check(origin, "http") {
            reader.problem(node.at, || format!("{path}: {problem}"));
        }
    }
    Some(origins)
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

/// Returns a JSON Web Key Set in a file.
fn json_web_keys(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<String> {
    let file = reader.path_at(path, node)?;
    let text = super::read_text(&file, MAX_KEYS).map_err(|problem| format!(": {problem}"));
    reader.named_files.push(file);
    reader.noted(path, node, text)
}

fn protocol_schema() -> Value {
    json!({ "enum": PROTOCOLS })
}

pub(super) fn schema() -> Value {
    let agent = object(&keys(), &mut AgentSettings::new("", ""));
    json!({"type": "object", "additionalProperties": {"anyOf": [text_schema(), agent]}})
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
    fn problems_are_reported_with_their_place_and_without_secrets() {
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

//! The provider of a capability that is a stream (RTFS capability system §3.2): `{stream: {url: …}}` or
//! `{stream: {command: …}}`. The settings of the request are placed beside it, as for an HTTP endpoint.

use orla_document::{Key as Name, Kind as Shape, Node, Position, Scalar};
use orla_marketplace::schema::schema_from_declaration;
use orla_marketplace::{
    CapabilityManifest, HttpCapability, PluginCapability, ProviderType, SendAs, StreamCapabilityImpl,
    StreamItems, StreamTransport, StreamType,
};
use orla_providers::stream;
use serde_json::{Value, json};

use super::capabilities::{type_of, type_schema};
use super::forms::{
    ARGUMENTS, Choice, Count, DAY_MS, ENVIRONMENT, Flag, Form, Milliseconds, PATH, Read, Variables,
};
use super::keys::{Key, find, key, own, properties};
use super::provider;
use super::read::{Reader, excerpt};
use super::servers::PROGRAM;

/// Returns the keys of a stream itself. All other keys concern its requests.
#[rustfmt::skip] // A table: each key has a line for its value and one for its meaning.
fn keys() -> Vec<Key<StreamCapabilityImpl>> {
    vec![
        key("args", ARGUMENTS, |s| &mut s.options.args, "arguments of the program"),
        key("env", ENVIRONMENT, |s| &mut s.options.env, "environment variables of the program"),
        key("pass_env", Variables, |s| &mut s.options.pass_env,
            "environment variables of orla that the program gets in addition to the default ones: names, or patterns with `*`"),
        key("cwd", PATH, |s| &mut s.options.directory, "the working directory of the program"),
        key("kind", Choice(&StreamTransport::ALL), |s| &mut s.options.transport, "how items travel"),
        key("direction", Choice(&StreamType::ALL), |s| &mut s.stream_type, "who sends values"),
        own("stream_type", stream_type, stream_type_schema,
            "the direction, or `unidirectional` for a source or a sink"),
        key("items", Choice(&StreamItems::ALL), |s| &mut s.options.items, "how an item is read"),
        key("send_as", Choice(&SendAs::ALL), |s| &mut s.options.send_as, "how a text is sent"),
        key("input_schema", Read(type_of, type_schema), |s| &mut s.input_schema, "the type of each value that is sent"),
        key("output_schema", Read(type_of, type_schema), |s| &mut s.output_schema, "the type of each received item"),
        key("supports_progress", Flag, |s| &mut s.supports_progress, "whether the stream reports progress"),
        key("supports_cancellation", Flag, |s| &mut s.supports_cancellation, "whether the stream can be cancelled"),
        key("max_item_bytes", Count(1, 16 << 20), |s| &mut s.options.max_item_bytes, "maximum bytes of an item"),
        key("buffer", Count(1, 65_536), |s| &mut s.options.buffer,
            "maximum number of values that wait to be sent over HTTP"),
        key("heartbeat_ms", Milliseconds(0, DAY_MS), |s| &mut s.options.heartbeat,
            "milliseconds without any data after which the connection counts as broken; `0` means never"),
        key("idle_ms", Milliseconds(0, DAY_MS), |s| &mut s.options.idle,
            "milliseconds without an item after which the stream ends with an error; `0` means never"),
        key("reconnect", Flag, |s| &mut s.options.reconnect,
            "whether orla reconnects after a broken connection, although items may be lost"),
        key("max_reconnects", Count(0, 1_000_000), |s| &mut s.options.max_reconnects,
            "maximum number of reconnections in a row"),
    ]
}

/// The groups that a document may put keys of a stream in, and the streams that they are for (RTFS capability system §3.2).
const GROUPS: [(&str, Option<StreamType>); 3] = [
    ("stream_config", None),
    ("bidirectional_config", Some(StreamType::Bidirectional)),
    ("duplex_config", Some(StreamType::Duplex)),
];

/// Returns a stream.
pub(super) fn provider(
    reader: &mut Reader<'_>,
    path: &str,
    at: Position,
    pairs: &[(Name, Node)],
) -> Option<StreamCapabilityImpl> {
    let (pairs, implied) = spread(reader, path, pairs)?;
    let keys = keys();
    let (own, others): (Vec<_>, Vec<_>) =
        pairs.iter().partition(|(name, _)| find(&keys, &name.text).is_some());
    let find = |name: &str| pairs.iter().find(|(key, _)| key.text == name);
    let (reached, transport) = match (find("url"), find("command")) {
        (Some(url), None) => {
            let (address, is_socket) = address(reader, path, url)?;
            let http = requests(reader, path, at, (&url.0, address), &keys, &others)?;
            let by_default = if is_socket { StreamTransport::WebSocket } else { StreamTransport::Sse };
            (ProviderType::Http(http), by_default)
        }
        (None, Some((_, node))) => {
            let command = PROGRAM.read(reader, &format!("{path}.command"), node)?;
            for (name, _) in
                others.iter().filter(|(name, _)| !is_named(name, &["command", "timeout_ms"]))
            {
                reader.unknown(
                    name.at,
                    &name.text,
                    &format!("{path}."),
                    keys.iter().map(|key| key.name),
                );
            }
            (ProviderType::Plugin(PluginCapability::new(command, "")), StreamTransport::Lines)
        }
        (reached, _) => {
            let known = provider::http_keys();
            let names = || {
                let own = ["url", "command", "timeout_ms"].into_iter();
                own.chain(keys.iter().map(|key| key.name)).chain(known.iter().map(|key| key.name))
            };
            let is_known = |name: &Name| names().any(|known| known == name.text);
            let mut misspelt = others.iter().filter(|(name, _)| !is_known(name)).peekable();
            if reached.is_none() && misspelt.peek().is_some() {
                for (name, _) in misspelt {
                    reader.unknown(name.at, &name.text, &format!("{path}."), names());
                }
            } else {
                reader.problem(at, || {
                    format!("{path}: expected url (an endpoint) or command (a program)")
                });
            }
            return None;
        }
    };
    let mut stream = StreamCapabilityImpl::new(reached, StreamType::Source);
    stream.options.transport = transport;
    reader.mapping(path, at, own, &keys, &mut stream)?;
    if let Some((group, wanted)) = implied {
        let is_told = find("stream_type").or_else(|| find("direction")).is_some();
        if is_told && stream.stream_type != wanted {
            reader.problem(at, || format!("{path}.{group}: the stream is of another stream_type"));
            return None;
        }
        stream.stream_type = wanted;
    }
    if let Err(problem) = stream::check(&stream) {
        reader.problem(at, || format!("{path}: {problem}"));
        return None;
    }
    Some(stream)
}

fn is_named(name: &Name, names: &[&str]) -> bool {
    names.contains(&name.text.as_str())
}

/// Returns the endpoint of a stream: its address, and the keys that concern its requests.
fn requests(
    reader: &mut Reader<'_>,
    path: &str,
    at: Position,
    (url, address): (&Name, Node),
    keys: &[Key<StreamCapabilityImpl>],
    others: &[&(Name, Node)],
) -> Option<HttpCapability> {
    let known = provider::http_keys();
    let mut pairs = vec![(Name { text: "base_url".to_owned(), ..url.clone() }, address)];
    for (name, node) in others.iter().filter(|(name, _)| !is_named(name, &["url"])) {
        if find(&known, &name.text).is_some() {
            pairs.push((name.clone(), node.clone()));
        } else {
            let names = keys.iter().map(|key| key.name).chain(known.iter().map(|key| key.name));
            reader.unknown(name.at, &name.text, &format!("{path}."), names);
        }
    }
    let http = provider::http(reader, path, at, &pairs)?;
    if http.options.sign_in.is_some() {
        reader
            .problem(at, || format!("{path}.auth: streams have no sign-in; use auth_token or headers"));
        return None;
    }
    Some(http)
}

/// Returns the keys of a stream beside each other, those of its groups and of its `provider` among them,
/// and what a group that is there says of its direction.
#[expect(clippy::type_complexity, reason = "it is taken apart where it is made")]
fn spread(
    reader: &mut Reader<'_>,
    path: &str,
    pairs: &[(Name, Node)],
) -> Option<(Vec<(Name, Node)>, Option<(&'static str, StreamType)>)> {
    let mut all: Vec<(Name, Node)> = Vec::new();
    let mut implied = None;
    for (key, node) in pairs {
        let name = key.text.as_str();
        let group = GROUPS.iter().find(|(group, _)| *group == name);
        match (name, group, &node.kind) {
            (_, Some((group, direction)), Shape::Map(inner)) => {
                implied = implied.or(direction.map(|direction| (*group, direction)));
                all.extend(inner.iter().cloned());
            }
            (_, Some(_), _) => {
                reader.problem(node.at, || format!("{path}.{name}: expected keys of the stream"));
                return None;
            }
            ("provider", None, Shape::Map(inner)) => {
                all.extend(reached_through(reader, path, node.at, inner)?);
            }
            // The way its items travel, by name.
            ("provider", None, Shape::Scalar(_)) => {
                all.push((Name { text: "kind".to_owned(), ..key.clone() }, node.clone()));
            }
            _ => all.push((key.clone(), node.clone())),
        }
    }
    for (at, (key, _)) in all.iter().enumerate() {
        if all[..at].iter().any(|(other, _)| other.text == key.text) {
            reader.problem(key.at, || format!("{path}.{}: it is there twice", excerpt(&key.text)));
            return None;
        }
    }
    Some((all, implied))
}

/// Returns the keys of an HTTP endpoint or a plugin that is the provider of a stream.
fn reached_through(
    reader: &mut Reader<'_>,
    path: &str,
    at: Position,
    pairs: &[(Name, Node)],
) -> Option<Vec<(Name, Node)>> {
    let found = match pairs {
        [(kind, Node { kind: Shape::Map(inner), .. })] => {
            let known = [("http", "base_url", "url"), ("plugin", "plugin_path", "command")];
            let known = known.iter().find(|(name, ..)| kind.text.eq_ignore_ascii_case(name));
            known.map(|(_, from, to)| (inner, *from, *to))
        }
        _ => None,
    };
    let Some((inner, from, to)) = found else {
        reader.problem(at, || format!("{path}.provider: expected {{Http: …}} or {{Plugin: …}}"));
        return None;
    };
    let renamed = |(key, node): &(Name, Node)| {
        let text = if key.text == from { to.to_owned() } else { key.text.clone() };
        (Name { text, ..key.clone() }, node.clone())
    };
    // A program whose lines are the stream has no functions.
    Some(inner.iter().filter(|(key, _)| key.text != "function_name").map(renamed).collect())
}

/// A stream that flows in one direction is a source, unless `direction` says otherwise.
const UNIDIRECTIONAL: &str = "unidirectional";

fn stream_type(reader: &mut Reader<'_>, stream: &mut StreamCapabilityImpl, path: &str, node: &Node) {
    if node.as_text().is_some_and(|text| text.eq_ignore_ascii_case(UNIDIRECTIONAL)) {
        return;
    }
    if let Some(direction) = Choice(&StreamType::ALL).read(reader, path, node) {
        stream.stream_type = direction;
    }
}

fn stream_type_schema() -> Value {
    json!({"anyOf": [{"enum": [UNIDIRECTIONAL]}, Choice(&StreamType::ALL).schema()]})
}

/// Returns the address as one of HTTP, and whether it is one of a WebSocket.
fn address(reader: &mut Reader<'_>, path: &str, (_, node): &(Name, Node)) -> Option<(Node, bool)> {
    let url = reader.secret(&format!("{path}.url"), node)?;
    let http = [("ws://", "http://"), ("wss://", "https://")];
    let found =
        http.iter().find_map(|(ws, http)| url.strip_prefix(ws).map(|rest| format!("{http}{rest}")));
    let is_socket = found.is_some();
    let kind = match found {
        Some(text) => Shape::Scalar(Scalar { text, plain: false }),
        None => node.kind.clone(),
    };
    Some((Node { at: node.at, kind }, is_socket))
}

/// Completes the manifest of a stream: what its calls are given is more than what it is opened with.
pub(super) fn complete(manifest: &mut CapabilityManifest) {
    let ProviderType::Stream(stream) = &mut manifest.provider else { return };
    stream.options.opening = manifest.input_schema.take();
    if let Some(item) = manifest.output_schema.take() {
        stream.output_schema.get_or_insert(item);
    }
    manifest.input_schema = schema_from_declaration(&stream::call_schema(stream)).ok();
}

/// Returns a default description of a stream.
pub(super) fn description(stream: &StreamCapabilityImpl) -> String {
    let what = match stream.stream_type {
        StreamType::Source => "Items of the stream",
        StreamType::Sink => "Sends values to the stream",
        _ => "Sends values to, and gives items of, the stream",
    };
    match &*stream.provider {
        ProviderType::Http(http) => format!("{what} at {}.", http.address()),
        // The directory of the program is not shown.
        ProviderType::Plugin(program) => {
            let name = program.plugin_path.rsplit('/').next().unwrap_or_default();
            format!("{what} of the program {name}.")
        }
        _ => format!("{what}."),
    }
}

/// Returns the schema of a stream, whose endpoint has the settings of `http`.
pub(super) fn definition(http: &Value) -> Value {
    let mut definition = http.clone();
    let mut stream = StreamCapabilityImpl::new(
        ProviderType::Plugin(PluginCapability::new("", "")),
        StreamType::Source,
    );
    let group = json!({"type": ["object", "null"], "description": "keys of the stream, which may also stand beside it"});
    let own = json!({
        "url": {"type": "string", "description": "the endpoint: `http(s)://` or `ws(s)://`"},
        "command": {"type": "string", "description": "the program: a path, or a name in `PATH`"},
        "provider": {"type": ["object", "string"], "description": "`{Http: …}` or `{Plugin: …}` instead of `url` or `command`; or the kind, by name"},
    });
    definition["required"] = json!([]);
    if let Some(all) = definition["properties"].as_object_mut() {
        all.remove("base_url");
        all.extend(own.as_object().cloned().unwrap_or_default());
        all.extend(properties(&keys(), &mut stream));
        all.extend(GROUPS.map(|(name, _)| (name.to_owned(), group.clone())));
    }
    definition
}

//! The provider of a capability that is a stream (RTFS capability system §3.2): `{stream: {url: …}}` or
//! `{stream: {command: …}}`. What concerns the request stands beside, as with an HTTP endpoint.

use std::time::Duration;

use orla_document::{Key, Kind as Shape, Node, Position, Scalar};
use orla_marketplace::schema::schema_from_declaration;
use orla_marketplace::{
    CapabilityManifest, PluginCapability, ProviderType, SendAs, StreamCapabilityImpl, StreamItems,
    StreamOptions, StreamTransport, StreamType,
};
use orla_providers::stream;
use serde_json::{Value, json};

use super::capabilities::type_of;
use super::keys::{list_of, nearest};
use super::provider::{self, MAX_MS};
use super::read::{Reader, excerpt, shown};
use super::schema::{pass_env, variable, whole};
use super::servers::{environment, program};

/// The keys of a stream itself; whatever else there is concerns its requests.
const FIELDS: [&str; 22] = [
    "url",
    "command",
    "args",
    "env",
    "pass_env",
    "cwd",
    "kind",
    "direction",
    "items",
    "send_as",
    "input_schema",
    "output_schema",
    "supports_progress",
    "supports_cancellation",
    "max_item_bytes",
    "buffer",
    "heartbeat_ms",
    "idle_ms",
    "reconnect",
    "max_reconnects",
    "timeout_ms",
    "stream_type",
];

/// The groups that a document may put keys of a stream in, and the streams that they are for (RTFS capability system §3.2).
const GROUPS: [(&str, Option<StreamType>); 3] = [
    ("stream_config", None),
    ("bidirectional_config", Some(StreamType::Bidirectional)),
    ("duplex_config", Some(StreamType::Duplex)),
];

/// What the key `stream_type` may say: a stream that flows one way is a source, unless `direction` says otherwise.
fn stream_types() -> [(&'static str, Option<StreamType>); 6] {
    let [source, sink, transform, bidirectional, duplex] =
        StreamType::ALL.map(|(name, direction)| (name, Some(direction)));
    [("unidirectional", None), bidirectional, duplex, source, sink, transform]
}

/// A stream.
pub(super) fn provider(
    reader: &mut Reader<'_>,
    path: &str,
    at: Position,
    pairs: &[(Key, Node)],
) -> Option<StreamCapabilityImpl> {
    let (pairs, implied) = spread(reader, path, pairs)?;
    let pairs = pairs.as_slice();
    let find = |name: &str| pairs.iter().find(|(key, _)| key.text == name);
    let (reached, transport) = match (find("url"), find("command")) {
        (Some(url), None) => {
            let (text, is_socket) = address(reader, path, url)?;
            let mut others: Vec<(Key, Node)> = Vec::new();
            for (key, node) in pairs.iter().filter(|(key, _)| !FIELDS.contains(&key.text.as_str())) {
                let name = key.text.as_str();
                if provider::HTTP.contains(&name) || nearest(name, FIELDS).is_none() {
                    others.push((key.clone(), node.clone()));
                } else {
                    // What is meant is a key of the stream itself.
                    reader.unknown(key.at, name, &format!("{path}."), FIELDS);
                }
            }
            others.push((Key { text: "base_url".to_owned(), ..url.0.clone() }, text));
            let mut http = provider::http(reader, path, at, &others)?;
            if let Some((key, node)) = find("timeout_ms") {
                http.timeout_ms = reader.count(&format!("{path}.{}", key.text), node, 0, MAX_MS)?;
            }
            let by_default = if is_socket { StreamTransport::WebSocket } else { StreamTransport::Sse };
            (ProviderType::Http(http), by_default)
        }
        (None, Some((_, node))) => {
            let command = reader.line(&format!("{path}.command"), node, "a program")?;
            let command = program(reader, &command);
            for (key, _) in pairs.iter().filter(|(key, _)| !FIELDS.contains(&key.text.as_str())) {
                reader.unknown(key.at, &key.text, &format!("{path}."), FIELDS);
            }
            (ProviderType::Plugin(PluginCapability::new(command, "")), StreamTransport::Lines)
        }
        _ => {
            reader.problem(at, || format!("{path}: expected url (an endpoint) or command (a program)"));
            return None;
        }
    };
    let mut stream = StreamCapabilityImpl::new(reached, StreamType::Source);
    stream.options.transport = transport;
    for (key, node) in pairs {
        field(reader, &mut stream, &format!("{path}.{}", excerpt(&key.text)), &key.text, node);
    }
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

/// The keys of a stream beside each other, those of its groups and of its `provider` among them, and what a group
/// that is there says of its direction.
#[expect(clippy::type_complexity, reason = "it is taken apart where it is made")]
fn spread(
    reader: &mut Reader<'_>,
    path: &str,
    pairs: &[(Key, Node)],
) -> Option<(Vec<(Key, Node)>, Option<(&'static str, StreamType)>)> {
    let mut all: Vec<(Key, Node)> = Vec::new();
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
                all.push((Key { text: "kind".to_owned(), ..key.clone() }, node.clone()));
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

/// The keys of an HTTP endpoint or a plugin that stands as the provider in a stream.
fn reached_through(
    reader: &mut Reader<'_>,
    path: &str,
    at: Position,
    pairs: &[(Key, Node)],
) -> Option<Vec<(Key, Node)>> {
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
    let renamed = |(key, node): &(Key, Node)| {
        let text = if key.text == from { to.to_owned() } else { key.text.clone() };
        (Key { text, ..key.clone() }, node.clone())
    };
    // A program whose lines are the stream has no functions.
    Some(inner.iter().filter(|(key, _)| key.text != "function_name").map(renamed).collect())
}

fn field(
    reader: &mut Reader<'_>,
    stream: &mut StreamCapabilityImpl,
    path: &str,
    key: &str,
    node: &Node,
) {
    let options: &mut StreamOptions = &mut stream.options;
    let milliseconds =
        |reader: &mut Reader<'_>| reader.count(path, node, 0, MAX_MS).map(Duration::from_millis);
    let flag = |reader: &mut Reader<'_>| reader.flag(path, node, "true or false") == Some(true);
    match key {
        "kind" => {
            if let Some(kind) = choice(reader, path, node, &StreamTransport::ALL) {
                options.transport = kind;
            }
        }
        "direction" => {
            if let Some(direction) = choice(reader, path, node, &StreamType::ALL) {
                stream.stream_type = direction;
            }
        }
        "stream_type" => {
            if let Some(Some(direction)) = choice(reader, path, node, &stream_types()) {
                stream.stream_type = direction;
            }
        }
        "items" => {
            if let Some(items) = choice(reader, path, node, &StreamItems::ALL) {
                options.items = items;
            }
        }
        "send_as" => options.send_as = choice(reader, path, node, &SendAs::ALL),
        "args" => options.args = reader.arguments(path, node).unwrap_or_default(),
        "env" => options.env = reader.secrets(path, node, environment).unwrap_or_default(),
        "pass_env" => options.pass_env = reader.variables(path, node),
        "cwd" => options.directory = reader.path_at(path, node),
        "input_schema" => stream.input_schema = type_of(reader, path, node),
        "output_schema" => stream.output_schema = type_of(reader, path, node),
        "supports_progress" => stream.supports_progress = flag(reader),
        "supports_cancellation" => stream.supports_cancellation = flag(reader),
        "max_item_bytes" => {
            options.max_item_bytes = reader.count(path, node, 1, 16 << 20).unwrap_or_default();
        }
        "buffer" => options.buffer = reader.count(path, node, 1, 65_536).unwrap_or_default(),
        "heartbeat_ms" => options.heartbeat = milliseconds(reader),
        "idle_ms" => options.idle = milliseconds(reader),
        "reconnect" => options.reconnect = flag(reader),
        "max_reconnects" => {
            options.max_reconnects = reader.count(path, node, 0, 1_000_000).unwrap_or_default();
        }
        _ => {}
    }
}

/// The address as one of HTTP, and whether it is one of a WebSocket.
fn address(reader: &mut Reader<'_>, path: &str, (_, node): &(Key, Node)) -> Option<(Node, bool)> {
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

fn choice<T: Copy>(reader: &mut Reader<'_>, path: &str, node: &Node, all: &[(&str, T)]) -> Option<T> {
    let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
    let expected = list_of(&names);
    let word = reader.line(path, node, &expected)?;
    let found = all.iter().find(|(name, _)| name.eq_ignore_ascii_case(&word)).map(|(_, value)| *value);
    if found.is_none() {
        let got = shown(node, &word);
        reader.problem(node.at, || format!("{path}: expected {expected}, got {got}"));
    }
    found
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

/// A description of a stream that has none of its own.
pub(super) fn description(stream: &StreamCapabilityImpl) -> String {
    let what = match stream.stream_type {
        StreamType::Source => "Items of the stream",
        StreamType::Sink => "Sends values to the stream",
        _ => "Sends values to, and gives items of, the stream",
    };
    match &*stream.provider {
        ProviderType::Http(http) => format!("{what} at {}.", http.address()),
        // Its directory does not concern whoever reads this.
        ProviderType::Plugin(program) => {
            let name = program.plugin_path.rsplit('/').next().unwrap_or_default();
            format!("{what} of the program {name}.")
        }
        _ => format!("{what}."),
    }
}

/// The schema of a stream's settings, beside those of its requests.
pub(super) fn properties(http: &Value) -> Value {
    let names = |all: Vec<&str>| json!({ "enum": all });
    let ms = |about: &str| json!({"anyOf": [whole(0, usize::try_from(MAX_MS).unwrap_or(usize::MAX)), variable()], "description": about});
    let texts =
        json!({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}});
    let mut all = http.clone();
    let own = json!({
        "url": {"type": "string", "description": "The endpoint: http(s):// or ws(s)://."},
        "command": {"type": "string", "description": "The program: a path, or a name in PATH."},
        "args": {"type": "array", "items": {"type": ["string", "number", "boolean"]}},
        "env": texts,
        "pass_env": pass_env(),
        "cwd": {"type": "string", "description": "Where the program runs."},
        "kind": names(StreamTransport::ALL.map(|(name, _)| name).to_vec()),
        "direction": names(StreamType::ALL.map(|(name, _)| name).to_vec()),
        "items": names(StreamItems::ALL.map(|(name, _)| name).to_vec()),
        "send_as": names(SendAs::ALL.map(|(name, _)| name).to_vec()),
        "input_schema": {"type": ["object", "string"], "description": "The type of each value that is sent."},
        "output_schema": {"type": ["object", "string"], "description": "The type of each item that comes."},
        "supports_progress": {"type": "boolean"},
        "supports_cancellation": {"type": "boolean"},
        "max_item_bytes": {"anyOf": [whole(1, 16 << 20), variable()]},
        "buffer": {"anyOf": [whole(1, 65_536), variable()], "description": "Values that may wait to be sent over HTTP."},
        "heartbeat_ms": ms("Milliseconds that nothing at all may come before the connection counts as cut; 0 is for ever."),
        "idle_ms": ms("Milliseconds that no item may come before the stream ends with an error; 0 is for ever."),
        "reconnect": {"type": "boolean", "description": "Connect again after a cut, although items may be lost by that."},
        "max_reconnects": {"anyOf": [whole(0, 1_000_000), variable()]},
        "stream_type": names(stream_types().map(|(name, _)| name).to_vec()),
        "provider": {"type": ["object", "string"], "description": "{Http: …} or {Plugin: …} instead of url or command; or the kind, by name."},
    });
    if let (Some(all), Some(own)) = (all.as_object_mut(), own.as_object()) {
        all.remove("base_url");
        all.extend(own.clone());
        let group = json!({"type": ["object", "null"], "description": "Keys of the stream, which may stand beside it as well."});
        all.extend(GROUPS.map(|(name, _)| (name.to_owned(), group.clone())));
    }
    all
}

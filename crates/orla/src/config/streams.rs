//! The provider of a capability that is a stream (RTFS capability system §3.2): `{stream: {url: …}}` or
//! `{stream: {command: …}}`. What concerns the request stands beside, as with an HTTP endpoint.

use std::time::Duration;

use orla_marketplace::schema::schema_from_declaration;
use orla_marketplace::{
    CapabilityManifest, PluginCapability, ProviderType, StreamCapabilityImpl, StreamItems,
    StreamOptions, StreamTransport, StreamType,
};
use orla_process::document::{Key, Kind as Shape, Node, Position, Scalar};
use orla_providers::stream;
use serde_json::{Value, json};

use super::capabilities::type_of;
use super::keys::{list_of, nearest};
use super::provider::{self, MAX_MS};
use super::read::{Reader, excerpt, shown};
use super::schema::{variable, whole};
use super::servers::{environment, program};

/// The keys of a stream itself; whatever else there is concerns its requests.
const FIELDS: [&str; 20] = [
    "url",
    "command",
    "args",
    "env",
    "cwd",
    "kind",
    "direction",
    "items",
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

/// A stream.
pub(super) fn provider(
    reader: &mut Reader<'_>,
    path: &str,
    at: Position,
    pairs: &[(Key, Node)],
) -> Option<StreamCapabilityImpl> {
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
    if let Err(problem) = stream::check(&stream) {
        reader.problem(at, || format!("{path}: {problem}"));
        return None;
    }
    Some(stream)
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
        "direction" | "stream_type" => {
            if let Some(direction) = choice(reader, path, node, &StreamType::ALL) {
                stream.stream_type = direction;
            }
        }
        "items" => {
            if let Some(items) = choice(reader, path, node, &StreamItems::ALL) {
                options.items = items;
            }
        }
        "args" => options.args = reader.arguments(path, node).unwrap_or_default(),
        "env" => options.env = reader.secrets(path, node, environment).unwrap_or_default(),
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
        "cwd": {"type": "string", "description": "Where the program runs."},
        "kind": names(StreamTransport::ALL.map(|(name, _)| name).to_vec()),
        "direction": names(StreamType::ALL.map(|(name, _)| name).to_vec()),
        "items": names(StreamItems::ALL.map(|(name, _)| name).to_vec()),
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
        "stream_type": names(StreamType::ALL.map(|(name, _)| name).to_vec()),
    });
    if let (Some(all), Some(own)) = (all.as_object_mut(), own.as_object()) {
        all.remove("base_url");
        all.extend(own.clone());
    }
    all
}

//! A scripted agent: each message determines how the agent handles it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Map, Value, json};
use tungstenite::Message;

/// How an agent is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binding {
    JsonRpc,
    Rest,
    /// JSON-RPC as 0.3 has it.
    Older,
    WebSocket,
}

/// An agent on loopback. Dropping it ends it.
pub(crate) struct Agent {
    script: Arc<Script>,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "an agent over {:?}", self.script.binding)
    }
}

struct Script {
    address: SocketAddr,
    socket: SocketAddr,
    binding: Binding,
    streams: bool,
    /// The defect of its card.
    card: String,
    elsewhere: String,
    key: Ed25519KeyPair,
    stop: AtomicBool,
    tasks: AtomicUsize,
    seen: Mutex<Vec<String>>,
    requests: Mutex<Vec<String>>,
}

impl Agent {
    pub(crate) fn of(binding: Binding) -> Self {
        Self::start(binding, true, "", "")
    }

    /// Creates an agent that does not stream.
    pub(crate) fn without_streams() -> Self {
        Self::start(Binding::JsonRpc, false, "", "")
    }

    /// One whose card is `missing`, `garbage`, `forged`, `signed`, leads `nowhere` or `elsewhere`.
    pub(crate) fn with_card(card: &str, elsewhere: &str) -> Self {
        Self::start(Binding::JsonRpc, true, card, elsewhere)
    }

    /// Creates an agent that takes over a listener.
    pub(crate) fn at(listener: TcpListener) -> Self {
        Self::on(listener, Binding::JsonRpc, true, "", "")
    }

    fn start(binding: Binding, streams: bool, card: &str, elsewhere: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        Self::on(listener, binding, streams, card, elsewhere)
    }

    fn on(listener: TcpListener, binding: Binding, streams: bool, card: &str, elsewhere: &str) -> Self {
        let random = ring::rand::SystemRandom::new();
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&random).expect("a key");
        let sockets = TcpListener::bind("127.0.0.1:0").expect("a port");
        let local = |listener: &TcpListener| listener.local_addr().expect("an address");
        let (address, socket) = (local(&listener), local(&sockets));
        let script = Arc::new(Script {
            address,
            socket,
            binding,
            streams,
            card: card.to_owned(),
            elsewhere: elsewhere.to_owned(),
            key: Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).expect("a key"),
            stop: AtomicBool::new(false),
            tasks: AtomicUsize::new(0),
            seen: Mutex::default(),
            requests: Mutex::default(),
        });
        let listen = |listener: TcpListener, serve: fn(TcpStream, &Script)| {
            let script = Arc::clone(&script);
            thread::spawn(move || {
                while let Ok((stream, _)) = listener.accept() {
                    if script.stop.load(Ordering::Relaxed) {
                        return;
                    }
                    stream.set_read_timeout(Some(orla_e2e::TEST_TIMEOUT)).expect("a time");
                    let script = Arc::clone(&script);
                    thread::spawn(move || serve(stream, &script));
                }
            });
        };
        listen(listener, over_http);
        listen(sockets, over_socket);
        Self { script }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.script.address)
    }

    pub(crate) fn socket_url(&self) -> String {
        format!("ws://{}", self.script.socket)
    }

    /// Returns the heads of all requests.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.script.seen.lock().clone()
    }

    /// Returns how often an operation was asked for.
    pub(crate) fn request_count(&self, operation: &str) -> usize {
        let requests = self.script.requests.lock();
        requests.iter().filter(|request| *request == operation).count()
    }

    /// Returns the set of its public keys.
    pub(crate) fn keys(&self) -> String {
        self.script.keys().to_string()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.script.stop.store(true, Ordering::Relaxed);
        for address in [self.script.address, self.script.socket] {
            let _ = TcpStream::connect(address);
        }
    }
}

/// The events of a task, after which the stream is closed or left open.
struct StreamReply {
    events: Vec<Value>,
    then: Then,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Close,
    Hang,
    /// The last event is cut in its middle.
    Cut,
}

impl Script {
    fn card(&self) -> Option<String> {
        let (address, socket) = (self.address, self.socket);
        let base =
            if self.card == "elsewhere" { self.elsewhere.clone() } else { format!("http://{address}") };
        let skills = json!([
            {"id": "talk", "name": "Talk", "description": "Talks.", "tags": [], "examples": ["hello"]},
            {"id": "add", "name": "Add", "description": "Adds.", "tags": ["sum"]},
        ]);
        let interface = |url: String, binding: &str| json!([{"url": url, "protocolBinding": binding, "protocolVersion": "1.0"}]);
        let mut card = json!({"name": "Helper", "description": "Helps.", "version": "1.2", "skills": skills,
            "capabilities": {"streaming": self.streams}, "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"]});
        match (&*self.card, self.binding) {
            ("missing", _) => return None,
            ("garbage", _) => return Some("<html>".to_owned()),
            ("nowhere", _) => {}
            (_, Binding::Older) => {
                card["url"] = format!("{base}/rpc").into();
                card["protocolVersion"] = "0.3.0".into();
            }
            (_, Binding::JsonRpc) => {
                card["supportedInterfaces"] = interface(format!("{base}/rpc"), "JSONRPC");
            }
            (_, Binding::Rest) => {
                card["supportedInterfaces"] = interface(format!("{base}/rest"), "HTTP+JSON");
            }
            (_, Binding::WebSocket) => {
                card["supportedInterfaces"] = interface(format!("ws://{socket}/"), "WEBSOCKET");
            }
        }
        if matches!(&*self.card, "signed" | "forged") {
            let protected =
                json!({"alg": "EdDSA", "kid": "k", "jku": format!("http://{address}/keys.json")});
            let protected = URL_SAFE_NO_PAD.encode(protected.to_string());
            let text = format!("{protected}.{}", URL_SAFE_NO_PAD.encode(sorted(&card).to_string()));
            let signature = URL_SAFE_NO_PAD.encode(self.key.sign(text.as_bytes()));
            card["signatures"] = json!([{"protected": protected, "signature": signature}]);
        }
        if self.card == "forged" {
            card["name"] = "Somebody else".into();
        }
        Some(card.to_string())
    }

    fn keys(&self) -> Value {
        let x = URL_SAFE_NO_PAD.encode(self.key.public_key().as_ref());
        json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "k", "x": x}]})
    }

    fn note(&self, operation: &str) -> usize {
        let mut requests = self.requests.lock();
        requests.push(operation.to_owned());
        requests.iter().filter(|request| *request == operation).count()
    }

    /// Returns the reaction to a message.
    fn reply(&self, message: &Value) -> StreamReply {
        let text: String = message["parts"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|part| part["text"].as_str())
            .collect();
        let number = self.tasks.fetch_add(1, Ordering::Relaxed);
        let id = match message["taskId"].as_str() {
            Some(task) => task.to_owned(),
            None => format!("{number}-{}", text.replace(' ', "-")),
        };
        let done = |parts: Value| vec![task(&id, "COMPLETED", &parts, None)];
        let events = match text.as_str() {
            _ if message["taskId"].is_string() => {
                self.note(&format!("reply for {}", message["metadata"]["skillId"]));
                // Like some agents, it begins with the earlier state of the task.
                let stood = task(&id, "INPUT_REQUIRED", &json!([]), Some("which one?"));
                let done = done(json!([{"text": format!("you said {text}")}]));
                Some(stood).filter(|_| self.streams).into_iter().chain(done).collect()
            }
            "pieces" => pieces(&id, 3, true),
            "cut" => return StreamReply { events: pieces(&id, 2, false), then: Then::Cut },
            "mute" => return StreamReply { events: Vec::new(), then: Then::Hang },
            "never" => return StreamReply { events: pieces(&id, 1, false), then: Then::Hang },
            "later" => vec![task(&id, "WORKING", &json!([]), None)],
            "file" => done(json!([{"raw": "AQI=", "mediaType": "image/png", "filename": "dot.png"}])),
            "answer at once" => vec![
                json!({"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "at once"}]}}),
            ],
            "fail" => vec![task(&id, "FAILED", &json!([]), Some("no luck"))],
            "reject" => vec![task(&id, "REJECTED", &json!([]), Some("no luck"))],
            "ask" => vec![task(&id, "INPUT_REQUIRED", &json!([]), Some("which one?"))],
            "foreign" => vec![
                task(&id, "WORKING", &json!([]), None),
                task("another", "COMPLETED", &json!([]), None),
            ],
            "huge" => {
                let part = json!([{"text": "x".repeat(4 * 1024 * 1024)}]);
                let piece = |_| artifact(&id, &part, true);
                std::iter::once(task(&id, "WORKING", &json!([]), None))
                    .chain((0..5).map(piece))
                    .collect()
            }
            "" => {
                let mut data = message["parts"][0]["data"].clone();
                data["skill"] = message["metadata"]["skillId"].clone();
                done(json!([{ "data": data }]))
            }
            _ => done(json!([{"text": text.trim_start_matches("echo ")}])),
        };
        StreamReply { events, then: Then::Close }
    }

    /// Returns how a task stands: what it does is in its id.
    fn stands(&self, id: &str, times: usize) -> Value {
        let whole = json!([{"text": "one "}, {"text": "two "}, {"text": "three"}]);
        let event = match id {
            _ if id.ends_with("-cut") && times >= 2 => task(id, "COMPLETED", &whole, None),
            _ if id.ends_with("-cut") => {
                task(id, "WORKING", &json!([{"text": "one "}, {"text": "two "}]), None)
            }
            _ if id.ends_with("-never") => task(id, "WORKING", &json!([{"text": "one "}]), None),
            _ if times >= 3 => task(id, "COMPLETED", &json!([{"text": "later done"}]), None),
            _ => task(id, "WORKING", &json!([]), None),
        };
        event["task"].clone()
    }

    /// Returns the answer of an operation.
    fn answer(&self, operation: &str, params: &Value) -> Result<StreamReply, Value> {
        let times = self.note(operation);
        let id = params["id"].as_str().unwrap_or_default();
        let only = |event: Value| StreamReply { events: vec![event], then: Then::Close };
        Ok(match operation {
            "SendMessage" | "SendStreamingMessage" => {
                let message = &params["message"];
                if message["parts"][0]["text"] == "error" {
                    return Err(json!({"code": -32004, "message": "no such thing"}));
                }
                self.reply(message)
            }
            "SubscribeToTask" if id.ends_with("-cut") => {
                let mut events = vec![artifact(id, &json!([{"text": "three"}]), true)];
                events.push(status(id, "COMPLETED", None));
                StreamReply { events, then: Then::Close }
            }
            "SubscribeToTask" => StreamReply { events: vec![], then: Then::Hang },
            "CancelTask" => only(task(id, "CANCELED", &json!([]), None)["task"].clone()),
            _ => only(self.stands(id, times)),
        })
    }
}

fn task(id: &str, state: &str, parts: &Value, says: Option<&str>) -> Value {
    let mut task =
        json!({"id": id, "contextId": "c", "status": {"state": format!("TASK_STATE_{state}")}});
    if *parts != json!([]) {
        task["artifacts"] = json!([{"artifactId": "a", "parts": parts}]);
    }
    if let Some(says) = says {
        task["status"]["message"] =
            json!({"messageId": "s", "role": "ROLE_AGENT", "parts": [{"text": says}]});
    }
    json!({ "task": task })
}

fn status(id: &str, state: &str, says: Option<&str>) -> Value {
    let task = task(id, state, &json!([]), says);
    json!({"statusUpdate": {"taskId": id, "contextId": "c", "status": task["task"]["status"]}})
}

fn artifact(id: &str, parts: &Value, append: bool) -> Value {
    json!({"artifactUpdate": {"taskId": id, "contextId": "c", "append": append, "artifact": {"artifactId": "a", "parts": parts}}})
}

/// Returns a task that gives its result in pieces.
fn pieces(id: &str, count: usize, ends: bool) -> Vec<Value> {
    let mut events =
        vec![task(id, "SUBMITTED", &json!([]), None), status(id, "WORKING", Some("thinking"))];
    let texts = ["one ", "two ", "three"];
    let piece = |(index, text): (usize, &&str)| artifact(id, &json!([{"text": text}]), index > 0);
    events.extend(texts[..count].iter().enumerate().map(piece));
    if ends {
        events.push(status(id, "COMPLETED", None));
    }
    events
}

fn over_http(stream: TcpStream, script: &Script) {
    let mut reader = BufReader::new(stream);
    while let Some((head, body)) = request(&mut reader) {
        script.seen.lock().push(head.clone());
        let mut words = head.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let to = reader.get_mut();
        let goes_on = match path {
            "/.well-known/agent-card.json" => match script.card() {
                Some(card) => whole(to, "200 OK", &card),
                None => whole(to, "404 Not Found", "{}"),
            },
            "/keys.json" => whole(to, "200 OK", &script.keys().to_string()),
            "/rpc" if script.binding != Binding::Rest => rpc(to, script, &body),
            _ if script.binding == Binding::Rest => rest(to, script, method, path, &body),
            _ => whole(to, "404 Not Found", ""),
        };
        if !goes_on {
            return;
        }
    }
}

fn request(reader: &mut BufReader<TcpStream>) -> Option<(String, Value)> {
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let before = head.len();
        if reader.read_line(&mut head).unwrap_or(0) == 0 {
            return None;
        }
        let line = &head[before..];
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.trim().parse().expect("a length");
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((head, serde_json::from_slice(&body).unwrap_or_default()))
}

/// Writes an answer. Returns whether the connection continues.
fn whole(to: &mut TcpStream, status: &str, body: &str) -> bool {
    let length = body.len();
    let kind = "content-type: application/json";
    write!(to, "HTTP/1.1 {status}\r\n{kind}\r\ncontent-length: {length}\r\n\r\n{body}").is_ok()
}

fn rpc(to: &mut TcpStream, script: &Script, call: &Value) -> bool {
    let is_older = script.binding == Binding::Older;
    let operation = operation(call["method"].as_str().unwrap_or_default());
    if call["params"]["message"]["parts"][0]["text"] == "no json" {
        return whole(to, "200 OK", "<html>");
    }
    let wrap = |result: Value| json!({"jsonrpc": "2.0", "id": call["id"], "result": result}).to_string();
    match script.answer(operation, &call["params"]) {
        Err(error) => {
            whole(to, "200 OK", &json!({"jsonrpc": "2.0", "id": call["id"], "error": error}).to_string())
        }
        Ok(reply) => {
            let events = reply
                .events
                .iter()
                .map(|event| wrap(if is_older { older(event) } else { event.clone() }));
            answer(to, operation, events.collect(), reply.then)
        }
    }
}

fn rest(to: &mut TcpStream, script: &Script, method: &str, path: &str, body: &Value) -> bool {
    let operation = match (method, path) {
        ("POST", "/rest/message:send") => "SendMessage",
        ("POST", "/rest/message:stream") => "SendStreamingMessage",
        ("POST", path) if path.ends_with(":cancel") => "CancelTask",
        ("GET", path) if path.ends_with(":subscribe") => "SubscribeToTask",
        ("GET", _) => "GetTask",
        _ => return whole(to, "404 Not Found", ""),
    };
    let id = path.trim_start_matches("/rest/tasks/").split(':').next().unwrap_or_default();
    let mut params = body.clone();
    if operation.ends_with("Task") {
        params = json!({ "id": id });
    }
    match script.answer(operation, &params) {
        Err(error) => whole(to, "400 Bad Request", &json!({ "error": error }).to_string()),
        Ok(reply) => {
            answer(to, operation, reply.events.iter().map(Value::to_string).collect(), reply.then)
        }
    }
}

fn answer(to: &mut TcpStream, operation: &str, events: Vec<String>, then: Then) -> bool {
    if !matches!(operation, "SendStreamingMessage" | "SubscribeToTask") {
        return whole(to, "200 OK", &events[0]);
    }
    let _ =
        to.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n");
    for event in events {
        let _ = to.write_all(format!("data: {event}\n\n").as_bytes());
    }
    match then {
        Then::Close => {}
        Then::Cut => {
            let _ = to.write_all(b"data: {\"jsonrpc\":\"2.0\",\"resu");
        }
        Then::Hang => {
            let _ = to.read(&mut [0]);
        }
    }
    false
}

fn over_socket(stream: TcpStream, script: &Script) {
    let Ok(mut socket) = tungstenite::accept(stream) else { return };
    while let Ok(message) = socket.read() {
        let Message::Text(text) = message else { continue };
        let call: Value = serde_json::from_str(text.as_str()).expect("JSON");
        let operation = operation(call["method"].as_str().unwrap_or_default());
        let Ok(reply) = script.answer(operation, &call["params"]) else { return };
        for event in reply.events {
            let response = json!({"jsonrpc": "2.0", "id": call["id"], "result": event});
            let _ = socket.send(Message::text(response.to_string()));
        }
    }
}

fn operation(method: &str) -> &str {
    match method {
        "message/send" => "SendMessage",
        "message/stream" => "SendStreamingMessage",
        "tasks/get" => "GetTask",
        "tasks/cancel" => "CancelTask",
        "tasks/resubscribe" => "SubscribeToTask",
        other => other,
    }
}

/// Returns an event in the form of 0.3.
fn older(event: &Value) -> Value {
    let members = event.as_object().expect("an object");
    let kinds = [
        ("task", "task"),
        ("message", "message"),
        ("statusUpdate", "status-update"),
        ("artifactUpdate", "artifact-update"),
    ];
    let found = kinds.iter().find_map(|(name, kind)| Some((members.get(*name)?, *kind)));
    // What was asked for by itself is a task.
    let (inner, kind) = found.unwrap_or((event, "task"));
    let mut inner = older_values(inner);
    inner["kind"] = kind.into();
    inner
}

fn older_values(value: &Value) -> Value {
    match value {
        Value::String(text) if text.starts_with("TASK_STATE_") => {
            text.trim_start_matches("TASK_STATE_").to_lowercase().replace('_', "-").into()
        }
        Value::String(text) if text == "ROLE_AGENT" => "agent".into(),
        Value::Array(items) => items.iter().map(older_values).collect(),
        Value::Object(members) if members.contains_key("raw") => {
            json!({"kind": "file", "file": {"bytes": members["raw"], "mimeType": members["mediaType"], "name": members["filename"]}})
        }
        Value::Object(members) => {
            let mut older: Map<String, Value> =
                members.iter().map(|(name, value)| (name.clone(), older_values(value))).collect();
            for kind in ["text", "data"] {
                if members.contains_key(kind) {
                    older.insert("kind".to_owned(), kind.into());
                }
            }
            Value::Object(older)
        }
        other => other.clone(),
    }
}

/// Returns the value with the members of every object in order.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(sorted).collect(),
        Value::Object(members) => {
            let mut members: Vec<(&String, &Value)> = members.iter().collect();
            members.sort_by_key(|(name, _)| *name);
            members.into_iter().map(|(name, value)| (name.clone(), sorted(value))).collect()
        }
        other => other.clone(),
    }
}

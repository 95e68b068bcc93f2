//! A configurable HTTP server for tests.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, Method, Response, StatusCode};
use axum::response::IntoResponse;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::JoinSet;

/// The behaviour of a server.
#[derive(Clone, Debug)]
pub(super) struct Behaviour {
    pub(super) knows_sessions: bool,
    pub(super) is_sessionless: bool,
    /// Answers are streams of events.
    pub(super) speaks_in_events: bool,
    /// Streams end before the answer, and can be resumed.
    pub(super) cuts: bool,
    pub(super) redirects_to: Option<String>,
    /// The first `server/discover` gets no answer, and `initialize` is refused for its headers.
    pub(super) discovers_late: bool,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            knows_sessions: true,
            is_sessionless: false,
            speaks_in_events: false,
            cuts: false,
            redirects_to: None,
            discovers_late: false,
        }
    }
}

/// A running server. Dropping it ends the server.
pub(super) struct Fake {
    pub(super) address: SocketAddr,
    pub(super) state: Arc<State>,
    _tasks: JoinSet<()>,
}

pub(super) struct State {
    behaviour: Behaviour,
    /// The requests: `METHOD rpc-method session`.
    pub(super) requests: Mutex<Vec<String>>,
    pub(super) headers: Mutex<HashMap<String, HeaderMap>>,
    pub(super) sessions: Mutex<Vec<String>>,
    /// The peer addresses of connections.
    pub(super) peers: Mutex<HashSet<SocketAddr>>,
    questions: Mutex<HashMap<String, oneshot::Sender<Value>>>,
    /// Messages on streams that belong to no request.
    pub(super) unsolicited: broadcast::Sender<Value>,
    tools: Mutex<Vec<String>>,
}

impl Fake {
    pub(super) async fn start(behaviour: Behaviour) -> Self {
        Self::at("127.0.0.1:0".parse().unwrap(), behaviour).await
    }

    pub(super) async fn at(address: SocketAddr, behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let tools = ["echo", "ask", "slow", "say", "change", "odd"].map(str::to_owned).to_vec();
        let state = Arc::new(State {
            behaviour,
            requests: Mutex::default(),
            headers: Mutex::default(),
            sessions: Mutex::default(),
            peers: Mutex::default(),
            questions: Mutex::default(),
            unsolicited: broadcast::Sender::new(16),
            tools: Mutex::new(tools),
        });
        let mut tasks = JoinSet::new();
        let shared = Arc::clone(&state);
        let handler =
            move |from: ConnectInfo<SocketAddr>, method: Method, headers: HeaderMap, body: Bytes| {
                let state = Arc::clone(&shared);
                state.peers.lock().insert(from.0);
                async move { state.handle(&method, &headers, &body) }
            };
        let app = axum::Router::new().fallback(handler);
        let app = app.into_make_service_with_connect_info::<SocketAddr>();
        tasks.spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { address, state, _tasks: tasks }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    pub(super) fn requests(&self) -> Vec<String> {
        self.state.requests.lock().clone()
    }
}

/// The messages on the stream of a request before its answer. An empty text breaks the stream.
type Outgoing = mpsc::Sender<String>;

impl State {
    fn handle(self: &Arc<Self>, method: &Method, headers: &HeaderMap, body: &Bytes) -> Response<Body> {
        let message: Value = serde_json::from_slice(body).unwrap_or_default();
        let rpc = message["method"].as_str().unwrap_or_default().to_owned();
        let header =
            |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let session = header("mcp-session-id").to_owned();
        self.requests.lock().push(format!("{method} {rpc} {session}").trim_end().to_owned());
        self.headers.lock().insert(format!("{method} {rpc}"), headers.clone());
        if let Some(to) = &self.behaviour.redirects_to {
            return (StatusCode::TEMPORARY_REDIRECT, [("location", to.clone())]).into_response();
        }
        if method == Method::DELETE {
            self.sessions.lock().retain(|known| *known != session);
            return StatusCode::NO_CONTENT.into_response();
        }
        let is_modern = header("mcp-protocol-version") == "2026-07-28";
        if is_modern && !self.behaviour.is_sessionless {
            return (StatusCode::BAD_REQUEST, "no session").into_response();
        }
        let is_known = self.sessions.lock().contains(&session);
        if !is_modern && rpc != "initialize" && !is_known {
            return (StatusCode::NOT_FOUND, "no such session").into_response();
        }
        if method == Method::GET {
            return self.notifications(header("last-event-id"));
        }
        let Some(id) = message.get("id").cloned() else { return StatusCode::ACCEPTED.into_response() };
        if rpc.is_empty() {
            let waiting = self.questions.lock().remove(id.as_str().unwrap_or_default());
            waiting.map(|waiting| waiting.send(message));
            return StatusCode::ACCEPTED.into_response();
        }
        let is_late = rpc == "initialize" && self.behaviour.discovers_late;
        if is_late || (is_modern && header("mcp-method") != rpc) {
            let error =
                json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32020, "message": "headers"}});
            return (StatusCode::BAD_REQUEST, axum::Json(error)).into_response();
        }
        if rpc == "initialize" {
            if !self.behaviour.knows_sessions {
                let error = json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no sessions"}});
                return (StatusCode::NOT_FOUND, axum::Json(error)).into_response();
            }
            let mut sessions = self.sessions.lock();
            let session = format!("s{}", self.requests.lock().len());
            sessions.push(session.clone());
            let result = json!({"protocolVersion": "2025-06-18", "capabilities": capabilities()});
            let answer = json!({"jsonrpc": "2.0", "id": id, "result": result});
            return ([("mcp-session-id", session)], axum::Json(answer)).into_response();
        }
        let (outgoing, mut messages) = mpsc::channel::<String>(64);
        let state = Arc::clone(self);
        let params = message["params"].clone();
        let answering = async move { state.answer(&rpc, id, &params, is_modern, &outgoing).await };
        let is_listening = message["method"] == "subscriptions/listen";
        if self.behaviour.speaks_in_events || is_listening {
            let mut answering = Some(Box::pin(answering));
            let events = stream::poll_fn(move |cx| {
                if let Some(answer) = &mut answering
                    && let std::task::Poll::Ready(()) = answer.as_mut().poll(cx)
                {
                    answering = None;
                }
                messages.poll_recv(cx)
            });
            // The cut ends the stream.
            let events = events.take_while(|text| std::future::ready(!text.is_empty()));
            return event_stream(events);
        }
        let body = stream::once(async move {
            answering.await;
            let mut last = String::new();
            while let Some(text) = messages.recv().await {
                last = text;
            }
            Ok::<_, Infallible>(last)
        });
        ([("content-type", "application/json")], Body::from_stream(body)).into_response()
    }

    fn notifications(&self, last_event: &str) -> Response<Body> {
        if let Some(id) = last_event.strip_prefix("cut-") {
            let answer =
                json!({"jsonrpc": "2.0", "id": id.parse::<u64>().unwrap(), "result": text("taken up")});
            return event_stream(stream::iter([answer.to_string()]));
        }
        let messages = self.unsolicited.subscribe();
        let events = stream::unfold(messages, |mut messages| async move {
            messages.recv().await.ok().map(|message| (message.to_string(), messages))
        });
        event_stream(events)
    }

    async fn answer(&self, rpc: &str, id: Value, params: &Value, is_modern: bool, outgoing: &Outgoing) {
        let say = async |text: String| drop(outgoing.send(text).await);
        let result = match rpc {
            "server/discover" => {
                let discovers = |request: &&String| request.contains("server/discover");
                let is_first = self.requests.lock().iter().filter(discovers).count() == 1;
                if self.behaviour.discovers_late && is_first {
                    return std::future::pending().await;
                }
                json!({"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": capabilities()})
            }
            "subscriptions/listen" => {
                let mut messages = self.unsolicited.subscribe();
                let uris = params["notifications"]["resourceSubscriptions"].as_array();
                let known: Vec<&Value> =
                    uris.into_iter().flatten().filter(|uri| **uri == "a:b").collect();
                let acknowledged = json!({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": {"notifications": {"resourceSubscriptions": known}}});
                say(acknowledged.to_string()).await;
                while let Ok(message) = messages.recv().await {
                    say(message.to_string()).await;
                }
                return;
            }
            "tools/list" => {
                let tools = self.tools.lock().clone();
                let tool = |name: &String| json!({"name": name, "inputSchema": {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}});
                json!({"tools": tools.iter().map(tool).collect::<Vec<_>>()})
            }
            "tools/call" => {
                let arguments = params["arguments"].clone();
                match params["name"].as_str().unwrap_or_default() {
                    "echo" => text(&arguments.to_string()),
                    "odd" => {
                        let result = r#"{"content": [ {"type": "text", "text": "x", "extra": 1.10} ], "structuredContent": {"n": 1e400}}"#;
                        return say(format!(r#"{{"jsonrpc": "2.0", "id": {id}, "result": {result}}}"#))
                            .await;
                    }
                    "say" => {
                        let notify = |method: &str, params: Value| {
                            json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string()
                        };
                        let token = &params["_meta"]["progressToken"];
                        say(notify(
                            "notifications/progress",
                            json!({"progressToken": token, "progress": 1}),
                        ))
                        .await;
                        say(notify("notifications/message", json!({"level": "info", "data": "hello"})))
                            .await;
                        text("said")
                    }
                    "ask" if is_modern => match params.get("inputResponses") {
                        None => {
                            let question = json!({"method": "sampling/createMessage", "params": {}});
                            json!({"resultType": "input_required", "inputRequests": {"q": question}, "requestState": "s"})
                        }
                        Some(responses) => text(&responses.to_string()),
                    },
                    "ask" => {
                        let (waiting, answered) = oneshot::channel();
                        self.questions.lock().insert("q".to_owned(), waiting);
                        let question = json!({"jsonrpc": "2.0", "id": "q", "method": "sampling/createMessage", "params": {}});
                        say(question.to_string()).await;
                        text(&answered.await.unwrap()["result"].to_string())
                    }
                    "slow" => {
                        tokio::time::sleep(Duration::from_secs(60)).await;
                        text("slept")
                    }
                    "change" => {
                        self.tools.lock().push("new".to_owned());
                        let changed =
                            json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
                        let _ = self.unsolicited.send(changed);
                        text("changed")
                    }
                    other => {
                        let message = format!("Unknown tool: {other}");
                        let error = json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32602, "message": message}});
                        return say(error.to_string()).await;
                    }
                }
            }
            _ => json!({}),
        };
        if self.behaviour.cuts && rpc == "tools/call" {
            say(format!("\u{1}id: cut-{id}\nretry: 10\ndata:")).await;
            return say(String::new()).await;
        }
        say(json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string()).await;
    }
}

fn event_stream(messages: impl futures_util::Stream<Item = String> + Send + 'static) -> Response<Body> {
    let events = messages.map(|text| {
        Ok::<_, Infallible>(match text.strip_prefix('\u{1}') {
            Some(raw) => format!("{raw}\n\n"),
            None => format!("event: message\ndata: {text}\n\n"),
        })
    });
    let begun = stream::iter([Ok(": hello\n\n".to_owned())]);
    ([("content-type", "text/event-stream")], Body::from_stream(begun.chain(events))).into_response()
}

fn capabilities() -> Value {
    json!({"tools": {"listChanged": true}, "resources": {"subscribe": true}, "logging": {}})
}

fn text(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

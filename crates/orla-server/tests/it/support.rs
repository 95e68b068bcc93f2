//! A server with a few capabilities whose behaviour tests can see into, and a client that is small
//! enough to be wrong on purpose.

use std::any::{Any, TypeId};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use orla_marketplace::rtfs::Value as RtfsValue;
use orla_marketplace::{
    CallContext, CapabilityExecutor, CapabilityManifest, CapabilityMarketplace, CustomProvider,
    JsonText, Limits, LogLevel, Notice, Outcome, Payload, Progress, ProviderType, RuntimeError,
    RuntimeResult, Surface, SurfaceError,
};
use orla_server::{Server, ServerOptions};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

/// The timeout of all waits in tests.
pub(crate) use orla_marketplace::testing::TEST_TIMEOUT as DEADLINE;

/// The behaviour of a capability.
#[derive(Clone, Debug)]
pub(crate) enum Does {
    /// Answers with its arguments.
    Echo,
    /// Waits for `ms`, then answers; counts how it began and ended.
    Sleep(Arc<Seen>),
    Panic,
    Fail,
    /// Three steps of progress and a log message at each level, `ms` apart.
    Noise,
    /// Asks the client all questions in one list of `rounds` at once, one list after the other, and
    /// reports a step of progress before each. Returns the answers, `then` later. Fails on an error if
    /// it is `strict`, with the output `gives`. Gives up after `ms`.
    Ask(Arc<Seen>),
}

/// How often things happened.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) began: AtomicUsize,
    pub(crate) finished: AtomicUsize,
    pub(crate) cancelled: AtomicUsize,
    pub(crate) answered: AtomicUsize,
}

impl Seen {
    pub(crate) async fn until(&self, what: impl Fn(&Self) -> &AtomicUsize, count: usize) {
        eventually(|| what(self).load(Ordering::SeqCst) >= count).await;
    }
}

/// Polls until the condition holds.
pub(crate) async fn eventually(condition: impl Fn() -> bool) {
    let polling = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(DEADLINE, polling).await.expect("it never came to pass");
}

impl CustomProvider for Does {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn kind(&self) -> &'static str {
        "fixture"
    }
}

struct Fixtures;

#[async_trait]
impl CapabilityExecutor for Fixtures {
    fn provider_type_id(&self) -> TypeId {
        TypeId::of::<Does>()
    }

    async fn execute(
        &self,
        provider: &ProviderType,
        inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<Outcome> {
        let arguments: Value = serde_json::from_str(inputs.json()?.as_str()).unwrap_or_default();
        let pause = Duration::from_millis(arguments["ms"].as_u64().unwrap_or(0));
        match provider.settings::<Does>()? {
            Does::Echo => Ok(Outcome { structured: Some(inputs.clone()), ..Outcome::default() }),
            Does::Sleep(seen) => {
                seen.began.fetch_add(1, Ordering::SeqCst);
                tokio::select! {
                    () = ctx.scope.cancellation.cancelled() => {
                        seen.cancelled.fetch_add(1, Ordering::SeqCst);
                        Err(RuntimeError::Cancelled { id: ctx.name.to_string(), outcome: None })
                    }
                    () = tokio::time::sleep(pause) => {
                        seen.finished.fetch_add(1, Ordering::SeqCst);
                        Ok(Outcome::from_value(RtfsValue::from("slept")))
                    }
                }
            }
            Does::Panic => panic!("as it was asked to"),
            Does::Fail => Err(RuntimeError::Failed {
                id: ctx.name.to_string(),
                message: format!("{} failed as it was asked to", ctx.name),
                outcome: None,
            }),
            Does::Noise => {
                for step in 1..=3_u8 {
                    let progress = Progress { progress: step.into(), total: Some(3.0), message: None };
                    ctx.scope.notices.send(Notice::Progress(progress));
                    for level in LogLevel::ALL {
                        ctx.scope
                            .notices
                            .send(Notice::Log { level, message: format!("step {step}").into() });
                    }
                    tokio::time::sleep(pause).await;
                }
                Ok(Outcome::from_value(RtfsValue::from("done")))
            }
            Does::Ask(seen) => {
                seen.began.fetch_add(1, Ordering::SeqCst);
                let _ended = Ended(Arc::clone(seen));
                let then = Duration::from_millis(arguments["then"].as_u64().unwrap_or(0));
                let asking = async {
                    let got = ask(&arguments, ctx).await;
                    seen.answered.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(then).await;
                    got
                };
                let got = tokio::select! {
                    got = asking => got,
                    () = ctx.scope.cancellation.cancelled() => {
                        seen.cancelled.fetch_add(1, Ordering::SeqCst);
                        return Err(RuntimeError::Cancelled { id: ctx.name.to_string(), outcome: None });
                    }
                    () = tokio::time::sleep_until(ctx.deadline) => {
                        let (id, limit) = (ctx.name.to_string(), ctx.timeout);
                        return Err(RuntimeError::TimedOut { id, limit, outcome: None });
                    }
                    () = tokio::time::sleep(pause), if !pause.is_zero() => {
                        return Ok(Outcome::from_value(RtfsValue::from("waited long enough")));
                    }
                };
                let failed = got.iter().find_map(|answer| answer["error"].as_str());
                if let Some(why) = failed.filter(|_| arguments["strict"] == true) {
                    let message = format!("{}: {why}", ctx.name);
                    let gave = arguments["gives"].as_str();
                    let gave = gave.map(|text| Outcome::from_value(RtfsValue::from(text)));
                    let (id, outcome) = (ctx.name.to_string(), gave.map(Box::new));
                    return Err(RuntimeError::Failed { id, message, outcome });
                }
                let got = JsonText::of(&json!({ "got": got })).unwrap();
                Ok(Outcome { structured: Some(Payload::from_json(got)), ..Outcome::default() })
            }
        }
    }
}

/// Counts the end of a call, however it ends.
struct Ended(Arc<Seen>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.finished.fetch_add(1, Ordering::SeqCst);
    }
}

async fn ask(arguments: &Value, ctx: &CallContext) -> Vec<Value> {
    let Some(client) = &ctx.scope.client else { return vec![json!({"error": "there is no client"})] };
    let mut got = Vec::new();
    for (step, round) in arguments["rounds"].as_array().into_iter().flatten().enumerate() {
        let step = u32::try_from(step).unwrap() + 1;
        let progress = Progress { progress: step.into(), total: None, message: None };
        ctx.scope.notices.send(Notice::Progress(progress));
        let questions = round.as_array().unwrap().iter().map(|question| async {
            let params = JsonText::of(&question["params"]).unwrap();
            match client.request(question["method"].as_str().unwrap(), params).await {
                Ok(answer) => serde_json::from_str(answer.as_str()).unwrap(),
                Err(err) => json!({"error": err.to_string()}),
            }
        });
        got.extend(futures_util::future::join_all(questions).await);
    }
    got
}

/// A surface with one prompt. It panics when another prompt is requested.
struct Prompts;

#[async_trait]
impl Surface for Prompts {
    fn owner(&self) -> &str {
        "fixture"
    }

    fn serves(&self, method: &str) -> bool {
        method.starts_with("prompts/")
    }

    async fn request(
        &self,
        method: &str,
        params: &JsonText,
        ctx: &CallContext,
    ) -> Result<JsonText, SurfaceError> {
        let params: Value = serde_json::from_str(params.as_str()).unwrap_or_default();
        let result = match (method, params["name"].as_str()) {
            ("prompts/list", _) => json!({"prompts": [{"name": "greet"}]}),
            (_, Some("ask")) => json!({"messages": ask(&params["arguments"], ctx).await}),
            (_, Some("greet")) => json!({"messages": []}),
            (_, Some("panic")) => panic!("as it was asked to"),
            _ => return Err(SurfaceError::NotFound("no such prompt".into())),
        };
        JsonText::of(&result).map_err(|err| SurfaceError::Failed(err.to_string()))
    }
}

/// A running server.
pub(crate) struct World {
    pub(crate) market: Arc<CapabilityMarketplace>,
    pub(crate) server: Server,
    pub(crate) seen: Arc<Seen>,
    pub(crate) address: SocketAddr,
    pub(crate) shutdown: CancellationToken,
    pub(crate) serving: tokio::task::JoinHandle<()>,
    _runtime: tokio_util::task::TaskTracker,
}

impl Drop for World {
    fn drop(&mut self) {
        self.server.abort();
        self.shutdown.cancel();
    }
}

pub(crate) fn market(seen: &Arc<Seen>) -> Arc<CapabilityMarketplace> {
    let market = CapabilityMarketplace::new(Limits::default());
    market.register_executor(Arc::new(Fixtures)).unwrap();
    let market = Arc::new(market);
    load(&market, seen, &["ask", "echo", "fail", "noise", "panic", "sleep"]);
    market
}

/// Puts a snapshot in force that has these capabilities.
pub(crate) fn load(market: &CapabilityMarketplace, seen: &Arc<Seen>, names: &[&str]) {
    load_with(market, seen, names, Limits::default(), &[]);
}

fn load_with(
    market: &CapabilityMarketplace,
    seen: &Arc<Seen>,
    names: &[&str],
    limits: Limits,
    surfaces: &[Arc<dyn Surface>],
) {
    let mut builder = market.builder(limits);
    for name in names {
        let does = match *name {
            "sleep" => Does::Sleep(Arc::clone(seen)),
            "panic" => Does::Panic,
            "fail" => Does::Fail,
            "noise" => Does::Noise,
            "ask" => Does::Ask(Arc::clone(seen)),
            _ => Does::Echo,
        };
        let provider = ProviderType::Custom(Arc::new(does));
        builder.capability(CapabilityManifest::new(*name, format!("Does {name}."), provider)).unwrap();
    }
    builder.surface(Arc::new(Prompts));
    for surface in surfaces {
        builder.surface(Arc::clone(surface));
    }
    market.replace(builder.build());
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(ServerOptions::default()).await
    }

    pub(crate) async fn with(options: ServerOptions) -> Self {
        let seen = Arc::default();
        let market = market(&seen);
        let server = Server::new(Arc::clone(&market), options);
        let bound = server.bind("127.0.0.1", 0).await.unwrap();
        let address = bound.local_addr();
        let shutdown = CancellationToken::new();
        let runtime = tokio_util::task::TaskTracker::new();
        let serving = runtime.spawn(bound.serve(shutdown.clone()));
        Self { market, server, seen, address, shutdown, serving, _runtime: runtime }
    }

    pub(crate) fn reload(&self, names: &[&str]) {
        load(&self.market, &self.seen, names);
    }

    pub(crate) fn reload_with_timeout(&self, names: &[&str], timeout: Duration) {
        let mut limits = Limits::default();
        limits.timeout = timeout;
        load_with(&self.market, &self.seen, names, limits, &[]);
    }

    /// Limits the number of concurrent calls from now on.
    pub(crate) fn reload_with_places(&self, names: &[&str], places: usize) {
        let mut limits = Limits::default();
        limits.max_concurrency = places;
        load_with(&self.market, &self.seen, names, limits, &[]);
    }

    pub(crate) fn reload_with(&self, names: &[&str], surfaces: &[Arc<dyn Surface>]) {
        load_with(&self.market, &self.seen, names, Limits::default(), surfaces);
    }

    pub(crate) async fn connect(&self) -> Connection {
        let stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Connection { stream, buffer: Vec::new(), session: None, bearer: None }
    }

    /// Returns a connection with a session whose client can be asked everything.
    pub(crate) async fn answering_session(&self) -> Connection {
        let mut connection = self.connect().await;
        connection.initialize_as("2025-11-25", everything()).await;
        connection
    }

    /// Returns a connection with its own session.
    pub(crate) async fn session(&self) -> Connection {
        let mut connection = self.connect().await;
        connection.initialize("2025-11-25").await;
        connection
    }
}

/// Returns the capabilities of a client that answers every question.
pub(crate) fn everything() -> Value {
    json!({"sampling": {}, "elicitation": {}, "roots": {"listChanged": true}})
}

/// One connection of a client.
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    pub(crate) session: Option<String>,
    pub(crate) bearer: Option<&'static str>,
}

/// A response whose body is read as it comes.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
}

impl Head {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn is_stream(&self) -> bool {
        self.header("content-type") == Some("text/event-stream")
    }
}

impl Connection {
    pub(crate) async fn initialize(&mut self, version: &str) -> Value {
        self.initialize_as(version, json!({})).await
    }

    pub(crate) async fn initialize_as(&mut self, version: &str, capabilities: Value) -> Value {
        let params = json!({"protocolVersion": version, "capabilities": capabilities, "clientInfo": {"name": "t", "version": "1"}});
        let (head, body) = self.post("initialize", params, &[]).await;
        self.session = head.header("mcp-session-id").map(str::to_owned);
        body
    }

    /// Returns a session's request, or one without a session, as it stands.
    pub(crate) async fn post(
        &mut self,
        method: &str,
        params: Value,
        more: &[(&str, &str)],
    ) -> (Head, Value) {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        self.send(body.as_bytes(), more).await;
        self.answer().await
    }

    pub(crate) async fn notify(&mut self, method: &str, params: Value) -> u16 {
        let body = json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string();
        self.send(body.as_bytes(), &[]).await;
        let head = self.head().await;
        self.body(&head).await;
        head.status
    }

    /// Returns a sessionless request.
    pub(crate) async fn ask(&mut self, method: &str, params: Value) -> (Head, Value) {
        self.begin(1, method, params).await;
        self.answer().await
    }

    /// A sessionless request whose answer is read later.
    pub(crate) async fn begin(&mut self, id: u32, method: &str, mut params: Value) {
        let name = params["name"].as_str().or(params["uri"].as_str()).unwrap_or_default().to_owned();
        let meta = params["_meta"].take();
        let mut full = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        for (key, value) in meta.as_object().into_iter().flatten() {
            full[key] = value.clone();
        }
        params["_meta"] = full;
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string();
        let mut headers = vec![("mcp-protocol-version", "2026-07-28"), ("mcp-method", method)];
        if !name.is_empty() {
            headers.push(("mcp-name", &name));
        }
        self.send(body.as_bytes(), &headers).await;
    }

    pub(crate) async fn call(&mut self, tool: &str, arguments: Value) -> (Head, Value) {
        let params = json!({"name": tool, "arguments": arguments});
        if self.session.is_some() {
            self.post("tools/call", params, &[]).await
        } else {
            self.ask("tools/call", params).await
        }
    }

    /// Sends a body to the endpoint with the headers of a well-behaved client and `more`.
    pub(crate) async fn send(&mut self, body: &[u8], more: &[(&str, &str)]) {
        let mut head = format!(
            "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             accept: application/json, text/event-stream\r\ncontent-length: {}\r\n",
            body.len()
        );
        if let Some(session) = &self.session {
            head.push_str(&format!("mcp-session-id: {session}\r\n"));
        }
        if let Some(token) = self.bearer {
            head.push_str(&format!("authorization: Bearer {token}\r\n"));
        }
        for (name, value) in more {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        self.raw(&[head.as_bytes(), b"\r\n", body].concat()).await;
    }

    pub(crate) async fn raw(&mut self, bytes: &[u8]) {
        // A server that has already answered hangs up. Its answer can still be read.
        let _ = self.stream.write_all(bytes).await;
    }

    /// Opens a stream of the session.
    pub(crate) async fn get(&mut self, last_event: Option<&str>) -> Head {
        let session = self.session.clone().unwrap_or_default();
        let last = last_event.map(|id| format!("last-event-id: {id}\r\n")).unwrap_or_default();
        let head = format!(
            "GET /mcp HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\nmcp-session-id: {session}\r\n{last}\r\n"
        );
        self.raw(head.as_bytes()).await;
        self.head().await
    }

    /// Any request without a body.
    pub(crate) async fn request(&mut self, line: &str, headers: &[(&str, &str)]) -> (Head, Vec<u8>) {
        let mut head = format!("{line} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| *name == "host") {
            head.push_str("host: localhost\r\n");
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        self.raw(format!("{head}\r\n").as_bytes()).await;
        let head = self.head().await;
        let body = self.body(&head).await;
        (head, body)
    }

    /// Returns the next answer: its head, and the message that has a result or an error.
    pub(crate) async fn answer(&mut self) -> (Head, Value) {
        let head = self.head().await;
        if !head.is_stream() {
            let body = self.body(&head).await;
            return (head, serde_json::from_slice(&body).unwrap_or(Value::Null));
        }
        let mut last = Value::Null;
        while let Some(event) = self.event().await {
            last = event.message;
        }
        (head, last)
    }

    pub(crate) async fn head(&mut self) -> Head {
        let text = self.until(b"\r\n\r\n").await.expect("a response");
        let text = String::from_utf8(text).unwrap();
        let mut lines = text.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        Head { status, headers }
    }

    pub(crate) async fn body(&mut self, head: &Head) -> Vec<u8> {
        if let Some(length) = head.header("content-length") {
            let length: usize = length.parse().unwrap();
            while self.buffer.len() < length {
                assert!(self.read().await, "the body ended early");
            }
            return self.buffer.drain(..length).collect();
        }
        let mut body = Vec::new();
        if head.header("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk().await {
                body.extend(chunk);
            }
        }
        body
    }

    /// Returns the next event of a stream; `None` at its end. Comments are passed over.
    pub(crate) async fn event(&mut self) -> Option<Event> {
        loop {
            let chunk = String::from_utf8(self.chunk().await?).unwrap();
            let mut event = Event::default();
            for line in chunk.lines() {
                if let Some(id) = line.strip_prefix("id: ") {
                    event.id = Some(id.to_owned());
                } else if let Some(data) = line.strip_prefix("data: ") {
                    event.message = serde_json::from_str(data).unwrap_or(Value::Null);
                    event.all.push(event.message.clone());
                }
            }
            if event.id.is_some() || !event.all.is_empty() {
                return Some(event);
            }
        }
    }

    /// Returns whether the server has closed the connection, waiting for it.
    pub(crate) async fn is_closed(&mut self) -> bool {
        while self.read().await {}
        true
    }

    async fn chunk(&mut self) -> Option<Vec<u8>> {
        let size = self.until(b"\r\n").await?;
        let size = usize::from_str_radix(std::str::from_utf8(&size).unwrap().trim(), 16).unwrap();
        while self.buffer.len() < size + 2 {
            assert!(self.read().await, "the chunk broke off");
        }
        let chunk: Vec<u8> = self.buffer.drain(..size + 2).take(size).collect();
        (size > 0).then_some(chunk)
    }

    async fn until(&mut self, mark: &[u8]) -> Option<Vec<u8>> {
        loop {
            if let Some(at) = self.buffer.windows(mark.len()).position(|window| window == mark) {
                return Some(self.buffer.drain(..at + mark.len()).collect());
            }
            if !self.read().await {
                return None;
            }
        }
    }

    async fn read(&mut self) -> bool {
        let read = tokio::time::timeout(DEADLINE, self.stream.read_buf(&mut self.buffer));
        let length = read.await.expect("the server said nothing").unwrap_or(0);
        length > 0
    }
}

/// One event of a stream.
#[derive(Debug, Default)]
pub(crate) struct Event {
    pub(crate) id: Option<String>,
    /// The last message in it.
    pub(crate) message: Value,
    pub(crate) all: Vec<Value>,
}

impl Connection {
    /// Reads the next bytes.
    pub(crate) async fn some_bytes(&mut self) -> Vec<u8> {
        self.read().await;
        std::mem::take(&mut self.buffer)
    }
}

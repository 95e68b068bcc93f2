//! MCP clients of both kinds, and accessors for the results of tools.

use std::fmt;
use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::http::{Exchange, Http, Request, Unanswered};

/// The sessionless revision.
pub const SESSIONLESS: &str = "2026-07-28";
/// The newest revision with sessions.
pub const SESSION_BASED: &str = "2025-11-25";

/// Which kind of connection a client has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revision {
    /// Every request is independent.
    Sessionless,
    /// `initialize` opens a session.
    Session,
}

/// An MCP client over HTTP.
#[derive(Debug)]
pub struct Client {
    http: Http,
    revision: Revision,
    session: Option<String>,
    next_id: u64,
    /// The answer to `initialize`.
    pub server: Value,
    /// The bearer token that goes with every request.
    pub token: Option<String>,
}

/// A request that was sent and not answered yet. Dropping it disconnects.
#[derive(Debug)]
pub struct Pending {
    /// The id that it was sent with.
    pub id: u64,
    unanswered: Option<Unanswered>,
    exchange: Option<Exchange>,
}

/// An answer that is an error.
#[derive(Clone, Debug)]
pub struct RpcError {
    /// The HTTP status; 0 on stdio.
    pub status: u16,
    /// The JSON-RPC code; 0 where the answer was no JSON-RPC.
    pub code: i64,
    /// The message, or the text of an answer that was no JSON-RPC.
    pub message: String,
    /// `error.data`.
    pub data: Value,
}

/// The result of `tools/call`.
#[derive(Clone, Debug)]
pub struct ToolResult {
    /// As it came.
    pub json: Value,
    /// The notifications that came before it.
    pub notifications: Vec<Value>,
}

impl Client {
    /// Returns a client of the server at this address; a session-based one initializes.
    pub fn connect(address: SocketAddr, revision: Revision, token: Option<&str>) -> Self {
        let mut client = Self {
            http: Http::new(address),
            revision,
            session: None,
            next_id: 1,
            server: Value::Null,
            token: token.map(str::to_owned),
        };
        if revision == Revision::Session {
            client.open(initialize(SESSION_BASED));
        }
        client
    }

    /// Returns a client with a session and these capabilities.
    pub fn connect_able_to(address: SocketAddr, capabilities: &Value) -> Self {
        let mut client = Self::connect(address, Revision::Sessionless, None);
        client.revision = Revision::Session;
        let mut params = initialize(SESSION_BASED);
        params["capabilities"] = capabilities.clone();
        client.open(params);
        client
    }

    fn open(&mut self, params: Value) {
        self.server =
            self.request("initialize", params).unwrap_or_else(|err| panic!("initialize: {err}"));
        assert!(self.session.is_some(), "initialize opens a session");
        assert_eq!(self.notify("notifications/initialized", json!({})), 202);
    }

    /// Another connection in a client's session.
    pub fn resume(address: SocketAddr, other: &Self) -> Self {
        Self {
            http: Http::new(address),
            revision: other.revision,
            session: other.session.clone(),
            next_id: other.next_id + 1_000_000,
            server: other.server.clone(),
            token: other.token.clone(),
        }
    }

    /// Returns the session's id.
    pub fn session(&self) -> Option<&str> {
        self.session.as_deref()
    }

    /// Continues in the session of another client, or without a session.
    pub fn set_session(&mut self, id: Option<&str>) {
        self.session = id.map(str::to_owned);
    }

    /// Sends a request and waits for its result.
    ///
    /// # Errors
    ///
    /// The server's error answer.
    #[expect(clippy::needless_pass_by_value, reason = "calls read as `request(method, json!(…))`")]
    pub fn request(&mut self, method: &str, params: Value) -> Result<Value, RpcError> {
        self.exchange(method, &params).map(|(result, _)| result)
    }

    fn exchange(&mut self, method: &str, params: &Value) -> Result<(Value, Vec<Value>), RpcError> {
        let pending = self.begin(method, params.clone());
        self.complete(pending)
    }

    /// Waits for an answer and keeps the connection for the next request.
    ///
    /// # Errors
    ///
    /// The server's error answer.
    pub fn complete(&mut self, mut pending: Pending) -> Result<(Value, Vec<Value>), RpcError> {
        let mut notifications = Vec::new();
        let message = pending.answer(&mut notifications);
        if let Some(id) = pending.session_id() {
            self.session = Some(id);
        }
        let status = pending.status();
        let stream = pending.exchange.and_then(Exchange::into_stream_if_done);
        self.http.put_back(stream);
        result_of(&message, status).map(|result| (result, notifications))
    }

    /// Sends a request and leaves its answer to the caller.
    pub fn begin(&mut self, method: &str, params: Value) -> Pending {
        let id = self.take_id();
        self.begin_as(id, method, params)
    }

    /// As [`Self::begin`], under an id of the caller's choice.
    pub fn begin_as(&mut self, id: u64, method: &str, mut params: Value) -> Pending {
        let named = if method == "resources/read" { "uri" } else { "name" };
        let name = params[named].as_str().map(str::to_owned);
        self.add_meta(&mut params);
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string();
        self.begin_text(id, method, name.as_deref(), &body)
    }

    /// Sends `tools/call` with arguments that are any text.
    pub fn begin_call_text(&mut self, name: &str, arguments: &str) -> Pending {
        let id = self.take_id();
        let mut meta = json!({});
        self.add_meta(&mut meta);
        let meta = &meta["_meta"];
        let name_json = Value::from(name);
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":{name_json},"arguments":{arguments},"_meta":{meta}}}}}"#
        );
        self.begin_text(id, "tools/call", Some(name), &body)
    }

    fn begin_text(&mut self, id: u64, method: &str, name: Option<&str>, body: &str) -> Pending {
        let request = self.post(method, name).body(body);
        let unanswered = self.http.write(&request).unwrap_or_else(|err| panic!("{method}: {err}"));
        Pending { id, unanswered: Some(unanswered), exchange: None }
    }

    /// Sends a notification, and returns the status of the answer.
    pub fn notify(&mut self, method: &str, mut params: Value) -> u16 {
        self.add_meta(&mut params);
        let body = json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string();
        let request = self.post(method, None).body(body);
        self.http.send(&request).unwrap_or_else(|err| panic!("{method}: {err}")).status
    }

    /// Calls a tool.
    pub fn call(&mut self, name: &str, arguments: Value) -> ToolResult {
        self.try_call(name, arguments).unwrap_or_else(|err| panic!("{name}: {err}"))
    }

    /// Calls a tool.
    ///
    /// # Errors
    ///
    /// Returns the server's error answer, which is not the same as a result with `isError`.
    pub fn try_call(&mut self, name: &str, arguments: Value) -> Result<ToolResult, RpcError> {
        let pending = self.begin_call(name, arguments);
        self.finish_call(pending)
    }

    /// Calls a tool with arguments that are any text.
    ///
    /// # Errors
    ///
    /// The server's error answer.
    pub fn call_text(&mut self, name: &str, arguments: &str) -> Result<ToolResult, RpcError> {
        let pending = self.begin_call_text(name, arguments);
        self.finish_call(pending)
    }

    /// Sends `tools/call` and leaves its answer to the caller.
    #[expect(clippy::needless_pass_by_value, reason = "calls read as `call(name, json!(…))`")]
    pub fn begin_call(&mut self, name: &str, arguments: Value) -> Pending {
        self.begin("tools/call", json!({"name": name, "arguments": arguments}))
    }

    /// Waits for the answer of a call.
    ///
    /// # Errors
    ///
    /// The server's error answer.
    pub fn finish_call(&mut self, pending: Pending) -> Result<ToolResult, RpcError> {
        self.complete(pending).map(|(json, notifications)| ToolResult { json, notifications })
    }

    /// Returns all tools, page by page.
    pub fn tools(&mut self) -> Vec<Value> {
        let (mut tools, mut params) = (Vec::new(), json!({}));
        loop {
            let page =
                self.request("tools/list", params).unwrap_or_else(|err| panic!("tools/list: {err}"));
            tools.extend(page["tools"].as_array().expect("tools is an array").iter().cloned());
            match &page["nextCursor"] {
                Value::Null => return tools,
                cursor => params = json!({"cursor": cursor}),
            }
        }
    }

    /// Returns the names of all tools, in the order of the list.
    pub fn tool_names(&mut self) -> Vec<String> {
        let tools = self.tools();
        tools.iter().map(|tool| tool["name"].as_str().expect("a name").to_owned()).collect()
    }

    /// One tool as it is listed.
    pub fn tool(&mut self, name: &str) -> Value {
        let tools = self.tools();
        let found = tools.iter().find(|tool| tool["name"] == name);
        found.unwrap_or_else(|| panic!("no tool {name} in {tools:?}")).clone()
    }

    /// Opens the session's stream of notifications (`GET`).
    pub fn notification_stream(&self, address: SocketAddr) -> Exchange {
        let mut request =
            self.headers(Request::new("GET", "/mcp").header("accept", "text/event-stream"));
        request.headers.retain(|(name, _)| name != "content-type");
        let exchange = Http::new(address).write(&request).and_then(Unanswered::head);
        exchange.expect("GET opens a stream")
    }

    /// Fetches the rest of a stream (`GET` with the id of the last seen event).
    pub fn resume_stream(&self, address: SocketAddr, last_event: &str) -> Exchange {
        let request = Request::new("GET", "/mcp").header("accept", "text/event-stream");
        let request = self.headers(request.header("last-event-id", last_event));
        let exchange = Http::new(address).write(&request).and_then(Unanswered::head);
        exchange.expect("GET opens a stream")
    }

    /// Ends the session (`DELETE`), and returns the status.
    pub fn end_session(&self, address: SocketAddr) -> u16 {
        let request = self.headers(Request::new("DELETE", "/mcp"));
        Http::new(address).send(&request).expect("DELETE is answered").status
    }

    /// Returns the headers that a `POST` of this method carries.
    pub fn post(&self, method: &str, name: Option<&str>) -> Request {
        let mut request = Request::new("POST", "/mcp")
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        if self.revision == Revision::Sessionless {
            request = request.header("mcp-method", method);
            if let Some(name) = name {
                request = request.header("mcp-name", name);
            }
        }
        self.headers(request)
    }

    fn headers(&self, mut request: Request) -> Request {
        if let Some(token) = &self.token {
            request = request.bearer(token);
        }
        match (self.revision, &self.session) {
            (Revision::Sessionless, _) => request.header("mcp-protocol-version", SESSIONLESS),
            (Revision::Session, Some(id)) => {
                request.header("mcp-session-id", id).header("mcp-protocol-version", SESSION_BASED)
            }
            (Revision::Session, None) => request,
        }
    }

    fn add_meta(&self, params: &mut Value) {
        if self.revision == Revision::Sessionless {
            let meta = &mut params["_meta"];
            if meta.is_null() {
                *meta = json!({});
            }
            meta["io.modelcontextprotocol/protocolVersion"] = SESSIONLESS.into();
            meta["io.modelcontextprotocol/clientInfo"] = json!({"name": "orla-e2e", "version": "1"});
            if meta["io.modelcontextprotocol/clientCapabilities"].is_null() {
                meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
            }
        }
    }

    fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

/// Returns the parameters of `initialize`.
pub(crate) fn initialize(version: &str) -> Value {
    json!({
        "protocolVersion": version,
        "capabilities": {},
        "clientInfo": {"name": "orla-e2e", "version": "1"},
    })
}

impl Pending {
    /// Returns the next message that belongs to this request: a notification, or the answer; `None` at
    /// the end of the stream.
    pub fn next_message(&mut self) -> Option<Value> {
        let exchange = self.open();
        let event = exchange.next_event().unwrap_or_else(|err| panic!("event stream: {err}"))?;
        Some(serde_json::from_str(&event).unwrap_or_else(|err| panic!("{err}: {event}")))
    }

    /// Returns the id of the next event that has one.
    pub fn next_event_id(&mut self) -> Option<String> {
        self.open().next_event_id().unwrap_or_else(|err| panic!("event stream: {err}"))
    }

    /// Returns whether the answer is a stream of events.
    pub fn is_stream(&mut self) -> bool {
        self.open().header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"))
    }

    /// Returns the HTTP status, once the head has come.
    pub fn status(&mut self) -> u16 {
        self.open().status
    }

    fn session_id(&mut self) -> Option<String> {
        self.open().header("mcp-session-id").map(str::to_owned)
    }

    fn open(&mut self) -> &mut Exchange {
        if let Some(unanswered) = self.unanswered.take() {
            self.exchange = Some(unanswered.head().unwrap_or_else(|err| panic!("no answer: {err}")));
        }
        self.exchange.as_mut().expect("it was opened just now")
    }

    /// Returns the answer. Earlier messages are added to `notifications`.
    fn answer(&mut self, notifications: &mut Vec<Value>) -> Value {
        let id = self.id;
        if self.is_stream() {
            while let Some(message) = self.next_message() {
                if message["id"] == id
                    && (message.get("result").is_some() || message.get("error").is_some())
                {
                    return message;
                }
                notifications.push(message);
            }
            panic!("the stream ended without an answer, after {notifications:?}");
        }
        let body = self.open().rest().unwrap_or_else(|err| panic!("body: {err}"));
        let text = String::from_utf8_lossy(&body);
        serde_json::from_slice(&body).unwrap_or_else(|_| json!({"error": {"message": text}}))
    }
}

/// Returns the result in an answer.
pub(crate) fn result_of(message: &Value, status: u16) -> Result<Value, RpcError> {
    match (message.get("result"), message.get("error")) {
        (Some(result), None) => Ok(result.clone()),
        (_, Some(error)) => Err(RpcError {
            status,
            code: error["code"].as_i64().unwrap_or_default(),
            message: error["message"].as_str().unwrap_or_default().to_owned(),
            data: error["data"].clone(),
        }),
        (None, None) => panic!("neither result nor error: {message}"),
    }
}

impl fmt::Display for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "status {}, code {}: {} ({})", self.status, self.code, self.message, self.data)
    }
}

impl ToolResult {
    /// Returns whether the tool failed.
    pub fn is_error(&self) -> bool {
        self.json["isError"] == true
    }

    /// Returns the content blocks.
    pub fn content(&self) -> &[Value] {
        self.json["content"].as_array().map_or(&[], Vec::as_slice)
    }

    /// Returns the text of all text blocks, one after the other.
    pub fn text(&self) -> String {
        self.content().iter().filter_map(|block| block["text"].as_str()).collect()
    }

    /// Returns the last text block: the sentence of a failure.
    pub fn sentence(&self) -> &str {
        let last = self.content().iter().rev().find_map(|block| block["text"].as_str());
        last.unwrap_or_default()
    }

    /// `structuredContent`.
    pub fn structured(&self) -> &Value {
        &self.json["structuredContent"]
    }

    /// `structuredContent.stdout`.
    pub fn stdout(&self) -> &str {
        self.structured()["stdout"].as_str().unwrap_or_else(|| panic!("no stdout in {}", self.json))
    }

    /// `_meta["orla/execution"]`, which is there always.
    pub fn execution(&self) -> &Value {
        let execution = &self.json["_meta"]["orla/execution"];
        assert!(execution.is_object(), "no orla/execution in {}", self.json);
        execution
    }

    /// Returns the exit code in the execution's details.
    pub fn exit_code(&self) -> i64 {
        self.execution()["exit_code"].as_i64().unwrap_or_else(|| panic!("no exit_code in {}", self.json))
    }

    /// Returns the parameters of the notifications of one method.
    pub fn notified(&self, method: &str) -> Vec<Value> {
        let of_method = self.notifications.iter().filter(|note| note["method"] == method);
        of_method.map(|note| note["params"].clone()).collect()
    }
}

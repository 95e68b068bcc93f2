//! The conversation with one process over its pipes: pending requests, the bytes still to be written, and the
//! progress of the handshake. No I/O here.
//!
//! The handshake is in `opening.rs`, requests of the other side in `questions.rs`.
//!
//! # Answers
//!
//! Request ids are unique per server, across restarts. A late answer, or one from a process that has
//! ended, therefore matches no other request.

mod opening;
mod questions;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use orla_marketplace::{
    CallContext, CallScope, Client, JsonText, LogLevel, LogText, Notice, NoticeSink, Principal,
    SurfaceNotice,
};
use serde::Deserialize;
use tokio::sync::oneshot;

use super::answer::{self, ListedTool, Offers, ServerNotification};
use super::mode::{Meta, RequestMode};
use super::object;
use super::wire::{self, Hello, Message, RpcError};
use crate::framing::Outgoing;

pub use questions::{only, write_client_answer};

/// The maximum number of pages, and of tools, of one server.
pub const MAX_PAGES: usize = 100;
/// See [`MAX_PAGES`].
pub const MAX_TOOLS: usize = 10_000;

/// The way in which a process opens the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// The process sends `orla.hello` (RFC 2 §9).
    Hello,
    /// The process answers `initialize`, or `server/discover`.
    Initialize,
}

/// A request to a server.
#[derive(Debug)]
pub struct Request {
    /// The content of the request.
    pub ask: Ask,
    /// The caller.
    pub caller: Caller,
    /// The caller's trace context.
    pub traceparent: Option<Arc<str>>,
}

/// The content of a request to a server.
#[derive(Clone, Debug)]
pub enum Ask {
    /// A call of a tool.
    Call {
        /// The tool; `None` means the server's only one.
        tool: Option<Arc<str>>,
        /// The arguments.
        arguments: JsonText,
        /// Further members of the parameters, each preceded by a comma: the answers to input requests.
        more: Option<Box<str>>,
    },
    /// Any other method.
    Method {
        /// The method.
        method: Box<str>,
        /// A JSON object without `_meta`.
        params: JsonText,
    },
}

impl Ask {
    /// Returns a request about one resource.
    pub fn about(method: &str, uri: &str) -> Self {
        let params = serde_json::json!({ "uri": uri }).to_string();
        Self::Method { method: method.into(), params: object::trusted(params) }
    }
}

/// The caller of a request, as far as it can be reached before the answer.
#[derive(Clone, Default)]
pub struct Caller {
    /// Receives notices until the answer.
    pub notices: NoticeSink,
    /// Receives questions.
    pub client: Option<Arc<dyn Client>>,
    /// Decides who may see a process's output.
    pub principal: Option<Principal>,
}

impl From<&CallContext> for Caller {
    fn from(ctx: &CallContext) -> Self {
        let CallScope { notices, client, principal, .. } = &*ctx.scope;
        Self { notices: notices.clone(), client: client.clone(), principal: principal.clone() }
    }
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Caller({:?}, {})",
            self.notices,
            if self.client.is_some() { "a client" } else { "no client" }
        )
    }
}

/// The answer to a request.
pub type Reply = Result<JsonText, Fault>;

/// A failure of a plugin's function in the plugin's own words, truncated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Failure {
    /// One word, such as `not-found`.
    pub kind: String,
    /// The message.
    pub message: String,
    /// The whole error, if it is an object and not too long.
    #[serde(skip)]
    pub whole: Option<JsonText>,
}

/// The reason why a request got no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server refused.
    Refused(RpcError),
    /// A plugin reports a failure.
    Failed(Failure),
    /// No process can answer, for this reason.
    Unavailable(String),
    /// Too many requests wait.
    Busy {
        /// The number of sent requests.
        sent: usize,
        /// The number of waiting requests.
        waiting: usize,
    },
}

/// The tools and features of a server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerInfo {
    /// The tools; `None` if the server does not list any: it is then a tool itself.
    pub tools: Option<Vec<ListedTool>>,
    /// The further features that it offers.
    pub offers: Offers,
    /// The request mode.
    pub mode: RequestMode,
}

impl ServerInfo {
    /// Returns whether `now` describes a tool in the same way as `before`, if `before` described it. If
    /// `tool` is absent, the only tool of a server without a list is compared.
    pub fn has_same_description(before: Option<&Self>, now: Option<&Self>, tool: Option<&str>) -> bool {
        let [before, now] = [before, now].map(|info| info.and_then(|info| info.tools.as_deref()));
        let Some(tool) = tool else { return before.is_none() == now.is_none() };
        let Some(before) = before else { return true };
        let now = now.and_then(|now| now.iter().find(|one| one.name == tool));
        before.iter().find(|one| one.name == tool) == now
    }

    /// Returns why the server serves nothing, if it has reported an empty list. A server without tools
    /// may still offer resources or prompts.
    pub fn why_empty(&self) -> Option<&'static str> {
        let Offers { tools, resources, prompts, .. } = self.offers;
        match self.tools.as_deref()? {
            [] if tools => Some("it lists no tools"),
            [] if !resources && !prompts => {
                Some("it serves no tools: its answer to initialize does not name the capability tools")
            }
            _ => None,
        }
    }
}

/// The meaning of a received line to the owner of the conversation.
#[derive(Debug, PartialEq)]
pub enum Incoming {
    /// Nothing.
    Nothing,
    /// The handshake of a capsule, which comes once.
    Hello(Option<Hello>),
    /// A capsule has answered `initialize`, and is asked for its tools.
    Initialized,
    /// A server has answered its first request. The value says what it serves, if no further request is
    /// needed.
    Ready(Option<ServerInfo>),
    /// No known mode of the protocol works with the server.
    Unusable(String),
    /// What the server serves, when this is first known and when it has changed.
    Info(ServerInfo),
    /// A list other than that of tools, or a resource, has changed.
    Notice(SurfaceNotice),
    /// The server asks the client of a call.
    Question(Question),
}

/// A request of the capsule to the client of one of its calls.
pub struct Question {
    /// The capsule's id for it, as JSON.
    pub id: JsonText,
    /// The method, such as `elicitation/create`.
    pub method: String,
    /// Its parameters.
    pub params: JsonText,
    /// The client that is asked.
    pub client: Arc<dyn Client>,
}

impl PartialEq for Question {
    fn eq(&self, other: &Self) -> bool {
        (&self.id, &self.method, &self.params) == (&other.id, &other.method, &other.params)
    }
}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Question({} {})", self.id, self.method)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    /// No hello was received.
    Silent,
    Initializing,
    /// `initialize` was refused.
    Discovering,
    Listing,
    Open,
}

#[derive(Debug)]
enum Pending {
    Call {
        caller: Caller,
        reply: oneshot::Sender<Reply>,
    },
    Initialize,
    Discover,
    ListTools,
    /// A stream of notifications, which is answered when it ends.
    Listen,
    /// A request whose answer is ignored.
    Ignored,
    /// A ping. Its answer shows that everything written before was read: see [`Settling`].
    Ping,
}

/// Whether the process may still refer to a call whose cancellation it has not seen. It answers a ping
/// that was sent after the cancellation; later messages concern the remaining calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settling {
    Settled,
    /// A ping is on its way.
    Pinged,
    /// Another call was cancelled after that ping.
    PingAgain,
}

/// One conversation with one process.
#[derive(Debug)]
pub struct Conversation {
    name: Arc<str>,
    handshake: Handshake,
    mode: RequestMode,
    tickets: Arc<AtomicU64>,
    /// The first number that this process may answer.
    first: u64,
    out: Outgoing,
    pending: HashMap<u64, Pending>,
    /// The number of pending requests, without our own.
    in_flight: usize,
    opening: Opening,
    /// Whether the process has answered `initialize` with a result.
    speaks_mcp: bool,
    settling: Settling,
    offers: Offers,
    /// The tools of the pages so far, and their number.
    listed: (Vec<ListedTool>, usize),
    /// Whether they have changed since they were requested.
    list_again: bool,
    /// Whether such lines were logged: a warning is given once.
    has_logged_noise: bool,
    has_logged_hello: bool,
    has_logged_unknown_id: bool,
}

impl Conversation {
    /// Creates the conversation with the next process of this name; `tickets` numbers the requests of
    /// all of them.
    pub fn new(name: Arc<str>, tickets: Arc<AtomicU64>, handshake: Handshake) -> Self {
        let first = tickets.load(Ordering::Relaxed);
        let mut conversation = Self {
            name,
            handshake,
            mode: RequestMode::Capsule,
            tickets,
            first,
            out: Outgoing::default(),
            pending: HashMap::new(),
            in_flight: 0,
            opening: Opening::Silent,
            speaks_mcp: false,
            settling: Settling::Settled,
            offers: Offers::default(),
            listed: (Vec::new(), 0),
            list_again: false,
            has_logged_noise: false,
            has_logged_hello: false,
            has_logged_unknown_id: false,
        };
        if handshake == Handshake::Initialize {
            conversation.mode = RequestMode::Session;
            conversation.initialize();
        }
        conversation
    }

    /// Returns whether calls may be sent: what the server serves is known, or cannot be known.
    pub fn is_open(&self) -> bool {
        self.opening == Opening::Open
    }

    /// Returns the number of requests that were sent and wait for their answers, without our own.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns the oldest request, other than our own, that waits for its answer.
    pub fn oldest(&self) -> Option<u64> {
        let calls = self.pending.iter().filter(|(_, pending)| matches!(pending, Pending::Call { .. }));
        calls.map(|(ticket, _)| *ticket).min()
    }

    /// Returns the newest ping that is not answered.
    pub fn unanswered_ping(&self) -> Option<u64> {
        let pings = self.pending.iter().filter(|(_, pending)| matches!(pending, Pending::Ping));
        pings.map(|(ticket, _)| *ticket).max()
    }

    /// Returns the bytes to write next.
    pub fn unwritten(&self) -> &[u8] {
        self.out.unwritten()
    }

    /// Records that `count` bytes of [`unwritten`](Self::unwritten) were written.
    pub fn advance(&mut self, count: usize) {
        self.out.advance(count);
    }

    /// Sends a request, whose JSON-RPC id is its ticket. `only` returns the name of the tool if the request names
    /// none.
    pub fn send(
        &mut self,
        ticket: u64,
        request: Request,
        reply: oneshot::Sender<Reply>,
        only: impl FnOnce() -> String,
    ) {
        let Request { ask, caller, traceparent } = request;
        let capabilities = caller.client.as_ref().map(|client| client.capabilities());
        let meta = Meta {
            mode: self.mode,
            progress: caller.notices.is_wanted().then_some(ticket),
            traceparent: traceparent.as_deref(),
            capabilities: capabilities.as_ref().map(JsonText::as_str),
        };
        match ask {
            Ask::Call { tool: Some(tool), arguments, more } => {
                wire::write_call(self.out.buffer(), ticket, &tool, &arguments, more.as_deref(), meta);
            }
            Ask::Call { tool: None, arguments, more } => {
                wire::write_call(self.out.buffer(), ticket, &only(), &arguments, more.as_deref(), meta);
            }
            Ask::Method { method, params } => {
                // Requests other than tool calls carry no metadata that a capsule would use.
                let meta = if self.mode == RequestMode::Capsule { Meta::default() } else { meta };
                wire::write_request(self.out.buffer(), ticket, &method, params.as_str(), meta);
            }
        }
        self.pending.insert(ticket, Pending::Call { caller, reply });
        self.in_flight += 1;
    }

    /// Cancels a request whose caller no longer waits. Returns whether it was in flight.
    pub fn cancel(&mut self, ticket: u64) -> bool {
        if !matches!(self.pending.get(&ticket), Some(Pending::Call { .. })) {
            return false;
        }
        self.pending.remove(&ticket);
        self.in_flight -= 1;
        wire::write_cancelled(self.out.buffer(), ticket);
        match self.settling {
            Settling::Settled if self.speaks_mcp && self.mode != RequestMode::Sessionless => self.ping(),
            // Without MCP the process asks no questions, and without sessions only in its results.
            Settling::Settled => {}
            Settling::Pinged | Settling::PingAgain => self.settling = Settling::PingAgain,
        }
        true
    }

    fn ping(&mut self) {
        self.settling = Settling::Pinged;
        self.ask("ping", "{}", Pending::Ping);
    }

    /// Fails all requests, because no answer will come any more.
    pub fn fail(&mut self, reason: &str) {
        for (_, pending) in self.pending.drain() {
            if let Pending::Call { reply, .. } = pending {
                let _ = reply.send(Err(Fault::Unavailable(reason.to_owned())));
            }
        }
        self.in_flight = 0;
    }

    /// Handles a line of the process's standard output.
    pub fn receive(&mut self, line: &Bytes) -> Incoming {
        match wire::read(line) {
            Some(Message::Notification { method, params })
                if method == Hello::METHOD && self.handshake == Handshake::Hello =>
            {
                self.hello(line, params.as_ref())
            }
            // A hello with an id expects an answer, but is still the handshake.
            Some(Message::Request { id, method, params })
                if method == Hello::METHOD && self.handshake == Handshake::Hello =>
            {
                tracing::warn!(
                    capsule = &*self.name,
                    "orla.hello has an id, and is to be a notification"
                );
                wire::write_answer(self.out.buffer(), &id, Ok("{}"));
                self.hello(line, params.as_ref())
            }
            Some(_) if self.opening == Opening::Silent => self.noise(line, "came before orla.hello"),
            Some(Message::Answer { id, result }) => self.answer(id, result),
            Some(Message::Stray { id }) => self.unknown_id(&id),
            Some(Message::Notification { method, params }) => {
                self.notification(&method, params.as_ref())
            }
            Some(Message::Request { id, method, params }) => self.request(id, method, params),
            None if line.trim_ascii().is_empty() => Incoming::Nothing,
            None => self.noise(line, "is not a JSON-RPC message"),
        }
    }

    fn ask(&mut self, method: &str, params: &str, pending: Pending) {
        let id = self.tickets.fetch_add(1, Ordering::Relaxed);
        wire::write_request(self.out.buffer(), id, method, params, Meta::own(self.mode));
        self.pending.insert(id, pending);
    }

    fn answer(&mut self, id: u64, result: Result<JsonText, RpcError>) -> Incoming {
        match self.pending.remove(&id) {
            Some(Pending::Call { reply, .. }) => {
                self.in_flight -= 1;
                // The caller may have gone in the meantime.
                let _ = reply.send(result.map_err(Fault::Refused));
                Incoming::Nothing
            }
            Some(Pending::Initialize) => self.initialized(&result),
            Some(Pending::Discover) => self.discovered(result),
            Some(Pending::ListTools) => self.listed(result),
            Some(Pending::Ignored | Pending::Listen) => Incoming::Nothing,
            Some(Pending::Ping) => {
                if self.settling == Settling::PingAgain {
                    self.ping();
                } else {
                    self.settling = Settling::Settled;
                }
                Incoming::Nothing
            }
            None if (self.first..self.tickets.load(Ordering::Relaxed)).contains(&id) => {
                tracing::debug!(
                    capsule = &*self.name,
                    id,
                    "an answer to an abandoned request is dropped"
                );
                Incoming::Nothing
            }
            None => self.unknown_id(&id.to_string()),
        }
    }

    fn notification(&mut self, method: &str, params: Option<&JsonText>) -> Incoming {
        match answer::notification(method, params) {
            ServerNotification::Progress(ticket, notice) => {
                if let Some(Pending::Call { caller, .. }) = self.pending.get(&ticket) {
                    caller.notices.send(notice);
                }
            }
            ServerNotification::Log(level, message) => self.log(level, message),
            ServerNotification::ToolsChanged => {
                if self.pending.values().any(|pending| matches!(pending, Pending::ListTools)) {
                    self.list_again = true;
                } else if self.opening == Opening::Open {
                    self.list(None);
                }
            }
            ServerNotification::Surface(notice) => return Incoming::Notice(notice),
            ServerNotification::Nothing => {
                tracing::debug!(capsule = &*self.name, method, "a notification is not relayed");
            }
        }
        Incoming::Nothing
    }

    /// Relays a log message to the caller. MCP does not say which request it belongs to, so it is
    /// relayed only if there is a single caller.
    fn log(&mut self, level: LogLevel, message: LogText) {
        tracing::debug!(
            capsule = &*self.name,
            level = level.as_str(),
            message = &*message,
            "log message"
        );
        if let Some(caller) = self.only_caller() {
            caller.notices.send(Notice::Log { level, message });
        }
    }

    fn noise(&mut self, line: &[u8], why: &str) -> Incoming {
        let (capsule, text) = (&*self.name, wire::quoted(line));
        if std::mem::replace(&mut self.has_logged_noise, true) {
            tracing::debug!(capsule, text, "a line on standard output {why}, and is ignored");
        } else {
            tracing::warn!(
                capsule,
                text,
                "a line on standard output {why}, and is ignored; diagnostics belong on standard error"
            );
        }
        Incoming::Nothing
    }

    fn unknown_id(&mut self, id: &str) -> Incoming {
        if !std::mem::replace(&mut self.has_logged_unknown_id, true) {
            let id: String = id.chars().take(60).collect();
            tracing::warn!(
                capsule = &*self.name,
                id,
                "an answer to a request that was never sent is dropped"
            );
        }
        Incoming::Nothing
    }
}

#[cfg(test)]
mod tests;

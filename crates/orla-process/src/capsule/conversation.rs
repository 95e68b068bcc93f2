//! What is said between the server and one process of a capsule: which requests wait for answers, what
//! is still to be written, and how far the opening of MCP is. No I/O here.
//!
//! # The opening
//!
//! After `orla.hello` MCP is opened: `initialize`, `notifications/initialized`, `tools/list`. A capsule
//! that only answers `tools/call` refuses this, or says nothing; then it has one tool, itself.
//!
//! # Answers
//!
//! Every request has a number that no other request of this capsule ever had, whichever process it went
//! to. So an answer that comes late, or from a process that is gone, meets no other request.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use orla_marketplace::{Client, ClientError, JsonText, Notice, NoticeSink, Payload, SurfaceNotice};
use serde_json::json;
use tokio::sync::oneshot;

use super::answer::{self, ListedTool, Offers, ToolPage};
use super::wire::{self, CallMeta, Hello, Message, RpcError};

/// The revision that capsules are asked for.
const REVISION: &str = "2025-11-25";
/// The most pages, and tools, of one capsule.
const MAX_PAGES: usize = 100;
const MAX_TOOLS: usize = 10_000;
/// What a capsule may ask a client.
const QUESTIONS: [&str; 3] = ["sampling/createMessage", "elicitation/create", "roots/list"];
const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;
const INTERNAL_ERROR: i64 = -32603;
/// Written bytes are cut off the front of the buffer beyond this.
const COMPACT: usize = 256 * 1024;

/// Something a capsule is asked.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) ticket: u64,
    pub(crate) ask: Ask,
    pub(crate) caller: Caller,
    pub(crate) traceparent: Option<Arc<str>>,
    pub(crate) reply: oneshot::Sender<Reply>,
}

#[derive(Debug)]
pub(crate) enum Ask {
    /// A call of a tool; of the only one it has where none is named.
    Call { tool: Option<Arc<str>>, arguments: JsonText },
    /// Anything else.
    Method { method: Box<str>, params: JsonText },
}

/// Who asked, as far as that one can be spoken to while the answer is made.
#[derive(Clone, Default)]
pub(crate) struct Caller {
    pub(crate) notices: NoticeSink,
    pub(crate) client: Option<Arc<dyn Client>>,
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

pub(crate) type Reply = Result<JsonText, Fault>;

/// Why a request got no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The capsule says so.
    Refused(RpcError),
    /// There is no process that could answer, for this reason.
    Gone(String),
    /// Too many requests wait.
    Busy { sent: usize, waiting: usize },
}

/// What a capsule serves.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Learned {
    /// None where it does not say: then it is a tool itself.
    pub(crate) tools: Option<Vec<ListedTool>>,
    pub(crate) offers: Offers,
}

/// What a line meant beyond what the conversation settles by itself.
#[derive(Debug, PartialEq)]
pub(crate) enum Heard {
    Nothing,
    /// The handshake, which comes once.
    Hello(Option<Hello>),
    /// What it serves, when that is first known and when it has changed.
    Learned(Learned),
    /// Something besides tools has changed.
    Told(SurfaceNotice),
    /// It asks the client of a call.
    Question(Question),
}

/// A request of the capsule to the client of one of its calls.
pub(crate) struct Question {
    /// The capsule's id for it, as JSON.
    pub(crate) id: JsonText,
    pub(crate) method: String,
    pub(crate) params: JsonText,
    pub(crate) client: Arc<dyn Client>,
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
    /// No hello yet.
    Silent,
    Initializing,
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
    ListTools,
    /// The answer makes no difference.
    Told,
    /// What was written before this has been read: see [`Settling`].
    Ping,
}

/// Whether the process may still speak of a call that it does not know to be cancelled. It answers a
/// ping that was sent behind the cancellation: what comes later is about the calls that are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settling {
    Settled,
    /// A ping is on its way.
    Pinged,
    /// One more call was cancelled behind that ping.
    PingAgain,
}

/// One conversation with one process.
#[derive(Debug)]
pub(crate) struct Conversation {
    name: Arc<str>,
    tickets: Arc<AtomicU64>,
    /// The first number that this process may answer.
    first: u64,
    out: Vec<u8>,
    written: usize,
    pending: HashMap<u64, Pending>,
    /// How many of the pending requests are others' than our own.
    in_flight: usize,
    opening: Opening,
    /// Whether it has answered `initialize` with a result.
    speaks_mcp: bool,
    settling: Settling,
    offers: Offers,
    /// The tools of the pages so far, and their number.
    listed: (Vec<ListedTool>, usize),
    /// They have changed since they were asked for.
    list_again: bool,
    /// What has been logged once.
    noise: bool,
    strays: bool,
}

impl Conversation {
    pub(crate) fn new(name: Arc<str>, tickets: Arc<AtomicU64>) -> Self {
        let first = tickets.load(Ordering::Relaxed);
        Self {
            name,
            tickets,
            first,
            out: Vec::new(),
            written: 0,
            pending: HashMap::new(),
            in_flight: 0,
            opening: Opening::Silent,
            speaks_mcp: false,
            settling: Settling::Settled,
            offers: Offers::default(),
            listed: (Vec::new(), 0),
            list_again: false,
            noise: false,
            strays: false,
        }
    }

    /// Whether what it serves is known, or known to be unknowable.
    pub(crate) fn is_open(&self) -> bool {
        self.opening == Opening::Open
    }

    /// Whether it has not even answered `initialize`.
    pub(crate) fn is_initializing(&self) -> bool {
        self.opening == Opening::Initializing
    }

    /// Requests that were sent and wait for their answers, without our own.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// What is to be written next.
    pub(crate) fn unwritten(&self) -> &[u8] {
        &self.out[self.written..]
    }

    /// So much of it was written.
    pub(crate) fn wrote(&mut self, count: usize) {
        self.written += count;
        if self.written == self.out.len() {
            self.written = 0;
            // What one large message needed is not kept.
            if self.out.capacity() > COMPACT { self.out = Vec::new() } else { self.out.clear() }
        } else if self.written > COMPACT {
            self.out.drain(..self.written);
            self.written = 0;
        }
    }

    /// Sends a request. `only` is the name of the tool where the request names none.
    pub(crate) fn send(&mut self, request: Request, only: &str) {
        let Request { ticket, ask, caller, traceparent, reply } = request;
        match ask {
            Ask::Call { tool, arguments } => {
                let capabilities = caller.client.as_ref().map(|client| client.capabilities());
                let meta = CallMeta {
                    wants_progress: caller.notices.is_wanted(),
                    traceparent: traceparent.as_deref(),
                    capabilities: capabilities.as_ref().map(JsonText::as_str),
                };
                let tool = tool.as_deref().unwrap_or(only);
                wire::write_call(&mut self.out, ticket, tool, arguments.as_str(), meta);
            }
            Ask::Method { method, params } => {
                wire::write_request(&mut self.out, ticket, &method, params.as_str());
            }
        }
        self.pending.insert(ticket, Pending::Call { caller, reply });
        self.in_flight += 1;
    }

    /// Nobody waits for this answer any more. Whether it had been sent.
    pub(crate) fn cancel(&mut self, ticket: u64) -> bool {
        if !matches!(self.pending.get(&ticket), Some(Pending::Call { .. })) {
            return false;
        }
        self.pending.remove(&ticket);
        self.in_flight -= 1;
        wire::write_cancelled(&mut self.out, ticket);
        match self.settling {
            Settling::Settled if self.speaks_mcp => self.ping(),
            // Without MCP it asks nothing.
            Settling::Settled => {}
            Settling::Pinged | Settling::PingAgain => self.settling = Settling::PingAgain,
        }
        true
    }

    fn ping(&mut self) {
        self.settling = Settling::Pinged;
        self.ask("ping", &json!({}), Pending::Ping);
    }

    /// No answer will come any more.
    pub(crate) fn fail(&mut self, reason: &str) {
        for (_, pending) in self.pending.drain() {
            if let Pending::Call { reply, .. } = pending {
                let _ = reply.send(Err(Fault::Gone(reason.to_owned())));
            }
        }
        self.in_flight = 0;
    }

    /// Takes a line of the process's standard output.
    pub(crate) fn hear(&mut self, line: &Bytes) -> Heard {
        match wire::read(line) {
            Some(Message::Notification { method, params }) if method == Hello::METHOD => {
                self.hello(params.as_ref())
            }
            // A handshake with an id asks for an answer; it is a handshake all the same.
            Some(Message::Request { method, params, .. }) if method == Hello::METHOD => {
                self.hello(params.as_ref())
            }
            Some(_) if self.opening == Opening::Silent => self.noise(line, "came before orla.hello"),
            Some(Message::Answer { id, result }) => self.answer(id, result),
            Some(Message::Stray { id }) => self.stray(&id),
            Some(Message::Notification { method, params }) => {
                self.notification(&method, params.as_ref())
            }
            Some(Message::Request { id, method, params }) => self.request(id, method, params),
            None if line.trim_ascii().is_empty() => Heard::Nothing,
            None => self.noise(line, "is no JSON-RPC message"),
        }
    }

    fn hello(&mut self, params: Option<&JsonText>) -> Heard {
        let capsule = &*self.name;
        if self.opening != Opening::Silent {
            tracing::warn!(capsule, "said orla.hello more than once; the first one counts");
            return Heard::Nothing;
        }
        let hello = Hello::read(params);
        match hello.as_ref().and_then(|hello| hello.name.as_deref()) {
            Some(name) if name == capsule => {}
            Some(name) => {
                let says = wire::quoted(name.as_bytes());
                tracing::warn!(capsule, says, "orla.hello gives another name than the manifest");
            }
            None => tracing::warn!(capsule, "orla.hello does not say who it is: params.name is missing"),
        }
        self.opening = Opening::Initializing;
        let params = json!({
            "protocolVersion": REVISION,
            "capabilities": {
                "sampling": {},
                "elicitation": {"form": {}, "url": {}},
                "roots": {"listChanged": false},
            },
            "clientInfo": {"name": "orla", "version": env!("CARGO_PKG_VERSION")},
        });
        self.ask("initialize", &params, Pending::Initialize);
        Heard::Hello(hello)
    }

    fn ask(&mut self, method: &str, params: &serde_json::Value, pending: Pending) {
        let id = self.tickets.fetch_add(1, Ordering::Relaxed);
        wire::write_request(&mut self.out, id, method, &params.to_string());
        self.pending.insert(id, pending);
    }

    fn answer(&mut self, id: u64, result: Result<JsonText, RpcError>) -> Heard {
        match self.pending.remove(&id) {
            Some(Pending::Call { reply, .. }) => {
                self.in_flight -= 1;
                // Whoever asked may have gone this very moment.
                let _ = reply.send(result.map_err(Fault::Refused));
                Heard::Nothing
            }
            Some(Pending::Initialize) => self.initialized(result),
            Some(Pending::ListTools) => self.listed(result),
            Some(Pending::Told) => Heard::Nothing,
            Some(Pending::Ping) => {
                if self.settling == Settling::PingAgain {
                    self.ping();
                } else {
                    self.settling = Settling::Settled;
                }
                Heard::Nothing
            }
            None if (self.first..self.tickets.load(Ordering::Relaxed)).contains(&id) => {
                tracing::debug!(capsule = &*self.name, id, "an answer that nobody waits for is dropped");
                Heard::Nothing
            }
            None => self.stray(&id.to_string()),
        }
    }

    fn initialized(&mut self, result: Result<JsonText, RpcError>) -> Heard {
        let Some(offers) = result.ok().as_ref().and_then(Offers::read) else {
            return self.opened(None);
        };
        self.offers = offers;
        self.speaks_mcp = true;
        wire::write_notification(&mut self.out, "notifications/initialized", None);
        if self.offers.logging {
            // Each caller hears from the level on that it wants; here all of them are needed.
            self.ask("logging/setLevel", &json!({"level": "debug"}), Pending::Told);
        }
        if self.offers.tools {
            self.opening = Opening::Listing;
            self.list(None);
            Heard::Nothing
        } else {
            // It speaks MCP and has no tools.
            self.opened(Some(Vec::new()))
        }
    }

    /// Wants to hear of the changes of a resource, for callers who asked a process before this one.
    pub(crate) fn subscribe(&mut self, uri: &str) {
        self.ask("resources/subscribe", &json!({ "uri": uri }), Pending::Told);
    }

    fn list(&mut self, cursor: Option<&str>) {
        let params = cursor.map_or_else(|| json!({}), |cursor| json!({ "cursor": cursor }));
        self.ask("tools/list", &params, Pending::ListTools);
    }

    fn listed(&mut self, result: Result<JsonText, RpcError>) -> Heard {
        let page = match result {
            Ok(page) => serde_json::from_str::<ToolPage>(page.as_str()).map_err(|err| err.to_string()),
            Err(error) => Err(error.message),
        };
        let page = match page {
            Ok(page) => page,
            Err(problem) => {
                let problem = wire::quoted(problem.as_bytes());
                tracing::warn!(capsule = &*self.name, problem, "tools/list gave no list");
                self.listed = (Vec::new(), 0);
                self.list_again = false;
                return if self.is_open() { Heard::Nothing } else { self.opened(None) };
            }
        };
        let (tools, pages) = &mut self.listed;
        tools.extend(page.tools);
        *pages += 1;
        let goes_on = page.next_cursor.filter(|_| *pages < MAX_PAGES && tools.len() < MAX_TOOLS);
        if let Some(cursor) = goes_on {
            self.list(Some(&cursor));
            return Heard::Nothing;
        }
        let (mut tools, _) = std::mem::take(&mut self.listed);
        tools.truncate(MAX_TOOLS);
        if std::mem::take(&mut self.list_again) {
            self.list(None);
        }
        self.opened(Some(tools))
    }

    fn opened(&mut self, tools: Option<Vec<ListedTool>>) -> Heard {
        self.opening = Opening::Open;
        Heard::Learned(Learned { tools, offers: self.offers.clone() })
    }

    fn notification(&mut self, method: &str, params: Option<&JsonText>) -> Heard {
        match (method, params) {
            ("notifications/progress", Some(params)) => {
                if let Some((ticket, notice)) = answer::progress(params)
                    && let Some(Pending::Call { caller, .. }) = self.pending.get(&ticket)
                {
                    caller.notices.send(notice);
                }
            }
            ("notifications/message", Some(params)) => self.log(params),
            ("notifications/tools/list_changed", _) => {
                if self.pending.values().any(|pending| matches!(pending, Pending::ListTools)) {
                    self.list_again = true;
                } else if self.is_open() {
                    self.list(None);
                }
            }
            ("notifications/prompts/list_changed", _) => {
                return Heard::Told(SurfaceNotice::PromptsChanged);
            }
            ("notifications/resources/list_changed", _) => {
                return Heard::Told(SurfaceNotice::ResourcesChanged);
            }
            ("notifications/resources/updated", Some(params)) => {
                if let Some(uri) = answer::uri(params) {
                    return Heard::Told(SurfaceNotice::ResourceUpdated { uri });
                }
            }
            _ => tracing::debug!(capsule = &*self.name, method, "a notification is not relayed"),
        }
        Heard::Nothing
    }

    /// A message for the log of whoever calls. MCP does not say which request it belongs to, so it goes
    /// to a caller only where there is no other.
    fn log(&mut self, params: &JsonText) {
        let Some((level, message)) = answer::log(params) else { return };
        tracing::debug!(capsule = &*self.name, level = level.as_str(), message, "log message");
        if let Some(caller) = self.only_caller() {
            caller.notices.send(Notice::Log { level, message });
        }
    }

    /// The caller of the only request in flight, where nothing else can be meant.
    fn only_caller(&self) -> Option<&Caller> {
        if self.in_flight != 1 || self.settling != Settling::Settled {
            return None;
        }
        self.pending.values().find_map(|pending| match pending {
            Pending::Call { caller, .. } => Some(caller),
            _ => None,
        })
    }

    /// A request of the capsule. It goes to the client of the call that it names (`_meta["orla/call"]`,
    /// the id of the call's request), else of the only call in flight, unless one was cancelled this very
    /// moment: MCP has no word for this, and a question must not reach another's client.
    fn request(&mut self, id: JsonText, method: String, params: Option<JsonText>) -> Heard {
        if method == "ping" {
            wire::write_answer(&mut self.out, &id, Ok("{}"));
            return Heard::Nothing;
        }
        if !QUESTIONS.contains(&method.as_str()) {
            self.refuse(&id, METHOD_NOT_FOUND, format!("{method}: not offered to capsules"));
            return Heard::Nothing;
        }
        let named = params.as_ref().and_then(answer::call_of);
        let (caller, problem) = match named.map(|ticket| self.pending.get(&ticket)) {
            Some(Some(Pending::Call { caller, .. })) => (Some(caller), ""),
            // Its client is not asked any more, and nobody else's is.
            Some(_) => (None, "the call in _meta[\"orla/call\"] is over"),
            None => (
                self.only_caller(),
                "name the call that asks in _meta[\"orla/call\"]: not exactly one is in flight",
            ),
        };
        let Some(caller) = caller else {
            self.refuse(&id, INVALID_PARAMS, format!("{method}: {problem}"));
            return Heard::Nothing;
        };
        let Some(client) = caller.client.clone() else {
            self.refuse(
                &id,
                METHOD_NOT_FOUND,
                format!("{method}: this caller's client cannot be asked"),
            );
            return Heard::Nothing;
        };
        let params =
            params.unwrap_or_else(|| Payload::empty().json().cloned().unwrap_or_else(|_| id.clone()));
        Heard::Question(Question { id, method, params, client })
    }

    fn refuse(&mut self, id: &JsonText, code: i64, message: String) {
        wire::write_answer(&mut self.out, id, Err(&RpcError { code, message, data: None }));
    }

    /// Answers a question of the capsule.
    pub(crate) fn answer_question(&mut self, id: &JsonText, answer: Result<JsonText, ClientError>) {
        let error = match answer {
            Ok(result) => return wire::write_answer(&mut self.out, id, Ok(result.as_str())),
            Err(ClientError::Refused { code, message, data }) => RpcError { code, message, data },
            Err(err @ ClientError::Unsupported(_)) => {
                RpcError { code: METHOD_NOT_FOUND, message: err.to_string(), data: None }
            }
            Err(err) => RpcError { code: INTERNAL_ERROR, message: err.to_string(), data: None },
        };
        wire::write_answer(&mut self.out, id, Err(&error));
    }

    fn noise(&mut self, line: &[u8], why: &str) -> Heard {
        let (capsule, text) = (&*self.name, wire::quoted(line));
        if std::mem::replace(&mut self.noise, true) {
            tracing::debug!(capsule, text, "a line on standard output {why}, and is ignored");
        } else {
            tracing::warn!(
                capsule,
                text,
                "a line on standard output {why}, and is ignored; diagnostics belong on standard error"
            );
        }
        Heard::Nothing
    }

    fn stray(&mut self, id: &str) -> Heard {
        if !std::mem::replace(&mut self.strays, true) {
            let id: String = id.chars().take(60).collect();
            tracing::warn!(
                capsule = &*self.name,
                id,
                "an answer to a request that was never sent is dropped"
            );
        }
        Heard::Nothing
    }
}

#[cfg(test)]
#[path = "conversation_tests.rs"]
mod tests;

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
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use orla_marketplace::{JsonText, Notice, NoticeSink};
use serde_json::json;
use tokio::sync::oneshot;

use super::answer::{self, Initialized, ListedTool, Offers, ToolPage};
use super::wire::{self, CallMeta, Hello, Message, RpcError};

/// The revision that capsules are asked for.
const REVISION: &str = "2025-11-25";
/// The most pages, and tools, of one capsule.
const MAX_PAGES: usize = 100;
const MAX_TOOLS: usize = 10_000;
/// Written bytes are cut off the front of the buffer beyond this.
const COMPACT: usize = 256 * 1024;

/// Something a capsule is asked.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) ticket: u64,
    pub(crate) ask: Ask,
    /// Takes what is said while the answer is made.
    pub(crate) notices: NoticeSink,
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
    /// A list other than that of the tools has changed.
    ListChanged,
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
    Call { notices: NoticeSink, reply: oneshot::Sender<Reply> },
    Initialize,
    ListTools,
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
    offers: Offers,
    /// The tools of the pages so far, and their number.
    listed: (Vec<ListedTool>, usize),
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
            offers: Offers::default(),
            listed: (Vec::new(), 0),
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
        let Request { ticket, ask, notices, traceparent, reply } = request;
        match ask {
            Ask::Call { tool, arguments } => {
                let meta = CallMeta {
                    wants_progress: notices.is_wanted(),
                    traceparent: traceparent.as_deref(),
                };
                let tool = tool.as_deref().unwrap_or(only);
                wire::write_call(&mut self.out, ticket, tool, arguments.as_str(), meta);
            }
            Ask::Method { method, params } => {
                wire::write_request(&mut self.out, ticket, &method, params.as_str());
            }
        }
        self.pending.insert(ticket, Pending::Call { notices, reply });
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
        true
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
            Some(Message::Request { id, method, .. }) => self.request(&id, &method),
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
                tracing::warn!(capsule, says = name, "orla.hello gives another name than the manifest");
            }
            None => tracing::warn!(capsule, "orla.hello does not say who it is: params.name is missing"),
        }
        self.opening = Opening::Initializing;
        let params = json!({
            "protocolVersion": REVISION,
            "capabilities": {},
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
            None if (self.first..self.tickets.load(Ordering::Relaxed)).contains(&id) => {
                tracing::debug!(capsule = &*self.name, id, "an answer that nobody waits for is dropped");
                Heard::Nothing
            }
            None => self.stray(&id.to_string()),
        }
    }

    fn initialized(&mut self, result: Result<JsonText, RpcError>) -> Heard {
        let read =
            result.ok().and_then(|result| serde_json::from_str::<Initialized>(result.as_str()).ok());
        let Some(read) = read else {
            return self.opened(None);
        };
        self.offers = read.capabilities;
        wire::write_notification(&mut self.out, "notifications/initialized", None);
        if self.offers.tools {
            self.opening = Opening::Listing;
            self.list(None);
            Heard::Nothing
        } else {
            // It speaks MCP and has no tools.
            self.opened(Some(Vec::new()))
        }
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
                tracing::warn!(capsule = &*self.name, problem, "tools/list gave no list");
                self.listed = (Vec::new(), 0);
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
                    && let Some(Pending::Call { notices, .. }) = self.pending.get(&ticket)
                {
                    notices.send(notice);
                }
            }
            ("notifications/message", Some(params)) => self.log(params),
            ("notifications/tools/list_changed", _) if self.is_open() => {
                if !self.pending.values().any(|pending| matches!(pending, Pending::ListTools)) {
                    self.list(None);
                }
            }
            ("notifications/prompts/list_changed" | "notifications/resources/list_changed", _) => {
                return Heard::ListChanged;
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
        if self.in_flight != 1 {
            return;
        }
        let only = self.pending.values().find_map(|pending| match pending {
            Pending::Call { notices, .. } => Some(notices),
            _ => None,
        });
        if let Some(notices) = only {
            notices.send(Notice::Log { level, message });
        }
    }

    fn request(&mut self, id: &JsonText, method: &str) -> Heard {
        if method == "ping" {
            wire::write_answer(&mut self.out, id, Ok("{}"));
        } else {
            let message = format!("{method}: not offered to capsules");
            wire::write_answer(&mut self.out, id, Err(&RpcError { code: -32601, message }));
        }
        Heard::Nothing
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
mod tests {
    use super::*;
    use std::sync::Mutex;

    fn talk() -> Conversation {
        Conversation::new("cap".into(), Arc::new(AtomicU64::new(1)))
    }

    fn hear(talk: &mut Conversation, line: &str) -> Heard {
        talk.hear(&Bytes::copy_from_slice(line.as_bytes()))
    }

    fn written(talk: &mut Conversation) -> Vec<String> {
        let text = String::from_utf8(talk.unwritten().to_vec()).unwrap();
        talk.wrote(text.len());
        text.lines().map(str::to_owned).collect()
    }

    fn request(talk: &Conversation, notices: NoticeSink) -> (u64, Request, oneshot::Receiver<Reply>) {
        let ticket = talk.tickets.fetch_add(1, Ordering::Relaxed);
        let (reply, answer) = oneshot::channel();
        let ask = Ask::Call { tool: None, arguments: JsonText::parse("{}").unwrap() };
        (ticket, Request { ticket, ask, notices, traceparent: None, reply }, answer)
    }

    const HELLO: &str =
        r#"{"jsonrpc":"2.0","method":"orla.hello","params":{"name":"cap","version":"1.0.0"}}"#;

    fn answer(id: u64, result: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
    }

    #[test]
    fn mcp_is_opened_after_the_hello() {
        let mut talk = talk();
        assert!(matches!(hear(&mut talk, HELLO), Heard::Hello(Some(_))));
        assert!(written(&mut talk)[0].starts_with(
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25""#
        ));
        assert_eq!(
            hear(&mut talk, &answer(1, r#"{"capabilities":{"tools":{},"prompts":{}}}"#)),
            Heard::Nothing
        );
        assert_eq!(
            written(&mut talk),
            [
                r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
                r#"{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}"#
            ]
        );
        assert!(!talk.is_open());
        assert_eq!(
            hear(&mut talk, &answer(2, r#"{"tools":[{"name":"a"}],"nextCursor":"n"}"#)),
            Heard::Nothing
        );
        assert_eq!(
            written(&mut talk),
            [r#"{"jsonrpc":"2.0","id":3,"method":"tools/list","params":{"cursor":"n"}}"#]
        );
        let Heard::Learned(learned) = hear(&mut talk, &answer(3, r#"{"tools":[{"name":"b"}]}"#)) else {
            panic!()
        };
        let names: Vec<String> = learned.tools.unwrap().into_iter().map(|tool| tool.name).collect();
        assert_eq!(
            (names, learned.offers.prompts, learned.offers.resources),
            (vec!["a".into(), "b".into()], true, false)
        );
        assert!(talk.is_open());
        assert_eq!(
            hear(&mut talk, r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#),
            Heard::Nothing
        );
        assert_eq!(
            written(&mut talk),
            [r#"{"jsonrpc":"2.0","id":4,"method":"tools/list","params":{}}"#]
        );
        assert!(matches!(hear(&mut talk, &answer(4, r#"{"tools":[]}"#)), Heard::Learned(_)));
    }

    #[test]
    fn one_that_refuses_mcp_is_a_tool_itself() {
        let mut talk = talk();
        hear(&mut talk, HELLO);
        let heard =
            hear(&mut talk, r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}"#);
        assert_eq!(heard, Heard::Learned(Learned::default()));
    }

    #[test]
    fn nothing_counts_before_the_hello_and_a_second_one_does_not() {
        let mut talk = talk();
        assert_eq!(hear(&mut talk, &answer(1, "{}")), Heard::Nothing);
        assert_eq!(hear(&mut talk, "starting up"), Heard::Nothing);
        assert!(matches!(
            hear(&mut talk, r#"{"jsonrpc":"2.0","method":"orla.hello"}"#),
            Heard::Hello(None)
        ));
        assert_eq!(hear(&mut talk, HELLO), Heard::Nothing);
        assert_eq!(written(&mut talk).len(), 1);
    }

    #[test]
    fn answers_find_their_requests_and_no_others() {
        let mut talk = talk();
        hear(&mut talk, HELLO);
        let (one, request_one, mut answer_one) = request(&talk, NoticeSink::default());
        let (two, request_two, mut answer_two) = request(&talk, NoticeSink::default());
        talk.send(request_one, "cap");
        talk.send(request_two, "cap");
        assert_eq!(talk.in_flight(), 2);
        for line in [answer(two, "2"), answer(two, "22"), answer(99, "0"), answer(0, "0"), "{}".into()] {
            assert_eq!(hear(&mut talk, &line), Heard::Nothing);
        }
        assert_eq!(answer_two.try_recv().unwrap().unwrap().as_str(), "2");
        written(&mut talk);
        assert!(talk.cancel(one) && !talk.cancel(one) && !talk.cancel(1));
        assert!(written(&mut talk)[0].contains(r#""method":"notifications/cancelled""#));
        hear(&mut talk, &answer(one, "late"));
        hear(&mut talk, &answer(one, "1"));
        assert!(answer_one.try_recv().is_err());
        assert_eq!(talk.in_flight(), 0);
    }

    #[test]
    fn whoever_waits_is_told_when_no_answer_can_come() {
        let mut talk = talk();
        hear(&mut talk, HELLO);
        let (_, sent, mut answer) = request(&talk, NoticeSink::default());
        talk.send(sent, "cap");
        talk.fail("it exited with code 7");
        assert_eq!(answer.try_recv().unwrap().unwrap_err(), Fault::Gone("it exited with code 7".into()));
        assert_eq!(talk.in_flight(), 0);
    }

    #[test]
    fn notices_go_to_the_call_they_belong_to() {
        let mut talk = talk();
        hear(&mut talk, HELLO);
        let heard = Arc::new(Mutex::new(Vec::new()));
        let sink = |who: &'static str| {
            let heard = Arc::clone(&heard);
            NoticeSink::new(move |notice| heard.lock().unwrap().push((who, notice)))
        };
        let log =
            r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}"#;
        let (one, first, _answer) = request(&talk, sink("one"));
        talk.send(first, "cap");
        hear(&mut talk, log);
        let (_, second, _other) = request(&talk, sink("two"));
        talk.send(second, "cap");
        hear(&mut talk, log);
        hear(
            &mut talk,
            &format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{one},"progress":1}}}}"#
            ),
        );
        let heard = heard.lock().unwrap();
        assert_eq!(heard.len(), 2, "{heard:?}");
        assert!(
            matches!(&heard[0], ("one", Notice::Log { .. }))
                && matches!(&heard[1], ("one", Notice::Progress(_)))
        );
        drop(heard);
        let sent = String::from_utf8(talk.unwritten().to_vec()).unwrap();
        assert!(sent.contains(&format!(r#""_meta":{{"progressToken":{one}}}"#)), "{sent}");
    }

    #[test]
    fn a_capsules_own_requests_are_answered() {
        let mut talk = talk();
        hear(&mut talk, HELLO);
        written(&mut talk);
        hear(&mut talk, r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#);
        hear(&mut talk, r#"{"jsonrpc":"2.0","id":5,"method":"roots/list"}"#);
        assert_eq!(
            written(&mut talk),
            [
                r#"{"jsonrpc":"2.0","id":"p","result":{}}"#,
                r#"{"jsonrpc":"2.0","id":5,"error":{"code":-32601,"message":"roots/list: not offered to capsules"}}"#
            ]
        );
    }
}

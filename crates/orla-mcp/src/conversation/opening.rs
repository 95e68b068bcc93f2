//! The opening of a conversation.
//!
//! A capsule sends `orla.hello`. The handshake of MCP follows: `initialize`,
//! `notifications/initialized`, `tools/list`. A capsule that only supports `tools/call` refuses this or
//! does not answer; it then has one tool, itself.
//!
//! An MCP server ([`Handshake::Initialize`]) sends nothing first. It receives `initialize`, which every
//! published server answers. A server that refuses only supports the revision without sessions, and
//! receives `server/discover`.

use orla_marketplace::JsonText;
use serde_json::json;

use super::super::answer::{ListedTool, Offers, ToolPage, leave_out_duplicates, warn_of_misspelt_hints};
use super::super::input_requests;
use super::super::mode::{self, RequestMode};
use super::super::wire::{self, Hello, RpcError};
use super::{Conversation, Handshake, Incoming, MAX_PAGES, MAX_TOOLS, Opening, Pending, ServerInfo};

impl Conversation {
    pub(super) fn hello(&mut self, line: &[u8], params: Option<&JsonText>) -> Incoming {
        let capsule = &*self.name;
        if self.opening != Opening::Silent {
            if !std::mem::replace(&mut self.has_logged_hello, true) {
                let text = wire::quoted(line);
                tracing::warn!(capsule, text, "sent orla.hello more than once; only the first counts");
            }
            return Incoming::Nothing;
        }
        let hello = Hello::read(params);
        match hello.as_ref().and_then(|hello| hello.name.as_deref()) {
            Some(name) if name == capsule => {}
            Some(name) => {
                let says = wire::quoted(name.as_bytes());
                tracing::warn!(capsule, says, "the name in orla.hello differs from the manifest");
            }
            None => tracing::warn!(capsule, "orla.hello has no params.name"),
        }
        self.initialize();
        Incoming::Hello(hello)
    }

    pub(super) fn initialize(&mut self) {
        self.opening = Opening::Initializing;
        self.ask("initialize", &mode::initialize(), Pending::Initialize);
    }

    pub(super) fn initialized(&mut self, result: &Result<JsonText, RpcError>) -> Incoming {
        match (result.as_ref().ok().and_then(Offers::read), self.handshake) {
            (Some(offers), _) => self.offers = offers,
            (None, Handshake::Hello) => return self.opened(None),
            (None, Handshake::Initialize) => {
                self.opening = Opening::Discovering;
                self.mode = RequestMode::Sessionless;
                self.ask("server/discover", "{}", Pending::Discover);
                return Incoming::Nothing;
            }
        }
        self.speaks_mcp = true;
        wire::write_notification(self.out.buffer(), "notifications/initialized", None);
        if self.offers.logging {
            // Each caller chooses its own log level, so the server must send all messages.
            self.ask("logging/setLevel", r#"{"level":"debug"}"#, Pending::Ignored);
        }
        self.begin()
    }

    pub(super) fn discovered(&mut self, result: Result<JsonText, RpcError>) -> Incoming {
        let offers = match result {
            Ok(result) => Offers::read(&result).ok_or_else(|| "its answer is not an object".to_owned()),
            Err(error) => Err(error.message),
        };
        match offers {
            Ok(offers) => {
                self.offers = offers;
                self.speaks_mcp = true;
                self.listen(&[]);
                self.begin()
            }
            Err(problem) => {
                let problem = wire::quoted(problem.as_bytes());
                Incoming::Unusable(format!(
                    "it answers neither initialize nor server/discover: {problem}"
                ))
            }
        }
    }

    /// Handles the answer to the first request.
    fn begin(&mut self) -> Incoming {
        let incoming = if self.offers.tools {
            self.opening = Opening::Listing;
            self.list(None);
            None
        } else {
            // The process supports MCP and has no tools.
            self.opening = Opening::Open;
            Some(self.info(Some(Vec::new())))
        };
        match (self.handshake, incoming) {
            (Handshake::Initialize, info) => Incoming::Ready(info),
            (Handshake::Hello, Some(info)) => Incoming::Info(info),
            (Handshake::Hello, None) => Incoming::Initialized,
        }
    }

    /// Subscribes to changes of lists and of exactly these resources (2026-07-28).
    fn listen(&mut self, uris: &[String]) {
        let old = self.pending.iter().find(|(_, pending)| matches!(pending, Pending::Listen));
        if let Some(old) = old.map(|(id, _)| *id) {
            self.pending.remove(&old);
            wire::write_cancelled(self.out.buffer(), old);
        }
        self.ask("subscriptions/listen", &input_requests::listen(&self.offers, uris), Pending::Listen);
    }

    /// Sets the subscribed resources. A server with a session receives one request for each.
    pub fn subscriptions(&mut self, uris: &[String]) {
        if self.mode == RequestMode::Sessionless && self.speaks_mcp && self.offers.subscriptions {
            self.listen(uris);
        }
    }

    /// Returns the request mode.
    pub fn mode(&self) -> RequestMode {
        self.mode
    }

    /// Subscribes to a resource for callers that subscribed with an earlier process.
    pub fn subscribe(&mut self, uri: &str) {
        self.ask("resources/subscribe", &json!({ "uri": uri }).to_string(), Pending::Ignored);
    }

    pub(super) fn list(&mut self, cursor: Option<&str>) {
        let params = cursor.map_or_else(|| json!({}), |cursor| json!({ "cursor": cursor }));
        self.ask("tools/list", &params.to_string(), Pending::ListTools);
    }

    pub(super) fn listed(&mut self, result: Result<JsonText, RpcError>) -> Incoming {
        let page = match result {
            Ok(page) => ToolPage::read(&page),
            Err(error) => Err(error.message),
        };
        let page = match page {
            Ok(page) => page,
            Err(problem) => {
                let problem = wire::quoted(problem.as_bytes());
                tracing::warn!(capsule = &*self.name, problem, "tools/list returned no list");
                self.listed = (Vec::new(), 0);
                self.list_again = false;
                return match (self.opening, self.handshake) {
                    (Opening::Open, _) => Incoming::Nothing,
                    (_, Handshake::Hello) => self.opened(None),
                    (_, Handshake::Initialize) => self.opened(Some(Vec::new())),
                };
            }
        };
        if page.left_out > 0 {
            let (capsule, left_out) = (&*self.name, page.left_out);
            tracing::warn!(capsule, left_out, "entries of tools/list that are not tools are left out");
        }
        let (tools, pages) = &mut self.listed;
        tools.extend(page.tools);
        *pages += 1;
        if let Some(cursor) = page.next_cursor {
            if *pages < MAX_PAGES && tools.len() < MAX_TOOLS {
                self.list(Some(&cursor));
                return Incoming::Nothing;
            }
            let (capsule, tools) = (&*self.name, tools.len());
            tracing::warn!(capsule, tools, "its list of tools is too long, and is truncated");
        }
        let (mut tools, _) = std::mem::take(&mut self.listed);
        tools.truncate(MAX_TOOLS);
        leave_out_duplicates(&self.name, &mut tools);
        warn_of_misspelt_hints(&self.name, &tools);
        if std::mem::take(&mut self.list_again) {
            self.list(None);
        }
        self.opened(Some(tools))
    }

    fn opened(&mut self, tools: Option<Vec<ListedTool>>) -> Incoming {
        self.opening = Opening::Open;
        Incoming::Info(self.info(tools))
    }

    fn info(&self, tools: Option<Vec<ListedTool>>) -> ServerInfo {
        ServerInfo { tools, offers: self.offers.clone(), mode: self.mode }
    }
}

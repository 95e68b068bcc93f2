//! The state that the handle of a server behind HTTP shares with its calls and its task.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use orla_marketplace::{Client, ClientError, JsonText, Notice, ShownTo, SurfaceNotice};
use orla_mcp::answer::ServerNotification;
use orla_mcp::wire::{self, RpcError};
use orla_mcp::{Caller, QUESTIONS, ServerInfo, Subscriptions, only, write_client_answer};
use orla_process::supervisor::Policy;
use parking_lot::{Mutex, RwLock};
use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::sync::{Notify, Semaphore, broadcast, watch};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::headers::{self, Repeated};
use super::link::Link;
use crate::sign_in::Sender;

/// The capacity of the channel of notices.
const NOTICES: usize = 64;
/// The maximum number of open questions of a server that belong to no request.
const MAX_QUESTIONS: usize = 64;

/// What the newest notification stream asks for, and what the server has acknowledged of it.
#[derive(Debug, Default)]
pub(super) struct Acknowledgement {
    pub(super) asked: Vec<String>,
    /// `None` before the server's answer.
    pub(super) known: Option<Vec<String>>,
}

/// The shared state.
pub(super) struct Shared {
    pub(super) name: Arc<str>,
    pub(super) url: Url,
    /// The configured header fields, which may be secrets.
    pub(super) headers: HeaderMap,
    pub(super) startup_timeout: Duration,
    pub(super) sender: Sender,
    /// Whether this is the connection of one caller, in addition to the server's own.
    pub(super) is_of_caller: bool,
    pub(super) policy: Arc<Mutex<Policy>>,
    pub(super) tasks: TaskTracker,
    tickets: AtomicU64,
    /// The callers that see each tool, if orla itself sees none.
    shown: Mutex<HashMap<String, ShownTo>>,
    pub(super) state: watch::Sender<State>,
    pub(super) knowledge: watch::Sender<Knowledge>,
    pub(super) notices: broadcast::Sender<SurfaceNotice>,
    changes: watch::Sender<u64>,
    pub(super) restarts: AtomicU64,
    pub(super) last_failure: Mutex<Option<String>>,
    pub(super) subscriptions: Subscriptions,
    callers: Mutex<HashMap<u64, Caller>>,
    repeated: Arc<RwLock<Arc<Repeated>>>,
    /// Permits for questions that belong to no request.
    pub(super) questions: Arc<Semaphore>,
    /// Signals that a caller needs the server.
    pub(super) wanted: Notify,
    /// Signals that the tools have changed.
    pub(super) tools_changed: Notify,
    /// Signals that the set of subscribed resources has changed.
    pub(super) resubscribe: Notify,
    /// What the server has acknowledged (2026-07-28).
    pub(super) acknowledged: watch::Sender<Acknowledgement>,
    /// The number of a connection that is no longer usable.
    pub(super) useless: watch::Sender<(u64, Option<String>)>,
}

/// The state of a server.
#[derive(Clone, Debug)]
pub(super) enum State {
    /// The server has not been needed yet.
    Created,
    /// The connection is being opened.
    Starting,
    /// The connection has been open since then.
    Ready(Arc<Link>, Instant),
    /// The server cannot be reached. The next attempt waits for its time, or for a call.
    Crashed { attempt: u64, reason: String },
    /// The server is no longer used.
    Stopped,
}

impl State {
    /// Returns the state's name, as for capsules (RFC 2 §7).
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Created => "CREATED",
            Self::Starting => "STARTING",
            Self::Ready(..) => "READY",
            Self::Crashed { .. } => "CRASHED",
            Self::Stopped => "STOPPED",
        }
    }
}

/// The knowledge about the tools, prompts and resources.
#[derive(Clone, Debug, Default)]
pub(super) struct Knowledge {
    pub(super) settled: bool,
    pub(super) info: Option<Arc<ServerInfo>>,
}

/// The parameters of requests to a server.
#[derive(Clone)]
pub(super) struct Setup {
    pub(super) name: Arc<str>,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) startup_timeout: Duration,
}

impl Shared {
    /// Creates the shared state of a connection. A caller's connection shares the knowledge about tools
    /// with the server's `own`.
    pub(super) fn new(
        setup: Setup,
        sender: Sender,
        own: Option<&Self>,
        policy: Arc<Mutex<Policy>>,
        tasks: TaskTracker,
        changes: watch::Sender<u64>,
    ) -> Self {
        Self {
            name: setup.name,
            url: setup.url,
            headers: setup.headers,
            startup_timeout: setup.startup_timeout,
            sender,
            is_of_caller: own.is_some(),
            policy,
            tasks,
            tickets: AtomicU64::new(1),
            state: watch::Sender::new(State::Created),
            shown: Mutex::default(),
            knowledge: watch::Sender::new(Knowledge::default()),
            notices: broadcast::Sender::new(NOTICES),
            changes,
            restarts: AtomicU64::new(0),
            last_failure: Mutex::default(),
            subscriptions: Subscriptions::default(),
            callers: Mutex::default(),
            repeated: own.map(|own| Arc::clone(&own.repeated)).unwrap_or_default(),
            questions: Arc::new(Semaphore::new(MAX_QUESTIONS)),
            wanted: Notify::new(),
            tools_changed: Notify::new(),
            resubscribe: Notify::new(),
            acknowledged: watch::Sender::default(),
            useless: watch::Sender::new((0, None)),
        }
    }

    /// Returns a new, unused ticket.
    pub(super) fn ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Ordering::Relaxed)
    }

    /// Marks the connection with this number as unusable, so that it is opened again.
    pub(super) fn useless(&self, number: u64, reason: Option<String>) {
        self.useless.send_if_modified(|useless| {
            let is_news = useless.0 < number;
            if is_news {
                *useless = (number, reason);
            }
            is_news
        });
    }

    /// Records what the server serves to orla itself.
    pub(super) fn set_info(&self, info: ServerInfo) {
        self.shown.lock().clear();
        self.take_info(info);
    }

    /// Records what the server serves to a caller if it serves nothing to orla itself. Other callers do
    /// not see these tools.
    pub(super) fn set_info_of(&self, caller: &Arc<str>, info: ServerInfo) {
        let mut merged = info;
        let own = merged.tools.get_or_insert_default();
        let mut is_news = false;
        {
            let mut shown = self.shown.lock();
            for (tool, to) in shown.iter() {
                is_news |= to.set(caller, own.iter().any(|listed| listed.name == *tool));
            }
            for listed in own.iter() {
                is_news |= shown.entry(listed.name.clone()).or_default().set(caller, true);
            }
        }
        if let Some(before) = self.knowledge.borrow().info.as_deref() {
            let known: HashSet<String> = own.iter().map(|listed| listed.name.clone()).collect();
            let others = before.tools.iter().flatten().filter(|listed| !known.contains(&listed.name));
            own.extend(others.cloned());
        }
        self.take_info(merged);
        if is_news {
            // The change is reported even if the list is the same, because another caller sees it now.
            self.changes.send_modify(|count| *count += 1);
        }
    }

    /// Returns the callers that see a tool; `None` if all do.
    pub(super) fn shown_to(&self, tool: &str) -> Option<ShownTo> {
        self.shown.lock().get(tool).cloned()
    }

    /// Returns whether the server serves nothing to orla itself, and callers have learned what it serves
    /// to them.
    pub(super) fn is_shown_to_callers(&self) -> bool {
        !self.shown.lock().is_empty()
    }

    fn take_info(&self, info: ServerInfo) {
        let repeated = headers::repeated(info.tools.as_deref().unwrap_or_default());
        *self.repeated.write() = Arc::new(repeated);
        let is_news = self.knowledge.borrow().info.as_deref() != Some(&info);
        if is_news {
            self.knowledge.send_modify(|knowledge| knowledge.info = Some(Arc::new(info)));
            // The notification precedes the wake-up of waiting callers, which check for changes.
            self.changes.send_modify(|count| *count += 1);
        }
        self.settled();
    }

    /// Marks the server so that no listing waits for it.
    pub(super) fn settled(&self) {
        self.knowledge.send_if_modified(|knowledge| !std::mem::replace(&mut knowledge.settled, true));
    }

    /// Returns the header fields that repeat arguments of a tool.
    pub(super) fn repeated(&self, tool: &str, arguments: &JsonText) -> Vec<(HeaderName, HeaderValue)> {
        let repeated = Arc::clone(&self.repeated.read());
        repeated.get(tool).map(|all| headers::of_arguments(all, arguments)).unwrap_or_default()
    }

    /// Handles a notification that belongs to no particular request.
    pub(super) fn receive(&self, notification: ServerNotification) {
        match notification {
            ServerNotification::ToolsChanged => self.tools_changed.notify_one(),
            // Sending fails if there is no receiver.
            ServerNotification::Surface(notice) => drop(self.notices.send(notice)),
            ServerNotification::Progress(ticket, notice) => {
                let caller = self.callers.lock().get(&ticket).cloned();
                caller.inspect(|caller| caller.notices.send(notice));
            }
            ServerNotification::Log(level, message) => {
                let caller = only(self.callers.lock().values()).cloned();
                caller.inspect(|caller| caller.notices.send(Notice::Log { level, message }));
            }
            ServerNotification::Nothing => {}
        }
    }

    /// Returns the client for a question without a request, if only one comes into question.
    pub(super) fn only_client(&self) -> Option<Arc<dyn Client>> {
        only(self.callers.lock().values()).and_then(|caller| caller.client.clone())
    }

    /// Registers a request in flight until the guard is dropped.
    pub(super) fn in_flight(&self, ticket: u64, caller: &Caller) -> InFlight<'_> {
        self.callers.lock().insert(ticket, caller.clone());
        InFlight { shared: self, ticket }
    }
}

/// A request in flight.
pub(super) struct InFlight<'a> {
    shared: &'a Shared,
    ticket: u64,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.shared.callers.lock().remove(&self.ticket);
    }
}

/// A request of the server.
pub(super) struct Question {
    pub(super) id: JsonText,
    pub(super) method: String,
    pub(super) params: JsonText,
    /// The client to ask.
    pub(super) client: Option<Arc<dyn Client>>,
}

impl Question {
    /// Returns the message that answers the question.
    pub(super) async fn answer(self) -> Vec<u8> {
        let Self { id, method, params, client } = self;
        let mut body = Vec::new();
        if method == "ping" {
            wire::write_answer(&mut body, &id, Ok("{}"));
        } else if !QUESTIONS.contains(&method.as_str()) {
            let error =
                RpcError { code: -32601, message: format!("{method:.60}: not offered"), data: None };
            wire::write_answer(&mut body, &id, Err(&error));
        } else {
            let answer = match client {
                Some(client) => client.request(&method, params).await,
                None => Err(ClientError::Unsupported(method)),
            };
            write_client_answer(&mut body, &id, answer);
        }
        body
    }
}

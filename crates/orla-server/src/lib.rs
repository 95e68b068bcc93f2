//! The server side of MCP, over HTTP and stdio.
//!
//! A [`Server`] serves a marketplace: over HTTP it is [bound](Server::bind) to an address, over a
//! pipe it [serves](Server::serve_stdio) one client. One endpoint serves every revision of the
//! protocol, the sessionless 2026-07-28 and the session-based ones before it.
//!
//! # How it works
//!
//! The transports, the envelope and the dispatch are written here, on hyper; the protocol's
//! vocabulary is the official SDK's (`rmcp::model`). Measurements ruled out the SDK's own
//! transport: it reaches half the requests of a bare handler, loses the text of numbers, and
//! answers some malformed requests in violation of the specification.
//!
//! A request goes: guard (`http/`) → `routes` → `mcp/`, `rtfs/`, `a2a/` or `admin/` → marketplace.
//! Pages for people come from outside this crate (`pages`). In `mcp/` it goes: envelope (`rpc`) →
//! mode (`request_mode`) → `dispatch`, and comes back as plain JSON or as a stream (`exchange`).
//! `tools/call` and `tools/list` never build a tree: they slice, pass on and join the body's bytes
//! (`tools`). Other methods of MCP go to the surfaces of the marketplace (`surfaces`).
//!
//! A provider's request for input goes to the client on the stream of the session's call
//! (`session::client`). Without a session, it is the result of the call, which waits for the next
//! request (`input::requests`, `dispatch::pending`). Programs and tasks have their own routes
//! (`rtfs::programs`, `tasks`). `notify` is the only source of notifications.
//!
//! # Invariants
//!
//! - A session calls what it last listed; a sessionless request sees the newest snapshot.
//! - A slow client delays no other client and no running call: every queue is bounded, and nothing
//!   that runs a call waits for its reader.
//! - A client never sees another client's questions, progress or subscriptions.
//! - An idle session is only memory: it has no task, no channel and no timer.
//! - [`Bound::serve`] and [`Server::serve_stdio`] return after all spawned tasks have ended.
//!
//! # What is deliberately absent
//!
//! Providers and processes: this crate knows only the marketplace and MCP. JSON-RPC batches, which
//! one old revision had.

mod a2a;
mod admin;
mod calls;
mod credential;
mod http;
mod idempotency;
mod listener;
mod mcp;
mod metrics;
mod nodes;
mod options;
mod pages;
mod peers;
mod rest;
mod routes;
mod rtfs;
mod state;
mod step_up;
mod tasks;
mod throttle;
mod tls;
mod visits;
mod waiting;

use std::sync::Arc;

use bytes::Bytes;
use orla_marketplace::{CapabilityMarketplace, Principal};
use orla_state::{StateError, StateStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

pub use crate::http::guard::is_origin;
pub use a2a::{Push, PushSender};
pub use admin::status::StatusRow;
pub use listener::{BindError, Bound};
pub use nodes::{DrainError, NoAnswer, NodeRow, Nodes, OtherNode};
pub use options::{AgentOptions, ServerOptions, Unauthenticated};
pub use orla_identity::{AuthOptions, BearerToken, Fetch, IssuerOptions, OwnToken};
pub use orla_mcp::call_result::call_result_json;
pub use pages::{Door, PageBody, Pages, Refused, Visit, Visitor};
pub use rtfs::federation::shared_tool;

pub use tasks::{ResultForm, shown as task_json, shown_with_result as task_json_with_result};
pub use throttle::AuthLimits;
pub use tls::{CertificateName, Tls, TlsError, TlsSettings};
pub use waiting::{ApprovalRefused, ApprovalRequest};

use crate::mcp::session::elsewhere;
use crate::state::Core;

/// Serves a marketplace to MCP clients. Cloning shares it.
#[derive(Clone)]
pub struct Server {
    core: Arc<Core>,
}

impl Server {
    /// A server for this marketplace. It becomes the observer of its calls, for the metrics.
    pub fn new(marketplace: Arc<CapabilityMarketplace>, options: ServerOptions) -> Self {
        Self { core: Core::new(marketplace, options) }
    }

    /// Applies other options to every request from now on. `max_connections` applies after a restart, and open
    /// connections keep their timeouts.
    pub fn reconfigure(&self, options: ServerOptions) {
        self.core.reconfigure(options);
    }

    /// Lets `observe` see failed authentications. While a peer is rate limited, it sees only the
    /// first one. The first observer stays.
    pub fn on_unauthenticated(&self, observe: impl Fn(&Unauthenticated) + Send + Sync + 'static) {
        drop(self.core.on_unauthenticated.set(Box::new(observe)));
    }

    /// Continues the push notifications that the last server did not send. Call it within a runtime,
    /// after [`push_with`](Self::push_with) and [`serve_tasks`](Self::serve_tasks), and before those
    /// tasks continue.
    ///
    /// # Errors
    ///
    /// Returns an error if the state cannot be read.
    pub async fn resume_push(&self) -> Result<(), StateError> {
        a2a::resume(&self.core).await
    }

    /// Keeps the answers to requests with an `Idempotency-Key` in this state. Without it, they end with the server. The
    /// first state stays.
    pub fn keep_answers(&self, state: Arc<dyn StateStore>) {
        self.core.keep_answers(state);
    }

    /// Shares the sessions of MCP with all servers of this state: each serves the sessions that another began. The first
    /// state stays. To be called within a runtime.
    pub fn share_sessions(&self, state: Arc<dyn StateStore>) {
        self.core.share_sessions(state);
        self.core.tracker.spawn(elsewhere::forward(Arc::clone(&self.core)));
    }

    /// Serves these tasks. They are closed when the server ends. Without them, clients find none. The first ones stay.
    pub fn serve_tasks(&self, tasks: orla_tasks::Tasks) {
        self.core.serve_tasks(tasks);
    }

    /// Returns the metrics of everything that is served, as the text of `/metrics`.
    pub fn metrics(&self) -> String {
        self.core.metrics.render(&admin::status::gauges(&self.core, None), |_| true)
    }

    /// Shows this history at `/calls`. Without one, nothing is there. The first one stays.
    pub fn serve_history(&self, history: orla_history::History) {
        self.core.serve_history(history);
    }

    /// Shows these schedules in `/status`. The first ones stay.
    pub fn show_schedules(&self, schedules: orla_tasks::Schedules) {
        self.core.show_schedules(schedules);
    }

    /// Shows the nodes of a cluster in `/status` and `/metrics`, and drains them on request. The first cluster stays.
    pub fn show_nodes(&self, cluster: impl Nodes + 'static) {
        self.core.show_nodes(Box::new(cluster));
    }

    /// Answers what another node of the cluster [asks](Nodes::ask) in the name of this caller. The
    /// answer to an unreadable question is empty.
    pub async fn answer_node(&self, caller: Option<&Principal>, question: &Bytes) -> Bytes {
        peers::answer(&self.core, caller, question).await
    }

    /// Serves these pages for people at `/console`. The first ones stay.
    pub fn serve_pages(&self, pages: Arc<dyn Pages>) {
        self.core.serve_pages(pages);
    }

    /// Sends push notifications of the agent's tasks through this sender. Without one, clients that ask for them are refused.
    /// The first sender stays.
    pub fn push_with(&self, sender: Arc<dyn PushSender>) {
        self.core.push_with(sender);
    }

    /// Reaches authorization servers through this client. Without one, their tokens are refused. The first one stays.
    pub fn fetch_with(&self, fetch: Arc<dyn Fetch>) {
        self.core.fetch_with(fetch);
    }

    /// Takes the socket; with port 0, any that is free.
    ///
    /// # Errors
    ///
    /// Returns an error if the address is in use, or the system refuses it.
    pub async fn bind(&self, host: &str, port: u16) -> Result<Bound, BindError> {
        Bound::bind(Arc::clone(&self.core), host, port).await
    }

    /// Serves one client over a pipe until its input ends, its output is closed or `shutdown` is
    /// cancelled. Everything that ran for it has ended when this returns.
    pub async fn serve_stdio<R, W>(&self, reader: R, writer: W, shutdown: CancellationToken)
    where
        R: AsyncRead + Unpin + Send,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        mcp::stdio::serve(Arc::clone(&self.core), reader, writer, shutdown).await;
    }

    /// Cancels everything that runs, without waiting for it, as after a second signal. `serve` returns once
    /// everything has ended.
    pub fn abort(&self) {
        self.core.draining.cancel();
        self.core.end_calls();
    }
}

//! The server side of MCP, over HTTP and stdio.
//!
//! A [`Server`] serves a marketplace: over HTTP it is [bound](Server::bind) to an address, over a pipe
//! it [serves](Server::serve_stdio) one client. One endpoint serves every revision of the protocol, the
//! sessionless 2026-07-28 and the session-based ones before it.
//!
//! # How it works
//!
//! The transports, the envelope and the dispatch are written here, on hyper; the protocol's vocabulary
//! is the official SDK's (`rmcp::model`). Measurements ruled out the SDK's own transport: it reaches
//! half the requests of a bare handler, loses the text of numbers, and answers some malformed requests
//! in violation of the specification.
//!
//! The path of a request is: guard (`http/`) → `routes` → `mcp/`, `rtfs/`, `a2a/` or `admin/` →
//! marketplace. Another crate provides the pages for people (`pages`). Within `mcp/`, the path is:
//! envelope (`rpc`) → mode (`request_mode`) → `dispatch`. The answer is plain JSON or a stream
//! (`exchange`). `tools/call` and `tools/list` never build a tree. They slice, pass on and join the
//! body's bytes (`tools`). Other methods of MCP are answered by the surfaces of the marketplace
//! (`surfaces`).
//!
//! A provider's request for input goes to the client on the stream of the session's call
//! (`session::client`). Without a session, the result of the request contains the provider's request,
//! and the call waits for the client's next request (`input::requests`, `dispatch::pending`). Programs
//! and tasks have their own routes (`rtfs::programs`, `tasks`). `notify` is the only source of
//! notifications.
//!
//! # Invariants
//!
//! - A session calls what it last listed; a sessionless request sees the newest snapshot.
//! - A slow client delays no other client and no running call: every queue is bounded, and no running
//!   call waits for a reader.
//! - A client never sees another client's questions, progress or subscriptions.
//! - An idle session uses only memory. It has no task, no channel and no timer.
//! - [`Bound::serve`] and [`Server::serve_stdio`] return after all spawned tasks have ended.
//!
//! # What is deliberately absent
//!
//! Providers and processes: this crate knows only the marketplace and MCP. JSON-RPC batches, which one
//! old revision had.

mod a2a;
mod admin;
mod calls;
mod credential;
mod forbidden;
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

pub use crate::http::forbidden::{Forbidden, ForbiddenBy};
pub use crate::http::guard::is_origin;
pub use crate::http::response::retry_after;
pub use a2a::{Push, PushSender};
pub use admin::status::StatusRow;
pub use forbidden::ForbiddenRequest;
pub use listener::{BindError, Bound};
pub use nodes::{DrainError, NoAnswer, NodeRow, Nodes, OtherNode};
pub use options::{AgentOptions, ServerOptions, Unauthenticated};
pub use orla_identity::{AuthOptions, BearerToken, Fetch, IssuerOptions, OwnToken};
pub use orla_mcp::call_result::call_result_json;
pub use pages::{Gateway, PageBody, Pages, Refused, Visit, Visitor};
pub use rtfs::federation::shared_tool;

pub use tasks::{ResultForm, shown as task_json, shown_with_result as task_json_with_result};
pub use throttle::AuthLimits;
pub use tls::{CertificateName, Tls, TlsError, TlsSettings};
pub use waiting::{ApprovalRefused, ApprovalRequest};

use crate::mcp::session::other_nodes;
use crate::state::Core;

/// Serves a marketplace to MCP clients. Clones share the server.
#[derive(Clone)]
pub struct Server {
    core: Arc<Core>,
}

impl Server {
    /// Creates a server for this marketplace. The server observes the marketplace's calls for its
    /// metrics.
    pub fn new(marketplace: Arc<CapabilityMarketplace>, options: ServerOptions) -> Self {
        Self { core: Core::new(marketplace, options) }
    }

    /// Applies other options to every later request. `max_connections` applies after a restart, and open
    /// connections keep their timeouts.
    pub fn reconfigure(&self, options: ServerOptions) {
        self.core.reconfigure(options);
    }

    /// Sets the observer of failed authentications. While a peer is rate limited, the observer sees only
    /// its first failure. Later observers are ignored.
    pub fn on_unauthenticated(&self, observe: impl Fn(&Unauthenticated) + Send + Sync + 'static) {
        drop(self.core.on_unauthenticated.set(Box::new(observe)));
    }

    /// Sets the observer of forbidden requests that are not calls. Of an unidentified peer, it sees the first 20 in a
    /// minute. Later observers are ignored.
    pub fn on_forbidden(&self, observe: impl Fn(&ForbiddenRequest) + Send + Sync + 'static) {
        drop(self.core.on_forbidden.set(Box::new(observe)));
    }

    /// Continues the push notifications that the last server did not send. Must be called within a
    /// runtime, after [`push_with`](Self::push_with) and [`serve_tasks`](Self::serve_tasks), and before
    /// those tasks continue.
    ///
    /// # Errors
    ///
    /// Returns an error if the state cannot be read.
    pub async fn resume_push(&self) -> Result<(), StateError> {
        a2a::resume(&self.core).await
    }

    /// Sets the store for the answers to requests with an `Idempotency-Key`. Without a store, the
    /// answers end with the server. Later stores are ignored.
    pub fn keep_answers(&self, state: Arc<dyn StateStore>) {
        self.core.keep_answers(state);
    }

    /// Shares the MCP sessions with all servers of this state. Each server serves the sessions that
    /// another began. Later states are ignored. Must be called within a runtime.
    pub fn share_sessions(&self, state: Arc<dyn StateStore>) {
        self.core.share_sessions(state);
        self.core.tracker.spawn(other_nodes::forward(Arc::clone(&self.core)));
    }

    /// Serves these tasks, and closes them when the server ends. Without tasks, clients find none. Later
    /// tasks are ignored.
    pub fn serve_tasks(&self, tasks: orla_tasks::Tasks) {
        self.core.serve_tasks(tasks);
    }

    /// Returns the metrics of the server and its capabilities, as the text of `/metrics`.
    pub fn metrics(&self) -> String {
        self.core.metrics.render(&admin::status::gauges(&self.core, None), |_| true)
    }

    /// Serves this history at `/calls`. Without a history, the path does not exist. Later histories are
    /// ignored.
    pub fn serve_history(&self, history: orla_history::History) {
        self.core.serve_history(history);
    }

    /// Shows these schedules in `/status`. Later schedules are ignored.
    pub fn show_schedules(&self, schedules: orla_tasks::Schedules) {
        self.core.show_schedules(schedules);
    }

    /// Shows the nodes of a cluster in `/status` and `/metrics`, and drains them on request. Later
    /// clusters are ignored.
    pub fn show_nodes(&self, cluster: impl Nodes + 'static) {
        self.core.show_nodes(Box::new(cluster));
    }

    /// Answers a [question](Nodes::ask) of another node of the cluster in the name of this caller. The
    /// answer to an unreadable question is empty.
    pub async fn answer_node(&self, caller: Option<&Principal>, question: &Bytes) -> Bytes {
        peers::answer(&self.core, caller, question).await
    }

    /// Serves these pages for people at `/console`. Later pages are ignored.
    pub fn serve_pages(&self, pages: Arc<dyn Pages>) {
        self.core.serve_pages(pages);
    }

    /// Sends push notifications of the agent's tasks through this sender. Without a sender, clients that
    /// request push notifications are refused. Later senders are ignored.
    pub fn push_with(&self, sender: Arc<dyn PushSender>) {
        self.core.push_with(sender);
    }

    /// Reaches authorization servers through this client. Without a client, their tokens are refused.
    /// Later clients are ignored.
    pub fn fetch_with(&self, fetch: Arc<dyn Fetch>) {
        self.core.fetch_with(fetch);
    }

    /// Binds a socket. Port 0 selects a free port.
    ///
    /// # Errors
    ///
    /// Returns an error if the address is in use, or if the system refuses it.
    pub async fn bind(&self, host: &str, port: u16) -> Result<Bound, BindError> {
        Bound::bind(Arc::clone(&self.core), host, port).await
    }

    /// Serves one client over a pipe until its input ends, its output is closed or `shutdown` is
    /// cancelled. Returns after all of the client's requests have ended.
    pub async fn serve_stdio<R, W>(&self, reader: R, writer: W, shutdown: CancellationToken)
    where
        R: AsyncRead + Unpin + Send,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        mcp::stdio::serve(Arc::clone(&self.core), reader, writer, shutdown).await;
    }

    /// Cancels everything that runs, without waiting for it, as after a second signal. `serve` returns
    /// once everything has ended.
    pub fn abort(&self) {
        self.core.draining.cancel();
        self.core.end_calls();
    }
}

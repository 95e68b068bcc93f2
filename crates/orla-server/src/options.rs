//! The options of the server, each with its default and its bound.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use orla_identity::AuthOptions;

use crate::throttle::AuthLimits;
use crate::tls::TlsSettings;

/// The server's options. A reload replaces them; see [`Server::reconfigure`](crate::Server::reconfigure).
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Hosts besides loopback that requests may name: `NAME`, `NAME:PORT`, or `*`. None by default.
    pub allowed_hosts: Vec<String>,
    /// Origins besides loopback that web pages may have: `SCHEME://HOST[:PORT]`, where no port means the scheme's
    /// own and `:*` any; or `*`. None by default.
    pub allowed_origins: Vec<String>,
    /// How callers are identified. If it names any credential, every request needs one, except for `/healthz` and
    /// `/readyz`. By default, it names none.
    pub auth: AuthOptions,
    /// How often peers may fail to authenticate.
    pub auth_limits: AuthLimits,
    /// Certificates: with them, the listener speaks only TLS. `None` by default.
    pub tls: Option<TlsSettings>,
    /// The largest body of a request, in bytes: 4 MiB.
    pub max_body_bytes: usize,
    /// How long a body may take to arrive: 30 s.
    pub body_timeout: Duration,
    /// How long the head of a request may take from its first byte on: 10 s.
    pub header_timeout: Duration,
    /// How long a connection may be idle between requests: 5 min.
    pub keep_alive: Duration,
    /// The maximum number of connections at once; further ones wait to be accepted: 20,000.
    pub max_connections: usize,
    /// How long a session without a call and without an open stream lives: 30 min.
    pub session_idle: Duration,
    /// The maximum number of sessions at once; beyond it, a long idle one is closed: 100,000.
    pub max_sessions: usize,
    /// The maximum number of sessionless requests that wait for answers of their clients at once;
    /// further ones fail: 1,024. A caller with a principal has at most a quarter of them.
    pub max_pending: usize,
    /// The longest line on a pipe, in bytes: 16 MiB.
    pub max_line_bytes: usize,
    /// The maximum number of requests that run at once for one client on a pipe: 4,096.
    pub max_piped_requests: usize,
    /// How long sessionless clients may take a list for fresh: 5 s.
    pub list_ttl: Duration,
    /// How long calls may continue after a request to stop the server: 10 s.
    pub drain: Duration,
    /// The settings of the server as an agent.
    pub agent: AgentOptions,
    /// Whether pages for people are served, if the program has any: yes.
    pub pages: bool,
}

/// The server as an agent of the Agent2Agent protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AgentOptions {
    /// Its name: `orla`.
    pub name: String,
    /// Its description; if empty, one that explains how to use it.
    pub description: String,
    /// The address for clients, `https://HOST`, if it differs from the address of their request for the card;
    /// empty by default.
    pub url: String,
    /// The capability that answers texts that are not programs. Its input is `{message, message_id, context_id?,
    /// data?}`. If empty, as by default, it is the one that answers prompts, if the caller may use one; otherwise
    /// such texts are refused.
    pub text: String,
    /// The maximum number of tasks that are kept; beyond it, the oldest finished task is removed: 1,000.
    pub max_tasks: usize,
    /// The maximum number of bytes of the messages and results of one task: 16 MiB.
    pub max_task_bytes: usize,
    /// How long a task is kept that is over: 1 day.
    pub keep: Duration,
}

impl Default for AgentOptions {
    fn default() -> Self {
        Self {
            name: "orla".to_owned(),
            description: String::new(),
            url: String::new(),
            text: String::new(),
            max_tasks: 1_000,
            max_task_bytes: 16 * 1024 * 1024,
            keep: Duration::from_secs(86_400),
        }
    }
}

/// A request without a valid token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unauthenticated {
    /// The address that it came from.
    pub peer: IpAddr,
    /// `no token` or `invalid token`.
    pub problem: &'static str,
    /// The exact problem with the token. Its bearer must not see this.
    pub reason: Option<&'static str>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            auth: AuthOptions::default(),
            auth_limits: AuthLimits::default(),
            tls: None,
            max_body_bytes: 4 * 1024 * 1024,
            body_timeout: Duration::from_secs(30),
            header_timeout: Duration::from_secs(10),
            keep_alive: Duration::from_secs(300),
            max_connections: 20_000,
            session_idle: Duration::from_secs(30 * 60),
            max_sessions: 100_000,
            max_pending: 1024,
            max_line_bytes: 16 * 1024 * 1024,
            max_piped_requests: 4096,
            list_ttl: Duration::from_secs(5),
            drain: Duration::from_secs(10),
            agent: AgentOptions::default(),
            pages: true,
        }
    }
}

impl fmt::Debug for ServerOptions {
    /// Everything but the tokens.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerOptions")
            .field("allowed_hosts", &self.allowed_hosts)
            .field("allowed_origins", &self.allowed_origins)
            .field("auth", &self.auth.are_required())
            .field("max_body_bytes", &self.max_body_bytes)
            .field("max_connections", &self.max_connections)
            .field("session_idle", &self.session_idle)
            .field("max_sessions", &self.max_sessions)
            .finish_non_exhaustive()
    }
}

//! The pooled clients: one pool of connections for each origin, shared by all calls.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;
use std::time::Duration;

use orla_confine::Reach;
use orla_oauth::root_cause;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, ClientBuilder, Url, redirect};
use url::Host;

/// The limits of an executor's connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// The timeout of connecting, name lookup and TLS included.
    pub connect_timeout: Duration,
    /// The maximum number of idle connections for each origin.
    pub max_idle_per_origin: usize,
    /// How long an idle connection is kept.
    pub idle_timeout: Duration,
    /// The maximum number of header fields of an answer (HTTP/1.1).
    pub max_headers: usize,
    /// The maximum number of bytes of header fields of an answer (HTTP/2; HTTP/1.1 has a fixed limit of
    /// some 400 KB).
    pub max_header_bytes: u32,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            max_idle_per_origin: 32,
            idle_timeout: Duration::from_secs(60),
            max_headers: 200,
            max_header_bytes: 64 * 1024,
        }
    }
}

/// Classifies an address. Tests have only loopback, and use another function than [`Reach::of`].
type Classify = fn(IpAddr) -> Reach;

/// The clients of an executor, made when they are first used.
pub(crate) struct Clients {
    limits: HttpLimits,
    classify: Classify,
    configured: OnceLock<Result<Client, String>>,
    /// One client for each reach, so that no connection is used for another reach.
    guarded: [OnceLock<Result<Client, String>>; Reach::ALL.len()],
    /// A client for HTTP/1.1 only, with which a WebSocket begins.
    upgrading: OnceLock<Result<Client, String>>,
}

impl Clients {
    pub(crate) fn new(limits: HttpLimits) -> Self {
        Self::with_classes(limits, Reach::of)
    }

    pub(super) fn with_classes(limits: HttpLimits, classify: Classify) -> Self {
        Self {
            limits,
            classify,
            configured: OnceLock::new(),
            guarded: Default::default(),
            upgrading: OnceLock::new(),
        }
    }

    /// Returns the client for origins in the configuration. It uses the proxies of the environment.
    pub(crate) fn configured(&self) -> Result<&Client, String> {
        let build = || built(self.builder(None));
        self.configured.get_or_init(build).as_ref().map_err(Clone::clone)
    }

    /// Returns the client for origins that a third party names, of this reach or a wider one. The
    /// addresses of a name are checked when the client connects. The client uses no proxy, because a
    /// proxy would resolve names itself.
    pub(super) fn guarded(&self, reach: Reach) -> Result<&Client, String> {
        let build = || built(self.builder(Some(reach)));
        self.guarded[reach as usize].get_or_init(build).as_ref().map_err(Clone::clone)
    }

    /// Returns the client for a connection that is upgraded.
    pub(crate) fn upgrading(&self) -> Result<&Client, String> {
        let build = || built(self.builder(None).http1_only());
        self.upgrading.get_or_init(build).as_ref().map_err(Clone::clone)
    }

    /// Returns the reach of the server that answered at `url` from `peer`: the widest of its name's
    /// addresses and of the connection's own address, which is that of a proxy if there is one.
    pub(super) async fn reach_of(&self, url: &Url, peer: Option<SocketAddr>) -> Reach {
        let named = match url.host() {
            Some(Host::Ipv4(address)) => return (self.classify)(address.into()),
            Some(Host::Ipv6(address)) => return (self.classify)(address.into()),
            Some(Host::Domain(name)) => tokio::net::lookup_host((name, 0)).await.ok(),
            None => None,
        };
        let named = named.and_then(|found| found.map(|address| (self.classify)(address.ip())).min());
        let connected = peer.map(|peer| (self.classify)(peer.ip()));
        named.unwrap_or(Reach::Public).min(connected.unwrap_or(Reach::Public))
    }

    /// Returns whether a URL directly contains an address of a smaller reach. Names are checked when
    /// they are resolved.
    pub(super) fn names_beyond(&self, reach: Reach, url: &Url) -> bool {
        match url.host() {
            Some(Host::Ipv4(address)) => (self.classify)(address.into()) > reach,
            Some(Host::Ipv6(address)) => (self.classify)(address.into()) > reach,
            Some(Host::Domain(_)) | None => false,
        }
    }

    fn builder(&self, guard: Option<Reach>) -> ClientBuilder {
        // A second installation fails without effect.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let limits = &self.limits;
        let builder = Client::builder();
        let builder = if guard.is_some() { builder.no_proxy() } else { builder };
        let classify = self.classify;
        builder
            .tcp_nodelay(true)
            .redirect(redirect::Policy::none())
            .referer(false)
            .connect_timeout(limits.connect_timeout)
            .pool_max_idle_per_host(limits.max_idle_per_origin)
            .pool_idle_timeout(limits.idle_timeout)
            .http1_max_headers(limits.max_headers)
            .http2_max_header_list_size(limits.max_header_bytes)
            .http2_adaptive_window(true)
            .dns_resolver(Resolver { guard: guard.map(|reach| (reach, classify)) })
    }
}

fn built(builder: ClientBuilder) -> Result<Client, String> {
    builder.build().map_err(|err| format!("no HTTP client can be made: {}", root_cause(&err)))
}

/// The system's resolver, with distinguishable errors.
struct Resolver {
    /// The smallest allowed reach of an address; `None` allows any.
    guard: Option<(Reach, Classify)>,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.guard;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await;
            let found: Vec<SocketAddr> = found.map_err(|_| LookupError::Unknown)?.collect();
            if found.is_empty() {
                return Err(LookupError::Unknown.into());
            }
            match guard {
                // The client may use any of the addresses.
                Some((reach, classify))
                    if found.iter().any(|address| classify(address.ip()) > reach) =>
                {
                    Err(LookupError::Private.into())
                }
                _ => Ok(Box::new(found.into_iter()) as Addrs),
            }
        })
    }
}

/// The reason why a name gave no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LookupError {
    /// The name is unknown.
    Unknown,
    /// One of its addresses has a smaller reach than the redirect may lead to.
    Private,
}

impl fmt::Display for LookupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "no address is known for it",
            Self::Private => "its address is private",
        })
    }
}

impl std::error::Error for LookupError {}

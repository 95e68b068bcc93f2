//! The pooled clients: one pool of connections for each origin, shared by all calls.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, ClientBuilder, Url, redirect};
use url::Host;

use super::address;

/// The bounds of the connections that an executor holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// How long it may take to connect, name lookup and TLS included.
    pub connect_timeout: Duration,
    /// How many idle connections are kept for each origin.
    pub max_idle_per_origin: usize,
    /// How long an idle connection is kept.
    pub idle_timeout: Duration,
    /// How many header fields an answer may have (HTTP/1.1).
    pub max_headers: usize,
    /// How many bytes of header fields an answer may have (HTTP/2; HTTP/1.1 has a fixed bound of
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

/// The clients of an executor, made when they are first used.
pub(crate) struct Clients {
    limits: HttpLimits,
    is_public: fn(IpAddr) -> bool,
    /// Guarded connections go past the proxies of the environment, which would look names up themselves.
    direct: bool,
    open: OnceLock<Result<Client, String>>,
    guarded: OnceLock<Result<Client, String>>,
    /// One that knows HTTP/1.1 alone: a WebSocket begins so.
    #[cfg(feature = "stream")]
    upgrading: OnceLock<Result<Client, String>>,
}

impl Clients {
    pub(crate) fn new(limits: HttpLimits) -> Self {
        Self {
            limits,
            is_public: address::is_public,
            direct: false,
            open: OnceLock::new(),
            guarded: OnceLock::new(),
            #[cfg(feature = "stream")]
            upgrading: OnceLock::new(),
        }
    }

    /// Clients whose guarded connections go past the proxies of the environment: for addresses of which nothing is known.
    pub(super) fn direct(limits: HttpLimits) -> Self {
        Self { direct: true, ..Self::new(limits) }
    }

    /// Clients with another notion of what is public, since tests have nothing but loopback.
    #[cfg(test)]
    pub(super) fn with_public(limits: HttpLimits, is_public: fn(IpAddr) -> bool) -> Self {
        Self { is_public, ..Self::new(limits) }
    }

    /// The client for an origin that was configured, or, where `guarded`, for one that a redirect
    /// named: that one connects to public addresses alone.
    pub(crate) fn get(&self, guarded: bool) -> Result<&Client, String> {
        let place = if guarded { &self.guarded } else { &self.open };
        let build = || built(self.builder(guarded));
        place.get_or_init(build).as_ref().map_err(Clone::clone)
    }

    /// The client for a connection that becomes something else than HTTP.
    #[cfg(feature = "stream")]
    pub(crate) fn upgrading(&self) -> Result<&Client, String> {
        let build = || built(self.builder(false).http1_only());
        self.upgrading.get_or_init(build).as_ref().map_err(Clone::clone)
    }

    /// Whether a URL leads to the public internet, as far as its name can be resolved.
    pub(super) async fn is_public(&self, url: &Url) -> bool {
        match url.host() {
            Some(Host::Ipv4(address)) => (self.is_public)(address.into()),
            Some(Host::Ipv6(address)) => (self.is_public)(address.into()),
            Some(Host::Domain(name)) => match tokio::net::lookup_host((name, 0)).await {
                Ok(mut found) => found.any(|address| (self.is_public)(address.ip())),
                Err(_) => true,
            },
            None => true,
        }
    }

    /// Whether a URL names a private address outright; names are looked at when they are resolved.
    pub(super) fn names_private(&self, url: &Url) -> bool {
        match url.host() {
            Some(Host::Ipv4(address)) => !(self.is_public)(address.into()),
            Some(Host::Ipv6(address)) => !(self.is_public)(address.into()),
            Some(Host::Domain(_)) | None => false,
        }
    }

    fn builder(&self, guarded: bool) -> ClientBuilder {
        // A second choice is refused harmlessly.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let limits = &self.limits;
        let builder = Client::builder();
        let builder = if guarded && self.direct { builder.no_proxy() } else { builder };
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
            .dns_resolver(Resolver { only: guarded.then_some(self.is_public) })
    }
}

fn built(builder: ClientBuilder) -> Result<Client, String> {
    builder.build().map_err(|err| format!("no HTTP client can be made: {}", root(&err)))
}

/// The system's resolver, with errors that can be told apart.
struct Resolver {
    /// The addresses that are taken; all where absent.
    only: Option<fn(IpAddr) -> bool>,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let only = self.only;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await;
            let found: Vec<SocketAddr> = found.map_err(|_| LookupError::Unknown)?.collect();
            if found.is_empty() {
                return Err(LookupError::Unknown.into());
            }
            match only {
                // One private address among public ones is one too many: it may be the one that answers.
                Some(is_public) if !found.iter().all(|address| is_public(address.ip())) => {
                    Err(LookupError::Private.into())
                }
                _ => Ok(Box::new(found.into_iter()) as Addrs),
            }
        })
    }
}

/// Why a name gave no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LookupError {
    /// There is none, or nobody who knows it.
    Unknown,
    /// It is one that must not be connected to.
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

/// The innermost cause, which says most.
pub(super) fn root(err: &dyn std::error::Error) -> String {
    let mut cause = err;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let text = cause.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

//! The pooled clients, made when they are first used.

use std::sync::OnceLock;
use std::time::Duration;

use orla_oauth::root_cause;
use reqwest::{Client, redirect};

/// The timeout of connecting, TLS included.
const CONNECT: Duration = Duration::from_secs(10);

/// The clients of an instance: connections are shared by all its agents.
#[derive(Debug, Default)]
pub(in crate::a2a) struct Clients {
    /// Clients by flavour, and for this machine or others.
    made: [[OnceLock<Result<Client, String>>; 2]; 3],
}

/// The versions of HTTP that a client uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::a2a) enum Flavour {
    /// The version that the server prefers.
    Any,
    /// HTTP/1.1, whose connections can be upgraded.
    Http1,
    /// HTTP/2 from the first byte, as gRPC requires.
    Http2,
}

impl Clients {
    /// Returns the client of a flavour. It follows no redirect, so that no header and no message ever
    /// reaches another origin. It uses a proxy of the environment, but never for this machine itself.
    ///
    /// # Errors
    /// No client can be made, such as without certificates.
    pub(in crate::a2a) fn get(&self, flavour: Flavour, is_local: bool) -> Result<Client, String> {
        let place = &self.made[flavour as usize][usize::from(is_local)];
        place.get_or_init(|| make(flavour, is_local)).clone()
    }
}

fn make(flavour: Flavour, is_local: bool) -> Result<Client, String> {
    // A second installation fails without effect.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = if is_local { Client::builder().no_proxy() } else { Client::builder() };
    let builder = match flavour {
        Flavour::Any => builder,
        Flavour::Http1 => builder.http1_only(),
        Flavour::Http2 => builder.http2_prior_knowledge(),
    };
    builder
        .user_agent(concat!("orla/", env!("CARGO_PKG_VERSION")))
        .tcp_nodelay(true)
        .redirect(redirect::Policy::none())
        .referer(false)
        .connect_timeout(CONNECT)
        .http2_adaptive_window(true)
        .build()
        .map_err(|err| format!("no HTTP client can be made: {}", root_cause(&err).to_lowercase()))
}

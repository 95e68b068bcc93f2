//! The HTTP client: one pool of connections for all servers.

use std::time::Duration;

use orla_oauth::root_cause;
use reqwest::{Client, redirect};

/// The timeout of connecting, TLS included.
const CONNECT: Duration = Duration::from_secs(10);
/// The maximum number of redirects.
const MAX_REDIRECTS: usize = 5;

/// Creates the client. It follows redirects only within their origin, so that no header and no body ever
/// reaches another one. It uses a proxy of the environment, but never for this machine itself.
///
/// # Errors
/// No client can be made, such as without certificates.
pub(in crate::mcp) fn client(is_local: bool) -> Result<Client, String> {
    // A second installation fails without effect.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let within_origin = redirect::Policy::custom(|attempt| {
        let begun = attempt.previous().first();
        if attempt.previous().len() > MAX_REDIRECTS {
            attempt.error("too many redirects")
        } else if begun.is_some_and(|begun| begun.origin() == attempt.url().origin()) {
            attempt.follow()
        } else {
            attempt.stop()
        }
    });
    let builder = if is_local { Client::builder().no_proxy() } else { Client::builder() };
    builder
        // Some servers refuse clients without a User-Agent.
        .user_agent(concat!("orla/", env!("CARGO_PKG_VERSION")))
        .tcp_nodelay(true)
        .redirect(within_origin)
        .referer(false)
        .connect_timeout(CONNECT)
        .http2_adaptive_window(true)
        .build()
        .map_err(|err| format!("no HTTP client can be made: {}", root_cause(&err).to_lowercase()))
}

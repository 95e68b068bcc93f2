//! The HTTP client: one pool of connections for all servers.

use reqwest::{Client, redirect};
use std::time::Duration;

/// How long it may take to connect, TLS included.
const CONNECT: Duration = Duration::from_secs(10);
/// How many redirects are followed.
const MAX_REDIRECTS: usize = 5;

/// Makes the client. Redirects are followed within their origin alone: no header, and no body, ever reaches
/// another one.
///
/// # Errors
/// No client can be made, such as without certificates.
pub(in crate::mcp) fn client() -> Result<Client, String> {
    // A second choice is refused harmlessly.
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
    Client::builder()
        .tcp_nodelay(true)
        .redirect(within_origin)
        .referer(false)
        .connect_timeout(CONNECT)
        .http2_adaptive_window(true)
        .build()
        .map_err(|err| format!("no HTTP client can be made: {}", root(&err)))
}

/// The innermost cause, which says most and names no address.
pub(super) fn root(err: &dyn std::error::Error) -> String {
    let mut cause = err;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let text = cause.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

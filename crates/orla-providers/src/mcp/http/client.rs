//! The HTTP client: one pool of connections for all servers.

use std::time::Duration;

use reqwest::{Client, Url, redirect};
use url::Host;

/// How long it may take to connect, TLS included.
const CONNECT: Duration = Duration::from_secs(10);
/// How many redirects are followed.
const MAX_REDIRECTS: usize = 5;

/// Makes the client. Redirects are followed within their origin alone: no header, and no body, ever reaches
/// another one. A proxy of the environment is used, but never for this machine itself.
///
/// # Errors
/// No client can be made, such as without certificates.
pub(in crate::mcp) fn client(is_local: bool) -> Result<Client, String> {
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
        .map_err(|err| format!("no HTTP client can be made: {}", root(&err)))
}

/// Whether an address is on this machine.
pub(in crate::mcp) fn is_local(url: &str) -> bool {
    let url = Url::parse(url).ok();
    match url.as_ref().and_then(Url::host) {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        None => false,
    }
}

/// The innermost cause, which is the most specific and names no address.
pub(super) fn root(err: &dyn std::error::Error) -> String {
    let mut cause = err;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let text = cause.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::is_local;

    #[test]
    fn this_machine_is_told_from_others() {
        for (url, expected) in [
            ("http://127.0.0.1:8080/mcp", true),
            ("http://[::1]/mcp", true),
            ("http://localhost:1", true),
            ("http://a.localhost", true),
            ("http://localhost.example.com", false),
            ("https://10.0.0.1/mcp", false),
            ("no address", false),
        ] {
            assert_eq!(is_local(url), expected, "{url}");
        }
    }
}

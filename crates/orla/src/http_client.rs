//! The HTTP client of commands and models.

use std::time::Duration;

use reqwest::{Client, redirect};

use crate::Failure;

/// A client that follows no redirects, because credentials are for the requested address alone.
pub(crate) fn new() -> Result<Client, Failure> {
    // Installed here and not at start, because a server needs no TLS. A second installation has no effect.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = Client::builder().connect_timeout(Duration::from_secs(10));
    let client = client.redirect(redirect::Policy::none()).build();
    client.map_err(|err| Failure::failed(format!("cannot create an HTTP client: {}", root_cause(&err))))
}

/// The innermost cause of an error, such as "connection refused".
pub(crate) fn root_cause(err: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = err;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let text = cause.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

//! The HTTP client of commands and models.

use std::path::Path;
use std::time::Duration;

use orla_oauth::root_cause;
use reqwest::{Certificate, Client, redirect};

use crate::Failure;
use crate::config::read_text;

/// The largest file of certificates that is read.
const MAX_CERTIFICATES: u64 = 1 << 20;

/// A client that follows no redirects, because credentials are for the requested address alone.
pub(crate) fn new() -> Result<Client, Failure> {
    trusting(Path::new(""))
}

/// Returns the same, which trusts the certificates in a PEM file too, if there is a path.
pub(crate) fn trusting(ca: &Path) -> Result<Client, Failure> {
    // Installed here and not at start, because a server needs no TLS. A second installation has no effect.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = Client::builder().connect_timeout(Duration::from_secs(10));
    let mut client = client.redirect(redirect::Policy::none());
    if !ca.as_os_str().is_empty() {
        let text = read_text(ca, MAX_CERTIFICATES).map_err(Failure::failed)?;
        let certificates = Certificate::from_pem_bundle(text.as_bytes()).ok();
        let certificates = certificates.filter(|all| !all.is_empty()).ok_or_else(|| {
            Failure::failed(format!("--ca {}: expected certificates in PEM; found none", ca.display()))
        })?;
        client = client.tls_certs_merge(certificates);
    }
    let client = client.build();
    client.map_err(|err| Failure::failed(format!("cannot create an HTTP client: {}", root_cause(&err))))
}

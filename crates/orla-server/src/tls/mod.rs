//! TLS on the listener: loads certificates from files, replaces them while the server runs, and
//! identifies callers by client certificates.
//!
//! [`Tls`] is the content of the files. The listener takes the newest content for each connection
//! ([`Current`]), so replacing a certificate ends no connection. If the files cannot be used, the old
//! certificate stays.
//!
//! # Deliberately absent
//!
//! TLS below 1.2, renegotiation, early data, and revocation lists.

mod accept;
mod certificate;

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwapOption;
use orla_marketplace::Principal;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use sha2::{Digest, Sha256};

pub(crate) use accept::accept;
use certificate::Certificate;

/// The largest file that is read.
const MAX_FILE: u64 = 1 << 20;
/// How long before its end a certificate is warned about.
const EXPIRES_SOON: Duration = Duration::from_secs(14 * 86_400);
/// The protocols that are offered, the best first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Where certificates are, and how clients' certificates name callers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsSettings {
    /// PEM file of the server's certificate and the certificates up to its authority.
    pub cert: PathBuf,
    /// PEM file of its private key.
    pub key: PathBuf,
    /// PEM file of the authorities for clients' certificates. Without it, clients are not asked for a
    /// certificate.
    pub client_ca: Option<PathBuf>,
    /// The part of a client's certificate that names the caller.
    pub principal: CertificateName,
}

/// The part of a certificate that names its holder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CertificateName {
    /// The common name of its subject.
    #[default]
    CommonName,
    /// The first of its alternative names that is a URI, an e-mail address or a DNS name.
    AlternativeName,
}

/// Certificates that were loaded from their files.
pub struct Tls {
    settings: TlsSettings,
    config: Arc<ServerConfig>,
    expires_at: SystemTime,
    /// The digest of the authorities of clients.
    authorities: [u8; 32],
    stamp: Vec<Stamp>,
}

/// The reason why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("auth.tls: {}: {problem}", .path.display())]
pub struct TlsError {
    path: PathBuf,
    problem: String,
}

/// A caller that a client's certificate names. It holds as long as the certificate does and its authority is trusted.
#[derive(Clone)]
pub(crate) struct ClientCertificate {
    pub(crate) principal: Principal,
    expires_at: SystemTime,
    authorities: [u8; 32],
}

/// Identifies the version of a file, to detect a replacement.
type Stamp = Option<(u64, u64, i64, i64)>;

impl Tls {
    /// Loads the files.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be read, or if the key does not belong to the certificate.
    pub fn load(settings: &TlsSettings) -> Result<Self, TlsError> {
        let stamp = stamp(settings);
        let failed = |path: &Path, problem: String| TlsError { path: path.to_owned(), problem };
        let chain = certificates(&settings.cert)?;
        let own = chain.first().and_then(|der| Certificate::parse(der));
        let own = own.ok_or_else(|| failed(&settings.cert, "has no valid certificate".to_owned()))?;
        let key = PrivateKeyDer::from_pem_slice(&read(&settings.key)?)
            .map_err(|err| failed(&settings.key, format!("has no private key in PEM: {err}")))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder
            .with_safe_default_protocol_versions()
            .map_err(|err| failed(&settings.cert, err.to_string()))?;
        let (builder, authorities) = match &settings.client_ca {
            None => (builder.with_no_client_auth(), [0; 32]),
            Some(path) => {
                let (mut roots, mut digest) = (RootCertStore::empty(), Sha256::new());
                for authority in certificates(path)? {
                    digest.update(&authority);
                    roots.add(authority).map_err(|err| failed(path, err.to_string()))?;
                }
                // Clients without a certificate may have a token.
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .allow_unauthenticated()
                    .build()
                    .map_err(|err| failed(path, err.to_string()))?;
                (builder.with_client_cert_verifier(verifier), digest.finalize().into())
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|err| match err {
            rustls::Error::InconsistentKeys(_) => {
                failed(&settings.key, format!("is not the key of {}", settings.cert.display()))
            }
            err => failed(&settings.cert, err.to_string()),
        })?;
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
        let config = Arc::new(config);
        Ok(Self { settings: settings.clone(), config, expires_at: own.expires_at, authorities, stamp })
    }

    /// Returns when the server's certificate expires.
    pub fn expires_at(&self) -> SystemTime {
        self.expires_at
    }

    /// Returns a sentence about a certificate that has expired, or that expires within two weeks.
    pub fn expiry_warning(&self) -> Option<String> {
        let how = self.expires_soon()?;
        Some(format!("the certificate {} {how}; replace it", self.settings.cert.display()))
    }

    /// `has expired`, or `expires in N days` if that is soon.
    pub(crate) fn expires_soon(&self) -> Option<String> {
        match self.expires_at.duration_since(SystemTime::now()) {
            Err(_) => Some("has expired".to_owned()),
            Ok(left) if left < EXPIRES_SOON => {
                let days = left.as_secs() / 86_400;
                Some(format!("expires in {days} day{}", if days == 1 { "" } else { "s" }))
            }
            Ok(_) => None,
        }
    }

    /// Returns whether clients can identify themselves by a certificate.
    fn asks_clients(&self) -> bool {
        self.settings.client_ca.is_some()
    }

    /// Returns the caller that the certificate of a connection's client names.
    fn client(&self, der: &CertificateDer<'_>) -> Option<ClientCertificate> {
        let certificate = Certificate::parse(der)?;
        let name = certificate.name(self.settings.principal)?;
        let principal = Principal::certificate(name).with_expiry(certificate.expires_at);
        let (expires_at, authorities) = (certificate.expires_at, self.authorities);
        Some(ClientCertificate { principal, expires_at, authorities })
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// The certificates in force; none for a server without TLS.
#[derive(Default)]
pub(crate) struct Current(ArcSwapOption<Tls>);

impl Current {
    /// Puts the certificates of the settings in force, for connections from now on.
    ///
    /// # Errors
    ///
    /// Returns an error if they cannot be loaded; those before stay.
    pub(crate) fn load(&self, settings: Option<&TlsSettings>) -> Result<(), TlsError> {
        let loaded = settings.map(Tls::load).transpose()?;
        self.0.store(loaded.map(Arc::new));
        Ok(())
    }

    /// Loads the files again if one of them was replaced, and returns whether it did. Failures are
    /// logged once for each replacement.
    pub(crate) fn refresh(&self, tried: &mut Vec<Stamp>) -> bool {
        let Some(current) = self.get() else { return false };
        let stamp = stamp(&current.settings);
        if stamp == current.stamp || stamp == *tried {
            return false;
        }
        let loaded = self.load(Some(&current.settings));
        match &loaded {
            Ok(()) => tracing::info!("the certificate was replaced"),
            Err(err) => tracing::error!(error = %err, "{UNUSABLE}"),
        }
        *tried = stamp;
        loaded.is_ok()
    }

    pub(crate) fn get(&self) -> Option<Arc<Tls>> {
        self.0.load_full()
    }

    /// Returns whether clients can identify themselves by a certificate.
    pub(crate) fn asks_clients(&self) -> bool {
        self.0.load().as_ref().is_some_and(|tls| tls.asks_clients())
    }

    /// Returns the caller of a certificate, if it still holds.
    pub(crate) fn caller(&self, certificate: &ClientCertificate) -> Option<Principal> {
        let holds = self.trusts(certificate) && SystemTime::now() < certificate.expires_at;
        holds.then(|| certificate.principal.clone())
    }

    /// Returns whether the authority of a certificate is still accepted.
    pub(crate) fn trusts(&self, certificate: &ClientCertificate) -> bool {
        let current = self.0.load();
        current.as_ref().is_some_and(|tls| tls.authorities == certificate.authorities)
    }
}

/// The log's message for files that cannot be used.
pub(crate) const UNUSABLE: &str = "the new certificate cannot be used, the old one stays";

fn stamp(settings: &TlsSettings) -> Vec<Stamp> {
    let files = [Some(&settings.cert), Some(&settings.key), settings.client_ca.as_ref()];
    let stamp = |path: &PathBuf| {
        let file = std::fs::metadata(path).ok()?;
        Some((file.ino(), file.len(), file.mtime(), file.mtime_nsec()))
    };
    files.into_iter().flatten().map(stamp).collect()
}

/// Returns the certificates in a PEM file.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |problem: String| TlsError { path: path.to_owned(), problem };
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    let found = read.map_err(|err| failed(format!("is not a PEM file of certificates: {err}")))?;
    if found.is_empty() {
        return Err(failed("has no certificate in PEM".to_owned()));
    }
    Ok(found)
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |problem: String| TlsError { path: path.to_owned(), problem };
    let mut bytes = Vec::new();
    // Looked at before it is opened: opening a fifo would wait for its writer.
    if std::fs::metadata(path).is_ok_and(|file| !file.is_file()) {
        return Err(failed("is not a regular file".to_owned()));
    }
    let read = File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes));
    read.map_err(|err| failed(format!("cannot be read: {}", reason(&err))))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(failed(format!("is larger than {MAX_FILE} bytes")));
    }
    Ok(bytes)
}

/// Returns the system's message, without its number.
fn reason(err: &io::Error) -> String {
    let text = err.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests;

//! The settings of capabilities of other instances (RTFS capability system §3.3).

use std::fmt;
use std::sync::Arc;

use super::http::{Hidden, HttpOptions};

/// A capability of another instance (RTFS capability system §3.3).
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteRTFSCapability {
    /// The address of the instance; without a path, its `/rtfs`.
    pub endpoint: String,
    /// The timeout of one call, in milliseconds; 0 means as long as the caller allows.
    pub timeout_ms: u64,
    /// The bearer token.
    pub auth_token: Option<String>,
    /// Settings beyond the RTFS document.
    pub options: RemoteOptions,
}

impl RemoteRTFSCapability {
    /// Settings with every field of the document, and the options' defaults.
    pub fn new(endpoint: impl Into<String>, timeout_ms: u64, auth_token: Option<String>) -> Self {
        Self { endpoint: endpoint.into(), timeout_ms, auth_token, options: RemoteOptions::default() }
    }

    /// Returns the endpoint for display, without parts that may be secret.
    pub fn address(&self) -> String {
        super::http::shown_address(&self.endpoint)
    }
}

impl fmt::Debug for RemoteRTFSCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteRTFSCapability")
            .field("endpoint", &self.address())
            .field("timeout_ms", &self.timeout_ms)
            .field("auth_token", &self.auth_token.as_ref().map(|_| Hidden))
            .field("options", &self.options)
            .finish()
    }
}

/// Settings of a capability of another instance beyond the RTFS document.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteOptions {
    /// The capability's id at the instance; `None` means the id that it has here.
    pub capability: Option<String>,
    /// The name of the instance here; `None` means its host.
    pub name: Option<Arc<str>>,
    /// The instances that the capability comes from, the nearest first, if its catalogue was federated.
    pub via: Vec<Arc<str>>,
    /// The key of the sign-in that provides the token of requests; `None` for none.
    pub sign_in: Option<Arc<str>>,
    /// The maximum size of an answer, in bytes.
    pub max_answer_bytes: usize,
}

impl Default for RemoteOptions {
    fn default() -> Self {
        Self {
            capability: None,
            name: None,
            via: Vec::new(),
            sign_in: None,
            max_answer_bytes: HttpOptions::MAX_ANSWER_BYTES,
        }
    }
}

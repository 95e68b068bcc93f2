//! The settings of HTTP capabilities (RTFS capability system §3.3).

use std::collections::BTreeMap;

/// An HTTP endpoint (RTFS capability system §3.3).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpCapability {
    /// The origin and the path below which requests go. No caller can replace it.
    pub base_url: String,
    /// Sent as a bearer token.
    pub auth_token: Option<String>,
    /// How long one request may take, in milliseconds.
    pub timeout_ms: u64,
    /// What the document leaves open: how a call becomes a request.
    pub options: HttpOptions,
}

impl HttpCapability {
    /// Settings with every field of the document, and the options' defaults.
    pub fn new(base_url: impl Into<String>, auth_token: Option<String>, timeout_ms: u64) -> Self {
        Self { base_url: base_url.into(), auth_token, timeout_ms, options: HttpOptions::default() }
    }
}

/// How a call becomes an HTTP request. By default the whole input is posted as JSON to the base URL.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpOptions {
    /// The method; `POST` where absent.
    pub method: Option<String>,
    /// Appended to the base URL; `{name}` is replaced by that argument.
    pub path: String,
    /// Query parameters: name → template.
    pub query: BTreeMap<String, String>,
    /// Header fields: name → template.
    pub headers: BTreeMap<String, String>,
    /// What of the input becomes the body.
    pub body: BodyMapping,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            method: None,
            path: String::new(),
            query: BTreeMap::new(),
            headers: BTreeMap::new(),
            body: BodyMapping::Rest,
        }
    }
}

/// What of the input becomes the body of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BodyMapping {
    /// What path, query and headers did not use, as a JSON object; as query parameters where the method
    /// has no body.
    #[default]
    Rest,
    /// This argument.
    Argument(String),
    /// Nothing.
    None,
}

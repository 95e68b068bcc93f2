//! The configuration of an OpenAPI document.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use orla_marketplace::Redactor;
use orla_marketplace::id::Pattern;
use orla_oauth::AuthSettings;

/// One OpenAPI document. Each of its operations becomes a capability.
#[derive(Clone)]
pub struct OpenApiSettings {
    /// The first part of the capabilities' ids; `None` means the document's title.
    pub name: Option<String>,
    /// The location of the document.
    pub document: Location,
    /// The base URL of requests, instead of the document's first server.
    pub base_url: Option<String>,
    /// The credentials, by the document's names for its security schemes.
    pub security: BTreeMap<String, String>,
    /// How orla gets tokens for the operations that need OAuth or OpenID Connect.
    pub auth: Option<AuthSettings>,
    /// Header fields of every request.
    pub headers: BTreeMap<String, String>,
    /// The operations that become capabilities; all if empty.
    pub include: Vec<Selection>,
    /// The operations that are excluded, even if included.
    pub exclude: Vec<Selection>,
    /// The timeout of one call, and of fetching the document.
    pub timeout: Option<Duration>,
    /// Whether answers are checked against the outline of the document's schemas, which clients then
    /// see. Off by default: the servers of many documents violate their schemas, and the schemas of
    /// answers are most of what a client would have to read.
    pub output_schemas: bool,
    /// Hides the secrets of the settings in everything that the API returns.
    pub redaction: Option<Arc<Redactor>>,
}

impl fmt::Debug for OpenApiSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenApiSettings")
            .field("name", &self.name)
            .field("document", &self.document)
            .field("security", &self.security.keys())
            .field("headers", &self.headers.keys())
            .field("include", &self.include)
            .field("exclude", &self.exclude)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// The location of an OpenAPI document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A file.
    File(PathBuf),
    /// An address.
    Url(String),
}

/// Chooses operations: those that match one of the parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// One of the operation's tags matches.
    Tag(Pattern),
    /// The operation's id matches.
    Operation(Pattern),
    /// The path matches. A method may precede it (`GET /pets/*`).
    Path(Pattern),
}

impl OpenApiSettings {
    /// Creates settings with only a location.
    pub fn new(document: Location) -> Self {
        Self {
            name: None,
            document,
            base_url: None,
            security: BTreeMap::new(),
            auth: None,
            headers: BTreeMap::new(),
            include: Vec::new(),
            exclude: Vec::new(),
            timeout: None,
            output_schemas: false,
            redaction: None,
        }
    }
}

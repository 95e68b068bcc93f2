//! What is configured of an OpenAPI document.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use orla_marketplace::Redactor;
use orla_marketplace::id::Pattern;
use orla_oauth::AuthSettings;

/// One OpenAPI document, each of whose operations becomes a capability.
#[derive(Clone)]
pub struct OpenApiSettings {
    /// The first part of the capabilities' ids; `None` means the document's title.
    pub name: Option<String>,
    /// Where the document is.
    pub document: Location,
    /// Where requests go, instead of the document's first server.
    pub base_url: Option<String>,
    /// The credentials, by the document's names for its security schemes.
    pub security: BTreeMap<String, String>,
    /// How orla gets tokens for the operations that need OAuth or OpenID Connect.
    pub auth: Option<AuthSettings>,
    /// Sent with every request.
    pub headers: BTreeMap<String, String>,
    /// The operations that become capabilities; all if empty.
    pub include: Vec<Selection>,
    /// The operations that do not, included or not.
    pub exclude: Vec<Selection>,
    /// How long one call may take, and the fetching of the document.
    pub timeout: Option<Duration>,
    /// Whether answers are checked against the outline of the document's schemas, which clients then see. Off by
    /// default: the servers of many documents do not keep their promises, and the schemas of answers are most of
    /// what a client would have to read.
    pub output_schemas: bool,
    /// Replaces the secrets that its settings refer to in everything that it returns.
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

/// Where an OpenAPI document is.
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
    /// One of the operation's tags fits.
    Tag(Pattern),
    /// The operation's id fits.
    Operation(Pattern),
    /// The path fits; a method may stand before it (`GET /pets/*`).
    Path(Pattern),
}

impl OpenApiSettings {
    /// A document with only its place.
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

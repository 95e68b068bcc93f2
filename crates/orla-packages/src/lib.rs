//! Third-party packages: their sources, their lock, and their installation.
//!
//! - [`source`]: the notation of sources
//! - [`lock`]: `orla.lock`, the exact list of a project's packages
//! - [`archive`]: bundles and folders as archives, with checks of everything that an archive may do to a machine
//! - [`bundle`]: the manifest of an `.mcpb` bundle
//! - [`remote`]: a server behind a URL as an archive
//! - [`environment`]: programs of npm and PyPI as bundles
//! - [`crates`]: the source of programs in registries of crates
//! - [`oci`]: bundles and folders in OCI registries
//! - [`openapi`]: an OpenAPI document as an archive
//! - [`publish`]: the description of a package for a registry
//! - [`registry`]: the API of MCP registries
//! - [`signature`]: the signatures of npm and PyPI
//! - [`tools`]: the tools that a package declares
//! - [`store`]: the directory of installed packages, and its transactions
//!
//! Only `store` and the folders of `archive` do I/O. The network is behind [`Fetch`].
//!
//! # Invariants
//!
//! - No file of an archive is written before all of its names, kinds and sizes are checked.
//! - An installed package consists of the files that its archive unpacked to on this machine: a project
//!   cannot substitute other files.
//! - An installation is the old or the new one, whenever the process ends. Its directory is named by its
//!   content, and the lock, which is replaced by one rename, selects the directory.

#![warn(missing_docs)]

pub mod archive;
pub mod bundle;
pub mod crates;
pub mod environment;
pub mod lock;
pub mod oci;
pub mod openapi;
pub mod platform;
pub mod publish;
pub mod registry;
pub mod remote;
pub mod signature;
pub mod source;
pub mod store;
pub mod tools;

use async_trait::async_trait;
use sha2::{Digest, Sha256};

/// Fetches documents and archives.
#[async_trait]
pub trait Fetch: Send + Sync {
    /// Returns the body of a URL, of at most `max` bytes. If a document from another address named the
    /// URL, `named_by` is that address: a document on the internet must not lead into a private network.
    ///
    /// # Errors
    /// A sentence that says what failed, without the URL's credentials.
    async fn get(&self, url: &str, named_by: Option<&str>, max: usize) -> Result<Vec<u8>, FetchError> {
        self.get_with(Wanted { url, named_by, max, accept: None, token: None }).await
    }

    /// Like [`get`](Self::get), with further settings.
    ///
    /// # Errors
    /// As above; [`FetchError::Unauthorized`] if a token is wanted.
    async fn get_with(&self, wanted: Wanted<'_>) -> Result<Vec<u8>, FetchError>;
}

/// A request for a document or an archive.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The URL.
    pub url: &'a str,
    /// The address of the document that named it, if any.
    pub named_by: Option<&'a str>,
    /// The maximum size in bytes.
    pub max: usize,
    /// The supported media types.
    pub accept: Option<&'a str>,
    /// A bearer token, sent only to the origin of the URL.
    pub token: Option<&'a str>,
}

/// The reason why nothing was fetched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The server has no such document.
    #[error("there is nothing at {0}")]
    Missing(String),
    /// The server requires a token; the parameters of its challenge say where to get one.
    #[error("it is not given to callers without an account")]
    Unauthorized(Vec<(String, String)>),
    /// Any other failure, as a sentence.
    #[error("{0}")]
    Failed(String),
}

/// Returns the SHA-256 of bytes, in lower-case hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Returns whether a text can be the name of a package, which is the prefix of its tools' names.
pub fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    (1..=48).contains(&name.len()) && name.bytes().all(fits) && !name.starts_with('-')
}

/// Derives a name from any text, such as that of a bundle.
pub fn name_of(text: &str) -> String {
    let text = text.rsplit('/').next().unwrap_or(text);
    let fit = |ch: char| if ch.is_ascii_alphanumeric() || "_-".contains(ch) { ch } else { '_' };
    let name: String = text.chars().map(fit).take(48).collect();
    let name = name.trim_start_matches('-').to_owned();
    if name.is_empty() { "package".to_owned() } else { name }
}

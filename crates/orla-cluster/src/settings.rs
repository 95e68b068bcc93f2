//! What is configured of the cluster.

use std::fmt;
use std::path::PathBuf;

use orla_marketplace::id::Pattern;

/// The cluster that an instance is a node of.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ClusterSettings {
    /// Addresses of NATS servers, such as `nats://host:4222`.
    pub nats: Vec<String>,
    /// The name of the cluster. Nodes of the same cluster have the same one.
    pub name: String,
    /// The name of this node, which no other node has.
    pub node: String,
    /// A file with a JWT and the seed of its NKey, as NATS's tools write it.
    pub credentials: Option<PathBuf>,
    /// Certificates for the connections to NATS.
    pub tls: TlsFiles,
    /// Patterns of the ids that are offered to other nodes; all by default.
    pub share: Option<Vec<Pattern>>,
    /// Patterns of the ids that are served from other nodes; all by default.
    pub take: Option<Vec<Pattern>>,
}

/// PEM files for the connections to NATS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates that are trusted besides those of the system.
    pub ca: Option<PathBuf>,
    /// The certificate of this client.
    pub certificate: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
}

impl ClusterSettings {
    pub(crate) fn shares(&self, id: &str) -> bool {
        admits(self.share.as_deref(), id)
    }

    pub(crate) fn takes(&self, id: &str) -> bool {
        admits(self.take.as_deref(), id)
    }
}

fn admits(patterns: Option<&[Pattern]>, id: &str) -> bool {
    patterns.is_none_or(|patterns| patterns.iter().any(|pattern| pattern.matches(id)))
}

impl fmt::Debug for ClusterSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An address may hold a password.
        f.debug_struct("ClusterSettings")
            .field("name", &self.name)
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

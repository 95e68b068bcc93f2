//! The configuration of the cluster.

use std::fmt;
use std::path::{Path, PathBuf};

use async_nats::ConnectOptions;
use orla_marketplace::id::Pattern;

use crate::error::ClusterError;

/// The name of the setting for the credentials file, which identifies the node.
pub(crate) const CREDENTIALS: &str = "credentials";

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
    /// What becomes of new tasks while NATS cannot be reached.
    pub buffer: Buffering,
}

/// What becomes of new tasks while NATS cannot be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Buffering {
    /// They are refused.
    #[default]
    None,
    /// This node keeps them in its own state, and hands them over later.
    Local,
}

/// PEM files for the connections to NATS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates that are trusted in addition to those of the system.
    pub ca: Option<PathBuf>,
    /// The certificate of this client.
    pub certificate: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
}

impl ClusterSettings {
    /// Returns the problems with the named files. Reads each file and parses the credentials. Blocks.
    pub fn check_files(&self) -> Vec<ClusterError> {
        let problems = self.files().map(|(what, path)| {
            let checked = std::fs::read(path).and_then(|bytes| match what {
                CREDENTIALS => {
                    ConnectOptions::with_credentials(&String::from_utf8_lossy(&bytes)).map(drop)
                }
                _ => Ok(()),
            });
            let problem = checked.err()?.to_string();
            Some(ClusterError::File { what, path: path.to_owned(), problem })
        });
        problems.flatten().collect()
    }

    /// Returns the named files with their meanings.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let files = [
            (CREDENTIALS, &self.credentials),
            ("tls.ca", &self.tls.ca),
            ("tls.certificate", &self.tls.certificate),
            ("tls.key", &self.tls.key),
        ];
        files.into_iter().filter_map(|(what, path)| Some((what, path.as_deref()?)))
    }

    pub(crate) fn shares(&self, id: &str) -> bool {
        admits(self.share.as_deref(), id)
    }

    pub(crate) fn takes(&self, id: &str) -> bool {
        admits(self.take.as_deref(), id)
    }
}

fn admits(patterns: Option<&[Pattern]>, id: &str) -> bool {
    patterns.is_none_or(|patterns| patterns.iter().any(|pattern| pattern.covers(id)))
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

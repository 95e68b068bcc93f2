//! Why an instance cannot be a node of its cluster.

use std::path::PathBuf;

use async_nats::{ConnectError, ConnectErrorKind};

/// Why an instance cannot be a node of its cluster. One line each; no address is repeated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// A file of the configuration cannot be used.
    #[error("{what} {}: {problem}", .path.display())]
    File {
        /// Which file it is.
        what: &'static str,
        /// Its path.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// NATS does not know the credentials.
    #[error("NATS refuses the credentials: check `cluster.credentials`, or the user in `cluster.nats`")]
    Refused,
    /// The encrypted connection does not come about.
    #[error("no TLS connection to NATS: {0}; check `cluster.tls`")]
    Tls(String),
    /// The address is not one of NATS.
    #[error("`cluster.nats` is not an address of NATS: expected nats://HOST:PORT")]
    Address,
    /// NATS does not answer. It is tried again.
    #[error("NATS cannot be reached: {0}")]
    Unreachable(String),
    /// The server has no JetStream.
    #[error("the NATS server has no JetStream, which a cluster needs: start it with `-js`")]
    NoJetStream,
    /// JetStream refuses what a node needs.
    #[error("JetStream: {0}")]
    JetStream(String),
    /// The buckets are those of another version.
    #[error("the bucket `{bucket}` is from another version of orla: give the cluster another name")]
    OtherVersion {
        /// The name of the bucket.
        bucket: String,
    },
}

impl ClusterError {
    /// Whether it may pass by itself.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Self::Unreachable(_))
    }

    pub(crate) fn of_connecting(error: &ConnectError) -> Self {
        match error.kind() {
            ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => Self::Refused,
            ConnectErrorKind::Tls => Self::Tls(error.to_string()),
            ConnectErrorKind::ServerParse => Self::Address,
            ConnectErrorKind::Dns => Self::Unreachable("its name is not known".to_owned()),
            ConnectErrorKind::TimedOut => Self::Unreachable("it does not answer".to_owned()),
            ConnectErrorKind::Io | ConnectErrorKind::MaxReconnects => {
                let source = std::error::Error::source(error).map(ToString::to_string);
                Self::Unreachable(source.unwrap_or_else(|| error.to_string()))
            }
        }
    }
}

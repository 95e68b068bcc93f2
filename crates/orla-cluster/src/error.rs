use std::error::Error as _;
use std::io;
use std::path::PathBuf;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::AccountErrorKind;
use async_nats::{ConnectError, ConnectErrorKind};
use rustls::{AlertDescription, CertificateError};

/// The reason why an instance cannot be a node of its cluster. Each message is one line and contains no
/// address.
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
        /// The problem with the file.
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
    /// JetStream does not meet the needs of a node. The node retries, since JetStream may be choosing a
    /// leader or lack servers.
    #[error("JetStream: {0}")]
    JetStream(String),
    /// The buckets belong to another version.
    #[error("the bucket `{bucket}` is from another version of orla: give the cluster another name")]
    OtherVersion {
        /// The name of the bucket.
        bucket: String,
    },
}

impl ClusterError {
    /// Returns whether it may pass by itself.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::JetStream(_))
    }

    /// Classifies an error of an account request to JetStream.
    pub(crate) fn of_account(error: &AccountErrorKind) -> Self {
        match error {
            AccountErrorKind::JetStreamUnavailable => Self::NoJetStream,
            AccountErrorKind::JetStream(answer) if is_off(answer.error_code()) => Self::NoJetStream,
            AccountErrorKind::JetStream(answer) => Self::JetStream(answer.to_string()),
            AccountErrorKind::TimedOut => Self::Unreachable("JetStream does not answer".to_owned()),
            AccountErrorKind::Other => Self::Unreachable("JetStream cannot be asked".to_owned()),
        }
    }

    pub(crate) fn of_connecting(error: &ConnectError) -> Self {
        match error.kind() {
            ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => Self::Refused,
            ConnectErrorKind::Tls => Self::Tls(error.to_string()),
            ConnectErrorKind::ServerParse => Self::Address,
            ConnectErrorKind::Dns => Self::Unreachable("its name is not known".to_owned()),
            ConnectErrorKind::TimedOut => Self::Unreachable("it does not answer".to_owned()),
            ConnectErrorKind::Io | ConnectErrorKind::MaxReconnects => {
                of_tls(error).unwrap_or_else(|| {
                    let source = error.source().map(ToString::to_string);
                    Self::Unreachable(source.unwrap_or_else(|| error.to_string()))
                })
            }
        }
    }
}

/// Returns the error if the connection failed because of TLS. What passes by itself is no reason to end: a certificate that has
/// expired is renewed some time, and a clock set.
fn of_tls(error: &ConnectError) -> Option<ClusterError> {
    let source = error.source()?.downcast_ref::<io::Error>()?;
    Some(match source.get_ref()?.downcast_ref::<rustls::Error>()? {
        // The text of the library has the time.
        rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => ClusterError::Unreachable("the server's certificate has expired".to_owned()),
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => ClusterError::Unreachable("the server's certificate is not valid yet".to_owned()),
        rustls::Error::AlertReceived(AlertDescription::InternalError) => return None,
        rustls::Error::InvalidCertificate(why) => {
            ClusterError::Tls(format!("the server's certificate is not trusted ({why})"))
        }
        other => ClusterError::Tls(other.to_string()),
    })
}

/// Returns whether this error code means that JetStream is absent, rather than not ready.
fn is_off(code: ErrorCode) -> bool {
    [ErrorCode::JETSTREAM_NOT_ENABLED, ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT].contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_untrusted_certificate_is_told_from_an_unreachable_server() {
        let untrusted = rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let of = |error: io::Error| ClusterError::of_connecting(&error.into());
        let error = of(io::Error::new(io::ErrorKind::InvalidData, untrusted));
        assert_eq!(
            error.to_string(),
            "no TLS connection to NATS: the server's certificate is not trusted (UnknownIssuer); check `cluster.tls`"
        );
        assert!(!error.may_pass());
        let of_tls = |error: rustls::Error| of(io::Error::new(io::ErrorKind::InvalidData, error));
        let unwanted = of_tls(rustls::Error::AlertReceived(AlertDescription::CertificateRequired));
        assert!(!unwanted.may_pass(), "{unwanted}");
        for passing in [
            rustls::Error::InvalidCertificate(CertificateError::Expired),
            rustls::Error::InvalidCertificate(CertificateError::NotValidYet),
            rustls::Error::AlertReceived(AlertDescription::InternalError),
        ] {
            assert!(of_tls(passing.clone()).may_pass(), "{passing}");
        }
        assert!(of(io::ErrorKind::ConnectionRefused.into()).may_pass());
    }

    #[test]
    fn transient_errors_do_not_end_an_instance() {
        let answer = |code: u64| {
            let text = format!(r#"{{"code": 503, "err_code": {code}, "description": "d"}}"#);
            AccountErrorKind::JetStream(serde_json::from_str(&text).unwrap())
        };
        for (error, may_pass) in [
            ("a leader is being elected", answer(10_008), true),
            ("there are too few servers", answer(10_005), true),
            ("it does not answer", AccountErrorKind::TimedOut, true),
            ("there is none", AccountErrorKind::JetStreamUnavailable, false),
            ("it is off", answer(10_076), false),
            ("it is off for the account", answer(10_039), false),
        ]
        .map(|(name, kind, may_pass)| ((name, ClusterError::of_account(&kind)), may_pass))
        {
            assert_eq!(error.1.may_pass(), may_pass, "{}", error.0);
        }
        assert!(!ClusterError::OtherVersion { bucket: "b".to_owned() }.may_pass());
        assert!(!ClusterError::Refused.may_pass());
    }
}

//! Reads the holder's identity from a certificate. Pure.

use std::time::{Duration, SystemTime};

use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::CertificateName;

/// The longest name of a caller.
const MAX_NAME: usize = 256;

/// The parts of a certificate that matter here.
pub(super) struct Certificate {
    common_name: Option<String>,
    alternative_name: Option<String>,
    pub(super) expires_at: SystemTime,
}

impl Certificate {
    /// Reads a certificate; `None` if it is malformed.
    pub(super) fn parse(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let mut common = certificate.subject().iter_common_name();
        // A certificate with several common names does not name a caller by one of them.
        let common_name = match (common.next(), common.next()) {
            (Some(name), None) => name.as_str().ok().map(str::to_owned),
            _ => None,
        };
        let alternative = certificate.subject_alternative_name().ok()?;
        let names = alternative.iter().flat_map(|names| &names.value.general_names);
        let alternative_name = names.into_iter().find_map(|name| match name {
            GeneralName::URI(name) | GeneralName::RFC822Name(name) | GeneralName::DNSName(name) => {
                Some((*name).to_owned())
            }
            _ => None,
        });
        let seconds = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or_default();
        let expires_at = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        Some(Self { common_name, alternative_name, expires_at })
    }

    /// Returns the name of the holder, if it can be that of a caller.
    pub(super) fn name(&self, part: CertificateName) -> Option<&str> {
        let name = match part {
            CertificateName::CommonName => self.common_name.as_deref(),
            CertificateName::AlternativeName => self.alternative_name.as_deref(),
        };
        name.filter(|name| is_caller(name))
    }
}

/// Returns whether a text can be the name of a caller in rules, logs and the audit.
fn is_caller(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && !name.chars().any(char::is_control) && name.trim() == name
}

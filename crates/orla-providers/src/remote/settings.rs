//! The configuration of another instance.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use orla_marketplace::Redactor;

use crate::names::NameRules;

/// Another instance whose catalogue is served here.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteSettings {
    /// The instance's name here.
    pub name: String,
    /// The address; without a path, `/rtfs` is added.
    pub url: String,
    /// The bearer token.
    pub token: Option<String>,
    /// The key of the sign-in that provides the token of requests, instead of `token`.
    pub sign_in: Option<String>,
    /// The names of its capabilities here, and which of them are served.
    pub names: NameRules,
    /// The timeout of one call; `None` means as long as the caller allows.
    pub timeout: Option<Duration>,
    /// Whether it is asked when the server starts instead of at the first use.
    pub eager: bool,
    /// Hides the secrets of the settings in everything that the instance returns.
    pub redaction: Option<Arc<Redactor>>,
}

impl RemoteSettings {
    /// Creates settings of an instance that serves everything.
    pub fn new(name: impl Into<String>, url: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            url: url.into(),
            token: None,
            sign_in: None,
            names: NameRules::default(),
            timeout: None,
            eager: false,
            redaction: None,
        }
    }
}

impl fmt::Debug for RemoteSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Like the token, an address may contain a secret.
        f.debug_struct("RemoteSettings").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let mut remote = RemoteSettings::new("b", "http://b");
        remote.token = Some("hush".into());
        assert!(!format!("{remote:?}").contains("hush"));
    }
}

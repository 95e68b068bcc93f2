//! The stored record of a sign-in.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::grant::Client;
use crate::scope::Scopes;
use crate::secret::Secret;
use crate::token::Token;

/// A sign-in at one server. It is stored as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The server that the tokens are for (RFC 8707).
    pub(crate) resource: String,
    /// The authorization server that has issued everything in the record.
    pub(crate) issuer: String,
    pub(crate) token_endpoint: String,
    pub(crate) client: Client,
    /// The redirect address of the sign-in, for which the client is registered.
    pub(crate) redirect_uri: String,
    pub(crate) access_token: Secret,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refresh_token: Option<Secret>,
    /// The time in seconds since 1970 from which the token is renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) renew_at: Option<u64>,
    #[serde(default)]
    pub(crate) scopes: Scopes,
    /// The scopes that the server has requested since, for the next sign-in.
    #[serde(default, skip_serializing_if = "Scopes::is_empty")]
    pub(crate) missing: Scopes,
}

impl Record {
    /// Returns the name under which a record is stored. `subject` is `None` for the sign-in that all
    /// callers share. Users cannot choose such a name for a secret.
    pub(crate) fn name(server: &str, subject: Option<&str>) -> String {
        match subject {
            None => format!("oauth:{server}"),
            Some(subject) => format!("oauth:{server}:{subject}"),
        }
    }

    /// Returns its token.
    pub(crate) fn token(&self) -> Token {
        Token {
            access: self.access_token.clone(),
            refresh: self.refresh_token.clone(),
            renew_at: self.renew_at.map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)),
            scopes: self.scopes.clone(),
        }
    }

    /// Returns the record with another token.
    pub(crate) fn with(self, token: &Token) -> Self {
        let seconds =
            |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        Self {
            access_token: token.access.clone(),
            refresh_token: token.refresh.clone(),
            renew_at: token.renew_at.map(seconds),
            scopes: token.scopes.clone(),
            ..self
        }
    }
}

//! What is configured of a sign-in.

use crate::scope::Scopes;
use crate::secret::Secret;

/// How orla gets its tokens for one server. The default is a sign-in by a person, for all callers together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuthSettings {
    /// Where tokens come from.
    pub grant: GrantKind,
    /// Whose tokens they are; `None` means the grant's own: [`Per::Caller`] for a token exchange.
    pub per: Option<Per>,
    /// The authorization server, in place of the one that the server names.
    pub issuer: Option<String>,
    /// The token endpoint, in place of the one that the metadata name.
    pub token_endpoint: Option<String>,
    /// The id of a client that is registered already, or the address of its metadata.
    pub client_id: Option<String>,
    /// Its password.
    pub client_secret: Option<Secret>,
    /// The parameter `audience` of requests for tokens (RFC 8693 §2.1).
    pub audience: Option<String>,
    /// The scopes to request, in place of those that the server names.
    pub scopes: Option<Scopes>,
    /// The port on this machine to which a sign-in returns; `None` means any.
    pub redirect_port: Option<u16>,
}

/// Where tokens come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GrantKind {
    /// A person signs in (OAuth 2.1 §4.1, RFC 8628).
    #[default]
    AuthorizationCode,
    /// orla signs in as itself (OAuth 2.1 §4.2).
    ClientCredentials,
    /// The caller's token is exchanged (RFC 8693).
    TokenExchange,
}

/// Whose tokens are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Per {
    /// Each caller has an own one.
    Caller,
    /// All callers share one.
    Shared,
}

impl AuthSettings {
    /// Whose tokens are used.
    pub fn per(&self) -> Per {
        self.per.unwrap_or(match self.grant {
            GrantKind::TokenExchange => Per::Caller,
            GrantKind::AuthorizationCode | GrantKind::ClientCredentials => Per::Shared,
        })
    }

    /// Returns whether tokens can be obtained before the server has asked for one.
    pub fn knows_its_issuer(&self) -> bool {
        self.issuer.is_some() || self.token_endpoint.is_some()
    }

    /// What is contradictory or missing.
    ///
    /// # Errors
    /// A sentence that begins with the name of a key.
    pub fn check(&self) -> Result<(), &'static str> {
        match self.grant {
            GrantKind::ClientCredentials | GrantKind::TokenExchange if self.client_id.is_none() => {
                Err("client_id: missing, and required by this grant")
            }
            GrantKind::ClientCredentials if self.client_secret.is_none() => {
                Err("client_secret: missing, and required by this grant")
            }
            // Otherwise the server that is called could name who gets the callers' tokens.
            GrantKind::TokenExchange if !self.knows_its_issuer() => {
                Err("issuer: missing, and required by this grant (or token_endpoint)")
            }
            GrantKind::TokenExchange if self.per == Some(Per::Shared) => {
                Err("per: a token exchange is always per caller")
            }
            GrantKind::ClientCredentials if self.per == Some(Per::Caller) => {
                Err("per: client credentials are always shared")
            }
            _ => Ok(()),
        }
    }
}

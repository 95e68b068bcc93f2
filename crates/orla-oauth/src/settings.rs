//! The configuration of a sign-in.

use crate::registration::is_document;
use crate::scope::Scopes;
use crate::secret::Secret;

/// How orla gets its tokens for one server. The default is a sign-in by a user, for all callers
/// together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuthSettings {
    /// The grant.
    pub grant: GrantKind,
    /// The owner of the tokens; `None` means the grant's default: [`Per::Caller`] for a token exchange.
    pub per: Option<Per>,
    /// The authorization server, instead of the one that the server names.
    pub issuer: Option<String>,
    /// The token endpoint, instead of the one in the metadata.
    pub token_endpoint: Option<String>,
    /// The id of a registered client, or the address of its metadata.
    pub client_id: Option<String>,
    /// The client secret.
    pub client_secret: Option<Secret>,
    /// The parameter `audience` of requests for tokens (RFC 8693 §2.1).
    pub audience: Option<String>,
    /// The scopes to request, instead of those that the server names.
    pub scopes: Option<Scopes>,
    /// The port on this machine to which a sign-in returns; `None` means any.
    pub redirect_port: Option<u16>,
}

/// The origin of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GrantKind {
    /// A user signs in (OAuth 2.1 §4.1, RFC 8628).
    #[default]
    AuthorizationCode,
    /// orla signs in as itself (OAuth 2.1 §4.2).
    ClientCredentials,
    /// The caller's token is exchanged (RFC 8693).
    TokenExchange,
}

/// The owner of the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Per {
    /// Each caller has its own token.
    Caller,
    /// All callers share one token.
    Shared,
}

impl AuthSettings {
    /// Returns the owner of the tokens.
    pub fn per(&self) -> Per {
        self.per.unwrap_or(match self.grant {
            GrantKind::TokenExchange => Per::Caller,
            GrantKind::AuthorizationCode | GrantKind::ClientCredentials => Per::Shared,
        })
    }

    /// Returns whether tokens can be obtained before the server has requested one.
    pub fn knows_its_issuer(&self) -> bool {
        self.issuer.is_some() || self.token_endpoint.is_some()
    }

    /// Checks for contradictory or missing settings.
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
            // Otherwise the called server could name the recipient of the callers' tokens.
            GrantKind::TokenExchange if !self.knows_its_issuer() => {
                Err("issuer: missing, and required by this grant (or token_endpoint)")
            }
            GrantKind::TokenExchange if self.per == Some(Per::Shared) => {
                Err("per: a token exchange is always per caller")
            }
            GrantKind::ClientCredentials if self.per == Some(Per::Caller) => {
                Err("per: client credentials are always shared")
            }
            GrantKind::AuthorizationCode if self.names_an_impossible_document() => Err(
                "client_id: the address of a metadata document has a path, and no user, fragment or dot segments",
            ),
            _ => Ok(()),
        }
    }

    /// Returns whether the client is to be known by the address of a metadata document that cannot be
    /// one. A client with a secret is registered, whatever its id looks like.
    fn names_an_impossible_document(&self) -> bool {
        let is_impossible = |id: &String| id.starts_with("https://") && !is_document(id);
        self.client_secret.is_none() && self.client_id.as_ref().is_some_and(is_impossible)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_id_that_cannot_be_the_address_of_a_document_is_a_problem() {
        let of = |id: &str| AuthSettings { client_id: Some(id.to_owned()), ..AuthSettings::default() };
        for id in ["https://a.example/client.json", "orla", "urn:orla"] {
            assert_eq!(of(id).check(), Ok(()), "{id}");
        }
        for id in ["https://a.example", "https://me@a.example/client.json"] {
            let problem = of(id).check().unwrap_err();
            assert!(problem.starts_with("client_id: ") && problem.contains("has a path"), "{problem}");
            let registered = AuthSettings { client_secret: Some(Secret::new("p")), ..of(id) };
            assert_eq!(registered.check(), Ok(()), "{id}");
        }
    }
}

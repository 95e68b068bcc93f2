//! The configuration of authentication (`auth`).

use std::fmt;
use std::time::{Duration, SystemTime};

use orla_marketplace::Permission;

use crate::algorithm::Algorithm;

/// A bearer token of the configuration and the name of its bearer.
#[derive(Clone, PartialEq, Eq)]
pub struct BearerToken {
    /// The secret.
    pub secret: String,
    /// The bearer's name in policies and audits; `None` means a name derived from the token's digest.
    pub name: Option<String>,
}

impl<T: Into<String>> From<T> for BearerToken {
    fn from(secret: T) -> Self {
        Self { secret: secret.into(), name: None }
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BearerToken({})", self.name.as_deref().unwrap_or("unnamed"))
    }
}

/// A token that orla made (`orla token create`). The secret is not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnToken {
    /// The name of its bearer.
    pub name: String,
    /// The SHA-256 digest of the secret.
    pub digest: [u8; 32],
    /// Its scopes.
    pub scopes: Vec<String>,
    /// When it expires.
    pub expires_at: Option<SystemTime>,
}

/// An authorization server whose access tokens are accepted (`auth.oauth`).
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct IssuerOptions {
    /// The issuer identifier, exactly as in `iss`.
    pub issuer: String,
    /// The accepted audiences.
    pub audience: Vec<String>,
    /// The address of its keys. If empty, its metadata give it (RFC 8414, OpenID Connect Discovery).
    pub jwks_uri: String,
    /// The permissions that each scope grants, in the order of the configuration.
    pub scopes: Vec<(String, Vec<Permission>)>,
    /// The claim that names the principal: `sub`.
    pub principal_claim: String,
    /// The claim that names its groups: `groups`. `a.b` is the claim `b` within `a`.
    pub groups_claim: String,
    /// The prefix of the names and groups of its callers. Empty by default.
    pub prefix: String,
    /// The accepted signature algorithms. By default, all supported ones.
    pub algorithms: Vec<Algorithm>,
    /// The accepted types of tokens, in lower case and without `application/`: `at+jwt` (RFC 9068 §4).
    pub types: Vec<String>,
    /// The maximum difference between clocks: 60 s.
    pub clock_skew: Duration,
    /// The endpoint that validates opaque tokens (RFC 7662).
    pub introspection: Option<IntrospectionOptions>,
}

/// An endpoint that validates opaque tokens (RFC 7662).
#[derive(Clone, PartialEq, Eq)]
pub struct IntrospectionOptions {
    /// The address.
    pub endpoint: String,
    /// The client id of orla at the endpoint.
    pub client_id: String,
    /// The client secret.
    pub client_secret: String,
    /// How long an answer is cached: 30 s.
    pub keep: Duration,
}

impl IssuerOptions {
    /// Creates options for this issuer and this audience.
    pub fn new(issuer: impl Into<String>, audience: impl Into<String>) -> Self {
        Self {
            issuer: issuer.into(),
            audience: vec![audience.into()],
            jwks_uri: String::new(),
            scopes: Vec::new(),
            principal_claim: "sub".to_owned(),
            groups_claim: "groups".to_owned(),
            prefix: String::new(),
            algorithms: Algorithm::all(),
            types: vec!["at+jwt".to_owned()],
            clock_skew: Duration::from_secs(60),
            introspection: None,
        }
    }
}

impl fmt::Debug for IssuerOptions {
    /// Shows everything except secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuerOptions")
            .field("issuer", &self.issuer)
            .field("audience", &self.audience)
            .finish_non_exhaustive()
    }
}

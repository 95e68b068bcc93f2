//! Identifies callers: checks the credential of a request, and informs a caller without one which
//! credential it needs.
//!
//! The only entry point is [`Authenticator::authenticate`]: it takes the head of a request, and
//! returns a [`Principal`] or a [`Denied`]. It knows three kinds of credentials: bearer tokens of
//! the configuration, tokens that orla made, and access tokens of authorization servers (MCP
//! authorization 2025-11-25 and 2026-07-28, RFC 9068), signed (`issuer`) or opaque
//! (`introspection`), bound to a key of the caller (`dpop`) or not.
//!
//! # How it works
//!
//! Tokens are compared and cached by their SHA-256 digests. A signed token is parsed (`jws`), its claims
//! are checked (`claims`), and its signature is verified with the issuer's keys (`keys`, `algorithm`).
//! All of this is pure except for fetching keys. A verified token is cached until it expires or the
//! issuer's keys change (`cache`).
//!
//! # Invariants
//!
//! - A token with any member that is not understood is refused: ignoring it could change the
//!   token's meaning.
//! - A forged token causes at most one request for keys in 30 seconds.
//! - A caller does not learn why it was refused, neither from the answer nor, where all keys are of one
//!   kind, from its time (`Authenticator::verify`); only the log contains the reason.
//!
//! # Deliberately absent
//!
//! Connections: the program supplies a [`Fetch`]. A JWT library: those that use the program's only
//! cryptographic library treat a claim of the wrong type as absent, or skip `crit`. This crate refuses
//! both.

#![warn(missing_docs)]

mod algorithm;
mod cache;
mod challenge;
mod claims;
mod dpop;
mod fetch;
mod introspection;
mod issuer;
mod json;
mod jws;
mod keys;
mod options;
mod remembered;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use http::header::AUTHORIZATION;
use http::{HeaderMap, Method, Uri};
use orla_marketplace::{IdentifiedBy, Principal};
use ring::digest::{SHA256, digest};
use serde_json::Value;
use subtle::ConstantTimeEq;

pub use algorithm::Algorithm;
pub use challenge::METADATA;
pub use fetch::Fetch;
pub use options::{BearerToken, IntrospectionOptions, IssuerOptions, OwnToken};

use crate::cache::{Digest, Verified};
use crate::dpop::Request;
use crate::issuer::Issuer;
use crate::jws::{MAX_TOKEN, Signed, looks_signed};
use crate::keys::WRONG_SIGNATURE;
use crate::remembered::RememberedDigests;

/// The prefix of tokens that orla made, so that users and secret scanners recognise them.
pub const OWN_TOKEN: &str = "orla_";

/// The configuration of authentication.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthOptions {
    /// The bearer tokens of the configuration.
    pub tokens: Vec<BearerToken>,
    /// The tokens that orla made. `None` means that there is no file of them; an empty file still
    /// requires a token.
    pub own_tokens: Option<Vec<OwnToken>>,
    /// The authorization servers whose tokens are accepted.
    pub issuers: Vec<IssuerOptions>,
}

impl AuthOptions {
    /// Returns whether every request needs a credential.
    pub fn are_required(&self) -> bool {
        !self.tokens.is_empty() || self.own_tokens.is_some() || !self.issuers.is_empty()
    }
}

/// The parts of a request that identify its caller.
pub struct Head<'a> {
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// Its method.
    pub method: &'a Method,
    /// Its target.
    pub uri: &'a Uri,
    /// The peer's address, if known.
    pub peer: Option<IpAddr>,
    /// Whether the request used TLS.
    pub is_tls: bool,
    /// The principal of the connection's client certificate.
    pub certificate: Option<&'a Principal>,
    /// Whether certificates identify callers, so that one without a certificate needs a token.
    pub needs_certificate: bool,
}

/// The reason why a request is refused. Its caller gets the status 401 and no reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// The request has no credential.
    Absent,
    /// The credential is not valid, for this reason.
    Invalid(&'static str),
}

impl Denied {
    /// Returns the problem in two words.
    pub fn problem(self) -> &'static str {
        match self {
            Self::Absent => "no token",
            Self::Invalid(_) => "invalid token",
        }
    }

    /// Returns the exact problem, for the log and the audit.
    pub fn reason(self) -> Option<&'static str> {
        match self {
            Self::Absent => None,
            Self::Invalid(reason) => Some(reason),
        }
    }
}

/// Identifies callers.
#[derive(Default)]
pub struct Authenticator {
    tokens: Vec<Token>,
    own: HashMap<Digest, Own>,
    issuers: Vec<Arc<Issuer>>,
    /// Whether there is, or was since the start, a file of tokens. Deleting the file does not disable
    /// authentication.
    has_own_tokens: bool,
    is_required: bool,
    /// The used proofs of possession.
    proofs: Arc<RememberedDigests>,
}

/// A bearer token of the configuration.
struct Token {
    /// Digests are compared, so that the time does not reveal a secret's length.
    digest: Digest,
    principal: Principal,
}

/// A token that orla made.
struct Own {
    principal: Principal,
    expires_at: Option<SystemTime>,
}

impl Authenticator {
    /// Compiles options. The state of an issuer with unchanged options is taken over from `previous`.
    /// Without `fetch`, tokens of authorization servers cannot be checked and are refused.
    pub fn new(options: &AuthOptions, fetch: Option<&Arc<dyn Fetch>>, previous: Option<&Self>) -> Self {
        let known = |options: &IssuerOptions| {
            let issuers = previous.map(|previous| &previous.issuers[..]).unwrap_or_default();
            issuers.iter().find(|issuer| issuer.options == *options).cloned()
        };
        let issuer = |options: &IssuerOptions| {
            known(options).or_else(|| Some(Arc::new(Issuer::new(options.clone(), Arc::clone(fetch?)))))
        };
        let own = options.own_tokens.iter().flatten().map(|token| {
            let scopes: Vec<&str> = token.scopes.iter().map(String::as_str).collect();
            let granted = options.issuers.iter().flat_map(|issuer| issuer.permissions_of(&scopes));
            let principal = Principal::token(&token.name)
                .with_permissions(granted.collect())
                .with_scopes(scopes)
                .with_fingerprint(token.digest);
            let principal = match token.expires_at {
                Some(expires_at) => principal.with_expiry(expires_at),
                None => principal,
            };
            (token.digest, Own { principal, expires_at: token.expires_at })
        });
        let has_own_tokens =
            options.own_tokens.is_some() || previous.is_some_and(|previous| previous.has_own_tokens);
        Self {
            tokens: options.tokens.iter().map(Token::new).collect(),
            own: own.collect(),
            issuers: options.issuers.iter().filter_map(issuer).collect(),
            has_own_tokens,
            is_required: options.are_required() || has_own_tokens,
            proofs: previous.map(|previous| Arc::clone(&previous.proofs)).unwrap_or_default(),
        }
    }

    /// Returns the caller of a request; `None` if it is anonymous, which it may be if no credentials are
    /// configured.
    ///
    /// # Errors
    /// The request presents no valid credential.
    pub async fn authenticate(&self, head: &Head<'_>) -> Result<Option<Principal>, Denied> {
        let mut presented = head.headers.get_all(AUTHORIZATION).iter();
        let Some(value) = presented.next() else {
            return self.by_connection(head);
        };
        if !self.is_required {
            return self.by_connection(head);
        }
        if presented.next().is_some() {
            return Err(Denied::Invalid("the request has several tokens"));
        }
        // Another scheme, or one without a token, presents no token (RFC 6750 §3.1).
        let credential = Credential::parse(value.as_bytes()).ok_or(Denied::Absent)?;
        let digest = sha256(credential.token.as_bytes());
        if !credential.is_proven
            && let Some(principal) = self.bearer(&digest)?
        {
            return Ok(Some(principal));
        }
        let now = SystemTime::now();
        let known = self.issuers.iter().find_map(|issuer| issuer.known(&digest, now));
        let verified = match known {
            Some(known) => known,
            // Boxed, so that requests with a cached token stay small.
            None => Box::pin(self.verify(credential.token, digest, head.peer, now))
                .await
                .map_err(Denied::Invalid)?,
        };
        self.check_proof(head, &credential, &verified, now).map_err(Denied::Invalid)?;
        Ok(Some(verified.principal))
    }

    /// Returns the caller of a request that has no token, or whose token is ignored.
    fn by_connection(&self, head: &Head<'_>) -> Result<Option<Principal>, Denied> {
        match head.certificate {
            Some(certificate) => Ok(Some(certificate.clone())),
            None if self.is_required || head.needs_certificate => Err(Denied::Absent),
            None => Ok(None),
        }
    }

    /// Returns the bearer of one of orla's own tokens.
    fn bearer(&self, digest: &Digest) -> Result<Option<Principal>, Denied> {
        // Every token is compared, so that the time reveals nothing about the right one.
        let mut found = None;
        for token in &self.tokens {
            if bool::from(token.digest.ct_eq(digest)) {
                found = Some(&token.principal);
            }
        }
        if let Some(principal) = found {
            return Ok(Some(principal.clone()));
        }
        match self.own.get(digest) {
            Some(Own { expires_at: Some(at), .. }) if SystemTime::now() >= *at => {
                Err(Denied::Invalid("the token has expired"))
            }
            Some(own) => Ok(Some(own.principal.clone())),
            None => Ok(None),
        }
    }

    /// Verifies a token of an authorization server. A refusal takes as long as that of a wrong signature,
    /// whatever is wrong with the token: other refusals check a signature with a key of the first issuer. Only
    /// a token without a key id may take longer, because several keys are tried for it.
    async fn verify(
        &self,
        token: &str,
        digest: Digest,
        peer: Option<IpAddr>,
        now: SystemTime,
    ) -> Result<Verified, &'static str> {
        let verified = self.check(token, digest, peer, now).await;
        if verified.as_ref().is_err_and(|why| *why != WRONG_SIGNATURE)
            && let Some(issuer) = self.issuers.first()
        {
            issuer.verify_decoy(token);
        }
        verified
    }

    async fn check(
        &self,
        token: &str,
        digest: Digest,
        peer: Option<IpAddr>,
        now: SystemTime,
    ) -> Result<Verified, &'static str> {
        const UNKNOWN: &str = "the token is unknown";
        if token.len() > MAX_TOKEN {
            return Err("the token is too long");
        }
        let signed = match looks_signed(token) && !self.issuers.is_empty() {
            true => Some(Signed::parse(token)?),
            false => None,
        };
        if let Some(signed) = &signed {
            let named = signed.claims.get("iss").and_then(Value::as_str);
            let issuer = self.issuers.iter().find(|issuer| Some(&*issuer.options.issuer) == named);
            let issuer = issuer.ok_or("the token is of another issuer")?;
            return issuer.verify(token, digest, signed, now).await;
        }
        // A revoked token that orla made is not passed to any issuer.
        if token.starts_with(OWN_TOKEN) {
            return Err(UNKNOWN);
        }
        let mut problem = UNKNOWN;
        for issuer in self.issuers.iter().filter(|issuer| issuer.introspects()) {
            match issuer.introspect(token, digest, peer, now).await {
                Ok(verified) => return Ok(verified),
                Err(why) => problem = why,
            }
        }
        Err(problem)
    }

    /// Checks that the caller has proven to possess the key that its token is bound to, if it is bound
    /// to one.
    fn check_proof(
        &self,
        head: &Head<'_>,
        credential: &Credential<'_>,
        verified: &Verified,
        now: SystemTime,
    ) -> Result<(), &'static str> {
        let thumbprint = match (&verified.bound_to, credential.is_proven) {
            (None, false) => return Ok(()),
            (None, true) => return Err("the token is not bound to a key, and came as one that is"),
            (Some(_), false) => return Err("the token is bound to a key, and came without a proof"),
            (Some(thumbprint), true) => thumbprint,
        };
        let mut proofs = head.headers.get_all("dpop").iter();
        let proof =
            proofs.next().and_then(|proof| proof.to_str().ok()).ok_or("there is no DPoP proof")?;
        if proofs.next().is_some() {
            return Err("the request has several DPoP proofs");
        }
        let address = self.address(head);
        let request =
            Request { method: head.method.as_str(), address: &address, token: credential.token };
        dpop::check(proof, &request, thumbprint, &self.proofs, now)
    }

    /// Returns whether there may be more than one caller.
    pub fn has_several_callers(&self) -> bool {
        self.tokens.len() + self.own.len() > 1 || !self.issuers.is_empty()
    }

    /// Returns whether the credential of a principal is still accepted: its token was not revoked, and
    /// its authorization server is still accepted. A caller replaces an expired access token and stays
    /// known. Certificates are checked with their connections.
    pub fn still_knows(&self, principal: &Principal) -> bool {
        if let Some(digest) = principal.fingerprint() {
            return self.bearer(digest).is_ok_and(|bearer| bearer.as_ref() == Some(principal));
        }
        match principal.identified_by() {
            IdentifiedBy::OAuth(_) => {
                self.issuers.iter().any(|issuer| principal.is_of(&issuer.options.issuer))
            }
            IdentifiedBy::Token | IdentifiedBy::Certificate | IdentifiedBy::Schedule => true,
        }
    }
}

impl Token {
    fn new(token: &BearerToken) -> Self {
        let BearerToken { secret, name } = token;
        let digest = sha256(secret.as_bytes());
        // The name is a digest, which stays the same over reloads and does not reveal the token.
        let by_digest = || format!("token-{}", hex::encode(&digest[..6]));
        let name = name.clone().unwrap_or_else(by_digest);
        let principal = Principal::token(&name).with_fingerprint(digest);
        Self { digest, principal }
    }
}

/// The credential of an `Authorization` header.
struct Credential<'a> {
    token: &'a str,
    /// Whether its scheme is DPoP, which requires a proof.
    is_proven: bool,
}

impl<'a> Credential<'a> {
    fn parse(header: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(header).ok()?;
        let (scheme, token) = text.split_once(' ')?;
        let is_proven = match scheme {
            scheme if scheme.eq_ignore_ascii_case("bearer") => false,
            scheme if scheme.eq_ignore_ascii_case("dpop") => true,
            _ => return None,
        };
        let token = token.trim_ascii();
        (!token.is_empty()).then_some(Self { token, is_proven })
    }
}

/// Returns the digest that identifies a token.
pub fn sha256(token: &[u8]) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, token).as_ref());
    bytes
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;

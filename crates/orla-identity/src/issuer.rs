//! One authorization server: verifies its tokens, and caches verified ones.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use crate::cache::{Digest, Verified, VerifiedTokens};
use crate::claims::Claims;
use crate::fetch::Fetch;
use crate::introspection::{self, Introspection};
use crate::jws::Signed;
use crate::keys::Keys;
use crate::options::IssuerOptions;

/// An authorization server whose tokens are accepted.
pub(crate) struct Issuer {
    pub(crate) options: IssuerOptions,
    keys: Arc<Keys>,
    verified: VerifiedTokens,
    introspection: Option<Introspection>,
}

impl Issuer {
    pub(crate) fn new(options: IssuerOptions, fetch: Arc<dyn Fetch>) -> Self {
        let keys = Keys::new(&options.issuer, &options.jwks_uri, Arc::clone(&fetch));
        let introspection =
            options.introspection.clone().map(|endpoint| Introspection::new(endpoint, fetch));
        Self { options, keys: Arc::new(keys), verified: VerifiedTokens::default(), introspection }
    }

    /// Returns the cached result for a token. A signed token stays cached while the keys that verified
    /// it are in use.
    pub(crate) fn known(&self, digest: &Digest, now: SystemTime) -> Option<Verified> {
        let found = self.verified.get(digest, self.keys.generation(), now);
        match found {
            Some(found) => self.keys.are_usable().then_some(found),
            None => self.introspection.as_ref()?.known(digest, now),
        }
    }

    /// Returns whether the issuer checks opaque tokens.
    pub(crate) fn introspects(&self) -> bool {
        self.introspection.is_some()
    }

    /// Verifies a signed token of this issuer (RFC 9068 §4).
    ///
    /// # Errors
    /// What is wrong with it, for the log.
    pub(crate) async fn verify(
        &self,
        token: &str,
        digest: Digest,
        signed: &Signed<'_>,
        now: SystemTime,
    ) -> Result<Verified, &'static str> {
        let Self { options, keys, verified, .. } = self;
        if !options.algorithms.contains(&signed.algorithm) {
            return Err("the algorithm is not accepted (auth.oauth.algorithms)");
        }
        if !signed.media_type().is_some_and(|name| options.types.contains(&name)) {
            return Err("the type of the token is not accepted (auth.oauth.types)");
        }
        let key_id = signed.key_id()?;
        // The claims are checked first, so that a token for another audience causes no request for keys.
        let claims = Claims::check(&signed.claims, options, now)?;
        let generation =
            keys.verify(key_id, signed.algorithm, signed.message, &signed.signature).await?;
        let found = found(claims, token, generation);
        verified.put(digest, found.clone());
        Ok(found)
    }

    /// Spends the time that the check of a wrong signature takes.
    pub(crate) fn verify_decoy(&self, token: &str) {
        self.keys.verify_decoy(token.as_bytes());
    }

    /// Validates an opaque token through the issuer (RFC 7662).
    ///
    /// # Errors
    /// Why it is not accepted, for the log.
    pub(crate) async fn introspect(
        &self,
        token: &str,
        digest: Digest,
        peer: Option<IpAddr>,
        now: SystemTime,
    ) -> Result<Verified, &'static str> {
        let Some(introspection) = &self.introspection else { return Err("the token is unknown") };
        let answer = introspection.ask(token, digest, peer).await?;
        let claims = introspection::claims(answer, &self.options, now)?;
        let found = found(claims, token, 0);
        introspection.remember(digest, found.clone(), now);
        Ok(found)
    }
}

fn found(claims: Claims, token: &str, generation: u64) -> Verified {
    let Claims { principal, until, bound_to } = claims;
    Verified { principal: principal.with_credential(token), until, bound_to, generation }
}

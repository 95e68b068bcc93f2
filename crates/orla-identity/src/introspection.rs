//! Opaque tokens: the authorization server validates them (RFC 7662).
//!
//! An answer is cached for a short time, also a refusal, so that a token that is sent repeatedly does
//! not cause a request each time. At most [`MAX_AT_ONCE`] tokens are checked concurrently, and
//! [`MAX_OF_PEER`] of one peer, so that a peer with invented tokens does not occupy the permits of
//! others. A missing answer affects only its token, because any caller can cause an endpoint to refuse
//! one.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use serde_json::Value;
use tokio::sync::Semaphore;

use crate::cache::{Digest, Verified, VerifiedTokens};
use crate::claims::Claims;
use crate::fetch::Fetch;
use crate::json::{Object, object};
use crate::options::{IntrospectionOptions, IssuerOptions};
use crate::remembered::RememberedDigests;

/// The maximum number of tokens that are checked concurrently.
const MAX_AT_ONCE: usize = 16;
/// The maximum number of tokens of one peer that are checked concurrently.
const MAX_OF_PEER: usize = 4;
/// How long a token waits for a permit.
const TURN: Duration = Duration::from_secs(5);

/// The endpoint, and its cached answers.
pub(crate) struct Introspection {
    options: IntrospectionOptions,
    fetch: Arc<dyn Fetch>,
    active: VerifiedTokens,
    inactive: RememberedDigests,
    turns: Turns,
}

/// The permits for requests.
struct Turns {
    all: Semaphore,
    /// The permits of the peers that currently ask or wait.
    of_peers: Mutex<HashMap<Option<IpAddr>, Arc<Semaphore>>>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { all: Semaphore::new(MAX_AT_ONCE), of_peers: Mutex::default() }
    }
}

impl Turns {
    /// Returns the permits of a peer. They are dropped when the peer uses none.
    fn of(&self, peer: Option<IpAddr>) -> Arc<Semaphore> {
        let mut peers = self.of_peers.lock();
        peers.retain(|_, turns| Arc::strong_count(turns) > 1);
        Arc::clone(peers.entry(peer).or_insert_with(|| Arc::new(Semaphore::new(MAX_OF_PEER))))
    }
}

impl Introspection {
    pub(crate) fn new(options: IntrospectionOptions, fetch: Arc<dyn Fetch>) -> Self {
        Self {
            options,
            fetch,
            active: VerifiedTokens::default(),
            inactive: RememberedDigests::default(),
            turns: Turns::default(),
        }
    }

    /// Returns the cached answer about a token.
    pub(crate) fn known(&self, digest: &Digest, now: SystemTime) -> Option<Verified> {
        self.active.get(digest, 0, now)
    }

    /// Sends a request about a token.
    ///
    /// # Errors
    /// The token is not active, or there is no answer.
    pub(crate) async fn ask(
        &self,
        token: &str,
        digest: Digest,
        peer: Option<IpAddr>,
    ) -> Result<Object, &'static str> {
        const INACTIVE: &str = "the token is not active";
        if self.inactive.contains(&digest) {
            return Err(INACTIVE);
        }
        let of_peer = self.turns.of(peer);
        let turn = async { (of_peer.acquire().await, self.turns.all.acquire().await) };
        let turn = tokio::time::timeout(TURN, turn).await;
        let _turn = turn.map_err(|_| "too many tokens wait for introspection")?;
        let IntrospectionOptions { endpoint, client_id, client_secret, keep } = &self.options;
        let form = [("token", token), ("token_type_hint", "access_token")];
        let body = self.fetch.post(endpoint, &form, (client_id, client_secret)).await;
        let body = body.map_err(|error| {
            tracing::warn!(endpoint, error, "cannot introspect a token");
            "the introspection endpoint gave no answer about the token"
        })?;
        let answer = object(&body).ok_or("the answer of the introspection endpoint is malformed")?;
        match answer.get("active") {
            Some(Value::Bool(true)) => Ok(answer),
            Some(Value::Bool(false)) => {
                self.inactive.add(digest, *keep);
                Err(INACTIVE)
            }
            _ => Err("the answer of the introspection endpoint is malformed"),
        }
    }

    /// Caches an answer for a while.
    pub(crate) fn remember(&self, digest: Digest, verified: Verified, now: SystemTime) {
        let until = verified.until.min(now + self.options.keep);
        self.active.put(digest, Verified { until, ..verified });
    }
}

/// Returns the claims in an answer. `iss` and `exp` are optional (RFC 7662 §2.2): the issuer is the one
/// that was asked, and an answer without an expiry is valid for the cache time. The audience is required
/// as in a JWT.
///
/// # Errors
/// The token is not for orla.
pub(crate) fn claims(
    mut answer: Object,
    options: &IssuerOptions,
    now: SystemTime,
) -> Result<Claims, &'static str> {
    answer.entry("iss").or_insert_with(|| Value::from(options.issuer.as_str()));
    let keep = options.introspection.as_ref().map_or(Duration::ZERO, |endpoint| endpoint.keep);
    let until = now + keep;
    let seconds = until.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    answer.entry("exp").or_insert_with(|| Value::from(seconds));
    if !answer.contains_key(&options.principal_claim) && options.principal_claim == "sub" {
        // A token without a user belongs to its client.
        let client = answer.get("client_id").cloned().ok_or("the token does not name its subject")?;
        answer.insert("sub".to_owned(), client);
    }
    Claims::check(&answer, options, now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(answer: Value) -> Result<Claims, &'static str> {
        let mut options = IssuerOptions::new("https://id.example", "orla");
        let keep = Duration::from_secs(30);
        let (endpoint, client_id, client_secret) = Default::default();
        options.introspection = Some(IntrospectionOptions { endpoint, client_id, client_secret, keep });
        let Value::Object(answer) = answer else { unreachable!() };
        claims(answer, &options, SystemTime::now())
    }

    #[test]
    fn an_answer_must_be_for_orla_and_name_someone() {
        for (answer, name) in [
            (json!({"aud": "orla", "sub": "ada"}), Some("ada")),
            (json!({"aud": "orla", "client_id": "ci"}), Some("ci")),
            (json!({"sub": "ada"}), None),
            (json!({"aud": "other", "sub": "ada"}), None),
            (json!({"aud": "orla", "sub": "ada", "exp": 1}), None),
            (json!({"aud": "orla", "sub": "ada", "iss": "https://evil.example"}), None),
            (json!({"aud": "orla"}), None),
        ] {
            let read = read(answer.clone()).ok();
            let found = read.as_ref().map(|claims| claims.principal.name());
            assert_eq!(found, name, "{answer}");
        }
    }
}

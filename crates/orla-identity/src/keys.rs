//! The public keys of an issuer, cached.
//!
//! Keys are fetched on first use. An unknown key id causes another fetch, at most once in
//! [`UNKNOWN_KEY`], so that forged tokens cannot make orla send requests. Keys older than [`FRESH`] are
//! fetched again while they are used. If the issuer does not answer, its keys are used for [`KEEP`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::algorithm::{Algorithm, PublicKey};
use crate::fetch::{Fetch, discover_keys};
use crate::json::object;

/// The minimum time between two requests because of unknown keys.
const UNKNOWN_KEY: Duration = Duration::from_secs(30);
/// The minimum time between two requests while there are no keys.
const RETRY: Duration = Duration::from_secs(1);
/// The time after which keys are fetched again.
const FRESH: Duration = Duration::from_secs(300);
/// How long keys are used that cannot be fetched again.
const KEEP: Duration = Duration::from_secs(3600);
/// The reason of a refusal for which a signature was verified.
pub(crate) const WRONG_SIGNATURE: &str = "the signature is wrong";
/// The maximum number of keys of one issuer.
const MAX_KEYS: usize = 100;

/// The keys of one issuer.
pub(crate) struct Keys {
    issuer: String,
    /// The address of the keys; if empty, the issuer's metadata give it.
    url: String,
    fetch: Arc<dyn Fetch>,
    set: ArcSwapOption<KeySet>,
    /// Held while keys are fetched, so that one request is sent for all waiting callers.
    requests: Mutex<Requests>,
    is_refreshing: AtomicBool,
}

struct KeySet {
    keys: Vec<PublicKey>,
    fetched_at: Instant,
    /// Incremented when the keys change.
    generation: u64,
}

/// The times of the last requests for keys.
#[derive(Default)]
struct Requests {
    any: Option<Instant>,
    unknown_key: Option<Instant>,
}

impl Keys {
    pub(crate) fn new(issuer: &str, url: &str, fetch: Arc<dyn Fetch>) -> Self {
        Self {
            issuer: issuer.to_owned(),
            url: url.to_owned(),
            fetch,
            set: ArcSwapOption::empty(),
            requests: Mutex::default(),
            is_refreshing: AtomicBool::new(false),
        }
    }

    /// Returns a number that changes when the keys do.
    pub(crate) fn generation(&self) -> u64 {
        self.set.load().as_ref().map_or(0, |set| set.generation)
    }

    /// Returns whether the keys can still be used. Starts a fetch if they are not fresh.
    pub(crate) fn are_usable(self: &Arc<Self>) -> bool {
        let set = self.set.load();
        let Some(set) = set.as_ref() else { return false };
        let age = set.fetched_at.elapsed();
        if age > FRESH && !self.is_refreshing.swap(true, Ordering::AcqRel) {
            let keys = Arc::clone(self);
            #[expect(
                clippy::disallowed_methods,
                reason = "nothing waits for it, and it holds nothing that a drain would miss"
            )]
            tokio::spawn(async move {
                let mut requests = keys.requests.lock().await;
                if requests.any.is_none_or(|last| last.elapsed() >= UNKNOWN_KEY) {
                    keys.request(&mut requests).await;
                }
                keys.is_refreshing.store(false, Ordering::Release);
            });
        }
        age <= KEEP
    }

    /// Verifies a signature with the issuer's keys. Returns the [generation](Self::generation) of the
    /// keys.
    ///
    /// # Errors
    /// Why none did, for the log.
    pub(crate) async fn verify(
        self: &Arc<Self>,
        key_id: Option<&str>,
        algorithm: Algorithm,
        message: &[u8],
        signature: &[u8],
    ) -> Result<u64, &'static str> {
        let is_new = !self.are_usable() && self.fetch_first().await;
        let mut set = self.usable().ok_or("the keys of the issuer are not available")?;
        if !set.has(key_id) && !is_new {
            self.fetch_unknown(&set).await;
            set = self.usable().ok_or("the keys of the issuer are not available")?;
        }
        set.verify(key_id, algorithm, message, signature).map(|()| set.generation)
    }

    /// Spends the time of a check with one of the known keys. Fetches nothing.
    pub(crate) fn verify_decoy(&self, message: &[u8]) {
        if let Some(key) = self.set.load().as_ref().and_then(|set| set.keys.first()) {
            key.verify_decoy(message);
        }
    }

    fn usable(&self) -> Option<Arc<KeySet>> {
        self.set.load_full().filter(|set| set.fetched_at.elapsed() <= KEEP)
    }

    /// Fetches keys because there are none. Returns whether a request was sent.
    async fn fetch_first(&self) -> bool {
        let mut requests = self.requests.lock().await;
        let is_due = requests.any.is_none_or(|last| last.elapsed() >= RETRY);
        let is_wanted = self.usable().is_none() && is_due;
        if is_wanted {
            self.request(&mut requests).await;
        }
        is_wanted
    }

    /// Fetches keys because one is not among `known`.
    async fn fetch_unknown(&self, known: &Arc<KeySet>) {
        let mut requests = self.requests.lock().await;
        let is_newer = self.set.load().as_ref().is_some_and(|set| !Arc::ptr_eq(set, known));
        let is_due = requests.unknown_key.is_none_or(|last| last.elapsed() >= UNKNOWN_KEY);
        if !is_newer && is_due {
            requests.unknown_key = Some(Instant::now());
            self.request(&mut requests).await;
        }
    }

    async fn request(&self, requests: &mut Requests) {
        let downloaded = self.download().await;
        // Callers that waited meanwhile use this answer, however long it took.
        requests.any = Some(Instant::now());
        match downloaded {
            Ok(keys) => {
                let is_changed = self.set.load().as_ref().is_none_or(|set| set.keys != keys);
                let generation = self.generation() + u64::from(is_changed);
                let fetched_at = Instant::now();
                self.set.store(Some(Arc::new(KeySet { keys, fetched_at, generation })));
            }
            Err(error) => {
                tracing::warn!(issuer = self.issuer, error, "cannot fetch the keys of an issuer");
            }
        }
    }

    async fn download(&self) -> Result<Vec<PublicKey>, String> {
        let fetch = &*self.fetch;
        let discovered = match self.url.is_empty() {
            true => discover_keys(fetch, &self.issuer).await?,
            false => self.url.clone(),
        };
        let body = fetch.get(&discovered).await.map_err(|err| format!("{discovered}: {err}"))?;
        key_set(&body).ok_or_else(|| format!("{discovered}: not a set of keys"))
    }
}

/// Parses a set of keys (RFC 7517 §5). Unsupported keys are left out.
fn key_set(body: &[u8]) -> Option<Vec<PublicKey>> {
    let set = object(body)?;
    let keys = set.get("keys")?.as_array()?;
    let keys = keys.iter().take(MAX_KEYS).filter_map(Value::as_object);
    Some(keys.filter_map(PublicKey::from_jwk).collect())
}

impl KeySet {
    /// Returns whether a key with this id is known. Without an id, every key matches.
    fn has(&self, id: Option<&str>) -> bool {
        id.is_none() || self.keys.iter().any(|key| key.id.as_deref() == id)
    }

    fn verify(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), &'static str> {
        /// The maximum number of keys that are tried for a token without a key id.
        const MAX_TRIED: usize = 4;
        if !self.has(id) {
            return Err("the key of the token is unknown");
        }
        let is_meant = |key: &&PublicKey| id.is_none() || key.id.as_deref() == id;
        let fitting =
            self.keys.iter().filter(is_meant).filter(|key| key.fits(algorithm)).take(MAX_TRIED);
        let mut fitting = fitting.peekable();
        if fitting.peek().is_none() {
            return Err("the key of the token is for another algorithm");
        }
        match fitting.any(|key| key.verifies(algorithm, message, signature)) {
            true => Ok(()),
            false => Err(WRONG_SIGNATURE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use std::sync::atomic::AtomicUsize;

    /// An issuer that counts requests.
    #[derive(Default)]
    struct Issuer {
        requests: AtomicUsize,
        body: parking_lot::Mutex<Option<String>>,
        hangs: AtomicBool,
    }

    #[async_trait]
    impl Fetch for Issuer {
        async fn get(&self, _: &str) -> Result<Vec<u8>, String> {
            self.requests.fetch_add(1, Ordering::Relaxed);
            let takes = if self.hangs.load(Ordering::Relaxed) { 5_000 } else { 10 };
            tokio::time::sleep(Duration::from_millis(takes)).await;
            self.body.lock().clone().map(String::into_bytes).ok_or_else(|| "gone".to_owned())
        }

        async fn post(&self, _: &str, _: &[(&str, &str)], _: (&str, &str)) -> Result<Vec<u8>, String> {
            Err("not here".to_owned())
        }
    }

    fn set_of(ids: &[&str]) -> Option<String> {
        let x = "A".repeat(43);
        let key = |id: &&str| format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{x}","kid":"{id}"}}"#);
        Some(format!(r#"{{"keys":[{}]}}"#, ids.iter().map(key).collect::<Vec<_>>().join(",")))
    }

    fn keys(ids: &[&str]) -> (Arc<Issuer>, Arc<Keys>) {
        let issuer = Arc::new(Issuer::default());
        *issuer.body.lock() = set_of(ids);
        let fetch = Arc::clone(&issuer) as Arc<dyn Fetch>;
        (issuer, Arc::new(Keys::new("https://id.example", "https://id.example/keys", fetch)))
    }

    async fn problem(keys: &Arc<Keys>, id: &str) -> &'static str {
        keys.verify(Some(id), Algorithm::EdDSA, b"", &[0; 64]).await.unwrap_err()
    }

    const WRONG: &str = WRONG_SIGNATURE;
    const UNKNOWN: &str = "the key of the token is unknown";
    const GONE: &str = "the keys of the issuer are not available";

    #[tokio::test(start_paused = true)]
    async fn keys_are_requested_once_for_many_tokens_and_again_for_an_unknown_key_at_most_once_in_30_seconds()
     {
        let (issuer, keys) = keys(&["a"]);
        let requests = || issuer.requests.load(Ordering::Relaxed);
        let mut many = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let keys = Arc::clone(&keys);
            many.spawn(async move { problem(&keys, "a").await });
        }
        assert_eq!(many.join_all().await, [WRONG; 50]);
        assert_eq!(requests(), 1);
        for id in ["b", "c", "d"] {
            assert_eq!(problem(&keys, id).await, UNKNOWN);
        }
        assert_eq!(requests(), 2);
        *issuer.body.lock() = set_of(&["a", "b"]);
        tokio::time::advance(Duration::from_secs(31)).await;
        assert_eq!(problem(&keys, "b").await, WRONG);
        assert_eq!(requests(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn keys_stay_for_an_hour_when_the_issuer_is_gone() {
        let (issuer, keys) = keys(&["a"]);
        assert_eq!(problem(&keys, "a").await, WRONG);
        let generation = keys.generation();
        *issuer.body.lock() = None;
        for _ in 0..59 {
            tokio::time::advance(Duration::from_secs(60)).await;
            assert_eq!(problem(&keys, "a").await, WRONG);
        }
        assert_eq!(keys.generation(), generation, "what was not fetched changes nothing");
        tokio::time::advance(Duration::from_secs(120)).await;
        assert_eq!(problem(&keys, "a").await, GONE);
        *issuer.body.lock() = set_of(&["a"]);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(problem(&keys, "a").await, WRONG);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_the_issuer_has_withdrawn_is_forgotten() {
        let (issuer, keys) = keys(&["a", "b"]);
        assert_eq!(problem(&keys, "a").await, WRONG);
        let generation = keys.generation();
        *issuer.body.lock() = set_of(&["b"]);
        tokio::time::advance(FRESH + Duration::from_secs(1)).await;
        assert!(keys.are_usable());
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(problem(&keys, "a").await, UNKNOWN);
        assert!(keys.generation() > generation);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_has_just_fetched_keys_does_not_fetch_them_again_for_the_same_token() {
        let (issuer, keys) = keys(&["a"]);
        assert_eq!(problem(&keys, "b").await, UNKNOWN);
        assert_eq!(issuer.requests.load(Ordering::Relaxed), 1);
        *issuer.body.lock() = set_of(&["a", "b"]);
        assert_eq!(problem(&keys, "b").await, WRONG, "keys that are rotated soon after are found");
    }

    #[tokio::test(start_paused = true)]
    async fn many_tokens_wait_for_one_request_to_an_issuer_that_hangs() {
        let (issuer, keys) = keys(&[]);
        *issuer.body.lock() = None;
        issuer.hangs.store(true, Ordering::Relaxed);
        let mut many = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let keys = Arc::clone(&keys);
            many.spawn(async move { problem(&keys, "a").await });
        }
        assert_eq!(many.join_all().await, [GONE; 50]);
        assert_eq!(issuer.requests.load(Ordering::Relaxed), 1);
    }
}

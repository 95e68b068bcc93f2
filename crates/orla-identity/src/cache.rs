//! Verified tokens, by their digest, so that a token is verified once.
//!
//! Two generations bound the memory: when the newer one is full, the older one is dropped. A token that
//! is used stays.

use std::collections::HashMap;
use std::mem;
use std::time::SystemTime;

use orla_marketplace::Principal;
use parking_lot::Mutex;

/// The maximum number of tokens in one generation.
const MAX_TOKENS: usize = 4096;

/// The SHA-256 digest of a token.
pub(crate) type Digest = [u8; 32];

/// A verified token.
#[derive(Clone)]
pub(crate) struct Verified {
    pub(crate) principal: Principal,
    /// When the token is no longer accepted.
    pub(crate) until: SystemTime,
    /// The thumbprint of the key that its bearer must prove to possess.
    pub(crate) bound_to: Option<Box<str>>,
    /// The generation of the issuer's keys that verified it.
    pub(crate) generation: u64,
}

/// The tokens that were checked.
#[derive(Default)]
pub(crate) struct VerifiedTokens(Mutex<Generations>);

#[derive(Default)]
struct Generations {
    newer: HashMap<Digest, Verified>,
    older: HashMap<Digest, Verified>,
}

impl VerifiedTokens {
    /// Returns a verified token, unless it has expired or was verified with other keys.
    pub(crate) fn get(&self, digest: &Digest, generation: u64, now: SystemTime) -> Option<Verified> {
        let mut generations = self.0.lock();
        let is_valid = |known: &Verified| now < known.until && known.generation == generation;
        if let Some(known) = generations.newer.get(digest) {
            return Some(known.clone()).filter(is_valid);
        }
        let known = generations.older.remove(digest).filter(is_valid)?;
        generations.put(*digest, known.clone());
        Some(known)
    }

    /// Records a verified token.
    pub(crate) fn put(&self, digest: Digest, verified: Verified) {
        self.0.lock().put(digest, verified);
    }
}

impl Generations {
    fn put(&mut self, digest: Digest, verified: Verified) {
        if self.newer.len() >= MAX_TOKENS && !self.newer.contains_key(&digest) {
            self.older = mem::take(&mut self.newer);
        }
        self.newer.insert(digest, verified);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn verified(until: SystemTime, generation: u64) -> Verified {
        let principal = Principal::oauth("https://id.example", "ada");
        Verified { principal, until, bound_to: None, generation }
    }

    fn digest(n: usize) -> Digest {
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&n.to_le_bytes());
        digest
    }

    #[test]
    fn a_token_is_known_until_it_expires_or_the_keys_change() {
        let (tokens, now) = (VerifiedTokens::default(), SystemTime::now());
        let until = now + Duration::from_secs(10);
        tokens.put(digest(1), verified(until, 7));
        assert!(tokens.get(&digest(1), 7, now).is_some());
        assert!(tokens.get(&digest(1), 8, now).is_none());
        assert!(tokens.get(&digest(1), 7, until).is_none());
        assert!(tokens.get(&digest(2), 7, now).is_none());
    }

    #[test]
    fn a_token_in_use_outlives_any_number_of_others_in_bounded_memory() {
        let (tokens, now) = (VerifiedTokens::default(), SystemTime::now());
        let until = now + Duration::from_secs(10);
        for n in 0..3 * MAX_TOKENS {
            tokens.put(digest(n), verified(until, 0));
            assert!(tokens.get(&digest(0), 0, now).is_some(), "{n}");
        }
        let generations = tokens.0.lock();
        assert!(generations.newer.len() + generations.older.len() <= 2 * MAX_TOKENS);
    }
}

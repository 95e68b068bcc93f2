//! Attestations: signatures over capabilities (RTFS capability system §3.1).
//!
//! An attestation is a signature over a *statement*: the authority, the time, the expiry, and two hashes
//! in its metadata. One is the hash of the manifest's canonical form ([`manifest_form`]), the other that
//! of the content ([`ContentSource`]). The attestation itself therefore identifies its subject. If it no
//! longer matches, [`check`] says which of the two hashes changed.
//!
//! # How it works
//!
//! Everything here is pure: keys, times and hashes are arguments. Code that reads files implements [`Content`]. A
//! [`Custody`] compares the content of one capability with what was attested.
//!
//! # Deliberately absent
//!
//! Certificates and chains of trust: the configuration contains the public keys by the names of
//! their authorities. No secret is part of any form or hash.

mod canonical;
mod instant;
mod keys;
mod statement;

pub use crate::custody::{Content, Custody};
pub use crate::provider::{CommandLine, ContentSource, Definition};
pub use canonical::{CanonicalError, canonical_json, manifest_form};
pub use instant::{format_instant, parse_instant};
pub use keys::{KeyError, PublicKey, SigningKey};
pub use statement::{
    CONTENT_HASH, Flaw, MANIFEST_HASH, Subject, TrustedKeys, Validity, check, fits, is_current, sign,
    signed, timely,
};

use ring::digest;

/// Returns a hash in text form: `sha256:` and 64 hexadecimal digits.
pub fn hash_text(bytes: &[u8]) -> String {
    let mut hasher = Hasher::default();
    hasher.update(bytes);
    hasher.finish()
}

/// Hashes data that arrives in pieces.
#[derive(Clone)]
pub struct Hasher(digest::Context);

impl Default for Hasher {
    fn default() -> Self {
        Self(digest::Context::new(&digest::SHA256))
    }
}

impl Hasher {
    /// Adds the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the hash of all pieces, as [`hash_text`] writes it.
    pub fn finish(self) -> String {
        let mut text = String::with_capacity(71);
        text.push_str("sha256:");
        for byte in self.0.finish().as_ref() {
            for digit in [byte >> 4, byte & 15] {
                text.push(char::from_digit(u32::from(digit), 16).unwrap_or('0'));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_written_with_its_algorithm() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(hash_text(b""), empty);
        let mut pieces = Hasher::default();
        pieces.update(b"a");
        pieces.update(b"bc");
        assert_eq!(pieces.finish(), hash_text(b"abc"));
    }
}

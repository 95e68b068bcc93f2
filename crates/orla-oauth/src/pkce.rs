//! Proof Key for Code Exchange with S256 (RFC 7636). Pure, except for the randomness.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

use crate::error::Error;
use crate::secret::Secret;

/// The secret of one sign-in, and its public challenge.
#[derive(Clone, Debug)]
pub struct Pkce {
    /// Sent with the code.
    pub verifier: Secret,
    /// Sent with the request for the code.
    pub challenge: String,
}

impl Pkce {
    /// Creates a new pair.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn new() -> Result<Self, Error> {
        Ok(Self::of(random()?))
    }

    /// Returns the pair with this verifier.
    pub fn of(verifier: Secret) -> Self {
        let challenge = digest(&SHA256, verifier.expose().as_bytes());
        Self { challenge: BASE64_URL_SAFE_NO_PAD.encode(challenge), verifier }
    }
}

/// Returns 256 random bits as text that needs no encoding.
///
/// # Errors
/// The system has no randomness.
pub fn random() -> Result<Secret, Error> {
    let mut bytes = [0; 32];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| Error::Failed("the system has no randomness".to_owned()))?;
    Ok(Secret::new(BASE64_URL_SAFE_NO_PAD.encode(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_challenge_is_that_of_the_document() {
        // RFC 7636, appendix B.
        let pkce = Pkce::of(Secret::new("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"));
        assert_eq!(pkce.challenge, "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
    }

    #[test]
    fn verifiers_differ_and_are_long_enough() {
        let (one, other) = (Pkce::new().unwrap(), Pkce::new().unwrap());
        assert_ne!(one.verifier, other.verifier);
        assert!((43..=128).contains(&one.verifier.expose().len()));
    }
}

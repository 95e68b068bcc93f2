//! Ed25519 keys as texts: the public one for a configuration, the secret one for a file.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

/// The prefix of the base64 text of a public key.
const PREFIX: &str = "ed25519:";
const BEGIN: &str = "-----BEGIN PRIVATE KEY-----";
const END: &str = "-----END PRIVATE KEY-----";
/// The prefix of the seed in the shortest PKCS #8 form of a key (RFC 8410 §7).
const PKCS8: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// The reason why a text is not a key. It never repeats the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The text is not a public key.
    #[error("expected a public key, `ed25519:` and 32 bytes in base64")]
    Public,
    /// The text is not a secret key.
    #[error("expected an Ed25519 private key in PEM (PKCS #8), as `orla attest --new-key` writes it")]
    Secret,
    /// The system has no random bytes.
    #[error("the system has no random bytes for a key")]
    NoRandomness,
}

/// A key that verifies signatures. It is written `ed25519:BASE64`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// Parses a key.
    ///
    /// # Errors
    /// The text is not a public key.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let bytes = text.trim().strip_prefix(PREFIX).and_then(|rest| STANDARD.decode(rest).ok());
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or(KeyError::Public)
    }

    /// Returns whether `signature`, in base64, is a signature of this key over `message`.
    pub fn verifies(&self, message: &[u8], signature: &str) -> bool {
        let key = UnparsedPublicKey::new(&ED25519, self.0);
        STANDARD.decode(signature).is_ok_and(|signature| key.verify(message, &signature).is_ok())
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

/// A private key for signatures. It is written as PEM (PKCS #8), which other programs read too, and its `Debug`
/// hides it.
pub struct SigningKey(Ed25519KeyPair);

impl SigningKey {
    /// Generates a new key. Also returns the text that [`parse`](Self::parse) reads.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn generate() -> Result<(Self, String), KeyError> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(|_| KeyError::NoRandomness)?;
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|_| KeyError::Secret)?;
        let encoded = STANDARD.encode([&PKCS8[..], &seed].concat());
        Ok((Self(pair), format!("{BEGIN}\n{encoded}\n{END}\n")))
    }

    /// Parses a key in PEM.
    ///
    /// # Errors
    /// The text is not a secret key in PEM.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let body = text.trim().strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(END));
        let body: String = body.ok_or(KeyError::Secret)?.split_whitespace().collect();
        let der = STANDARD.decode(body).map_err(|_| KeyError::Secret)?;
        Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der).map(Self).map_err(|_| KeyError::Secret)
    }

    /// Returns the key that verifies its signatures.
    pub fn public(&self) -> PublicKey {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(self.0.public_key().as_ref());
        PublicKey(bytes)
    }

    /// Returns a signature over `message`, in base64. The message must state its purpose, so that the
    /// signature is valid for nothing else.
    pub fn sign(&self, message: &[u8]) -> String {
        STANDARD.encode(self.0.sign(message).as_ref())
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey(of {})", self.public())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_written() {
        let (key, text) = SigningKey::generate().unwrap();
        let again = SigningKey::parse(&text).unwrap();
        assert_eq!(again.public(), key.public());
        assert_eq!(PublicKey::parse(&key.public().to_string()), Ok(key.public()));
        let signature = key.sign(b"message");
        assert!(key.public().verifies(b"message", &signature));
        assert!(!key.public().verifies(b"massage", &signature));
        assert!(!SigningKey::generate().unwrap().0.public().verifies(b"message", &signature));
        assert!(!key.public().verifies(b"message", "no base64"));
    }

    #[test]
    fn a_key_of_another_program_is_read() {
        // `openssl genpkey -algorithm ed25519`, and what `openssl pkey -pubout` says of it (RFC 8410 §10).
        let text = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n-----END PRIVATE KEY-----";
        let key = SigningKey::parse(text).unwrap();
        assert_eq!(key.public().to_string(), "ed25519:Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=");
    }

    #[test]
    fn an_invalid_key_is_refused_and_not_quoted() {
        let (key, text) = SigningKey::generate().unwrap();
        for wrong in ["", "ed25519:", "ed25519:AAAA", "rsa:AAAA", &text] {
            assert_eq!(PublicKey::parse(wrong), Err(KeyError::Public), "{wrong}");
        }
        for wrong in ["", &text[..60], &key.public().to_string(), "-----BEGIN PRIVATE KEY-----"] {
            assert_eq!(SigningKey::parse(wrong).err(), Some(KeyError::Secret), "{wrong}");
        }
        let secret = text.lines().nth(1).unwrap();
        assert!(!format!("{key:?}").contains(&secret[22..]));
    }
}

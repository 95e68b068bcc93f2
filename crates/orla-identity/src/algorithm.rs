//! Signature algorithms of tokens (RFC 7518 §3, RFC 8037), and public keys as JWK (RFC 7517).
//!
//! There is no symmetric algorithm and no `none`: a key that verifies cannot sign.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents,
    UnparsedPublicKey,
};
use serde_json::Value;

use crate::json::Object;

/// A signature algorithm of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of RFC 7518")]
pub enum Algorithm {
    RS256,
    RS384,
    RS512,
    PS256,
    PS384,
    PS512,
    ES256,
    ES384,
    EdDSA,
}

impl Algorithm {
    /// All algorithms, with their names in `alg`.
    pub const NAMES: &'static [(&'static str, Self)] = &[
        ("RS256", Self::RS256),
        ("RS384", Self::RS384),
        ("RS512", Self::RS512),
        ("PS256", Self::PS256),
        ("PS384", Self::PS384),
        ("PS512", Self::PS512),
        ("ES256", Self::ES256),
        ("ES384", Self::ES384),
        ("EdDSA", Self::EdDSA),
    ];

    /// Returns all algorithms.
    pub fn all() -> Vec<Self> {
        Self::NAMES.iter().map(|(_, algorithm)| *algorithm).collect()
    }

    /// Returns the name in `alg`.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, known)| *known == self).map_or("", |(name, _)| name)
    }

    /// Returns the algorithm with this name. Ed25519 is the newer name of EdDSA with that curve (RFC
    /// 9864).
    pub(crate) fn named(name: &str) -> Option<Self> {
        let name = if name == "Ed25519" { "EdDSA" } else { name };
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, algorithm)| *algorithm)
    }

    fn rsa(self) -> Option<&'static RsaParameters> {
        Some(match self {
            Self::RS256 => &RSA_PKCS1_2048_8192_SHA256,
            Self::RS384 => &RSA_PKCS1_2048_8192_SHA384,
            Self::RS512 => &RSA_PKCS1_2048_8192_SHA512,
            Self::PS256 => &RSA_PSS_2048_8192_SHA256,
            Self::PS384 => &RSA_PSS_2048_8192_SHA384,
            Self::PS512 => &RSA_PSS_2048_8192_SHA512,
            Self::ES256 | Self::ES384 | Self::EdDSA => return None,
        })
    }
}

/// A public key of an authorization server, or of a client's proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublicKey {
    /// The key id in the set of keys.
    pub(crate) id: Option<Box<str>>,
    /// The only algorithm of the key, if it is restricted to one.
    algorithm: Option<Algorithm>,
    material: Material,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Material {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl PublicKey {
    /// Parses a JWK. Returns `None` if it is not for signatures, or of a kind that no [`Algorithm`]
    /// uses.
    pub(crate) fn from_jwk(jwk: &Object) -> Option<Self> {
        let text = |name: &str| jwk.get(name).and_then(Value::as_str);
        let bytes = |name: &str| BASE64_URL_SAFE_NO_PAD.decode(text(name)?).ok();
        if text("use").is_some_and(|usage| usage != "sig") {
            return None;
        }
        let verifies =
            |operations: &Vec<Value>| operations.iter().any(|operation| operation == "verify");
        if jwk.get("key_ops").is_some_and(|operations| !operations.as_array().is_some_and(verifies)) {
            return None;
        }
        let algorithm = match jwk.get("alg") {
            None => None,
            Some(name) => Some(Algorithm::named(name.as_str()?)?),
        };
        let point = |length: usize| {
            let (x, y) = (bytes("x")?, bytes("y")?);
            (x.len() == length && y.len() == length).then(|| [&[4][..], &x, &y].concat())
        };
        let unsigned = |number: Vec<u8>| {
            let zeros = number.iter().take_while(|byte| **byte == 0).count();
            number[zeros..].to_vec()
        };
        let material = match (text("kty")?, text("crv")) {
            ("RSA", _) => Material::Rsa { n: unsigned(bytes("n")?), e: unsigned(bytes("e")?) },
            ("EC", Some("P-256")) => Material::P256(point(32)?),
            ("EC", Some("P-384")) => Material::P384(point(48)?),
            ("OKP", Some("Ed25519")) => Material::Ed25519(bytes("x").filter(|key| key.len() == 32)?),
            _ => return None,
        };
        Some(Self { id: text("kid").map(Into::into), algorithm, material })
    }

    /// Returns whether the key may verify signatures of this algorithm.
    pub(crate) fn fits(&self, algorithm: Algorithm) -> bool {
        let is_of_kind = match self.material {
            Material::Rsa { .. } => algorithm.rsa().is_some(),
            Material::P256(_) => algorithm == Algorithm::ES256,
            Material::P384(_) => algorithm == Algorithm::ES384,
            Material::Ed25519(_) => algorithm == Algorithm::EdDSA,
        };
        is_of_kind && self.algorithm.is_none_or(|own| own == algorithm)
    }

    /// Returns whether this is the signature of `message`. A key never verifies an algorithm that it
    /// does not [fit](Self::fits).
    pub(crate) fn verifies(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        if !self.fits(algorithm) {
            return false;
        }
        let verified = match (&self.material, algorithm.rsa()) {
            (Material::Rsa { n, e }, Some(parameters)) => {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            (Material::Rsa { .. }, None) => return false,
            (Material::P256(point), _) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            (Material::P384(point), _) => {
                UnparsedPublicKey::new(&ECDSA_P384_SHA384_FIXED, point).verify(message, signature)
            }
            (Material::Ed25519(key), _) => {
                UnparsedPublicKey::new(&ED25519, key).verify(message, signature)
            }
        };
        verified.is_ok()
    }

    /// Verifies a made-up signature, to spend the time of a real check. Returns the algorithm that was used.
    pub(crate) fn verify_decoy(&self, message: &[u8]) -> Option<Algorithm> {
        let mut algorithms = Algorithm::NAMES.iter().map(|(_, algorithm)| *algorithm);
        let algorithm = algorithms.find(|algorithm| self.fits(*algorithm))?;
        let length = match &self.material {
            Material::Rsa { n, .. } => n.len(),
            Material::P256(_) | Material::Ed25519(_) => 64,
            Material::P384(_) => 96,
        };
        // Numbers out of range would be refused before any computation.
        std::hint::black_box(self.verifies(algorithm, message, &vec![5; length]));
        Some(algorithm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::object;

    #[test]
    fn a_key_is_read_if_it_verifies_signatures() {
        let x = "A".repeat(43);
        let ed = |more: &str| format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{x}"{more}}}"#);
        for (jwk, is_read) in [
            (ed(""), true),
            (ed(r#","use":"sig","alg":"EdDSA","kid":"a","key_ops":["verify"]"#), true),
            (ed(r#","use":"enc""#), false),
            (ed(r#","key_ops":["encrypt"]"#), false),
            (ed(r#","alg":"HS256""#), false),
            (r#"{"kty":"oct","k":"AAAA"}"#.to_owned(), false),
            (format!(r#"{{"kty":"EC","crv":"P-256","x":"{x}","y":"{x}"}}"#), true),
            (format!(r#"{{"kty":"EC","crv":"P-256","x":"{x}","y":"AAAA"}}"#), false),
            (r#"{"kty":"OKP","crv":"X25519","x":"AAAA"}"#.to_owned(), false),
            ("{}".to_owned(), false),
        ] {
            let jwk = object(jwk.as_bytes()).unwrap();
            assert_eq!(PublicKey::from_jwk(&jwk).is_some(), is_read, "{jwk:?}");
        }
    }

    #[test]
    fn a_key_verifies_no_algorithm_of_another_kind() {
        let point = "A".repeat(43);
        let jwk = format!(r#"{{"kty":"EC","crv":"P-256","x":"{point}","y":"{point}"}}"#);
        let key = PublicKey::from_jwk(&object(jwk.as_bytes()).unwrap()).unwrap();
        let fitting: Vec<Algorithm> =
            Algorithm::all().into_iter().filter(|algorithm| key.fits(*algorithm)).collect();
        assert_eq!(fitting, [Algorithm::ES256]);
        assert!(!key.verifies(Algorithm::ES256, b"", &[0; 64]));
        assert_eq!(key.verify_decoy(b""), Some(Algorithm::ES256));
        assert_eq!(Algorithm::named("none"), None);
        assert_eq!(Algorithm::named("HS256"), None);
    }
}

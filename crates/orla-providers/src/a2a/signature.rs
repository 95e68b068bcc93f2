//! Signed cards (A2A §8.4): JSON Web Signatures (RFC 7515) over the card's canonical form (RFC 8785). Pure.
//!
//! Signers differ in the form that they sign: the card as it is served, the card without empty members, or only
//! the members of the protocol. A signature over any of these is valid, and only the members that it covers are
//! used.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use orla_marketplace::attestation::canonical_json;
use ring::signature::{ECDSA_P256_SHA256_FIXED, ED25519, UnparsedPublicKey};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The maximum number of signatures of a card that are examined.
const MAX_SIGNATURES: usize = 16;

/// The members of a card that the protocol defines, without its signatures.
const KNOWN: [&str; 13] = [
    "name",
    "description",
    "supportedInterfaces",
    "provider",
    "version",
    "documentationUrl",
    "capabilities",
    "securitySchemes",
    "securityRequirements",
    "defaultInputModes",
    "defaultOutputModes",
    "skills",
    "iconUrl",
];

/// A signature of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Signature {
    protected: String,
    signature: Vec<u8>,
    header: Header,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
struct Header {
    alg: String,
    kid: Option<String>,
    jku: Option<String>,
}

/// The public keys of a signer (RFC 7517) that can be used here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeySet(Vec<Key>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    kid: Option<String>,
    kind: Kind,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Es256,
    EdDsa,
}

impl Signature {
    /// Returns the signer's address of its keys.
    pub(super) fn key_set(&self) -> Option<&str> {
        self.header.jku.as_deref()
    }

    fn is_by(&self, key: &Key) -> bool {
        let names_it = match (&self.header.kid, &key.kid) {
            (Some(wanted), Some(kid)) => wanted == kid,
            _ => true,
        };
        let is_of_kind = match key.kind {
            Kind::Es256 => self.header.alg == "ES256",
            Kind::EdDsa => matches!(self.header.alg.as_str(), "EdDSA" | "Ed25519"),
        };
        names_it && is_of_kind
    }

    fn holds(&self, key: &Key, canonical: &str) -> bool {
        let signed = format!("{}.{}", self.protected, URL_SAFE_NO_PAD.encode(canonical));
        let verified = match key.kind {
            Kind::Es256 => UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &key.bytes)
                .verify(signed.as_bytes(), &self.signature),
            Kind::EdDsa => {
                UnparsedPublicKey::new(&ED25519, &key.bytes).verify(signed.as_bytes(), &self.signature)
            }
        };
        verified.is_ok()
    }
}

/// Returns the signatures of a card.
///
/// # Errors
/// An entry is not a signature.
pub(super) fn signatures(card: &Value) -> Result<Vec<Signature>, String> {
    let listed = match card.get("signatures") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(listed)) => listed,
        Some(_) => return Err("its card's signatures are not a list".to_owned()),
    };
    let read = |signature: &Value| -> Option<Signature> {
        let protected = signature.get("protected")?.as_str()?;
        let header = serde_json::from_slice(&bytes(protected)?).ok()?;
        let signature = bytes(signature.get("signature")?.as_str()?)?;
        Some(Signature { protected: protected.to_owned(), signature, header })
    };
    let listed = listed.iter().take(MAX_SIGNATURES);
    listed
        .map(|one| read(one).ok_or_else(|| "a signature of its card cannot be read".to_owned()))
        .collect()
}

impl KeySet {
    /// Reads a JSON Web Key Set, or a single key.
    ///
    /// # Errors
    /// The text is not JSON, or has no usable key.
    pub(super) fn read(text: &[u8]) -> Result<Self, String> {
        let set: Value = serde_json::from_slice(text).map_err(|err| format!("no JSON: {err}"))?;
        let keys = match set.get("keys") {
            Some(Value::Array(keys)) => keys.iter().filter_map(key).collect(),
            _ => key(&set).into_iter().collect(),
        };
        if Vec::is_empty(&keys) {
            return Err("there is no key for ES256 or EdDSA in it".to_owned());
        }
        Ok(Self(keys))
    }
}

fn key(key: &Value) -> Option<Key> {
    let text = |name: &str| key.get(name).and_then(Value::as_str);
    let (kind, key) = match (text("kty")?, text("crv")?) {
        ("EC", "P-256") => {
            let mut point = vec![4];
            for coordinate in ["x", "y"] {
                let coordinate = bytes(text(coordinate)?).filter(|bytes| bytes.len() == 32)?;
                point.extend(coordinate);
            }
            (Kind::Es256, point)
        }
        ("OKP", "Ed25519") => (Kind::EdDsa, bytes(text("x")?).filter(|bytes| bytes.len() == 32)?),
        _ => return None,
    };
    Some(Key { kid: text("kid").map(str::to_owned), kind, bytes: key })
}

/// Returns the part of a card that a signature by one of these keys covers.
///
/// # Errors
/// A signature by one of the keys is invalid, or none is by any of them.
pub(super) fn verified(card: &Value, signatures: &[Signature], keys: &KeySet) -> Result<Value, String> {
    let mut was_checked = false;
    for signature in signatures {
        for key in keys.0.iter().filter(|key| signature.is_by(key)) {
            was_checked = true;
            for view in views(card) {
                let canonical = canonical_json(&view.to_string());
                if canonical.is_ok_and(|canonical| signature.holds(key, &canonical)) {
                    return Ok(view);
                }
            }
        }
    }
    Err(match was_checked {
        true => "the signature of its card is wrong: someone may have changed the card".to_owned(),
        false => "its card is not signed by any of the keys".to_owned(),
    })
}

/// Returns the views of a card that a signer may have signed.
fn views(card: &Value) -> impl Iterator<Item = Value> {
    let whole: Map<String, Value> = card.as_object().cloned().unwrap_or_default();
    let unsigned: Map<String, Value> =
        whole.into_iter().filter(|(name, _)| name != "signatures").collect();
    let known: Map<String, Value> = unsigned
        .iter()
        .filter(|(name, _)| KNOWN.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    [
        Some(Value::Object(unsigned.clone())),
        without_empty(&Value::Object(unsigned)),
        Some(Value::Object(known.clone())),
        without_empty(&Value::Object(known)),
    ]
    .into_iter()
    .flatten()
}

/// Returns the value without empty members and items; `None` if nothing is left.
fn without_empty(value: &Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::String(text) if text.is_empty() => None,
        Value::Array(items) => {
            let items: Vec<Value> = items.iter().filter_map(without_empty).collect();
            (!items.is_empty()).then_some(Value::Array(items))
        }
        Value::Object(members) => {
            let members: Map<String, Value> = members
                .iter()
                .filter_map(|(name, value)| Some((name.clone(), without_empty(value)?)))
                .collect();
            (!members.is_empty()).then_some(Value::Object(members))
        }
        other => Some(other.clone()),
    }
}

/// Decodes the base64 of signatures; some signers write the other alphabet.
fn bytes(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=');
    URL_SAFE_NO_PAD.decode(text).ok().or_else(|| STANDARD.decode(text).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
    use serde_json::json;

    fn protected(alg: &str) -> String {
        URL_SAFE_NO_PAD.encode(json!({"alg": alg, "kid": "k", "typ": "JOSE"}).to_string())
    }

    fn with(card: &Value, protected: &str, signature: &[u8]) -> Value {
        let mut card = card.clone();
        card["signatures"] =
            json!([{"protected": protected, "signature": URL_SAFE_NO_PAD.encode(signature)}]);
        card
    }

    fn card() -> Value {
        json!({"name": "A", "description": "", "skills": [], "version": "1", "supportedInterfaces": [{"url": "http://a", "protocolBinding": "JSONRPC"}], "extra": 1})
    }

    /// Both kinds of keys, as (algorithm, key set, signer).
    type Signer = (&'static str, Vec<u8>, Box<dyn Fn(&[u8]) -> Vec<u8>>);

    fn signers() -> Vec<Signer> {
        let random = SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let ec =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random).unwrap();
        let point = ec.public_key().as_ref().to_vec();
        let [x, y] = [&point[1..33], &point[33..]].map(|half| URL_SAFE_NO_PAD.encode(half));
        let ec_set =
            json!({"keys": [{"kty": "RSA"}, {"kty": "EC", "crv": "P-256", "kid": "k", "x": x, "y": y}]});
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        let ed = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap();
        let x = URL_SAFE_NO_PAD.encode(ed.public_key().as_ref());
        let ed_set = json!({"kty": "OKP", "crv": "Ed25519", "x": x});
        vec![
            (
                "ES256",
                ec_set.to_string().into_bytes(),
                Box::new(move |text| ec.sign(&SystemRandom::new(), text).unwrap().as_ref().to_vec()),
            ),
            (
                "EdDSA",
                ed_set.to_string().into_bytes(),
                Box::new(move |text| ed.sign(text).as_ref().to_vec()),
            ),
        ]
    }

    #[test]
    fn a_signature_holds_for_what_was_signed_and_nothing_else() {
        let forms: [(&str, Value); 3] = [
            ("as it is", card()),
            ("without what is empty", without_empty(&card()).unwrap()),
            (
                "what is known",
                json!({"name": "A", "version": "1", "supportedInterfaces": [{"url": "http://a", "protocolBinding": "JSONRPC"}]}),
            ),
        ];
        for (alg, keys, sign) in signers() {
            let keys = KeySet::read(&keys).unwrap();
            for (form, covered) in &forms {
                let protected = protected(alg);
                let payload = URL_SAFE_NO_PAD.encode(canonical_json(&covered.to_string()).unwrap());
                let signed =
                    with(&card(), &protected, &sign(format!("{protected}.{payload}").as_bytes()));
                let found = signatures(&signed).unwrap();
                assert_eq!(verified(&signed, &found, &keys), Ok(covered.clone()), "{alg} {form}");
                let mut changed = signed.clone();
                changed["supportedInterfaces"][0]["url"] = "http://b".into();
                let refused = verified(&changed, &found, &keys).unwrap_err();
                assert!(refused.contains("wrong"), "{refused}");
            }
        }
    }

    #[test]
    fn a_wrong_key_and_a_malformed_signature_are_distinct_errors() {
        let (ec, ed) = {
            let mut all = signers();
            (all.remove(0), all.remove(0))
        };
        let signed = with(&card(), &protected(ec.0), &[0; 64]);
        let found = signatures(&signed).unwrap();
        let refused = verified(&signed, &found, &KeySet::read(&ed.1).unwrap()).unwrap_err();
        assert!(refused.contains("not signed by any"), "{refused}");
        assert!(signatures(&json!({"signatures": [{"protected": "x"}]})).is_err());
        assert!(signatures(&json!({"signatures": 1})).is_err());
        assert_eq!(signatures(&json!({})), Ok(Vec::new()));
        assert!(KeySet::read(b"{}").is_err() && KeySet::read(b"x").is_err());
    }
}

//! Signs statements, and checks whether they are still valid.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde_json::json;

use super::instant::format_instant;
use super::keys::{PublicKey, SigningKey};
use super::{canonical_json, hash_text, manifest_form};
use crate::manifest::{CapabilityAttestation, CapabilityManifest};

/// Metadata key of an attestation: the hash of the manifest's canonical form.
pub const MANIFEST_HASH: &str = "manifest_hash";
/// Metadata key of an attestation: the hash of the content that runs.
pub const CONTENT_HASH: &str = "content_hash";
/// Metadata key of an attestation: the version of the forms that its hashes are computed from.
const VERSION: &str = "version";
/// The current version of the forms: RFC 8785 for both. The first version had its own form, and no
/// version in its metadata.
const CURRENT: &str = "2";

/// The prefix of every statement. A signature made for another purpose never matches.
const PURPOSE: &str = "orla attestation 1\n";
/// The maximum difference between clocks.
const SKEW: Duration = Duration::from_secs(300);

/// The public keys by the names of their authorities.
pub type TrustedKeys = BTreeMap<String, PublicKey>;

/// The subject of an attestation: a capability in its present state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The hash of its manifest's canonical form.
    pub manifest_hash: String,
    /// The hash of the content that runs.
    pub content_hash: String,
}

impl Subject {
    /// Creates a subject from a manifest and a content hash.
    ///
    /// # Errors
    /// The manifest has no canonical form.
    pub fn new(
        manifest: &CapabilityManifest,
        content_hash: String,
    ) -> Result<Self, super::CanonicalError> {
        Ok(Self { manifest_hash: hash_text(manifest_form(manifest)?.as_bytes()), content_hash })
    }
}

/// The authority of a statement, and its period of validity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The authority whose key signs.
    pub authority: String,
    /// The time of signing, in whole seconds.
    pub created_at: SystemTime,
    /// The expiry, if any.
    pub expires_at: Option<SystemTime>,
}

/// Attests a capability in its present state.
pub fn sign(subject: &Subject, validity: Validity, key: &SigningKey) -> CapabilityAttestation {
    let metadata = [
        (MANIFEST_HASH.to_owned(), subject.manifest_hash.clone()),
        (CONTENT_HASH.to_owned(), subject.content_hash.clone()),
        (VERSION.to_owned(), CURRENT.to_owned()),
    ];
    let Validity { authority, created_at, expires_at } = validity;
    let mut attestation = CapabilityAttestation {
        signature: String::new(),
        authority,
        created_at,
        expires_at,
        metadata: metadata.into(),
    };
    attestation.signature = key.sign(statement(&attestation).as_bytes());
    attestation
}

/// The reason why an attestation is not valid for a capability.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Flaw {
    /// Its authority is not trusted.
    #[error("its authority {0} is not among trusted_keys")]
    UnknownAuthority(String),
    /// It was not signed by the authority's key, or changed afterwards.
    #[error("its signature is not that of {0}")]
    BadSignature(String),
    /// It was made in the future.
    #[error("it is not valid before {}", format_instant(*.0))]
    TooEarly(SystemTime),
    /// The attestation has expired.
    #[error("it expired at {}", format_instant(*.0))]
    Expired(SystemTime),
    /// The hashes are computed from forms that this version of orla does not use.
    #[error("another version of orla made it: attest the capability again")]
    OtherVersion,
    /// The manifest is different.
    #[error("its manifest has changed since it was attested")]
    ManifestChanged,
    /// The content is different.
    #[error("the content has changed since it was attested")]
    ContentChanged,
}

/// Checks whether an attestation is valid for a capability in its present state.
///
/// # Errors
/// The first reason why it is not.
pub fn check(
    attestation: &CapabilityAttestation,
    subject: &Subject,
    keys: &TrustedKeys,
    now: SystemTime,
) -> Result<(), Flaw> {
    signed(attestation, keys)?;
    timely(attestation, now)?;
    fits(attestation, subject)
}

/// Checks whether the key of the authority signed an attestation. The content is not checked.
///
/// # Errors
/// The authority is not trusted, or its key did not sign this.
pub fn signed(attestation: &CapabilityAttestation, keys: &TrustedKeys) -> Result<(), Flaw> {
    let authority = &attestation.authority;
    let key = keys.get(authority).ok_or_else(|| Flaw::UnknownAuthority(authority.clone()))?;
    match key.verifies(statement(attestation).as_bytes(), &attestation.signature) {
        true => Ok(()),
        false => Err(Flaw::BadSignature(authority.clone())),
    }
}

/// Checks whether this time is within the validity of an attestation.
///
/// # Errors
/// It is too early or too late.
pub fn timely(attestation: &CapabilityAttestation, now: SystemTime) -> Result<(), Flaw> {
    if now.checked_add(SKEW).is_some_and(|now| now < attestation.created_at) {
        return Err(Flaw::TooEarly(attestation.created_at));
    }
    match attestation.expires_at.filter(|end| *end <= now) {
        Some(end) => Err(Flaw::Expired(end)),
        None => Ok(()),
    }
}

/// Returns whether an attestation's hashes are computed from the current forms.
pub fn is_current(attestation: &CapabilityAttestation) -> bool {
    attestation.metadata.get(VERSION).is_some_and(|version| version == CURRENT)
}

/// Checks whether an attestation was made for a capability in its present state.
///
/// # Errors
/// What has changed.
pub fn fits(attestation: &CapabilityAttestation, subject: &Subject) -> Result<(), Flaw> {
    let metadata = |key: &str| attestation.metadata.get(key).map(String::as_str);
    if !is_current(attestation) {
        return Err(Flaw::OtherVersion);
    }
    if metadata(MANIFEST_HASH) != Some(&subject.manifest_hash) {
        return Err(Flaw::ManifestChanged);
    }
    if metadata(CONTENT_HASH) != Some(&subject.content_hash) {
        return Err(Flaw::ContentChanged);
    }
    Ok(())
}

/// Returns the bytes that are signed: everything in the attestation except the signature.
fn statement(attestation: &CapabilityAttestation) -> String {
    let signed = json!({
        "authority": attestation.authority,
        "created_at": format_instant(attestation.created_at),
        "expires_at": attestation.expires_at.map(format_instant),
        "metadata": attestation.metadata,
    });
    // The statement consists of texts, which always have a canonical form.
    format!("{PURPOSE}{}", canonical_json(&signed.to_string()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::{LocalCapability, ProviderType};
    use proptest::prelude::*;
    use std::time::UNIX_EPOCH;

    const DAY: Duration = Duration::from_secs(86_400);

    fn noon() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_795_176_000)
    }

    fn subject() -> Subject {
        let provider = ProviderType::Local(LocalCapability::new("f"));
        Subject::new(&CapabilityManifest::new("a", "Does it.", provider), hash_text(b"x")).unwrap()
    }

    fn signed() -> (CapabilityAttestation, TrustedKeys) {
        let key = SigningKey::generate().unwrap().0;
        let validity =
            Validity { authority: "ops".into(), created_at: noon(), expires_at: Some(noon() + DAY) };
        (sign(&subject(), validity, &key), [("ops".to_owned(), key.public())].into())
    }

    #[test]
    fn it_holds_for_what_it_was_made_for_and_as_long_as_it_says() {
        let (attestation, keys) = signed();
        let other = Subject { content_hash: hash_text(b"y"), ..subject() };
        let renamed = Subject { manifest_hash: hash_text(b"z"), ..subject() };
        let cases = [
            ("as it was", subject(), noon(), None),
            ("a second before its end", subject(), noon() + DAY - Duration::from_secs(1), None),
            ("at its end", subject(), noon() + DAY, Some(Flaw::Expired(noon() + DAY))),
            ("by a clock that is late", subject(), noon() - Duration::from_secs(60), None),
            ("before it was made", subject(), noon() - DAY, Some(Flaw::TooEarly(noon()))),
            ("another content", other, noon(), Some(Flaw::ContentChanged)),
            ("another manifest", renamed, noon(), Some(Flaw::ManifestChanged)),
        ];
        for (name, subject, now, flaw) in cases {
            assert_eq!(check(&attestation, &subject, &keys, now).err(), flaw, "{name}");
        }
    }

    #[test]
    fn an_attestation_of_an_earlier_version_says_that_it_has_to_be_made_again() {
        let key = SigningKey::generate().unwrap().0;
        let keys = [("ops".to_owned(), key.public())].into();
        let validity = Validity { authority: "ops".into(), created_at: noon(), expires_at: None };
        let mut attestation = sign(&subject(), validity, &key);
        attestation.metadata.remove(VERSION);
        attestation.signature = key.sign(statement(&attestation).as_bytes());
        assert_eq!(check(&attestation, &subject(), &keys, noon()), Err(Flaw::OtherVersion));
    }

    #[test]
    fn nothing_that_it_says_can_be_changed() {
        type Change = fn(&mut CapabilityAttestation);
        let changes: [(&str, Change); 6] = [
            ("created_at", |a| a.created_at -= DAY),
            ("expires_at", |a| a.expires_at = a.expires_at.map(|at| at + DAY)),
            ("no end", |a| a.expires_at = None),
            ("more metadata", |a| drop(a.metadata.insert("x".into(), "y".into()))),
            ("a hash", |a| drop(a.metadata.insert(CONTENT_HASH.into(), hash_text(b"y")))),
            ("the signature", |a| a.signature = a.signature.replace(['a', 'A'], "B")),
        ];
        for (name, change) in changes {
            let (mut attestation, keys) = signed();
            let before = attestation.clone();
            change(&mut attestation);
            let flaw = check(&attestation, &subject(), &keys, noon()).err();
            let unchanged = attestation == before;
            assert!(unchanged || flaw == Some(Flaw::BadSignature("ops".into())), "{name}: {flaw:?}");
        }
    }

    #[test]
    fn only_the_key_of_its_authority_counts() {
        let (mut attestation, mut keys) = signed();
        let other = SigningKey::generate().unwrap().0.public();
        let untrusted = check(&attestation, &subject(), &TrustedKeys::new(), noon());
        assert_eq!(untrusted, Err(Flaw::UnknownAuthority("ops".into())));
        keys.insert("dev".into(), keys["ops"]);
        attestation.authority = "dev".into();
        let borrowed = check(&attestation, &subject(), &keys, noon());
        assert_eq!(borrowed, Err(Flaw::BadSignature("dev".into())));
        attestation.authority = "ops".into();
        keys.insert("ops".into(), other);
        let forged = check(&attestation, &subject(), &keys, noon());
        assert_eq!(forged, Err(Flaw::BadSignature("ops".into())));
    }

    proptest! {
        #[test]
        fn a_changed_signature_is_invalid(at in 0..86usize, with in "[A-Za-z0-9+/=]") {
            let (mut attestation, keys) = signed();
            let before = attestation.signature.clone();
            attestation.signature.replace_range(at..=at, &with);
            let holds = check(&attestation, &subject(), &keys, noon()).is_ok();
            prop_assert_eq!(holds, attestation.signature == before);
        }
    }
}

//! Signatures of packages: the Sigstore bundles that npm and PyPI publish beside archives. No I/O.
//!
//! A bundle has a statement about an archive, a signature over it, the certificate of its signer, and an
//! entry of a transparency log. [`Verifier::verify`] checks all of them against a root of trust: the
//! signature, the certificate's chain at the time of the entry, its entry in a certificate log, the
//! inclusion of the signature in the transparency log, and that the statement is about this archive. The
//! library does these checks. This module reads the documents of the registries, and decides which
//! statements count and what a signer is called.

mod crypto;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sigstore_verify::VerificationPolicy;
use sigstore_verify::crypto::{CertificateInfo, install_default_provider};
use sigstore_verify::trust_root::{SIGSTORE_PRODUCTION_TRUSTED_ROOT, TrustedRoot};
use sigstore_verify::types::{
    ArtifactDigest, Bundle, Digest, HashAlgorithm, SignatureContent, Statement,
};

use crate::environment::Requirement;
use crate::sha256;
use crate::source::pypi_name;

/// The maximum number of bundles of an archive.
const MAX_BUNDLES: usize = 32;
/// The statements that say who made an archive. Others, such as reports about it, count for nothing.
const PREDICATES: [&str; 3] = [
    "https://slsa.dev/provenance/v1",
    "https://slsa.dev/provenance/v0.2",
    "https://docs.pypi.org/attestations/publish/v1",
];
/// The issuers whose certificates name a repository, and what its URL begins with.
const FORGES: [(&str, &str); 2] = [
    ("https://token.actions.githubusercontent.com", "https://github.com/"),
    ("https://gitlab.com", "https://gitlab.com/"),
];

/// Who signed an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signer {
    /// The URL of the repository whose workflow signed it, at GitHub or GitLab. For another signer,
    /// `identity NAME of ISSUER`, which no pattern of a URL matches.
    pub name: String,
    /// The workflow in that repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow: Option<String>,
}

/// Returns the SHA-256 of a root of trust. What was verified by one root is not verified by another one.
/// Without a root, it is that of [`Verifier::new`].
pub fn digest_of_root(root: Option<&str>) -> String {
    sha256(root.unwrap_or(SIGSTORE_PRODUCTION_TRUSTED_ROOT).as_bytes())
}

/// Verifies signatures.
pub struct Verifier(sigstore_verify::Verifier);

impl Verifier {
    /// Trusts a root in the format of Sigstore (`trusted_root.json`); without one, that of Sigstore's
    /// public instance, in the state that this version of orla contains.
    ///
    /// # Errors
    /// It is not a root of trust.
    pub fn new(root: Option<&str>) -> Result<Self, String> {
        // It fails if there is one already, which is this one.
        let _ = install_default_provider(&crypto::Ring);
        let root = TrustedRoot::from_json(root.unwrap_or(SIGSTORE_PRODUCTION_TRUSTED_ROOT));
        let root = root.map_err(|error| format!("not a root of trust: {error}"))?;
        let verifier = sigstore_verify::Verifier::new(&root);
        Ok(Self(verifier.map_err(|error| format!("not a root of trust: {error}"))?))
    }

    /// Verifies all signatures of an archive, and returns its signer. Without a signature, there is none.
    ///
    /// # Errors
    /// One of them is not valid, is not about this archive in this version of this package, or is of another
    /// signer than the others.
    pub fn verify(&self, bundles: &[Value], archive: &Requirement) -> Result<Option<Signer>, String> {
        if bundles.len() > MAX_BUNDLES {
            return Err(format!("it has more than {MAX_BUNDLES} signatures"));
        }
        let digest = digest(archive)?;
        let mut signer: Option<Signer> = None;
        for bundle in bundles {
            let this = self.verify_one(bundle, archive, &digest)?;
            match &signer {
                Some(other) if other.name != this.name => {
                    return Err(format!("it is signed by {} and by {}", other.name, this.name));
                }
                Some(_) => {}
                None => signer = Some(this),
            }
        }
        Ok(signer)
    }

    fn verify_one(
        &self,
        bundle: &Value,
        archive: &Requirement,
        digest: &ArtifactDigest,
    ) -> Result<Signer, String> {
        let invalid = |why: &dyn std::fmt::Display| format!("its signature is not valid: {why}");
        let bundle = Bundle::deserialize(bundle).map_err(|error| invalid(&error))?;
        let SignatureContent::DsseEnvelope(envelope) = &bundle.content else {
            return Err(invalid(&"it is not a signed statement"));
        };
        // Without restriction: the caller decides about the signer.
        let policy = VerificationPolicy::any_identity();
        let verified = self.0.verify(digest.clone(), &bundle, &policy);
        let verified = verified.map_err(|error| invalid(&error))?;
        let statement: Statement =
            serde_json::from_slice(envelope.payload.as_bytes()).map_err(|error| invalid(&error))?;
        if !PREDICATES.contains(&statement.predicate_type.as_str()) {
            let kind = statement.predicate_type.escape_debug();
            return Err(invalid(&format!("the statement {kind} does not say who made the archive")));
        }
        // A registry could give the archive and the signature of another package of the same signer.
        let subjects = statement.subject.iter().filter(|subject| {
            let Digest { sha256, sha512, .. } = &subject.digest;
            let is_it = |bytes: &[u8]| bytes == digest.as_bytes();
            sha256.as_ref().is_some_and(|hash| is_it(hash.as_bytes()))
                || sha512.as_ref().is_some_and(|hash| is_it(hash.as_bytes()))
        });
        let names: Vec<&str> = subjects.map(|subject| subject.name.as_str()).collect();
        if !names.iter().any(|name| is_name_of(name, archive)) {
            let Requirement { name, version, .. } = archive;
            let other = names.first().copied().unwrap_or_default().escape_debug();
            return Err(invalid(&format!("the statement is about {other}, not about {name} {version}")));
        }
        let certificate = verified.certificate().ok_or_else(|| invalid(&"it has no certificate"))?;
        signer(certificate).ok_or_else(|| invalid(&"its certificate names nobody"))
    }
}

/// Returns whether a statement names a package in this version: as a package URL for npm, and as the
/// name of its file for PyPI.
fn is_name_of(subject: &str, archive: &Requirement) -> bool {
    let Requirement { place, name, version, .. } = archive;
    if !place.is_empty() {
        // A package of another registry than npm's has its URL behind a question mark.
        let subject = subject.split('?').next().unwrap_or_default();
        return subject == format!("pkg:npm/{}@{version}", name.replace('@', "%40"));
    }
    let parts = match subject.strip_suffix(".whl") {
        Some(wheel) => {
            wheel.split_once('-').and_then(|(name, rest)| Some((name, rest.split_once('-')?.0)))
        }
        None => subject.strip_suffix(".tar.gz").and_then(|source| source.rsplit_once('-')),
    };
    parts.is_some_and(|(named, of)| {
        pypi_name(named) == pypi_name(name) && pypi_name(of) == pypi_name(version)
    })
}

/// Returns the signer that a certificate names.
fn signer(certificate: &CertificateInfo) -> Option<Signer> {
    let issuer = certificate.issuer.as_deref()?;
    let claims = &certificate.ci_claims;
    let forge = FORGES.iter().find(|(known, _)| *known == issuer);
    let repository = claims.source_repository_uri.as_deref();
    if let Some(name) = forge.and_then(|(_, url)| repository.filter(|name| name.starts_with(url))) {
        let workflow = claims.build_config_uri.as_deref();
        let workflow = workflow.and_then(|workflow| workflow.strip_prefix(name)?.strip_prefix('/'));
        return Some(Signer { name: name.to_owned(), workflow: workflow.map(str::to_owned) });
    }
    let identity = certificate.identity.as_ref()?;
    Some(Signer { name: format!("identity {identity} of {issuer}"), workflow: None })
}

fn digest(archive: &Requirement) -> Result<ArtifactDigest, String> {
    let (algorithm, bytes) = match archive.digest.strip_prefix("sha512-") {
        Some(digest) => (HashAlgorithm::Sha2512, BASE64_STANDARD.decode(digest).ok()),
        None => (HashAlgorithm::Sha2256, hex::decode(&archive.digest).ok()),
    };
    let digest = bytes.and_then(|bytes| ArtifactDigest::new(algorithm, bytes).ok());
    digest.ok_or_else(|| format!("{} is not a digest", archive.digest))
}

/// Returns the bundles in npm's document about the attestations of a package. Those that the registry
/// signed itself are left out.
///
/// # Errors
/// It is not such a document.
pub fn npm_bundles(document: &[u8]) -> Result<Vec<Value>, String> {
    let mut document: Value =
        serde_json::from_slice(document).map_err(|error| format!("attestations of npm: {error}"))?;
    let Some(Value::Array(all)) = document.get_mut("attestations").map(Value::take) else {
        return Err("attestations of npm: it has no attestations".to_owned());
    };
    let says_who_made_it =
        |one: &Value| one["predicateType"].as_str().is_some_and(|kind| PREDICATES.contains(&kind));
    Ok(all.into_iter().filter(says_who_made_it).map(|mut one| one["bundle"].take()).collect())
}

/// Returns the bundles in PyPI's document about the provenance of a file.
///
/// # Errors
/// It is not such a document.
pub fn pypi_bundles(document: &[u8]) -> Result<Vec<Value>, String> {
    let wrong = |why: &str| format!("provenance of PyPI: {why}");
    let document: Value = serde_json::from_slice(document).map_err(|error| wrong(&error.to_string()))?;
    let list = |value: &Value, key: &str| -> Result<Vec<Value>, String> {
        let list = value.get(key).and_then(Value::as_array).cloned();
        list.ok_or_else(|| wrong(&format!("{key} are missing")))
    };
    let mut bundles = Vec::new();
    for publisher in list(&document, "attestation_bundles")? {
        bundles.extend(list(&publisher, "attestations")?.iter().map(bundle_of_attestation));
    }
    Ok(bundles)
}

/// Returns an attestation of PyPI (PEP 740) in the format of Sigstore, which has the same parts.
fn bundle_of_attestation(attestation: &Value) -> Value {
    let (material, envelope) = (&attestation["verification_material"], &attestation["envelope"]);
    json!({
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {
            "certificate": {"rawBytes": material["certificate"]},
            "tlogEntries": material["transparency_entries"],
        },
        "dsseEnvelope": {
            "payloadType": "application/vnd.in-toto+json",
            "payload": envelope["statement"],
            "signatures": [{"sig": envelope["signature"]}],
        },
    })
}

/// Returns the URL of the provenance of a file with this SHA-256, in the description of a project by an
/// index of Python packages. `None` if the index has none, or describes itself only in HTML.
pub fn pypi_provenance(project: &[u8], sha256: &str) -> Option<String> {
    let project: Value = serde_json::from_slice(project).ok()?;
    let files = project["files"].as_array()?;
    let file = files.iter().find(|file| file["hashes"]["sha256"] == sha256)?;
    file["provenance"].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests;

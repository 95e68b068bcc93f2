//! A substitute for Sigstore on this machine: an authority for certificates, a certificate log and a
//! transparency log, whose signatures can have single faults.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType, date_time_ymd,
};
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use serde_json::{Value, json};

use super::registry::sha256;

/// The certificates are valid on this day, 2026-01-01, in seconds since 1970.
const DAY: u64 = 1_767_225_600;
/// The kind of statement that says how a package was built.
pub(crate) const PROVENANCE: &str = "https://slsa.dev/provenance/v1";

/// What is wrong with a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// It was made when its certificate had expired.
    Expired,
    /// Its certificate is not in the certificate log.
    Unlogged,
    /// Its certificate is of another authority.
    OtherAuthority,
    /// The transparency log is another one.
    OtherLog,
    /// The log has promised another entry.
    OtherPromise,
    /// The entry has no proof of its inclusion.
    NoProof,
    /// It is of another key than that of the certificate.
    OtherKey,
    /// The statement is a report about the package.
    OtherStatement,
}

pub(crate) struct Sigstore {
    authority: Issuer<'static, KeyPair>,
    certificate: Vec<u8>,
    certificates: KeyPair,
    log: KeyPair,
}

impl Sigstore {
    pub(crate) fn start() -> Self {
        let key = key();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("a certificate").der().to_vec();
        let authority = Issuer::new(params, key);
        Self { authority, certificate, certificates: self::key(), log: self::key() }
    }

    /// Returns its root of trust.
    pub(crate) fn root(&self) -> String {
        let log = |key: &KeyPair| {
            let spki = key.subject_public_key_info();
            json!([{
                "baseUrl": "https://log.example", "hashAlgorithm": "SHA2_256",
                "logId": {"keyId": base64(digest(&SHA256, &spki).as_ref())},
                "publicKey": {"rawBytes": base64(&spki), "keyDetails": "PKIX_ECDSA_P256_SHA_256",
                    "validFor": {"start": "2021-01-01T00:00:00Z"}},
            }])
        };
        let root = json!({
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": log(&self.log), "ctlogs": log(&self.certificates),
            "certificateAuthorities": [{
                "uri": "https://authority.example",
                "certChain": {"certificates": [{"rawBytes": base64(&self.certificate)}]},
                "validFor": {"start": "2021-01-01T00:00:00Z"},
            }],
        });
        root.to_string()
    }

    /// Returns a signature of a repository's workflow over an archive, such as `{"name":
    /// "pkg:npm/NAME@VERSION", "digest": {"sha512": "…"}}`, as a Sigstore bundle.
    pub(crate) fn sign(&self, repository: &str, archive: &Value, fault: Fault) -> Value {
        let of_other = Self::start();
        let key = key();
        let certificate = match fault {
            Fault::OtherAuthority => of_other.certify(&key, repository, fault),
            _ => self.certify(&key, repository, fault),
        };
        let predicate = match fault {
            Fault::OtherStatement => "https://example.com/report/v1",
            _ => PROVENANCE,
        };
        let statement = json!({
            "_type": "https://in-toto.io/Statement/v1", "predicateType": predicate, "predicate": {},
            "subject": [archive],
        });
        let (kind, statement) = ("application/vnd.in-toto+json", statement.to_string());
        let signed = format!("DSSEv1 {} {kind} {} {statement}", kind.len(), statement.len());
        let signer = if fault == Fault::OtherKey { &of_other.log } else { &key };
        let signature = base64(&sign(signer, signed.as_bytes()));
        let entry = json!({"apiVersion": "0.0.1", "kind": "dsse", "spec": {
            "envelopeHash": {"algorithm": "sha256", "value": "0".repeat(64)},
            "payloadHash": {"algorithm": "sha256", "value": sha256(statement.as_bytes())},
            "signatures": [{"signature": signature, "verifier": base64(pem(&certificate).as_bytes())}],
        }});
        let log = if fault == Fault::OtherLog { &of_other.log } else { &self.log };
        json!({
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": {"rawBytes": base64(&certificate)},
                "tlogEntries": [logged(log, &entry.to_string(), fault)],
            },
            "dsseEnvelope": {"payloadType": kind, "payload": base64(statement.as_bytes()), "signatures": [{"sig": signature}]},
        })
    }

    /// Returns a certificate for a key, with a receipt of the certificate log.
    fn certify(&self, key: &KeyPair, repository: &str, fault: Fault) -> Vec<u8> {
        let workflow = format!("{repository}/.github/workflows/release.yml@refs/tags/v3.0.0");
        let mut params = CertificateParams::default();
        (params.not_before, params.not_after) = (date_time_ymd(2026, 1, 1), date_time_ymd(2026, 1, 2));
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = vec![SanType::URI(workflow.as_str().try_into().expect("a URL"))];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning];
        params.serial_number = Some(7_u64.into());
        for (number, text) in [
            (8, "https://token.actions.githubusercontent.com"),
            (12, repository),
            (18, workflow.as_str()),
        ] {
            let oid = [1, 3, 6, 1, 4, 1, 57264, 1, number];
            params
                .custom_extensions
                .push(CustomExtension::from_oid_content(&oid, der(0x0c, text.as_bytes())));
        }
        let issue = |params: &CertificateParams| {
            params.signed_by(key, &self.authority).expect("a certificate").der().to_vec()
        };
        let before = issue(&params);
        if fault == Fault::Unlogged {
            return before;
        }
        // RFC 6962: the log signs the certificate as it is without the receipt.
        let time = (DAY * 1000).to_be_bytes();
        let issuer = digest(&SHA256, &self.authority.key().subject_public_key_info());
        let body = first_in(&before);
        let length = u32::try_from(body.len()).expect("it is short").to_be_bytes();
        let signed =
            [&[0, 0], &time[..], &[0, 1], issuer.as_ref(), &length[1..], body, &[0, 0]].concat();
        let signature = sign(&self.certificates, &signed);
        let spki = self.certificates.subject_public_key_info();
        let id = digest(&SHA256, &spki);
        let receipt = [&[0], id.as_ref(), &time, &[0, 0, 4, 3], &prefixed(&signature)].concat();
        let list = prefixed(&prefixed(&receipt));
        let oid = [1, 3, 6, 1, 4, 1, 11129, 2, 4, 2];
        params.custom_extensions.push(CustomExtension::from_oid_content(&oid, der(0x04, &list)));
        issue(&params)
    }
}

/// Returns the only entry of a transparency log.
fn logged(log: &KeyPair, entry: &str, fault: Fault) -> Value {
    let time = if fault == Fault::Expired { DAY + 2 * 86_400 } else { DAY + 3600 };
    let spki = log.subject_public_key_info();
    let id = digest(&SHA256, &spki);
    let promised = json!({
        "body": base64(entry.as_bytes()), "integratedTime": time, "logID": hex(id.as_ref()),
        "logIndex": u8::from(fault == Fault::OtherPromise),
    });
    let leaf = digest(&SHA256, &[&[0], entry.as_bytes()].concat());
    let root = base64(leaf.as_ref());
    let note = format!("log.example - 1\n1\n{root}\n");
    let signature = [&id.as_ref()[..4], &sign(log, note.as_bytes())].concat();
    let checkpoint = format!("{note}\n— log.example {}\n", base64(&signature));
    let mut logged = json!({
        "logIndex": "0", "logId": {"keyId": base64(id.as_ref())}, "integratedTime": time.to_string(),
        "kindVersion": {"kind": "dsse", "version": "0.0.1"}, "canonicalizedBody": base64(entry.as_bytes()),
        "inclusionPromise": {"signedEntryTimestamp": base64(&sign(log, promised.to_string().as_bytes()))},
        "inclusionProof": {"logIndex": "0", "treeSize": "1", "rootHash": root, "hashes": [], "checkpoint": {"envelope": checkpoint}},
    });
    if fault == Fault::NoProof {
        logged.as_object_mut().expect("an object").remove("inclusionProof");
    }
    logged
}

fn key() -> KeyPair {
    KeyPair::generate().expect("a key")
}

fn sign(key: &KeyPair, message: &[u8]) -> Vec<u8> {
    let random = SystemRandom::new();
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &key.serialize_der(), &random);
    key.expect("a key").sign(&random, message).expect("a signature").as_ref().to_vec()
}

fn base64(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn pem(certificate: &[u8]) -> String {
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", base64(certificate))
}

/// Returns a value of DER.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = match u8::try_from(content.len()) {
        Ok(short) if short < 128 => vec![short],
        Ok(long) => vec![0x81, long],
        Err(_) => panic!("it is long"),
    };
    [&[tag], &length[..], content].concat()
}

/// Returns bytes with their length before them.
fn prefixed(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).expect("it is short").to_be_bytes();
    [&length, bytes].concat()
}

/// Returns the first value in a sequence of DER with a length of two bytes, which has such a length too.
fn first_in(sequence: &[u8]) -> &[u8] {
    assert_eq!((sequence[1], sequence[5]), (0x82, 0x82), "the lengths");
    let length = usize::from(u16::from_be_bytes([sequence[6], sequence[7]]));
    &sequence[4..8 + length]
}

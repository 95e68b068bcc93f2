//! With recorded documents of npm and PyPI, and with changed copies of them.

use super::*;

const NPM: &[u8] = include_bytes!("../../tests/fixtures/npm-sigstore-2.0.0.json");
const PYPI: &[u8] = include_bytes!("../../tests/fixtures/pypi-attestations-0.0.19.json");
const GOOGLE: &[u8] = include_bytes!("../../tests/fixtures/pypi-gcb-attestation-test-0.0.0.json");

/// As npm and PyPI give them.
fn of_npm() -> Requirement {
    Requirement::parse(
        "node_modules/sigstore sigstore@2.0.0 sha512-RtTi90xIdzFmQAAKb9+Ki1nx4IR2Z5c+mFn3dN0xuPHgk3gTt3f7ZqKsZ9UFQP40ZAlm7un8LMyjhwgrTIXNPA==",
    )
    .unwrap()
}

fn of_pypi(package: &str, sha256: &str) -> Requirement {
    Requirement::parse(&format!("{package} {sha256}")).unwrap()
}

fn pypi() -> Requirement {
    of_pypi(
        "pypi-attestations@0.0.19",
        "9bb1add04b1b4e182be6b0b80931593f7a291eb49d69b4fd728a5d4cbcdc4bd3",
    )
}

fn google() -> Requirement {
    of_pypi(
        "gcb-attestation-test@0.0.0",
        "461317362419124b6012e855423a9078d6de8aed3e74fa78cc74d669b23dc6cf",
    )
}

#[test]
fn recorded_signatures_name_their_signers() {
    let verifier = Verifier::new(None).unwrap();
    let verified = |bundles: Vec<Value>, archive| verifier.verify(&bundles, &archive).unwrap().unwrap();

    let signer = verified(npm_bundles(NPM).unwrap(), of_npm());
    assert_eq!(signer.name, "https://github.com/sigstore/sigstore-js");
    assert_eq!(signer.workflow.as_deref(), Some(".github/workflows/release.yml@refs/heads/main"));

    let signer = verified(pypi_bundles(PYPI).unwrap(), pypi());
    assert_eq!(signer.name, "https://github.com/trailofbits/pypi-attestations");
    assert_eq!(signer.workflow.as_deref(), Some(".github/workflows/release.yml@refs/tags/v0.0.19"));

    let signer = verified(pypi_bundles(GOOGLE).unwrap(), google());
    let name =
        "identity 919436158236-compute@developer.gserviceaccount.com of https://accounts.google.com";
    assert_eq!((signer.name.as_str(), signer.workflow), (name, None));

    assert_eq!(verifier.verify(&[], &of_npm()), Ok(None));
}

#[test]
fn a_signature_of_another_archive_is_refused() {
    let verifier = Verifier::new(None).unwrap();
    let bundles = npm_bundles(NPM).unwrap();
    for other in [pypi(), {
        let mut other = of_npm();
        other.digest = format!("sha512-{}", BASE64_STANDARD.encode([7; 64]));
        other
    }] {
        let why = verifier.verify(&bundles, &other).unwrap_err();
        assert!(why.contains("artifact"), "{why}");
    }
    let both = [npm_bundles(NPM).unwrap(), pypi_bundles(PYPI).unwrap()].concat();
    assert!(verifier.verify(&both, &of_npm()).is_err(), "one of two is not enough");
    let many = vec![bundles[0].clone(); MAX_BUNDLES + 1];
    assert!(verifier.verify(&many, &of_npm()).unwrap_err().contains("more than"));
}

#[test]
fn a_signature_of_another_package_or_version_is_refused() {
    let verifier = Verifier::new(None).unwrap();
    let refused = |bundles: &[Value], archive: Requirement, words: [&str; 2]| {
        let why = verifier.verify(bundles, &archive).unwrap_err();
        assert!(words.iter().all(|word| why.contains(word)), "{why}");
    };
    let (npm, pypi_one) = (npm_bundles(NPM).unwrap(), pypi_bundles(PYPI).unwrap());
    let named = |name: &str| Requirement { name: name.to_owned(), ..of_npm() };
    refused(&npm, named("other"), ["pkg:npm/sigstore@2.0.0", "not about other 2.0.0"]);
    refused(&npm, named("@sigstore/sigstore"), ["sigstore@2.0.0", "@sigstore/sigstore"]);
    let later = Requirement { version: "9.0.0".to_owned(), ..of_npm() };
    refused(&npm, later, ["pkg:npm/sigstore@2.0.0", "not about sigstore 9.0.0"]);
    let later = Requirement { version: "0.0.20".to_owned(), ..pypi() };
    refused(&pypi_one, later, ["pypi_attestations-0.0.19.tar.gz", "0.0.20"]);
    let other = Requirement { name: "pypi".to_owned(), ..pypi() };
    refused(&pypi_one, other, ["pypi_attestations-0.0.19.tar.gz", "not about pypi"]);
    // Each spelling of a name is the same project.
    let spelt = Requirement { name: "PyPI_Attestations".to_owned(), ..pypi() };
    assert!(verifier.verify(&pypi_one, &spelt).is_ok());
}

#[test]
fn a_statement_names_a_package_in_the_way_of_its_registry() {
    let digest = format!("sha512-{}", BASE64_STANDARD.encode([7; 64]));
    let npm = Requirement::parse(&format!("node_modules/@a/b @a/b@1.0.0 {digest}")).unwrap();
    let pypi = of_pypi("weather-mcp@1.0", &"0".repeat(64));
    for (subject, archive, is_it) in [
        ("pkg:npm/%40a/b@1.0.0", &npm, true),
        ("pkg:npm/%40a/b@1.0.0?registry_url=https://npm.example", &npm, true),
        ("pkg:npm/@a/b@1.0.0", &npm, false),
        ("pkg:npm/%40a/b@1.0.0-rc", &npm, false),
        ("pkg:npm/b@1.0.0", &npm, false),
        ("weather_mcp-1.0-py3-none-any.whl", &pypi, true),
        ("Weather.MCP-1.0-1-py3-none-any.whl", &pypi, true),
        ("weather-mcp-1.0.tar.gz", &pypi, true),
        ("weather_mcp-1.0", &pypi, false),
        ("weather_mcp-1.0.1-py3-none-any.whl", &pypi, false),
        ("weather_mcp_x-1.0-py3-none-any.whl", &pypi, false),
        ("weather_mcp-1.0.whl", &pypi, false),
        ("", &pypi, false),
    ] {
        assert_eq!(is_name_of(subject, archive), is_it, "{subject}");
    }
}

/// Changes the value at a JSON Pointer.
type Change = fn(&mut Value);

#[test]
fn every_part_of_a_signature_is_verified() {
    let other = pypi_bundles(GOOGLE).unwrap().remove(0);
    let entry = "/verificationMaterial/tlogEntries/0";
    let parts: [(&str, String, Change); 11] = [
        ("the statement", "/dsseEnvelope/payload".to_owned(), other_base64),
        ("the signature", "/dsseEnvelope/signatures/0/sig".to_owned(), other_base64),
        ("the kind of the statement", "/dsseEnvelope/payloadType".to_owned(), other_text),
        ("a hash of the proof", format!("{entry}/inclusionProof/hashes/3"), other_base64),
        ("the length of the proof", format!("{entry}/inclusionProof/hashes"), cut),
        ("the root of the proof", format!("{entry}/inclusionProof/rootHash"), other_base64),
        ("the place in the log", format!("{entry}/inclusionProof/logIndex"), other_number),
        ("the checkpoint", format!("{entry}/inclusionProof/checkpoint/envelope"), other_checkpoint),
        (
            "the promise of the log",
            format!("{entry}/inclusionPromise/signedEntryTimestamp"),
            other_base64,
        ),
        ("the time", format!("{entry}/integratedTime"), other_number),
        ("the entry of the log", format!("{entry}/canonicalizedBody"), other_base64),
    ];
    let verifier = Verifier::new(None).unwrap();
    for (document, archive) in [(PYPI, pypi()), (GOOGLE, google())] {
        let good = pypi_bundles(document).unwrap().remove(0);
        assert!(verifier.verify(std::slice::from_ref(&good), &archive).is_ok());
        for (what, pointer, change) in &parts {
            let mut bundle = good.clone();
            change(bundle.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")));
            assert_ne!(bundle, good, "{what}");
            assert!(verifier.verify(&[bundle], &archive).is_err(), "{what} was not verified");
        }
        for pointer in [
            "/verificationMaterial/tlogEntries",
            "/verificationMaterial/certificate",
            "/verificationMaterial",
            "/dsseEnvelope",
            "/dsseEnvelope/signatures",
        ] {
            let mut bundle = good.clone();
            *bundle.pointer_mut(pointer).unwrap() = Value::Null;
            assert!(verifier.verify(&[bundle], &archive).is_err(), "{pointer} was missing");
        }
    }
    // Valid parts of another signature.
    for pointer in
        ["/verificationMaterial/certificate", "/verificationMaterial/tlogEntries", "/dsseEnvelope"]
    {
        let mut bundle = pypi_bundles(PYPI).unwrap().remove(0);
        *bundle.pointer_mut(pointer).unwrap() = other.pointer(pointer).unwrap().clone();
        assert!(verifier.verify(&[bundle], &pypi()).is_err(), "{pointer} was of another signature");
    }
}

fn other_text(value: &mut Value) {
    *value = json!("text/plain");
}

/// Changes one bit in the middle.
fn other_base64(value: &mut Value) {
    let mut bytes = BASE64_STANDARD.decode(value.as_str().unwrap()).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    *value = json!(BASE64_STANDARD.encode(bytes));
}

fn other_number(value: &mut Value) {
    let number: u64 = value.as_str().unwrap().parse().unwrap();
    *value = json!((number - 1).to_string());
}

fn cut(value: &mut Value) {
    value.as_array_mut().unwrap().pop();
}

/// Changes the signature of a checkpoint, which is its last word.
fn other_checkpoint(value: &mut Value) {
    let text = value.as_str().unwrap().trim_end();
    let (start, signature) = text.rsplit_once(' ').unwrap();
    let mut signature = json!(signature);
    other_base64(&mut signature);
    *value = json!(format!("{start} {}\n", signature.as_str().unwrap()));
}

#[test]
fn every_root_of_trust_is_needed() {
    let bundles = pypi_bundles(PYPI).unwrap();
    for key in ["certificateAuthorities", "ctlogs", "tlogs"] {
        let mut root: Value = serde_json::from_str(SIGSTORE_PRODUCTION_TRUSTED_ROOT).unwrap();
        root[key] = json!([]);
        let verifier = Verifier::new(Some(&root.to_string())).unwrap();
        assert!(verifier.verify(&bundles, &pypi()).is_err(), "{key} was not used");
    }
    for wrong in ["", "{}", "[]", "{\"mediaType\": \"x\", \"tlogs\": 1}"] {
        assert!(Verifier::new(Some(wrong)).is_err(), "{wrong:?}");
    }
}

#[test]
fn the_documents_of_registries_are_read_or_refused() {
    for wrong in ["", "[]", "{}", "{\"attestations\": 1}"] {
        assert!(npm_bundles(wrong.as_bytes()).is_err(), "{wrong}");
        assert!(pypi_bundles(wrong.as_bytes()).is_err(), "{wrong}");
    }
    assert!(pypi_bundles(br#"{"attestation_bundles": [{}]}"#).is_err());
    let own = br#"{"attestations": [{"predicateType": "https://github.com/npm/attestation/tree/main/specs/publish/v0.1", "bundle": {}}]}"#;
    assert_eq!(npm_bundles(own), Ok(Vec::new()), "the signature of the registry itself");

    let project = br#"{"files": [{"hashes": {"sha256": "aa"}, "provenance": "https://a.example/p"}, {"hashes": {"sha256": "bb"}, "provenance": null}]}"#;
    assert_eq!(pypi_provenance(project, "aa").as_deref(), Some("https://a.example/p"));
    assert_eq!(pypi_provenance(project, "bb"), None);
    assert_eq!(pypi_provenance(project, "cc"), None);
    assert_eq!(pypi_provenance(b"<html>", "aa"), None);
}

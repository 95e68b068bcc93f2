//! Signatures of programs of npm and PyPI, by a substitute for Sigstore.

use orla_e2e::World;
use serde_json::{Value, json};

use super::registry::{Registry, sha256};
use super::sigstore::{Fault, PROVENANCE, Sigstore};
use super::sources::{npm_registry, pypi_registry};
use super::{call, ok, refused};

const ACME: &str = "https://github.com/acme/weather";
const ATTESTATIONS: &str = "/-/npm/v1/attestations/weather-mcp@3.0.0";

/// Has signatures verified, against the root of a substitute.
fn configure(world: &World, sigstore: &Sigstore, packages: &str) {
    world.write("root.json", sigstore.root(), 0o644);
    let config = format!("packages: {{trusted_root: root.json, {packages}}}\n");
    world.write("orla.yaml", config, 0o644);
}

/// Returns the name and the digest of npm's archive, as a statement has them.
fn archive(world: &World) -> Value {
    let bytes = std::fs::read(world.path("weather-mcp-3.0.0.tgz")).expect("it was made");
    let digest = ring::digest::digest(&ring::digest::SHA512, &bytes);
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    json!({"name": "pkg:npm/weather-mcp@3.0.0", "digest": {"sha512": hex}})
}

/// Says in the registry that a package has attestations.
fn announce(world: &World, registry: &Registry) {
    let mut document: Value =
        serde_json::from_str(&world.read("weather-mcp.json").replace("URL", &registry.url()))
            .expect("the description is JSON");
    // As a mirror repeats the URL of the registry that it mirrors.
    let url = format!("https://registry.example{ATTESTATIONS}");
    document["versions"]["3.0.0"]["dist"]["attestations"] =
        json!({"url": url, "provenance": {"predicateType": PROVENANCE}});
    registry.serve("/weather-mcp", document.to_string().as_bytes());
}

fn publish(registry: &Registry, bundles: &[Value]) {
    let all: Vec<Value> =
        bundles.iter().map(|bundle| json!({"predicateType": PROVENANCE, "bundle": bundle})).collect();
    registry.serve(ATTESTATIONS, json!({"attestations": all}).to_string().as_bytes());
}

/// Returns a project, and a registry with a signed program.
fn signed(sigstore: &Sigstore, packages: &str) -> (World, Registry) {
    let world = super::project();
    let registry = npm_registry(&world);
    let world = world.env("npm_config_registry", registry.url());
    configure(&world, sigstore, packages);
    announce(&world, &registry);
    publish(&registry, &[sigstore.sign(ACME, &archive(&world), Fault::None)]);
    (world, registry)
}

/// Forgets what was verified on this machine.
fn forget(world: &World) {
    let notes = std::fs::read_dir(world.path(".local/state/orla/packages")).expect("it is there");
    let notes: Vec<_> = notes.map(|note| note.expect("an entry").path()).collect();
    let signed = notes.iter().filter(|path| path.extension().is_some_and(|kind| kind == "signed"));
    let removed = signed.map(|path| std::fs::remove_file(path).expect("it can be removed")).count();
    assert!(removed > 0, "nothing was verified");
}

#[test]
fn a_program_with_the_demanded_signer_is_locked_with_it_and_verified_on_each_machine() {
    let sigstore = Sigstore::start();
    let demand = "signatures: required, signers: {'npm:weather-*': 'https://github.com/acme/*'}";
    let (world, registry) = signed(&sigstore, demand);
    let add = ["add", "npm:weather-mcp", "--name", "weather", "--yes"];
    let screen = ok(&world, &add);
    let line = format!("signed by {ACME}, workflow .github/workflows/release.yml@refs/tags/v3.0.0");
    assert!(screen.contains(&line), "{screen}");
    assert_eq!(call(&world, "weather.forecast"), "sunny undefined");
    let lock = world.read("orla.lock");
    assert!(lock.contains(&format!("signed_by: \"{ACME}\"")), "{lock}");

    // Another machine, to which nothing of the signature is known.
    forget(&world);
    refused(&world, &["call", "weather.forecast"], &["not verified on this machine", "orla sync"]);
    refused(&world, &["sync", "--offline"], &["weather: its signature was not verified"]);
    ok(&world, &["sync"]);
    assert_eq!(call(&world, "weather.forecast"), "sunny undefined");
    assert_eq!(world.read("orla.lock"), lock);
    // What was verified once is not fetched again.
    let hits = registry.hits();
    ok(&world, &["sync"]);
    std::fs::remove_dir_all(world.path(".orla")).unwrap();
    ok(&world, &["sync", "--offline"]);
    assert_eq!(
        (registry.hits(), call(&world, "weather.forecast")),
        (hits, "sunny undefined".to_owned())
    );

    // What one root of trust vouches for is not verified for another one.
    let other = Sigstore::start();
    configure(&world, &other, demand);
    refused(&world, &["call", "weather.forecast"], &["not verified on this machine"]);
    refused(&world, &["sync"], &["its signature is not valid"]);
    refused(&world, &["update", "--yes"], &["its signature is not valid"]);
    configure(&world, &sigstore, demand);
    assert_eq!(call(&world, "weather.forecast"), "sunny undefined");

    // A removed line of the lock is no way to another signer.
    let unpinned: Vec<&str> = lock.lines().filter(|line| !line.contains("signed_by")).collect();
    world.write("orla.lock", unpinned.join("\n") + "\n", 0o644);
    for command in [&["call", "weather.forecast"][..], &["sync"]] {
        refused(&world, command, &["orla.lock does not name its signer", "`orla update weather`"]);
    }
    assert!(ok(&world, &["update", "weather", "--yes"]).contains(&line));
    assert_eq!(world.read("orla.lock"), lock);

    // The lock and the configuration each demand a signer.
    world.write("orla.lock", lock.replace(ACME, "https://github.com/acme/other"), 0o644);
    refused(&world, &["call", "weather.forecast"], &["was signed by https://github.com/acme/other"]);
    refused(&world, &["sync"], &["was signed by https://github.com/acme/other"]);
    world.write("orla.lock", &lock, 0o644);
    configure(&world, &sigstore, "signers: {'*': 'https://github.com/other/*'}");
    refused(&world, &["call", "weather.forecast"], &["demands https://github.com/other/*"]);
    refused(&world, &add, &["demands https://github.com/other/*"]);

    // Another signer is another package, even for `--yes`.
    configure(&world, &sigstore, "signatures: if-present");
    let other = sigstore.sign("https://github.com/evil/weather", &archive(&world), Fault::None);
    publish(&registry, &[other]);
    let words = [&format!("was signed by {ACME}")[..], "evil", "orla remove weather"];
    refused(&world, &["update", "--yes"], &words);
    refused(&world, &["add", "npm:weather-mcp@3.0.0", "--name", "weather", "--yes"], &words);
    publish(&registry, &[]);
    refused(&world, &["update", "--yes"], &["has no signature that orla can verify"]);
    assert_eq!(world.read("orla.lock"), lock);
    assert_eq!(call(&world, "weather.forecast"), "sunny undefined");
    ok(&world, &["remove", "weather"]);
    assert!(ok(&world, &add).contains("no signature that orla can verify"), "it may be added");
    assert!(!world.read("orla.lock").contains("signed_by"));
}

#[test]
fn a_program_without_a_valid_signature_is_not_installed() {
    let sigstore = Sigstore::start();
    let (world, registry) = signed(&sigstore, "signatures: required");
    let (archive, add) = (archive(&world), ["add", "npm:weather-mcp", "--name", "weather", "--yes"]);
    let of = |fault| sigstore.sign(ACME, &archive, fault);
    let of_changed = |key: &str, value: Value| {
        let mut changed = archive.clone();
        changed[key] = value;
        sigstore.sign(ACME, &changed, Fault::None)
    };
    let other_archive = of_changed("digest", json!({"sha512": "0".repeat(128)}));
    let other_version = of_changed("name", json!("pkg:npm/weather-mcp@2.0.0"));
    let other_package = of_changed("name", json!("pkg:npm/%40acme/debug@3.0.0"));
    let other_signer = sigstore.sign("https://github.com/other/weather", &archive, Fault::None);
    for (what, bundles, words) in [
        ("no signature", vec![], "it has no signature that orla can verify"),
        ("an expired certificate", vec![of(Fault::Expired)], "CertExpired"),
        ("a certificate outside the log", vec![of(Fault::Unlogged)], "SCT"),
        (
            "a certificate of another authority",
            vec![of(Fault::OtherAuthority)],
            "certificate chain is invalid",
        ),
        ("an entry of another log", vec![of(Fault::OtherLog)], "No log key"),
        ("a promise of another entry", vec![of(Fault::OtherPromise)], "SET verification failed"),
        ("no proof of inclusion", vec![of(Fault::NoProof)], "inclusion proof"),
        ("a signature of another key", vec![of(Fault::OtherKey)], "DSSE signature"),
        ("a report", vec![of(Fault::OtherStatement)], "does not say who made the archive"),
        ("a signature of another archive", vec![other_archive.clone()], "artifact"),
        ("a signature of another version", vec![other_version], "not about weather-mcp 3.0.0"),
        ("a signature of another package", vec![other_package], "about pkg:npm/%40acme/debug@3.0.0"),
        ("a second signature that is wrong", vec![of(Fault::None), other_archive], "not valid"),
        ("two signers", vec![of(Fault::None), other_signer], "and by"),
        ("no bundle", vec![Value::Null], "not valid"),
    ] {
        publish(&registry, &bundles);
        let output = world.run(&add);
        assert_ne!(output.code, Some(0), "{what}: {}", output.all());
        assert!(output.all().contains(words), "{what}: {}", output.all());
        assert!(!world.path("orla.lock").exists(), "{what}");
        assert!(!world.path(".orla/packages").exists(), "{what}");
    }
    registry.serve(ATTESTATIONS, b"<html>");
    refused(&world, &add, &["attestations of npm"]);
    publish(&registry, &[of(Fault::None)]);
    // Without the root of the substitute, nothing of it is valid.
    world.write("orla.yaml", "packages: {signatures: required}\n", 0o644);
    refused(&world, &add, &["its signature is not valid"]);
    world.write("orla.yaml", "packages: {signatures: required, trusted_root: none.json}\n", 0o644);
    refused(&world, &["check"], &["packages.trusted_root", "none.json cannot be read"]);
    world.write("orla.yaml", "packages: {signatures: required}\n", 0o644);
    // Sources without signatures.
    super::folder(&world, "1.0.0", "[]");
    refused(&world, &["add", "./src/greet", "--yes"], &["it has no signature"]);
    // An installed package is not served if the configuration begins to demand a signature.
    world.write("orla.yaml", "log_level: info\n", 0o644);
    ok(&world, &["add", "./src/greet", "--yes"]);
    assert_eq!(call(&world, "greet"), "greetings 1.0.0");
    world.write("orla.yaml", "packages: {signatures: required}\n", 0o644);
    refused(&world, &["call", "greet"], &["does not name its signer", "`orla update greet`"]);
    refused(&world, &["sync"], &["greet: orla.lock does not name its signer"]);
    // Nor does an update run it, or accept its tools, even if its source is gone.
    super::folder(&world, "2.0.0", "[]");
    let lock = world.read("orla.lock");
    refused(&world, &["update", "greet", "--yes"], &["it has no signature"]);
    std::fs::rename(world.path("src/greet"), world.path("src/gone")).unwrap();
    refused(&world, &["update", "greet", "--yes"], &["does not name its signer"]);
    std::fs::rename(world.path("src/gone"), world.path("src/greet")).unwrap();
    assert_eq!(world.read("orla.lock"), lock);
    // A signature that nobody demands is not fetched.
    publish(&registry, &[of(Fault::OtherKey)]);
    world.write("orla.yaml", "log_level: info\n", 0o644);
    assert!(!ok(&world, &add).contains("signature"), "no signature was verified");
}

#[test]
fn a_program_of_pypi_has_the_signer_of_its_wheel() {
    let sigstore = Sigstore::start();
    let (world, registry) = pypi_registry();
    configure(&world, &sigstore, "signatures: required");
    let add = ["add", "pypi:weather-mcp", "--name", "weather", "--yes"];
    // A file of the project is not run.
    world.write("pip.py", "open('ran', 'w')", 0o644);
    // An index in HTML names no provenance.
    refused(&world, &add, &["it has no signature"]);
    let files = [
        ("weather-words", "weather_words-1.2.0-py3-none-any.whl"),
        ("weather-mcp", "weather_mcp-3.0.0-py3-none-any.whl"),
    ];
    for (name, file) in files {
        let digest = sha256(&std::fs::read(world.path(file)).unwrap());
        let page = json!({"meta": {"api-version": "1.3"}, "name": name, "files": [{
            "filename": file, "url": format!("/files/{file}"), "hashes": {"sha256": digest},
            "provenance": format!("../../integrity/{name}"),
        }]});
        registry.serve(&format!("/simple/{name}/"), page.to_string().as_bytes());
        let archive = json!({"name": file, "digest": {"sha256": digest}});
        let bundle = sigstore.sign(ACME, &archive, Fault::None);
        let material = &bundle["verificationMaterial"];
        let attestation = json!({"version": 1,
            "verification_material": {"certificate": material["certificate"]["rawBytes"], "transparency_entries": material["tlogEntries"]},
            "envelope": {"statement": bundle["dsseEnvelope"]["payload"], "signature": bundle["dsseEnvelope"]["signatures"][0]["sig"]},
        });
        let document = json!({"version": 1, "attestation_bundles": [{"publisher": {}, "attestations": [attestation]}]});
        registry.serve(&format!("/integrity/{name}"), document.to_string().as_bytes());
    }
    assert!(ok(&world, &add).contains(&format!("signed by {ACME}")));
    assert!(!world.path("ran").exists(), "a file of the project was run");
    assert_eq!(call(&world, "weather.forecast"), "sunny");
    ok(&world, &["remove", "weather"]);
    registry.serve("/integrity/weather-mcp", br#"{"attestation_bundles": [{"attestations": [{}]}]}"#);
    refused(&world, &add, &["its signature is not valid"]);
}

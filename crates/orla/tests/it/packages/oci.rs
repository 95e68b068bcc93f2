//! Bundles and folders of OCI registries, from a substitute on this machine.

use serde_json::{Value, json};

use super::registry::{Registry, sha256};
use super::sources::python;
use super::{bundle, call, folder, ok, project, refused};

const BUNDLE: &str = "application/vnd.mcp.bundle.v0.3+zip";
const FOLDER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const EMPTY: &str = "application/vnd.oci.empty.v1+json";
const IMAGE: &str = "application/vnd.oci.image.config.v1+json";

/// Serves something by its digest, and describes it.
fn serve(registry: &Registry, kind: &str, place: &str, content: &[u8]) -> Value {
    let digest = format!("sha256:{}", sha256(content));
    registry.serve(&format!("/v2/acme/tools/{place}/{digest}"), content);
    json!({"mediaType": kind, "digest": digest, "size": content.len()})
}

/// Pushes an artifact with these layers, and returns the descriptor of its manifest.
fn push(registry: &Registry, tag: &str, config: &str, layers: &[(&str, &[u8])]) -> Value {
    let layers: Vec<Value> =
        layers.iter().map(|(kind, content)| serve(registry, kind, "blobs", content)).collect();
    let config = json!({"mediaType": config, "digest": "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a", "size": 2});
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers}).to_string();
    registry.serve(&format!("/v2/acme/tools/manifests/{tag}"), manifest.as_bytes());
    serve(registry, "application/vnd.oci.image.manifest.v1+json", "manifests", manifest.as_bytes())
}

#[test]
fn a_bundle_is_pulled_with_a_token_and_locked_with_its_digest() {
    let world = project();
    let registry = Registry::start();
    registry.want_token();
    let bytes = |version: &str| {
        let file = bundle(&world, &format!("w-{version}.mcpb"), version, "{}", &[]);
        std::fs::read(file).unwrap()
    };
    let first = push(&registry, "v1", EMPTY, &[(BUNDLE, &bytes("1.0.0"))]);
    let source = format!("oci:{}/acme/tools:v1", registry.host());
    ok(&world, &["add", &source, "--yes"]);
    assert_eq!(call(&world, "weather.forecast"), "1.0.0 no key");
    let lock = world.read("orla.lock");
    let digest = first["digest"].as_str().unwrap();
    assert!(lock.contains(&source) && lock.contains(digest), "{lock}");

    // The tag moves, and the lock does not.
    push(&registry, "v1", EMPTY, &[(BUNDLE, &bytes("1.1.0"))]);
    let other = project();
    other.write("orla.lock", &lock, 0o644);
    refused(&other, &["sync", "--offline"], &["not in the cache"]);
    ok(&other, &["sync"]);
    assert_eq!(call(&other, "weather.forecast"), "1.0.0 no key");
    assert_eq!(other.read("orla.lock"), lock);
    assert!(ok(&other, &["outdated"]).contains("1.1.0"));
    ok(&other, &["update", "--yes"]);
    assert_eq!(call(&other, "weather.forecast"), "1.1.0 no key");
    let exact = format!("oci:{}/acme/tools@{digest}", registry.host());
    ok(&other, &["add", &exact, "--yes"]);
    assert_eq!(call(&other, "weather.forecast"), "1.0.0 no key");
}

#[test]
fn a_folder_in_a_layer_is_installed_for_this_system() {
    let world = project();
    let registry = Registry::start();
    folder(&world, "1.0.0", "[]");
    python(
        &world,
        "import tarfile\nwith tarfile.open('greet.tgz', 'w:gz') as tar: tar.add('src/greet', 'greet')",
    );
    let layer = std::fs::read(world.path("greet.tgz")).unwrap();
    let mut ours = push(&registry, "ours", EMPTY, &[(FOLDER, &layer)]);
    let mut theirs = push(&registry, "theirs", EMPTY, &[(BUNDLE, b"no bundle")]);
    let architecture = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    ours["platform"] = json!({"os": std::env::consts::OS, "architecture": architecture});
    theirs["platform"] = json!({"os": "plan9", "architecture": "mips"});
    let index = json!({"schemaVersion": 2, "manifests": [theirs, ours]}).to_string();
    registry.serve("/v2/acme/tools/manifests/latest", index.as_bytes());
    ok(&world, &["add", &format!("oci:{}/acme/tools", registry.host()), "--yes"]);
    assert_eq!(call(&world, "greet"), "greetings 1.0.0");
    let index = json!({"schemaVersion": 2, "manifests": [theirs]}).to_string();
    registry.serve("/v2/acme/tools/manifests/none", index.as_bytes());
    refused(
        &world,
        &["add", &format!("oci:{}/acme/tools:none", registry.host()), "--yes", "--name", "n"],
        &["nothing for"],
    );
}

#[test]
fn unsuitable_artifacts_are_refused() {
    let world = project();
    let registry = Registry::start();
    push(&registry, "image", IMAGE, &[(FOLDER, b"a root file system")]);
    push(&registry, "text", EMPTY, &[("text/plain", b"a text")]);
    push(&registry, "broken", EMPTY, &[(FOLDER, &[0x1f, 0x8b, 0])]);
    let lied = push(&registry, "lie", EMPTY, &[(BUNDLE, b"PK")]);
    registry.serve(&format!("/v2/acme/tools/blobs/sha256:{}", sha256(b"PK")), b"something else");
    let at = format!("/v2/acme/tools/manifests/{}", lied["digest"].as_str().unwrap());
    registry.serve("/v2/acme/tools/manifests/html", b"<html>sign in</html>");
    let host = registry.host();
    for (reference, words) in [
        (format!("{host}/acme/tools:image"), "container image"),
        (format!("{host}/acme/tools:text"), "text/plain"),
        (format!("{host}/acme/tools:broken"), "gzip"),
        (format!("{host}/acme/tools:lie"), "was expected"),
        (format!("{host}/acme/tools:html"), "manifest cannot be read"),
        (format!("{host}/acme/tools:none"), "nothing at"),
        ("acme/tools".to_owned(), "oci:HOST/NAME"),
        (format!("{host}/acme/tools@sha256:1"), "oci:HOST/NAME"),
    ] {
        refused(&world, &["add", &format!("oci:{reference}"), "--yes"], &[words]);
    }
    registry.serve(&at, b"{}");
    let exact = format!("oci:{host}/acme/tools@{}", lied["digest"].as_str().unwrap());
    refused(&world, &["add", &exact, "--yes"], &["was expected"]);
    assert!(!world.path("orla.lock").exists());
}

#[test]
fn a_server_of_a_registry_may_be_an_artifact() {
    let world = project();
    let registry = Registry::start();
    let file = bundle(&world, "w.mcpb", "1.0.0", "{}", &[]);
    let pushed = push(&registry, "1.0.0", EMPTY, &[(BUNDLE, &std::fs::read(file).unwrap())]);
    let reference = format!("{}/acme/tools:1.0.0", registry.host());
    let package =
        json!({"registryType": "oci", "identifier": reference, "transport": {"type": "stdio"}});
    registry.add_package("io.github.acme/weather", "1.0.0", &package);
    ok(&world, &["add", "io.github.acme/weather", "--registry", &registry.url(), "--yes"]);
    assert_eq!(call(&world, "weather.forecast"), "1.0.0 no key");
    let lock = world.read("orla.lock");
    assert!(lock.contains(pushed["digest"].as_str().unwrap()), "{lock}");
    let other = project();
    other.write("orla.lock", &lock, 0o644);
    push(&registry, "1.0.0", IMAGE, &[(FOLDER, b"a root file system")]);
    ok(&other, &["sync"]);
    assert_eq!(call(&other, "weather.forecast"), "1.0.0 no key");
    refused(&other, &["update", "--yes"], &["container image"]);
}

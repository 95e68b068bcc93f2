//! Packages of git repositories, npm and PyPI, from substitutes on this machine.

use std::process::Command;

use orla_e2e::World;

use super::registry::Registry;
use super::{SERVER, call, folder, ok, project, refused};

/// Runs a script of Python in the project's directory.
pub(super) fn python(world: &World, script: &str) {
    world.write("script.py", script, 0o644);
    let mut python = Command::new("python3");
    let status = python.arg("script.py").current_dir(world.dir()).status();
    assert!(status.expect("python3 runs").success());
}

fn git(world: &World, arguments: &[&str]) {
    let mut git = Command::new("git");
    git.current_dir(world.path("src/greet")).env("HOME", world.dir());
    git.args(["-c", "user.name=x", "-c", "user.email=x@x.example"]);
    assert!(git.args(arguments).output().expect("git runs").status.success(), "{arguments:?}");
}

#[test]
fn a_revision_of_a_repository_is_locked() {
    let world = project();
    folder(&world, "1.0.0", "[]");
    git(&world, &["init", "-q", "-b", "main"]);
    git(&world, &["add", "."]);
    git(&world, &["commit", "-q", "-m", "one"]);
    git(&world, &["tag", "v1"]);
    ok(&world, &["add", "git:./src/greet#main", "--yes"]);
    assert_eq!(call(&world, "greet"), "greetings 1.0.0");
    let lock = world.read("orla.lock");
    assert!(lock.contains("git:./src/greet#main") && lock.contains("resolved: "), "{lock}");
    folder(&world, "2.0.0", "[]");
    git(&world, &["commit", "-q", "-a", "-m", "two"]);

    // Another machine gets the commit of the lock, not the current commit of the branch.
    std::fs::remove_dir_all(world.path(".orla")).unwrap();
    std::fs::remove_dir_all(world.path(".cache")).unwrap();
    ok(&world, &["sync"]);
    assert_eq!(call(&world, "greet"), "greetings 1.0.0");
    assert_eq!(world.read("orla.lock"), lock);
    assert!(ok(&world, &["outdated"]).contains("2.0.0"));
    ok(&world, &["update", "--yes"]);
    assert_eq!(call(&world, "greet"), "greetings 2.0.0");
    ok(&world, &["add", "git:./src/greet#v1", "--name", "old", "--yes"]);
    assert_eq!(call(&world, "old"), "greetings 1.0.0");

    refused(&world, &["add", "git:./src/greet#none", "--name", "n", "--yes"], &["none"]);
    refused(&world, &["add", "git:./nowhere#main", "--name", "n", "--yes"], &["git failed"]);
    refused(&world, &["add", "git:ext::sh -c x", "--yes"], &["a repository is"]);
    std::os::unix::fs::symlink("/etc/passwd", world.path("src/greet/link")).unwrap();
    git(&world, &["add", "."]);
    git(&world, &["commit", "-q", "-m", "link"]);
    refused(&world, &["update", "greet", "--yes"], &["link"]);
    assert_eq!(call(&world, "greet"), "greetings 2.0.0");
}

const NODE: &str = r#"#!/usr/bin/env node
const { says } = require("weather-words");
const out = (m) => process.stdout.write(JSON.stringify(m) + "\n");
require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
  const { id, method } = JSON.parse(line);
  if (method === "initialize") out({ jsonrpc: "2.0", id, result: { protocolVersion: "2025-11-25", capabilities: { tools: {} }, serverInfo: { name: "w", version: "1" } } });
  else if (method === "tools/list") out({ jsonrpc: "2.0", id, result: { tools: [{ name: "forecast", description: "Tells.", inputSchema: { type: "object" } }] } });
  else if (method === "tools/call") out({ jsonrpc: "2.0", id, result: { content: [{ type: "text", text: `${says} ${process.env.REGION} ${process.argv.slice(2)}` }] } });
  else if (id !== undefined) out({ jsonrpc: "2.0", id, error: { code: -32601, message: "no" } });
});
"#;

/// Makes the archives of two npm packages, and the registry's metadata for them.
const NPM: &str = r#"import io, json, tarfile, hashlib, base64
def package(name, version, files, **more):
    package = {"name": name, "version": version, "scripts": {"install": "touch /tmp/orla-e2e-install-script"}, **more}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as t:
        for file, text in {"package.json": json.dumps(package), **files}.items():
            i = tarfile.TarInfo("package/" + file); i.size = len(text); i.mode = 0o644; t.addfile(i, io.BytesIO(text.encode()))
    data = out.getvalue(); open(f"{name}-{version}.tgz", "wb").write(data)
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
    doc = {"name": name, "dist-tags": {"latest": version}, "versions": {version: {**package, "hasInstallScript": True, "dist": {"integrity": integrity, "tarball": f"URL/{name}/-/{name}-{version}.tgz"}}}}
    open(name + ".json", "w").write(json.dumps(doc))
package("weather-words", "1.2.0", {"index.js": "exports.says = 'sunny';"})
package("weather-mcp", "3.0.0", {"server.js": open("server.js").read()}, bin={"weather-mcp": "./server.js"}, dependencies={"weather-words": "^1.0.0"})
package("weather-git", "1.0.0", {"server.js": ""}, bin="server.js", dependencies={"weather-words": "git+file:///orla-e2e/none"})
package("weather-url", "1.0.0", {"server.js": ""}, bin="server.js", dependencies={"weather-words": "URL/weather-words/-/weather-words-1.2.0.tgz"})
"#;

pub(super) fn npm_registry(world: &World) -> Registry {
    let registry = Registry::start();
    world.write("server.js", NODE, 0o644);
    python(world, NPM);
    for (name, version) in [
        ("weather-words", "1.2.0"),
        ("weather-mcp", "3.0.0"),
        ("weather-git", "1.0.0"),
        ("weather-url", "1.0.0"),
    ] {
        let document = world.read(format!("{name}.json")).replace("URL", &registry.url());
        registry.serve(&format!("/{name}"), document.as_bytes());
        let file = format!("{name}-{version}.tgz");
        registry.serve(
            &format!("/{name}/-/{file}"),
            &std::fs::read(world.path(&file)).expect("it was made"),
        );
    }
    registry
}

#[test]
fn a_program_of_npm_is_locked_with_all_that_it_requires() {
    let world = project();
    let registry = npm_registry(&world);
    let world = world.env("npm_config_registry", registry.url());
    ok(&world, &["add", "npm:weather-mcp@3.0.0", "--name", "first", "--yes", "--", "one"]);
    assert_eq!(call(&world, "first.forecast"), "sunny undefined one");
    // It has no arguments of another package of the same source.
    ok(&world, &["add", "npm:weather-mcp", "--name", "weather", "--yes"]);
    assert_eq!(call(&world, "weather.forecast"), "sunny undefined");
    ok(&world, &["remove", "first"]);
    let lock = world.read("orla.lock");
    assert!(lock.contains("node_modules/weather-words weather-words@1.2.0 sha512-"), "{lock}");
    std::fs::remove_dir_all(world.path(".orla")).unwrap();
    std::fs::remove_dir_all(world.path(".cache")).unwrap();
    ok(&world, &["sync"]);
    assert_eq!(call(&world, "weather.forecast"), "sunny undefined");

    // A server of the MCP registry that is a package of npm.
    let package = serde_json::json!({
        "registryType": "npm", "identifier": "weather-mcp", "version": "3.0.0", "transport": {"type": "stdio"},
        "packageArguments": [{"type": "positional", "value": "run"}],
        "environmentVariables": [{"name": "REGION", "default": "eu"}],
    });
    registry.add_package("io.github.acme/weather", "3.1.0", &package);
    ok(
        &world,
        &["add", "io.github.acme/weather", "--registry", &registry.url(), "--name", "other", "--yes"],
    );
    assert_eq!(call(&world, "other.forecast"), "sunny eu run");
    // One that needs an argument whose value only the user knows.
    let mut needing = package;
    let place = serde_json::json!({"type": "named", "name": "--place", "isRequired": true});
    needing["packageArguments"].as_array_mut().unwrap().push(place);
    registry.add_package("io.github.acme/needing", "3.1.0", &needing);
    let add = ["add", "io.github.acme/needing", "--registry", &registry.url(), "--yes"];
    refused(
        &world,
        &add,
        &["needing needs arguments (--place)", "`orla add io.github.acme/needing -- ARGUMENT…`"],
    );
    ok(&world, &[&add[..], &["--", "--place", "Paris"]].concat());
    assert_eq!(call(&world, "needing.forecast"), "sunny eu run,--place,Paris");
    assert!(
        !std::path::Path::new("/tmp/orla-e2e-install-script").exists(),
        "no script of a package runs"
    );

    refused(&world, &["add", "npm:weather-words", "--name", "n", "--yes"], &["not a program"]);
    refused(&world, &["add", "npm:weather-git", "--yes"], &["npm:weather-git"]);
    refused(&world, &["add", "npm:weather-url", "--yes"], &["not npm's registry"]);
    refused(&world, &["add", "npm:nowhere", "--yes"], &["npm:nowhere"]);

    std::fs::remove_dir_all(world.path(".orla")).unwrap();
    std::fs::remove_dir_all(world.path(".cache")).unwrap();
    registry.serve("/weather-words/-/weather-words-1.2.0.tgz", b"other bytes");
    std::fs::remove_dir_all(world.path(".npm")).unwrap();
    refused(&world, &["sync"], &["weather"]);
}

/// Makes a wheel with a program, and a wheel that it requires.
const PYPI: &str = r#"import zipfile
def wheel(name, version, files, requires="", points=""):
    dist = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(f"{name}-{version}-py3-none-any.whl", "w") as z:
        for file, text in files.items():
            z.writestr(file, text)
        z.writestr(f"{dist}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}")
        z.writestr(f"{dist}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        if points: z.writestr(f"{dist}/entry_points.txt", points)
        z.writestr(f"{dist}/RECORD", "")
server = open("server.py").read().replace("VERSION", "")
lines = "".join("    " + line + "\n" for line in server.splitlines())
wheel("weather_words", "1.2.0", {"weather_words.py": "says = 'sunny'\n"})
wheel("weather_mcp", "3.0.0", {"weather_mcp/__init__.py": "def main():\n    import weather_words\n" + lines.replace('"no key"', "weather_words.says")},
    "Requires-Dist: weather-words>=1\n", "[console_scripts]\nweather-mcp = weather_mcp:main\n")
"#;

/// Returns a project, and an index with a program that needs another package.
pub(super) fn pypi_registry() -> (World, Registry) {
    assert!(SERVER.contains("\"no key\""));
    let world = project();
    let registry = Registry::start();
    python(&world, PYPI);
    for (name, file) in [
        ("weather-words", "weather_words-1.2.0-py3-none-any.whl"),
        ("weather-mcp", "weather_mcp-3.0.0-py3-none-any.whl"),
    ] {
        let page = format!("<html><body><a href=\"/files/{file}\">{file}</a></body></html>");
        registry.serve(&format!("/simple/{name}/"), page.as_bytes());
        let archive = std::fs::read(world.path(file)).expect("the archive was made");
        registry.serve(&format!("/files/{file}"), &archive);
    }
    let world = world.env("PIP_INDEX_URL", format!("{}/simple/", registry.url()));
    let world = world.env("PIP_CONFIG_FILE", "/dev/null").env("PIP_EXTRA_INDEX_URL", "");
    (world, registry)
}

#[test]
fn a_program_of_pypi_is_locked_with_all_that_it_requires() {
    let (world, _registry) = pypi_registry();
    ok(&world, &["add", "pypi:weather-mcp", "--name", "weather", "--yes"]);
    assert_eq!(call(&world, "weather.forecast"), "sunny");
    let lock = world.read("orla.lock");
    assert!(lock.contains("weather_words@1.2.0 "), "{lock}");
    std::fs::remove_dir_all(world.path(".orla")).unwrap();
    std::fs::remove_dir_all(world.path(".cache")).unwrap();
    ok(&world, &["sync"]);
    assert_eq!(call(&world, "weather.forecast"), "sunny");
    refused(&world, &["add", "pypi:weather-words", "--name", "n", "--yes"], &["not a program"]);
    refused(&world, &["add", "pypi:nowhere", "--yes"], &["pypi:nowhere"]);
}

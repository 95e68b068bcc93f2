//! npm packages: `orla` starts the program of the package that fits the machine, as `esbuild` does it.
//!
//! A package for each target carries the program and names the system that it is for. `orla` has all of them as optional
//! dependencies, so that npm installs the one that fits. No script runs during an installation.

use serde_json::{Map, Value, json};

use super::elf::Linkage;
use super::release::{self, Artefact, Program, Release};
use super::tree::{PROGRAM, Tree};

/// The scope of the packages that carry a program.
const SCOPE: &str = "@orla-run";

/// Returns all packages, the one that people install first.
pub(super) fn pack(release: &Release) -> Result<Vec<Artefact>, String> {
    let mut artefacts = vec![main(release)?];
    for program in &release.programs {
        artefacts.push(platform(release, program)?);
    }
    Ok(artefacts)
}

/// Returns the name of a target's package, without the scope.
fn name(program: &Program) -> String {
    format!("linux-{}", program.target.node)
}

fn main(release: &Release) -> Result<Artefact, String> {
    let optional: Map<String, Value> = release
        .programs
        .iter()
        .map(|program| (format!("{SCOPE}/{}", name(program)), json!(release.version)))
        .collect();
    let mut manifest = manifest(release, "orla");
    manifest["description"] = json!("Serves programs, APIs and MCP servers as tools over MCP");
    manifest["bin"] = json!({ "orla": "orla.js" });
    manifest["engines"] = json!({ "node": ">=18" });
    manifest["optionalDependencies"] = optional.into();
    let mut tree = Tree::default();
    tree.file("orla.js", PROGRAM, release.template("npm/orla.js", &[])?.into_bytes());
    tree.text("README.md", &release.template("npm/README.md", &[])?);
    finish(release, tree, &manifest, "orla")
}

fn platform(release: &Release, program: &Program) -> Result<Artefact, String> {
    let name = name(program);
    let mut manifest = manifest(release, &format!("{SCOPE}/{name}"));
    manifest["description"] =
        json!(format!("The program of orla for Linux on {}", program.target.architecture));
    manifest["os"] = json!(["linux"]);
    manifest["cpu"] = json!([program.target.node]);
    if let Linkage::Glibc(..) = program.linkage {
        manifest["libc"] = json!(["glibc"]);
    }
    // For package managers that keep packages compressed: a program has to be a file.
    manifest["preferUnplugged"] = json!(true);
    let mut tree = Tree::default();
    tree.file("bin/orla", PROGRAM, program.bytes.clone());
    tree.text("README.md", "The program of the package `orla`. Install that one.\n");
    tree.text("THIRD-PARTY-LICENSES.txt", &release.third_party);
    finish(release, tree, &manifest, &format!("orla-run-{name}"))
}

fn manifest(release: &Release, name: &str) -> Value {
    json!({
        "name": name,
        "version": release.version,
        "license": "MIT OR Apache-2.0",
        "repository": { "type": "git", "url": format!("git+{}.git", release.repository) },
    })
}

fn finish(release: &Release, mut tree: Tree, manifest: &Value, name: &str) -> Result<Artefact, String> {
    tree.text("package.json", &release::json(manifest));
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        tree.text(licence, &release.file(licence)?);
    }
    let bytes = tree.tar_gz("package/", release.time)?;
    Ok(Artefact { name: format!("{name}-{}.tgz", release.version), bytes })
}

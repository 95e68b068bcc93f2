//! `orla-VERSION-TARGET.tar.gz`: the program with completions, manual pages and licences.

use super::release::{Artefact, Program, Release};
use super::tree::{PROGRAM, Tree};

/// Files of the repository that go along.
pub(super) const FILES: [&str; 5] =
    ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "orla.schema.json"];

/// Returns the name of the archive's only folder, and of the archive without its ending.
pub(super) fn name(release: &Release, program: &Program) -> String {
    format!("orla-{}-{}", release.version, program.target.triple)
}

pub(super) fn pack(release: &Release, program: &Program) -> Result<Artefact, String> {
    let mut tree = Tree::default();
    tree.file("orla", PROGRAM, program.bytes.clone());
    for file in FILES {
        tree.text(file, &release.file(file)?);
    }
    tree.text("THIRD-PARTY-LICENSES.txt", &release.third_party);
    tree.below("completions", &release.completions);
    tree.below("man", &release.manual);
    let name = name(release, program);
    let bytes = tree.tar_gz(&format!("{name}/"), release.time)?;
    Ok(Artefact { name: format!("{name}.tar.gz"), bytes })
}

//! `orla_run-VERSION-py3-none-PLATFORM.whl`: the program as a Python package, which `uvx` and `pipx` run.
//!
//! The program is a script of the wheel, so that an installer puts it on the path as it is. Nothing is built during an
//! installation, and there is no Python code.

use std::fmt::Write as _;

use data_encoding::BASE64URL_NOPAD;
use ring::digest::{SHA256, digest};

use super::elf::Linkage;
use super::release::{Artefact, Program, Release};
use super::tree::{PROGRAM, Tree};

pub(super) fn pack(release: &Release, program: &Program) -> Result<Artefact, String> {
    let platform = platform(program.linkage, program.target.architecture);
    let top = format!("orla_run-{}", release.version);
    let mut tree = Tree::default();
    tree.file(format!("{top}.data/scripts/orla"), PROGRAM, program.bytes.clone());
    let info = format!("{top}.dist-info");
    let readme = release.template("python/README.md", &[])?;
    tree.text(format!("{info}/METADATA"), &release.template("python/METADATA", &[("README", &readme)])?);
    let tags = platform.split('.').fold(String::new(), |mut tags, tag| {
        let _ = writeln!(tags, "Tag: py3-none-{tag}");
        tags
    });
    let wheel = format!(
        "Wheel-Version: 1.0\nGenerator: orla-xtask ({})\nRoot-Is-Purelib: false\n{tags}",
        release.version
    );
    tree.text(format!("{info}/WHEEL"), &wheel);
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        tree.text(format!("{info}/licenses/{licence}"), &release.file(licence)?);
    }
    tree.text(format!("{info}/licenses/THIRD-PARTY-LICENSES.txt"), &release.third_party);
    let mut record = String::new();
    for (path, content) in tree.files() {
        let sum = BASE64URL_NOPAD.encode(digest(&SHA256, content).as_ref());
        let _ = writeln!(record, "{path},sha256={sum},{}", content.len());
    }
    let _ = writeln!(record, "{info}/RECORD,,");
    tree.text(format!("{info}/RECORD"), &record);
    Ok(Artefact { name: format!("{top}-py3-none-{platform}.whl"), bytes: tree.zip()? })
}

/// Returns the systems that a program runs on, as Python's packages name them. A static program runs
/// with any C library: the oldest versions that installers know stand for that.
fn platform(linkage: Linkage, architecture: &str) -> String {
    match linkage {
        Linkage::Static => format!(
            "manylinux_2_17_{architecture}.manylinux2014_{architecture}.musllinux_1_1_{architecture}"
        ),
        Linkage::Glibc(major, minor) => format!("manylinux_{major}_{minor}_{architecture}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_promises_what_the_program_needs() {
        assert_eq!(platform(Linkage::Glibc(2, 34), "x86_64"), "manylinux_2_34_x86_64");
        assert_eq!(
            platform(Linkage::Static, "aarch64"),
            "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64"
        );
    }
}

//! Files that name the archives, or take them in: the installation script, the container, and the formulas of Homebrew and Nix.

use super::release::{Artefact, Program, Release};

pub(super) fn pack(release: &Release, archives: &[Artefact]) -> Result<Vec<Artefact>, String> {
    let text = |name: &str, path: &str, names: &[(&str, &str)]| {
        let bytes = release.template(path, names)?.into_bytes();
        Ok::<_, String>(Artefact { name: name.to_owned(), bytes })
    };
    let mut files = vec![
        text("install.sh", "install.sh", &[])?,
        text("Containerfile", "container/Containerfile", &[])?,
    ];
    // A formula names an archive for each architecture, so there is none of a release that lacks one.
    let of = |architecture: &str| {
        let program: &Program = release
            .programs
            .iter()
            .find(|program| program.target.triple == format!("{architecture}-unknown-linux-musl"))?;
        let name = format!("{}.tar.gz", super::archive::name(release, program));
        archives.iter().find(|archive| archive.name == name)
    };
    if let (Some(x86_64), Some(aarch64)) = (of("x86_64"), of("aarch64")) {
        let sums = [x86_64.sum(), aarch64.sum()];
        let names = [("SHA256_X86_64", &*sums[0]), ("SHA256_AARCH64", &sums[1])];
        files.push(text("orla.rb", "homebrew/orla.rb", &names)?);
        files.push(text("orla.nix", "nix/orla.nix", &names)?);
    }
    Ok(files)
}

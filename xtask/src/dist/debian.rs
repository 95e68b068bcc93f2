//! `orla_VERSION_ARCHITECTURE.deb`: the program as a service of a Debian system.
//!
//! A Debian package is an `ar` archive of two tar archives: `control` says what it is, `data` is what goes to `/`. Nothing
//! else is needed to write one, so that neither `dpkg-deb` nor its version decides about the bytes.

use super::elf::Linkage;
use super::release::{Artefact, Program, Release, gzip};
use super::tree::{PLAIN, PROGRAM, Tree, ar};

/// Completions, and where Debian's shells look for them.
const COMPLETIONS: [(&str, &str); 3] = [
    ("orla.bash", "usr/share/bash-completion/completions/orla"),
    ("_orla", "usr/share/zsh/vendor-completions/_orla"),
    ("orla.fish", "usr/share/fish/vendor_completions.d/orla.fish"),
];

/// Scripts that dpkg runs.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

pub(super) fn pack(release: &Release, program: &Program) -> Result<Artefact, String> {
    let architecture = program.target.debian;
    let data = data(release, program)?;
    let kib: usize = data.files().map(|(_, content)| content.len().div_ceil(1024)).sum();
    let depends = match program.linkage {
        Linkage::Static => "passwd".to_owned(),
        Linkage::Glibc(major, minor) => format!("passwd, libc6 (>= {major}.{minor}), libgcc-s1"),
    };
    let mut control = Tree::default();
    let names = [("ARCHITECTURE", architecture), ("KIB", &kib.to_string()), ("DEPENDS", &depends)];
    control.text("control", &release.template("debian/control", &names)?);
    control.text("conffiles", "/etc/orla/orla.yaml\n");
    for script in SCRIPTS {
        control.file(script, PROGRAM, release.file(&format!("packaging/debian/{script}"))?.into_bytes());
    }
    let members = [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", control.tar_gz("./", release.time)?),
        ("data.tar.gz", data.tar_gz("./", release.time)?),
    ];
    let members = members.each_ref().map(|(name, content)| (*name, content.as_slice()));
    let name = format!("orla_{}_{architecture}.deb", release.version);
    Ok(Artefact { name, bytes: ar(&members, release.time) })
}

/// What goes to `/`.
fn data(release: &Release, program: &Program) -> Result<Tree, String> {
    let mut tree = Tree::default();
    tree.file("usr/bin/orla", PROGRAM, program.bytes.clone());
    for (name, page) in release.manual.files() {
        let page = String::from_utf8_lossy(page);
        tree.file(format!("usr/share/man/man1/{name}.gz"), PLAIN, gzip(&page)?);
    }
    for (name, content) in release.completions.files() {
        if let Some((_, path)) = COMPLETIONS.iter().find(|(of, _)| *of == name) {
            tree.file(*path, PLAIN, content.clone());
        }
    }
    let packaged = |file: &str| release.file(&format!("packaging/debian/{file}"));
    tree.text("usr/lib/systemd/system/orla.service", &packaged("orla.service")?);
    tree.text("usr/lib/sysusers.d/orla.conf", &packaged("orla.sysusers")?);
    tree.text("etc/orla/orla.yaml", &packaged("orla.yaml")?);
    tree.folder("etc/orla/tools");
    tree.folder("etc/orla/prompts");
    tree.text("usr/share/orla/orla.schema.json", &release.file("orla.schema.json")?);
    tree.text("usr/share/doc/orla/README.md", &release.file("README.md")?);
    tree.file("usr/share/doc/orla/changelog.gz", PLAIN, gzip(&release.file("CHANGELOG.md")?)?);
    tree.file("usr/share/doc/orla/THIRD-PARTY-LICENSES.txt.gz", PLAIN, gzip(&release.third_party)?);
    let copyright =
        release.template("debian/copyright", &[("MIT", &indented(&release.file("LICENSE-MIT")?))])?;
    tree.text("usr/share/doc/orla/copyright", &copyright);
    Ok(tree)
}

/// Returns a text as a field of a control file has it: one space before each line, and a dot for an
/// empty one.
fn indented(text: &str) -> String {
    let lines: Vec<String> = text
        .trim()
        .lines()
        .map(|line| if line.trim().is_empty() { " .".into() } else { format!(" {line}") })
        .collect();
    lines.join("\n")
}

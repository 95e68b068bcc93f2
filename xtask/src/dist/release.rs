//! What is packed: the version and its commit, the programs, and the files that go beside them.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use flate2::{Compression, GzBuilder};
use ring::digest::{SHA256, digest};
use serde_json::Value;

use super::elf::{self, Linkage};
use super::tree::Tree;

/// A system that orla is packed for, under the names that others give it.
pub(super) struct Target {
    /// Rust's name.
    pub(super) triple: &'static str,
    /// The architecture, as `uname -m` says it.
    pub(super) architecture: &'static str,
    pub(super) debian: &'static str,
    pub(super) node: &'static str,
}

/// Every target that something can be packed for. The first two are what a release consists of.
pub(super) static TARGETS: [Target; 4] = [
    Target { triple: "x86_64-unknown-linux-musl", architecture: "x86_64", debian: "amd64", node: "x64" },
    Target {
        triple: "aarch64-unknown-linux-musl",
        architecture: "aarch64",
        debian: "arm64",
        node: "arm64",
    },
    Target { triple: "x86_64-unknown-linux-gnu", architecture: "x86_64", debian: "amd64", node: "x64" },
    Target {
        triple: "aarch64-unknown-linux-gnu",
        architecture: "aarch64",
        debian: "arm64",
        node: "arm64",
    },
];

impl Target {
    /// Returns whether its programs are static, and need no library of the system.
    pub(super) fn is_static(&self) -> bool {
        self.triple.ends_with("musl")
    }

    pub(super) fn of(triple: &str) -> Result<&'static Self, String> {
        TARGETS.iter().find(|target| target.triple == triple).ok_or_else(|| {
            let known: Vec<_> = TARGETS.iter().map(|target| target.triple).collect();
            format!("nothing is packed for `{triple}`; known are: {}", known.join(", "))
        })
    }

    /// Returns whether programs for it run on this machine without an emulator.
    pub(super) fn is_native(&self) -> bool {
        self.architecture == std::env::consts::ARCH && cfg!(target_os = "linux")
    }
}

/// `orla` for one target.
pub(super) struct Program {
    pub(super) target: &'static Target,
    pub(super) linkage: Linkage,
    pub(super) path: PathBuf,
    pub(super) bytes: Rc<[u8]>,
}

impl Program {
    /// # Errors
    /// The file is not a program for the target, or is linked with what the target does not promise.
    pub(super) fn read(target: &'static Target, path: &Path) -> Result<Self, String> {
        let bytes = read(path)?;
        let linkage = elf::linkage(&bytes, target.architecture)
            .and_then(|linkage| match (target.triple.ends_with("musl"), linkage) {
                (true, Linkage::Glibc(major, minor)) => Err(format!(
                    "needs glibc {major}.{minor}, and {} promises a static program",
                    target.triple
                )),
                _ => Ok(linkage),
            })
            .map_err(|why| format!("{}: {why}", path.display()))?;
        Ok(Self { target, linkage, path: path.to_owned(), bytes: bytes.into() })
    }
}

/// A file to publish.
#[derive(PartialEq, Eq)]
pub(super) struct Artefact {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
}

impl Artefact {
    /// Returns the SHA-256 of the bytes, in hexadecimal digits.
    pub(super) fn sum(&self) -> String {
        sum(&self.bytes)
    }
}

/// What all artefacts of a release share.
pub(super) struct Release {
    pub(super) version: String,
    /// The full name of the commit.
    pub(super) commit: String,
    /// The time of the commit, or `SOURCE_DATE_EPOCH`, in seconds since 1970. It is the time of everything.
    pub(super) time: u64,
    /// A checkout of the commit.
    pub(super) source: PathBuf,
    pub(super) repository: String,
    pub(super) programs: Vec<Program>,
    /// `orla.bash`, `_orla` and `orla.fish`.
    pub(super) completions: Tree,
    /// `orla.1` and its like.
    pub(super) manual: Tree,
    /// The licences of what is built in, as one text.
    pub(super) third_party: String,
}

/// Shells whose completions go along, and what their files are called.
const SHELLS: [(&str, &str); 3] = [("bash", "orla.bash"), ("zsh", "_orla"), ("fish", "orla.fish")];

/// Returns where a release is found once it is published. `ORLA_REPOSITORY` names another place, such as
/// a mirror's.
fn repository(source: &Path) -> Result<String, String> {
    if let Ok(url) = std::env::var("ORLA_REPOSITORY") {
        return Ok(url);
    }
    let manifest = text(&source.join("Cargo.toml"))?;
    let line = manifest.lines().find_map(|line| line.strip_prefix("repository = \""));
    line.and_then(|rest| rest.strip_suffix('"'))
        .map(str::to_owned)
        .ok_or_else(|| "Cargo.toml names no repository".into())
}

impl Release {
    /// Asks a program that runs here for its version, completions and manual.
    pub(super) fn of(
        commit: Commit,
        source: PathBuf,
        programs: Vec<Program>,
        third_party: String,
        scratch: &Path,
    ) -> Result<Self, String> {
        let native = programs.iter().find(|program| program.target.is_native()).ok_or(
            "none of the programs runs here, and one has to write completions and manual pages",
        )?;
        let ask = |arguments: &[&str]| stdout_of(Command::new(&native.path).args(arguments));
        let version = ask(&["--version"])?;
        let version =
            version.split_whitespace().nth(1).ok_or("orla does not tell its version")?.to_owned();
        let mut completions = Tree::default();
        for (shell, file) in SHELLS {
            completions.text(file, &ask(&["completions", shell])?);
        }
        let folder = scratch.join("man");
        // What an earlier run left would be packed too.
        let _ = fs::remove_dir_all(&folder);
        succeed(Command::new(&native.path).arg("man").arg(&folder))?;
        let mut manual = Tree::default();
        for entry in fs::read_dir(&folder).map_err(|err| format!("{}: {err}", folder.display()))? {
            let path = entry.map_err(|err| err.to_string())?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            manual.text(name, &text(&path)?);
        }
        let repository = repository(&source)?;
        let Commit { commit, time } = commit;
        Ok(Self {
            version,
            commit,
            time,
            source,
            repository,
            programs,
            completions,
            manual,
            third_party,
        })
    }

    /// Returns the address of the folder with the files of this version.
    pub(super) fn base_url(&self) -> String {
        format!("{}/releases/download/v{}", self.repository, self.version)
    }

    /// Returns a file of the source.
    pub(super) fn file(&self, path: &str) -> Result<String, String> {
        text(&self.source.join(path))
    }

    /// Returns a file below `packaging`, with each `@NAME@` in it replaced. `VERSION`, `REPOSITORY` and
    /// `BASE_URL` are always known.
    ///
    /// # Errors
    /// There is no such file, or it has a name that is not known.
    pub(super) fn template(&self, path: &str, names: &[(&str, &str)]) -> Result<String, String> {
        let path = format!("packaging/{path}");
        let base_url = self.base_url();
        let own =
            [("VERSION", &*self.version), ("REPOSITORY", &self.repository), ("BASE_URL", &base_url)];
        fill(&self.file(&path)?, &[&own, names].concat()).map_err(|why| format!("{path}: {why}"))
    }
}

/// Replaces each `@NAME@` in a text; a name is capital letters, digits and underscores.
fn fill(text: &str, names: &[(&str, &str)]) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('@') {
        out.push_str(before);
        let name = after.split_once('@').map(|(name, _)| name).filter(|name| {
            !name.is_empty()
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
        });
        match name {
            Some(name) => {
                let known = names.iter().find(|(known, _)| *known == name);
                out.push_str(known.ok_or_else(|| format!("@{name}@ has no value"))?.1);
                rest = &after[name.len() + 1..];
            }
            None => {
                out.push('@');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// A commit of the repository.
#[derive(Clone)]
pub(super) struct Commit {
    pub(super) commit: String,
    pub(super) time: u64,
}

impl Commit {
    /// Returns the commit that is checked out.
    ///
    /// # Errors
    /// This is no checkout, or `SOURCE_DATE_EPOCH` is no time.
    pub(super) fn checked_out() -> Result<Self, String> {
        let git = |arguments: &[&str]| {
            stdout_of(Command::new("git").args(arguments).current_dir(crate::root()))
        };
        let commit = git(&["rev-parse", "HEAD"])?.trim().to_owned();
        let time = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(time) => time,
            Err(_) => git(&["show", "--no-patch", "--format=%ct", "HEAD"])?,
        };
        let time = time.trim().parse().map_err(|_| format!("SOURCE_DATE_EPOCH: `{time}` is no time"))?;
        Ok(Self { commit, time })
    }
}

/// Returns a text, compressed with gzip and without a time.
pub(super) fn gzip(text: &str) -> Result<Vec<u8>, String> {
    let mut out = GzBuilder::new().operating_system(255).write(Vec::new(), Compression::best());
    out.write_all(text.as_bytes()).and_then(|()| out.finish()).map_err(|err| format!("gzip: {err}"))
}

/// Returns the SHA-256 of bytes, in hexadecimal digits.
pub(super) fn sum(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// Returns a value as JSON that ends with a line feed.
pub(super) fn json(value: &Value) -> String {
    format!("{value:#}\n")
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|err| format!("{}: {err}", path.display()))
}

pub(super) fn text(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|err| format!("{}: {err}", path.display()))
}

pub(super) fn succeed(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{program}: {status}")),
        Err(err) => Err(format!("{program}: {err}")),
    }
}

/// What a program writes, if it succeeds.
pub(super) fn stdout_of(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|err| format!("{program}: {err}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program}: {}: {}", output.status, stderr.trim()));
    }
    String::from_utf8(output.stdout).map_err(|err| format!("{program}: {err}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_has_no_name_without_a_value() {
        let names = [("VERSION", "1.2.3"), ("NAME", "orla")];
        let cases = [
            ("@NAME@ @VERSION@.", Ok("orla 1.2.3.")),
            ("a@b.c, \"$@\", @ and @lower@", Ok("a@b.c, \"$@\", @ and @lower@")),
            ("\"$@\" @VERSION@", Ok("\"$@\" 1.2.3")),
            ("@OTHER@", Err("@OTHER@ has no value")),
            ("@SHA256_X86_64@", Err("@SHA256_X86_64@ has no value")),
        ];
        for (text, expected) in cases {
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(fill(text, &names), expected, "{text}");
        }
    }
}

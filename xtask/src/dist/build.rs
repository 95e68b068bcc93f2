//! Programs of a commit, built so that the folder they are built in leaves no trace.
//!
//! The commit is exported to a folder of its own, so that what lies about in a checkout has no part in it. `zig cc`, of the
//! version that `packaging/build/requirements.txt` pins, compiles the parts in C for every target. The linker of static programs
//! is the one of the Rust toolchain. `zig cc` links those for glibc, because it has the interface of an old glibc. So no compiler
//! and no library of the system has a part in the programs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::install;
use crate::tally::Tally;

use super::release::{self, Commit, Program, TARGETS, Target, stdout_of, succeed};

/// What was built.
pub(super) struct Built {
    pub(super) source: PathBuf,
    pub(super) programs: Vec<Program>,
    /// The versions of the compilers.
    pub(super) compiler: Vec<String>,
}

/// Returns the static targets whose standard library is installed.
pub(super) fn possible() -> Result<Vec<&'static Target>, String> {
    let installed = stdout_of(Command::new("rustc").args(["--print", "sysroot"]))?;
    let libraries = Path::new(installed.trim()).join("lib/rustlib");
    let targets: Vec<_> = TARGETS
        .iter()
        .filter(|target| target.is_static() && libraries.join(target.triple).join("lib").is_dir())
        .collect();
    match targets.is_empty() {
        true => Err(
            "no static target is installed: rustup target add x86_64-unknown-linux-musl, or build for glibc with --target x86_64-unknown-linux-gnu"
                .to_owned(),
        ),
        false => Ok(targets),
    }
}

/// Builds each target from the commit; if `is_twice`, in two folders, whose programs must have the same bytes.
pub(super) fn build(
    commit: &Commit,
    targets: &[&'static Target],
    profile: &str,
    is_twice: bool,
    tally: &mut Tally,
) -> Result<Built, String> {
    let dist = crate::target("dist")?;
    let zig = zig(&dist)?;
    let one = Folder::export(commit, &dist.join("source"), &dist.join("build"))?;
    let mut programs = Vec::new();
    for target in targets {
        programs.push(one.build(target, profile, &zig)?);
    }
    if is_twice {
        // Another length, another depth.
        let other =
            Folder::export(commit, &dist.join("again/elsewhere/checkout"), &dist.join("again/built"))?;
        for program in &programs {
            let again = other.build(program.target, profile, &zig)?;
            let same = match again.bytes == program.bytes {
                true => Ok(()),
                false => Err(format!("{} and {} differ", program.path.display(), again.path.display())),
            };
            tally.check(&format!("{} built twice, all bytes are the same", program.target.triple), same);
        }
    }
    let compiler = vec![
        stdout_of(Command::new("rustc").arg("--version"))?.trim().to_owned(),
        format!(
            "zig {}",
            stdout_of(Command::new(&zig.program).args(["-m", "ziglang", "version"]))?.trim()
        ),
    ];
    Ok(Built { source: one.source, programs, compiler })
}

/// A checkout, and where it is built.
struct Folder {
    source: PathBuf,
    build: PathBuf,
}

impl Folder {
    fn export(commit: &Commit, source: &Path, build: &Path) -> Result<Self, String> {
        super::export(&commit.commit, source)?;
        fs::create_dir_all(build).map_err(|err| format!("{}: {err}", build.display()))?;
        Ok(Self { source: source.to_owned(), build: build.to_owned() })
    }

    fn build(&self, target: &'static Target, profile: &str, zig: &Zig) -> Result<Program, String> {
        let home = cargo_home()?;
        let remap = [(&self.source, "/orla"), (&self.build, "/build"), (&home, "/cargo")];
        let mut flags: Vec<String> = remap
            .iter()
            .map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()))
            .collect();
        // A build id would be made of the bytes, and there is one already: the checksum.
        if target.is_static() {
            flags.push("-Clinker=rust-lld".to_owned());
            flags.push("-Ctarget-feature=+crt-static".to_owned());
            flags.push("-Clink-arg=--build-id=none".to_owned());
        } else {
            flags.push(format!("-Clinker={}", zig.compiler.display()));
            flags.push("-Clink-arg=-Wl,--build-id=none".to_owned());
        }
        let c: Vec<String> = remap
            .iter()
            .map(|(from, to)| format!("-ffile-prefix-map={}={to}", from.display()))
            .collect();
        let name = target.triple.replace('-', "_");
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        for (variable, _) in std::env::vars_os() {
            let variable = variable.to_string_lossy();
            // Those of the package whose job this is, and whatever would change what is built.
            if [
                "CARGO_PKG_",
                "CARGO_MANIFEST_",
                "CARGO_BIN_",
                "CARGO_PROFILE_",
                "CARGO_BUILD_",
                "RUSTFLAGS",
                "CFLAGS",
                "CPPFLAGS",
                "LDFLAGS",
                "JEMALLOC_",
            ]
            .iter()
            .any(|start| variable.starts_with(start))
            {
                cargo.env_remove(&*variable);
            }
        }
        if target.architecture == "aarch64" {
            // jemalloc cannot ask the machine: with pages of 64 KiB, it works where pages are smaller too.
            cargo.env("JEMALLOC_SYS_WITH_LG_PAGE", "16");
        }
        succeed(
            cargo
                .args(["build", "--locked", "--package", "orla", "--features", super::FEATURES])
                .args(["--profile", profile, "--target", target.triple, "--target-dir"])
                .arg(&self.build)
                .current_dir(&self.source)
                .env("CARGO_INCREMENTAL", "0")
                .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
                .env(format!("CFLAGS_{name}"), c.join(" "))
                .env(format!("CC_{name}"), &zig.compiler)
                .env(format!("AR_{name}"), &zig.archiver)
                .env("ORLA_ZIG_PYTHON", &zig.program)
                .env("ORLA_ZIG_TARGET", zig_target(target))
                .env("ZIG_GLOBAL_CACHE_DIR", self.build.join("zig"))
                .env("ZIG_LOCAL_CACHE_DIR", self.build.join("zig")),
        )?;
        let folder = if profile == "dev" { "debug" } else { profile };
        Program::read(target, &self.build.join(target.triple).join(folder).join("orla"))
    }
}

/// Returns the name of a target for `zig cc`. Programs for glibc need version 2.17, as Rust's standard library does.
fn zig_target(target: &Target) -> String {
    let library = if target.is_static() { "musl" } else { "gnu.2.17" };
    format!("{}-linux-{library}", target.architecture)
}

/// Returns where cargo keeps the sources of libraries.
fn cargo_home() -> Result<PathBuf, String> {
    match std::env::var_os("CARGO_HOME") {
        Some(home) => Ok(home.into()),
        None => std::env::home_dir()
            .map(|home| home.join(".cargo"))
            .ok_or_else(|| "there is no home directory".into()),
    }
}

/// The compiler of C.
struct Zig {
    /// The Python that has it as a module.
    program: PathBuf,
    compiler: PathBuf,
    archiver: PathBuf,
}

/// Installs the pinned compiler below `dist`, if it is not there.
fn zig(dist: &Path) -> Result<Zig, String> {
    let pins = crate::root().join("packaging/build/requirements.txt");
    let program = install::python(dist, &pins, "zig")?;
    let folder = dist.join("zig");
    let script = |name: &str| {
        let path = folder.join(name);
        let source = crate::root().join("packaging/build").join(name);
        fs::write(&path, release::read(&source)?)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)))
            .map_err(|err| format!("{}: {err}", path.display()))?;
        Ok::<_, String>(path)
    };
    Ok(Zig { compiler: script("zig-cc")?, archiver: script("zig-ar")?, program })
}

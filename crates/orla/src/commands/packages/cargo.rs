//! Builds the program of a crate. `cargo` first fetches what the crate's `Cargo.lock` names, with the user's
//! settings; this runs no code of a crate. The build runs build scripts and macros of crates, so it is
//! confined: without network, to the toolchain and a temporary directory.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use orla_packages::archive::Archive;
use orla_packages::bundle::{self, MANIFEST};
use orla_packages::crates::{PROGRAMS, SOURCE};
use orla_packages::lock::Entry;
use orla_packages::platform::Platform;
use orla_process::child::Program;
use orla_process::confinement::Declared;
use orla_process::file::program_in_path;
use orla_process::{Instance, foreground};

use super::helper;
use crate::config::{Config, reason};
use crate::render;

/// How long a build may take.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// Returns whether the archive of a package is the source of a crate.
pub(super) fn is_built(entry: &Entry) -> bool {
    std::iter::once(&entry.source).chain(&entry.resolved).any(|place| place.starts_with("cargo:"))
}

/// Builds the program of an archive into a directory, which gets the manifest, too.
///
/// # Errors
///
/// Returns an error if there is no cargo, or if the crate cannot be fetched, confined or built.
pub(super) fn build(
    archive: &Archive<'_>,
    directory: &Path,
    config: &Config,
    offline: bool,
) -> Result<(), String> {
    let (cargo, sysroot) = toolchain()?;
    // Cargo reads the settings and workspaces above a crate, so the build is not in the project.
    let temporary = tempfile::tempdir().map_err(|error| error.to_string())?;
    let place = temporary.path().canonicalize().map_err(|error| reason(&error))?;
    let at = |name: &str| place.join(name);
    let failed = |what: &str, error: &std::io::Error| format!("{what}: {}", reason(error));
    archive.unpack(&place).map_err(|error| error.to_string())?;
    let text = fs::read(at(MANIFEST)).map_err(|error| failed(MANIFEST, &error))?;
    let bundle = bundle::read(&text, Platform::HERE.system)?;
    let program = bundle.command.rsplit('/').next().unwrap_or_default();

    let (home, elsewhere) = (at("home"), at("elsewhere"));
    for made in [&home, &elsewhere] {
        fs::create_dir(made).map_err(|error| failed("the build directory", &error))?;
    }
    let mut vendor = helper::program(&cargo);
    vendor.current_dir(&elsewhere).env("RUSTC", sysroot.join("bin/rustc"));
    vendor.args(["vendor", "--locked", "--respect-source-config"]);
    vendor.args(offline.then_some("--offline")).arg("--manifest-path");
    let settings = helper::output(vendor.arg(at(SOURCE).join("Cargo.toml")).arg(at("dependencies")))?;
    fs::write(home.join("config.toml"), settings).map_err(|error| failed("config.toml", &error))?;

    render::note(&format!("building {program}; this can take minutes"));
    let word = |kind: &str, path: &Path| format!("{kind}:{}", path.display());
    let permissions = vec![
        word("fs:read", &sysroot),
        word("exec", &sysroot),
        word("exec", &cargo),
        word("fs:write", &place),
        word("exec", &place),
    ];
    let instance = Instance::guarded();
    instance.set_environment(config.environment());
    let sandboxes = instance.sandboxes();
    sandboxes.set_rules(config.sandbox);
    let declared = Declared { permissions: Some(permissions), is_foreign: true, ..Declared::default() };
    let sandbox = sandboxes.of(&declared, &place).ok_or("its build cannot be confined")?;
    sandbox.available().map_err(|why| format!("its build cannot be confined: {why}"))?;
    let variable = |name: &str, path: PathBuf| (name.to_owned(), path.to_string_lossy().into_owned());
    let env = vec![variable("CARGO_HOME", home), variable("RUSTC", sysroot.join("bin/rustc"))];
    let started = Program::new(&cargo).map_err(|error| failed("cargo", &error))?;
    let started = started.in_directory(elsewhere).with_env(env, Vec::new());
    let started = started.confined(sandbox, Vec::new());
    let words = ["install", "--quiet", "--locked", "--offline", "--no-track", "--bin", program];
    let paths = [("--path", SOURCE), ("--root", "root"), ("--target-dir", "target")];
    let paths = paths.into_iter().flat_map(|(option, name)| [option.into(), at(name).into()]);
    let args: Vec<OsString> = words.into_iter().map(OsString::from).chain(paths).collect();
    let ended = foreground::run(&started, &args, Some(TIMEOUT), &instance);
    let ended = ended.map_err(|error| failed("cargo could not start", &error))?;
    if ended.breach.is_some() {
        return Err(format!("its build did not end within {} minutes", TIMEOUT.as_secs() / 60));
    }
    if !ended.status.success() {
        return Err(
            "cargo could not build it, for the reasons above; a build has no network, and no files but \
            the system's, the toolchain's and its own"
                .to_owned(),
        );
    }
    let programs = directory.join(PROGRAMS);
    fs::create_dir(&programs)
        .and_then(|()| fs::copy(at("root/bin").join(program), programs.join(program)))
        .and_then(|_| fs::copy(at(MANIFEST), directory.join(MANIFEST)))
        .map_err(|error| failed("its program", &error))?;
    Ok(())
}

/// Returns cargo and the directory of its toolchain.
fn toolchain() -> Result<(PathBuf, PathBuf), String> {
    let install = "install Rust (https://rustup.rs), and try again";
    // Behind the launchers of rustup, which choose a toolchain, are the programs themselves.
    let said = helper::output(helper::program("rustc").args(["--print", "sysroot"]));
    let said = said.map_err(|why| format!("{why}: {install}"))?;
    let sysroot = PathBuf::from(String::from_utf8_lossy(&said).trim());
    let own = Some(sysroot.join("bin/cargo")).filter(|cargo| cargo.is_file());
    let cargo = own.or_else(|| program_in_path("cargo"));
    let cargo = cargo
        .ok_or_else(|| format!("cargo is needed for this source and is not installed: {install}"))?;
    Ok((cargo, sysroot))
}

//! Builds the program of a crate. `cargo` first fetches what the crate's `Cargo.lock` names, with the user's
//! settings; this runs no code of a crate. The build runs build scripts and macros of crates, so it is
//! confined: without network, to the toolchain and a directory in the user's cache.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use orla_packages::archive::{Archive, MAX_BYTES};
use orla_packages::bundle::{self, MANIFEST, MAX_MANIFEST};
use orla_packages::crates::{PROGRAMS, SOURCE};
use orla_packages::lock::{Entry, FILE};
use orla_packages::platform::Platform;
use orla_packages::source::Source;
use orla_process::child::Program;
use orla_process::confinement::Declared;
use orla_process::file::program_in_path;
use orla_process::{Instance, foreground};
use rustix::fs::{Mode, OFlags, open, openat};

use super::helper;
use super::origin::index;
use crate::config::{Config, reason};
use crate::packages::store_of;
use crate::render;

/// How long a build may take.
const TIMEOUT: Duration = Duration::from_secs(3600);
/// The beginning of the name of a directory in which a crate is built.
const BUILD: &str = "build-";
/// No build takes this long.
const MAX_BUILD_AGE: Duration = Duration::from_secs(2 * 3600);
/// The directory in which cargo and rustc run. Both obey files of all directories above their own.
const NEUTRAL: &str = "/";

/// Returns whether the archive of a package is the source of a crate.
///
/// # Errors
///
/// Returns an error if the lock names a crate for a source that has none.
pub(super) fn is_built(entry: &Entry) -> Result<bool, String> {
    let source = Source::parse(&entry.source);
    let resolved = entry.resolved.as_deref().filter(|resolved| resolved.starts_with("cargo:"));
    match (source, resolved) {
        (Ok(Source::Cargo { .. }), _) | (Ok(Source::Registry { .. }), Some(_)) => Ok(true),
        (_, None) => Ok(false),
        (_, Some(resolved)) => Err(format!(
            "{FILE} says `resolved: {resolved}`, and its source is no crate: take {FILE} back from version control"
        )),
    }
}

/// Removes the directories of builds that did not end, because their orla was killed.
fn remove_killed_builds(cache: &Path) {
    let Ok(entries) = fs::read_dir(cache) else { return };
    let age = |entry: &fs::DirEntry| entry.metadata().ok()?.modified().ok()?.elapsed().ok();
    for entry in entries.flatten() {
        let is_build = entry.file_name().to_string_lossy().starts_with(BUILD);
        if is_build && age(&entry).is_some_and(|age| age > MAX_BUILD_AGE) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
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
    // The lock may come from others, and may name any archive.
    index()?.check_packed(archive)?;
    let failed = |what: &str, error: &io::Error| format!("{what}: {}", reason(error));
    let unmade = |error: &io::Error| failed("the build directory", error);
    // Others can write to the temporary directory of the system.
    let store = store_of(config);
    let cache = store.make_cache().map_err(|error| error.to_string())?;
    remove_killed_builds(cache);
    let temporary = tempfile::Builder::new().prefix(BUILD).tempdir_in(cache);
    let temporary = temporary.map_err(|error| unmade(&error))?;
    let place = temporary.path().canonicalize().map_err(|error| unmade(&error))?;
    let at = |name: &str| place.join(name);
    archive.unpack(&place).map_err(|error| error.to_string())?;
    end_workspaces(&at(SOURCE).join("Cargo.toml"))?;
    let text = archive.file(MANIFEST, MAX_MANIFEST).map_err(|error| error.to_string())?;
    let text = text.ok_or_else(|| format!("it has no {MANIFEST}"))?;
    let bundle = bundle::read(&text, Platform::HERE.system)?;
    let program = bundle.command.rsplit('/').next().unwrap_or_default();

    let home = at("home");
    fs::create_dir(&home).map_err(|error| unmade(&error))?;
    let mut vendor = helper::program(&cargo, NEUTRAL.as_ref());
    vendor.env("RUSTC", sysroot.join("bin/rustc"));
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
    let started = started.in_directory(NEUTRAL.into()).with_env(env, Vec::new());
    let started = started.confined(sandbox, Vec::new());
    // `cargo install` would read the settings above the crate.
    let words = ["build", "--release", "--quiet", "--locked", "--offline", "--bin", program];
    let paths = [("--manifest-path", at(SOURCE).join("Cargo.toml")), ("--target-dir", at("target"))];
    let paths = paths.into_iter().flat_map(|(option, path)| [option.into(), path.into()]);
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
        .and_then(|()| copy(&place, ["target", "release", program], &programs.join(program)))
        .and_then(|()| fs::write(directory.join(MANIFEST), text))
        .map_err(|error| failed("its program", &error))
}

/// Makes a crate the root of its own workspace, unless it is one: cargo looks for others in all
/// directories above it.
fn end_workspaces(manifest: &Path) -> Result<(), String> {
    let wrong = |why: &dyn std::fmt::Display| format!("Cargo.toml: {why}");
    let mut text = fs::read_to_string(manifest).map_err(|error| wrong(&reason(&error)))?;
    let read: toml_edit::DocumentMut = text.parse().map_err(|error| wrong(&error))?;
    if read.contains_key("workspace") {
        return Ok(());
    }
    text.push_str("\n[workspace]\n");
    fs::write(manifest, text).map_err(|error| wrong(&reason(&error)))
}

/// Copies a program out of a build, whose processes may still run and replace any file of it: by a link
/// to a file of the user, or by a pipe.
fn copy(build: &Path, names: [&str; 3], to: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut found = open(build, flags, Mode::empty())?;
    for name in names {
        found = openat(&found, name, flags, Mode::empty())?;
    }
    let found = File::from(found);
    if !found.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut to = File::options().write(true).create_new(true).mode(0o755).open(to)?;
    match io::copy(&mut found.take(MAX_BYTES + 1), &mut to)? > MAX_BYTES {
        true => Err(io::Error::other(format!("it has more than {} MiB", MAX_BYTES >> 20))),
        false => Ok(()),
    }
}

/// Returns cargo and the directory of its toolchain.
fn toolchain() -> Result<(PathBuf, PathBuf), String> {
    let install = "install Rust (https://rustup.rs), and try again";
    // Behind the launchers of rustup, which choose a toolchain, are the programs themselves.
    let mut rustc = helper::program("rustc", NEUTRAL.as_ref());
    let said = helper::output(rustc.args(["--print", "sysroot"]));
    let said = said.map_err(|why| format!("{why}: {install}"))?;
    let sysroot = PathBuf::from(String::from_utf8_lossy(&said).trim());
    let own = Some(sysroot.join("bin/cargo")).filter(|cargo| cargo.is_file());
    let cargo = own.or_else(|| program_in_path("cargo"));
    let cargo = cargo
        .ok_or_else(|| format!("cargo is needed for this source and is not installed: {install}"))?;
    Ok((cargo, sysroot))
}

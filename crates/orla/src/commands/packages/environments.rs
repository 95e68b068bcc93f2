//! Packages of npm and PyPI. `npm` and `pip` resolve the requirements of a program and fetch them, with
//! the user's settings. orla checks the digests and makes a bundle. Packages come only from the
//! registry. docs/packages.md describes the remaining risks.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use orla_packages::archive::MAX_BYTES;
use orla_packages::environment::{
    Launch, Requirement, npm_bundle, npm_locked, npm_requirements, pypi_bundle, pypi_locked,
    pypi_requirements,
};
use orla_packages::sha256;
use orla_packages::store::read_bounded;
use serde::Deserialize;
use serde_json::{Value, json};

use super::helper;

/// The words of npm for this system.
const OS: &str = if cfg!(target_os = "macos") { "darwin" } else { "linux" };
const CPU: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" };

/// An archive that npm has fetched.
#[derive(Deserialize)]
struct Packed {
    name: String,
    version: String,
    filename: String,
}

/// A program of a registry of packages.
pub(super) struct Program<'a> {
    /// Its name in the registry.
    pub(super) name: &'a str,
    /// The wanted version; `None` for the newest.
    pub(super) version: Option<&'a str>,
    /// How it is started.
    pub(super) launch: &'a Launch,
    /// The requirements in the lock; empty if they are to be resolved.
    pub(super) locked: &'a [String],
}

impl Program<'_> {
    /// Returns the bundle of a program of npm, and its requirements.
    ///
    /// # Errors
    ///
    /// Returns an error if the program cannot be fetched, is not a program, or differs from the lock.
    pub(super) fn by_npm(&self) -> Result<(Vec<u8>, Vec<String>), String> {
        let place = tempfile::tempdir().map_err(|error| error.to_string())?;
        let requirements = match self.locked {
            locked @ [_, ..] => npm_locked(locked)?,
            [] => {
                let version = self.version.unwrap_or("latest");
                let wanted = json!({"name": "wanted", "version": "1.0.0", "private": true, "dependencies": {(self.name): version}});
                write(&place.path().join("package.json"), &wanted.to_string())?;
                write(&place.path().join(".npmrc"), "")?;
                let mut npm = npm_in(place.path());
                npm.args(["install", "--package-lock-only", "--ignore-scripts", "--omit=dev"]);
                // The preparation of a git repository runs its code. An npm that does not know these options takes no
                // notice of them.
                helper::output(npm.args([
                    "--no-audit",
                    "--no-fund",
                    "--allow-git=none",
                    "--allow-file=none",
                    "--allow-directory=none",
                ]))?;
                let lock = read_bounded(&place.path().join("package-lock.json"));
                npm_requirements(&lock.map_err(|error| error.to_string())?, OS, CPU)?
            }
        };
        let mut packages: Vec<String> =
            requirements.iter().map(|one| format!("{}@{}", one.name, one.version)).collect();
        packages.sort();
        packages.dedup();
        let mut npm = match self.locked.is_empty() {
            true => npm_in(place.path()),
            false => npm(place.path())?,
        };
        let packed =
            helper::output(npm.args(["pack", "--json", "--ignore-scripts", "--"]).args(&packages))?;
        let packed: Vec<Packed> =
            serde_json::from_slice(&packed).map_err(|error| format!("npm pack: {error}"))?;
        let files = packed.into_iter().map(|Packed { name, version, filename }| {
            let file = filename.replace(['@', '/'], "-");
            (format!("{name}@{version}"), place.path().join(file.trim_start_matches('-')))
        });
        let files: HashMap<String, PathBuf> = files.collect();
        let mut total = 0;
        let archives = requirements.into_iter().map(|one| {
            let file = files.get(&format!("{}@{}", one.name, one.version));
            let file = file.ok_or_else(|| format!("npm did not fetch {}", one.name))?;
            let archive = read_bounded(file).map_err(|error| format!("{}: {error}", one.name))?;
            within(&mut total, &archive)?;
            met(one, archive)
        });
        let archives = archives.collect::<Result<Vec<_>, _>>()?;
        Ok((npm_bundle(self.name, &archives, self.launch)?, texts(&archives)))
    }

    /// Returns the bundle of a program of PyPI, and its requirements.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`by_npm`](Self::by_npm), and an error if a package has no wheel for this
    /// system.
    pub(super) fn by_pip(&self) -> Result<(Vec<u8>, Vec<String>), String> {
        let place = tempfile::tempdir().map_err(|error| error.to_string())?;
        let requirements = match self.locked {
            locked @ [_, ..] => pypi_locked(locked)?,
            [] => {
                let mut pip = pip(place.path(), "install");
                pip.args(["--dry-run", "--ignore-installed", "--report", "-", "--"]);
                pypi_requirements(&helper::output(pip.arg(self.wanted_by_pip()))?)?
            }
        };
        let lines = requirements
            .iter()
            .map(|one| format!("{}=={} --hash=sha256:{}\n", one.name, one.version, one.digest));
        write(&place.path().join("requirements.txt"), &lines.collect::<String>())?;
        let mut pip = pip(place.path(), "download");
        helper::output(pip.args([
            "--no-deps",
            "--require-hashes",
            "-r",
            "requirements.txt",
            "-d",
            "wheels",
        ]))?;
        let (mut wheels, mut total) = (HashMap::new(), 0);
        let entries =
            std::fs::read_dir(place.path().join("wheels")).map_err(|error| error.to_string())?;
        for entry in entries {
            let path = entry.map_err(|error| error.to_string())?.path();
            let wheel = read_bounded(&path).map_err(|error| error.to_string())?;
            within(&mut total, &wheel)?;
            wheels.insert(sha256(&wheel), wheel);
        }
        let wheels = requirements.into_iter().map(|one| {
            let wheel = wheels.remove(&one.digest);
            let wheel = wheel.ok_or_else(|| format!("pip did not fetch {}", one.name))?;
            met(one, wheel)
        });
        let wheels = wheels.collect::<Result<Vec<_>, _>>()?;
        Ok((pypi_bundle(self.name, &wheels, self.launch)?, texts(&wheels)))
    }

    /// Returns the version that npm would install.
    ///
    /// # Errors
    ///
    /// Returns an error if npm does not report it.
    pub(super) fn newest_by_npm(&self) -> Result<String, String> {
        let place = tempfile::tempdir().map_err(|error| error.to_string())?;
        let wanted = format!("{}@{}", self.name, self.version.unwrap_or("latest"));
        let mut npm = npm(place.path())?;
        let said = helper::output(npm.args(["view", "--json", "--", &wanted, "version"]))?;
        let said: Value = serde_json::from_slice(&said).map_err(|error| format!("npm view: {error}"))?;
        let newest = said.as_str().or_else(|| said.as_array()?.last()?.as_str());
        newest.map(str::to_owned).ok_or_else(|| "npm view gives no version".to_owned())
    }

    /// Returns the version that pip would install.
    ///
    /// # Errors
    ///
    /// Returns an error if pip does not report it.
    pub(super) fn newest_by_pip(&self) -> Result<String, String> {
        let place = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut pip = pip(place.path(), "install");
        pip.args(["--dry-run", "--no-deps", "--ignore-installed", "--report", "-", "--"]);
        let found = pypi_requirements(&helper::output(pip.arg(self.wanted_by_pip()))?)?;
        found.into_iter().next().map(|one| one.version).ok_or_else(|| "pip finds none".to_owned())
    }

    fn wanted_by_pip(&self) -> String {
        let version = self.version.map(|version| format!("=={version}"));
        format!("{}{}", self.name, version.unwrap_or_default())
    }
}

/// Returns the URL of the attestations of a package of npm, at the user's registry. `None` if it has none.
///
/// # Errors
///
/// Returns an error if npm does not report it.
pub(super) fn npm_attestations(name: &str, version: &str) -> Result<Option<String>, String> {
    let place = tempfile::tempdir().map_err(|error| error.to_string())?;
    let package = format!("{name}@{version}");
    let mut view = npm(place.path())?;
    let said = helper::output(view.args(["view", "--json", "--", &package, "dist.attestations.url"]))?;
    if said.trim_ascii().is_empty() {
        return Ok(None);
    }
    let said: Value = serde_json::from_slice(&said).map_err(|error| format!("npm view: {error}"))?;
    let url = said.as_str().ok_or_else(|| format!("npm view: {package} has several attestations"))?;
    let mut list = npm(place.path())?;
    let settings = helper::output(list.args(["config", "list", "--json"]))?;
    let settings: Value =
        serde_json::from_slice(&settings).map_err(|error| format!("npm config: {error}"))?;
    at_registry(url, name, &settings).map(Some)
}

/// Returns a URL of npm's API, at the registry of the user's settings instead of the one in it. A mirror
/// often repeats the URLs of the registry that it mirrors.
fn at_registry(url: &str, name: &str, settings: &Value) -> Result<String, String> {
    let scope = name.split_once('/').map(|(scope, _)| format!("{scope}:registry"));
    let of_scope = scope.and_then(|scope| settings[scope.as_str()].as_str());
    let registry = of_scope.or_else(|| settings["registry"].as_str());
    let registry = registry.ok_or("npm names no registry")?.trim_end_matches('/');
    let (_, path) = url.split_once("/-/npm/").ok_or_else(|| {
        format!("its attestations are at {url:?}, which is no URL of a registry of npm")
    })?;
    Ok(format!("{registry}/-/npm/{path}"))
}

/// Returns the index in the user's settings of pip. `None` if they name none.
///
/// # Errors
///
/// Returns an error if pip cannot be run.
pub(super) fn pip_index() -> Result<Option<String>, String> {
    let place = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut pip = helper::program("python3", place.path());
    pip.args(["-m", "pip", "config", "list", "--disable-pip-version-check"]);
    Ok(index_of(&String::from_utf8_lossy(&helper::output(&mut pip)?)))
}

/// Returns the index in pip's list of settings.
fn index_of(list: &str) -> Option<String> {
    // A variable of the environment applies before the settings of a command.
    let keys = [":env:", "download", "install", "global"];
    let find = |key| list.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(".index-url="));
    keys.into_iter().find_map(find).map(|value| value.trim_matches('\'').to_owned())
}

/// Adds the bytes of an archive, so that all of them are no more than one may be.
fn within(total: &mut u64, archive: &[u8]) -> Result<(), String> {
    *total += archive.len() as u64;
    match *total > MAX_BYTES {
        true => Err(format!("its packages have more than {} MiB", MAX_BYTES >> 20)),
        false => Ok(()),
    }
}

/// Returns the archive, if it is the required one.
fn met(requirement: Requirement, archive: Vec<u8>) -> Result<(Requirement, Vec<u8>), String> {
    match requirement.is_met_by(&archive) {
        true => Ok((requirement, archive)),
        false => Err(format!(
            "{} {} has another digest than its registry says: it is not installed",
            requirement.name, requirement.version
        )),
    }
}

fn texts(archives: &[(Requirement, Vec<u8>)]) -> Vec<String> {
    archives.iter().map(|(requirement, _)| requirement.to_string()).collect()
}

/// npm in a directory that is no package yet. It becomes one: npm would take the settings of a package above it.
fn npm(directory: &Path) -> Result<Command, String> {
    write(
        &directory.join("package.json"),
        r#"{"name": "wanted", "version": "1.0.0", "private": true}"#,
    )?;
    write(&directory.join(".npmrc"), "")?;
    Ok(npm_in(directory))
}

fn npm_in(directory: &Path) -> Command {
    let mut npm = helper::program("npm", directory);
    npm.args(["--loglevel=error", "--fetch-retries=2"]);
    // A registry that does not answer is an error soon.
    npm.args(["--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000"]);
    npm
}

fn pip(directory: &Path, command: &str) -> Command {
    let mut pip = helper::program("python3", directory);
    pip.args(["-m", "pip", command, "--quiet", "--disable-pip-version-check"]);
    pip.args(["--no-input", "--only-binary=:all:"]);
    pip
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attestations_are_fetched_from_the_users_registry() {
        let url = "https://registry.example/-/npm/v1/attestations/@acme%2ftool@1.0.0";
        let settings =
            json!({"registry": "https://mirror.example/npm/", "@acme:registry": "https://acme.example"});
        let at = |name: &str| at_registry(url, name, &settings).unwrap();
        assert_eq!(at("@acme/tool"), "https://acme.example/-/npm/v1/attestations/@acme%2ftool@1.0.0");
        assert_eq!(at("tool"), "https://mirror.example/npm/-/npm/v1/attestations/@acme%2ftool@1.0.0");
        assert!(at_registry("https://evil.example/a", "tool", &settings).is_err());
    }

    #[test]
    fn the_index_of_pip_is_the_one_with_precedence() {
        let list = ":env:.cert='/a'\nglobal.index-url='https://a.example/simple'\ninstall.index-url='https://b.example/simple'\n";
        assert_eq!(index_of(list).as_deref(), Some("https://b.example/simple"));
        let list = format!("{list}:env:.index-url='https://c.example/simple'\n");
        assert_eq!(index_of(&list).as_deref(), Some("https://c.example/simple"));
        assert_eq!(index_of(":env:.index='x'\n"), None);
    }
}

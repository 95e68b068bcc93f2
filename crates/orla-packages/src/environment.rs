//! Programs of npm and PyPI as bundles: all their dependencies in one archive, built from archives with
//! locked digests. No I/O.
//!
//! npm or pip decides once which versions a program needs ([`npm_requirements`], [`pypi_requirements`]).
//! The lock contains these with their digests, so that the same archive is built anywhere. No code of a
//! package runs during installation.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha512};

use crate::archive::{Archive, File, MAX_BYTES, MAX_FILES, assemble, read_tgz};
use crate::bundle::MANIFEST;
use crate::lock::is_digest;
use crate::sha256;
use crate::source::{is_npm_name, is_word, pypi_name};

/// The maximum number of archives of a program.
const MAX_REQUIREMENTS: usize = 2000;

/// An archive that a program consists of. Its text is `PLACE NAME@VERSION DIGEST`, or `NAME@VERSION
/// DIGEST` if all archives have the same place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// The target directory (`node_modules/zod`); empty for PyPI.
    pub place: String,
    /// Its name in its registry.
    pub name: String,
    /// Its version.
    pub version: String,
    /// `sha512-…` in base 64, in npm's form, or the SHA-256 in hexadecimal digits.
    pub digest: String,
}

/// The registry's description of how a program is started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    /// The name of the bundle.
    pub name: String,
    /// The description.
    pub description: String,
    /// The author.
    pub author: String,
    /// The version, if it differs from the package's.
    pub version: Option<String>,
    /// Arguments.
    pub arguments: Vec<String>,
    /// The names of required arguments without a value.
    pub needed: Vec<String>,
    /// Variables of the environment.
    pub variables: Vec<Variable>,
}

/// A variable of the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// The description.
    pub description: String,
    /// The default value.
    pub default: Option<String>,
    /// Whether it is required.
    pub is_required: bool,
}

impl std::fmt::Display for Requirement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.place.is_empty() {
            write!(f, "{} ", self.place)?;
        }
        write!(f, "{}@{} {}", self.name, self.version, self.digest)
    }
}

impl Requirement {
    /// Parses the text of a requirement.
    pub fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let (place, package, digest) = match words[..] {
            [place, package, digest] => (place, package, digest),
            [package, digest] => ("", package, digest),
            _ => return None,
        };
        let (name, version) = package.rsplit_once('@')?;
        // The name must be a package name in a registry for npm and pip, and never a path, a URL or an
        // option.
        let is_name = if place.is_empty() { is_word(name) } else { is_npm_name(name) };
        let is_version = version.starts_with(|ch: char| ch.is_ascii_digit()) && is_word(version);
        let is_place = place.is_empty()
            || place
                .strip_prefix("node_modules/")
                .is_some_and(|rest| rest.split("/node_modules/").all(is_npm_name));
        let is_digest = match digest.strip_prefix("sha512-") {
            Some(text) => BASE64_STANDARD.decode(text).is_ok_and(|bytes| bytes.len() == 64),
            None => is_digest(digest),
        };
        let fits = is_name && is_version && is_place && is_digest;
        let owned = |text: &str| text.to_owned();
        fits.then(|| Self {
            place: owned(place),
            name: owned(name),
            version: owned(version),
            digest: owned(digest),
        })
    }

    /// Returns whether it is the program of npm with this name itself.
    pub fn is_npm_program(&self, name: &str) -> bool {
        self.name == name && self.place == format!("node_modules/{name}")
    }

    /// Returns whether it is the program of PyPI with this name itself.
    pub fn is_pypi_program(&self, name: &str) -> bool {
        self.place.is_empty() && same(&self.name, name)
    }

    /// Returns whether an archive is the required one.
    pub fn is_met_by(&self, archive: &[u8]) -> bool {
        match self.digest.strip_prefix("sha512-") {
            Some(digest) => BASE64_STANDARD.encode(Sha512::digest(archive)) == digest,
            None => sha256(archive) == self.digest,
        }
    }
}

/// Returns the requirements in a `package-lock.json` for a system: `os` and `cpu` are npm's names.
///
/// # Errors
/// It needs what cannot be locked.
pub fn npm_requirements(lock: &[u8], os: &str, cpu: &str) -> Result<Vec<Requirement>, String> {
    let lock: Value =
        serde_json::from_slice(lock).map_err(|error| format!("package-lock.json: {error}"))?;
    let packages =
        lock.get("packages").and_then(Value::as_object).ok_or("package-lock.json has no packages")?;
    let mut all = Vec::new();
    for (place, package) in packages.iter().filter(|(place, _)| !place.is_empty()) {
        let is_for = |key: &str, system: &str| {
            let words =
                package.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
            let (not, only): (Vec<&str>, Vec<&str>) =
                words.into_iter().partition(|word| word.starts_with('!'));
            (only.is_empty() || only.contains(&system)) && !not.iter().any(|word| &word[1..] == system)
        };
        // A bundled package is in the archive of the package that contains it.
        if package["inBundle"] == true
            || package["dev"] == true
            || !is_for("os", os)
            || !is_for("cpu", cpu)
        {
            continue;
        }
        let text = |key: &str| package.get(key).and_then(Value::as_str);
        let own_name = place.rsplit("node_modules/").next().unwrap_or_default();
        let name = text("name").unwrap_or(own_name);
        if let Some((other, spec)) = outside_registry(package) {
            return Err(format!("{name} needs {other} from {spec}, which is not npm's registry"));
        }
        let (Some(version), Some(digest)) = (text("version"), text("integrity")) else {
            return Err(format!("{name} is not from npm's registry, and cannot be locked"));
        };
        // An archive may have several digests.
        let digest = digest.split(' ').find(|digest| digest.starts_with("sha512-")).unwrap_or_default();
        let written = format!("{place} {name}@{version} {digest}");
        all.push(
            Requirement::parse(&written).ok_or_else(|| format!("{name} cannot be locked: {written}"))?,
        );
    }
    distinct(bounded(all)?, |one| one.place.clone())
}

/// Returns a requirement that is not from the registry. A range, a tag and an alias contain neither `/`
/// nor `:`.
fn outside_registry(package: &Value) -> Option<(&str, &str)> {
    let kinds = ["dependencies", "optionalDependencies", "peerDependencies"];
    let all = kinds.into_iter().filter_map(|kind| package.get(kind)?.as_object()).flatten();
    let mut all = all.filter_map(|(name, spec)| Some((name.as_str(), spec.as_str()?)));
    all.find(|(_, spec)| !spec.starts_with("npm:") && spec.contains(['/', ':']))
}

/// Returns the requirements in a report of `pip install --report`.
///
/// # Errors
/// It needs what cannot be locked.
pub fn pypi_requirements(report: &[u8]) -> Result<Vec<Requirement>, String> {
    let report: Value =
        serde_json::from_slice(report).map_err(|error| format!("the report of pip: {error}"))?;
    let install =
        report.get("install").and_then(Value::as_array).ok_or("the report of pip has no list")?;
    let all = install.iter().map(|item| {
        let text = |pointer: &str| item.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (name, version) = (text("/metadata/name"), text("/metadata/version"));
        if item["is_direct"] == true {
            let url = text("/download_info/url");
            return Err(format!("{name} is needed from {url}, which is not an index of packages"));
        }
        let digest = text("/download_info/archive_info/hashes/sha256");
        Requirement::parse(&format!("{name}@{version} {digest}"))
            .ok_or_else(|| format!("{name} {version} cannot be locked"))
    });
    let mut all = all.collect::<Result<Vec<_>, _>>()?;
    all.sort_by(|a, b| a.name.cmp(&b.name));
    distinct(bounded(all)?, |one| pypi_name(&one.name))
}

/// Returns the requirements of a program of npm in a lock, which others may have written.
///
/// # Errors
/// A text is not a requirement of npm, or two have one place.
pub fn npm_locked(texts: &[String]) -> Result<Vec<Requirement>, String> {
    distinct(locked(texts, |one| !one.place.is_empty())?, |one| one.place.clone())
}

/// Returns the requirements of a program of PyPI in a lock, which others may have written.
///
/// # Errors
/// A text is not a requirement of PyPI, or two have one name.
pub fn pypi_locked(texts: &[String]) -> Result<Vec<Requirement>, String> {
    distinct(locked(texts, |one| one.place.is_empty())?, |one| pypi_name(&one.name))
}

fn locked(
    texts: &[String],
    is_of_kind: impl Fn(&Requirement) -> bool,
) -> Result<Vec<Requirement>, String> {
    let read = |text: &String| {
        let wrong = || format!("the lock requires {text:?}, which is not a requirement");
        Requirement::parse(text).filter(&is_of_kind).ok_or_else(wrong)
    };
    texts.iter().map(read).collect()
}

/// Returns the requirements if no two of them would have the same place in the bundle: the files of one
/// would replace those of the other.
fn distinct(all: Vec<Requirement>, key: fn(&Requirement) -> String) -> Result<Vec<Requirement>, String> {
    let mut known = BTreeSet::new();
    match all.iter().find(|one| !known.insert(key(one))) {
        Some(twin) => Err(format!("it requires {} twice", key(twin))),
        None => Ok(all),
    }
}

fn bounded(all: Vec<Requirement>) -> Result<Vec<Requirement>, String> {
    match all.len() {
        0 => Err("nothing is to be installed".to_owned()),
        count if count > MAX_REQUIREMENTS => {
            Err(format!("it needs more than {MAX_REQUIREMENTS} packages"))
        }
        _ => Ok(all),
    }
}

/// Adds files and their sizes, so that many archives together do not exceed the limits of one.
fn within(total: &mut Total, files: &[File]) -> Result<(), String> {
    total.files += files.len();
    total.bytes += files.iter().map(|file| file.content.len() as u64).sum::<u64>();
    if total.files > MAX_FILES {
        return Err(format!("its packages have more than {MAX_FILES} files"));
    }
    match total.bytes > MAX_BYTES {
        true => Err(format!("its packages unpack to more than {} MiB", MAX_BYTES >> 20)),
        false => Ok(()),
    }
}

/// What archives together unpack to.
#[derive(Default)]
struct Total {
    files: usize,
    bytes: u64,
}

/// Returns the bundle of an npm program, built from the required archives.
///
/// # Errors
/// An archive is broken, or the package is not a program.
pub fn npm_bundle(
    name: &str,
    archives: &[(Requirement, Vec<u8>)],
    launch: &Launch,
) -> Result<Vec<u8>, String> {
    let (mut files, mut total) = (Vec::new(), Total::default());
    for (requirement, archive) in own_first(archives, |one| one.is_npm_program(name)) {
        let content = read_tgz(archive).map_err(|error| format!("{}: {error}", requirement.name))?;
        within(&mut total, &content)?;
        files.extend(content.into_iter().filter_map(|file| {
            // The first part of each name is always `package`.
            let (_, rest) = file.name.split_once('/')?;
            Some(File { name: format!("{}/{rest}", requirement.place), ..file })
        }));
    }
    let place = format!("node_modules/{name}");
    let own = archives.iter().find(|(requirement, _)| requirement.is_npm_program(name));
    let (requirement, _) = own.ok_or("the package is missing")?;
    let package = files
        .iter()
        .find(|file| file.name == format!("{place}/package.json"))
        .ok_or("it has no package.json")?;
    let package: Value =
        serde_json::from_slice(&package.content).map_err(|error| format!("package.json: {error}"))?;
    let short = name.rsplit('/').next().unwrap_or(name);
    let program = match &package["bin"] {
        Value::String(path) => Some(path.as_str()),
        Value::Object(programs) => {
            let only = programs.values().next().filter(|_| programs.len() == 1);
            programs.get(short).or(only).and_then(Value::as_str)
        }
        _ => None,
    };
    let program = program
        .ok_or_else(|| format!("{name} is not a program: its package.json has no `bin` of this name"))?;
    let main = format!("${{__dirname}}/{place}/{}", program.trim_start_matches("./"));
    let text = |key: &str| package[key].as_str().unwrap_or_default();
    let author = package["author"]["name"].as_str().unwrap_or_else(|| text("author"));
    let manifest = manifest(
        &Start { kind: "node", command: "node", args: vec![main], env: Vec::new() },
        launch,
        [short, &requirement.version, text("description"), author],
    );
    finish(files, &manifest)
}

/// Returns the bundle of a PyPI program, built from the required wheels. It runs with the version of
/// Python that they are for.
///
/// # Errors
/// A wheel is broken, or the package is not a program.
pub fn pypi_bundle(
    name: &str,
    wheels: &[(Requirement, Vec<u8>)],
    launch: &Launch,
) -> Result<Vec<u8>, String> {
    let (mut files, mut found, mut total) = (Vec::new(), None, Total::default());
    let mut says = <[String; 2]>::default();
    for (requirement, wheel) in own_first(wheels, |one| one.is_pypi_program(name)) {
        let wrong = |error: crate::archive::ArchiveError| format!("{}: {error}", requirement.name);
        let archive = Archive::read(wheel).map_err(wrong)?;
        let content = archive.contents().map_err(wrong)?;
        within(&mut total, &content)?;
        for file in content {
            let is_wanted = requirement.is_pypi_program(name);
            if is_wanted && file.name.ends_with(".dist-info/entry_points.txt") {
                found = Some((requirement, String::from_utf8_lossy(&file.content).into_owned()));
            }
            if is_wanted && file.name.ends_with(".dist-info/METADATA") {
                says = summary_and_author(&String::from_utf8_lossy(&file.content));
            }
            // Modules may be in a separate directory; scripts, headers and data are not needed.
            let name = match file.name.split_once(".data/") {
                Some((_, rest)) => {
                    match rest.strip_prefix("purelib/").or_else(|| rest.strip_prefix("platlib/")) {
                        Some(rest) => rest.to_owned(),
                        None => continue,
                    }
                }
                None => file.name.clone(),
            };
            files.push(File { name: format!("lib/{name}"), ..file });
        }
    }
    let (requirement, points) =
        found.ok_or_else(|| format!("{name} is not a program: it has no entry points"))?;
    let (module, function) = entry_point(&points, name)
        .ok_or_else(|| format!("{name} is not a program: it has no console script of this name"))?;
    // The names are checked: they cannot close the string literals.
    let code = format!(
        "import sys, functools, importlib; sys.exit(functools.reduce(getattr, '{function}'.split('.'), importlib.import_module('{module}'))())"
    );
    let env = vec![("PYTHONPATH", "${__dirname}/lib".to_owned())];
    let start = Start { kind: "python", command: "python3", args: vec!["-c".to_owned(), code], env };
    let manifest = manifest(&start, launch, [name, &requirement.version, &says[0], &says[1]]);
    finish(files, &manifest)
}

/// Returns the summary and the author in the metadata of a wheel.
fn summary_and_author(metadata: &str) -> [String; 2] {
    let field = |name: &&str| {
        let mut header = metadata.lines().take_while(|line| !line.is_empty());
        let value = header.find_map(|line| line.strip_prefix(*name)?.strip_prefix(':'));
        value.map(str::trim).filter(|value| !value.is_empty() && *value != "UNKNOWN")
    };
    let authors = ["Author", "Author-email", "Maintainer", "Maintainer-email"];
    [field(&"Summary"), authors.iter().find_map(field)].map(|text| text.unwrap_or_default().to_owned())
}

/// Returns whether two names are the same to PyPI.
fn same(one: &str, other: &str) -> bool {
    pypi_name(one) == pypi_name(other)
}

/// Returns the archives with those of the program itself first: no other archive replaces its files.
fn own_first(
    archives: &[(Requirement, Vec<u8>)],
    is_own: impl Fn(&Requirement) -> bool,
) -> impl Iterator<Item = &(Requirement, Vec<u8>)> {
    let (own, others): (Vec<_>, Vec<_>) = archives.iter().partition(|(one, _)| is_own(one));
    own.into_iter().chain(others)
}

/// Returns the module and the function of a program in `entry_points.txt`: the one with the package's
/// name, or the only one.
fn entry_point<'a>(points: &'a str, name: &str) -> Option<(&'a str, &'a str)> {
    let mut section = "";
    let mut all: BTreeMap<&str, &str> = BTreeMap::new();
    for line in points.lines().map(str::trim) {
        match line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(name) => section = name,
            None if section == "console_scripts" => {
                let (name, point) = line.split_once('=').unwrap_or_default();
                all.insert(
                    name.trim(),
                    point.split([' ', '[']).find(|word| !word.is_empty()).unwrap_or_default(),
                );
            }
            None => {}
        }
    }
    all.remove("");
    let only = all.values().next().filter(|_| all.len() == 1);
    let point = all.iter().find(|(known, _)| same(known, name)).map(|(_, point)| point).or(only)?;
    let is_path = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.".contains(&byte))
    };
    point.split_once(':').filter(|(module, function)| is_path(module) && is_path(function))
}

/// The command to start.
pub(crate) struct Start<'a> {
    pub(crate) kind: &'a str,
    pub(crate) command: &'a str,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(&'a str, String)>,
}

/// Returns the manifest of the bundle. `own` is the package's own data: name, version, description,
/// author.
pub(crate) fn manifest(start: &Start<'_>, launch: &Launch, own: [&str; 4]) -> Value {
    let [name, version, description, author] = own;
    let or = |text: &str, other: &str| if text.is_empty() { other.to_owned() } else { text.to_owned() };
    let mut env: BTreeMap<&str, String> =
        start.env.iter().map(|(name, value)| (*name, value.clone())).collect();
    let mut settings = serde_json::Map::new();
    for variable in &launch.variables {
        env.insert(&variable.name, format!("${{user_config.{}}}", variable.name));
        let mut setting = json!({"type": "string", "title": or(&variable.description, &variable.name), "required": variable.is_required});
        if let Some(default) = &variable.default {
            setting["default"] = json!(default);
        }
        settings.insert(variable.name.clone(), setting);
    }
    let args: Vec<&String> = start.args.iter().chain(&launch.arguments).collect();
    json!({
        "manifest_version": "0.3",
        "name": or(&launch.name, name),
        "version": launch.version.as_deref().unwrap_or(version),
        "description": or(&launch.description, description),
        "author": {"name": or(&launch.author, author)},
        "server": {"type": start.kind, "mcp_config": {"command": start.command, "args": args, "env": env}},
        "user_config": settings,
    })
}

/// Returns the archive of the files and the manifest. If a name is repeated, the first file is used.
pub(crate) fn finish(files: Vec<File>, manifest: &Value) -> Result<Vec<u8>, String> {
    let own = File {
        name: MANIFEST.to_owned(),
        is_executable: false,
        content: manifest.to_string().into_bytes(),
    };
    let mut known = BTreeSet::new();
    let mut all: Vec<File> =
        std::iter::once(own).chain(files).filter(|file| known.insert(file.name.clone())).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    assemble(&all).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requirement_is_read_as_it_was_written() {
        let sha512 = format!("sha512-{}", BASE64_STANDARD.encode([7; 64]));
        for text in [
            format!("node_modules/@a/b/node_modules/c @a/c@1.0.0-rc.1+x {sha512}"),
            format!("pydantic_core@2.1 {}", "ab".repeat(32)),
        ] {
            assert_eq!(Requirement::parse(&text).unwrap().to_string(), text);
        }
        for wrong in [
            format!("node_modules/../../x x@1 {sha512}"),
            format!("/etc x@1 {sha512}"),
            format!("-x@1 {sha512}"),
            format!("x@--flag {sha512}"),
            format!("node_modules/x evil/repository@1 {sha512}"),
            format!("node_modules/x x@evil/repository {sha512}"),
            format!("node_modules/x x@evil/repository@1 {sha512}"),
            "x@1 sha512-AA==".to_owned(),
            "x@1 00".to_owned(),
            "x@1".to_owned(),
        ] {
            assert_eq!(Requirement::parse(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn nothing_is_required_twice_at_one_place() {
        let digests = [[1; 64], [2; 64]].map(|bytes| BASE64_STANDARD.encode(bytes));
        let npm =
            |place: &str, name: &str, digest: &str| format!("{place} {name}@1.0.0 sha512-{digest}");
        let own = npm("node_modules/tool", "tool", &digests[0]);
        let evil = npm("node_modules/tool", "evil", &digests[1]);
        let inner = npm("node_modules/a/node_modules/tool", "tool", &digests[0]);
        assert!(npm_locked(&[evil, own.clone()]).unwrap_err().contains("node_modules/tool twice"));
        assert_eq!(npm_locked(&[own.clone(), inner]).map(|all| all.len()), Ok(2));
        let pypi = |name: &str, byte: &str| format!("{name}@1.0.0 {}", byte.repeat(32));
        let (own_wheel, twin) = (pypi("weather-mcp", "01"), pypi("Weather_MCP", "02"));
        let why = pypi_locked(&[twin, own_wheel.clone()]).unwrap_err();
        assert!(why.contains("weather-mcp twice"), "{why}");
        assert!(pypi_locked(&[own_wheel.clone(), pypi("other", "02")]).is_ok());
        // Each of the other registry.
        assert!(npm_locked(&[own_wheel]).is_err() && pypi_locked(&[own]).is_err());
        let item = |name: &str| json!({"metadata": {"name": name, "version": "1"}, "download_info": {"archive_info": {"hashes": {"sha256": "ab".repeat(32)}}}});
        let report = json!({"install": [item("a.b"), item("a-b")]}).to_string();
        assert!(pypi_requirements(report.as_bytes()).unwrap_err().contains("a-b twice"));
    }

    #[test]
    fn no_other_archive_replaces_a_file_of_the_program() {
        let wheel = |text: &str, more: &[(&str, &str)]| {
            let file = |name: &str, text: &str| File {
                name: name.to_owned(),
                is_executable: false,
                content: text.as_bytes().to_vec(),
            };
            let mut files = vec![file("weather_mcp/__init__.py", text)];
            files.extend(more.iter().map(|(name, text)| file(name, text)));
            assemble(&files).unwrap()
        };
        let points =
            ("w.dist-info/entry_points.txt", "[console_scripts]\nweather-mcp = weather_mcp:main\n");
        let required = |name: &str| Requirement {
            place: String::new(),
            name: name.to_owned(),
            version: "1.0".to_owned(),
            digest: "0".repeat(64),
        };
        let wheels =
            [(required("aaa"), wheel("evil", &[])), (required("weather_mcp"), wheel("good", &[points]))];
        let bundle = pypi_bundle("weather-mcp", &wheels, &Launch::default()).unwrap();
        let archive = Archive::read(&bundle).unwrap();
        let module = archive.file("lib/weather_mcp/__init__.py", 100).unwrap();
        assert_eq!(module.as_deref(), Some(&b"good"[..]));
    }

    #[test]
    fn the_metadata_of_a_wheel_is_read() {
        let metadata = "Metadata-Version: 2.4\nName: w\nSummary: Tells the time.\nAuthor: \nAuthor-email: Ada <ada@example.com>\n\nSummary: of the text\n";
        assert_eq!(summary_and_author(metadata), ["Tells the time.", "Ada <ada@example.com>"]);
        assert_eq!(summary_and_author("Author: UNKNOWN\n\nAuthor: x"), ["", ""]);
    }

    #[test]
    fn packages_for_other_systems_are_left_out() {
        let digest = format!("sha512-{}", BASE64_STANDARD.encode([7; 64]));
        let package = |more: &str| format!(r#"{{"version": "1.0.0", "integrity": "{digest}"{more}}}"#);
        let lock = format!(
            r#"{{"packages": {{"": {{}}, "node_modules/a": {}, "node_modules/b": {}, "node_modules/c": {}, "node_modules/d": {}}}}}"#,
            package(""),
            package(r#", "os": ["darwin"]"#),
            package(r#", "os": ["!win32"], "cpu": ["x64"]"#),
            package(r#", "dev": true"#),
        );
        let all = npm_requirements(lock.as_bytes(), "linux", "x64").unwrap();
        assert_eq!(all.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["a", "c"]);
        let local = r#"{"packages": {"node_modules/a": {"version": "1.0.0", "link": true}}}"#;
        assert!(
            npm_requirements(local.as_bytes(), "linux", "x64").unwrap_err().contains("cannot be locked")
        );
    }

    #[test]
    fn requirements_outside_the_registry_are_refused() {
        let digest = format!("sha512-{}", BASE64_STANDARD.encode([7; 64]));
        let npm = |kind: &str, spec: &str| {
            let package = json!({"version": "1.0.0", "integrity": digest, kind: {"b": spec}});
            let lock =
                json!({"packages": {"": {"dependencies": {"a": "latest"}}, "node_modules/a": package}});
            npm_requirements(lock.to_string().as_bytes(), "linux", "x64")
        };
        for spec in ["^1.0.0 || >=3 <4", "next", "*", "", "npm:@x/c@^2"] {
            assert!(npm("dependencies", spec).is_ok(), "{spec}");
        }
        for spec in [
            "git+https://b.example/b",
            "owner/b",
            "github:owner/b",
            "file:../b",
            "http://127.0.0.1/b.tgz",
        ] {
            for kind in ["dependencies", "optionalDependencies", "peerDependencies"] {
                assert!(npm(kind, spec).unwrap_err().contains("not npm's registry"), "{kind} {spec}");
            }
        }
        let pip = |is_direct: bool| {
            let hashes = json!({"sha256": "ab".repeat(32)});
            let download = json!({"url": "https://b.example/b.whl", "archive_info": {"hashes": hashes}});
            let item = json!({"is_direct": is_direct, "metadata": {"name": "b", "version": "1"}, "download_info": download});
            pypi_requirements(json!({"install": [item]}).to_string().as_bytes())
        };
        assert!(pip(false).is_ok() && pip(true).unwrap_err().contains("not an index"));
    }

    #[test]
    fn a_console_script_is_found() {
        let points = "[other]\na = b:c\n[console_scripts]\nmcp-server-time = mcp_server_time:cli.main [x]\nz = z:z\n";
        assert_eq!(entry_point(points, "mcp_server_time"), Some(("mcp_server_time", "cli.main")));
        assert_eq!(entry_point(points, "other"), None);
        assert_eq!(entry_point("[console_scripts]\nx = a.b:c\n", "y"), Some(("a.b", "c")));
        assert_eq!(entry_point("[console_scripts]\nx = a'b:c\n", "x"), None);
    }
}

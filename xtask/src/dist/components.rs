//! The libraries that are built into orla: what cargo says about them, and their licences.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::release::{stdout_of, text};

/// A package of cargo that is part of a program.
pub(super) struct Component {
    pub(super) name: String,
    pub(super) version: String,
    /// SPDX expression, as the package has it.
    pub(super) licence: Option<String>,
    /// SHA-256 of the package, from `Cargo.lock`; packages of this repository have none.
    pub(super) checksum: Option<String>,
    /// The other components that it needs, as they are called in [`Components::of`].
    pub(super) needs: Vec<String>,
    folder: PathBuf,
}

/// Components by name and version (`serde 1.0.0`).
type ByName = BTreeMap<String, Component>;
/// Names and versions by the ids of cargo.
type Ids = BTreeMap<String, String>;

/// The components of each program.
pub(super) struct Components {
    all: ByName,
    /// The names of the components of a target, by its triple.
    by_target: BTreeMap<&'static str, BTreeSet<String>>,
}

impl Components {
    /// Asks cargo. Macros and build scripts are not part of a program, and neither are the libraries that only they need.
    ///
    /// # Errors
    /// Cargo does not know a package, or a licence cannot be read.
    pub(super) fn read(source: &Path, targets: &[&'static str], features: &str) -> Result<Self, String> {
        let cargo = || {
            let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            command.current_dir(source);
            command
        };
        let metadata = stdout_of(cargo().args(["metadata", "--format-version", "1", "--locked"]))?;
        let metadata: Value =
            serde_json::from_str(&metadata).map_err(|err| format!("cargo metadata: {err}"))?;
        let checksums = checksums(&text(&source.join("Cargo.lock"))?);
        let (mut all, ids) = packages(&metadata, &checksums)?;

        let mut by_target = BTreeMap::new();
        for target in targets {
            let tree = stdout_of(
                cargo().args(["tree", "--locked", "--package", "orla", "--edges", "normal"]).args([
                    "--target",
                    target,
                    "--features",
                    features,
                    "--prefix",
                    "none",
                    "--format",
                    "{p}",
                ]),
            )?;
            let names: BTreeSet<String> = tree
                .lines()
                .filter(|line| !line.contains("(proc-macro)"))
                .filter_map(|line| {
                    let (name, rest) = line.split_once(" v")?;
                    Some(format!("{name} {}", rest.split_whitespace().next()?))
                })
                .filter(|name| all.get(name).is_some_and(|component| !is_macro(&metadata, component)))
                .collect();
            if !names.iter().any(|name| name.starts_with("orla ")) {
                return Err(format!("cargo tree: orla is not in its own tree for {target}"));
            }
            by_target.insert(*target, names);
        }
        let built_in: BTreeSet<&String> = by_target.values().flatten().collect();
        all.retain(|name, _| built_in.contains(name));
        for component in all.values_mut() {
            component.needs = component.needs.iter().filter_map(|id| ids.get(id).cloned()).collect();
            component.needs.sort();
        }
        Ok(Self { all, by_target })
    }

    /// Returns the components of a target by their names and versions (`serde 1.0.0`), in that order.
    pub(super) fn of(&self, triple: &str) -> impl Iterator<Item = (&String, &Component)> {
        let names = self.by_target.get(triple).into_iter().flatten();
        names.filter_map(|name| self.all.get_key_value(name))
    }

    /// Returns the licences of all components that are not from this repository, each text once.
    ///
    /// # Errors
    /// A file cannot be read, or a component has neither a licence nor the name of one.
    pub(super) fn licences(&self) -> Result<String, String> {
        let mut by_text: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        let mut out = String::from("The licences of the libraries that are built into orla.\n\n");
        for (name, component) in self.all.iter().filter(|(_, component)| component.checksum.is_some()) {
            let licence = component.licence.as_deref();
            let _ =
                writeln!(out, "{name}: {}", licence.ok_or_else(|| format!("{name} names no licence"))?);
            for text in licence_files(&component.folder)? {
                by_text.entry(text).or_default().push(name);
            }
        }
        let mut texts: Vec<_> = by_text.iter().map(|(text, names)| (names.join(", "), text)).collect();
        texts.sort();
        for (names, text) in texts {
            let _ = write!(out, "\n{}\n{names}\n\n{}\n", "-".repeat(80), text.trim_end());
        }
        Ok(out)
    }
}

/// Returns all packages by name and version. What they need is still in cargo's ids, whose meaning is
/// given too.
fn packages(metadata: &Value, checksums: &BTreeMap<String, String>) -> Result<(ByName, Ids), String> {
    let (mut all, mut ids) = (ByName::new(), Ids::new());
    for package in metadata["packages"].as_array().ok_or("cargo metadata lists no packages")? {
        let field = |name: &str| package[name].as_str().unwrap_or_default().to_owned();
        let key = format!("{} {}", field("name"), field("version"));
        let manifest = PathBuf::from(field("manifest_path"));
        ids.insert(field("id"), key.clone());
        let component = Component {
            name: field("name"),
            version: field("version"),
            licence: package["license"].as_str().map(|licence| licence.replace('/', " OR ")),
            checksum: checksums.get(&key).cloned(),
            needs: Vec::new(),
            folder: manifest.parent().map_or_else(PathBuf::new, Path::to_owned),
        };
        all.insert(key, component);
    }
    for node in metadata["resolve"]["nodes"].as_array().ok_or("cargo metadata resolves nothing")? {
        let needs = node["deps"].as_array().into_iter().flatten().filter(|dependency| {
            let kinds = dependency["dep_kinds"].as_array();
            kinds.into_iter().flatten().any(|kind| kind["kind"].is_null())
        });
        let needs = needs.filter_map(|dependency| dependency["pkg"].as_str().map(str::to_owned));
        if let Some(component) = node["id"].as_str().and_then(|id| all.get_mut(ids.get(id)?)) {
            component.needs = needs.collect();
        }
    }
    Ok((all, ids))
}

/// Returns whether a package is a procedural macro, which runs in the compiler. `cargo tree` marks only
/// its first occurrence.
fn is_macro(metadata: &Value, component: &Component) -> bool {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let mut of_it = packages.filter(|package| {
        package["name"] == *component.name && package["version"] == *component.version
    });
    of_it.any(|package| {
        let targets = package["targets"].as_array().into_iter().flatten();
        targets
            .flat_map(|target| target["kind"].as_array().into_iter().flatten())
            .any(|kind| kind == "proc-macro")
    })
}

/// Returns the checksums in a `Cargo.lock`, by name and version.
fn checksums(lock: &str) -> BTreeMap<String, String> {
    let value = |block: &str, key: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""));
        line.and_then(|rest| rest.strip_suffix('"')).map(str::to_owned)
    };
    lock.split("[[package]]")
        .filter_map(|block| {
            Some((
                format!("{} {}", value(block, "name")?, value(block, "version")?),
                value(block, "checksum")?,
            ))
        })
        .collect()
}

/// Returns the texts of the licence files of a package, in the order of the files' names.
fn licence_files(folder: &Path) -> Result<Vec<String>, String> {
    const STARTS: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"];
    let problem = |err: std::io::Error| format!("{}: {err}", folder.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(problem)? {
        let path = entry.map_err(problem)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_uppercase();
        if path.is_file() && STARTS.iter().any(|start| name.starts_with(start)) {
            paths.push(path);
        }
    }
    paths.sort();
    paths
        .iter()
        .map(|path| {
            let text = fs::read(path).map_err(|err| format!("{}: {err}", path.display()))?;
            Ok(String::from_utf8_lossy(&text).replace("\r\n", "\n"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_read_from_a_lock() {
        let lock = "version = 4\n\n[[package]]\nname = \"orla\"\nversion = \"0.1.0\"\n\n[[package]]\nname = \"serde\"\nversion = \"1.0.0\"\nsource = \"x\"\nchecksum = \"abc\"\n";
        assert_eq!(checksums(lock), BTreeMap::from([("serde 1.0.0".to_owned(), "abc".to_owned())]));
    }
}

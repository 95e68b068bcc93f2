//! Confinement across declarations: the processes that capabilities start by their own address, and the
//! processes that may change the files that decide permissions.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orla_marketplace::Registration;
use orla_process::confinement::{Declared, Sandbox, Sandboxes};

use crate::config::{Config, Placed};
use crate::findings::Findings;

/// Returns the sandboxes of the processes that entries of `capabilities` start by their own address, by
/// that address. The process of several entries is confined to the union of their declarations, if any
/// of them confines.
pub(crate) fn own_processes<'a>(
    config: &Config,
    sandboxes: &Sandboxes,
    base: &Path,
    entries: impl Iterator<Item = (&'a Placed<Registration>, &'a str)>,
    findings: &mut Findings,
) -> HashMap<String, Arc<Sandbox>> {
    let mut together = BTreeMap::<&str, (Vec<String>, &Placed<Registration>)>::new();
    for (entry, address) in entries {
        let (words, _) = together.entry(address).or_insert_with(|| (Vec::new(), entry));
        for word in &entry.value.manifest.permissions {
            if !words.contains(word) {
                words.push(word.clone());
            }
        }
    }
    let mut own = HashMap::new();
    for (address, (words, entry)) in together {
        let declared = Declared::of_words(&words);
        if declared.permissions.is_none() {
            continue;
        }
        let Some(sandbox) = sandboxes.of(&declared, base) else { continue };
        if let Err(why) = sandbox.available() {
            let text = format!("{}: {why}", entry.value.manifest.id);
            findings.problems.push(config.placed(entry.at, text));
        }
        own.insert(address.to_owned(), sandbox);
    }
    own
}

/// The files and directories that decide what processes may do.
#[derive(Debug, Default)]
pub(crate) struct Declarations {
    files: Vec<PathBuf>,
    /// Directories in which any file may be a tool, and any directory a package.
    roots: Vec<PathBuf>,
    /// Directories of packages. Only the manifest and the program in such a directory declare anything.
    packages: Vec<PathBuf>,
}

impl Declarations {
    /// Those of real paths.
    pub(crate) fn new(
        files: impl IntoIterator<Item = PathBuf>,
        roots: impl IntoIterator<Item = PathBuf>,
        packages: impl IntoIterator<Item = PathBuf>,
    ) -> Self {
        let real = |path: PathBuf| std::fs::canonicalize(path).ok();
        Self {
            files: files.into_iter().filter_map(real).collect(),
            roots: roots.into_iter().filter_map(real).collect(),
            packages: packages.into_iter().filter_map(real).collect(),
        }
    }

    /// Returns the files among these that a process may change if it may write below `place`.
    fn exposed(&self, place: &Path) -> Option<&Path> {
        let mut all = self.files.iter().chain(&self.roots);
        if let Some(path) = all.find(|path| path.starts_with(place)) {
            return Some(path);
        }
        let root = self.roots.iter().find(|root| place.starts_with(root))?;
        let is_inside =
            self.packages.iter().any(|package| place != package && place.starts_with(package));
        (!is_inside).then_some(root)
    }

    /// Returns a warning about processes that may change declarations.
    pub(crate) fn warning(&self, name: &str, sandbox: &Sandbox) -> Option<String> {
        let grants = sandbox.grants().filter(|grants| !grants.is_open)?;
        let exposed = grants.write.iter().find_map(|place| self.exposed(Path::new(place)))?;
        Some(format!(
            "{name}: it may write to {}, whose declarations decide what processes may do; give it `fs:write` \
             of a directory without tools, packages and configuration",
            exposed.display()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_are_exposed_to_what_may_write_around_or_among_them() {
        let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect();
        let declarations = Declarations {
            files: paths(&["/srv/orla.yaml", "/srv/tools/pk/tool.yaml"]),
            roots: paths(&["/srv/tools"]),
            packages: paths(&["/srv/tools/pk"]),
        };
        for (place, exposed) in [
            ("/srv", Some("/srv/orla.yaml")),
            ("/srv/orla.yaml", Some("/srv/orla.yaml")),
            ("/srv/tools", Some("/srv/tools/pk/tool.yaml")),
            ("/srv/tools/data", Some("/srv/tools")),
            ("/srv/tools/x.sh", Some("/srv/tools")),
            ("/srv/tools/pk", Some("/srv/tools/pk/tool.yaml")),
            ("/srv/tools/pk/data", None),
            ("/srv/data", None),
            ("/srv/toolsmith", None),
        ] {
            assert_eq!(declarations.exposed(Path::new(place)), exposed.map(Path::new), "{place}");
        }
    }
}

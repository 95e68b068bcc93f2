//! Confinement across declarations: the processes that capabilities start by their own address, and the
//! processes that may change the files that decide permissions.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use orla_marketplace::{ProviderType, Routed};
use orla_process::confinement::{Sandbox, Sandboxes};
use orla_providers::{mcp, plugin, stream};

/// Returns the sandbox of the programs that a capability starts by its own address: all of them have the
/// permissions of the capability. `None` if there are no programs, or if nothing confines them.
pub(crate) fn own_sandbox(provider: &ProviderType, sandboxes: &Sandboxes) -> Option<Arc<Sandbox>> {
    match provider {
        ProviderType::Plugin(plugin) => plugin::sandbox_of(plugin, sandboxes),
        ProviderType::MCP(server) => mcp::sandbox_of(server, sandboxes),
        ProviderType::Stream(stream) => stream::sandbox_of(stream, sandboxes),
        other => {
            let routed: &Routed = other.settings().ok()?;
            routed.providers().find_map(|(_, provider)| own_sandbox(provider, sandboxes))
        }
    }
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

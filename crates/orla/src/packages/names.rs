//! The names that are the user's: a package takes none of them.

use crate::config::Config;

/// Who has which names.
#[derive(Debug, Default)]
pub(crate) struct OwnNames {
    /// The names of servers and the like, and the ids of capabilities, each with what has it.
    names: Vec<(String, &'static str)>,
}

impl OwnNames {
    /// Those of a configuration, and those of capabilities by their ids.
    pub(crate) fn of(config: &Config, ids: impl Iterator<Item = String>) -> Self {
        let of = |names: Vec<&String>, what: &'static str| {
            names.into_iter().map(|name| (name.clone(), what)).collect::<Vec<_>>()
        };
        let servers = config.servers.iter().map(|one| &one.value.name).collect();
        let plugins = config.plugins.iter().map(|one| &one.value.name).collect();
        let agents = config.agents.iter().map(|one| &one.value.name).collect();
        let remotes = config.remotes.iter().map(|one| &one.value.name).collect();
        let declared = config.capabilities.iter().map(|one| &one.value.manifest.id).collect();
        let renamed = config.tools.values().filter_map(|change| change.rename.as_ref());
        let renamed = renamed.map(|rename| &rename.to).collect();
        let mut names = of(servers, "mcpServers");
        names.extend(of(plugins, "plugins"));
        names.extend(of(agents, "agents"));
        names.extend(of(remotes, "remotes"));
        names.extend(of(declared, "capabilities"));
        names.extend(of(renamed, "a renamed tool"));
        names.extend(ids.map(|id| (id, "a tool")));
        Self { names }
    }

    /// What has the name of a package, or a name below it: an id, or the MCP name of one.
    pub(crate) fn holder(&self, package: &str) -> Option<&'static str> {
        let has = |name: &str| {
            name.strip_prefix(package)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.') || rest.starts_with("__"))
        };
        self.names.iter().find(|(name, _)| has(name)).map(|(_, what)| *what)
    }
}

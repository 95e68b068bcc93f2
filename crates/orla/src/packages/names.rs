//! The names that are the user's: a package takes none of them.

use orla_marketplace::id::mcp_name;

use crate::config::Config;

/// The configuration keys of providers whose capabilities have ids that begin with the provider's name.
const PROVIDERS: [&str; 4] = ["mcpServers", "plugins", "agents", "remotes"];

/// The names that are in use, with their users.
#[derive(Debug, Default)]
pub(crate) struct OwnNames {
    /// The names of servers and similar providers, and the ids of capabilities, each with its user.
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

    /// Returns the user of a package's name, of a name below it, or of all names with that beginning, by
    /// the package's id or by its MCP name.
    pub(crate) fn holder(&self, package: &str) -> Option<&'static str> {
        let begins = |rest: &str| rest.starts_with('.') || rest.starts_with("__");
        let has =
            |name: &str| name.strip_prefix(package).is_some_and(|rest| rest.is_empty() || begins(rest));
        // A tool of a server and a capability `a.b` have MCP names with `__`.
        let has_around = |name: &str, what: &str| {
            let owner = match name.split_once('.') {
                Some((owner, _)) => owner,
                None if PROVIDERS.contains(&what) => name,
                None => return false,
            };
            package.strip_prefix(owner).is_some_and(begins)
        };
        let mut names = self.names.iter();
        let holder =
            names.find(|(name, what)| has(name) || has(&mcp_name(name)) || has_around(name, what));
        holder.map(|(_, what)| *what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_takes_no_name_that_a_client_sees() {
        let names = [("up", "mcpServers"), ("math.add", "a tool"), ("word_count", "a tool")];
        let own = OwnNames { names: names.map(|(name, what)| (name.to_owned(), what)).into() };
        for taken in ["up", "up__say", "math", "math.add", "math__add", "math__new", "word_count"] {
            assert!(own.holder(taken).is_some(), "{taken}");
        }
        for free in ["upper", "u", "mat", "mathematics", "word_count__x", "word_count_2", "word"] {
            assert_eq!(own.holder(free), None, "{free}");
        }
    }
}

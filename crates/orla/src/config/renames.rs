//! Rules about a capability hold under the name that the configuration gives it, too.

use orla_marketplace::id::{Pattern, mcp_name};
use orla_providers::NameRules;

use super::Config;

/// A capability that is given another name.
struct Rename {
    from: String,
    to: String,
}

impl Rename {
    /// Whether a pattern is about the capability by its own name, and not by the new one.
    fn escapes(&self, pattern: &Pattern) -> bool {
        let fits = |id: &str| pattern.fits(id, &mcp_name(id));
        // An entry of `tools` may be called by the MCP name.
        (fits(&self.from) || fits(&self.from.replace("__", "."))) && !fits(&self.to)
    }
}

impl Config {
    /// Adds the new name of each renamed capability to the rules that are about its own name.
    pub(super) fn follow_renames(&mut self) {
        for rename in self.renames() {
            let escapes = |patterns: &[Pattern]| patterns.iter().any(|pattern| rename.escapes(pattern));
            let policy = self.access.iter_mut().flat_map(|access| &mut access.rules);
            let policy = policy.map(|rule| &mut rule.capabilities);
            let approve = self.approve.iter_mut().map(|rule| &mut rule.capabilities);
            let quotas = self.quotas.iter_mut().map(|rule| &mut rule.capabilities);
            for capabilities in policy.chain(approve).chain(quotas) {
                if escapes(capabilities) {
                    capabilities.push(Pattern::new(&*rename.to));
                }
            }
            let rates = self.quotas.iter_mut().filter_map(|rule| rule.rate.as_mut());
            for cost in rates.map(|rate| &mut rate.cost) {
                if let Some((_, calls)) = cost.iter().find(|(pattern, _)| rename.escapes(pattern)) {
                    cost.push((Pattern::new(&*rename.to), *calls));
                }
            }
            for names in self.allow.iter_mut().chain([&mut self.deny]) {
                if names.iter().any(|text| rename.escapes(&Pattern::new(text))) {
                    names.push(rename.to.clone());
                }
            }
        }
    }

    /// Those of providers first: `tools` names what they serve.
    fn renames(&self) -> Vec<Rename> {
        let of = |name: &str, rules: &NameRules| {
            let prefix = rules.prefix.clone().unwrap_or_else(|| format!("{name}."));
            let renames = rules.rename.iter();
            renames
                .map(|(from, to)| Rename {
                    from: format!("{prefix}{from}"),
                    to: format!("{prefix}{to}"),
                })
                .collect::<Vec<_>>()
        };
        let servers = self.servers.iter().map(|one| of(&one.value.name, &one.value.names));
        let plugins = self.plugins.iter().map(|one| of(&one.value.name, &one.value.names));
        let agents = self.agents.iter().map(|one| of(&one.value.name, &one.value.names));
        let tools = self.tools.iter().filter_map(|(name, change)| {
            Some(Rename { from: name.clone(), to: change.rename.as_ref()?.to.clone() })
        });
        servers.chain(plugins).chain(agents).flatten().chain(tools).collect()
    }

    /// The names that capabilities had before they were renamed.
    pub(crate) fn names_before(&self) -> impl Iterator<Item = String> {
        self.renames().into_iter().map(|rename| rename.from)
    }
}

#[cfg(test)]
mod tests {
    use super::super::providers_tests::good;

    #[test]
    fn a_rule_about_a_renamed_tool_of_a_server_is_about_its_new_name_too() {
        let mut config = good(
            "mcpServers:\n  up: {command: x, rename: {del: erase}}\n  bare: {command: x, prefix: '', rename: {del: drop}}\ntools: {up__erase: {rename: gone}}\ndeny: [up.del, del]\nallow: ['*']\n",
        );
        config.follow_renames();
        assert_eq!(config.deny, ["up.del", "del", "up.erase", "drop", "gone"]);
        assert_eq!(config.allow, Some(vec!["*".to_owned()]));
    }
}

//! Applies rules that refuse a capability, ask for approval or set limits to the capability's configured
//! name too.

use orla_marketplace::id::{Pattern, mcp_name};
use orla_providers::NameRules;

use super::Config;

/// A capability that is given another name.
struct Rename {
    from: String,
    to: String,
}

impl Rename {
    /// Returns whether a pattern is about the capability by its own name, and not by the new one.
    fn escapes(&self, pattern: &Pattern) -> bool {
        let fits = |id: &str| pattern.fits(id, &mcp_name(id));
        // An entry of `tools` may be called by the MCP name.
        (fits(&self.from) || fits(&self.from.replace("__", "."))) && !fits(&self.to)
    }
}

impl Config {
    /// Adds the new names of renamed capabilities to the rules that refuse, ask or set limits by their
    /// original names. Granting rules (`allow`, and rules of `policy` that allow) must use the new
    /// names, because those may be the names of other capabilities.
    pub(super) fn follow_renames(&mut self) {
        // Names of providers come first, because `tools` uses the resulting names.
        for renames in [self.renames_of_providers(), self.renames_of_tools()] {
            self.follow(&renames);
            self.warn_of_old_names(&renames);
        }
    }

    fn follow(&mut self, renames: &[Rename]) {
        let more = |patterns: &[Pattern]| -> Vec<Pattern> {
            let escaped = |rename: &&Rename| patterns.iter().any(|pattern| rename.escapes(pattern));
            renames.iter().filter(escaped).map(|rename| Pattern::new(&*rename.to)).collect()
        };
        let denies = self.access.iter_mut().flat_map(|access| &mut access.rules);
        let denies = denies.filter(|rule| rule.allow.is_empty()).map(|rule| &mut rule.capabilities);
        let approve = self.approve.iter_mut().map(|rule| &mut rule.capabilities);
        let quotas = self.quotas.iter_mut().map(|rule| &mut rule.capabilities);
        for capabilities in denies.chain(approve).chain(quotas) {
            capabilities.extend(more(capabilities));
        }
        let rates = self.quotas.iter_mut().filter_map(|rule| rule.rate.as_mut());
        for cost in rates.map(|rate| &mut rate.cost) {
            // The first matching pattern determines the cost.
            let with_more = cost.drain(..).flat_map(|(pattern, calls)| {
                let more = more(std::slice::from_ref(&pattern));
                std::iter::once(pattern).chain(more).map(move |pattern| (pattern, calls))
            });
            *cost = with_more.collect::<Vec<_>>();
        }
        let patterns: Vec<Pattern> = self.deny.iter().map(Pattern::new).collect();
        self.deny.extend(more(&patterns).iter().map(|pattern| pattern.as_str().to_owned()));
    }

    fn renames_of_tools(&self) -> Vec<Rename> {
        let renames = self.tools.iter().filter_map(|(name, change)| {
            Some(Rename { from: name.clone(), to: change.rename.as_ref()?.to.clone() })
        });
        renames.collect()
    }

    fn renames_of_providers(&self) -> Vec<Rename> {
        let of = |name: &str, rules: &NameRules| {
            let prefix = rules.prefix_of(name);
            let named = |name: &String| format!("{prefix}{name}");
            let renames = rules.rename.iter();
            renames.map(|(from, to)| Rename { from: named(from), to: named(to) }).collect::<Vec<_>>()
        };
        let servers = self.servers.iter().map(|one| of(&one.value.name, &one.value.names));
        let plugins = self.plugins.iter().map(|one| of(&one.value.name, &one.value.names));
        let agents = self.agents.iter().map(|one| of(&one.value.name, &one.value.names));
        servers.chain(plugins).chain(agents).flatten().collect()
    }

    /// Returns the names that capabilities had before they were renamed.
    pub(crate) fn names_before(&self) -> impl Iterator<Item = String> {
        self.renames_of_providers().into_iter().chain(self.renames_of_tools()).map(|rename| rename.from)
    }

    /// Warns of grants that name a capability as it was called before.
    fn warn_of_old_names(&mut self, renames: &[Rename]) {
        let allow = self.allow.iter().flatten().map(|text| ("allow", &**text));
        let rules = self.access.iter().flat_map(|access| &access.rules);
        let rules = rules.filter(|rule| !rule.allow.is_empty()).flat_map(|rule| &rule.capabilities);
        let grants = allow.chain(rules.map(|pattern| ("policy", pattern.as_str())));
        let warnings = grants.filter_map(|(key, text)| {
            let is_own = |rename: &&Rename| text == rename.from || text == mcp_name(&rename.from);
            let to = &renames.iter().find(is_own).filter(|rename| rename.to != text)?.to;
            Some((key, format!("{key}: {text} is called {to} here, and a grant has to say that name")))
        });
        let warnings: Vec<_> = warnings.map(|(key, text)| self.problem(key, text)).collect();
        self.warnings.extend(warnings);
    }
}

#[cfg(test)]
mod tests {
    use super::super::providers_tests::good;

    #[test]
    fn a_rule_that_refuses_a_renamed_tool_of_a_server_is_about_its_new_name_too() {
        let mut config = good(
            "mcpServers:\n  up: {command: x, rename: {del: erase, erase: old}}\n  bare: {command: x, prefix: '', rename: {del: drop}}\ntools: {up__erase: {rename: gone}}\ndeny: [up.del, del]\nallow: [up.del]\n",
        );
        config.follow_renames();
        assert_eq!(config.deny, ["up.del", "del", "up.erase", "drop", "gone"]);
        assert_eq!(
            config.allow,
            Some(vec!["up.del".to_owned()]),
            "nothing is granted that is not named"
        );
    }
}

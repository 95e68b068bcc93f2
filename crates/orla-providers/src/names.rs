//! The names of a provider's capabilities, and which of them are served. Pure functions.

use std::borrow::Cow;
use std::collections::BTreeMap;

use orla_marketplace::id::{Pattern, mcp_name};
use orla_marketplace::{ProviderProblem, ProviderStatus, SandboxStatus};

/// The naming rules that a configuration sets for a provider's capabilities: tools of a server, functions of a
/// plugin, skills of an agent. They refer to the provider's own names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameRules {
    /// Replaces the prefix `PROVIDER.`; may be empty.
    pub prefix: Option<String>,
    /// Other names for individual capabilities.
    pub rename: BTreeMap<String, String>,
    /// The names that are served; `None` means all.
    pub include: Option<Vec<Pattern>>,
    /// The names that are not served, even if included.
    pub exclude: Vec<Pattern>,
}

impl NameRules {
    /// Returns the id of a capability: `PROVIDER.NAME`, even if there is only one, so that an id never
    /// changes because another capability or provider is added.
    pub(crate) fn id_of(&self, provider: &str, name: &str) -> String {
        let shown = self.rename.get(name).map_or(name, String::as_str);
        format!("{}{shown}", self.prefix_of(provider))
    }

    /// Returns the prefix of the ids of the provider's capabilities.
    pub fn prefix_of(&self, provider: &str) -> Cow<'_, str> {
        self.prefix.as_deref().map_or_else(|| format!("{provider}.").into(), Cow::Borrowed)
    }

    /// Returns whether a capability is served.
    pub(crate) fn serves(&self, name: &str) -> bool {
        let matches = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(name));
        self.include.as_deref().is_none_or(matches) && !matches(&self.exclude)
    }

    /// Returns the rules that fit none of the provider's capabilities, each as its key and its name or pattern.
    pub(crate) fn unmatched(&self, names: &[&str]) -> Vec<(&'static str, &str)> {
        let fits = |pattern: &Pattern| names.iter().any(|name| pattern.matches(name));
        let include = self.include.iter().flatten().map(|pattern| ("include", pattern));
        let exclude = self.exclude.iter().map(|pattern| ("exclude", pattern));
        let patterns = include.chain(exclude).filter(|(_, pattern)| !fits(pattern));
        let renamed = self.rename.keys().map(String::as_str).filter(|name| !names.contains(name));
        let texts = patterns.map(|(key, pattern)| (key, pattern.as_str()));
        texts.chain(renamed.map(|name| ("rename", name))).collect()
    }

    /// Returns whether a capability with this id or name may be served.
    pub fn may_serve(&self, provider: &str, name: &str) -> bool {
        match &self.prefix {
            Some(prefix) => name.starts_with(&**prefix) || name.starts_with(&mcp_name(prefix)),
            None => name == provider || is_below(provider, name),
        }
    }

    /// Returns the problem of a provider that serves nothing.
    pub(crate) fn problem(&self, provider: &str, text: String) -> ProviderProblem {
        ProviderProblem::new(provider, self.prefix.as_deref(), text)
    }

    /// Returns why a provider with processes serves nothing: it cannot be confined, reports an empty
    /// list (`empty`), or has failed. `kind` is its name in messages.
    pub(crate) fn process_problem(
        &self,
        kind: &str,
        provider: &str,
        status: ProviderStatus,
        empty: Option<&str>,
    ) -> Option<ProviderProblem> {
        let unconfinable = status.sandbox.as_ref().and_then(SandboxStatus::unconfinable);
        let reason = unconfinable.or(empty.map(str::to_owned)).or(status.last_failure)?;
        let text = format!("{kind} {provider}: {reason}");
        Some(self.problem(provider, text).confined(status.sandbox))
    }
}

/// Returns whether `name` is the id or the name of a capability below `id`.
pub(crate) fn is_below(id: &str, name: &str) -> bool {
    let rest = |start: &str, separator: &str| {
        name.strip_prefix(start).is_some_and(|rest| rest.starts_with(separator))
    };
    rest(id, ".") || rest(&mcp_name(&format!("{id}.")), "") || rest(id, "__")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_that_fit_nothing_are_found() {
        let rules = NameRules {
            prefix: None,
            rename: [("red", "r"), ("green", "g")].map(|(old, new)| (old.into(), new.into())).into(),
            include: Some(vec![Pattern::new("gr*"), Pattern::new("bl*")]),
            exclude: vec![Pattern::new("grey"), Pattern::new("*n")],
        };
        let unmatched = [("include", "bl*"), ("exclude", "grey"), ("rename", "red")];
        assert_eq!(rules.unmatched(&["green", "yellow"]), unmatched);
    }

    #[test]
    fn ids_have_the_provider_before_them_or_the_prefix() {
        let mut names = NameRules::default();
        assert_eq!(names.id_of("s", "a.b"), "s.a.b");
        names.rename.insert("a".into(), "z".into());
        assert_eq!((names.id_of("s", "a"), names.id_of("s", "b")), ("s.z".into(), "s.b".into()));
        for (prefix, a, b) in [("", "z", "b"), ("x_", "x_z", "x_b")] {
            names.prefix = Some(prefix.into());
            assert_eq!((&*names.id_of("s", "a"), &*names.id_of("s", "b")), (a, b));
        }
    }

    #[test]
    fn included_and_not_excluded_names_are_served() {
        let patterns = |names: &[&str]| names.iter().map(|name| Pattern::new(*name)).collect();
        let mut names = NameRules::default();
        assert!(names.serves("get_a"));
        names.exclude = patterns(&["*_b"]);
        assert!(names.serves("get_a") && !names.serves("get_b"));
        names.include = Some(patterns(&["get_*"]));
        assert!(names.serves("get_a") && !names.serves("get_b") && !names.serves("set_a"));
        names.include = Some(Vec::new());
        assert!(!names.serves("get_a"));
    }

    #[test]
    fn names_match_by_prefix() {
        let mut names = NameRules::default();
        for (name, may) in [("s__a", true), ("s.a", true), ("s", true), ("sa", false), ("t__a", false)] {
            assert_eq!(names.may_serve("s", name), may, "{name}");
        }
        names.prefix = Some("x.".into());
        for (name, may) in [("x.a", true), ("x__a", true), ("s__a", false), ("s", false)] {
            assert_eq!(names.may_serve("s", name), may, "{name}");
        }
    }
}

//! Finds rules of `policy`, `approve` and `quotas` that match nothing: a misspelt name, or a name in
//! place of a permission. Finds permissions without effect. No I/O.

use orla_marketplace::id::{Pattern, mcp_name};
use orla_marketplace::rtfs::text::nearest;
use orla_marketplace::{Catalog, Permission, ProviderType, discovery, program};
use orla_providers::NameRules;

use crate::config::Config;
use crate::config::subjects::{Subject, What};
use crate::text::suggestion;

/// The possible subjects of rules.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// The ids and the MCP names of the served capabilities.
    pub(crate) names: Vec<String>,
    /// The permissions that it needs.
    pub(crate) needs: Vec<Permission>,
    /// The prefixes of names that providers may serve that were not asked.
    pub(crate) beginnings: Vec<String>,
}

/// A problem with a rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// The rule does not have its apparent effect.
    Problem(String),
    /// It may be about something that is not served here.
    Warning(String),
}

/// The kinds of permissions of processes and providers. Rules may name them before any capability needs
/// them.
const KINDS: [&str; 5] = ["env", "exec", "fs", "mcp", "net"];
/// The permissions of orla's own functions.
const OWN: [&str; 10] = [
    "approvals:answer",
    "audit:read",
    "cluster:drain",
    "configuration:read",
    "history:cancel",
    "history:read",
    "providers:manage",
    "quotas:read",
    "tasks:manage",
    "tasks:read",
];

impl Known {
    /// Returns the names of the served capabilities, and the prefixes of names that providers may serve
    /// that were not asked. `listed` are the MCP servers that have listed their tools. The capabilities of
    /// cluster nodes and other instances are excluded.
    pub(crate) fn of(config: &Config, catalog: &Catalog, unasked: &[String], listed: &[String]) -> Self {
        let mut known = Self::default();
        for entry in catalog.entries() {
            known.names.extend([entry.manifest.id.clone(), entry.name.to_string()]);
            known.needs.extend_from_slice(entry.needs());
        }
        known.names.extend(discovery::IDS.into_iter().chain(program::IDS).map(str::to_owned));
        known.names.extend(config.names_before());
        let of = |name: &str, rules: &NameRules| {
            let prefix = rules.prefix_of(name);
            [mcp_name(&prefix), prefix.into_owned()]
        };
        let servers = config.servers.iter().filter(|one| !listed.contains(&one.value.name));
        let servers = servers.map(|one| of(&one.value.name, &one.value.names));
        let agents = config.agents.iter().map(|one| of(&one.value.name, &one.value.names));
        let plugins = config.plugins.iter().map(|one| of(&one.value.name, &one.value.names));
        let others = unasked.iter().map(|name| of(name, &NameRules::default()));
        known.beginnings = servers.chain(agents).chain(plugins).chain(others).flatten().collect();
        known
    }

    /// A provider may serve anything below this name, or anything at all if its name is not known.
    pub(crate) fn may_serve_below(&mut self, name: Option<&str>) {
        match name {
            Some(name) => self.beginnings.extend([format!("{name}."), mcp_name(&format!("{name}."))]),
            None => self.beginnings.push(String::new()),
        }
    }

    /// Returns the problem with a subject of a rule, if there is one.
    pub(crate) fn finding(&self, subject: &Subject) -> Option<Finding> {
        let path = &subject.path;
        match &subject.what {
            What::Capabilities(pattern) if !self.has(pattern) => {
                let text = pattern.as_str();
                let hint = suggestion(text, self.names.iter().map(String::as_str));
                Some(Finding::Warning(format!(
                    "{path}: `{text}` fits no capability that is served{hint}; a name is an id (`TOOL`, `SERVER.TOOL`) or an MCP name (`TOOL`, `SERVER__TOOL`), and `*` stands for any characters"
                )))
            }
            What::Denied(permission) if self.is_no_permission(permission) => {
                let text = permission.as_str();
                let advice = meant(text).unwrap_or_else(|| "write `mcp:SERVER/TOOL` for a tool of an MCP server, or `capabilities: [NAME]` with `deny: [\"*\"]`".to_owned());
                Some(Finding::Problem(format!(
                    "{path}: `{text}` is no permission that anything needs, so this denies nothing; {advice}"
                )))
            }
            What::Allowed(permission) if self.is_no_permission(permission) => {
                let text = permission.as_str();
                let advice = meant(text).unwrap_or_else(|| "write `mcp:SERVER/TOOL` for a tool of an MCP server, and names of capabilities into `capabilities`".to_owned());
                Some(Finding::Warning(format!(
                    "{path}: `{text}` is no permission that anything needs, so this grants nothing; {advice}"
                )))
            }
            _ => None,
        }
    }

    fn has(&self, pattern: &Pattern) -> bool {
        self.names.iter().any(|name| pattern.covers(name))
            || self
                .beginnings
                .iter()
                .any(|beginning| may_begin(pattern.as_str(), beginning) || pattern.is_above(beginning))
    }

    /// Returns whether this is not a permission: no capability needs it, and its kind is unknown, or
    /// it is not one of orla's own of its kind. A kind with a rest may be that of a capability that is
    /// not served here, unless it looks misspelt.
    fn is_no_permission(&self, permission: &Permission) -> bool {
        if self.needs.iter().any(|need| permission.covers(need)) {
            return false;
        }
        let text = permission.as_str();
        let kind = text.split_once(':').map_or(text, |(kind, _)| kind);
        match () {
            () if own_kinds().any(|own| own == kind) => {
                !OWN.iter().any(|own| permission.covers(&Permission::needed(own)))
            }
            () if text == "*" || KINDS.contains(&kind) => false,
            () => kind == text || meant(text).is_some(),
        }
    }
}

/// Returns a warning for each permission of a tool or capsule that has no effect: it confines nothing, and no policy decides on it.
pub(crate) fn idle_permissions(catalog: &Catalog) -> Vec<String> {
    if catalog.has_policy() {
        return Vec::new();
    }
    let own = catalog.entries().iter().map(|entry| &entry.manifest);
    let own = own.filter(|manifest| matches!(manifest.provider, ProviderType::Custom(_)));
    own.flat_map(|manifest| manifest.permissions.iter().map(|word| (&manifest.id, word)))
        .filter(|(_, word)| is_idle(word))
        .map(|(id, word)| {
            let forms = orla_confine::forms();
            format!(
                "{id}: the permission `{word}` has no effect: it confines nothing, and there is no `policy`; permissions that confine are {forms}"
            )
        })
        .collect()
}

fn is_idle(word: &str) -> bool {
    let kind = word.split_once(':').map_or(word, |(kind, _)| kind);
    let is_known = KINDS.into_iter().chain(own_kinds()).any(|known| known == kind);
    !is_known && !orla_confine::confines(word)
}

/// Returns the advice about a misspelt permission.
fn meant(text: &str) -> Option<String> {
    let near = nearest(text, OWN).map(str::to_owned).or_else(|| {
        let (kind, rest) = text.split_once(':')?;
        let is_known = |known: &str| known == kind;
        if KINDS.into_iter().chain(own_kinds()).any(is_known) {
            return None;
        }
        nearest(kind, KINDS.into_iter().chain(own_kinds())).map(|near| format!("{near}:{rest}"))
    })?;
    Some(format!("did you mean {near}?"))
}

fn own_kinds() -> impl Iterator<Item = &'static str> {
    OWN.iter().filter_map(|own| own.split_once(':')).map(|(kind, _)| kind)
}

/// Returns whether a pattern fits a text that begins like this.
fn may_begin(pattern: &str, beginning: &str) -> bool {
    let (literal, has_star) = match pattern.split_once('*') {
        Some((literal, _)) => (literal, true),
        None => (pattern, false),
    };
    literal.starts_with(beginning) || (has_star && beginning.starts_with(literal))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Known {
        Known {
            names: ["find_order", "notes.add", "notes__add"].map(str::to_owned).into(),
            needs: vec![Permission::needed("db:prod"), Permission::needed("gpu")],
            beginnings: ["memory.", "memory__"].map(str::to_owned).into(),
        }
    }

    fn finding(what: What) -> Option<Finding> {
        known().finding(&Subject { path: "policy[0]".to_owned(), what })
    }

    #[test]
    fn a_name_fits_what_is_served_or_may_be() {
        for fits in [
            "find_order",
            "find_*",
            "*",
            "notes.*",
            "notes__add",
            "memory.delete_*",
            "mem*",
            "memory",
            "notes",
        ] {
            assert_eq!(finding(What::Capabilities(Pattern::new(fits))), None, "{fits}");
        }
        for wrong in ["find_orders", "notes.remove", "memo", "files.*", "memory:delete"] {
            let found = finding(What::Capabilities(Pattern::new(wrong)));
            assert!(matches!(found, Some(Finding::Warning(_))), "{wrong}");
        }
    }

    #[test]
    fn a_permission_that_only_a_policy_would_use_has_no_effect_alone() {
        for used in ["fs:read:/x", "net", "preset:node", "unix:/run/x", "tasks:read", "mcp:x/y"] {
            assert!(!is_idle(used), "{used}");
        }
        for idle in ["banana", "read:~/notes", "network:example.com", "db:prod"] {
            assert!(is_idle(idle), "{idle}");
        }
    }

    #[test]
    fn rules_may_name_what_an_unread_provider_may_serve() {
        let fits = |known: &Known, text: &str| {
            let what = What::Capabilities(Pattern::new(text));
            known.finding(&Subject { path: "policy[0]".to_owned(), what }).is_none()
        };
        let mut known = known();
        known.may_serve_below(Some("stock"));
        assert!(fits(&known, "stock.*") && fits(&known, "stock__list") && !fits(&known, "stok.*"));
        known.may_serve_below(None);
        assert!(fits(&known, "stok.*"));
    }

    #[test]
    fn a_name_is_no_permission() {
        let permission = |text: &str| text.parse::<Permission>().unwrap();
        for good in [
            "*",
            "exec",
            "net:a.example",
            "mcp:memory/delete_*",
            "gpu",
            "db",
            "other:thing",
            "history",
            "tasks:*",
            "quotas:read",
        ] {
            assert_eq!(finding(What::Denied(permission(good))), None, "{good}");
            assert_eq!(finding(What::Allowed(permission(good))), None, "{good}");
        }
        for wrong in ["find_order", "memory__delete", "remove"] {
            let denied = finding(What::Denied(permission(wrong)));
            assert!(matches!(denied, Some(Finding::Problem(text)) if text.contains("mcp:SERVER/TOOL")));
            let allowed = finding(What::Allowed(permission(wrong)));
            assert!(matches!(allowed, Some(Finding::Warning(_))), "{wrong}");
        }
    }

    #[test]
    fn a_misspelt_permission_is_named_with_the_meant_one() {
        for (wrong, meant) in [
            ("histroy:read", "history:read"),
            ("history:raed", "history:read"),
            ("task:manage", "tasks:manage"),
            ("nett:a.example", "net:a.example"),
            ("exce:/bin/ls", "exec:/bin/ls"),
        ] {
            let permission: Permission = wrong.parse().unwrap();
            let advice = format!("; did you mean {meant}?");
            let denied = finding(What::Denied(permission.clone()));
            assert!(
                matches!(denied, Some(Finding::Problem(text)) if text.ends_with(&advice)),
                "{wrong}"
            );
            let allowed = finding(What::Allowed(permission));
            assert!(
                matches!(allowed, Some(Finding::Warning(text)) if text.ends_with(&advice)),
                "{wrong}"
            );
        }
        let unknown = finding(What::Allowed("history:delete".parse().unwrap()));
        assert!(matches!(unknown, Some(Finding::Warning(_))));
    }
}

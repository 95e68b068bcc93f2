//! Who may use what (RTFS capability system §6).
//!
//! An [`AccessPolicy`] grants [permissions](Permission) to callers. Without a policy, everything that the configuration
//! declares is granted, because its author decides what is served.

use crate::id::Pattern;
use crate::permission::Permission;
use crate::principal::{Callers, Principal};

/// Who may use what.
///
/// A call is permitted if each of the capability's needs is covered by an allowance of some applicable rule, or by a
/// permission that the caller's scopes grant, and by no denial. A rule applies if both the caller and the capability
/// match it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessPolicy {
    /// The rules; their order does not matter, as a denial wins over any permission.
    pub rules: Vec<Rule>,
    /// What a caller learns about a capability that the rules deny it.
    pub disclosure: Disclosure,
}

/// What a caller learns about a capability that the policy denies it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Disclosure {
    /// Nothing: every answer is the one for a name that does not exist.
    #[default]
    Conceal,
    /// A call fails with the permission that is missing.
    Reveal,
}

/// What is granted to some callers for some capabilities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The callers.
    pub to: Callers,
    /// The capabilities, by id or MCP name.
    pub capabilities: Vec<Pattern>,
    /// What is granted.
    pub allow: Vec<Permission>,
    /// What is refused in spite of other rules that allow it. `*` refuses the capabilities altogether.
    pub deny: Vec<Permission>,
}

impl Rule {
    /// Whether the rule applies to this caller and this capability.
    fn applies(&self, principal: Option<&Principal>, id: &str, name: &str) -> bool {
        self.to.matches(principal)
            && self.capabilities.iter().any(|pattern| pattern.matches(id) || pattern.matches(name))
    }
}

impl AccessPolicy {
    /// The first need that this caller lacks for this capability; `None` if the call is permitted.
    pub fn missing<'a>(
        &'a self,
        principal: Option<&Principal>,
        id: &str,
        name: &str,
        needs: &'a [Permission],
    ) -> Option<&'a Permission> {
        let rules: Vec<&Rule> =
            self.rules.iter().filter(|rule| rule.applies(principal, id, name)).collect();
        let denied = |need: &Permission| {
            rules.iter().any(|rule| rule.deny.iter().any(|denied| denied.overlaps(need)))
        };
        let everything = |denied: &&Permission| denied.is_everything();
        if let Some(everything) = rules.iter().find_map(|rule| rule.deny.iter().find(everything)) {
            return Some(needs.first().unwrap_or(everything));
        }
        let scoped = principal.map(Principal::permissions).unwrap_or_default();
        let allowed = |need: &Permission| {
            let granted = rules.iter().flat_map(|rule| &rule.allow).chain(scoped);
            granted.into_iter().any(|allowed| allowed.covers(need))
        };
        needs.iter().find(|need| denied(need) || !allowed(need))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permissions(texts: &[&str]) -> Vec<Permission> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn policy(rules: &[(&str, &str, &[&str], &[&str])]) -> AccessPolicy {
        let rule = |(to, capabilities, allow, deny): &(&str, &str, &[&str], &[&str])| Rule {
            to: Callers::parse([to]).unwrap(),
            capabilities: vec![Pattern::new(*capabilities)],
            allow: permissions(allow),
            deny: permissions(deny),
        };
        AccessPolicy { rules: rules.iter().map(rule).collect(), ..AccessPolicy::default() }
    }

    #[test]
    fn a_policy_grants_to_whom_it_says_and_a_denial_wins() {
        let policy = policy(&[
            ("*", "*", &["net:api.example.com"], &[]),
            ("alice", "*", &["*"], &["exec:rm"]),
            ("bob", "git.*", &["exec"], &[]),
            ("mallory", "*", &["*"], &["*"]),
        ]);
        for (who, id, needs, missing) in [
            (None, "x", &["net:api.example.com"][..], None),
            (None, "x", &["net:api.example.com", "exec:x"], Some("exec:x")),
            (None, "x", &[], None),
            (Some("alice"), "x", &["exec:ls", "fs:read:/"], None),
            (Some("alice"), "x", &["whatever: this is"], None),
            (Some("bob"), "git.log", &["whatever: this is"], Some("whatever: this is")),
            (Some("alice"), "x", &["exec:rm"], Some("exec:rm")),
            (Some("alice"), "x", &["exec"], Some("exec")),
            (Some("bob"), "git.log", &["exec:git"], None),
            (Some("bob"), "ls", &["exec:ls"], Some("exec:ls")),
            (Some("mallory"), "x", &[], Some("*")),
            (Some("mallory"), "x", &["net:api.example.com"], Some("net:api.example.com")),
        ] {
            let principal = who.map(Principal::token);
            let needs: Vec<Permission> = needs.iter().map(|need| Permission::needed(need)).collect();
            let found = policy.missing(principal.as_ref(), id, id, &needs).map(Permission::as_str);
            assert_eq!(found, missing, "{who:?} {id}");
        }
    }

    #[test]
    fn scopes_grant_in_addition_to_the_rules_and_a_denial_still_wins() {
        let policy = policy(&[("*", "*", &["net:api.example.com"], &["exec:rm"])]);
        let scoped =
            Principal::oauth("https://id.example", "ada").with_permissions(permissions(&["exec"]));
        let other = Principal::oauth("https://id.example", "bob");
        for (who, need, missing) in [
            (&scoped, "exec:ls", None),
            (&scoped, "net:api.example.com", None),
            (&scoped, "exec:rm", Some("exec:rm")),
            (&other, "exec:ls", Some("exec:ls")),
        ] {
            let needs = [Permission::needed(need)];
            let found = policy.missing(Some(who), "x", "x", &needs).map(Permission::as_str);
            assert_eq!(found, missing, "{who:?} {need}");
        }
    }
}

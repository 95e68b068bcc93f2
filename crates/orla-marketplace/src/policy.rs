//! The access policy: which callers may use which capabilities (RTFS capability system §6).
//!
//! An [`AccessPolicy`] grants [permissions](Permission) to callers. Without a policy, every declared
//! capability is granted, because the author of the configuration decides what is served.

use std::fmt;

use crate::id::Pattern;
use crate::permission::Permission;
use crate::principal::{CallerPattern, Callers, Principal};

/// Decides which callers may use which capabilities.
///
/// A call is permitted if each of the capability's needs is covered by an allowance of some applicable
/// rule, or by a permission that the caller's scopes grant, and by no denial. A rule applies if both the
/// caller and the capability match it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessPolicy {
    /// The rules; their order does not matter, because a denial overrides every permission.
    pub rules: Vec<Rule>,
    /// What a caller learns about a denied capability.
    pub disclosure: Disclosure,
    /// The permissions that scopes of access tokens grant (`auth.oauth.scopes`). Principals have these
    /// permissions already; this table says which scope a caller lacks.
    pub scopes: Vec<(String, Vec<Permission>)>,
}

/// What a caller learns about a denied capability.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Disclosure {
    /// The answer is the same as for a name that does not exist.
    #[default]
    Conceal,
    /// The call fails with the missing permission.
    Reveal,
}

/// A rule that grants or denies permissions to some callers for some capabilities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The callers.
    pub to: Callers,
    /// The capabilities, by id or MCP name.
    pub capabilities: Vec<Pattern>,
    /// The granted permissions.
    pub allow: Vec<Permission>,
    /// The denied permissions, even if other rules allow them. `*` denies the capabilities altogether.
    pub deny: Vec<Permission>,
}

impl Rule {
    /// Returns whether the rule applies to this caller and this capability.
    fn applies(&self, principal: Option<&Principal>, id: &str, name: &str) -> bool {
        self.to.matches(principal) && self.capabilities.iter().any(|pattern| pattern.fits(id, name))
    }
}

impl AccessPolicy {
    /// Returns the first need that this caller lacks for this capability, and the decision on it; `None`
    /// if the call is permitted.
    pub fn missing<'a>(
        &'a self,
        principal: Option<&Principal>,
        id: &str,
        name: &str,
        needs: &'a [Permission],
    ) -> Option<(&'a Permission, Decision)> {
        let applied = self.applied(principal, id, name);
        if let Some((everything, decision)) = applied.denied_altogether() {
            return Some((needs.first().unwrap_or(everything), decision));
        }
        let mut decided = needs.iter().map(|need| (need, applied.decide(need)));
        decided.find(|(_, decision)| !decision.is_allowed())
    }

    /// Returns the decision on each need of a capability, and on the capability itself if a rule denies
    /// it altogether.
    pub fn explain<'a>(
        &'a self,
        principal: Option<&Principal>,
        id: &str,
        name: &str,
        needs: &'a [Permission],
    ) -> Vec<(&'a Permission, Decision)> {
        let applied = self.applied(principal, id, name);
        let needs = needs.iter().map(|need| (need, applied.decide(need)));
        applied.denied_altogether().into_iter().chain(needs).collect()
    }

    /// Returns whether no caller may use a capability: a rule for everyone denies it, or nothing grants one of its needs to anyone.
    pub fn excludes_everyone(&self, id: &str, name: &str, needs: &[Permission]) -> bool {
        let fits = |rule: &&Rule| rule.capabilities.iter().any(|pattern| pattern.fits(id, name));
        let rules: Vec<&Rule> = self.rules.iter().filter(fits).collect();
        let denies = |denied: &Permission| {
            denied.is_everything() || needs.iter().any(|need| denied.overlaps(need))
        };
        let of_everyone = rules.iter().filter(|rule| rule.to.is_everyone());
        let of_scopes = self.scopes.iter().flat_map(|(_, permissions)| permissions);
        let granted: Vec<&Permission> =
            rules.iter().flat_map(|rule| &rule.allow).chain(of_scopes).collect();
        of_everyone.flat_map(|rule| &rule.deny).any(denies)
            || !needs.iter().all(|need| granted.iter().any(|granted| granted.covers(need)))
    }

    /// Returns the rules that apply to a caller's call of a capability.
    fn applied<'p, 'c>(
        &'p self,
        principal: Option<&'c Principal>,
        id: &str,
        name: &str,
    ) -> Applied<'p, 'c> {
        let rules = self.rules.iter().enumerate();
        Applied {
            rules: rules.filter(|(_, rule)| rule.applies(principal, id, name)).collect(),
            scoped: principal.map(Principal::permissions).unwrap_or_default(),
        }
    }

    /// Returns a minimal set of scopes that would permit this caller what the policy denies. The
    /// caller's own scopes that are known here come first, so that a client that requests exactly these
    /// loses nothing. Empty if no scope helps.
    pub fn helpful_scopes(
        &self,
        principal: &Principal,
        id: &str,
        name: &str,
        needs: &[Permission],
    ) -> Vec<String> {
        let granting = self.scopes.iter().map(|(scope, _)| scope.as_str());
        let entries = self.rules.iter().flat_map(|rule| rule.to.entries());
        let named = entries.filter_map(|entry| match entry {
            CallerPattern::Scope(pattern) if !pattern.as_str().contains('*') => Some(pattern.as_str()),
            _ => None,
        });
        let (mut own, mut lacked): (Vec<&str>, Vec<&str>) = Default::default();
        for scope in granting.chain(named) {
            let is_own = principal.scopes().any(|own| own == scope);
            let scopes = if is_own { &mut own } else { &mut lacked };
            if !scopes.contains(&scope) {
                scopes.push(scope);
            }
        }
        let is_enough = |scopes: &[&str]| {
            let granted = self.scopes.iter().filter(|(scope, _)| scopes.contains(&scope.as_str()));
            let granted =
                granted.flat_map(|(_, permissions)| permissions).chain(principal.permissions());
            let stepped_up = principal
                .clone()
                .with_permissions(granted.cloned().collect())
                .with_scopes(principal.scopes().chain(scopes.iter().copied()));
            self.missing(Some(&stepped_up), id, name, needs).is_none()
        };
        if !is_enough(&lacked) {
            return Vec::new();
        }
        // Later scopes are removed first, so that an earlier scope is preferred to a wider one.
        let mut needed = lacked.clone();
        for scope in lacked.iter().rev() {
            let without: Vec<&str> = needed.iter().copied().filter(|other| other != scope).collect();
            if is_enough(&without) {
                needed = without;
            }
        }
        own.into_iter().chain(needed).map(str::to_owned).collect()
    }
}

/// The rules that apply to a caller and a capability, by their index, and the permissions that the
/// caller's scopes grant.
struct Applied<'p, 'c> {
    rules: Vec<(usize, &'p Rule)>,
    scoped: &'c [Permission],
}

impl<'p> Applied<'p, '_> {
    /// Returns the `*` with which a rule denies the capability altogether.
    fn denied_altogether(&self) -> Option<(&'p Permission, Decision)> {
        self.rules.iter().find_map(|(at, rule)| {
            let everything = rule.deny.iter().find(|denied| denied.is_everything())?;
            Some((everything, Decision::DeniedBy(*at)))
        })
    }

    /// Returns the decision on one need.
    fn decide(&self, need: &Permission) -> Decision {
        let first = |decides: &dyn Fn(&Rule) -> bool| {
            self.rules.iter().find(|(_, rule)| decides(rule)).map(|(at, _)| *at)
        };
        if let Some(at) = first(&|rule| rule.deny.iter().any(|denied| denied.overlaps(need))) {
            Decision::DeniedBy(at)
        } else if let Some(at) = first(&|rule| rule.allow.iter().any(|allowed| allowed.covers(need))) {
            Decision::AllowedBy(at)
        } else if self.scoped.iter().any(|allowed| allowed.covers(need)) {
            Decision::AllowedByScope
        } else {
            Decision::NotGranted
        }
    }
}

/// The decision on a need. Rules are counted from 0, as in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// A rule allows the need, and none denies it.
    AllowedBy(usize),
    /// A scope of the caller grants the need, and no rule denies it.
    AllowedByScope,
    /// A rule denies the need.
    DeniedBy(usize),
    /// No rule and no scope allows the need.
    NotGranted,
}

impl Decision {
    /// Returns whether the need is met.
    pub fn is_allowed(self) -> bool {
        matches!(self, Self::AllowedBy(_) | Self::AllowedByScope)
    }

    /// Returns the rule that decides, such as `policy[0]`, for logs and the audit; `policy` if no rule
    /// allows the need.
    pub fn rule(self) -> String {
        match self {
            Self::AllowedBy(at) | Self::DeniedBy(at) => format!("policy[{at}]"),
            Self::AllowedByScope => "auth.oauth.scopes".to_owned(),
            Self::NotGranted => "policy".to_owned(),
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllowedBy(at) => write!(f, "allowed by policy[{at}]"),
            Self::AllowedByScope => f.write_str("allowed by a scope (auth.oauth.scopes)"),
            Self::DeniedBy(at) => write!(f, "denied by policy[{at}]"),
            Self::NotGranted => f.write_str("no rule allows it"),
        }
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
            let found = policy.missing(principal.as_ref(), id, id, &needs);
            assert_eq!(found.map(|(need, _)| need.as_str()), missing, "{who:?} {id}");
            let explained = policy.explain(principal.as_ref(), id, id, &needs);
            let is_allowed = explained.iter().all(|(_, decision)| decision.is_allowed());
            assert_eq!(is_allowed, missing.is_none(), "{who:?} {id}: {explained:?}");
        }
    }

    #[test]
    fn a_capability_that_nobody_may_use_is_known() {
        let policy = policy(&[
            ("alice", "*", &["exec:a", "net"], &[]),
            ("bob", "b*", &["exec:b"], &["exec:a"]),
            ("*", "secret", &["*"], &["*"]),
            ("*", "*", &[], &["fs:write:/etc"]),
        ]);
        for (id, needs, is_for_nobody) in [
            ("x", &["exec:a", "net:a.example"][..], false),
            ("bin", &["exec:a"], false),
            ("bin", &["exec:b", "net"], false),
            ("x", &["exec:b"], true),
            ("x", &[], false),
            ("secret", &["exec:a"], true),
            ("secret", &[], true),
            ("x", &["exec:a", "fs:write:/etc"], true),
        ] {
            let needs: Vec<Permission> = needs.iter().map(|need| Permission::needed(need)).collect();
            assert_eq!(policy.excludes_everyone(id, id, &needs), is_for_nobody, "{id} {needs:?}");
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
            let found = policy.missing(Some(who), "x", "x", &needs).map(|(need, _)| need.as_str());
            assert_eq!(found, missing, "{who:?} {need}");
        }
    }

    #[test]
    fn a_denial_names_the_scopes_that_would_help() {
        let mut policy = policy(&[
            ("scope:deploy", "deploy", &["*"], &[]),
            ("*", "*", &["net:api.example.com"], &[]),
            ("*", "never", &[], &["*"]),
        ]);
        policy.scopes = vec![
            ("run".to_owned(), permissions(&["exec"])),
            ("read".to_owned(), permissions(&["fs:read"])),
        ];
        let caller = Principal::oauth("https://id.example", "ada").with_scopes(["list"]);
        for (id, needs, scopes) in [
            ("a", &["exec:ls"][..], &["run"][..]),
            ("a", &["exec:ls", "fs:read:/x"], &["run", "read"]),
            ("deploy", &["db:prod"], &["deploy"]),
            ("a", &["db:prod"], &[]),
            ("never", &["exec:ls"], &[]),
        ] {
            let needs: Vec<Permission> = needs.iter().map(|need| Permission::needed(need)).collect();
            assert_eq!(policy.helpful_scopes(&caller, id, id, &needs), scopes, "{id} {needs:?}");
        }
        let caller = caller.with_scopes(["list", "run"]).with_permissions(permissions(&["exec"]));
        let needs = [Permission::needed("exec:ls"), Permission::needed("fs:read:/x")];
        assert_eq!(policy.helpful_scopes(&caller, "a", "a", &needs), ["run", "read"]);
    }
}

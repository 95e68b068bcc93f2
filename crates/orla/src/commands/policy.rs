//! `orla policy explain`: which rules decide what a caller may do.

use orla_marketplace::{ANONYMOUS, AccessPolicy, IdentifiedBy, Permission, Principal};
use serde_json::json;

use super::not_served;
use crate::app::App;
use crate::config::{Config, Source};
use crate::{Failure, cli, render};

pub(crate) fn explain(explain: &cli::PolicyExplain, source: &Source) -> Result<(), Failure> {
    let config = super::load(source)?;
    let _log = super::log(&config);
    let principal = principal(explain, &config);
    let (id, name, needs) = super::small_runtime()?.block_on(needs(&config, &explain.capability))?;
    let policy = config.access.as_ref().map(|policy| config.policy_with_scopes(policy));
    let decided = policy.as_ref().map(|policy| policy.explain(principal.as_ref(), &id, &name, &needs));
    let is_allowed =
        decided.as_ref().is_none_or(|decided| decided.iter().all(|(_, one)| one.is_allowed()));
    let helpful = match (&principal, &policy) {
        (Some(principal), Some(policy)) if !is_allowed => {
            policy.helpful_scopes(principal, &id, &name, &needs)
        }
        _ => Vec::new(),
    };
    if explain.json {
        let decision = |(need, decision): &(&Permission, orla_marketplace::Decision)| json!({"permission": need.as_str(), "allowed": decision.is_allowed(), "reason": decision.to_string()});
        return super::print_json(&json!({
            "principal": explain.principal,
            "capability": id,
            "allowed": is_allowed,
            "permissions": decided.iter().flatten().map(decision).collect::<Vec<_>>(),
            "scopes": helpful,
        }));
    }
    if is_unknown(&explain.principal, &config) {
        render::note(&format!("No token here has this name: {}", explain.principal));
    }
    let verdict = if is_allowed { "may call" } else { "may not call" };
    render::line(&format!("{} {verdict} {id}", explain.principal));
    match &decided {
        None => render::line("  there is no policy: every caller may use everything"),
        Some(decided) if decided.is_empty() => {
            render::line("  it needs no permission, and no rule denies it");
        }
        Some(decided) => {
            for (need, decision) in decided {
                render::line(&format!("  {need}: {decision}"));
            }
        }
    }
    if !helpful.is_empty() {
        // Scopes that the caller already has do not help.
        let has = |scope: &&String| {
            principal.as_ref().is_some_and(|one| one.scopes().any(|own| own == *scope))
        };
        let (own, missing): (Vec<&String>, Vec<&String>) = helpful.iter().partition(has);
        let missing: Vec<&str> = missing.into_iter().map(String::as_str).collect();
        let as_well = if own.is_empty() { "" } else { " as well," };
        render::line(&format!("  with the scope {}{as_well} it may", missing.join(" and ")));
    }
    Ok(())
}

/// Returns the caller of this name, with these groups and scopes. `group:NAME` is any member of a group,
/// `scope:NAME` any caller with a scope.
fn principal(explain: &cli::PolicyExplain, config: &Config) -> Option<Principal> {
    let name = explain.principal.as_str();
    let (mut groups, mut scopes) = (explain.groups.clone(), explain.scopes.clone());
    let subject = |name: &str| match config.issuers.first() {
        Some(issuer) => Principal::oauth(&issuer.issuer, name),
        None => Principal::token(name),
    };
    let principal = match name.split_once(':') {
        _ if name == ANONYMOUS => return None,
        Some(("token", name)) => Principal::token(name),
        Some(("cert", name)) => Principal::certificate(name),
        Some(("group", group)) => {
            groups.push(group.to_owned());
            subject("")
        }
        Some(("scope", scope)) => {
            scopes.push(scope.to_owned());
            subject("")
        }
        _ if has_token(config, name) => Principal::token(name),
        _ => subject(name),
    };
    if principal.identified_by() == IdentifiedBy::Token {
        let own = config.own_tokens.iter().flatten().filter(|token| token.name == principal.name());
        scopes.extend(own.flat_map(|token| token.scopes.clone()));
    }
    let granted = config.scope_grants().into_iter().filter(|(scope, _)| scopes.contains(scope));
    let permissions = granted.flat_map(|(_, permissions)| permissions).collect();
    Some(
        principal
            .with_groups(groups.iter().map(String::as_str))
            .with_scopes(scopes.iter().map(String::as_str))
            .with_permissions(permissions),
    )
}

/// Returns whether all callers have tokens, and none has this name.
fn is_unknown(name: &str, config: &Config) -> bool {
    let tokens =
        config.auth_tokens.iter().any(|token| token.name.is_some()) || config.own_tokens.is_some();
    let name = name.strip_prefix("token:").unwrap_or(name);
    tokens
        && config.issuers.is_empty()
        && config.tls.client_ca.is_none()
        && name != ANONYMOUS
        && !name.contains(':')
        && !has_token(config, name)
}

fn has_token(config: &Config, name: &str) -> bool {
    config.auth_tokens.iter().any(|token| token.name.as_deref() == Some(name))
        || config.own_tokens.iter().flatten().any(|token| token.name == name)
}

/// Returns the id and the name of a capability, and the permissions that it needs.
async fn needs(config: &Config, id: &str) -> Result<(String, String, Vec<Permission>), Failure> {
    let app = App::build(config)?;
    app.marketplace().prepare_listing().await;
    let catalog = app.marketplace().snapshot();
    let found = catalog
        .get(id)
        .map(|entry| (entry.manifest.id.clone(), entry.name.to_string(), entry.needs().to_vec()));
    app.end_providers().await;
    found.ok_or_else(|| Failure::failed(not_served(&catalog, id)))
}

impl Config {
    /// Returns the policy as it is in force.
    pub(crate) fn policy_with_scopes(&self, policy: &AccessPolicy) -> AccessPolicy {
        let mut policy = self.with_program_paths(policy);
        policy.scopes = self.scope_grants();
        policy
    }
}

//! `orla policy explain`: which rules decide what a caller may do.

use orla_console::Caller;
use orla_marketplace::{ANONYMOUS, AccessPolicy, IdentifiedBy, Permission, Principal};
use serde_json::json;

use super::not_served;
use crate::app::App;
use crate::config::{Config, Source};
use crate::{Failure, cli, render};

pub(crate) fn explain(explain: &cli::PolicyExplain, source: &Source) -> Result<(), Failure> {
    let config = super::load(source)?;
    let _log = super::log(&config);
    let (id, name, needs) = super::small_runtime()?.block_on(needs(&config, &explain.capability))?;
    let cli::PolicyExplain { principal: caller, groups, scopes, .. } = explain;
    let asked = Caller { name: caller, groups: groups.clone(), scopes: scopes.clone() };
    let verdict = Verdict::of(&config, asked, &id, &name, &needs);
    if explain.json {
        let permission = |one: &Need| json!({"permission": one.permission.as_str(), "allowed": one.is_allowed, "reason": one.reason});
        return super::print_json(&json!({
            "principal": explain.principal,
            "capability": id,
            "allowed": verdict.is_allowed,
            "permissions": verdict.needs.iter().flatten().map(permission).collect::<Vec<_>>(),
            "scopes": verdict.helpful_scopes,
        }));
    }
    if is_unknown(caller, &config) {
        render::note(&unknown(caller));
    }
    let may = if verdict.is_allowed { "may call" } else { "may not call" };
    render::line(&format!("{caller} {may} {id}"));
    verdict.reasons().iter().for_each(|reason| render::line(&format!("  {reason}")));
    Ok(())
}

/// Whether a caller may call a capability, and why.
pub(crate) struct Verdict {
    pub(crate) is_allowed: bool,
    /// The decision on each permission that it needs; `None` if there is no policy.
    needs: Option<Vec<Need>>,
    /// The scopes with which the caller may call it, if it may not.
    helpful_scopes: Vec<String>,
    /// Those of them that the caller does not have.
    missing_scopes: Vec<String>,
}

/// The decision on one permission.
struct Need {
    permission: Permission,
    is_allowed: bool,
    reason: String,
}

impl Verdict {
    /// Decides with the policy of a configuration about a capability that needs these permissions.
    pub(crate) fn of(
        config: &Config,
        asked: Caller<'_>,
        id: &str,
        name: &str,
        needs: &[Permission],
    ) -> Self {
        let principal = principal(asked, config);
        let policy = config.access.as_ref().map(|policy| config.policy_with_scopes(policy));
        let needs_of = |policy: &AccessPolicy| {
            let decided = policy.explain(principal.as_ref(), id, name, needs).into_iter();
            let need = decided.map(|(permission, decision)| Need {
                permission: permission.clone(),
                is_allowed: decision.is_allowed(),
                reason: decision.to_string(),
            });
            need.collect::<Vec<_>>()
        };
        let decided = policy.as_ref().map(needs_of);
        let is_allowed = decided.iter().flatten().all(|need| need.is_allowed);
        let helpful_scopes = match (&principal, &policy) {
            (Some(principal), Some(policy)) if !is_allowed => {
                policy.helpful_scopes(principal, id, name, needs)
            }
            _ => Vec::new(),
        };
        // Scopes that the caller already has do not help.
        let has = |scope: &&String| {
            principal.as_ref().is_some_and(|one| one.scopes().any(|own| own == *scope))
        };
        let missing_scopes = helpful_scopes.iter().filter(|scope| !has(scope)).cloned().collect();
        Self { is_allowed, needs: decided, helpful_scopes, missing_scopes }
    }

    /// Returns the reasons, a line each.
    pub(crate) fn reasons(&self) -> Vec<String> {
        let Some(needs) = &self.needs else {
            return vec!["there is no policy: every caller may use everything".to_owned()];
        };
        if needs.is_empty() {
            return vec!["it needs no permission, and no rule denies it".to_owned()];
        }
        let reason = |need: &Need| format!("{}: {}", need.permission, need.reason);
        let mut reasons: Vec<String> = needs.iter().map(reason).collect();
        if !self.helpful_scopes.is_empty() {
            let has_some = self.missing_scopes.len() < self.helpful_scopes.len();
            let as_well = if has_some { " as well," } else { "" };
            let missing = self.missing_scopes.join(" and ");
            reasons.push(format!("with the scope {missing}{as_well} it may"));
        }
        reasons
    }
}

/// Returns the caller of a question. `group:NAME` is any member of a group, `scope:NAME` any caller with a scope.
fn principal(asked: Caller<'_>, config: &Config) -> Option<Principal> {
    let Caller { name, mut groups, mut scopes } = asked;
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

/// Says that no token has a name.
pub(crate) fn unknown(name: &str) -> String {
    format!("No token here has this name: {name}")
}

/// Returns whether all callers have tokens, and none has this name.
pub(crate) fn is_unknown(name: &str, config: &Config) -> bool {
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

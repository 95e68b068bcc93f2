//! Checks the claims of an access token (RFC 9068 §4, RFC 7519 §4.1). Pure: the time is passed in.

use std::time::{Duration, SystemTime};

use orla_marketplace::{Permission, Principal};
use serde_json::Value;

use crate::json::Object;
use crate::options::IssuerOptions;

/// The maximum length of a name of a principal, a group or a scope, in bytes.
const MAX_NAME: usize = 255;
/// The maximum number of groups, and of scopes, of one caller.
const MAX_NAMES: usize = 1000;

/// The checked claims of a token.
#[derive(Debug)]
pub(crate) struct Claims {
    pub(crate) principal: Principal,
    /// When the token is no longer accepted.
    pub(crate) until: SystemTime,
    /// The thumbprint of the key that its bearer must prove to possess (RFC 9449 §6.1).
    pub(crate) bound_to: Option<Box<str>>,
}

impl Claims {
    /// Checks the claims of a token of this issuer.
    ///
    /// # Errors
    /// What is wrong with them, for the log.
    pub(crate) fn check(
        claims: &Object,
        options: &IssuerOptions,
        now: SystemTime,
    ) -> Result<Self, &'static str> {
        if claims.get("iss").and_then(Value::as_str) != Some(&options.issuer) {
            return Err("the token is of another issuer");
        }
        let audience = names(claims.get("aud"))?.ok_or("the token has no audience")?;
        if !audience.iter().any(|one| options.audience.iter().any(|own| own == one)) {
            return Err("the token is for another audience");
        }
        let skew = options.clock_skew;
        let expiry = instant(claims.get("exp"))?.ok_or("the token has no expiry")?;
        let until = expiry.checked_add(skew).ok_or("the expiry is out of range")?;
        if now >= until {
            return Err("the token has expired");
        }
        let latest = now + skew;
        if instant(claims.get("nbf"))?.is_some_and(|from| from > latest) {
            return Err("the token is not valid yet");
        }
        if instant(claims.get("iat"))?.is_some_and(|issued| issued > latest) {
            return Err("the token was issued in the future");
        }
        let name = claims.get(&options.principal_claim).and_then(Value::as_str);
        let name = name.filter(|name| is_name(name)).ok_or("the token does not name its subject")?;
        let groups = names(claim(claims, &options.groups_claim))?.unwrap_or_default();
        let scopes = scopes(claims)?;
        let permissions = options.permissions_of(&scopes);
        let name = format!("{}{name}", options.prefix);
        let groups = groups.iter().map(|group| format!("{}{group}", options.prefix));
        let principal = Principal::oauth(&options.issuer, &name)
            .with_groups(groups)
            .with_scopes(scopes)
            .with_permissions(permissions)
            .with_expiry(until);
        Ok(Self { principal, until, bound_to: confirmation(claims)? })
    }
}

impl IssuerOptions {
    /// Returns the permissions that these scopes grant.
    pub(crate) fn permissions_of(&self, scopes: &[&str]) -> Vec<Permission> {
        let granted = self.scopes.iter().filter(|(scope, _)| scopes.contains(&scope.as_str()));
        granted.flat_map(|(_, permissions)| permissions.iter().cloned()).collect()
    }
}

/// Returns a claim by its name, or by the path to it (`realm_access.roles`).
fn claim<'a>(claims: &'a Object, name: &str) -> Option<&'a Value> {
    claims.get(name).or_else(|| {
        let (outer, inner) = name.split_once('.')?;
        claim(claims.get(outer)?.as_object()?, inner)
    })
}

/// Returns the scopes: `scope` (RFC 9068 §2.2.3) and `scp`, which some servers use; a text with spaces,
/// or a list.
fn scopes(claims: &Object) -> Result<Vec<&str>, &'static str> {
    let mut scopes = Vec::new();
    for claim in ["scope", "scp"] {
        let texts = names_with(claims.get(claim), |_| true)?.unwrap_or_default();
        scopes.extend(texts.iter().flat_map(|text| text.split(' ')).filter(|scope| !scope.is_empty()));
    }
    let is_bounded = scopes.len() <= MAX_NAMES && scopes.iter().all(|scope| is_name(scope));
    if is_bounded { Ok(scopes) } else { Err("the token's scopes are malformed") }
}

/// Returns a name, or a list of names.
fn names(claim: Option<&Value>) -> Result<Option<Vec<&str>>, &'static str> {
    names_with(claim, is_name)
}

fn names_with(
    claim: Option<&Value>,
    is_valid: impl Fn(&str) -> bool,
) -> Result<Option<Vec<&str>>, &'static str> {
    const MALFORMED: &str = "a claim is not a list of names";
    let names: Vec<&str> = match claim {
        None => return Ok(None),
        Some(Value::String(name)) => vec![name],
        Some(Value::Array(items)) if items.len() <= MAX_NAMES => {
            items.iter().map(Value::as_str).collect::<Option<_>>().ok_or(MALFORMED)?
        }
        Some(_) => return Err(MALFORMED),
    };
    if names.iter().all(|name| is_valid(name)) { Ok(Some(names)) } else { Err(MALFORMED) }
}

fn is_name(text: &str) -> bool {
    (1..=MAX_NAME).contains(&text.len()) && !text.chars().any(char::is_control)
}

/// Returns a `NumericDate` (RFC 7519 §2).
fn instant(claim: Option<&Value>) -> Result<Option<SystemTime>, &'static str> {
    const MALFORMED: &str = "a time in the token is malformed";
    let Some(claim) = claim else { return Ok(None) };
    let seconds = claim.as_f64().filter(|seconds| *seconds >= 0.0).ok_or(MALFORMED)?;
    let since = Duration::try_from_secs_f64(seconds).map_err(|_| MALFORMED)?;
    SystemTime::UNIX_EPOCH.checked_add(since).map(Some).ok_or(MALFORMED)
}

/// Returns the key that the token is bound to (`cnf`, RFC 7800 §3.1). A binding that cannot be checked
/// is an error.
fn confirmation(claims: &Object) -> Result<Option<Box<str>>, &'static str> {
    const UNKNOWN: &str = "the token is bound to its bearer in a way that is not supported";
    let Some(confirmation) = claims.get("cnf") else { return Ok(None) };
    let members = confirmation.as_object().filter(|members| members.len() == 1).ok_or(UNKNOWN)?;
    let thumbprint = members.get("jkt").and_then(Value::as_str).ok_or(UNKNOWN)?;
    Ok(Some(thumbprint.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: u64 = 1_800_000_000;

    fn options() -> IssuerOptions {
        let mut options = IssuerOptions::new("https://id.example", "https://orla.example/mcp");
        options.scopes = vec![("tools:run".to_owned(), vec!["exec".parse().unwrap()])];
        options.groups_claim = "groups".to_owned();
        options
    }

    fn check_with(
        options: &IssuerOptions,
        change: impl FnOnce(&mut Object),
    ) -> Result<Claims, &'static str> {
        let Value::Object(mut claims) = json!({
            "iss": "https://id.example", "aud": "https://orla.example/mcp", "sub": "ada", "exp": NOW + 600,
            "iat": NOW, "nbf": NOW, "groups": ["dev", "ops"], "scope": "tools:run tools:list",
        }) else {
            unreachable!()
        };
        change(&mut claims);
        Claims::check(&claims, options, SystemTime::UNIX_EPOCH + Duration::from_secs(NOW))
    }

    fn check(name: &str, value: Value) -> Result<Claims, &'static str> {
        check_with(&options(), |claims| drop(claims.insert(name.to_owned(), value)))
    }

    #[test]
    fn a_principal_has_the_groups_scopes_and_permissions_of_its_token() {
        let principal = check_with(&options(), |_| {}).unwrap().principal;
        assert_eq!(principal, Principal::oauth("https://id.example", "ada"));
        assert_eq!(principal.groups().collect::<Vec<_>>(), ["dev", "ops"]);
        assert_eq!(principal.scopes().collect::<Vec<_>>(), ["tools:run", "tools:list"]);
        assert_eq!(principal.permissions(), ["exec".parse().unwrap()]);
    }

    #[test]
    fn each_claim_is_checked() {
        let accepted = [
            ("aud", json!(["x", "https://orla.example/mcp"])),
            ("exp", json!(NOW - 59)),
            ("exp", json!(f64::from(u32::MAX) + 0.5)),
            ("nbf", json!(NOW + 60)),
            ("groups", json!("dev")),
            ("groups", json!([])),
            ("scope", json!("")),
            ("scp", json!(["a", "b"])),
        ];
        for (name, value) in accepted {
            assert!(check(name, value.clone()).is_ok(), "{name} {value}");
        }
        let refused = [
            ("iss", json!("https://id.example/")),
            ("iss", json!("HTTPS://id.example")),
            ("iss", json!(["https://id.example"])),
            ("aud", json!("https://orla.example/mcp/x")),
            ("aud", json!("https://orla.example/mcp/")),
            ("aud", json!([])),
            ("aud", json!([["https://orla.example/mcp"]])),
            ("aud", json!(["https://orla.example/mcp", 7])),
            ("aud", json!({"https://orla.example/mcp": 1})),
            ("exp", json!(NOW - 60)),
            ("exp", json!(NOW - 61)),
            ("exp", json!("never")),
            ("exp", json!((NOW + 600).to_string())),
            ("exp", json!(null)),
            ("exp", json!(1e300)),
            ("exp", json!(-1)),
            ("exp", json!([NOW + 600])),
            ("exp", json!(true)),
            ("nbf", json!(NOW + 61)),
            ("nbf", json!("0")),
            ("iat", json!(NOW + 3600)),
            ("iat", json!(null)),
            ("sub", json!("")),
            ("sub", json!(7)),
            ("sub", json!(["ada"])),
            ("sub", json!("a\nb")),
            ("sub", json!("x".repeat(256))),
            ("groups", json!(7)),
            ("groups", json!(["dev", 7])),
            ("groups", json!([""])),
            ("scope", json!(7)),
            ("scope", json!({})),
            ("cnf", json!({"x5t#S256": "a"})),
            ("cnf", json!({"jkt": "a", "x": 1})),
            ("cnf", json!("a")),
        ];
        for (name, value) in refused {
            assert!(check(name, value.clone()).is_err(), "{name} {value}");
        }
        for name in ["iss", "aud", "sub", "exp"] {
            let without = check_with(&options(), |claims| drop(claims.shift_remove(name)));
            assert!(without.is_err(), "without {name}");
        }
    }

    #[test]
    fn groups_may_be_within_another_claim() {
        let options = IssuerOptions { groups_claim: "realm_access.roles".to_owned(), ..options() };
        let checked = check_with(&options, |claims| {
            claims.insert("realm_access".to_owned(), json!({"roles": ["admin"]}));
        });
        assert_eq!(checked.unwrap().principal.groups().collect::<Vec<_>>(), ["admin"]);
    }

    #[test]
    fn a_prefix_tells_the_callers_of_an_issuer_apart() {
        let options = IssuerOptions { prefix: "partner/".to_owned(), ..options() };
        let principal = check_with(&options, |_| {}).unwrap().principal;
        assert_eq!(principal.name(), "partner/ada");
        assert_eq!(principal.groups().collect::<Vec<_>>(), ["partner/dev", "partner/ops"]);
    }
}

//! Callers: their identity ([`Principal`]), and the lists of callers that rules name ([`Callers`]).
//!
//! A principal is identified by its *id*: how it was identified, and its name. The id decides equality.
//! An OAuth subject with the name of a configured token is therefore another caller, with its own
//! sessions, tasks and budgets. Groups and scopes come from its current credential; they decide which
//! rules apply.
//!
//! Pure data: tokens and certificates are checked where requests arrive.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;
use std::time::SystemTime;

use crate::id::Pattern;
use crate::permission::Permission;

/// The name of a caller without a principal in rules.
pub const ANONYMOUS: &str = "anonymous";

/// The identity of a caller. Cloning is cheap.
#[derive(Clone)]
pub struct Principal(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    /// `token:NAME`, `cert:NAME`, `schedule:NAME` or `oauth:ISSUER NAME`. An issuer has no space in it.
    id: Arc<str>,
    /// The index of the name in the id.
    name_at: usize,
    groups: Vec<Box<str>>,
    scopes: Vec<Box<str>>,
    permissions: Vec<Permission>,
    credential: Option<Box<str>>,
    fingerprint: Option<[u8; 32]>,
    expires_at: Option<SystemTime>,
}

/// How a caller was identified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentifiedBy<'a> {
    /// A bearer token of the configuration or of the file of tokens.
    Token,
    /// A client certificate.
    Certificate,
    /// A schedule of the configuration, not a client.
    Schedule,
    /// An access token of the authorization server with this issuer identifier.
    OAuth(&'a str),
}

impl fmt::Display for IdentifiedBy<'_> {
    /// Writes `token`, `cert`, `schedule`, or the issuer identifier, as logs and the audit show it
    /// beside the name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Token => "token",
            Self::Certificate => "cert",
            Self::Schedule => "schedule",
            Self::OAuth(issuer) => issuer,
        })
    }
}

impl Principal {
    /// Creates the principal of the token with this name.
    pub fn token(name: &str) -> Self {
        Self::of(TOKEN, name)
    }

    /// Returns the holder of a client certificate with this name.
    pub fn certificate(name: &str) -> Self {
        Self::of(CERTIFICATE, name)
    }

    /// Returns the subject of an access token, named `name` by this issuer.
    pub fn oauth(issuer: &str, name: &str) -> Self {
        Self::of(&format!("{OAUTH}{} ", issuer.replace(' ', "%20")), name)
    }

    /// Returns the schedule of the configuration with this name.
    pub fn schedule(name: &str) -> Self {
        Self::of(SCHEDULE, name)
    }

    fn of(prefix: &str, name: &str) -> Self {
        Self(Arc::new(Inner {
            id: format!("{prefix}{name}").into(),
            name_at: prefix.len(),
            groups: Vec::new(),
            scopes: Vec::new(),
            permissions: Vec::new(),
            credential: None,
            fingerprint: None,
            expires_at: None,
        }))
    }

    /// Creates the principal with this [id](Self::id), without groups and scopes. Any other text is the
    /// name of a token.
    pub fn from_id(id: &str) -> Self {
        if let Some(name) = id.strip_prefix(CERTIFICATE) {
            return Self::certificate(name);
        }
        if let Some(name) = id.strip_prefix(SCHEDULE) {
            return Self::schedule(name);
        }
        match id.strip_prefix(OAUTH).and_then(|rest| rest.split_once(' ')) {
            Some((issuer, name)) => Self::oauth(issuer, name),
            None => Self::token(id.strip_prefix(TOKEN).unwrap_or(id)),
        }
    }

    /// Adds groups.
    #[must_use]
    pub fn with_groups<S: Into<Box<str>>>(mut self, groups: impl IntoIterator<Item = S>) -> Self {
        Arc::make_mut(&mut self.0).groups = groups.into_iter().map(Into::into).collect();
        self
    }

    /// Adds scopes.
    #[must_use]
    pub fn with_scopes<S: Into<Box<str>>>(mut self, scopes: impl IntoIterator<Item = S>) -> Self {
        Arc::make_mut(&mut self.0).scopes = scopes.into_iter().map(Into::into).collect();
        self
    }

    /// Adds permissions, which the principal has in addition to those that the policy grants.
    #[must_use]
    pub fn with_permissions(mut self, permissions: Vec<Permission>) -> Self {
        Arc::make_mut(&mut self.0).permissions = permissions;
        self
    }

    /// Sets the access token that the caller presented.
    #[must_use]
    pub fn with_credential(mut self, token: impl Into<Box<str>>) -> Self {
        Arc::make_mut(&mut self.0).credential = Some(token.into());
        self
    }

    /// Sets the SHA-256 digest of the bearer token that the caller presented.
    #[must_use]
    pub fn with_fingerprint(mut self, digest: [u8; 32]) -> Self {
        Arc::make_mut(&mut self.0).fingerprint = Some(digest);
        self
    }

    /// Sets the expiry of the credential.
    #[must_use]
    pub fn with_expiry(mut self, expires_at: SystemTime) -> Self {
        Arc::make_mut(&mut self.0).expires_at = Some(expires_at);
        self
    }

    /// Returns a unique text that stays the same across restarts. It is for keys of tables and files,
    /// not for users.
    pub fn id(&self) -> &Arc<str> {
        &self.0.id
    }

    /// Returns the name in rules, logs and the audit. Callers that were identified in different ways may
    /// share a name.
    pub fn name(&self) -> &str {
        &self.0.id[self.0.name_at..]
    }

    /// Returns how the caller was identified.
    pub fn identified_by(&self) -> IdentifiedBy<'_> {
        let kind = &self.0.id[..self.0.name_at];
        match kind.strip_prefix(OAUTH) {
            Some(issuer) => IdentifiedBy::OAuth(issuer.trim_end()),
            None if kind == CERTIFICATE => IdentifiedBy::Certificate,
            None if kind == SCHEDULE => IdentifiedBy::Schedule,
            None => IdentifiedBy::Token,
        }
    }

    /// Returns whether the caller presented an access token of the authorization server with this issuer
    /// identifier.
    pub fn is_of(&self, issuer: &str) -> bool {
        self.identified_by() == IdentifiedBy::OAuth(&issuer.replace(' ', "%20"))
    }

    /// Returns the groups that its credential names.
    pub fn groups(&self) -> impl Iterator<Item = &str> {
        self.0.groups.iter().map(|group| &**group)
    }

    /// Returns the scopes of its credential.
    pub fn scopes(&self) -> impl Iterator<Item = &str> {
        self.0.scopes.iter().map(|scope| &**scope)
    }

    /// Returns the permissions that its scopes grant (`auth.oauth.scopes`).
    pub fn permissions(&self) -> &[Permission] {
        &self.0.permissions
    }

    /// Returns the original access token, only for token exchange (RFC 8693). Only callers with an OAuth
    /// access token have one. It must not reach a log, an error or another server.
    pub fn credential(&self) -> Option<&str> {
        self.0.credential.as_deref()
    }

    /// Returns the SHA-256 digest of its bearer token, if one of orla's own tokens identified it.
    pub fn fingerprint(&self) -> Option<&[u8; 32]> {
        self.0.fingerprint.as_ref()
    }

    /// When its credential expires.
    pub fn expires_at(&self) -> Option<SystemTime> {
        self.0.expires_at
    }
}

const TOKEN: &str = "token:";
const CERTIFICATE: &str = "cert:";
const SCHEDULE: &str = "schedule:";
const OAUTH: &str = "oauth:";

impl PartialEq for Principal {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for Principal {}

impl Hash for Principal {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.id.hash(state);
    }
}

impl fmt::Debug for Principal {
    /// Everything but the credential.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Principal")
            .field("id", &self.0.id)
            .field("groups", &self.0.groups)
            .field("scopes", &self.0.scopes)
            .finish_non_exhaustive()
    }
}

/// A list of callers, as in the keys `to` and `by` of the configuration. It matches a caller if one of
/// its entries does. An empty list matches no caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Callers(Vec<CallerPattern>);

/// One entry of [`Callers`]: a pattern of names, `group:NAME`, `scope:NAME`, `token:NAME`, `cert:NAME` or `anonymous`.
/// Each NAME is a pattern.
///
/// A name matches callers of any identification. An entry with a kind matches only that kind, so a
/// subject that is called `group:admins` is not a member of that group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallerPattern {
    /// `anonymous`: callers without a principal.
    Anonymous,
    /// Callers of this name, and callers without a principal if the pattern matches `anonymous`.
    Named(Pattern),
    /// Members of this group.
    Group(Pattern),
    /// Callers whose credential has this scope.
    Scope(Pattern),
    /// Bearers of this token of the configuration or of the file of tokens.
    Token(Pattern),
    /// Holders of this client certificate.
    Certificate(Pattern),
}

/// The reason why a text is not a list of callers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a name, group:NAME, scope:NAME, token:NAME, cert:NAME or anonymous, got {0:?}")]
pub struct NoCallers(pub String);

impl Callers {
    /// Returns every caller, with or without a principal.
    pub fn everyone() -> Self {
        Self(vec![CallerPattern::Named(Pattern::new("*"))])
    }

    /// Returns the callers that match one of these entries.
    ///
    /// # Errors
    /// The first entry that names no callers.
    pub fn parse<S: AsRef<str>>(entries: impl IntoIterator<Item = S>) -> Result<Self, NoCallers> {
        entries.into_iter().map(|entry| entry.as_ref().parse()).collect::<Result<_, _>>().map(Self)
    }

    /// Returns whether every caller matches.
    pub fn is_everyone(&self) -> bool {
        self.0
            .iter()
            .any(|entry| matches!(entry, CallerPattern::Named(pattern) if pattern.as_str() == "*"))
    }

    /// Returns whether one of the entries matches this caller.
    pub fn matches(&self, caller: Option<&Principal>) -> bool {
        self.0.iter().any(|entry| entry.matches(caller))
    }

    /// Returns the entries.
    pub fn entries(&self) -> &[CallerPattern] {
        &self.0
    }
}

impl CallerPattern {
    pub(crate) fn matches(&self, caller: Option<&Principal>) -> bool {
        let Some(caller) = caller else {
            return match self {
                Self::Anonymous => true,
                Self::Named(pattern) => pattern.matches(ANONYMOUS),
                Self::Group(_) | Self::Scope(_) | Self::Token(_) | Self::Certificate(_) => false,
            };
        };
        let is_named = |pattern: &Pattern| pattern.matches(caller.name());
        match self {
            Self::Anonymous => false,
            Self::Named(pattern) => is_named(pattern),
            Self::Group(pattern) => caller.groups().any(|group| pattern.matches(group)),
            Self::Scope(pattern) => caller.scopes().any(|scope| pattern.matches(scope)),
            Self::Token(pattern) => caller.identified_by() == IdentifiedBy::Token && is_named(pattern),
            Self::Certificate(pattern) => {
                caller.identified_by() == IdentifiedBy::Certificate && is_named(pattern)
            }
        }
    }
}

impl FromStr for CallerPattern {
    type Err = NoCallers;

    fn from_str(text: &str) -> Result<Self, NoCallers> {
        let (kind, name) = text.split_once(':').unwrap_or(("", text));
        let make = match kind {
            "group" => Self::Group,
            "scope" => Self::Scope,
            "token" => Self::Token,
            "cert" => Self::Certificate,
            _ if text == ANONYMOUS => return Ok(Self::Anonymous),
            // Subjects may contain colons.
            _ if !text.is_empty() => return Ok(Self::Named(Pattern::new(text))),
            _ => return Err(NoCallers(text.to_owned())),
        };
        match name {
            "" => Err(NoCallers(text.to_owned())),
            name => Ok(make(Pattern::new(name))),
        }
    }
}

impl fmt::Display for CallerPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, pattern) = match self {
            Self::Anonymous => return f.write_str(ANONYMOUS),
            Self::Named(pattern) => ("", pattern),
            Self::Group(pattern) => ("group:", pattern),
            Self::Scope(pattern) => ("scope:", pattern),
            Self::Token(pattern) => ("token:", pattern),
            Self::Certificate(pattern) => ("cert:", pattern),
        };
        write!(f, "{kind}{}", pattern.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn callers(entry: &str) -> Callers {
        Callers::parse([entry]).unwrap()
    }

    #[test]
    fn callers_are_named_in_six_ways() {
        let token = Principal::token("ada").with_scopes(["tools:read"]);
        let cert = Principal::certificate("ada");
        let subject = Principal::oauth("https://id.example", "ada").with_groups(["dev", "ops"]);
        let [token, cert, subject] = [&token, &cert, &subject].map(Some);
        for (entry, matched) in [
            ("ada", [true, true, true, false]),
            ("a*", [true, true, true, true]),
            ("*", [true, true, true, true]),
            ("eve", [false, false, false, false]),
            ("token:ada", [true, false, false, false]),
            ("token:*", [true, false, false, false]),
            ("cert:ada", [false, true, false, false]),
            ("group:ops", [false, false, true, false]),
            ("group:op", [false, false, false, false]),
            ("scope:tools:read", [true, false, false, false]),
            ("anonymous", [false, false, false, true]),
        ] {
            let found = [token, cert, subject, None].map(|caller| callers(entry).matches(caller));
            assert_eq!(found, matched, "{entry}");
        }
        assert!(!Callers::default().matches(token) && !Callers::default().matches(None));
    }

    #[test]
    fn a_subject_cannot_call_itself_a_group_or_anonymous() {
        for name in ["group:dev", "scope:dev", "token:dev", "cert:dev", "anonymous"] {
            let subject = Principal::oauth("https://id.example", name);
            assert!(!callers(name).matches(Some(&subject)), "{name}");
        }
    }

    #[test]
    fn an_entry_without_a_name_is_refused() {
        for entry in ["", "group:", "scope:", "token:", "cert:"] {
            assert!(entry.parse::<CallerPattern>().is_err(), "{entry:?}");
        }
    }

    #[test]
    fn callers_with_one_name_are_equal_only_if_they_were_identified_alike() {
        let all = [
            Principal::token("ada"),
            Principal::certificate("ada"),
            Principal::oauth("https://one.example", "ada"),
            Principal::oauth("https://two.example", "ada"),
        ];
        for (at, one) in all.iter().enumerate() {
            assert_eq!(one.name(), "ada");
            for (other_at, other) in all.iter().enumerate() {
                assert_eq!(one == other, at == other_at, "{one:?} {other:?}");
            }
        }
        let with_groups = Principal::token("ada").with_groups(["dev"]);
        assert_eq!(with_groups, all[0], "groups change while a caller stays the same");
        assert_eq!(all[2].identified_by(), IdentifiedBy::OAuth("https://one.example"));
    }

    #[test]
    fn a_credential_is_in_no_debug_output() {
        let principal = Principal::oauth("https://id.example", "ada").with_credential("s3cr3t");
        assert_eq!(principal.credential(), Some("s3cr3t"));
        assert!(!format!("{principal:?} {principal:#?}").contains("s3cr3t"));
    }

    proptest! {
        #[test]
        fn an_id_names_one_principal(issuer in "[a-z:/. ]{0,12}", name in ".{0,12}", other in ".{0,12}") {
            let of = |name: &str| [
                Principal::token(name),
                Principal::certificate(name),
                Principal::oauth(&issuer, name),
            ];
            for (at, one) in of(&name).iter().enumerate() {
                prop_assert_eq!(&Principal::from_id(one.id()), one);
                prop_assert_eq!(one.name(), &*name);
                for (other_at, other_one) in of(&other).iter().enumerate() {
                    prop_assert_eq!(one == other_one, at == other_at && name == other);
                }
            }
        }

        #[test]
        fn an_entry_reads_as_it_prints(text in "(group|scope|token|cert|x|anonymous)?:?[a-z:*]{0,6}") {
            if let Ok(entry) = text.parse::<CallerPattern>() {
                prop_assert_eq!(entry.to_string(), &*text);
                prop_assert_eq!(text.parse::<CallerPattern>(), Ok(entry));
            }
        }
    }
}

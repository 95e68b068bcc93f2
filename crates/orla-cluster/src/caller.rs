//! The wire form of a caller.

use std::time::{Duration, SystemTime};

use orla_marketplace::{Permission, Principal, millis_down};
use serde::{Deserialize, Serialize};

/// The maximum number of groups, scopes and permissions of a caller.
const MAX_LISTED: usize = 1000;

/// A principal, without its credential.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Caller {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) groups: Vec<String>,
    #[serde(default)]
    pub(crate) scopes: Vec<String>,
    #[serde(default)]
    pub(crate) permissions: Vec<String>,
    /// In milliseconds since 1970.
    pub(crate) expires_ms: Option<u64>,
}

impl Caller {
    pub(crate) fn of(principal: &Principal) -> Self {
        let expires =
            principal.expires_at().and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
        Self {
            id: principal.id().to_string(),
            groups: principal.groups().map(str::to_owned).collect(),
            scopes: principal.scopes().map(str::to_owned).collect(),
            permissions: principal.permissions().iter().map(ToString::to_string).collect(),
            expires_ms: expires.map(millis_down),
        }
    }

    /// Returns whether it has more groups, scopes and permissions than any caller.
    pub(crate) fn is_too_large(&self) -> bool {
        self.groups.len() + self.scopes.len() + self.permissions.len() > MAX_LISTED
    }

    /// Returns the caller as a principal of this node.
    ///
    /// # Errors
    ///
    /// A permission that cannot be read: without it, the caller would be another one. Or its credential
    /// has expired.
    pub(crate) fn principal(&self, now: SystemTime) -> Result<Principal, String> {
        let permission = |text: &String| {
            text.parse::<Permission>().map_err(|_| "a permission of its caller is unknown".to_owned())
        };
        let permissions: Vec<Permission> =
            self.permissions.iter().map(permission).collect::<Result<_, _>>()?;
        let principal = Principal::from_id(&self.id)
            .with_groups(self.groups.iter().map(String::as_str))
            .with_scopes(self.scopes.iter().map(String::as_str))
            .with_permissions(permissions);
        let expiry = self.expires_ms.map(Duration::from_millis);
        Ok(match expiry.and_then(|time| SystemTime::UNIX_EPOCH.checked_add(time)) {
            Some(at) if at <= now => return Err("the credential of its caller has expired".to_owned()),
            Some(at) => principal.with_expiry(at),
            None => principal,
        })
    }
}

//! What is configured of another instance.

use std::fmt;
use std::time::Duration;

use orla_marketplace::id::{Pattern, mcp_name};

/// Another instance whose catalogue is served here.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteSettings {
    /// What it is called here.
    pub name: String,
    /// Where it is reached; without a path, its `/rtfs`.
    pub url: String,
    /// Sent as a bearer token.
    pub token: Option<String>,
    /// Stands before the ids of its capabilities; `NAME.` where absent.
    pub prefix: Option<String>,
    /// Its ids that are served; all where absent.
    pub include: Option<Vec<Pattern>>,
    /// Its ids that are not.
    pub exclude: Vec<Pattern>,
    /// How long one call may take; as long as the caller gives it where absent.
    pub timeout: Option<Duration>,
    /// Whether it is asked when the server starts, and not at the first need.
    pub eager: bool,
}

impl RemoteSettings {
    /// An instance of which everything is served.
    pub fn new(name: impl Into<String>, url: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            url: url.into(),
            token: None,
            prefix: None,
            include: None,
            exclude: Vec::new(),
            timeout: None,
            eager: false,
        }
    }

    /// The id here of what has this id there.
    pub fn id_of(&self, id: &str) -> String {
        match &self.prefix {
            Some(prefix) => format!("{prefix}{id}"),
            None => format!("{}.{id}", self.name),
        }
    }

    /// Whether a capability of this id or name may turn out to be served.
    pub fn may_serve(&self, name: &str) -> bool {
        let start = self.id_of("");
        name.starts_with(&start) || name.starts_with(&mcp_name(&start))
    }
}

impl fmt::Debug for RemoteSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An address may hold a secret as well as the token is one.
        f.debug_struct("RemoteSettings").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_the_name_before_them_or_the_prefix() {
        let mut remote = RemoteSettings::new("b", "http://b");
        assert_eq!(remote.id_of("x.y"), "b.x.y");
        assert!(remote.may_serve("b.x") && remote.may_serve("b__x") && !remote.may_serve("bx"));
        remote.prefix = Some("far_".into());
        assert_eq!(remote.id_of("x.y"), "far_x.y");
        remote.token = Some("hush".into());
        assert!(!format!("{remote:?}").contains("hush"));
    }
}

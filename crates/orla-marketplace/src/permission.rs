//! The permissions that capabilities need (RTFS capability system §6).
//!
//! A capability declares its needs as [`Permission`]s, such as `net:api.example.com`. The needs of its
//! provider are added. A [policy](crate::AccessPolicy) grants permissions to callers.
//!
//! All functions are pure and work on text: no file is opened and no name is resolved. A path therefore
//! means its text.
//!
//! # How patterns match
//!
//! A grant covers a need of the same kind if the rest of the grant does. A kind alone (`exec`) covers
//! all of its kind. `*` matches any run of characters, every other character only itself, and the whole
//! text must match.
//! - `net:HOST` or `net:HOST:PORT`: `net:*.example.com` covers `net:api.example.com` and not
//!   `net:example.com`. Without a port, any port is covered. Case is ignored.
//! - `fs:read:PATH`, `fs:write:PATH`: a path covers everything below it. `.` and `..` are resolved first, so
//!   `./data` does not cover `./data/../secret`.
//! - `mcp:SERVER/TOOL`: `mcp:SERVER` covers all of its tools.
//! - Every other kind: `KIND:REST`, such as `exec:git`.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use rtfs::text::excerpt;

use crate::id::Pattern;

/// A permission that a capability needs, or a pattern over permissions.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Permission {
    text: Box<str>,
    scope: Scope,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Scope {
    /// `*`
    Everything,
    Net {
        host: Pattern,
        port: Option<Pattern>,
    },
    /// `fs:read:…` or `fs:write:…`; `None` is any path.
    Path {
        action: Box<str>,
        path: Option<Vec<Pattern>>,
        is_absolute: bool,
    },
    Other {
        kind: Box<str>,
        rest: Pattern,
    },
}

/// The reason why a text is not a permission.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected a permission such as net:api.example.com, fs:read:./data, exec or mcp:server/*, got {0:?}"
)]
pub struct NoPermission(pub String);

impl Permission {
    /// Creates a need that a capability declares. A text that is not a permission still is a need: a
    /// grant or a denial of its whole kind covers it. An unreadable need of `net` or `fs` may mean any
    /// host or path, so only `*` covers it and every denial concerns it.
    pub fn needed(text: &str) -> Self {
        text.parse().unwrap_or_else(|_| {
            let scope = match text.split_once(':') {
                Some(("net" | "fs", _)) => Scope::Everything,
                Some((kind, rest)) => Scope::Other { kind: kind.into(), rest: Pattern::new(rest) },
                None => Scope::Other { kind: text.into(), rest: Pattern::new("*") },
            };
            Self { text: text.into(), scope }
        })
    }

    /// Returns the permission's text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns whether granting this permission also grants `need`. If `need` is itself a pattern, all
    /// of it must be covered.
    pub fn covers(&self, need: &Self) -> bool {
        match (&self.scope, &need.scope) {
            (Scope::Everything, _) => true,
            (Scope::Net { host, port }, Scope::Net { host: wanted, port: wanted_port }) => {
                host.matches(wanted.as_str())
                    && match (port, wanted_port) {
                        (None, _) => true,
                        (Some(port), Some(wanted)) => port.matches(wanted.as_str()),
                        (Some(port), None) => port.as_str() == "*",
                    }
            }
            (
                Scope::Path { action, path, is_absolute },
                Scope::Path { action: wanted_action, path: wanted, is_absolute: wanted_absolute },
            ) => {
                let acts = action.is_empty() || action == wanted_action;
                acts && match (path, wanted) {
                    (None, _) => true,
                    (Some(_), None) => false,
                    (Some(path), Some(wanted)) => {
                        is_absolute == wanted_absolute
                            // No `*`, and no shorter path, matches a step upwards.
                            && steps_up(path) == steps_up(wanted)
                            && path.len() <= wanted.len()
                            && path
                                .iter()
                                .zip(wanted)
                                .all(|(part, wanted)| part.matches(wanted.as_str()))
                    }
                }
            }
            (Scope::Other { kind, rest }, Scope::Other { kind: wanted_kind, rest: wanted }) => {
                kind == wanted_kind && rest.matches(wanted.as_str())
            }
            _ => false,
        }
    }

    /// Returns whether it is `*`.
    pub(crate) fn is_everything(&self) -> bool {
        self.scope == Scope::Everything
    }

    /// Returns whether some permission matches both. A need that may include a denied permission is
    /// denied: a denial of `exec:rm` also denies `exec`.
    pub(crate) fn overlaps(&self, need: &Self) -> bool {
        self.covers(need) || (self.scope != Scope::Everything && need.covers(self))
    }
}

impl FromStr for Permission {
    type Err = NoPermission;

    fn from_str(text: &str) -> Result<Self, NoPermission> {
        let problem = || NoPermission(excerpt(text, 200));
        let sound = |text: &str| !text.is_empty() && !text.chars().any(char::is_control);
        if !sound(text) || text.trim() != text {
            return Err(problem());
        }
        let (kind, rest) = match text.split_once(':') {
            Some((kind, rest)) if sound(rest) => (kind, Some(rest)),
            Some(_) => return Err(problem()),
            None => (text, None),
        };
        let scope = match (kind, rest) {
            ("*", None) => Scope::Everything,
            ("net", rest) => {
                let (host, port) = host_and_port(rest.unwrap_or("*"));
                Scope::Net { host: Pattern::new(one_name(host)), port: port.map(Pattern::new) }
            }
            ("fs", rest) => {
                let (action, path) = match rest.map(|rest| rest.split_once(':').unwrap_or((rest, ""))) {
                    None => ("", None),
                    Some((action @ ("read" | "write"), "")) => (action, None),
                    Some((action @ ("read" | "write"), path)) => (action, Some(path)),
                    Some(_) => return Err(problem()),
                };
                Scope::Path {
                    action: action.into(),
                    is_absolute: path.is_some_and(|path| path.starts_with('/')),
                    path: path.map(|path| resolved(path).into_iter().map(Pattern::new).collect()),
                }
            }
            ("mcp", Some(rest)) if !rest.contains('/') => {
                Scope::Other { kind: kind.into(), rest: Pattern::new(format!("{rest}/*")) }
            }
            (kind, rest)
                if !kind.is_empty()
                    && kind.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')) =>
            {
                Scope::Other { kind: kind.into(), rest: Pattern::new(rest.unwrap_or("*")) }
            }
            _ => return Err(problem()),
        };
        Ok(Self { text: text.into(), scope })
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permission({})", self.text)
    }
}

/// Returns a host and its port, if there is one; an IPv6 address is in brackets.
fn host_and_port(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        // A colon within brackets, or one of several without brackets, is a part of the address.
        Some((host, port)) if !port.contains(']') && (host.ends_with(']') || !host.contains(':')) => {
            (host, Some(port))
        }
        _ => (text, None),
    }
}

/// Returns a host in its normal form: in lower case, without a final dot, and an IPv6 address in its
/// shortest form.
fn one_name(host: &str) -> String {
    let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    if let Ok(address) = address.parse::<Ipv6Addr>() {
        return format!("[{address}]");
    }
    let host = host.to_ascii_lowercase();
    match host.strip_suffix('.') {
        Some(name) if !name.is_empty() => name.to_owned(),
        _ => host,
    }
}

/// Returns the number of leading steps upwards in a path.
fn steps_up(path: &[Pattern]) -> usize {
    path.iter().take_while(|part| part.as_str() == "..").count()
}

/// Returns the parts of a path without `.`. Each `..` removes the part before it, if there is one.
fn resolved(path: &str) -> Vec<&str> {
    let is_absolute = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            // The parent of the root is the root.
            ".." if is_absolute => {}
            part => parts.push(part),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn permission(text: &str) -> Permission {
        text.parse().unwrap_or_else(|err| panic!("{err}"))
    }

    #[test]
    fn a_grant_covers_exactly_what_it_names() {
        for (grant, need, covered) in [
            ("*", "exec", true),
            ("net", "net:api.example.com", true),
            ("net:api.example.com", "net:API.Example.com", true),
            ("net:api.example.com", "net:api.example.com.evil.org", false),
            ("net:api.example.com", "net:apixexample.com", false),
            ("net:*.example.com", "net:api.example.com", true),
            ("net:*.example.com", "net:example.com", false),
            ("net:localhost", "net:localhost:8080", true),
            ("net:localhost:8080", "net:localhost:8080", true),
            ("net:localhost:8080", "net:localhost:8081", false),
            ("net:localhost:8080", "net:localhost", false),
            ("net:[::1]:80", "net:[::1]:80", true),
            ("net:[::1]", "net:[::1]:80", true),
            ("net:[::1]", "net:[0:0:0:0:0:0:0:1]:80", true),
            ("net:[::1]", "net:::1", true),
            ("net:api.example.com", "net:api.example.com.:80", true),
            ("net:api.example.com.", "net:api.example.com", true),
            ("net:api.example.com", "net", false),
            ("fs:read:./data", "fs:read:data/a/b", true),
            ("fs:read:./data", "fs:read:./data/../secret", false),
            ("fs:read:./data", "fs:read:database", false),
            ("fs:read:./data", "fs:write:./data", false),
            ("fs:read:/", "fs:read:/etc/passwd", true),
            ("fs:read:/srv", "fs:read:srv", false),
            ("fs:read:/../etc", "fs:read:/etc/x", true),
            ("fs:read:..", "fs:read:../x", true),
            ("fs:read:..", "fs:read:../../x", false),
            ("fs:read:.", "fs:read:x/y", true),
            ("fs:read:.", "fs:read:../x", false),
            ("fs:read:./*", "fs:read:../x", false),
            ("fs:read:*", "fs:read:a/../../x", false),
            ("fs", "fs:write:/x", true),
            ("fs:write", "fs:write:/x", true),
            ("fs:write:/x", "fs:write", false),
            ("fs:read:./logs/*.txt", "fs:read:logs/a.txt", true),
            ("fs:read:./logs/*.txt", "fs:read:logs/a/b.txt", false),
            ("exec", "exec:git", true),
            ("exec:git", "exec", false),
            ("exec:git", "exec:git2", false),
            ("mcp:github/*", "mcp:github/search", true),
            ("mcp:github", "mcp:github/search", true),
            ("mcp:git", "mcp:github/search", false),
            ("gpu", "gpu", true),
            ("net", "exec", false),
        ] {
            assert_eq!(permission(grant).covers(&permission(need)), covered, "{grant} covers {need}");
        }
    }

    #[test]
    fn invalid_permissions_are_refused() {
        for text in ["", "net:", " exec", "fs:list:/", "a b", "x\n", ":x", "**"] {
            assert!(text.parse::<Permission>().is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn a_permission_covers_itself_and_reads_as_it_prints(text in "[a-z]{1,5}(:[a-z./*]{1,12})?") {
            if let Ok(one) = text.parse::<Permission>() {
                prop_assert!(one.covers(&one));
                prop_assert_eq!(one.to_string().parse::<Permission>().unwrap(), one);
            }
        }

        #[test]
        fn a_path_never_covers_what_is_beside_it(below in "[a-z]{1,4}(/[a-z.]{1,4}){0,3}") {
            let need: Permission = format!("fs:read:/data/{below}").parse().unwrap();
            let escapes = resolved(&format!("/data/{below}")).first() != Some(&"data");
            prop_assert_eq!(permission("fs:read:/data").covers(&need), !escapes);
        }
    }
}

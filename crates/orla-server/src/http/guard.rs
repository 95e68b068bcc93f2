//! Checks the Host and the Origin of every request before its body is read (RFC 1 §10.4).
//! `orla-identity` identifies the callers.
//!
//! # How it works
//!
//! [`Guard`] is compiled from the options at the start and on each reload. All checks are pure functions
//! of a request's head. A web page whose name was rebound to a loopback address still sends its own name
//! in `Host`, and any page sends its origin in `Origin`. Both must be loopback or listed.

use std::net::IpAddr;

use http::header::{HOST, HeaderMap, ORIGIN};
use http::{StatusCode, Uri};

use super::forbidden::ForbiddenBy;

/// The checks, compiled.
#[derive(Default)]
pub(crate) struct Guard {
    hosts: Vec<AllowedHost>,
    origins: Vec<AllowedOrigin>,
    /// The port of a host without a port.
    default_port: u16,
}

/// A refusal of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Denied {
    pub(crate) status: StatusCode,
    pub(crate) by: ForbiddenBy,
    pub(crate) reason: &'static str,
}

impl Guard {
    /// Compiles the lists of the options. Invalid entries match nothing.
    pub(crate) fn new(hosts: &[String], origins: &[String]) -> Self {
        Self {
            hosts: hosts.iter().filter_map(|entry| AllowedHost::parse(entry)).collect(),
            origins: origins.iter().filter_map(|entry| AllowedOrigin::parse(entry)).collect(),
            default_port: 80,
        }
    }

    /// Adapts the guard to a listener with TLS.
    pub(crate) fn with_tls(self) -> Self {
        Self { default_port: 443, ..self }
    }

    /// Checks the request's Host and Origin.
    ///
    /// # Errors
    ///
    /// Returns 400 for a missing or malformed Host, and 403 for one that is not allowed.
    pub(crate) fn check_source(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Denied> {
        self.check_host(uri, headers)?;
        for origin in headers.get_all(ORIGIN) {
            let origin = origin.to_str().ok().and_then(Origin::parse);
            if !origin.is_some_and(|origin| self.allows_origin(&origin)) {
                return Err(Denied {
                    status: StatusCode::FORBIDDEN,
                    by: ForbiddenBy::Origin,
                    reason: "this Origin is not allowed; `allowed_origins` in the configuration of orla adds others",
                });
            }
        }
        Ok(())
    }

    fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Denied> {
        let refused = |status, reason| Denied { status, by: ForbiddenBy::Host, reason };
        let bad = |reason| refused(StatusCode::BAD_REQUEST, reason);
        let mut named = headers.get_all(HOST).iter();
        let header = named.next();
        if named.next().is_some() {
            return Err(bad("more than one Host header"));
        }
        let header = match header {
            None => None,
            Some(value) => {
                let named = value.to_str().ok().and_then(host_and_port);
                Some(named.ok_or_else(|| bad("the Host header is malformed"))?)
            }
        };
        // HTTP/2 names the host in `:authority`, and a request in absolute form in its target. Both count.
        let target = uri.authority().map(|target| (target.host(), target.port_u16()));
        let mut hosts = header.into_iter().chain(target).peekable();
        if hosts.peek().is_none() {
            return Err(bad("the Host header is missing"));
        }
        if hosts.all(|(host, port)| self.allows_host(host, port)) {
            return Ok(());
        }
        Err(refused(
            StatusCode::FORBIDDEN,
            "this Host is not allowed; `allowed_hosts` in the configuration of orla adds others",
        ))
    }

    fn allows_host(&self, host: &str, port: Option<u16>) -> bool {
        is_loopback(host)
            || self.hosts.iter().any(|allowed| allowed.matches(host, port.unwrap_or(self.default_port)))
    }

    fn allows_origin(&self, origin: &Origin<'_>) -> bool {
        let loopback = matches!(origin, Origin::Of { scheme, host, .. }
            if matches!(*scheme, "http" | "https") && is_loopback(host));
        loopback || self.origins.iter().any(|allowed| allowed.matches(origin))
    }
}

/// Returns whether a host's name is local to this machine: `localhost` and names below it, 127.0.0.0/8,
/// `::1`.
pub(crate) fn is_loopback(host: &str) -> bool {
    let host = bare(host);
    if let Ok(address) = host.parse::<IpAddr>() {
        return address.to_canonical().is_loopback();
    }
    let host = host.strip_suffix('.').unwrap_or(host);
    let tail = host.len().checked_sub("localhost".len()).and_then(|at| host.split_at_checked(at));
    tail.is_some_and(|(before, name)| {
        name.eq_ignore_ascii_case("localhost") && (before.is_empty() || before.ends_with('.'))
    })
}

/// Splits `HOST` or `HOST:PORT`. Checks only that the text contains nothing else.
fn host_and_port(text: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port.parse().ok()?)),
        _ => (text, None),
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let address = |byte: u8| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.');
    let fits = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inner) => inner.bytes().all(address),
        None => host.bytes().all(plain),
    };
    (fits && !host.is_empty()).then_some((host, port))
}

/// Returns an address without the brackets that a URI puts around IPv6.
fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host)
}

/// An entry of `allowed_hosts`: a name with any port, a name with one port, or `*`.
enum AllowedHost {
    Any,
    Named { host: String, port: Option<u16> },
}

impl AllowedHost {
    fn parse(entry: &str) -> Option<Self> {
        let entry = entry.trim();
        if entry == "*" {
            return Some(Self::Any);
        }
        let entry = entry.strip_suffix(":*").unwrap_or(entry);
        if let Ok(address) = entry.parse::<IpAddr>() {
            return Some(Self::Named { host: address.to_string(), port: None });
        }
        let (host, port) = host_and_port(entry)?;
        Some(Self::Named { host: bare(host).to_ascii_lowercase(), port })
    }

    fn matches(&self, host: &str, port: u16) -> bool {
        match self {
            Self::Any => true,
            Self::Named { host: name, port: wanted } => {
                bare(host).eq_ignore_ascii_case(name) && wanted.is_none_or(|wanted| port == wanted)
            }
        }
    }
}

/// The origin of a web page (RFC 6454).
#[derive(Debug, PartialEq, Eq)]
enum Origin<'a> {
    Null,
    Of { scheme: &'a str, host: &'a str, port: Option<u16> },
}

impl<'a> Origin<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        if text == "null" {
            return Some(Self::Null);
        }
        let (scheme, authority) = text.split_once("://")?;
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port.parse().ok()?)),
            _ => (authority, None),
        };
        let odd = |c: char| matches!(c, '/' | '?' | '#' | '@' | ' ');
        (!host.is_empty() && !host.contains(odd)).then_some(Self::Of { scheme, host: bare(host), port })
    }
}

fn default_port(scheme: &str) -> Option<u16> {
    match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    }
}

/// An entry of `allowed_origins`: `SCHEME://HOST`, meaning the scheme's own port, with `:PORT`, or
/// with `:*` for any; `null`; or `*`.
enum AllowedOrigin {
    Any,
    Null,
    Of { scheme: String, host: String, port: Option<u16>, any_port: bool },
}

/// Returns whether a text can be an entry of
/// [`ServerOptions::allowed_origins`](crate::ServerOptions::allowed_origins).
pub fn is_origin(entry: &str) -> bool {
    AllowedOrigin::parse(entry).is_some()
}

impl AllowedOrigin {
    fn parse(entry: &str) -> Option<Self> {
        let entry = entry.trim().trim_end_matches('/');
        if entry == "*" {
            return Some(Self::Any);
        }
        let (plain, any_port) = entry.strip_suffix(":*").map_or((entry, false), |rest| (rest, true));
        Some(match Origin::parse(plain)? {
            Origin::Null => Self::Null,
            Origin::Of { scheme, host, port } => Self::Of {
                scheme: scheme.to_ascii_lowercase(),
                host: host.to_ascii_lowercase(),
                port: port.or_else(|| default_port(scheme)),
                any_port,
            },
        })
    }

    fn matches(&self, origin: &Origin<'_>) -> bool {
        match (self, origin) {
            (Self::Any, _) | (Self::Null, Origin::Null) => true,
            (Self::Of { scheme, host, port, any_port }, Origin::Of { scheme: s, host: h, port: p }) => {
                scheme.eq_ignore_ascii_case(s)
                    && host.eq_ignore_ascii_case(h)
                    && (*any_port || p.or_else(|| default_port(s)) == *port)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn guard() -> Guard {
        let list =
            |entries: &[&str]| entries.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>();
        Guard::new(
            &list(&["orla.example", "box:8080", "2001:db8::1"]),
            &list(&["https://app.example", "http://dev.example:*", "vscode://editor"]),
        )
    }

    fn headers(pairs: &[(http::HeaderName, &str)]) -> HeaderMap {
        let value = |text: &str| HeaderValue::from_bytes(text.as_bytes()).unwrap();
        pairs.iter().map(|(name, text)| (name.clone(), value(text))).collect()
    }

    #[test]
    fn only_this_machine_and_what_is_listed_is_a_host() {
        let cases = [
            ("localhost", 200),
            ("localhost:8080", 200),
            ("LOCALHOST.:1", 200),
            ("app.localhost:3", 200),
            ("127.0.0.1:8080", 200),
            ("127.8.8.8", 200),
            ("[::1]:8080", 200),
            ("[::ffff:127.0.0.1]", 200),
            ("orla.example", 200),
            ("Orla.Example:99", 200),
            ("box:8080", 200),
            ("[2001:db8::1]:5", 200),
            ("box:8081", 403),
            ("evil.example", 403),
            ("notlocalhost", 403),
            ("localhost.evil.example", 403),
            ("127.0.0.1.evil.example", 403),
            ("0.0.0.0:8080", 403),
            ("192.168.1.2", 403),
            ("a b", 400),
            ("", 400),
        ];
        for (host, status) in cases {
            let checked = guard().check_source(&Uri::from_static("/mcp"), &headers(&[(HOST, host)]));
            let got = checked.map_or_else(|denied| denied.status.as_u16(), |()| 200);
            assert_eq!(got, status, "{host}");
        }
    }

    #[test]
    fn the_target_of_a_request_is_checked_like_its_host() {
        let check = |uri: &'static str, pairs: &[(http::HeaderName, &str)]| {
            let checked = guard().check_source(&Uri::from_static(uri), &headers(pairs));
            checked.map_or_else(|denied| denied.status.as_u16(), |()| 200)
        };
        assert_eq!(check("http://localhost/mcp", &[]), 200);
        assert_eq!(check("http://evil.example/mcp", &[]), 403);
        assert_eq!(check("http://evil.example/mcp", &[(HOST, "localhost")]), 403);
        assert_eq!(check("/mcp", &[]), 400);
        assert_eq!(check("/mcp", &[(HOST, "localhost"), (HOST, "evil.example")]), 400);
    }

    #[test]
    fn only_this_machine_and_what_is_listed_is_an_origin() {
        let cases = [
            ("http://localhost", 200),
            ("http://localhost:5173", 200),
            ("https://127.0.0.1:1", 200),
            ("http://[::1]:9", 200),
            ("https://app.example", 200),
            ("https://app.example:443", 200),
            ("https://APP.example", 200),
            ("http://dev.example:7", 200),
            ("vscode://editor", 200),
            ("https://app.example:444", 403),
            ("http://app.example", 403),
            ("http://evil.example", 403),
            ("http://localhost.evil.example", 403),
            ("http://localhost@evil.example", 403),
            ("file://localhost", 403),
            ("null", 403),
            ("nonsense", 403),
            ("", 403),
        ];
        for (origin, status) in cases {
            let headers = headers(&[(HOST, "localhost"), (ORIGIN, origin)]);
            let checked = guard().check_source(&Uri::from_static("/"), &headers);
            let got = checked.map_or_else(|denied| denied.status.as_u16(), |()| 200);
            assert_eq!(got, status, "{origin}");
        }
    }
}

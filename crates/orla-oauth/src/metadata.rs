//! The metadata documents of a protected resource (RFC 9728) and an authorization server (RFC 8414,
//! OpenID Connect Discovery), and their addresses. Pure.

use reqwest::Url;
use serde::Deserialize;
use url::Host;

use crate::scope::Scopes;

const RESOURCE: &str = "/.well-known/oauth-protected-resource";
const SERVER: &str = "/.well-known/oauth-authorization-server";
const OPENID: &str = "/.well-known/openid-configuration";

/// The metadata of a protected resource (RFC 9728 §2).
#[derive(Clone, Debug, Default, Deserialize)]
pub struct ResourceMetadata {
    /// The identifier of the resource.
    pub resource: String,
    /// The issuers whose tokens it accepts, the preferred one first.
    #[serde(default)]
    pub authorization_servers: Vec<String>,
    /// The supported scopes.
    #[serde(default)]
    pub scopes_supported: Option<Vec<String>>,
}

impl ResourceMetadata {
    /// Returns the supported scopes, if listed.
    pub fn scopes(&self) -> Option<Scopes> {
        self.scopes_supported.as_ref().map(|scopes| scopes.iter().collect())
    }
}

/// The metadata of an authorization server (RFC 8414 §2).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServerMetadata {
    /// The issuer identifier, compared as text (RFC 8414 §3.3).
    pub issuer: String,
    /// The endpoint where a user signs in.
    pub authorization_endpoint: Option<String>,
    /// The token endpoint.
    pub token_endpoint: Option<String>,
    /// The endpoint where clients register (RFC 7591).
    pub registration_endpoint: Option<String>,
    /// The endpoint where a device sign-in begins (RFC 8628).
    pub device_authorization_endpoint: Option<String>,
    /// The endpoint that revokes tokens (RFC 7009).
    pub revocation_endpoint: Option<String>,
    /// The supported scopes.
    pub scopes_supported: Option<Vec<String>>,
    /// The supported methods of PKCE; if empty, PKCE is not supported.
    pub code_challenge_methods_supported: Option<Vec<String>>,
    /// The supported authentication methods at the token endpoint.
    pub token_endpoint_auth_methods_supported: Option<Vec<String>>,
    /// Whether an address may be the id of a client.
    pub client_id_metadata_document_supported: bool,
    /// Whether each of its responses contains its issuer (RFC 9207).
    pub authorization_response_iss_parameter_supported: bool,
}

impl ServerMetadata {
    /// Returns the supported scopes, if listed.
    pub fn scopes(&self) -> Option<Scopes> {
        self.scopes_supported.as_ref().map(|scopes| scopes.iter().collect())
    }

    /// Returns the endpoints that a server without metadata has (MCP authorization 2025-03-26).
    pub fn of_origin(origin: &Url) -> Self {
        let at = |path: &str| Some(below(origin, path).to_string());
        Self {
            issuer: origin.origin().ascii_serialization(),
            authorization_endpoint: at("/authorize"),
            token_endpoint: at("/token"),
            registration_endpoint: at("/register"),
            code_challenge_methods_supported: Some(vec!["S256".to_owned()]),
            ..Self::default()
        }
    }

    /// Returns whether PKCE with S256 is supported, without which no code is requested (MCP
    /// authorization).
    pub fn has_s256(&self) -> bool {
        let methods = self.code_challenge_methods_supported.as_deref().unwrap_or_default();
        methods.iter().any(|method| method == "S256")
    }
}

/// Returns the possible addresses of a resource's metadata if no challenge gives one: at its path, then
/// at the root.
pub fn resource_urls(resource: &Url) -> Vec<Url> {
    let path = resource.path().trim_end_matches('/');
    let mut urls = vec![below(resource, &format!("{RESOURCE}{path}")), below(resource, RESOURCE)];
    urls.dedup();
    urls
}

/// Returns the possible addresses of an issuer's metadata, in the order of the requests.
pub fn issuer_urls(issuer: &Url) -> Vec<Url> {
    let path = issuer.path().trim_end_matches('/');
    if path.is_empty() {
        return vec![below(issuer, SERVER), below(issuer, OPENID)];
    }
    vec![
        below(issuer, &format!("{SERVER}{path}")),
        below(issuer, &format!("{OPENID}{path}")),
        below(issuer, &format!("{path}{OPENID}")),
    ]
}

/// Returns the URL of a path at the origin of `url`.
fn below(url: &Url, path: &str) -> Url {
    let mut url = url.clone();
    url.set_path(path);
    url.set_query(None);
    url.set_fragment(None);
    let _ = (url.set_username(""), url.set_password(None));
    url
}

/// Returns whether `resource` names the server, or a part of its origin that contains the server (RFC
/// 9728 §3.3, RFC 8707 §2).
pub fn names(resource: &str, server: &Url) -> bool {
    let Ok(resource) = Url::parse(resource) else { return false };
    let path = resource.path().trim_end_matches('/');
    let rest = server.path().trim_end_matches('/').strip_prefix(path);
    resource.origin() == server.origin()
        && resource.fragment().is_none()
        && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the identifier of a server without metadata (RFC 8707 §2): its address without a fragment.
pub fn canonical(server: &Url) -> String {
    let mut url = server.clone();
    url.set_fragment(None);
    let _ = (url.set_username(""), url.set_password(None));
    let text = url.to_string();
    // An address without a path has no slash either.
    match url.path() {
        "/" if url.query().is_none() => text.trim_end_matches('/').to_owned(),
        _ => text,
    }
}

/// Returns whether a host is this machine by its name or address.
pub fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        None => false,
    }
}

/// Parses the address of an endpoint. Credentials are sent there, so it must be `https`, or `http` on
/// this machine (OAuth 2.1 §1.5).
///
/// # Errors
/// A sentence that names the endpoint and not its address.
pub fn endpoint(what: &str, text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|_| format!("{what} is not a URL"))?;
    let is_protected = url.scheme() == "https" || (url.scheme() == "http" && is_loopback(&url));
    if !is_protected {
        return Err(format!("{what} is not https"));
    }
    if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
        return Err(format!("{what} has credentials or a fragment in it"));
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    fn shown(urls: &[Url]) -> Vec<&str> {
        urls.iter().map(Url::as_str).collect()
    }

    #[test]
    fn the_metadata_of_a_resource_is_at_its_path_or_at_the_root() {
        assert_eq!(
            shown(&resource_urls(&url("https://user@a.example/mcp/?q=1"))),
            [
                "https://a.example/.well-known/oauth-protected-resource/mcp",
                "https://a.example/.well-known/oauth-protected-resource",
            ]
        );
        assert_eq!(resource_urls(&url("https://a.example/")).len(), 1);
    }

    #[test]
    fn the_metadata_of_an_issuer_is_at_three_places() {
        assert_eq!(
            shown(&issuer_urls(&url("https://a.example/tenant1"))),
            [
                "https://a.example/.well-known/oauth-authorization-server/tenant1",
                "https://a.example/.well-known/openid-configuration/tenant1",
                "https://a.example/tenant1/.well-known/openid-configuration",
            ]
        );
        assert_eq!(
            shown(&issuer_urls(&url("https://a.example/"))),
            [
                "https://a.example/.well-known/oauth-authorization-server",
                "https://a.example/.well-known/openid-configuration",
            ]
        );
    }

    #[test]
    fn metadata_counts_for_its_own_resource_alone() {
        let server = url("https://a.example/mcp/one");
        for (resource, expected) in [
            ("https://a.example/mcp/one", true),
            ("https://a.example/mcp/one/", true),
            ("https://a.example/mcp", true),
            ("https://a.example", true),
            ("https://a.example/mc", false),
            ("https://a.example/mcp/one/two", false),
            ("https://a.example:8443/mcp", false),
            ("http://a.example/mcp", false),
            ("https://evil.example/mcp/one", false),
            ("https://a.example.evil.example/mcp/one", false),
            ("nothing", false),
        ] {
            assert_eq!(names(resource, &server), expected, "{resource}");
        }
    }

    #[test]
    fn a_server_is_named_by_its_address() {
        assert_eq!(canonical(&url("https://a.example/")), "https://a.example");
        assert_eq!(canonical(&url("https://u:p@a.example/mcp?x=1#f")), "https://a.example/mcp?x=1");
    }

    #[test]
    fn loopback_addresses_are_recognised() {
        for (text, expected) in [
            ("http://127.0.0.1:8080/mcp", true),
            ("http://[::1]/mcp", true),
            ("http://localhost:1", true),
            ("http://a.localhost", true),
            ("http://localhost.example.com", false),
            ("https://10.0.0.1/mcp", false),
        ] {
            assert_eq!(is_loopback(&url(text)), expected, "{text}");
        }
    }

    #[test]
    fn credentials_go_to_protected_endpoints() {
        for (text, is_ok) in [
            ("https://a.example/token", true),
            ("http://127.0.0.1:1/token", true),
            ("http://localhost:1/token", true),
            ("http://a.example/token", false),
            ("http://10.0.0.1/token", false),
            ("ftp://a.example/token", false),
            ("https://me@a.example/token", false),
            ("https://a.example/token#x", false),
            ("token", false),
        ] {
            assert_eq!(endpoint("the token endpoint", text).is_ok(), is_ok, "{text}");
        }
    }

    #[test]
    fn a_server_without_pkce_is_recognised() {
        let read = |text: &str| serde_json::from_str::<ServerMetadata>(text).unwrap();
        assert!(!read(r#"{"issuer":"https://a.example"}"#).has_s256());
        assert!(!read(r#"{"code_challenge_methods_supported":["plain"]}"#).has_s256());
        assert!(read(r#"{"code_challenge_methods_supported":["plain","S256"]}"#).has_s256());
        assert!(ServerMetadata::of_origin(&url("https://a.example/mcp")).has_s256());
    }
}

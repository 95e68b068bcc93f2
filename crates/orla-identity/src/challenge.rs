//! The response to a caller without a valid credential: a challenge (RFC 6750 §3) that leads to the
//! metadata, which name the authorization servers (RFC 9728).

use http::header::HOST;
use orla_marketplace::{IdentifiedBy, Principal};
use serde_json::json;

use crate::{Authenticator, Denied, Head};

/// The path of the protected resource's metadata (RFC 9728 §3). The path of an endpoint may follow.
pub const METADATA: &str = "/.well-known/oauth-protected-resource";

/// The endpoints with separate metadata. All of them are one resource.
const ENDPOINTS: [&str; 7] = ["", "/", "/mcp", "/mcp/", "/rtfs", "/a2a", "/api"];

impl Authenticator {
    /// Returns the metadata of the resource (RFC 9728 §2), if the path is a metadata path and there are
    /// authorization servers.
    pub fn metadata(&self, head: &Head<'_>, path: &str) -> Option<String> {
        let endpoint = path.strip_prefix(METADATA).filter(|rest| ENDPOINTS.contains(rest))?;
        if self.issuers.is_empty() {
            return None;
        }
        let endpoint = if endpoint.len() <= 1 { "/mcp" } else { endpoint.trim_end_matches('/') };
        let resource =
            self.identifier().map_or_else(|| format!("{}{endpoint}", self.base(head)), str::to_owned);
        let mut metadata = json!({
            "resource": resource,
            "authorization_servers": self.issuers.iter().map(|issuer| &issuer.options.issuer).collect::<Vec<_>>(),
            "bearer_methods_supported": ["header"],
            "dpop_signing_alg_values_supported": ["ES256", "ES384", "EdDSA", "RS256", "PS256"],
            "resource_name": "orla",
        });
        let scopes = self.scopes();
        if !scopes.is_empty() {
            metadata["scopes_supported"] = json!(scopes);
        }
        Some(metadata.to_string())
    }

    /// Returns the value of `WWW-Authenticate` for a refused request.
    pub fn challenge(&self, head: &Head<'_>, denied: Denied) -> String {
        let error = match denied {
            Denied::Absent => None,
            Denied::Invalid(_) => Some(("error", "invalid_token".to_owned())),
        };
        if self.issuers.is_empty() {
            return parameters([Some(("realm", "orla".to_owned())), error]);
        }
        let scopes = Some(("scope", self.scopes().join(" "))).filter(|(_, scopes)| !scopes.is_empty());
        parameters([error, Some(("resource_metadata", self.metadata_url(head))), scopes])
    }

    /// Returns the value of `WWW-Authenticate` for a caller whose token lacks a scope (RFC 6750 §3.1).
    /// `scopes` are the required scopes, separated by spaces; empty if none is known.
    pub fn insufficient_scope(&self, head: &Head<'_>, scopes: &str) -> String {
        let scopes = Some(("scope", scopes.to_owned())).filter(|(_, scopes)| !scopes.is_empty());
        let error = Some(("error", "insufficient_scope".to_owned()));
        parameters([error, scopes, Some(("resource_metadata", self.metadata_url(head)))])
    }

    /// Returns whether a caller can present a token with more scopes.
    pub fn can_step_up(&self, principal: Option<&Principal>) -> bool {
        let issued = |principal: &Principal| matches!(principal.identified_by(), IdentifiedBy::OAuth(_));
        !self.issuers.is_empty() && principal.is_some_and(issued)
    }

    /// Returns the address of a request without its query, as its client sees it.
    pub(crate) fn address(&self, head: &Head<'_>) -> String {
        format!("{}{}", self.base(head), head.uri.path())
    }

    fn metadata_url(&self, head: &Head<'_>) -> String {
        let path = head.uri.path();
        let endpoint = if ENDPOINTS.contains(&path) && path.len() > 1 {
            path.trim_end_matches('/')
        } else {
            "/mcp"
        };
        format!("{}{METADATA}{endpoint}", self.base(head))
    }

    /// Returns the scheme and host by which the client reached the server. Behind a proxy, the audience
    /// shows that the scheme is HTTPS.
    fn base(&self, head: &Head<'_>) -> String {
        let host = head.headers.get(HOST).and_then(|host| host.to_str().ok());
        let host = host
            .or_else(|| head.uri.authority().map(http::uri::Authority::as_str))
            .unwrap_or("localhost");
        let identified = self.identifier().and_then(|url| url.split_once("://"));
        let scheme = identified.filter(|(_, rest)| {
            rest.split('/').next().is_some_and(|authority| authority.eq_ignore_ascii_case(host))
        });
        let own = if head.is_tls { "https" } else { "http" };
        format!("{}://{host}", scheme.map_or(own, |(scheme, _)| scheme))
    }

    /// Returns the identifier of the resource, if an audience is one: an address (RFC 8707 §2).
    fn identifier(&self) -> Option<&str> {
        let audiences = self.issuers.iter().flat_map(|issuer| &issuer.options.audience);
        let is_url =
            |audience: &&String| audience.starts_with("https://") || audience.starts_with("http://");
        audiences.into_iter().find(is_url).map(String::as_str)
    }

    /// Returns the scopes that grant something, in the order of the configuration.
    fn scopes(&self) -> Vec<&str> {
        let mut scopes: Vec<&str> = Vec::new();
        for (scope, _) in self.issuers.iter().flat_map(|issuer| &issuer.options.scopes) {
            if !scopes.contains(&scope.as_str()) {
                scopes.push(scope);
            }
        }
        scopes
    }
}

/// Returns a challenge with these parameters. Their values contain no quotes: addresses, scopes and
/// words.
fn parameters<const N: usize>(parameters: [Option<(&str, String)>; N]) -> String {
    let is_plain = |c: &char| matches!(c, ' ' | '!' | '#'..='[' | ']'..='~');
    let quoted = parameters.into_iter().flatten().map(|(name, value)| {
        let value: String = value.chars().filter(is_plain).collect();
        format!("{name}=\"{value}\"")
    });
    format!("Bearer {}", quoted.collect::<Vec<_>>().join(", "))
}

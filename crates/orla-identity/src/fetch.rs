//! The connection to authorization servers. The program supplies it, so this crate has no HTTP client.

use async_trait::async_trait;
use serde_json::Value;

use crate::json::{Object, object};

/// Sends requests to authorization servers. An implementation limits the size and the time of an answer.
#[async_trait]
pub trait Fetch: Send + Sync + 'static {
    /// Returns the body of a successful answer to GET.
    ///
    /// # Errors
    /// Why there is none, for the log. It must not repeat secrets.
    async fn get(&self, url: &str) -> Result<Vec<u8>, String>;

    /// Returns the body of a successful answer to a form that is posted with HTTP Basic authentication.
    ///
    /// # Errors
    /// Why there is none, for the log. It must not repeat secrets.
    async fn post(
        &self,
        url: &str,
        form: &[(&str, &str)],
        credentials: (&str, &str),
    ) -> Result<Vec<u8>, String>;
}

/// Returns the address of an issuer's keys, from its metadata (RFC 8414 §3, OpenID Connect Discovery
/// §4).
///
/// # Errors
/// No document is there, or it is of another issuer.
pub(crate) async fn discover_keys(fetch: &dyn Fetch, issuer: &str) -> Result<String, String> {
    let mut problem = String::new();
    for url in metadata_urls(issuer) {
        match fetch.get(&url).await {
            Ok(body) => {
                return keys_of(object(&body).as_ref(), issuer).map_err(|err| format!("{url}: {err}"));
            }
            Err(err) => problem = format!("{url}: {err}"),
        }
    }
    Err(problem)
}

/// Returns the possible addresses of an issuer's metadata, in the order that MCP's authorization
/// requires.
fn metadata_urls(issuer: &str) -> Vec<String> {
    let issuer = issuer.trim_end_matches('/');
    let path_at =
        issuer.find("://").and_then(|at| issuer[at + 3..].find('/').map(|slash| at + 3 + slash));
    let (origin, path) = issuer.split_at(path_at.unwrap_or(issuer.len()));
    let mut urls = vec![
        format!("{origin}/.well-known/oauth-authorization-server{path}"),
        format!("{origin}/.well-known/openid-configuration{path}"),
    ];
    if !path.is_empty() {
        urls.push(format!("{issuer}/.well-known/openid-configuration"));
    }
    urls
}

fn keys_of(metadata: Option<&Object>, issuer: &str) -> Result<String, &'static str> {
    let metadata = metadata.ok_or("the metadata are not a JSON object")?;
    let text = |name: &str| metadata.get(name).and_then(Value::as_str);
    // Otherwise one server could issue metadata for the tokens of another (RFC 8414 §3.3).
    if text("issuer") != Some(issuer) {
        return Err("the metadata are of another issuer");
    }
    let keys = text("jwks_uri").ok_or("the metadata have no jwks_uri")?;
    // The configuration accepts an issuer without TLS only on this machine.
    if !keys.starts_with("https://") && !issuer.starts_with("http://") {
        return Err("the metadata lead to keys without TLS");
    }
    Ok(keys.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_are_looked_for_in_the_order_of_the_specification() {
        assert_eq!(
            metadata_urls("https://id.example/"),
            [
                "https://id.example/.well-known/oauth-authorization-server",
                "https://id.example/.well-known/openid-configuration"
            ]
        );
        assert_eq!(
            metadata_urls("https://id.example/realms/a"),
            [
                "https://id.example/.well-known/oauth-authorization-server/realms/a",
                "https://id.example/.well-known/openid-configuration/realms/a",
                "https://id.example/realms/a/.well-known/openid-configuration"
            ]
        );
    }

    #[test]
    fn metadata_of_another_issuer_are_refused() {
        let read = |text: &str| keys_of(object(text.as_bytes()).as_ref(), "https://id.example");
        let good = r#"{"issuer":"https://id.example","jwks_uri":"https://id.example/keys"}"#;
        assert_eq!(read(good).as_deref(), Ok("https://id.example/keys"));
        assert!(
            read(r#"{"issuer":"https://evil.example","jwks_uri":"https://id.example/keys"}"#).is_err()
        );
        assert!(read(r#"{"issuer":"https://id.example"}"#).is_err());
        assert!(read(r#"{"issuer":"https://id.example","jwks_uri":"http://id.example/keys"}"#).is_err());
        assert!(read("[]").is_err());
    }
}

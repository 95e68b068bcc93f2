//! The client that orla uses at an authorization server: a configured one, one with a metadata document,
//! or one that it registers (RFC 7591).

use reqwest::Url;
use serde::Deserialize;
use serde_json::json;

use crate::discovery::Discovered;
use crate::error::Error;
use crate::grant::Client;
use crate::http::Http;
use crate::secret::Secret;
use crate::settings::AuthSettings;
use crate::token::refusal;

/// The answer of a registration endpoint (RFC 7591 §3.2).
#[derive(Deserialize)]
struct Registered {
    client_id: Option<String>,
    client_secret: Option<Secret>,
    token_endpoint_auth_method: Option<String>,
    error: Option<String>,
    error_description: Option<String>,
}

/// Returns the client of the settings, or one that is registered for this redirect.
pub(crate) async fn client(
    http: &Http,
    found: &Discovered,
    settings: &AuthSettings,
    redirect_uri: &str,
) -> Result<Client, Error> {
    let metadata = &found.metadata;
    if let Some(id) = &settings.client_id {
        // A server that does not support such documents may support registration.
        let is_usable = !is_document(id)
            || metadata.client_id_metadata_document_supported
            || metadata.registration_endpoint.is_none();
        if is_usable {
            return Ok(Client { id: id.clone(), secret: settings.client_secret.clone(), method: None });
        }
    }
    if metadata.registration_endpoint.is_none() {
        let text =
            "the authorization server does not register clients; register one there and set `client_id`";
        return Err(Error::Refused(text.to_owned()));
    }
    let url = found.endpoint("registration endpoint", metadata.registration_endpoint.as_ref())?;
    let offered = metadata.token_endpoint_auth_methods_supported.as_deref();
    let body = json!({
        "client_name": "orla",
        "application_type": "native",
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": preferred(offered),
    });
    let response = http.post_json(url, found.trust, body.to_string()).await?;
    let unreadable = || {
        let status = response.status;
        Error::Failed(format!("the authorization server did not register the client (HTTP {status})"))
    };
    let registered: Registered = serde_json::from_slice(&response.body).map_err(|_| unreadable())?;
    if let Some(code) = registered.error {
        return Err(refusal(&code, registered.error_description.as_deref(), &[]).into());
    }
    let id = registered.client_id.filter(|_| (200..300).contains(&response.status));
    Ok(Client {
        id: id.ok_or_else(unreadable)?,
        secret: registered.client_secret.filter(|secret| !secret.expose().is_empty()),
        method: registered.token_endpoint_auth_method,
    })
}

/// Returns whether the id of a client is the address of its metadata document: `https`, with a path, and
/// without a user, a fragment or dot segments (MCP authorization, Client ID Metadata Document §3).
pub(crate) fn is_document(id: &str) -> bool {
    let Some((authority, path)) = id.strip_prefix("https://").and_then(|rest| rest.split_once('/'))
    else {
        return false;
    };
    let path = path.split('?').next().unwrap_or_default();
    let is_dots =
        |segment: &str| matches!(segment.to_ascii_lowercase().replace("%2e", ".").as_str(), "." | "..");
    Url::parse(id).is_ok_and(|url| url.fragment().is_none())
        && !authority.is_empty()
        && !authority.contains(['@', '?'])
        && !path.split('/').any(is_dots)
}

/// Returns the preferred authentication method: none if possible, because orla is a program on the
/// user's machine.
fn preferred(offered: Option<&[String]>) -> &str {
    let Some(offered) = offered else { return "none" };
    let known = ["none", "client_secret_basic", "client_secret_post"];
    known.into_iter().find(|known| offered.iter().any(|one| one == known)).unwrap_or("none")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_asked_for_where_none_is_needed() {
        let of = |offered: &[&str]| {
            let offered: Vec<String> = offered.iter().map(|one| (*one).to_owned()).collect();
            preferred(Some(&offered)).to_owned()
        };
        assert_eq!(of(&["client_secret_post", "none"]), "none");
        assert_eq!(of(&["client_secret_post", "client_secret_basic"]), "client_secret_basic");
        assert_eq!(of(&["client_secret_post"]), "client_secret_post");
        assert_eq!(of(&["private_key_jwt"]), "none");
        assert_eq!(preferred(None), "none");
    }

    #[test]
    fn the_address_of_a_metadata_document_is_https_and_has_a_path() {
        for (id, expected) in [
            ("https://a.example/client.json", true),
            ("https://a.example:8443/orla/client.json?v=1", true),
            ("https://a.example/", true),
            ("https://a.example", false),
            ("https://a.example?client=/orla", false),
            ("https://", false),
            ("https:///client.json", false),
            ("http://a.example/client.json", false),
            ("http://127.0.0.1/client.json", false),
            ("https://me@a.example/client.json", false),
            ("https://a.example/client.json#orla", false),
            ("https://a.example/./client.json", false),
            ("https://a.example/x/../client.json", false),
            ("https://a.example/x/%2E%2e/client.json", false),
            ("orla", false),
        ] {
            assert_eq!(is_document(id), expected, "{id}");
        }
    }
}

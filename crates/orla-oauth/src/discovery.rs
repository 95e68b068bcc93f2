//! Finds the authorization server of a server (MCP authorization, RFC 9728 §3, RFC 8414 §3).

use orla_confine::Reach;
use reqwest::Url;
use serde::de::DeserializeOwned;

use crate::challenge::Challenge;
use crate::error::Error;
use crate::http::{Http, Trust, reach_of};
use crate::metadata::{self, ResourceMetadata, ServerMetadata};
use crate::scope::Scopes;
use crate::settings::{AuthSettings, GrantKind};

/// The known data of a server's authorization server.
#[derive(Clone, Debug)]
pub(crate) struct Discovered {
    /// The identifier of the server in token requests.
    pub(crate) resource: String,
    /// The scopes that the server supports.
    pub(crate) scopes: Option<Scopes>,
    pub(crate) metadata: ServerMetadata,
    /// Who provided the addresses of the endpoints.
    pub(crate) trust: Trust,
}

impl Discovered {
    /// Returns an endpoint of the authorization server.
    pub(crate) fn endpoint(&self, what: &str, address: Option<&String>) -> Result<Url, Error> {
        let address =
            address.ok_or_else(|| Error::Refused(format!("the authorization server has no {what}")))?;
        metadata::endpoint(what, address).map_err(Error::Refused)
    }

    pub(crate) fn token_endpoint(&self) -> Result<Url, Error> {
        self.endpoint("token endpoint", self.metadata.token_endpoint.as_ref())
    }
}

/// Finds the authorization server of `server`.
///
/// # Errors
/// It cannot be found, or its documents contradict each other.
pub(crate) async fn discover(
    http: &Http,
    server: &Url,
    settings: &AuthSettings,
    challenge: Option<&Challenge>,
) -> Result<Discovered, Error> {
    let resource = metadata::canonical(server);
    if let Some(token_endpoint) = &settings.token_endpoint
        && settings.grant != GrantKind::AuthorizationCode
    {
        let metadata =
            ServerMetadata { token_endpoint: Some(token_endpoint.clone()), ..ServerMetadata::default() };
        return Ok(Discovered { resource, scopes: None, metadata, trust: Trust::Configured });
    }
    let reach = reach_of(server).await;
    let described = resource_metadata(http, server, challenge, reach).await?;
    let named = described.as_ref().and_then(|described| described.authorization_servers.first());
    let scopes = described.as_ref().and_then(ResourceMetadata::scopes);
    let resource = described.as_ref().map_or(resource, |described| described.resource.clone());
    let trust = if settings.issuer.is_some() { Trust::Configured } else { Trust::Named(reach) };
    let mut metadata = match settings.issuer.as_ref().or(named) {
        Some(issuer) => server_metadata(http, issuer, trust)
            .await?
            .ok_or_else(|| Error::Failed("the authorization server has no metadata".to_owned()))?,
        // A server of the first revision is its own authorization server (MCP authorization 2025-03-26).
        None => {
            let origin = server.origin().ascii_serialization();
            let found = server_metadata(http, &origin, Trust::Configured).await?;
            found.unwrap_or_else(|| ServerMetadata::of_origin(server))
        }
    };
    if settings.token_endpoint.is_some() {
        metadata.token_endpoint.clone_from(&settings.token_endpoint);
    }
    Ok(Discovered { resource, scopes, metadata, trust })
}

/// Returns the metadata of the server; `None` if there is no such document.
async fn resource_metadata(
    http: &Http,
    server: &Url,
    challenge: Option<&Challenge>,
    reach: Reach,
) -> Result<Option<ResourceMetadata>, Error> {
    let address = challenge.and_then(|challenge| challenge.resource_metadata.as_deref());
    let mut urls = Vec::new();
    if let Some(address) = address {
        urls.push(
            metadata::endpoint("the address of the server's metadata", address)
                .map_err(Error::Refused)?,
        );
    }
    for url in metadata::resource_urls(server) {
        if !urls.contains(&url) {
            urls.push(url);
        }
    }
    for url in urls {
        let is_own = url.origin() == server.origin();
        let trust = if is_own { Trust::Configured } else { Trust::Named(reach) };
        let Some(found) = document::<ResourceMetadata>(http, url, trust).await? else { continue };
        if !metadata::names(&found.resource, server) {
            let text = "the server's metadata is for another resource than the server";
            return Err(Error::Refused(text.to_owned()));
        }
        return Ok(Some(found));
    }
    Ok(None)
}

/// Returns the metadata of an issuer, whose identifier must equal the requested one, as text.
async fn server_metadata(
    http: &Http,
    issuer: &str,
    trust: Trust,
) -> Result<Option<ServerMetadata>, Error> {
    let url =
        metadata::endpoint("the authorization server's address", issuer).map_err(Error::Refused)?;
    for url in metadata::issuer_urls(&url) {
        let Some(found) = document::<ServerMetadata>(http, url, trust).await? else { continue };
        if found.issuer != issuer {
            let text = "the authorization server's metadata is for another issuer";
            return Err(Error::Refused(text.to_owned()));
        }
        return Ok(Some(found));
    }
    Ok(None)
}

/// Returns a document, if there is one at this address.
async fn document<T: DeserializeOwned>(http: &Http, url: Url, trust: Trust) -> Result<Option<T>, Error> {
    let response = http.get(url, trust).await?;
    match response.status {
        200 => Ok(serde_json::from_slice(&response.body).ok()),
        500.. => Err(Error::Failed(format!(
            "the authorization server answered with HTTP {}",
            response.status
        ))),
        _ => Ok(None),
    }
}

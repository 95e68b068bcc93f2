//! Fetches documents and archives from other servers over HTTP.
//!
//! A redirect, and an address in a document, may lead to a public place or to a place of the same kind.
//! A registry on the internet may not lead to a private address, and a registry on this machine may not
//! lead into the surrounding network. The connection uses the checked address, unless a proxy of the
//! environment (`HTTPS_PROXY`) connects.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use async_trait::async_trait;
use orla_confine::Reach;
use orla_oauth::challenge::bearer_parameters;
use orla_oauth::root_cause;
use orla_packages::{Fetch, FetchError, Wanted};
use reqwest::{Client, StatusCode, Url, header, redirect};

/// The maximum number of redirects.
const MAX_REDIRECTS: usize = 5;
/// How long to wait for an answer, and for more of it.
const SILENT: Duration = Duration::from_secs(15);
/// How long one answer may take.
const WHOLE: Duration = Duration::from_secs(600);

/// Gets over HTTP.
pub(crate) struct Http;

#[async_trait]
impl Fetch for Http {
    async fn get_with(&self, wanted: Wanted<'_>) -> Result<Vec<u8>, FetchError> {
        let whole = tokio::time::timeout(WHOLE, follow(wanted)).await;
        whole.unwrap_or_else(|_| Err(failed(wanted.url, "it takes longer than 10 minutes")))
    }
}

/// Checks that a document at `named_by` may lead to this URL.
///
/// # Errors
///
/// Returns an error if the URL is private, and the document is not of the same network; or one of them
/// has no address.
pub(crate) async fn permitted(url: &str, named_by: &str) -> Result<(), FetchError> {
    let from = nearest(named_by).await?;
    let place = Url::parse(url).map_err(|_| failed(url, "it is not a URL"))?;
    let here = addresses(&place).await.map_err(|why| failed(url, &why))?;
    match from.is_some_and(|from| here.iter().all(|address| is_fit(Reach::of(address.ip()), from))) {
        true => Ok(()),
        false => {
            Err(failed(url, "it is at a private address, which only one of the same network may name"))
        }
    }
}

/// Returns whether a place that is reached like this may be named by one like that: it is public, or of
/// the same kind.
fn is_fit(reach: Reach, from: Reach) -> bool {
    reach == Reach::Public || reach == from
}

/// Returns how the place of a document is reached. A name with addresses of both kinds counts as public
/// when its links are checked.
async fn nearest(url: &str) -> Result<Option<Reach>, FetchError> {
    let place = Url::parse(url).map_err(|_| failed(url, "it is not a URL"))?;
    let addresses = addresses(&place).await.map_err(|why| failed(url, &why))?;
    Ok(addresses.iter().map(|address| Reach::of(address.ip())).min())
}

async fn follow(wanted: Wanted<'_>) -> Result<Vec<u8>, FetchError> {
    let Wanted { url: first, named_by, max, accept, token } = wanted;
    let mut url = Url::parse(first).map_err(|_| failed(first, "it is not a URL"))?;
    let origin = url.origin();
    let mut widest = match named_by {
        Some(named_by) => nearest(named_by).await?,
        None => None,
    };
    for hop in 0..=MAX_REDIRECTS {
        let addresses = addresses(&url).await.map_err(|why| failed(first, &why))?;
        let reaches = || addresses.iter().map(|address| Reach::of(address.ip()));
        let Some(from) = reaches().min() else {
            return Err(failed(first, "its host has no address"));
        };
        if widest.is_some_and(|from| !reaches().all(|reach| is_fit(reach, from))) {
            let what = if hop == 0 { "it is at" } else { "it redirects to" };
            return Err(failed(
                first,
                &format!("{what} a private address, which only one of the same network may name"),
            ));
        }
        // Without encryption, parties on the way could change the content.
        if url.scheme() != "https" && !reaches().all(|reach| reach == Reach::Loopback) {
            let what = if hop == 0 { "it is not" } else { "it redirects to what is not" };
            return Err(failed(first, &format!("{what} behind https:// (or http:// on this machine)")));
        }
        widest.get_or_insert(from);
        let client = client(&url, &addresses).map_err(|error| failed(first, &root_cause(&error)))?;
        let mut request = client.get(url.clone());
        if let Some(accept) = accept {
            request = request.header(header::ACCEPT, accept);
        }
        if let Some(token) = token.filter(|_| url.origin() == origin) {
            request = request.bearer_auth(token);
        }
        let sent = tokio::time::timeout(SILENT, request.send()).await;
        let sent = sent.map_err(|_| failed(first, "it does not answer (waited 15 s)"))?;
        let mut response = sent.map_err(|error| failed(first, &root_cause(&error)))?;
        let status = response.status();
        if status.is_redirection() {
            let place = response.headers().get(header::LOCATION).and_then(|place| place.to_str().ok());
            let next = place.and_then(|place| url.join(place).ok());
            let next = next.ok_or_else(|| failed(first, "it redirects to nowhere"))?;
            let is_weaker = url.scheme() == "https" && next.scheme() != "https";
            if is_weaker || !matches!(next.scheme(), "http" | "https") {
                return Err(failed(first, "it redirects away from https"));
            }
            url = next;
            continue;
        }
        if matches!(status.as_u16(), 404 | 410) {
            return Err(FetchError::Missing(shown(first)));
        }
        if status == StatusCode::UNAUTHORIZED {
            let values = response.headers().get_all(header::WWW_AUTHENTICATE);
            let bearer = bearer_parameters(values.iter().filter_map(|value| value.to_str().ok()));
            return Err(FetchError::Unauthorized(bearer.unwrap_or_default()));
        }
        if !status.is_success() {
            return Err(failed(first, &format!("it answers with {status}")));
        }
        let mut body = Vec::new();
        loop {
            let chunk = tokio::time::timeout(SILENT, response.chunk()).await;
            let chunk = chunk.map_err(|_| failed(first, "it stopped sending (waited 15 s)"))?;
            let Some(chunk) = chunk.map_err(|error| failed(first, &root_cause(&error)))? else {
                return Ok(body);
            };
            if body.len() + chunk.len() > max {
                return Err(failed(first, &format!("it has more than {} MiB", max >> 20)));
            }
            body.extend_from_slice(&chunk);
        }
    }
    Err(failed(first, "it redirects too often"))
}

/// Returns the addresses of a host.
async fn addresses(url: &Url) -> Result<Vec<SocketAddr>, String> {
    let host = url.host_str().ok_or("it has no host")?;
    let port = url.port_or_known_default().unwrap_or(443);
    if let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let found = tokio::net::lookup_host((host, port)).await;
    Ok(found.map_err(|error| format!("its host cannot be resolved: {error}"))?.collect())
}

/// Returns a client that connects to these addresses alone.
fn client(url: &Url, addresses: &[SocketAddr]) -> reqwest::Result<Client> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = Client::builder().redirect(redirect::Policy::none()).connect_timeout(SILENT);
    let client = client.user_agent(concat!("orla/", env!("CARGO_PKG_VERSION")));
    match url.host_str() {
        Some(host) => client.resolve_to_addrs(host, addresses).build(),
        None => client.build(),
    }
}

fn failed(url: &str, why: &str) -> FetchError {
    FetchError::Failed(format!("{} cannot be fetched: {why}", shown(url)))
}

/// Returns a URL without what may be secret in it.
fn shown(url: &str) -> String {
    let Ok(mut url) = Url::parse(url) else { return "the URL".to_owned() };
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.to_string()
}

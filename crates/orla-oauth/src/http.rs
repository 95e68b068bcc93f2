//! Requests to authorization servers: limited in time and size, without redirects, and guarded if a
//! server provides the address.

use std::fmt;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use orla_confine::Reach;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{Client, Method, Request, StatusCode, Url, redirect};
use url::Host;

use crate::challenge::Challenge;
use crate::error::Error;
use crate::grant::Form;
use crate::metadata::is_loopback;

/// The timeout of one request.
const TIMEOUT: Duration = Duration::from_secs(15);
/// The maximum size of a response in bytes.
const MAX_BODY: usize = 256 * 1024;
const FORM: HeaderValue = HeaderValue::from_static("application/x-www-form-urlencoded");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The origin of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// The configuration. Requests use the proxies of the environment.
    Configured,
    /// A server of this reach, which cannot provide an address that fewer machines can reach than
    /// itself. No proxy is used, because a proxy would resolve the name.
    Named(Reach),
}

/// The clients, created on first use.
#[derive(Default)]
pub struct Http {
    configured: OnceLock<Result<Client, String>>,
    named: [OnceLock<Result<Client, String>>; Reach::ALL.len()],
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Http")
    }
}

/// A response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
}

impl Http {
    /// Fetches a document.
    pub(crate) async fn get(&self, url: Url, trust: Trust) -> Result<Response, Error> {
        self.send(Request::new(Method::GET, url), trust).await
    }

    /// Posts a form.
    pub(crate) async fn post(&self, url: Url, trust: Trust, form: &Form) -> Result<Response, Error> {
        let mut request = Request::new(Method::POST, url);
        request.headers_mut().insert(CONTENT_TYPE, FORM);
        if let Some(authorization) = &form.authorization {
            let mut value = HeaderValue::from_str(authorization.expose())
                .map_err(|_| Error::Failed("the client's credentials cannot be sent".to_owned()))?;
            value.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        *request.body_mut() = Some(form.body.expose().to_owned().into());
        self.send(request, trust).await
    }

    /// Posts a document.
    pub(crate) async fn post_json(
        &self,
        url: Url,
        trust: Trust,
        body: String,
    ) -> Result<Response, Error> {
        let mut request = Request::new(Method::POST, url);
        request.headers_mut().insert(CONTENT_TYPE, JSON);
        *request.body_mut() = Some(body.into());
        self.send(request, trust).await
    }

    /// Returns the challenge in the answer to a request of the caller, if the request is refused with
    /// one.
    pub(crate) async fn challenge(&self, mut request: Request) -> Option<Challenge> {
        *request.timeout_mut() = Some(TIMEOUT);
        let response = self.client(Trust::Configured).ok()?.execute(request).await.ok()?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return None;
        }
        let values = response.headers().get_all(WWW_AUTHENTICATE).iter();
        Challenge::of(values.filter_map(|value| value.to_str().ok()))
    }

    async fn send(&self, mut request: Request, trust: Trust) -> Result<Response, Error> {
        let failed = |reason: String| Error::Failed(format!("the authorization server {reason}"));
        if let Trust::Named(reach) = trust
            && is_beyond(reach, request.url())
        {
            return Err(failed(PRIVATE.to_owned()));
        }
        request.headers_mut().insert(ACCEPT, JSON);
        *request.timeout_mut() = Some(TIMEOUT);
        let client = self.client(trust).map_err(Error::Failed)?;
        let broken = |err: reqwest::Error| {
            failed(format!("cannot be reached: {}", root_cause(&err).to_lowercase()))
        };
        let mut response = client.execute(request).await.map_err(broken)?;
        let mut body = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(broken)? {
            if body.len() + chunk.len() > MAX_BODY {
                return Err(failed(format!("answered with more than {} KiB", MAX_BODY >> 10)));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Response { status: response.status().as_u16(), body: body.freeze() })
    }

    fn client(&self, trust: Trust) -> Result<&Client, String> {
        let (client, guard) = match trust {
            Trust::Configured => (&self.configured, None),
            Trust::Named(reach) => (&self.named[reach as usize], Some(reach)),
        };
        client.get_or_init(|| build(guard)).as_ref().map_err(Clone::clone)
    }
}

const PRIVATE: &str =
    "is at an address in a smaller network than the server that names it; set `issuer` if that is right";

fn build(guard: Option<Reach>) -> Result<Client, String> {
    // A second installation fails without effect.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = Client::builder();
    let builder = match guard {
        Some(reach) => builder.no_proxy().dns_resolver(Resolver(reach)),
        None => builder,
    };
    builder
        .user_agent(concat!("orla/", env!("CARGO_PKG_VERSION")))
        .redirect(redirect::Policy::none())
        .referer(false)
        .connect_timeout(TIMEOUT)
        .build()
        .map_err(|err| format!("no HTTP client can be made: {}", root_cause(&err).to_lowercase()))
}

/// Returns the reach of a server: the widest of the addresses of its name.
pub(crate) async fn reach_of(url: &Url) -> Reach {
    match url.host() {
        Some(Host::Ipv4(address)) => Reach::of(address.into()),
        Some(Host::Ipv6(address)) => Reach::of(address.into()),
        Some(Host::Domain(_)) if is_loopback(url) => Reach::Loopback,
        Some(Host::Domain(name)) => {
            let found = tokio::net::lookup_host((name, 0)).await.ok();
            found
                .and_then(|found| found.map(|address| Reach::of(address.ip())).min())
                .unwrap_or(Reach::Public)
        }
        None => Reach::Public,
    }
}

/// Returns whether a URL directly contains an address of a smaller reach. Names are checked when they
/// are resolved.
fn is_beyond(reach: Reach, url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => Reach::of(address.into()) > reach,
        Some(Host::Ipv6(address)) => Reach::of(address.into()) > reach,
        Some(Host::Domain(_)) | None => false,
    }
}

/// The system's resolver, which refuses names with an address of a smaller reach.
struct Resolver(Reach);

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let reach = self.0;
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            if found.iter().any(|address| Reach::of(address.ip()) > reach) {
                return Err(PRIVATE.into());
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// Returns the innermost cause of an error, which is the most specific and names no address: "connection
/// refused".
pub fn root_cause(err: &dyn std::error::Error) -> String {
    let mut cause = err;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let text = cause.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// Advice about a certificate of an authority that this machine does not know.
pub const UNKNOWN_AUTHORITY: &str =
    "add its authority to those of the system, or name a file of authorities in SSL_CERT_FILE";

/// Returns why a server cannot be reached, and what to do if its authority is not known.
pub fn connection_problem(err: &dyn std::error::Error) -> String {
    let cause = root_cause(err);
    match cause.strip_prefix("invalid peer certificate: ") {
        Some("UnknownIssuer") => {
            format!("its certificate is not trusted (UnknownIssuer); {UNKNOWN_AUTHORITY}")
        }
        Some(why) => format!("its certificate is not trusted ({why})"),
        None => cause.to_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_names_no_address_in_a_smaller_network() {
        let beyond = |reach, url: &str| is_beyond(reach, &Url::parse(url).unwrap());
        assert!(beyond(Reach::Public, "http://169.254.169.254/"));
        assert!(beyond(Reach::Public, "https://10.0.0.1/"));
        assert!(beyond(Reach::Private, "http://[::1]:1/"));
        assert!(!beyond(Reach::Loopback, "http://127.0.0.1:1/"));
        assert!(!beyond(Reach::Private, "https://10.0.0.1/"));
    }

    #[tokio::test]
    async fn a_name_of_a_smaller_network_is_refused_when_it_is_resolved() {
        let url = Url::parse("http://localhost:9/").unwrap();
        let error = Http::default().get(url, Trust::Named(Reach::Public)).await.unwrap_err();
        assert!(error.to_string().contains("set `issuer`"), "{error}");
    }
}

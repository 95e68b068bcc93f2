//! An open link to a server: without a session, with one, or both.
//!
//! A server may support both modes. It is then asked in the mode in which the caller's client asks orla,
//! so that questions to that client have the form that the server's tools were written for. Without a
//! client, the mode without sessions is used.

use std::collections::BTreeMap;
use std::time::Duration;

use orla_marketplace::JsonText;
use orla_mcp::answer::Offers;
use orla_mcp::object::Object;
use orla_mcp::{Caller, Fault, RequestMode, mode, object};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use tokio::time::timeout;

use super::exchange::{Exchange, Failure};
use super::headers::{PROTOCOL_VERSION, SESSION_ID};
use super::shared::Shared;

/// The timeout of `server/discover`. After it, the server is assumed not to support the method, unless it
/// refuses `initialize` because of a missing header.
const DISCOVERY: Duration = Duration::from_secs(2);
/// The timeout of `server/discover` for a server that supports it.
const LATE_DISCOVERY: Duration = Duration::from_secs(20);
const SILENT: &str = "it does not answer server/discover";
/// The code of an error about a header that is missing or does not match the request.
const HEADER_MISMATCH: i64 = -32020;

/// An open link.
#[derive(Debug)]
pub(super) struct Link {
    /// A number that is larger than that of every earlier link.
    pub(super) number: u64,
    pub(super) sessionless: Option<Channel>,
    pub(super) session: Option<Channel>,
}

/// The settings of requests to the server in one mode.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) mode: RequestMode,
    /// Sent with every request.
    pub(super) headers: HeaderMap,
    pub(super) offers: Offers,
}

impl Channel {
    /// Returns whether the channel has a session.
    pub(super) fn has_session(&self) -> bool {
        self.headers.contains_key(SESSION_ID)
    }
}

impl Link {
    /// Returns the channel for this caller.
    pub(super) fn channel(&self, caller: &Caller) -> Option<&Channel> {
        let has_session = caller.client.as_ref().is_some_and(|client| client.session().is_some());
        if has_session { self.session.as_ref().or(self.sessionless.as_ref()) } else { self.own() }
    }

    /// Returns the channel for requests without a client.
    pub(super) fn own(&self) -> Option<&Channel> {
        self.sessionless.as_ref().or(self.session.as_ref())
    }
}

/// The reason why no connection could be opened.
pub(super) struct Unopened {
    /// A text for users.
    pub(super) reason: String,
    /// Whether the server will refuse the next attempt too, unless its entry changes.
    pub(super) is_lasting: bool,
    /// Whether the server misses a header that only requests without a session have.
    is_sessionless: bool,
}

impl<T: Into<String>> From<T> for Unopened {
    fn from(reason: T) -> Self {
        Self { reason: reason.into(), is_lasting: false, is_sessionless: false }
    }
}

impl Unopened {
    fn of(failure: &Failure, shared: &Shared) -> Self {
        // A sign-in can change the result at any time.
        let is_lasting = matches!(failure, Failure::Refused(_)) && shared.sender.credentials().is_none();
        let is_sessionless = matches!(failure,
            Failure::Fault(Fault::Refused(error)) if error.code == HEADER_MISMATCH);
        Self { reason: failure.to_string(), is_lasting, is_sessionless }
    }
}

/// Opens a connection to the server, in both modes if it supports both.
///
/// # Errors
/// Why no connection could be opened.
pub(super) async fn open(shared: &Shared, number: u64) -> Result<Link, Unopened> {
    let (discovered, session) = tokio::join!(timeout(DISCOVERY, discover(shared)), initialize(shared));
    let sessionless = match (discovered, &session) {
        (Ok(discovered), _) => discovered,
        // The server supports the method, and was only slow.
        (Err(_), Err(Unopened { is_sessionless: true, .. })) => {
            timeout(LATE_DISCOVERY, discover(shared)).await.unwrap_or_else(|_| Err(SILENT.into()))
        }
        (Err(_), _) => Err(SILENT.into()),
    };
    match (sessionless, session) {
        (Err(first), Err(second)) => {
            // A required sign-in takes precedence. If the server supports neither mode, its answer to
            // the older request is more helpful.
            let needed = shared.sender.credentials().and_then(|credentials| credentials.needed());
            Err(match needed {
                Some(needed) => needed.to_string().into(),
                None if second.reason.is_empty() => first,
                None => second,
            })
        }
        (sessionless, session) => {
            Ok(Link { number, sessionless: sessionless.ok(), session: session.ok() })
        }
    }
}

async fn discover(shared: &Shared) -> Result<Channel, Unopened> {
    let headers = headers(&shared.headers, &[(PROTOCOL_VERSION, mode::SESSIONLESS)]);
    let channel = Channel { mode: RequestMode::Sessionless, headers, offers: Offers::default() };
    let nothing = object::empty();
    let request = Exchange::own(shared, &channel).request("server/discover", &nothing);
    let answer = request.await.map_err(|failure| Unopened::of(&failure, shared))?;
    let versions = Object::parse(answer.result.as_str())
        .and_then(|result| serde_json::from_str::<Vec<String>>(result.get("supportedVersions")?).ok());
    if versions.is_some_and(|versions| !versions.iter().any(|version| version == mode::SESSIONLESS)) {
        return Err(format!("it does not support {}", mode::SESSIONLESS).into());
    }
    let offers = Offers::read(&answer.result).ok_or("its answer to server/discover is not an object")?;
    Ok(Channel { offers, ..channel })
}

async fn initialize(shared: &Shared) -> Result<Channel, Unopened> {
    let bare = Channel {
        mode: RequestMode::Session,
        headers: headers(&shared.headers, &[]),
        offers: Offers::default(),
    };
    let params = object::trusted(mode::initialize());
    let request = Exchange::own(shared, &bare).request("initialize", &params).await;
    let answer = request.map_err(|failure| match failure {
        Failure::Expired => "it answered initialize with HTTP 404".into(),
        other => Unopened::of(&other, shared),
    })?;
    let offers = Offers::read(&answer.result).ok_or("its answer to initialize is not an object")?;
    let version =
        Object::parse(answer.result.as_str()).and_then(|result| result.text("protocolVersion"));
    let version = version.as_deref().unwrap_or(mode::SESSION);
    let mut channel =
        Channel { headers: headers(&shared.headers, &[(PROTOCOL_VERSION, version)]), offers, ..bare };
    if let Some(id) = answer.session {
        channel.headers.insert(SESSION_ID, id);
    }
    let notified = Exchange::own(shared, &channel).notify("notifications/initialized", None).await;
    if let Err(failure @ Failure::Lost(_)) = notified {
        return Err(Unopened::of(&failure, shared));
    }
    let mut requests = Vec::new();
    if channel.offers.logging {
        // Each caller chooses its own log level, so the server must send all messages.
        requests.push(("logging/setLevel", object::trusted(r#"{"level":"debug"}"#)));
    }
    for uri in shared.subscriptions.uris() {
        let uri = object::trusted(serde_json::json!({ "uri": uri }).to_string());
        requests.push(("resources/subscribe", uri));
    }
    for (method, params) in requests {
        // If the server has no such method or does not answer, the connection continues.
        let response = Exchange::own(shared, &channel).request(method, &params);
        if timeout(DISCOVERY, response).await.is_err() {
            break;
        }
    }
    Ok(channel)
}

/// Returns the configured header fields, those of every message, and `more`.
pub(super) fn headers(configured: &HeaderMap, more: &[(HeaderName, &str)]) -> HeaderMap {
    let mut headers = configured.clone();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
    for (name, value) in more {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name.clone(), value);
        }
    }
    headers
}

/// Parses the configured header fields.
///
/// # Errors
/// An invalid header; its value is not repeated, because it may be a secret.
pub(super) fn configured(fields: &BTreeMap<String, String>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        let known =
            HeaderName::try_from(name.as_str()).map_err(|_| format!("{name:?} is not a header"))?;
        let mut value =
            HeaderValue::from_str(value).map_err(|_| format!("invalid value for header {name}"))?;
        value.set_sensitive(true);
        headers.insert(known, value);
    }
    Ok(headers)
}

/// Returns the request for a page of the server's tools.
pub(super) fn list_request(cursor: Option<&str>) -> JsonText {
    match cursor {
        Some(cursor) => object::trusted(serde_json::json!({ "cursor": cursor }).to_string()),
        None => object::empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configured_headers_are_secrets() {
        let fields = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
        let headers = configured(&fields("X-Api-Key", "secret")).unwrap();
        assert!(headers["x-api-key"].is_sensitive() && !format!("{headers:?}").contains("secret"));
        assert_eq!(configured(&fields("a b", "x")).unwrap_err(), "\"a b\" is not a header");
        assert_eq!(configured(&fields("a", "x\n")).unwrap_err(), "invalid value for header a");
    }
}

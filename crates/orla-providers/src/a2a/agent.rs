//! One agent: its card and its connection.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use orla_marketplace::{CallContext, seconds};
use orla_oauth::metadata::is_loopback;
use orla_oauth::root_cause;
use parking_lot::Mutex;
use reqwest::StatusCode;
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use url::{Host, Url};

use super::card::{Binding, Card, Interface};
use super::dialect::Dialect;
use super::settings::{AgentSettings, Protocol};
use super::signature::{self, KeySet};
use super::wire::{Clients, Fault, Flavour, Wire, host, read_bounded};
use crate::sign_in::{Sender, SignIns, Unanswered};

/// The maximum size of a card, or of a set of keys.
const MAX_CARD: usize = 1024 * 1024;
/// The age at which a listing fetches a card again.
const REFRESH_AFTER: Duration = Duration::from_secs(300);
/// The pause after a failure. It doubles with each failure, up to the time that a card stays fresh.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The paths of cards, below an agent's address or its origin. Old agents use the second path.
const PLACES: [&str; 2] = [".well-known/agent-card.json", ".well-known/agent.json"];

/// One agent. No connection is opened before it is needed.
pub(super) struct Agent {
    pub(super) settings: AgentSettings,
    clients: Arc<Clients>,
    sign_ins: SignIns,
    changes: watch::Sender<u64>,
    /// Whether the agent can be called without a card, because its protocol is configured.
    is_plain: bool,
    state: Mutex<CardState>,
    /// Held while the card is fetched, so that only one task fetches it.
    fetching: tokio::sync::Mutex<()>,
    /// Whether a task retries until there is a card.
    is_followed: AtomicBool,
    /// Whether the first request for its card has ended, with a card or an error.
    answered: watch::Sender<bool>,
}

#[derive(Default)]
struct CardState {
    info: Option<Arc<AgentInfo>>,
    /// When the agent was last asked for its card.
    fetched_at: Option<Instant>,
    /// Why the last request for the card failed.
    failure: Option<String>,
}

/// The content of an agent's card.
pub(super) struct AgentInfo {
    pub(super) card: Card,
    pub(super) wire: Wire,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}

impl Agent {
    pub(super) fn new(
        settings: AgentSettings,
        clients: Arc<Clients>,
        sign_ins: SignIns,
        changes: watch::Sender<u64>,
        is_plain: bool,
    ) -> Self {
        Self {
            settings,
            clients,
            sign_ins,
            changes,
            is_plain,
            state: Mutex::default(),
            fetching: tokio::sync::Mutex::default(),
            is_followed: AtomicBool::new(false),
            answered: watch::Sender::new(false),
        }
    }

    /// Returns the content of the card, if it has been fetched.
    pub(super) fn info(&self) -> Option<Arc<AgentInfo>> {
        self.state.lock().info.clone()
    }

    /// Returns why the last request for the card failed.
    pub(super) fn failure(&self) -> Option<String> {
        self.state.lock().failure.clone()
    }

    /// Returns the host and port, for messages.
    pub(super) fn host(&self) -> String {
        match self.info() {
            Some(info) => info.wire.host(),
            None => base(&self.settings).map_or_else(|_| self.settings.name.clone(), |url| host(&url)),
        }
    }

    /// Returns the content of the card. Fetches the card if it is not known.
    ///
    /// # Errors
    /// It gives no card, or an unusable one.
    pub(super) async fn fetch_info(&self) -> Result<Arc<AgentInfo>, Fault> {
        if let Some(info) = self.info() {
            return Ok(info);
        }
        let _alone = self.fetching.lock().await;
        match self.info() {
            Some(info) => Ok(info),
            None => self.refresh().await,
        }
    }

    /// Returns whether the card must be fetched because it is unknown or old, and no task fetches it. If
    /// so, the caller continues with [`follow`](Self::follow).
    pub(super) fn start_following(&self) -> bool {
        let is_due = self.state.lock().fetched_at.is_none_or(|at| at.elapsed() >= REFRESH_AFTER)
            || self.info().is_none();
        is_due && !self.is_followed.swap(true, Ordering::AcqRel)
    }

    /// Fetches the card until that succeeds, or until the agent is no longer used. The task holds no
    /// reference that would keep the agent.
    pub(super) fn follow(self: Arc<Self>) -> impl Future<Output = ()> + Send {
        let agent = Arc::downgrade(&self);
        async move {
            let (mut pause, mut logged) = (FIRST_PAUSE, String::new());
            loop {
                let Some(this) = agent.upgrade() else { return };
                let result = {
                    let _alone = this.fetching.lock().await;
                    this.refresh().await
                };
                let Err(fault) = result else {
                    this.is_followed.store(false, Ordering::Release);
                    return;
                };
                let problem = fault.to_string();
                if problem != logged {
                    let agent = &this.settings.name;
                    tracing::warn!(agent, problem, "an agent has no usable card");
                    logged = problem;
                }
                drop(this);
                sleep(pause).await;
                pause = (pause * 2).min(REFRESH_AFTER);
            }
        }
    }

    /// Waits until the first request for its card has ended.
    pub(super) async fn first_answer(&self) {
        // The sender lives as long as this agent.
        let _ = self.answered.subscribe().wait_for(|answered| *answered).await;
    }

    async fn refresh(&self) -> Result<Arc<AgentInfo>, Fault> {
        let limit = self.settings.startup_timeout;
        let timed_out =
            || Fault::Unavailable(format!("did not return its card within {}", seconds(limit)));
        let result = timeout(limit, self.fetch()).await.unwrap_or_else(|_| Err(timed_out()));
        let mut state = self.state.lock();
        state.fetched_at = Some(Instant::now());
        match result {
            Ok(info) => {
                let is_new = state.info.as_ref().is_none_or(|old| old.card != info.card);
                let info = Arc::new(info);
                (state.info, state.failure) = (Some(Arc::clone(&info)), None);
                drop(state);
                if is_new {
                    self.changes.send_modify(|count| *count += 1);
                }
                // Waiting callers check for changes after this.
                self.answered.send_replace(true);
                Ok(info)
            }
            Err(fault) => {
                state.failure = Some(fault.to_string());
                drop(state);
                self.answered.send_replace(true);
                Err(fault)
            }
        }
    }

    async fn fetch(&self) -> Result<AgentInfo, Fault> {
        let base = base(&self.settings).map_err(Fault::Invalid)?;
        let headers = headers(&self.settings).map_err(Fault::Invalid)?;
        let card = match self.card(&base, &headers).await? {
            Some(card) => Card::read(&self.verified_card(card, &base).await?).map_err(Fault::Invalid)?,
            None if !self.is_plain => return Err(Fault::Invalid("it has no card".to_owned())),
            None => Card::without(base.as_str(), bindings(self.settings.protocol)[0].clone()),
        };
        let (interface, url) = choose(&card, &self.settings, &base).map_err(Fault::Invalid)?;
        let wire = Wire::new(&self.clients, &interface, url, headers).map_err(Fault::Invalid)?;
        Ok(AgentInfo { card, wire })
    }

    /// Returns the connection to the agent for a call, with the token of its caller.
    pub(super) fn wire(&self, info: &AgentInfo, ctx: &CallContext) -> Result<Wire, Fault> {
        let Some(key) = &self.settings.sign_in else { return Ok(info.wire.clone()) };
        let base = base(&self.settings).map_err(Fault::Invalid)?;
        let sender = self.sign_ins.sender(key, &base, info.wire.client(), Some(ctx));
        Ok(info.wire.through(sender.map_err(Fault::Invalid)?))
    }

    /// Returns the card; `None` if none of the addresses has one.
    async fn card(&self, base: &Url, headers: &HeaderMap) -> Result<Option<Value>, Fault> {
        let client = self.clients.get(Flavour::Any, is_loopback(base)).map_err(Fault::Invalid)?;
        let sender = match &self.settings.sign_in {
            None => Sender::new(client.clone(), None),
            Some(key) => self.sign_ins.sender(key, base, &client, None).map_err(Fault::Invalid)?,
        };
        for place in places(base) {
            let request = client.get(place).headers(headers.clone()).header(ACCEPT, "application/json");
            let request = request.build().map_err(|err| Fault::Invalid(root_cause(&err)))?;
            let response = match sender.execute(request).await {
                Ok(response) => response,
                Err(Unanswered::Token(error)) => return Err(Fault::Invalid(error.to_string())),
                // An agent that only supports gRPC breaks the connection.
                Err(Unanswered::Http(err))
                    if self.settings.protocol == Protocol::Grpc && !err.is_connect() =>
                {
                    return Ok(None);
                }
                Err(Unanswered::Http(err)) => {
                    let root = root_cause(&err).to_lowercase();
                    return Err(Fault::Unavailable(format!("cannot be reached: {root}")));
                }
            };
            match response.status() {
                StatusCode::OK => {
                    let bytes = read_bounded(response, MAX_CARD).await?;
                    let card = serde_json::from_slice(&bytes);
                    return card
                        .map(Some)
                        .map_err(|_| Fault::Invalid("its card is not JSON".to_owned()));
                }
                status if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED => {
                    return Err(Fault::Unavailable(format!(
                        "answered {} instead of its card",
                        status.as_u16()
                    )));
                }
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                    let problem = "the credentials are missing or not accepted";
                    return Err(Fault::Invalid(format!("its card cannot be fetched: {problem}")));
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// Returns the signed part of a card, or the whole card if it is not signed and need not be.
    async fn verified_card(&self, card: Value, base: &Url) -> Result<Value, Fault> {
        let signatures = signature::signatures(&card).map_err(Fault::Invalid)?;
        let keys = match &self.settings.keys {
            Some(keys) if signatures.is_empty() => {
                let _ = keys;
                return Err(Fault::Invalid("its card is not signed, and that is asked for".to_owned()));
            }
            Some(keys) => {
                KeySet::read(keys.as_bytes()).map_err(|err| Fault::Invalid(format!("keys: {err}")))?
            }
            None => {
                let named =
                    signatures.iter().filter_map(|signature| Url::parse(signature.key_set()?).ok());
                match named.into_iter().find(|url| same_origin(url, base)) {
                    Some(url) => self.key_set(url).await?,
                    None => {
                        if !signatures.is_empty() {
                            let agent = &self.settings.name;
                            tracing::warn!(
                                agent,
                                "no key is known for the signature of an agent's card"
                            );
                        }
                        return Ok(card);
                    }
                }
            }
        };
        signature::verified(&card, &signatures, &keys).map_err(Fault::Invalid)
    }

    async fn key_set(&self, url: Url) -> Result<KeySet, Fault> {
        let client = self.clients.get(Flavour::Any, is_loopback(&url)).map_err(Fault::Invalid)?;
        let invalid =
            |problem: &str| Fault::Invalid(format!("the keys of its card's signature: {problem}"));
        let response = client.get(url).send().await.map_err(|_| invalid("fetching them failed"))?;
        if !response.status().is_success() {
            return Err(invalid("they are not at that address"));
        }
        let bytes = read_bounded(response, MAX_CARD).await?;
        KeySet::read(&bytes).map_err(|problem| invalid(&problem))
    }
}

/// Checks whether an endpoint can be reached by a protocol.
///
/// # Errors
/// What is wrong with either.
pub fn check(endpoint: &str, protocol: &str) -> Result<(), String> {
    let protocol = Protocol::named(protocol)
        .ok_or_else(|| "protocol: expected http, websocket or grpc".to_owned())?;
    if protocol == Protocol::Grpc && cfg!(not(feature = "a2a-grpc")) {
        return Err("protocol: this build does not support gRPC".to_owned());
    }
    let mut settings = AgentSettings::new("", endpoint);
    settings.protocol = protocol;
    base(&settings).map(drop)
}

/// Returns the address of an agent as an HTTP URL.
fn base(settings: &AgentSettings) -> Result<Url, String> {
    address(&settings.url).ok_or_else(|| {
        "expected an address such as https://agent.example.com, or wss://… or grpc://…".to_owned()
    })
}

/// Parses an address of any of the protocols as an HTTP URL.
fn address(text: &str) -> Option<Url> {
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme, rest)) => (scheme.to_ascii_lowercase(), rest),
        // Cards write gRPC addresses without a scheme.
        None => ("grpc".to_owned(), text),
    };
    let scheme = match scheme.as_str() {
        "http" | "ws" => "http",
        "https" | "wss" | "grpcs" => "https",
        "grpc" if rest.split('/').next()?.ends_with(":443") => "https",
        "grpc" => "http",
        _ => return None,
    };
    let url = Url::parse(&format!("{scheme}://{rest}")).ok()?;
    url.host_str().is_some_and(|host| !host.is_empty()).then_some(url)
}

/// Returns the possible places of a card, the likeliest first.
fn places(base: &Url) -> Vec<Url> {
    if base.path().ends_with(".json") {
        return vec![base.clone()];
    }
    let mut places = Vec::new();
    for name in PLACES {
        let mut below = base.clone();
        below.set_query(None);
        if let Ok(mut segments) = below.path_segments_mut() {
            segments.pop_if_empty().extend(name.split('/'));
        }
        let mut root = below.clone();
        root.set_path(name);
        for place in [below, root] {
            if !places.contains(&place) {
                places.push(place);
            }
        }
    }
    places
}

/// Returns the bindings of a protocol.
fn bindings(protocol: Protocol) -> &'static [Binding] {
    match protocol {
        Protocol::Http => &[Binding::JsonRpc, Binding::Rest],
        Protocol::WebSocket => &[Binding::WebSocket],
        Protocol::Grpc => &[Binding::Grpc],
    }
}

/// Returns the first usable interface of the card, with its address. Interfaces of 1.x precede those of
/// 0.3.
fn choose(card: &Card, settings: &AgentSettings, base: &Url) -> Result<(Interface, Url), String> {
    let bindings = bindings(settings.protocol);
    let mut denied = None;
    let mut offered = Vec::new();
    let of = |dialect| card.interfaces.iter().filter(move |interface| interface.dialect == dialect);
    for interface in of(Dialect::V1).chain(of(Dialect::V0)) {
        offered.push(format!("{} {}", interface.binding.as_str(), interface.dialect.version()));
        if !bindings.contains(&interface.binding) {
            continue;
        }
        let Some(mut url) = address(&interface.url).map(|url| replace_unspecified_host(url, base))
        else {
            continue;
        };
        if !interface.url.contains("://") && base.scheme() == "https" {
            // Only an address without a scheme leaves TLS open.
            let _ = url.set_scheme("https");
        }
        // On many hosts gRPC has a separate port.
        let is_beside =
            interface.binding == Binding::Grpc && same_host(&url, base) && url.scheme() == base.scheme();
        let is_allowed = is_beside
            || same_origin(&url, base)
            || settings
                .origins
                .iter()
                .filter_map(|origin| address(origin))
                .any(|one| same_origin(&url, &one));
        if is_allowed {
            let url = if same_host(&url, base) { with_host_of(url, base) } else { url };
            return Ok((interface.clone(), url));
        }
        denied.get_or_insert_with(|| url.origin().ascii_serialization());
    }
    Err(match denied {
        Some(origin) => format!(
            "its card leads to {origin}, which is not the configured origin; if that is intended, add it to origins"
        ),
        None => {
            let protocol = settings.protocol.as_str();
            format!("its card offers {}, and nothing for the protocol {protocol}", offered.join(", "))
        }
    })
}

/// Replaces an address such as 0.0.0.0, which a server that listens on all interfaces writes, with the
/// agent's host.
fn replace_unspecified_host(mut url: Url, base: &Url) -> Url {
    let is_everywhere = match url.host() {
        Some(Host::Ipv4(address)) => address.is_unspecified(),
        Some(Host::Ipv6(address)) => address.is_unspecified(),
        _ => false,
    };
    if is_everywhere {
        let _ = url.set_host(base.host_str());
    }
    url
}

/// Replaces the host of the address with the configured one, if both are names of this machine. A server
/// need not listen on all of these names.
fn with_host_of(mut url: Url, base: &Url) -> Url {
    let _ = url.set_host(base.host_str());
    url
}

/// Returns whether two addresses have the same origin. All names of this machine count as one.
fn same_origin(one: &Url, other: &Url) -> bool {
    same_host(one, other)
        && one.scheme() == other.scheme()
        && one.port_or_known_default() == other.port_or_known_default()
}

fn same_host(one: &Url, other: &Url) -> bool {
    one.host_str() == other.host_str() || (is_loopback(one) && is_loopback(other))
}

/// Returns the headers of every request.
fn headers(settings: &AgentSettings) -> Result<HeaderMap, String> {
    let pairs: &BTreeMap<String, String> = &settings.headers;
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let name: HeaderName = name.parse().map_err(|_| format!("{name} is not a valid header name"))?;
        headers.insert(name, secret(value)?);
    }
    if let Some(token) = &settings.token {
        headers.insert(AUTHORIZATION, secret(&format!("Bearer {token}"))?);
    }
    Ok(headers)
}

fn secret(value: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_str(value)
        .map_err(|_| "a header field or the token is not a single line of text".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn chosen(urls: &[(&str, &str)], settings: &AgentSettings) -> Result<String, String> {
        let listed: Vec<Value> = urls
            .iter()
            .map(|(url, binding)| json!({"url": url, "protocolBinding": binding, "protocolVersion": "1.0"}))
            .collect();
        let card = Card::read(&json!({"supportedInterfaces": listed})).unwrap();
        choose(&card, settings, &base(settings).unwrap()).map(|(_, url)| url.to_string())
    }

    #[test]
    fn a_card_leads_nowhere_but_to_its_own_origin_and_those_that_are_allowed() {
        let mut agent = AgentSettings::new("a", "http://agent.example:8000/base");
        let other = [("https://elsewhere.example/rpc", "JSONRPC")];
        let refused = chosen(&other, &agent).unwrap_err();
        assert!(refused.starts_with("its card leads to https://elsewhere.example,"), "{refused}");
        agent.origins.push("https://elsewhere.example".into());
        assert_eq!(chosen(&other, &agent).unwrap(), "https://elsewhere.example/rpc");
        for (from, to, same) in [
            ("http://localhost:1", "http://127.0.0.1:1/x", true),
            ("http://127.0.0.1:1", "http://0.0.0.0:1/x", true),
            ("http://127.0.0.1:1", "http://127.0.0.1:2/x", false),
            ("https://a.example", "http://a.example:443/x", false),
            ("https://a.example", "https://a.example:443/x", true),
            ("https://a.example", "https://a.example.evil/x", false),
            ("https://a.example", "https://a.example@evil.example/x", false),
        ] {
            let agent = AgentSettings::new("a", from);
            assert_eq!(chosen(&[(to, "JSONRPC")], &agent).is_ok(), same, "{from} {to}");
        }
    }

    #[test]
    fn grpc_may_have_another_port_on_the_host_of_the_card() {
        for (from, to, url) in [
            ("http://127.0.0.1:1", "localhost:2", Some("http://127.0.0.1:2/")),
            ("http://a.example:8000", "a.example:50051", Some("http://a.example:50051/")),
            ("https://a.example", "a.example:50051", Some("https://a.example:50051/")),
            ("https://a.example", "http://a.example:50051", None),
            ("http://a.example", "b.example:50051", None),
        ] {
            let mut agent = AgentSettings::new("a", from);
            agent.protocol = Protocol::Grpc;
            assert_eq!(chosen(&[(to, "GRPC")], &agent).ok().as_deref(), url, "{from} {to}");
        }
    }

    #[test]
    fn the_first_interface_of_the_protocol_is_taken() {
        let all = [
            ("http://a/rest", "HTTP+JSON"),
            ("a:80", "GRPC"),
            ("http://a/rpc", "JSONRPC"),
            ("ws://a/ws", "WEBSOCKET"),
        ];
        let mut agent = AgentSettings::new("a", "http://a");
        for (protocol, url) in [
            (Protocol::Http, "http://a/rest"),
            (Protocol::WebSocket, "http://a/ws"),
            (Protocol::Grpc, "http://a/"),
        ] {
            agent.protocol = protocol;
            assert_eq!(chosen(&all, &agent).unwrap(), url);
        }
        let refused = chosen(&all[..1], &agent).unwrap_err();
        assert_eq!(refused, "its card offers HTTP+JSON 1.0, and nothing for the protocol grpc");
    }

    #[test]
    fn cards_are_looked_for_below_the_address_and_at_its_origin() {
        let shown = |url: &str| -> Vec<String> {
            places(&Url::parse(url).unwrap()).iter().map(|url| url.path().to_owned()).collect()
        };
        assert_eq!(shown("http://a"), ["/.well-known/agent-card.json", "/.well-known/agent.json"]);
        assert_eq!(
            shown("http://a/x/")[..2],
            ["/x/.well-known/agent-card.json", "/.well-known/agent-card.json"]
        );
        assert_eq!(shown("http://a/my/card.json"), ["/my/card.json"]);
    }

    #[test]
    fn endpoints_and_protocols_are_checked() {
        for (endpoint, protocol, is_good) in [
            ("https://a", "http", true),
            ("wss://a/x", "websocket", true),
            ("grpc://a:1", "GRPC", true),
            ("a:50051", "grpc", true),
            ("ftp://a", "http", false),
            ("https://", "http", false),
            ("https://a", "smtp", false),
        ] {
            assert_eq!(check(endpoint, protocol).is_ok(), is_good, "{endpoint} {protocol}");
        }
    }
}

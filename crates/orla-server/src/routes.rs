//! The routes of the HTTP transport. The guard decides whether a request is admitted, and the path
//! selects the handler.
//!
//! No part of a body is read before the guard has passed.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use orla_identity::Head;
use orla_marketplace::{Item, Principal};

use crate::a2a;
use crate::admin::{approvals, quotas, status};
use crate::calls;
use crate::credential::Credential;
use crate::forbidden::{self, excerpt};
use crate::http::body::{Body, discard_refused};
use crate::http::forbidden::Forbidden;
use crate::http::guard::Denied;
use crate::http::json_body;
use crate::http::response::{json, names, not_allowed, retry_after, text};
use crate::mcp::http::endpoint::HttpRequest;
use crate::metrics;
use crate::nodes;
use crate::options::Unauthenticated;
use crate::rest;
use crate::rtfs::{federation, programs};
use crate::state::{Core, Settings};
use crate::step_up::StepUp;
use crate::tasks;
use crate::throttle::{Verdict, network};
use crate::tls::ClientCertificate;
use crate::visits;

/// The body of the answer to every request without a valid token. It is the same for every reason.
const UNAUTHENTICATED: &str = "a valid bearer token is required\n";

/// Facts about a connection that concern its requests.
#[derive(Clone, Copy)]
pub(crate) struct ConnectionInfo {
    /// The address of the peer.
    pub(crate) peer: IpAddr,
    /// Whether the connection carried a head with both Content-Length and Transfer-Encoding.
    pub(crate) is_ambiguous: bool,
}

/// Answers one HTTP request.
pub(crate) async fn serve(
    core: Arc<Core>,
    request: Request<Incoming>,
    arrival: ConnectionInfo,
) -> Response<Body> {
    let began = Instant::now();
    let (parts, body) = request.into_parts();
    let settings = core.settings.load_full();
    let mut log = Log::default();
    let mut response =
        match arrival.is_ambiguous && parts.headers.contains_key(header::TRANSFER_ENCODING) {
            true => ambiguous(arrival.peer),
            false => route(&core, &settings, &parts, body, arrival.peer, &mut log).await,
        };
    if let Some(StepUp(scopes)) = response.extensions_mut().remove() {
        let challenge = settings.auth.insufficient_scope(&head(&core, &parts, None), &scopes);
        challenge_with(&mut response, &challenge);
    }
    // Pages are for their own origin alone.
    if let Some(origin) = parts.headers.get(header::ORIGIN)
        && response.status() != StatusCode::FORBIDDEN
        && !visits::is_console_path(parts.uri.path())
    {
        allow_origin(response.headers_mut(), origin);
    }
    core.metrics.requests.inc();
    log.write(&parts, response.status(), began.elapsed());
    response
}

/// The fields of a request's log line besides those of HTTP.
#[derive(Default)]
struct Log {
    method: Option<Box<str>>,
}

impl Log {
    /// Writes the request's line (RFC 1 §8.2: request timings). A call has a line of its own already, and
    /// monitoring sends requests all the time, so these lines are for debugging.
    fn write(&self, parts: &Parts, status: StatusCode, took: Duration) {
        /// The maximum length of logged text that comes from any client.
        const SHOWN: usize = 100;
        macro_rules! answered {
            ($level:expr) => {
                tracing::event!(
                    $level,
                    method = %parts.method,
                    path = excerpt(parts.uri.path(), SHOWN),
                    rpc = self.method.as_deref().map(|method| excerpt(method, SHOWN)),
                    status = status.as_u16(),
                    duration_ms = took.as_micros() as f64 / 1000.0,
                    "request answered"
                )
            };
        }
        let watched = matches!(parts.uri.path(), "/healthz" | "/readyz" | "/metrics" | "/status");
        if watched || self.method.as_deref() == Some("tools/call") {
            answered!(tracing::Level::DEBUG);
        } else {
            answered!(tracing::Level::INFO);
        }
    }
}

async fn route(
    core: &Arc<Core>,
    settings: &Settings,
    parts: &Parts,
    body: Incoming,
    peer: IpAddr,
    log: &mut Log,
) -> Response<Body> {
    if let Err(denied) = settings.guard.check_source(&parts.uri, &parts.headers) {
        let refused = Forbidden { by: denied.by, reason: denied.reason.into() };
        forbidden::report(core, peer, None, Some(parts), refused);
        return denied_response(&denied);
    }
    let path = parts.uri.path();
    if parts.method == Method::OPTIONS {
        return preflight(path, &parts.headers);
    }
    match path {
        "/healthz" => return only_get(parts, || text(StatusCode::OK, "ok\n")),
        "/readyz" => {
            return match parts.method {
                Method::GET | Method::HEAD => Box::pin(readiness(core)).await,
                _ => not_allowed("GET, HEAD"),
            };
        }
        _ => {}
    }
    if let Some(metadata) = settings.auth.metadata(&head(core, parts, None), path) {
        return only_get(parts, || json(StatusCode::OK, metadata));
    }
    if let Some(pages) = core.pages(settings) {
        if visits::is_console_path(path) {
            return Box::pin(visits::serve(core, settings, pages, parts, body, peer)).await;
        }
        if visits::is_browser_at_root(parts) {
            return visits::redirect();
        }
    }
    let principal = match authenticate(core, settings, parts, peer).await {
        Ok(principal) => principal,
        Err(denied) => {
            let time = settings.options.body_timeout;
            discard_refused(body, &parts.headers, time, &core.tracker, core.draining.clone());
            return unauthenticated(core, settings, peer, parts, denied);
        }
    };
    let answered = answer(core, settings, principal.clone(), parts, body, log);
    while_authenticated(core, settings, principal.as_ref(), parts, peer, answered).await
}

/// Returns the answer to a request, as long as its credential is accepted. Reports a forbidden request.
pub(crate) async fn while_authenticated(
    core: &Arc<Core>,
    settings: &Settings,
    principal: Option<&Principal>,
    parts: &Parts,
    peer: IpAddr,
    answered: impl Future<Output = Response<Body>>,
) -> Response<Body> {
    let answered = async {
        let mut response = answered.await;
        if let Some(forbidden) = response.extensions_mut().remove::<Forbidden>() {
            forbidden::report(core, peer, principal, Some(parts), forbidden);
        }
        response
    };
    let credential = Credential::of(core, principal, &parts.extensions);
    let Some(credential) = credential else { return answered.await };
    // Boxed, because few requests last until it is needed.
    let response = tokio::select! {
        biased;
        response = answered => Some(response),
        () = async { Box::pin(credential.withdrawn()).await } => None,
    };
    match response {
        Some(response) => credential.bound(response),
        None => unauthenticated(core, settings, peer, parts, orla_identity::Denied::Invalid(WITHDRAWN)),
    }
}

/// The reason for refusing a request after it was accepted.
const WITHDRAWN: &str = "the credential was withdrawn while the request ran";

/// Returns the answer to a request whose caller is known.
async fn answer(
    core: &Arc<Core>,
    settings: &Settings,
    principal: Option<Principal>,
    parts: &Parts,
    body: Incoming,
    log: &mut Log,
) -> Response<Body> {
    let path = parts.uri.path();
    match path {
        "/" if visits::is_browser_at_root(parts) => {
            text(StatusCode::NOT_FOUND, "not found: the console is off, and MCP is at /mcp\n")
        }
        "/mcp" | "/" | "/mcp/" => {
            let request = HttpRequest { core, settings, principal, headers: &parts.headers };
            match parts.method {
                // Boxed, because hyper reserves room for the largest future on every connection,
                // including idle ones.
                Method::POST => Box::pin(request.post(body, &mut log.method)).await,
                Method::GET => Box::pin(request.get()).await,
                Method::DELETE => Box::pin(request.delete()).await,
                _ => not_allowed("GET, POST, DELETE, OPTIONS"),
            }
        }
        "/rtfs" => match parts.method {
            Method::POST => {
                let headers = &parts.headers;
                let answer = async |body: Bytes| programs::answer(core, principal, headers, &body).await;
                Box::pin(answer_json(core, settings, headers, body, answer)).await
            }
            Method::GET if names(&parts.headers, federation::CATALOGUE) => {
                let catalogue = federation::catalogue(core, principal.as_ref(), parts.uri.query());
                Box::pin(catalogue).await
            }
            _ => not_allowed("POST, OPTIONS"),
        },
        path if rest::is_route(path) => {
            Box::pin(rest::serve(core, settings, principal, parts, body)).await
        }
        path if tasks::is_route(path) => {
            Box::pin(tasks::serve(core, settings, principal, parts, body)).await
        }
        path if calls::is_route(path) => {
            Box::pin(calls::serve(core, settings, principal, parts, body)).await
        }
        path if a2a::is_route(path) => {
            Box::pin(a2a::serve(core, settings, principal, parts, body)).await
        }
        "/approvals" => match parts.method {
            Method::GET | Method::HEAD => {
                let list = Box::pin(approvals::render(core, principal.as_ref())).await;
                json(StatusCode::OK, list)
            }
            _ => not_allowed("GET, HEAD"),
        },
        path if path.starts_with(APPROVALS) => match parts.method {
            Method::POST => {
                let id = &path[APPROVALS.len()..];
                let answer =
                    async |body: Bytes| approvals::answer(core, principal.as_ref(), id, &body).await;
                Box::pin(answer_json(core, settings, &parts.headers, body, answer)).await
            }
            _ => not_allowed("POST, OPTIONS"),
        },
        path if path.starts_with(NODES) => match parts.method {
            Method::POST => {
                let node = &path[NODES.len()..];
                let answer =
                    async |body: Bytes| nodes::drain(core, principal.as_ref(), node, &body).await;
                Box::pin(answer_json(core, settings, &parts.headers, body, answer)).await
            }
            _ => not_allowed("POST, OPTIONS"),
        },
        "/quotas" => only_get(parts, || json(StatusCode::OK, quotas::render(core, principal.as_ref()))),
        "/status" => {
            if parts.uri.query() == Some("learn=true") && matches!(parts.method, Method::GET) {
                Box::pin(core.market.prepare_listing()).await;
            }
            only_get(parts, || json(StatusCode::OK, status::render(core, principal.as_ref())))
        }
        "/metrics" => {
            let format = metrics::Format::of(&parts.headers);
            only_get(parts, || {
                let (catalog, principal) = (core.market.snapshot(), principal.as_ref());
                let is_visible = |item: &Item| catalog.permits_item(principal, item).is_ok();
                let metrics = core.metrics.render(&status::gauges(core, principal), is_visible);
                let mut response = text(StatusCode::OK, format.convert(metrics));
                let media_type = HeaderValue::from_static(format.media_type());
                response.headers_mut().insert(header::CONTENT_TYPE, media_type);
                response
            })
        }
        _ => text(StatusCode::NOT_FOUND, "not found: MCP is at /mcp\n"),
    }
}

/// Returns the caller that its token or its certificate identifies.
pub(crate) async fn authenticate(
    core: &Core,
    settings: &Settings,
    parts: &Parts,
    peer: IpAddr,
) -> Result<Option<Principal>, orla_identity::Denied> {
    let certificate = parts.extensions.get::<ClientCertificate>();
    let certificate = certificate.and_then(|certificate| core.tls.caller(certificate));
    let head = head(core, parts, certificate.as_ref());
    settings.auth.authenticate(&Head { peer: Some(network(peer)), ..head }).await
}

/// Reads the JSON body of a request and answers it.
async fn answer_json(
    core: &Core,
    settings: &Settings,
    headers: &HeaderMap,
    body: Incoming,
    answer: impl AsyncFnOnce(Bytes) -> Response<Body>,
) -> Response<Body> {
    match json_body::read(core.market.memory(), &settings.options, headers, body).await {
        Ok(body) => answer(body).await,
        Err(error) => error.refused(),
    }
}

/// The part of a path before the id of an approval.
const APPROVALS: &str = "/approvals/";
/// The part of a path before the name of a node.
const NODES: &str = "/cluster/nodes/";

/// Returns whether requests are served, and tasks can be kept.
async fn readiness(core: &Core) -> Response<Body> {
    let refuse = |why: String| text(StatusCode::SERVICE_UNAVAILABLE, why);
    if !core.is_ready() {
        return refuse("not ready\n".to_owned());
    }
    match core.state_problem().await {
        None => text(StatusCode::OK, status::readiness(core)),
        Some(why) => refuse(format!("not ready: tasks cannot be kept: {why}\n")),
    }
}

/// Refuses a request with two lengths (RFC 9112 §6.3). The following bytes on the connection cannot be
/// trusted.
fn ambiguous(peer: IpAddr) -> Response<Body> {
    let reason = "Content-Length and Transfer-Encoding exclude each other";
    tracing::warn!(%peer, reason, "request refused");
    let mut response = text(StatusCode::BAD_REQUEST, format!("{reason}\n"));
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Answers a request without a valid token. The failure is counted, logged and passed to the observer. A
/// peer that fails too often must wait (429), and its further failures are only counted.
pub(crate) fn unauthenticated(
    core: &Core,
    settings: &Settings,
    peer: IpAddr,
    parts: &Parts,
    denied: orla_identity::Denied,
) -> Response<Body> {
    unauthenticated_with(
        core,
        settings,
        peer,
        parts,
        denied,
        text(StatusCode::UNAUTHORIZED, UNAUTHENTICATED),
    )
}

/// Returns a response with status 401 as the answer to a request without a valid token, which is
/// counted.
pub(crate) fn unauthenticated_with(
    core: &Core,
    settings: &Settings,
    peer: IpAddr,
    parts: &Parts,
    denied: orla_identity::Denied,
    response: Response<Body>,
) -> Response<Body> {
    let mut response = challenged(core, settings, parts, denied, response);
    if let Verdict::Limited { wait, .. } = count_failure(core, settings, peer, parts, denied) {
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        response.headers_mut().remove(header::WWW_AUTHENTICATE);
        response.headers_mut().insert(header::RETRY_AFTER, retry_after(wait));
    }
    response
}

/// Counts a failed authentication, logs it and passes it to the observer.
pub(crate) fn count_failure(
    core: &Core,
    settings: &Settings,
    peer: IpAddr,
    parts: &Parts,
    denied: orla_identity::Denied,
) -> Verdict {
    core.metrics.auth_failures.inc();
    let verdict = match settings.options.auth_limits.bound(peer) {
        Some(most) => core.auth_failures.lock().count(peer, most, Instant::now()),
        None => Verdict::Tolerated,
    };
    let peer = peer.to_canonical();
    match verdict {
        Verdict::Limited { is_first: false, .. } => {}
        Verdict::Tolerated | Verdict::Limited { is_first: true, .. } => {
            let limited = verdict != Verdict::Tolerated;
            let (path, problem, reason) = (parts.uri.path(), denied.problem(), denied.reason());
            tracing::warn!(%peer, path = excerpt(path, 100), problem, reason, limited, "authentication failed");
            if let Some(observe) = core.on_unauthenticated.get() {
                observe(&Unauthenticated { peer, problem, reason });
            }
        }
    }
    verdict
}

fn denied_response(denied: &Denied) -> Response<Body> {
    text(denied.status, format!("{}\n", denied.reason))
}

/// Returns the credentials that a request presents.
fn head<'a>(core: &Core, parts: &'a Parts, certificate: Option<&'a Principal>) -> Head<'a> {
    Head {
        headers: &parts.headers,
        method: &parts.method,
        uri: &parts.uri,
        peer: None,
        is_tls: core.tls.get().is_some(),
        certificate,
        needs_certificate: core.tls.asks_clients(),
    }
}

/// Returns a response that says how a client gets a token.
pub(crate) fn challenged(
    core: &Core,
    settings: &Settings,
    parts: &Parts,
    denied: orla_identity::Denied,
    mut response: Response<Body>,
) -> Response<Body> {
    challenge_with(&mut response, &settings.auth.challenge(&head(core, parts, None), denied));
    response
}

fn challenge_with(response: &mut Response<Body>, challenge: &str) {
    if let Ok(challenge) = HeaderValue::from_str(challenge) {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    }
}

/// Answers a request for the methods of a path, such as the preflight request of a browser. The guard has passed its origin
/// already.
fn preflight(path: &str, request: &HeaderMap) -> Response<Body> {
    let methods = match rest::is_route(path) {
        true => rest::methods(path),
        false => "GET, POST, DELETE, OPTIONS",
    };
    let methods = HeaderValue::from_static(methods);
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(header::ALLOW, methods.clone());
    if request.contains_key(header::ORIGIN) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
        if let Some(wanted) = request.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
        }
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("86400"));
    }
    response
}

/// Lets a page of this origin, which the guard has passed, read the response.
fn allow_origin(headers: &mut HeaderMap, origin: &HeaderValue) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    let exposed = HeaderValue::from_static(
        "location, mcp-session-id, preference-applied, retry-after, www-authenticate",
    );
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    headers.append(header::VARY, HeaderValue::from_static("origin"));
}

fn only_get(parts: &Parts, respond: impl FnOnce() -> Response<Body>) -> Response<Body> {
    if matches!(parts.method, Method::GET | Method::HEAD) { respond() } else { not_allowed("GET, HEAD") }
}

//! The HTTP transport's routes: one request in, one response out (MCP's streamable HTTP).
//!
//! # How it works
//!
//! [`serve`] is the way of every request: who may talk (guard), what is asked (route), and for the
//! MCP endpoint first the message, then its era, then the answer. Nothing is read of a body before
//! the guard has passed, and nothing is parsed into a tree.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use orla_marketplace::{Item, Principal};
use rmcp::model::ErrorData;
use tokio_util::sync::CancellationToken;

#[cfg(feature = "a2a")]
use crate::a2a;
use crate::body::{self, Body};
use crate::dispatch::{self, Answer, Caller, Job};
use crate::era::{self, Era};
use crate::exchange::{self, Exchange, events, json};
use crate::federation;
use crate::guard::Denied;
use crate::metrics;
use crate::notices::Outlet;
use crate::options::Unauthenticated;
use crate::programs;
use crate::protocol::{LAST_EVENT_ID, PROTOCOL_VERSION, Revision, SESSION_ID};
use crate::questions::askable;
use crate::rpc::{self, Id, Message, Notification};
use crate::session::{Session, SessionId};
use crate::state::{Core, Settings};
use crate::status;
use crate::stream::{Stream, parse_event_id};
use crate::throttle::Verdict;

/// The most connections that wait for something of one session.
const MAX_OPEN_STREAMS: usize = 64;

/// What is known of a request from its connection.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    /// The address that it came from.
    pub(crate) peer: IpAddr,
    /// Whether the connection carried a head with both Content-Length and Transfer-Encoding.
    pub(crate) is_ambiguous: bool,
}

/// Answers one HTTP request.
pub(crate) async fn serve(
    core: Arc<Core>,
    request: Request<Incoming>,
    arrival: Arrival,
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
    if let Some(origin) = parts.headers.get(header::ORIGIN)
        && response.status() != StatusCode::FORBIDDEN
    {
        allow_origin(response.headers_mut(), origin);
    }
    core.metrics.requests.inc();
    log.write(&parts, response.status(), began.elapsed());
    response
}

/// What the log says of a request besides what HTTP says.
#[derive(Default)]
struct Log {
    method: Option<Box<str>>,
}

impl Log {
    /// Writes the request's line (RFC 1 §8.2: request timings). A call has a line of its own already, and
    /// whoever watches the server asks all the time: these are for those who look for a fault.
    fn write(&self, parts: &Parts, status: StatusCode, took: Duration) {
        /// How much of a text that anyone may send is repeated.
        const SHOWN: usize = 100;
        macro_rules! answered {
            ($level:expr) => {
                tracing::event!(
                    $level,
                    method = %parts.method,
                    path = shown(parts.uri.path(), SHOWN),
                    rpc = self.method.as_deref().map(|method| shown(method, SHOWN)),
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

/// A header for the log, where there is one that is a text.
fn header_text<'a>(parts: &'a Parts, name: &HeaderName) -> Option<&'a str> {
    parts.headers.get(name)?.to_str().ok().map(|text| shown(text, 200))
}

/// The beginning of a text.
fn shown(text: &str, limit: usize) -> &str {
    text.char_indices().nth(limit).map_or(text, |(end, _)| &text[..end])
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
        tracing::warn!(
            host = header_text(parts, &header::HOST),
            origin = header_text(parts, &header::ORIGIN),
            reason = denied.reason,
            "request refused"
        );
        return turn_away(&denied);
    }
    let path = parts.uri.path();
    if parts.method == Method::OPTIONS {
        return preflight(&parts.headers);
    }
    match path {
        "/healthz" => return only_get(parts, || text(StatusCode::OK, "ok\n")),
        "/readyz" => {
            return only_get(parts, || match core.is_ready() {
                true => text(StatusCode::OK, status::readiness(core)),
                false => text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
            });
        }
        _ => {}
    }
    let principal = match settings.guard.authenticate(&parts.headers) {
        Ok(principal) => principal,
        Err(denied) => return unauthenticated(core, settings, peer, path, &denied),
    };
    match path {
        "/mcp" | "/" | "/mcp/" => match parts.method {
            // Boxed, for hyper keeps room for the largest future on every connection, idle ones too.
            Method::POST => Box::pin(post(core, settings, principal, parts, body, log)).await,
            Method::GET => get(core, settings, principal.as_ref(), &parts.headers),
            Method::DELETE => delete(core, settings, principal.as_ref(), &parts.headers),
            _ => not_allowed("GET, POST, DELETE, OPTIONS"),
        },
        "/rtfs" => match parts.method {
            Method::POST => Box::pin(program(core, settings, principal, &parts.headers, body)).await,
            Method::GET if names(&parts.headers, federation::CATALOGUE) => {
                let catalogue = federation::catalogue(core, principal.as_ref(), parts.uri.query());
                Box::pin(catalogue).await
            }
            _ => not_allowed("POST, OPTIONS"),
        },
        #[cfg(feature = "a2a")]
        path if a2a::is_here(path) => Box::pin(a2a::serve(core, settings, principal, parts, body)).await,
        "/status" => only_get(parts, || json(StatusCode::OK, status::render(core, principal.as_ref()))),
        "/metrics" => {
            let format = metrics::content_type(&parts.headers);
            only_get(parts, || {
                let (catalog, principal) = (core.market.snapshot(), principal.as_ref());
                let is_visible = |item: &Item| catalog.permits_item(principal, item).is_ok();
                let metrics = core.metrics.render(&status::gauges(core, principal), is_visible);
                let mut response = text(StatusCode::OK, metrics);
                response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(format));
                response
            })
        }
        _ => text(StatusCode::NOT_FOUND, "not found: MCP is at /mcp\n"),
    }
}

/// A program, or one call (`POST /rtfs`).
async fn program(
    core: &Arc<Core>,
    settings: &Settings,
    principal: Option<Principal>,
    headers: &HeaderMap,
    body: Incoming,
) -> Response<Body> {
    if !is_json(headers) {
        let what = "Content-Type must be application/json";
        return programs::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, what);
    }
    let options = &settings.options;
    let discards = !headers.contains_key(header::EXPECT);
    match body::read(body, core.market.memory(), options.max_body_bytes, options.body_timeout, discards)
        .await
    {
        Ok(body) => programs::answer(core, principal, headers, &body).await,
        Err(status) => {
            closing(programs::refused(status, &why_unreadable(status, options.max_body_bytes)))
        }
    }
}

async fn post(
    core: &Arc<Core>,
    settings: &Settings,
    principal: Option<Principal>,
    parts: &Parts,
    body: Incoming,
    log: &mut Log,
) -> Response<Body> {
    let headers = &parts.headers;
    if !accepts(headers, "application/json") || !accepts(headers, "text/event-stream") {
        let what = "Accept must list both application/json and text/event-stream";
        return refuse(StatusCode::NOT_ACCEPTABLE, None, &ErrorData::invalid_request(what, None));
    }
    if !is_json(headers) {
        let what = "Content-Type must be application/json";
        return refuse(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            None,
            &ErrorData::invalid_request(what, None),
        );
    }
    let options = &settings.options;
    // Who expects to be told to go on has sent nothing yet of what is too large.
    let discards = !headers.contains_key(header::EXPECT);
    let body = match body::read(
        body,
        core.market.memory(),
        options.max_body_bytes,
        options.body_timeout,
        discards,
    )
    .await
    {
        Ok(body) => body,
        Err(status) => return unreadable(status, options.max_body_bytes),
    };
    match rpc::parse(&body) {
        Err(malformed) => {
            dispatch::log_refused(None, &malformed.error);
            refuse(StatusCode::BAD_REQUEST, malformed.id.as_ref(), &malformed.error)
        }
        Ok(Message::Response(answer)) => match era::is_sessionless_message(headers, None) {
            Err(refused) => refuse(refused.status, None, &refused.error),
            Ok(true) => {
                let what = "nothing was asked of the client, so there is nothing to answer";
                refuse(StatusCode::BAD_REQUEST, None, &ErrorData::invalid_request(what, None))
            }
            Ok(false) => match session_of(core, settings, principal.as_ref(), headers, None) {
                Ok(session) => {
                    session.questions.answer(&answer, &body);
                    accepted()
                }
                Err(response) => *response,
            },
        },
        Ok(Message::Notification(notification)) => {
            log.method = Some((&*notification.method).into());
            notified(core, settings, principal.as_ref(), headers, &notification)
        }
        Ok(Message::Request(request)) => {
            log.method = Some((&*request.method).into());
            let meta = request.params.meta();
            let era = match era::of_http_request(headers, &request.method, &request.params, &meta) {
                Ok(era) => era,
                Err(refused) => return refuse(refused.status, Some(&request.id), &refused.error),
            };
            match era {
                Era::Initialize { requested } => {
                    initialize(core, settings, principal, headers, &request, &requested)
                }
                Era::Sessionless => {
                    let job = Job::of(request, meta, &body);
                    drop(body);
                    sessionless(core, principal, headers, job).await
                }
                Era::Session => {
                    match session_of(core, settings, principal.as_ref(), headers, Some(&request.id)) {
                        Err(response) => *response,
                        Ok(session) => {
                            let job = Job::of(request, meta, &body);
                            drop(body);
                            in_session(core, session, principal, job).await
                        }
                    }
                }
            }
        }
    }
}

/// A request of the sessionless revision: it ends with its connection.
async fn sessionless(
    core: &Arc<Core>,
    principal: Option<Principal>,
    headers: &HeaderMap,
    job: Job,
) -> Response<Body> {
    if let Err(refused) = job.check_param_headers(core, headers, principal.as_ref()) {
        return refuse(refused.status, Some(&job.id), &refused.error);
    }
    let wants_stream = job.is_subscription() || job.wanted(None).anything();
    let stream = wants_stream.then(Stream::passing);
    let token = CancellationToken::new();
    let caller = Caller {
        revision: Revision::V2026_07_28,
        session: None,
        principal,
        outlet: stream.clone().map(|stream| stream as Arc<dyn Outlet>),
        cancellation: token.clone(),
    };
    if !job.may_be_slow() {
        // Boxed, as what may be slow is: whoever waits for either has no room for it.
        let answer = Box::pin(dispatch::answer(Arc::clone(core), job, caller)).await;
        return json(answer.status, answer.message);
    }
    let work = dispatch::answer(Arc::clone(core), job, caller);
    let work = Box::pin(async move { Some(work.await) });
    exchange::respond(Exchange {
        core: Arc::clone(core),
        work: Some(work),
        token,
        stream,
        session: None,
    })
    .await
}

/// A request of a session: it goes on when its connection ends.
async fn in_session(
    core: &Arc<Core>,
    session: Arc<Session>,
    principal: Option<Principal>,
    job: Job,
) -> Response<Body> {
    let Some(running) = session.calls.begin(&job.id) else {
        let what = "a request with this id is still running";
        return refuse(StatusCode::BAD_REQUEST, Some(&job.id), &ErrorData::invalid_request(what, None));
    };
    let token = running.token.clone();
    let stream = job.wanted(Some(&session)).anything().then(|| session.new_stream());
    let caller = Caller {
        revision: session.revision,
        session: Some(Arc::clone(&session)),
        principal,
        outlet: stream.clone().map(|stream| stream as Arc<dyn Outlet>),
        cancellation: token.clone(),
    };
    if !job.may_be_slow() {
        // Boxed, as what may be slow is: whoever waits for either has no room for it.
        let answer = Box::pin(dispatch::answer(Arc::clone(core), job, caller)).await;
        drop(running);
        return json(answer.status, answer.message);
    }
    let work = dispatch::answer(Arc::clone(core), job, caller);
    let work = Box::pin(async move {
        let answer = work.await;
        let withdrawn = running.token.is_cancelled();
        (!withdrawn).then_some(answer)
    });
    let open = session.open();
    let session = Some((session, open));
    exchange::respond(Exchange { core: Arc::clone(core), work: Some(work), token, stream, session })
        .await
}

fn initialize(
    core: &Arc<Core>,
    settings: &Settings,
    principal: Option<Principal>,
    headers: &HeaderMap,
    request: &rpc::Request<'_>,
    requested: &str,
) -> Response<Body> {
    let id = &request.id;
    let known = headers.get(SESSION_ID).and_then(|value| value.to_str().ok()).and_then(SessionId::parse);
    let idle = settings.options.session_idle;
    if known.is_some_and(|known| core.sessions.get(known, principal.as_ref(), idle).is_some()) {
        let what = "this session is initialized already";
        return refuse(StatusCode::BAD_REQUEST, Some(id), &ErrorData::invalid_request(what, None));
    }
    let revision = Revision::negotiate(requested);
    let newest = core.market.snapshot();
    let capabilities = askable(request.params.capabilities);
    let session = core.sessions.add(settings.options.max_sessions, |id| {
        let told = *core.lists.borrow();
        Session::new(id, revision, principal, capabilities, newest, told, &core.abort)
    });
    let session = match session {
        Ok(session) => session,
        Err(why) => {
            let error = ErrorData::internal_error(why, None);
            return refuse(StatusCode::SERVICE_UNAVAILABLE, Some(id), &error);
        }
    };
    let mut response = json(StatusCode::OK, dispatch::initialize(core, id, revision));
    if let Ok(value) = HeaderValue::from_str(&session.id.to_string()) {
        response.headers_mut().insert(SESSION_ID, value);
    }
    response
}

fn notified(
    core: &Arc<Core>,
    settings: &Settings,
    principal: Option<&Principal>,
    headers: &HeaderMap,
    notification: &Notification<'_>,
) -> Response<Body> {
    match era::is_sessionless_message(headers, Some(&notification.method)) {
        Err(refused) => return refuse(refused.status, None, &refused.error),
        // Without a session there is nothing it could be about.
        Ok(true) => return accepted(),
        Ok(false) => {}
    }
    let session = match session_of(core, settings, principal, headers, None) {
        Ok(session) => session,
        Err(response) => return *response,
    };
    if &*notification.method == "notifications/cancelled"
        && let Some(key) = notification.params.cancelled_request()
    {
        session.calls.cancel(&key);
    }
    accepted()
}

/// Opens a session's stream: its own, or the rest of one that broke.
fn get(
    core: &Arc<Core>,
    settings: &Settings,
    principal: Option<&Principal>,
    headers: &HeaderMap,
) -> Response<Body> {
    if !accepts(headers, "text/event-stream") {
        return text(
            StatusCode::NOT_ACCEPTABLE,
            "this is an MCP endpoint: POST messages to it, or GET with Accept: text/event-stream\n",
        );
    }
    if is_sessionless(headers) {
        return not_allowed("POST");
    }
    let session = match session_of(core, settings, principal, headers, None) {
        Ok(session) => session,
        Err(response) => return *response,
    };
    if session.open_count() >= MAX_OPEN_STREAMS {
        return text(StatusCode::TOO_MANY_REQUESTS, "too many open streams in this session\n");
    }
    let open = session.open();
    let last_seen = headers.get(LAST_EVENT_ID).and_then(|value| value.to_str().ok());
    match last_seen.map(parse_event_id) {
        None | Some(Some((0, _))) => exchange::standalone(core, session, open),
        Some(last) => match last.and_then(|(stream, number)| Some((session.stream(stream)?, number))) {
            Some((stream, number)) => exchange::resumed(&stream, number, open),
            // An error would make a client come back with the same id for ever.
            None => events(futures_util::stream::empty()),
        },
    }
}

fn delete(
    core: &Arc<Core>,
    settings: &Settings,
    principal: Option<&Principal>,
    headers: &HeaderMap,
) -> Response<Body> {
    if is_sessionless(headers) {
        return not_allowed("POST");
    }
    match session_of(core, settings, principal, headers, None) {
        Ok(session) => {
            core.sessions.remove(&session);
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NO_CONTENT;
            response
        }
        Err(response) => *response,
    }
}

/// The session that the headers name.
fn session_of(
    core: &Core,
    settings: &Settings,
    principal: Option<&Principal>,
    headers: &HeaderMap,
    request: Option<&Id>,
) -> Result<Arc<Session>, Box<Response<Body>>> {
    let refuse = |status, what: &'static str| {
        Err(Box::new(refuse(status, request, &ErrorData::invalid_request(what, None))))
    };
    let Some(value) = headers.get(SESSION_ID) else {
        return refuse(
            StatusCode::BAD_REQUEST,
            "no session: begin with initialize and send its Mcp-Session-Id, or send a request of revision 2026-07-28",
        );
    };
    let id = value.to_str().ok().and_then(SessionId::parse);
    let session = id.and_then(|id| core.sessions.get(id, principal, settings.options.session_idle));
    match session {
        Some(session) => Ok(session),
        None => refuse(StatusCode::NOT_FOUND, "session not found: it ended or expired; begin a new one"),
    }
}

fn is_sessionless(headers: &HeaderMap) -> bool {
    let version = headers.get(PROTOCOL_VERSION).and_then(|value| value.to_str().ok());
    version.and_then(Revision::parse).is_some_and(Revision::is_sessionless)
}

/// Whether the client takes this type, going by its Accept headers.
fn accepts(headers: &HeaderMap, wanted: &str) -> bool {
    let family = wanted.split_once('/').map_or(wanted, |(family, _)| family);
    headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).any(|value| {
        value.split(',').any(|range| {
            let range = range.split(';').next().unwrap_or_default().trim();
            let of_family = range
                .split_once('/')
                .is_some_and(|(of, sub)| sub == "*" && of.eq_ignore_ascii_case(family));
            range.eq_ignore_ascii_case(wanted) || range == "*/*" || of_family
        })
    })
}

/// Whether the client names this very type: one that takes anything has not asked for it.
pub(crate) fn names(headers: &HeaderMap, wanted: &str) -> bool {
    headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).any(|value| {
        let mut ranges = value.split(',').map(|range| range.split(';').next().unwrap_or_default());
        ranges.any(|range| range.trim().eq_ignore_ascii_case(wanted))
    })
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = value.and_then(|value| value.split(';').next()).map(str::trim);
    essence.is_some_and(|essence| essence.eq_ignore_ascii_case("application/json"))
}

/// An error of the protocol as a response.
fn refuse(status: StatusCode, id: Option<&Id>, error: &ErrorData) -> Response<Body> {
    json(status, Answer::error(id, error, Revision::V2025_11_25).message)
}

/// A body that could not be read. What is left of it stays unread, so the connection goes.
fn unreadable(status: StatusCode, max: usize) -> Response<Body> {
    let what = why_unreadable(status, max);
    closing(refuse(status, None, &ErrorData::invalid_request(what, None)))
}

/// The answer to a request whose body was not read to its end: the connection is of no more use, and a busy server
/// says when to try again.
pub(crate) fn closing(mut response: Response<Body>) -> Response<Body> {
    let is_busy = response.status() == StatusCode::SERVICE_UNAVAILABLE;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    if is_busy {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

pub(crate) fn why_unreadable(status: StatusCode, max: usize) -> String {
    match status {
        StatusCode::PAYLOAD_TOO_LARGE => format!("the body is larger than {max} bytes"),
        StatusCode::REQUEST_TIMEOUT => "the body took too long".to_owned(),
        StatusCode::SERVICE_UNAVAILABLE => {
            "the server is busy: the requests in progress hold as much memory as they may (max_memory_bytes); \
                try again later"
                .to_owned()
        }
        _ => "the body broke off".to_owned(),
    }
}

/// A request with two lengths (RFC 9112 §6.3). What follows it on the connection cannot be trusted.
fn ambiguous(peer: IpAddr) -> Response<Body> {
    let reason = "Content-Length and Transfer-Encoding exclude each other";
    tracing::warn!(%peer, reason, "request refused");
    let mut response = text(StatusCode::BAD_REQUEST, format!("{reason}\n"));
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The answer to a request without a valid token. It is counted, logged and passed to the observer; a peer that
/// fails too often is asked to wait (429), and its next failures are only counted.
fn unauthenticated(
    core: &Core,
    settings: &Settings,
    peer: IpAddr,
    path: &str,
    denied: &Denied,
) -> Response<Body> {
    core.metrics.auth_failures.inc();
    let failures = core.auth_failures.lock();
    let verdict = failures.unwrap_or_else(PoisonError::into_inner).count(
        peer,
        settings.options.auth_limits,
        Instant::now(),
    );
    let peer = peer.to_canonical();
    let mut response = turn_away(denied);
    match verdict {
        Verdict::Limited { is_first: false, .. } => {}
        Verdict::Tolerated | Verdict::Limited { is_first: true, .. } => {
            let limited = verdict != Verdict::Tolerated;
            let problem = denied.problem;
            tracing::warn!(%peer, path = shown(path, 100), problem, limited, "authentication failed");
            if let Some(observe) = core.on_unauthenticated.get() {
                observe(&Unauthenticated { peer, problem });
            }
        }
    }
    if let Verdict::Limited { wait, .. } = verdict {
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        response.headers_mut().remove(header::WWW_AUTHENTICATE);
        let wait = HeaderValue::from(wait.as_secs_f64().ceil() as u64);
        response.headers_mut().insert(header::RETRY_AFTER, wait);
    }
    response
}

fn turn_away(denied: &Denied) -> Response<Body> {
    let mut response = text(denied.status, format!("{}\n", denied.reason));
    if let Some(challenge) = denied.challenge {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
    }
    response
}

/// Answers the question a browser asks before a request of another origin. Who got here may ask.
fn preflight(asked: &HeaderMap) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(header::ALLOW, HeaderValue::from_static("GET, POST, DELETE, OPTIONS"));
    if asked.contains_key(header::ORIGIN) {
        let methods = HeaderValue::from_static("GET, POST, DELETE, OPTIONS");
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
        if let Some(wanted) = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
        }
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("86400"));
    }
    response
}

/// Lets a page of this origin, which the guard has passed, read the response.
fn allow_origin(headers: &mut HeaderMap, origin: &HeaderValue) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    let exposed = HeaderValue::from_static("mcp-session-id, www-authenticate");
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    headers.append(header::VARY, HeaderValue::from_static("origin"));
}

fn only_get(parts: &Parts, respond: impl FnOnce() -> Response<Body>) -> Response<Body> {
    if matches!(parts.method, Method::GET | Method::HEAD) { respond() } else { not_allowed("GET, HEAD") }
}

fn not_allowed(allow: &'static str) -> Response<Body> {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "method not allowed\n");
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allow));
    response
}

fn accepted() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}

fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::Whole(text.into()));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

//! The endpoint `/mcp` (MCP's streamable HTTP): one message in, one response out.
//!
//! First the message is read, then its mode determines the handler. Nothing is parsed into a tree.

use std::sync::{Arc, OnceLock};

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use hyper::body::Incoming;
use orla_marketplace::Principal;
use rmcp::model::ErrorData;
use tokio_util::sync::CancellationToken;

use super::exchange::{self, Exchange};
use crate::credential::{ENDED, StreamEnd};
use crate::http::body::{self, Body};
use crate::http::response::{
    accepts, closing, events, is_json, json, not_allowed, text, why_unreadable,
};
use crate::mcp::dispatch::{self, Caller, Job};
use crate::mcp::input::questions::askable;
use crate::mcp::notify::notices::Outlet;
use crate::mcp::notify::stream::{EventId, Stream, event};
use crate::mcp::protocol::{LAST_EVENT_ID, PROTOCOL_VERSION, Revision, SESSION_ID};
use crate::mcp::request_mode::{self, RequestMode};
use crate::mcp::rpc::{self, Id, Message, Notification};
use crate::mcp::session::{Session, SessionId, elsewhere, shared};
use crate::state::{Core, Settings};

/// The most connections that wait for something of one session.
const MAX_OPEN_STREAMS: usize = 64;

/// Takes a message.
pub(crate) async fn post(
    core: &Arc<Core>,
    settings: &Settings,
    principal: Option<Principal>,
    parts: &Parts,
    body: Incoming,
    log: &mut Option<Box<str>>,
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
    let body = match body::of_request(body, headers, core.market.memory(), options).await {
        Ok(body) => body,
        Err(status) => return unreadable(status, options.max_body_bytes),
    };
    shared::settle(core, principal.as_ref(), headers).await;
    match rpc::parse(&body) {
        Err(malformed) => {
            dispatch::log_refused(None, &malformed.error);
            refuse(StatusCode::BAD_REQUEST, malformed.id.as_ref(), &malformed.error)
        }
        Ok(Message::Response(answer)) => match request_mode::is_sessionless_message(headers, None) {
            Err(refused) => refuse(refused.status, None, &refused.error),
            Ok(true) => {
                let what = "nothing was asked of the client, so there is nothing to answer";
                refuse(StatusCode::BAD_REQUEST, None, &ErrorData::invalid_request(what, None))
            }
            Ok(false) => match session_of(core, settings, principal.as_ref(), headers, None) {
                Ok(session) => {
                    if !session.questions.answer(&answer, &body) {
                        Box::pin(elsewhere::answered(core, &session, &body)).await;
                    }
                    accepted()
                }
                Err(response) => *response,
            },
        },
        Ok(Message::Notification(notification)) => {
            *log = Some((&*notification.method).into());
            notified(core, settings, principal.as_ref(), headers, &notification).await
        }
        Ok(Message::Request(request)) => {
            *log = Some((&*request.method).into());
            let mut meta = request.params.meta();
            if meta.traceparent.is_none() {
                let given = headers.get("traceparent").and_then(|given| given.to_str().ok());
                meta.traceparent = given.map(Into::into);
            }
            let mode =
                match request_mode::of_http_request(headers, &request.method, &request.params, &meta) {
                    Ok(mode) => mode,
                    Err(refused) => return refuse(refused.status, Some(&request.id), &refused.error),
                };
            match mode {
                RequestMode::Initialize { requested } => {
                    initialize(core, settings, principal, headers, &request, &requested).await
                }
                RequestMode::Sessionless { revision } => {
                    let job = Job::of(request, meta, &body);
                    drop(body);
                    sessionless(core, revision, principal, headers, job).await
                }
                RequestMode::Session => {
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

/// A sessionless request: it ends with its connection.
async fn sessionless(
    core: &Arc<Core>,
    revision: Revision,
    principal: Option<Principal>,
    headers: &HeaderMap,
    job: Job,
) -> Response<Body> {
    if let Err(refused) = job.check_param_headers(core, headers, principal.as_ref()) {
        return refuse(refused.status, Some(&job.id), &refused.error);
    }
    let wants_stream = job.is_subscription() || job.notice_options(None).anything();
    let stream = wants_stream.then(Stream::passing);
    let token = CancellationToken::new();
    let caller = Caller {
        revision,
        session: None,
        principal,
        outlet: stream.clone().map(|stream| stream as Arc<dyn Outlet>),
        cancellation: token.clone(),
        lacks: OnceLock::new(),
    };
    if !job.may_be_slow() {
        // Boxed like the slow path, so that the future that awaits either stays small.
        let answer = Box::pin(dispatch::answer(Arc::clone(core), job, caller)).await;
        return answer.into_response();
    }
    let ended = ErrorData::invalid_request(ENDED, None);
    let last = event(None, &rpc::error(Some(&job.id), &ended));
    let end = StreamEnd { last, is_call: !job.is_subscription() };
    let work = dispatch::answer(Arc::clone(core), job, caller);
    let work = Box::pin(async move { Some(work.await) });
    let exchange = Exchange { core: Arc::clone(core), work: Some(work), token, stream, session: None };
    let mut response = exchange::respond(exchange).await;
    response.extensions_mut().insert(end);
    response
}

/// A request of a session: it continues when its connection ends.
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
    let stream = job.notice_options(Some(&session)).anything().then(|| session.new_stream());
    let caller = Caller {
        revision: session.revision,
        session: Some(Arc::clone(&session)),
        principal,
        outlet: stream.clone().map(|stream| stream as Arc<dyn Outlet>),
        cancellation: token.clone(),
        lacks: OnceLock::new(),
    };
    if !job.may_be_slow() {
        // Boxed like the slow path, so that the future that awaits either stays small.
        let answer = Box::pin(dispatch::answer(Arc::clone(core), job, caller)).await;
        drop(running);
        return answer.into_response();
    }
    let work = dispatch::answer(Arc::clone(core), job, caller);
    let (saved, of) = (Arc::clone(&session), Arc::clone(core));
    let work = Box::pin(async move {
        let answer = work.await;
        // The next request may come to another server.
        shared::save(&of, &saved).await;
        let withdrawn = running.token.is_cancelled();
        (!withdrawn).then_some(answer)
    });
    let open = session.open();
    let session = Some((session, open));
    exchange::respond(Exchange { core: Arc::clone(core), work: Some(work), token, stream, session })
        .await
}

async fn initialize(
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
        let notified = *core.lists.borrow();
        Session::new(id, revision, principal, capabilities, newest, notified, &core.abort)
    });
    let session = match session {
        Ok(session) => session,
        Err(why) => {
            let error = ErrorData::internal_error(why, None);
            return refuse(StatusCode::SERVICE_UNAVAILABLE, Some(id), &error);
        }
    };
    if core.shared_sessions().is_some() {
        session.share(&core.unheard);
    }
    shared::save(core, &session).await;
    let mut response = json(StatusCode::OK, dispatch::initialize(core, id, revision));
    if let Ok(value) = HeaderValue::from_str(&session.id.to_string()) {
        response.headers_mut().insert(SESSION_ID, value);
    }
    response
}

async fn notified(
    core: &Arc<Core>,
    settings: &Settings,
    principal: Option<&Principal>,
    headers: &HeaderMap,
    notification: &Notification<'_>,
) -> Response<Body> {
    match request_mode::is_sessionless_message(headers, Some(&notification.method)) {
        Err(refused) => return refuse(refused.status, None, &refused.error),
        // Without a session there is nothing that it could refer to.
        Ok(true) => return accepted(),
        Ok(false) => {}
    }
    let session = match session_of(core, settings, principal, headers, None) {
        Ok(session) => session,
        Err(response) => return *response,
    };
    if &*notification.method == "notifications/cancelled"
        && let Some(key) = notification.params.cancelled_request()
        && !session.calls.cancel(&key)
    {
        Box::pin(elsewhere::cancelled(core, &session, &key)).await;
    }
    accepted()
}

/// Opens a session's stream: its own, or the rest of one that broke.
pub(crate) fn get(
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
    let here = core.instance();
    let stream = match last_seen.map(EventId::parse) {
        None => return exchange::standalone(core, session, None, open),
        Some(Some(last)) if last.stream == 0 => {
            return exchange::standalone(core, session, Some(last), open);
        }
        Some(Some(last)) => match &last.instance {
            Some(instance) if here.is_some() && here != last.instance => {
                return elsewhere::resumed(core, session, &last, instance, open);
            }
            _ => session.stream(last.stream).map(|stream| (stream, last)),
        },
        Some(None) => None,
    };
    match stream {
        Some((stream, last)) => exchange::resumed(&stream, last, open),
        // An error would make a client come back with the same id for ever.
        None => events(futures_util::stream::empty()),
    }
}

/// Ends a session.
pub(crate) async fn delete(
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
            shared::end(core, session.id).await;
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

/// An error of the protocol as a response.
fn refuse(status: StatusCode, id: Option<&Id>, error: &ErrorData) -> Response<Body> {
    json(status, rpc::error(id, error))
}

/// A body that could not be read. Its rest stays unread, so the connection is closed.
fn unreadable(status: StatusCode, max: usize) -> Response<Body> {
    let what = why_unreadable(status, max);
    closing(refuse(status, None, &ErrorData::invalid_request(what, None)))
}

fn accepted() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}

//! The endpoint `/mcp` (MCP's streamable HTTP): one message in, one response out.
//!
//! The message is read first. Its mode then determines the handler. No message is parsed into a tree.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use hyper::body::Incoming;
use orla_marketplace::{Origin, Principal};
use rmcp::model::ErrorData;

use super::exchange::{self, Exchange};
use crate::credential::{ENDED, StreamEnd};
use crate::http::body::{self, Body};
use crate::http::response::{
    accepts, closing, events, is_json, json, not_allowed, text, why_unreadable,
};
use crate::mcp::dispatch::{self, Caller, Job};
use crate::mcp::notify::notices::Outlet;
use crate::mcp::notify::stream::{EventId, Stream, event};
use crate::mcp::protocol::{LAST_EVENT_ID, PROTOCOL_VERSION, Revision, SESSION_ID};
use crate::mcp::request_mode::{self, RequestMode};
use crate::mcp::rpc::{self, Id, Message, Notification};
use crate::mcp::session::{Declared, Session, SessionId, other_nodes, shared};
use crate::state::{Core, Settings};

/// The maximum number of open connections of one session.
const MAX_OPEN_STREAMS: usize = 64;

/// A request to the endpoint, without its body.
pub(crate) struct HttpRequest<'a> {
    pub(crate) core: &'a Arc<Core>,
    pub(crate) settings: &'a Settings,
    pub(crate) principal: Option<Principal>,
    pub(crate) headers: &'a HeaderMap,
}

/// The handler of a protocol request. It owns the needed parts of the body.
enum Work {
    Initialize { id: Id, requested: String, declared: Declared },
    Sessionless { revision: Revision, job: Box<Job> },
    InSession { session: Arc<Session>, job: Box<Job> },
}

impl HttpRequest<'_> {
    /// Takes a message. `log` receives its method.
    pub(crate) async fn post(self, body: Incoming, log: &mut Option<Box<str>>) -> Response<Body> {
        let Self { core, settings, headers, .. } = self;
        if !accepts(headers, "application/json") || !accepts(headers, "text/event-stream") {
            let what = "Accept must list both application/json and text/event-stream";
            return invalid(StatusCode::NOT_ACCEPTABLE, None, what);
        }
        if !is_json(headers) {
            let what = "Content-Type must be application/json";
            return invalid(StatusCode::UNSUPPORTED_MEDIA_TYPE, None, what);
        }
        let options = &settings.options;
        let body = match body::of_request(body, headers, core.market.memory(), options).await {
            Ok(body) => body,
            Err(status) => return unreadable(status, options.max_body_bytes),
        };
        self.refresh_session().await;
        match rpc::parse(&body) {
            Err(malformed) => {
                dispatch::log_refused(None, &malformed.error);
                refuse(StatusCode::BAD_REQUEST, malformed.id.as_ref(), &malformed.error)
            }
            Ok(Message::Response(answer)) => self.on_response(&answer, &body).await,
            Ok(Message::Notification(notification)) => {
                *log = Some((&*notification.method).into());
                self.on_notification(&notification).await
            }
            Ok(Message::Request(request)) => {
                *log = Some((&*request.method).into());
                let work = self.work_of(request, &body);
                // The work keeps the parts of the body that it needs.
                drop(body);
                match work {
                    Err(response) => *response,
                    Ok(Work::Initialize { id, requested, declared }) => {
                        self.initialize(&id, &requested, declared).await
                    }
                    Ok(Work::Sessionless { revision, job }) => self.sessionless(revision, job).await,
                    Ok(Work::InSession { session, job }) => self.in_session(session, job).await,
                }
            }
        }
    }

    /// Receives an answer to a question to a session's client.
    async fn on_response(&self, answer: &rpc::Response<'_>, body: &Bytes) -> Response<Body> {
        match request_mode::is_sessionless_message(self.headers, None) {
            Err(refused) => return refuse(refused.status, None, &refused.error),
            Ok(true) => {
                let what = "nothing was asked of the client, so there is nothing to answer";
                return invalid(StatusCode::BAD_REQUEST, None, what);
            }
            Ok(false) => {}
        }
        let session = match self.session(None) {
            Ok(session) => session,
            Err(response) => return *response,
        };
        if !session.questions.answer(answer, body) {
            Box::pin(other_nodes::forward_answer(self.core, &session, body)).await;
        }
        accepted()
    }

    async fn on_notification(&self, notification: &Notification<'_>) -> Response<Body> {
        match request_mode::is_sessionless_message(self.headers, Some(&notification.method)) {
            Err(refused) => return refuse(refused.status, None, &refused.error),
            // Without a session, there is nothing that the cancellation could refer to.
            Ok(true) => return accepted(),
            Ok(false) => {}
        }
        let session = match self.session(None) {
            Ok(session) => session,
            Err(response) => return *response,
        };
        if &*notification.method == "notifications/cancelled"
            && let Some(key) = notification.params.cancelled_request()
            && !session.calls.cancel(&key)
        {
            Box::pin(other_nodes::forward_cancellation(self.core, &session, &key)).await;
        }
        accepted()
    }

    /// Returns the handler of a request, or the reason why it is refused.
    fn work_of(&self, request: rpc::Request<'_>, body: &Bytes) -> Result<Work, Box<Response<Body>>> {
        let mut meta = request.params.meta();
        if meta.traceparent.is_none() {
            let given = self.headers.get("traceparent").and_then(|given| given.to_str().ok());
            meta.traceparent = given.map(Into::into);
        }
        let mode = request_mode::of_http_request(self.headers, &request.method, &request.params, &meta)
            .map_err(|refused| Box::new(refuse(refused.status, Some(&request.id), &refused.error)))?;
        Ok(match mode {
            RequestMode::Initialize { requested } => {
                let declared = Declared::of(&request.params);
                Work::Initialize { id: request.id, requested, declared }
            }
            RequestMode::Sessionless { revision } => {
                Work::Sessionless { revision, job: Job::of(request, meta, body) }
            }
            RequestMode::Session => {
                let session = self.session(Some(&request.id))?;
                Work::InSession { session, job: Job::of(request, meta, body) }
            }
        })
    }

    /// Answers a sessionless request, which ends with its connection.
    async fn sessionless(self, revision: Revision, job: Box<Job>) -> Response<Body> {
        let Self { core, principal, headers, .. } = self;
        if let Err(refused) = job.check_param_headers(core, headers, principal.as_ref()) {
            return refuse(refused.status, Some(&job.id), &refused.error);
        }
        let wants_stream = job.is_subscription() || job.notice_options(None).wants_any();
        let stream = wants_stream.then(Stream::transient);
        let token = core.abort.child_token();
        let caller = Caller {
            revision,
            session: None,
            principal,
            origin: Origin::new(None, job.client.clone()),
            outlet: stream.clone().map(|stream| stream as Arc<dyn Outlet>),
            cancellation: token.clone(),
            missing_scopes: OnceLock::new(),
        };
        if !job.may_be_slow() {
            // Boxed like the slow path, to keep the future that awaits either of them small.
            let answer = Box::pin(dispatch::answer(Arc::clone(core), job, caller)).await;
            return answer.into_response();
        }
        // Only the stream of an identified caller can end with a credential.
        let bound = caller.principal.is_some().then(|| (job.id.clone(), !job.is_subscription()));
        let of = Arc::clone(core);
        // The future of the answer is made where it stays.
        let work = Box::pin(async move { Some(dispatch::answer(of, job, caller).await) });
        let exchange =
            Exchange { core: Arc::clone(core), work: Some(work), token, stream, session: None };
        let mut response = exchange::respond(exchange).await;
        if let Some((id, is_call)) = bound {
            let ended = ErrorData::invalid_request(ENDED, None);
            let last = event(None, &rpc::error(Some(&id), &ended));
            response.extensions_mut().insert(StreamEnd { last, is_call });
        }
        response
    }

    /// Answers a request of a session, which continues when its connection ends.
    async fn in_session(self, session: Arc<Session>, job: Box<Job>) -> Response<Body> {
        let Self { core, principal, .. } = self;
        let Some(running) = session.calls.begin(&job.id) else {
            let what = "a request with this id is still running";
            return invalid(StatusCode::BAD_REQUEST, Some(&job.id), what);
        };
        let token = running.token.clone();
        let stream = job.notice_options(Some(&session)).wants_any().then(|| session.new_stream());
        let caller = Caller {
            revision: session.revision,
            session: Some(Arc::clone(&session)),
            principal,
            origin: session.origin.clone(),
            outlet: stream.clone().map(|stream| stream as Arc<dyn Outlet>),
            cancellation: token.clone(),
            missing_scopes: OnceLock::new(),
        };
        if !job.may_be_slow() {
            // Boxed like the slow path, to keep the future that awaits either of them small.
            let answer = Box::pin(dispatch::answer(Arc::clone(core), job, caller)).await;
            // What was listed is called at every server.
            Box::pin(shared::save(core, &session)).await;
            drop(running);
            return answer.into_response();
        }
        let (saved, of) = (Arc::clone(&session), Arc::clone(core));
        let work = Box::pin(async move {
            let answer = dispatch::answer(Arc::clone(&of), job, caller).await;
            // The next request may come to another server.
            shared::save(&of, &saved).await;
            let withdrawn = running.token.is_cancelled() && !of.market.is_stopping();
            (!withdrawn).then_some(answer)
        });
        let open = session.open();
        let session = Some((session, open));
        exchange::respond(Exchange { core: Arc::clone(core), work: Some(work), token, stream, session })
            .await
    }

    /// Begins a session.
    async fn initialize(self, id: &Id, requested: &str, declared: Declared) -> Response<Body> {
        let Self { core, settings, principal, headers } = self;
        let known =
            headers.get(SESSION_ID).and_then(|value| value.to_str().ok()).and_then(SessionId::parse);
        let idle = settings.options.session_idle;
        if known.is_some_and(|known| core.sessions.get(known, principal.as_ref(), idle).is_some()) {
            let what = "this session is initialized already";
            return invalid(StatusCode::BAD_REQUEST, Some(id), what);
        }
        let revision = Revision::negotiate(requested);
        let newest = core.market.snapshot();
        let session = core.sessions.add(settings.options.max_sessions, |id| {
            let notified = *core.lists.borrow();
            Session::new(id, revision, principal, declared, newest, notified, &core.abort)
        });
        let session = match session {
            Ok(session) => session,
            Err(why) => {
                let error = ErrorData::internal_error(why, None);
                return refuse(StatusCode::SERVICE_UNAVAILABLE, Some(id), &error);
            }
        };
        if core.shared_sessions().is_some() {
            session.share(&core.pending_changes);
        }
        shared::save(core, &session).await;
        let mut response = json(StatusCode::OK, dispatch::initialize(core, id, revision));
        if let Ok(value) = HeaderValue::from_str(&session.id.to_string()) {
            response.headers_mut().insert(SESSION_ID, value);
        }
        response
    }

    /// Opens a stream of a session: its own stream, or the rest of an interrupted one.
    pub(crate) async fn get(self) -> Response<Body> {
        self.refresh_session().await;
        let Self { core, headers, .. } = self;
        if !accepts(headers, "text/event-stream") {
            return text(
                StatusCode::NOT_ACCEPTABLE,
                "this is an MCP endpoint: POST messages to it, or GET with Accept: text/event-stream\n",
            );
        }
        if is_sessionless(headers) {
            return not_allowed("POST");
        }
        let session = match self.session(None) {
            Ok(session) => session,
            Err(response) => return *response,
        };
        if session.open_count() >= MAX_OPEN_STREAMS {
            let what =
                format!("more than {MAX_OPEN_STREAMS} open streams in this session: close one first\n");
            return text(StatusCode::TOO_MANY_REQUESTS, what);
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
                    return other_nodes::remote_stream(core, session, &last, instance, open);
                }
                _ => session.stream(last.stream).map(|stream| (stream, last)),
            },
            Some(None) => None,
        };
        match stream {
            Some((stream, last)) => exchange::resumed(&stream, last, open),
            // After an error, a client would repeat the request with the same id forever.
            None => events(futures_util::stream::empty()),
        }
    }

    /// Ends a session.
    pub(crate) async fn delete(self) -> Response<Body> {
        self.refresh_session().await;
        if is_sessionless(self.headers) {
            return not_allowed("POST");
        }
        match self.session(None) {
            Ok(session) => {
                self.core.sessions.remove(&session);
                shared::end(self.core, session.id).await;
                let mut response = Response::new(Body::empty());
                *response.status_mut() = StatusCode::NO_CONTENT;
                response
            }
            Err(response) => *response,
        }
    }

    /// Updates the session of the request from the shared state.
    async fn refresh_session(&self) {
        shared::refresh_session(self.core, self.principal.as_ref(), self.headers).await;
    }

    /// Returns the session that the headers name.
    ///
    /// # Errors
    ///
    /// Returns the answer to `request` if the session does not exist.
    fn session(&self, request: Option<&Id>) -> Result<Arc<Session>, Box<Response<Body>>> {
        let refuse = |status, what| Err(Box::new(invalid(status, request, what)));
        let Some(value) = self.headers.get(SESSION_ID) else {
            return refuse(
                StatusCode::BAD_REQUEST,
                "no session: begin with initialize and send its Mcp-Session-Id, or send a request of revision 2026-07-28",
            );
        };
        let id = value.to_str().ok().and_then(SessionId::parse);
        let idle = self.settings.options.session_idle;
        let session = id.and_then(|id| self.core.sessions.get(id, self.principal.as_ref(), idle));
        match session {
            Some(session) => Ok(session),
            None => {
                refuse(StatusCode::NOT_FOUND, "session not found: it ended or expired; begin a new one")
            }
        }
    }
}

fn is_sessionless(headers: &HeaderMap) -> bool {
    let version = headers.get(PROTOCOL_VERSION).and_then(|value| value.to_str().ok());
    version.and_then(Revision::parse).is_some_and(Revision::is_sessionless)
}

/// Returns an error of the protocol as a response.
fn refuse(status: StatusCode, id: Option<&Id>, error: &ErrorData) -> Response<Body> {
    json(status, rpc::error(id, error))
}

/// Returns the error of an invalid request.
fn invalid(status: StatusCode, id: Option<&Id>, what: impl Into<Cow<'static, str>>) -> Response<Body> {
    refuse(status, id, &ErrorData::invalid_request(what, None))
}

/// Returns the answer to a body that could not be read. The rest stays unread, so the connection is
/// closed.
fn unreadable(status: StatusCode, max: usize) -> Response<Body> {
    closing(invalid(status, None, why_unreadable(status, max)))
}

fn accepted() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}

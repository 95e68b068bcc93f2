//! The task of one server behind HTTP. It opens the connection when it is needed, lists the tools, and
//! receives notifications. When the connection is lost, it opens it again after a backoff that grows
//! with each failure.
//!
//! Calls do not pass through this task. They take the newest [`Link`] and report when it is no longer
//! usable.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use orla_marketplace::{JsonText, jitter};
use orla_mcp::answer::{self, ToolPage, leave_out_duplicates, warn_of_misspelt_hints};
use orla_mcp::framing::{Event, Events};
use orla_mcp::object::Object;
use orla_mcp::wire::{self, Message};
use orla_mcp::{MAX_PAGES, MAX_TOOLS, ServerInfo, input_requests, object};
use orla_oauth::connection_problem;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use reqwest::{Method, Request, Response, StatusCode};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::exchange::{Exchange, Failure, Place};
use super::headers::{LAST_EVENT_ID, SESSION_ID};
use super::link::{self, Channel, Link, Unopened};
use super::shared::{Acknowledgement, Question, Shared, State};
use crate::sign_in::Unanswered;

/// How long a server may take to end a session when orla ends.
const DELETE_TIMEOUT: Duration = Duration::from_secs(2);
/// The first message of a server on a stream of changes.
const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";
/// The pause before the next attempt at a server that refuses orla because of its entry.
const REFUSED_PAUSE: Duration = Duration::from_secs(5 * 60);
/// A connection or a stream that lasted this long did not fail immediately.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// Supervises a server until it is no longer used.
pub(super) async fn run(shared: Arc<Shared>, stop: CancellationToken) {
    let mut number = 0;
    let mut failures = 0;
    // The number of consecutive links that ended soon without a failure.
    let mut short = 0;
    let mut link: Option<Arc<Link>> = None;
    // The failure that was logged last.
    let mut logged: Option<String> = None;
    let served = async {
        shared.wanted.notified().await;
        loop {
            number += 1;
            set_state(&shared, State::Starting, logged.is_none());
            let opened = timeout(shared.startup_timeout, link::open(&shared, number)).await;
            let Unopened { reason, is_lasting, .. } = match opened {
                Ok(Ok(opened)) => {
                    let opened = Arc::new(opened);
                    link = Some(Arc::clone(&opened));
                    if number > 1 {
                        shared.restarts.fetch_add(1, Ordering::Relaxed);
                    }
                    let since = Instant::now();
                    set_state(&shared, State::Ready(Arc::clone(&opened), since), true);
                    logged = None;
                    let ended = serve(&shared, &opened).await;
                    if since.elapsed() >= STABLE_AFTER {
                        (failures, short) = (0, 0);
                    }
                    match ended {
                        None => {
                            // The first reconnection is immediate, because a session may end at any
                            // time.
                            let backoff = shared.policy.lock().backoff(short);
                            if short > 0 {
                                sleep(backoff).await;
                            }
                            short = short.saturating_add(1);
                            continue;
                        }
                        Some(reason) => reason.into(),
                    }
                }
                Ok(Err(unopened)) => unopened,
                Err(_) => {
                    let limit = shared.startup_timeout.as_secs_f64();
                    format!("it did not answer within {limit} s").into()
                }
            };
            failures += 1;
            *shared.last_failure.lock() = Some(reason.clone());
            let is_new = logged.as_ref() != Some(&reason);
            logged = Some(reason.clone());
            set_state(&shared, State::Crashed { attempt: number, reason }, is_new);
            shared.settled();
            // The pause is at least half of the backoff, so that a failing server is not asked
            // immediately.
            let backoff = shared.policy.lock().backoff(failures).mul_f64(0.5 + jitter() / 2.0);
            let backoff = if is_lasting { REFUSED_PAUSE } else { backoff };
            // A caller's connection is opened only for a call.
            let pause = async {
                if shared.is_of_caller { std::future::pending().await } else { sleep(backoff).await }
            };
            tokio::select! {
                () = pause => {}
                // A call does not wait longer than one attempt.
                () = shared.wanted.notified() => {}
            }
        }
    };
    tokio::select! {
        () = served => {}
        () = stop.cancelled() => {}
    }
    set_state(&shared, State::Stopped, true);
    shared.settled();
    if let Some(session) = link.as_ref().and_then(|link| link.session.as_ref()) {
        end(&shared, session).await;
    }
}

/// Sets the state. A state that is not new is logged at the debug level only.
fn set_state(shared: &Shared, state: State, is_new: bool) {
    let (server, before) = (&*shared.name, shared.state.borrow().name());
    let to = state.name();
    match &state {
        _ if !is_new => tracing::debug!(server, from = before, to, "server"),
        State::Crashed { reason, .. } => {
            tracing::warn!(server, from = before, to, cause = reason, "server");
        }
        _ => tracing::info!(server, from = before, to, "server"),
    }
    shared.state.send_replace(state);
}

/// Listens and lists tools until the connection is unusable. Returns the reason if that is a failure.
async fn serve(shared: &Shared, link: &Link) -> Option<String> {
    let learning = async {
        if shared.is_of_caller {
            return std::future::pending().await;
        }
        loop {
            if let Err(failure) = learn(shared, link).await {
                return failure;
            }
            shared.tools_changed.notified().await;
        }
    };
    let mut useless = shared.useless.subscribe();
    let useless = async {
        let useless = useless.wait_for(|(number, _)| *number >= link.number).await;
        useless.ok().and_then(|useless| useless.1.clone())
    };
    let over = |failure: Failure| match failure {
        Failure::Expired => None,
        failure => Some(failure.to_string()),
    };
    tokio::select! {
        failure = learning => over(failure),
        failure = listen(shared, link) => over(failure),
        failure = follow(shared, link) => over(failure),
        reason = useless => reason,
    }
}

/// Lists what the server serves.
async fn learn(shared: &Shared, link: &Link) -> Result<(), Failure> {
    if let Some(info) = list_tools(shared, link).await? {
        shared.set_info(info);
    }
    Ok(())
}

/// Requests the tools.
pub(super) async fn list_tools(shared: &Shared, link: &Link) -> Result<Option<ServerInfo>, Failure> {
    let Some(channel) = link.own() else { return Ok(None) };
    let mut tools = Vec::new();
    let mut cursor: Option<String> = None;
    for page in 1..=MAX_PAGES {
        if !channel.offers.tools {
            break;
        }
        let params = link::list_request(cursor.as_deref());
        let listed = match Exchange::own(shared, channel).request("tools/list", &params).await {
            Ok(answer) => ToolPage::read(&answer.result),
            Err(Failure::Fault(fault)) => Err(Failure::Fault(fault).to_string()),
            Err(failure) => return Err(failure),
        };
        let server = &*shared.name;
        let listed = match listed {
            Ok(listed) => listed,
            Err(problem) => {
                let problem = wire::quoted(problem.as_bytes());
                tracing::warn!(server, problem, "tools/list returned no list");
                break;
            }
        };
        if listed.left_out > 0 {
            let left_out = listed.left_out;
            tracing::warn!(server, left_out, "entries of tools/list that are not tools are left out");
        }
        tools.extend(listed.tools);
        cursor = listed.next_cursor;
        if cursor.is_none() {
            break;
        }
        if page == MAX_PAGES || tools.len() >= MAX_TOOLS {
            tracing::warn!(
                server,
                tools = tools.len(),
                "its list of tools is too long, and is truncated"
            );
            tools.truncate(MAX_TOOLS);
            break;
        }
    }
    leave_out_duplicates(&shared.name, &mut tools);
    warn_of_misspelt_hints(&shared.name, &tools);
    Ok(Some(ServerInfo { tools: Some(tools), offers: channel.offers.clone(), mode: channel.mode }))
}

/// Keeps the notification stream of a session open, if the server offers one.
async fn listen(shared: &Shared, link: &Link) -> Failure {
    let channel = link.session.as_ref().filter(|_| !shared.is_of_caller);
    let Some(channel) = channel else { return std::future::pending().await };
    let mut place = Place::default();
    let mut short = 0;
    loop {
        let mut request = Request::new(Method::GET, shared.url.clone());
        let fields = request.headers_mut();
        fields.clone_from(&channel.headers);
        fields.remove(CONTENT_TYPE);
        fields.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Some(Ok(event)) = place.last.as_ref().map(|event| HeaderValue::from_bytes(event)) {
            fields.insert(LAST_EVENT_ID, event);
        }
        let since = Instant::now();
        match stream(shared, channel, request, &mut place).await {
            Ended::Refused => return std::future::pending().await,
            Ended::Failed(failure) => return failure,
            Ended::Cut => pause(shared, since, &mut short, place.retry()).await,
        }
    }
}

/// Keeps the notification stream of a server without sessions open.
async fn follow(shared: &Shared, link: &Link) -> Failure {
    let channel = link.sessionless.as_ref().filter(|_| !shared.is_of_caller);
    let Some(channel) = channel else { return std::future::pending().await };
    let mut short = 0;
    loop {
        let uris = shared.subscriptions.uris();
        let params = object::trusted(input_requests::listen(&channel.offers, &uris));
        shared.acknowledged.send_replace(Acknowledgement { asked: uris, known: None });
        let request = Exchange::own(shared, channel).of_method("subscriptions/listen", &params);
        let since = Instant::now();
        let mut place = Place::default();
        let ended = tokio::select! {
            ended = stream(shared, channel, request, &mut place) => ended,
            // The old stream ends when it is dropped.
            () = shared.resubscribe.notified() => continue,
        };
        match ended {
            Ended::Refused => return std::future::pending().await,
            Ended::Failed(failure) => return failure,
            Ended::Cut => pause(shared, since, &mut short, place.retry()).await,
        }
    }
}

/// Waits before a stream that has ended is opened again. The wait grows each time the stream ends
/// immediately.
async fn pause(shared: &Shared, since: Instant, short: &mut u32, least: Duration) {
    *short = if since.elapsed() < STABLE_AFTER { short.saturating_add(1) } else { 0 };
    let backoff = shared.policy.lock().backoff(*short);
    sleep(least.max(backoff)).await;
}

/// The end of a stream.
enum Ended {
    /// The server does not offer the stream.
    Refused,
    Failed(Failure),
    /// The stream may be opened again.
    Cut,
}

/// Reads one stream to its end.
async fn stream(shared: &Shared, channel: &Channel, request: Request, place: &mut Place) -> Ended {
    let mut response: Response = match shared.sender.execute(request).await {
        Ok(response) => response,
        Err(Unanswered::Token(_)) => return Ended::Refused,
        Err(Unanswered::Http(err)) if err.is_connect() => {
            let reason = format!("it cannot be reached: {}", connection_problem(&err));
            return Ended::Failed(Failure::Lost(reason));
        }
        Err(Unanswered::Http(_)) => return Ended::Cut,
    };
    let status = response.status();
    if status == StatusCode::NOT_FOUND && channel.has_session() {
        return Ended::Failed(Failure::Expired);
    }
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    if !status.is_success() || !kind.is_some_and(|kind| kind.starts_with("text/event-stream")) {
        let passes = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
        return if passes { Ended::Cut } else { Ended::Refused };
    }
    let mut events = Events::default();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) => events.push(&chunk),
            Ok(None) | Err(_) => return Ended::Cut,
        }
        loop {
            match events.next() {
                Ok(Some(event)) => handle_event(shared, channel, event, place),
                Ok(None) => break,
                Err(_) => return Ended::Cut,
            }
        }
    }
}

/// Handles an event of a notification stream.
fn handle_event(shared: &Shared, channel: &Channel, event: Event, place: &mut Place) {
    place.record(&event);
    for message in wire::messages(event.data) {
        match wire::read(&message) {
            Some(Message::Notification { method, params: Some(params) }) if method == ACKNOWLEDGED => {
                let known = Some(acknowledged(&params));
                shared.acknowledged.send_modify(|all| all.known = known);
            }
            Some(Message::Notification { method, params }) => {
                shared.receive(answer::notification(&method, params.as_ref()));
            }
            Some(Message::Request { id, method, params }) => {
                // The server receives no answer to a question above the limit, and its own timeout ends
                // the question.
                let Ok(place) = Arc::clone(&shared.questions).try_acquire_owned() else { continue };
                // The question belongs to no request. It is relayed only if there is a single caller.
                let client = shared.only_client();
                let params = params.unwrap_or_else(object::empty);
                let question = Question { id, method, params, client };
                let (sender, url, headers) =
                    (shared.sender.clone(), shared.url.clone(), channel.headers.clone());
                shared.tasks.spawn(async move {
                    let mut body = question.answer().await;
                    body.pop();
                    let mut request = Request::new(Method::POST, url);
                    *request.headers_mut() = headers;
                    *request.body_mut() = Some(body.into());
                    *request.timeout_mut() = Some(STABLE_AFTER);
                    let sent = sender.execute(request).await.map(drop);
                    drop(place);
                    sent
                });
            }
            // The graceful end of a subscription, or a message that belongs elsewhere.
            Some(Message::Answer { .. } | Message::Stray { .. }) | None => {}
        }
    }
}

/// Returns the resources that a server has acknowledged.
fn acknowledged(params: &JsonText) -> Vec<String> {
    let uris = Object::parse(params.as_str()).and_then(|params| {
        Some(Object::parse(params.get("notifications")?)?.get("resourceSubscriptions")?.to_owned())
    });
    uris.and_then(|uris| serde_json::from_str(&uris).ok()).unwrap_or_default()
}

/// Ends a session.
async fn end(shared: &Shared, channel: &Channel) {
    let Some(id) = channel.headers.get(SESSION_ID) else { return };
    let mut request = Request::new(Method::DELETE, shared.url.clone());
    let fields = request.headers_mut();
    fields.clone_from(&channel.headers);
    fields.remove(CONTENT_TYPE);
    fields.insert(SESSION_ID, id.clone());
    *request.timeout_mut() = Some(DELETE_TIMEOUT);
    // If the request fails, the server ends the session itself eventually.
    let _ = shared.sender.execute(request).await;
}

//! `/api`: every capability over plain HTTP, for programs that know no MCP.
//!
//! | request | answer |
//! |---|---|
//! | `POST /api/ID` with the input as a JSON object | 200 and the output as JSON ([`plain_output`]) |
//! | the same with `Prefer: respond-async` | 202, the task, and its place in `Location` |
//! | the same with `Accept: text/event-stream`, or for a stream | the items, or the course of the call, as events ([`events`]) |
//! | `GET /api/openapi.json` | the caller's capabilities, as OpenAPI 3.1 ([`openapi`]) |
//!
//! # How it works
//!
//! A request is a call like any other: the marketplace authorises, validates, limits and records it. A
//! failure is a problem document ([`problem`]). With an `Idempotency-Key`, a call is made at most once
//! and its answer is repeated ([`idempotency`](crate::idempotency)). Such a call continues if its client
//! disconnects; any other call is withdrawn.

mod events;
mod openapi;
mod problem;
mod schema;

use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use hyper::body::Incoming;
use orla_marketplace::{
    Call, JsonText, Outcome, Payload, Principal, ProviderType, RuntimeError, RuntimeResult,
};
use orla_mcp::call_result::plain_output;
use orla_tasks::{NewTask, Task, TaskError, Viewer};
use percent_encoding::percent_decode_str;

use crate::credential::Credential;
use crate::http::body::Body;
use crate::http::json_body;
use crate::http::response::{json, names};
use crate::http::url::below;
use crate::idempotency::{self, Attempt, CallOutcome, Claim, Refused, StoredAnswer};
use crate::state::{Core, Settings};
use crate::step_up::StepUp;
use crate::tasks::{message, status_and_kind, task_json};
use problem::Problem;

const PATH: &str = "/api";
const DOCUMENT: &str = "openapi.json";
const KEY: &str = "idempotency-key";

/// Returns whether this path belongs to REST.
pub(crate) fn is_route(path: &str) -> bool {
    below(PATH, path).is_some()
}

/// Returns the methods that a path below `/api` has.
pub(crate) fn methods(path: &str) -> &'static str {
    match below(PATH, path) {
        Some(rest) if rest.trim_start_matches('/') == DOCUMENT => "GET, HEAD, OPTIONS",
        _ => "POST, OPTIONS",
    }
}

/// Answers a request below `/api`.
pub(crate) async fn serve(
    core: &Arc<Core>,
    settings: &Settings,
    principal: Option<Principal>,
    parts: &Parts,
    incoming: Incoming,
) -> Response<Body> {
    let path = parts.uri.path().strip_prefix(PATH).unwrap_or_default();
    let path = path.strip_prefix('/').unwrap_or(path);
    if path == DOCUMENT && matches!(parts.method, Method::GET | Method::HEAD) {
        core.market.prepare_listing().await;
        let needs_token = settings.options.auth.are_required();
        let all = parts.uri.query() == Some("all=true");
        let document = openapi::document(&core.market.snapshot(), principal.as_ref(), needs_token, all);
        return json(StatusCode::OK, document);
    }
    let target = percent_decode_str(path).decode_utf8();
    let (Ok(target), false) = (target, path.is_empty() || path.contains('/')) else {
        let what = "there is nothing at this path: capabilities are at /api/ID";
        return Problem::new(StatusCode::NOT_FOUND, "not-found", what).into_response();
    };
    if parts.method != Method::POST {
        let what = "a capability is called with POST";
        let mut response =
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "invalid-argument", what).into_response();
        let allow = HeaderValue::from_static(methods(parts.uri.path()));
        response.headers_mut().insert(header::ALLOW, allow);
        return response;
    }
    let input = match read(core, settings, parts, incoming).await {
        Ok(input) => input,
        Err(refused) => return refused,
    };
    let mut call = Call::to(&*target).with(Payload::from_json(input));
    call.scope.principal.clone_from(&principal);
    call.scope.traceparent = traceparent(&parts.headers);
    call.scope.cancellation = core.abort.child_token();
    let key = match key(&parts.headers) {
        Ok(key) => key,
        Err(what) => {
            let what = format!("the header Idempotency-Key {what}");
            return Problem::new(StatusCode::BAD_REQUEST, "invalid-argument", what).into_response();
        }
    };
    let mode = if core.tasks().is_some() && prefers_async(&parts.headers) {
        ResponseMode::Task
    } else {
        ResponseMode::Wait
    };
    match (key, mode) {
        (Some(key), mode) => {
            let credential = Credential::of(core, principal.as_ref(), &parts.extensions);
            return call_with_key(core, call, key, mode, credential).await;
        }
        (None, ResponseMode::Task) => return start(core, call, None).await.into_response(),
        (None, ResponseMode::Wait) => {}
    }
    if !names(&parts.headers, "text/event-stream") {
        return answer(core, call).await.into_response();
    }
    let catalog = core.market.catalog_for(&call).await;
    let entry = catalog.visible(principal.as_ref(), &target);
    let is_stream =
        entry.is_some_and(|entry| matches!(entry.manifest.provider, ProviderType::Stream(_)));
    if is_stream {
        events::stream_events(core, call).await
    } else {
        events::call_events(core, call).await
    }
}

/// The form in which a client wants its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResponseMode {
    /// The client waits for the output.
    Wait,
    /// The client gets a task (`Prefer: respond-async`).
    Task,
}

/// Makes the call.
async fn answer(core: &Arc<Core>, call: Call) -> Answer {
    let principal = call.scope.principal.clone();
    let result = core.market.call(call).await;
    Answer { step_up: step_up(core, principal.as_ref(), &result), ..Answer::of(&result) }
}

fn step_up(
    core: &Core,
    principal: Option<&Principal>,
    result: &RuntimeResult<Outcome>,
) -> Option<StepUp> {
    result.as_ref().err().and_then(|error| StepUp::after(core, principal, error))
}

/// Makes the call if the key is new, and otherwise repeats its answer, plain or as a task. The call
/// continues if its client disconnects.
async fn call_with_key(
    core: &Arc<Core>,
    mut call: Call,
    key: String,
    mode: ResponseMode,
    credential: Option<Credential>,
) -> Response<Body> {
    let input = match call.input.json() {
        Ok(input) => input.clone(),
        Err(error) => return Problem::of(&error).into_response(),
    };
    let attempt = Attempt::new(call.scope.principal.as_ref(), &key, &call.target, &input);
    let own = Arc::clone(core);
    let token = core.abort.child_token();
    call.scope.cancellation = token.clone();
    let running = core.tracker.spawn(async move {
        let claimed = tokio::select! {
            claimed = own.answers().claim(attempt) => claimed,
            // Another server may need much more time for the call.
            () = own.abort.cancelled() => Err(Refused::Ending),
        };
        let claim = match claimed {
            Ok(Claim::New(claim)) => claim,
            Ok(Claim::Answered(answer)) => return replay(&own, call, answer).await,
            // The server ended between noting the key and answering. The accepted task exists.
            Err(refused @ (Refused::Interrupted | Refused::Unreadable))
                if mode == ResponseMode::Task =>
            {
                let task = find_started(&own, &call, &key).await;
                return task.unwrap_or_else(|| refused.into_answer());
            }
            Err(refused) => return refused.into_answer(),
        };
        let mut answering = std::pin::pin!(async {
            match mode {
                ResponseMode::Wait => answer(&own, call).await,
                ResponseMode::Task => start(&own, call, Some(key)).await,
            }
        });
        let withdrawn = async {
            match credential {
                Some(credential) => credential.withdrawn().await,
                None => std::future::pending().await,
            }
        };
        let answer = tokio::select! {
            biased;
            answer = &mut answering => answer,
            () = withdrawn => {
                token.cancel();
                answering.await
            }
        };
        let ended = match answer.run {
            Run::Complete => CallOutcome::Answered(&answer.stored),
            Run::None => CallOutcome::NeverRan,
            Run::CutShort => CallOutcome::Unknown,
        };
        claim.end(ended).await;
        answer
    });
    running.await.unwrap_or_else(|_| Answer::panicked()).into_response()
}

/// Returns the stored answer, or the current state of the task. If the caller may no longer make the
/// call, the answer says so. The answer of a capability that is gone is still repeated.
async fn replay(core: &Arc<Core>, call: Call, stored: StoredAnswer) -> Answer {
    let principal = call.scope.principal.clone();
    let is_served = core.market.snapshot().get(&call.target).is_some();
    if is_served
        && let Err(error @ (RuntimeError::Denied { .. } | RuntimeError::Unknown { .. })) =
            core.market.check(call).await
    {
        let result = Err(error);
        return Answer { step_up: step_up(core, principal.as_ref(), &result), ..Answer::of(&result) };
    }
    if let (Some(id), Some(tasks)) = (stored.task(), core.tasks())
        && let Ok(task) = tasks.get(&id, Viewer::Caller(principal.as_ref())).await
    {
        return Answer::accepted(&task);
    }
    stored.into()
}

/// Starts a task that makes the call.
async fn start(core: &Core, call: Call, key: Option<String>) -> Answer {
    let Some(tasks) = core.tasks() else { return Answer::panicked() };
    let new = new_task(call, key);
    let principal = new.caller.clone();
    match tasks.start(new.clone()).await {
        Ok(started) => Answer::accepted(&started.task),
        Err(TaskError::Refused(error)) => {
            let step_up = StepUp::after(core, principal.as_ref(), &error);
            Answer { run: Run::None, step_up, ..Problem::of(&error).into_answer() }
        }
        Err(error) => {
            let (status, kind) = status_and_kind(&error);
            let text = message(&error);
            // A write that failed may have been made all the same.
            let run = match error {
                TaskError::State(_) => match tasks.started_with(&new).await {
                    Ok(None) => Run::None,
                    Ok(Some(task)) => return Answer::accepted(&task),
                    Err(_) => Run::CutShort,
                },
                _ => Run::None,
            };
            Answer { run, ..Problem::new(status, kind, text).into_answer() }
        }
    }
}

/// Returns the task that the caller has started with this key and this call.
async fn find_started(core: &Core, call: &Call, key: &str) -> Option<Answer> {
    let task = core.tasks()?.started_with(&new_task(call.clone(), Some(key.to_owned()))).await;
    task.ok().flatten().map(|task| Answer::accepted(&task))
}

fn new_task(call: Call, key: Option<String>) -> NewTask {
    let Call { target, input, scope, .. } = call;
    let mut task = NewTask::call(target, input, scope.principal);
    task.key = key;
    task
}

/// The answer to a call.
struct Answer {
    stored: StoredAnswer,
    run: Run,
    step_up: Option<StepUp>,
}

/// How much of a call has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    /// All of the call.
    Complete,
    /// No part of the call.
    None,
    /// A part: the call was cancelled before its end.
    CutShort,
}

impl Refused {
    fn into_answer(self) -> Answer {
        let (status, kind, what) = self.describe();
        Problem::new(status, kind, what).into_answer()
    }
}

impl StoredAnswer {
    /// Returns the id of the task that this answer names.
    fn task(&self) -> Option<String> {
        #[derive(serde::Deserialize)]
        struct Named {
            id: String,
        }
        let is_task = self.status == StatusCode::ACCEPTED;
        is_task.then(|| serde_json::from_slice::<Named>(&self.body).ok()).flatten().map(|task| task.id)
    }
}

impl From<StoredAnswer> for Answer {
    fn from(stored: StoredAnswer) -> Self {
        Self { stored, run: Run::Complete, step_up: None }
    }
}

impl Answer {
    fn of(result: &RuntimeResult<Outcome>) -> Self {
        match result.as_ref().map(plain_output) {
            Ok(Ok(output)) => {
                let body = output.bytes().clone();
                StoredAnswer { status: StatusCode::OK, retry_after: None, body }.into()
            }
            // The value has no JSON form.
            Ok(Err(error)) => Self { run: Run::Complete, ..Problem::of(&error).into_answer() },
            Err(error) => {
                let run = match error {
                    RuntimeError::Unknown { .. }
                    | RuntimeError::Denied { .. }
                    | RuntimeError::Unapproved { .. } => Run::None,
                    error if error.never_ran() => Run::None,
                    RuntimeError::Cancelled { .. } | RuntimeError::Stopped { .. } => Run::CutShort,
                    _ => Run::Complete,
                };
                Self { run, ..Problem::of(error).into_answer() }
            }
        }
    }

    /// Returns the answer with a task: 202, and its place.
    fn accepted(task: &Task) -> Self {
        let body = task_json(task).to_string().into();
        StoredAnswer { status: StatusCode::ACCEPTED, retry_after: None, body }.into()
    }

    /// Returns the answer of a call whose task broke down.
    fn panicked() -> Self {
        let what = "the call broke down; see the server's log";
        Problem::new(StatusCode::BAD_GATEWAY, "panicked", what).into_answer()
    }

    fn into_response(self) -> Response<Body> {
        let task = self.stored.task();
        let StoredAnswer { status, retry_after, body } = self.stored;
        let mut response = json(status, body);
        let headers = response.headers_mut();
        if let Some(place) = task.and_then(|id| HeaderValue::from_str(&format!("/tasks/{id}")).ok()) {
            headers.insert(header::LOCATION, place);
            headers.insert("preference-applied", HeaderValue::from_static("respond-async"));
        }
        if !status.is_success() {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(problem::MEDIA_TYPE));
        }
        if let Some(seconds) = retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        StepUp::apply(self.step_up, response)
    }
}

/// Returns the input of a request: a JSON object, or nothing for an empty one.
async fn read(
    core: &Core,
    settings: &Settings,
    parts: &Parts,
    incoming: Incoming,
) -> Result<JsonText, Response<Body>> {
    let read = json_body::read(core.market.memory(), &settings.options, &parts.headers, incoming).await;
    let body = read.map_err(|error| {
        error.response(|status, why| Problem::new(status, "invalid-argument", why).into_response())
    })?;
    let text = body.trim_ascii();
    if text.is_empty() {
        return Ok(JsonText::parse("{}").unwrap_or_default());
    }
    let malformed =
        |what: String| Problem::new(StatusCode::BAD_REQUEST, "invalid-argument", what).into_response();
    if !text.starts_with(b"{") {
        return Err(malformed("the body is not a JSON object: it is the input of the call".to_owned()));
    }
    JsonText::parse(body).map_err(|error| malformed(format!("the body cannot be read: {error}")))
}

/// Returns the idempotency key of a request.
///
/// # Errors
///
/// Returns what is wrong with the header.
fn key(headers: &HeaderMap) -> Result<Option<String>, &'static str> {
    let mut values = headers.get_all(KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    match (value.to_str(), values.next()) {
        (_, Some(_)) => Err("is there twice"),
        (Err(_), _) => Err("has characters other than visible ASCII"),
        (Ok(""), _) => Err("is empty"),
        (Ok(key), _) if key.len() > idempotency::MAX_KEY => Err("has more than 256 bytes"),
        (Ok(key), _) => Ok(Some(key.to_owned())),
    }
}

/// Returns whether the client prefers a task to an answer (RFC 7240).
fn prefers_async(headers: &HeaderMap) -> bool {
    headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok()).any(|value| {
        let mut preferences = value.split([',', ';']);
        preferences.any(|one| one.trim().eq_ignore_ascii_case("respond-async"))
    })
}

fn traceparent(headers: &HeaderMap) -> Option<Arc<str>> {
    headers.get("traceparent").and_then(|value| value.to_str().ok()).map(Arc::from)
}

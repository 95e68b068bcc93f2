//! `/tasks`: calls that outlive their callers.
//!
//! | request | answer |
//! |---|---|
//! | `POST /tasks` with `{capability, input?, key?}` or `{program, input?, key?}` | 202 and the task; 200 if the caller used the key before |
//! | `GET /tasks`, with `?state`, `?capability`, `?before` and `?limit` | an array of tasks, the newest first |
//! | `GET /tasks/ID`, with `?wait=SECONDS` | the task, at its end if that comes in time; with `?result=mcp`, its result is that of `tools/call` |
//! | `DELETE /tasks/ID` | cancels the task: 200 and the task; 409 if it was over |
//! | `POST /tasks/ID/events/NAME` with any JSON | 202: the program of the task gets it |
//!
//! A caller sees its own tasks, and those of others with the permission `tasks:read`; with
//! `tasks:manage` it may cancel them and send events to them. A call that would be refused is refused at
//! once, and no task is made. Errors have the same form as at `/rtfs`.

mod json;
pub(crate) mod other_nodes;
mod request;

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, header};
use hyper::body::Incoming;
use orla_marketplace::{JsonText, Principal, RuntimeError};
use orla_mcp::federation::described;
use orla_tasks::{MANAGE, State, Task, TaskError, Tasks, Viewer};
use percent_encoding::percent_decode_str;
use serde_json::json;
use tokio::time::Instant;

use crate::http::body::Body;
use crate::http::json_body;
use crate::http::response::{
    forbidden, json as json_response, malformed, not_allowed, refused, retry_after, status_of,
};
use crate::http::url::below;
use crate::state::{Core, Settings};
use crate::step_up::StepUp;

pub(crate) use json::shown as task_json;
pub use json::{ResultForm, shown, shown_with_result};
use request::{TaskQuery, wanted};

const PATH: &str = "/tasks";

/// Returns whether this path belongs to tasks.
pub(crate) fn is_route(path: &str) -> bool {
    below(PATH, path).is_some()
}

/// Answers a request below `/tasks`.
pub(crate) async fn serve(
    core: &Arc<Core>,
    settings: &Settings,
    principal: Option<Principal>,
    parts: &Parts,
    incoming: Incoming,
) -> Response<Body> {
    let Some(tasks) = core.tasks() else {
        return refused(StatusCode::NOT_FOUND, "not-found", "this server has no tasks");
    };
    let viewer = Viewer::of(&core.market, principal.as_ref());
    let manager = || Viewer::managing(&core.market, principal.as_ref());
    let path = parts.uri.path().strip_prefix(PATH).unwrap_or_default().trim_start_matches('/');
    let segments: Vec<&str> = path.split('/').collect();
    let query = parts.uri.query().unwrap_or_default();
    let answer = match (&segments[..], &parts.method) {
        ([""], &Method::GET | &Method::HEAD) => list(tasks, viewer, query).await,
        ([""], &Method::POST) => {
            let body =
                match json_body::read(core.market.memory(), &settings.options, &parts.headers, incoming)
                    .await
                {
                    Ok(body) => body,
                    Err(error) => return error.refused(),
                };
            return start(core, tasks, principal, &body).await;
        }
        ([""], _) => return not_allowed("GET, HEAD, POST, OPTIONS"),
        ([id], &Method::GET | &Method::HEAD) => show(core, tasks, viewer, id, query).await,
        ([id], &Method::DELETE) => manage(tasks, viewer, id, cancel(tasks, manager(), id).await).await,
        ([_], _) => return not_allowed("GET, HEAD, DELETE, OPTIONS"),
        ([id, "events", name], &Method::POST) => {
            let value =
                match json_body::read(core.market.memory(), &settings.options, &parts.headers, incoming)
                    .await
                {
                    Ok(body) => body,
                    Err(error) => return error.refused(),
                };
            manage(tasks, viewer, id, event(tasks, manager(), id, name, &value).await).await
        }
        ([_, "events", _], _) => return not_allowed("POST, OPTIONS"),
        _ => return refused(StatusCode::NOT_FOUND, "not-found", "there is nothing at this path"),
    };
    answer.unwrap_or_else(|error| failed(&error))
}

async fn list(tasks: &Tasks, viewer: Viewer<'_>, query: &str) -> Result<Response<Body>, TaskError> {
    let filter = match request::filter(query) {
        Ok(filter) => filter,
        Err(message) => return Ok(malformed(&message)),
    };
    let found = tasks.list(&filter, viewer).await?;
    let rows: Vec<String> = found.iter().map(|task| shown(task).to_string()).collect();
    Ok(json_response(StatusCode::OK, format!("[{}]", rows.join(","))))
}

async fn start(
    core: &Arc<Core>,
    tasks: &Tasks,
    principal: Option<Principal>,
    body: &bytes::Bytes,
) -> Response<Body> {
    let task = match wanted(body, principal.clone()) {
        Ok(task) => task,
        Err(message) => return malformed(&message),
    };
    match tasks.start(task).await {
        Ok(started) => {
            let status = if started.is_new { StatusCode::ACCEPTED } else { StatusCode::OK };
            let mut response = match complete(tasks, &started.task, ResultForm::Plain).await {
                Ok(text) => json_response(status, text),
                Err(error) => return failed(&error),
            };
            if let Ok(place) = HeaderValue::from_str(&format!("{PATH}/{}", started.task.id)) {
                response.headers_mut().insert(header::LOCATION, place);
            }
            response
        }
        Err(error) => {
            let step_up = match &error {
                TaskError::Refused(error) => StepUp::after(core, principal.as_ref(), error),
                _ => None,
            };
            StepUp::apply(step_up, failed(&error))
        }
    }
}

async fn show(
    core: &Core,
    tasks: &Tasks,
    viewer: Viewer<'_>,
    id: &str,
    query: &str,
) -> Result<Response<Body>, TaskError> {
    let TaskQuery { wait, form } = match request::task_query(query) {
        Ok(query) => query,
        Err(message) => return Ok(malformed(&message)),
    };
    let task = match wait.is_zero() {
        true => tasks.get(id, viewer).await?,
        false => tokio::select! {
            waited = tasks.wait(id, viewer, Instant::now() + wait) => waited?,
            () = core.draining.cancelled() => tasks.get(id, viewer).await?,
        },
    };
    Ok(json_response(StatusCode::OK, complete(tasks, &task, form).await?))
}

async fn cancel(tasks: &Tasks, viewer: Viewer<'_>, id: &str) -> Result<Response<Body>, TaskError> {
    let task = match tasks.cancel(id, viewer).await {
        // Cancelling twice does no more than cancelling once.
        Err(TaskError::Over(State::Cancelled)) => tasks.get(id, viewer).await?,
        cancelled => cancelled?,
    };
    Ok(json_response(StatusCode::OK, complete(tasks, &task, ResultForm::Plain).await?))
}

/// Returns the answer to a request that changes a task. A caller that sees the task of another hears
/// what it lacks.
async fn manage(
    tasks: &Tasks,
    viewer: Viewer<'_>,
    id: &str,
    answer: Result<Response<Body>, TaskError>,
) -> Result<Response<Body>, TaskError> {
    match answer {
        Err(TaskError::Unknown(_)) if tasks.get(id, viewer).await.is_ok() => Ok(forbidden(format!(
            "this is a task of another caller; it takes the permission `{MANAGE}`"
        ))),
        answer => answer,
    }
}

async fn event(
    tasks: &Tasks,
    viewer: Viewer<'_>,
    id: &str,
    name: &str,
    body: &bytes::Bytes,
) -> Result<Response<Body>, TaskError> {
    let Ok(name) = percent_decode_str(name).decode_utf8() else {
        return Ok(malformed("the name of the event is not UTF-8"));
    };
    let value = match body.trim_ascii().is_empty() {
        true => JsonText::default(),
        false => match JsonText::parse(body.clone()) {
            Ok(value) => value,
            Err(err) => return Ok(malformed(&format!("the body cannot be read: {err}"))),
        },
    };
    tasks.event(id, viewer, &name, value).await?;
    Ok(json_response(StatusCode::ACCEPTED, json!({"id": id, "event": name}).to_string()))
}

/// Returns a task with its result.
async fn complete(tasks: &Tasks, task: &Task, form: ResultForm) -> Result<String, TaskError> {
    let result = async {
        match task.state.is_terminal() {
            true => tasks.result(&task.id).await,
            false => Ok(None),
        }
    };
    let (result, course) = tokio::try_join!(result, tasks.journal(task))?;
    Ok(shown_with_result(task, result.as_ref(), course.as_ref(), form))
}

/// Returns the response to a request that a task, or its call, refuses.
fn failed(error: &TaskError) -> Response<Body> {
    if let TaskError::Refused(error) = error {
        let status = match error {
            // A program that cannot be compiled: nothing has run.
            RuntimeError::Structured { .. } => StatusCode::BAD_REQUEST,
            error => status_of(error),
        };
        let mut response = json_response(status, described(error).to_string());
        if let Some(wait) = error.retry_after() {
            response.headers_mut().insert(header::RETRY_AFTER, retry_after(wait));
        }
        return response;
    }
    let (status, kind) = status_and_kind(error);
    let mut response = refused(status, kind, &message(error));
    if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        response.headers_mut().insert(header::RETRY_AFTER, retry_after(Duration::from_secs(1)));
    }
    response
}

/// Returns the message of an error for callers. A failure of the state is logged.
pub(crate) fn message(error: &TaskError) -> String {
    if matches!(error, TaskError::State(_)) {
        tracing::error!(%error, "a request about a task failed");
    }
    error.for_callers()
}

/// Returns the status of an error, and its kind.
pub(crate) fn status_and_kind(error: &TaskError) -> (StatusCode, &'static str) {
    match error {
        TaskError::Unknown(_) => (StatusCode::NOT_FOUND, "not-found"),
        TaskError::Refused(error) => (status_of(error), error.kind()),
        TaskError::LargeInput { .. } | TaskError::LargeEvent(_) => {
            (StatusCode::PAYLOAD_TOO_LARGE, "invalid-argument")
        }
        TaskError::InvalidKey(_) | TaskError::InvalidEvent => {
            (StatusCode::BAD_REQUEST, "invalid-argument")
        }
        TaskError::KeyConflict { .. }
        | TaskError::Over(_)
        | TaskError::NoProgram
        | TaskError::NotAsked(_) => (StatusCode::CONFLICT, "conflict"),
        TaskError::Full(_) | TaskError::ManyEvents(_) => (StatusCode::TOO_MANY_REQUESTS, "busy"),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
    }
}

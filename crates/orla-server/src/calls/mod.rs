//! `/calls`: the history of calls.
//!
//! | request | answer |
//! |---|---|
//! | `GET /calls`, with `?capability`, `?failed`, `?since`, `?principal`, `?client`, `?session`, `?before` and `?limit` | an array of finished calls, the newest first |
//! | `GET /calls?running`, with the same parameters but `?failed` and `?before` | an array of the running calls, the newest first |
//! | `GET /calls/ID` | the call with its data and the calls within it |
//! | `POST /calls/ID/replay` with `{input?}` | 202 and `{id}`: repeats the call as a call of this caller |
//! | `DELETE /calls/ID` | 202: cancels the call, if it runs |
//!
//! A caller sees its own calls, and those of others with the permission `history:read`. Another caller's
//! call looks like one that does not exist. Errors have the same form as at `/rtfs`.

mod request;

use std::borrow::Cow;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, header};
use hyper::body::Incoming;
use orla_history::{History, HistoryError, ReplayError, Viewer};
use orla_marketplace::{CallScope, Principal};
use orla_mcp::federation::described;
use percent_encoding::percent_decode_str;
use serde_json::json;

use crate::http::body::Body;
use crate::http::json_body;
use crate::http::response::{json as json_response, malformed, not_allowed, refused, status_of};
use crate::http::url::below;
use crate::state::{Core, Settings};
use request::Wanted;

const PATH: &str = "/calls";

/// Returns whether this path belongs to the history.
pub(crate) fn is_route(path: &str) -> bool {
    below(PATH, path).is_some()
}

/// Answers a request below `/calls`.
pub(crate) async fn serve(
    core: &Arc<Core>,
    settings: &Settings,
    principal: Option<Principal>,
    parts: &Parts,
    incoming: Incoming,
) -> Response<Body> {
    let Some(history) = core.history() else {
        return refused(StatusCode::NOT_FOUND, "not-found", "this server keeps no history");
    };
    let viewer = Viewer::of(&core.market, principal.as_ref());
    let path = parts.uri.path().strip_prefix(PATH).unwrap_or_default().trim_start_matches('/');
    let decoded = |segment| percent_decode_str(segment).decode_utf8_lossy();
    let segments: Vec<Cow<'_, str>> = path.split('/').map(decoded).collect();
    let segments: Vec<&str> = segments.iter().map(|segment| &**segment).collect();
    match (&segments[..], &parts.method) {
        ([""], &Method::GET | &Method::HEAD) => {
            list(history, &viewer, parts.uri.query().unwrap_or_default()).await
        }
        ([""], _) => not_allowed("GET, HEAD, OPTIONS"),
        ([id], &Method::GET | &Method::HEAD) => show(history, &viewer, id).await,
        ([id], &Method::DELETE) => {
            match history.cancel(id, &Viewer::cancelling(&core.market, principal.as_ref())) {
                true => json_response(StatusCode::ACCEPTED, json!({ "id": id }).to_string()),
                false => unknown("no call with this id runs"),
            }
        }
        ([_], _) => not_allowed("GET, HEAD, DELETE, OPTIONS"),
        ([id, "replay"], &Method::POST) => {
            match json_body::read(core.market.memory(), &settings.options, &parts.headers, incoming)
                .await
            {
                Ok(body) => replay(history, &viewer, id, &body, principal).await,
                Err(error) => error.refused(),
            }
        }
        ([_, "replay"], _) => not_allowed("POST, OPTIONS"),
        _ => unknown("there is nothing at this path"),
    }
}

async fn list(history: &History, viewer: &Viewer, query: &str) -> Response<Body> {
    let Wanted { query, running } = match request::wanted(query) {
        Ok(wanted) => wanted,
        Err(message) => return malformed(&message),
    };
    if running {
        let mut calls = history.running(viewer);
        calls.retain(|running| query.admits(&running.call));
        calls.truncate(query.limit);
        return shown(StatusCode::OK, &calls);
    }
    match history.list(&query, viewer).await {
        Ok(calls) => shown(StatusCode::OK, &calls),
        Err(error) => unreadable(&error),
    }
}

async fn show(history: &History, viewer: &Viewer, id: &str) -> Response<Body> {
    match history.detail(id, viewer).await {
        Ok(Some(detail)) => shown(StatusCode::OK, &detail),
        Ok(None) => unknown(NO_CALL),
        Err(error) => unreadable(&error),
    }
}

async fn replay(
    history: &History,
    viewer: &Viewer,
    id: &str,
    body: &bytes::Bytes,
    principal: Option<Principal>,
) -> Response<Body> {
    let input = match request::replay_input(body) {
        Ok(input) => input,
        Err(message) => return malformed(&message),
    };
    let mut scope = CallScope::default();
    scope.principal = principal;
    match history.replay(id, viewer, input, scope).await {
        Ok(new) => {
            let mut response = json_response(StatusCode::ACCEPTED, json!({"id": &*new}).to_string());
            if let Ok(place) = HeaderValue::from_str(&format!("{PATH}/{new}")) {
                response.headers_mut().insert(header::LOCATION, place);
            }
            response
        }
        Err(ReplayError::Unknown) => unknown(NO_CALL),
        Err(ReplayError::Refused(error)) => {
            json_response(status_of(&error), described(&error).to_string())
        }
        Err(ReplayError::Unreadable(error)) => unreadable(&error),
        Err(error @ ReplayError::TooMany) => {
            refused(StatusCode::TOO_MANY_REQUESTS, "busy", &error.to_string())
        }
        Err(error) => refused(StatusCode::CONFLICT, "conflict", &error.to_string()),
    }
}

const NO_CALL: &str = "no call has this id; the history keeps a limited number of calls";

fn shown(status: StatusCode, value: &impl serde::Serialize) -> Response<Body> {
    match serde_json::to_string(value) {
        Ok(text) => json_response(status, text),
        Err(error) => {
            tracing::error!(%error, "a call of the history cannot be shown");
            refused(StatusCode::INTERNAL_SERVER_ERROR, "failed", "the call cannot be shown")
        }
    }
}

fn unknown(message: &str) -> Response<Body> {
    refused(StatusCode::NOT_FOUND, "not-found", message)
}

fn unreadable(error: &HistoryError) -> Response<Body> {
    if matches!(error, HistoryError::TooSlow) {
        return refused(StatusCode::SERVICE_UNAVAILABLE, "unavailable", &error.to_string());
    }
    tracing::warn!(%error, "a request about calls failed");
    refused(
        StatusCode::SERVICE_UNAVAILABLE,
        "unavailable",
        "the history cannot be read; see the server's log",
    )
}

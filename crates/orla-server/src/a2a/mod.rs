//! orla as an agent of the Agent2Agent protocol (A2A 1.x): messages call capabilities.
//!
//! # How it works
//!
//! The card (`card`) is derived from the catalogue: each listed capability is a skill. A message names
//! the work to run (`work`, pure) and becomes a task of [`orla_tasks::Tasks`], like those of HTTP and
//! MCP (`agent`). `records` stores the data of a task that only this protocol has, and `view` combines
//! both (pure). `result` turns the outcome of a call into an artifact (pure), and `follow` turns changes
//! into events. There are three bindings: JSON-RPC (`rpc`) and HTTP+JSON (`rest`) at `/a2a`, and gRPC
//! (`grpc`) on the same port. A question to the caller makes a running task `input-required`, and the
//! next message of that task is the answer (`question`, pure).
//!
//! A text that is not a program is the input of the capability that
//! [`AgentOptions::text`](crate::AgentOptions::text) names. To answer texts, for example with a model,
//! register a capability for it; its input is `{message, message_id, context_id?, data?}`.
//!
//! # Invariants
//!
//! - The agent is created at the first request, so an unused agent costs nothing.
//! - A caller sees only its own tasks.
//! - Tasks are bounded in number, bytes and age. Finished ones make room, the oldest first (`stored`).
//! - A task has one state, kept by [`orla_tasks::Tasks`]; nothing here changes it.
//!
//! # Deliberately absent
//!
//! The framework of the A2A project, apart from its types. It needs its own HTTP stack, keeps every task
//! forever, and treats a task that waits for an answer as missing. Numbers have the precision of a
//! double, as in the protocol. Files in messages: no capability takes one. WebSockets, which are not a
//! binding of the protocol. Version 0.3, except over JSON-RPC (`older`).

mod agent;
mod card;
mod error;
mod follow;
#[cfg(feature = "a2a-grpc")]
mod grpc;
mod list;
mod older;
mod push;
mod question;
mod records;
mod rest;
mod result;
mod rpc;
mod stored;
mod view;
mod work;

use std::sync::Arc;

use a2a::{A2AError, error_code};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use hyper::body::Incoming;
use orla_marketplace::Principal;

pub(crate) use agent::Agent;
pub(crate) use push::resume;
pub use push::{Push, PushSender};

use crate::http::body::{self, Body};
use crate::http::response::{closing, why_unreadable};
use crate::http::url::below;
use crate::state::{Core, Settings};

/// The path of the endpoint.
pub(crate) const ENDPOINT: &str = "/a2a";
/// The path of the card.
pub(crate) const CARD: &str = "/.well-known/agent-card.json";
/// The path of the card for clients of 0.3, below the endpoint. The members of a 0.3 card conflict with
/// those of a 1.0 card.
const OLDER_CARD: &str = "0.3/.well-known/agent-card.json";

/// The path prefix of the gRPC methods.
#[cfg(feature = "a2a-grpc")]
const SERVICE: &str = "/lf.a2a.v1.A2AService/";
/// The header that names the protocol's version.
const VERSION: &str = "a2a-version";

/// A version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// Version 0.3, which is served over JSON-RPC only.
    Older,
    /// Version 1.0.
    Current,
}

impl Version {
    /// Checks that the version is 1.0.
    ///
    /// # Errors
    ///
    /// Returns an error for any other version, which this binding does not speak.
    fn is_current(self) -> Result<(), A2AError> {
        match self {
            Self::Current => Ok(()),
            Self::Older => {
                Err(A2AError::version_not_supported("0.3, or none was named; send A2A-Version: 1.0"))
            }
        }
    }
}

/// The caller, with the data from the head of its request.
#[derive(Clone)]
struct Caller {
    core: Arc<Core>,
    principal: Option<Principal>,
    headers: HeaderMap,
}

impl Caller {
    fn agent(&self) -> &Arc<Agent> {
        self.core.agent()
    }
}

/// Returns whether a path belongs to the agent.
pub(crate) fn is_route(path: &str) -> bool {
    #[cfg(feature = "a2a-grpc")]
    if path.starts_with(SERVICE) {
        return true;
    }
    path == CARD || below(ENDPOINT, path).is_some()
}

/// Answers a request to the agent.
pub(crate) async fn serve(
    core: &Arc<Core>,
    settings: &Settings,
    principal: Option<Principal>,
    parts: &Parts,
    body: Incoming,
) -> Response<Body> {
    let caller = Caller { core: Arc::clone(core), principal, headers: parts.headers.clone() };
    let path = parts.uri.path();
    if path == CARD {
        return card::answer(&caller, settings, parts, Version::Current).await;
    }
    #[cfg(feature = "a2a-grpc")]
    if path.starts_with(SERVICE) {
        return grpc::answer(caller, settings, parts, body).await;
    }
    let path = path.strip_prefix(ENDPOINT).unwrap_or_default().trim_start_matches('/');
    if path == OLDER_CARD {
        return card::answer(&caller, settings, parts, Version::Older).await;
    }
    let is_rpc = path.is_empty();
    if is_rpc && parts.method != Method::POST {
        let error = A2AError::invalid_request("messages are posted here");
        let mut response = rpc::refused(StatusCode::METHOD_NOT_ALLOWED, &error);
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST, OPTIONS"));
        return response;
    }
    let refuse = |status: StatusCode, error: &A2AError| match is_rpc {
        true => rpc::refused(status, error),
        false => rest::refused(&parts.headers, status, error),
    };
    let options = &settings.options;
    let body = match body::of_request(body, &parts.headers, core.market.memory(), options).await {
        Ok(body) => body,
        Err(status) => {
            let error = A2AError::invalid_request(why_unreadable(status, options.max_body_bytes));
            return closing(refuse(status, &error));
        }
    };
    if !body.is_empty() && !is_json(&parts.headers) {
        let what = "Content-Type must be application/json or application/a2a+json";
        let error = A2AError::new(error_code::CONTENT_TYPE_NOT_SUPPORTED, what);
        return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, &error);
    }
    let version = version(&parts.headers, parts.uri.query());
    if is_rpc {
        return rpc::answer(caller, version, &body).await;
    }
    match version.and_then(Version::is_current) {
        Ok(()) => rest::answer(caller, &parts.method, path, parts.uri.query(), &body).await,
        Err(error) => refuse(error::status(&error), &error),
    }
}

/// Returns the version that a request names, in its head or its query. A request without a version means
/// 0.3 (A2A §3.6.2).
///
/// # Errors
///
/// Returns an error if the version is not served.
fn version(headers: &HeaderMap, query: Option<&str>) -> Result<Version, A2AError> {
    let asked = rest::parameters(query)
        .into_iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(a2a::SVC_PARAM_VERSION));
    let head = headers.get(VERSION).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let version =
        head.filter(|version| !version.trim().is_empty()).or(asked.map(|(_, version)| version));
    let version = version.unwrap_or_default();
    let mut numbers = version.trim().split('.');
    match (numbers.next(), numbers.next()) {
        (Some("1"), None | Some("0")) => Ok(Version::Current),
        (Some("0"), Some("3")) | (Some(""), None) => Ok(Version::Older),
        _ => {
            let named: String = version.trim().chars().take(20).collect();
            Err(A2AError::version_not_supported(&format!("{named}; send A2A-Version: 1.0")))
        }
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = value.and_then(|value| value.split(';').next()).map(str::trim);
    essence.is_some_and(|essence| {
        ["application/json", rest::MEDIA_TYPE].iter().any(|kind| essence.eq_ignore_ascii_case(kind))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_paths_are_recognized() {
        for (path, is_route) in [
            ("/a2a", true),
            ("/a2a/", true),
            ("/a2a/tasks", true),
            ("/.well-known/agent-card.json", true),
            ("/a2ab", false),
            ("/.well-known/x", false),
        ] {
            assert_eq!(super::is_route(path), is_route, "{path}");
        }
    }

    #[test]
    fn the_version_comes_from_the_head_or_the_query() {
        use Version::{Current, Older};
        for (head, query, wanted) in [
            (Some("1.0"), None, Some(Current)),
            (Some("1.0.3"), None, Some(Current)),
            (Some("1"), None, Some(Current)),
            (Some(""), Some("A2A-Version=1.0"), Some(Current)),
            (None, Some("a=b&A2A-Version=1.0"), Some(Current)),
            (None, None, Some(Older)),
            (Some("0.3.0"), None, Some(Older)),
            (Some("0.2"), None, None),
            (Some("1.1"), None, None),
            (Some("99.0"), Some("A2A-Version=1.0"), None),
        ] {
            let headers =
                head.map(|head| (http::HeaderName::from_static(VERSION), head.parse().unwrap()));
            let headers = headers.into_iter().collect();
            assert_eq!(version(&headers, query).ok(), wanted, "{head:?} {query:?}");
        }
    }
}

//! The protocol between instances of orla at `/rtfs`, beyond what any client may use.
//!
//! - `GET /rtfs` with Accept [`CATALOGUE`] returns the catalogue: `{"version", "instance",
//!   "capabilities": [{id, via, tool}]}`, with the capabilities that the caller may call. With
//!   `?after=VERSION`, the answer waits for another version, or is 304 after `wait_ms`, so that a client
//!   that polls in a loop sees every change.
//! - The headers of a call carry data that is not part of its input: `orla-hops` (the instances that it
//!   has passed through), `orla-timeout-ms` (the time that its caller has left), `traceparent`.
//! - With Accept [`OUTCOME`], the answer has everything that the capability returned: the content and
//!   `_meta` beside the value, and for an error the details that make it the same error at the caller.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use orla_marketplace::{
    Call, Catalog, Entry, Hops, Outcome, Principal, ProviderType, RuntimeError, RuntimeResult,
    discovery, program,
};
use orla_mcp::federation::{write, write_error};
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::http::body::Body;
use crate::http::response::json as json_response;
use crate::http::response::malformed;
use crate::mcp::dispatch::Reply;
use crate::mcp::tools::tool_json;
use crate::rtfs::programs::status_of;
use crate::state::Core;

/// The media type of a catalogue.
pub(crate) const CATALOGUE: &str = "application/vnd.orla.catalogue+json";
/// The media type of answers that hold everything.
pub(crate) const OUTCOME: &str = "application/vnd.orla.outcome+json";
const HOPS: &str = "orla-hops";
const TIMEOUT_MS: &str = "orla-timeout-ms";
/// The longest time to wait for a change.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// How long the first request for the catalogue waits for providers. Providers that connect later are reported as a
/// change. Without this limit, instances that serve each other's catalogues would wait for each other.
const FIRST_CATALOGUE_TIMEOUT: Duration = Duration::from_secs(1);

/// Applies the headers of a call.
///
/// # Errors
///
/// Returns an error if the call has come through too many instances.
pub(crate) fn apply_headers(call: &mut Call, headers: &HeaderMap) -> Result<(), String> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(ms) = text(TIMEOUT_MS).and_then(|ms| ms.trim().parse().ok()) {
        call.timeout = Some(Duration::from_millis(ms));
    }
    call.scope.traceparent = text("traceparent").map(Into::into);
    if let Some(hops) = text(HOPS) {
        call.scope.hops = Hops::read(hops)?;
    }
    Ok(())
}

/// Returns the answer to a call that has passed through too many instances.
pub(crate) fn too_many_hops(id: &str, what: String) -> Response<Body> {
    let error = RuntimeError::Limit { id: id.to_owned(), what };
    reply(Err(error)).into_response()
}

/// Returns the complete outcome of a call.
pub(crate) fn reply(result: RuntimeResult<Outcome>) -> Reply {
    match result.and_then(|outcome| write(&outcome)) {
        Ok(message) => Reply::ok(message),
        Err(error) => {
            let (status, retry_after) = (status_of(&error, false), error.retry_after());
            Reply { status, retry_after, ..Reply::ok(write_error(&error)) }
        }
    }
}

/// Answers `GET /rtfs`.
pub(crate) async fn catalogue(
    core: &Arc<Core>,
    principal: Option<&Principal>,
    query: Option<&str>,
) -> Response<Body> {
    let (mut after, mut wait) = (None, Duration::ZERO);
    for (name, value) in query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('=')) {
        match name {
            "after" => after = Some(value),
            "wait_ms" => match value.parse() {
                Ok(ms) => wait = Duration::from_millis(ms).min(MAX_WAIT),
                Err(_) => return malformed("wait_ms: expected milliseconds"),
            },
            _ => {}
        }
    }
    let instance = core.market.instance();
    let version = |catalog: &Catalog| format!("{instance}-{}", catalog.generation());
    let mut changes = core.market.changes();
    match after {
        None => {
            // The preparation continues after the timeout. Later results are reported as a change.
            let asked = Arc::clone(core);
            let learning = core.tracker.spawn(async move {
                tokio::select! {
                    () = asked.market.prepare_listing() => {}
                    () = asked.draining.cancelled() => {}
                }
            });
            let _ = timeout(FIRST_CATALOGUE_TIMEOUT, learning).await;
        }
        Some(after) => {
            let end = sleep(wait);
            tokio::pin!(end);
            while version(&core.market.snapshot()) == after {
                tokio::select! {
                    Ok(()) = changes.changed() => {}
                    () = &mut end => return unchanged(),
                    () = core.draining.cancelled() => return unchanged(),
                }
            }
        }
    }
    let catalog = core.market.snapshot();
    let shown = catalog.permitted(principal);
    let shown = shown.filter(|entry| is_shared(entry) && entry.is_available());
    let shown: Vec<String> = shown.map(|entry| listed(entry, &instance)).collect();
    let text = format!(
        r#"{{"version":{},"instance":{},"capabilities":[{}]}}"#,
        json!(version(&catalog)),
        json!(&*instance),
        shown.join(",")
    );
    json_response(StatusCode::OK, text)
}

/// Returns a capability as other instances see it: a tool, in JSON. `None` if they do not see it.
pub fn shared_tool(entry: &Entry) -> Option<String> {
    (is_shared(entry) && entry.is_available()).then(|| tool_json(entry))
}

/// Returns whether other instances see it. They do not see capabilities that each instance provides by
/// itself.
fn is_shared(entry: &Entry) -> bool {
    let id = entry.manifest.id.as_str();
    let is_own = matches!(entry.manifest.provider, ProviderType::Local(_))
        || discovery::IDS.contains(&id)
        || id == program::IDS[1];
    !is_own
}

fn listed(entry: &Entry, instance: &str) -> String {
    let via: Vec<&str> = std::iter::once(instance)
        .chain(entry.manifest.provider.via().iter().map(|one| &**one))
        .collect();
    let (id, tool) = (json!(entry.manifest.id), tool_json(entry));
    format!(r#"{{"id":{id},"via":{},"tool":{tool}}}"#, json!(via))
}

fn unchanged() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_carries_its_time_its_trace_and_where_it_came_from() {
        let mut headers = HeaderMap::new();
        for (name, value) in [(HOPS, "a, b"), (TIMEOUT_MS, "1500"), ("traceparent", "00-x-y-01")] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let mut call = Call::to("x");
        apply_headers(&mut call, &headers).unwrap();
        assert_eq!(call.scope.hops.as_str(), "a, b");
        assert_eq!(call.timeout, Some(Duration::from_millis(1500)));
        assert_eq!(call.scope.traceparent.as_deref(), Some("00-x-y-01"));
        headers.insert(HOPS, HeaderValue::from_static("a,a,a,a,a,a,a,a,a"));
        assert!(apply_headers(&mut call, &headers).unwrap_err().contains("hop limit"));
    }
}

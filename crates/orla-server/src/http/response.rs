//! The forms of responses, and the headers by which clients choose one.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use orla_marketplace::{RuntimeError, millis_up, program};
use serde_json::json;

use super::body::Body;
use super::forbidden::{Forbidden, ForbiddenBy};

/// Returns a response that is a stream of events.
pub(crate) fn events(
    stream: impl futures_util::Stream<Item = Bytes> + Send + 'static,
) -> Response<Body> {
    let mut response = Response::new(Body::stream(stream));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Returns a response that is one JSON text.
pub(crate) fn json(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::Whole(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// `{"error": {kind, message, data, at}}`, the form of the errors of programs.
pub(crate) fn error_text(kind: &str, message: &str) -> String {
    json!({"error": {"kind": kind, "message": message, "data": null, "at": null}}).to_string()
}

/// Returns a refusal in the form of the errors of programs.
pub(crate) fn refused(status: StatusCode, kind: &str, message: &str) -> Response<Body> {
    json(status, error_text(kind, message))
}

/// Returns the response to a request that the policy forbids and that is not a call. The refusal is
/// reported.
pub(crate) fn forbidden(message: String) -> Response<Body> {
    let mut response = refused(StatusCode::FORBIDDEN, "denied", &message);
    let forbidden = Forbidden { by: ForbiddenBy::Policy, reason: message.into() };
    response.extensions_mut().insert(forbidden);
    response
}

/// Returns a refusal of a request that cannot be read.
pub(crate) fn malformed(message: &str) -> Response<Body> {
    refused(StatusCode::BAD_REQUEST, "invalid-argument", message)
}

/// Returns the status of a failed call.
pub(crate) fn status_of(error: &RuntimeError) -> StatusCode {
    match error {
        RuntimeError::InvalidInput { .. } => StatusCode::BAD_REQUEST,
        RuntimeError::Unknown { .. } => StatusCode::NOT_FOUND,
        RuntimeError::Denied { .. } | RuntimeError::Unapproved { .. } => StatusCode::FORBIDDEN,
        RuntimeError::Quota { .. } => StatusCode::TOO_MANY_REQUESTS,
        RuntimeError::Busy { .. }
        | RuntimeError::Unavailable { .. }
        | RuntimeError::Cancelled { .. }
        | RuntimeError::Stopped { .. }
        | RuntimeError::Suspended { .. } => StatusCode::SERVICE_UNAVAILABLE,
        RuntimeError::TimedOut { .. } => StatusCode::GATEWAY_TIMEOUT,
        RuntimeError::Structured { error, .. } if program::is_timeout(error) => {
            StatusCode::GATEWAY_TIMEOUT
        }
        // Another instance has refused the call, or a call within it was refused.
        RuntimeError::Structured { .. } => match error.kind() {
            "unknown-capability" => StatusCode::NOT_FOUND,
            "denied" | "approval" => StatusCode::FORBIDDEN,
            // A program may throw an error of this kind without any quota.
            "quota" if error.retry_after().is_some() => StatusCode::TOO_MANY_REQUESTS,
            "busy" | "unavailable" => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_GATEWAY,
        },
        _ => StatusCode::BAD_GATEWAY,
    }
}

/// Returns one server-sent event. Each line of the data has its own `data:`.
pub(crate) fn event(name: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> Bytes {
    let (name, data) = (name.as_ref(), data.as_ref());
    let mut event = [b"event: ", name, b"\n"].concat();
    for line in data.split(|byte| matches!(byte, b'\n' | b'\r')) {
        event.extend([b"data: ", line, b"\n"].concat());
    }
    event.push(b'\n');
    event.into()
}

pub(crate) fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::Whole(text.into()));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

/// Returns the value of `Retry-After`: seconds, rounded up, and at least one.
pub fn retry_after(wait: Duration) -> HeaderValue {
    HeaderValue::from(millis_up(wait).div_ceil(1000).max(1))
}

pub(crate) fn not_allowed(allow: &'static str) -> Response<Body> {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "method not allowed\n");
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allow));
    response
}

/// Prepares the response to a request whose body was not read to its end. The connection cannot be used
/// again, and a busy server says when to retry.
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
        StatusCode::UNSUPPORTED_MEDIA_TYPE => {
            "bodies with a Content-Encoding are not read: send the body without encoding".to_owned()
        }
        StatusCode::SERVICE_UNAVAILABLE => {
            "the server is busy: the requests in progress hold as much memory as they may (max_memory_bytes); \
                try again later"
                .to_owned()
        }
        _ => "the body ended early".to_owned(),
    }
}

/// Returns whether the client accepts this type in its Accept headers.
pub(crate) fn accepts(headers: &HeaderMap, wanted: &str) -> bool {
    let family = wanted.split_once('/').map_or(wanted, |(family, _)| family);
    headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).any(|value| {
        value.as_bytes().split(|byte| *byte == b',').any(|range| {
            let range = range.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
            let of_family = || {
                range.strip_suffix(b"/*").is_some_and(|of| of.eq_ignore_ascii_case(family.as_bytes()))
            };
            range.eq_ignore_ascii_case(wanted.as_bytes()) || range == b"*/*" || of_family()
        })
    })
}

/// Returns whether the client names exactly this type, and does not refuse it with a weight of 0 (RFC 9110
/// §12.5.1). A wildcard does not count.
pub(crate) fn names(headers: &HeaderMap, wanted: &str) -> bool {
    let is_zero = |parameter: &str| {
        let (name, weight) = parameter.trim().split_once('=').unwrap_or_default();
        name.eq_ignore_ascii_case("q") && weight.parse() == Ok(0.0)
    };
    headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).any(|value| {
        value.split(',').any(|range| {
            let mut parts = range.split(';');
            let media_type = parts.next().unwrap_or_default().trim();
            media_type.eq_ignore_ascii_case(wanted) && !parts.any(is_zero)
        })
    })
}

pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = value.and_then(|value| value.split(';').next()).map(str::trim);
    essence.is_some_and(|essence| essence.eq_ignore_ascii_case("application/json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_several_lines_stays_one() {
        assert_eq!(event("item", "{\n \"a\": 1}"), "event: item\ndata: {\ndata:  \"a\": 1}\n\n");
    }
}

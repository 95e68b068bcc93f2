//! Responses. Every response forbids features that no page needs.

use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderValue, Response, StatusCode, header};
use maud::Markup;
use orla_server::{Forbidden, ForbiddenBy, PageBody};

/// Scripts, styles and connections come from this origin. Images and audio of results are part of the
/// page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src data:; \
    connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// A response with the headers that all have.
pub(crate) fn of(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<PageBody> {
    with(status, kind, PageBody::Whole(body.into()))
}

fn with(status: StatusCode, kind: &'static str, body: PageBody) -> Response<PageBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let fixed = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // With `no-referrer`, browsers send `Origin: null` with forms.
        (header::REFERRER_POLICY, "same-origin"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in fixed {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response.headers_mut().insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    response
}

/// Returns a page.
pub(crate) fn page(status: StatusCode, page: Markup) -> Response<PageBody> {
    of(status, "text/html; charset=utf-8", page.into_string())
}

/// Server-sent events.
pub(crate) fn events(stream: impl Stream<Item = Bytes> + Send + 'static) -> Response<PageBody> {
    let mut response = with(StatusCode::OK, "text/event-stream", PageBody::Stream(Box::pin(stream)));
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Leads the browser to another page, which it gets with GET.
pub(crate) fn see(place: &str) -> Response<PageBody> {
    let mut response = of(StatusCode::SEE_OTHER, "text/plain; charset=utf-8", format!("see {place}\n"));
    if let Ok(place) = HeaderValue::from_str(place) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    response
}

/// Sets a cookie.
pub(crate) fn cookie(response: &mut Response<PageBody>, cookie: &str) {
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
}

/// Returns a refusal in one line.
pub(crate) fn refused(status: StatusCode, why: &'static str) -> Response<PageBody> {
    of(status, "text/plain; charset=utf-8", why)
}

/// Makes a response that of a forbidden change, which is reported.
pub(crate) fn forbidden(mut response: Response<PageBody>, reason: &'static str) -> Response<PageBody> {
    response.extensions_mut().insert(Forbidden { by: ForbiddenBy::Form, reason: reason.into() });
    response
}

/// Returns the response for a path that does not exist.
pub(crate) fn missing() -> Response<PageBody> {
    refused(StatusCode::NOT_FOUND, "not found\n")
}

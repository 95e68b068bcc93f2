//! The bodies of requests that carry JSON.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header};
use hyper::body::Incoming;
use orla_marketplace::MemoryBudget;
use serde::de::IgnoredAny;

use super::body::{self, Body};
use super::response::{closing, is_json, refused, why_unreadable};
use crate::options::ServerOptions;

/// The reason why a body is refused.
pub(crate) struct BodyError {
    status: StatusCode,
    why: Cow<'static, str>,
    /// The body was read to its end.
    is_read: bool,
}

impl BodyError {
    /// Returns the response in the form of the errors of programs.
    pub(crate) fn refused(&self) -> Response<Body> {
        self.response(|status, why| refused(status, "invalid-argument", why))
    }

    /// Returns the response that `refuse` creates.
    pub(crate) fn response(
        &self,
        refuse: impl FnOnce(StatusCode, &str) -> Response<Body>,
    ) -> Response<Body> {
        let response = refuse(self.status, &self.why);
        if self.is_read { response } else { closing(response) }
    }
}

/// Returns whether a body is JSON other than an object. Serde would read an array as the members of a
/// struct in order.
pub(crate) fn is_other_than_object(body: &[u8]) -> bool {
    !body.trim_ascii_start().starts_with(b"{") && serde_json::from_slice::<IgnoredAny>(body).is_ok()
}

/// Reads the body of a request within the limits of the server. Its type must be `application/json`. An
/// empty body needs no type.
///
/// # Errors
///
/// Returns 415 for another type, and the errors of [`body::read`].
pub(crate) async fn read(
    memory: &Arc<MemoryBudget>,
    options: &ServerOptions,
    headers: &HeaderMap,
    incoming: Incoming,
) -> Result<Bytes, BodyError> {
    let wrong_type = || BodyError {
        status: StatusCode::UNSUPPORTED_MEDIA_TYPE,
        why: "Content-Type must be application/json".into(),
        is_read: true,
    };
    let is_typed = headers.contains_key(header::CONTENT_TYPE);
    if is_typed && !is_json(headers) {
        return Err(wrong_type());
    }
    let read = body::of_request(incoming, headers, memory, options).await;
    let body = read.map_err(|status| {
        let why = why_unreadable(status, options.max_body_bytes).into();
        BodyError { status, why, is_read: false }
    })?;
    if is_typed || body.trim_ascii().is_empty() { Ok(body) } else { Err(wrong_type()) }
}

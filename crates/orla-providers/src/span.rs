//! The spans of calls that send requests.

use orla_marketplace::{NoticeSink, OpenSpan, SpanKind};
use reqwest::Request;

/// Begins the span of a call that sends this request. The caller drops it when the answer was read; a
/// [`Sender`](crate::sign_in::Sender) of a call, when the answer begins.
pub(crate) fn span_of(notices: &NoticeSink, request: &Request) -> OpenSpan {
    let (method, url) = (request.method(), request.url());
    notices.begin_span(SpanKind::Request, || format!("{method} {}", url.origin().ascii_serialization()))
}

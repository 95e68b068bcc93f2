//! Requests that are forbidden (403) without a call: log, metrics and an observer report each. Denied
//! calls have their own records.

use std::net::IpAddr;
use std::time::Instant;

use http::request::Parts;
use http::{HeaderMap, HeaderName, header};
use orla_marketplace::Principal;

use crate::http::forbidden::Forbidden;
use crate::state::Core;
use crate::throttle::{AuthLimits, Verdict};

/// The maximum number of requests of one unidentified peer that are reported in a minute. All are counted.
const REPORTED: AuthLimits = AuthLimits { failures_per_minute: 20, loopback: true };
/// The maximum length of reported text that comes from any client.
const SHOWN: usize = 200;

/// A forbidden request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ForbiddenRequest {
    /// The address that it came from.
    pub peer: IpAddr,
    /// The caller, if it is known.
    pub principal: Option<Principal>,
    /// The beginning of the method of HTTP.
    pub method: Box<str>,
    /// The beginning of the path.
    pub path: Box<str>,
    /// Why it is forbidden.
    pub forbidden: Forbidden,
}

/// Counts a forbidden request, logs it and passes it to the observer. Of an unidentified peer, only the
/// first requests in a minute are logged and passed on.
pub(crate) fn report(
    core: &Core,
    peer: IpAddr,
    principal: Option<&Principal>,
    head: &Parts,
    forbidden: Forbidden,
) {
    core.metrics.count_forbidden(forbidden.by);
    if principal.is_none()
        && core.forbidden.lock().count(peer, REPORTED, Instant::now()) != Verdict::Tolerated
    {
        return;
    }
    let peer = peer.to_canonical();
    let (method, path) = (excerpt(head.method.as_str(), 32), excerpt(head.uri.path(), SHOWN));
    tracing::warn!(
        %peer,
        principal = principal.map(Principal::name),
        identified_by = principal.map(|principal| tracing::field::display(principal.identified_by())),
        method,
        path,
        host = header_text(&head.headers, &header::HOST),
        origin = header_text(&head.headers, &header::ORIGIN),
        by = forbidden.by.word(),
        reason = &*forbidden.reason,
        "request refused"
    );
    if let Some(observe) = core.on_forbidden.get() {
        observe(&ForbiddenRequest {
            peer,
            principal: principal.cloned(),
            method: method.into(),
            path: path.into(),
            forbidden,
        });
    }
}

/// Returns a header for the log, if it is text.
fn header_text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(|text| excerpt(text, SHOWN))
}

/// Returns the beginning of a text.
pub(crate) fn excerpt(text: &str, limit: usize) -> &str {
    text.char_indices().nth(limit).map_or(text, |(end, _)| &text[..end])
}

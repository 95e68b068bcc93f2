//! Requests that are forbidden (403) without a call: log, metrics and an observer report each. Denied
//! calls have their own records.

use std::net::IpAddr;
use std::time::Instant;

use http::request::Parts;
use http::{HeaderName, header};
use orla_marketplace::{MAX_SHOWN_CHARS, Principal};

use crate::http::forbidden::Forbidden;
use crate::state::Core;
use crate::throttle::{Failures, Verdict};

/// The maximum number of requests of one unidentified peer that are reported in a minute. All are counted.
const REPORTED: usize = 20;

/// A forbidden request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ForbiddenRequest {
    /// The address that it came from.
    pub peer: IpAddr,
    /// The caller, if it is known.
    pub principal: Option<Principal>,
    /// The beginning of the method of HTTP, if the request could be read.
    pub method: Option<Box<str>>,
    /// The beginning of the path, if the request could be read.
    pub path: Option<Box<str>>,
    /// Why it is forbidden.
    pub forbidden: Forbidden,
    /// How many requests before it were not reported, of any peer.
    pub unreported: u64,
}

/// The reports of forbidden requests.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    of_peers: Failures,
    unreported: u64,
}

impl Reports {
    /// Returns how many requests were not reported since the last report, if this one is to be reported.
    fn begin(&mut self, peer: IpAddr, is_identified: bool, now: Instant) -> Option<u64> {
        if !is_identified && self.of_peers.count(peer, REPORTED, now) != Verdict::Tolerated {
            self.unreported += 1;
            return None;
        }
        Some(std::mem::take(&mut self.unreported))
    }
}

/// Counts a forbidden request, logs it and passes it to the observer. Of an unidentified peer, only the
/// first requests in a minute are logged and passed on.
pub(crate) fn report(
    core: &Core,
    peer: IpAddr,
    principal: Option<&Principal>,
    head: Option<&Parts>,
    forbidden: Forbidden,
) {
    core.metrics.count_forbidden(forbidden.by);
    let begun = core.forbidden.lock().begin(peer, principal.is_some(), Instant::now());
    let Some(unreported) = begun else { return };
    let peer = peer.to_canonical();
    let method = head.map(|head| excerpt(head.method.as_str(), 32));
    let path = head.map(|head| excerpt(head.uri.path(), MAX_SHOWN_CHARS));
    let header = |name: HeaderName| {
        head?.headers.get(name)?.to_str().ok().map(|text| excerpt(text, MAX_SHOWN_CHARS))
    };
    tracing::warn!(
        %peer,
        principal = principal.map(Principal::name),
        identified_by = principal.map(|principal| tracing::field::display(principal.identified_by())),
        method,
        path,
        host = header(header::HOST),
        origin = header(header::ORIGIN),
        by = forbidden.by.word(),
        reason = &*forbidden.reason,
        unreported = (unreported > 0).then_some(unreported),
        "request refused"
    );
    if let Some(observe) = core.on_forbidden.get() {
        observe(&ForbiddenRequest {
            peer,
            principal: principal.cloned(),
            method: method.map(Into::into),
            path: path.map(Into::into),
            forbidden,
            unreported,
        });
    }
}

/// Returns the beginning of a text.
pub(crate) fn excerpt(text: &str, limit: usize) -> &str {
    text.char_indices().nth(limit).map_or(text, |(end, _)| &text[..end])
}

//! The steps of calls that send requests.

use orla_marketplace::{NoticeSink, OpenStep, StepKind};
use reqwest::Request;

/// Begins the step of a call that sends this request. It lasts until the answer was read, or its stream begins.
pub(crate) fn step_of(notices: &NoticeSink, request: &Request) -> OpenStep {
    let (method, url) = (request.method(), request.url());
    notices.begin(StepKind::Request, || format!("{method} {}", url.origin().ascii_serialization()))
}

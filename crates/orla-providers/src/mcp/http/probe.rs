//! Asks a server for the requirements of its sign-in.

use orla_mcp::{mode, wire};
use orla_oauth::{Challenge, Upstream};
use reqwest::header::HeaderValue;
use reqwest::{Method, Request, Url};

use super::headers::{METHOD, PROTOCOL_VERSION};
use super::link;
use crate::mcp::settings::{Reach, ServerSettings};

/// Sends a request without a token, so that the server says how to get one.
pub async fn probe(upstream: &Upstream, settings: &ServerSettings) -> Option<Challenge> {
    let Reach::Http { url, headers } = &settings.reach else { return None };
    let mut request = Request::new(Method::POST, Url::parse(url).ok()?);
    let fields = request.headers_mut();
    *fields = link::headers(&link::configured(headers).ok()?, &[(PROTOCOL_VERSION, mode::SESSIONLESS)]);
    fields.insert(METHOD, HeaderValue::from_static("tools/list"));
    let mut body = Vec::new();
    let meta = mode::Meta {
        mode: mode::RequestMode::Sessionless,
        progress: None,
        traceparent: None,
        capabilities: None,
    };
    wire::write_request(&mut body, 1, "tools/list", "{}", meta);
    body.pop();
    *request.body_mut() = Some(body.into());
    upstream.probe(request).await
}

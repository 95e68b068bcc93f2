//! Converts a call to a request to another instance. Pure.

use std::time::Duration;

use bytes::Bytes;
use orla_marketplace::{CallContext, Hops, JsonText, RemoteRTFSCapability, millis_up};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, USER_AGENT};
use reqwest::{Method, Request, Url};
use tokio::time::Instant;

/// Checks whether an endpoint is valid.
///
/// # Errors
/// What is wrong with it, without repeating possible secrets.
pub fn check(endpoint: &str) -> Result<(), String> {
    url_of(endpoint).map(drop)
}

/// Returns the address of requests: the endpoint, or `/rtfs` if it is only an origin.
pub(super) fn url_of(endpoint: &str) -> Result<Url, String> {
    let mut url = Url::parse(endpoint).map_err(|err| format!("the endpoint is not a URL: {err}"))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err("the endpoint is not an http(s) URL".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("the endpoint has a user's name or password in it; use a token".to_owned());
    }
    if matches!(url.path(), "" | "/") {
        url.set_path("/rtfs");
    } else if let Some(path) = url.path().strip_suffix('/').filter(|path| path.ends_with("/rtfs")) {
        let path = path.to_owned();
        url.set_path(&path);
    }
    url.set_fragment(None);
    Ok(url)
}

/// Returns a call of `capability` as a request to the other instance.
pub(super) fn of_call(
    remote: &RemoteRTFSCapability,
    url: Url,
    capability: &str,
    inputs: &JsonText,
    hops: &Hops,
    deadline: Instant,
    ctx: &CallContext,
) -> Result<Request, String> {
    let mut request = Request::new(Method::POST, url);
    let headers = request.headers_mut();
    common(headers, remote.auth_token.as_deref())?;
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    // Requests the complete outcome. An instance that does not support this answers with the value.
    let accept = HeaderValue::from_static("application/vnd.orla.outcome+json, application/json");
    headers.insert(ACCEPT, accept);
    let left = deadline.saturating_duration_since(Instant::now());
    headers.insert("orla-timeout-ms", HeaderValue::from(millis_up(left)));
    let hops = HeaderValue::from_str(hops.as_str()).map_err(|err| err.to_string())?;
    headers.insert("orla-hops", hops);
    if let Some(Ok(trace)) = ctx.scope.traceparent.as_deref().map(HeaderValue::from_str) {
        headers.insert("traceparent", trace);
    }
    *request.body_mut() = Some(body(capability, inputs).into());
    Ok(request)
}

/// Returns the request for the catalogue. If one is known, the request waits for a different one.
pub(super) fn of_catalogue(
    mut url: Url,
    token: Option<&str>,
    after: Option<&str>,
    wait: Duration,
) -> Result<Request, String> {
    if let Some(version) = after {
        url.query_pairs_mut()
            .append_pair("after", version)
            .append_pair("wait_ms", &wait.as_millis().to_string());
    }
    let mut request = Request::new(Method::GET, url);
    common(request.headers_mut(), token)?;
    let accept = HeaderValue::from_static("application/vnd.orla.catalogue+json");
    request.headers_mut().insert(ACCEPT, accept);
    Ok(request)
}

fn common(headers: &mut HeaderMap, token: Option<&str>) -> Result<(), String> {
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("orla/", env!("CARGO_PKG_VERSION"))));
    if let Some(token) = token {
        let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
            .map_err(|_| "the token contains characters that a header cannot hold".to_owned())?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    Ok(())
}

/// Returns `{"call", "input"}`, with the input's text unchanged.
fn body(capability: &str, inputs: &JsonText) -> Bytes {
    let inputs = inputs.bytes();
    let mut body = Vec::with_capacity(capability.len() + inputs.len() + 32);
    body.extend_from_slice(br#"{"call":"#);
    // Writing a string to memory does not fail.
    let _ = serde_json::to_writer(&mut body, capability);
    body.extend_from_slice(br#","input":"#);
    body.extend_from_slice(inputs);
    body.push(b'}');
    body.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_alone_means_its_rtfs() {
        for (endpoint, url) in [
            ("http://a:1", Ok("http://a:1/rtfs")),
            ("http://a:1/", Ok("http://a:1/rtfs")),
            ("http://a:1/rtfs/", Ok("http://a:1/rtfs")),
            ("http://a:1/else/", Ok("http://a:1/else/")),
            ("https://a/orla/rtfs?x=1#y", Ok("https://a/orla/rtfs?x=1")),
            ("ftp://a/", Err("not an http(s) URL")),
            ("http://user:secret@a/", Err("use a token")),
            ("a:1", Err("not an http(s) URL")),
            ("", Err("not a URL")),
        ] {
            match (url_of(endpoint), url) {
                (Ok(found), Ok(url)) => assert_eq!(found.as_str(), url),
                (Err(problem), Err(words)) => {
                    assert!(problem.contains(words) && !problem.contains("secret"), "{problem}");
                }
                (found, _) => panic!("{endpoint}: {found:?}"),
            }
        }
    }

    #[test]
    fn a_call_is_one_request_that_carries_its_token_its_time_and_its_trace() {
        let remote = RemoteRTFSCapability::new("http://a", 0, Some("t0ken".into()));
        let inputs = JsonText::parse(r#"{"n": 1.10}"#).unwrap();
        let mut ctx = CallContext::for_tests("x");
        ctx.scope.traceparent = Some("00-1-2-01".into());
        let hops = Hops::default().through("b").unwrap();
        let url = url_of("http://a").unwrap();
        let request = of_call(&remote, url, "we\"ird", &inputs, &hops, ctx.deadline, &ctx).unwrap();
        let body = request.body().unwrap().as_bytes().unwrap();
        assert_eq!(body, br#"{"call":"we\"ird","input":{"n": 1.10}}"#);
        let header = |name: &str| request.headers()[name].to_str().unwrap();
        assert_eq!((header("authorization"), header("orla-hops")), ("Bearer t0ken", "b"));
        assert_eq!((header("traceparent"), header("content-type")), ("00-1-2-01", "application/json"));
        let ms: u64 = header("orla-timeout-ms").parse().unwrap();
        assert!((1..=30_000).contains(&ms), "{ms}");
        assert!(!format!("{request:?}").contains("t0ken"));
    }

    #[test]
    fn a_catalogue_is_asked_for_after_the_one_that_is_known() {
        let url = url_of("http://a").unwrap();
        let first = of_catalogue(url.clone(), None, None, Duration::ZERO).unwrap();
        assert_eq!(first.url().as_str(), "http://a/rtfs");
        let next = of_catalogue(url.clone(), None, Some("a&b-1"), Duration::from_secs(2)).unwrap();
        assert_eq!(next.url().as_str(), "http://a/rtfs?after=a%26b-1&wait_ms=2000");
        assert!(of_catalogue(url, Some("new\nline"), None, Duration::ZERO).is_err());
    }
}

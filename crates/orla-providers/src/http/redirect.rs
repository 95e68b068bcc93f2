//! The target of a redirect, and the request to it. Pure.

use orla_marketplace::{HttpOptions, Redirects};
use reqwest::header::{CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_TYPE, HeaderMap, LOCATION};
use reqwest::{Method, StatusCode, Url};

use super::request::Prepared;

/// The next step after an answer.
pub(super) enum Next {
    /// Use the answer.
    Answer,
    /// Send this request instead.
    Follow(Box<Prepared>),
    /// Refuse the redirect. The reason continues the words "a redirect".
    Refuse(String),
}

/// Decides on the answer to `current`; `visited` are the addresses before it.
pub(super) fn next(
    current: &Prepared,
    visited: &[(Method, Url)],
    status: StatusCode,
    headers: &HeaderMap,
    options: &HttpOptions,
) -> Next {
    let is_redirect = matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308);
    let location = headers.get(LOCATION).and_then(|value| value.to_str().ok());
    let Some(location) = location.filter(|_| is_redirect && options.redirects != Redirects::None) else {
        return Next::Answer;
    };
    let Ok(url) = current.url.join(location) else {
        return Next::Refuse("leads to an invalid URL".to_owned());
    };
    let host = host(&url);
    if !matches!(url.scheme(), "http" | "https") {
        return Next::Refuse(format!("leads to a URL of the scheme {}", url.scheme()));
    }
    if visited.len() >= options.max_redirects as usize {
        return Next::Refuse(format!(
            "to {host} follows {} others, the most there may be",
            visited.len()
        ));
    }
    let mut next = current.clone();
    let to_get = match status.as_u16() {
        303 => current.method != Method::HEAD,
        301 | 302 => current.method == Method::POST,
        _ => false,
    };
    if to_get {
        next.method = Method::GET;
        next.body = None;
        for field in [CONTENT_TYPE, CONTENT_ENCODING, CONTENT_LANGUAGE] {
            next.own.remove(field);
        }
    }
    let is_itself = current.method == next.method && current.url == url;
    if is_itself || visited.iter().any(|(method, known)| *method == next.method && *known == url) {
        return Next::Refuse(format!("leads in a circle at {host}"));
    }
    if url.origin() != current.url.origin() {
        if options.redirects == Redirects::SameOrigin {
            return Next::Refuse(format!("leads to another origin, {host}"));
        }
        if current.url.scheme() == "https" && url.scheme() == "http" {
            return Next::Refuse(format!("leads from https to http, to {host}"));
        }
        if next.body.is_some() || !matches!(next.method, Method::GET | Method::HEAD) {
            return Next::Refuse(format!(
                "would send {} to another origin, {host}",
                if next.body.is_some() { "the input" } else { next.method.as_str() }
            ));
        }
        // The rule also applies if the redirect leads back: a server in between may have had a reason
        // for the detour.
        next.own.clear();
    }
    next.url = url;
    // The server decides the content of its address, but no user name or password is sent for it.
    let _ = next.url.set_username("");
    let _ = next.url.set_password(None);
    Next::Follow(Box::new(next))
}

/// Returns the host of a URL, with the port if it is not the default.
pub(crate) fn host(url: &Url) -> String {
    let name = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| name.to_owned(), |port| format!("{name}:{port}"))
}

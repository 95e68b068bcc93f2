//! Whether a message belongs to a session (revisions up to 2025-11-25) or is a sessionless request (2026-07-28).
//! Pure functions of a message and its headers.
//!
//! # How it works
//!
//! `initialize` begins a session with any version. A request that names a sessionless revision in its `_meta` is
//! sessionless, and over HTTP its headers must repeat the values of the body (SEP-2243), so that a proxy that routes
//! by headers routes the same request. Every other message belongs to a session. The order of the checks is that of
//! the official SDK.

use std::borrow::Cow;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderMap, HeaderName, StatusCode};
use rmcp::model::{ErrorCode, ErrorData, ProtocolVersion, RequestMetaObject};
use serde_json::value::RawValue;

use crate::mcp::protocol::{FIRST_SESSIONLESS, MCP_METHOD, MCP_NAME, PROTOCOL_VERSION, Revision};
use crate::mcp::rpc::{self, Meta, Params};

/// Whether a request uses a session.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RequestMode {
    /// It begins a session and requests this revision.
    Initialize { requested: String },
    /// It belongs to a session.
    Session,
    /// The request needs no session. Its answer has the form of this revision.
    Sessionless { revision: Revision },
}

/// A request that is refused before its method is considered.
#[derive(Debug, PartialEq)]
pub(crate) struct Refused {
    pub(crate) status: StatusCode,
    pub(crate) error: ErrorData,
}

impl Refused {
    fn bad(error: ErrorData) -> Self {
        Self { status: StatusCode::BAD_REQUEST, error }
    }
}

/// Returns the mode of a request over HTTP.
///
/// # Errors
///
/// Returns an error, always with status 400, if parts of the request contradict each other.
pub(crate) fn of_http_request(
    headers: &HeaderMap,
    method: &str,
    params: &Params<'_>,
    meta: &Meta,
) -> Result<RequestMode, Refused> {
    let header = version_header(headers, meta.protocol_version.is_some())?;
    if let Some(requested) = initialize_version(method, params)? {
        if header.is_some_and(|header| header != requested) {
            let header = header.unwrap_or_default();
            return Err(Refused::bad(ErrorData::invalid_request(
                format!(
                    "the header MCP-Protocol-Version ({header}) is not params.protocolVersion ({requested})"
                ),
                None,
            )));
        }
        if header.is_some_and(is_sessionless) && headers.contains_key(MCP_METHOD) {
            check_method_header(headers, method)?;
        }
        return Ok(RequestMode::Initialize { requested });
    }
    match (&meta.protocol_version, header) {
        (None, header) if method == "server/discover" || header.is_some_and(is_sessionless) => {
            return Err(missing(meta));
        }
        (Some(_), None) => {
            return Err(mismatch(
                "a request with a protocolVersion in _meta needs the header MCP-Protocol-Version",
            ));
        }
        (Some(version), Some(header)) if version != header => {
            return Err(mismatch(format!(
                "the header MCP-Protocol-Version ({header}) is not the protocolVersion of _meta ({version})"
            )));
        }
        _ => {}
    }
    if header.is_some_and(is_sessionless) {
        check_standard_headers(headers, method, params)?;
    }
    of_request(method, meta)
}

/// Returns the mode of a request over a pipe, which has no headers.
///
/// # Errors
///
/// Returns an error if parts of the request contradict each other.
pub(crate) fn of_piped_request(
    method: &str,
    params: &Params<'_>,
    meta: &Meta,
) -> Result<RequestMode, Refused> {
    if let Some(requested) = initialize_version(method, params)? {
        return Ok(RequestMode::Initialize { requested });
    }
    if method == "server/discover" && meta.protocol_version.is_none() {
        return Err(missing(meta));
    }
    of_request(method, meta)
}

/// Returns whether a message without a `_meta` of its own (a notification, an answer) is sessionless.
///
/// # Errors
///
/// Returns an error if the version is not served, or, for a notification, if the headers contradict it.
pub(crate) fn is_sessionless_message(
    headers: &HeaderMap,
    notification: Option<&str>,
) -> Result<bool, Refused> {
    let sessionless = version_header(headers, false)?.is_some_and(is_sessionless);
    if let (true, Some(method)) = (sessionless, notification) {
        check_method_header(headers, method)?;
    }
    Ok(sessionless)
}

/// Checks a header that repeats an argument of a tool (`x-mcp-header` in its schema).
///
/// # Errors
///
/// Returns an error if the header is missing, unexpected, malformed or different.
pub(crate) fn check_param_header(
    headers: &HeaderMap,
    name: &HeaderName,
    property: &str,
    argument: Option<&str>,
) -> Result<(), Refused> {
    match (single(headers, name)?, argument) {
        (None, None) => Ok(()),
        (Some(_), None) => {
            Err(mismatch(format!("the header {name} is there, but `{property}` is absent or null")))
        }
        (None, Some(_)) => Err(mismatch(format!("the header {name} for `{property}` is missing"))),
        (Some(header), Some(argument)) => {
            let value = decoded(header)
                .ok_or_else(|| mismatch(format!("the header {name} is not valid Base64")))?;
            if value == argument {
                return Ok(());
            }
            Err(mismatch(format!("the header {name} ({value}) is not the body's `{property}`")))
        }
    }
}

/// Returns the error for a protocol version that is not served.
fn unsupported(requested: &str) -> ErrorData {
    // The SDK's constructor takes its own type, which any string deserialises to.
    let data =
        serde_json::json!({ "requested": requested, "supported": ProtocolVersion::KNOWN_VERSIONS });
    ErrorData::new(ErrorCode::UNSUPPORTED_PROTOCOL_VERSION, "Unsupported protocol version", Some(data))
}

fn is_sessionless(version: &str) -> bool {
    version >= FIRST_SESSIONLESS
}

/// Returns the version that an `initialize` requests. Without a version it is not an `initialize` if
/// `_meta` names a revision that has no such method.
fn initialize_version(method: &str, params: &Params<'_>) -> Result<Option<String>, Refused> {
    if method != "initialize" {
        return Ok(None);
    }
    match params.protocol_version.map(rpc::text) {
        Some(Ok(version)) => Ok(Some(version.into_owned())),
        None if params.meta().protocol_version.is_some() => Ok(None),
        _ => Err(Refused::bad(ErrorData::invalid_params(
            "initialize needs a protocolVersion, such as \"2025-11-25\"",
            None,
        ))),
    }
}

/// Returns the mode of a sessionless request. The request must name a supported version and have all
/// required `_meta`.
fn of_request(method: &str, meta: &Meta) -> Result<RequestMode, Refused> {
    let Some(version) = &meta.protocol_version else { return Ok(RequestMode::Session) };
    if !meta.has_capabilities && !is_sessionless(version) && method != "server/discover" {
        return Ok(RequestMode::Session);
    }
    let Some(revision) = Revision::parse(version) else {
        return Err(Refused::bad(unsupported(version)));
    };
    if !meta.has_capabilities {
        return Err(missing(meta));
    }
    // A request that names an older revision and has the `_meta` of a sessionless request is answered in
    // the first sessionless revision.
    Ok(RequestMode::Sessionless { revision: revision.max(Revision::V2026_07_28) })
}

fn missing(meta: &Meta) -> Refused {
    let [version, capabilities] = RequestMetaObject::DRAFT_REQUIRED_KEYS;
    let mut keys = Vec::new();
    if meta.protocol_version.is_none() {
        keys.push(version);
    }
    if !meta.has_capabilities {
        keys.push(capabilities);
    }
    let what = format!("the request's _meta lacks, or has malformed: {}", keys.join(", "));
    Refused::bad(ErrorData::invalid_params(what, None))
}

fn mismatch(what: impl Into<Cow<'static, str>>) -> Refused {
    Refused::bad(ErrorData::header_mismatch(what, None))
}

fn version_header(headers: &HeaderMap, body_says: bool) -> Result<Option<&str>, Refused> {
    let Some(value) = headers.get(PROTOCOL_VERSION) else { return Ok(None) };
    let bad = || {
        Refused::bad(ErrorData::invalid_request("the header MCP-Protocol-Version is malformed", None))
    };
    let version = value.to_str().map_err(|_| bad())?;
    if !body_says && Revision::parse(version).is_none() {
        return Err(Refused::bad(unsupported(version)));
    }
    Ok(Some(version))
}

fn check_method_header(headers: &HeaderMap, method: &str) -> Result<(), Refused> {
    match single(headers, &MCP_METHOD)? {
        Some(value) if value == method => Ok(()),
        Some(value) => {
            Err(mismatch(format!("the header Mcp-Method ({value}) is not the body's method ({method})")))
        }
        None => Err(mismatch("the header Mcp-Method is missing")),
    }
}

fn check_standard_headers(
    headers: &HeaderMap,
    method: &str,
    params: &Params<'_>,
) -> Result<(), Refused> {
    check_method_header(headers, method)?;
    let named: Option<&RawValue> = match method {
        "tools/call" | "prompts/get" => params.name,
        "resources/read" | "resources/subscribe" | "resources/unsubscribe" => params.uri,
        "tasks/get" | "tasks/update" | "tasks/cancel" => params.task_id,
        _ => None,
    };
    let Some(Ok(name)) = named.map(rpc::text) else { return Ok(()) };
    let Some(header) = single(headers, &MCP_NAME)? else {
        return Err(mismatch(format!("the header Mcp-Name for {method} is missing")));
    };
    let header = decoded(header).ok_or_else(|| mismatch("the header Mcp-Name is not valid Base64"))?;
    if header == name {
        return Ok(());
    }
    Err(mismatch(format!("the header Mcp-Name ({header}) differs from the body ({name})")))
}

/// Returns the header's only value. With a second value, a proxy that routes by headers could see
/// another request.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Refused> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(mismatch(format!("more than one header {name}")));
    }
    value.to_str().map(Some).map_err(|_| mismatch(format!("the header {name} is malformed")))
}

/// Returns a header's value, decoded from the `=?base64?…?=` of a value that is not plain ASCII.
fn decoded(header: &str) -> Option<Cow<'_, str>> {
    match header.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) {
        None => Some(Cow::Borrowed(header)),
        Some(encoded) => {
            let bytes = BASE64_STANDARD.decode(encoded).ok()?;
            String::from_utf8(bytes).ok().map(Cow::Owned)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::rpc::Message;
    use http::HeaderValue;

    const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;

    const SESSIONLESS: RequestMode = RequestMode::Sessionless { revision: Revision::V2026_07_28 };

    fn classify(headers: &[(&str, &str)], method: &str, params: &str) -> Result<RequestMode, i32> {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{params}}}}}"#);
        let Ok(Message::Request(request)) = rpc::parse(body.as_bytes()) else {
            panic!("a request: {body}")
        };
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::try_from(*name).unwrap(), HeaderValue::from_str(value).unwrap());
        }
        of_http_request(&map, &request.method, &request.params, &request.params.meta())
            .map_err(|refused| refused.error.code.0)
    }

    #[test]
    fn initialize_begins_a_session_with_any_version() {
        let init = |version: &str| Ok(RequestMode::Initialize { requested: version.to_owned() });
        let asks = |version: &str| format!(r#""protocolVersion":"{version}""#);
        let v26 = ("mcp-protocol-version", "2026-07-28");
        let cases = [
            (vec![], asks("2025-06-18"), init("2025-06-18")),
            (vec![], asks("2026-07-28"), init("2026-07-28")),
            (vec![v26], asks("2026-07-28"), init("2026-07-28")),
            (vec![v26, ("mcp-method", "initialize")], asks("2026-07-28"), init("2026-07-28")),
            (vec![v26, ("mcp-method", "tools/list")], asks("2026-07-28"), Err(-32020)),
            (vec![("mcp-protocol-version", "2025-03-26")], asks("2025-06-18"), Err(-32600)),
            (vec![], String::new(), Err(-32602)),
            (vec![v26, ("mcp-method", "initialize")], META.to_owned(), Ok(SESSIONLESS)),
        ];
        for (headers, params, expected) in cases {
            assert_eq!(classify(&headers, "initialize", &params), expected, "{headers:?} {params}");
        }
    }

    #[test]
    fn headers_and_body_of_a_sessionless_request_must_match() {
        let v26 = ("mcp-protocol-version", "2026-07-28");
        let list = ("mcp-method", "tools/list");
        let cases = [
            (vec![v26, list], META, Ok(SESSIONLESS)),
            (vec![], META, Err(-32020)),
            (vec![v26], META, Err(-32020)),
            (vec![v26, ("mcp-method", "TOOLS/LIST")], META, Err(-32020)),
            (vec![v26, list, list], META, Err(-32020)),
            (vec![("mcp-protocol-version", "2025-11-25"), list], META, Err(-32020)),
            (
                vec![("mcp-protocol-version", "2025-11-25"), list],
                r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2025-11-25","io.modelcontextprotocol/clientCapabilities":{}}"#,
                Ok(SESSIONLESS),
            ),
            (vec![v26, list], "", Err(-32602)),
            (
                vec![v26, list],
                r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#,
                Err(-32602),
            ),
            (
                vec![("mcp-protocol-version", "v999"), list],
                r#""_meta":{"io.modelcontextprotocol/protocolVersion":"v999","io.modelcontextprotocol/clientCapabilities":{}}"#,
                Err(-32022),
            ),
            (vec![("mcp-protocol-version", "v999")], "", Err(-32022)),
            (vec![], "", Ok(RequestMode::Session)),
            (vec![("mcp-protocol-version", "2025-06-18")], "", Ok(RequestMode::Session)),
        ];
        for (headers, params, expected) in cases {
            assert_eq!(classify(&headers, "tools/list", params), expected, "{headers:?} {params}");
        }
        assert_eq!(classify(&[], "server/discover", ""), Err(-32602));
    }

    #[test]
    fn the_name_in_the_header_is_the_name_in_the_body() {
        let call = |name: &str, body: &str| {
            let mut headers = vec![("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call")];
            if !name.is_empty() {
                headers.push(("mcp-name", name));
            }
            classify(&headers, "tools/call", &format!(r#""name":{body},{META}"#))
        };
        assert_eq!(call("ls", r#""ls""#), Ok(SESSIONLESS));
        assert_eq!(call("=?base64?w6k=?=", r#""é""#), Ok(SESSIONLESS));
        assert_eq!(call("=?base64?w6k?=", r#""é""#), Err(-32020));
        assert_eq!(call("rm", r#""ls""#), Err(-32020));
        assert_eq!(call("", r#""ls""#), Err(-32020));
        // There is no name to compare. The call itself reports the missing name.
        assert_eq!(call("", "1"), Ok(SESSIONLESS));
    }
}

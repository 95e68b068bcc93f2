//! Turns an HTTP answer into an outcome. Pure.
//!
//! | answer | outcome |
//! |---|---|
//! | 2xx, JSON | the value, as the text it came in |
//! | 2xx, other text | a text block |
//! | 2xx, image, audio, anything else | such a block; what is neither is an embedded resource |
//! | 408, 425, 429, 502, 503, 504 | [`RuntimeError::Unavailable`], with the body: the same call may succeed later |
//! | any other status | [`RuntimeError::Failed`], with the body kept as the outcome |
//!
//! `_meta["orla/http"]` contains the status, the media type and the headers for further requests.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use orla_marketplace::rtfs::text::excerpt;
use orla_marketplace::{
    Answered, BoxError, HttpCapability, JsonText, Outcome, Payload, RuntimeError, RuntimeResult,
};
use reqwest::StatusCode;
use reqwest::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use serde::Serialize;
use serde_json::Value as Json;

use super::body::{essence, is_json, is_text};
use super::request::secrets;

/// The number of characters of a body that a message shows.
const SHOWN: usize = 300;

/// The call that an answer belongs to.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    /// The name under which the capability is served.
    pub(super) name: &'a str,
    /// The call's id, unique within the instance. It is part of the address of embedded bytes.
    pub(super) call_id: &'a str,
    /// The host that answered.
    pub(super) host: &'a str,
    pub(super) http: &'a HttpCapability,
}

/// Returns the outcome of a complete answer.
pub(super) fn read(
    context: Context<'_>,
    status: StatusCode,
    headers: &HeaderMap,
    body: &Bytes,
) -> RuntimeResult<Outcome> {
    let media_type = text_of(headers, CONTENT_TYPE.as_str()).unwrap_or_default();
    let meta = meta(status, headers)?;
    if status.is_success() {
        success(context, media_type, body, meta)
    } else {
        Err(failure(context, status, headers, media_type, body, meta))
    }
}

fn success(
    context: Context<'_>,
    media_type: &str,
    body: &Bytes,
    meta: JsonText,
) -> RuntimeResult<Outcome> {
    let kind = essence(media_type);
    let accepted = &context.http.options.accept;
    let is_accepted =
        |kind: &str| accepted.is_empty() || accepted.iter().any(|range| covers(&essence(range), kind));
    // An empty text is a text.
    if body.is_empty() && !is_text(&kind) {
        return Ok(Outcome { meta: Some(meta), ..Outcome::default() });
    }
    if is_json(&kind) && is_accepted(&kind) {
        return match json(body) {
            Some(json) => Ok(Outcome {
                structured: Some(Payload::from_json(json)),
                content: None,
                meta: Some(meta),
                ..Outcome::default()
            }),
            None => Err(wrong(context, &format!("{kind} that is not JSON"), &kind, body, meta)),
        };
    }
    // Some servers give no type, or declare everything as plain text. The body then shows the type.
    let is_vague =
        matches!(&*kind, "" | "text/plain" | "application/octet-stream" | "binary/octet-stream");
    if is_vague
        && !accepted.is_empty()
        && accepted.iter().any(|range| is_json(&essence(range)))
        && let Some(json) = json(body)
    {
        return Ok(Outcome {
            structured: Some(Payload::from_json(json)),
            content: None,
            meta: Some(meta),
            ..Outcome::default()
        });
    }
    if !(is_accepted(&kind) || kind.is_empty()) {
        return Err(wrong(context, &kind, &kind, body, meta));
    }
    let content = Some(block(context, media_type, body)?);
    Ok(Outcome { content, meta: Some(meta), ..Outcome::default() })
}

/// Returns the error for an answer of an unexpected type.
fn wrong(context: Context<'_>, got: &str, kind: &str, body: &Bytes, meta: JsonText) -> RuntimeError {
    let wanted = match &context.http.options.accept[..] {
        [] => "JSON".to_owned(),
        some => some.join(" or "),
    };
    let Context { name, host, .. } = context;
    let message = format!(
        "{name} failed: {host} answers with {got} instead of {wanted}; trying again will not help"
    );
    let outcome = outcome(context, kind, body, meta);
    RuntimeError::Failed { id: name.to_owned(), message, outcome }
}

fn failure(
    context: Context<'_>,
    status: StatusCode,
    headers: &HeaderMap,
    media_type: &str,
    body: &Bytes,
    meta: JsonText,
) -> RuntimeError {
    let Context { name, host, http, .. } = context;
    let says = match error_message(&essence(media_type), body) {
        Some(text) => format!(": {}", hidden(http, &text)),
        None => String::new(),
    };
    let answered = format!("{host} answers {}{says}", title(status));
    if matches!(status.as_u16(), 408 | 425 | 429 | 502 | 503 | 504) {
        let when = match text_of(headers, RETRY_AFTER.as_str()) {
            Some(time) if time.bytes().all(|byte| byte.is_ascii_digit()) => {
                format!("try again after {time} s")
            }
            Some(time) => format!("try again after {}", line(time)),
            None => "trying again may help".to_owned(),
        };
        let reason = format!("{answered}; {when}");
        let source = outcome(context, media_type, body, meta).map(Answered);
        let source = source.map(|answered| Box::new(answered) as BoxError);
        return RuntimeError::Unavailable { id: name.to_owned(), reason, source };
    }
    let has_credentials = http.auth_token.is_some() || !http.options.credentials.is_empty();
    let hint = match status.as_u16() {
        401 if has_credentials => "the configured credentials are not accepted",
        401 => "it needs credentials, and none are configured",
        403 if has_credentials => "the configured credentials do not permit it",
        403 => "it may need credentials, and none are configured",
        409 | 423 => "trying again later may help",
        300..=399 => "this redirect is not followed",
        500..=599 => "the fault is at its side, so trying again may help",
        _ => "the same call will fail again",
    };
    let message = format!("{name} failed: {answered}; {hint}");
    let outcome = outcome(context, media_type, body, meta);
    RuntimeError::Failed { id: name.to_owned(), message, outcome }
}

/// Returns the error with the body of the answer.
fn outcome(
    context: Context<'_>,
    media_type: &str,
    body: &Bytes,
    meta: JsonText,
) -> Option<Box<Outcome>> {
    let body = &match std::str::from_utf8(body) {
        Ok(text) if secrets(context.http).iter().any(|secret| text.contains(secret)) => {
            Bytes::from(hidden(context.http, text))
        }
        _ => body.clone(),
    };
    let structured = match is_json(&essence(media_type)) {
        true => json(body).map(Payload::from_json),
        false => None,
    };
    let content = match body.is_empty() {
        true => None,
        false => block(context, media_type, body).ok(),
    };
    Some(Box::new(Outcome { structured, content, meta: Some(meta), ..Outcome::default() }))
}

/// Parses a body as one JSON value.
fn json(body: &Bytes) -> Option<JsonText> {
    const MARK: &[u8] = b"\xef\xbb\xbf";
    let text = if body.starts_with(MARK) { body.slice(MARK.len()..) } else { body.clone() };
    JsonText::parse(text).ok()
}

/// Returns whether a range such as `image/*` covers a media type.
fn covers(range: &str, kind: &str) -> bool {
    match range.strip_suffix("/*") {
        Some("*") => true,
        Some(family) => kind.split('/').next() == Some(family),
        // A type such as `application/problem+json` is accepted as JSON.
        None => range == kind || (range == "application/json" && is_json(kind)),
    }
}

/// A block of MCP content.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block<'a> {
    Text {
        text: &'a str,
    },
    Image {
        data: String,
        #[serde(rename = "mimeType")]
        mime_type: &'a str,
    },
    Audio {
        data: String,
        #[serde(rename = "mimeType")]
        mime_type: &'a str,
    },
    Resource {
        resource: Blob<'a>,
    },
}

#[derive(Serialize)]
struct Blob<'a> {
    uri: String,
    #[serde(rename = "mimeType")]
    mime_type: &'a str,
    blob: String,
}

/// Converts a body to content: text if possible, and otherwise by its media type or its first bytes.
fn block(context: Context<'_>, media_type: &str, body: &Bytes) -> RuntimeResult<JsonText> {
    let kind = essence(media_type);
    let is_vague = matches!(&*kind, "" | "application/octet-stream" | "binary/octet-stream");
    let claims_text = is_text(&kind) || is_json(&kind) || kind.is_empty();
    let latin1;
    if claims_text || (is_vague && !body.contains(&0)) {
        if let Ok(text) = str::from_utf8(body) {
            return serialised(&[Block::Text { text }]);
        }
        if is_latin1(media_type) {
            latin1 = body.iter().map(|byte| char::from(*byte)).collect::<String>();
            return serialised(&[Block::Text { text: &latin1 }]);
        }
    }
    let sniffed = if is_vague { infer::get(body).map(|kind| kind.mime_type()) } else { None };
    let mime_type = sniffed.unwrap_or(if kind.is_empty() { "application/octet-stream" } else { &kind });
    let data = BASE64.encode(body);
    serialised(&[match mime_type.split('/').next() {
        Some("image") => Block::Image { data, mime_type },
        Some("audio") => Block::Audio { data, mime_type },
        _ => Block::Resource {
            resource: Blob {
                uri: format!("orla://call/{}/body", context.call_id),
                mime_type,
                blob: data,
            },
        },
    }])
}

fn is_latin1(media_type: &str) -> bool {
    let media_type = media_type.to_ascii_lowercase();
    media_type.contains("iso-8859-1") && !media_type.contains("iso-8859-15")
}

/// Summarises an error's body: the message of JSON, or the beginning of a text.
fn error_message(kind: &str, body: &Bytes) -> Option<String> {
    if is_json(kind) {
        let json: Json = serde_json::from_slice(body).ok()?;
        return message_of(&json).map(line);
    }
    // HTML pages are meant for browsers.
    let text = str::from_utf8(body).ok().filter(|_| kind != "text/html")?;
    Some(text.trim()).filter(|text| !text.is_empty()).map(line)
}

/// Returns the first of the members in which errors usually have their message.
fn message_of(json: &Json) -> Option<&str> {
    const MEMBERS: [&str; 7] =
        ["message", "detail", "error_description", "error", "errors", "title", "description"];
    match json {
        Json::String(text) => Some(text.as_str()).filter(|text| !text.trim().is_empty()),
        Json::Array(items) => items.first().and_then(message_of),
        Json::Object(members) => {
            MEMBERS.iter().filter_map(|name| members.get(*name)).find_map(message_of)
        }
        _ => None,
    }
}

/// Returns one line of at most [`SHOWN`] characters.
fn line(text: &str) -> String {
    excerpt(text, SHOWN).replace(char::is_control, " ")
}

/// Removes the secrets of the request from a text, because some servers repeat them.
pub(super) fn hidden(http: &HttpCapability, text: &str) -> String {
    let secrets = secrets(http);
    secrets
        .into_iter()
        .filter(|secret| secret.len() > 3)
        .fold(text.to_owned(), |text, secret| text.replace(secret, "***"))
}

fn title(status: StatusCode) -> String {
    match status.canonical_reason() {
        Some(reason) => format!("{} {reason}", status.as_u16()),
        None => status.as_u16().to_string(),
    }
}

fn text_of<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn meta(status: StatusCode, headers: &HeaderMap) -> RuntimeResult<JsonText> {
    const SHOWN_HEADERS: [&str; 6] =
        ["content-type", "location", "link", "etag", "last-modified", "retry-after"];
    let shown: serde_json::Map<String, Json> = SHOWN_HEADERS
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), text_of(headers, name)?.into())))
        .collect();
    serialised(&serde_json::json!({
        "orla/http": { "status": status.as_u16(), "headers": shown }
    }))
}

fn serialised(value: &(impl Serialize + ?Sized)) -> RuntimeResult<JsonText> {
    JsonText::of(value).map_err(|err| RuntimeError::Generic(err.to_string()))
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;

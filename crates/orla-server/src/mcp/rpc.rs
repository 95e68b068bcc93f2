//! The JSON-RPC 2.0 envelope: bytes in, one message or one well-defined error out.
//!
//! # How it works
//!
//! One pass over the body cuts out what routing needs (the id, the method, a tool's name) and the
//! forwarded `arguments`, as slices of the body. No tree is built: numbers keep their text, nesting of
//! any depth costs no stack, and a megabyte of arguments is scanned once.
//!
//! # What is deliberately absent
//!
//! No I/O and no state: any bytes may come in, and nothing here panics on them (property-tested).
//! Batches, which only revision 2025-03-26 had, are refused as invalid requests.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytes::Bytes;
use orla_marketplace::{JsonText, LogLevel};
use orla_mcp::wire::present;
use rmcp::model::ErrorData;
use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;

/// The maximum number of bytes that are kept of how a client describes itself.
const MAX_CLIENT_INFO: usize = 2048;

/// Reads one message.
///
/// # Errors
///
/// −32700 for text that is not JSON, −32600 for JSON that is not a JSON-RPC message, with the id if it
/// could be read.
pub(crate) fn parse(body: &[u8]) -> Result<Message<'_>, Malformed> {
    // Serde would read an array as the members of an envelope in their order.
    if first_byte(body) == Some(b'[') {
        return Err(not_a_message(body, None));
    }
    let envelope: Envelope<'_> =
        serde_json::from_slice(body).map_err(|err| not_a_message(body, Some(&err)))?;
    let id = match envelope.id.map(Id::read) {
        None => None,
        Some(Ok(id)) => Some(id),
        Some(Err(error)) => return Err(Malformed { id: None, error }),
    };
    let invalid = |id: Option<Id>, what: &'static str| Malformed { id, error: invalid_request(what) };
    if envelope.jsonrpc.map(RawValue::get) != Some(r#""2.0""#) {
        return Err(invalid(id, r#"not a JSON-RPC 2.0 message: "jsonrpc" must be "2.0""#));
    }
    let Some(method) = envelope.method else {
        if envelope.result.is_some() || envelope.error.is_some() {
            return Ok(Message::Response(Response {
                id,
                result: envelope.result,
                error: envelope.error,
            }));
        }
        return Err(invalid(id, r#"not a JSON-RPC message: "method" is missing"#));
    };
    let Ok(method) = text(method) else {
        return Err(invalid(id, r#"not a JSON-RPC message: "method" must be a string"#));
    };
    let params = match envelope.params {
        None => Params::default(),
        Some(ObjectOr::Object(params)) => params,
        Some(ObjectOr::Other(what)) if id.is_some() => {
            let error = ErrorData::invalid_params(format!("params must be an object, got {what}"), None);
            return Err(Malformed { id, error });
        }
        Some(ObjectOr::Other(_)) => return Err(invalid(None, "params must be an object")),
    };
    Ok(match id {
        Some(id) => Message::Request(Request { id, method, params }),
        None => Message::Notification(Notification { method, params }),
    })
}

/// One message of a client.
#[derive(Debug)]
pub(crate) enum Message<'a> {
    Request(Request<'a>),
    Notification(Notification<'a>),
    Response(Response<'a>),
}

/// A request, borrowing from the body.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) id: Id,
    pub(crate) method: Cow<'a, str>,
    pub(crate) params: Params<'a>,
}

/// A notification, borrowing from the body.
#[derive(Debug)]
pub(crate) struct Notification<'a> {
    pub(crate) method: Cow<'a, str>,
    pub(crate) params: Params<'a>,
}

/// An answer to a question to the client, borrowing from the body.
#[derive(Debug)]
pub(crate) struct Response<'a> {
    pub(crate) id: Option<Id>,
    pub(crate) result: Option<&'a RawValue>,
    pub(crate) error: Option<&'a RawValue>,
}

/// A body that is not a message, and its answer.
#[derive(Debug)]
pub(crate) struct Malformed {
    /// The request's id, if it could be read.
    pub(crate) id: Option<Id>,
    pub(crate) error: ErrorData,
}

/// A request's id: the JSON text of a string or an integer, echoed as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Id(Box<str>);

impl Id {
    /// Reads an id.
    ///
    /// # Errors
    ///
    /// Returns an error if it is neither a string nor an integer.
    pub(crate) fn read(raw: &RawValue) -> Result<Self, ErrorData> {
        let text = raw.get();
        let digits = text.strip_prefix('-').unwrap_or(text);
        if text.starts_with('"') || digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(Self(text.into()));
        }
        Err(invalid_request("an id must be a string or an integer"))
    }

    /// Returns the JSON text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the key by which ids are compared: two escapings of the same string are the same id.
    pub(crate) fn key(&self) -> Box<str> {
        key_of(&self.0)
    }
}

fn key_of(raw: &str) -> Box<str> {
    if raw.contains('\\')
        && let Ok(decoded) = serde_json::from_str::<String>(raw)
    {
        return format!("\"{decoded}\"").into();
    }
    raw.into()
}

/// The members of `params` that routing and the hot path need. The few methods that need other members
/// read the body again.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Params<'a> {
    #[serde(borrow, deserialize_with = "present")]
    pub(crate) name: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    pub(crate) arguments: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    pub(crate) cursor: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    pub(crate) uri: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    pub(crate) task_id: Option<&'a RawValue>,
    /// How the call runs as a task (2025-11-25).
    #[serde(borrow, deserialize_with = "present")]
    pub(crate) task: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    pub(crate) protocol_version: Option<&'a RawValue>,
    /// What the client declares in `initialize`.
    #[serde(borrow, deserialize_with = "present")]
    pub(crate) capabilities: Option<&'a RawValue>,
    /// How the client describes itself in `initialize`.
    #[serde(borrow, deserialize_with = "present")]
    client_info: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    pub(crate) input_responses: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    pub(crate) request_state: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    request_id: Option<&'a RawValue>,
    #[serde(borrow, rename = "_meta")]
    meta: Option<ObjectOr<MetaFields<'a>>>,
}

impl Params<'_> {
    /// Returns the request that a cancellation names, comparable with [`Id::key`].
    pub(crate) fn cancelled_request(&self) -> Option<Box<str>> {
        self.request_id.map(|raw| key_of(raw.get()))
    }

    /// What the client of a sessionless request declares in its `_meta`.
    pub(crate) fn declared(&self) -> Option<&RawValue> {
        let Some(ObjectOr::Object(fields)) = &self.meta else { return None };
        fields.capabilities.filter(|raw| raw.get().starts_with('{'))
    }

    /// Returns how the client describes itself, in its `_meta` or in `initialize`, as a copy. It is `None` if that is too long to
    /// be kept with each call.
    pub(crate) fn client(&self) -> Option<Arc<str>> {
        let of_request = match &self.meta {
            Some(ObjectOr::Object(fields)) => fields.client,
            _ => None,
        };
        let text = of_request.or(self.client_info).map(RawValue::get);
        text.filter(|text| text.len() <= MAX_CLIENT_INFO).map(Into::into)
    }

    /// Returns the `_meta` of the request.
    pub(crate) fn meta(&self) -> Meta {
        let Some(ObjectOr::Object(fields)) = &self.meta else { return Meta::default() };
        let string = |raw: Option<&RawValue>| raw.and_then(|raw| text(raw).ok()).map(Cow::into_owned);
        Meta {
            protocol_version: string(fields.protocol_version),
            has_capabilities: fields.capabilities.is_some_and(|raw| raw.get().starts_with('{')),
            progress_token: fields.progress_token.and_then(|raw| Id::read(raw).ok()).map(|id| id.0),
            log_level: string(fields.log_level).and_then(|level| level.parse().ok()),
            traceparent: string(fields.traceparent).map(Into::into),
            // An invalid name matches no node, so the call is refused rather than made on another node.
            node: fields
                .node
                .map(|raw| string(Some(raw)).unwrap_or_else(|| raw.get().to_owned()).into()),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct MetaFields<'a> {
    #[serde(borrow, deserialize_with = "present")]
    progress_token: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present", rename = "io.modelcontextprotocol/protocolVersion")]
    protocol_version: Option<&'a RawValue>,
    #[serde(
        borrow,
        deserialize_with = "present",
        rename = "io.modelcontextprotocol/clientCapabilities"
    )]
    capabilities: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present", rename = "io.modelcontextprotocol/clientInfo")]
    client: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present", rename = "io.modelcontextprotocol/logLevel")]
    log_level: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    traceparent: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present", rename = "orla/node")]
    node: Option<&'a RawValue>,
}

/// The `_meta` of a request. Malformed members count as absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Meta {
    /// The revision the request is written in.
    pub(crate) protocol_version: Option<String>,
    /// Whether the client's capabilities are present.
    pub(crate) has_capabilities: bool,
    /// The JSON text of the token that progress notifications carry.
    pub(crate) progress_token: Option<Box<str>>,
    /// The least severe log message that the client wants (sessionless requests).
    pub(crate) log_level: Option<LogLevel>,
    /// The client's W3C trace context.
    pub(crate) traceparent: Option<Arc<str>>,
    /// The node of the cluster that the call is to run on.
    pub(crate) node: Option<Arc<str>>,
}

/// Returns the whole of `params`, shared with the body; `{}` if there are no parameters.
pub(crate) fn whole_params(body: &Bytes) -> JsonText {
    #[derive(Deserialize)]
    struct ParamsOnly<'a> {
        #[serde(borrow, default)]
        params: Option<&'a RawValue>,
    }
    match serde_json::from_slice(body) {
        Ok(ParamsOnly { params: Some(params) }) => JsonText::slice_of(body, params),
        _ => orla_mcp::object::empty(),
    }
}

/// Returns the text of a JSON string.
pub(crate) fn text(raw: &RawValue) -> Result<Cow<'_, str>, serde_json::Error> {
    let json = raw.get();
    match json.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(plain) if !plain.contains('\\') => Ok(Cow::Borrowed(plain)),
        _ => serde_json::from_str::<String>(json).map(Cow::Owned),
    }
}

/// What kind of JSON value a text is, with its article.
pub(crate) fn kind_of(json: &str) -> &'static str {
    match json.bytes().next() {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    }
}

/// Returns the start of an answer, up to the result's text; [`END`] follows it.
pub(crate) fn begin_result(id: &Id, capacity: usize) -> Vec<u8> {
    let mut message = begin(id, capacity);
    message.extend_from_slice(br#""result":"#);
    message
}

/// Returns the start of every answer to this request.
fn begin(id: &Id, capacity: usize) -> Vec<u8> {
    let mut message = Vec::with_capacity(capacity + id.0.len() + 40);
    message.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    message.extend_from_slice(id.0.as_bytes());
    message.push(b',');
    message
}

/// Closes the message that [`begin_result`] opened.
pub(crate) const END: &[u8] = b"}";

/// Returns an answer with this result.
pub(crate) fn result(id: &Id, result: &[u8]) -> Bytes {
    let mut message = begin_result(id, result.len());
    message.extend_from_slice(result);
    message.extend_from_slice(END);
    message.into()
}

/// Returns an error; its id is `null` if the request's could not be read.
pub(crate) fn error(id: Option<&Id>, error: &ErrorData) -> Bytes {
    let mut message = Vec::with_capacity(96 + error.message.len());
    message.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    message.extend_from_slice(id.map_or("null", Id::as_str).as_bytes());
    message.extend_from_slice(br#","error":"#);
    push_json(&mut message, error);
    message.extend_from_slice(END);
    message.into()
}

/// Returns an answer to one request as the answer to another.
pub(crate) fn readdressed(answer: Bytes, from: &Id, to: &Id) -> Bytes {
    if from == to {
        return answer;
    }
    let head = begin(from, 0);
    let Some(rest) = answer.strip_prefix(&head[..]) else { return answer };
    let mut message = begin(to, rest.len());
    message.extend_from_slice(rest);
    message.into()
}

/// Returns a request to the client, or with no number a notification.
pub(crate) fn to_client(number: Option<u64>, method: &str, params: &str) -> Bytes {
    let mut message = Vec::with_capacity(params.len() + method.len() + 64);
    message.extend_from_slice(br#"{"jsonrpc":"2.0","#);
    if let Some(number) = number {
        message.extend_from_slice(format!(r#""id":{number},"#).as_bytes());
    }
    message.extend_from_slice(br#""method":"#);
    push_json(&mut message, method);
    message.extend_from_slice(br#","params":"#);
    message.extend_from_slice(params.as_bytes());
    message.push(b'}');
    message.into()
}

/// Appends the JSON of a value that always has one.
pub(crate) fn push_json(out: &mut Vec<u8>, value: &(impl serde::Serialize + ?Sized)) {
    let length = out.len();
    if serde_json::to_writer(&mut *out, value).is_err() {
        out.truncate(length);
        out.extend_from_slice(b"null");
    }
}

/// Returns the message on one line: a line break in valid JSON is white space, and both transports that
/// frame by lines need it gone.
pub(crate) fn one_line(message: Bytes) -> Bytes {
    if !message.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
        return message;
    }
    let plain = |byte: &u8| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte };
    message.iter().map(plain).collect()
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Envelope<'a> {
    #[serde(borrow, deserialize_with = "present")]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    method: Option<&'a RawValue>,
    #[serde(borrow)]
    params: Option<ObjectOr<Params<'a>>>,
    #[serde(borrow, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    error: Option<&'a RawValue>,
}

/// An object with known members, or the kind of another value.
#[derive(Debug)]
enum ObjectOr<T> {
    Object(T),
    Other(&'static str),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for ObjectOr<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = ObjectOr<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(de::value::MapAccessDeserializer::new(map)).map(ObjectOr::Object)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
        IgnoredAny.visit_seq(seq).map(|_| ObjectOr::Other("an array"))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(ObjectOr::Other("null"))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(ObjectOr::Other("a boolean"))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(ObjectOr::Other("a number"))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(ObjectOr::Other("a number"))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(ObjectOr::Other("a number"))
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(ObjectOr::Other("a string"))
    }
}

fn invalid_request(what: &'static str) -> ErrorData {
    ErrorData::invalid_request(what, None)
}

/// A wrong shape is noticed before the end of the text, so the text is then scanned again: a syntax error takes
/// precedence.
fn not_a_message(body: &[u8], err: Option<&serde_json::Error>) -> Malformed {
    if let Some(err) = err.filter(|err| err.classify() != Category::Data) {
        return parse_error(err);
    }
    if let Err(err) = serde_json::from_slice::<IgnoredAny>(body) {
        return parse_error(&err);
    }
    let error = match (first_byte(body), err) {
        (Some(b'['), _) => invalid_request("batches are not supported: send one message at a time"),
        (Some(b'{'), Some(err)) => {
            ErrorData::invalid_request(format!("not a JSON-RPC message: {err}"), None)
        }
        _ => invalid_request("not a JSON-RPC message: it must be an object"),
    };
    Malformed { id: None, error }
}

fn first_byte(body: &[u8]) -> Option<u8> {
    body.iter().copied().find(|byte| !byte.is_ascii_whitespace())
}

fn parse_error(err: &serde_json::Error) -> Malformed {
    Malformed { id: None, error: ErrorData::parse_error(format!("not JSON: {err}"), None) }
}

#[cfg(test)]
#[path = "rpc_tests.rs"]
mod tests;

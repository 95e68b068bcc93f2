//! JSON-RPC in lines: parsing and writing (RFC 2 §8.2).
//!
//! No I/O here. [`read`] parses a line as a [`Message`], and the `write_*` functions append messages to
//! a buffer. The content of a message (parameters, results) stays in its original text: it is neither
//! parsed nor copied, and numbers keep their digits.

use std::borrow::Cow;
use std::io::Write as _;

use bytes::Bytes;
use bytestring::ByteString;
use orla_marketplace::JsonText;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::mode::Meta;
use super::object::push_text;
use crate::framing::end_line;
pub use crate::framing::{MAX_MESSAGE, quoted};

/// A message of a server.
#[derive(Debug)]
pub enum Message {
    /// The answer to a request.
    Answer {
        /// The request's number.
        id: u64,
        /// The result.
        result: Result<JsonText, RpcError>,
    },
    /// An answer with an unknown id.
    Stray {
        /// Its JSON text.
        id: String,
    },
    /// A request of the server.
    Request {
        /// Its JSON text.
        id: JsonText,
        /// The method.
        method: String,
        /// The parameters.
        params: Option<JsonText>,
    },
    /// A notification.
    Notification {
        /// The method.
        method: String,
        /// The parameters.
        params: Option<JsonText>,
    },
}

/// The error of a request.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct RpcError {
    /// The code, as JSON-RPC or MCP defines it.
    #[serde(default)]
    pub code: i64,
    /// The message.
    #[serde(default)]
    pub message: String,
    /// Further data.
    #[serde(skip)]
    pub data: Option<JsonText>,
}

impl RpcError {
    /// Returns the error of a message. Any value of the member counts as an error.
    fn read(line: &ByteString, error: &RawValue) -> Self {
        #[derive(Deserialize)]
        struct Data<'a> {
            #[serde(borrow)]
            data: Option<&'a RawValue>,
        }
        let Ok(mut read) = serde_json::from_str::<Self>(error.get()) else {
            return Self { code: 0, message: error.get().to_owned(), data: None };
        };
        let data: Option<Data<'_>> = serde_json::from_str(error.get()).ok();
        read.data = data.and_then(|data| data.data).map(|data| JsonText::slice_of_text(line, data));
        read
    }
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    jsonrpc: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// Deserialises a member that counts as present even if it is `null`; `Option` alone treats `null` as
/// absent.
///
/// # Errors
/// The text is not JSON.
pub fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// Returns the messages of a line: itself, or those of a batch (2025-03-26).
pub fn messages(line: Bytes) -> Vec<Bytes> {
    if !line.trim_ascii_start().starts_with(b"[") {
        return vec![line];
    }
    match serde_json::from_slice::<Vec<&RawValue>>(&line) {
        Ok(parts) => parts.iter().map(|part| line.slice_ref(part.get().as_bytes())).collect(),
        Err(_) => vec![line],
    }
}

/// Parses a line as a message; `None` if it is not JSON-RPC.
pub fn read(line: &Bytes) -> Option<Message> {
    let line = &ByteString::try_from(line.clone()).ok()?;
    let envelope: Envelope<'_> = serde_json::from_str(line).ok()?;
    if envelope.jsonrpc.as_deref() != Some("2.0") {
        return None;
    }
    let id = envelope.id.filter(|id| id.get() != "null");
    if let Some(method) = envelope.method {
        let params = envelope.params.map(|params| JsonText::slice_of_text(line, params));
        let method = method.into_owned();
        return Some(match id {
            Some(id) => Message::Request { id: JsonText::slice_of_text(line, id), method, params },
            None => Message::Notification { method, params },
        });
    }
    let result = match (envelope.result, envelope.error) {
        (_, Some(error)) => Err(RpcError::read(line, error)),
        (Some(result), None) => Ok(JsonText::slice_of_text(line, result)),
        (None, None) => return None,
    };
    Some(match id?.get().parse() {
        Ok(id) => Message::Answer { id, result },
        Err(_) => Message::Stray { id: id?.get().to_owned() },
    })
}

/// The content of `orla.hello` (RFC 2 §9).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Hello {
    /// The capsule's name.
    pub name: Option<String>,
    /// Its version.
    pub version: Option<String>,
}

impl Hello {
    /// The method of the startup handshake.
    pub const METHOD: &str = "orla.hello";

    /// Reads its parameters; `None` if they are missing or of another type.
    pub fn read(params: Option<&JsonText>) -> Option<Self> {
        serde_json::from_str(params?.as_str()).ok()
    }
}

/// Appends a request. `params` is a JSON object without `_meta`.
pub fn write_request(out: &mut Vec<u8>, id: u64, method: &str, params: &str, meta: Meta<'_>) {
    let start = out.len();
    begin(out, id, method);
    open(out, params);
    let separator: &[u8] = if out.ends_with(b"{") { b"" } else { b"," };
    meta.write(out, separator);
    out.push(b'}');
    end(out, start);
}

/// Appends a call of `tool`; its progress token is its id. `more` are members of the parameters, each
/// preceded by a comma.
pub fn write_call(
    out: &mut Vec<u8>,
    id: u64,
    tool: &str,
    arguments: &JsonText,
    more: Option<&str>,
    meta: Meta<'_>,
) {
    let start = out.len();
    out.reserve(arguments.bytes().len() + 256);
    begin(out, id, "tools/call");
    out.extend_from_slice(br#"{"name":"#);
    push_text(out, tool);
    out.extend_from_slice(br#","arguments":"#);
    out.extend_from_slice(arguments.bytes());
    out.extend_from_slice(more.unwrap_or_default().as_bytes());
    meta.write(out, b",");
    out.push(b'}');
    end(out, start);
}

fn begin(out: &mut Vec<u8>, id: u64, method: &str) {
    // Writing to memory does not fail.
    let _ = write!(out, r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":"#);
}

/// Appends an object without its closing brace.
fn open(out: &mut Vec<u8>, object: &str) {
    let object = object.trim_ascii();
    out.extend_from_slice(
        object.strip_suffix('}').map_or(b"{", |open| open.trim_ascii_end().as_bytes()),
    );
}

/// Appends a notification.
pub fn write_notification(out: &mut Vec<u8>, method: &str, params: Option<&str>) {
    let start = out.len();
    out.extend_from_slice(format!(r#"{{"jsonrpc":"2.0","method":"{method}""#).as_bytes());
    if let Some(params) = params {
        out.extend_from_slice(br#","params":"#);
        out.extend_from_slice(params.as_bytes());
    }
    end(out, start);
}

/// Appends the notification that a request is cancelled.
pub fn write_cancelled(out: &mut Vec<u8>, id: u64) {
    let params = format!(r#"{{"requestId":{id},"reason":"the caller no longer waits"}}"#);
    write_notification(out, "notifications/cancelled", Some(&params));
}

/// Appends the answer to a request of the server.
pub fn write_answer(out: &mut Vec<u8>, id: &JsonText, result: Result<&str, &RpcError>) {
    let start = out.len();
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    out.extend_from_slice(id.bytes());
    match result {
        Ok(result) => {
            out.extend_from_slice(br#","result":"#);
            out.extend_from_slice(result.as_bytes());
        }
        Err(error) => {
            out.extend_from_slice(format!(r#","error":{{"code":{},"message":"#, error.code).as_bytes());
            push_text(out, &error.message);
            if let Some(data) = &error.data {
                out.extend_from_slice(br#","data":"#);
                out.extend_from_slice(data.bytes());
            }
            out.push(b'}');
        }
    }
    end(out, start);
}

/// Closes a message that began at `start`.
fn end(out: &mut Vec<u8>, start: usize) {
    out.push(b'}');
    end_line(out, start);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framing::Lines;
    use bytes::BufMut;
    use proptest::prelude::*;

    fn message(line: &'static str) -> Option<Message> {
        read(&Bytes::from_static(line.as_bytes()))
    }

    fn shown(line: &'static str) -> String {
        match message(line) {
            None => "noise".to_owned(),
            Some(Message::Answer { id, result: Ok(result) }) => format!("answer {id} {result}"),
            Some(Message::Answer { id, result: Err(error) }) => {
                format!("error {id} {} {}", error.code, error.message)
            }
            Some(Message::Stray { id }) => format!("stray {id}"),
            Some(Message::Request { id, method, params }) => format!("request {id} {method} {params:?}"),
            Some(Message::Notification { method, params }) => {
                format!("notification {method} {params:?}")
            }
        }
    }

    #[test]
    fn messages_are_parsed_by_kind() {
        let cases = [
            (
                r#"{"jsonrpc":"2.0","id":7,"result":{"n":1.10,"big":1e400}}"#,
                r#"answer 7 {"n":1.10,"big":1e400}"#,
            ),
            (r#"{"jsonrpc":"2.0","id":7,"result":null}"#, "answer 7 null"),
            (r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32601,"message":"no"}}"#, "error 7 -32601 no"),
            (r#"{"jsonrpc":"2.0","id":7,"error":"odd"}"#, "error 7 0 \"odd\""),
            (r#"{"jsonrpc":"2.0","id":"7","result":{}}"#, "stray \"7\""),
            (r#"{"jsonrpc":"2.0","id":-1,"result":{}}"#, "stray -1"),
            (r#"{"jsonrpc":"2.0","id":"a","method":"ping"}"#, "request \"a\" ping None"),
            (
                r#"{"jsonrpc":"2.0","method":"x","params":{"a":[1]}}"#,
                r#"notification x Some({"a":[1]})"#,
            ),
            (r#"{"jsonrpc":"2.0","id":null,"method":"x"}"#, "notification x None"),
            (r#"{"jsonrpc":"2.0","id":1}"#, "noise"),
            (r#"{"jsonrpc":"2.0","result":{}}"#, "noise"),
            (r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"?"}}"#, "noise"),
            (r#"{"id":1,"result":{}}"#, "noise"),
            (r#"{"level":"info","msg":"starting"}"#, "noise"),
            ("Server listening on stdio", "noise"),
            ("[]", "noise"),
            ("", "noise"),
        ];
        for (line, expected) in cases {
            assert_eq!(shown(line), expected, "{line}");
        }
    }

    #[test]
    fn every_message_is_written_as_one_line() {
        let mut out = Vec::new();
        let json = |text: &str| JsonText::parse(text.to_owned()).unwrap();
        let arguments = json("{\n\t\"x\": 1\r\n}");
        write_call(&mut out, 1, "a \"b\"", &arguments, None, Meta::default());
        let meta = Meta {
            progress: Some(2),
            traceparent: Some("00-x"),
            capabilities: Some("{}"),
            ..Meta::default()
        };
        write_call(&mut out, 2, "t", &json("{}"), None, meta);
        let meta = Meta { traceparent: Some("00-x"), ..Meta::default() };
        write_call(&mut out, 3, "t", &json("{}"), Some(",\"requestState\":\"s\""), meta);
        write_request(&mut out, 4, "tools/list", "{}", Meta::default());
        write_request(&mut out, 5, "m", r#"{"a":1}"#, meta);
        write_request(&mut out, 6, "m", "{ }", meta);
        write_notification(&mut out, "notifications/initialized", None);
        write_cancelled(&mut out, 2);
        write_answer(&mut out, &JsonText::parse("\"q\"").unwrap(), Ok("{}"));
        let error = RpcError { code: -32601, message: "no".to_owned(), data: None };
        write_answer(&mut out, &JsonText::parse("9").unwrap(), Err(&error));
        let expected = [
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"a \\\"b\\\"\",\"arguments\":{ \t\"x\": 1  }}}",
            r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"t","arguments":{},"_meta":{"progressToken":2,"traceparent":"00-x","io.modelcontextprotocol/clientCapabilities":{}}}}"#,
            r#"{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"t","arguments":{},"requestState":"s","_meta":{"traceparent":"00-x"}}}"#,
            r#"{"jsonrpc":"2.0","id":4,"method":"tools/list","params":{}}"#,
            r#"{"jsonrpc":"2.0","id":5,"method":"m","params":{"a":1,"_meta":{"traceparent":"00-x"}}}"#,
            r#"{"jsonrpc":"2.0","id":6,"method":"m","params":{"_meta":{"traceparent":"00-x"}}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2,"reason":"the caller no longer waits"}}"#,
            r#"{"jsonrpc":"2.0","id":"q","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":9,"error":{"code":-32601,"message":"no"}}"#,
        ];
        assert_eq!(String::from_utf8(out).unwrap().lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_batch_is_so_many_messages() {
        let parts = |text: &'static str| {
            let parts = messages(Bytes::from_static(text.as_bytes()));
            parts.iter().map(|part| String::from_utf8(part.to_vec()).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(parts(r#" [{"a":1}, {"b":[2]}]"#), [r#"{"a":1}"#, r#"{"b":[2]}"#]);
        assert_eq!(parts(r#"{"a":1}"#), [r#"{"a":1}"#]);
        assert_eq!(parts("[1"), ["[1"]);
        assert!(parts("[]").is_empty());
    }

    #[test]
    fn an_error_keeps_what_belongs_to_it() {
        let line = r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32042,"message":"m","data":{"n":1.10}}}"#;
        let Some(Message::Answer { result: Err(error), .. }) = message(line) else { panic!() };
        assert_eq!((error.code, error.data.unwrap().as_str()), (-32042, r#"{"n":1.10}"#));
    }

    #[test]
    fn a_hello_may_say_little() {
        let hello = |text: &str| Hello::read(Some(&JsonText::parse(text.to_owned()).unwrap()));
        assert_eq!(
            hello(r#"{"name":"x","version":"1","capabilities":["tools"]}"#).unwrap().name.as_deref(),
            Some("x")
        );
        assert_eq!(hello("{}"), Some(Hello::default()));
        assert_eq!((hello("[]"), Hello::read(None)), (hello("7"), None));
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_read(pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..20)) {
            let all: Vec<u8> = pieces.concat();
            let mut lines = Lines::default();
            let mut got: Vec<u8> = Vec::new();
            for piece in &pieces {
                lines.read_buffer().put_slice(piece);
                while let Ok(Some(line)) = lines.next() {
                    let _ = (read(&line), quoted(&line));
                    got.extend_from_slice(&line);
                    got.push(b'\n');
                }
            }
            prop_assert_eq!(&got[..], &all[..got.len()]);
            prop_assert!(!all[got.len()..].contains(&b'\n'));
        }

        #[test]
        fn a_line_of_json_makes_no_trouble(line in r#"(\{|\}|"jsonrpc":"2.0"|"id":|"method":|"result":|,|1|"a"|null){0,12}"#) {
            let _ = read(&Bytes::from(line.into_bytes()));
        }
    }
}

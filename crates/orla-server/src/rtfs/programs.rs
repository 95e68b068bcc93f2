//! `POST /rtfs`: a program, or one call, without the Model Context Protocol around it.
//!
//! A body `{"program", "input"?, "limits"?}` or `{"call": id, "input"?}` is answered with `{"value"}` or
//! `{"error": {kind, message, data, at}}`. A client that accepts `text/event-stream` receives the progress of the
//! program: events `step`, `log` and `call`, and as the last one `value` or `error`.
//!
//! # How it works
//!
//! A program is a call of the capability `rtfs`, so it is authorised, admitted and recorded like one, and so are
//! the calls that it makes. A client that disconnects withdraws its program ([`Exchange`]).
//!
//! An error of the program is a normal response (200). 400 means a malformed body, 429 that the caller exceeds a quota, with the
//! call or with one that the program makes and does not catch, 503 overload. If they are known at once, they are plain JSON even if the client accepts event streams.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::unfold;
use http::{HeaderMap, Response, StatusCode};
use orla_marketplace::json::value_to_json;
use orla_marketplace::program::{IDS, Trace, TraceSink};
use orla_marketplace::rtfs::{Error, Value};
use orla_marketplace::{Call, JsonText, NoticeSink, Outcome, Payload, Principal, RuntimeError};
use orla_mcp::federation::{as_json, described};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::credential::{ENDED, StreamEnd};
use crate::http::body::Body;
use crate::http::json_body::is_other_than_object;
use crate::http::response::{error_text, event, events, malformed, names};
use crate::mcp::dispatch::Reply;
use crate::mcp::http::exchange::Exchange;
use crate::mcp::notify::notices::Outlet;
use crate::mcp::notify::stream::{KEEP_ALIVE, Reader, Stream};
use crate::rtfs::federation;
use crate::state::Core;
use crate::step_up::StepUp;

/// How long to wait for an error that prevents the run, which is answered plainly.
const REFUSED_WITHIN: Duration = Duration::from_millis(250);
/// How long a stream may be quiet.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);

/// Answers a body, plainly or as a stream of events.
pub(crate) async fn answer(
    core: &Arc<Core>,
    principal: Option<Principal>,
    headers: &HeaderMap,
    body: &Bytes,
) -> Response<Body> {
    let as_stream = names(headers, "text/event-stream");
    let is_whole = names(headers, federation::OUTCOME);
    let mut call = match parse_body(body) {
        Ok(call) => call,
        Err(message) => return malformed(&message),
    };
    if let Err(what) = federation::apply_headers(&mut call, headers) {
        return federation::too_many_hops(&call.target, what);
    }
    let token = core.abort.child_token();
    call.scope.cancellation = token.clone();
    call.scope.principal = principal;
    let stream = as_stream.then(Stream::transient);
    if let Some(stream) = &stream {
        call.scope.notices = NoticeSink::default().traced(trace_sink(Arc::clone(stream)));
    }
    let own = Arc::clone(core);
    let work = Box::pin(async move {
        let is_program = call.target.as_str() == IDS[0];
        let principal = call.scope.principal.clone();
        let result = own.market.call(call).await;
        let denied = result.as_ref().err();
        let step_up = denied.and_then(|error| StepUp::after(&own, principal.as_ref(), error));
        let reply = match as_stream {
            true => last_event(result, is_program),
            false if is_whole => federation::reply(result),
            false => json_reply(result, is_program),
        };
        Some(Reply { step_up, ..reply })
    });
    let mut exchange = Exchange {
        core: Arc::clone(core),
        work: Some(work),
        token,
        stream: stream.clone(),
        session: None,
    };
    let Some(stream) = stream else {
        return match (&mut exchange).await {
            Some(answer) => answer.into_response(),
            None => events(futures_util::stream::empty()),
        };
    };
    tokio::select! {
        biased;
        answer = &mut exchange => match answer {
            Some(answer) if answer.status != StatusCode::OK || answer.step_up.is_some() => {
                let message = answer.message.slice_ref(split_message(&answer.message).1);
                return Reply { message, ..answer }.into_response();
            }
            answer => stream.finish(answer.map(|answer| answer.message)),
        },
        () = stream.ready() => {}
        () = tokio::time::sleep(REFUSED_WITHIN) => {}
    }
    let reader = stream.read_after(0);
    let state = Streamed { exchange, stream, reader };
    let mut response =
        events(unfold(state, |mut state| async move { Some((state.next().await?, state)) }));
    let last = event("error", error_text("unauthenticated", ENDED));
    response.extensions_mut().insert(StreamEnd { last, is_call: true });
    response
}

/// The body of a request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestBody<'a> {
    #[serde(borrow)]
    program: Option<&'a RawValue>,
    #[serde(borrow)]
    call: Option<Cow<'a, str>>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    limits: Option<&'a RawValue>,
}

fn parse_body(body: &Bytes) -> Result<Call, String> {
    const EXPECTED: &str = r#"{"program": "…"} or {"call": "id"} is expected"#;
    let text = body.trim_ascii();
    if text.is_empty() {
        return Err(format!("the body is empty: {EXPECTED}"));
    }
    if is_other_than_object(text) {
        return Err(format!("the body is not an object: {EXPECTED}"));
    }
    let asked: RequestBody<'_> =
        serde_json::from_slice(body).map_err(|err| format!("the body cannot be read: {err}"))?;
    match asked {
        RequestBody { program: Some(program), call: None, input, limits } => {
            // A null member counts as absent.
            let text = match (input, limits) {
                (input, None) => {
                    let input = input.map_or("null", RawValue::get);
                    format!(r#"{{"program":{program},"input":{input}}}"#).into()
                }
                _ => body.clone(),
            };
            let input = JsonText::parse(text).map_err(|err| err.to_string())?;
            Ok(Call::to(IDS[0]).with(Payload::from_json(input)))
        }
        RequestBody { program: None, call: Some(id), input, limits: None } => {
            let input = input.map_or_else(Payload::empty, |input| {
                Payload::from_json(JsonText::slice_of(body, input))
            });
            Ok(Call::to(&*id).with(input))
        }
        RequestBody { call: Some(_), limits: Some(_), .. } => {
            Err("`limits` are those of a program, and `call` names a capability".to_owned())
        }
        _ => Err("either `program` or `call` is expected".to_owned()),
    }
}

/// Sends the progress of a program as events.
fn trace_sink(stream: Arc<Stream>) -> TraceSink {
    TraceSink::new(move |trace| {
        let (name, data) = match trace {
            Trace::Step { name } => ("step", json!({ "name": name })),
            Trace::Logged { level, message, data } => {
                let mut event = json!({"level": level, "message": message});
                if !matches!(data, Value::Nil) {
                    event["data"] = as_json(&data);
                }
                ("log", event)
            }
            Trace::Called { id, input, result, duration, at } => {
                let ms = duration.as_micros() as f64 / 1000.0;
                let mut event = json!({"capability": id, "input": as_json(&input), "duration_ms": ms});
                match result {
                    Ok(value) => event["value"] = as_json(&value),
                    Err(Error { kind, message, .. }) => {
                        event["error"] = json!({"kind": kind, "message": message});
                    }
                }
                if let Some(at) = at {
                    event["at"] = json!({"line": at.line, "column": at.column});
                }
                ("call", event)
            }
            _ => return,
        };
        stream.send(event_message(name, &data.to_string()));
    })
}

/// Returns a message of the stream: its event's name, a space, its data.
fn event_message(event: &str, data: &str) -> Bytes {
    format!("{event} {data}").into()
}

/// Returns the name and the data of a message.
fn split_message(message: &Bytes) -> (&[u8], &[u8]) {
    let at = message.iter().position(|byte| *byte == b' ').unwrap_or_default();
    (&message[..at], &message[(at + 1).min(message.len())..])
}

fn sse_event(message: &Bytes) -> Bytes {
    let (name, data) = split_message(message);
    event(name, data)
}

fn last_event(result: Result<Outcome, RuntimeError>, is_program: bool) -> Reply {
    let name = if result.is_ok() { "value" } else { "error" };
    let json_reply = json_reply(result, is_program);
    Reply { message: [name.as_bytes(), b" ", &json_reply.message].concat().into(), ..json_reply }
}

/// `{"value"}` or `{"error"}`.
fn json_reply(result: Result<Outcome, RuntimeError>, is_program: bool) -> Reply {
    let error = match result {
        Ok(outcome) => match value_of(&outcome, is_program) {
            Ok(message) => return Reply::ok(message),
            Err(error) => error,
        },
        Err(error) => error,
    };
    // A program's own error contains the event itself, with its place.
    let is_own = is_program || matches!(error, RuntimeError::Structured { .. });
    let own = error.outcome().filter(|_| is_own).and_then(|outcome| {
        let structured = outcome.structured.as_ref()?.json().ok()?;
        structured.as_str().starts_with(r#"{"error":"#).then(|| structured.bytes().clone())
    });
    let status = status_of(&error, is_program);
    let message = own.unwrap_or_else(|| described(&error).to_string().into());
    Reply { status, retry_after: error.retry_after(), ..Reply::ok(message) }
}

pub(crate) fn status_of(error: &RuntimeError, is_program: bool) -> StatusCode {
    match error {
        RuntimeError::Busy { .. } | RuntimeError::Stopped { .. } => StatusCode::SERVICE_UNAVAILABLE,
        error if error.retry_after().is_some() => StatusCode::TOO_MANY_REQUESTS,
        // Of the program itself: the program reports the calls that it makes.
        RuntimeError::InvalidInput { .. } if is_program => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    }
}

fn value_of(outcome: &Outcome, is_program: bool) -> Result<Bytes, RuntimeError> {
    if let Some(structured) = &outcome.structured {
        let json = structured.json()?;
        return Ok(match is_program {
            true => json.bytes().clone(),
            false => [br#"{"value":"#, &json.bytes()[..], b"}"].concat().into(),
        });
    }
    let json = value_to_json(&outcome.value()?).map_err(|err| RuntimeError::Generic(err.to_string()))?;
    Ok(format!(r#"{{"value":{json}}}"#).into())
}

struct Streamed {
    exchange: Exchange,
    stream: Arc<Stream>,
    reader: Reader,
}

impl Streamed {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let running = self.exchange.work.is_some();
            tokio::select! {
                biased;
                next = self.reader.next() => return next.map(|(_, message)| sse_event(&message)),
                answer = &mut self.exchange, if running => {
                    self.stream.finish(answer.map(|answer| answer.message));
                }
                () = tokio::time::sleep(KEEP_ALIVE_EVERY) => return Some(KEEP_ALIVE),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_a_program_or_a_call() {
        for (body, target) in [
            (r#"{"program": "1"}"#, Ok("rtfs")),
            (r#"{"program": "1", "input": {}, "limits": {"steps": 5}}"#, Ok("rtfs")),
            (r#"{"call": "math.add", "input": {"a": 1}}"#, Ok("math.add")),
            (r#"{"program": "1", "input": null, "limits": null}"#, Ok("rtfs")),
            (r#"{"call": "math.add", "program": null, "limits": null}"#, Ok("math.add")),
            (r#"{"call": "math.add"}"#, Ok("math.add")),
            (r#"{"call": "a", "program": "1"}"#, Err("either")),
            (r#"{"call": "a", "limits": {}}"#, Err("limits")),
            (r#"{"input": 1}"#, Err("either")),
            (r#"{"programm": "1"}"#, Err("programm")),
            ("[]", Err("not an object")),
            ("7", Err("not an object")),
            ("[", Err("cannot be read")),
            (" ", Err("empty")),
        ] {
            match (parse_body(&Bytes::from_static(body.as_bytes())), target) {
                (Ok(call), Ok(target)) => assert_eq!(call.target.as_str(), target, "{body}"),
                (Err(message), Err(words)) => assert!(message.contains(words), "{body}: {message}"),
                (other, _) => panic!("{body}: {:?}", other.map(|call| call.target)),
            }
        }
    }

    #[test]
    fn an_event_has_its_name() {
        assert_eq!(
            sse_event(&event_message("step", r#"{"name":"a b"}"#)),
            "event: step\ndata: {\"name\":\"a b\"}\n\n"
        );
        let outcome = Outcome::from_value(Value::Int(3));
        let last = last_event(Ok(outcome), false);
        assert_eq!(sse_event(&last.message), "event: value\ndata: {\"value\":3}\n\n");
    }
}

//! Spans of rows, by the semantic conventions for MCP and GenAI. No I/O.

use std::time::{Duration, SystemTime};

use orla_history::{Call, Row, SpanLine, SpanWord, Trace, millis};

use crate::proto;
use crate::resource::{Resource, length, nanos, text};
use proto::{AnyKind, AnyValue, KeyValue};

/// A longer wait for permits has its own span.
const SHOWN_WAIT: Duration = Duration::from_millis(1);
/// The maximum number of spans within that of a call, besides its waiting.
const MAX_PARTS: usize = 126;
/// Bytes of the message of an error that are sent.
const MAX_MESSAGE: usize = 1024;

const INTERNAL: i32 = 1;
const SERVER: i32 = 2;
const CLIENT: i32 = 3;
const ERROR: i32 = 2;

/// Kinds of capabilities that are reached over a network.
const REMOTE: [&str; 6] = ["http", "mcp", "a2a", "remote-rtfs", "stream", "cluster"];

/// A prompt that an agent has carried out: the span around its calls.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// Its trace and its span.
    pub trace: Trace,
    /// The model, with its provider: `PROVIDER::MODEL`.
    pub model: String,
    /// When it began.
    pub started_at: SystemTime,
    /// From its beginning to its end.
    pub duration: Duration,
    /// What the model has read and written, in tokens.
    pub tokens: (u64, u64),
    /// Why there is no answer, as a word. What a model's server says may quote its key.
    pub error: Option<String>,
}

/// Returns the request that exports these calls and prompts. Rows without a trace are left out.
pub(crate) fn request(
    resource: &Resource,
    rows: &[Row],
    prompts: &[Prompt],
) -> proto::ExportTraceServiceRequest {
    let (resource, scope) = resource.messages();
    let of_calls = rows.iter().filter_map(spans).flatten();
    let spans = prompts.iter().filter_map(span_of_prompt).chain(of_calls).collect();
    proto::ExportTraceServiceRequest {
        resource_spans: vec![proto::ResourceSpans {
            resource: Some(resource),
            scope_spans: vec![proto::ScopeSpans { scope: Some(scope), spans }],
        }],
    }
}

/// Returns the span of a prompt.
fn span_of_prompt(prompt: &Prompt) -> Option<proto::Span> {
    let Prompt { trace, model, started_at, duration, tokens, error } = prompt;
    let (provider, name) = model.split_once("::").unwrap_or(("", model));
    let count = |key, count: u64| number(key, i64::try_from(count).unwrap_or(i64::MAX));
    let mut attributes = vec![
        text("gen_ai.operation.name", "invoke_agent"),
        text("gen_ai.agent.name", "orla"),
        text("gen_ai.provider.name", provider),
        text("gen_ai.request.model", name),
        count("gen_ai.usage.input_tokens", tokens.0),
        count("gen_ai.usage.output_tokens", tokens.1),
    ];
    let status = error.as_ref().map(|kind| {
        attributes.push(text("error.type", kind));
        proto::Status { message: String::new(), code: ERROR }
    });
    let start = nanos(*started_at);
    Some(proto::Span {
        trace_id: bytes(&trace.trace_id)?,
        span_id: bytes(&trace.span_id)?,
        parent_span_id: trace.parent_id.as_deref().and_then(bytes).unwrap_or_default(),
        name: "invoke_agent orla".to_owned(),
        kind: INTERNAL,
        start_time_unix_nano: start,
        end_time_unix_nano: start + length(*duration),
        attributes,
        status,
    })
}

/// Returns the span of a call or a request, and those of its waiting, its processes and its requests.
fn spans(row: &Row) -> Option<Vec<proto::Span>> {
    let (call, trace) = (&row.call, row.trace.as_ref()?);
    let trace_id = bytes(&trace.trace_id)?;
    let span_id = bytes(&trace.span_id)?;
    let parent_span_id = trace.parent_id.as_deref().and_then(bytes).unwrap_or_default();
    let (name, mut attributes) = subject(call);
    attributes.extend([
        text("orla.call_id", &call.id),
        text("orla.outcome", &call.outcome),
        number("orla.depth", i64::from(call.depth)),
        KeyValue {
            key: "orla.queued_ms".to_owned(),
            value: Some(AnyValue { value: Some(AnyKind::Double(millis(call.queued))) }),
        },
    ]);
    attributes.extend(call.principal.as_ref().map(|name| text("enduser.id", name)));
    let status = call.is_failed().then(|| {
        attributes.push(text("error.type", &call.outcome));
        let message = row.error.as_deref().unwrap_or_default();
        proto::Status { message: cut(message).to_owned(), code: ERROR }
    });
    let kind = match (call.depth, REMOTE.contains(&&*call.kind)) {
        (0, _) => SERVER,
        (_, true) => CLIENT,
        (_, false) => INTERNAL,
    };
    let start = nanos(call.started_at);
    let end = start + length(call.duration);
    // A part is in the span of its call, however its times were rounded.
    let part = |number: usize, name: &str, kind, from: u64, took: u64| proto::Span {
        trace_id: trace_id.clone(),
        span_id: of_part(&span_id, number),
        parent_span_id: span_id.clone(),
        name: name.to_owned(),
        kind,
        start_time_unix_nano: from.min(end),
        end_time_unix_nano: (from + took).min(end),
        attributes: Vec::new(),
        status: None,
    };
    let waited =
        (call.queued >= SHOWN_WAIT).then(|| part(0, "queue", INTERNAL, start, length(call.queued)));
    let parts = call.spans.iter().take(MAX_PARTS).enumerate().map(|(number, of_part)| {
        let of_millis = |ms: f64| (ms * 1e6) as u64;
        let (name, kind, mut attributes) = part_subject(of_part);
        let (from, took) = (start + of_millis(of_part.at_ms), of_millis(of_part.duration_ms));
        let status = of_part.is_failed().then(|| {
            let code = of_part.code.map_or_else(|| "none".to_owned(), |code| code.to_string());
            attributes.push(text("error.type", &code));
            proto::Status { message: String::new(), code: ERROR }
        });
        proto::Span { attributes, status, ..part(number + 1, name, kind, from, took) }
    });
    let parts: Vec<proto::Span> = waited.into_iter().chain(parts).collect();
    let own = proto::Span {
        trace_id: trace_id.clone(),
        span_id: span_id.clone(),
        parent_span_id,
        name,
        kind,
        start_time_unix_nano: start,
        end_time_unix_nano: end,
        attributes,
        status,
    };
    Some([own].into_iter().chain(parts).collect())
}

/// Returns the name of the span of a call or a request, and the attributes of what was called or asked for. The address of a
/// resource is not part of the name, because there are too many.
fn subject(call: &Call) -> (String, Vec<KeyValue>) {
    let method = |name: &str| text("mcp.method.name", name);
    match &*call.kind {
        "prompt" => {
            let name = text("gen_ai.prompt.name", &call.name);
            (format!("prompts/get {}", call.name), vec![method("prompts/get"), name])
        }
        "resource" => {
            let address = text("mcp.resource.uri", &call.name);
            ("resources/read".to_owned(), vec![method("resources/read"), address])
        }
        kind => {
            let attributes = vec![
                method("tools/call"),
                text("gen_ai.operation.name", "execute_tool"),
                text("gen_ai.tool.name", &call.name),
                text("gen_ai.tool.call.id", &call.id),
                text("orla.capability", &call.capability),
                text("orla.provider", kind),
            ];
            (format!("tools/call {}", call.name), attributes)
        }
    }
}

/// Returns the name, the kind and the attributes of the span of a process or a request.
fn part_subject(part: &SpanLine) -> (&str, i32, Vec<KeyValue>) {
    let code = |key| part.code.map(|code| number(key, i64::from(code)));
    match part.kind {
        SpanWord::Process => {
            let name = text("process.executable.name", &part.name);
            let code = code("process.exit.code");
            (&part.name, INTERNAL, std::iter::once(name).chain(code).collect())
        }
        SpanWord::Request => {
            let (method, origin) = part.name.split_once(' ').unwrap_or((&part.name, ""));
            let (scheme, authority) = origin.split_once("://").unwrap_or(("", origin));
            let port = authority.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
            let host = port.and_then(|port| authority.strip_suffix(&format!(":{port}")));
            let host = host.unwrap_or(authority).trim_start_matches('[').trim_end_matches(']');
            let usual = if scheme == "https" { 443 } else { 80 };
            let attributes = [
                text("http.request.method", method),
                text("url.scheme", scheme),
                text("server.address", host),
                number("server.port", i64::from(port.unwrap_or(usual))),
            ];
            let code = code("http.response.status_code");
            (method, CLIENT, attributes.into_iter().chain(code).collect())
        }
    }
}

/// Returns the id of the span of a part of a call: that of the call with other last bits.
fn of_part(id: &[u8], number: usize) -> Vec<u8> {
    let mut id = id.to_vec();
    if let Some(last) = id.last_mut() {
        // So none has the id of the call.
        *last ^= 0x80 | (number as u8 & 0x7f);
    }
    id
}

fn number(key: &str, value: i64) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(AnyKind::Int(value)) }) }
}

/// Decodes hexadecimal digits.
fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digits = hex.as_bytes().chunks_exact(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_MESSAGE)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_a_span_and_so_is_its_waiting() {
        let mut call = Call::new("c-1".into(), "math.add".into(), "failed".into());
        (call.name, call.depth) = ("math_add".into(), 1);
        (call.duration, call.queued) = (Duration::from_millis(20), Duration::from_millis(5));
        call.started_at = SystemTime::UNIX_EPOCH + Duration::from_secs(10);
        call.kind = "http".into();
        let sent = |name: &str, code| SpanLine {
            kind: SpanWord::Request,
            name: name.to_owned(),
            code,
            at_ms: 6.0,
            duration_ms: 100.0,
        };
        call.spans = vec![sent("POST https://[::1]:8080", Some(503)), sent("GET http://a.b", None)];
        let mut row = Row::of(call);
        row.error = Some("ü".repeat(2000));
        let trace_id = "4bf92f3577b34da6a3ce929d0e0e4736".to_owned();
        let parent_id = Some("00f067aa0ba902b7".to_owned());
        row.trace = Some(Trace { trace_id, span_id: "0102030405060708".to_owned(), parent_id });
        let resource =
            Resource { attributes: vec![("service.name".into(), "orla".into())], version: "1".into() };
        let request =
            request(&resource, &[row, Row::of(Call::new("x".into(), "x".into(), "ok".into()))], &[]);
        let spans = &request.resource_spans[0].scope_spans[0].spans;
        assert_eq!(spans.len(), 4);
        let own = &spans[0];
        assert_eq!((&*own.name, own.kind), ("tools/call math_add", CLIENT));
        assert_eq!(own.parent_span_id, [0, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]);
        assert_eq!(own.end_time_unix_nano - own.start_time_unix_nano, 20_000_000);
        let status = own.status.as_ref().unwrap();
        assert_eq!((status.code, status.message.len()), (ERROR, MAX_MESSAGE));
        assert!(own.attributes.contains(&text("error.type", "failed")));
        assert_eq!((&*spans[1].name, &spans[1].parent_span_id), ("queue", &own.span_id));
        assert!(spans[1].end_time_unix_nano <= own.end_time_unix_nano);
        let ids: std::collections::BTreeSet<_> = spans.iter().map(|span| &span.span_id).collect();
        assert_eq!(ids.len(), 4);
        for (span, (name, port)) in spans[2..].iter().zip([("POST", 8080), ("GET", 80)]) {
            assert_eq!((&*span.name, span.kind, &span.parent_span_id), (name, CLIENT, &own.span_id));
            assert_eq!(span.end_time_unix_nano, own.end_time_unix_nano, "no part outlasts its call");
            assert!(span.attributes.contains(&number("server.port", port)), "{span:?}");
            assert_eq!(span.status.as_ref().map(|status| status.code), Some(ERROR));
        }
        assert!(spans[2].attributes.contains(&text("error.type", "503")));
        assert!(spans[2].attributes.contains(&text("server.address", "::1")));
        assert!(spans[3].attributes.contains(&text("server.address", "a.b")));
    }
}

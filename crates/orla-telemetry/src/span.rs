//! Spans of rows, by the semantic conventions for MCP and GenAI. No I/O.

use std::time::{Duration, SystemTime};

use orla_history::{Row, Trace, millis};

use crate::proto;
use crate::resource::{Resource, length, nanos, text};
use proto::{AnyKind, AnyValue, KeyValue};

/// A longer wait for permits has its own span.
const SHOWN_WAIT: Duration = Duration::from_millis(1);
/// Bytes of the message of an error that are sent.
const MAX_MESSAGE: usize = 1024;

const INTERNAL: i32 = 1;
const SERVER: i32 = 2;
const CLIENT: i32 = 3;
const ERROR: i32 = 2;

/// Kinds of capabilities that are reached over a network.
const REMOTE: [&str; 5] = ["http", "mcp", "a2a", "remote-rtfs", "stream"];

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

/// Returns the span of a call, and that of its waiting.
fn spans(row: &Row) -> Option<Vec<proto::Span>> {
    let (call, trace) = (&row.call, row.trace.as_ref()?);
    let trace_id = bytes(&trace.trace_id)?;
    let span_id = bytes(&trace.span_id)?;
    let parent_span_id = trace.parent_id.as_deref().and_then(bytes).unwrap_or_default();
    let mut attributes = vec![
        text("mcp.method.name", "tools/call"),
        text("gen_ai.operation.name", "execute_tool"),
        text("gen_ai.tool.name", &call.name),
        text("gen_ai.tool.call.id", &call.id),
        text("orla.capability", &call.capability),
        text("orla.provider", &call.kind),
        text("orla.outcome", &call.outcome),
        number("orla.depth", i64::from(call.depth)),
        KeyValue {
            key: "orla.queued_ms".to_owned(),
            value: Some(AnyValue { value: Some(AnyKind::Double(millis(call.queued))) }),
        },
    ];
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
    let waited = (call.queued >= SHOWN_WAIT).then(|| proto::Span {
        trace_id: trace_id.clone(),
        span_id: of_waiting(&span_id),
        parent_span_id: span_id.clone(),
        name: "queue".to_owned(),
        kind: INTERNAL,
        start_time_unix_nano: start,
        end_time_unix_nano: start + length(call.queued.min(call.duration)),
        attributes: Vec::new(),
        status: None,
    });
    let own = proto::Span {
        trace_id,
        span_id,
        parent_span_id,
        name: format!("tools/call {}", call.name),
        kind,
        start_time_unix_nano: start,
        end_time_unix_nano: start + length(call.duration),
        attributes,
        status,
    };
    Some([own].into_iter().chain(waited).collect())
}

/// Returns the id of the span of a call's waiting: that of the call with other last bits.
fn of_waiting(id: &[u8]) -> Vec<u8> {
    let mut id = id.to_vec();
    if let Some(last) = id.last_mut() {
        *last ^= 0x55;
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
    use orla_history::Call;

    #[test]
    fn a_call_is_a_span_and_so_is_its_waiting() {
        let mut call = Call::new("c-1".into(), "math.add".into(), "failed".into());
        (call.name, call.depth) = ("math_add".into(), 1);
        (call.duration, call.queued) = (Duration::from_millis(20), Duration::from_millis(5));
        call.started_at = SystemTime::UNIX_EPOCH + Duration::from_secs(10);
        call.kind = "http".into();
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
        assert_eq!(spans.len(), 2);
        let own = &spans[0];
        assert_eq!((&*own.name, own.kind), ("tools/call math_add", CLIENT));
        assert_eq!(own.parent_span_id, [0, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]);
        assert_eq!(own.end_time_unix_nano - own.start_time_unix_nano, 20_000_000);
        let status = own.status.as_ref().unwrap();
        assert_eq!((status.code, status.message.len()), (ERROR, MAX_MESSAGE));
        assert!(own.attributes.contains(&text("error.type", "failed")));
        assert_eq!((&*spans[1].name, &spans[1].parent_span_id), ("queue", &own.span_id));
        assert!(spans[1].end_time_unix_nano <= own.end_time_unix_nano);
        assert_ne!(spans[1].span_id, own.span_id);
    }
}

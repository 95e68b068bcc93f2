//! Calls of a stream: their input and their outcome. Reading the input is pure.

use std::collections::BTreeMap;
use std::time::Duration;

use orla_marketplace::rtfs::Error;
use orla_marketplace::{
    CallContext, JsonText, Notice, Outcome, Payload, Progress, RuntimeError, RuntimeResult, StreamType,
    Violation,
};
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep_until};

use super::handle::Opened;
use orla_marketplace::StreamHandle as _;

/// The default number of items that a call collects.
pub(super) const LIMIT: usize = 100;
/// The maximum number of items.
pub(super) const MAX_LIMIT: usize = 100_000;
/// The default time of collecting.
pub(super) const FOR: Duration = Duration::from_secs(10);
/// The maximum number of bytes of items.
const MAX_BYTES: usize = 16 * 1024 * 1024;
/// How long before the call's own deadline collecting stops, so that the items so far are returned.
const MARGIN: Duration = Duration::from_millis(100);

/// The number of characters of the output that an error shows.
const SHOWN: usize = 40;

pub(super) struct Wanted {
    /// The opening input of the stream.
    pub(super) input: JsonText,
    pub(super) send: Vec<Payload>,
    limit: Option<usize>,
    max_wait: Duration,
}

/// Parses the input of a call.
///
/// # Errors
/// What is wrong with it.
pub(super) fn read(inputs: &JsonText, ctx: &CallContext) -> RuntimeResult<Wanted> {
    let invalid = |path: &str, expected: &str, got: &str| {
        let got = got.chars().take(SHOWN).collect();
        let violation = Violation { path: path.to_owned(), expected: expected.to_owned(), got };
        RuntimeError::InvalidInput { id: ctx.name.to_string(), violations: vec![violation] }
    };
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(inputs.as_str()).map_err(|_| {
        invalid("input", "an object with input, limit, for_ms and send", inputs.as_str())
    })?;
    let (mut input, mut limit, mut max_wait, mut send) = (None, None, FOR, Vec::new());
    for (name, raw) in &members {
        let text = raw.get();
        match name.as_str() {
            "input" => input = Some(*raw),
            "limit" | "for_ms" | "send" if text == "null" => {}
            "limit" => {
                let count = text.parse().ok().filter(|count| (1..=MAX_LIMIT).contains(count));
                let expected = format!("a whole number from 1 to {MAX_LIMIT}");
                limit = Some(count.ok_or_else(|| invalid("input.limit", &expected, text))?);
            }
            "for_ms" => {
                let expected = "a whole number of milliseconds, 0 or more";
                let ms = text.parse().map_err(|_| invalid("input.for_ms", expected, text))?;
                max_wait = Duration::from_millis(ms);
            }
            "send" => {
                let expected = "a list of values to send";
                send = serde_json::from_str::<Vec<&RawValue>>(text)
                    .map_err(|_| invalid("input.send", expected, text))?;
            }
            other => {
                let path = format!("input.{}", other.chars().take(SHOWN).collect::<String>());
                return Err(invalid(&path, "no such member, only input, limit, for_ms and send", text));
            }
        }
    }
    let text = |raw: &RawValue| inputs.slice(raw);
    let empty = || Payload::empty().json().cloned();
    Ok(Wanted {
        input: input.map_or_else(empty, |input| Ok(text(input)))?,
        send: send.iter().map(|value| Payload::from_json(text(value))).collect(),
        limit,
        max_wait,
    })
}

/// The reason why a call stopped collecting.
#[derive(Clone, Copy)]
enum Reason {
    End,
    Limit,
    Time,
    Size,
    Error,
    Cancelled,
}

impl Reason {
    fn name(self) -> &'static str {
        match self {
            Self::End => "end",
            Self::Limit => "limit",
            Self::Time => "time",
            Self::Size => "size",
            Self::Error => "error",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Sends the values, and collects items until there are enough of them or the time is over.
///
/// # Errors
/// The stream broke; with the items that came before.
pub(super) async fn collect(
    stream: &Opened,
    stream_type: StreamType,
    is_answered: bool,
    tells: bool,
    wanted: Wanted,
    ctx: &CallContext,
) -> RuntimeResult<Outcome> {
    let sent = wanted.send.len();
    if stream_type == StreamType::Sink {
        for value in wanted.send {
            stream.send(value).await?;
        }
        stream.settle().await?;
        return outcome(format!(r#"{{"sent":{sent}}}"#));
    }
    // Without a mark of the last item, one item is expected for each value.
    let limit = wanted.limit.unwrap_or(if is_answered && sent > 0 { sent } else { LIMIT });
    if stream_type.takes() {
        stream.feed(wanted.send).await?;
    }
    let end =
        (Instant::now() + wanted.max_wait).min(ctx.deadline.checked_sub(MARGIN).unwrap_or(ctx.deadline));
    let mut items = Items::default();
    let time_is_up = sleep_until(end);
    tokio::pin!(time_is_up);
    let reason = loop {
        if items.count == limit {
            break Reason::Limit;
        }
        let item = tokio::select! {
            biased;
            () = ctx.scope.cancellation.cancelled() => {
                let outcome = items.outcome(Reason::Cancelled).ok().map(Box::new);
                return Err(RuntimeError::Cancelled { id: ctx.name.to_string(), outcome });
            }
            () = &mut time_is_up => break Reason::Time,
            item = stream.next() => item,
        };
        match item {
            None => break Reason::End,
            Some(Ok(item)) => {
                if !items.push(item.json()?) {
                    break Reason::Size;
                }
                if tells && ctx.scope.notices.is_wanted() {
                    let progress = Progress {
                        progress: items.count as f64,
                        total: Some(limit as f64),
                        message: None,
                    };
                    ctx.scope.notices.send(Notice::Progress(progress));
                }
            }
            Some(Err(error)) => return Err(with_items(error, &items)),
        }
    };
    items.outcome(reason)
}

/// The text of the items so far. They are not kept individually, because each would keep the buffer it
/// arrived in.
#[derive(Default)]
struct Items {
    text: Vec<u8>,
    count: usize,
}

impl Items {
    /// Adds an item, if there is room for it.
    fn push(&mut self, item: &JsonText) -> bool {
        let item = item.bytes();
        if self.text.len() + item.len() > MAX_BYTES && self.count > 0 {
            return false;
        }
        if self.count > 0 {
            self.text.push(b',');
        }
        self.text.extend_from_slice(item);
        self.count += 1;
        true
    }

    fn outcome(&self, reason: Reason) -> RuntimeResult<Outcome> {
        let items = String::from_utf8_lossy(&self.text);
        outcome(format!(r#"{{"items":[{items}],"ended_by":"{}"}}"#, reason.name()))
    }
}

fn outcome(text: String) -> RuntimeResult<Outcome> {
    let json = JsonText::parse(text).map_err(|err| RuntimeError::Generic(err.to_string()))?;
    Ok(Outcome { structured: Some(Payload::from_json(json)), ..Outcome::default() })
}

/// Returns the error with the items that preceded it.
fn with_items(error: RuntimeError, items: &Items) -> RuntimeError {
    if items.count == 0 {
        return error;
    }
    let came = items.outcome(Reason::Error).ok().map(Box::new);
    match error {
        RuntimeError::Unavailable { id, reason, .. } => {
            let message = format!("{id} is unavailable: {reason}");
            let data = came.as_ref().and_then(|came| came.value().ok()).unwrap_or_default();
            // As `Unavailable`, the call would be retried, although it has returned items.
            let error = Error::new("unavailable", message.clone()).with_capability(&*id).with_data(data);
            RuntimeError::Structured { id, message, error: Box::new(error), outcome: came }
        }
        RuntimeError::Failed { id, message, .. } => RuntimeError::Failed { id, message, outcome: came },
        RuntimeError::TimedOut { id, limit, .. } => RuntimeError::TimedOut { id, limit, outcome: came },
        RuntimeError::InvalidOutput { id, violations, .. } => {
            RuntimeError::InvalidOutput { id, violations, outcome: came.unwrap_or_default() }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_stream_is_unavailable_with_the_items_so_far() {
        let unavailable =
            || RuntimeError::Unavailable { id: "s".into(), reason: "cut".into(), source: None };
        let mut items = Items::default();
        assert!(matches!(with_items(unavailable(), &items), RuntimeError::Unavailable { .. }));
        items.push(&JsonText::parse("1.10").unwrap());
        let error = with_items(unavailable(), &items);
        let came = error.outcome().unwrap().structured.as_ref().unwrap().json().unwrap().as_str();
        assert_eq!(came, r#"{"items":[1.10],"ended_by":"error"}"#);
        assert_eq!((error.kind(), error.to_string().as_str()), ("unavailable", "s is unavailable: cut"));
        let RuntimeError::Structured { error, .. } = error else { panic!("it is not told") };
        assert_eq!(error.kind, "unavailable");
    }

    #[test]
    fn options_of_a_call_are_parsed_strictly() {
        let ctx = CallContext::for_tests("s");
        let text = |text: &str| read(&JsonText::parse(text.to_owned()).unwrap(), &ctx);
        let wanted =
            text(r#"{"input": {"n": 1.10}, "limit": 3, "for_ms": 50, "send": [1, {"a": 2}]}"#).unwrap();
        assert_eq!(wanted.input.as_str(), r#"{"n": 1.10}"#);
        assert_eq!((wanted.send.len(), wanted.limit), (2, Some(3)));
        assert_eq!(wanted.max_wait, Duration::from_millis(50));
        assert_eq!(text("{}").unwrap().input.as_str(), "{}");
        for (bad, words) in [
            (r#"{"limit": 0}"#, "input.limit: expected a whole number from 1 to 100000, got 0"),
            (
                r#"{"for_ms": -1}"#,
                "input.for_ms: expected a whole number of milliseconds, 0 or more, got -1",
            ),
            (
                r#"{"limits": 1}"#,
                "input.limits: expected no such member, only input, limit, for_ms and send, got 1",
            ),
            ("[]", "input: expected an object with input, limit, for_ms and send, got []"),
            (r#"{"send": "x"}"#, "input.send: expected a list of values to send, got \"x\""),
        ] {
            let error = text(bad).err().unwrap().to_string();
            assert!(error.contains(words), "{bad}: {error}");
        }
    }
}

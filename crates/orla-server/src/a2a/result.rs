//! Turns the outcome of a call into the parts of an artifact or a message. Pure.
//!
//! | the capability gave | parts |
//! |---|---|
//! | a value | a data part |
//! | texts | text parts; one that only repeats the value is left out |
//! | images, audio, embedded resources | parts with their bytes, or texts, and their media type |
//! | a link | a part with its address |
//!
//! The capability's `_meta` becomes metadata. It may also determine the form of the answer: see [`Form`].

use std::collections::HashMap;

use a2a::{Artifact, Part};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use orla_marketplace::{Outcome, RuntimeError, whole_millis};
use serde_json::{Value, json};

/// The member of `_meta` that is about this protocol.
const ABOUT: &str = "orla/a2a";

/// What happened to a task that was at work.
pub(super) const SERVER_ENDED: &str = "The server ended while the task was at work.";

/// What an answer is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The result of a task.
    Task,
    /// A message, for a caller that waits for the answer without a stream: `_meta["orla/a2a"].kind` is `message`.
    Message,
    /// A refusal: `_meta["orla/a2a"].state` is `rejected`, as in the refusal of another agent.
    Rejection,
}

/// The form of a call's answer.
pub(super) fn form(outcome: &Outcome) -> Form {
    let about = metadata(outcome).and_then(|mut metadata| metadata.remove(ABOUT)).unwrap_or_default();
    match (about["kind"].as_str(), about["state"].as_str()) {
        (Some("message"), _) => Form::Message,
        (_, Some("rejected")) => Form::Rejection,
        _ => Form::Task,
    }
}

/// The outcome of a call as an artifact; `None` if it has none.
pub(super) fn artifact(outcome: &Outcome) -> Option<Artifact> {
    let parts = parts(outcome);
    (!parts.is_empty()).then(|| Artifact { metadata: metadata(outcome), ..of(parts) })
}

/// A part of the result's text, while it is written.
pub(super) fn piece(text: String) -> Artifact {
    of(vec![Part::text(text)])
}

fn of(parts: Vec<Part>) -> Artifact {
    Artifact {
        artifact_id: "result".to_owned(),
        name: Some("result".to_owned()),
        description: None,
        parts,
        metadata: None,
        extensions: None,
    }
}

/// What a call gave, as parts.
pub(super) fn parts(outcome: &Outcome) -> Vec<Part> {
    let value = outcome.structured.as_ref().and_then(|value| value.json().ok());
    let value: Option<Value> = value.and_then(|json| serde_json::from_str(json.as_str()).ok());
    let blocks =
        outcome.content.as_ref().and_then(|content| serde_json::from_str(content.as_str()).ok());
    let Some(Value::Array(blocks)) = blocks else { return value.map(data).into_iter().collect() };
    let repeats = |block: &&Value| {
        let text = block["text"].as_str().filter(|_| block["type"] == "text");
        value.is_some() && text.is_some_and(|text| serde_json::from_str(text).ok() == value)
    };
    let shown = blocks.iter().filter(|block| !repeats(block)).map(part);
    shown.chain(value.clone().map(data)).collect()
}

/// What an error says, as the parts of a message.
pub(super) fn said(error: &RuntimeError) -> Vec<Part> {
    let kind = match error {
        // The kind that the error already has, such as that of a program.
        RuntimeError::Structured { error, .. } => &*error.kind,
        error => error.kind(),
    };
    let mut parts = failure(kind, error.to_string());
    if let Some(wait) = error.retry_after() {
        parts.push(data(json!({"retry_after_ms": whole_millis(wait)})));
    }
    parts
}

/// The text of a task whose server ended: sending the message again may help.
pub(super) fn ended() -> Vec<Part> {
    failure("unavailable", SERVER_ENDED.to_owned())
}

fn failure(kind: &str, text: String) -> Vec<Part> {
    let error = json!({"error": {"kind": kind, "message": text}});
    vec![Part::text(text), data(error)]
}

fn metadata(outcome: &Outcome) -> Option<HashMap<String, Value>> {
    serde_json::from_str(outcome.meta.as_ref()?.as_str()).ok()
}

fn data(value: Value) -> Part {
    Part::data(value).with_media_type("application/json")
}

/// A content block of MCP, as a part.
fn part(block: &Value) -> Part {
    let text = |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    let bytes = |value: &Value, name: &str| STANDARD.decode(value.get(name)?.as_str()?).ok();
    let resource = &block["resource"];
    let named =
        || text(resource, "uri").and_then(|uri| uri.rsplit(['/', ':']).next().map(str::to_owned));
    let made = match block["type"].as_str() {
        Some("text") => text(block, "text").map(Part::text),
        Some("image" | "audio") => bytes(block, "data").map(|bytes| typed(Part::raw(bytes), block)),
        Some("resource") => {
            let content = match bytes(resource, "blob") {
                Some(blob) => Some(Part::raw(blob)),
                // A file, although its content is a text.
                None => text(resource, "text").map(|text| Part::raw(text.into_bytes())),
            };
            content.map(|part| Part {
                filename: named().filter(|name| !name.is_empty()),
                ..typed(part, resource)
            })
        }
        Some("resource_link") => text(block, "uri")
            .map(|uri| Part { filename: text(block, "name"), ..typed(Part::url(uri), block) }),
        _ => None,
    };
    made.unwrap_or_else(|| Part::data(block.clone()))
}

fn typed(mut part: Part, from: &Value) -> Part {
    part.media_type = from.get("mimeType").and_then(Value::as_str).map(str::to_owned);
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use orla_marketplace::{JsonText, Payload};

    fn outcome(value: Option<Value>, content: Option<Value>, meta: Option<Value>) -> Outcome {
        let json = |value: Value| JsonText::of(&value).unwrap();
        Outcome {
            structured: value.map(|value| Payload::from_json(json(value))),
            content: content.map(json),
            meta: meta.map(json),
            ..Outcome::default()
        }
    }

    #[test]
    fn what_a_call_gave_becomes_parts() {
        let data = json!({"data": {"n": 1}, "mediaType": "application/json"});
        let text = |text: &str| json!({"type": "text", "text": text});
        for (value, content, wanted) in [
            (Some(json!({"n": 1})), None, json!([data])),
            (Some(json!({"n": 1})), Some(json!([text("{\"n\": 1}")])), json!([data])),
            (Some(json!({"n": 1})), Some(json!([text("one")])), json!([{"text": "one"}, data])),
            (None, Some(json!([text("1")])), json!([{"text": "1"}])),
            (None, None, json!([])),
            (
                None,
                Some(json!([
                    {"type": "image", "data": "AQI=", "mimeType": "image/png"},
                    {"type": "resource", "resource": {"uri": "x:/a.html", "text": "t", "mimeType": "text/html"}},
                    {"type": "resource", "resource": {"uri": "x:b", "blob": "AQI="}},
                    {"type": "resource_link", "uri": "http://f", "name": "f"},
                    {"type": "new"}])),
                json!([
                    {"raw": "AQI=", "mediaType": "image/png"}, {"raw": "dA==", "filename": "a.html", "mediaType": "text/html"},
                    {"raw": "AQI=", "filename": "b"}, {"url": "http://f", "filename": "f"}, {"data": {"type": "new"}}]),
            ),
        ] {
            let made = parts(&outcome(value, content.clone(), None));
            assert_eq!(serde_json::to_value(made).unwrap(), wanted, "{content:?}");
        }
        assert!(artifact(&Outcome::default()).is_none());
    }

    #[test]
    fn a_structured_error_keeps_its_kind() {
        let told = |kind: &'static str| RuntimeError::Structured {
            id: "rtfs".to_owned(),
            message: "m".to_owned(),
            error: Box::new(orla_marketplace::rtfs::Error::new(kind, "m")),
            outcome: None,
        };
        for (parts, kind, text) in [
            (said(&told("arithmetic")), "arithmetic", "m"),
            (said(&told("timeout")), "timeout", "m"),
            (said(&RuntimeError::Generic("m".to_owned())), "failed", "m"),
            (ended(), "unavailable", SERVER_ENDED),
        ] {
            let error = json!({"error": {"kind": kind, "message": text}});
            let wanted = json!([{"text": text}, {"data": error, "mediaType": "application/json"}]);
            assert_eq!(serde_json::to_value(parts).unwrap(), wanted);
        }
    }

    #[test]
    fn a_capability_may_say_what_its_answer_is() {
        for (about, wanted) in [
            (json!({"kind": "message"}), Form::Message),
            (json!({"state": "rejected", "task_id": "t"}), Form::Rejection),
            (json!({"state": "completed"}), Form::Task),
            (json!(7), Form::Task),
        ] {
            assert_eq!(form(&outcome(None, None, Some(json!({ "orla/a2a": about })))), wanted);
        }
        assert_eq!(form(&Outcome::default()), Form::Task);
    }
}

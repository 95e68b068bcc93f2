//! Turns the output of a call into the parts of an artifact or a message. Pure.
//!
//! | output of the capability | parts |
//! |---|---|
//! | a value | a data part |
//! | texts | text parts; one that only repeats the value is left out |
//! | images, audio, embedded resources | parts with their bytes, or texts, and their media type |
//! | a link | a part with its address |
//!
//! The capability's `_meta` becomes metadata. It may also determine the form of the answer: see
//! [`Form`].

use std::collections::HashMap;

use a2a::{Artifact, Part};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use orla_tasks::{Failure, State};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// The member of `_meta` for this protocol.
const ABOUT: &str = "orla/a2a";

/// The member of `_meta` about quotas, and its member with the time to retry.
const QUOTA: &str = "orla/quota";
const RETRY_AFTER: &str = "retry_after_ms";

/// The end of the error message of a cancelled call.
const CANCELLED: &str = "cancelled";

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The result of a task.
    Task,
    /// A message, for a caller that waits for the answer without a stream: `_meta["orla/a2a"].kind` is `message`.
    Message,
    /// A refusal: `_meta["orla/a2a"].state` is `rejected`, as in the refusal of another agent.
    Rejection,
}

/// The stored output of a call: the result of MCP's `tools/call`.
#[derive(Clone, Debug, Default)]
pub(super) struct CallOutput {
    content: Vec<Value>,
    structured_content: Option<Value>,
    is_error: bool,
    meta: Option<HashMap<String, Value>>,
}

/// The result as it is written. Its members may have data that no part can hold.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawOutput<'a> {
    #[serde(borrow)]
    content: Vec<&'a RawValue>,
    #[serde(borrow)]
    structured_content: Option<&'a RawValue>,
    is_error: bool,
    #[serde(rename = "_meta", borrow)]
    meta: Option<HashMap<String, &'a RawValue>>,
}

impl CallOutput {
    /// Reads the result of a task. Data that the protocol cannot hold, such as the number 1e400, becomes a text.
    pub(super) fn read(text: &str) -> Self {
        let raw: RawOutput<'_> = serde_json::from_str(text).unwrap_or_default();
        let value = |raw: &RawValue| serde_json::from_str::<Value>(raw.get()).ok();
        let as_text = |raw: &RawValue| json!({"type": "text", "text": raw.get()});
        let mut content: Vec<Value> =
            raw.content.iter().map(|block| value(block).unwrap_or_else(|| as_text(block))).collect();
        let structured_content = raw.structured_content.and_then(value);
        if let (None, Some(raw)) = (&structured_content, raw.structured_content) {
            let text = as_text(raw);
            if !content.contains(&text) {
                content.push(text);
            }
        }
        let member = |(name, raw): (String, &RawValue)| Some((name, value(raw)?));
        let meta = raw.meta.map(|meta| meta.into_iter().filter_map(member).collect());
        Self { content, structured_content, is_error: raw.is_error, meta }
    }

    /// Returns the form of the answer.
    pub(super) fn form(&self) -> Form {
        let about = self.meta.as_ref().and_then(|meta| meta.get(ABOUT)).unwrap_or(&Value::Null);
        match (about["kind"].as_str(), about["state"].as_str()) {
            (Some("message"), _) => Form::Message,
            (_, Some("rejected")) => Form::Rejection,
            _ => Form::Task,
        }
    }

    /// Returns the output as an artifact, for a task in this state, or `None` if there is no output.
    pub(super) fn artifact(&self, state: State, failure: Option<&Failure>) -> Option<Artifact> {
        // The last block may be the error, which is not part of the output. The state reports it.
        let is_error = |block: &Value| match (state, failure, block["text"].as_str()) {
            (State::Cancelled, _, Some(text)) => self.is_error && text.ends_with(CANCELLED),
            (_, Some(failure), Some(text)) => text == failure.message,
            _ => false,
        };
        let parts = match self.content.split_last() {
            Some((last, before)) if is_error(last) => self.parts_of(before),
            _ => self.parts(),
        };
        let mut metadata = self.meta.clone();
        metadata.iter_mut().for_each(|metadata| drop(metadata.remove(ABOUT)));
        (!parts.is_empty()).then(|| Artifact { metadata, ..of(parts) })
    }

    /// Returns the output as parts.
    pub(super) fn parts(&self) -> Vec<Part> {
        self.parts_of(&self.content)
    }

    fn parts_of(&self, blocks: &[Value]) -> Vec<Part> {
        let value = self.structured_content.as_ref();
        let repeats = |block: &&Value| {
            let text = block["text"].as_str().filter(|_| block["type"] == "text");
            let is_value = |value: &Value, text: &str| {
                value.as_str() == Some(text) || serde_json::from_str(text).ok().as_ref() == Some(value)
            };
            value.zip(text).is_some_and(|(value, text)| is_value(value, text))
        };
        let shown = blocks.iter().filter(|block| !repeats(block)).map(part);
        shown.chain(value.cloned().map(data)).collect()
    }
}

/// Returns a piece of the result's text for a stream.
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

/// Returns the error of a task as the parts of a message.
pub(super) fn failure_parts(error: &Failure, output: Option<&CallOutput>) -> Vec<Part> {
    let mut parts = failure(&error.kind, error.message.clone());
    let quota = output.and_then(|output| output.meta.as_ref()?.get(QUOTA));
    if let Some(wait) = quota.and_then(|quota| quota.get(RETRY_AFTER)) {
        parts.push(data(json!({ RETRY_AFTER: wait })));
    }
    parts
}

fn failure(kind: &str, text: String) -> Vec<Part> {
    let error = json!({"error": {"kind": kind, "message": text}});
    vec![Part::text(text), data(error)]
}

fn data(value: Value) -> Part {
    Part::data(value).with_media_type("application/json")
}

/// Returns a content block of MCP, as a part.
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
                // A text resource is a file, although its content is a text.
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

    fn output(result: &Value) -> CallOutput {
        CallOutput::read(&result.to_string())
    }

    #[test]
    fn the_output_of_a_call_becomes_parts() {
        let data = json!({"data": {"n": 1}, "mediaType": "application/json"});
        let text = |text: &str| json!({"type": "text", "text": text});
        for (result, wanted) in [
            (json!({"content": [text("{\"n\": 1}")], "structuredContent": {"n": 1}}), json!([data])),
            (
                json!({"content": [text("one")], "structuredContent": {"n": 1}}),
                json!([{"text": "one"}, data]),
            ),
            (
                json!({"content": [text("one")], "structuredContent": "one"}),
                json!([{"data": "one", "mediaType": "application/json"}]),
            ),
            (json!({"content": [text("1")]}), json!([{"text": "1"}])),
            (json!({"content": []}), json!([])),
            (
                json!({"content": [
                    {"type": "image", "data": "AQI=", "mimeType": "image/png"},
                    {"type": "resource", "resource": {"uri": "x:/a.html", "text": "t", "mimeType": "text/html"}},
                    {"type": "resource", "resource": {"uri": "x:b", "blob": "AQI="}},
                    {"type": "resource_link", "uri": "http://f", "name": "f"},
                    {"type": "new"}]}),
                json!([
                    {"raw": "AQI=", "mediaType": "image/png"}, {"raw": "dA==", "filename": "a.html", "mediaType": "text/html"},
                    {"raw": "AQI=", "filename": "b"}, {"url": "http://f", "filename": "f"}, {"data": {"type": "new"}}]),
            ),
        ] {
            let made = output(&result).parts();
            assert_eq!(serde_json::to_value(made).unwrap(), wanted, "{result}");
        }
        assert!(output(&json!({})).artifact(State::Completed, None).is_none());
        for value in ["1e400", r#"{"v": "\ud800"}"#, &format!("{}{}", "[".repeat(600), "]".repeat(600))]
        {
            let hello = format!(
                r#"{{"content": [{{"type": "text", "text": "hello"}}], "structuredContent": {value}}}"#
            );
            let texts = CallOutput::read(&hello).parts();
            let wanted = json!([{"text": "hello"}, {"text": value}]);
            assert_eq!(serde_json::to_value(texts).unwrap(), wanted);
        }
    }

    #[test]
    fn the_output_of_a_failed_call_is_an_artifact_and_its_error_the_message() {
        let error = orla_marketplace::RuntimeError::Generic("it broke".to_owned());
        let failure = Failure::of(&error);
        let blocks = |texts: &[&str]| {
            texts.iter().map(|text| json!({"type": "text", "text": text})).collect::<Value>()
        };
        for (texts, state, wanted) in [
            (&["some", "it broke"][..], State::Failed, Some("some")),
            (&["it broke"], State::Failed, None),
            (&["some", "x was cancelled"], State::Cancelled, Some("some")),
            (&["some", "it broke"], State::Cancelled, Some("some")),
            (&[], State::Cancelled, None),
            (&[], State::Failed, None),
            (&["some"], State::Completed, Some("some")),
        ] {
            let failure = (state == State::Failed).then_some(&failure);
            let is_error = state != State::Completed;
            let result = json!({"content": blocks(texts), "isError": is_error});
            let made = output(&result).artifact(state, failure);
            assert_eq!(made.as_ref().and_then(|made| made.parts[0].as_text()), wanted, "{texts:?}");
        }
        // The call ended while it was being cancelled.
        let whole = output(&json!({"content": blocks(&["was cancelled"])}));
        assert!(whole.artifact(State::Cancelled, None).is_some());
        let error = json!({"error": {"kind": "failed", "message": "it broke"}});
        let wanted = json!([{"text": "it broke"}, {"data": error, "mediaType": "application/json"}]);
        assert_eq!(serde_json::to_value(failure_parts(&failure, None)).unwrap(), wanted);
        let late = output(&json!({"_meta": {"orla/quota": {"retry_after_ms": 7}}}));
        let parts = serde_json::to_value(failure_parts(&failure, Some(&late))).unwrap();
        assert_eq!(parts[2]["data"], json!({"retry_after_ms": 7}));
    }

    #[test]
    fn a_capability_may_declare_the_form_of_its_answer() {
        for (about, wanted) in [
            (json!({"kind": "message"}), Form::Message),
            (json!({"state": "rejected", "task_id": "t"}), Form::Rejection),
            (json!({"state": "completed"}), Form::Task),
            (json!(7), Form::Task),
        ] {
            assert_eq!(output(&json!({"_meta": {"orla/a2a": about}})).form(), wanted);
        }
        assert_eq!(output(&json!({})).form(), Form::Task);
    }
}

//! Turns the gathered events into an outcome. Pure.
//!
//! | the agent gave | outcome |
//! |---|---|
//! | one data part | its data as the value; content blocks too where there are other parts |
//! | several data parts | the list of their data, likewise |
//! | texts | text blocks; neighbours within an artifact are one |
//! | files | image, audio or embedded resource; a resource link where only the address is given |
//!
//! The outcome has the artifacts of a task, or the parts of its last state if it has none.
//! `_meta["orla/a2a"]` has the task, the conversation and the state.

use std::borrow::Cow;

use a2a::{Message, Part, PartContent, TaskState};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use orla_marketplace::{CallContext, JsonText, Outcome, Payload, RuntimeError};
use serde_json::{Value, json};

use super::gather::{Gathered, Turn};

/// The number of characters of an agent's last message that an error repeats.
const MAX_MESSAGE: usize = 16 * 1024;

/// Returns the output, complete or not.
pub(super) fn outcome(gathered: &Gathered, ctx: &CallContext) -> Outcome {
    let groups = groups(gathered);
    let parts: Vec<&Part> = groups.iter().flat_map(|(_, parts)| parts.iter()).collect();
    let data: Vec<&Value> = parts
        .iter()
        .filter_map(|part| match &part.content {
            PartContent::Data(data) => Some(data),
            _ => None,
        })
        .collect();
    let structured = match data[..] {
        [] => None,
        [only] => JsonText::of(only).ok(),
        _ => JsonText::of(&data).ok(),
    };
    let content = (data.len() < parts.len()).then(|| blocks(&groups, ctx));
    Outcome {
        structured: structured.map(Payload::from_json),
        content: content.and_then(|content| JsonText::of(&content).ok()),
        meta: JsonText::of(&json!({ "orla/a2a": metadata(gathered) })).ok(),
        ..Outcome::default()
    }
}

/// Returns the parts of an answer that never became complete.
pub(super) fn partial(gathered: &Gathered, host: &str, ctx: &CallContext) -> Outcome {
    let mut outcome = outcome(gathered, ctx);
    if outcome.structured.is_none() && outcome.content.is_none() {
        let text = match &gathered.task {
            Some(task) => format!(
                "Task {task} at {host} is {}; nothing of its result has arrived.",
                state_name(gathered)
            ),
            None => format!("No answer had begun from {host}."),
        };
        outcome.content = JsonText::of(&[json!({"type": "text", "text": text})]).ok();
    }
    outcome
}

/// Returns the agent's last message to the caller.
///
/// # Errors
/// The task failed, or the agent requires something that no one here can give.
pub(super) fn result(gathered: &Gathered, ctx: &CallContext) -> Result<Outcome, RuntimeError> {
    let name = &ctx.name;
    let words = gathered.last_message().map(|words| words.chars().take(MAX_MESSAGE).collect::<String>());
    let says = words.map(|words| format!(": {words}")).unwrap_or_default();
    let message = match gathered.state {
        _ if gathered.message.is_some() => return Ok(outcome(gathered, ctx)),
        Some(TaskState::Completed) => return Ok(outcome(gathered, ctx)),
        Some(TaskState::Rejected) => format!("{name} failed: the agent rejects the task{says}"),
        Some(TaskState::Canceled) => format!("{name} failed: the task was cancelled at the agent{says}"),
        Some(TaskState::InputRequired) => {
            let task = gathered.task.as_deref().unwrap_or_default();
            format!(
                "{name} needs an answer{says}; call it again with task_id {task} and the answer as message"
            )
        }
        Some(TaskState::AuthRequired) => {
            format!("{name} failed: the agent requires an authorization that orla cannot give{says}")
        }
        _ => format!("{name} failed at the agent{says}"),
    };
    let mut outcome = outcome(gathered, ctx);
    if gathered.turn() == Turn::Asking && outcome.structured.is_none() {
        let mut question = metadata(gathered);
        question["message"] = gathered.last_message().into();
        outcome.structured = JsonText::of(&question).ok().map(Payload::from_json);
    }
    Err(RuntimeError::Failed { id: name.to_string(), message, outcome: Some(Box::new(outcome)) })
}

/// Describes the state of a task besides its result.
fn metadata(gathered: &Gathered) -> Value {
    let artifacts: Vec<Value> = gathered
        .artifacts
        .iter()
        .map(|artifact| json!({"id": artifact.artifact_id, "name": artifact.name, "description": artifact.description}))
        .collect();
    let mut about =
        json!({"task_id": gathered.task, "context_id": gathered.context, "state": state_name(gathered)});
    if !artifacts.is_empty() {
        about["artifacts"] = artifacts.into();
    }
    about
}

/// Returns the name of the state for users.
fn state_name(gathered: &Gathered) -> &'static str {
    match gathered.state {
        _ if gathered.message.is_some() => "completed",
        None | Some(TaskState::Unspecified) => "unknown",
        Some(TaskState::Submitted) => "submitted",
        Some(TaskState::Working) => "working",
        Some(TaskState::Completed) => "completed",
        Some(TaskState::Failed) => "failed",
        Some(TaskState::Canceled) => "canceled",
        Some(TaskState::InputRequired) => "input-required",
        Some(TaskState::Rejected) => "rejected",
        Some(TaskState::AuthRequired) => "auth-required",
    }
}

/// Returns the relevant parts, by artifact.
fn groups(gathered: &Gathered) -> Vec<(&str, &[Part])> {
    fn of(message: Option<&Message>) -> Option<(&str, &[Part])> {
        message.map(|message| (message.message_id.as_str(), &message.parts[..]))
    }
    if let Some(answer) = of(gathered.message.as_ref()) {
        return vec![answer];
    }
    if gathered.artifacts.is_empty() {
        return of(gathered.status_message.as_ref()).into_iter().collect();
    }
    gathered.artifacts.iter().map(|one| (one.artifact_id.as_str(), &one.parts[..])).collect()
}

fn blocks(groups: &[(&str, &[Part])], ctx: &CallContext) -> Vec<Value> {
    let mut blocks = Vec::new();
    for (group, parts) in groups {
        // A text that arrived in pieces is joined.
        let mut text: Option<Cow<'_, str>> = None;
        for (index, part) in parts.iter().enumerate() {
            if let Some(more) = part.as_text() {
                match &mut text {
                    Some(text) => text.to_mut().push_str(more),
                    None => text = Some(more.into()),
                }
                continue;
            }
            blocks.extend(text.take().map(|text| json!({"type": "text", "text": text})));
            blocks.push(block(part, &format!("orla://call/{}/{group}/{index}", ctx.call_id)));
        }
        blocks.extend(text.take().map(|text| json!({"type": "text", "text": text})));
    }
    blocks
}

/// Returns the content block of a part that is not text.
fn block(part: &Part, uri: &str) -> Value {
    let own = part.media_type.as_deref().filter(|kind| !kind.is_empty());
    match &part.content {
        PartContent::Text(text) => json!({"type": "text", "text": text}),
        PartContent::Data(data) => json!({"type": "text", "text": data.to_string()}),
        PartContent::Url(url) => {
            let name = part.filename.clone().unwrap_or_else(|| url.clone());
            let mut link = json!({"type": "resource_link", "uri": url, "name": name});
            if let Some(own) = own {
                link["mimeType"] = own.into();
            }
            link
        }
        PartContent::Raw(bytes) => {
            let kind = own.or_else(|| infer::get(bytes).map(|kind| kind.mime_type()));
            let kind = kind.unwrap_or("application/octet-stream");
            let data = STANDARD.encode(bytes);
            match kind.split('/').next() {
                Some("image") => json!({"type": "image", "data": data, "mimeType": kind}),
                Some("audio") => json!({"type": "audio", "data": data, "mimeType": kind}),
                _ => {
                    json!({"type": "resource", "resource": {"uri": uri, "mimeType": kind, "blob": data}})
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(event: Value) -> Gathered {
        let mut gathered = Gathered::default();
        gathered.apply(serde_json::from_value(event).unwrap()).unwrap();
        gathered
    }

    fn task(state: &str, parts: &Value, says: &Value) -> Gathered {
        let mut task =
            json!({"id": "t", "contextId": "c", "status": {"state": format!("TASK_STATE_{state}")}});
        if *parts != json!([]) {
            task["artifacts"] = json!([{"artifactId": "a", "name": "report", "parts": parts}]);
        }
        if !says.is_null() {
            task["status"]["message"] =
                json!({"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": says}]});
        }
        gathered(json!({ "task": task }))
    }

    fn shown(gathered: &Gathered) -> (Value, Value) {
        let outcome = outcome(gathered, &CallContext::for_tests("a"));
        let json = |text: Option<&JsonText>| {
            text.map_or(Value::Null, |text| serde_json::from_str(text.as_str()).unwrap())
        };
        let structured = outcome.structured.as_ref().map(|structured| structured.json().unwrap());
        (json(structured), json(outcome.content.as_ref()))
    }

    #[test]
    fn parts_become_a_value_and_blocks() {
        let text = |text: &str| json!({"type": "text", "text": text});
        for (parts, value, content) in [
            (json!([{"data": {"n": 1}}]), json!({"n": 1}), Value::Null),
            (json!([{"data": 1}, {"data": 2}]), json!([1, 2]), Value::Null),
            (json!([{"text": "a"}, {"text": "b"}]), Value::Null, json!([text("ab")])),
            (
                json!([{"text": "a"}, {"data": [1]}, {"text": "b"}]),
                json!([1]),
                json!([text("a"), text("[1]"), text("b")]),
            ),
            (
                json!([{"raw": "AQI=", "mediaType": "image/png"}, {"raw": "AQI=", "mediaType": "audio/wav"}]),
                Value::Null,
                json!([{"type": "image", "data": "AQI=", "mimeType": "image/png"}, {"type": "audio", "data": "AQI=", "mimeType": "audio/wav"}]),
            ),
            (
                json!([{"raw": "AQI="}, {"url": "http://f", "filename": "f", "mediaType": "a/b"}]),
                Value::Null,
                json!([{"type": "resource", "resource": {"uri": "orla://call/test-1/a/0", "mimeType": "application/octet-stream", "blob": "AQI="}},
                    {"type": "resource_link", "uri": "http://f", "name": "f", "mimeType": "a/b"}]),
            ),
        ] {
            assert_eq!(shown(&task("COMPLETED", &parts, &Value::Null)), (value, content), "{parts}");
        }
        assert_eq!(shown(&task("COMPLETED", &json!([]), &json!("done"))).1, json!([text("done")]));
    }

    #[test]
    fn every_end_of_a_task_has_its_own_words() {
        let ctx = CallContext::for_tests("a");
        for (state, words) in [
            ("FAILED", "a failed at the agent: why"),
            ("REJECTED", "a failed: the agent rejects the task: why"),
            ("CANCELED", "a failed: the task was cancelled at the agent: why"),
            (
                "INPUT_REQUIRED",
                "a needs an answer: why; call it again with task_id t and the answer as message",
            ),
            (
                "AUTH_REQUIRED",
                "a failed: the agent requires an authorization that orla cannot give: why",
            ),
        ] {
            let error = result(&task(state, &json!([]), &json!("why")), &ctx).unwrap_err();
            assert_eq!(error.to_string(), words);
            let meta = error.outcome().unwrap().meta.clone().unwrap();
            assert!(meta.as_str().contains(r#""task_id":"t","context_id":"c""#), "{meta}");
        }
        assert!(result(&task("COMPLETED", &json!([]), &Value::Null), &ctx).is_ok());
    }

    #[test]
    fn a_partial_outcome_shows_what_has_arrived() {
        let ctx = CallContext::for_tests("a");
        let text = |gathered: &Gathered| partial(gathered, "h:1", &ctx).last_text().unwrap();
        assert_eq!(text(&Gathered::default()), "No answer had begun from h:1.");
        assert_eq!(
            text(&task("WORKING", &json!([]), &Value::Null)),
            "Task t at h:1 is working; nothing of its result has arrived."
        );
        assert_eq!(text(&task("WORKING", &json!([{"text": "half of it"}]), &Value::Null)), "half of it");
    }
}

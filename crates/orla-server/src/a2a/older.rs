//! Version 0.3 of the protocol, over JSON-RPC: converts its methods and its JSON to and from 1.0. Pure.
//!
//! | 0.3 | 1.0 |
//! |---|---|
//! | `message/send`, `message/stream` | `SendMessage`, `SendStreamingMessage` |
//! | `tasks/get`, `tasks/cancel`, `tasks/resubscribe` | `GetTask`, `CancelTask`, `SubscribeToTask` |
//! | `kind` in a part, a message, a task, an event | the member that is there |
//! | `{"file": {bytes \| uri, mimeType, name}}` | `raw` or `url`, `mediaType`, `filename` |
//! | `input-required`, `user` | `TASK_STATE_INPUT_REQUIRED`, `ROLE_USER` |
//!
//! Push notifications cannot be configured in this version, because posts have the form of 1.0.

use a2a::methods;
use serde_json::{Map, Value, json};

/// The place of the push configuration in a message.
pub(super) const PUSH: &str = "/configuration/pushNotificationConfig";

/// Returns the name of a method in 1.0; `None` if it is not served.
pub(super) fn method(older: &str) -> Option<&'static str> {
    Some(match older {
        "message/send" => methods::SEND_MESSAGE,
        "message/stream" => methods::SEND_STREAMING_MESSAGE,
        "tasks/get" => methods::GET_TASK,
        "tasks/cancel" => methods::CANCEL_TASK,
        "tasks/resubscribe" => methods::SUBSCRIBE_TO_TASK,
        "agent/getAuthenticatedExtendedCard" => methods::GET_EXTENDED_AGENT_CARD,
        _ => return None,
    })
}

/// Returns the parameters of a method in the form of 1.0. Members that 0.3 does not define stay
/// unchanged, and the reader refuses them.
pub(super) fn parameters(mut value: Value) -> Value {
    if let Some(message) = value.get_mut("message") {
        newer_message(message);
    }
    if let Some(Value::Object(configuration)) = value.get_mut("configuration")
        && let Some(Value::Bool(blocking)) = configuration.remove("blocking")
    {
        configuration.insert("returnImmediately".to_owned(), (!blocking).into());
    }
    value
}

/// Returns the result of a request for one task or one message: `{"task"}`, `{"message"}` or the task
/// itself.
pub(super) fn answer(value: Value) -> Value {
    match value {
        Value::Object(mut members) if members.len() == 1 => {
            let task = members.remove("task").map(older_task);
            task.or_else(|| members.remove("message").map(older_message))
                .unwrap_or(Value::Object(members))
        }
        task => older_task(task),
    }
}

/// Returns an event of a stream. The last one is marked as such.
pub(super) fn event(value: Value, is_last: bool) -> Value {
    let Value::Object(mut members) = value else { return value };
    if let Some(Value::Object(mut update)) = members.remove("statusUpdate") {
        change(&mut update, "status", older_status);
        update.insert("kind".to_owned(), "status-update".into());
        update.insert("final".to_owned(), is_last.into());
        return Value::Object(update);
    }
    if let Some(Value::Object(mut update)) = members.remove("artifactUpdate") {
        change(&mut update, "artifact", older_artifact);
        update.insert("kind".to_owned(), "artifact-update".into());
        return Value::Object(update);
    }
    answer(Value::Object(members))
}

fn newer_message(message: &mut Value) {
    let Value::Object(members) = message else { return };
    members.remove("kind");
    let role = match members.get("role").and_then(Value::as_str) {
        Some("user") => Some("ROLE_USER"),
        Some("agent") => Some("ROLE_AGENT"),
        _ => None,
    };
    if let Some(role) = role {
        members.insert("role".to_owned(), role.into());
    }
    each(members, "parts", newer_part);
}

fn newer_part(part: Value) -> Value {
    let Value::Object(mut members) = part else { return part };
    members.remove("kind");
    if let Some(Value::Object(mut file)) = members.remove("file") {
        for (older, newer) in FILE {
            if let Some(value) = file.remove(older).filter(|value| !value.is_null()) {
                members.insert(newer.to_owned(), value);
            }
        }
    }
    Value::Object(members)
}

/// The members of a file, in 0.3 and in 1.0.
const FILE: [(&str, &str); 4] =
    [("bytes", "raw"), ("uri", "url"), ("mimeType", "mediaType"), ("name", "filename")];

fn older_task(task: Value) -> Value {
    let Value::Object(mut members) = task else { return task };
    members.insert("kind".to_owned(), "task".into());
    change(&mut members, "status", older_status);
    each(&mut members, "artifacts", older_artifact);
    each(&mut members, "history", older_message);
    Value::Object(members)
}

fn older_status(status: Value) -> Value {
    let Value::Object(mut members) = status else { return status };
    change(&mut members, "state", |state| {
        let state =
            state.as_str().and_then(|state| state.strip_prefix("TASK_STATE_")).unwrap_or_default();
        match state {
            "" | "UNSPECIFIED" => "unknown".into(),
            state => state.to_ascii_lowercase().replace('_', "-").into(),
        }
    });
    change(&mut members, "message", older_message);
    Value::Object(members)
}

fn older_message(message: Value) -> Value {
    let Value::Object(mut members) = message else { return message };
    members.insert("kind".to_owned(), "message".into());
    let is_agent = members.get("role").is_some_and(|role| role == "ROLE_AGENT");
    members.insert("role".to_owned(), if is_agent { "agent" } else { "user" }.into());
    each(&mut members, "parts", older_part);
    Value::Object(members)
}

fn older_artifact(artifact: Value) -> Value {
    let Value::Object(mut members) = artifact else { return artifact };
    each(&mut members, "parts", older_part);
    Value::Object(members)
}

fn older_part(part: Value) -> Value {
    let Value::Object(mut members) = part else { return part };
    let mut older = Map::new();
    if let Some(text) = members.remove("text") {
        older.extend([("kind".to_owned(), "text".into()), ("text".to_owned(), text)]);
    } else if let Some(data) = members.remove("data") {
        // In version 0.3, data is an object.
        let data = if data.is_object() { data } else { json!({ "value": data }) };
        older.extend([("kind".to_owned(), "data".into()), ("data".to_owned(), data)]);
    } else {
        let file = FILE
            .iter()
            .filter_map(|(older, newer)| Some(((*older).to_owned(), members.remove(*newer)?)));
        let file = file.collect::<Map<_, _>>();
        older.extend([("kind".to_owned(), "file".into()), ("file".to_owned(), Value::Object(file))]);
    }
    older.extend(members.remove("metadata").map(|metadata| ("metadata".to_owned(), metadata)));
    Value::Object(older)
}

fn change(members: &mut Map<String, Value>, name: &str, change: impl Fn(Value) -> Value) {
    if let Some(value) = members.get_mut(name) {
        *value = change(value.take());
    }
}

fn each(members: &mut Map<String, Value>, name: &str, change: impl Fn(Value) -> Value) {
    if let Some(Value::Array(items)) = members.get_mut(name) {
        items.iter_mut().for_each(|item| *item = change(item.take()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2a::SendMessageRequest;
    use proptest::prelude::*;

    #[test]
    fn messages_of_0_3_are_converted_to_1_0() {
        let older = json!({"message": {"kind": "message", "messageId": "m", "role": "user", "parts": [
                {"kind": "text", "text": "hi"}, {"kind": "data", "data": {"a": 1}},
                {"kind": "file", "file": {"bytes": "AQI=", "mimeType": "image/png", "name": "x"}}]},
            "configuration": {"blocking": false, "acceptedOutputModes": ["text/plain"]}});
        let newer = json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [
                {"text": "hi"}, {"data": {"a": 1}}, {"raw": "AQI=", "mediaType": "image/png", "filename": "x"}]},
            "configuration": {"returnImmediately": true, "acceptedOutputModes": ["text/plain"]}});
        let read = |value: Value| serde_json::from_value::<SendMessageRequest>(value).unwrap();
        assert_eq!(read(parameters(older)), read(newer));
    }

    #[test]
    fn answers_have_the_form_of_0_3() {
        let status = json!({"state": "TASK_STATE_INPUT_REQUIRED", "timestamp": "t",
            "message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "?"}]}});
        let older_status = json!({"state": "input-required", "timestamp": "t",
            "message": {"kind": "message", "messageId": "m", "role": "agent", "parts": [{"kind": "text", "text": "?"}]}});
        let task = json!({"id": "t", "contextId": "c", "status": status,
            "artifacts": [{"artifactId": "a", "parts": [{"data": 1, "mediaType": "application/json"}, {"url": "http://f", "filename": "f"}]}]});
        let older_task = json!({"kind": "task", "id": "t", "contextId": "c", "status": older_status,
            "artifacts": [{"artifactId": "a", "parts": [{"kind": "data", "data": {"value": 1}}, {"kind": "file", "file": {"uri": "http://f", "name": "f"}}]}]});
        assert_eq!(answer(task.clone()), older_task);
        assert_eq!(answer(json!({ "task": task })), older_task);
        let message = json!({"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": []}});
        assert_eq!(
            answer(message),
            json!({"kind": "message", "messageId": "m", "role": "agent", "parts": []})
        );
        let update = json!({"statusUpdate": {"taskId": "t", "contextId": "c", "status": status}});
        assert_eq!(
            event(update, true),
            json!({"kind": "status-update", "taskId": "t", "contextId": "c", "status": older_status, "final": true})
        );
        let update = json!({"artifactUpdate": {"taskId": "t", "artifact": {"artifactId": "a", "parts": [{"text": "x"}]}, "append": false}});
        assert_eq!(
            event(update, false),
            json!({"kind": "artifact-update", "taskId": "t", "append": false,
                "artifact": {"artifactId": "a", "parts": [{"kind": "text", "text": "x"}]}})
        );
    }

    proptest! {
        #[test]
        fn a_message_round_trips(texts in proptest::collection::vec("\\PC{0,8}", 0..4), number: i32) {
            let mut parts: Vec<Value> = texts.iter().map(|text| json!({"text": text})).collect();
            parts.push(json!({"data": {"n": number}}));
            let message = json!({"messageId": "m", "role": "ROLE_USER", "parts": parts});
            let back = parameters(json!({"message": older_message(message.clone())}));
            prop_assert_eq!(&back["message"], &message);
        }
    }
}

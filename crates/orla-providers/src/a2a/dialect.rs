//! The two generations of the protocol's JSON: 1.x, which all other code here uses, and 0.3. Pure.
//!
//! Messages from an agent are converted to the form of 1.x, including the members that a writer of
//! ProtoJSON omits because they are empty. Messages to an agent of 0.3 are converted to its form. 0.3
//! has two forms: objects with a `kind` over JSON-RPC, and ProtoJSON of its own messages over HTTP+JSON.

use serde_json::{Map, Value, json};

/// A generation of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// 0.3 and its predecessors.
    V0,
    /// 1.x.
    V1,
}

/// A method of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Send,
    Stream,
    Get,
    Cancel,
    Subscribe,
}

impl Dialect {
    /// Returns the dialect of a version; `None` for an unknown generation.
    pub(super) fn of(version: &str) -> Option<Self> {
        match version.trim().split('.').next().unwrap_or_default() {
            "0" => Some(Self::V0),
            "1" | "" => Some(Self::V1),
            _ => None,
        }
    }

    /// Returns the value of `A2A-Version` in requests.
    pub(super) fn version(self) -> &'static str {
        match self {
            Self::V0 => "0.3",
            Self::V1 => "1.0",
        }
    }

    /// Returns the JSON-RPC method of an operation.
    pub(super) fn method(self, operation: Operation) -> &'static str {
        match (self, operation) {
            (Self::V1, Operation::Send) => "SendMessage",
            (Self::V1, Operation::Stream) => "SendStreamingMessage",
            (Self::V1, Operation::Get) => "GetTask",
            (Self::V1, Operation::Cancel) => "CancelTask",
            (Self::V1, Operation::Subscribe) => "SubscribeToTask",
            (Self::V0, Operation::Send) => "message/send",
            (Self::V0, Operation::Stream) => "message/stream",
            (Self::V0, Operation::Get) => "tasks/get",
            (Self::V0, Operation::Cancel) => "tasks/cancel",
            (Self::V0, Operation::Subscribe) => "tasks/resubscribe",
        }
    }

    /// Converts a request of 1.x (the parameters of [`Operation::Send`] and [`Operation::Stream`]) to
    /// this dialect.
    pub(super) fn request(self, request: Value) -> Value {
        if self == Self::V1 {
            return request;
        }
        let Value::Object(mut members) = request else { return request };
        if let Some(message) = members.get_mut("message") {
            *message = older_message(message.take());
        }
        if let Some(Value::Object(configuration)) = members.get_mut("configuration")
            && let Some(Value::Bool(at_once)) = configuration.remove("returnImmediately")
        {
            configuration.insert("blocking".to_owned(), Value::Bool(!at_once));
        }
        Value::Object(members)
    }

    /// Converts a request to this dialect's form over HTTP+JSON.
    pub(super) fn plain_request(self, request: Value) -> Value {
        if self == Self::V1 {
            return request;
        }
        // The configuration is the same in both forms.
        let configuration = self.request(json!({"configuration": request["configuration"].clone()}));
        let Value::Object(mut members) = request else { return request };
        if let Some(given) = members.get_mut("configuration") {
            *given = configuration["configuration"].clone();
        }
        if let Some(Value::Object(message)) = members.get_mut("message") {
            each(message, "parts", plain_part);
            if let Some(parts) = message.remove("parts") {
                message.insert("content".to_owned(), parts);
            }
        }
        Value::Object(members)
    }

    /// Converts an agent's answer to a message, or an event of a stream, to an object with one of
    /// `task`, `message`, `statusUpdate`, `artifactUpdate`.
    pub(super) fn event(self, event: Value) -> Value {
        match self {
            Self::V0 if event.get("kind").is_none() && event.get("status").is_none() => {
                self.members(event)
            }
            Self::V1 => self.members(event),
            Self::V0 => {
                let kind = event.get("kind").and_then(Value::as_str).unwrap_or_default();
                let name = match kind {
                    "message" => "message",
                    "status-update" => "statusUpdate",
                    "artifact-update" => "artifactUpdate",
                    "task" => "task",
                    _ if event.get("status").is_some() => "task",
                    _ => return event,
                };
                let whole = WHOLES.iter().find(|(own, _)| *own == name);
                json!({ name: whole.map_or(event.clone(), |(_, whole)| whole(event, self)) })
            }
        }
    }

    /// Converts an event whose member gives its type.
    fn members(self, event: Value) -> Value {
        let Value::Object(mut members) = event else { return event };
        if let Some(message) = members.remove("msg") {
            members.insert("message".to_owned(), message);
        }
        for (name, whole) in WHOLES {
            if let Some(inner) = members.get_mut(name) {
                *inner = whole(inner.take(), self);
            }
        }
        Value::Object(members)
    }

    /// Converts an agent's answer to a request for a task.
    pub(super) fn task(self, value: Value) -> Value {
        task(value, self)
    }
}

type Whole = fn(Value, Dialect) -> Value;

const WHOLES: [(&str, Whole); 4] = [
    ("task", task),
    ("message", message),
    ("statusUpdate", status_update),
    ("artifactUpdate", artifact_update),
];

fn task(value: Value, dialect: Dialect) -> Value {
    let Value::Object(mut members) = value else { return value };
    fill(&mut members, &["id", "contextId"]);
    change(&mut members, "status", |inner| status(inner, dialect));
    each(&mut members, "artifacts", |inner| artifact(inner, dialect));
    each(&mut members, "history", |inner| message(inner, dialect));
    Value::Object(members)
}

fn status_update(value: Value, dialect: Dialect) -> Value {
    let Value::Object(mut members) = value else { return value };
    fill(&mut members, &["taskId", "contextId"]);
    change(&mut members, "status", |inner| status(inner, dialect));
    Value::Object(members)
}

fn artifact_update(value: Value, dialect: Dialect) -> Value {
    let Value::Object(mut members) = value else { return value };
    fill(&mut members, &["taskId", "contextId"]);
    change(&mut members, "artifact", |inner| artifact(inner, dialect));
    Value::Object(members)
}

fn status(value: Value, dialect: Dialect) -> Value {
    let Value::Object(mut members) = value else { return value };
    // The time is not needed here, and agents write it in several ways.
    members.remove("timestamp");
    let state = members.get("state").and_then(Value::as_str).unwrap_or_default();
    let state = match (dialect, state) {
        (_, "") | (Dialect::V0, "unknown") => "TASK_STATE_UNSPECIFIED".to_owned(),
        (Dialect::V0, "TASK_STATE_CANCELLED") => "TASK_STATE_CANCELED".to_owned(),
        (Dialect::V0, state) if !state.starts_with("TASK_STATE_") => {
            format!("TASK_STATE_{}", state.to_ascii_uppercase().replace('-', "_"))
        }
        (_, state) => state.to_owned(),
    };
    members.insert("state".to_owned(), state.into());
    change(&mut members, "message", |inner| message(inner, dialect));
    Value::Object(members)
}

fn message(value: Value, dialect: Dialect) -> Value {
    let Value::Object(mut members) = value else { return value };
    fill(&mut members, &["messageId", "role"]);
    let role = match members.get("role").and_then(Value::as_str) {
        Some("user") => Some("ROLE_USER"),
        Some("agent") => Some("ROLE_AGENT"),
        _ => None,
    };
    if let Some(role) = role {
        members.insert("role".to_owned(), role.into());
    }
    if dialect == Dialect::V0
        && let Some(content) = members.remove("content")
    {
        members.entry("parts").or_insert(content);
    }
    parts(&mut members, dialect);
    Value::Object(members)
}

fn artifact(value: Value, dialect: Dialect) -> Value {
    let Value::Object(mut members) = value else { return value };
    fill(&mut members, &["artifactId"]);
    parts(&mut members, dialect);
    Value::Object(members)
}

fn parts(members: &mut Map<String, Value>, dialect: Dialect) {
    members.entry("parts").or_insert_with(|| json!([]));
    each(members, "parts", |inner| part(inner, dialect));
}

fn part(value: Value, dialect: Dialect) -> Value {
    let Value::Object(mut members) = value else { return value };
    let has_content = ["text", "raw", "url", "data"].iter().any(|name| members.contains_key(*name));
    if dialect == Dialect::V0
        && let Some(Value::Object(mut file)) = members.remove("file")
    {
        for (from, to) in [
            ("bytes", "raw"),
            ("fileWithBytes", "raw"),
            ("uri", "url"),
            ("fileWithUri", "url"),
            ("mimeType", "mediaType"),
            ("name", "filename"),
        ] {
            if let Some(value) = file.remove(from).filter(|value| !value.is_null()) {
                members.insert(to.to_owned(), value);
            }
        }
    } else if dialect == Dialect::V0
        && !members.contains_key("kind")
        && let Some(Value::Object(wrapped)) = members.get_mut("data")
        && wrapped.len() == 1
        && let Some(data) = wrapped.remove("data")
    {
        members.insert("data".to_owned(), data);
    } else if !has_content {
        members.insert("text".to_owned(), "".into());
    }
    Value::Object(members)
}

/// Converts a message of 1.x to 0.3.
fn older_message(message: Value) -> Value {
    let Value::Object(mut members) = message else { return message };
    members.insert("kind".to_owned(), "message".into());
    let role =
        if members.get("role").is_some_and(|role| role == "ROLE_AGENT") { "agent" } else { "user" };
    members.insert("role".to_owned(), role.into());
    each(&mut members, "parts", older_part);
    Value::Object(members)
}

fn older_part(part: Value) -> Value {
    let Value::Object(mut members) = part else { return part };
    let mut older = Map::new();
    if let Some(metadata) = members.remove("metadata") {
        older.insert("metadata".to_owned(), metadata);
    }
    for kind in ["text", "data"] {
        if let Some(content) = members.remove(kind) {
            older.insert("kind".to_owned(), kind.into());
            older.insert(kind.to_owned(), content);
            return Value::Object(older);
        }
    }
    let mut file = Map::new();
    for (from, to) in [("raw", "bytes"), ("url", "uri"), ("mediaType", "mimeType"), ("filename", "name")]
    {
        if let Some(value) = members.remove(from) {
            file.insert(to.to_owned(), value);
        }
    }
    older.insert("kind".to_owned(), "file".into());
    older.insert("file".to_owned(), Value::Object(file));
    Value::Object(older)
}

/// Converts a part of 1.x to the ProtoJSON of 0.3.
fn plain_part(part: Value) -> Value {
    let Value::Object(mut members) = older_part(part) else { return Value::Null };
    members.remove("kind");
    change(&mut members, "data", |data| match data {
        Value::Object(_) => json!({ "data": data }),
        other => json!({"data": {"value": other}}),
    });
    change(&mut members, "file", |file| {
        let Value::Object(mut file) = file else { return file };
        for (from, to) in [("bytes", "fileWithBytes"), ("uri", "fileWithUri")] {
            if let Some(value) = file.remove(from) {
                file.insert(to.to_owned(), value);
            }
        }
        Value::Object(file)
    });
    Value::Object(members)
}

/// Adds empty texts, which a writer of ProtoJSON omits.
fn fill(members: &mut Map<String, Value>, names: &[&str]) {
    for name in names {
        let value = members.entry(*name).or_insert(Value::Null);
        if value.is_null() {
            *value = "".into();
        }
    }
}

fn change(members: &mut Map<String, Value>, name: &str, change: impl Fn(Value) -> Value) {
    if let Some(value) = members.get_mut(name) {
        *value = change(value.take());
    }
}

fn each(members: &mut Map<String, Value>, name: &str, change: impl Fn(Value) -> Value) {
    if let Some(Value::Array(items)) = members.get_mut(name) {
        for item in items {
            *item = change(item.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2a::{PartContent, SendMessageRequest, StreamResponse, Task, TaskState};
    use proptest::prelude::*;

    fn read(dialect: Dialect, event: Value) -> StreamResponse {
        serde_json::from_value(dialect.event(event)).unwrap()
    }

    #[test]
    fn both_dialects_read_as_the_same_events() {
        let older = read(
            Dialect::V0,
            json!({"kind": "task", "id": "t", "contextId": "c",
                "status": {"state": "input-required", "timestamp": "today", "message": {"kind": "message", "role": "agent", "messageId": "m", "parts": [{"kind": "text", "text": "?"}]}},
                "artifacts": [{"artifactId": "a", "parts": [
                    {"kind": "data", "data": {"n": 1}}, {"kind": "file", "file": {"bytes": "AQI=", "mimeType": "image/png", "name": "x"}}, {"kind": "file", "file": {"uri": "http://f"}}]}]}),
        );
        let newer = read(
            Dialect::V1,
            json!({"task": {"id": "t", "contextId": "c",
                "status": {"state": "TASK_STATE_INPUT_REQUIRED", "timestamp": "2026-01-01T00:00:00Z", "message": {"role": "ROLE_AGENT", "messageId": "m", "parts": [{"text": "?"}]}},
                "artifacts": [{"artifactId": "a", "parts": [
                    {"data": {"n": 1}}, {"raw": "AQI=", "mediaType": "image/png", "filename": "x"}, {"url": "http://f"}]}]}}),
        );
        assert_eq!(older, newer);
        let StreamResponse::Task(task) = older else { panic!("a task") };
        assert_eq!(task.status.state, TaskState::InputRequired);
    }

    #[test]
    fn empty_members_may_be_omitted() {
        let StreamResponse::StatusUpdate(update) =
            read(Dialect::V1, json!({"statusUpdate": {"taskId": "t", "status": {}}}))
        else {
            panic!("a status")
        };
        assert_eq!((update.context_id.as_str(), update.status.state), ("", TaskState::Unspecified));
        let StreamResponse::Message(message) =
            read(Dialect::V1, json!({"message": {"parts": [{"mediaType": "text/plain"}]}}))
        else {
            panic!("a message")
        };
        assert_eq!(message.parts[0].content, PartContent::Text(String::new()));
        let task: Task = serde_json::from_value(
            Dialect::V0.task(json!({"id": "t", "status": {"state": "canceled"}})),
        )
        .unwrap();
        assert_eq!(task.status.state, TaskState::Canceled);
    }

    #[test]
    fn a_request_takes_the_form_of_its_agent() {
        let request = json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}, {"data": [1]}, {"url": "http://f", "mediaType": "a/b"}]},
            "configuration": {"returnImmediately": true}});
        assert_eq!(Dialect::V1.request(request.clone()), request);
        assert_eq!(
            Dialect::V0.request(request),
            json!({"message": {"messageId": "m", "role": "user", "kind": "message", "parts": [{"kind": "text", "text": "hi"}, {"kind": "data", "data": [1]},
                {"kind": "file", "file": {"uri": "http://f", "mimeType": "a/b"}}]}, "configuration": {"blocking": false}})
        );
    }

    #[test]
    fn the_older_generation_has_another_form_over_plain_http() {
        let request = json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}, {"data": {"n": 1}}, {"data": [1]},
            {"raw": "AQI=", "mediaType": "a/b", "filename": "f"}]}, "configuration": {"returnImmediately": false}});
        assert_eq!(Dialect::V1.plain_request(request.clone()), request);
        let plain = Dialect::V0.plain_request(request);
        assert_eq!(
            plain,
            json!({"message": {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "hi"}, {"data": {"data": {"n": 1}}}, {"data": {"data": {"value": [1]}}},
                {"file": {"fileWithBytes": "AQI=", "mimeType": "a/b", "name": "f"}}]}, "configuration": {"blocking": true}})
        );
        for name in ["message", "msg"] {
            let StreamResponse::Message(message) =
                read(Dialect::V0, json!({name: plain["message"].clone()}))
            else {
                panic!("a message")
            };
            assert_eq!(message.parts.len(), 4);
            assert_eq!(message.parts[1].content, PartContent::Data(json!({"n": 1})));
            assert_eq!(message.parts[3].content, PartContent::Raw(vec![1, 2]));
        }
        let StreamResponse::StatusUpdate(update) = read(
            Dialect::V0,
            json!({"statusUpdate": {"taskId": "t", "contextId": "c", "final": true, "status": {"state": "TASK_STATE_CANCELLED"}}}),
        ) else {
            panic!("a status")
        };
        assert_eq!(update.status.state, TaskState::Canceled);
    }

    #[test]
    fn dialects_are_chosen_by_major_version() {
        for (version, dialect) in [
            ("0.3.0", Some(Dialect::V0)),
            ("1.0", Some(Dialect::V1)),
            ("", Some(Dialect::V1)),
            ("2.0", None),
            ("x", None),
        ] {
            assert_eq!(Dialect::of(version), dialect, "{version}");
        }
    }

    proptest! {
        #[test]
        fn a_message_survives_the_older_form(texts in proptest::collection::vec("\\PC{0,10}", 0..4), number: i32) {
            let mut parts: Vec<Value> = texts.iter().map(|text| json!({"text": text})).collect();
            parts.push(json!({"data": {"n": number}}));
            let request = json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": parts}});
            let older = Dialect::V0.request(request.clone());
            let back = Dialect::V0.event(older["message"].clone());
            let mut back = back;
            back["message"].as_object_mut().unwrap().remove("kind");
            for part in back["message"]["parts"].as_array_mut().unwrap() {
                part.as_object_mut().unwrap().remove("kind");
            }
            prop_assert_eq!(
                serde_json::from_value::<SendMessageRequest>(back).unwrap(),
                serde_json::from_value::<SendMessageRequest>(request).unwrap()
            );
        }
    }
}

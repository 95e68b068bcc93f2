//! Converts the input of a call to the message for an agent. Pure.
//!
//! | input | message |
//! |---|---|
//! | `{message, data?, files?, context_id?, task_id?}` | its text, its data, its files; a turn of that conversation |
//! | a text | the text |
//! | anything else, also none (`{}`) | one data part |

use a2a::{Message, Part, Role};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use orla_marketplace::{CallContext, RuntimeError, Violation};
use serde_json::{Map, Value, json};

/// The members of an input that is not plain data.
const MEMBERS: [&str; 5] = ["message", "data", "files", "context_id", "task_id"];
/// The maximum number of files in one message.
const MAX_FILES: usize = 64;

/// Returns the schema of the input that clients see. It does not describe values that are not objects:
/// these are text or data.
pub(super) fn schema() -> Value {
    json!({
        "properties": {
            "message": {"type": "string", "description": "What to tell the agent."},
            "data": {"description": "Structured data that goes with the message."},
            "files": {"type": "array", "description": "Files that go with the message.", "items": {"type": "object", "properties": {
                "url": {"type": "string"}, "base64": {"type": "string"}, "media_type": {"type": "string"}, "name": {"type": "string"}}}},
            "context_id": {"type": "string", "description": "Goes on with an earlier conversation."},
            "task_id": {"type": "string", "description": "Answers what an unfinished task asked."},
        },
    })
}

/// Returns the message for an input.
///
/// # Errors
/// The input is empty, or one of its members has the wrong type.
pub(super) fn message(
    input: &str,
    skill: Option<&str>,
    ctx: &CallContext,
) -> Result<Message, RuntimeError> {
    let refused = |path: &str, expected: &str, got: &str| RuntimeError::InvalidInput {
        id: ctx.name.to_string(),
        violations: vec![Violation {
            path: path.to_owned(),
            expected: expected.to_owned(),
            got: got.chars().take(40).collect(),
        }],
    };
    let value: Value = serde_json::from_str(input)
        .map_err(|err| refused("input", "JSON that an agent can be sent", &err.to_string()))?;
    let mut message = Message::new(Role::User, Vec::new());
    match value {
        Value::Object(members) if is_structured(&members) => {
            fill(&mut message, members).map_err(|(path, expected)| refused(path, expected, input))?;
        }
        Value::String(text) => message.parts.push(Part::text(text)),
        // A skill without input.
        Value::Null => message.parts.push(data_part(json!({}))),
        data => message.parts.push(data_part(data)),
    }
    if message.parts.is_empty() {
        return Err(refused("input.message", "a text for the agent", "nothing"));
    }
    if let Some(skill) = skill {
        message.metadata = Some([("skillId".to_owned(), Value::from(skill))].into());
    }
    Ok(message)
}

/// Returns the client's answer to a question, as the next message of that task.
pub(super) fn reply(text: &str, task: &str, context: Option<&str>) -> Message {
    let mut message = Message::new(Role::User, vec![Part::text(text)]);
    message.task_id = Some(task.to_owned());
    message.context_id = context.map(str::to_owned);
    message
}

fn is_structured(members: &Map<String, Value>) -> bool {
    !members.is_empty() && members.keys().all(|name| MEMBERS.contains(&name.as_str()))
}

fn fill(message: &mut Message, members: Map<String, Value>) -> Result<(), (&'static str, &'static str)> {
    let mut data = None;
    for (name, value) in members {
        let text = |path, expected| match &value {
            Value::String(text) if !text.is_empty() => Ok(Some(text.clone())),
            Value::Null => Ok(None),
            _ => Err((path, expected)),
        };
        match name.as_str() {
            "message" => {
                let text = text("input.message", "a text for the agent")?;
                message.parts.splice(0..0, text.map(Part::text));
            }
            "context_id" => message.context_id = text("input.context_id", "the id of a conversation")?,
            "task_id" => message.task_id = text("input.task_id", "the id of a task")?,
            "files" => {
                let expected = "a list of objects with url or base64, media_type and name";
                message.parts.extend(files(&value).ok_or(("input.files", expected))?);
            }
            _ => data = Some(value),
        }
    }
    message.parts.extend(data.filter(|data| !data.is_null()).map(data_part));
    Ok(())
}

fn data_part(data: Value) -> Part {
    Part::data(data).with_media_type("application/json")
}

fn files(value: &Value) -> Option<Vec<Part>> {
    let file = |file: &Value| -> Option<Part> {
        let text = |name: &str| file.get(name).and_then(Value::as_str);
        let mut part = match (text("url"), text("base64")) {
            (Some(url), None) => Part::url(url),
            (None, Some(bytes)) => Part::raw(STANDARD.decode(bytes).ok()?),
            _ => return None,
        };
        part.media_type = text("media_type").map(str::to_owned);
        part.filename = text("name").map(str::to_owned);
        Some(part)
    };
    match value {
        Value::Null => Some(Vec::new()),
        Value::Array(files) if files.len() <= MAX_FILES => files.iter().map(file).collect(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(input: &str) -> Value {
        let message = message(input, None, &CallContext::for_tests("a")).unwrap();
        serde_json::to_value(message.parts).unwrap()
    }

    #[test]
    fn an_input_becomes_the_parts_of_a_message() {
        for (input, expected) in [
            (r#""hi""#, json!([{"text": "hi"}])),
            (r#"{"message": "hi"}"#, json!([{"text": "hi"}])),
            (
                r#"{"data": [1], "message": "hi"}"#,
                json!([{"text": "hi"}, {"data": [1], "mediaType": "application/json"}]),
            ),
            (r#"{"data": {"a": 1}}"#, json!([{"data": {"a": 1}, "mediaType": "application/json"}])),
            (
                r#"{"city": "Paris"}"#,
                json!([{"data": {"city": "Paris"}, "mediaType": "application/json"}]),
            ),
            (
                r#"{"message": "hi", "city": "Paris"}"#,
                json!([{"data": {"message": "hi", "city": "Paris"}, "mediaType": "application/json"}]),
            ),
            ("{}", json!([{"data": {}, "mediaType": "application/json"}])),
            ("null", json!([{"data": {}, "mediaType": "application/json"}])),
            ("[1]", json!([{"data": [1], "mediaType": "application/json"}])),
            (
                r#"{"message": "see", "files": [{"url": "http://f", "name": "f"}, {"base64": "AQI=", "media_type": "image/png"}]}"#,
                json!([{"text": "see"}, {"url": "http://f", "filename": "f"}, {"raw": "AQI=", "mediaType": "image/png"}]),
            ),
        ] {
            assert_eq!(parts(input), expected, "{input}");
        }
    }

    #[test]
    fn a_conversation_goes_on_where_the_input_names_it() {
        let ctx = CallContext::for_tests("a");
        let next =
            message(r#"{"message": "hi", "context_id": "c", "task_id": "t"}"#, Some("s"), &ctx).unwrap();
        assert_eq!((next.context_id.as_deref(), next.task_id.as_deref()), (Some("c"), Some("t")));
        assert_eq!(next.metadata.unwrap()["skillId"], "s");
    }

    #[test]
    fn missing_and_mistyped_messages_are_refused() {
        let ctx = CallContext::for_tests("a");
        for (input, problem) in [
            (
                r#"{"message": null}"#,
                "a: invalid input: missing required property \"message\" (a text for the agent)",
            ),
            (
                r#"{"message": 7}"#,
                "a: invalid input: input.message: expected a text for the agent, got {\"message\": 7}",
            ),
            (
                r#"{"files": [1]}"#,
                "a: invalid input: input.files: expected a list of objects with url or base64, media_type and name, got {\"files\": [1]}",
            ),
        ] {
            assert_eq!(message(input, None, &ctx).unwrap_err().to_string(), problem);
        }
    }
}

//! What a call asks of its caller while it runs: the task waits for input, and its next message is the answer.

use std::sync::Arc;

use a2a::{Message, Part, PartContent};
use async_trait::async_trait;
use orla_marketplace::{Client, ClientError, JsonText};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::tasks::Tasks;

/// What is asked for: a form.
const ELICITATION: &str = "elicitation/create";

/// Asks whoever sends messages to a task.
pub(super) struct Asker {
    pub(super) tasks: Arc<Tasks>,
    pub(super) task: String,
    /// Cancelled when no answer can come any more, as the server takes no requests.
    pub(super) closing: CancellationToken,
    /// Cancelled with the task.
    pub(super) token: CancellationToken,
}

#[async_trait]
impl Client for Asker {
    fn capabilities(&self) -> JsonText {
        JsonText::of(&json!({"elicitation": {"form": {}}})).unwrap_or_else(|_| RawValue::NULL.into())
    }

    async fn request(&self, method: &str, params: JsonText) -> Result<JsonText, ClientError> {
        let params: Value = serde_json::from_str(params.as_str()).unwrap_or_default();
        let is_form = params["mode"].as_str().is_none_or(|mode| mode == "form");
        if method != ELICITATION || !is_form {
            return Err(ClientError::Unsupported(method.to_owned()));
        }
        let answer = self.tasks.ask(&self.task, question(&params)).ok_or(ClientError::Gone)?;
        let message = tokio::select! {
            message = answer => message.map_err(|_| ClientError::Gone)?,
            () = self.closing.cancelled() => return Err(ClientError::Gone),
            () = self.token.cancelled() => return Err(ClientError::Gone),
        };
        JsonText::of(&read(&message, &params["requestedSchema"])).map_err(|_| ClientError::Gone)
    }
}

/// The question, and what form its answer has.
fn question(params: &Value) -> Vec<Part> {
    let mut parts = vec![Part::text(params["message"].as_str().unwrap_or("Input is needed."))];
    let form = &params["requestedSchema"];
    if form.is_object() {
        parts.push(Part::data(json!({ "requestedSchema": form })).with_media_type("application/json"));
    }
    parts
}

/// The answer: data as it is, a text as the first member that is asked for. Data with `action` is the whole answer, which
/// may be that there is none.
fn read(message: &Message, form: &Value) -> Value {
    let data = message.parts.iter().find_map(|part| match &part.content {
        PartContent::Data(Value::Object(data)) => Some(data.clone()),
        _ => None,
    });
    let text = message.parts.iter().filter_map(Part::as_text).collect::<Vec<_>>().join("\n");
    let members = form["properties"].as_object();
    let data = data.unwrap_or_else(|| {
        let first = members.and_then(|members| members.iter().next());
        first
            .map(|(name, about)| Map::from_iter([(name.clone(), word(&text, about))]))
            .unwrap_or_default()
    });
    let is_asked_for = |name: &str| members.is_some_and(|members| members.contains_key(name));
    let is_whole = data.get("action").and_then(Value::as_str).is_some_and(|action| {
        matches!(action, "accept" | "decline" | "cancel") && !is_asked_for("action")
    });
    if is_whole { Value::Object(data) } else { json!({"action": "accept", "content": data}) }
}

/// A text as what is asked for.
fn word(text: &str, about: &Value) -> Value {
    let is_number_or_truth = matches!(about["type"].as_str(), Some("number" | "integer" | "boolean"));
    let read = is_number_or_truth.then(|| serde_json::from_str(text.trim()).ok()).flatten();
    read.filter(|read: &Value| read.is_number() || read.is_boolean()).unwrap_or_else(|| text.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2a::Role;

    #[test]
    fn an_answer_is_data_or_a_text_for_the_first_thing_that_was_asked() {
        let named = json!({"properties": {"name": {"type": "string"}, "age": {"type": "number"}}});
        let aged = json!({"properties": {"age": {"type": "integer"}}});
        let accepted = |content: Value| json!({"action": "accept", "content": content});
        for (form, part, answer) in [
            (&named, Part::text("Ada"), accepted(json!({"name": "Ada"}))),
            (&named, Part::text("36"), accepted(json!({"name": "36"}))),
            (&aged, Part::text(" 36 "), accepted(json!({"age": 36}))),
            (&aged, Part::text("old"), accepted(json!({"age": "old"}))),
            (&named, Part::data(json!({"age": 36})), accepted(json!({"age": 36}))),
            (&named, Part::data(json!({"action": "decline"})), json!({"action": "decline"})),
            (&Value::Null, Part::text("go on"), accepted(json!({}))),
        ] {
            assert_eq!(read(&Message::new(Role::User, vec![part.clone()]), form), answer, "{part:?}");
        }
    }
}

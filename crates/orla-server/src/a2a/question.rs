//! The questions of a task in the form of messages, and the meaning of the answers. Pure.

use a2a::{Message, Part, PartContent};
use orla_marketplace::JsonText;
use orla_marketplace::schema::{Validator, schema_from_declaration};
use orla_tasks::Question;
use serde_json::{Map, Value, json};

/// The maximum number of shown problems with an answer.
const SHOWN: usize = 5;

/// Returns the questions that a caller can be asked, as the capabilities of an MCP client.
pub(super) fn capabilities() -> Option<JsonText> {
    JsonText::of(&json!({"elicitation": {"form": {}}})).ok()
}

/// Returns the question, preceded by the problem with the last answer, and the form of its answer.
pub(super) fn parts(question: Option<&Question>, wrong: Option<&str>) -> Vec<Part> {
    let params = params(question);
    let message_text = params["message"].as_str().unwrap_or("Input is needed.");
    let text = wrong.map_or_else(|| message_text.to_owned(), |wrong| format!("{wrong}. {message_text}"));
    let mut parts = vec![Part::text(text)];
    let form = &params["requestedSchema"];
    if form.is_object() {
        parts.push(Part::data(json!({ "requestedSchema": form })).with_media_type("application/json"));
    }
    parts
}

/// Reads the answer to a question from a message.
///
/// # Errors
///
/// Returns what is wrong with the answer.
pub(super) fn answer(question: &Question, message: &Message) -> Result<JsonText, String> {
    let form = &params(Some(question))["requestedSchema"];
    let answer = read(message, form);
    let wrong = validator(form).and_then(|form| check_answer(&answer, &form));
    wrong.map_or_else(|| JsonText::of(&answer).map_err(|err| err.to_string()), Err)
}

fn params(question: Option<&Question>) -> Value {
    question.and_then(|question| serde_json::from_str(question.params.get()).ok()).unwrap_or_default()
}

/// Returns the answer. Data stays unchanged, and a text becomes the first member of the form. Data with
/// `action` is a complete answer, which may decline.
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
            .map(|(name, about)| Map::from_iter([(name.clone(), typed_text(&text, about))]))
            .unwrap_or_default()
    });
    let is_asked_for = |name: &str| members.is_some_and(|members| members.contains_key(name));
    let is_whole = data.get("action").and_then(Value::as_str).is_some_and(|action| {
        matches!(action, "accept" | "decline" | "cancel") && !is_asked_for("action")
    });
    if is_whole { Value::Object(data) } else { json!({"action": "accept", "content": data}) }
}

/// Returns the validator of answers, if the form has a schema.
fn validator(form: &Value) -> Option<Validator> {
    form.is_object().then(|| Validator::compile(&schema_from_declaration(form).ok()?).ok()).flatten()
}

/// Returns why an accepted answer does not match the form.
fn check_answer(answer: &Value, form: &Validator) -> Option<String> {
    if answer["action"] != "accept" {
        return None;
    }
    let content = answer.get("content").cloned().unwrap_or_else(|| json!({}));
    let violations = form.check(&content.to_string(), "answer").err()?;
    Some(violations.iter().take(SHOWN).map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

/// Returns a text as the type that the form requires.
fn typed_text(text: &str, about: &Value) -> Value {
    let is_number_or_truth = matches!(about["type"].as_str(), Some("number" | "integer" | "boolean"));
    let read = is_number_or_truth.then(|| serde_json::from_str(text.trim()).ok()).flatten();
    read.filter(|read: &Value| read.is_number() || read.is_boolean()).unwrap_or_else(|| text.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2a::Role;

    #[test]
    fn a_question_is_asked_again_after_an_invalid_answer() {
        let params = json!({"message": "Which?", "requestedSchema": {"type": "object",
            "properties": {"n": {"type": "integer"}}, "required": ["n"]}});
        let params = serde_json::value::to_raw_value(&params).unwrap();
        let (key, method) = ("q1".to_owned(), "elicitation/create".to_owned());
        let question = Question { key, method, params };
        let text = |wrong| parts(Some(&question), wrong)[0].as_text().unwrap().to_owned();
        assert_eq!((text(None).as_str(), parts(None, None).len()), ("Which?", 1));
        for (data, wrong) in [
            (json!({"n": "x"}), "answer.n: expected an integer, got \"x\""),
            (json!({"m": 1}), "missing required property \"n\""),
            (json!({"action": "accept"}), "missing required property \"n\""),
        ] {
            let message = Message::new(Role::User, vec![Part::data(data)]);
            let error = answer(&question, &message).unwrap_err();
            assert_eq!((error.as_str(), text(Some(wrong))), (wrong, format!("{wrong}. Which?")));
        }
        let message = Message::new(Role::User, vec![Part::data(json!({"n": 7}))]);
        let whole = r#"{"action":"accept","content":{"n":7}}"#;
        assert_eq!(answer(&question, &message).unwrap().as_str(), whole);
    }

    #[test]
    fn an_answer_is_data_or_a_text_for_the_first_member() {
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

//! Questions of a call to its caller: the task waits for input, and its next message is the answer.

use std::sync::Arc;

use a2a::{Message, Part, PartContent};
use async_trait::async_trait;
use orla_marketplace::schema::{Validator, schema_from_declaration};
use orla_marketplace::{Client, ClientError, JsonText};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio::sync::{Mutex, oneshot};
use tokio_util::sync::CancellationToken;

use super::tasks::Tasks;

/// The form that is asked for.
const ELICITATION: &str = "elicitation/create";
/// The most characters of a problem with an answer that are shown.
const SHOWN: usize = 5;

/// Asks the client of a task.
pub(super) struct TaskClient {
    pub(super) tasks: Arc<Tasks>,
    pub(super) task: String,
    /// One question after the other: a task waits for one answer at a time.
    pub(super) turn: Mutex<()>,
    /// Cancelled when no answer can arrive any more, because the server stops.
    pub(super) closing: CancellationToken,
    /// Cancelled with the task.
    pub(super) token: CancellationToken,
}

#[async_trait]
impl Client for TaskClient {
    fn capabilities(&self) -> JsonText {
        JsonText::of(&json!({"elicitation": {"form": {}}})).unwrap_or_else(|_| RawValue::NULL.into())
    }

    async fn request(&self, method: &str, params: JsonText) -> Result<JsonText, ClientError> {
        let params: Value = serde_json::from_str(params.as_str()).unwrap_or_default();
        let is_form = params["mode"].as_str().is_none_or(|mode| mode == "form");
        if method != ELICITATION || !is_form {
            return Err(ClientError::Unsupported(method.to_owned()));
        }
        let asking = async {
            let _turn = self.turn.lock().await;
            let form = validator(&params["requestedSchema"]);
            let mut wrong = None;
            // After an invalid answer the question is asked again, with the problem.
            loop {
                let question = Question { asker: self, answer: None };
                let message = question.put(&params, wrong.as_deref()).await?;
                let answer = read(&message, &params["requestedSchema"]);
                wrong = form.as_ref().and_then(|form| what_is_wrong(&answer, form));
                if wrong.is_none() {
                    return Ok(answer);
                }
            }
        };
        let answer: Value = tokio::select! {
            answer = asking => answer?,
            () = self.closing.cancelled() => return Err(ClientError::Gone),
            () = self.token.cancelled() => return Err(ClientError::Gone),
        };
        JsonText::of(&answer).map_err(|_| ClientError::Gone)
    }
}

/// A question that waits for its answer. Dropping it, for example at its deadline, continues the task.
struct Question<'a> {
    asker: &'a TaskClient,
    answer: Option<oneshot::Receiver<Message>>,
}

impl Question<'_> {
    async fn put(mut self, params: &Value, wrong: Option<&str>) -> Result<Message, ClientError> {
        let TaskClient { tasks, task, .. } = self.asker;
        let answer = tasks.ask(task, question(params, wrong)).ok_or(ClientError::Gone)?;
        self.answer.insert(answer).await.map_err(|_| ClientError::Gone)
    }
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        let is_over = self.asker.token.is_cancelled() || self.asker.closing.is_cancelled();
        if self.answer.take().is_some() && !is_over {
            self.asker.tasks.withdraw(&self.asker.task);
        }
    }
}

/// The question, after the problem of the last answer to it, and the form of its answer.
fn question(params: &Value, wrong: Option<&str>) -> Vec<Part> {
    let asked = params["message"].as_str().unwrap_or("Input is needed.");
    let text = wrong.map_or_else(|| asked.to_owned(), |wrong| format!("{wrong}. {asked}"));
    let mut parts = vec![Part::text(text)];
    let form = &params["requestedSchema"];
    if form.is_object() {
        parts.push(Part::data(json!({ "requestedSchema": form })).with_media_type("application/json"));
    }
    parts
}

/// The answer: data unchanged, a text as the first member of the form. Data with `action` is a complete answer,
/// which may decline.
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

/// The validator of answers, if the form has a schema.
fn validator(form: &Value) -> Option<Validator> {
    form.is_object().then(|| Validator::compile(&schema_from_declaration(form).ok()?).ok()).flatten()
}

/// Why an accepted answer does not match the form.
fn what_is_wrong(answer: &Value, form: &Validator) -> Option<String> {
    if answer["action"] != "accept" {
        return None;
    }
    let content = answer.get("content").cloned().unwrap_or_else(|| json!({}));
    let violations = form.check(&content.to_string(), "answer").err()?;
    Some(violations.iter().take(SHOWN).map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

/// A text as the type that the form asks for.
fn word(text: &str, about: &Value) -> Value {
    let is_number_or_truth = matches!(about["type"].as_str(), Some("number" | "integer" | "boolean"));
    let read = is_number_or_truth.then(|| serde_json::from_str(text.trim()).ok()).flatten();
    read.filter(|read: &Value| read.is_number() || read.is_boolean()).unwrap_or_else(|| text.into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::table::Bounds;
    use super::*;
    use a2a::{Role, TaskState};

    fn asker() -> (TaskClient, Arc<Tasks>) {
        let bounds = Bounds { tasks: 1, bytes: 1 << 16, task_bytes: 1 << 16, age: Duration::MAX };
        let tasks = Tasks::new(bounds);
        let begun = Message::new(Role::User, vec![Part::text("x")]);
        let token = CancellationToken::new();
        let task = tasks.begin(begun, None, token.clone()).unwrap().unwrap().first.id.clone();
        let turn = Mutex::default();
        let closing = CancellationToken::new();
        (TaskClient { tasks: Arc::clone(&tasks), task, turn, closing, token }, tasks)
    }

    fn form(text: &str) -> JsonText {
        JsonText::of(&json!({"message": text})).unwrap()
    }

    fn asked(tasks: &Tasks, id: &str) -> Option<String> {
        let status = tasks.get(id, None).unwrap().status.clone();
        let is_asked = status.state == TaskState::InputRequired;
        status.message.filter(|_| is_asked)?.text().map(str::to_owned)
    }

    #[tokio::test]
    async fn two_questions_at_once_are_asked_one_after_the_other() {
        let (asker, tasks) = asker();
        let both = ["one?", "two?"].map(|text| asker.request(ELICITATION, form(text)));
        let mut answers = std::pin::pin!(futures_util::future::join_all(both));
        for wanted in ["one?", "two?"] {
            assert!(futures_util::poll!(&mut answers).is_pending());
            assert_eq!(asked(&tasks, &asker.task).as_deref(), Some(wanted));
            let data = Part::data(json!({ "to": wanted }));
            tasks.answer(&asker.task, Message::new(Role::User, vec![data])).unwrap();
        }
        for (answer, wanted) in answers.await.into_iter().zip(["one?", "two?"]) {
            assert!(answer.unwrap().as_str().contains(wanted));
        }
        assert_eq!(asked(&tasks, &asker.task), None);
    }

    #[tokio::test]
    async fn what_is_not_what_was_asked_for_is_asked_again() {
        let (asker, tasks) = asker();
        let form = json!({"message": "Which?", "requestedSchema": {"type": "object",
            "properties": {"n": {"type": "integer"}}, "required": ["n"]}});
        let mut answer = std::pin::pin!(asker.request(ELICITATION, JsonText::of(&form).unwrap()));
        for (wanted, data) in [
            ("Which?", json!({"n": "x"})),
            ("answer.n: expected an integer, got \"x\". Which?", json!({"m": 1})),
            ("missing required property \"n\". Which?", json!({"action": "accept"})),
            ("missing required property \"n\". Which?", json!({"n": 7})),
        ] {
            assert!(futures_util::poll!(&mut answer).is_pending());
            assert_eq!(asked(&tasks, &asker.task).as_deref(), Some(wanted));
            tasks.answer(&asker.task, Message::new(Role::User, vec![Part::data(data)])).unwrap();
        }
        assert_eq!(answer.await.unwrap().as_str(), r#"{"action":"accept","content":{"n":7}}"#);
    }

    #[tokio::test]
    async fn a_task_goes_on_when_its_question_is_given_up() {
        let (asker, tasks) = asker();
        {
            let mut answer = std::pin::pin!(asker.request(ELICITATION, form("what?")));
            assert!(futures_util::poll!(&mut answer).is_pending());
            assert!(asked(&tasks, &asker.task).is_some());
        }
        assert_eq!(tasks.get(&asker.task, None).unwrap().status.state, TaskState::Working);
    }

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

//! The questions of a task. The call of the task asks them, and a client that reads the task answers
//! them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use orla_marketplace::{Client, ClientError, INPUT_KEY, JsonText};
use orla_mcp::object::Object;
use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use crate::service::Inner;
use crate::state::Event;
use crate::task::{Question, TaskId};

/// The maximum number of questions of one task that wait at once.
const MAX: usize = 16;

/// The maximum number of question names that are remembered. Later questions get numbers.
const NAMES: usize = 256;

/// The waiting questions of a task, by their keys.
#[derive(Default)]
pub(crate) struct Questions(Mutex<QuestionTable>);

#[derive(Default)]
struct QuestionTable {
    waiting: HashMap<String, oneshot::Sender<Result<JsonText, ClientError>>>,
    /// The names already used. No key is used twice within a task (SEP-2663).
    names: HashSet<String>,
    count: u64,
}

impl QuestionTable {
    /// Returns a key that the task has not used yet, preferably the provider's name.
    fn key(&mut self, name: Option<String>) -> String {
        self.count += 1;
        let is_number = |name: &str| {
            let number = name.strip_prefix('q');
            number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
        };
        let name = name.filter(|name| {
            !is_number(name) && self.names.len() < NAMES && self.names.insert(name.clone())
        });
        name.unwrap_or_else(|| format!("q{}", self.count))
    }
}

impl Questions {
    /// Passes an answer to the call. Returns whether the question was still waiting.
    pub(crate) fn answer(&self, key: &str, answer: Result<JsonText, ClientError>) -> bool {
        let sender = self.0.lock().waiting.remove(key);
        sender.is_some_and(|sender| sender.send(answer).is_ok())
    }
}

/// The client, as the call of a task sees it.
pub(crate) struct TaskClient {
    pub(crate) tasks: Weak<Inner>,
    pub(crate) id: TaskId,
    pub(crate) capabilities: JsonText,
}

#[async_trait]
impl Client for TaskClient {
    fn capabilities(&self) -> JsonText {
        self.capabilities.clone()
    }

    async fn request(&self, method: &str, params: JsonText) -> Result<JsonText, ClientError> {
        if !can_be_asked(&self.capabilities, method, &params) {
            return Err(ClientError::Unsupported(method.to_owned()));
        }
        let tasks = self.tasks.upgrade().ok_or(ClientError::Gone)?;
        let running = tasks.live.running(&self.id).ok_or(ClientError::Gone)?;
        let (name, params) = named(&params);
        let (sender, answer) = oneshot::channel();
        let key = {
            let mut asked = running.questions.0.lock();
            if asked.waiting.len() >= MAX {
                return Err(ClientError::Gone);
            }
            let key = asked.key(name);
            asked.waiting.insert(key.clone(), sender);
            key
        };
        let mut open = OpenQuestion { client: self, key: key.clone(), is_open: true };
        let params = RawValue::from_string(params).map_err(|_| ClientError::Gone)?;
        let question = Question { key: key.clone(), method: method.to_owned(), params };
        let asked = tasks.change(&self.id, &[Event::Ask], |task| {
            running.fill(task);
            task.questions.push(question.clone());
            Ok(Vec::new())
        });
        if asked.await.is_err() {
            running.questions.0.lock().waiting.remove(&key);
            return Err(ClientError::Gone);
        }
        let answer = answer.await.unwrap_or(Err(ClientError::Gone));
        open.is_open = false;
        answer
    }
}

/// A question that waits for its answer. Dropping it withdraws the question.
struct OpenQuestion<'a> {
    client: &'a TaskClient,
    key: String,
    is_open: bool,
}

impl Drop for OpenQuestion<'_> {
    fn drop(&mut self) {
        let TaskClient { tasks, id, .. } = self.client;
        let Some(tasks) = tasks.upgrade().filter(|tasks| self.is_open && !tasks.closing.is_cancelled())
        else {
            return;
        };
        let Some(running) = tasks.live.running(id) else { return };
        // If the question is absent, it was just answered or was never asked.
        if running.questions.0.lock().waiting.remove(&self.key).is_none() {
            return;
        }
        let (id, key, own) = (id.clone(), self.key.clone(), Arc::clone(&tasks));
        tasks.tracker.spawn(async move {
            if let Err(error) = own.answered(&id, &key, &running).await {
                tracing::warn!(task = %id, %error, "a question that was withdrawn is still shown");
            }
        });
    }
}

/// Returns whether a client with these capabilities can answer such a question.
fn can_be_asked(capabilities: &JsonText, method: &str, params: &JsonText) -> bool {
    let member = match method {
        "elicitation/create" => "elicitation",
        "sampling/createMessage" => "sampling",
        "roots/list" => "roots",
        _ => return false,
    };
    let capabilities = Object::parse(capabilities.as_str());
    let Some(own) = capabilities.as_ref().and_then(|all| all.get(member)) else { return false };
    let mode = Object::parse(params.as_str()).and_then(|params| params.text("mode"));
    // Every client that supports elicitation supports forms.
    mode.filter(|mode| member == "elicitation" && mode != "form")
        .is_none_or(|mode| Object::parse(own).is_some_and(|own| own.get(&mode).is_some()))
}

/// Splits off the provider's name for its question from the parameters.
fn named(params: &JsonText) -> (Option<String>, String) {
    let Some(mut object) = Object::parse(params.as_str()) else {
        return (None, params.to_string());
    };
    let meta = object.get("_meta").map(str::to_owned);
    let Some(mut meta) = meta.as_deref().and_then(Object::parse) else {
        return (None, params.to_string());
    };
    let Some(name) = meta.text(INPUT_KEY) else { return (None, params.to_string()) };
    meta.remove(INPUT_KEY);
    let left = (meta.members().count() > 0).then(|| meta.to_json().to_string());
    match left {
        Some(meta) => object.set("_meta", meta),
        None => object.remove("_meta"),
    }
    let params = object.to_json().to_string();
    ((name.len() <= 256).then_some(name), params)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_asked_what_it_can_answer() {
        let forms = r#"{"elicitation":{"form":{}}}"#;
        for (capabilities, method, params, can) in [
            (forms, "elicitation/create", "{}", true),
            (forms, "elicitation/create", r#"{"mode":"form"}"#, true),
            (forms, "elicitation/create", r#"{"mode":"url"}"#, false),
            (r#"{"elicitation":{"url":{}}}"#, "elicitation/create", r#"{"mode":"url"}"#, true),
            (forms, "sampling/createMessage", "{}", false),
            (r#"{"sampling":{},"roots":{}}"#, "roots/list", "{}", true),
            (r#"{"tools":{}}"#, "tools/call", "{}", false),
        ] {
            let text = |text: &str| JsonText::parse(text.to_owned()).unwrap();
            let asked = can_be_asked(&text(capabilities), method, &text(params));
            assert_eq!(asked, can, "{method} {params}");
        }
    }

    #[test]
    fn no_key_is_used_twice() {
        let mut asked = QuestionTable::default();
        let keys = [Some("name"), Some("name"), Some("q4"), None, None];
        let keys = keys.map(|name| asked.key(name.map(str::to_owned)));
        assert_eq!(keys, ["name", "q2", "q3", "q4", "q5"]);
    }
}

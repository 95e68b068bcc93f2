//! The questions of a task: its call asks, and those who look at the task answer.

use std::collections::{HashMap, HashSet};
use std::sync::Weak;

use async_trait::async_trait;
use orla_marketplace::{Client, ClientError, INPUT_KEY, JsonText};
use orla_mcp::object::Object;
use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use crate::service::Inner;
use crate::state::Event;
use crate::task::{Question, TaskId};

/// The most questions of a task that wait at once.
const MAX: usize = 16;

/// How many names of questions are remembered. Questions after them have numbers.
const NAMES: usize = 256;

/// The questions of a task that wait, by their keys.
#[derive(Default)]
pub(crate) struct Questions(Mutex<Asked>);

#[derive(Default)]
struct Asked {
    waiting: HashMap<String, oneshot::Sender<Result<JsonText, ClientError>>>,
    /// The names that were used. No key of a task is used twice (SEP-2663).
    names: HashSet<String>,
    count: u64,
}

impl Asked {
    /// A key that the task has not used, if possible the one that the provider wants.
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
    /// Gives an answer to the call. Gives whether the question still waited.
    pub(crate) fn answer(&self, key: &str, answer: Result<JsonText, ClientError>) -> bool {
        let sender = self.0.lock().waiting.remove(key);
        sender.is_some_and(|sender| sender.send(answer).is_ok())
    }
}

/// The client that the call of a task sees.
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
        answer.await.unwrap_or(Err(ClientError::Gone))
    }
}

/// The name that a provider gave its question, and the parameters without it.
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
    fn no_key_is_used_twice() {
        let mut asked = Asked::default();
        let keys = [Some("name"), Some("name"), Some("q4"), None, None];
        let keys = keys.map(|name| asked.key(name.map(str::to_owned)));
        assert_eq!(keys, ["name", "q2", "q3", "q4", "q5"]);
    }
}

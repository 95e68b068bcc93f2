//! Answers to the questions of tasks that run at other nodes of the cluster.
//!
//! The call of a task waits for its answers at the node that runs it, which the record of the task names. Other nodes pass on what
//! their clients answer. The node of the task takes the first answer to each question.

use std::time::Duration;

use bytes::Bytes;
use orla_marketplace::{ClientError, JsonText, Principal};
use orla_tasks::{State, Task, TaskError, Tasks, Viewer};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::nodes;
use crate::state::Core;

/// The first word of messages between nodes about tasks.
pub(crate) const WORD: &[u8] = b"task";
/// The timeout of another node for taking an answer.
const NODE_TIMEOUT: Duration = Duration::from_secs(3);

/// An answer to a question of a task.
#[derive(Serialize, Deserialize)]
struct Answer {
    task: String,
    question: String,
    reply: Reply,
}

/// What a client answers.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Result(Box<RawValue>),
    Refused { code: i64, message: String, data: Option<Box<RawValue>> },
    Unsupported(String),
}

/// What became of an answer.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Taken {
    Done,
    NotAsked,
    Over(State),
    Failed(String),
}

/// Answers a question of a task of this caller, at whichever node the task runs.
///
/// # Errors
///
/// Returns the errors of [`Tasks::answer`], and an error if the node of the task does not take the answer.
pub(crate) async fn answer_question(
    core: &Core,
    tasks: &Tasks,
    caller: Option<&Principal>,
    task: &Task,
    question: &str,
    answer: Result<JsonText, ClientError>,
) -> Result<(), TaskError> {
    let node = task.runner().filter(|node| Some(*node) != tasks.node());
    let (Some(cluster), Some(node), Some(reply)) = (core.cluster(), node, Reply::of(&answer)) else {
        return tasks.answer(task.id.as_str(), Viewer::Caller(caller), question, answer).await;
    };
    let unreachable = |why: &str| TaskError::Unreachable { node: node.to_owned(), why: why.to_owned() };
    let others = cluster.others();
    let other =
        others.iter().find(|other| other.node == node).ok_or_else(|| unreachable("it is gone"))?;
    let answer = Answer { task: task.id.to_string(), question: question.to_owned(), reply };
    let message = nodes::question(WORD, &answer);
    if message.len() > cluster.max_payload() {
        let max = cluster.max_payload();
        return Err(unreachable(&format!("an answer for another node has at most {max} bytes")));
    }
    let taken = cluster.ask(&other.instance, caller, message, NODE_TIMEOUT).await;
    let taken = taken.map_err(|error| unreachable(&error.to_string()))?;
    match serde_json::from_slice(&taken).map_err(|_| unreachable("its answer cannot be read"))? {
        // What this node says next of the task has to follow the answer.
        Taken::Done => Ok(tasks.store().sync().await?),
        Taken::NotAsked => Err(TaskError::NotAsked(question.to_owned())),
        Taken::Over(state) => Err(TaskError::Over(state)),
        Taken::Failed(why) => Err(unreachable(&why)),
    }
}

/// Takes the answer of a caller of another node.
pub(crate) async fn answer(core: &Core, caller: Option<&Principal>, message: &[u8]) -> Bytes {
    let (Ok(answer), Some(tasks)) = (serde_json::from_slice::<Answer>(message), core.tasks()) else {
        return Bytes::new();
    };
    let Answer { task, question, reply } = answer;
    let taken = match tasks.answer(&task, Viewer::Caller(caller), &question, reply.read()).await {
        Ok(()) => Taken::Done,
        Err(TaskError::NotAsked(_) | TaskError::Unknown(_)) => Taken::NotAsked,
        Err(TaskError::Over(state)) => Taken::Over(state),
        Err(error) => Taken::Failed(error.for_callers()),
    };
    serde_json::to_vec(&taken).unwrap_or_default().into()
}

impl Reply {
    /// Returns `None` if the client has answered nothing.
    fn of(answer: &Result<JsonText, ClientError>) -> Option<Self> {
        let raw = |json: &JsonText| json.as_raw().ok().map(ToOwned::to_owned);
        match answer {
            Ok(result) => raw(result).map(Self::Result),
            Err(ClientError::Refused { code, message, data }) => {
                let (message, data) = (message.clone(), data.as_ref().and_then(raw));
                Some(Self::Refused { code: *code, message, data })
            }
            Err(ClientError::Unsupported(what)) => Some(Self::Unsupported(what.clone())),
            Err(_) => None,
        }
    }

    fn read(self) -> Result<JsonText, ClientError> {
        match self {
            Self::Result(result) => Ok(result.into()),
            Self::Refused { code, message, data } => {
                Err(ClientError::Refused { code, message, data: data.map(JsonText::from) })
            }
            Self::Unsupported(what) => Err(ClientError::Unsupported(what)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_as_it_was_given() {
        let text = |text: &str| JsonText::parse(text.to_owned()).unwrap();
        let refused = |data| ClientError::Refused { code: -1, message: "no".to_owned(), data };
        for answer in [
            Ok(text(r#"{"action":"accept","content":{"n":1.10}}"#)),
            Err(refused(None)),
            Err(refused(Some(text("18446744073709551617")))),
            Err(ClientError::Unsupported("roots/list".to_owned())),
        ] {
            let reply = Reply::of(&answer).unwrap();
            let sent = serde_json::to_string(&Answer { task: "t".into(), question: "q1".into(), reply });
            let read: Answer = serde_json::from_str(&sent.unwrap()).unwrap();
            assert_eq!(read.reply.read(), answer);
        }
        assert!(Reply::of(&Err(ClientError::Gone)).is_none());
    }
}

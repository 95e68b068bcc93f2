//! A task as JSON.

use orla_marketplace::JsonText;
use orla_mcp::call_result::plain_json;
use orla_tasks::program::Timeline;
use orla_tasks::{State, Task};
use serde_json::{Value, json};

/// Returns a task as an object, without its result.
pub fn shown(task: &Task) -> Value {
    let mut object = json!({"id": task.id.as_str(), "state": task.state.as_str()});
    match task.is_program {
        true => object["program"] = json!(true),
        false => object["capability"] = json!(task.capability),
    }
    object["created_at"] = json!(task.created_at.to_string());
    object["updated_at"] = json!(task.updated_at.to_string());
    object["principal"] = json!(task.principal_name());
    if let Some(node) = task.runner().filter(|_| !task.state.is_terminal()) {
        object["node"] = json!(node);
    }
    if let Some(schedule) = &task.schedule {
        object["schedule"] = json!(schedule);
    }
    if let Some(key) = &task.key {
        object["key"] = json!(key);
    }
    if let Some(progress) = &task.progress {
        object["progress"] = json!(progress);
    }
    if !task.log.is_empty() {
        object["log"] = json!(task.log);
    }
    if let Some(missing) = &task.waiting_for {
        object["waiting_for"] = json!(missing);
    }
    if !task.questions.is_empty() {
        object["questions"] = json!(task.questions);
    }
    if let Some(error) = &task.error {
        object["error"] = json!({"kind": error.kind, "message": error.message});
        if let Some(at) = &error.at {
            object["error"]["at"] = json!(at);
        }
    }
    object
}

/// The form of a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResultForm {
    /// Plain JSON ([`plain_json`]).
    #[default]
    Plain,
    /// The result of MCP's `tools/call`. A task that failed has one too.
    Mcp,
}

/// Returns a task as an object, with the result that [`Tasks::result`](orla_tasks::Tasks::result) gave.
/// Its text is not changed. A program has its history as `journal`, and its current places as
/// `stands_at`.
pub fn shown_with_result(
    task: &Task,
    result: Option<&JsonText>,
    timeline: Option<&Timeline>,
    form: ResultForm,
) -> String {
    // Long values are copied as text, without building a tree.
    let mut members = Vec::new();
    if let Some(timeline) = timeline {
        members.push(("journal", serde_json::to_string(&timeline.steps)));
        if task.state != State::Completed {
            members.push(("stands_at", serde_json::to_string(&timeline.stands_at)));
        }
    }
    let result = match form {
        ResultForm::Plain => result.filter(|_| task.state == State::Completed).map(plain_json),
        ResultForm::Mcp => result.cloned(),
    };
    members.extend(result.map(|result| ("result", Ok(result.to_string()))));
    let mut text = shown(task).to_string();
    text.pop();
    for (name, member) in members {
        // Steps and places are texts and numbers, which every JSON has.
        if let Ok(member) = member {
            text.extend([r#",""#, name, r#"":"#, &member]);
        }
    }
    text.push('}');
    text
}

//! Shows a task in the form of the protocol. Pure.

use a2a::{Artifact, Message, Part, Role, Task, TaskState, TaskStatus};
use chrono::{DateTime, Utc};
use orla_tasks::{State, Timestamp};

use super::question;
use super::records::Record;
use super::result::{self, CallOutput, Form};

/// Returns a task together with the protocol's record. `output` is the output of its call, once it is
/// over.
pub(super) fn task(record: &Record, task: &orla_tasks::Task, output: Option<&CallOutput>) -> Task {
    let artifact = artifact(task, output);
    Task {
        status: status_of(record, task, output),
        artifacts: artifact.map(|artifact| vec![artifact]),
        ..record.task.clone()
    }
}

/// Returns the artifact of a task that is over, if it has one.
pub(super) fn artifact(task: &orla_tasks::Task, output: Option<&CallOutput>) -> Option<Artifact> {
    output?.artifact(task.state, task.error.as_ref())
}

/// Returns the status of a task.
pub(super) fn status_of(
    record: &Record,
    task: &orla_tasks::Task,
    output: Option<&CallOutput>,
) -> TaskStatus {
    let parts = match task.state {
        State::Working => last_notice(task).map(|text| text_parts(&text)),
        State::InputRequired => {
            let question = task.questions.first();
            let is_this =
                |wrong: &&(String, String)| question.is_some_and(|question| question.key == wrong.0);
            let wrong = record.wrong.as_ref().filter(is_this).map(|(_, wrong)| &**wrong);
            Some(question::parts(question, wrong))
        }
        State::Failed | State::Interrupted => {
            task.error.as_ref().map(|failure| result::failure_parts(failure, output))
        }
        State::Queued | State::Completed | State::Cancelled => None,
    };
    let (id, at) = (task.id.as_str(), time(task.updated_at));
    status(id, &record.task.context_id, state(task, output), parts, at)
}

/// Returns the state of a task. The result of a failed task may say that it was a refusal.
pub(super) fn state(task: &orla_tasks::Task, output: Option<&CallOutput>) -> TaskState {
    match task.state {
        State::Queued => TaskState::Submitted,
        State::Working => TaskState::Working,
        State::InputRequired => TaskState::InputRequired,
        State::Completed => TaskState::Completed,
        State::Cancelled => TaskState::Canceled,
        State::Failed if output.is_some_and(|output| output.form() == Form::Rejection) => {
            TaskState::Rejected
        }
        State::Failed | State::Interrupted => TaskState::Failed,
    }
}

/// Returns a status at a time in whole milliseconds. Its message has the same id on each call.
pub(super) fn status(
    id: &str,
    context: &str,
    state: TaskState,
    parts: Option<Vec<Part>>,
    at: DateTime<Utc>,
) -> TaskStatus {
    let message = parts.map(|parts| Message {
        message_id: format!("{id}-{}", at.timestamp_millis()),
        task_id: Some(id.to_owned()),
        context_id: Some(context.to_owned()),
        ..Message::new(Role::Agent, parts)
    });
    TaskStatus { state, message, timestamp: Some(at) }
}

/// Returns a notice of a call as parts.
pub(super) fn text_parts(text: &str) -> Vec<Part> {
    vec![Part::text(text)]
}

fn last_notice(task: &orla_tasks::Task) -> Option<String> {
    let progress = task.progress.as_ref().and_then(|progress| progress.message.clone());
    progress.or_else(|| task.log.last().map(|line| line.message.clone()))
}

pub(super) fn time(at: Timestamp) -> DateTime<Utc> {
    let at = i64::try_from(at.0).ok().and_then(DateTime::from_timestamp_millis);
    at.unwrap_or(DateTime::<Utc>::MAX_UTC)
}

/// Keeps at most `length` messages, the newest ones.
pub(super) fn shorten(task: &mut Task, length: Option<i32>) {
    let Some(length) = length.and_then(|length| usize::try_from(length).ok()) else { return };
    if length == 0 {
        task.history = None;
    } else if let Some(history) = &mut task.history {
        history.drain(..history.len().saturating_sub(length));
    }
}

/// Returns whether nothing more happens until the caller acts.
pub(super) fn is_callers_turn(state: &TaskState) -> bool {
    state.is_terminal() || matches!(state, TaskState::InputRequired | TaskState::AuthRequired)
}

/// Returns the approximate size in bytes.
pub(super) fn size(value: &impl serde::Serialize) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX, |text| text.len())
}

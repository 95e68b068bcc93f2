//! Tasks as JSON, in the form of 2026-07-28 and in that of 2025-11-25. Pure functions; results are passed on as text.

use std::time::Duration;

use orla_marketplace::JsonText;
use orla_mcp::object::{Object, json_string, trusted};
use orla_tasks::{State, Task, Timestamp};
use rmcp::model::{ErrorCode, ErrorData};

use crate::mcp::rpc::push_json;
use crate::mcp::tools::Form;

/// The key of `_meta` that ties a message to its task (2025-11-25).
pub(crate) const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";

/// The shortest and the longest polling interval that is suggested to a client.
const POLL: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(5)];

/// A snapshot of a task, with data for the client besides its record.
pub(crate) struct View<'a> {
    pub(crate) task: &'a Task,
    /// The result of its call, if it has one.
    pub(crate) result: Option<&'a JsonText>,
    /// How long the task is kept from its creation on.
    pub(crate) ttl: Duration,
    pub(crate) now: Timestamp,
}

/// How the task of a client of 2026-07-28 ended.
enum Ending<'a> {
    Result(&'a JsonText),
    Error(ErrorData),
}

impl View<'_> {
    /// Returns the word for its state in both forms. A failed call is `completed` in the extension, if
    /// it has a result.
    fn status(&self, is_session: bool) -> &'static str {
        match self.task.state {
            State::Queued | State::Working => "working",
            State::InputRequired => "input_required",
            State::Completed => "completed",
            State::Cancelled => "cancelled",
            State::Failed if is_session => "failed",
            State::Failed => match self.ending() {
                Ending::Result(_) => "completed",
                Ending::Error(_) => "failed",
            },
            State::Interrupted => "failed",
        }
    }

    fn ending(&self) -> Ending<'_> {
        match self.result {
            Some(result) if self.protocol_error().is_none() && self.task.state != State::Interrupted => {
                Ending::Result(result)
            }
            _ => Ending::Error(self.error()),
        }
    }

    /// Returns the error of the protocol with which a provider refused the call, which goes out
    /// unchanged.
    fn protocol_error(&self) -> Option<ErrorData> {
        let refusal = self.task.error.as_ref()?.refusal.as_ref()?;
        let code = ErrorCode(i32::try_from(refusal.code).unwrap_or(ErrorCode::INTERNAL_ERROR.0));
        let data = refusal.data.as_deref().and_then(|data| serde_json::from_str(data).ok());
        Some(ErrorData::new(code, refusal.message.clone(), data))
    }

    /// Returns the error of a task that gave no result.
    pub(crate) fn error(&self) -> ErrorData {
        if let Some(error) = self.protocol_error() {
            return error;
        }
        match &self.task.error {
            Some(failure) => {
                let data = serde_json::json!({ "kind": failure.kind });
                ErrorData::internal_error(failure.message.clone(), Some(data))
            }
            None => {
                let what = format!("the task is {} and has no result", self.task.state);
                ErrorData::internal_error(what, None)
            }
        }
    }

    /// Returns a description of the state for people.
    fn message(&self) -> Option<String> {
        let task = self.task;
        match task.state {
            State::Queued => Some("waits for its turn".to_owned()),
            State::Failed | State::Interrupted => {
                task.error.as_ref().map(|failure| failure.message.clone())
            }
            State::Working | State::InputRequired => {
                let progress = task.progress.as_ref().and_then(|progress| progress.message.clone());
                progress.or_else(|| task.log.last().map(|line| line.message.clone()))
            }
            State::Completed | State::Cancelled => None,
        }
    }

    /// Returns the polling interval. It grows with the age of the task.
    fn poll(&self) -> Duration {
        let age = Duration::from_millis(self.now.0.saturating_sub(self.task.created_at.0));
        (age / 4).clamp(POLL[0], POLL[1])
    }

    /// Returns the members of the task, without braces.
    fn members(&self, is_session: bool) -> String {
        let [ttl, poll] = if is_session { ["ttl", "pollInterval"] } else { ["ttlMs", "pollIntervalMs"] };
        let task = self.task;
        let mut out = format!(
            r#""taskId":"{}","status":"{}","createdAt":"{}","lastUpdatedAt":"{}","{ttl}":{},"{poll}":{}"#,
            task.id,
            self.status(is_session),
            task.created_at,
            task.updated_at,
            self.ttl.as_millis(),
            self.poll().as_millis(),
        );
        if let Some(message) = self.message() {
            out.push_str(&format!(r#","statusMessage":{}"#, json_string(&message)));
        }
        out
    }

    /// `CreateTaskResult` (SEP-2663, task creation).
    pub(crate) fn created(&self) -> String {
        format!(r#"{{"resultType":"task",{}}}"#, self.members(false))
    }

    /// `GetTaskResult` (SEP-2663, task polling).
    pub(crate) fn got(&self) -> Vec<u8> {
        let mut out = br#"{"resultType":"complete","#.to_vec();
        self.push_detailed(&mut out);
        out.push(b'}');
        out
    }

    /// `DetailedTask` without braces: the task with its questions, its result or its error.
    pub(crate) fn push_detailed(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.members(false).as_bytes());
        if self.task.state == State::InputRequired {
            out.extend_from_slice(br#","inputRequests":{"#);
            for (at, question) in self.task.questions.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                let (key, method) = (json_string(&question.key), json_string(&question.method));
                let params = question.params.get();
                out.extend_from_slice(
                    format!(r#"{key}:{{"method":{method},"params":{params}}}"#).as_bytes(),
                );
            }
            out.push(b'}');
        }
        let has_ended = self.task.state.is_terminal() && self.task.state != State::Cancelled;
        match has_ended.then(|| self.ending()) {
            Some(Ending::Result(result)) => {
                out.extend_from_slice(br#","result":"#);
                let mut object = Object::parse(result.as_str());
                match &mut object {
                    Some(object) => {
                        object.set("resultType", r#""complete""#);
                        out.extend_from_slice(object.to_json().bytes());
                    }
                    None => out.extend_from_slice(result.bytes()),
                }
            }
            Some(Ending::Error(error)) => {
                out.extend_from_slice(br#","error":"#);
                push_json(out, &error);
            }
            None => {}
        }
    }

    /// Returns the task of 2025-11-25, with braces.
    pub(crate) fn session_task(&self) -> String {
        format!("{{{}}}", self.members(true))
    }
}

/// Returns the result of a task's call for a client of a session: structured content is an object, and
/// `_meta` names the task.
pub(crate) fn session_result(result: &JsonText, task: &Task, form: Form) -> JsonText {
    let Some(mut object) = Object::parse(result.as_str()) else { return result.clone() };
    let structured = object.get("structuredContent").map(str::to_owned);
    if let Some(structured) = structured
        && (form == Form::SessionWrapped || !structured.starts_with('{'))
    {
        object.set("structuredContent", format!(r#"{{"result":{structured}}}"#));
    }
    let meta = object.get("_meta").map(str::to_owned);
    object.set("_meta", with_related(meta.as_deref(), task));
    trusted(object.to_json().bytes().clone())
}

/// Returns the parameters of a question to the client of a session, which name their task.
pub(crate) fn session_question(params: &str, task: &Task) -> JsonText {
    let Some(mut object) = Object::parse(params) else { return orla_mcp::object::empty() };
    let meta = object.get("_meta").map(str::to_owned);
    object.set("_meta", with_related(meta.as_deref(), task));
    object.to_json()
}

/// Returns the text of `_meta` with the member that names the task.
fn with_related(meta: Option<&str>, task: &Task) -> String {
    let related = format!(r#"{{"taskId":"{}"}}"#, task.id);
    match meta.and_then(Object::parse) {
        Some(mut meta) => {
            meta.set(RELATED_TASK, related);
            meta.to_json().to_string()
        }
        None => format!(r#"{{"{RELATED_TASK}":{related}}}"#),
    }
}

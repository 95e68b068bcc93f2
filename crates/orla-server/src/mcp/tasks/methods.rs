//! `tasks/get`, `tasks/update`, `tasks/cancel`, and for sessions `tasks/result` and `tasks/list`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use orla_marketplace::{Client, ClientError, JsonText, Principal};
use orla_mcp::object::Object;
use orla_tasks::{Filter, Question, State, Task, TaskError, TaskId, Tasks, Timestamp, Viewer};
use rmcp::model::ErrorData;

use super::wire::{self, View};
use super::{TaskCaller, refused, undeclared, watch};
use crate::mcp::rpc::{self, Id};
use crate::mcp::surfaces::method_not_found;
use crate::mcp::tools::{Form, cursor_after, read_cursor};
use crate::state::Core;
use crate::tasks::other_nodes::answer_question;

/// How long one `tasks/result` may ask its client.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(24 * 3600);

/// Tasks on one page of `tasks/list`.
const PAGE: usize = 100;

/// A request about tasks.
pub(crate) struct Request<'a> {
    pub(crate) id: &'a Id,
    pub(crate) method: &'a str,
    pub(crate) params: &'a JsonText,
    /// Whether the request declares the extension.
    pub(crate) declares: bool,
    /// The client of the session, if it can be asked.
    pub(crate) client: Option<Arc<dyn Client>>,
}

impl Request<'_> {
    /// Answers it.
    ///
    /// # Errors
    ///
    /// Returns an error if the method does not exist in the client's revision, the extension is not
    /// declared, or the task is unknown.
    pub(crate) async fn answer(self, core: &Core, caller: TaskCaller<'_>) -> Result<Bytes, ErrorData> {
        let is_sessionless = caller.revision.is_sessionless();
        let exists = match self.method {
            "tasks/get" | "tasks/cancel" => true,
            "tasks/update" => is_sessionless,
            "tasks/result" | "tasks/list" => !is_sessionless,
            _ => false,
        };
        if !exists || !caller.revision.has_tasks() {
            return Err(method_not_found(self.method));
        }
        if is_sessionless && !self.declares {
            return Err(undeclared("tasks"));
        }
        let tasks = core.tasks().ok_or_else(|| method_not_found(self.method))?;
        let viewer = Viewer::Caller(caller.principal);
        if self.method == "tasks/list" {
            return self.list(tasks, viewer).await;
        }
        let id = Object::parse(self.params.as_str()).and_then(|params| params.text("taskId"));
        let Some(id) = id else {
            let what = format!("{}: taskId must be a string", self.method);
            return Err(ErrorData::invalid_params(what, None));
        };
        match self.method {
            "tasks/get" => self.get(tasks, viewer, &id, is_sessionless).await,
            "tasks/update" => self.update(core, tasks, caller.principal, &id).await,
            "tasks/cancel" => self.cancel(tasks, viewer, &id, is_sessionless).await,
            _ => self.result(core, tasks, caller, &id).await,
        }
    }

    async fn get(
        &self,
        tasks: &Tasks,
        viewer: Viewer<'_>,
        id: &str,
        is_sessionless: bool,
    ) -> Result<Bytes, ErrorData> {
        let task = tasks.get(id, viewer).await.map_err(|error| refused(&error))?;
        if !is_sessionless {
            return Ok(rpc::result(self.id, view(tasks, &task, None).session_task().as_bytes()));
        }
        let result = result_of(tasks, &task).await?;
        Ok(rpc::result(self.id, &view(tasks, &task, result.as_ref()).got()))
    }

    async fn update(
        &self,
        core: &Core,
        tasks: &Tasks,
        caller: Option<&Principal>,
        id: &str,
    ) -> Result<Bytes, ErrorData> {
        let task = tasks.get(id, Viewer::Caller(caller)).await.map_err(|error| refused(&error))?;
        let params = Object::parse(self.params.as_str());
        let responses = params.as_ref().and_then(|params| params.get("inputResponses"));
        let Some(responses) = responses.and_then(Object::parse) else {
            let what = "tasks/update: inputResponses must be an object";
            return Err(ErrorData::invalid_params(what, None));
        };
        for (key, response) in responses.members() {
            // Answers to questions that are no longer open are ignored (SEP-2663, task update requests).
            if !response.starts_with('{') || !task.questions.iter().any(|question| question.key == key) {
                continue;
            }
            let Ok(response) = JsonText::parse(response.to_owned()) else { continue };
            match answer_question(core, tasks, caller, &task, key, Ok(response)).await {
                Ok(()) | Err(TaskError::NotAsked(_) | TaskError::Over(_)) => {}
                Err(error) => return Err(refused(&error)),
            }
        }
        Ok(rpc::result(self.id, br#"{"resultType":"complete"}"#))
    }

    async fn cancel(
        &self,
        tasks: &Tasks,
        viewer: Viewer<'_>,
        id: &str,
        is_sessionless: bool,
    ) -> Result<Bytes, ErrorData> {
        match tasks.cancel(id, viewer).await {
            Ok(_) | Err(TaskError::Over(_)) if is_sessionless => {
                Ok(rpc::result(self.id, br#"{"resultType":"complete"}"#))
            }
            Ok(task) => Ok(rpc::result(self.id, view(tasks, &task, None).session_task().as_bytes())),
            Err(error) => Err(refused(&error)),
        }
    }

    /// Waits for the end of a task and returns the result of its call. In the meantime, the client is
    /// asked the questions of the task (2025-11-25, `tasks/result`).
    async fn result(
        &self,
        core: &Core,
        tasks: &Tasks,
        caller: TaskCaller<'_>,
        id: &str,
    ) -> Result<Bytes, ErrorData> {
        let viewer = Viewer::Caller(caller.principal);
        let mut changes = tasks.subscribe(id, viewer).await.map_err(|error| refused(&error))?;
        let (mut asking, mut seen) = (FuturesUnordered::new(), Vec::new());
        let task = loop {
            let task = Arc::clone(&changes.borrow_and_update());
            if task.state.is_terminal() {
                break task;
            }
            if let (State::InputRequired, Some(client)) = (task.state, &self.client) {
                for question in &task.questions {
                    if !seen.contains(&question.key) {
                        seen.push(question.key.clone());
                        let (task, question) = (Arc::clone(&task), question.clone());
                        asking.push(ask(core, tasks, caller.principal, client, task, question));
                    }
                }
            }
            tokio::select! {
                () = caller.cancellation.cancelled() => {
                    return Err(ErrorData::internal_error("the request was withdrawn", None));
                }
                () = core.draining.cancelled() => {
                    let what = "the server is shutting down; ask for the result again";
                    return Err(ErrorData::internal_error(what, None));
                }
                Some(()) = asking.next(), if !asking.is_empty() => {}
                changed = changes.changed() => {
                    if changed.is_err() {
                        // The last change of the task is in the store.
                        break tasks.get(id, viewer).await.map_err(|error| refused(&error))?;
                    }
                    let seen = Arc::clone(&changes.borrow());
                    if let Some(outlet) = caller.outlet {
                        outlet.send(watch::session_notification(&view(tasks, &seen, None)));
                    }
                }
            }
        };
        let result = result_of(tasks, &task).await?;
        let is_result = task.state != State::Interrupted
            && task.error.as_ref().is_none_or(|failure| failure.refusal.is_none());
        match result.filter(|_| is_result) {
            Some(result) => {
                let form = match caller.session {
                    Some(session) => {
                        let catalog = core.tools_of(session);
                        core.listings.of(&catalog).session_form(&catalog, &task.capability)
                    }
                    None => Form::Session,
                };
                Ok(rpc::result(self.id, wire::session_result(&result, &task, form).bytes()))
            }
            None => Err(view(tasks, &task, None).error()),
        }
    }

    async fn list(&self, tasks: &Tasks, viewer: Viewer<'_>) -> Result<Bytes, ErrorData> {
        let mut filter = Filter::default();
        filter.limit = Some(PAGE + 1);
        let params = Object::parse(self.params.as_str());
        if let Some(cursor) = params.as_ref().and_then(|params| params.get("cursor"))
            && cursor != "null"
        {
            let malformed = || ErrorData::invalid_params("the cursor is malformed", None);
            let raw: &serde_json::value::RawValue =
                serde_json::from_str(cursor).map_err(|_| malformed())?;
            filter.before = Some(TaskId::parse(&read_cursor(raw)?).ok_or_else(malformed)?);
        }
        let found = tasks.list(&filter, viewer).await.map_err(|error| refused(&error))?;
        let shown: Vec<String> =
            found.iter().take(PAGE).map(|task| view(tasks, task, None).session_task()).collect();
        let next = found.get(PAGE - 1).filter(|_| found.len() > PAGE);
        let next = next.map(|last| format!(r#","nextCursor":"{}""#, cursor_after(last.id.as_str())));
        let page = format!(r#"{{"tasks":[{}]{}}}"#, shown.join(","), next.unwrap_or_default());
        Ok(rpc::result(self.id, page.as_bytes()))
    }
}

/// Asks the client of a session a question of a task, and passes the answer to the task.
async fn ask(
    core: &Core,
    tasks: &Tasks,
    caller: Option<&Principal>,
    client: &Arc<dyn Client>,
    task: Arc<Task>,
    question: Question,
) {
    let params = wire::session_question(question.params.get(), &task);
    let answer = client.request(&question.method, params).await;
    // A client that has disconnected has not answered, so the next one is asked.
    if matches!(answer, Err(ClientError::Gone)) {
        return;
    }
    let answered = answer_question(core, tasks, caller, &task, &question.key, answer).await;
    if let Err(error) = answered {
        tracing::debug!(task = %task.id, %error, "an answer was not needed");
    }
}

/// Returns the result of a task that is over.
pub(super) async fn result_of(tasks: &Tasks, task: &Task) -> Result<Option<JsonText>, ErrorData> {
    match task.state.is_terminal() {
        true => tasks.result(&task.id).await.map_err(|error| refused(&error)),
        false => Ok(None),
    }
}

/// Returns a task as it stands now.
pub(super) fn view<'a>(tasks: &Tasks, task: &'a Task, result: Option<&'a JsonText>) -> View<'a> {
    View { task, result, ttl: tasks.lifetime(task), now: Timestamp::now() }
}

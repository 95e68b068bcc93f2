//! The changes of tasks, sent to those who listen: `notifications/tasks` on `subscriptions/listen` (SEP-2663), and
//! `notifications/tasks/status` while a session waits for a result (2025-11-25).

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{pending, select_all};
use orla_marketplace::JsonText;
use orla_mcp::object::Object;
use orla_tasks::{Task, Tasks, Viewer};
use rmcp::model::ErrorData;
use tokio::sync::watch::Receiver;

use super::methods::{result_of, view};
use super::wire::View;
use super::{TaskCaller, undeclared};
use crate::mcp::notify::subscriptions::MAX_SUBSCRIPTIONS;
use crate::mcp::protocol::META_SUBSCRIPTION_ID;
use crate::mcp::rpc::Id;
use crate::state::Core;

/// The tasks that a client listens to.
#[derive(Default)]
pub(crate) struct WatchedTasks<'a> {
    tasks: Option<&'a Tasks>,
    changes: Vec<Receiver<Arc<Task>>>,
}

impl<'a> WatchedTasks<'a> {
    /// The tasks that the parameters of `subscriptions/listen` name. Unknown ones are left out.
    ///
    /// # Errors
    ///
    /// Returns an error if the client does not declare the extension, or names too many tasks.
    pub(crate) async fn of(
        core: &'a Core,
        caller: TaskCaller<'_>,
        params: &JsonText,
        declares: bool,
    ) -> Result<Self, ErrorData> {
        let Some(ids) = wanted(params)? else { return Ok(Self::default()) };
        if !declares {
            return Err(undeclared("notifications of tasks"));
        }
        let Some(tasks) = core.tasks() else { return Ok(Self::default()) };
        let viewer = Viewer::Caller(caller.principal);
        let mut watched = Vec::new();
        for id in ids {
            if let Ok(mut changes) = tasks.subscribe(&id, viewer).await {
                // The client immediately receives the current state.
                changes.mark_changed();
                watched.push(changes);
            }
        }
        Ok(Self { tasks: Some(tasks), changes: watched })
    }

    /// Returns the ids of the tasks.
    pub(crate) fn ids(&self) -> Vec<String> {
        self.changes.iter().map(|changes| changes.borrow().id.to_string()).collect()
    }

    /// Returns the next task that has changed. Waits forever if no task is left.
    pub(crate) async fn changed(&mut self) -> Arc<Task> {
        loop {
            if self.changes.is_empty() {
                return pending().await;
            }
            let (changed, at) = {
                let waits = self.changes.iter_mut().map(|changes| Box::pin(changes.changed()));
                let (changed, at, _) = select_all(waits).await;
                (changed, at)
            };
            if changed.is_err() {
                // It is over, and its end was sent.
                self.changes.swap_remove(at);
                continue;
            }
            let task = Arc::clone(&self.changes[at].borrow());
            if task.state.is_terminal() {
                self.changes.swap_remove(at);
            }
            return task;
        }
    }

    /// `notifications/tasks` for a stream: the task with its questions, its result or its error.
    ///
    /// # Errors
    ///
    /// Returns an error if the state cannot be read.
    pub(crate) async fn notification(&self, task: &Task, stream: &Id) -> Result<Bytes, ErrorData> {
        let mut out =
            br#"{"jsonrpc":"2.0","method":"notifications/tasks","params":{"_meta":{""#.to_vec();
        out.extend_from_slice(format!("{META_SUBSCRIPTION_ID}\":{}}},", stream.as_str()).as_bytes());
        if let Some(tasks) = self.tasks {
            let result = result_of(tasks, task).await?;
            view(tasks, task, result.as_ref()).push_detailed(&mut out);
        }
        out.extend_from_slice(b"}}");
        Ok(out.into())
    }
}

/// Returns the ids in `notifications.taskIds`.
fn wanted(params: &JsonText) -> Result<Option<BTreeSet<String>>, ErrorData> {
    let params = Object::parse(params.as_str());
    let notifications = params.as_ref().and_then(|params| params.get("notifications"));
    let notifications = notifications.and_then(Object::parse);
    let ids = notifications.as_ref().and_then(|notifications| notifications.get("taskIds"));
    let Some(ids) = ids.filter(|ids| *ids != "null") else { return Ok(None) };
    let ids: Vec<String> = serde_json::from_str(ids).map_err(|err| {
        let what = format!("subscriptions/listen: notifications.taskIds: {err}");
        ErrorData::invalid_params(what, None)
    })?;
    if ids.len() > MAX_SUBSCRIPTIONS {
        let what = format!("more than {MAX_SUBSCRIPTIONS} tasks");
        return Err(ErrorData::invalid_params(what, None));
    }
    Ok(Some(ids.into_iter().collect()))
}

/// `notifications/tasks/status`.
pub(super) fn session_notification(view: &View<'_>) -> Bytes {
    let params = view.session_task();
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{params}}}"#).into()
}

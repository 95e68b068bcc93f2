//! Lists of tasks.

use std::sync::Arc;

use a2a::{A2AError, ListTasksRequest, ListTasksResponse, TaskState};
use orla_tasks::{State, TaskError, TaskId};

use super::Caller;
use super::agent::{A2AResult, broken, refused};
use super::records::Row;
use super::stored::is_before;
use super::view::{self, shorten};

/// The maximum number of tasks on one page of a list.
const MAX_PAGE: i32 = 100;
/// The default size of a page.
const PAGE: i32 = 50;

impl Caller {
    /// Returns the tasks of the caller, the newest state first.
    pub(super) async fn list(&self, request: &ListTasksRequest) -> A2AResult<ListTasksResponse> {
        let size = match request.page_size {
            None => PAGE,
            Some(size) if (1..=MAX_PAGE).contains(&size) => size,
            Some(_) => {
                return Err(A2AError::invalid_params(format!("pageSize: expected 1 to {MAX_PAGE}")));
            }
        };
        if request.history_length.is_some_and(|length| length < 0) {
            return Err(A2AError::invalid_params("historyLength: expected 0 or more"));
        }
        let before = match request.page_token.as_deref() {
            None | Some("") => None,
            Some(token) => Some(position(token).ok_or_else(|| {
                A2AError::invalid_params("pageToken: it is of no page that was given here")
            })?),
        };
        let mut matches = self.matches(request).await.map_err(|err| refused(&err))?;
        matches.sort_by_key(|one| std::cmp::Reverse(one.position()));
        let total_size = i32::try_from(matches.len()).unwrap_or(i32::MAX);
        let mut rest =
            matches.into_iter().filter(|it| before.as_ref().is_none_or(|at| it.position() < *at));
        let page: Vec<Match> = rest.by_ref().take(usize::try_from(size).unwrap_or_default()).collect();
        let last = page.last().filter(|_| rest.next().is_some());
        let next_page_token = last.map(|last| format!("{}-{}", last.changed_at, last.row.id));
        let mut tasks = Vec::with_capacity(page.len());
        for Match { row, task, .. } in page {
            let record = self.agent().records.get(row.id.as_str()).await.map_err(broken)?;
            let Some(record) = record else { continue };
            let mut shown = match task {
                Some(task) => self.agent().view(&record, &task).await.map_err(|err| refused(&err))?,
                None => record.task,
            };
            shown.artifacts = (request.include_artifacts == Some(true))
                .then(|| shown.artifacts.take().unwrap_or_default());
            shorten(&mut shown, request.history_length);
            tasks.push(shown);
        }
        Ok(ListTasksResponse {
            tasks,
            next_page_token: next_page_token.unwrap_or_default(),
            page_size: size,
            total_size,
        })
    }

    /// Returns the tasks that match a request, in any order.
    async fn matches(&self, request: &ListTasksRequest) -> Result<Vec<Match>, TaskError> {
        let (agent, keep) = (self.agent(), self.options().keep);
        agent.stored_tasks().await?;
        let fits = |row: &Row| request.context_id.as_ref().is_none_or(|id| *id == row.listed.context_id);
        let rows = agent.records.rows(Some(self.principal.as_ref())).await?;
        let rows: Vec<Row> = rows.into_iter().filter(fits).collect();
        let ids: Vec<TaskId> = rows.iter().map(|row| row.id.clone()).collect();
        let tasks = agent.tasks.get_all(&ids, self.viewer()).await?;
        let after = request.status_timestamp_after.map(|after| after.timestamp_millis());
        let mut matches = Vec::new();
        for (row, task) in rows.into_iter().zip(tasks) {
            let changed_at = match (&task, row.listed.ended_at) {
                (Some(task), _) => i64::try_from(task.updated_at.0).unwrap_or(i64::MAX),
                (None, Some(ended_at)) if !is_before(ended_at, keep) => ended_at,
                (None, _) => continue,
            };
            if after.is_some_and(|after| changed_at < after) {
                continue;
            }
            if let Some(state) = &request.status
                && *state != self.state(&row, task.as_deref()).await?
            {
                continue;
            }
            matches.push(Match { row, task, changed_at });
        }
        Ok(matches)
    }

    async fn state(&self, row: &Row, task: Option<&orla_tasks::Task>) -> Result<TaskState, TaskError> {
        let agent = self.agent();
        match task {
            // A failed task may be a refusal. Its result says so.
            Some(task) if task.state == State::Failed => {
                let output = agent.output(task).await?;
                Ok(view::state(task, output.as_ref()))
            }
            Some(task) => Ok(view::state(task, None)),
            None => {
                let record = agent.records.get(row.id.as_str()).await?;
                Ok(record.map_or(TaskState::Unspecified, |record| record.task.status.state))
            }
        }
    }
}

/// A task of a list.
struct Match {
    row: Row,
    task: Option<Arc<orla_tasks::Task>>,
    /// The time of the last change of its state, in milliseconds since 1970.
    changed_at: i64,
}

impl Match {
    /// Returns its position in lists. Later tasks have greater positions.
    fn position(&self) -> (i64, TaskId) {
        (self.changed_at, self.row.id.clone())
    }
}

/// Parses the position in a page token.
fn position(token: &str) -> Option<(i64, TaskId)> {
    let (changed_at, id) = token.split_once('-')?;
    Some((changed_at.parse().ok()?, TaskId::parse(id)?))
}

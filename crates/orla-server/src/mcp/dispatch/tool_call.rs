//! Calls of tools, and tasks that call them.

use std::sync::Arc;

use bytes::Bytes;
use orla_marketplace::{Call, Catalog, JsonText, RuntimeError};
use rmcp::model::ErrorData;

use super::{Caller, ClientChannel, limit};
use crate::mcp::rpc::Id;
use crate::mcp::session::Session;
use crate::mcp::surfaces;
use crate::mcp::tasks;
use crate::mcp::tools::{self, Form};
use crate::state::Core;
use crate::step_up;

/// A `tools/call`.
pub(super) struct ToolRequest {
    pub(super) call: Call,
    /// The node on which the call must run.
    pub(super) node: Option<Arc<str>>,
    /// The capabilities with which its client can be asked.
    pub(super) capabilities: Option<JsonText>,
    /// `params.task`, unchecked.
    pub(super) task_params: Option<JsonText>,
    pub(super) declares_tasks: bool,
}

/// Calls a tool, or starts a task that calls it.
pub(super) async fn call_or_start_task(
    core: &Core,
    id: &Id,
    request: ToolRequest,
    caller: &Caller,
    channel: &ClientChannel,
) -> Result<Bytes, ErrorData> {
    let ToolRequest { mut call, node, capabilities, task_params, declares_tasks } = request;
    let fields = tasks::start::TaskFields { task: task_params.as_ref(), declares: declares_tasks };
    // One snapshot decides both whether the call becomes a task and how it is made.
    let catalog = match &caller.session {
        Some(session) => Some(tools_of(core, session, &call.target).await),
        None => None,
    };
    let mode =
        tasks::start::mode(core, caller.task_caller(), catalog.clone(), &call.target, fields).await?;
    match mode {
        tasks::start::Mode::Plain => {}
        tasks::start::Mode::Task { .. } if node.is_some() => {
            let what = "the call of a task cannot be given a node (_meta[\"orla/node\"])";
            return Err(ErrorData::invalid_params(what.to_owned(), None));
        }
        tasks::start::Mode::Task { tasks, keep_ms } => {
            let start = tasks::start::Start { keep_ms, capabilities };
            let task = start.run(tasks, caller.task_caller(), id, &call.target, call.input);
            return Box::pin(task).await;
        }
    }
    call.scope.catalog = catalog;
    call.scope.node = node;
    let continues = declares_tasks.then_some(tasks::start::Start { keep_ms: None, capabilities });
    call_tool(core, id, call, caller, channel, continues).await
}

async fn call_tool(
    core: &Core,
    id: &Id,
    call: Call,
    caller: &Caller,
    channel: &ClientChannel,
    continues: Option<tasks::start::Start>,
) -> Result<Bytes, ErrorData> {
    let form = match &call.scope.catalog {
        Some(catalog) => core.listings.of(catalog).session_form(catalog, &call.target),
        None => Form::Sessionless,
    };
    let target = call.target.clone();
    let continues = continues.filter(|_| {
        let catalog = call.scope.catalog.clone().unwrap_or_else(|| core.market.snapshot());
        tasks::start::may_continue(&catalog, &target)
    });
    let result = core.market.call(call).await;
    if let Err(error) = &result {
        step_up::note_denial(&caller.missing_scopes, error);
    }
    match result {
        Ok(outcome) => {
            if let (Some(start), Some(tasks)) = (continues, core.tasks())
                && let Some(input) = tasks::start::continuation(&outcome)
            {
                return Box::pin(start.run(tasks, caller.task_caller(), id, &target, input)).await;
            }
            Ok(tools::success(id, &outcome, form))
        }
        Err(error @ RuntimeError::Unknown { .. }) => {
            Err(ErrorData::invalid_params(error.to_string(), None))
        }
        // The output before the error belongs to the caller.
        Err(error) => {
            match (channel.missing_capability().filter(|_| failed_without_output(&error)), error) {
                (Some(missing), _) => Err(missing),
                (None, RuntimeError::Refused { code, message, data, .. }) => {
                    Err(surfaces::refused(code, message, data.as_ref()))
                }
                (None, error) => Ok(tools::failure(id, &error, form)),
            }
        }
    }
}

/// Returns whether a call itself failed and has no output.
fn failed_without_output(error: &RuntimeError) -> bool {
    error.kind() == "failed" && error.outcome().is_none()
}

/// Returns the snapshot in which a session calls a tool: the one that it last listed. Before the first
/// list here, an unknown tool may belong to a provider that has not been asked yet, and so may the tools that
/// a tool calls.
async fn tools_of(core: &Core, session: &Session, tool: &str) -> Arc<Catalog> {
    let known = core.tools_of(session);
    let is_enough = known.get(tool).is_some_and(|entry| !entry.reaches_others());
    if is_enough || session.has_listed_here() || session.listed_elsewhere().is_some() {
        return known;
    }
    let learn = async {
        match known.get(tool) {
            Some(_) => core.market.prepare_listing().await,
            None => core.market.prepare_for(tool).await,
        }
    };
    let _ = tokio::time::timeout(limit(&known, "tools/call", tool), learn).await;
    let newest = core.market.snapshot();
    if !newest.is_of_the_same_sources(&known) {
        return known;
    }
    session.begin_tools_with(&newest);
    newest
}

//! Decides whether a `tools/call` becomes a task, and starts the task.

use std::sync::Arc;

use bytes::Bytes;
use orla_marketplace::{
    Availability, Call, Catalog, Entry, JsonText, Outcome, Payload, Principal, ProviderType,
    RuntimeError, TaskSupport,
};
use orla_mcp::object::Object;
use orla_tasks::{NewTask, TaskError, Tasks};
use rmcp::model::{ErrorCode, ErrorData};

use super::methods::view;
use super::{TaskCaller, refused, undeclared};
use crate::mcp::rpc::{self, Id, kind_of};
use crate::mcp::tools::{self, Form};
use crate::state::Core;
use crate::step_up::note_denial;

/// The key of a result's `_meta` with which a tool continues as a task: `{"input": {…}}`. The same
/// caller calls the same capability with that input. A tool can therefore ask its client first and do
/// its work afterwards.
const CONTINUE: &str = "orla/task";

/// How a call runs.
pub(crate) enum Mode<'a> {
    /// The answer is the result.
    Plain,
    /// The answer is a task.
    Task {
        tasks: &'a Tasks,
        /// How long the client needs it, in milliseconds.
        keep_ms: Option<u64>,
    },
}

/// The parts of a request that concern tasks.
#[derive(Clone, Copy)]
pub(crate) struct TaskFields<'a> {
    /// `params.task` (2025-11-25).
    pub(crate) task: Option<&'a JsonText>,
    /// Whether the request declares the extension.
    pub(crate) declares: bool,
}

/// Returns how the call of a capability runs. `catalog` is the snapshot of the session, if there is one.
///
/// # Errors
///
/// Returns an error if the capability runs only as a task, and the client cannot have one, or it never
/// does, and the client asks for one.
pub(crate) async fn mode<'a>(
    core: &'a Core,
    caller: TaskCaller<'_>,
    catalog: Option<Arc<Catalog>>,
    tool: &str,
    fields: TaskFields<'_>,
) -> Result<Mode<'a>, ErrorData> {
    // The call itself reports an unknown capability.
    let may_be_task = fields.declares && core.tasks().is_some();
    let Some(entry) = entry_of(core, caller.principal, catalog, tool, may_be_task).await else {
        return Ok(Mode::Plain);
    };
    let (support, name) = (entry.manifest.task_support(), &entry.name);
    let method_not_found = |what: String| ErrorData::new(ErrorCode::METHOD_NOT_FOUND, what, None);
    if caller.revision.is_sessionless() {
        return match (support, core.tasks()) {
            (Some(TaskSupport::Required), _) if !fields.declares => Err(undeclared(&format!(
                "{name} runs only as a task: use `orla task run {name}`, POST /tasks, or a client that supports tasks"
            ))),
            (Some(TaskSupport::Required | TaskSupport::Optional), Some(tasks)) if fields.declares => {
                Ok(Mode::Task { tasks, keep_ms: None })
            }
            _ => Ok(Mode::Plain),
        };
    }
    let Some(tasks) = core.tasks().filter(|_| caller.revision.has_tasks()) else {
        return Ok(Mode::Plain);
    };
    match (fields.task, support) {
        (Some(_), Some(TaskSupport::Forbidden)) => {
            Err(method_not_found(format!("{name} never runs as a task; call it without params.task")))
        }
        (Some(task), _) => Ok(Mode::Task { tasks, keep_ms: ttl(task)? }),
        (None, Some(TaskSupport::Required)) => {
            Err(method_not_found(format!("{name} runs only as a task; call it with params.task")))
        }
        (None, _) => Ok(Mode::Plain),
    }
}

/// Returns the capability that the caller may call. A provider that has not said yet what it serves is
/// asked first if that decides how the call runs, and otherwise by the call itself.
async fn entry_of(
    core: &Core,
    principal: Option<&Principal>,
    catalog: Option<Arc<Catalog>>,
    tool: &str,
    may_be_task: bool,
) -> Option<Arc<Entry>> {
    if let Some(catalog) = catalog {
        return catalog.visible(principal, tool).cloned();
    }
    let mut newest = core.market.snapshot();
    match newest.get(tool) {
        Some(entry) if !may_be_task || entry.policy.availability != Availability::Unlearned => {}
        Some(_) => {
            let mut call = Call::to(tool);
            call.scope.principal = principal.cloned();
            // Boxed, to keep the future of every other call small.
            Box::pin(core.market.learn_of(call)).await;
            newest = core.market.snapshot();
        }
        None => {
            let limit = newest.limits().timeout;
            let _ = tokio::time::timeout(limit, core.market.prepare_for(tool)).await;
            newest = core.market.snapshot();
        }
    }
    newest.visible(principal, tool).cloned()
}

/// Returns the `ttl` of `params.task`.
fn ttl(task: &JsonText) -> Result<Option<u64>, ErrorData> {
    let wrong = |what: String| ErrorData::invalid_params(what, None);
    let Some(task) = Object::parse(task.as_str()) else {
        return Err(wrong(format!("params.task must be an object, got {}", kind_of(task.as_str()))));
    };
    match task.get("ttl") {
        None | Some("null") => Ok(None),
        Some(ttl) => match ttl.parse::<f64>() {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "the conversion saturates, and only a number from 0 on is converted"
            )]
            Ok(ms) if ms >= 0.0 => Ok(Some(ms as u64)),
            _ => Err(wrong(format!("params.task.ttl must be a number of milliseconds, got {ttl}"))),
        },
    }
}

/// The client's requirements for a new task.
pub(crate) struct Start {
    /// How long it needs the task, in milliseconds.
    pub(crate) keep_ms: Option<u64>,
    /// The capabilities with which the client can be asked.
    pub(crate) capabilities: Option<JsonText>,
}

impl Start {
    /// Starts the task and answers with it, once it is durable.
    ///
    /// # Errors
    ///
    /// Returns problems other than failures of the call. If the caller's model can correct the call, the
    /// answer is a result instead.
    pub(crate) async fn run(
        self,
        tasks: &Tasks,
        caller: TaskCaller<'_>,
        id: &Id,
        target: &str,
        input: Payload,
    ) -> Result<Bytes, ErrorData> {
        let mut new = NewTask::call(target, input, caller.principal.cloned());
        new.client = self.capabilities;
        new.keep_ms = self.keep_ms;
        match tasks.start(new).await {
            Ok(started) => {
                let view = view(tasks, &started.task, None);
                let created = match caller.revision.is_sessionless() {
                    true => view.created(),
                    false => format!(r#"{{"task":{}}}"#, view.session_task()),
                };
                Ok(rpc::result(id, created.as_bytes()))
            }
            Err(TaskError::Refused(error @ RuntimeError::Unknown { .. })) => {
                Err(ErrorData::invalid_params(error.to_string(), None))
            }
            Err(TaskError::Refused(error)) => {
                note_denial(caller.missing_scopes, &error);
                let form = match caller.revision.is_sessionless() {
                    true => Form::Sessionless,
                    false => Form::Session,
                };
                Ok(tools::failure(id, &error, form))
            }
            Err(error) => Err(refused(&error)),
        }
    }
}

/// Returns whether results of a capability may continue as a task. Only the user's own programs may. The
/// answer of another server must not make orla call it again in the caller's name.
pub(crate) fn may_continue(catalog: &Catalog, target: &str) -> bool {
    let provider = catalog.get(target).map(|entry| &entry.manifest.provider);
    matches!(provider, Some(ProviderType::Custom(_) | ProviderType::Plugin(_)))
}

/// Returns the input with which a call continues as a task, if its result says so.
pub(crate) fn continuation(outcome: &Outcome) -> Option<Payload> {
    let meta = outcome.meta.as_ref().filter(|meta| meta.as_str().contains(CONTINUE))?;
    let meta = Object::parse(meta.as_str())?;
    let next = Object::parse(meta.get(CONTINUE)?)?;
    let input = next.get("input").filter(|input| input.starts_with('{'))?;
    Some(Payload::from_json(JsonText::parse(input.to_owned()).ok()?))
}

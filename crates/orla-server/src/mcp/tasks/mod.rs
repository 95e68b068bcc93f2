//! Tasks, as MCP clients see them: the extension `io.modelcontextprotocol/tasks` of 2026-07-28
//! (SEP-2663), and the experimental form that sessions of 2025-11-25 have.
//!
//! Both are front ends of [`orla_tasks::Tasks`], which runs the calls. [`start`] decides whether a
//! `tools/call` becomes a task, [`methods`] answers `tasks/*`, [`wire`] writes tasks in both forms
//! (pure), and [`watch`] sends their changes to listeners.
//!
//! # When a call becomes a task
//!
//! With the extension, the server decides: a call of a capability that declares `task` becomes a task if
//! the client declares the extension. In a session, the client asks for a task with `params.task`, and
//! any capability can become one.

pub(crate) mod methods;
pub(crate) mod start;
pub(crate) mod watch;
pub(crate) mod wire;

use std::sync::{Arc, OnceLock};

use orla_marketplace::Principal;
use orla_mcp::object::Object;
use orla_tasks::TaskError;
use rmcp::model::{ClientCapabilities, ErrorData, TASKS_EXTENSION_ID};
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use crate::mcp::notify::notices::Outlet;
use crate::mcp::protocol::Revision;
use crate::mcp::session::Session;

/// The client of a request about tasks.
#[derive(Clone, Copy)]
pub(crate) struct TaskCaller<'a> {
    pub(crate) revision: Revision,
    pub(crate) principal: Option<&'a Principal>,
    pub(crate) session: Option<&'a Session>,
    /// Receives notifications; `None` if the client wants none.
    pub(crate) outlet: Option<&'a Arc<dyn Outlet>>,
    /// Cancelled when the client withdraws the request.
    pub(crate) cancellation: &'a CancellationToken,
    /// Set if the request is denied for lack of a scope.
    pub(crate) missing_scopes: &'a OnceLock<Vec<String>>,
}

/// Returns whether a client's capabilities declare the extension (SEP-2663, capability negotiation).
pub(crate) fn is_declared(capabilities: Option<&RawValue>) -> bool {
    // Most clients do not, and their capabilities need not be parsed for this.
    let text = capabilities.map(RawValue::get).filter(|text| text.contains(TASKS_EXTENSION_ID));
    let capabilities = text.and_then(Object::parse);
    let extensions = capabilities.as_ref().and_then(|capabilities| capabilities.get("extensions"));
    let extension = extensions.and_then(Object::parse).map(|extensions| {
        extensions.get(TASKS_EXTENSION_ID).is_some_and(|extension| extension.starts_with('{'))
    });
    extension == Some(true)
}

/// Returns the error for a client that has to declare the extension: −32021.
fn undeclared(why: &str) -> ErrorData {
    let mut required = ClientCapabilities::default();
    let extension = (TASKS_EXTENSION_ID.to_owned(), serde_json::Map::new());
    required.extensions = Some([extension].into_iter().collect());
    let mut error = ErrorData::missing_required_client_capability(required);
    error.message = format!("{}: {why}", error.message).into();
    error
}

/// Returns the error of a request about a task. An unknown task is −32602, and so is everything else
/// that the client can mend.
fn refused(error: &TaskError) -> ErrorData {
    let message = crate::tasks::message(error);
    match error {
        TaskError::Unknown(_)
        | TaskError::Over(_)
        | TaskError::NotAsked(_)
        | TaskError::InvalidKey(_)
        | TaskError::KeyConflict { .. }
        | TaskError::LargeInput { .. } => ErrorData::invalid_params(message, None),
        _ => ErrorData::internal_error(message, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_is_declared_by_an_object() {
        let declares = |text: &str| is_declared(Some(serde_json::from_str(text).unwrap()));
        assert!(declares(r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#));
        assert!(declares(
            r#"{"elicitation":{},"extensions":{"a/b":{},"io.modelcontextprotocol/tasks":{"x":1}}}"#
        ));
        for other in [
            "{}",
            r#"{"extensions":{}}"#,
            r#"{"extensions":[]}"#,
            r#"{"extensions":{"io.modelcontextprotocol/tasks":null}}"#,
            r#"{"tasks":{}}"#,
        ] {
            assert!(!declares(other), "{other}");
        }
        assert!(!is_declared(None));
        let error = undeclared("x runs only as a task");
        assert_eq!(error.code.0, -32021);
        assert_eq!(
            error.data.unwrap()["requiredCapabilities"],
            serde_json::json!({"extensions": {"io.modelcontextprotocol/tasks": {}}})
        );
    }
}

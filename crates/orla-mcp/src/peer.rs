//! Peers: servers that answer requests of the Model Context Protocol.

use std::sync::Arc;

use async_trait::async_trait;
use orla_marketplace::{
    CallContext, JsonText, Outcome, RuntimeError, RuntimeResult, SurfaceNotice, seconds,
};
use tokio::sync::broadcast;

use super::answer::{self, Offers, ToolResult};
use super::conversation::{Ask, Fault};
use super::input_requests::{self, MAX_ROUND_TRIPS, Unanswered};
use super::subscriptions::TooMany;
use super::wire::RpcError;

/// An MCP server, over any transport.
#[async_trait]
pub trait Peer: Send + Sync {
    /// Returns the name.
    fn name(&self) -> &str;

    /// Sends a request, and waits for the answer until the call's deadline. Dropping the future
    /// withdraws the request.
    ///
    /// # Errors
    /// See [`Ending`].
    async fn ask(&self, ask: Ask, ctx: &CallContext) -> Result<JsonText, Ending>;

    /// Returns what the peer offers besides tools, as far as that is known.
    fn offers(&self) -> Option<Offers>;

    /// Waits once, within its own time limit, until it is known what the peer serves.
    async fn learn(&self);

    /// Returns a receiver of the changes that the peer reports from now on.
    fn notices(&self) -> broadcast::Receiver<SurfaceNotice>;

    /// Adds one subscriber to a resource.
    ///
    /// # Errors
    /// See [`Ending`].
    async fn subscribe(&self, uri: &str, ctx: &CallContext) -> Result<(), Ending>;

    /// Removes one subscriber from a resource.
    ///
    /// # Errors
    /// See [`Ending`].
    async fn unsubscribe(&self, uri: &str, ctx: &CallContext) -> Result<(), Ending>;
}

/// The end of a request without a result.
#[derive(Debug)]
pub enum Ending {
    /// The server refused, or there is none.
    Fault(Fault),
    /// The caller withdrew the request.
    Cancelled,
    /// The time was over.
    TimedOut {
        /// The reason why it was never sent, if so.
        not_ready: Option<String>,
        /// The line that the process wrote instead of an answer, if known.
        wrong_answer: Option<String>,
    },
}

impl From<TooMany> for Ending {
    fn from(error: TooMany) -> Self {
        Self::Fault(Fault::Unavailable(error.to_string()))
    }
}

/// Calls a tool, and answers its input requests.
///
/// # Errors
/// [`RuntimeError::Reported`] for an error result, or else the error of [`failure`].
pub async fn call(
    peer: &(impl Peer + ?Sized),
    tool: Option<&Arc<str>>,
    arguments: &JsonText,
    ctx: &CallContext,
) -> RuntimeResult<Outcome> {
    let mut more = None;
    for _ in 0..MAX_ROUND_TRIPS {
        let ask = Ask::Call { tool: tool.cloned(), arguments: arguments.clone(), more: more.take() };
        let result = peer.ask(ask, ctx).await.map_err(|ending| failure(ending, ctx))?;
        let failed = |problem: String| {
            let message = format!("{} failed: it returned an invalid result: {problem}", ctx.name);
            RuntimeError::Failed { id: ctx.name.to_string(), message, outcome: None }
        };
        match answer::tool_result(&result).map_err(failed)? {
            ToolResult::Success(outcome) => return Ok(outcome),
            ToolResult::Failure(outcome) => {
                return Err(RuntimeError::reported(ctx.name.to_string(), outcome));
            }
            ToolResult::Asks => {
                let answers = input_requests::answer(&result, ctx.scope.client.as_ref()).await;
                more = Some(answers.map_err(|problem| unanswered(&problem, ctx))?);
            }
        }
    }
    let message = format!("{} failed: it asked for input more than {MAX_ROUND_TRIPS} times", ctx.name);
    Err(RuntimeError::Failed { id: ctx.name.to_string(), message, outcome: None })
}

fn unanswered(problem: &Unanswered, ctx: &CallContext) -> RuntimeError {
    let message = format!("{} failed: its request for input has no answer: {problem}", ctx.name);
    RuntimeError::Failed { id: ctx.name.to_string(), message, outcome: None }
}

/// Returns the error of a call without a result, for its caller.
pub fn failure(ending: Ending, ctx: &CallContext) -> RuntimeError {
    let id = ctx.name.to_string();
    match ending {
        Ending::Fault(Fault::Refused(RpcError { code, message, data })) => {
            RuntimeError::Refused { id, code, message, data }
        }
        Ending::Fault(Fault::Failed(failure)) => {
            let message = format!("{id} failed: {}", failure.message);
            RuntimeError::Failed { id, message, outcome: None }
        }
        Ending::Fault(Fault::Unavailable(reason)) => {
            RuntimeError::Unavailable { id, reason, source: None }
        }
        Ending::Fault(Fault::Busy { sent, waiting }) => {
            RuntimeError::Busy { id, running: sent, waiting }
        }
        Ending::Cancelled => RuntimeError::Cancelled { id, outcome: None },
        Ending::TimedOut { not_ready: None, .. } => {
            RuntimeError::TimedOut { id, limit: ctx.timeout, outcome: None }
        }
        Ending::TimedOut { not_ready: Some(reason), .. } => {
            let reason = format!("it was not ready within {}: {reason}", seconds(ctx.timeout));
            RuntimeError::Unavailable { id, reason, source: None }
        }
    }
}

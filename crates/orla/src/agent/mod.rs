//! Prompt to tool execution (RFC 1 §9.1): a model answers a prompt, and calls capabilities to do so.
//!
//! # How it works
//!
//! [`Run`] decides and does no I/O: it takes the replies of the model and the results of calls, and returns the
//! next step. [`Agent::drive`] carries that out: it asks the [`Model`], has a person approve destructive calls,
//! and makes the calls of one answer at the same time, through the marketplace like any other. A [`RunObserver`]
//! follows the run: [`Transcript`] prints it. The capability `agent` ([`prompted`]) answers prompts for clients;
//! it is a run within a call.
//!
//! # Deliberately absent
//!
//! Repeated requests, and state between runs. Prices: the user sets them, because they change
//! faster than programs.

mod approval;
mod calls;
mod model;
pub(crate) mod prompted;
mod prompts;
mod run;
mod sampling;
mod tools;
mod transcript;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use genai::chat::{ChatRequest, ToolCall, ToolResponse};
use orla_marketplace::{Call, CallContext, CapabilityMarketplace, NoticeSink, Payload};
use tokio_util::sync::CancellationToken;

use crate::config::agent::Approve;
pub(crate) use approval::Approval;
pub(crate) use model::{Model, environment};
pub(crate) use run::{Budget, End, Run};
use run::{ModelReply, Next, RequestedCall};
use sampling::Sampling;
pub(crate) use tools::Tools;
pub(crate) use transcript::Transcript;

/// The default system prompt.
pub(crate) const SYSTEM: &str = "You answer the user's request with the help of the tools you are given. Call them where \
    they help, and do not make up what a tool can tell you. Say plainly what you could not do.";

/// Follows a run while it happens.
pub(crate) trait RunObserver {
    /// A part of a reply's text.
    fn text(&self, part: &str);
    /// A complete reply.
    fn answered(&self, answer: &ModelReply);
    /// A call that is about to be made.
    fn calls(&self, call: &ToolCall);
    /// A call has finished; `text` is its result as the model sees it.
    fn call_finished(&self, call: &ToolCall, text: &str, is_error: bool, took: Duration);
    /// Receives the notices of a call while it runs.
    fn notices(&self, _call: &ToolCall) -> NoticeSink {
        NoticeSink::default()
    }
}

/// Where replies of the model come from.
pub(crate) enum ModelSource<'a> {
    /// The configured model.
    Model(&'a Model),
    /// The model of the client that made the call, by sampling.
    Client(Sampling),
}

impl ModelSource<'_> {
    async fn ask(
        &self,
        request: ChatRequest,
        mut on_text: impl FnMut(&str),
    ) -> Result<ModelReply, String> {
        match self {
            Self::Model(model) => model.ask(request, on_text).await,
            Self::Client(sampling) => {
                let answer = sampling.ask(&request).await?;
                answer.content.texts().into_iter().for_each(&mut on_text);
                Ok(answer)
            }
        }
    }
}

/// The parts that a run needs.
pub(crate) struct Agent<'a, A> {
    pub(crate) marketplace: Arc<CapabilityMarketplace>,
    pub(crate) model: ModelSource<'a>,
    pub(crate) tools: Tools,
    pub(crate) observer: &'a A,
    pub(crate) budget: Arc<Budget>,
    pub(crate) approve: Approve,
    /// The call that the run is part of, if any.
    pub(crate) within: Option<&'a CallContext>,
    /// The trace context of its calls, if the run is not part of a call.
    pub(crate) traceparent: Option<Arc<str>>,
    /// The timeout of one call, if it differs from that of the capability.
    pub(crate) timeout: Option<Duration>,
    pub(crate) max_result: usize,
    pub(crate) cancellation: CancellationToken,
}

impl<A: RunObserver> Agent<'_, A> {
    /// Continues until the model has answered or a limit is reached.
    ///
    /// # Errors
    ///
    /// Returns a sentence if the model cannot be reached, or if its answer is invalid.
    pub(crate) async fn drive(&self, run: &mut Run, mut approval: Approval) -> Result<End, String> {
        let mut next = run.begin();
        loop {
            next = match next {
                Next::Ask => {
                    let request = run.request(&self.tools.offered);
                    let asked = self.model.ask(request, |text| self.observer.text(text));
                    let answer = self.cancellation.run_until_cancelled(asked).await;
                    let Some(answer) = answer else { return Ok(End::Cancelled) };
                    let answer = answer?;
                    self.observer.answered(&answer);
                    run.answered(answer)
                }
                Next::Call(wanted) => {
                    let results = self.call(wanted, &mut approval).await;
                    if self.cancellation.is_cancelled() {
                        return Ok(End::Cancelled);
                    }
                    run.resulted(results)
                }
                Next::End(end) => return Ok(end),
            };
        }
    }

    /// Makes calls concurrently. Calls that need approval are approved first, one after the other.
    async fn call(&self, wanted: Vec<RequestedCall>, approval: &mut Approval) -> Vec<ToolResponse> {
        let mut calls = Vec::with_capacity(wanted.len());
        for wanted in wanted {
            self.observer.calls(&wanted.call);
            let agreed = match &wanted.input {
                Err(problem) => Err(problem.clone()),
                Ok(_) if self.is_asked_about(&wanted.call) => Ok(()),
                Ok(_) if !self.tools.needs_approval(self.approve, &wanted.call) => Ok(()),
                Ok(_) => {
                    let asked = approval.ask(&wanted.call, self.tools.name_of(&wanted.call));
                    // The person can also interrupt the run.
                    let answer = self.cancellation.run_until_cancelled(asked).await;
                    answer.unwrap_or_else(|| Err("the run was interrupted".to_owned()))
                }
            };
            calls.push((wanted, agreed));
        }
        let calling = join_all(calls.into_iter().map(|(wanted, agreed)| self.call_one(wanted, agreed)));
        match self.within {
            Some(ctx) => ctx.wait_for(calling).await,
            None => calling.await,
        }
    }

    /// Returns whether the marketplace asks a person about the call anyway (`approve` of the
    /// configuration).
    fn is_asked_about(&self, call: &ToolCall) -> bool {
        let caller = self.within.and_then(|ctx| ctx.scope.principal.as_ref());
        let target = self.tools.target(call);
        target.is_some_and(|entry| self.marketplace.approvals().concerns(caller, entry))
    }

    async fn call_one(&self, wanted: RequestedCall, agreed: Result<(), String>) -> ToolResponse {
        let began = Instant::now();
        let RequestedCall { call, input } = wanted;
        let (text, is_error) = match agreed.and(input) {
            Err(problem) => (problem, true),
            Ok(input) => {
                let name = call.fn_name.as_str();
                let mut request = match self.within {
                    Some(ctx) => Call::within(ctx, name),
                    None => Call::to(name),
                };
                if self.within.is_none() {
                    request.timeout = self.timeout;
                    request.scope.traceparent.clone_from(&self.traceparent);
                }
                request = request.with(Payload::from_json(input)).sharing(self.budget.clone());
                // As it was when it was judged.
                request.scope.catalog = Some(Arc::clone(&self.tools.catalog));
                request.scope.cancellation = self.cancellation.child_token();
                request.scope.notices = self.observer.notices(&call);
                let result = self.marketplace.call(request).await;
                (tools::result_text(&result, self.max_result), result.is_err())
            }
        };
        self.observer.call_finished(&call, &text, is_error, began.elapsed());
        let shown = if is_error { format!("error: {text}") } else { text };
        ToolResponse::from_tool_call(&call, shown)
    }
}

//! Prompt to tool execution (RFC 1 §9.1): a model answers a prompt, and calls capabilities to do so.
//!
//! # How it works
//!
//! [`Run`] decides and does nothing: it is told what the model answered and what the calls gave, and says what
//! comes next. [`Agent::drive`] carries that out: it asks the [`Model`], has a person agree to what may destroy
//! something, and makes the calls of one answer at the same time, through the marketplace as everybody's are
//! made. [`Transcript`] tells of all that while it happens.
//!
//! # Deliberately absent
//!
//! No request is repeated, and nothing is kept between runs. Prices are the user's to say: they change faster
//! than programs.

mod approval;
mod calls;
mod model;
mod run;
mod tools;
mod transcript;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use genai::chat::ToolResponse;
use orla_marketplace::{Call, CapabilityMarketplace, Payload};
use tokio_util::sync::CancellationToken;

use crate::config::agent::Approve;
pub(crate) use approval::Approval;
pub(crate) use model::Model;
pub(crate) use run::{End, Run};
use run::{Next, Wanted};
pub(crate) use tools::Tools;
pub(crate) use transcript::Transcript;

/// What a run has at its disposal.
pub(crate) struct Agent<'a> {
    pub(crate) marketplace: Arc<CapabilityMarketplace>,
    pub(crate) model: &'a Model,
    pub(crate) tools: Tools,
    pub(crate) transcript: &'a Transcript,
    pub(crate) approve: Approve,
    /// How long one call may take, if not as long as the capability says.
    pub(crate) timeout: Option<Duration>,
    pub(crate) max_result: usize,
    pub(crate) cancellation: CancellationToken,
}

impl Agent<'_> {
    /// Goes on until the model has answered or may not go on.
    ///
    /// # Errors
    /// A sentence: the model cannot be reached, or what it says makes no sense.
    pub(crate) async fn drive(&self, run: &mut Run, mut approval: Approval) -> Result<End, String> {
        let mut next = Next::Ask;
        loop {
            next = match next {
                Next::Ask => {
                    let request = run.request(&self.tools.offered);
                    let asked = self.model.ask(request, |text| self.transcript.text(text));
                    let answer = self.cancellation.run_until_cancelled(asked).await;
                    let Some(answer) = answer else { return Ok(End::Cancelled) };
                    let answer = answer?;
                    self.transcript.answered(&answer);
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

    /// Makes calls, all at the same time; first each is agreed to where that is needed, one after the other.
    async fn call(&self, wanted: Vec<Wanted>, approval: &mut Approval) -> Vec<ToolResponse> {
        let mut calls = Vec::with_capacity(wanted.len());
        for wanted in wanted {
            self.transcript.calls(&wanted.call);
            let agreed = match &wanted.input {
                Err(problem) => Err(problem.clone()),
                Ok(_) if !self.tools.needs_approval(self.approve, &wanted.call) => Ok(()),
                Ok(_) => {
                    let asked = approval.ask(&wanted.call, self.tools.name_of(&wanted.call));
                    // Whoever is asked may also interrupt.
                    let answer = self.cancellation.run_until_cancelled(asked).await;
                    answer.unwrap_or_else(|| Err("the run was interrupted".to_owned()))
                }
            };
            calls.push((wanted, agreed));
        }
        join_all(calls.into_iter().map(|(wanted, agreed)| self.call_one(wanted, agreed))).await
    }

    async fn call_one(&self, wanted: Wanted, agreed: Result<(), String>) -> ToolResponse {
        let began = Instant::now();
        let Wanted { call, input } = wanted;
        let (text, is_error) = match agreed.and(input) {
            Err(problem) => (problem, true),
            Ok(input) => {
                let mut request = Call::to(call.fn_name.as_str()).with(Payload::from_json(input));
                // As it was when it was judged.
                request.catalog = Some(Arc::clone(&self.tools.catalog));
                request.cancellation = self.cancellation.child_token();
                request.timeout = self.timeout;
                let result = self.marketplace.call(request).await;
                (tools::result_text(&result, self.max_result), result.is_err())
            }
        };
        self.transcript.gave(&call, &text, is_error, began.elapsed());
        let shown = if is_error { format!("error: {text}") } else { text };
        ToolResponse::from_tool_call(&call, shown)
    }
}

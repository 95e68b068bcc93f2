//! Runs RTFS programs beside the capabilities (RTFS capability system §4).
//!
//! # How it works
//!
//! [`rtfs::Run`] is a machine without I/O: it computes until it is done or wants something of its host.
//! [`run`] is that host, and a loop of three lines: advance the machine, begin what it asks for
//! (`host`), give it whichever answer comes first. So calls of `parallel` and `pmap` run at once,
//! and every call of a program is a call like everybody's: authorised, validated, recorded.
//!
//! # Invariants
//!
//! - A run never holds its thread for longer than [`QUOTA`] steps.
//! - When a run has ended, however it ended, none of its calls goes on: they are futures that it owns.
//! - So do its streams (`streams`): they are closed when the program is done with them, at the latest with the
//!   run.

pub mod file;
mod host;
mod streams;
mod tool;
mod trace;

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use rtfs::{Error, Event, Map, Outcome, Program, Run, Ticket, Value};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::error::seconds;
use crate::executor::{CallContext, Notice, Progress};
use crate::marketplace::CapabilityMarketplace;
use host::Host;
use streams::Streams;

pub use tool::{IDS, Language, LanguageExecutor, registrations};
pub use trace::{Trace, TraceSink};

/// Steps that a run makes before others have their turn: about a millisecond.
pub const QUOTA: u64 = 20_000;

/// A program that is to be run, with what it may use.
pub struct Job {
    /// The program.
    pub program: Arc<Program>,
    /// The values of the names that it was compiled with.
    pub inputs: Vec<(&'static str, Value)>,
    /// What it may use; its time is that of the call it is a part of.
    pub limits: rtfs::Limits,
    /// Sees every call, step and message.
    pub trace: TraceSink,
}

impl Job {
    /// A program with the default limits, that nobody watches.
    pub fn new(program: Arc<Program>) -> Self {
        Self {
            program,
            inputs: Vec::new(),
            limits: rtfs::Limits::default(),
            trace: TraceSink::default(),
        }
    }
}

/// Runs a program to its end within the call that `ctx` belongs to.
///
/// # Errors
/// What the program threw and did not catch; `limit` when it reached one, the deadline of the call
/// included; `cancelled` when its caller withdrew it.
pub async fn run(market: &CapabilityMarketplace, job: Job, ctx: &CallContext) -> Result<Value, Error> {
    let Job { program, inputs, limits, trace } = job;
    let run = Run::new(program, limits, &inputs);
    drive(market, run, &trace, ctx).await.1
}

/// Drives a run to its end, and gives it back, so that what it defined can be used by the next.
pub async fn drive(
    market: &CapabilityMarketplace,
    mut run: Run,
    trace: &TraceSink,
    ctx: &CallContext,
) -> (Run, Result<Value, Error>) {
    let streams = Streams::default();
    let host = Host { market, ctx, trace, streams: &streams };
    let mut pending = Pending::default();
    let result = loop {
        let outcome = run.advance(QUOTA);
        for event in run.events() {
            pending.take(&host, event);
        }
        match outcome {
            Outcome::Done(value) => break Ok(value),
            Outcome::Failed(error) => break Err(error),
            Outcome::Yielded => {
                if let Some(end) = ended(ctx) {
                    run.fail(end);
                }
                tokio::task::yield_now().await;
            }
            // Nobody else waits while this call does: its place is lent to those it waits for.
            Outcome::Waiting => match ctx.wait_for(pending.next(ctx)).await {
                Ok((ticket, answer)) => run.resolve(ticket, answer),
                Err(end) => run.fail(end),
            },
        }
    };
    // Calls end here, streams after it and in good order.
    let Pending { closing, .. } = pending;
    streams.close_all(closing).await;
    (run, result)
}

type Answering<'a> = BoxFuture<'a, (Ticket, Result<Value, Error>)>;

/// What a run has asked for and not been given.
#[derive(Default)]
struct Pending<'a> {
    answers: FuturesUnordered<Answering<'a>>,
    /// Streams that nobody reads any more, on their way to be closed.
    closing: FuturesUnordered<BoxFuture<'a, ()>>,
    tokens: HashMap<Ticket, CancellationToken>,
    /// Steps that have begun, for progress.
    steps: u32,
}

impl<'a> Pending<'a> {
    fn take(&mut self, host: &Host<'a>, event: Event) {
        match event {
            Event::Request { ticket, request, at } => {
                let host = *host;
                let token = host.ctx.cancellation.child_token();
                self.tokens.insert(ticket, token.clone());
                let answer = host.answer(ticket, request, at, token);
                self.answers.push(Box::pin(async move { (ticket, answer.await) }));
            }
            Event::Cancel { ticket } => {
                if let Some(token) = self.tokens.remove(&ticket) {
                    token.cancel();
                }
            }
            Event::CloseStream { stream } => {
                let streams = host.streams;
                self.closing.push(Box::pin(streams.close(stream)));
            }
            Event::Log { level, message, data } => host.log(&level, message, data),
            Event::StepBegin { name } => {
                self.steps += 1;
                host.trace.send(Trace::Step { name: name.clone() });
                let progress = f64::from(self.steps);
                host.ctx.notices.send(Notice::Progress(Progress {
                    progress,
                    total: None,
                    message: Some(name),
                }));
            }
            _ => {}
        }
    }

    /// The next answer, or why there is no time for one.
    async fn next(&mut self, ctx: &CallContext) -> Result<(Ticket, Result<Value, Error>), Error> {
        let Self { answers, closing, tokens, .. } = self;
        let answer = async {
            match answers.next().await {
                Some((ticket, answer)) => {
                    tokens.remove(&ticket);
                    (ticket, answer)
                }
                // A run that waits for nothing was promised an answer that nobody gives.
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = ctx.cancellation.cancelled() => Err(cancelled()),
            () = sleep_until(ctx.deadline) => Err(late(ctx)),
            answer = answer => Ok(answer),
            never = async {
                while closing.next().await.is_some() {}
                std::future::pending().await
            } => never,
        }
    }
}

/// Why a run has to end now, if it has to.
fn ended(ctx: &CallContext) -> Option<Error> {
    if ctx.cancellation.is_cancelled() {
        return Some(cancelled());
    }
    (Instant::now() >= ctx.deadline).then(|| late(ctx))
}

fn cancelled() -> Error {
    Error::new("cancelled", "the run was cancelled")
}

fn late(ctx: &CallContext) -> Error {
    let mut data = Map::new();
    // A map of two keywords is not deep.
    let _ = data.insert(Value::keyword("limit"), Value::keyword("time"));
    let message = format!("the run took longer than {}", seconds(ctx.timeout));
    Error::new("limit", message).with_data(Value::Map(data))
}

#[cfg(test)]
mod tests;

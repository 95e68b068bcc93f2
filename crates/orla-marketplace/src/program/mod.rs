//! Runs RTFS programs beside the capabilities (RTFS capability system §4).
//!
//! # How it works
//!
//! [`rtfs::Run`] is a machine without I/O: it computes until it is done or needs its host. [`run`] is that host, a
//! loop of three lines: advance the machine, start its requests (`host`), and pass it the first answer. So the
//! calls of `parallel` and `pmap` run at once, and every call of a program is a call like any other: authorised,
//! validated, recorded.
//!
//! # Invariants
//!
//! - A run never holds its thread for longer than [`QUOTA`] steps.
//! - When a run ends, for whatever reason, all of its calls end: they are futures that it owns.
//! - So do its streams (`streams`): they are closed when the program is done with them, at the latest with the
//!   run.

mod check;
mod compiler;
pub mod file;
mod host;
mod progress;
mod streams;
mod tool;

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use rtfs::{Error, Event, Map, Outcome, Program, Request, Run, Ticket, Value};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::call::CallContext;
use crate::error::seconds;
use crate::marketplace::CapabilityMarketplace;
use host::Host;
use progress::{Reporter, SILENCE};
use streams::Streams;

pub use crate::provider::Language;
pub use crate::trace::{Trace, TraceSink};
pub use check::Served;
pub use tool::{IDS, LanguageExecutor, described, registrations};

/// Steps that a run makes before others have their turn: about a millisecond.
pub const QUOTA: u64 = 20_000;

/// A program to run, and what it may use.
pub struct Job {
    /// The program.
    pub program: Arc<Program>,
    /// The values of the names that it was compiled with.
    pub inputs: Vec<(&'static str, Value)>,
    /// What it may use. Its time is that of the call it belongs to.
    pub limits: rtfs::Limits,
    /// Sees every call, step and message.
    pub trace: TraceSink,
}

impl Job {
    /// A program with the default limits and without an observer.
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

/// Drives a run to its end and returns it, so that the next run can use its definitions.
pub async fn drive(
    market: &CapabilityMarketplace,
    mut run: Run,
    trace: &TraceSink,
    ctx: &CallContext,
) -> (Run, Result<Value, Error>) {
    let (reporter, streams) = (Reporter::new(&ctx.scope.notices), Streams::default());
    let host = Host { market, ctx, trace, streams: &streams, reporter: &reporter };
    let mut pending = Pending::default();
    let mut memory = match market.memory().reserve(run.memory()) {
        Ok(memory) => memory,
        Err(over) => return (run, Err(Error::new("busy", over.to_string()))),
    };
    let result = loop {
        let outcome = run.advance(QUOTA);
        let refused = memory.resize(run.memory()).err();
        for event in run.events() {
            pending.take(&host, event);
        }
        match (outcome, refused) {
            (Outcome::Done(value), _) => break Ok(value),
            (Outcome::Failed(error), _) => break Err(error),
            (_, Some(over)) => run.fail(Error::new("busy", over.to_string())),
            (Outcome::Yielded, None) => {
                if let Some(end) = ended(ctx) {
                    run.fail(end);
                }
                reporter.idle(|| "computing".to_owned());
                tokio::task::yield_now().await;
            }
            // The call's permit is lent to the calls that it waits for, so that they need not wait for it.
            (Outcome::Waiting, None) => match ctx.wait_for(pending.next(&host)).await {
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

/// The requests of a run without an answer.
#[derive(Default)]
struct Pending<'a> {
    answers: FuturesUnordered<Answering<'a>>,
    /// Streams that are no longer read and are being closed.
    closing: FuturesUnordered<BoxFuture<'a, ()>>,
    /// What cancels each, and what it is.
    asked: HashMap<Ticket, (CancellationToken, String)>,
}

impl<'a> Pending<'a> {
    fn take(&mut self, host: &Host<'a>, event: Event) {
        match event {
            Event::Request { ticket, request, at } => {
                let host = *host;
                let token = host.ctx.scope.cancellation.child_token();
                let what = match &request {
                    Request::Call { id, .. } | Request::Open { id, .. } => id.to_string(),
                    _ => "the host".to_owned(),
                };
                self.asked.insert(ticket, (token.clone(), what));
                let answer = host.answer(ticket, request, at, token);
                self.answers.push(Box::pin(async move { (ticket, answer.await) }));
            }
            Event::Cancel { ticket } => {
                if let Some((token, _)) = self.asked.remove(&ticket) {
                    token.cancel();
                }
            }
            Event::CloseStream { stream } => {
                let streams = host.streams;
                self.closing.push(Box::pin(streams.close(stream)));
            }
            Event::Log { level, message, data } => host.log(&level, message, data),
            Event::StepBegin { name } => {
                host.reporter.step(&name);
                host.trace.send(Trace::Step { name });
            }
            _ => {}
        }
    }

    /// The next answer, or why there is no time for one.
    async fn next(&mut self, host: &Host<'_>) -> Result<(Ticket, Result<Value, Error>), Error> {
        let ctx = host.ctx;
        loop {
            let Self { answers, closing, .. } = self;
            let answer = async {
                match answers.next().await {
                    Some(answer) => answer,
                    // A run that waits although no answer is on its way would wait forever.
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = ctx.scope.cancellation.cancelled() => return Err(cancelled()),
                () = ctx.expired() => return Err(late(ctx)),
                (ticket, answer) = answer => {
                    self.asked.remove(&ticket);
                    return Ok((ticket, answer));
                }
                never = async {
                    while closing.next().await.is_some() {}
                    std::future::pending().await
                } => return never,
                () = sleep(SILENCE) => host.reporter.idle(|| self.waiting_for()),
            }
        }
    }

    fn waiting_for(&self) -> String {
        let mut names: Vec<&str> = self.asked.values().map(|(_, what)| what.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let shown = names.iter().take(3).copied().collect::<Vec<_>>().join(", ");
        let more = if names.len() > 3 { " …" } else { "" };
        format!("waiting for {shown}{more}")
    }
}

/// Why a run must end now, if it must.
fn ended(ctx: &CallContext) -> Option<Error> {
    if ctx.scope.cancellation.is_cancelled() {
        return Some(cancelled());
    }
    ctx.is_late().then(|| late(ctx))
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

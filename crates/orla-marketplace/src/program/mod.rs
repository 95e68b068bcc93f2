//! Runs RTFS programs with the capabilities (RTFS capability system §4).
//!
//! # How it works
//!
//! [`rtfs::Run`] is a machine without I/O: it computes until it is done or needs its host. [`run`] is
//! that host, a loop of three steps: advance the machine, start its requests (`host`), and pass it the
//! first answer. The calls of `parallel` and `pmap` therefore run concurrently, and every call of a
//! program is authorised, validated and recorded like any other.
//!
//! A run with a [`Journal`] is durable: another process can continue it (`restore`).
//!
//! # Invariants
//!
//! - A run with a journal repeats no call that has an answer in the journal, and no call that may have
//!   been made and is not idempotent.
//! - A run never holds its thread for longer than [`QUOTA`] steps.
//! - A run ends when its time is over, and no handler of its program runs. Later answers, and answers
//!   that report the timeout, are dropped.
//! - When a run ends, for any reason, all of its calls end: they are futures that it owns.
//! - Its streams (`streams`) are closed when the program no longer uses them, and at the latest
//!   with the run.

mod check;
mod checkpoint;
mod compiler;
pub mod complete;
pub mod file;
mod host;
mod progress;
mod restore;
mod streams;
mod tool;

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use rtfs::{Error, Event, Map, Outcome, Position, Program, Request, Run, Scope, Ticket, Value, Wait};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::call::CallContext;
use crate::error::seconds;
use crate::marketplace::CapabilityMarketplace;
use host::Host;
use progress::{Reporter, SILENCE};
use restore::{Restored, restore};
use streams::Streams;

pub use crate::journal::{Action, BegunCall, Journal, JournalContents, RunRequest};
pub use crate::provider::Language;
pub use crate::trace::{Trace, TraceSink};
pub use check::Served;
pub use host::until;
pub use tool::{IDS, LanguageExecutor, check_syntax, described, registrations};

/// How long a run with only long waits (timers, events or other tasks) stays in memory.
const SUSPEND_AFTER: Duration = Duration::from_millis(20);

/// Tolerance for timeouts: calls have at most the time of their run, but their providers may round it
/// down.
const LEEWAY: Duration = Duration::from_millis(20);

/// The number of steps that a run makes before other tasks run: about a millisecond.
pub const QUOTA: u64 = 20_000;

/// A program to run, with its settings.
pub struct Job {
    /// The program.
    pub program: Arc<Program>,
    /// The values of the names that it was compiled with.
    pub inputs: Vec<(&'static str, Value)>,
    /// The function that is called when the program is done, and its arguments. Without one, the result
    /// is the value of the program.
    pub then: Option<(&'static str, Vec<Value>)>,
    /// The limits. The time limit is that of the call that the run belongs to.
    pub limits: rtfs::Limits,
    /// Receives every call, step and message.
    pub trace: TraceSink,
}

impl Job {
    /// Creates a job with the default limits and without an observer.
    pub fn new(program: Arc<Program>) -> Self {
        Self {
            program,
            inputs: Vec::new(),
            then: None,
            limits: rtfs::Limits::default(),
            trace: TraceSink::default(),
        }
    }
}

/// Runs a program to its end within the call that `ctx` belongs to.
///
/// # Errors
/// An error that the program did not catch; `limit` if it reached a limit or the deadline of the
/// call; `cancelled` if its caller withdrew it.
pub async fn run(market: &CapabilityMarketplace, job: Job, ctx: &CallContext) -> Result<Value, Error> {
    let Job { program, inputs, then, limits, trace } = job;
    let mut run = Run::new(program, limits, &inputs);
    if let Some((name, args)) = then {
        run = run.then(name, args);
    }
    drive(market, run, &trace, ctx).await.1
}

/// Drives a run to its end and returns it, so that the next run can use its definitions. If the call has
/// a [`Journal`], the run continues where its journal ends, and it may end with
/// [`Journal::is_suspended`].
pub async fn drive(
    market: &CapabilityMarketplace,
    mut run: Run,
    trace: &TraceSink,
    ctx: &CallContext,
) -> (Run, Result<Value, Error>) {
    let (reporter, streams) = (Reporter::new(&ctx.scope.notices), Streams::default());
    let catalog = ctx.scope.catalog.clone().unwrap_or_else(|| market.snapshot());
    let host = Host { market, ctx, catalog: &catalog, trace, streams: &streams, reporter: &reporter };
    let journal = ctx.scope.journal.as_deref();
    let mut pending = Pending::default();
    if let Some(journal) = journal
        && let Err(error) = pending.recall(&host, journal, &mut run).await
    {
        return (run, Err(error));
    }
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
                if let Some(end) = end_reason(ctx) {
                    run.fail(end);
                }
                reporter.idle(|| "computing".to_owned());
                tokio::task::yield_now().await;
            }
            (Outcome::Waiting, None) => {
                let may_suspend =
                    journal.is_some() && pending.has_long_waits_alone() && !run.has_streams();
                // The call lends its permit to the nested calls that it waits for, so that they need not
                // wait for it.
                match (ctx.wait_for(pending.next(&host, may_suspend)).await, journal) {
                    (Next::Answer { ticket, answer, journaled }, journal) => {
                        let noted = record_answer(journal, journaled, &run, &answer);
                        run.resolve(ticket, answer);
                        noted.unwrap_or_else(|error| run.fail(error));
                    }
                    (Next::Nothing, Some(journal)) => {
                        match suspend(journal, &run, pending.waits()).await {
                            Ok(true) => break Err(Error::new("suspended", "the run continues later")),
                            Ok(false) => {}
                            Err(error) => run.fail(error),
                        }
                    }
                    (Next::Nothing, None) => {}
                    (Next::End(end), _) => run.fail(end),
                }
            }
        }
    };
    // Calls end here; streams end afterwards and gracefully.
    let Pending { closing, .. } = pending;
    streams.close_all(closing).await;
    (run, result)
}

/// Records an answer in the journal, if there is one and the run still wants the answer.
fn record_answer(
    journal: Option<&dyn Journal>,
    journaled: Option<RunRequest>,
    run: &Run,
    answer: &Result<Value, Error>,
) -> Result<(), Error> {
    let (Some(journal), Some(journaled)) = (journal, journaled) else { return Ok(()) };
    // Earlier answers and this state are all that the run needs. An open stream cannot be saved.
    if journal.is_long() && !run.has_streams() {
        journal.save(save_state(run)?)?;
    }
    let failed = answer.as_ref().err().map(|error| &*error.kind);
    journal.record_answer(&journaled, run.write_answer(answer), failed)
}

/// Saves a run that has only long waits, so that it can be dropped.
async fn suspend(
    journal: &dyn Journal,
    run: &Run,
    waits: Vec<(RunRequest, Wait)>,
) -> Result<bool, Error> {
    journal.suspend(save_state(run)?, waits).await
}

fn save_state(run: &Run) -> Result<Vec<u8>, Error> {
    run.save().map_err(|unsaved| Error::new("failed", unsaved.to_string()))
}

type Answering<'a> = BoxFuture<'a, (Ticket, Result<Value, Error>)>;

/// The requests of a run without an answer.
#[derive(Default)]
struct Pending<'a> {
    answers: FuturesUnordered<Answering<'a>>,
    /// Streams that are no longer read and are being closed.
    closing: FuturesUnordered<BoxFuture<'a, ()>>,
    /// The open requests.
    requests: HashMap<Ticket, OpenRequest>,
}

/// A request without an answer.
struct OpenRequest {
    /// Cancels the request.
    token: CancellationToken,
    /// A description for users.
    what: String,
    /// Its entry in the journal.
    journaled: Option<RunRequest>,
    /// The wait, if the request is one.
    wait: Option<Wait>,
}

/// The next event of a waiting run.
enum Next {
    /// An answer. `journaled` is `None` if there is no journal, or if the answer is no longer wanted.
    Answer { ticket: Ticket, answer: Result<Value, Error>, journaled: Option<RunRequest> },
    /// Nothing happened for a while.
    Nothing,
    /// The run must not wait longer.
    End(Error),
}

impl<'a> Pending<'a> {
    /// Restores a new run from its journal, with its open requests.
    async fn recall(
        &mut self,
        host: &Host<'a>,
        journal: &dyn Journal,
        run: &mut Run,
    ) -> Result<(), Error> {
        let Restored { open, mut interrupted, repeated, withdrawn, lost } =
            restore(run, journal.recall().await?).await?;
        host.streams.mark_lost(lost);
        withdrawn.into_iter().for_each(|ticket| journal.record_withdrawal(ticket));
        for event in open {
            if let Event::Request { ticket, request, .. } = &event
                && repeated.contains(ticket)
                && !host.may_repeat(request).await
            {
                interrupted.insert(*ticket);
            }
            match event {
                Event::Request { ticket, request, at, scope } if interrupted.contains(&ticket) => {
                    self.open(host, ticket, &request, (at, scope));
                    let error = interruption(&request);
                    self.answers.push(Box::pin(async move { (ticket, Err(error)) }));
                }
                event => self.take(host, event),
            }
        }
        Ok(())
    }

    fn take(&mut self, host: &Host<'a>, event: Event) {
        match event {
            Event::Request { ticket, request, at, scope } => {
                let host = *host;
                let (token, journaled) = self.open(&host, ticket, &request, (at, scope));
                // The future of the answer is large. It is made where it stays.
                self.answers.push(Box::pin(async move {
                    (ticket, host.answer(ticket, request, at, journaled, token).await)
                }));
            }
            Event::Cancel { ticket } => {
                if let Some(open) = self.requests.remove(&ticket) {
                    open.token.cancel();
                    if let Some(journal) = &host.ctx.scope.journal {
                        journal.record_withdrawal(ticket);
                    }
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

    /// Adds a request. Returns the token that cancels it, and its entry in the journal.
    fn open(
        &mut self,
        host: &Host<'_>,
        ticket: Ticket,
        request: &Request,
        (at, scope): (Option<Position>, Option<Arc<Scope>>),
    ) -> (CancellationToken, Option<RunRequest>) {
        let token = host.ctx.scope.cancellation.child_token();
        let what = match request {
            Request::Call { id, .. } | Request::Open { id, .. } => id.to_string(),
            _ => "the host".to_owned(),
        };
        let journal = host.ctx.scope.journal.as_deref();
        let journaled = journal.map(|_| RunRequest::of(ticket, request, at, scope));
        let wait = match request {
            Request::Wait(wait) => Some(wait.clone()),
            _ => None,
        };
        if let (Some(journal), Some(journaled), Some(_)) = (journal, &journaled, &wait) {
            journal.record_wait(journaled);
        }
        self.requests.insert(
            ticket,
            OpenRequest { token: token.clone(), what, journaled: journaled.clone(), wait },
        );
        (token, journaled)
    }

    /// Returns the next answer, or why there is no time for one. Returns `Nothing` only if the run
    /// `may_suspend`.
    async fn next(&mut self, host: &Host<'_>, may_suspend: bool) -> Next {
        let ctx = host.ctx;
        loop {
            let Self { answers, closing, .. } = self;
            // A run that is over takes no answer: the branches below end it. A run without a pending answer waits for them too.
            let answer = poll_fn(|cx| match end_reason(ctx) {
                Some(_) => Poll::Pending,
                None => match ready!(answers.poll_next_unpin(cx)) {
                    Some(answer) => Poll::Ready(answer),
                    None => Poll::Pending,
                },
            });
            tokio::select! {
                biased;
                // First, because an answer that is there needs no timer.
                (ticket, answer) = answer => {
                    // The call may have been cancelled with the run. Such an answer is not kept.
                    if let Some(end) = end_reason(ctx) {
                        return Next::End(end);
                    }
                    // A timeout is not an answer: the run is about to end.
                    if ctx.expires_within(LEEWAY) && answer.as_ref().is_err_and(is_timeout) {
                        continue;
                    }
                    let journaled = self.requests.remove(&ticket).and_then(|open| open.journaled);
                    return Next::Answer { ticket, answer, journaled };
                }
                () = ctx.scope.cancellation.cancelled() => return Next::End(cancelled()),
                () = ctx.expired() => return Next::End(timeout_error(ctx)),
                never = async {
                    while closing.next().await.is_some() {}
                    std::future::pending().await
                } => return never,
                () = sleep(SUSPEND_AFTER), if may_suspend => return Next::Nothing,
                () = sleep(SILENCE) => host.reporter.idle(|| self.waiting_for()),
            }
        }
    }

    /// Returns whether all waits are long: timers, events or other tasks.
    fn has_long_waits_alone(&self) -> bool {
        self.closing.is_empty() && self.requests.values().all(|open| open.wait.is_some())
    }

    /// Returns the waits, in the order of the tickets.
    fn waits(&self) -> Vec<(RunRequest, Wait)> {
        let waits = self.requests.values();
        let mut waits: Vec<_> =
            waits.filter_map(|open| Some((open.journaled.clone()?, open.wait.clone()?))).collect();
        waits.sort_unstable_by_key(|(journaled, _)| journaled.ticket);
        waits
    }

    fn waiting_for(&self) -> String {
        let mut names: Vec<&str> = self.requests.values().map(|open| open.what.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let shown = names.iter().take(3).copied().collect::<Vec<_>>().join(", ");
        let more = if names.len() > 3 { " …" } else { "" };
        format!("waiting for {shown}{more}")
    }
}

/// Returns why a run must end now, if it must.
fn end_reason(ctx: &CallContext) -> Option<Error> {
    if ctx.scope.cancellation.is_cancelled() {
        return Some(cancelled());
    }
    ctx.is_late().then(|| timeout_error(ctx))
}

/// Returns the error of a call that may have been made by an earlier process.
fn interruption(request: &Request) -> Error {
    let id = match request {
        Request::Call { id, .. } | Request::Open { id, .. } => id.as_str(),
        _ => "",
    };
    let message = format!(
        "the server ended while {id} ran; nothing says whether it was done, and it may not be done twice"
    );
    Error::new("interrupted", message).with_capability(id)
}

fn cancelled() -> Error {
    Error::new("cancelled", "the run was cancelled")
}

/// Returns whether the error is a timeout of a call or of a run.
pub fn is_timeout(error: &Error) -> bool {
    match (&*error.kind, &error.data) {
        ("timeout", _) => true,
        // An error of a program, here or at another instance, where keywords have become strings.
        ("limit", Value::Map(data)) => {
            let limit = data.get(&Value::keyword("limit"));
            limit.is_some_and(|limit| [Value::keyword("time"), "time".into()].contains(limit))
        }
        _ => false,
    }
}

fn timeout_error(ctx: &CallContext) -> Error {
    let mut data = Map::new();
    // A map of two keywords is not deep.
    let _ = data.insert(Value::keyword("limit"), Value::keyword("time"));
    let message = format!("the run took longer than {}", seconds(ctx.timeout));
    Error::new("limit", message).with_data(Value::Map(data))
}

#[cfg(test)]
mod journal_tests;
#[cfg(test)]
mod tests;

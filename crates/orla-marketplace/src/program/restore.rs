//! Restores a run from its journal.

use std::collections::{BTreeMap, HashSet};

use rtfs::{Error, Event, InvalidRun, Outcome, Request, Run, Ticket};

use super::QUOTA;
use crate::journal::{BegunCall, JournalContents};

/// Further information about a restored run.
pub(super) struct Restored {
    /// Its requests without an answer, in the order of the tickets.
    pub(super) open: Vec<Event>,
    /// The open calls that must not be repeated, because they may have been made.
    pub(super) interrupted: HashSet<Ticket>,
    /// The open calls that may have been made, and were repeatable when they began.
    pub(super) repeated: HashSet<Ticket>,
    /// The requests that the run has withdrawn.
    pub(super) withdrawn: HashSet<Ticket>,
    /// The streams that the run has opened. They ended with the process that had them open.
    pub(super) lost: HashSet<Ticket>,
}

/// The requests of a run.
#[derive(Default)]
struct Requests {
    open: BTreeMap<Ticket, Event>,
    withdrawn: HashSet<Ticket>,
}

impl Requests {
    /// Returns whether a ticket may be that of a call without an answer.
    fn is_call(&self, ticket: Ticket) -> bool {
        let Some(Event::Request { request, .. }) = self.open.get(&ticket) else {
            return self.withdrawn.contains(&ticket);
        };
        matches!(request, Request::Call { .. } | Request::Open { .. })
    }
}

/// Restores a new run to the end of its journal.
///
/// A journal that does not match the program is refused: the run then fails, and no call is made.
///
/// # Errors
/// What does not fit.
pub(super) async fn restore(run: &mut Run, past: JournalContents) -> Result<Restored, Error> {
    let JournalContents { state, answers, begun } = past;
    run.keep_requests();
    if let Some(state) = state {
        *run =
            Run::load(run.program().clone(), run.limits(), &state).map_err(|error| unusable(&error))?;
    }
    let mut requests = Requests::default();
    let mut lost = HashSet::new();
    for (ticket, answer) in answers {
        if !run_until_waiting(run, &mut requests).await? {
            return Err(mismatch("it continues after the end of the program"));
        }
        match requests.open.remove(&ticket) {
            None => {
                return Err(mismatch("it has an answer to something that the program did not ask for"));
            }
            Some(Event::Request { request: Request::Open { .. }, .. }) => {
                lost.insert(ticket);
            }
            Some(_) => {}
        }
        let answer = run.read_answer(&answer).map_err(|error| unusable(&error))?;
        run.resolve(ticket, answer);
    }
    if !begun.is_empty() {
        // These requests followed the last answer. If that answer ended the program, no request is open
        // any more.
        run_until_waiting(run, &mut requests).await?;
    }
    if !begun.iter().all(|begun| requests.is_call(begun.ticket)) {
        return Err(mismatch("it has a call that the program did not make"));
    }
    let (repeated, interrupted): (Vec<_>, Vec<_>) =
        begun.into_iter().partition(|begun| begun.is_idempotent);
    let tickets = |calls: Vec<BegunCall>| calls.into_iter().map(|begun| begun.ticket).collect();
    Ok(Restored {
        open: requests.open.into_values().collect(),
        interrupted: tickets(interrupted),
        repeated: tickets(repeated),
        withdrawn: requests.withdrawn,
        lost,
    })
}

/// Advances the run until it waits, and collects its requests. Returns `false` if it has ended.
async fn run_until_waiting(run: &mut Run, requests: &mut Requests) -> Result<bool, Error> {
    loop {
        let outcome = run.advance(QUOTA);
        for event in run.events() {
            match event {
                Event::Request { ticket, .. } => {
                    requests.open.insert(ticket, event);
                }
                Event::Cancel { ticket } => {
                    requests.open.remove(&ticket);
                    requests.withdrawn.insert(ticket);
                }
                // This event was reported when it happened.
                _ => {}
            }
        }
        match outcome {
            Outcome::Waiting => return Ok(true),
            Outcome::Yielded => tokio::task::yield_now().await,
            Outcome::Done(_) | Outcome::Failed(_) => return Ok(false),
        }
    }
}

fn unusable(error: &InvalidRun) -> Error {
    mismatch(&error.to_string())
}

fn mismatch(why: &str) -> Error {
    let message =
        format!("the run cannot be resumed: its records do not fit the program: {why}; start it again");
    Error::new("not-resumable", message)
}

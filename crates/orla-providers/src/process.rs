//! Errors of supervised processes, as providers report them.

use orla_mcp::{Ending, Fault};
use orla_process::supervisor::{NoResponse, Refusal};

/// Why a request got no response.
pub(crate) fn ending(problem: NoResponse) -> Ending {
    match problem {
        NoResponse::Stopped => Ending::Fault(Fault::Gone("it was stopped".to_owned())),
        NoResponse::Cancelled => Ending::Cancelled,
        NoResponse::TimedOut { not_ready, .. } => Ending::TimedOut { not_ready, wrong_answer: None },
    }
}

/// Why a process did not get a request.
pub(crate) fn fault(refusal: Refusal) -> Fault {
    match refusal {
        Refusal::Unavailable(reason) => Fault::Gone(reason),
        Refusal::Busy { sent, waiting } => Fault::Busy { sent, waiting },
    }
}

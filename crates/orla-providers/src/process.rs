//! Converts errors of supervised processes to errors of providers.

use orla_marketplace::CallContext;
use orla_mcp::{Ending, Failure, Fault};
use orla_process::supervisor::{NoResponse, Refusal, Service, Supervised};

/// Waits until a process [is current](Supervised::is_current).
///
/// # Errors
/// The call's time is over, or it was cancelled.
pub(crate) async fn settle<S: Service>(
    process: &Supervised<S>,
    ctx: &CallContext,
) -> Result<(), Ending> {
    process.wait_until_current(ctx.deadline, &ctx.scope.cancellation).await.map_err(ending)
}

/// Converts the reason why a request got no response.
pub(crate) fn ending(problem: NoResponse) -> Ending {
    match problem {
        NoResponse::Stopped => Ending::Fault(Fault::Unavailable("it was stopped".to_owned())),
        NoResponse::Cancelled => Ending::Cancelled,
        NoResponse::Busy { waiting } => Ending::Fault(Fault::Busy { sent: 0, waiting }),
        NoResponse::TimedOut { not_ready, .. } => Ending::TimedOut { not_ready, wrong_answer: None },
    }
}

/// Converts the reason why a process did not get a request.
pub(crate) fn fault(refusal: Refusal) -> Fault {
    match refusal {
        Refusal::Unavailable(reason) => Fault::Unavailable(reason),
        // The fault is not temporary: a repeated call would have the same input, which was checked
        // against the earlier description.
        Refusal::Changed => Fault::Failed(Failure {
            kind: "changed".to_owned(),
            message: "what it says of itself changed while the call waited; call it again".to_owned(),
            whole: None,
        }),
        Refusal::Busy { sent, waiting } => Fault::Busy { sent, waiting },
    }
}

//! The calls that wait for an approval at this node, and the callers that may answer here.

use orla_marketplace::{AnswerError, MayAnswer, Principal};

use crate::state::Core;
use crate::waiting::ApprovalRequest;

/// The permission to see and answer the questions of rules that name no approvers.
const ANSWER: &str = "approvals:answer";

/// Returns which questions the policy lets this caller answer. If there are several callers, an
/// identified caller may not approve its own calls. Otherwise the program that made the call could
/// approve it with the caller's credential, without a person.
fn may_answer(core: &Core, principal: Option<&Principal>, has_others: bool) -> MayAnswer {
    match core.market.snapshot().permits_part(principal, "approvals", ANSWER) {
        false => MayAnswer::None,
        true if principal.is_some() && has_others => MayAnswer::OfOthers,
        true => MayAnswer::All,
    }
}

/// Returns whether this server has several callers.
pub(super) fn has_others(core: &Core) -> bool {
    core.tls.asks_clients() || core.settings.load().auth.has_several_callers()
}

/// Returns the waiting calls that a caller may see. `has_others` says that there are several callers,
/// here or at the caller's node.
pub(super) fn waiting(
    core: &Core,
    principal: Option<&Principal>,
    has_others: bool,
) -> Vec<ApprovalRequest> {
    let may_answer = may_answer(core, principal, has_others);
    let pending = core.market.approvals().pending(principal, may_answer);
    let secrets = core.market.redaction();
    pending.into_iter().map(|one| ApprovalRequest::local(one, &secrets)).collect()
}

/// Answers the question about a call that waits here.
///
/// # Errors
///
/// Returns an error if there is no such question, or the caller may not answer it.
pub(super) fn decide(
    core: &Core,
    principal: Option<&Principal>,
    has_others: bool,
    id: &str,
    approve: bool,
) -> Result<(), AnswerError> {
    let may_answer = may_answer(core, principal, has_others);
    core.market.approvals().answer(id, principal, may_answer, approve)
}

//! What other nodes of the cluster ask this one: the first word says which part of the server answers.

use bytes::Bytes;
use orla_marketplace::Principal;

use crate::admin::approvals::elsewhere;
use crate::state::Core;

/// Answers a question in the name of this caller. What cannot be read has an empty answer.
pub(crate) fn answer(core: &Core, caller: Option<&Principal>, question: &Bytes) -> Bytes {
    let end = question.iter().position(|byte| *byte == b' ').unwrap_or(question.len());
    let rest = question.slice((end + 1).min(question.len())..);
    match &question[..end] {
        elsewhere::WORD => elsewhere::answer(core, caller, &rest),
        _ => Bytes::new(),
    }
}

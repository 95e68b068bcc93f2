//! What other nodes of the cluster ask this one: the first word says which part of the server answers.

use std::sync::Arc;

use bytes::Bytes;
use orla_marketplace::Principal;

use crate::admin::approvals::elsewhere as approvals;
use crate::mcp::session::elsewhere as sessions;
use crate::state::Core;

/// Answers a question in the name of this caller. What cannot be read has an empty answer.
pub(crate) async fn answer(core: &Arc<Core>, caller: Option<&Principal>, question: &Bytes) -> Bytes {
    let end = question.iter().position(|byte| *byte == b' ').unwrap_or(question.len());
    let rest = question.slice((end + 1).min(question.len())..);
    match &question[..end] {
        approvals::WORD => approvals::answer(core, caller, &rest),
        sessions::WORD => sessions::answer(core, caller, &rest).await,
        _ => Bytes::new(),
    }
}

//! Questions of other nodes of the cluster to this one. The first word selects the part of the server
//! that answers.

use std::sync::Arc;

use bytes::Bytes;
use orla_marketplace::Principal;

use crate::admin::approvals::other_nodes as approvals;
use crate::mcp::dispatch::pending::other_nodes as pending;
use crate::mcp::session::other_nodes as sessions;
use crate::state::Core;
use crate::tasks::other_nodes as tasks;

/// Answers a question in the name of this caller. The answer to an unreadable question is empty.
pub(crate) async fn answer(core: &Arc<Core>, caller: Option<&Principal>, question: &Bytes) -> Bytes {
    let end = question.iter().position(|byte| *byte == b' ').unwrap_or(question.len());
    let rest = question.slice((end + 1).min(question.len())..);
    match &question[..end] {
        approvals::WORD => approvals::answer(core, caller, &rest),
        pending::WORD => pending::answer(core, caller, &rest).await,
        sessions::WORD => sessions::answer(core, caller, &rest).await,
        tasks::WORD => tasks::answer(core, caller, &rest).await,
        _ => Bytes::new(),
    }
}

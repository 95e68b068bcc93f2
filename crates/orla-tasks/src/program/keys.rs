//! The keys of a durable program, below those of its task.
//!
//! | key | value |
//! |---|---|
//! | `run/ID/state` | the last saved state |
//! | `run/ID/note/NUMBER` | notes since the state |
//! | `run/ID/trail/NUMBER` | the timeline of the run before the state, for people |
//! | `run/ID/used` | how many milliseconds the run had run when it fell asleep; only written by older versions, whose states lack it |
//! | `run/ID/holder` | in a cluster: the life of the node that continues the run; every change of the run rewrites it |
//! | `awaited/TASK/ID` | empty: the task ID waits for the end of TASK |

use crate::keys::run;
pub(super) use crate::keys::{state, used};
use crate::task::TaskId;

/// The prefix of the rows of awaited tasks.
pub(crate) const AWAITED: &str = "awaited/";

pub(super) fn all_notes(id: &TaskId) -> String {
    format!("{}note/", run(id))
}

pub(super) fn notes(id: &TaskId, number: u64) -> String {
    format!("{}{number:016}", all_notes(id))
}

pub(super) fn all_trail(id: &TaskId) -> String {
    format!("{}trail/", run(id))
}

pub(super) fn trail(id: &TaskId, number: u64) -> String {
    format!("{}{number:016}", all_trail(id))
}

/// Returns the number at the end of a key.
pub(super) fn number(key: &str) -> Option<u64> {
    key.rsplit_once('/')?.1.parse().ok()
}

/// Returns the prefix of the tasks that wait for a task.
pub(crate) fn all_awaiting(id: &TaskId) -> String {
    format!("{AWAITED}{id}/")
}

pub(crate) fn awaiting(awaited: &TaskId, by: &TaskId) -> String {
    format!("{}{by}", all_awaiting(awaited))
}

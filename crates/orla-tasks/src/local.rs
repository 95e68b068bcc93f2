//! The tasks that wait or run in this process. No I/O.
//!
//! The set contains a task at most once, so a task is counted as unfinished until it is uncounted exactly
//! once. Code that wakes a task first adds it to this set, and then reads the row that says whether the task
//! sleeps. A task that is absent is therefore asleep. It is uncounted by the code that cancels a sleeping
//! task, or else by the code that removes the task from this set.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::keys::OwnerKey;
use crate::task::TaskId;

/// The tasks that wait or run in this process.
#[derive(Default)]
pub(crate) struct LocalTasks(Mutex<HashMap<TaskId, NextStep>>);

/// What follows when a task of this set falls asleep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// The task sleeps, and has left the set.
    Sleep,
    /// The task begins again, because it was woken in the meantime.
    Restart,
    /// The task of this caller was cancelled in the meantime and has left the set. It is uncounted.
    UncountUnfinished(OwnerKey),
}

impl LocalTasks {
    /// Adds a task that is about to begin. Returns `false` if the set already contains it; it then
    /// begins again if it falls asleep.
    pub(crate) fn add(&self, id: &TaskId) -> bool {
        let mut all = self.0.lock();
        let Some(then) = all.get_mut(id) else {
            all.insert(id.clone(), NextStep::Sleep);
            return true;
        };
        if *then == NextStep::Sleep {
            *then = NextStep::Restart;
        }
        false
    }

    /// Removes a task that is over or that another node runs. Returns `false` if the set did not contain
    /// it.
    pub(crate) fn remove(&self, id: &TaskId) -> bool {
        self.0.lock().remove(id).is_some()
    }

    /// Removes a task whose run fell asleep, unless it begins again.
    pub(crate) fn fall_asleep(&self, id: &TaskId) -> NextStep {
        let mut all = self.0.lock();
        let then = all.remove(id).unwrap_or(NextStep::Sleep);
        if then == NextStep::Restart {
            all.insert(id.clone(), NextStep::Sleep);
        }
        then
    }

    /// Notes that a task of this caller was cancelled. Returns `false` if the set does not contain it.
    /// Otherwise it is uncounted when it leaves the set.
    pub(crate) fn mark_cancelled(&self, id: &TaskId, owner: &OwnerKey) -> bool {
        self.0
            .lock()
            .get_mut(id)
            .map(|then| *then = NextStep::UncountUnfinished(owner.clone()))
            .is_some()
    }

    pub(crate) fn contains(&self, id: &TaskId) -> bool {
        self.0.lock().contains_key(id)
    }
}

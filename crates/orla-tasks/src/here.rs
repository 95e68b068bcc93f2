//! The tasks that wait or run in this process. No I/O.
//!
//! A task is here at most once, so its place among the unfinished ones is given back exactly once. Code that wakes a task adds
//! it here first, and then reads the row that says whether the task sleeps. A task that is not here is therefore asleep.
//! Whoever cancels a sleeping task gives its place back; otherwise whoever removes the task from here does.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::keys::OwnerKey;
use crate::task::TaskId;

/// The tasks that wait or run in this process.
#[derive(Default)]
pub(crate) struct Here(Mutex<HashMap<TaskId, Then>>);

/// What is to be done when a task that is here falls asleep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// It sleeps, and is here no more.
    Sleeps,
    /// It begins again: it was woken meanwhile.
    Begins,
    /// It gives back its place, which is one of this caller: it was cancelled meanwhile, and is here no more.
    GivesBack(OwnerKey),
}

impl Here {
    /// Adds a task that is to begin. `false` if it is here already: it begins again if it falls asleep.
    pub(crate) fn add(&self, id: &TaskId) -> bool {
        let mut all = self.0.lock();
        let Some(then) = all.get_mut(id) else {
            all.insert(id.clone(), Then::Sleeps);
            return true;
        };
        if *then == Then::Sleeps {
            *then = Then::Begins;
        }
        false
    }

    /// Removes a task that is over, or is another node's. `false` if it was not here.
    pub(crate) fn remove(&self, id: &TaskId) -> bool {
        self.0.lock().remove(id).is_some()
    }

    /// Removes a task whose run fell asleep, unless it begins again.
    pub(crate) fn fall_asleep(&self, id: &TaskId) -> Then {
        let mut all = self.0.lock();
        let then = all.remove(id).unwrap_or(Then::Sleeps);
        if then == Then::Begins {
            all.insert(id.clone(), Then::Sleeps);
        }
        then
    }

    /// Notes that a task of this caller was cancelled. `false` if it is not here. If it is, its place is given back as it leaves.
    pub(crate) fn mark_cancelled(&self, id: &TaskId, owner: &OwnerKey) -> bool {
        self.0.lock().get_mut(id).map(|then| *then = Then::GivesBack(owner.clone())).is_some()
    }

    pub(crate) fn contains(&self, id: &TaskId) -> bool {
        self.0.lock().contains_key(id)
    }
}

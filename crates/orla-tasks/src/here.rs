//! The tasks that wait or run in this process. No I/O.
//!
//! A task is here once, however often it is to begin, and so its place among the unfinished ones is given back once. What wakes
//! a task has it enter before it looks at the row that says whether it sleeps. So a task that is not here sleeps, and whoever
//! cancels it gives its place back; else whoever has it leave does.

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
    /// A task is to begin. `false` if it is here already: it begins again if it falls asleep.
    pub(crate) fn enters(&self, id: &TaskId) -> bool {
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

    /// A task is over, or is another node's. `false` if it was not here.
    pub(crate) fn leaves(&self, id: &TaskId) -> bool {
        self.0.lock().remove(id).is_some()
    }

    /// The run of a task fell asleep.
    pub(crate) fn sleeps(&self, id: &TaskId) -> Then {
        let mut all = self.0.lock();
        let then = all.remove(id).unwrap_or(Then::Sleeps);
        if then == Then::Begins {
            all.insert(id.clone(), Then::Sleeps);
        }
        then
    }

    /// A task of this caller was cancelled. `false` if it is not here. If it is, its place is given back as it leaves.
    pub(crate) fn cancelled(&self, id: &TaskId, owner: &OwnerKey) -> bool {
        self.0.lock().get_mut(id).map(|then| *then = Then::GivesBack(owner.clone())).is_some()
    }

    pub(crate) fn has(&self, id: &TaskId) -> bool {
        self.0.lock().contains_key(id)
    }
}

//! The tasks for which sleeping tasks wait, as far as they are known without a read. Bounded.

use std::collections::HashSet;

use parking_lot::Mutex;

use crate::task::TaskId;

/// The maximum number of known tasks. Beyond it, the store is queried for every task.
pub(crate) const KNOWN: usize = 4096;

/// The tasks for which sleeping tasks may wait. The end of any other task needs no read.
#[derive(Default)]
pub(crate) struct Awaited {
    /// `None` if the set is unknown.
    known: Mutex<Option<HashSet<TaskId>>>,
}

impl Awaited {
    /// Replaces the set: exactly these tasks are awaited.
    pub(super) fn begin(&self, all: HashSet<TaskId>) {
        *self.known.lock() = (all.len() <= KNOWN).then_some(all);
    }

    /// Adds tasks that another task is about to await. Must be called before the wait is written.
    pub(super) fn add(&self, awaited: impl Iterator<Item = TaskId>) {
        let mut known = self.known.lock();
        if let Some(all) = &mut *known {
            all.extend(awaited);
            if all.len() > KNOWN {
                *known = None;
            }
        }
    }

    /// Returns whether another task may wait for this task. Must be called when the end of the task is
    /// written.
    pub(super) fn has(&self, id: &TaskId) -> bool {
        self.known.lock().as_ref().is_none_or(|all| all.contains(id))
    }

    /// Removes a task for which no other task waits any more.
    pub(super) fn remove(&self, id: &TaskId) {
        if let Some(all) = &mut *self.known.lock() {
            all.remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_tasks_may_be_awaited() {
        let awaited = Awaited::default();
        let ids: Vec<TaskId> = (0..=KNOWN).map(|_| TaskId::new()).collect();
        assert!(awaited.has(&ids[0]), "nothing was read yet");
        awaited.begin(HashSet::from([ids[0].clone()]));
        assert!(awaited.has(&ids[0]) && !awaited.has(&ids[1]));
        awaited.add(ids[1..2].iter().cloned());
        assert!(awaited.has(&ids[1]));
        awaited.remove(&ids[1]);
        assert!(!awaited.has(&ids[1]));
        awaited.add(ids.iter().cloned());
        assert!(awaited.has(&TaskId::new()), "there are too many");
    }
}

//! Which tasks are waited for by sleeping ones, as far as that is known without a read. Bounded.

use std::collections::HashSet;

use parking_lot::Mutex;

use crate::task::TaskId;

/// The most tasks that are known. If there are more, the store is asked about every task.
pub(crate) const KNOWN: usize = 4096;

/// The tasks that sleeping ones may wait for. Most tasks are not, and their ends need no read.
#[derive(Default)]
pub(crate) struct Awaited {
    /// `None` if it is not known.
    known: Mutex<Option<HashSet<TaskId>>>,
}

impl Awaited {
    /// These and no others are waited for.
    pub(super) fn begin(&self, all: HashSet<TaskId>) {
        *self.known.lock() = (all.len() <= KNOWN).then_some(all);
    }

    /// A task is about to wait for these. To be called before that is written.
    pub(super) fn add(&self, awaited: impl Iterator<Item = TaskId>) {
        let mut known = self.known.lock();
        if let Some(all) = &mut *known {
            all.extend(awaited);
            if all.len() > KNOWN {
                *known = None;
            }
        }
    }

    /// Whether a task may be waited for. To be called when its end is written.
    pub(super) fn has(&self, id: &TaskId) -> bool {
        self.known.lock().as_ref().is_none_or(|all| all.contains(id))
    }

    /// No task waits for this one any more.
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
    fn what_is_not_known_may_be_awaited() {
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

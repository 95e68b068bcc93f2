//! The queue of waiting tasks. Pure. Callers take turns, and the tasks of one caller keep their order.

use std::collections::{HashMap, VecDeque};

use crate::keys::OwnerKey;
use crate::task::TaskId;

/// The queue of waiting tasks.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// The callers that have waiting tasks, the next one first.
    turns: VecDeque<OwnerKey>,
    waiting: HashMap<OwnerKey, VecDeque<TaskId>>,
}

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Adds a task behind the others of its caller.
    pub(crate) fn push(&mut self, owner: OwnerKey, id: TaskId) {
        let tasks = self.waiting.entry(owner.clone()).or_default();
        if tasks.is_empty() {
            self.turns.push_back(owner);
        }
        tasks.push_back(id);
    }

    /// Removes the next task and returns it. Its caller moves behind all other callers.
    pub(crate) fn pop(&mut self) -> Option<(OwnerKey, TaskId)> {
        let owner = self.turns.pop_front()?;
        let tasks = self.waiting.get_mut(&owner)?;
        let id = tasks.pop_front();
        if tasks.is_empty() {
            self.waiting.remove(&owner);
        } else {
            self.turns.push_back(owner.clone());
        }
        id.map(|id| (owner, id))
    }

    /// Removes a task. Returns whether the queue contained it.
    pub(crate) fn remove(&mut self, owner: &OwnerKey, id: &TaskId) -> bool {
        let Some(tasks) = self.waiting.get_mut(owner) else { return false };
        let before = tasks.len();
        tasks.retain(|other| other != id);
        let is_removed = tasks.len() < before;
        if tasks.is_empty() {
            self.waiting.remove(owner);
            self.turns.retain(|other| other != owner);
        }
        is_removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn callers_take_turns() {
        let mut queue = Queue::default();
        let [a, b] = ["a", "b"].map(|name| OwnerKey::of(Some(name)));
        let ids: Vec<TaskId> = (0..4).map(|_| TaskId::new()).collect();
        for (owner, id) in [(&a, 0), (&a, 1), (&a, 2), (&b, 3)] {
            queue.push(owner.clone(), ids[id].clone());
        }
        let order: Vec<TaskId> = std::iter::from_fn(|| queue.pop()).map(|(_, id)| id).collect();
        assert_eq!(order, [0, 3, 1, 2].map(|at| ids[at].clone()));
    }

    proptest! {
        #[test]
        fn the_queue_returns_each_task_once_and_callers_take_turns(
            owners in prop::collection::vec(0..4u8, 0..60)
        ) {
            let mut queue = Queue::default();
            let mut expected: Vec<Vec<TaskId>> = vec![Vec::new(); 4];
            for owner in &owners {
                let id = TaskId::new();
                queue.push(OwnerKey::of(Some(&owner.to_string())), id.clone());
                expected[usize::from(*owner)].push(id);
            }
            // The queue behaves as if a removed task had never been added.
            let gone = TaskId::new();
            let last = OwnerKey::of(Some("0"));
            queue.push(last.clone(), gone.clone());
            prop_assert!(queue.remove(&last, &gone) && !queue.remove(&last, &gone));
            let out: Vec<TaskId> = std::iter::from_fn(|| queue.pop()).map(|(_, id)| id).collect();
            prop_assert_eq!(out.len(), owners.len());
            prop_assert!(queue.waiting.is_empty() && queue.turns.is_empty());
            for tasks in &expected {
                let places: Vec<usize> =
                    tasks.iter().filter_map(|id| out.iter().position(|other| other == id)).collect();
                prop_assert!(places.windows(2).all(|pair| pair[0] < pair[1] && pair[1] - pair[0] <= 4));
                prop_assert_eq!(places.len(), tasks.len());
            }
        }
    }
}

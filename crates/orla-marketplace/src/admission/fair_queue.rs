//! A queue that serves its lanes in turn: principals first, then the capabilities that each of them calls.
//!
//! Pure data: [`admission`](crate::admission) decides when an item is taken. Lanes are found by a linear search,
//! as at most `max_queue` calls wait.

use std::collections::VecDeque;
use std::sync::Arc;

/// The id of the principal of a waiting call; calls without one share a lane.
pub(crate) type Caller = Option<Arc<str>>;

/// Items in lanes, each lane in the order of arrival.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    principals: Turns<Caller, Principal<T>>,
    len: usize,
}

/// The waiting items of one principal.
#[derive(Debug)]
struct Principal<T> {
    capabilities: Turns<Arc<str>, VecDeque<T>>,
    len: usize,
}

/// Lanes that take turns. The one that was served last is at the back.
#[derive(Debug)]
struct Turns<K, L> {
    lanes: VecDeque<(K, L)>,
    last: Option<K>,
}

impl<K, L> Default for Turns<K, L> {
    fn default() -> Self {
        Self { lanes: VecDeque::new(), last: None }
    }
}

impl<T> Default for Principal<T> {
    fn default() -> Self {
        Self { capabilities: Turns::default(), len: 0 }
    }
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { principals: Turns::default(), len: 0 }
    }
}

impl<K: Clone + PartialEq, L: Default> Turns<K, L> {
    fn get(&self, key: &K) -> Option<&L> {
        self.lanes.iter().find(|(known, _)| known == key).map(|(_, lane)| lane)
    }

    /// Returns the lane of `key`. A new lane is placed before the one that was served last, and after
    /// all others.
    fn lane(&mut self, key: &K) -> Option<&mut L> {
        let at = match self.lanes.iter().position(|(known, _)| known == key) {
            Some(at) => at,
            None => {
                let served = |back: &(K, L)| self.last.as_ref().is_none_or(|last| *last == back.0);
                let is_behind = self.lanes.back().is_some_and(served);
                let at = self.lanes.len() - usize::from(is_behind);
                self.lanes.insert(at, (key.clone(), L::default()));
                at
            }
        };
        self.lanes.get_mut(at).map(|(_, lane)| lane)
    }

    /// Takes an item from the first lane that provides one. This lane is the last one in the next round.
    fn serve<T>(
        &mut self,
        give: impl FnMut(&mut L) -> Option<T>,
        is_empty: impl Fn(&L) -> bool,
    ) -> Option<T> {
        let mut give = give;
        let mut lanes = self.lanes.iter_mut().enumerate();
        let (at, item) = lanes.find_map(|(at, (_, lane))| Some((at, give(lane)?)))?;
        let (key, lane) = self.lanes.remove(at)?;
        self.last = Some(key.clone());
        if !is_empty(&lane) {
            self.lanes.push_back((key, lane));
        }
        Some(item)
    }

    /// Takes an item out of a lane, out of turn.
    fn remove<T>(
        &mut self,
        key: &K,
        take: impl FnOnce(&mut L) -> Option<T>,
        is_empty: impl Fn(&L) -> bool,
    ) -> Option<T> {
        let at = self.lanes.iter().position(|(known, _)| known == key)?;
        let (_, lane) = self.lanes.get_mut(at)?;
        let item = take(lane);
        if is_empty(lane) {
            self.lanes.remove(at);
        }
        item
    }
}

impl<T> FairQueue<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, caller: &Caller, capability: &Arc<str>, item: T) {
        let Some(principal) = self.principals.lane(caller) else { return };
        let Some(lane) = principal.capabilities.lane(capability) else { return };
        lane.push_back(item);
        principal.len += 1;
        self.len += 1;
    }

    /// Takes the next item that `admits` accepts, from the lane whose turn it is. The order within a
    /// lane is kept.
    pub(crate) fn pop(&mut self, admits: impl Fn(&T) -> bool) -> Option<T> {
        let first = |lane: &mut VecDeque<T>| {
            lane.front().is_some_and(&admits).then(|| lane.pop_front()).flatten()
        };
        let item = self.principals.serve(
            |principal| {
                let item = principal.capabilities.serve(first, VecDeque::is_empty)?;
                principal.len -= 1;
                Some(item)
            },
            |principal| principal.len == 0,
        )?;
        self.len -= 1;
        Some(item)
    }

    /// Takes the item for which `is` returns true out of its lane, if it still waits there.
    pub(crate) fn remove(
        &mut self,
        caller: &Caller,
        capability: &Arc<str>,
        is: impl Fn(&T) -> bool,
    ) -> Option<T> {
        let take = |lane: &mut VecDeque<T>| {
            let at = lane.iter().position(&is)?;
            lane.remove(at)
        };
        let item = self.principals.remove(
            caller,
            |principal| {
                let item = principal.capabilities.remove(capability, take, VecDeque::is_empty)?;
                principal.len -= 1;
                Some(item)
            },
            |principal| principal.len == 0,
        )?;
        self.len -= 1;
        Some(item)
    }

    /// Makes room for a call of `caller`: takes the newest item of the longest lane of the
    /// principal with the most items, if that principal has at least two more than `caller`.
    pub(crate) fn evict_for(&mut self, caller: &Caller) -> Option<T> {
        let own = self.principals.get(caller).map_or(0, |principal| principal.len);
        let (longest, waiting) =
            self.principals.lanes.iter().max_by_key(|(_, principal)| principal.len)?;
        if waiting.len < own + 2 {
            return None;
        }
        let lanes = &waiting.capabilities.lanes;
        let (capability, _) = lanes.iter().max_by_key(|(_, lane)| lane.len())?;
        let (longest, capability) = (longest.clone(), Arc::clone(capability));
        let item = self.principals.remove(
            &longest,
            |principal| {
                let newest = |lane: &mut VecDeque<T>| lane.pop_back();
                let item = principal.capabilities.remove(&capability, newest, VecDeque::is_empty)?;
                principal.len -= 1;
                Some(item)
            },
            |principal| principal.len == 0,
        )?;
        self.len -= 1;
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn caller(name: &str) -> Caller {
        Some(name.into())
    }

    fn order(queue: &mut FairQueue<u32>) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop(|_| true)).collect()
    }

    #[test]
    fn principals_take_turns_and_so_do_the_capabilities_of_each() {
        let mut queue = FairQueue::default();
        let (bob, ada) = (caller("bob"), caller("ada"));
        for item in 0..3 {
            queue.push(&bob, &"slow".into(), item);
        }
        queue.push(&bob, &"quick".into(), 10);
        queue.push(&ada, &"slow".into(), 20);
        queue.push(&ada, &"slow".into(), 21);
        assert_eq!(order(&mut queue), [20, 10, 21, 0, 1, 2]);
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn a_newcomer_is_served_before_the_principal_that_was_served_last() {
        let mut queue = FairQueue::default();
        let (bob, ada) = (caller("bob"), caller("ada"));
        (0..3).for_each(|item| queue.push(&bob, &"slow".into(), item));
        assert_eq!(queue.pop(|_| true), Some(0));
        queue.push(&ada, &"slow".into(), 9);
        assert_eq!(order(&mut queue), [9, 1, 2]);
    }

    #[test]
    fn a_lane_that_is_not_admitted_holds_up_no_other() {
        let mut queue = FairQueue::default();
        queue.push(&None, &"full".into(), 1);
        queue.push(&None, &"free".into(), 2);
        assert_eq!(queue.pop(|item| *item == 2), Some(2));
        assert_eq!(queue.pop(|item| *item == 2), None);
        assert_eq!(order(&mut queue), [1]);
    }

    #[test]
    fn the_caller_with_the_most_waiting_calls_is_evicted() {
        let mut queue = FairQueue::default();
        let (bob, ada) = (caller("bob"), caller("ada"));
        (0..3).for_each(|item| queue.push(&bob, &"a".into(), item));
        assert_eq!(queue.evict_for(&bob), None);
        assert_eq!(queue.evict_for(&ada), Some(2));
        queue.push(&ada, &"a".into(), 9);
        assert_eq!(queue.evict_for(&ada), None, "an exchange would not help");
        assert_eq!(queue.len(), 3);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push(u8, u8),
        Pop,
        Remove(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..4u8, 0..3u8).prop_map(|(who, what)| Step::Push(who, what)),
            3 => Just(Step::Pop),
            1 => (0..20usize).prop_map(Step::Remove),
        ];
        prop::collection::vec(step, 0..120)
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_no_lane_is_passed_over_twice_in_a_round(steps in steps()) {
            let mut queue = FairQueue::default();
            let mut waiting: Vec<(u8, u8, u32)> = Vec::new();
            // Counts how often each other principal was served since this one was, while this one
            // waited.
            let mut passed = [[0u32; 4]; 4];
            for (number, step) in (0u32..).zip(steps) {
                match step {
                    Step::Push(who, what) => {
                        if waiting.iter().all(|item| item.0 != who) {
                            passed[usize::from(who)] = [0; 4];
                        }
                        waiting.push((who, what, number));
                        queue.push(&caller(&who.to_string()), &what.to_string().into(), (who, what, number));
                    }
                    Step::Pop => {
                        let popped = queue.pop(|_| true);
                        prop_assert_eq!(popped.is_some(), !waiting.is_empty());
                        let Some(popped) = popped else { continue };
                        let same = |item: &&(u8, u8, u32)| (item.0, item.1) == (popped.0, popped.1);
                        prop_assert_eq!(waiting.iter().find(same), Some(&popped), "first come, first served");
                        waiting.retain(|item| *item != popped);
                        passed[usize::from(popped.0)] = [0; 4];
                        for who in 0..4u8 {
                            if who != popped.0 && waiting.iter().any(|item| item.0 == who) {
                                let times = &mut passed[usize::from(who)][usize::from(popped.0)];
                                *times += 1;
                                prop_assert!(*times <= 1, "{who} waits while {} is served", popped.0);
                            }
                        }
                    }
                    Step::Remove(at) if at < waiting.len() => {
                        let (who, what, number) = waiting.remove(at);
                        let (who, what) = (caller(&who.to_string()), what.to_string().into());
                        prop_assert!(queue.remove(&who, &what, |item| item.2 == number).is_some());
                        prop_assert!(queue.remove(&who, &what, |item| item.2 == number).is_none());
                    }
                    Step::Remove(_) => {}
                }
                prop_assert_eq!(queue.len(), waiting.len());
            }
        }
    }
}

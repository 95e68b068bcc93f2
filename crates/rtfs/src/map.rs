//! Maps and sets that keep their insertion order.
//!
//! Both are a [`Table`]: entries in the order in which their keys were first inserted. Up to [`LINEAR`]
//! entries, a key is found by linear search; beyond, by an index of hashes. A removed entry leaves a
//! hole, and when half of the entries are holes, the table is compacted. A key that was looked up is
//! often changed next, so a table remembers the position of the last one.

use std::cmp::Ordering;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use hashbrown::HashTable;
use triomphe::Arc;

use crate::order::compare_in_turn;
use crate::scalar::hash_of;
use crate::sequence::{MAX_PARTS, TooLarge, depth_around, parts_of};
use crate::value::Value;

/// `{:a 1, "b" 2}`: keys of any kind, each with a value, in insertion order.
#[derive(Clone, Default)]
pub struct Map(Arc<Table<Value>>);

/// `#{1 2}`: distinct values of any kind, in insertion order.
#[derive(Clone, Default)]
pub struct Set(Arc<Table<()>>);

/// The maximum number of entries for a linear search.
const LINEAR: usize = 8;

impl Map {
    /// Creates an empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty map with room for this many entries.
    pub(crate) fn with_capacity(entries: usize) -> Self {
        Self(Arc::new(Table { entries: Vec::with_capacity(entries), ..Table::default() }))
    }

    /// Creates a map of these entries; of equal keys the last wins.
    pub(crate) fn of(entries: impl ExactSizeIterator<Item = (Value, Value)>) -> Result<Self, TooLarge> {
        let mut table = Table { entries: Vec::with_capacity(entries.len()), ..Table::default() };
        for (key, value) in entries {
            let depth = depth_around(key.depth().max(value.depth()))?;
            table.grow(key.parts().saturating_add(value.parts()));
            table.insert(key, value, depth);
        }
        let mut map = Self(Arc::new(table));
        map.bounded()?;
        Ok(map)
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the map is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &Value) -> Option<&Value> {
        self.0.find(key).and_then(|at| self.0.value(at))
    }

    /// Returns the value of the keyword with this name, without creating that keyword.
    pub fn get_keyword(&self, name: &str) -> Option<&Value> {
        let is_it = |key: &Value| matches!(key, Value::Keyword(keyword) if keyword.name() == name);
        let hash = if self.0.index.is_some() { hash_of_keyword(hash_of(name)) } else { 0 };
        self.0.find_by(hash, is_it).and_then(|at| self.0.value(at))
    }

    /// Returns whether it has this key.
    pub fn contains_key(&self, key: &Value) -> bool {
        self.0.find(key).is_some()
    }

    /// Sets the value of `key` and returns the previous one. An existing key keeps its position.
    ///
    /// The map is changed in place if it is not shared, else copied.
    pub fn insert(&mut self, key: Value, value: Value) -> Result<Option<Value>, TooLarge> {
        let depth = depth_around(key.depth().max(value.depth()))?;
        let table = Arc::make_mut(&mut self.0);
        table.grow(key.parts().saturating_add(value.parts()));
        let old = table.insert(key, value, depth);
        self.bounded()?;
        Ok(old)
    }

    /// Counts the parts again if there may be too many, because removed parts were not subtracted.
    #[inline(always)]
    fn bounded(&mut self) -> Result<(), TooLarge> {
        if self.0.parts < MAX_PARTS { Ok(()) } else { self.recount() }
    }

    #[cold]
    fn recount(&mut self) -> Result<(), TooLarge> {
        let parts = parts_of(self.iter().flat_map(|(key, value)| [key, value]))?;
        Arc::make_mut(&mut self.0).parts = parts;
        Ok(())
    }

    pub(crate) fn parts(&self) -> u32 {
        self.0.parts.max(1)
    }

    /// Removes a key and returns its value.
    pub fn remove(&mut self, key: &Value) -> Option<Value> {
        let at = self.0.find(key)?;
        let depth_of = |key: &Value, value: &Value| key.depth().max(value.depth());
        Some(Arc::make_mut(&mut self.0).remove(at, depth_of)?.1)
    }

    /// Returns the entries in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&Value, &Value)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    pub(crate) fn depth(&self) -> u16 {
        self.0.depth.max(1)
    }

    /// Returns whether the map came from `catch`: a map like any other, but `throw` keeps its origin.
    pub(crate) fn is_error(&self) -> bool {
        self.0.error
    }

    pub(crate) fn mark_error(&mut self) {
        Arc::make_mut(&mut self.0).error = true;
    }

    /// Returns the entry at a position below [`Self::positions`]; `None` for a hole.
    pub(crate) fn at(&self, position: usize) -> Option<(&Value, &Value)> {
        self.0.entries.get(position)?.as_ref().map(|(key, value)| (key, value))
    }

    pub(crate) fn positions(&self) -> usize {
        self.0.entries.len()
    }

    /// Takes a value out, to be changed and put back. Leaves nil.
    pub(crate) fn take(&mut self, key: &Value) -> Option<Value> {
        let at = self.0.find(key)?;
        let (_, value) = Arc::make_mut(&mut self.0).entries[at].as_mut()?;
        Some(std::mem::take(value))
    }

    pub(crate) fn is_unique(&self) -> bool {
        Arc::is_unique(&self.0)
    }

    /// Returns the address of the shared data, and the number of its owners.
    pub(crate) fn identity(&self) -> (usize, usize) {
        (Arc::as_ptr(&self.0) as usize, Arc::count(&self.0))
    }

    /// Returns a hash that does not depend on the order of the entries.
    pub(crate) fn hash_of_members(&self) -> u64 {
        self.iter().map(|entry| hash_of(&entry)).fold(0, u64::wrapping_add)
    }

    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        self.len().cmp(&other.len()).then_with(|| {
            let (a, b) = (self.sorted(), other.sorted());
            let keys = compare_in_turn(a.iter().map(|e| e.0).zip(b.iter().map(|e| e.0)));
            keys.then_with(|| compare_in_turn(a.iter().map(|e| e.1).zip(b.iter().map(|e| e.1))))
        })
    }

    fn sorted(&self) -> Vec<(&Value, &Value)> {
        let mut entries: Vec<_> = self.iter().collect();
        entries.sort_by(|a, b| a.0.compare(b.0).then_with(|| a.1.compare(b.1)));
        entries
    }
}

impl PartialEq for Map {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().all(|(key, value)| other.get(key) == Some(value))
    }
}

impl Set {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of members.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether this is a member.
    pub fn contains(&self, member: &Value) -> bool {
        self.0.find(member).is_some()
    }

    /// Returns the member that equals this.
    pub(crate) fn get(&self, member: &Value) -> Option<&Value> {
        self.at(self.0.find(member)?)
    }

    /// Adds a member and returns whether it was new.
    ///
    /// The set is changed in place if it is not shared, else copied.
    pub fn insert(&mut self, member: Value) -> Result<bool, TooLarge> {
        let depth = depth_around(member.depth())?;
        let table = Arc::make_mut(&mut self.0);
        table.grow(member.parts());
        let is_new = table.insert(member, (), depth).is_none();
        if self.0.parts >= MAX_PARTS {
            let parts = parts_of(self.iter())?;
            Arc::make_mut(&mut self.0).parts = parts;
        }
        Ok(is_new)
    }

    pub(crate) fn parts(&self) -> u32 {
        self.0.parts.max(1)
    }

    /// Removes a member and returns whether it was present.
    pub fn remove(&mut self, member: &Value) -> bool {
        let Some(at) = self.0.find(member) else { return false };
        Arc::make_mut(&mut self.0).remove(at, |member, ()| member.depth()).is_some()
    }

    /// Returns the members in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Value> {
        self.0.iter().map(|(member, ())| member)
    }

    pub(crate) fn depth(&self) -> u16 {
        self.0.depth.max(1)
    }

    /// Returns the member at a position below [`Self::positions`]; `None` for a hole.
    pub(crate) fn at(&self, position: usize) -> Option<&Value> {
        self.0.entries.get(position)?.as_ref().map(|(member, ())| member)
    }

    pub(crate) fn positions(&self) -> usize {
        self.0.entries.len()
    }

    pub(crate) fn is_unique(&self) -> bool {
        Arc::is_unique(&self.0)
    }

    /// Returns the address of the shared data, and the number of its owners.
    pub(crate) fn identity(&self) -> (usize, usize) {
        (Arc::as_ptr(&self.0) as usize, Arc::count(&self.0))
    }

    /// Returns a hash that does not depend on the order of the members.
    pub(crate) fn hash_of_members(&self) -> u64 {
        self.iter().map(hash_of).fold(0, u64::wrapping_add)
    }

    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        self.len().cmp(&other.len()).then_with(|| {
            let (a, b) = (self.sorted(), other.sorted());
            compare_in_turn(a.into_iter().zip(b))
        })
    }

    fn sorted(&self) -> Vec<&Value> {
        let mut members: Vec<_> = self.iter().collect();
        members.sort_by(|a, b| a.compare(b));
        members
    }
}

impl PartialEq for Set {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().all(|member| other.contains(member))
    }
}

/// Entries in order, with an index when there are many.
struct Table<V> {
    /// `None` is a hole.
    entries: Vec<Option<(Value, V)>>,
    holes: usize,
    /// Present once there were more than [`LINEAR`] entries.
    index: Option<Box<Index>>,
    /// An upper bound of the depth, exact after the table was compacted.
    depth: u16,
    /// An upper bound of the number of parts.
    parts: u32,
    /// Whether the map came from `catch`.
    error: bool,
    /// The position of the last found key. It is only a hint: the key at the position decides.
    recent: AtomicU32,
}

impl<V: Clone> Clone for Table<V> {
    fn clone(&self) -> Self {
        let Self { entries, holes, index, depth, parts, error, recent } = self;
        Self {
            entries: entries.clone(),
            holes: *holes,
            index: index.clone(),
            depth: *depth,
            parts: *parts,
            error: *error,
            recent: AtomicU32::new(recent.load(Relaxed)),
        }
    }
}

#[derive(Clone)]
struct Index {
    /// The hash of each entry's key, so that growing the table recomputes none.
    hashes: Vec<u64>,
    /// Positions in `entries`.
    places: HashTable<u32>,
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            holes: 0,
            index: None,
            depth: 0,
            parts: 1,
            error: false,
            recent: AtomicU32::new(0),
        }
    }
}

/// Returns the hash of a key in an index. Keywords have a cached hash, and short texts are hashed as one
/// number.
fn hash_of_key(key: &Value) -> u64 {
    match key {
        Value::Keyword(keyword) => hash_of_keyword(keyword.cached_hash()),
        Value::Str(text) => match text.packed() {
            Some(bits) => hash_of(&bits),
            None => hash_of(text.as_str()),
        },
        _ => hash_of(key),
    }
}

/// Compares with `==`, with the usual kinds of keys first.
#[inline(always)]
fn is_same_key(known: &Value, key: &Value) -> bool {
    match (known, key) {
        (Value::Keyword(known), Value::Keyword(key)) => known == key,
        (Value::Str(known), Value::Str(key)) => known == key,
        (Value::Int(known), Value::Int(key)) => known == key,
        _ => known == key,
    }
}

/// Returns the hash of a keyword, which differs from that of the string with the same text, at the cost
/// of one instruction.
fn hash_of_keyword(hash_of_name: u64) -> u64 {
    !hash_of_name
}

impl<V> Table<V> {
    fn len(&self) -> usize {
        self.entries.len() - self.holes
    }

    fn iter(&self) -> impl Iterator<Item = &(Value, V)> {
        self.entries.iter().flatten()
    }

    fn value(&self, at: usize) -> Option<&V> {
        self.entries[at].as_ref().map(|(_, value)| value)
    }

    fn find(&self, key: &Value) -> Option<usize> {
        let at = self.find_by(self.hash_for(key), |candidate| is_same_key(candidate, key))?;
        self.recent.store(at as u32, Relaxed);
        Some(at)
    }

    /// Like `find`, for a key that was probably found last.
    #[inline]
    fn find_again(&self, key: &Value) -> Option<usize> {
        let at = self.recent.load(Relaxed) as usize;
        self.entries.get(at)?.as_ref().is_some_and(|(known, _)| is_same_key(known, key)).then_some(at)
    }

    /// Returns the hash by which a key is found; any number if there is no index.
    fn hash_for(&self, key: &Value) -> u64 {
        if self.index.is_some() { hash_of_key(key) } else { 0 }
    }

    /// Returns the position of the key for which `is_it` returns true.
    #[inline]
    fn find_by(&self, hash: u64, is_it: impl Fn(&Value) -> bool) -> Option<usize> {
        let is_at = |at: usize| self.entries[at].as_ref().is_some_and(|(key, _)| is_it(key));
        match &self.index {
            None => (0..self.entries.len()).find(|&at| is_at(at)),
            Some(index) => index.places.find(hash, |&at| is_at(at as usize)).map(|&at| at as usize),
        }
    }

    #[inline(always)]
    fn grow(&mut self, parts: u32) {
        self.parts = self.parts.saturating_add(parts);
    }

    fn insert(&mut self, key: Value, value: V, depth: u16) -> Option<V> {
        self.depth = self.depth.max(depth);
        let mut hash = 0;
        let found = self.find_again(&key).or_else(|| {
            hash = self.hash_for(&key);
            self.find_by(hash, |candidate| is_same_key(candidate, &key))
        });
        if let Some(at) = found
            && let Some((_, old)) = &mut self.entries[at]
        {
            return Some(std::mem::replace(old, value));
        }
        if let Some(index) = &mut self.index {
            index.add(hash);
        }
        self.entries.push(Some((key, value)));
        if self.index.is_none() && self.entries.len() > LINEAR {
            self.rebuild_index();
        }
        None
    }

    fn remove(&mut self, at: usize, depth_of: impl Fn(&Value, &V) -> u16) -> Option<(Value, V)> {
        let entry = self.entries[at].take()?;
        self.holes += 1;
        if let Some(index) = &mut self.index {
            index.forget(at);
        }
        if self.holes * 2 >= self.entries.len() {
            self.squeeze(depth_of);
        }
        Some(entry)
    }

    fn squeeze(&mut self, depth_of: impl Fn(&Value, &V) -> u16) {
        self.entries.retain(Option::is_some);
        self.holes = 0;
        self.depth = 1 + self.iter().map(|(key, value)| depth_of(key, value)).max().unwrap_or(0);
        self.index = None;
        if self.entries.len() > LINEAR {
            self.rebuild_index();
        }
    }

    fn rebuild_index(&mut self) {
        let mut index =
            Index { hashes: Vec::new(), places: HashTable::with_capacity(self.entries.len()) };
        for entry in &self.entries {
            match entry {
                Some((key, _)) => index.add(hash_of_key(key)),
                None => index.hashes.push(0), // never looked up
            }
        }
        self.index = Some(Box::new(index));
    }
}

impl Index {
    /// Adds the next position.
    fn add(&mut self, hash: u64) {
        let at = u32::try_from(self.hashes.len()).expect("2^32 entries take 128 GiB");
        self.hashes.push(hash);
        let Self { hashes, places } = self;
        places.insert_unique(hash, at, |&at| hashes[at as usize]);
    }

    fn forget(&mut self, at: usize) {
        if let Ok(found) = self.places.find_entry(self.hashes[at], |&place| place as usize == at) {
            found.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::arbitrary::any_key;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(Value, i64),
        Remove(Value),
        /// Share the map unchanged from now on.
        Share,
    }

    fn any_steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (any_key(), any::<i64>()).prop_map(|(key, value)| Step::Insert(key, value)),
            3 => any_key().prop_map(Step::Remove),
            1 => Just(Step::Share),
        ];
        vec(step, 0..120)
    }

    proptest! {
        #[test]
        fn a_map_does_what_a_list_of_pairs_does(steps in any_steps()) {
            let (mut map, mut model) = (Map::new(), Vec::<(Value, Value)>::new());
            let mut shared = Vec::new();
            for step in steps {
                match step {
                    Step::Insert(key, value) => {
                        let value = Value::from(value);
                        let old = map.insert(key.clone(), value.clone()).unwrap();
                        let place = model.iter_mut().find(|(known, _)| *known == key);
                        prop_assert_eq!(&old, &place.as_ref().map(|(_, old)| old.clone()));
                        match place {
                            Some((_, old)) => *old = value,
                            None => model.push((key, value)),
                        }
                    }
                    Step::Remove(key) => {
                        let place = model.iter().position(|(known, _)| *known == key);
                        prop_assert_eq!(map.remove(&key), place.map(|place| model.remove(place).1));
                    }
                    Step::Share => shared.push((map.clone(), model.clone())),
                }
                prop_assert_eq!(map.len(), model.len());
            }
            shared.push((map, model));
            for (map, model) in shared {
                let entries: Vec<_> = map.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
                prop_assert_eq!(&entries, &model, "in the same order");
                for (key, value) in &model {
                    prop_assert_eq!(map.get(key), Some(value));
                    if let Value::Keyword(keyword) = key {
                        prop_assert_eq!(map.get_keyword(keyword.name()), Some(value));
                    }
                }
                prop_assert_eq!(map.get_keyword("absent"), None);
            }
        }

        #[test]
        fn equality_ignores_the_order(keys in vec(any_key(), 0..40)) {
            let (mut map, mut reversed) = (Map::new(), Map::new());
            let (mut set, mut reversed_set) = (Set::new(), Set::new());
            for key in &keys {
                map.insert(key.clone(), Value::Nil).unwrap();
                set.insert(key.clone()).unwrap();
            }
            for key in keys.iter().rev() {
                reversed.insert(key.clone(), Value::Nil).unwrap();
                reversed_set.insert(key.clone()).unwrap();
            }
            prop_assert_eq!(&map, &reversed);
            prop_assert_eq!(map.compare(&reversed), Ordering::Equal);
            prop_assert_eq!(map.hash_of_members(), reversed.hash_of_members());
            prop_assert_eq!(&set, &reversed_set);
            prop_assert_eq!(set.compare(&reversed_set), Ordering::Equal);
            prop_assert_eq!(set.hash_of_members(), reversed_set.hash_of_members());
            for key in &keys {
                prop_assert_eq!(reversed_set.remove(key), set.remove(key));
            }
            prop_assert!(set.is_empty() && reversed_set.is_empty());
        }
    }

    #[test]
    fn a_change_never_reaches_those_who_share_it() {
        let mut map = Map::new();
        map.insert(Value::keyword("a"), 1.into()).unwrap();
        let shared = map.clone();
        map.insert(Value::keyword("a"), 2.into()).unwrap();
        assert_eq!(shared.get_keyword("a"), Some(&Value::from(1)));
        assert_eq!(map.get_keyword("a"), Some(&Value::from(2)));
    }

    #[test]
    fn the_keyword_and_the_string_of_one_text_are_two_keys() {
        let mut map = Map::new();
        for n in 0..20 {
            map.insert(Value::keyword(format!("k{n}")), n.into()).unwrap();
            map.insert(Value::from(format!("k{n}")), (-n).into()).unwrap();
        }
        assert_eq!(map.len(), 40);
        assert_eq!(map.get_keyword("k7"), Some(&Value::from(7)));
        assert_eq!(map.get(&"k7".into()), Some(&Value::from(-7)));
    }
}

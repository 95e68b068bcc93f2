//! Vectors and lists, and how deep collections may be.
//!
//! Both keep room at either end. The holder of the only pointer appends, prepends and drops the first
//! item in place, so that `(recur (rest xs))` takes constant time.

use triomphe::Arc;

use crate::value::Value;

/// `[1 2 3]`
#[derive(Clone, Debug, PartialEq)]
pub struct Vector(Arc<Items>);

/// `(1 2 3)`
#[derive(Clone, Debug, PartialEq)]
pub struct List(Arc<Items>);

#[derive(Debug)]
struct Items {
    /// The items. Those before `start` are unused `nil`s.
    items: Vec<Value>,
    start: usize,
    depth: u16,
    /// An upper bound of the number of parts; see [`MAX_PARTS`].
    parts: u32,
}

impl PartialEq for Items {
    fn eq(&self, other: &Self) -> bool {
        self.items() == other.items()
    }
}

impl Clone for Items {
    fn clone(&self) -> Self {
        Self { items: self.items().to_vec(), start: 0, depth: self.depth, parts: self.parts }
    }
}

impl Items {
    fn new(items: Vec<Value>) -> Result<Arc<Self>, TooLarge> {
        let depth = depth_around(items.iter().map(Value::depth).max().unwrap_or(0))?;
        let parts = parts_of(&items)?;
        Ok(Arc::new(Self { items, start: 0, depth, parts }))
    }

    /// Adds to the number of parts.
    #[inline(always)]
    fn grow(&mut self, parts: u32) -> Result<(), TooLarge> {
        self.parts = self.parts.saturating_add(parts);
        if self.parts <= MAX_PARTS { Ok(()) } else { self.recount(parts) }
    }

    /// Counts the parts again, because removed parts were not subtracted.
    #[cold]
    fn recount(&mut self, more: u32) -> Result<(), TooLarge> {
        self.parts = parts_of(self.items())?;
        self.parts = self.parts.saturating_add(more);
        if self.parts <= MAX_PARTS { Ok(()) } else { Err(TooLarge::Parts) }
    }

    #[inline(always)]
    fn items(&self) -> &[Value] {
        &self.items[self.start..]
    }

    fn push(&mut self, item: Value) -> Result<(), TooLarge> {
        let depth = depth_around(item.depth())?;
        self.depth = self.depth.max(depth);
        self.grow(item.parts())?;
        self.items.push(item);
        Ok(())
    }

    fn push_front(&mut self, item: Value) -> Result<(), TooLarge> {
        let depth = depth_around(item.depth())?;
        self.depth = self.depth.max(depth);
        self.grow(item.parts())?;
        if self.start == 0 {
            let gap = self.items.len().max(4);
            self.items.splice(0..0, std::iter::repeat_n(Value::Nil, gap));
            self.start = gap;
        }
        self.start -= 1;
        self.items[self.start] = item;
        Ok(())
    }

    fn drop_front(&mut self, n: usize) {
        for item in &mut self.items[self.start..self.start + n] {
            *item = Value::Nil;
        }
        self.start += n;
    }
}

/// Returns the parts of a collection of these items.
pub(crate) fn parts_of<'a>(items: impl IntoIterator<Item = &'a Value>) -> Result<u32, TooLarge> {
    let parts = items.into_iter().fold(1, |sum: u32, item| sum.saturating_add(item.parts()));
    if parts <= MAX_PARTS { Ok(parts) } else { Err(TooLarge::Parts) }
}

/// Returns the depth of a collection whose deepest member has depth `inner`.
pub(crate) fn depth_around(inner: u16) -> Result<u16, TooLarge> {
    if inner < MAX_DEPTH { Ok(inner + 1) } else { Err(TooLarge::Levels) }
}

impl Vector {
    /// Creates a vector. Fails if it would be deeper than [`MAX_DEPTH`].
    pub fn new(items: Vec<Value>) -> Result<Self, TooLarge> {
        Items::new(items).map(Self)
    }

    /// Creates a vector of items that are not collections, so that its depth is known.
    pub(crate) fn flat(items: Vec<Value>) -> Self {
        let parts = u32::try_from(items.len()).unwrap_or(u32::MAX).saturating_add(1);
        Self(Arc::new(Items { items, start: 0, depth: 1, parts }))
    }

    /// Returns the items in their order.
    #[inline(always)]
    pub fn items(&self) -> &[Value] {
        self.0.items()
    }

    pub(crate) fn depth(&self) -> u16 {
        self.0.depth
    }

    pub(crate) fn parts(&self) -> u32 {
        self.0.parts
    }

    /// Appends in place if the vector is not shared, else to a copy.
    #[inline]
    pub fn push(&mut self, item: Value) -> Result<(), TooLarge> {
        Arc::make_mut(&mut self.0).push(item)
    }

    /// Changes an item in place if the vector is not shared, else in a copy.
    pub(crate) fn set(&mut self, at: usize, item: Value) -> Result<(), TooLarge> {
        let depth = depth_around(item.depth())?;
        let inner = Arc::make_mut(&mut self.0);
        inner.depth = inner.depth.max(depth);
        inner.grow(item.parts())?;
        let at = inner.start + at;
        inner.items[at] = item;
        Ok(())
    }

    /// Takes an item out, to be changed and put back. Leaves nil.
    pub(crate) fn take(&mut self, at: usize) -> Value {
        let inner = Arc::make_mut(&mut self.0);
        let at = inner.start + at;
        std::mem::take(&mut inner.items[at])
    }

    /// Returns the item, moved out if the vector is not shared.
    #[inline]
    pub(crate) fn take_or_clone(&mut self, at: usize) -> Option<Value> {
        match Arc::get_mut(&mut self.0) {
            Some(inner) => inner.items.get_mut(inner.start.saturating_add(at)).map(std::mem::take),
            None => self.items().get(at).cloned(),
        }
    }

    /// Removes the first `n` items, in place if the vector is not shared.
    pub(crate) fn drop_front(&mut self, n: usize) {
        let n = n.min(self.items().len());
        match Arc::get_mut(&mut self.0) {
            Some(inner) => inner.drop_front(n),
            None => {
                let items = self.items()[n..].to_vec();
                let Items { depth, parts, .. } = *self.0;
                self.0 = Arc::new(Items { items, start: 0, depth, parts });
            }
        }
    }

    /// Keeps the first `n` items.
    pub(crate) fn truncate(&mut self, n: usize) {
        match Arc::get_mut(&mut self.0) {
            Some(inner) => inner.items.truncate(inner.start + n),
            None => {
                let n = n.min(self.items().len());
                let items = self.items()[..n].to_vec();
                let Items { depth, parts, .. } = *self.0;
                self.0 = Arc::new(Items { items, start: 0, depth, parts });
            }
        }
    }

    /// Returns the items, moved out if the vector is not shared.
    pub(crate) fn into_items(mut self) -> Vec<Value> {
        match Arc::get_mut(&mut self.0) {
            Some(inner) => {
                let start = std::mem::take(&mut inner.start);
                let mut items = std::mem::take(&mut inner.items);
                items.drain(..start);
                items
            }
            None => self.items().to_vec(),
        }
    }

    /// Returns the items, to be rearranged. Every item put there must come from this vector, or from a
    /// vector that this is a [`Self::blank`] of.
    pub(crate) fn slots(&mut self) -> &mut [Value] {
        let inner = Arc::make_mut(&mut self.0);
        &mut inner.items[inner.start..]
    }

    /// Creates a vector of the same size, all nil, for items of this vector.
    pub(crate) fn blank(&self) -> Self {
        let items = std::iter::repeat_with(Value::default).take(self.items().len()).collect();
        let Items { depth, parts, .. } = *self.0;
        Self(Arc::new(Items { items, start: 0, depth, parts }))
    }

    pub(crate) fn is_unique(&self) -> bool {
        Arc::is_unique(&self.0)
    }

    /// Returns the capacity.
    pub(crate) fn capacity(&self) -> usize {
        self.0.items.capacity()
    }

    /// Returns the address of the shared data, and the number of its owners.
    pub(crate) fn identity(&self) -> (usize, usize) {
        (Arc::as_ptr(&self.0) as usize, Arc::count(&self.0))
    }

    pub(crate) fn into_list(self) -> List {
        List(self.0)
    }
}

impl List {
    /// Creates a list. Fails if it would be deeper than [`MAX_DEPTH`].
    pub fn new(items: Vec<Value>) -> Result<Self, TooLarge> {
        Items::new(items).map(Self)
    }

    /// Returns the items in their order.
    #[inline(always)]
    pub fn items(&self) -> &[Value] {
        self.0.items()
    }

    pub(crate) fn depth(&self) -> u16 {
        self.0.depth
    }

    pub(crate) fn parts(&self) -> u32 {
        self.0.parts
    }

    /// Prepends in place if the list is not shared, else to a copy.
    pub(crate) fn push_front(&mut self, item: Value) -> Result<(), TooLarge> {
        Arc::make_mut(&mut self.0).push_front(item)
    }

    pub(crate) fn into_vector(self) -> Vector {
        Vector(self.0)
    }

    /// Returns the address of the shared data, and the number of its owners.
    pub(crate) fn identity(&self) -> (usize, usize) {
        (Arc::as_ptr(&self.0) as usize, Arc::count(&self.0))
    }
}

/// The maximum nesting of collections.
pub const MAX_DEPTH: u16 = 1_000;

/// The maximum number of parts of a value, where each part is counted as often as it occurs. Values
/// share their parts, so a value of a few bytes could be astronomically large when it is compared,
/// hashed or written. With this limit, every traversal ends.
pub const MAX_PARTS: u32 = 1 << 24;

/// The error for a collection that would exceed the limits of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooLarge {
    /// Deeper than [`MAX_DEPTH`].
    Levels,
    /// More parts than [`MAX_PARTS`].
    Parts,
}

impl std::fmt::Display for TooLarge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Levels => write!(f, "nested deeper than {MAX_DEPTH} levels"),
            Self::Parts => write!(f, "of more than {MAX_PARTS} parts"),
        }
    }
}

impl std::error::Error for TooLarge {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_move_in_place_and_never_under_those_who_share() {
        let mut vector = Vector::new((0..5).map(Value::from).collect()).unwrap();
        let shared = vector.clone();
        vector.drop_front(2);
        vector.push(9.into()).unwrap();
        vector.drop_front(1);
        assert_eq!(vector.items(), [3.into(), 4.into(), 9.into()]);
        assert_eq!(shared.items().len(), 5);
        let mut list = List::new(Vec::new()).unwrap();
        for n in 0..100 {
            list.push_front(n.into()).unwrap();
        }
        assert_eq!(list.items().len(), 100);
        assert_eq!(list.items()[0], 99.into());
        assert_eq!(list.into_vector().into_items().len(), 100);
    }
}

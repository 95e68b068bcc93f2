//! Lazy sequences: cells that are computed on first access, once.
//!
//! A cell begins as a function. A reader of the cell asks the machine to call that function, and the
//! machine stores the result in the cell: the end, or an item and the rest of the sequence. No native
//! code therefore ever calls back into a program.

use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use triomphe::Arc;

use crate::sequence::{TooLarge, Vector, depth_around};
use crate::value::Value;

/// The maximum nesting of the items of a lazy sequence, unless its function already holds data of that
/// depth.
const UNSEEN_DEPTH: u16 = 100;

/// A lazy sequence or a stream.
#[derive(Clone)]
pub struct Seq(Arc<Cell>);

struct Cell {
    state: Mutex<State>,
    /// The integers of a sequence that began as a range. They never change, and reading them takes no
    /// lock.
    range: Option<Range>,
    /// All items, once all of them have been read.
    realized: OnceLock<Vector>,
    /// The stream that this sequence reads.
    stream: Option<std::sync::Arc<StreamHandle>>,
    depth: u16,
}

/// The state of a cell.
#[derive(Clone)]
pub(crate) enum State {
    /// Not computed: this function of no arguments returns `nil` at the end, else `[item rest]`.
    Thunk(Value),
    /// The next item of an open stream must be requested.
    Stream,
    Range(Range),
    /// Not a sequence: the cell in which `memoize` keeps its data.
    Kept(Value),
    /// An item, and the rest of the sequence.
    Item(Value, Value),
    /// The end of the sequence.
    End,
}

/// Integers from `next` by `step`, up to (not including) `end`.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    pub(crate) next: i64,
    pub(crate) step: i64,
    pub(crate) end: Option<i64>,
}

impl Range {
    /// Returns the integer at this index, unless the range ends before it.
    #[inline]
    pub(crate) fn nth(self, at: usize) -> Option<i64> {
        let far = self.step.checked_mul(i64::try_from(at).ok()?)?;
        let value = self.next.checked_add(far)?;
        let is_inside = match self.end {
            None => true,
            Some(end) if self.step > 0 => value < end,
            Some(end) => value > end,
        };
        is_inside.then_some(value)
    }
}

/// An open stream. When its last cell is dropped, its id is added to the list of streams to close.
pub(crate) struct StreamHandle {
    pub(crate) id: u64,
    pub(crate) closed: std::sync::Arc<Mutex<Vec<u64>>>,
}

impl Drop for StreamHandle {
    fn drop(&mut self) {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner).push(self.id);
    }
}

impl Seq {
    fn with(state: State, stream: Option<std::sync::Arc<StreamHandle>>, depth: u16) -> Self {
        let range = if let State::Range(range) = state { Some(range) } else { None };
        Self(Arc::new(Cell {
            state: Mutex::new(state),
            range,
            realized: OnceLock::new(),
            stream,
            depth,
        }))
    }

    pub(crate) fn lazy(thunk: Value) -> Result<Self, TooLarge> {
        let depth = depth_around(thunk.depth())?;
        Ok(Self::with(State::Thunk(thunk), None, depth))
    }

    /// Returns the cell in which `memoize` keeps its data.
    pub(crate) fn kept(value: Value) -> Self {
        Self::with(State::Kept(value), None, 1)
    }

    /// Restores a saved sequence. Fails if its items are much deeper than declared (see
    /// [`fill`](Self::fill)).
    pub(crate) fn saved(
        state: State,
        realized: Option<Vector>,
        stream: Option<std::sync::Arc<StreamHandle>>,
        depth: u16,
    ) -> Result<Self, TooLarge> {
        let most = depth.max(UNSEEN_DEPTH);
        let inside = match &state {
            State::Thunk(thunk) => depth_around(thunk.depth())?,
            State::Item(item, rest) => depth_around(item.depth())?.max(rest.depth()),
            State::Stream | State::Range(_) | State::Kept(_) | State::End => 1,
        };
        if inside > most
            || depth > crate::MAX_DEPTH
            || realized.as_ref().is_some_and(|items| items.depth() > most)
        {
            return Err(TooLarge::Levels);
        }
        let seq = Self::with(state, stream, depth.max(1));
        if let Some(items) = realized {
            seq.set_realized(items);
        }
        Ok(seq)
    }

    /// Realizes all items.
    pub(crate) fn realize(&self, items: &Vector) -> Result<(), TooLarge> {
        if items.depth() > self.0.depth.max(UNSEEN_DEPTH) {
            return Err(TooLarge::Levels);
        }
        self.set_realized(items.clone());
        self.set(State::End);
        Ok(())
    }

    /// Creates a sequence with a known first item and a rest.
    pub(crate) fn cons(item: Value, rest: Value) -> Result<Self, TooLarge> {
        // Traversal along the chain does not recurse.
        let depth = depth_around(item.depth())?.max(rest.depth());
        Ok(Self::with(State::Item(item, rest), None, depth))
    }

    pub(crate) fn range(next: i64, step: i64, end: Option<i64>) -> Self {
        Self::with(State::Range(Range { next, step, end }), None, 1)
    }

    /// Returns the integers, if the sequence is a range.
    #[inline]
    pub(crate) fn as_range(&self) -> Option<Range> {
        self.0.range
    }

    pub(crate) fn stream(handle: std::sync::Arc<StreamHandle>) -> Self {
        Self::with(State::Stream, Some(handle), 1)
    }

    pub(crate) fn handle(&self) -> Option<&std::sync::Arc<StreamHandle>> {
        self.0.stream.as_ref()
    }

    pub(crate) fn is_stream(&self) -> bool {
        self.0.stream.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> State {
        self.lock().clone()
    }

    /// Stores the result of the cell's function.
    pub(crate) fn set(&self, state: State) {
        let old = std::mem::replace(&mut *self.lock(), state);
        drop(old); // not under the lock
    }

    /// Stores an item that the cell's function returned, and the rest.
    ///
    /// The depth of a value that holds this cell was computed before the cell's content was known. The
    /// content may therefore not be much deeper. The actual nesting then stays bounded too (by the
    /// square of [`UNSEEN_DEPTH`] and [`MAX_DEPTH`](crate::MAX_DEPTH) together).
    pub(crate) fn fill(&self, item: &Value, rest: &Value) -> Result<(), TooLarge> {
        let most = self.0.depth.max(UNSEEN_DEPTH);
        if depth_around(item.depth())? > most || rest.depth() > most {
            return Err(TooLarge::Levels);
        }
        self.set(State::Item(item.clone(), rest.clone()));
        Ok(())
    }

    /// Returns all items, if all of them have been read.
    pub(crate) fn realized(&self) -> Option<&Vector> {
        self.0.realized.get()
    }

    fn set_realized(&self, items: Vector) {
        // A concurrent reader has stored the same items.
        let _ = self.0.realized.set(items);
    }

    pub(crate) fn depth(&self) -> u16 {
        self.0.depth
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the address of the shared data, and the number of its owners.
    pub(crate) fn identity(&self) -> (usize, usize) {
        (Arc::as_ptr(&self.0) as usize, Arc::count(&self.0))
    }
}

/// A chain of a million cells is dropped iteratively, without recursion. The same holds for cells in the
/// items of cells, whose depth is not counted.
impl Drop for Cell {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let state = std::mem::replace(state, State::End);
        let realized = self.realized.take();
        if matches!(state, State::End | State::Stream | State::Range(_)) && realized.is_none() {
            return;
        }
        let is_outermost = DROPPED.with(|dropped| {
            let mut dropped = dropped.borrow_mut();
            dropped.cells.push((state, realized));
            !std::mem::replace(&mut dropped.is_busy, true)
        });
        if is_outermost {
            // A nested drop adds to the list and returns immediately.
            while let Some(cell) = DROPPED.with(|dropped| dropped.borrow_mut().cells.pop()) {
                drop(cell);
            }
            DROPPED.with(|dropped| dropped.borrow_mut().is_busy = false);
        }
    }
}

/// The contents of dropped cells that are not dropped yet.
#[derive(Default)]
struct DroppedCells {
    cells: Vec<(State, Option<Vector>)>,
    is_busy: bool,
}

thread_local! {
    static DROPPED: RefCell<DroppedCells> = RefCell::default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_chain_is_dropped_without_recursion() {
        let mut chain = Seq::with(State::End, None, 1);
        for n in 0..1_000_000 {
            chain = Seq::with(State::Item(n.into(), Value::Seq(chain)), None, 1);
        }
        drop(chain);
    }
}

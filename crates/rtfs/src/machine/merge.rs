//! A merge sort whose comparisons are calls of the program.
//!
//! The state consists of ten consecutive registers of plain data. A comparison may therefore be
//! suspended, fail, or be any function. Each step takes the answer to the last comparison and puts the
//! next two items where the comparing code expects them.

use super::exec::{copy, put};
use crate::builtins;
use crate::sequence::Vector;
use crate::value::Value;

/// The registers of a sort: the items, a second vector of the same size (nil before the sort has begun),
/// the numbers of [`Merge`], and the two compared items.
pub(crate) const REGISTERS: usize = 10;
/// The first register of the numbers.
const NUMBERS: usize = 2;
/// The item of the later run, and that of the earlier one.
pub(crate) const LATER: usize = 8;
pub(crate) const EARLIER: usize = 9;

/// The state between two comparisons.
struct Merge {
    /// The length of the merged runs.
    width: usize,
    /// The beginning and end of the later run.
    mid: usize,
    end: usize,
    /// The next items of both runs.
    left: usize,
    right: usize,
    /// Whether the current comparison checks that the two runs are already in order.
    whole: bool,
}

/// Takes the answer and requests the next comparison. Returns false if there is none, and the sorted
/// items are in the first register. `moved` counts the items that were placed.
///
/// Not inlined, because inlining it into the machine's loop would take registers from all other
/// instructions.
#[inline(never)]
pub(super) fn step(registers: &mut [Value], answer: &Value, moved: &mut u64) -> bool {
    let [Value::Vector(items), out, state @ ..] = registers else { return false };
    let len = items.items().len();
    let (mut merge, out) = match out {
        Value::Vector(out) => {
            let Some(merge) = Merge::load(state, len).filter(|_| out.items().len() == len) else {
                return false;
            };
            (merge, out)
        }
        _ if len < 2 => return false,
        _ => {
            let merge = Merge { width: 1, mid: 1, end: 2.min(len), left: 0, right: 1, whole: true };
            *out = Value::Vector(items.blank());
            merge.store(items, state);
            return true;
        }
    };
    if merge.answered(items.slots(), out.slots(), builtins::before(answer), moved)
        && !merge.next(items, out, moved)
    {
        return false;
    }
    merge.store(items, state);
    true
}

impl Merge {
    /// Returns the numbers in the registers, if they are valid for this many items: those of a saved run
    /// may be anything.
    fn load(state: &[Value], len: usize) -> Option<Self> {
        let mut numbers = [0; LATER - NUMBERS];
        for (number, value) in numbers.iter_mut().zip(state) {
            let Value::Int(n) = value else { return None };
            *number = usize::try_from(*n).ok()?;
        }
        let [width, mid, end, left, right, whole] = numbers;
        let fits = (1..=len).contains(&width) && left < mid && mid <= right && right < end && end <= len;
        fits.then_some(Self { width, mid, end, left, right, whole: whole == 1 })
    }

    fn store(&self, items: &Vector, state: &mut [Value]) {
        let numbers = [self.width, self.mid, self.end, self.left, self.right, self.whole.into()];
        for (slot, number) in state.iter_mut().zip(numbers) {
            put(slot, Value::Int(number as i64));
        }
        let items = items.items();
        let earlier = if self.whole { self.mid - 1 } else { self.left };
        if let (Some(later), Some(earlier)) = (items.get(self.right), items.get(earlier)) {
            copy(&mut state[LATER - NUMBERS], later);
            copy(&mut state[EARLIER - NUMBERS], earlier);
        }
    }

    /// Processes an answer. Returns whether this pair of runs is now merged.
    fn answered(
        &mut self,
        items: &mut [Value],
        out: &mut [Value],
        before: bool,
        moved: &mut u64,
    ) -> bool {
        let at = self.left + self.right - self.mid;
        // The remaining items stay in order when there is nothing left to compare.
        let rest = if self.whole {
            self.whole = false;
            if before {
                return false;
            }
            self.left..self.end
        } else if before {
            out[at] = std::mem::take(&mut items[self.right]);
            self.right += 1;
            if self.right < self.end {
                return false;
            }
            self.left..self.mid
        } else {
            out[at] = std::mem::take(&mut items[self.left]);
            self.left += 1;
            if self.left < self.mid {
                return false;
            }
            self.right..self.end
        };
        *moved += rest.len() as u64;
        let to = self.end - rest.len();
        for (slot, item) in out[to..self.end].iter_mut().zip(&mut items[rest]) {
            *slot = std::mem::take(item);
        }
        true
    }

    /// Advances to the next pair of runs; returns false if all is sorted.
    fn next(&mut self, items: &mut Vector, out: &mut Vector, moved: &mut u64) -> bool {
        let len = items.items().len();
        loop {
            let at = self.end;
            self.mid = (at + self.width).min(len);
            self.end = (at + 2 * self.width).min(len);
            if self.mid < self.end {
                (self.left, self.right, self.whole) = (at, self.mid, true);
                return true;
            }
            // A run without a counterpart is copied.
            *moved += (self.end - at) as u64;
            for (slot, item) in
                out.slots()[at..self.end].iter_mut().zip(&mut items.slots()[at..self.end])
            {
                *slot = std::mem::take(item);
            }
            std::mem::swap(items, out);
            self.width *= 2;
            self.end = 0;
            if self.width >= len {
                return false;
            }
        }
    }
}

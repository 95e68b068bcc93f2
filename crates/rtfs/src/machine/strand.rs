//! A strand: one line of execution with its own stack.
//!
//! A thread keeps the memory of strands that have ended for the next ones, within limits. Otherwise a deep run would spend most
//! of its time on fresh pages, and `pmap` most of its own on filling stacks with nil.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use super::event::{Part, Scope};
use super::op::ForkKind;
use crate::value::Value;

/// The initial capacity of a stack: a window, and a few calls.
const STACK: usize = 288;
/// The maximum number of values that a thread keeps room for, in all stacks: 1 MiB. Half as many frames for each.
const SPARE: usize = 1 << 16;
/// The maximum number of stacks that a thread keeps.
const SPARE_STACKS: usize = 16;

thread_local! {
    /// The memory that strands have left. All values are nil.
    static ROOM: RefCell<Vec<(Vec<Value>, Vec<Frame>)>> = const { RefCell::new(Vec::new()) };
}

/// A line of execution. A run begins with one; `parallel` and similar forms start more.
pub(super) struct Strand {
    pub(super) stack: Vec<Value>,
    pub(super) frames: Vec<Frame>,
    pub(super) handlers: Vec<Handler>,
    /// The running function, the position in its code, and the beginning of its window.
    pub(super) proto: u32,
    pub(super) pc: usize,
    pub(super) base: usize,
    /// The register that waits for an answer.
    pub(super) wanted: u8,
    /// The strand that waits for this one, and the index of its result.
    pub(super) parent: Option<(usize, usize)>,
    /// The strands that this one waits for.
    pub(super) join: Option<Join>,
    /// An error to throw when it runs again.
    pub(super) failure: Option<crate::Error>,
    /// The ticket that it waits for.
    pub(super) ticket: Option<u64>,
    /// The nesting depth of calls in the strands that wait for this one.
    pub(super) outer_depth: usize,
    /// The current step or branch.
    pub(super) scope: Option<Arc<Scope>>,
    /// The number of steps beyond the known ones.
    pub(super) deeper: u64,
}

/// A waiting caller.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    pub(super) proto: u32,
    pub(super) pc: u32,
    pub(super) base: usize,
}

/// The destination of errors.
#[derive(Clone, Copy)]
pub(super) struct Handler {
    pub(super) frames: usize,
    pub(super) base: usize,
    pub(super) proto: u32,
    pub(super) pc: usize,
    pub(super) d: u8,
    pub(super) t: u8,
}

/// The strands that a strand waits for.
pub(super) struct Join {
    pub(super) kind: ForkKind,
    pub(super) results: Vec<Value>,
    pub(super) left: usize,
    /// The number of the form.
    pub(super) number: u64,
    /// The strands that run.
    pub(super) children: Vec<usize>,
    /// Strands that are not started, with the indices of their results.
    pub(super) pending: VecDeque<(usize, Value, Vec<Value>)>,
    /// The last error, if only a success ends the wait.
    pub(super) error: Option<crate::Error>,
}

impl Strand {
    /// Creates a strand that runs code with these arguments, which match it.
    pub(super) fn new(proto: u32, callee: Value, args: Vec<Value>) -> Self {
        let spare = ROOM.try_with(|room| room.borrow_mut().pop()).ok().flatten();
        let (mut stack, frames) = spare.unwrap_or_default();
        stack.resize_with(STACK, Value::default);
        for (slot, value) in stack.iter_mut().zip(std::iter::once(callee).chain(args)) {
            *slot = value;
        }
        Self {
            stack,
            frames,
            handlers: Vec::new(),
            proto,
            pc: 0,
            base: 0,
            wanted: 0,
            parent: None,
            join: None,
            failure: None,
            ticket: None,
            outer_depth: 0,
            scope: None,
            deeper: 0,
        }
    }
}

impl Strand {
    /// Enters a step.
    pub(super) fn enter_step(&mut self, name: &str, number: u64) {
        if self.scope.as_ref().map_or(0, |scope| scope.depth()) >= Scope::DEEPEST {
            self.deeper += 1;
            return;
        }
        let part = Part::Step(name.chars().take(80).collect());
        self.scope = Some(Arc::new(Scope { part, number, outer: self.scope.take() }));
    }

    /// Leaves the step that was entered last.
    pub(super) fn leave_step(&mut self) {
        if self.deeper > 0 {
            self.deeper -= 1;
        } else if let Some(Scope { part: Part::Step(_), outer, .. }) = self.scope.as_deref() {
            self.scope = outer.clone();
        }
    }

    /// Returns the scope of a branch of a form that it waits for.
    pub(super) fn branch(&self, kind: ForkKind, number: u64, index: usize) -> Option<Arc<Scope>> {
        if self.scope.as_ref().map_or(0, |scope| scope.depth()) >= Scope::DEEPEST {
            return self.scope.clone();
        }
        let part = Part::Branch { form: kind.form(), index: index as u64 };
        Some(Arc::new(Scope { part, number, outer: self.scope.clone() }))
    }

    /// Makes room for a window from `base` on, and returns the number of further values that fit.
    #[cold]
    #[inline(never)]
    pub(super) fn grow(&mut self, base: usize) -> usize {
        let before = self.stack.len();
        self.stack.resize_with((before * 2).max(base + 256), Value::default);
        self.stack.len() - before
    }
}

impl Drop for Strand {
    fn drop(&mut self) {
        let (mut stack, mut frames) =
            (std::mem::take(&mut self.stack), std::mem::take(&mut self.frames));
        for value in &mut stack {
            let value = std::mem::take(value);
            // Most of a stack is nil, and costs nothing to drop.
            if value.is_immediate() {
                std::mem::forget(value);
            }
        }
        frames.clear();
        // A thread that ends keeps no memory.
        let _ = ROOM.try_with(|room| {
            let mut room = room.borrow_mut();
            let kept: usize = room.iter().map(|(stack, _)| stack.capacity()).sum();
            if room.len() < SPARE_STACKS
                && kept + stack.capacity() <= SPARE
                && frames.capacity() <= SPARE / 2
            {
                room.push((stack, frames));
            }
        });
    }
}

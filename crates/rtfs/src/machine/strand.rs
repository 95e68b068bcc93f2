//! A strand: one line of execution with its own stack.
//!
//! A thread keeps the memory of a grown stack for the next strand, within limits. Otherwise a deep run
//! would spend most of its time on fresh pages.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use super::event::{Part, Scope};
use super::op::ForkKind;
use crate::value::Value;

/// The initial capacity of a stack: a window, and a few calls.
const STACK: usize = 288;
/// The maximum number of kept values and frames: 1 MiB, and half as much.
const SPARE: usize = 1 << 16;

thread_local! {
    /// The memory that the last strand has left.
    static ROOM: RefCell<(Vec<Value>, Vec<Frame>)> = const { RefCell::new((Vec::new(), Vec::new())) };
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
        let (mut stack, frames) = ROOM.try_with(RefCell::take).unwrap_or_default();
        stack.reserve(STACK);
        stack.push(callee);
        stack.extend(args);
        stack.resize_with(STACK, Value::default);
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

/// Most of a stack is nil, and costs nothing to drop.
impl Drop for Strand {
    fn drop(&mut self) {
        while let Some(value) = self.stack.pop() {
            if value.is_immediate() {
                std::mem::forget(value);
            }
        }
        let (stack, mut frames) = (std::mem::take(&mut self.stack), std::mem::take(&mut self.frames));
        frames.clear();
        // A thread that ends keeps no memory.
        let _ = ROOM.try_with(|room| {
            let mut room = room.borrow_mut();
            if (room.0.capacity()..=SPARE).contains(&stack.capacity()) && frames.capacity() <= SPARE / 2
            {
                *room = (stack, frames);
            }
        });
    }
}

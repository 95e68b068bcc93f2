//! Functions as values.
//!
//! A function is the number of its code in its program, with its captured values. It is valid only in a
//! run of that program. No function leaves a run as data, except in a run that is saved as a whole.

use triomphe::Arc;

use crate::sequence::{TooLarge, depth_around};
use crate::value::Value;

/// A function of the standard library, by its index in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Native(pub(crate) u16);

/// A function that captures nothing, by its index in its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub(crate) u32);

/// A function and what it captured.
#[derive(Clone)]
pub struct Closure(Arc<Captured>);

struct Captured {
    code: u32,
    depth: u16,
    /// Most functions capture one or two values, which need no allocation.
    first: [Value; INLINE],
    more: Vec<Value>,
}

const INLINE: usize = 2;

impl Closure {
    /// Moves the captured values out of `values`.
    pub(crate) fn new(code: u32, values: &mut [Value]) -> Result<Self, TooLarge> {
        let depth = depth_around(values.iter().map(Value::depth).max().unwrap_or(0))?;
        let mut values = values.iter_mut().map(std::mem::take);
        let first = [values.next().unwrap_or_default(), values.next().unwrap_or_default()];
        Ok(Self(Arc::new(Captured { code, depth, first, more: values.collect() })))
    }

    #[inline(always)]
    pub(crate) fn code(&self) -> u32 {
        self.0.code
    }

    #[inline(always)]
    pub(crate) fn get(&self, at: usize) -> &Value {
        /// A saved run that was modified may contain a function without the values that its code needs.
        static NOTHING: Value = Value::Nil;
        if at < INLINE { &self.0.first[at] } else { self.0.more.get(at - INLINE).unwrap_or(&NOTHING) }
    }

    pub(crate) fn captured(&self) -> impl Iterator<Item = &Value> {
        self.0.first.iter().chain(&self.0.more)
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

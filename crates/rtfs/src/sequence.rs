//! Vectors and lists, and how deep collections may be.

use triomphe::Arc;

use crate::value::Value;

/// `[1 2 3]`
#[derive(Clone, Debug, PartialEq)]
pub struct Vector(Arc<Items>);

/// `(1 2 3)`
#[derive(Clone, Debug, PartialEq)]
pub struct List(Arc<Items>);

#[derive(Clone, Debug)]
struct Items {
    items: Vec<Value>,
    depth: u16,
}

impl PartialEq for Items {
    fn eq(&self, other: &Self) -> bool {
        self.items == other.items
    }
}

impl Items {
    fn new(items: Vec<Value>) -> Result<Arc<Self>, TooDeep> {
        let depth = depth_around(items.iter().map(Value::depth).max().unwrap_or(0))?;
        Ok(Arc::new(Self { items, depth }))
    }
}

/// The depth of a collection whose deepest member has depth `inner`.
pub(crate) fn depth_around(inner: u16) -> Result<u16, TooDeep> {
    if inner < MAX_DEPTH { Ok(inner + 1) } else { Err(TooDeep) }
}

impl Vector {
    /// Fails if it would be deeper than [`MAX_DEPTH`].
    pub fn new(items: Vec<Value>) -> Result<Self, TooDeep> {
        Items::new(items).map(Self)
    }

    /// The items in their order.
    pub fn items(&self) -> &[Value] {
        &self.0.items
    }

    pub(crate) fn depth(&self) -> u16 {
        self.0.depth
    }

    /// Appends in place if nobody else holds this vector, else to a copy.
    pub fn push(&mut self, item: Value) -> Result<(), TooDeep> {
        let depth = depth_around(item.depth())?;
        let inner = Arc::make_mut(&mut self.0);
        inner.depth = inner.depth.max(depth);
        inner.items.push(item);
        Ok(())
    }
}

impl List {
    /// Fails if it would be deeper than [`MAX_DEPTH`].
    pub fn new(items: Vec<Value>) -> Result<Self, TooDeep> {
        Items::new(items).map(Self)
    }

    /// The items in their order.
    pub fn items(&self) -> &[Value] {
        &self.0.items
    }

    pub(crate) fn depth(&self) -> u16 {
        self.0.depth
    }
}

/// How deep collections may be nested in each other.
pub const MAX_DEPTH: u16 = 1_000;

/// A collection would have been nested deeper than [`MAX_DEPTH`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooDeep;

impl std::fmt::Display for TooDeep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "nested deeper than {MAX_DEPTH} levels")
    }
}

impl std::error::Error for TooDeep {}

//! Named types.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::TypeExpr;

/// What `[:ref Name]` means, name by name. A definition may refer to itself and to others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Definitions(BTreeMap<Arc<str>, TypeExpr>);

impl Definitions {
    /// No names.
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Gives a name its meaning, and returns the one it had.
    pub fn define(&mut self, name: impl Into<Arc<str>>, ty: TypeExpr) -> Option<TypeExpr> {
        self.0.insert(name.into(), ty)
    }

    /// What a name means.
    pub fn get(&self, name: &str) -> Option<&TypeExpr> {
        self.0.get(name)
    }

    /// Returns how many names there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns all names and their meanings, in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &TypeExpr)> {
        self.0.iter().map(|(name, ty)| (&**name, ty))
    }
}

//! Named types.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::TypeExpr;

/// The definitions of names in `[:ref Name]`. A definition may refer to itself and to others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Definitions(BTreeMap<Arc<str>, TypeExpr>);

impl Definitions {
    /// Creates an empty set of definitions.
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Defines a name, and returns its previous definition.
    pub fn define(&mut self, name: impl Into<Arc<str>>, ty: TypeExpr) -> Option<TypeExpr> {
        self.0.insert(name.into(), ty)
    }

    /// Returns the definition of a name.
    pub fn get(&self, name: &str) -> Option<&TypeExpr> {
        self.0.get(name)
    }

    /// Returns the number of names.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no names.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns all names and their definitions, in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &TypeExpr)> {
        self.0.iter().map(|(name, ty)| (&**name, ty))
    }
}

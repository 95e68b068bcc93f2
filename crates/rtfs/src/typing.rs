//! Where the language meets its types: annotations, `is?`, `check`.

use std::sync::Arc;

use crate::types::{Primitive, TypeExpr};
use crate::value::Value;

/// The named types of a program.
pub(crate) type Types = std::collections::BTreeMap<Arc<str>, TypeExpr>;

/// The type that data says.
pub(crate) fn parse(value: &Value) -> Result<TypeExpr, String> {
    let _ = value;
    Ok(TypeExpr::Primitive(Primitive::Any))
}

/// What is wrong with a value of that type.
pub(crate) fn check(ty: &TypeExpr, value: &Value, types: &Types, what: &str) -> Result<(), String> {
    let _ = (ty, value, types, what);
    Ok(())
}

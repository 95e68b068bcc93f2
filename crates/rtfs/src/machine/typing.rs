//! Type checks at run time: annotations, `is?`, `check`.

use std::sync::Arc;

use super::{Context, Fault, fault};
use crate::types::{Checking, Definitions, TypeExpr, Violation};
use crate::value::Value;

/// Returns the type that data describes, or why the data is not a type.
pub(crate) fn parse(value: &Value) -> Result<TypeExpr, String> {
    TypeExpr::from_value(value).map_err(|invalid| invalid.problem)
}

/// Checks a value against a type, and returns all violations.
pub(crate) fn check(
    ty: &TypeExpr,
    value: &Value,
    types: &Definitions,
    what: &str,
) -> Result<(), Vec<Violation>> {
    Checking { definitions: types, ..Checking::default() }.check(ty, value, what)
}

/// Returns whether a value is of that type.
pub(crate) fn admits(ty: &TypeExpr, value: &Value, types: &Definitions) -> bool {
    Checking { definitions: types, ..Checking::default() }.admits(ty, value)
}

impl Context {
    /// Returns the type that data describes, parsed once.
    pub(crate) fn type_of_data(&mut self, data: &Value) -> Result<Arc<TypeExpr>, Box<Fault>> {
        /// The size of the cache. Further types are parsed at each use.
        const CACHED: usize = 32;
        if let Some((_, ty)) = self.type_cache.iter().find(|(known, _)| known == data) {
            return Ok(ty.clone());
        }
        let ty = Arc::new(parse(data).map_err(|problem| fault("invalid-argument", problem))?);
        if self.type_cache.len() < CACHED {
            self.type_cache.push((data.clone(), ty.clone()));
        }
        Ok(ty)
    }
}

/// Returns the type of a value as data: `:int`, `[:vector :string]`, `[:map [:a :int]]`.
pub(crate) fn type_of(value: &Value) -> Result<Value, Box<Fault>> {
    /// The maximum nesting; deeper types are `:any`.
    const DEEPEST: usize = 20;
    fn at(value: &Value, depth: usize) -> Result<Value, Box<Fault>> {
        let form = |parts: Vec<Value>| -> Result<Value, Box<Fault>> { Ok(Value::vector(parts)?) };
        let all = |items: &mut dyn Iterator<Item = &Value>| -> Result<Value, Box<Fault>> {
            let mut types: Vec<Value> = Vec::new();
            for item in items {
                let ty = at(item, depth + 1)?;
                if !types.contains(&ty) {
                    types.push(ty);
                }
                if types.len() > 8 {
                    return Ok(Value::keyword("any"));
                }
            }
            match types.len() {
                0 => Ok(Value::keyword("any")),
                1 => Ok(types.remove(0)),
                _ => {
                    types.insert(0, Value::keyword("union"));
                    form(types)
                }
            }
        };
        if depth > DEEPEST {
            return Ok(Value::keyword("any"));
        }
        Ok(Value::keyword(match value {
            Value::Bool(_) => "bool",
            Value::Int(_) | Value::BigInt(_) => "int",
            Value::Native(_) | Value::Code(_) | Value::Closure(_) => "fn",
            Value::Vector(vector) => {
                return form(vec![Value::keyword("vector"), all(&mut vector.items().iter())?]);
            }
            Value::List(list) => {
                return form(vec![Value::keyword("list"), all(&mut list.items().iter())?]);
            }
            Value::Set(set) => return form(vec![Value::keyword("set"), all(&mut set.iter())?]),
            Value::Map(map)
                if !map.is_empty() && map.iter().all(|(key, _)| matches!(key, Value::Keyword(_))) =>
            {
                let mut parts = vec![Value::keyword("map")];
                for (key, value) in map.iter() {
                    parts.push(form(vec![key.clone(), at(value, depth + 1)?])?);
                }
                return form(parts);
            }
            Value::Map(map) => {
                let keys = all(&mut map.iter().map(|entry| entry.0))?;
                return form(vec![
                    Value::keyword("map-of"),
                    keys,
                    all(&mut map.iter().map(|entry| entry.1))?,
                ]);
            }
            Value::Seq(_) => return form(vec![Value::keyword("stream"), Value::keyword("any")]),
            other => other.type_name(),
        }))
    }
    at(value, 0)
}

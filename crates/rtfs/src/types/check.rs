//! Checks whether a value has a type.

use std::cell::Cell;

use super::predicate::{all_differ, equal, is_number, look_up};
use super::violation::Path;
use super::{Definitions, Field, MapType, Primitive, TypeExpr, Violation};
use crate::map::Map;
use crate::scalar::{Instant, Uuid};
use crate::value::Value;

/// The maximum number of violations that one check reports: a longer list is of no use.
pub(super) const MAX_VIOLATIONS: usize = 1_000;
/// The maximum recursion, for the usual stack of a thread. Each level of the value takes one, and each
/// union around its type another. Values of recursive types can be checked to some 500 levels, four
/// times as deep as most JSON readers go.
const MAX_RECURSION: u32 = 1_000;
/// The origin of the value that is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// A program: the value represents itself.
    #[default]
    Value,
    /// JSON: the value represents any value with this JSON, as the text `"a"` does for the keyword `:a`,
    /// an array without duplicates for a set, `"2026-11-20T10:00:00Z"` for an instant, and `1.0` for
    /// `1`.
    Json,
}

/// The settings of checks.
#[derive(Clone, Copy, Debug)]
pub struct Checking<'d> {
    /// The meaning of `[:ref Name]`.
    pub definitions: &'d Definitions,
    /// The origin of the values.
    pub form: Form,
    /// The maximum number of comparisons of a value with a part of a type in one check. A recursive type
    /// with several alternatives can need an impractical number.
    pub max_steps: u64,
}

impl Default for Checking<'_> {
    /// Settings for values of a program, no named types, and steps for about a second.
    fn default() -> Self {
        static NONE: Definitions = Definitions::new();
        Self { definitions: &NONE, form: Form::Value, max_steps: 50_000_000 }
    }
}

impl TypeExpr {
    /// Checks whether a value has this type. `root` is the beginning of the paths of violations.
    ///
    /// # Errors
    /// All violations, up to 1,000, in the order of the type.
    pub fn check(&self, value: &Value, root: &str) -> Result<(), Vec<Violation>> {
        Checking::default().check(self, value, root)
    }

    /// Returns whether a value has this type, without the reasons.
    pub fn admits(&self, value: &Value) -> bool {
        Checking::default().admits(self, value)
    }
}

impl Checking<'_> {
    /// Checks whether a value has a type. `root` is the beginning of the paths of violations.
    ///
    /// # Errors
    /// All violations, up to 1,000, in the order of the type.
    pub fn check(&self, ty: &TypeExpr, value: &Value, root: &str) -> Result<(), Vec<Violation>> {
        if self.admits(ty, value) {
            return Ok(());
        }
        let walk = Walk::new(self);
        let mut found = Vec::new();
        walk.explain(ty, value, self.form, Path::Root(root), Level::start(self.definitions), &mut found);
        if walk.spent.get() || found.is_empty() {
            let expected = format!(
                "what can be compared with its type in {} steps and {MAX_RECURSION} levels",
                self.max_steps
            );
            found = vec![Violation::new(Path::Root(root), expected, Some(value))];
        }
        found.dedup();
        found.truncate(MAX_VIOLATIONS);
        Err(found)
    }

    /// Returns whether a value has a type, without the reasons. Allocates nothing, except for long
    /// sequences whose items must differ, for floats that must be multiples, and for JSON texts that
    /// must be parsed as another kind.
    pub fn admits(&self, ty: &TypeExpr, value: &Value) -> bool {
        let walk = Walk::new(self);
        walk.admits(ty, value, self.form, Level::start(self.definitions)) && !walk.spent.get()
    }
}

/// The state of one check.
pub(super) struct Walk {
    steps: Cell<u64>,
    /// Whether the check stopped before the result was known.
    pub(super) spent: Cell<bool>,
}

/// The position of a check.
#[derive(Clone, Copy)]
pub(super) struct Level<'d> {
    /// The recursion depth.
    recursion: u32,
    /// The number of names that were looked up since the last step into the value. If it exceeds the
    /// number of definitions, a name only refers to itself.
    names: usize,
    /// The definitions in scope.
    definitions: &'d Definitions,
}

impl<'d> Level<'d> {
    fn start(definitions: &'d Definitions) -> Self {
        Self { recursion: 0, names: 0, definitions }
    }

    /// Continues with another part of the type and the same value.
    pub(super) fn same(self) -> Self {
        Self { recursion: self.recursion + 1, ..self }
    }

    /// Continues with a part of the value.
    pub(super) fn inner(self) -> Self {
        Self { recursion: self.recursion + 1, names: 0, ..self }
    }
}

impl Walk {
    fn new(checking: &Checking<'_>) -> Self {
        Self { steps: Cell::new(checking.max_steps), spent: Cell::new(false) }
    }

    pub(super) fn may_go_on(&self, level: Level<'_>) -> bool {
        match self.steps.get().checked_sub(1) {
            Some(left) if level.recursion < MAX_RECURSION => self.steps.set(left),
            _ => self.spent.set(true),
        }
        !self.spent.get()
    }

    /// Returns the type without surrounding names and origins; `None` for an undefined name.
    pub(super) fn resolve<'t>(
        &self,
        mut ty: &'t TypeExpr,
        level: &mut Level<'t>,
    ) -> Option<&'t TypeExpr> {
        loop {
            match ty {
                TypeExpr::JsonSchema { meaning, .. } => ty = meaning,
                TypeExpr::Defined { ty: inner, definitions } => {
                    (ty, level.definitions, level.names) = (inner, definitions, 0);
                }
                TypeExpr::Ref(name) => {
                    level.names += 1;
                    if level.names > level.definitions.len() {
                        return None;
                    }
                    ty = level.definitions.get(name)?;
                }
                ty => return Some(ty),
            }
        }
    }

    pub(super) fn admits(&self, ty: &TypeExpr, value: &Value, form: Form, level: Level<'_>) -> bool {
        if !self.may_go_on(level) {
            return false;
        }
        let mut level = level;
        let mut resolved = self.resolve(ty, &mut level);
        while let Some(TypeExpr::And(base, predicates)) = resolved {
            if !predicates.iter().all(|predicate| predicate.holds(value, form)) {
                return false;
            }
            resolved = self.resolve(base, &mut level);
        }
        let Some(ty) = resolved else { return false };
        match (ty, value) {
            (TypeExpr::Primitive(primitive), value) => is_primitive(*primitive, value, form),
            (TypeExpr::Union(types), value) => {
                types.iter().any(|ty| self.admits(ty, value, form, level.same()))
            }
            (TypeExpr::Set(item), Value::Set(set)) => {
                set.iter().all(|value| self.admits(item, value, form, level.inner()))
            }
            (TypeExpr::Vector(item) | TypeExpr::List(item) | TypeExpr::Set(item), value) => {
                let items = items_as(ty, value, form);
                items.is_some_and(|items| {
                    items.iter().all(|value| self.admits(item, value, form, level.inner()))
                })
            }
            (TypeExpr::Tuple(types), value) => value.items().is_some_and(|items| {
                let mut pairs = types.iter().zip(items);
                items.len() == types.len()
                    && pairs.all(|(ty, value)| self.admits(ty, value, form, level.inner()))
            }),
            (TypeExpr::Array { item, shape }, value) => self.is_array(item, shape, value, form, level),
            (TypeExpr::Map(record), Value::Map(map)) => self.is_record(record, map, form, level.inner()),
            (TypeExpr::MapOf(keys, values), Value::Map(map)) => map.iter().all(|(key, value)| {
                self.admits_key(keys, key, form, level.inner())
                    && self.admits(values, value, form, level.inner())
            }),
            (TypeExpr::Enum(values), value) => values.iter().any(|wanted| equal(wanted, value, form)),
            (TypeExpr::Val(wanted), value) => equal(wanted, value, form),
            // A value from JSON also represents itself, and that is enough to match.
            (TypeExpr::Not(ty), value) => !self.admits(ty, value, Form::Value, level.same()),
            (TypeExpr::Stream(_), value) => matches!(value.type_name(), "stream" | "sequence"),
            (TypeExpr::Fn { .. }, value) => is_primitive(Primitive::Fn, value, form),
            _ => false,
        }
    }

    fn is_array(
        &self,
        item: &TypeExpr,
        shape: &[Option<u64>],
        value: &Value,
        form: Form,
        level: Level<'_>,
    ) -> bool {
        let Some((size, inner_shape)) = shape.split_first() else {
            return self.admits(item, value, form, level.same());
        };
        self.may_go_on(level)
            && value.items().is_some_and(|items| {
                size.is_none_or(|size| size == items.len() as u64)
                    && items
                        .iter()
                        .all(|value| self.is_array(item, inner_shape, value, form, level.inner()))
            })
    }

    fn is_record(&self, record: &MapType, map: &Map, form: Form, level: Level<'_>) -> bool {
        let mut known = 0;
        for Field { key, ty, optional } in &record.fields {
            match look_up(map, key, form) {
                Some(value) if self.admits(ty, value, form, level) => known += 1,
                None if *optional => {}
                _ => return false,
            }
        }
        match &record.others {
            Some(others) if known < map.len() => {
                others_of(record, map, form).all(|(_, value)| self.admits(others, value, form, level))
            }
            _ => true,
        }
    }

    /// Returns whether a key matches its type. JSON has only text keys, which became keywords.
    pub(super) fn admits_key(&self, ty: &TypeExpr, key: &Value, form: Form, level: Level<'_>) -> bool {
        if self.admits(ty, key, form, level) {
            return true;
        }
        let (Form::Json, Value::Keyword(keyword)) = (form, key) else { return false };
        let name = keyword.name();
        if matches!(ty, TypeExpr::Primitive(Primitive::String | Primitive::Symbol)) {
            return true;
        }
        if self.admits(ty, &Value::from(name), form, level) {
            return true;
        }
        let digits = name.strip_prefix('-').unwrap_or(name);
        let is_integer = (1..=1_000).contains(&digits.len())
            && digits.bytes().all(|byte| byte.is_ascii_digit())
            && (!digits.starts_with('0') || name == "0");
        is_integer
            && name
                .parse::<num_bigint::BigInt>()
                .is_ok_and(|integer| self.admits(ty, &Value::from(integer), form, level))
    }
}

/// Returns the items of a vector, list or set of a type, if `value` can be one. JSON has only arrays.
pub(super) fn items_as<'v>(ty: &TypeExpr, value: &'v Value, form: Form) -> Option<&'v [Value]> {
    match (ty, value) {
        (TypeExpr::Vector(_), Value::Vector(items)) => Some(items.items()),
        (TypeExpr::List(_), Value::List(items)) => Some(items.items()),
        (TypeExpr::List(_), Value::Vector(items)) if form == Form::Json => Some(items.items()),
        (TypeExpr::Set(_), Value::Vector(items)) if form == Form::Json && all_differ(items.items()) => {
            Some(items.items())
        }
        _ => None,
    }
}

/// Returns the entries of a map that match no field of a record.
pub(super) fn others_of<'m>(
    record: &MapType,
    map: &'m Map,
    form: Form,
) -> impl Iterator<Item = (&'m Value, &'m Value)> {
    let is_field = move |key: &Value| {
        record.fields.iter().any(|field| {
            field.key == *key
                || (form == Form::Json
                    && matches!(key, Value::Keyword(name) if same_in_json(&field.key, name.name())))
        })
    };
    map.iter().filter(move |(key, _)| !is_field(key))
}

/// Returns whether a key of a type has this name in JSON.
fn same_in_json(key: &Value, name: &str) -> bool {
    match key {
        Value::Keyword(keyword) => keyword.name() == name,
        Value::Str(text) => text.as_str() == name,
        Value::Symbol(symbol) => symbol.name() == name,
        key => key.to_string() == name,
    }
}

pub(super) fn is_primitive(primitive: Primitive, value: &Value, form: Form) -> bool {
    let text = match value {
        Value::Str(text) if form == Form::Json => Some(text.as_str()),
        _ => None,
    };
    match primitive {
        Primitive::Any => true,
        Primitive::Never => false,
        Primitive::Nil => matches!(value, Value::Nil),
        Primitive::Bool => matches!(value, Value::Bool(_)),
        Primitive::Int => match value {
            Value::Int(_) | Value::BigInt(_) => true,
            Value::Float(float) => form == Form::Json && float.is_finite() && float.fract() == 0.0,
            _ => false,
        },
        Primitive::Float | Primitive::Number => is_number(value),
        Primitive::String => matches!(value, Value::Str(_)),
        Primitive::Keyword => matches!(value, Value::Keyword(_)) || text.is_some(),
        Primitive::Symbol => matches!(value, Value::Symbol(_)) || text.is_some(),
        Primitive::Instant => {
            matches!(value, Value::Instant(_)) || text.is_some_and(|text| Instant::parse(text).is_some())
        }
        Primitive::Uuid => {
            matches!(value, Value::Uuid(_)) || text.is_some_and(|text| Uuid::parse(text).is_some())
        }
        Primitive::Fn => value.type_name() == "function",
    }
}

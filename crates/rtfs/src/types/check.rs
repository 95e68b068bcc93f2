//! Whether a value is of a type, and why not.

use std::cell::Cell;

use super::predicate::{all_differ, equal, is_number, look_up};
use super::violation::{Path, cut};
use super::{Definitions, Field, MapType, Predicate, Primitive, TypeExpr, Violation, format};
use crate::map::Map;
use crate::value::Value;

/// The most violations that one check reports: millions of wrong items help nobody.
const MAX_VIOLATIONS: usize = 1_000;
/// The deepest recursion, for a thread's usual stack. Each level of the value takes one, and each
/// union around its type another: values of recursive types can be checked to some 500 levels, four
/// times as deep as most readers of JSON go.
const MAX_RECURSION: u32 = 1_000;
/// A type that is longer than this is not shown in whole when only a predicate of it is broken.
const LONG: usize = 120;

/// Where the value that is checked came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// A program: it is what it is.
    #[default]
    Value,
    /// JSON: it stands for any value with this JSON, as the text `"a"` does for the keyword `:a`, an
    /// array without duplicates for a set, `"2026-11-20T10:00:00Z"` for an instant, and `1.0` for `1`.
    Json,
}

/// How values are checked.
#[derive(Clone, Copy, Debug)]
pub struct Checking<'d> {
    /// What `[:ref Name]` means.
    pub definitions: &'d Definitions,
    /// Where the values come from.
    pub form: Form,
    /// How many comparisons of a value with a part of a type one check may take. A type that refers
    /// to itself in several alternatives can need more than anyone has time for.
    pub max_steps: u64,
}

impl Default for Checking<'_> {
    /// Values of a program, no named types, and steps for a second or so.
    fn default() -> Self {
        static NONE: Definitions = Definitions::new();
        Self { definitions: &NONE, form: Form::Value, max_steps: 50_000_000 }
    }
}

impl TypeExpr {
    /// Whether a value is of this type. `root` is what the paths of violations begin with.
    ///
    /// # Errors
    /// All violations, up to 1,000, in the order of the type.
    pub fn check(&self, value: &Value, root: &str) -> Result<(), Vec<Violation>> {
        Checking::default().check(self, value, root)
    }

    /// Whether a value is of this type, without the reasons.
    pub fn admits(&self, value: &Value) -> bool {
        Checking::default().admits(self, value)
    }
}

impl Checking<'_> {
    /// Whether a value is of a type. `root` is what the paths of violations begin with.
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

    /// Whether a value is of a type, without the reasons. It allocates nothing, but for the items
    /// of long sequences that have to differ and for floats that have to be multiples.
    pub fn admits(&self, ty: &TypeExpr, value: &Value) -> bool {
        let walk = Walk::new(self);
        walk.admits(ty, value, self.form, Level::start(self.definitions)) && !walk.spent.get()
    }
}

/// One check, with what it may still do.
struct Walk {
    steps: Cell<u64>,
    /// Whether it had to stop before it knew.
    spent: Cell<bool>,
}

/// How far in a check is.
#[derive(Clone, Copy)]
struct Level<'d> {
    /// How many calls of the stack.
    recursion: u32,
    /// How many names were looked up since the last step into the value: more than there are is a
    /// name that means only itself.
    names: usize,
    /// What names mean here.
    definitions: &'d Definitions,
}

impl<'d> Level<'d> {
    fn start(definitions: &'d Definitions) -> Self {
        Self { recursion: 0, names: 0, definitions }
    }

    /// For another part of the type and the same value.
    fn same(self) -> Self {
        Self { recursion: self.recursion + 1, ..self }
    }

    /// For a part of the value.
    fn inner(self) -> Self {
        Self { recursion: self.recursion + 1, names: 0, ..self }
    }
}

impl Walk {
    fn new(checking: &Checking<'_>) -> Self {
        Self { steps: Cell::new(checking.max_steps), spent: Cell::new(false) }
    }

    fn may_go_on(&self, level: Level<'_>) -> bool {
        match self.steps.get().checked_sub(1) {
            Some(left) if level.recursion < MAX_RECURSION => self.steps.set(left),
            _ => self.spent.set(true),
        }
        !self.spent.get()
    }

    /// The type without names and origins around it, or `None` for a name that means nothing.
    fn resolve<'t>(&self, mut ty: &'t TypeExpr, level: &mut Level<'t>) -> Option<&'t TypeExpr> {
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

    fn admits(&self, ty: &TypeExpr, value: &Value, form: Form, level: Level<'_>) -> bool {
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
            // What came from JSON stands for itself, too, and that is enough to be something else.
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

    /// A key of a map. JSON knows texts for keys alone, and they came as keywords.
    fn admits_key(&self, ty: &TypeExpr, key: &Value, form: Form, level: Level<'_>) -> bool {
        if self.admits(ty, key, form, level) {
            return true;
        }
        let (Form::Json, Value::Keyword(keyword)) = (form, key) else { return false };
        let name = keyword.name();
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

    /// Says why a value that is not of a type is none.
    fn explain(
        &self,
        ty: &TypeExpr,
        value: &Value,
        form: Form,
        path: Path<'_>,
        level: Level<'_>,
        found: &mut Vec<Violation>,
    ) {
        if found.len() >= MAX_VIOLATIONS || !self.may_go_on(level) {
            return;
        }
        let (mut ty, mut level, before) = (ty, level, found.len()); // names lead out of what was given
        loop {
            let Some(resolved) = self.resolve(ty, &mut level) else {
                let expected = format!("{}, which no type is named", cut(ty, LONG));
                return found.push(Violation::new(path, expected, Some(value)));
            };
            ty = resolved;
            match ty {
                TypeExpr::Union(types) => match self.meant(types, value, form, level.same()) {
                    Some(meant) => ty = meant,
                    None => break,
                },
                TypeExpr::And(base, predicates) => {
                    if self.admits(base, value, form, level.same()) {
                        explain_predicates(ty, predicates, value, form, path, found);
                        break;
                    }
                    let is_inside = self.is_of_kind(base, value, form, level.same());
                    if !is_inside || matches!(**base, TypeExpr::Primitive(_)) {
                        break;
                    }
                    ty = base;
                }
                _ => {
                    self.explain_parts(ty, value, form, path, level.inner(), found);
                    break;
                }
            }
        }
        if found.len() == before && !self.spent.get() {
            found.push(Violation::new(path, ty, Some(value)));
        }
    }

    /// Says which parts of a collection are not of their types.
    fn explain_parts(
        &self,
        ty: &TypeExpr,
        value: &Value,
        form: Form,
        path: Path<'_>,
        level: Level<'_>,
        found: &mut Vec<Violation>,
    ) {
        let mut part = |ty: &TypeExpr, value: &Value, step: Path<'_>| {
            if found.len() < MAX_VIOLATIONS && !self.admits(ty, value, form, level) {
                self.explain(ty, value, form, step, level, found);
            }
        };
        match (ty, value) {
            (TypeExpr::Set(item), Value::Set(set)) => {
                set.iter().enumerate().for_each(|(i, value)| part(item, value, Path::Index(&path, i)));
            }
            (TypeExpr::Vector(item) | TypeExpr::List(item) | TypeExpr::Set(item), value) => {
                for (i, value) in items_as(ty, value, form).unwrap_or_default().iter().enumerate() {
                    part(item, value, Path::Index(&path, i));
                }
            }
            (TypeExpr::Tuple(types), value) => {
                let items = value.items().filter(|items| items.len() == types.len()).unwrap_or_default();
                for (i, (ty, value)) in types.iter().zip(items).enumerate() {
                    part(ty, value, Path::Index(&path, i));
                }
            }
            (TypeExpr::Array { item, shape }, value) => {
                let Some((size, rest)) = shape.split_first() else { return part(item, value, path) };
                let fits = |items: &&[Value]| size.is_none_or(|size| size == items.len() as u64);
                let items = value.items().filter(fits).unwrap_or_default();
                let row = TypeExpr::Array { item: item.clone(), shape: rest.to_vec() };
                let row = if rest.is_empty() { item } else { &row };
                for (i, value) in items.iter().enumerate() {
                    part(row, value, Path::Index(&path, i));
                }
            }
            (TypeExpr::Map(record), Value::Map(map)) => {
                self.explain_record(record, map, form, path, level, found);
            }
            (TypeExpr::MapOf(keys, values), Value::Map(map)) => {
                for (key, value) in map.iter() {
                    part(values, value, Path::Key(&path, key));
                }
                for (key, _) in map.iter().filter(|(key, _)| !self.admits_key(keys, key, form, level)) {
                    let expected = format!("a key that is {}", cut(keys, LONG));
                    found.push(Violation::new(Path::Key(&path, key), expected, Some(key)));
                }
            }
            _ => {}
        }
    }

    fn explain_part(
        &self,
        ty: &TypeExpr,
        value: &Value,
        form: Form,
        path: Path<'_>,
        level: Level<'_>,
        found: &mut Vec<Violation>,
    ) {
        if found.len() < MAX_VIOLATIONS && !self.admits(ty, value, form, level) {
            self.explain(ty, value, form, path, level, found);
        }
    }

    fn explain_record(
        &self,
        record: &MapType,
        map: &Map,
        form: Form,
        path: Path<'_>,
        level: Level<'_>,
        found: &mut Vec<Violation>,
    ) {
        for Field { key, ty, optional } in &record.fields {
            let path = Path::Key(&path, key);
            match look_up(map, key, form) {
                Some(value) => self.explain_part(ty, value, form, path, level, found),
                None if *optional => {}
                None => found.push(Violation::new(path, ty, None)),
            }
        }
        let Some(others) = &record.others else { return };
        for (key, value) in others_of(record, map, form) {
            let path = Path::Key(&path, key);
            if **others == TypeExpr::Primitive(Primitive::Never) {
                let keys: Vec<_> = record.fields.iter().map(|field| field.key.pr_str()).collect();
                let expected = match keys.as_slice() {
                    [] => "no such key".to_owned(),
                    keys => format!("no such key (there are {})", keys.join(", ")),
                };
                found.push(Violation::new(path, expected, Some(value)));
            } else {
                self.explain_part(others, value, form, path, level, found);
            }
        }
    }

    /// The one alternative that the value was meant to be: the only one of its kind, or the only
    /// record whose constants fit.
    fn meant<'t>(
        &self,
        types: &'t [TypeExpr],
        value: &Value,
        form: Form,
        level: Level<'_>,
    ) -> Option<&'t TypeExpr> {
        let of_kind: Vec<_> =
            types.iter().filter(|ty| self.is_of_kind(ty, value, form, level)).collect();
        let only = |candidates: &[&'t TypeExpr]| match candidates {
            [only] => Some(*only),
            _ => None,
        };
        only(&of_kind).or_else(|| {
            let fits = |ty: &&&TypeExpr| self.constants_fit(ty, value, form, level);
            only(&of_kind.iter().filter(fits).copied().collect::<Vec<_>>())
        })
    }

    fn constants_fit<'t>(
        &self,
        ty: &'t TypeExpr,
        value: &Value,
        form: Form,
        mut level: Level<'t>,
    ) -> bool {
        match (self.resolve(ty, &mut level), value) {
            (Some(TypeExpr::And(ty, _)), value) if self.may_go_on(level) => {
                self.constants_fit(ty, value, form, level.same())
            }
            (Some(TypeExpr::Map(record)), Value::Map(map)) => record.fields.iter().all(|field| {
                let is_constant = matches!(field.ty, TypeExpr::Val(_) | TypeExpr::Enum(_));
                let value = look_up(map, &field.key, form);
                !is_constant
                    || value.is_some_and(|value| self.admits(&field.ty, value, form, level.inner()))
            }),
            _ => false,
        }
    }

    /// Whether the value is of the type as far as one sees from outside, so that what is wrong is
    /// inside of it.
    fn is_of_kind<'t>(&self, ty: &'t TypeExpr, value: &Value, form: Form, mut level: Level<'t>) -> bool {
        if !self.may_go_on(level) {
            return false;
        }
        let Some(ty) = self.resolve(ty, &mut level) else { return false };
        match ty {
            TypeExpr::Map(_) | TypeExpr::MapOf(..) => matches!(value, Value::Map(_)),
            TypeExpr::Tuple(_) | TypeExpr::Array { .. } => value.items().is_some(),
            TypeExpr::Set(_) if matches!(value, Value::Set(_)) => true,
            TypeExpr::Vector(_) | TypeExpr::List(_) | TypeExpr::Set(_) => {
                items_as(ty, value, form).is_some()
            }
            TypeExpr::And(base, _) => match &**base {
                TypeExpr::Primitive(primitive) => is_primitive(*primitive, value, form),
                base => self.is_of_kind(base, value, form, level.same()),
            },
            TypeExpr::Union(types) => {
                types.iter().any(|ty| self.is_of_kind(ty, value, form, level.same()))
            }
            _ => false,
        }
    }
}

/// Says which predicates are broken, by showing the whole type if that is short.
fn explain_predicates(
    ty: &TypeExpr,
    predicates: &[Predicate],
    value: &Value,
    form: Form,
    path: Path<'_>,
    found: &mut Vec<Violation>,
) {
    if !cut(ty, LONG).ends_with('…') {
        return found.push(Violation::new(path, ty, Some(value)));
    }
    let broken = predicates.iter().filter(|predicate| !predicate.holds(value, form));
    let broken: Vec<_> = broken.map(Predicate::to_string).collect();
    found.push(Violation::new(path, broken.join(" "), Some(value)));
}

/// The items of a vector, list or set of a type, if `value` can be one. JSON has arrays alone.
fn items_as<'v>(ty: &TypeExpr, value: &'v Value, form: Form) -> Option<&'v [Value]> {
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

/// The entries of a map that no field of a record is about.
fn others_of<'m>(
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

/// Whether a key of a type becomes this name in JSON.
fn same_in_json(key: &Value, name: &str) -> bool {
    match key {
        Value::Keyword(keyword) => keyword.name() == name,
        Value::Str(text) => text.as_str() == name,
        Value::Symbol(symbol) => symbol.name() == name,
        key => key.to_string() == name,
    }
}

fn is_primitive(primitive: Primitive, value: &Value, form: Form) -> bool {
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
            matches!(value, Value::Instant(_))
                || text.is_some_and(|text| format::instant(text).is_some())
        }
        Primitive::Uuid => {
            matches!(value, Value::Uuid(_)) || text.is_some_and(|text| format::uuid(text).is_some())
        }
        Primitive::Fn => value.type_name() == "function",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::read::read;

    fn ty(text: &str) -> TypeExpr {
        TypeExpr::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn value(text: &str) -> Value {
        read(text).unwrap_or_else(|error| panic!("{text}: {error:?}")).value
    }

    fn violations(ty: &TypeExpr, value: &Value) -> Vec<String> {
        let found = ty.check(value, "input").err().unwrap_or_default();
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn admits_the_values_of_each_type_and_no_others() {
        let cases: &[(&str, &[&str], &[&str])] = &[
            (":any", &["nil", "1", "{}"], &[]),
            (":never", &[], &["nil", "1"]),
            (":nil", &["nil"], &["false", "[]"]),
            (":bool", &["true", "false"], &["nil", "1"]),
            (":int", &["1", "-7", "123456789012345678901234567890"], &["1.0", "\"1\"", "nil"]),
            (":float", &["1.5", "1", "##NaN", "123456789012345678901234567890"], &["\"1\"", "nil"]),
            (":number", &["1.5", "1"], &["\"1\""]),
            (":string", &["\"\""], &[":a", "a", "nil"]),
            (":keyword", &[":a"], &["\"a\"", "a"]),
            (":symbol", &["a"], &["\"a\"", ":a"]),
            (":instant", &["2026-11-20T10:00:00Z"], &["\"2026-11-20T10:00:00Z\""]),
            (
                ":uuid",
                &["550e8400-e29b-41d4-a716-446655440000"],
                &["\"550e8400-e29b-41d4-a716-446655440000\""],
            ),
            (":fn", &[], &["inc", "nil"]),
            ("int", &["1"], &["1.5"]),
            (":int?", &["1", "nil"], &["1.5"]),
            ("string?", &["\"a\"", "nil"], &["1"]),
            ("[:vector :int]", &["[]", "[1 2]"], &["[1 :a]", "(1 2)", "#{1}"]),
            ("[:vector :int ?]", &["[1 nil]"], &["nil"]),
            ("[:union [:vector :int]? :bool]", &["nil", "true", "[1]"], &["[nil]"]),
            ("[:list :int]", &["()", "(1 2)"], &["[1]", "(:a)"]),
            ("[:set :int]", &["#{}", "#{1 2}"], &["[1]", "#{:a}"]),
            ("[:tuple :int :string]", &["[1 \"a\"]", "(1 \"a\")"], &["[1]", "[1 \"a\" 2]", "[\"a\" 1]"]),
            ("[:tuple]", &["[]"], &["[1]"]),
            ("[:array :int [2 ?]]", &["[[] [1 2 3]]"], &["[[1]]", "[1 2]", "[[1] [:a]]"]),
            ("[:array :int]", &["[]", "[1]"], &["[[1]]"]),
            ("[:stream :int]", &[], &["[1]"]),
            (
                "[:map {:name :string :age :int?}]",
                &["{:name \"a\"}", "{:name \"a\" :age 1}", "{:name \"a\" :age nil :more 1}"],
                &["{}", "{:name 1}", "{:name \"a\" :age :b}", "{\"name\" \"a\"}", "[]", "nil"],
            ),
            (
                "[:record [:name :string] [:age :int ?] [:* :bool]]",
                &["{:name \"a\"}", "{:name \"a\" :age 1 :x true \"y\" false}"],
                &["{:name \"a\" :age nil}", "{:name \"a\" :x 1}"],
            ),
            ("[:map {:a :int ?} [:* :never]]", &["{}", "{:a 1}"], &["{:b 1}", "{:a nil}"]),
            ("[:map {:a :int? :* :never}]", &["{}", "{:a nil}"], &["{:b 1}"]),
            ("[:map [[:val :*] :int]]", &["{:* 1 :b 2}"], &["{}"]),
            ("[:map-of :keyword :int]", &["{}", "{:a 1}"], &["{\"a\" 1}", "{:a :b}"]),
            ("[:dict :string :int]", &["{\"a\" 1}"], &["{:a 1}"]),
            ("[:union :int :string]", &["1", "\"a\""], &["nil", ":a"]),
            ("[:enum :a \"b\" 3]", &[":a", "\"b\"", "3"], &["\"a\"", ":b", "3.0"]),
            ("[:val {:a [1]}]", &["{:a (1)}"], &["{:a [1.0]}"]),
            ("[:not :int]", &["1.0", "nil"], &["1"]),
            ("[:fn [:int & :string] :bool]", &[], &["nil"]),
            ("[:and :int [:> 0] [:<= 9]]", &["1", "9"], &["0", "10", "1.5"]),
            ("[:and :float [:>= 0.5] [:< 2]]", &["0.5", "1", "1.99"], &["0.4", "2", "2.0", "##NaN"]),
            ("[:and :any [:> 0]]", &["1"], &["\"a\"", "nil", "##NaN"]),
            ("[:and :string [:> \"b\"]]", &["\"c\""], &["\"a\""]),
            (
                "[:and :instant [:< 2026-11-20T10:00:00Z]]",
                &["2025-01-01T00:00:00Z"],
                &["2027-01-01T00:00:00Z"],
            ),
            ("[:and :number [:= 1]]", &["1"], &["1.0", "2"]),
            ("[:and :number [:!= 1]]", &["2", "1.0"], &["1"]),
            ("[:and :int [:in-range 1 3]]", &["1", "3"], &["0", "4"]),
            (
                "[:and :int [:multiple-of 3]]",
                &["0", "-6", "9000000000000000000000"],
                &["1", "9000000000000000000001"],
            ),
            ("[:and :float [:multiple-of 0.1]]", &["0.3", "7", "1e300"], &["0.35", "##Inf", "1e-300"]),
            (
                "[:and :string [:min-length 2] [:max-length 3]]",
                &["\"äö\"", "\"äöü\""],
                &["\"ä\"", "\"abcd\""],
            ),
            ("[:and :string [:length 1]]", &["\"😀\""], &["\"\"", "\"ab\""]),
            ("[:and :keyword [:length 2]]", &[":äb"], &[":a"]),
            ("[:and :string [:matches-regex \"b+$\"]]", &["\"abb\""], &["\"abc\""]),
            (
                "[:and :any [:min-count 1] [:max-count 2]]",
                &["[1]", "#{1}", "{:a 1}", "(1 2)"],
                &["[]", "{}", "\"ab\"", "nil"],
            ),
            ("[:and [:vector :int] [:count 2]]", &["[1 2]"], &["[1]", "[1 2 3]"]),
            (
                "[:and :any [:non-empty]]",
                &["\"a\"", "[1]", "{:a 1}"],
                &["\"\"", "[]", "{}", "#{}", "nil", "1"],
            ),
            (
                "[:and :any [:unique]]",
                &["[]", "[1 1.0]", "#{1}", "[##NaN ##NaN]"],
                &["[1 1]", "[[1] (1)]", "1"],
            ),
            ("[:and :any [:has-key :a]]", &["{:a nil}"], &["{}", "{\"a\" 1}", "[]"]),
            ("[:and :any [:required-keys [:a \"b\"]]]", &["{:a 1 \"b\" 2}"], &["{:a 1}"]),
            (
                "[:and :string [:is-url]]",
                &["\"https://example.com\""],
                &["\"example.com\"", "\"mailto:a@b\""],
            ),
            ("[:and :string :is-email]", &["\"a@example.com\""], &["\"a\""]),
            ("[:and :string [:is-uuid]]", &["\"550e8400-e29b-41d4-a716-446655440000\""], &["\"550e\""]),
            ("[:and :any [:is-uuid]]", &["550e8400-e29b-41d4-a716-446655440000"], &["1"]),
            (
                "[:and :string [:is-date]]",
                &["\"2024-02-29\""],
                &["\"2026-02-29\"", "\"2026-02-28T00:00:00Z\""],
            ),
            ("[:and :string [:format \"ipv4\"]]", &["\"127.0.0.1\""], &["\"::1\""]),
        ];
        for (notation, good, bad) in cases {
            let ty = ty(notation);
            for text in *good {
                assert_eq!(violations(&ty, &value(text)), [""; 0], "{notation} of {text}");
            }
            for text in *bad {
                assert!(!violations(&ty, &value(text)).is_empty(), "{notation} of {text}");
            }
        }
    }

    #[test]
    fn differing_items_are_found_among_many() {
        let many = |n: i64| Value::vector((0..100).map(|i| (i % n).into()).collect()).unwrap();
        let unique = ty("[:and :any [:unique]]");
        assert!(unique.admits(&many(100)) && !unique.admits(&many(99)));
    }

    #[test]
    fn says_where_what_was_expected_and_what_came() {
        let cases: &[(&str, &str, &[&str])] = &[
            (":string", "7", &["input: expected :string, got 7"]),
            (
                "[:map {:items [:vector [:map {:price [:and :float [:> 0]]}]]}]",
                "{:items [{:price 1} {:price -1} {} {:price \"x\"}]}",
                &[
                    "input.items[1].price: expected [:and :float [:> 0]], got -1",
                    "input.items[2].price: expected [:and :float [:> 0]], got nothing",
                    "input.items[3].price: expected [:and :float [:> 0]], got \"x\"",
                ],
            ),
            (
                "[:map {:city :string, :n :int} [:* :never]]",
                "{:city 7 :x 1 \"odd key\" 2}",
                &[
                    "input.city: expected :string, got 7",
                    "input.n: expected :int, got nothing",
                    "input.x: expected no such key (there are :city, :n), got 1",
                    "input[\"odd key\"]: expected no such key (there are :city, :n), got 2",
                ],
            ),
            ("[:map [:* :int]]", "{:a 1 :\"b c\" :x}", &["input[\"b c\"]: expected :int, got :x"]),
            (
                "[:map-of :keyword :int]",
                "{\"a\" :b}",
                &[
                    "input[\"a\"]: expected :int, got :b",
                    "input[\"a\"]: expected a key that is :keyword, got \"a\"",
                ],
            ),
            ("[:vector :int]", "{}", &["input: expected [:vector :int], got {}"]),
            ("[:tuple :int :int]", "[1 :a]", &["input[1]: expected :int, got :a"]),
            ("[:tuple :int :int]", "[1]", &["input: expected [:tuple :int :int], got [1]"]),
            ("[:array :int [2 ?]]", "[[1] [:a 2]]", &["input[1][0]: expected :int, got :a"]),
            ("[:array :int [2 2]]", "[[1] [1 2]]", &["input[0]: expected [:array :int [2]], got [1]"]),
            ("[:set :int]", "#{1 :a}", &["input[1]: expected :int, got :a"]),
            ("[:map {:a [:map {:b :int}]?}]", "{:a {:b :x}}", &["input.a.b: expected :int, got :x"]),
            (
                "[:union [:map {:kind [:val :a] :n :int}] [:map {:kind [:val :b] :s :string}]]",
                "{:kind :b :s 1}",
                &["input.s: expected :string, got 1"],
            ),
            ("[:union :int :string]", "nil", &["input: expected [:union :int :string], got nil"]),
            (
                "[:and [:vector :int] [:min-count 2]]",
                "[1]",
                &["input: expected [:and [:vector :int] [:min-count 2]], got [1]"],
            ),
            ("[:and [:vector :int] [:min-count 2]]", "[:a]", &["input[0]: expected :int, got :a"]),
            (
                "[:and [:vector :int] [:min-count 2]]",
                "7",
                &["input: expected [:and [:vector :int] [:min-count 2]], got 7"],
            ),
            ("[:not :int]", "1", &["input: expected [:not :int], got 1"]),
            ("[:ref Tree]", "1", &["input: expected [:ref Tree], which no type is named, got 1"]),
        ];
        for (notation, text, expected) in cases {
            assert_eq!(violations(&ty(notation), &value(text)), *expected, "{notation} of {text}");
        }
        let long = ty(&format!("[:and [:map {{:{} :int}}] [:count 2] [:non-empty]]", "a".repeat(200)));
        let one = value(&format!("{{:{} 1}}", "a".repeat(200)));
        assert_eq!(violations(&long, &one)[0].split(", got").next(), Some("input: expected [:count 2]"));
    }

    #[test]
    fn bounds_what_a_violation_shows_and_how_many_there_are() {
        let many = Value::vector(vec![Value::keyword("x".repeat(500)); 5_000]).unwrap();
        let found = ty("[:vector :int]").check(&many, "input").unwrap_err();
        assert_eq!(found.len(), 1_000);
        assert_eq!(found[0].got.chars().count(), 81);
        let found = ty("[:vector [:vector :int]]").check(&many, "input").unwrap_err();
        assert_eq!(found[1].expected, "[:vector :int]");
    }

    #[test]
    fn values_that_came_from_json_stand_for_what_looks_like_them() {
        let json = Checking { form: Form::Json, ..Checking::default() };
        let cases: &[(&str, &[&str], &[&str])] = &[
            (":keyword", &["\"a\""], &["1"]),
            (":symbol", &["\"a\""], &["nil"]),
            (":instant", &["\"2026-11-20T10:00:00Z\""], &["\"2026-11-20\""]),
            (":uuid", &["\"550e8400-e29b-41d4-a716-446655440000\""], &["\"a\""]),
            (":int", &["1", "1.0"], &["1.5", "\"1\""]),
            ("[:list :int]", &["[1]"], &["{}"]),
            ("[:set :keyword]", &["[\"a\" \"b\"]"], &["[\"a\" \"a\"]"]),
            ("[:enum :a 1 #{:b}]", &["\"a\"", "1.0", "[\"b\"]"], &["\"b\""]),
            ("[:val {:a {3 [:b]}}]", &["{:a {:3 [\"b\"]}}"], &["{:a {}}"]),
            (
                "[:map [\"a b\" :int] [3 :int] [:* :never]]",
                &["{:\"a b\" 1 :3 2}"],
                &["{}", "{:\"a b\" 1 :3 2 :c 3}"],
            ),
            ("[:map-of :string :int]", &["{:a 1}"], &[]),
            ("[:map-of :int :int]", &["{:-12 1}", "{:0 1}"], &["{:a 1}", "{:012 1}", "{:1.5 2}"]),
            ("[:map-of [:enum :a :b] :int]", &["{:a 1}"], &["{:c 1}"]),
            ("[:map-of [:and :string [:min-length 2]] :int]", &["{:ab 1}"], &["{:a 1}"]),
            (
                "[:and :instant [:> 2026-01-01T00:00:00Z]]",
                &["\"2026-11-20T10:00:00Z\""],
                &["\"2025-11-20T10:00:00Z\""],
            ),
            ("[:and :keyword [:!= :a]]", &["\"b\""], &["\"a\""]),
            ("[:not :keyword]", &["\"a\"", "1"], &[]),
            ("[:not :string]", &["1"], &["\"a\""]),
        ];
        for (notation, good, bad) in cases {
            let ty = ty(notation);
            for text in *good {
                assert_eq!(json.check(&ty, &value(text), "input"), Ok(()), "{notation} of {text}");
            }
            for text in *bad {
                assert!(json.check(&ty, &value(text), "input").is_err(), "{notation} of {text}");
            }
        }
    }

    fn define(definitions: &[(&str, &str)]) -> Definitions {
        let mut all = Definitions::new();
        for (name, notation) in definitions {
            all.define(*name, ty(notation));
        }
        all
    }

    #[test]
    fn named_types_may_refer_to_themselves() {
        let definitions = define(&[("Tree", "[:map {:value :int, :kids [:vector Tree]}]")]);
        let checking = Checking { definitions: &definitions, ..Checking::default() };
        let tree = ty("[:ref Tree]");
        assert!(checking.admits(&tree, &value("{:value 1 :kids [{:value 2 :kids []}]}")));
        let found =
            checking.check(&tree, &value("{:value 1 :kids [{:value :x :kids []}]}"), "t").unwrap_err();
        assert_eq!(found[0].to_string(), "t.kids[0].value: expected :int, got :x");
    }

    #[test]
    fn a_type_may_bring_its_own_names() {
        let inner = define(&[("T", "[:union :nil [:vector T]]")]);
        let brought = ty("T").with_definitions(inner.into());
        assert_eq!(brought.to_string(), "[:ref T]");
        let outer = define(&[("T", ":string")]);
        let both = TypeExpr::Tuple(vec![ty("T"), brought.clone(), ty("T")]);
        let checking = Checking { definitions: &outer, ..Checking::default() };
        assert!(checking.admits(&both, &value("[\"a\" [[nil]] \"b\"]")));
        assert!(!checking.admits(&both, &value("[\"a\" \"b\" \"c\"]")));
        assert!(brought.admits(&value("[[] nil]")));
    }

    #[test]
    fn types_that_mean_only_themselves_end() {
        let definitions = define(&[
            ("A", "A"),
            ("B", "[:union C :int]"),
            ("C", "[:union B [:not B] [:and B [:> 0]]]"),
            ("D", "[:union [:vector D] [:vector D] [:vector D] :never]"),
        ]);
        let checking = Checking { definitions: &definitions, max_steps: 100_000, ..Checking::default() };
        for (name, text) in [("A", "1"), ("B", "1"), ("B", "nil"), ("C", "nil")] {
            let _either_way = checking.check(&ty(name), &value(text), "input");
        }
        assert!(checking.check(&ty("A"), &Value::Nil, "input").is_err());
        let deep = value(&("[".repeat(40) + &"]".repeat(40)));
        let found = checking.check(&ty("[:vector D]"), &value("[[[[1]]]]"), "input").unwrap_err();
        assert!(!found.is_empty());
        let deep = Value::vector(vec![deep, 1.into()]).unwrap();
        let found = checking.check(&ty("[:vector D]"), &deep, "input").unwrap_err();
        assert!(!found.is_empty());
    }

    #[test]
    fn deep_values_can_be_checked_and_deeper_ones_do_no_harm() {
        type Wrap = fn(Value) -> Value;
        let cases: [(&str, Wrap); 4] = [
            ("[:union :nil [:and [:vector Nest] [:count 1]]]", |inner| {
                Value::vector(vec![inner]).unwrap()
            }),
            ("[:union [:tuple Nest] :nil]", |inner| Value::vector(vec![inner]).unwrap()),
            ("[:union :nil [:map {:next Nest}]]", |inner| {
                let mut map = Map::new();
                map.insert(Value::keyword("next"), inner).unwrap();
                map.into()
            }),
            ("[:union :nil [:and [:map-of :keyword Nest] [:non-empty]]]", |inner| {
                let mut map = Map::new();
                map.insert(Value::keyword("next"), inner).unwrap();
                map.into()
            }),
        ];
        for (notation, wrap) in cases {
            let definitions = define(&[("Nest", notation)]);
            let checking = Checking { definitions: &definitions, ..Checking::default() };
            let deep = |inner| (0..498).fold(inner, |inner, _| wrap(inner));
            assert_eq!(checking.check(&ty("Nest"), &deep(Value::Nil), "input"), Ok(()), "{notation}");
            let found = checking.check(&ty("Nest"), &deep(1.into()), "input").unwrap_err();
            assert_eq!(found.len(), 1);
            assert!(found[0].expected.contains("Nest"), "{found:?}");
            let too_deep = (0..1_000).fold(Value::Nil, |inner, _| wrap(inner));
            let found = checking.check(&ty("Nest"), &too_deep, "input").unwrap_err();
            let expected = "what can be compared with its type in 50000000 steps and 1000 levels";
            assert_eq!((found.len(), found[0].expected.as_str()), (1, expected));
        }
    }
}

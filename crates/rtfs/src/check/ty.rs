//! The knowledge about a value of a program.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use crate::builtins::shown;
use crate::kinds::Kinds;
use crate::machine::program::Check;
use crate::types::{Definitions, Primitive, TypeExpr};
use crate::value::Value;

/// The maximum nesting of details; deeper values can be anything.
const MAX_DEPTH: u16 = 16;
/// The maximum size of a map's detail when types are joined.
const MAX_JOINED: usize = 16;
/// The maximum nesting of details when types are joined.
const MAX_JOINED_LEVELS: u32 = 3;
/// The type without values.
pub(super) const NEVER: TypeExpr = TypeExpr::Primitive(Primitive::Never);
/// The maximum number of parts of a type that are examined.
const MAX_STEPS: u32 = 1_000;
/// The maximum size of a collection's detail.
pub(super) const MAX_PARTS: usize = 64;

/// The possible kinds of a value, and further knowledge if it has the kind that the detail concerns.
#[derive(Clone)]
pub(crate) struct Ty {
    pub(super) kinds: Kinds,
    depth: u16,
    detail: Option<Rc<Detail>>,
}

pub(super) enum Detail {
    Const(Value),
    /// A vector of exactly these items.
    Items(Vec<Ty>),
    /// A collection whose items have this type.
    Each(Ty),
    Record(Record),
    Function(Function),
}

/// A map.
pub(super) struct Record {
    pub(super) fields: Vec<Field>,
    /// Whether it has no other keys.
    pub(super) closed: bool,
}

pub(super) struct Field {
    pub(super) key: Value,
    pub(super) ty: Ty,
    /// Whether the key may be missing.
    pub(super) optional: bool,
}

/// A function of the program.
pub(super) struct Function {
    pub(super) name: String,
    pub(super) arities: Vec<Arity>,
}

pub(super) struct Arity {
    /// The number of parameters, without the rest parameter.
    pub(super) fixed: usize,
    pub(super) rest: bool,
    /// The required type of each parameter; otherwise the call fails.
    pub(super) needs: Vec<Need>,
    pub(super) result: Ty,
}

pub(super) struct Need {
    pub(super) name: String,
    pub(super) ty: Ty,
    /// The type that the program declares.
    pub(super) declared: Option<Arc<Check>>,
}

impl Ty {
    pub(super) const ANY: Self = Self::of(Kinds::ANY);
    pub(super) const NEVER: Self = Self::of(Kinds::NONE);
    pub(super) const NIL: Self = Self::of(Kinds::NIL);
    pub(super) const TRUE: Self = Self::of(Kinds::TRUE);

    pub(super) const fn of(kinds: Kinds) -> Self {
        Self { kinds, depth: 0, detail: None }
    }

    pub(super) fn constant(value: &Value) -> Self {
        let kinds = Kinds::of(value);
        match value {
            Value::Nil | Value::Bool(_) => Self::of(kinds),
            value => Self { kinds, depth: 0, detail: Some(Rc::new(Detail::Const(value.clone()))) },
        }
    }

    fn with(kinds: Kinds, depth: u16, detail: Detail) -> Self {
        let detail = (depth < MAX_DEPTH).then(|| Rc::new(detail));
        Self { kinds, depth: if detail.is_some() { depth + 1 } else { 0 }, detail }
    }

    pub(super) fn items(items: Vec<Self>) -> Self {
        if items.len() > MAX_PARTS {
            return Self::of(Kinds::VECTOR);
        }
        let depth = items.iter().map(|item| item.depth).max().unwrap_or(0);
        Self::with(Kinds::VECTOR, depth, Detail::Items(items))
    }

    pub(super) fn each(kinds: Kinds, item: Self) -> Self {
        if item.kinds == Kinds::ANY {
            return Self::of(kinds);
        }
        let depth = item.depth;
        Self::with(kinds, depth, Detail::Each(item))
    }

    pub(super) fn record(record: Record) -> Self {
        if record.fields.len() > MAX_PARTS {
            return Self::of(Kinds::MAP);
        }
        let depth = record.fields.iter().map(|field| field.ty.depth).max().unwrap_or(0);
        Self::with(Kinds::MAP, depth, Detail::Record(record))
    }

    pub(super) fn function(function: Function) -> Self {
        let parts = function
            .arities
            .iter()
            .flat_map(|arity| arity.needs.iter().map(|need| need.ty.depth).chain([arity.result.depth]));
        let depth = parts.max().unwrap_or(0);
        if depth + 1 < MAX_DEPTH {
            return Self::with(Kinds::FUNCTION, depth, Detail::Function(function));
        }
        // How many arguments it takes is worth more than what it gives.
        let arities = function.arities.into_iter();
        let arities =
            arities.map(|arity| Arity { needs: Vec::new(), result: Self::ANY, ..arity }).collect();
        Self::with(Kinds::FUNCTION, 0, Detail::Function(Function { arities, ..function }))
    }

    pub(super) fn is_never(&self) -> bool {
        self.kinds.is_none()
    }

    /// Returns whether the value is truthy: certainly, certainly not, or unknown.
    pub(super) fn truth(&self) -> Option<bool> {
        match (self.kinds.meets(Kinds::FALSY), self.kinds.is_within(Kinds::FALSY)) {
            (false, false) => Some(true),
            (true, true) => Some(false),
            _ => None,
        }
    }

    /// Returns the detail, if the value has the kind that the detail concerns.
    pub(super) fn detail(&self) -> Option<&Detail> {
        self.detail.as_deref()
    }

    /// Returns the value, if there is only one.
    pub(super) fn value(&self) -> Option<&Value> {
        match self.detail() {
            Some(Detail::Const(value)) if Kinds::of(value) == self.kinds => Some(value),
            _ => None,
        }
    }

    /// Returns the function, if it is surely one of the program.
    pub(super) fn as_function(&self) -> Option<&Function> {
        match self.detail() {
            Some(Detail::Function(function)) if self.kinds == Kinds::FUNCTION => Some(function),
            _ => None,
        }
    }

    fn about(detail: &Detail) -> Kinds {
        match detail {
            Detail::Const(value) => Kinds::of(value),
            Detail::Items(_) => Kinds::VECTOR,
            Detail::Each(_) => Kinds::COLLECTION.without(Kinds::MAP),
            Detail::Record(_) => Kinds::MAP,
            Detail::Function(_) => Kinds::FUNCTION,
        }
    }

    /// Returns the type narrowed to these kinds.
    pub(super) fn narrowed(&self, kinds: Kinds) -> Self {
        let kinds = self.kinds.and(kinds);
        let detail = self.detail.as_ref().filter(|detail| Self::about(detail).meets(kinds));
        Self { kinds, depth: self.depth, detail: detail.cloned() }
    }

    /// Returns the intersection with another type. Of two details, the new one is kept.
    pub(super) fn and(&self, other: &Self) -> Self {
        let mut both = self.narrowed(other.kinds);
        if let Some(detail) = &other.detail
            && self.value().is_none()
            && Self::about(detail).meets(both.kinds)
        {
            (both.detail, both.depth) = (Some(Rc::clone(detail)), other.depth);
        }
        both
    }

    /// Returns the union.
    pub(super) fn or(&self, other: &Self) -> Self {
        self.joined(other, 0)
    }

    fn joined(&self, other: &Self, level: u32) -> Self {
        let kinds = self.kinds.or(other.kinds);
        let kept = match (&self.detail, &other.detail) {
            (Some(a), Some(b)) if Rc::ptr_eq(a, b) => Some((a, self.depth)),
            (Some(a), _) if !Self::about(a).meets(other.kinds) => Some((a, self.depth)),
            (_, Some(b)) if !Self::about(b).meets(self.kinds) => Some((b, other.depth)),
            (Some(a), Some(b)) if is_same(a, b) => Some((a, self.depth)),
            (Some(_), Some(_)) if level < MAX_JOINED_LEVELS => {
                let both = self.join_parts(other, level + 1).unwrap_or(Self::ANY);
                return Self { kinds, ..both };
            }
            _ => None,
        };
        let (detail, depth) = kept.map_or((None, 0), |(detail, depth)| (Some(Rc::clone(detail)), depth));
        Self { kinds, depth, detail }
    }

    /// Returns the common part of two maps, or of two collections.
    fn join_parts(&self, other: &Self, level: u32) -> Option<Self> {
        if let (Some(a), Some(b)) = (self.as_record(), other.as_record()) {
            let mut fields = Vec::new();
            for (fields_of, others) in [(&a, &b), (&b, &a)] {
                for field in &fields_of.fields {
                    let found = others.fields.iter().find(|other| other.key == field.key);
                    if fields.iter().any(|known: &Field| known.key == field.key) {
                        continue;
                    }
                    let (ty, optional) = match found {
                        Some(found) => {
                            (field.ty.joined(&found.ty, level), field.optional || found.optional)
                        }
                        None if others.closed => (field.ty.clone(), true),
                        None => continue,
                    };
                    fields.push(Field { key: field.key.clone(), ty, optional });
                }
            }
            return Some(Self::record(Record { fields, closed: a.closed && b.closed }));
        }
        let about = Kinds::COLLECTION.without(Kinds::MAP);
        let has_items =
            |ty: &Self| ty.detail().is_some_and(|detail| Self::about(detail).is_within(about));
        if !has_items(self) || !has_items(other) {
            return None;
        }
        let (a, b) = (self.narrowed(about).each_item().0, other.narrowed(about).each_item().0);
        Some(Self::each(about, a.joined(&b, level)))
    }

    /// Returns the map detail, if there is one.
    fn as_record(&self) -> Option<Record> {
        let copied = |field: &Field| Field {
            key: field.key.clone(),
            ty: field.ty.clone(),
            optional: field.optional,
        };
        match self.detail()? {
            Detail::Record(record) if record.fields.len() <= MAX_JOINED => Some(Record {
                fields: record.fields.iter().map(copied).collect(),
                closed: record.closed,
            }),
            Detail::Const(Value::Map(map)) if map.len() <= MAX_JOINED => {
                let fields = map.iter().map(|(key, value)| Field {
                    key: key.clone(),
                    ty: Self::constant(value),
                    optional: false,
                });
                Some(Record { fields: fields.collect(), closed: true })
            }
            _ => None,
        }
    }

    /// Returns the type of its items, and whether there is certainly one.
    pub(super) fn each_item(&self) -> (Self, bool) {
        const LOOKED_AT: usize = 64;
        if !self.kinds.is_within(Kinds::COLLECTION) {
            return (Self::ANY, false);
        }
        match self.detail() {
            Some(Detail::Const(value)) if self.value().is_some() => match value.items() {
                Some(items) if items.len() <= LOOKED_AT => {
                    (join(items.iter().map(Self::constant)), !items.is_empty())
                }
                Some(_) => (Self::ANY, true),
                None => (Self::ANY, false),
            },
            Some(Detail::Items(items)) if self.kinds == Kinds::VECTOR => {
                (join(items.iter().cloned()), !items.is_empty())
            }
            Some(Detail::Each(item)) if !self.kinds.meets(Kinds::MAP) => (item.clone(), false),
            _ => (Self::ANY, false),
        }
    }

    /// Returns the type for messages: a constant itself, else its kinds.
    pub(super) fn shown(&self) -> String {
        match (self.value(), self.detail()) {
            (Some(value), _) if !matches!(value, Value::Native(_) | Value::Code(_)) => shown(value),
            _ if self.kinds == Kinds::NIL => "nil".to_owned(),
            _ => self.kinds.to_string(),
        }
    }
}

fn join(types: impl Iterator<Item = Ty>) -> Ty {
    types.reduce(|a, b| a.or(&b)).unwrap_or(Ty::ANY)
}

fn is_same(a: &Detail, b: &Detail) -> bool {
    match (a, b) {
        (Detail::Const(a), Detail::Const(b)) if a.items().is_none() && !matches!(a, Value::Map(_)) => {
            a == b
        }
        (Detail::Each(a), Detail::Each(b)) => {
            a.detail.is_none() && b.detail.is_none() && a.kinds == b.kinds
        }
        _ => false,
    }
}

/// The place of a value, which decides which values a type admits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In the program.
    Program,
    /// Passed to a capability, where the value may become JSON.
    Input,
    /// Returned by a capability, perhaps as JSON.
    Output,
}

/// Returns what a value of a type can be: at least all that the type admits.
pub(super) fn type_of(ty: &TypeExpr, types: &Definitions, place: Place) -> Ty {
    Reading { types, place, parts: true, steps: &Cell::new(MAX_STEPS) }.ty(ty, 0)
}

/// Returns the possible kinds of a value of a type.
pub(super) fn kinds_of(ty: &TypeExpr, types: &Definitions, place: Place) -> Kinds {
    Reading { types, place, parts: false, steps: &Cell::new(MAX_STEPS) }.ty(ty, 0).kinds
}

struct Reading<'d> {
    types: &'d Definitions,
    place: Place,
    /// Whether parts are examined.
    parts: bool,
    /// The remaining number of steps.
    steps: &'d Cell<u32>,
}

impl Reading<'_> {
    fn ty(&self, ty: &TypeExpr, depth: u16) -> Ty {
        let Some(left) = self.steps.get().checked_sub(1).filter(|_| depth < MAX_DEPTH) else {
            return Ty::ANY;
        };
        self.steps.set(left);
        let depth = depth + 1;
        let many = |kinds: Kinds, item: &TypeExpr| {
            let in_json = Kinds::VECTOR.or(Kinds::LIST).or(Kinds::SET).or(Kinds::SEQ);
            let kinds = if self.place == Place::Program { kinds } else { in_json };
            if self.parts { Ty::each(kinds, self.ty(item, depth)) } else { Ty::of(kinds) }
        };
        match ty {
            TypeExpr::Primitive(primitive) => Ty::of(self.primitive(*primitive)),
            TypeExpr::Union(types) if types.len() <= MAX_PARTS => {
                types.iter().map(|ty| self.ty(ty, depth)).reduce(|a, b| a.or(&b)).unwrap_or(Ty::NEVER)
            }
            TypeExpr::Vector(item) => many(Kinds::VECTOR, item),
            TypeExpr::List(item) => many(Kinds::LIST, item),
            TypeExpr::Set(item) => many(Kinds::SET, item),
            TypeExpr::Stream(_) => Ty::of(Kinds::SEQ.or(Kinds::MAP)),
            TypeExpr::Tuple(_) | TypeExpr::Array { .. } => Ty::of(Kinds::ORDERED.or(Kinds::SET)),
            TypeExpr::Map(_) if !self.parts => Ty::of(Kinds::MAP),
            TypeExpr::Map(map) => {
                let fields = map.fields.iter().take(MAX_PARTS + 1).map(|field| Field {
                    key: field.key.clone(),
                    ty: self.ty(&field.ty, depth),
                    optional: field.optional,
                });
                let closed = map.others.as_deref().is_some_and(|ty| *ty == NEVER);
                Ty::record(Record { fields: fields.collect(), closed })
            }
            TypeExpr::MapOf(..) => Ty::of(Kinds::MAP),
            TypeExpr::Enum(values) => {
                Ty::of(values.iter().fold(Kinds::NONE, |all, value| all.or(self.literal(value))))
            }
            TypeExpr::Val(value) => Ty::of(self.literal(value)),
            TypeExpr::And(base, _) => self.ty(base, depth),
            TypeExpr::Fn { .. } => Ty::of(Kinds::FUNCTION),
            TypeExpr::Ref(name) => self.types.get(name).map_or(Ty::ANY, |ty| self.ty(ty, depth)),
            TypeExpr::Defined { ty, definitions } => {
                Reading { types: definitions, ..*self }.ty(ty, depth)
            }
            TypeExpr::JsonSchema { meaning, .. } => self.ty(meaning, depth),
            TypeExpr::Union(_) | TypeExpr::Not(_) => Ty::ANY,
        }
    }

    fn primitive(&self, primitive: Primitive) -> Kinds {
        let exact = match primitive {
            Primitive::Any => Kinds::ANY,
            Primitive::Never => Kinds::NONE,
            Primitive::Nil => Kinds::NIL,
            Primitive::Bool => Kinds::BOOL,
            Primitive::Int => Kinds::INT,
            Primitive::Float | Primitive::Number => Kinds::NUMBER,
            Primitive::String => Kinds::STRING,
            Primitive::Keyword => Kinds::KEYWORD,
            Primitive::Symbol => Kinds::SYMBOL,
            Primitive::Instant => Kinds::INSTANT,
            Primitive::Uuid => Kinds::UUID,
            Primitive::Fn => Kinds::FUNCTION,
        };
        self.widened(exact)
    }

    fn literal(&self, value: &Value) -> Kinds {
        self.widened(Kinds::of(value))
    }

    /// Widens kinds as JSON does, which has one kind of number, and text for all text-like kinds.
    fn widened(&self, kinds: Kinds) -> Kinds {
        let mut all = kinds;
        if self.place != Place::Program {
            if kinds.meets(Kinds::NUMBER) {
                all = all.or(Kinds::NUMBER);
            }
            if kinds.meets(Kinds::TEXTUAL) {
                all = all.or(if self.place == Place::Input { Kinds::TEXTUAL } else { Kinds::STRING });
            }
            if kinds.meets(Kinds::ORDERED.or(Kinds::SET)) {
                all = all.or(Kinds::ORDERED).or(Kinds::SET);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, place: Place) -> Kinds {
        type_of(&TypeExpr::parse(text).unwrap(), &Definitions::new(), place).kinds
    }

    #[test]
    fn types_become_the_kinds_that_they_admit() {
        for (text, program, input) in [
            (":int", Kinds::INT, Kinds::NUMBER),
            (":string?", Kinds::STRING.or(Kinds::NIL), Kinds::TEXTUAL.or(Kinds::NIL)),
            ("[:enum :a 1]", Kinds::KEYWORD.or(Kinds::INT), Kinds::TEXTUAL.or(Kinds::NUMBER)),
            ("[:and :int [:> 0]]", Kinds::INT, Kinds::NUMBER),
            ("[:not :int]", Kinds::ANY, Kinds::ANY),
            ("[:map {:a :int}]", Kinds::MAP, Kinds::MAP),
        ] {
            assert_eq!(of(text, Place::Program), program, "{text}");
            assert_eq!(of(text, Place::Input), input, "{text}");
        }
    }

    #[test]
    fn details_survive_a_join_with_unrelated_kinds() {
        let text = Ty::constant(&Value::from("a"));
        let or_nil = text.or(&Ty::NIL);
        assert_eq!(or_nil.kinds, Kinds::STRING.or(Kinds::NIL));
        assert!(or_nil.value().is_none() && or_nil.narrowed(Kinds::STRING).value().is_some());
        assert!(text.or(&Ty::of(Kinds::STRING)).detail().is_none());
        assert_eq!(or_nil.truth(), None);
        assert_eq!(or_nil.narrowed(Kinds::STRING).truth(), Some(true));
    }

    #[test]
    fn details_are_nested_only_so_deep() {
        let mut ty = Ty::of(Kinds::INT);
        for _ in 0..100_000 {
            ty = Ty::items(vec![ty.clone(), ty]);
        }
        assert_eq!(ty.kinds, Kinds::VECTOR);
    }
}

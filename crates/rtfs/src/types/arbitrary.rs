//! Types for property tests, and values of these types.
//!
//! Tests of conversions in other crates use the same types. This file therefore uses only the public
//! interface, and is included in the tests of other crates.

use proptest::collection::vec;
use proptest::prelude::*;
use rtfs::json::{key_name, value_to_json};
use rtfs::{
    Field, Instant, List, Map, MapType, Predicate, Primitive, Set, Symbol, TypeExpr, Uuid, Value,
};

/// Returns a type of any kind.
pub(crate) fn any_type() -> impl Strategy<Value = TypeExpr> {
    let leaf = prop_oneof![
        4 => prop::sample::select(Primitive::ALL.to_vec()).prop_map(TypeExpr::Primitive),
        1 => vec(any_constant(), 1..4).prop_map(TypeExpr::Enum),
        1 => any_constant().prop_map(TypeExpr::Val),
        2 => any_number_type(),
        2 => any_text_type(),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let boxed = inner.clone().prop_map(Box::new).boxed();
        let sizes = vec(prop::option::of(0_u64..3), 1..3);
        prop_oneof![
            vec(inner.clone(), 1..4).prop_map(TypeExpr::Union),
            boxed.clone().prop_map(TypeExpr::Vector),
            boxed.clone().prop_map(TypeExpr::List),
            boxed.clone().prop_map(TypeExpr::Set),
            vec(inner.clone(), 0..4).prop_map(TypeExpr::Tuple),
            (boxed.clone(), sizes).prop_map(|(item, shape)| TypeExpr::Array { item, shape }),
            any_record(inner.clone()).prop_map(TypeExpr::Map),
            (any_key_type(), boxed.clone())
                .prop_map(|(key, value)| TypeExpr::MapOf(Box::new(key), value)),
            (boxed.clone(), vec(any_count(), 0..3))
                .prop_map(|(ty, counts)| { TypeExpr::And(Box::new(TypeExpr::Vector(ty)), counts) }),
            (any_record(inner.clone()), vec(any_key_predicate(), 0..3))
                .prop_map(|(record, keys)| TypeExpr::And(Box::new(TypeExpr::Map(record)), keys)),
            boxed.clone().prop_map(TypeExpr::Not),
            boxed.clone().prop_map(TypeExpr::Stream),
            (vec(inner.clone(), 0..3), prop::option::of(boxed.clone()), boxed)
                .prop_map(|(params, rest, result)| TypeExpr::Fn { params, rest, result }),
        ]
    })
}

/// Returns a type that JSON Schema can express without exceptions.
pub(crate) fn any_plain_type() -> impl Strategy<Value = TypeExpr> {
    let primitives = [
        Primitive::Any,
        Primitive::Never,
        Primitive::Nil,
        Primitive::Bool,
        Primitive::Number,
        Primitive::String,
    ];
    let texts = prop::sample::select(vec!["", "a", "b"]).prop_map(Value::from);
    let leaf = prop_oneof![
        4 => prop::sample::select(primitives.to_vec()).prop_map(TypeExpr::Primitive),
        1 => vec(texts.clone(), 1..4).prop_map(TypeExpr::Enum),
        1 => texts.prop_map(TypeExpr::Val),
        2 => vec(any_size(), 0..3).prop_map(|all| TypeExpr::And(Box::new(Primitive::String.into()), all)),
        2 => vec(any_limit(), 0..3).prop_map(|all| TypeExpr::And(Box::new(Primitive::Number.into()), all)),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let boxed = inner.clone().prop_map(Box::new).boxed();
        let optional = (inner.clone(), any::<bool>());
        let fields = prop::collection::btree_map("[abc]", optional, 0..3);
        prop_oneof![
            vec(inner.clone(), 1..4).prop_map(TypeExpr::Union),
            boxed.clone().prop_map(TypeExpr::Vector),
            vec(inner.clone(), 0..4).prop_map(TypeExpr::Tuple),
            (fields, prop::option::of(boxed.clone())).prop_map(|(fields, others)| {
                let field = |(key, (ty, optional)): (String, _)| Field {
                    key: Value::keyword(key),
                    ty,
                    optional,
                };
                TypeExpr::Map(MapType { fields: fields.into_iter().map(field).collect(), others })
            }),
            boxed.clone().prop_map(|value| TypeExpr::MapOf(Box::new(Primitive::Keyword.into()), value)),
            (boxed.clone(), vec(any_count(), 0..3)).prop_map(|(ty, counts)| {
                let counts = counts.into_iter().filter(|count| *count != Predicate::Unique).collect();
                TypeExpr::And(Box::new(TypeExpr::Vector(ty)), counts)
            }),
        ]
    })
}

/// Returns a value that the notation can quote and that equals itself.
fn any_constant() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Nil),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        (-3_i64..3).prop_map(Value::Int),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_filter("NaN equals nothing", |float| !float.is_nan()).prop_map(Value::Float),
        (-2_i8..2).prop_map(|n| Value::Float(f64::from(n) / 2.0)),
        any_text().prop_map(Value::from),
        any_text().prop_map(Value::keyword),
        "[a-z][a-z0-9*!-]{0,3}"
            .prop_filter("literals", |name| !["nil", "true", "false"].contains(&name.as_str()))
            .prop_map(|name| Value::Symbol(Symbol::new(name))),
        (0_i64..3).prop_map(|s| Value::Instant(Instant::from_unix(s, 0).unwrap())),
        (0_u128..3).prop_map(|n| Value::Uuid(Uuid::from_u128(n))),
    ];
    scalar.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(|items| Value::vector(items).unwrap()),
            vec(inner.clone(), 0..3).prop_map(|items| Value::List(List::new(items).unwrap())),
            vec(inner.clone(), 0..3).prop_map(set_of),
            vec((inner.clone(), inner), 0..3).prop_map(map_of),
        ]
    })
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(vec!["", "a", "b", "*", "?", "-", "odd key", "ü/x", "3"]).prop_map(String::from),
        1 => any::<String>(),
    ]
}

fn any_number() -> impl Strategy<Value = Value> {
    prop_oneof![
        (-5_i64..5).prop_map(Value::Int),
        (-9_i8..9).prop_map(|n| Value::Float(f64::from(n) / 4.0)),
        any::<i64>().prop_map(Value::Int),
    ]
}

fn any_limit() -> impl Strategy<Value = Predicate> {
    prop_oneof![
        any_number().prop_map(Predicate::GreaterThan),
        any_number().prop_map(Predicate::AtLeast),
        any_number().prop_map(Predicate::LessThan),
        any_number().prop_map(Predicate::AtMost),
        (any_number(), any_number()).prop_map(|(from, to)| Predicate::InRange(from, to)),
    ]
}

fn any_number_type() -> impl Strategy<Value = TypeExpr> {
    let predicate = prop_oneof![
        4 => any_limit(),
        1 => any_number().prop_map(Predicate::Equals),
        1 => any_number().prop_map(Predicate::Differs),
        1 => (1_i64..4).prop_map(|n| Predicate::MultipleOf(n.into())),
        1 => prop::sample::select(vec![0.5, 0.25, 2.0]).prop_map(|n| Predicate::MultipleOf(n.into())),
    ];
    let base = prop::sample::select(vec![Primitive::Int, Primitive::Float, Primitive::Number]);
    (base, vec(predicate, 0..3))
        .prop_map(|(base, predicates)| TypeExpr::And(Box::new(base.into()), predicates))
}

fn any_size() -> impl Strategy<Value = Predicate> {
    prop_oneof![
        (0_u64..4).prop_map(Predicate::MinLength),
        (0_u64..4).prop_map(Predicate::MaxLength),
        (0_u64..4).prop_map(Predicate::Length),
        Just(Predicate::NonEmpty),
        prop::sample::select(vec!["^a", "b?$", "[^a]", "^(?:a|b)*$"])
            .prop_map(|text| Predicate::MatchesRegex(text.into())),
    ]
}

fn any_text_type() -> impl Strategy<Value = TypeExpr> {
    let predicate = prop_oneof![
        4 => any_size(),
        1 => any_text().prop_map(|text| Predicate::Equals(text.into())),
        1 => any_text().prop_map(|text| Predicate::Differs(text.into())),
        1 => prop::sample::select(vec![
            Predicate::IsUrl,
            Predicate::IsEmail,
            Predicate::IsUuid,
            Predicate::IsDate,
            Predicate::Format("ipv4".into()),
            Predicate::MatchesRegex("(?i)A".into()),
        ]),
    ];
    let base = prop::sample::select(vec![Primitive::String, Primitive::Keyword, Primitive::Any]);
    (base, vec(predicate, 0..3)).prop_map(|(base, mut predicates)| {
        // In JSON, a text cannot be distinguished from the keyword that differs.
        predicates.retain(|one| base == Primitive::String || !matches!(one, Predicate::Differs(_)));
        TypeExpr::And(Box::new(base.into()), predicates)
    })
}

fn any_count() -> impl Strategy<Value = Predicate> {
    prop_oneof![
        (0_u64..3).prop_map(Predicate::MinCount),
        (0_u64..3).prop_map(Predicate::MaxCount),
        (0_u64..3).prop_map(Predicate::Count),
        Just(Predicate::NonEmpty),
        Just(Predicate::Unique),
    ]
}

fn any_key() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => any_text().prop_map(Value::keyword),
        1 => any_text().prop_map(Value::from),
        1 => (-2_i64..3).prop_map(Value::Int),
        1 => Just(Value::vector(vec![Value::keyword("val"), 1.into()]).unwrap()),
    ]
}

fn any_key_predicate() -> impl Strategy<Value = Predicate> {
    prop_oneof![
        any_key().prop_map(Predicate::HasKey),
        vec(any_key(), 0..3).prop_map(Predicate::RequiredKeys),
        (0_u64..3).prop_map(Predicate::MinCount),
    ]
}

fn any_key_type() -> impl Strategy<Value = TypeExpr> {
    let primitives =
        [Primitive::Keyword, Primitive::String, Primitive::Int, Primitive::Any, Primitive::Uuid];
    prop_oneof![
        4 => prop::sample::select(primitives.to_vec()).prop_map(TypeExpr::Primitive),
        1 => vec(any_key(), 1..3).prop_map(TypeExpr::Enum),
        1 => any_text_type(),
    ]
}

fn any_record(inner: impl Strategy<Value = TypeExpr> + Clone) -> impl Strategy<Value = MapType> {
    let fields = vec((any_key(), inner.clone(), any::<bool>()), 0..4);
    (fields, prop::option::of(inner)).prop_map(|(all, others)| {
        let mut fields: Vec<Field> = Vec::new();
        for (key, ty, optional) in all {
            // Keys that are also distinct in JSON.
            let same = |field: &Field| key_name(&field.key) == key_name(&key);
            if !fields.iter().any(same) {
                fields.push(Field { key, ty, optional });
            }
        }
        MapType { fields, others: others.map(Box::new) }
    })
}

fn set_of(members: Vec<Value>) -> Value {
    let mut set = Set::new();
    for member in members {
        set.insert(member).unwrap();
    }
    Value::Set(set)
}

fn map_of(entries: Vec<(Value, Value)>) -> Value {
    let mut map = Map::new();
    for (key, value) in entries {
        map.insert(key, value).unwrap();
    }
    map.into()
}

/// Keeps the items that are also distinct in JSON.
fn differing_in_json(mut items: Vec<Value>) -> Vec<Value> {
    let mut seen = Vec::new();
    items.retain(|item| {
        let json = value_to_json(item).ok();
        let is_new = !seen.contains(&json);
        seen.push(json);
        is_new
    });
    items
}

/// Chooses values of a type; the same choices for the same seed.
pub(crate) struct Chooser(u64);

impl Chooser {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap_or_default() % n.max(1)
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> Option<T> {
        let at = self.below(of.len());
        of.get(at).cloned()
    }

    /// Returns a value of the type, if one is found: some types have none.
    pub(crate) fn value_of(&mut self, ty: &TypeExpr) -> Option<Value> {
        match ty {
            TypeExpr::Primitive(primitive) => self.primitive(*primitive),
            TypeExpr::Union(types) => {
                (0..4).find_map(|_| self.one(types).and_then(|ty| self.value_of(&ty)))
            }
            TypeExpr::Vector(item) => Value::vector(self.some_of(item)).ok(),
            TypeExpr::List(item) => List::new(self.some_of(item)).ok().map(Value::List),
            TypeExpr::Set(item) => Some(set_of(differing_in_json(self.some_of(item)))),
            TypeExpr::Tuple(types) => {
                let items: Option<Vec<_>> = types.iter().map(|ty| self.value_of(ty)).collect();
                Value::vector(items?).ok()
            }
            TypeExpr::Array { item, shape } => self.array(item, shape),
            TypeExpr::Map(record) => self.record(record),
            TypeExpr::MapOf(key, value) => {
                let count = self.below(3);
                let entry = |_| Some((self.value_of(key)?, self.value_of(value)?));
                Some(map_of((0..count).filter_map(entry).collect()))
            }
            TypeExpr::Enum(values) => self.one(values),
            TypeExpr::Val(value) => Some(value.clone()),
            TypeExpr::And(base, predicates) => (0..20).find_map(|_| {
                let value = match self.value_of(base)? {
                    Value::Vector(items) if predicates.contains(&Predicate::Unique) => {
                        Value::vector(differing_in_json(items.items().to_vec())).ok()?
                    }
                    value => value,
                };
                ty.admits(&value).then_some(value)
            }),
            // Only values that are also distinct in JSON.
            TypeExpr::Not(_) => (0..20).find_map(|_| {
                let natural = [Primitive::Nil, Primitive::Bool, Primitive::Int, Primitive::String];
                let value = self.one(&natural).and_then(|primitive| self.primitive(primitive))?;
                ty.admits(&value).then_some(value)
            }),
            TypeExpr::Defined { ty, .. } => self.value_of(ty),
            TypeExpr::JsonSchema { meaning, .. } => self.value_of(meaning),
            TypeExpr::Fn { .. } | TypeExpr::Stream(_) | TypeExpr::Ref(_) => None,
        }
    }

    fn some_of(&mut self, item: &TypeExpr) -> Vec<Value> {
        let count = self.below(4);
        (0..count).filter_map(|_| self.value_of(item)).collect()
    }

    fn array(&mut self, item: &TypeExpr, shape: &[Option<u64>]) -> Option<Value> {
        let Some((size, inner)) = shape.split_first() else { return self.value_of(item) };
        let size = size.map_or_else(|| self.below(3) as u64, |size| size);
        let items: Option<Vec<_>> = (0..size).map(|_| self.array(item, inner)).collect();
        Value::vector(items?).ok()
    }

    fn record(&mut self, record: &MapType) -> Option<Value> {
        let mut entries = Vec::new();
        for Field { key, ty, optional } in &record.fields {
            match self.value_of(ty) {
                Some(value) if !optional || self.below(2) == 0 => entries.push((key.clone(), value)),
                _ if *optional => {}
                _ => return None,
            }
        }
        let any = TypeExpr::ANY;
        let others = record.others.as_deref().unwrap_or(&any);
        let more = Value::keyword(["more", "a", "odd key"][self.below(3)]);
        if self.below(2) == 0
            && record.fields.iter().all(|field| key_name(&field.key) != key_name(&more))
            && let Some(value) = self.value_of(others)
        {
            entries.push((more, value));
        }
        Some(map_of(entries))
    }

    fn primitive(&mut self, primitive: Primitive) -> Option<Value> {
        let texts = [
            "",
            "a",
            "ab",
            "bab",
            "ü😀",
            "a@example.com",
            "https://example.com/x",
            "127.0.0.1",
            "2026-11-20",
        ];
        Some(match primitive {
            Primitive::Any => {
                let some = [
                    Primitive::Nil,
                    Primitive::Bool,
                    Primitive::Number,
                    Primitive::String,
                    Primitive::Keyword,
                    Primitive::Uuid,
                ];
                return self.one(&some).and_then(|primitive| self.primitive(primitive));
            }
            Primitive::Never | Primitive::Fn => return None,
            Primitive::Nil => Value::Nil,
            Primitive::Bool => Value::Bool(self.below(2) == 0),
            Primitive::Int => self.one(&[-7, -1, 0, 1, 2, 3, 6, i64::MAX, i64::MIN])?.into(),
            Primitive::Float => {
                self.one(&[-1.0, 0.25, 0.5, 1.5, 1e300, f64::NAN, f64::INFINITY])?.into()
            }
            Primitive::Number => {
                let one = self.one(&[Primitive::Int, Primitive::Float])?;
                return self.primitive(one);
            }
            Primitive::String => self.one(&texts)?.into(),
            Primitive::Keyword => Value::keyword(self.one(&texts)?),
            Primitive::Symbol => Value::Symbol(Symbol::new(self.one(&["x", "string/upper"])?)),
            Primitive::Instant => Value::Instant(Instant::from_unix(self.below(9) as i64, 0)?),
            Primitive::Uuid => Value::Uuid(Uuid::from_u128(self.below(9) as u128)),
        })
    }
}

//! Values: immutable, shared, compared by value.
//!
//! A [`Value`] is 16 bytes. Small kinds are stored inline, all others are one counted pointer, so
//! cloning never copies a collection. The holder of the only pointer may change the collection in place
//! ([`Vector::push`], [`Map::insert`]); other holders get a copy first.
//!
//! # Depth
//!
//! Each collection stores its depth, and none becomes deeper than [`MAX_DEPTH`](crate::MAX_DEPTH).
//! Dropping, comparing, hashing and printing may therefore recurse.

use std::hash::{Hash, Hasher};

use crate::function::{Closure, Code, Native};
use crate::lazy::Seq;
use crate::map::{Map, Set};
use crate::scalar::{BigInt, Instant, Keyword, Str, Symbol, Uuid};
use crate::sequence::{List, TooLarge, Vector};

/// Any value of the language.
///
/// `==` is the language's `=`: `1` and `1.0` differ, a vector and a list are equal when their items
/// are, maps and sets are equal in any order, and NaN equals nothing. `Debug` is `pr-str`,
/// `Display` is `str`.
///
/// The capability system's document writes some kinds with longer names. `Value::String`, `Value::Integer` and
/// `Value::Boolean` are functions that make such values; a pattern names the variant (`Value::Str`, `Value::Int`,
/// `Value::Bool`).
///
/// Kinds that fit into the 16 bytes come first, so that one comparison shows whether there is anything
/// to drop.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Value {
    /// `nil`
    #[default]
    Nil,
    /// `true`, `false`
    Bool(bool),
    /// `42`
    Int(i64),
    /// `1.5`
    Float(f64),
    /// A function of the standard library that is written in Rust.
    Native(Native),
    /// A function of a program that captures nothing.
    Code(Code),
    /// `:name`
    Keyword(Keyword),
    /// `name`
    Symbol(Symbol),
    /// An integer that does not fit `Int`.
    BigInt(BigInt),
    /// `"text"`
    Str(Str),
    /// `[1 2]`
    Vector(Vector),
    /// `(1 2)`
    List(List),
    /// `{:a 1}`
    Map(Map),
    /// `#{1 2}`
    Set(Set),
    /// `2026-11-20T10:00:00Z`
    Instant(Instant),
    /// `550e8400-e29b-41d4-a716-446655440000`
    Uuid(Uuid),
    /// A function of a program with its captured values.
    Closure(Closure),
    /// A lazy sequence or a stream.
    Seq(Seq),
}

const _: () = assert!(size_of::<Value>() == 16);

/// Constructors with the names of the capability system's document.
#[expect(non_snake_case, reason = "they are called as variants are")]
impl Value {
    /// Returns a [`Str`](Self::Str), as the capability system's document writes it (§5.2).
    pub fn String(text: impl Into<String> + AsRef<str>) -> Self {
        Self::Str(Str::new(text))
    }

    /// Returns an [`Int`](Self::Int).
    pub const fn Integer(integer: i64) -> Self {
        Self::Int(integer)
    }

    /// Returns a [`Bool`](Self::Bool).
    pub const fn Boolean(boolean: bool) -> Self {
        Self::Bool(boolean)
    }
}

impl Value {
    /// Returns the keyword `:name`; `name` is without its colon and may be any text.
    pub fn keyword(name: impl Into<Box<str>>) -> Self {
        Self::Keyword(Keyword::new(name))
    }

    /// Returns a vector of these items, unless it would be too deep.
    pub fn vector(items: Vec<Self>) -> Result<Self, TooLarge> {
        Vector::new(items).map(Self::Vector)
    }

    /// Returns the result of `(type-name x)`.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Nil => "nil",
            Self::Bool(_) => "boolean",
            Self::Int(_) | Self::BigInt(_) => "integer",
            Self::Float(_) => "float",
            Self::Keyword(_) => "keyword",
            Self::Symbol(_) => "symbol",
            Self::Str(_) => "string",
            Self::Vector(_) => "vector",
            Self::List(_) => "list",
            Self::Map(map) if map.is_error() => "error",
            Self::Map(_) => "map",
            Self::Set(_) => "set",
            Self::Instant(_) => "instant",
            Self::Uuid(_) => "uuid",
            Self::Native(_) | Self::Code(_) | Self::Closure(_) => "function",
            Self::Seq(seq) if seq.is_stream() => "stream",
            Self::Seq(_) => "sequence",
        }
    }

    /// Returns an upper bound of the number of parts, each counted as often as it occurs: 1 for a value
    /// that is not a collection.
    pub(crate) fn parts(&self) -> u32 {
        match self {
            Self::Vector(vector) => vector.parts(),
            Self::List(list) => list.parts(),
            Self::Map(map) => map.parts(),
            Self::Set(set) => set.parts(),
            Self::Seq(seq) => seq.realized().map_or(1, Vector::parts),
            _ => 1,
        }
    }

    /// Returns an upper bound of the nesting of its collections: 0 for a value that is not a collection.
    pub fn depth(&self) -> u16 {
        match self {
            Self::Vector(vector) => vector.depth(),
            Self::List(list) => list.depth(),
            Self::Map(map) => map.depth(),
            Self::Set(set) => set.depth(),
            Self::Closure(closure) => closure.depth(),
            Self::Seq(seq) => seq.depth(),
            Self::Nil
            | Self::Native(_)
            | Self::Code(_)
            | Self::Bool(_)
            | Self::Int(_)
            | Self::Float(_)
            | Self::Keyword(_)
            | Self::Symbol(_)
            | Self::BigInt(_)
            | Self::Str(_)
            | Self::Instant(_)
            | Self::Uuid(_) => 0,
        }
    }

    /// Returns whether the value owns no data beyond its 16 bytes.
    #[inline(always)]
    pub(crate) fn is_immediate(&self) -> bool {
        match self {
            Self::Nil
            | Self::Bool(_)
            | Self::Int(_)
            | Self::Float(_)
            | Self::Native(_)
            | Self::Code(_) => true,
            Self::Str(text) => text.is_short(),
            _ => false,
        }
    }

    /// Returns whether it is a function of any kind. Keywords and collections, which can be called too,
    /// do not count.
    pub fn is_function(&self) -> bool {
        matches!(self, Self::Native(_) | Self::Code(_) | Self::Closure(_))
    }

    /// Returns whether the value is neither `nil` nor `false`.
    #[inline(always)]
    pub fn is_truthy(&self) -> bool {
        !matches!(self, Self::Nil | Self::Bool(false))
    }

    /// Returns the items of a vector, a list, or a fully realized sequence.
    pub(crate) fn items(&self) -> Option<&[Self]> {
        match self {
            Self::Vector(vector) => Some(vector.items()),
            Self::List(list) => Some(list.items()),
            Self::Seq(seq) => seq.realized().map(Vector::items),
            _ => None,
        }
    }

    /// Returns the position of its kind in the total order. Kinds that may be equal share one.
    pub(crate) fn rank(&self) -> u8 {
        match self {
            Self::Nil => 0,
            Self::Bool(_) => 1,
            Self::Int(_) | Self::Float(_) | Self::BigInt(_) => 2,
            Self::Str(_) => 3,
            Self::Keyword(_) => 4,
            Self::Symbol(_) => 5,
            Self::Instant(_) => 6,
            Self::Uuid(_) => 7,
            Self::Vector(_) | Self::List(_) => 8,
            Self::Set(_) => 9,
            Self::Map(_) => 10,
            Self::Seq(seq) if seq.realized().is_some() => 8,
            Self::Native(_) | Self::Code(_) | Self::Closure(_) | Self::Seq(_) => 11,
        }
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Nil, Self::Nil) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Int(a), Self::Int(b)) => a == b,
            (Self::Float(a), Self::Float(b)) => a == b,
            (Self::Keyword(a), Self::Keyword(b)) => a == b,
            (Self::Symbol(a), Self::Symbol(b)) => a == b,
            (Self::BigInt(a), Self::BigInt(b)) => a == b,
            (Self::Str(a), Self::Str(b)) => a == b,
            (Self::Map(a), Self::Map(b)) => a == b,
            (Self::Set(a), Self::Set(b)) => a == b,
            (Self::Instant(a), Self::Instant(b)) => a == b,
            (Self::Uuid(a), Self::Uuid(b)) => a == b,
            (Self::Native(a), Self::Native(b)) => a == b,
            (Self::Code(a), Self::Code(b)) => a == b,
            (Self::Closure(a), Self::Closure(b)) => a.is(b),
            (Self::Seq(a), Self::Seq(b)) if a.is(b) => true,
            _ => matches!((self.items(), other.items()), (Some(a), Some(b)) if a == b),
        }
    }
}

/// Agrees with `==`. The hash differs between processes, so that no caller can choose colliding keys. No
/// order that a program can observe depends on it.
impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Integers and floats share a rank but are never equal.
        state.write_u8(self.rank());
        match self {
            Self::Nil => {}
            Self::Bool(bool) => bool.hash(state),
            Self::Int(integer) => integer.hash(state),
            Self::Float(float) => (float + 0.0).to_bits().hash(state), // -0.0 equals 0.0
            Self::Keyword(keyword) => state.write_u64(keyword.cached_hash()),
            Self::Symbol(symbol) => state.write_u64(symbol.cached_hash()),
            Self::BigInt(big) => big.get().hash(state),
            Self::Str(text) => text.hash(state),
            Self::Vector(vector) => vector.items().hash(state),
            Self::List(list) => list.items().hash(state),
            Self::Map(map) => state.write_u64(map.hash_of_members()),
            Self::Set(set) => state.write_u64(set.hash_of_members()),
            Self::Instant(instant) => instant.hash(state),
            Self::Uuid(uuid) => uuid.hash(state),
            Self::Native(_) | Self::Code(_) | Self::Closure(_) => {} // no key is one
            Self::Seq(seq) => {
                if let Some(items) = seq.realized() {
                    items.items().hash(state);
                }
            }
        }
    }
}

impl From<bool> for Value {
    fn from(bool: bool) -> Self {
        Self::Bool(bool)
    }
}

impl From<i32> for Value {
    fn from(integer: i32) -> Self {
        Self::Int(integer.into())
    }
}

impl From<i64> for Value {
    fn from(integer: i64) -> Self {
        Self::Int(integer)
    }
}

impl From<u64> for Value {
    fn from(integer: u64) -> Self {
        i64::try_from(integer).map_or_else(|_| Self::from(num_bigint::BigInt::from(integer)), Self::Int)
    }
}

impl From<num_bigint::BigInt> for Value {
    fn from(integer: num_bigint::BigInt) -> Self {
        match i64::try_from(&integer) {
            Ok(small) => Self::Int(small),
            Err(_) => Self::BigInt(BigInt::new(integer)),
        }
    }
}

impl From<f64> for Value {
    fn from(float: f64) -> Self {
        Self::Float(float)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Str(Str::new(text))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Str(Str::new(text))
    }
}

impl From<Keyword> for Value {
    fn from(keyword: Keyword) -> Self {
        Self::Keyword(keyword)
    }
}

impl From<Map> for Value {
    fn from(map: Map) -> Self {
        Self::Map(map)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::MAX_DEPTH;
    use crate::arbitrary::any_value;
    use crate::scalar::hash_of;

    #[test]
    fn equality_is_by_value() {
        let list =
            |items: &[i32]| Value::List(List::new(items.iter().map(|&n| n.into()).collect()).unwrap());
        let vector = |items: &[i32]| Value::vector(items.iter().map(|&n| n.into()).collect()).unwrap();
        let cases = [
            ("an integer is no float", 1.into(), 1.0.into(), false),
            ("the zeros are equal", 0.0.into(), (-0.0).into(), true),
            ("NaN equals nothing", f64::NAN.into(), f64::NAN.into(), false),
            ("a list equals a vector", list(&[1, 2]), vector(&[1, 2]), true),
            ("items count", list(&[1, 2]), vector(&[1]), false),
            ("the empty ones are equal", list(&[]), vector(&[]), true),
            ("nil is not empty", Value::Nil, vector(&[]), false),
            ("a keyword is not a string", Value::keyword("a"), "a".into(), false),
            ("two keywords of one name", Value::keyword("a"), Value::keyword(String::from("a")), true),
            ("a small big integer is an integer", num_bigint::BigInt::from(7).into(), 7.into(), true),
            ("u64 keeps its value", u64::MAX.into(), num_bigint::BigInt::from(u64::MAX).into(), true),
            ("the empty map is no empty set", Map::new().into(), Value::Set(Set::new()), false),
        ];
        for (name, a, b, equal) in cases {
            assert_eq!(a == b, equal, "{name}");
            assert!(!equal || hash_of(&a) == hash_of(&b), "{name}: hash");
        }
    }

    proptest! {
        #[test]
        fn equal_values_have_equal_hashes(a in any_value(), b in any_value()) {
            prop_assert!(a != b || hash_of(&a) == hash_of(&b));
            prop_assert_eq!(hash_of(&a), hash_of(&a.clone()));
            prop_assert_eq!(a == b, b == a);
        }
    }

    #[test]
    fn the_documents_names_make_the_same_values() {
        assert_eq!(Value::String("Custom result".to_string()), Value::from("Custom result"));
        assert_eq!(Value::Integer(7), Value::Int(7));
        assert_eq!(Value::Boolean(true), Value::Bool(true));
    }

    #[test]
    fn nothing_is_deeper_than_the_limit() {
        let wraps: [fn(Value) -> Result<Value, TooLarge>; 4] = [
            |inner| Value::vector(vec![inner]),
            |inner| List::new(vec![inner]).map(Value::List),
            |inner| {
                let mut set = Set::new();
                set.insert(inner)?;
                Ok(Value::Set(set))
            },
            |inner| {
                let mut map = Map::new();
                map.insert(Value::keyword("a"), inner)?;
                Ok(map.into())
            },
        ];
        for wrap in wraps {
            let deepest = || (0..MAX_DEPTH).try_fold(Value::Nil, |inner, _| wrap(inner)).unwrap();
            let (a, b) = (deepest(), deepest());
            assert_eq!(a.depth(), MAX_DEPTH);
            assert_eq!(wrap(a.clone()), Err(TooLarge::Levels));
            // Recursion ends before the stack does.
            assert!(a == b && a.compare(&b).is_eq() && hash_of(&a) == hash_of(&b));
            assert!(a.pr_str().len() > 2 * usize::from(MAX_DEPTH));
        }
    }

    #[test]
    fn strings_know_their_length_in_characters() {
        for (text, chars, ascii) in [("", 0, true), ("abc", 3, true), ("aü😀", 3, false)] {
            let text = Str::new(text);
            assert_eq!((text.char_count(), text.is_ascii()), (chars, ascii));
        }
    }
}

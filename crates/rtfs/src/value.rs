//! Values: immutable, shared, compared by value.
//!
//! A [`Value`] is 16 bytes. Small kinds are inside, all others are one counted pointer, so cloning
//! never copies a collection. Whoever holds the only pointer may change the collection in place
//! ([`Vector::push`], [`Map::insert`]); everyone else gets a copy first.
//!
//! # Depth
//!
//! Each collection knows how deep it is, and none can become deeper than [`MAX_DEPTH`]. Dropping,
//! comparing, hashing and printing may therefore recurse.
//!
//! # Keywords are counted strings
//!
//! They are not numbers in a program's table, because a value crosses programs: most keywords come
//! from JSON, belong to no program, and have to die with their data (a global table would let any
//! client grow it for ever). Their hash is computed once, and a program's constants may share one
//! pointer, so that in the usual case a comparison is that of two pointers.

use std::cmp::Ordering;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::LazyLock;

use triomphe::Arc;

use crate::map::{Map, Set};

/// Any datum of the language.
///
/// `==` is the language's `=`: `1` and `1.0` differ, a vector and a list are equal when their items
/// are, maps and sets are equal whatever their order, and NaN equals nothing. `Debug` is `pr-str`,
/// `Display` is `str`.
///
/// More kinds (functions, sequences) will come with the machine.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Value {
    #[default]
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    Keyword(Keyword),
    Symbol(Symbol),
    /// An integer that does not fit `Int`.
    BigInt(BigInt),
    Str(Str),
    Vector(Vector),
    List(List),
    Map(Map),
    Set(Set),
    Instant(Instant),
    Uuid(Uuid),
}

const _: () = assert!(size_of::<Value>() == 16);

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

impl Value {
    /// The keyword `:name`; `name` is without its colon and may be any text.
    pub fn keyword(name: impl Into<Box<str>>) -> Self {
        Self::Keyword(Keyword::new(name))
    }

    /// A vector of these items, unless it would be too deep.
    pub fn vector(items: Vec<Self>) -> Result<Self, TooDeep> {
        Vector::new(items).map(Self::Vector)
    }

    /// What `(type-name x)` says.
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
            Self::Map(_) => "map",
            Self::Set(_) => "set",
            Self::Instant(_) => "instant",
            Self::Uuid(_) => "uuid",
        }
    }

    /// How deep the collections in it are nested, at most: 0 for what is no collection.
    pub fn depth(&self) -> u16 {
        match self {
            Self::Vector(vector) => vector.0.depth,
            Self::List(list) => list.0.depth,
            Self::Map(map) => map.depth(),
            Self::Set(set) => set.depth(),
            Self::Nil
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

    /// The order of `compare` and `sort`, which puts anything before or after anything: nil,
    /// booleans, numbers, strings, keywords, symbols, instants, UUIDs, vectors and lists, sets, maps.
    ///
    /// Numbers are ordered by their exact mathematical value, whatever their kind, so `1` and `1.0`
    /// tie; NaN comes after all others and ties with itself. Strings and names go by code point,
    /// vectors and lists by length and then item by item, sets and maps by length and then by their
    /// sorted members. Values that are equal tie.
    pub fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => a.cmp(b),
            (Self::Int(a), Self::Int(b)) => a.cmp(b),
            (Self::Str(a), Self::Str(b)) => a.as_str().cmp(b.as_str()),
            (Self::Keyword(a), Self::Keyword(b)) => a.name().cmp(b.name()),
            (Self::Symbol(a), Self::Symbol(b)) => a.name().cmp(b.name()),
            (Self::Instant(a), Self::Instant(b)) => a.0.cmp(&b.0),
            (Self::Uuid(a), Self::Uuid(b)) => a.0.cmp(&b.0),
            (Self::Set(a), Self::Set(b)) => a.compare(b),
            (Self::Map(a), Self::Map(b)) => a.compare(b),
            _ => match (self.items(), other.items()) {
                (Some(a), Some(b)) => {
                    a.len().cmp(&b.len()).then_with(|| compare_in_turn(a.iter().zip(b)))
                }
                _ => compare_numbers(self, other).unwrap_or_else(|| self.rank().cmp(&other.rank())),
            },
        }
    }

    /// The items of a vector or list.
    fn items(&self) -> Option<&[Self]> {
        match self {
            Self::Vector(vector) => Some(vector.items()),
            Self::List(list) => Some(list.items()),
            _ => None,
        }
    }

    /// The place of its kind in the total order. Kinds that may be equal share one.
    fn rank(&self) -> u8 {
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
        }
    }
}

pub(crate) fn compare_in_turn<'a>(pairs: impl Iterator<Item = (&'a Value, &'a Value)>) -> Ordering {
    pairs.map(|(a, b)| a.compare(b)).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

/// Compares by mathematical value; `None` unless both are numbers.
fn compare_numbers(a: &Value, b: &Value) -> Option<Ordering> {
    Some(match (a, b) {
        (Value::Float(a), Value::Float(b)) => {
            a.partial_cmp(b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
        }
        (Value::Float(a), b) => compare_with_float(b, *a)?.reverse(),
        (a, Value::Float(b)) => compare_with_float(a, *b)?,
        (Value::Int(a), Value::Int(b)) => a.cmp(b),
        (Value::BigInt(a), Value::BigInt(b)) => a.get().cmp(b.get()),
        // A big one lies beyond every small one, on its own side.
        (Value::Int(_), Value::BigInt(b)) => b.get().sign().cmp(&num_bigint::Sign::NoSign).reverse(),
        (Value::BigInt(a), Value::Int(_)) => a.get().sign().cmp(&num_bigint::Sign::NoSign),
        _ => return None,
    })
}

fn compare_with_float(integer: &Value, float: f64) -> Option<Ordering> {
    /// 2^63, the first float beyond `i64`.
    const BEYOND: f64 = 9_223_372_036_854_775_808.0;
    Some(match integer {
        Value::Int(_) | Value::BigInt(_) if float.is_nan() || float == f64::INFINITY => Ordering::Less,
        Value::Int(_) | Value::BigInt(_) if float == f64::NEG_INFINITY => Ordering::Greater,
        Value::Int(_) if float >= BEYOND => Ordering::Less,
        Value::Int(_) if float < -BEYOND => Ordering::Greater,
        Value::Int(integer) => {
            integer.cmp(&(float.trunc() as i64)).then_with(|| 0.0_f64.total_cmp(&(float.fract() + 0.0)))
        }
        Value::BigInt(big) if (-BEYOND..BEYOND).contains(&float) => {
            big.get().sign().cmp(&num_bigint::Sign::NoSign)
        }
        Value::BigInt(big) => big.get().cmp(&exact_integer(float)),
        _ => return None,
    })
}

/// The integer that a float of at least 2^63 in magnitude is.
fn exact_integer(float: f64) -> num_bigint::BigInt {
    let bits = float.to_bits();
    let mantissa = (bits & ((1 << 52) - 1)) | (1 << 52);
    let shift = ((bits >> 52) & 0x7ff) - 1_075;
    let magnitude = num_bigint::BigInt::from(mantissa) << shift;
    if float < 0.0 { -magnitude } else { magnitude }
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
            _ => matches!((self.items(), other.items()), (Some(a), Some(b)) if a == b),
        }
    }
}

/// Agrees with `==`. Differs from one process to the next, so that nobody can choose keys that
/// collide; no order that a program can see depends on it.
impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Integers and floats share a rank and need not: they are never equal.
        state.write_u8(self.rank());
        match self {
            Self::Nil => {}
            Self::Bool(bool) => bool.hash(state),
            Self::Int(integer) => integer.hash(state),
            Self::Float(float) => (float + 0.0).to_bits().hash(state), // -0.0 equals 0.0
            Self::Keyword(keyword) => state.write_u64(keyword.0.hash),
            Self::Symbol(symbol) => state.write_u64(symbol.0.hash),
            Self::BigInt(big) => big.get().hash(state),
            Self::Str(text) => text.as_str().hash(state),
            Self::Vector(vector) => vector.items().hash(state),
            Self::List(list) => list.items().hash(state),
            Self::Map(map) => state.write_u64(map.hash_of_members()),
            Self::Set(set) => state.write_u64(set.hash_of_members()),
            Self::Instant(instant) => instant.0.hash(state),
            Self::Uuid(uuid) => uuid.0.hash(state),
        }
    }
}

/// The hash that keywords cache and indices use.
pub(crate) fn hash_of(item: &(impl Hash + ?Sized)) -> u64 {
    static STATE: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    STATE.hash_one(item)
}

/// A name such as `:city`, `:ns/name` or `:"any text"`.
///
/// A clone shares its text, and comparing clones is comparing pointers.
#[derive(Clone, Debug)]
pub struct Keyword(Arc<Name>);

/// A name of a program, such as `map` or `even?`.
#[derive(Clone, Debug)]
pub struct Symbol(Arc<Name>);

#[derive(Debug)]
struct Name {
    hash: u64,
    text: Box<str>,
}

impl Name {
    fn new(text: Box<str>) -> Arc<Self> {
        Arc::new(Self { hash: hash_of(&*text), text })
    }
}

impl Keyword {
    /// `name` is without its colon and may be any text.
    pub fn new(name: impl Into<Box<str>>) -> Self {
        Self(Name::new(name.into()))
    }

    /// The text without its colon.
    pub fn name(&self) -> &str {
        &self.0.text
    }

    pub(crate) fn cached_hash(&self) -> u64 {
        self.0.hash
    }
}

impl Symbol {
    pub fn new(name: impl Into<Box<str>>) -> Self {
        Self(Name::new(name.into()))
    }

    pub fn name(&self) -> &str {
        &self.0.text
    }
}

fn same_name(a: &Arc<Name>, b: &Arc<Name>) -> bool {
    Arc::ptr_eq(a, b) || (a.hash == b.hash && a.text == b.text)
}

impl PartialEq for Keyword {
    fn eq(&self, other: &Self) -> bool {
        same_name(&self.0, &other.0)
    }
}

impl Eq for Keyword {}

impl PartialEq for Symbol {
    fn eq(&self, other: &Self) -> bool {
        same_name(&self.0, &other.0)
    }
}

impl Eq for Symbol {}

/// An integer beyond `i64`. It is made by `Value::from(num_bigint::BigInt)`, which chooses the
/// kind: so each integer has one representation, and equality stays simple.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BigInt(Arc<num_bigint::BigInt>);

impl BigInt {
    pub fn get(&self) -> &num_bigint::BigInt {
        &self.0
    }
}

/// Text. Indices count characters (code points), so it remembers how many there are.
#[derive(Clone, Debug)]
pub struct Str(Arc<Text>);

#[derive(Debug)]
struct Text {
    text: Box<str>,
    chars: usize,
}

impl Str {
    pub fn new(text: impl Into<Box<str>>) -> Self {
        let text = text.into();
        let chars = text.chars().count();
        Self(Arc::new(Text { text, chars }))
    }

    pub fn as_str(&self) -> &str {
        &self.0.text
    }

    /// Number of characters.
    pub fn char_count(&self) -> usize {
        self.0.chars
    }

    /// Whether each character is one byte, so that an index of characters is one of bytes.
    pub fn is_ascii(&self) -> bool {
        self.0.chars == self.0.text.len()
    }
}

impl PartialEq for Str {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.as_str() == other.as_str()
    }
}

impl Eq for Str {}

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
    pub fn new(items: Vec<Value>) -> Result<Self, TooDeep> {
        Items::new(items).map(Self)
    }

    pub fn items(&self) -> &[Value] {
        &self.0.items
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
    pub fn new(items: Vec<Value>) -> Result<Self, TooDeep> {
        Items::new(items).map(Self)
    }

    pub fn items(&self) -> &[Value] {
        &self.0.items
    }
}

/// A point in time, from year 0 to 9999, to the nanosecond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instant(Arc<(i64, u32)>);

impl Instant {
    /// `None` if the year is none of 0 to 9999, or `nanoseconds` is a second or more.
    pub fn from_unix(seconds: i64, nanoseconds: u32) -> Option<Self> {
        /// 0000-01-01T00:00:00Z to 9999-12-31T23:59:59Z.
        const RANGE: std::ops::RangeInclusive<i64> = -62_167_219_200..=253_402_300_799;
        let valid = RANGE.contains(&seconds) && nanoseconds < 1_000_000_000;
        valid.then(|| Self(Arc::new((seconds, nanoseconds))))
    }

    /// Seconds since 1970-01-01T00:00:00Z, rounded down.
    pub fn unix_seconds(&self) -> i64 {
        self.0.0
    }

    /// Nanoseconds since the beginning of that second.
    pub fn subsec_nanoseconds(&self) -> u32 {
        self.0.1
    }
}

/// A UUID of any version, ordered as its text is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uuid(Arc<u128>);

impl Uuid {
    pub fn from_u128(bits: u128) -> Self {
        Self(Arc::new(bits))
    }

    pub fn as_u128(&self) -> u128 {
        *self.0
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
            Err(_) => Self::BigInt(BigInt(Arc::new(integer))),
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

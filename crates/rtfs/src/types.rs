//! Types as data. (RTFS, "Types")
//!
//! A [`TypeExpr`] describes a set of values. It is read and printed in RTFS notation
//! ([`TypeExpr::parse`], `Display`), created from quoted data ([`TypeExpr::from_value`]), and used to
//! check values ([`TypeExpr::check`]).
//!
//! A type that was made from JSON Schema keeps the schema's text, so that the original text is passed
//! on, including the parts that RTFS notation cannot express. This module checks the part that RTFS can
//! express. A validator of JSON Schema checks the rest.
//!
//! # How it works
//!
//! The reader of programs parses a text to data, and data becomes a type (`parse`). A check first only
//! tests whether a value matches, which allocates nothing, and collects reasons if it does not (`check`,
//! `predicate`, `format`; `explain`).
//!
//! # Bounds
//!
//! A parsed type is nested at most [`MAX_TYPE_DEPTH`] deep. A check ends after [`Checking::max_steps`],
//! also with recursive types, and recurses no deeper than the stack of a thread allows. Regular
//! expressions run in linear time.

#[cfg(test)]
mod arbitrary;
mod check;
#[cfg(test)]
mod check_tests;
mod definitions;
mod explain;
mod format;
mod names;
mod parse;
#[cfg(test)]
mod parse_tests;
mod pattern;
mod predicate;
mod print;
mod verify;
mod violation;
mod words;

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

pub use check::{Checking, Form};
pub use definitions::Definitions;
pub use format::text_formats;
pub use parse::{InvalidType, MAX_TYPE_DEPTH};
pub use pattern::Pattern;
pub use violation::Violation;

use crate::value::Value;

/// A type: a set of values.
#[derive(Clone, Debug, PartialEq)]
pub enum TypeExpr {
    /// `:string`
    Primitive(Primitive),
    /// `[:union A B]`; with `:nil` as its second of two it prints as `A?`.
    Union(Vec<Self>),
    /// `[:vector T]`
    Vector(Box<Self>),
    /// `[:list T]`
    List(Box<Self>),
    /// `[:set T]`
    Set(Box<Self>),
    /// `[:tuple A B]`
    Tuple(Vec<Self>),
    /// `[:stream T]`
    Stream(Box<Self>),
    /// `[:array T [3 ?]]`: the length of each dimension, if it is fixed.
    Array {
        /// The type of each item.
        item: Box<Self>,
        /// The outermost dimension first.
        shape: Vec<Option<u64>>,
    },
    /// `[:map [:name :string] [:age :int ?]]`
    Map(MapType),
    /// `[:map-of K V]`
    MapOf(Box<Self>, Box<Self>),
    /// `[:enum :a "b" 3]`
    Enum(Vec<Value>),
    /// `[:val 3]`
    Val(Value),
    /// `[:and T p…]`
    And(Box<Self>, Vec<Predicate>),
    /// `[:not T]`
    Not(Box<Self>),
    /// `[:fn [A B & C] R]`
    Fn {
        /// `A B`
        params: Vec<Self>,
        /// `C`, the type of each further argument
        rest: Option<Box<Self>>,
        /// `R`
        result: Box<Self>,
    },
    /// `[:ref Name]`
    Ref(Arc<str>),
    /// A type together with the definitions of its names. It prints without them.
    Defined {
        /// The type.
        ty: Box<Self>,
        /// The definitions of its names, including names in the definitions.
        definitions: Arc<Definitions>,
    },
    /// A type from JSON Schema: its text, and the part that RTFS can express. It prints as the latter.
    JsonSchema {
        /// The original schema.
        text: Arc<str>,
        /// The part that RTFS can express; it admits no less.
        meaning: Meaning,
    },
}

/// The part of a JSON Schema that RTFS can express, parsed on demand.
#[derive(Clone)]
pub struct Meaning(Arc<Deferred>);

struct Deferred {
    text: Arc<str>,
    read: fn(&str) -> TypeExpr,
    ty: OnceLock<TypeExpr>,
}

impl Deref for Meaning {
    type Target = TypeExpr;

    fn deref(&self) -> &TypeExpr {
        self.0.ty.get_or_init(|| (self.0.read)(&self.0.text))
    }
}

impl From<TypeExpr> for Meaning {
    fn from(ty: TypeExpr) -> Self {
        let unread = |_: &str| TypeExpr::ANY;
        Self(Arc::new(Deferred { text: "".into(), read: unread, ty: ty.into() }))
    }
}

impl PartialEq for Meaning {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || **self == **other
    }
}

impl fmt::Debug for Meaning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// The types without parts. An `:int` is accepted where `:float` or `:number` is required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Primitive {
    /// `:any`
    Any,
    /// `:never`
    Never,
    /// `:nil`
    Nil,
    /// `:bool`
    Bool,
    /// `:int`
    Int,
    /// `:float`
    Float,
    /// `:number`
    Number,
    /// `:string`
    String,
    /// `:keyword`
    Keyword,
    /// `:symbol`
    Symbol,
    /// `:instant`
    Instant,
    /// `:uuid`
    Uuid,
    /// `:fn`
    Fn,
}

/// A record: a map with known keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MapType {
    /// The known keys, in the order of their declaration.
    pub fields: Vec<Field>,
    /// The type of the other keys' values (`[:* T]`); `None` allows any, [`Primitive::Never`] forbids
    /// others.
    pub others: Option<Box<TypeExpr>>,
}

/// One key of a record.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// The key, usually a keyword.
    pub key: Value,
    /// The type of its value.
    pub ty: TypeExpr,
    /// Whether the key may be absent.
    pub optional: bool,
}

/// A condition of `[:and T …]` beyond the type. Lengths count characters, counts count items.
#[derive(Clone, Debug, PartialEq)]
pub enum Predicate {
    /// `[:> x]`
    GreaterThan(Value),
    /// `[:>= x]`
    AtLeast(Value),
    /// `[:< x]`
    LessThan(Value),
    /// `[:<= x]`
    AtMost(Value),
    /// `[:= x]`
    Equals(Value),
    /// `[:!= x]`
    Differs(Value),
    /// `[:in-range a b]`
    InRange(Value, Value),
    /// `[:multiple-of n]`
    MultipleOf(Value),
    /// `[:min-length n]`
    MinLength(u64),
    /// `[:max-length n]`
    MaxLength(u64),
    /// `[:length n]`
    Length(u64),
    /// `[:matches-regex "…"]`: somewhere in the text.
    MatchesRegex(Pattern),
    /// `[:min-count n]`
    MinCount(u64),
    /// `[:max-count n]`
    MaxCount(u64),
    /// `[:count n]`
    Count(u64),
    /// `[:non-empty]`
    NonEmpty,
    /// `[:unique]`
    Unique,
    /// `[:has-key :k]`
    HasKey(Value),
    /// `[:required-keys [:a :b]]`
    RequiredKeys(Vec<Value>),
    /// `[:is-url]`
    IsUrl,
    /// `[:is-email]`
    IsEmail,
    /// `[:is-uuid]`
    IsUuid,
    /// `[:is-date]`
    IsDate,
    /// `[:format "…"]`: a format of JSON Schema.
    Format(Arc<str>),
}

impl TypeExpr {
    /// `:any`
    pub const ANY: Self = Self::Primitive(Primitive::Any);

    /// Returns the union of this type and nil.
    pub fn optional(self) -> Self {
        Self::Union(vec![self, Self::Primitive(Primitive::Nil)])
    }

    /// Returns the type with these definitions of its names, which take precedence over those of outer
    /// types.
    pub fn with_definitions(self, definitions: Arc<Definitions>) -> Self {
        Self::Defined { ty: Box::new(self), definitions }
    }

    /// Returns the type with the JSON Schema that it was made from.
    pub fn with_json_schema(self, text: Arc<str>) -> Self {
        let meaning = match self {
            Self::JsonSchema { meaning, .. } => meaning,
            other => other.into(),
        };
        Self::JsonSchema { text, meaning }
    }

    /// Returns the type of a JSON Schema. `read` converts the schema's text on first use: most schemas
    /// are only passed on and enforced as JSON Schema.
    pub fn of_json_schema(text: Arc<str>, read: fn(&str) -> Self) -> Self {
        let meaning = Meaning(Arc::new(Deferred { text: Arc::clone(&text), read, ty: OnceLock::new() }));
        Self::JsonSchema { text, meaning }
    }

    /// Returns the text of the JSON Schema that it was made from, if any.
    pub fn json_schema(&self) -> Option<&str> {
        match self {
            Self::JsonSchema { text, .. } => Some(text),
            _ => None,
        }
    }
}

impl Primitive {
    /// Every one.
    pub const ALL: [Self; 13] = [
        Self::Any,
        Self::Never,
        Self::Nil,
        Self::Bool,
        Self::Int,
        Self::Float,
        Self::Number,
        Self::String,
        Self::Keyword,
        Self::Symbol,
        Self::Instant,
        Self::Uuid,
        Self::Fn,
    ];

    /// Returns the primitive of this name, without its colon.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|primitive| primitive.name() == name)
    }

    /// Returns the name without its colon.
    pub fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Never => "never",
            Self::Nil => "nil",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Float => "float",
            Self::Number => "number",
            Self::String => "string",
            Self::Keyword => "keyword",
            Self::Symbol => "symbol",
            Self::Instant => "instant",
            Self::Uuid => "uuid",
            Self::Fn => "fn",
        }
    }
}

impl From<Primitive> for TypeExpr {
    fn from(primitive: Primitive) -> Self {
        Self::Primitive(primitive)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::arbitrary::{Chooser, any_plain_type, any_type};
    use super::*;
    use crate::arbitrary::any_value;
    use crate::json::{value_from_json, value_to_json};

    proptest! {
        #[test]
        fn printed_types_round_trip(ty in any_type()) {
            let text = ty.to_string();
            let again = TypeExpr::parse(&text);
            prop_assert_eq!(again, Ok(ty), "{}", text);
        }

        #[test]
        fn a_type_admits_the_values_that_it_generates(ty in any_type(), seed in any::<u64>()) {
            let mut chooser = Chooser::new(seed);
            for _ in 0..4 {
                let Some(value) = chooser.value_of(&ty) else { continue };
                prop_assert_eq!(ty.check(&value, "x"), Ok(()), "{} of {:?}", value.pr_str(), ty);
                let json = Checking { form: Form::Json, ..Checking::default() };
                let Ok(text) = value_to_json(&value) else { continue };
                let value = value_from_json(&text).unwrap();
                prop_assert_eq!(json.check(&ty, &value, "x"), Ok(()), "{} of {:?}", text, ty);
            }
        }

        #[test]
        fn every_rejected_value_has_a_violation(ty in any_type(), value in any_value()) {
            for form in [Form::Value, Form::Json] {
                let checking = Checking { form, ..Checking::default() };
                match checking.check(&ty, &value, "x") {
                    Ok(()) => prop_assert!(checking.admits(&ty, &value)),
                    Err(violations) => {
                        prop_assert!(!checking.admits(&ty, &value) && !violations.is_empty());
                        prop_assert!(violations.iter().all(|violation| violation.path.starts_with('x')));
                    }
                }
            }
            let not = TypeExpr::Not(Box::new(ty.clone()));
            prop_assert_ne!(ty.admits(&value), not.admits(&value));
        }

        #[test]
        fn plain_types_print_and_read_too(ty in any_plain_type()) {
            prop_assert_eq!(ty.to_string().parse(), Ok(ty));
        }
    }

    #[test]
    fn remembers_the_schema_it_came_from_once() {
        let ty = TypeExpr::ANY.with_json_schema("{}".into()).with_json_schema("true".into());
        assert_eq!(ty.json_schema(), Some("true"));
        assert_eq!(ty, TypeExpr::JsonSchema { text: "true".into(), meaning: TypeExpr::ANY.into() });
        assert_eq!(TypeExpr::ANY.json_schema(), None);
    }
}

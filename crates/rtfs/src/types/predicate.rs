//! Checks the conditions of `[:and T …]`.

use std::borrow::Cow;
use std::collections::HashSet;

use num_bigint::{BigInt, Sign};

use super::{Form, Predicate, format};
use crate::map::Map;
use crate::scalar::{Instant, Symbol, Uuid};
use crate::value::Value;

/// The maximum number of items that are compared pairwise instead of being put into a table.
const FEW: usize = 16;

impl Predicate {
    /// Returns whether `value` meets the condition. A value to which the condition does not apply (the
    /// length of a number) does not meet it.
    pub(super) fn holds(&self, value: &Value, form: Form) -> bool {
        let order = |limit| compare(value, limit, form);
        let length = || text_of(value).map(char_count);
        let is = |format: fn(&str) -> bool| text_of(value).is_some_and(|text| format(text.1));
        match self {
            Self::GreaterThan(x) => order(x).is_some_and(std::cmp::Ordering::is_gt),
            Self::AtLeast(x) => order(x).is_some_and(std::cmp::Ordering::is_ge),
            Self::LessThan(x) => order(x).is_some_and(std::cmp::Ordering::is_lt),
            Self::AtMost(x) => order(x).is_some_and(std::cmp::Ordering::is_le),
            Self::Equals(x) => equal(x, value, form),
            // In JSON, 1.0 may represent 1, but it is enough that it may represent another value.
            Self::Differs(x) if is_number(x) => x != value,
            Self::Differs(x) => !equal(x, value, form),
            Self::InRange(from, to) => {
                order(from).is_some_and(std::cmp::Ordering::is_ge)
                    && order(to).is_some_and(std::cmp::Ordering::is_le)
            }
            Self::MultipleOf(n) => is_multiple(value, n),
            Self::MinLength(n) => length().is_some_and(|length| length >= *n),
            Self::MaxLength(n) => length().is_some_and(|length| length <= *n),
            Self::Length(n) => length() == Some(*n),
            Self::MatchesRegex(pattern) => text_of(value).is_some_and(|text| pattern.is_match(text.1)),
            Self::MinCount(n) => count(value).is_some_and(|count| count >= *n),
            Self::MaxCount(n) => count(value).is_some_and(|count| count <= *n),
            Self::Count(n) => count(value) == Some(*n),
            Self::NonEmpty => length().or_else(|| count(value)).is_some_and(|size| size > 0),
            Self::Unique => match value {
                Value::Set(_) => true,
                value => value.items().is_some_and(all_differ),
            },
            Self::HasKey(key) => has_key(value, key, form),
            Self::RequiredKeys(keys) => keys.iter().all(|key| has_key(value, key, form)),
            Self::IsUrl => is(format::url),
            Self::IsEmail => is(format::email),
            Self::IsUuid => matches!(value, Value::Uuid(_)) || is(|text| Uuid::parse(text).is_some()),
            Self::IsDate => is(format::date),
            Self::Format(name) => text_of(value).is_some_and(|text| format::matches(name, text.1)),
        }
    }
}

/// Returns the text of a string or the name of a keyword or symbol, preceded by its length if that is
/// known.
fn text_of(value: &Value) -> Option<(Option<usize>, &str)> {
    match value {
        Value::Str(text) => Some((Some(text.char_count()), text.as_str())),
        Value::Keyword(keyword) => Some((None, keyword.name())),
        Value::Symbol(symbol) => Some((None, symbol.name())),
        _ => None,
    }
}

fn char_count((known, text): (Option<usize>, &str)) -> u64 {
    known.unwrap_or_else(|| text.chars().count()) as u64
}

fn count(value: &Value) -> Option<u64> {
    match value {
        Value::Map(map) => Some(map.len() as u64),
        Value::Set(set) => Some(set.len() as u64),
        value => value.items().map(|items| items.len() as u64),
    }
}

fn has_key(value: &Value, key: &Value, form: Form) -> bool {
    matches!(value, Value::Map(map) if look_up(map, key, form).is_some())
}

/// Returns the value of a map for a key of a type. JSON has only text keys, which became keywords.
pub(super) fn look_up<'m>(map: &'m Map, key: &Value, form: Form) -> Option<&'m Value> {
    match (form, key) {
        (_, Value::Keyword(keyword)) => map.get_keyword(keyword.name()),
        (Form::Value, key) => map.get(key),
        (Form::Json, Value::Str(text)) => map.get_keyword(text.as_str()),
        (Form::Json, Value::Symbol(symbol)) => map.get_keyword(symbol.name()),
        (Form::Json, key) => map.get_keyword(&key.to_string()),
    }
}

/// Returns whether no two items are equal.
pub(super) fn all_differ(items: &[Value]) -> bool {
    if items.len() <= FEW {
        return items.iter().enumerate().all(|(i, item)| !items[..i].contains(item));
    }
    let mut seen = HashSet::with_capacity(items.len());
    items.iter().all(|item| seen.insert(ByEquality(item)))
}

/// A key of a table. NaN equals nothing, not even itself, which is harmless in a table: it is never
/// found.
#[derive(PartialEq, Hash)]
struct ByEquality<'v>(&'v Value);

impl Eq for ByEquality<'_> {}

/// Returns the order of two comparable values: numbers, texts, names, booleans, instants, and vectors of
/// these.
fn compare(value: &Value, limit: &Value, form: Form) -> Option<std::cmp::Ordering> {
    let value = &*read_as(limit, value, form);
    let is_ordered = match (value, limit) {
        (Value::Float(float), _) | (_, Value::Float(float)) if float.is_nan() => false,
        (Value::Map(_) | Value::Set(_) | Value::Nil, _) => false,
        (value, limit) => match (value.items(), limit.items()) {
            (Some(a), Some(b)) => {
                // The same comparison as `<`: of the same kinds, item by item.
                a.iter().zip(b).all(|(a, b)| compare(a, b, form).is_some())
            }
            _ => value.rank() == limit.rank(),
        },
    };
    is_ordered.then(|| value.compare(limit))
}

/// Returns whether `got` is the value that a type names: equal, or, for values from JSON, equal to its
/// JSON form.
pub(super) fn equal(wanted: &Value, got: &Value, form: Form) -> bool {
    if wanted == got {
        return true;
    }
    if form == Form::Value {
        return false;
    }
    match (wanted, got) {
        (Value::Set(members), Value::Vector(items)) => {
            let is_in = |member: &Value| items.items().iter().any(|item| equal(member, item, form));
            members.len() == items.items().len() && members.iter().all(is_in)
        }
        (Value::Map(a), Value::Map(b)) => {
            let is_same =
                |(key, value): (_, &_)| look_up(b, key, form).is_some_and(|got| equal(value, got, form));
            a.len() == b.len() && a.iter().all(is_same)
        }
        _ => match (wanted.items(), got.items()) {
            (Some(a), Some(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b, form)),
            // JSON does not distinguish 1 from 1.0.
            _ if is_number(wanted) => is_number(got) && wanted.compare(got).is_eq(),
            _ => *read_as(wanted, got, form) == *wanted,
        },
    }
}

pub(super) fn is_number(value: &Value) -> bool {
    matches!(value, Value::Int(_) | Value::BigInt(_) | Value::Float(_))
}

/// Parses a text from JSON as the kind of the wanted value, if possible.
fn read_as<'v>(wanted: &Value, got: &'v Value, form: Form) -> Cow<'v, Value> {
    let (Form::Json, Value::Str(text)) = (form, got) else { return Cow::Borrowed(got) };
    let text = text.as_str();
    let read = match wanted {
        Value::Keyword(_) => Some(Value::keyword(text)),
        Value::Symbol(_) => Some(Value::Symbol(Symbol::new(text))),
        Value::Instant(_) => Instant::parse(text).map(Value::Instant),
        Value::Uuid(_) => Uuid::parse(text).map(Value::Uuid),
        _ => None,
    };
    read.map_or(Cow::Borrowed(got), Cow::Owned)
}

/// Returns whether a number is a whole multiple of another, by their decimal digits: 0.3 is a multiple
/// of 0.1, although the corresponding floats are not.
fn is_multiple(value: &Value, of: &Value) -> bool {
    if let (Value::Int(value), Value::Int(of)) = (value, of) {
        return value.checked_rem(*of) == Some(0) || *of == -1;
    }
    let (Some((value, a)), Some((of, b))) = (decimal(value), decimal(of)) else { return false };
    if of.sign() == Sign::NoSign {
        return false;
    }
    let scaled = |digits: BigInt, exponent: i32| {
        digits * BigInt::from(10).pow((exponent - a.min(b)).unsigned_abs())
    };
    (scaled(value, a) % scaled(of, b)).sign() == Sign::NoSign
}

/// Returns the digits of a finite number and a power of ten.
fn decimal(number: &Value) -> Option<(BigInt, i32)> {
    match number {
        Value::Int(integer) => Some(((*integer).into(), 0)),
        Value::BigInt(integer) => Some((integer.get().clone(), 0)),
        Value::Float(float) if float.is_finite() => {
            let text = format!("{float:e}");
            let (digits, exponent) = text.split_once('e')?;
            let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
            let exponent = exponent.parse::<i32>().ok()? - i32::try_from(fraction.len()).ok()?;
            Some((format!("{whole}{fraction}").parse().ok()?, exponent))
        }
        _ => None,
    }
}

//! Named arguments, read by the type that a function requires. Each error names the argument.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use num_bigint::BigInt;
use num_traits::{FromPrimitive as _, Signed as _};
use rtfs::{Map, Value};

use crate::builtin::Parameter;
use crate::error::{BuiltinError, shown};
use crate::number::Number;

/// The arguments of one call. Keys may be keywords or strings.
pub(crate) struct Arguments<'a>(&'a Map);

type Read<T> = Result<T, BuiltinError>;

impl<'a> Arguments<'a> {
    /// Checks that every argument is one of the parameters.
    pub(crate) fn new(map: &'a Map, parameters: &[Parameter]) -> Read<Self> {
        for (key, _) in map.iter() {
            let known = name_of(key)
                .is_some_and(|name| parameters.iter().any(|parameter| parameter.name == name));
            if !known {
                let names: Vec<_> = parameters.iter().map(|parameter| parameter.name).collect();
                let argument = name_of(key).map_or_else(|| shown(key), str::to_owned);
                return Err(BuiltinError::Argument {
                    argument: rtfs::text::excerpt(&argument, 80),
                    expected: format!("one of the arguments {}", names.join(", ")),
                    got: "another name".to_owned(),
                });
            }
        }
        Ok(Self(map))
    }

    /// Returns a given argument.
    pub(crate) fn given(&self, name: &str) -> Option<&'a Value> {
        self.0.get_keyword(name).or_else(|| {
            let mut entries = self.0.iter();
            entries
                .find(|(key, _)| matches!(key, Value::Str(text) if text.as_str() == name))
                .map(|e| e.1)
        })
    }

    /// Returns a value of any type, including nil.
    pub(crate) fn value(&self, name: &str) -> Read<&'a Value> {
        self.given(name).ok_or_else(|| BuiltinError::missing(name, "a value (required)"))
    }

    fn required(&self, name: &str, expected: &str) -> Read<&'a Value> {
        self.given(name).ok_or_else(|| BuiltinError::missing(name, format!("{expected} (required)")))
    }

    pub(crate) fn text(&self, name: &str) -> Read<&'a str> {
        text(name, self.required(name, "text")?)
    }

    pub(crate) fn text_or(&self, name: &str, default: &'a str) -> Read<&'a str> {
        self.given(name).map_or(Ok(default), |value| text(name, value))
    }

    pub(crate) fn optional_text(&self, name: &str) -> Read<Option<&'a str>> {
        self.given(name).map(|value| text(name, value)).transpose()
    }

    pub(crate) fn flag(&self, name: &str, default: bool) -> Read<bool> {
        match self.given(name) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(BuiltinError::argument(name, "true or false", other)),
        }
    }

    pub(crate) fn number(&self, name: &str) -> Read<Number> {
        Number::read(name, self.required(name, "a number")?)
    }

    pub(crate) fn optional_number(&self, name: &str) -> Read<Option<Number>> {
        self.given(name).map(|value| Number::read(name, value)).transpose()
    }

    pub(crate) fn float(&self, name: &str) -> Read<f64> {
        self.number(name)?.to_f64(name)
    }

    /// Returns an integer of any size.
    pub(crate) fn big(&self, name: &str) -> Read<BigInt> {
        big(name, self.required(name, "an integer")?)
    }

    pub(crate) fn big_or(&self, name: &str, default: i64) -> Read<BigInt> {
        self.given(name).map_or(Ok(default.into()), |value| big(name, value))
    }

    /// Returns an integer within a range.
    pub(crate) fn integer(&self, name: &str, range: RangeInclusive<i64>) -> Read<i64> {
        integer(name, self.required(name, "an integer")?, range)
    }

    pub(crate) fn integer_or(&self, name: &str, range: RangeInclusive<i64>, default: i64) -> Read<i64> {
        self.given(name).map_or(Ok(default), |value| integer(name, value, range))
    }

    pub(crate) fn optional_integer(&self, name: &str, range: RangeInclusive<i64>) -> Read<Option<i64>> {
        self.given(name).map(|value| integer(name, value, range)).transpose()
    }

    /// Returns a count. A value beyond any length means all.
    pub(crate) fn count(&self, name: &str) -> Read<usize> {
        self.integer(name, 0..=i64::MAX).map(|n| usize::try_from(n).unwrap_or(usize::MAX))
    }

    pub(crate) fn optional_count(&self, name: &str) -> Read<Option<usize>> {
        let count = self.optional_integer(name, 0..=i64::MAX)?;
        Ok(count.map(|n| usize::try_from(n).unwrap_or(usize::MAX)))
    }

    /// Returns the items of a vector or list, or the members of a set.
    pub(crate) fn list(&self, name: &str) -> Read<Cow<'a, [Value]>> {
        list(name, self.required(name, "a list")?)
    }

    pub(crate) fn numbers(&self, name: &str) -> Read<Vec<Number>> {
        let items = self.list(name)?;
        items.iter().enumerate().map(|(i, item)| Number::read(&format!("{name}[{i}]"), item)).collect()
    }

    pub(crate) fn floats(&self, name: &str) -> Read<Vec<f64>> {
        let numbers = self.numbers(name)?;
        numbers.iter().enumerate().map(|(i, n)| n.to_f64(&format!("{name}[{i}]"))).collect()
    }

    pub(crate) fn map(&self, name: &str) -> Read<&'a Map> {
        match self.required(name, "an object")? {
            Value::Map(map) => Ok(map),
            other => Err(BuiltinError::argument(name, "an object", other)),
        }
    }

    /// Returns an object whose values are all texts; empty if absent.
    pub(crate) fn texts_by_name(&self, name: &str) -> Read<Map> {
        self.map_of(name, |at, value| text(at, value).map(|_| ()))
    }

    /// Returns an object whose values are all numbers; empty if absent.
    pub(crate) fn numbers_by_name(&self, name: &str) -> Read<Map> {
        self.map_of(name, |at, value| Number::read(at, value).map(|_| ()))
    }

    fn map_of(&self, name: &str, check: fn(&str, &Value) -> Read<()>) -> Read<Map> {
        if self.given(name).is_none() {
            return Ok(Map::new());
        }
        let map = self.map(name)?;
        for (key, value) in map.iter() {
            let key = name_of(key).map_or_else(|| shown(key), str::to_owned);
            check(&format!("{name}.{}", rtfs::text::excerpt(&key, 80)), value)?;
        }
        Ok(map.clone())
    }

    /// Returns the meaning of one of a few words.
    pub(crate) fn choice<T: Copy>(&self, name: &str, words: &[(&str, T)], default: T) -> Read<T> {
        let Some(value) = self.given(name) else { return Ok(default) };
        let word = match value {
            Value::Str(text) => text.as_str(),
            Value::Keyword(keyword) => keyword.name(),
            other => return Err(no_choice(name, words, other)),
        };
        let found = words.iter().find(|(known, _)| *known == word);
        found.map(|(_, meaning)| *meaning).ok_or_else(|| no_choice(name, words, value))
    }
}

fn no_choice<T>(name: &str, words: &[(&str, T)], got: &Value) -> BuiltinError {
    let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
    BuiltinError::argument(name, format!("one of {}", words.join(", ")), got)
}

/// Returns the JSON name of a key.
pub(crate) fn name_of(key: &Value) -> Option<&str> {
    match key {
        Value::Keyword(keyword) => Some(keyword.name()),
        Value::Str(text) => Some(text.as_str()),
        Value::Symbol(symbol) => Some(symbol.name()),
        _ => None,
    }
}

pub(crate) fn text<'a>(name: &str, value: &'a Value) -> Read<&'a str> {
    match value {
        Value::Str(text) => Ok(text.as_str()),
        other => Err(BuiltinError::argument(name, "text", other)),
    }
}

pub(crate) fn big(name: &str, value: &Value) -> Read<BigInt> {
    match value {
        Value::Int(integer) => Ok(BigInt::from(*integer)),
        Value::BigInt(integer) => Ok(integer.get().clone()),
        // JSON Schema treats 3.0 as an integer.
        Value::Float(float) if float.fract() == 0.0 => Ok(BigInt::from_f64(*float).unwrap_or_default()),
        other => Err(BuiltinError::argument(name, "an integer", other)),
    }
}

/// Returns an integer within a range. An integer beyond 64 bits is clamped: as an index, a count or a
/// span, it means the same.
pub(crate) fn integer(name: &str, value: &Value, range: RangeInclusive<i64>) -> Read<i64> {
    let integer = match value {
        Value::Int(integer) => *integer,
        // A cast saturates.
        Value::Float(float) if float.fract() == 0.0 => *float as i64,
        Value::BigInt(integer) if integer.get().is_negative() => i64::MIN,
        Value::BigInt(_) => i64::MAX,
        other => return Err(BuiltinError::argument(name, "an integer", other)),
    };
    if range.contains(&integer) {
        return Ok(integer);
    }
    let expected = match (*range.start(), *range.end()) {
        (start, i64::MAX) => format!("an integer of at least {start}"),
        (start, end) => format!("an integer from {start} to {end}"),
    };
    Err(BuiltinError::argument(name, expected, value))
}

pub(crate) fn list<'a>(name: &str, value: &'a Value) -> Read<Cow<'a, [Value]>> {
    match value {
        Value::Vector(vector) => Ok(vector.items().into()),
        Value::List(list) => Ok(list.items().into()),
        Value::Set(set) => Ok(set.iter().cloned().collect::<Vec<_>>().into()),
        other => Err(BuiltinError::argument(name, "a list", other)),
    }
}

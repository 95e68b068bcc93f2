//! Sets of kinds of values, the compared part of a type.

use std::fmt;

use crate::value::Value;

/// A set of possible kinds of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kinds(u16);

impl Kinds {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const NIL: Self = Self(1);
    pub(crate) const FALSE: Self = Self(1 << 1);
    pub(crate) const TRUE: Self = Self(1 << 2);
    pub(crate) const INT: Self = Self(1 << 3);
    pub(crate) const FLOAT: Self = Self(1 << 4);
    pub(crate) const STRING: Self = Self(1 << 5);
    pub(crate) const KEYWORD: Self = Self(1 << 6);
    pub(crate) const SYMBOL: Self = Self(1 << 7);
    pub(crate) const INSTANT: Self = Self(1 << 8);
    pub(crate) const UUID: Self = Self(1 << 9);
    pub(crate) const VECTOR: Self = Self(1 << 10);
    pub(crate) const LIST: Self = Self(1 << 11);
    pub(crate) const SET: Self = Self(1 << 12);
    pub(crate) const MAP: Self = Self(1 << 13);
    pub(crate) const FUNCTION: Self = Self(1 << 14);
    /// A lazy sequence or a stream.
    pub(crate) const SEQ: Self = Self(1 << 15);
    pub(crate) const ANY: Self = Self(u16::MAX);

    pub(crate) const BOOL: Self = Self::TRUE.or(Self::FALSE);
    pub(crate) const FALSY: Self = Self::NIL.or(Self::FALSE);
    pub(crate) const NUMBER: Self = Self::INT.or(Self::FLOAT);
    /// Kinds with ordered items.
    pub(crate) const ORDERED: Self = Self::VECTOR.or(Self::LIST).or(Self::SEQ);
    pub(crate) const COLLECTION: Self = Self::ORDERED.or(Self::SET).or(Self::MAP);
    /// Kinds that collection functions take.
    pub(crate) const SEQABLE: Self = Self::COLLECTION.or(Self::STRING).or(Self::NIL);
    pub(crate) const NAME: Self = Self::KEYWORD.or(Self::STRING).or(Self::SYMBOL);
    pub(crate) const CALLABLE: Self = Self::FUNCTION
        .or(Self::KEYWORD)
        .or(Self::SYMBOL)
        .or(Self::MAP)
        .or(Self::SET)
        .or(Self::VECTOR)
        .or(Self::LIST);
    /// Kinds that can be keys of a map.
    pub(crate) const KEY: Self = Self(!Self::FUNCTION.0);
    /// Kinds that become strings in JSON.
    pub(crate) const TEXTUAL: Self = Self::NAME.or(Self::INSTANT).or(Self::UUID);

    pub(crate) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) const fn is_none(self) -> bool {
        self.0 == 0
    }

    pub(crate) const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) const fn is_within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    pub(crate) fn of(value: &Value) -> Self {
        match value {
            Value::Nil => Self::NIL,
            Value::Bool(true) => Self::TRUE,
            Value::Bool(false) => Self::FALSE,
            Value::Int(_) | Value::BigInt(_) => Self::INT,
            Value::Float(_) => Self::FLOAT,
            Value::Str(_) => Self::STRING,
            Value::Keyword(_) => Self::KEYWORD,
            Value::Symbol(_) => Self::SYMBOL,
            Value::Instant(_) => Self::INSTANT,
            Value::Uuid(_) => Self::UUID,
            Value::Vector(_) => Self::VECTOR,
            Value::List(_) => Self::LIST,
            Value::Set(_) => Self::SET,
            Value::Map(_) => Self::MAP,
            Value::Native(_) | Value::Code(_) | Value::Closure(_) => Self::FUNCTION,
            Value::Seq(_) => Self::SEQ,
        }
    }

    /// Returns the kinds that a word of a signature denotes.
    pub(crate) fn named(word: &str) -> Option<Self> {
        if let Some(word) = word.strip_suffix('?') {
            return Self::named(word).map(|kinds| kinds.or(Self::NIL));
        }
        if word.contains('|') {
            return word.split('|').try_fold(Self::NONE, |all, word| Some(all.or(Self::named(word)?)));
        }
        WORDS.iter().find(|row| row.0 == word).map(|row| row.1)
    }
}

/// The words of signatures, and the names of the kinds in messages.
const WORDS: &[(&str, Kinds, &str)] = &[
    ("any", Kinds::ANY, "anything"),
    ("nil", Kinds::NIL, "nil"),
    ("bool", Kinds::BOOL, "a boolean"),
    ("int", Kinds::INT, "an integer"),
    ("number", Kinds::NUMBER, "a number"),
    ("float", Kinds::FLOAT, "a float"),
    ("name", Kinds::NAME, "a keyword or a string"),
    ("string", Kinds::STRING, "a string"),
    ("keyword", Kinds::KEYWORD, "a keyword"),
    ("symbol", Kinds::SYMBOL, "a symbol"),
    ("instant", Kinds::INSTANT, "an instant"),
    ("uuid", Kinds::UUID, "a UUID"),
    ("items", Kinds::VECTOR.or(Kinds::SEQ), "a vector or a sequence"),
    ("ordered", Kinds::ORDERED, "a vector or a list"),
    ("vector", Kinds::VECTOR, "a vector"),
    ("list", Kinds::LIST, "a list"),
    ("set", Kinds::SET, "a set"),
    ("map", Kinds::MAP, "a map"),
    ("fn", Kinds::FUNCTION, "a function"),
    ("callable", Kinds::CALLABLE, "a function"),
    ("seq", Kinds::SEQ, "a sequence"),
    ("coll", Kinds::COLLECTION, "a collection"),
    ("seqable", Kinds::SEQABLE, "a collection"),
    ("key", Kinds::KEY, "a key"),
];

/// `a number`, `a string or nil`
impl fmt::Display for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |kinds: Self| WORDS.iter().find(|row| row.1 == kinds).map(|row| row.2);
        if let Some(words) = named(*self) {
            return f.write_str(words);
        }
        if let Some(words) = named(self.without(Self::NIL)).filter(|_| self.meets(Self::NIL)) {
            return write!(f, "{words} or nil");
        }
        let mut left = *self;
        let mut words = Vec::new();
        for (_, kinds, word) in WORDS {
            if kinds.is_within(left) && !left.is_none() && *kinds != Self::ANY {
                words.push(*word);
                left = left.without(*kinds);
            }
        }
        if left.meets(Self::BOOL) {
            words.push(if left.meets(Self::TRUE) { "true" } else { "false" });
        }
        f.write_str(&words.join(" or "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_named_as_a_person_would() {
        for (word, text) in [
            ("number", "a number"),
            ("number?", "a number or nil"),
            ("int|string", "an integer or a string"),
            ("seqable", "a collection"),
            ("list|map?", "nil or a list or a map"),
        ] {
            assert_eq!(Kinds::named(word).unwrap().to_string(), text, "{word}");
        }
        assert_eq!(Kinds::TRUE.to_string(), "true");
        assert_eq!(Kinds::named("nmber"), None);
    }
}

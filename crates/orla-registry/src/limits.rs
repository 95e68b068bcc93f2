//! The limits of inputs, outputs and work.

use std::fmt;

use rtfs::Value;

use crate::error::BuiltinError;

/// The maximum size of text in an input or an output in bytes, keys included.
pub const MAX_TEXT: usize = 16 << 20;

/// The maximum number of values in an input or an output, nested ones included.
pub const MAX_ITEMS: usize = 1_000_000;

/// The maximum nesting of an input's collections. Functions recurse over values, and the remaining stack
/// is unknown.
pub const MAX_DEPTH: u16 = 200;

/// The maximum number of decimal digits of an integer: as many as JSON text may have.
pub(crate) const MAX_DIGITS: u64 = 10_000;

/// The maximum number of bits of an integer, so that it has at most [`MAX_DIGITS`] digits.
pub(crate) const MAX_BITS: u64 = MAX_DIGITS * 3_321_928 / 1_000_000;

/// The maximum number of comparisons in a table of two texts or lists: 25 million take some 50 ms.
pub(crate) const MAX_TABLE: usize = 25_000_000;

/// Checks the size in bytes of a result's text.
pub(crate) fn text_fits(bytes: Option<usize>) -> Result<usize, BuiltinError> {
    bytes.filter(|bytes| *bytes <= MAX_TEXT).ok_or_else(too_much_text)
}

/// Checks the number of items of a result.
pub(crate) fn items_fit(items: Option<usize>) -> Result<usize, BuiltinError> {
    items.filter(|items| *items <= MAX_ITEMS).ok_or_else(|| too_many("the result"))
}

/// Checks that two texts or lists of these lengths may be compared item by item.
pub(crate) fn table_fits(a: usize, b: usize) -> Result<(), BuiltinError> {
    match a.checked_mul(b).filter(|cells| *cells <= MAX_TABLE) {
        Some(_) => Ok(()),
        None => {
            Err(BuiltinError::limit("the comparison", "25 million steps (the product of both lengths)"))
        }
    }
}

/// Checks the number of bits of an integer.
pub(crate) fn bits_fit(bits: Option<u64>) -> Result<(), BuiltinError> {
    match bits.filter(|bits| *bits <= MAX_BITS) {
        Some(_) => Ok(()),
        None => Err(BuiltinError::limit("the number", format_args!("{MAX_DIGITS} digits"))),
    }
}

/// Converts the error of a collection that exceeds the limits of values.
pub(crate) fn deep<T>(made: Result<T, rtfs::TooLarge>) -> Result<T, BuiltinError> {
    made.map_err(|large| match large {
        rtfs::TooLarge::Levels => {
            BuiltinError::limit("the nesting", format_args!("{} levels", rtfs::MAX_DEPTH))
        }
        rtfs::TooLarge::Parts => BuiltinError::limit("the parts", format_args!("{}", rtfs::MAX_PARTS)),
    })
}

/// Returns a vector of these items.
pub(crate) fn vector(items: Vec<Value>) -> Result<Value, BuiltinError> {
    deep(Value::vector(items))
}

/// Checks the depth of an input.
pub(crate) fn depth_fits(input: &Value) -> Result<(), BuiltinError> {
    if input.depth() <= MAX_DEPTH {
        return Ok(());
    }
    Err(BuiltinError::limit("the nesting", format_args!("{MAX_DEPTH} levels")))
}

fn too_much_text() -> BuiltinError {
    BuiltinError::limit("the text", format_args!("{} MiB", MAX_TEXT >> 20))
}

fn too_many(what: &str) -> BuiltinError {
    BuiltinError::limit(what, format_args!("{MAX_ITEMS} values"))
}

/// The remaining work of one call: values that are visited or created.
#[derive(Debug)]
pub(crate) struct Budget {
    items: usize,
    text: usize,
}

impl Budget {
    pub(crate) fn new() -> Self {
        Self { items: MAX_ITEMS, text: MAX_TEXT }
    }

    /// Returns the budget of a small input.
    pub(crate) fn small() -> Self {
        Self { items: 1_000, text: 16 << 10 }
    }

    pub(crate) fn items(&mut self, items: usize) -> Result<(), BuiltinError> {
        self.items = self.items.checked_sub(items).ok_or_else(|| too_many("the work"))?;
        Ok(())
    }

    pub(crate) fn text(&mut self, bytes: usize) -> Result<(), BuiltinError> {
        self.text = self.text.checked_sub(bytes).ok_or_else(too_much_text)?;
        Ok(())
    }

    /// Counts the content of a value. Values share parts, so a value that is small in memory may be
    /// large to traverse.
    pub(crate) fn weigh(&mut self, value: &Value) -> Result<(), BuiltinError> {
        self.items(1)?;
        match value {
            Value::Str(text) => self.text(text.as_str().len()),
            Value::Keyword(keyword) => self.text(keyword.name().len()),
            Value::Symbol(symbol) => self.text(symbol.name().len()),
            Value::BigInt(integer) => bits_fit(Some(integer.get().bits())),
            Value::Vector(vector) => vector.items().iter().try_for_each(|item| self.weigh(item)),
            Value::List(list) => list.items().iter().try_for_each(|item| self.weigh(item)),
            Value::Set(set) => set.iter().try_for_each(|item| self.weigh(item)),
            Value::Map(map) => map.iter().try_for_each(|(key, value)| {
                self.weigh(key)?;
                self.weigh(value)
            }),
            _ => Ok(()),
        }
    }
}

/// A text that is written piece by piece and never becomes longer than [`MAX_TEXT`].
#[derive(Debug, Default)]
pub(crate) struct BoundedText(String);

impl BoundedText {
    pub(crate) fn push(&mut self, text: &str) -> Result<(), BuiltinError> {
        text_fits(self.0.len().checked_add(text.len()))?;
        self.0.push_str(text);
        Ok(())
    }

    pub(crate) fn push_char(&mut self, c: char) -> Result<(), BuiltinError> {
        self.push(c.encode_utf8(&mut [0; 4]))
    }

    pub(crate) fn write(&mut self, text: impl fmt::Display) -> Result<(), BuiltinError> {
        fmt::Write::write_fmt(self, format_args!("{text}")).map_err(|_| too_much_text())
    }

    pub(crate) fn finish(self) -> Value {
        Value::from(self.0)
    }

    pub(crate) fn into_string(self) -> String {
        self.0
    }
}

impl fmt::Write for BoundedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text).map_err(|_| fmt::Error)
    }
}

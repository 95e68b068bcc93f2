//! Texts whose length is charged while they are written.

use std::fmt::{self, Write};

use super::Answer;
use crate::machine::{Context, Fault};
use crate::value::Value;

/// A text that is being written, and never becomes longer than the available memory.
pub(super) struct Draft {
    text: String,
    /// The maximum length in bytes.
    most: usize,
}

impl Draft {
    pub(super) fn new(context: &Context) -> Self {
        Self { text: String::new(), most: context.remaining() }
    }

    /// Appends the `str` form of a value.
    pub(super) fn push(&mut self, context: &Context, value: &Value) -> Result<(), Box<Fault>> {
        let written = match value {
            Value::Str(more) => self.write_str(more.as_str()),
            Value::Int(n) => self.write_str(itoa(*n, &mut [0; 20])),
            other => write!(self, "{other}"),
        };
        written.map_err(|_| context.crowded())
    }

    /// Appends a text, or formatted arguments.
    pub(super) fn put(&mut self, context: &Context, more: fmt::Arguments<'_>) -> Result<(), Box<Fault>> {
        self.write_fmt(more).map_err(|_| context.crowded())
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Pays for the text and returns it.
    pub(super) fn done(self, context: &mut Context) -> Answer {
        Ok(self.into_text(context).into())
    }

    /// Returns the text, to be appended to another one.
    pub(super) fn into_text(self, context: &mut Context) -> String {
        context.allocated(56 + self.text.len());
        context.cost += self.text.len() as u64 / 64;
        self.text
    }
}

impl Write for Draft {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        if more.len() > self.most - self.text.len() {
            return Err(fmt::Error);
        }
        self.text.push_str(more);
        Ok(())
    }
}

/// Formats an integer as decimal digits.
pub(super) fn itoa(n: i64, digits: &mut [u8; 20]) -> &str {
    let mut at = digits.len();
    let mut rest = n.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if n < 0 {
        at -= 1;
        digits[at] = b'-';
    }
    std::str::from_utf8(&digits[at..]).unwrap_or_default()
}

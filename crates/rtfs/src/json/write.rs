//! Writes a value as JSON text.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::Write;

use crate::text::excerpt;
use crate::{Map, Value};

use super::{JsonError, MAX_PATH, push_index, push_key, push_string};

/// Writes a value as compact JSON: a keyword or symbol as its name, a set as an array, an instant
/// and a UUID as strings, integer keys as decimal text.
///
/// # Errors
/// NaN and the infinities, keys that JSON cannot say, and two keys that would become one.
pub fn value_to_json(value: &Value) -> Result<String, JsonError> {
    match value_to_json_within(value, usize::MAX) {
        Ok(text) => Ok(text.unwrap_or_default()),
        Err(error) => Err(error),
    }
}

/// Like [`value_to_json`]; `None` if the text would exceed `most` bytes by more than one string in it.
///
/// # Errors
/// As [`value_to_json`].
pub(crate) fn value_to_json_within(value: &Value, most: usize) -> Result<Option<String>, JsonError> {
    let mut writer = Writer { out: String::new(), path: "$".to_owned(), most };
    writer.value(value)?;
    Ok((writer.out.len() <= most).then_some(writer.out))
}

struct Writer {
    out: String,
    path: String,
    /// Beyond this length, nothing more is written.
    most: usize,
}

impl Writer {
    fn value(&mut self, value: &Value) -> Result<(), JsonError> {
        if self.out.len() > self.most {
            return Ok(());
        }
        match value {
            Value::Nil => self.out.push_str("null"),
            Value::Bool(bool) => self.text(bool),
            Value::Int(integer) => self.text(integer),
            Value::BigInt(integer) => self.text(integer.get()),
            Value::Float(float) if float.is_finite() => self.text(format_args!("{float:?}")),
            Value::Float(_) => return Err(self.problem(format!("{value:?} cannot be written as JSON"))),
            Value::Keyword(keyword) => push_string(&mut self.out, keyword.name()),
            Value::Symbol(symbol) => push_string(&mut self.out, symbol.name()),
            Value::Str(text) => push_string(&mut self.out, text.as_str()),
            Value::Instant(instant) => self.text(format_args!("\"{instant}\"")),
            Value::Uuid(uuid) => self.text(format_args!("\"{uuid}\"")),
            Value::Vector(vector) => self.array(vector.items().iter())?,
            Value::List(list) => self.array(list.items().iter())?,
            Value::Set(set) => self.array(set.iter())?,
            Value::Map(map) => self.object(map)?,
            Value::Seq(seq) if seq.realized().is_some() => {
                self.array(value.items().unwrap_or_default().iter())?;
            }
            Value::Seq(_) | Value::Native(_) | Value::Code(_) | Value::Closure(_) => {
                return Err(self.problem(format!("a {} cannot be written as JSON", value.type_name())));
            }
        }
        Ok(())
    }

    fn text(&mut self, text: impl std::fmt::Display) {
        let _cannot_fail = write!(self.out, "{text}");
    }

    fn array<'v>(&mut self, items: impl Iterator<Item = &'v Value>) -> Result<(), JsonError> {
        let outer = self.path.len();
        self.out.push('[');
        for (i, item) in items.enumerate() {
            if i > 0 {
                self.out.push(',');
            }
            push_index(&mut self.path, i);
            self.value(item)?;
            self.path.truncate(outer);
        }
        self.out.push(']');
        Ok(())
    }

    fn object(&mut self, map: &Map) -> Result<(), JsonError> {
        let outer = self.path.len();
        // Keywords cannot collide with each other, so the set is filled only for other keys.
        let mixed = map.iter().any(|(key, _)| !matches!(key, Value::Keyword(_)));
        let mut names = HashSet::new();
        self.out.push('{');
        for (i, (key, value)) in map.iter().enumerate() {
            if i > 0 {
                self.out.push(',');
            }
            let Some(name) = key_name(key) else {
                return Err(self.problem(format!(
                    "the key {} cannot be written as JSON",
                    excerpt(format_args!("{key:?}"), 80)
                )));
            };
            push_key(&mut self.path, &name);
            push_string(&mut self.out, &name);
            if mixed && !names.insert(name) {
                return Err(self.problem("two keys become this one in JSON".to_owned()));
            }
            self.out.push(':');
            self.value(value)?;
            self.path.truncate(outer);
        }
        self.out.push('}');
        Ok(())
    }

    fn problem(&self, problem: String) -> JsonError {
        JsonError { path: excerpt(&self.path, MAX_PATH), problem, position: None }
    }
}

/// Returns the JSON name of a key, if it has one: the name of a keyword or symbol, text itself, and
/// integers, instants and UUIDs as text.
pub fn key_name(key: &Value) -> Option<Cow<'_, str>> {
    Some(match key {
        Value::Keyword(keyword) => keyword.name().into(),
        Value::Symbol(symbol) => symbol.name().into(),
        Value::Str(text) => text.as_str().into(),
        Value::Int(_) | Value::BigInt(_) | Value::Instant(_) | Value::Uuid(_) => key.to_string().into(),
        _ => return None,
    })
}

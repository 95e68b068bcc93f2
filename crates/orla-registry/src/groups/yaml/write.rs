//! Writes values as YAML in block style.

use rtfs::json::push_string;
use rtfs::{Map, Value};

use super::scalar;
use crate::arguments::{Arguments, name_of};
use crate::error::BuiltinError;
use crate::limits::BoundedText;

type Result<T> = std::result::Result<T, BuiltinError>;

/// The indentation of each level.
const STEP: usize = 2;

pub(super) fn print(args: &Arguments<'_>) -> Result<Value> {
    let mut writer = Writer { out: BoundedText::default() };
    writer.block(args.value("value")?, 0, Place::Top)?;
    Ok(writer.out.finish())
}

/// The maximum length of a key on one line with its value, below YAML's 1,024 characters.
const MAX_SIMPLE_KEY: usize = 1_000;

/// The context of a value, which determines the text before it.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Top,
    /// After `key:`.
    Key,
    /// After `-`.
    Item,
}

struct Writer {
    out: BoundedText,
}

impl Writer {
    fn block(&mut self, value: &Value, indent: usize, place: Place) -> Result<()> {
        match value {
            Value::Map(map) if map.is_empty() => self.inline("{}", place),
            Value::Map(map) => self.mapping(map, indent, place),
            Value::Vector(vector) => self.sequence(vector.items(), indent, place),
            Value::List(list) => self.sequence(list.items(), indent, place),
            Value::Set(set) => self.sequence(&set.iter().cloned().collect::<Vec<_>>(), indent, place),
            Value::Nil => self.inline("null", place),
            Value::Bool(_) | Value::Int(_) | Value::BigInt(_) | Value::Float(_) => {
                self.inline(&number(value), place)
            }
            other => match name_of(other) {
                Some(text) if is_literal(text) => self.literal(text, indent, place),
                Some(text) => self.inline(&quoted(text), place),
                None => self.inline(&quoted(&other.to_string()), place),
            },
        }
    }

    fn inline(&mut self, text: &str, place: Place) -> Result<()> {
        if place != Place::Top {
            self.out.push(" ")?;
        }
        self.out.push(text)?;
        self.out.push("\n")
    }

    fn mapping(&mut self, map: &Map, indent: usize, place: Place) -> Result<()> {
        if place == Place::Key {
            self.out.push("\n")?;
        }
        for (i, (key, value)) in map.iter().enumerate() {
            if i == 0 && place == Place::Item {
                self.out.push(" ")?;
            } else {
                self.indent(indent)?;
            }
            let key = match name_of(key) {
                Some(name) => quoted(name),
                None => quoted(&key.to_string()),
            };
            // A key that is not simple is marked, and its value is on a separate line.
            if key.len() > MAX_SIMPLE_KEY {
                self.out.push("? ")?;
                self.out.push(&key)?;
                self.out.push("\n")?;
                self.indent(indent)?;
            } else {
                self.out.push(&key)?;
            }
            self.out.push(":")?;
            // The items of a sequence need no further indentation below a key.
            let is_list = matches!(value, Value::Vector(_) | Value::List(_) | Value::Set(_));
            self.block(value, if is_list { indent } else { indent + STEP }, Place::Key)?;
        }
        Ok(())
    }

    fn sequence(&mut self, items: &[Value], indent: usize, place: Place) -> Result<()> {
        if items.is_empty() {
            return self.inline("[]", place);
        }
        if place == Place::Key {
            self.out.push("\n")?;
        }
        for (i, item) in items.iter().enumerate() {
            if i == 0 && place == Place::Item {
                self.out.push(" ")?;
            } else {
                self.indent(indent)?;
            }
            self.out.push("-")?;
            self.block(item, indent + STEP, Place::Item)?;
        }
        Ok(())
    }

    fn literal(&mut self, text: &str, indent: usize, place: Place) -> Result<()> {
        let (lines, mark) = match text.strip_suffix('\n') {
            Some(lines) => (lines, "|"),
            None => (text, "|-"),
        };
        let indent = if place == Place::Top { STEP } else { indent };
        self.inline(mark, place)?;
        for line in lines.split('\n') {
            if !line.is_empty() {
                self.indent(indent)?;
            }
            self.out.push(line)?;
            self.out.push("\n")?;
        }
        Ok(())
    }

    fn indent(&mut self, indent: usize) -> Result<()> {
        (0..indent).try_for_each(|_| self.out.push(" "))
    }
}

fn number(value: &Value) -> String {
    match value {
        Value::Float(float) if float.is_nan() => ".nan".to_owned(),
        Value::Float(float) if float.is_infinite() => {
            if *float > 0.0 { ".inf" } else { "-.inf" }.to_owned()
        }
        // YAML 1.1 treats `1e30` as a text, and `1.0e+30` as a number.
        Value::Float(float) => {
            let text = format!("{float:?}");
            match text.split_once('e') {
                None => text,
                Some((mantissa, exponent)) => {
                    let point = if mantissa.contains('.') { "" } else { ".0" };
                    let sign = if exponent.starts_with('-') { "" } else { "+" };
                    format!("{mantissa}{point}e{sign}{exponent}")
                }
            }
        }
        other => other.to_string(),
    }
}

/// Returns whether a text of several lines can be written as it is, below `|`.
fn is_literal(text: &str) -> bool {
    let body = text.strip_suffix('\n').unwrap_or(text);
    body.contains('\n')
        && !body.ends_with('\n')
        && !body.starts_with([' ', '\n', '\t'])
        && text.chars().all(|c| c == '\n' || is_printable(c))
        && !body.split('\n').any(|line| line.ends_with([' ', '\t']) || line.starts_with(['\t']))
}

/// Returns whether every reader accepts the character unescaped.
fn is_printable(c: char) -> bool {
    match c {
        ' '..='~' => true,
        // The byte order mark, and characters that end a line in YAML 1.1.
        '\u{feff}' | '\u{85}' | '\u{2028}' | '\u{2029}' => false,
        c => c >= '\u{a0}' && !matches!(c, '\u{fffe}' | '\u{ffff}'),
    }
}

/// Returns the text, in quotes if it would otherwise be ambiguous.
fn quoted(text: &str) -> String {
    if is_plain(text) {
        return text.to_owned();
    }
    let mut json = String::new();
    push_string(&mut json, text);
    // JSON leaves some characters unescaped that YAML does not accept.
    if json.chars().all(is_printable) {
        return json;
    }
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            c if is_printable(c) => out.push(c),
            c if u32::from(c) < 0x1_0000 => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push_str(&format!("\\U{:08X}", u32::from(c))),
        }
    }
    out
}

/// Returns whether a text needs no quotes. The check is deliberately strict: quotes are always valid.
fn is_plain(text: &str) -> bool {
    let first = |c: char| c.is_alphabetic() || matches!(c, '_' | '/' | '.');
    let inside = |c: char| c.is_alphanumeric() || " _-./@+=()$".contains(c);
    let word = text.to_ascii_lowercase();
    let other = ["null", "true", "false", "yes", "no", "on", "off", "y", "n", "nan", "inf"];
    text.starts_with(first)
        && text.chars().all(|c| inside(c) && is_printable(c))
        && !text.ends_with(' ')
        && !text.starts_with("...")
        && !other.contains(&word.trim_start_matches('.'))
        && scalar::number(text).is_none()
        && text.len() <= 200
}

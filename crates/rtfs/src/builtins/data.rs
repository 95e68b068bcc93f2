//! Conversion of values to text in other notations, and computations over whole values.

use super::{Answer, Entry, items_of, one, text_of, two};
use crate::json;
use crate::lazy::Seq;
use crate::machine::op::HostOp;
use crate::machine::{Context, Fault, fault};
use crate::map::{Map, Set};
use crate::sequence::{MAX_PARTS, TooLarge};
use crate::syntax::{self, Source};
use crate::value::Value;

pub(super) static ENTRIES: &[Entry] = &[
    one("parse-json", parse_json),
    one("serialize-json", |context, x| json_text(context, x, false)).walks(),
    one("pretty-json", |context, x| json_text(context, x, true)).walks(),
    one("parse-edn", parse_edn),
    one("hash", hash).walks().scalar().compares(),
    two("diff", |_, a, b| diff(a, b)).walks().compares(),
    one("getMessage", |_, e| {
        Ok(super::find_key(e, &Value::keyword("message")).cloned().unwrap_or_default())
    }),
];

/// Returns a lazy sequence somewhere inside that is not known to its end.
///
/// # Errors
/// What has become known of it makes it larger than values may be.
fn unknown_part(value: &Value) -> Result<Option<Seq>, TooLarge> {
    let mut open = vec![value.clone()];
    let mut left = MAX_PARTS;
    while let Some(value) = open.pop() {
        left = left.checked_sub(1).ok_or(TooLarge::Parts)?;
        match &value {
            Value::Seq(seq) if seq.realized().is_none() => return Ok(Some(seq.clone())),
            Value::Map(map) => {
                open.extend(
                    map.iter()
                        .flat_map(|(key, value)| [key, value])
                        .filter(|v| !v.is_immediate())
                        .cloned(),
                );
            }
            Value::Set(set) => open.extend(set.iter().filter(|v| !v.is_immediate()).cloned()),
            value => {
                let items = value.items().unwrap_or_default();
                open.extend(
                    items.iter().filter(|v| !v.is_immediate() && !matches!(v, Value::Str(_))).cloned(),
                );
            }
        }
    }
    Ok(None)
}

/// Requires that no part of a value is lazy. Its fault realizes such parts before a value becomes text.
pub(crate) fn known(value: &Value) -> Result<(), Box<Fault>> {
    let may_be = matches!(
        value,
        Value::Seq(_) | Value::Vector(_) | Value::List(_) | Value::Map(_) | Value::Set(_)
    );
    match if may_be { unknown_part(value)? } else { None } {
        Some(seq) => Err(Box::new(Fault::Realize(seq))),
        None => Ok(()),
    }
}

/// Returns the lazy part of an argument that is passed to the host.
///
/// # Errors
/// As [`known`].
pub(crate) fn lazy_inside(value: &Value, kind: HostOp) -> Result<Option<Seq>, TooLarge> {
    match (kind, value) {
        // For these operations, the argument is the stream itself.
        (HostOp::Next | HostOp::Send | HostOp::Close, Value::Seq(seq)) if seq.is_stream() => Ok(None),
        (_, value) if value.is_immediate() => Ok(None),
        (_, value) => unknown_part(value),
    }
}

fn parse_json(context: &mut Context, x: &Value) -> Answer {
    let text = text_of("parse-json", x)?;
    context.reserve(text.len().saturating_mul(4))?;
    json::value_from_json(text)
        .map_err(|error| fault("invalid-argument", format!("`parse-json`: {error}")))
}

fn json_text(context: &mut Context, x: &Value, pretty: bool) -> Answer {
    known(x)?;
    let text = json::value_to_json_within(x, context.remaining()).map_err(|error| {
        fault("invalid-argument", format!("this cannot be written as JSON: {error}"))
    })?;
    let Some(text) = text else { return Err(context.crowded()) };
    context.allocated(text.len());
    context.cost += text.len() as u64 / 256;
    if !pretty {
        return Ok(text.into());
    }
    let text = indented(&text, context.limit)?;
    context.allocated(text.len());
    Ok(text.into())
}

/// Indents JSON text over several lines by two spaces.
fn indented(json: &str, limit: usize) -> Result<String, Box<Fault>> {
    let mut out = String::with_capacity(json.len() * 2);
    let mut depth = 0_usize;
    let mut chars = json.chars().peekable();
    let line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', 2 * depth));
    };
    while let Some(c) = chars.next() {
        if out.len() > limit {
            return Err(crate::Error::limit("memory", "the text would be too long").into());
        }
        match c {
            '"' => {
                out.push('"');
                while let Some(c) = chars.next() {
                    out.push(c);
                    match c {
                        '\\' => out.extend(chars.next()),
                        '"' => break,
                        _ => {}
                    }
                }
            }
            '[' | '{' => {
                out.push(c);
                if matches!(chars.peek(), Some(']' | '}')) {
                    out.extend(chars.next());
                } else {
                    depth += 1;
                    line(&mut out, depth);
                }
            }
            ']' | '}' => {
                depth = depth.saturating_sub(1);
                line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(',');
                line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c => out.push(c),
        }
    }
    Ok(out)
}

/// Parses a text as exactly one value.
fn parse_edn(context: &mut Context, x: &Value) -> Answer {
    let text = text_of("parse-edn", x)?;
    context.reserve(text.len().saturating_mul(8))?;
    let values = syntax::read(&Source::new("", text));
    let mut values = values.map_err(|errors| {
        let first = errors.0.first().map(|error| {
            format!("{}:{}: {}", error.position.line, error.position.column, error.message)
        });
        fault("invalid-argument", format!("`parse-edn`: {}", first.unwrap_or_default()))
    })?;
    match values.len() {
        1 => Ok(values.remove(0)),
        n => Err(fault("invalid-argument", format!("`parse-edn` reads one value, this text has {n}"))),
    }
}

/// Returns a hash that is equal for equal values and stable over time.
fn hash(_: &mut Context, x: &Value) -> Answer {
    // The hash is small enough to be exact as a float.
    Ok(Value::Int((stable_hash(x) >> 11) as i64))
}

fn stable_hash(value: &Value) -> u64 {
    let mix = |hash: u64, more: u64| (hash ^ more).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let text =
        |seed: u64, text: &str| text.bytes().fold(mix(seed, 1), |hash, byte| mix(hash, u64::from(byte)));
    let finish = |hash: u64| (hash ^ hash >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93) ^ hash >> 29;
    finish(match value {
        Value::Nil => 1,
        Value::Bool(bool) => 2 + u64::from(*bool),
        Value::Int(n) => mix(5, *n as u64),
        Value::BigInt(big) => text(6, &big.get().to_string()),
        Value::Float(float) => mix(7, (float + 0.0).to_bits()),
        Value::Str(s) => text(8, s.as_str()),
        Value::Keyword(keyword) => text(9, keyword.name()),
        Value::Symbol(symbol) => text(10, symbol.name()),
        Value::Instant(instant) => text(11, &instant.to_string()),
        Value::Uuid(uuid) => text(12, &uuid.to_string()),
        Value::Map(map) => {
            let entry = |(key, value): (&Value, &Value)| mix(stable_hash(key), stable_hash(value));
            map.iter().map(entry).fold(13, u64::wrapping_add)
        }
        Value::Set(set) => set.iter().map(stable_hash).fold(14, u64::wrapping_add),
        other => {
            other.items().unwrap_or_default().iter().fold(15, |hash, item| mix(hash, stable_hash(item)))
        }
    })
}

/// Returns `[only in a, only in b, in both]`, with nil for empty parts.
fn diff(a: &Value, b: &Value) -> Answer {
    let three = |a: Value, b: Value, both: Value| super::vector(vec![a, b, both]);
    if a == b {
        return three(Value::Nil, Value::Nil, a.clone());
    }
    match (a, b) {
        (Value::Map(a), Value::Map(b)) => {
            let (mut only_a, mut only_b, mut both) = (Map::new(), Map::new(), Map::new());
            for (key, value) in a.iter() {
                let Some(other) = b.get(key) else {
                    only_a.insert(key.clone(), value.clone())?;
                    continue;
                };
                let parts = diff(value, other)?;
                let parts = parts.items().unwrap_or_default();
                let same = value == other;
                for (to, part) in [&mut only_a, &mut only_b, &mut both].into_iter().zip(parts) {
                    if !matches!(part, Value::Nil) || same && matches!(value, Value::Nil) {
                        to.insert(key.clone(), part.clone())?;
                    }
                }
            }
            for (key, value) in b.iter().filter(|(key, _)| !a.contains_key(key)) {
                only_b.insert(key.clone(), value.clone())?;
            }
            let or_nil = |map: Map| if map.is_empty() { Value::Nil } else { Value::Map(map) };
            three(or_nil(only_a), or_nil(only_b), or_nil(both))
        }
        (Value::Set(a), Value::Set(b)) => {
            let sift = |from: &Set, other: &Set, inside: bool| -> Answer {
                let mut set = Set::new();
                for member in from.iter().filter(|member| other.contains(member) == inside) {
                    set.insert(member.clone())?;
                }
                Ok(if set.is_empty() { Value::Nil } else { Value::Set(set) })
            };
            three(sift(a, b, false)?, sift(b, a, false)?, sift(a, b, true)?)
        }
        _ => {
            let (Some(_), Some(_)) = (a.items(), b.items()) else {
                return three(a.clone(), b.clone(), Value::Nil);
            };
            let (x, y) = (items_of("diff", a)?, items_of("diff", b)?);
            let (mut only_a, mut only_b, mut both) = (Vec::new(), Vec::new(), Vec::new());
            for at in 0..x.len().max(y.len()) {
                let parts = match (x.get(at), y.get(at)) {
                    (Some(x), Some(y)) => diff(x, y)?,
                    (x, y) => three(
                        x.cloned().unwrap_or_default(),
                        y.cloned().unwrap_or_default(),
                        Value::Nil,
                    )?,
                };
                let parts = parts.items().unwrap_or_default();
                for (to, part) in [&mut only_a, &mut only_b, &mut both].into_iter().zip(parts) {
                    to.push(part.clone());
                }
            }
            let trimmed = |mut items: Vec<Value>| -> Answer {
                while matches!(items.last(), Some(Value::Nil)) {
                    items.pop();
                }
                if items.is_empty() { Ok(Value::Nil) } else { super::vector(items) }
            };
            three(trimmed(only_a)?, trimmed(only_b)?, trimmed(both)?)
        }
    }
}

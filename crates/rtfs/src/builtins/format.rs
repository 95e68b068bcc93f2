//! `(fmt "{name:>8.2}" m)`

use super::draft::Draft;
use super::{ANY, Answer, Entry, many, shown, text_of};
use crate::machine::{Context, Fault, big_of, fault, float_of};
use crate::value::Value;

pub(super) static ENTRIES: &[Entry] = &[many("fmt", 1, ANY, fmt)];

/// The specification after the colon of a placeholder.
#[derive(Default)]
struct Spec {
    align: Option<char>,
    width: usize,
    precision: Option<usize>,
}

/// The maximum width and precision.
const MOST: usize = 10_000;

fn fmt(context: &mut Context, args: &mut [Value]) -> Answer {
    let template = text_of("fmt", &args[0])?;
    let values = &args[1..];
    let mut out = Draft::new(context);
    let mut rest = template;
    let mut position = 0;
    while let Some(at) = rest.find(['{', '}']) {
        out.put(context, format_args!("{}", &rest[..at]))?;
        let brace = &rest[at..];
        if brace.starts_with("{{") || brace.starts_with("}}") {
            out.put(context, format_args!("{}", &brace[..1]))?;
            rest = &brace[2..];
            continue;
        }
        if brace.starts_with('}') {
            return Err(fault("invalid-argument", "`fmt`: `}` closes nothing; a brace is written `}}`"));
        }
        let Some(end) = brace.find('}') else {
            return Err(fault(
                "invalid-argument",
                "`fmt`: `{` is never closed; a brace is written `{{`",
            ));
        };
        let inside = &brace[1..end];
        rest = &brace[end + 1..];
        let (key, spec) = match inside.rsplit_once(':') {
            Some((key, spec)) => (key, parse(spec).ok_or_else(|| bad_spec(inside))?),
            None => (inside, Spec::default()),
        };
        let value = if key.is_empty() {
            position += 1;
            values.get(position - 1).cloned().unwrap_or_default()
        } else {
            lookup(values, key)
        };
        super::data::known(&value)?;
        put(context, &mut out, &value, &spec)?;
    }
    out.put(context, format_args!("{rest}"))?;
    out.done(context)
}

#[cold]
fn bad_spec(inside: &str) -> Box<Fault> {
    let what = shown(&Value::from(inside));
    fault(
        "invalid-argument",
        format!(
            "`fmt`: {what} is no placeholder: {{key}} or {{key:WIDTH.PRECISION}}, with <, > or ^ before the width"
        ),
    )
}

fn parse(spec: &str) -> Option<Spec> {
    let (align, rest) = match spec.chars().next() {
        Some(align @ ('<' | '>' | '^')) => (Some(align), &spec[1..]),
        _ => (None, spec),
    };
    let number = |text: &str| text.parse().ok().filter(|&n: &usize| n <= MOST);
    let (width, precision) = match rest.split_once('.') {
        Some((width, precision)) => (width, Some(number(precision)?)),
        None => (rest, None),
    };
    let width = if width.is_empty() { 0 } else { number(width)? };
    Some(Spec { align, width, precision })
}

/// Looks up a value by keyword, by string, by index, or along a path.
fn lookup(values: &[Value], key: &str) -> Value {
    let Some(first) = values.first() else { return Value::Nil };
    let direct = |coll: &Value, key: &str| -> Option<Value> {
        match coll {
            Value::Map(map) => map.get_keyword(key).or_else(|| map.get(&key.into())).cloned(),
            coll => coll.items()?.get(key.parse::<usize>().ok()?).cloned(),
        }
    };
    if let Some(found) = direct(first, key) {
        return found;
    }
    let by_place = values.len() > 1 || first.items().is_none() && !matches!(first, Value::Map(_));
    if by_place && let Some(found) = key.parse::<usize>().ok().and_then(|at| values.get(at)) {
        return found.clone();
    }
    let mut found = first.clone();
    for step in key.split('.') {
        match direct(&found, step) {
            Some(next) => found = next,
            None => return Value::Nil,
        }
    }
    found
}

fn put(context: &mut Context, out: &mut Draft, value: &Value, spec: &Spec) -> Result<(), Box<Fault>> {
    let is_number = float_of(value).is_some();
    let mut written = |value: &Value| -> Result<String, Box<Fault>> {
        let mut text = Draft::new(context);
        text.push(context, value)?;
        Ok(text.into_text(context))
    };
    let text = match (value, spec.precision) {
        (value, Some(digits)) if is_number => match big_of(value) {
            // The digits are exact for any size.
            Some(big) if digits > 0 => format!("{big}.{}", "0".repeat(digits)),
            Some(big) => big.to_string(),
            None => match float_of(value) {
                Some(float) if float.is_finite() => format!("{float:.digits$}"),
                _ => value.to_string(),
            },
        },
        (value, Some(most)) => written(value)?.chars().take(most).collect(),
        (value, None) if spec.width == 0 => return out.push(context, value),
        (value, None) => written(value)?,
    };
    let missing = spec.width.saturating_sub(text.chars().count());
    let before = match spec.align.unwrap_or(if is_number { '>' } else { '<' }) {
        '>' => missing,
        '^' => missing / 2,
        _ => 0,
    };
    let after = missing - before;
    out.put(context, format_args!("{:before$}{text}{:after$}", "", ""))
}

//! `(fmt "{name:>8.2}" m)`

use super::{ANY, Answer, Entry, many, shown, text_of};
use crate::machine::{Context, Fault, big_of, fault, float_of};
use crate::value::Value;

pub(super) static ENTRIES: &[Entry] = &[many("fmt", 1, ANY, fmt)];

/// What follows the colon of a placeholder.
#[derive(Default)]
struct Spec {
    align: Option<char>,
    width: usize,
    precision: Option<usize>,
}

/// Widths and precisions beyond this are an error.
const MOST: usize = 10_000;

fn fmt(context: &mut Context, args: &mut [Value]) -> Answer {
    let template = text_of("fmt", &args[0])?;
    let values = &args[1..];
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    let mut position = 0;
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        let brace = &rest[at..];
        if brace.starts_with("{{") || brace.starts_with("}}") {
            out.push_str(&brace[..1]);
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
        context.reserve(spec.width * 4)?;
        put(&mut out, &value, &spec);
    }
    out.push_str(rest);
    context.allocated(56 + out.len());
    Ok(out.into())
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

/// By keyword, by string, by place, or step by step along a path.
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

fn put(out: &mut String, value: &Value, spec: &Spec) {
    let is_number = float_of(value).is_some();
    let text = match (value, spec.precision) {
        (value, Some(digits)) if is_number => match big_of(value) {
            // Exact, however large.
            Some(big) if digits > 0 => format!("{big}.{}", "0".repeat(digits)),
            Some(big) => big.to_string(),
            None => match float_of(value) {
                Some(float) if float.is_finite() => format!("{float:.digits$}"),
                _ => value.to_string(),
            },
        },
        (value, Some(most)) => value.to_string().chars().take(most).collect(),
        (value, None) => value.to_string(),
    };
    let missing = spec.width.saturating_sub(text.chars().count());
    let before = match spec.align.unwrap_or(if is_number { '>' } else { '<' }) {
        '>' => missing,
        '^' => missing / 2,
        _ => 0,
    };
    out.extend(std::iter::repeat_n(' ', before));
    out.push_str(&text);
    out.extend(std::iter::repeat_n(' ', missing - before));
}

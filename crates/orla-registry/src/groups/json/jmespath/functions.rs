//! JMESPath's standard functions.

use rtfs::{Map, Value};

use super::syntax::Tree;
use super::{Evaluation, Result, is_number, items, problem};
use crate::arguments::name_of;
use crate::error::shown;
use crate::groups::{size, stats};
use crate::limits::{BoundedText, deep, vector};
use crate::number::{Number, Rounding};

/// The number of arguments of each function; `None` for at least one.
const FUNCTIONS: &[(&str, Option<usize>)] = &[
    ("abs", Some(1)),
    ("avg", Some(1)),
    ("ceil", Some(1)),
    ("contains", Some(2)),
    ("ends_with", Some(2)),
    ("floor", Some(1)),
    ("join", Some(2)),
    ("keys", Some(1)),
    ("length", Some(1)),
    ("map", Some(2)),
    ("max", Some(1)),
    ("max_by", Some(2)),
    ("merge", None),
    ("min", Some(1)),
    ("min_by", Some(2)),
    ("not_null", None),
    ("reverse", Some(1)),
    ("sort", Some(1)),
    ("sort_by", Some(2)),
    ("starts_with", Some(2)),
    ("sum", Some(1)),
    ("to_array", Some(1)),
    ("to_number", Some(1)),
    ("to_string", Some(1)),
    ("type", Some(1)),
    ("values", Some(1)),
];

pub(super) fn call(
    evaluation: &mut Evaluation,
    name: &str,
    arguments: &[Tree],
    value: &Value,
) -> Result<Value> {
    let Some((name, count)) = FUNCTIONS.iter().find(|(known, _)| *known == name) else {
        return Err(problem(format_args!("there is no function {}", rtfs::text::excerpt(name, 40))));
    };
    let fits = count.map_or(!arguments.is_empty(), |count| arguments.len() == count);
    if !fits {
        let count = count.map_or_else(|| "at least 1".to_owned(), |count| count.to_string());
        return Err(problem(format_args!("{name} takes {count} argument(s), got {}", arguments.len())));
    }
    // An expression reference is evaluated for each item, not here.
    match (*name, arguments) {
        ("map", [Tree::Reference(tree), list]) => {
            let list = evaluation.evaluate(list, value)?;
            let list = expect_list(name, &list)?;
            return vector(
                list.iter().map(|item| evaluation.evaluate(tree, item)).collect::<Result<_>>()?,
            );
        }
        ("sort_by" | "max_by" | "min_by", [list, Tree::Reference(tree)]) => {
            let list = evaluation.evaluate(list, value)?;
            return by(evaluation, name, expect_list(name, &list)?, tree);
        }
        ("map" | "sort_by" | "max_by" | "min_by", _) => {
            return Err(problem(format_args!("{name} takes an expression with & for each item")));
        }
        _ => {}
    }
    let values =
        arguments.iter().map(|tree| evaluation.evaluate(tree, value)).collect::<Result<Vec<_>>>()?;
    match &values[..] {
        [one] if *count == Some(1) => of_one(evaluation, name, one),
        [a, b] if *count == Some(2) => of_two(evaluation, name, a, b),
        values => of_many(evaluation, name, values),
    }
}

fn of_one(evaluation: &mut Evaluation, name: &str, value: &Value) -> Result<Value> {
    match name {
        "abs" => number(name, value)?.abs().into_value(),
        "ceil" => number(name, value)?.round(0, Rounding::Up)?.into_value(),
        "floor" => number(name, value)?.round(0, Rounding::Down)?.into_value(),
        "avg" => {
            let numbers = numbers(evaluation, name, value)?;
            if numbers.is_empty() {
                return Ok(Value::Nil);
            }
            let sum = stats::sum(&numbers).to_f64("expression")?;
            Number::Float(sum / numbers.len() as f64).into_value()
        }
        "sum" => stats::sum(&numbers(evaluation, name, value)?).into_value(),
        "keys" => vector(expect_map(name, value)?.iter().map(|(key, _)| named(key)).collect()),
        "values" => vector(expect_map(name, value)?.iter().map(|(_, value)| value.clone()).collect()),
        "length" => match value {
            Value::Str(text) => Ok(size(text.char_count())),
            Value::Map(map) => Ok(size(map.len())),
            other => match items(other) {
                Some(items) => Ok(size(items.len())),
                None => Err(expected(name, "a text, a list or an object", other)),
            },
        },
        "max" | "min" => {
            let keyed: Vec<(Value, &Value)> =
                expect_list(name, value)?.iter().map(|item| (item.clone(), item)).collect();
            extreme(name, keyed, name == "max")
        }
        "reverse" => match value {
            Value::Str(text) => Ok(Value::from(text.as_str().chars().rev().collect::<String>())),
            other => vector(expect_list(name, other)?.iter().rev().cloned().collect()),
        },
        "sort" => {
            let list = expect_list(name, value)?;
            evaluation.budget.items(list.len())?;
            one_kind(name, list.iter())?;
            let mut sorted = list.to_vec();
            sorted.sort_by(Value::compare);
            vector(sorted)
        }
        "to_array" => {
            if items(value).is_some() {
                Ok(value.clone())
            } else {
                vector(vec![value.clone()])
            }
        }
        "to_number" => Ok(match value {
            Value::Str(text) => {
                rtfs::json::value_from_json(text.as_str()).ok().filter(is_number).unwrap_or_default()
            }
            other if is_number(other) => other.clone(),
            _ => Value::Nil,
        }),
        "to_string" => match value {
            Value::Str(_) => Ok(value.clone()),
            other => {
                evaluation.budget.weigh(other)?;
                rtfs::json::value_to_json(other).map(Value::from).map_err(problem)
            }
        },
        _ => Ok(Value::from(match value {
            Value::Nil => "null",
            Value::Bool(_) => "boolean",
            Value::Map(_) => "object",
            other if is_number(other) => "number",
            other if items(other).is_some() => "array",
            _ => "string",
        })),
    }
}

fn of_two(evaluation: &mut Evaluation, name: &str, a: &Value, b: &Value) -> Result<Value> {
    match name {
        "contains" => match (a, b) {
            (Value::Str(whole), Value::Str(part)) => {
                evaluation.budget.text(whole.as_str().len())?;
                Ok(Value::Bool(whole.as_str().contains(part.as_str())))
            }
            (Value::Str(_), _) => Ok(Value::Bool(false)),
            (list, part) => {
                for item in expect_list(name, list)? {
                    if evaluation.equal(item, part)? {
                        return Ok(Value::Bool(true));
                    }
                }
                Ok(Value::Bool(false))
            }
        },
        "join" => {
            let (separator, mut out) = (text(name, a)?, BoundedText::default());
            for (i, item) in expect_list(name, b)?.iter().enumerate() {
                if i > 0 {
                    out.push(separator)?;
                }
                out.push(text(name, item)?)?;
            }
            let joined = out.finish();
            evaluation.budget.weigh(&joined)?;
            Ok(joined)
        }
        "starts_with" => Ok(Value::Bool(text(name, a)?.starts_with(text(name, b)?))),
        _ => Ok(Value::Bool(text(name, a)?.ends_with(text(name, b)?))),
    }
}

fn of_many(evaluation: &mut Evaluation, name: &str, values: &[Value]) -> Result<Value> {
    if name == "not_null" {
        return Ok(values
            .iter()
            .find(|value| !matches!(value, Value::Nil))
            .cloned()
            .unwrap_or_default());
    }
    let mut merged = Map::new();
    for value in values {
        let map = expect_map(name, value)?;
        evaluation.budget.items(map.len())?;
        for (key, value) in map.iter() {
            deep(merged.insert(key.clone(), value.clone()))?;
        }
    }
    Ok(merged.into())
}

fn by(evaluation: &mut Evaluation, name: &str, list: &[Value], tree: &Tree) -> Result<Value> {
    let mut keyed = Vec::with_capacity(list.len());
    for item in list {
        keyed.push((evaluation.evaluate(tree, item)?, item));
    }
    if name != "sort_by" {
        return extreme(name, keyed, name == "max_by");
    }
    one_kind(name, keyed.iter().map(|(key, _)| key))?;
    keyed.sort_by(|(a, _), (b, _)| a.compare(b));
    vector(keyed.into_iter().map(|(_, item)| item.clone()).collect())
}

/// Returns the item with the greatest or least key, the first of equals.
fn extreme(name: &str, keyed: Vec<(Value, &Value)>, greatest: bool) -> Result<Value> {
    one_kind(name, keyed.iter().map(|(key, _)| key))?;
    let better =
        |a: &Value, b: &Value| if greatest { a.compare(b).is_gt() } else { a.compare(b).is_lt() };
    let best = keyed.into_iter().reduce(|best, next| if better(&next.0, &best.0) { next } else { best });
    Ok(best.map_or(Value::Nil, |(_, item)| item.clone()))
}

fn one_kind<'a>(name: &str, mut keys: impl Iterator<Item = &'a Value> + Clone) -> Result<()> {
    let numbers = keys.clone().all(is_number);
    if numbers || keys.all(|key| matches!(key, Value::Str(_))) {
        return Ok(());
    }
    Err(problem(format_args!("{name}: expected all numbers or all texts")))
}

fn named(key: &Value) -> Value {
    name_of(key).map_or_else(|| Value::from(key.to_string()), Value::from)
}

fn number(name: &str, value: &Value) -> Result<Number> {
    Number::read("expression", value).map_err(|_| expected(name, "a number", value))
}

fn numbers(evaluation: &mut Evaluation, name: &str, value: &Value) -> Result<Vec<Number>> {
    let list = expect_list(name, value)?;
    evaluation.budget.items(list.len())?;
    list.iter().map(|item| number(name, item)).collect()
}

fn text<'a>(name: &str, value: &'a Value) -> Result<&'a str> {
    match value {
        Value::Str(text) => Ok(text.as_str()),
        other => Err(expected(name, "text", other)),
    }
}

fn expect_list<'a>(name: &str, value: &'a Value) -> Result<&'a [Value]> {
    items(value).ok_or_else(|| expected(name, "a list", value))
}

fn expect_map<'a>(name: &str, value: &'a Value) -> Result<&'a Map> {
    match value {
        Value::Map(map) => Ok(map),
        other => Err(expected(name, "an object", other)),
    }
}

fn expected(name: &str, expected: &str, got: &Value) -> crate::error::BuiltinError {
    problem(format_args!("{name}: expected {expected}, got {}", shown(got)))
}

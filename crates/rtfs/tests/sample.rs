//! Expressions with what they give: one JSON object a line.
//!
//! `expect` is JSON with `":k"` for a keyword and `"'s"` for a symbol, map keys likewise; `type` is
//! the type's name where JSON cannot tell; `error` names the kind of a failure; with `type_expr`,
//! `expect` says whether the value belongs to that type.

#![expect(clippy::unwrap_used, reason = "a test")]

use rtfs::{TypeExpr, Value, eval_pure};
use serde_json::Value as Json;

#[test]
fn every_line_of_the_sample_has_its_expected_outcome() {
    let mut wrong = Vec::new();
    for line in include_str!("fixtures/sample.jsonl").lines() {
        let case: Json = serde_json::from_str(line).unwrap();
        if let Err(problem) = check(&case) {
            wrong.push(format!("{line}\n    {problem}"));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

fn check(case: &Json) -> Result<(), String> {
    let text = case["src"].as_str().unwrap();
    let result = eval_pure(text);
    if let Some(kind) = case["error"].as_str() {
        return match result {
            Err(failure) if failure.kind() == kind => Ok(()),
            Err(failure) => Err(format!("failed with {failure}")),
            Ok(value) => Err(format!("gave {value:?}")),
        };
    }
    let value = result.map_err(|failure| failure.to_string())?;
    if let Some(ty) = case["type_expr"].as_str() {
        let belongs = TypeExpr::parse(ty).map_err(|invalid| invalid.to_string())?.admits(&value);
        return if Json::Bool(belongs) == case["expect"] {
            Ok(())
        } else {
            Err(format!("belongs: {belongs}"))
        };
    }
    let shown = json_of(&value);
    if !same(&shown, &case["expect"]) {
        return Err(format!("gave {value:?}"));
    }
    match case["type"].as_str() {
        Some(ty) if ty != value.type_name() => Err(format!("is of type {}", value.type_name())),
        _ => Ok(()),
    }
}

/// Sets are arrays in any order here.
fn same(a: &Json, b: &Json) -> bool {
    match (a, b) {
        (Json::Object(a), Json::Object(b)) => {
            a.len() == b.len()
                && a.iter().all(|(key, value)| b.get(key).is_some_and(|other| same(value, other)))
        }
        (Json::Array(a), Json::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Json::Number(a), Json::Number(b)) => a.to_string() == b.to_string(),
        _ => a == b,
    }
}

fn json_of(value: &Value) -> Json {
    let text = |value: &Value| match json_of(value) {
        Json::String(text) => text,
        other => other.to_string(),
    };
    match value {
        Value::Keyword(keyword) => Json::String(format!(":{}", keyword.name())),
        Value::Symbol(symbol) => Json::String(format!("'{}", symbol.name())),
        Value::Vector(vector) => vector.items().iter().map(json_of).collect(),
        Value::List(list) => list.items().iter().map(json_of).collect(),
        Value::Set(set) => set.iter().map(json_of).collect(),
        Value::Map(map) => map.iter().map(|(key, value)| (text(key), json_of(value))).collect(),
        other => rtfs::json::value_to_json(other)
            .ok()
            .and_then(|json| serde_json::from_str(&json).ok())
            .unwrap_or_else(|| Json::String(other.pr_str())),
    }
}

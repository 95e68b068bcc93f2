//! Compares the result of a call with the expectation of a case. No I/O.

use orla_marketplace::rtfs::text::excerpt;
use orla_marketplace::schema::Validator;
use regex::Regex;
use serde_json::{Map, Value};

/// The maximum number of differences that are shown for one case.
const MAX_DIFFERENCES: usize = 20;
/// Characters of a value that a message repeats.
const SHOWN: usize = 200;

/// The expectation of a case. All members must hold. Without members, the call must succeed.
#[derive(Debug, Default)]
pub(super) struct Expectation {
    /// The output. An object with the single member `$any`, `$regex`, `$type` or `$approx` matches more
    /// than one value.
    pub(super) output: Option<Value>,
    /// The kind of the error, or a part of its message.
    pub(super) error: Option<String>,
    /// A part of a text of the output.
    pub(super) contains: Option<String>,
    /// The schema that the output must match.
    pub(super) schema: Option<Validator>,
}

/// How a call ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// With this output, as plain JSON.
    Output(String),
    Error {
        /// For a program, the kind that its own language has.
        kind: String,
        /// The kind that callers and the history see.
        outside: &'static str,
        message: String,
    },
}

impl Expectation {
    /// Returns the differences; empty if the case passes.
    pub(super) fn differences(&self, ended: &Ended) -> Vec<String> {
        let output = match (ended, &self.error) {
            (Ended::Error { kind, outside, message }, Some(expected)) => {
                return match kind == expected || outside == expected || message.contains(&**expected) {
                    true => Vec::new(),
                    false => vec![format!(
                        "expected the error {:?}, got {kind}: {}",
                        excerpt(expected, SHOWN),
                        excerpt(message, SHOWN)
                    )],
                };
            }
            (Ended::Error { kind, message, .. }, None) => {
                return vec![format!("the call failed: {kind}: {}", excerpt(message, SHOWN))];
            }
            (Ended::Output(output), Some(expected)) => {
                let expected = excerpt(expected, SHOWN);
                return vec![format!(
                    "expected the error {expected:?}, got the output {}",
                    excerpt(output, SHOWN)
                )];
            }
            (Ended::Output(output), None) => output,
        };
        let mut differences = Vec::new();
        let value = serde_json::from_str::<Value>(output);
        match (&self.output, &value) {
            (Some(expected), Ok(value)) => compare("output", expected, value, &mut differences),
            (Some(_), Err(error)) => differences.push(format!("the output cannot be compared: {error}")),
            (None, _) => {}
        }
        if let Some(part) = &self.contains
            && !output.contains(&**part)
            && !value.as_ref().is_ok_and(|value| has_text(value, part))
        {
            differences.push(format!(
                "expected an output that contains {:?}, got {}",
                excerpt(part, SHOWN),
                excerpt(output, SHOWN)
            ));
        }
        if let Some(Err(violations)) = self.schema.as_ref().map(|schema| schema.check(output, "output"))
        {
            differences.extend(violations.iter().map(ToString::to_string));
        }
        let more = differences.len().saturating_sub(MAX_DIFFERENCES);
        if more > 0 {
            differences.truncate(MAX_DIFFERENCES);
            differences.push(format!("and {more} more differences"));
        }
        differences
    }
}

/// Returns whether a text within a value contains this.
fn has_text(value: &Value, part: &str) -> bool {
    match value {
        Value::String(text) => text.contains(part),
        Value::Array(items) => items.iter().any(|item| has_text(item, part)),
        Value::Object(members) => members.values().any(|member| has_text(member, part)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// A value of an expectation that matches more than one value.
enum Matcher<'a> {
    Any,
    Regex(&'a str),
    Type(&'a str),
    Approx { value: f64, within: f64 },
}

/// The words of `$type`.
const TYPES: [&str; 7] = ["string", "number", "integer", "boolean", "array", "object", "null"];

/// Returns the matcher that an object is, if it is one.
fn matcher(members: &Map<String, Value>) -> Option<Result<Matcher<'_>, String>> {
    let (name, value) = members.iter().find(|(name, _)| name.starts_with('$'))?;
    let wrong = |expected: &str| Some(Err(format!("{name}: expected {expected}, got {value}")));
    let made = match (&**name, value) {
        ("$any", Value::Bool(true)) => Matcher::Any,
        ("$any", _) => return wrong("true"),
        ("$regex", Value::String(pattern)) => Matcher::Regex(pattern),
        ("$regex", _) => return wrong("a regular expression"),
        ("$type", Value::String(word)) if TYPES.contains(&&**word) => Matcher::Type(word),
        ("$type", _) => return wrong(&TYPES.join(", ")),
        ("$approx", Value::Number(number)) => {
            let value = number.as_f64().unwrap_or(f64::NAN);
            let within = members.get("within").map_or(Some(value.abs() * 1e-6), Value::as_f64);
            let Some(within) = within.filter(|within| *within >= 0.0) else {
                return Some(Err("within: expected a number from 0".to_owned()));
            };
            Matcher::Approx { value, within }
        }
        ("$approx", _) => return wrong("a number"),
        // An object of the output may have such a member itself.
        _ => return None,
    };
    let is_alone = members.keys().all(|key| key == name || (name == "$approx" && key == "within"));
    is_alone.then_some(Ok(made))
}

/// Returns why the matchers of an expected value are invalid.
pub(super) fn problem_of(expected: &Value) -> Option<String> {
    match expected {
        Value::Array(items) => items.iter().find_map(problem_of),
        Value::Object(members) => match matcher(members) {
            Some(Err(problem)) => Some(problem),
            Some(Ok(Matcher::Regex(pattern))) => {
                // The error draws the pattern in several lines; its last one says why.
                Regex::new(pattern).err().map(|error| {
                    let text = error.to_string();
                    let why = text.lines().last().unwrap_or(&text);
                    format!("$regex: {}", why.trim_start_matches("error: "))
                })
            }
            Some(Ok(_)) => None,
            None => members.values().find_map(problem_of),
        },
        _ => None,
    }
}

fn compare(path: &str, expected: &Value, got: &Value, differences: &mut Vec<String>) {
    let shown = |value: &Value| excerpt(value.to_string(), SHOWN);
    if let Value::Object(members) = expected
        && let Some(Ok(matcher)) = matcher(members)
    {
        if let Some(expected) = unmatched(&matcher, got) {
            differences.push(format!("{path}: expected {expected}, got {}", shown(got)));
        }
        return;
    }
    match (expected, got) {
        (Value::Object(expected), Value::Object(got)) => {
            for (name, value) in expected {
                match got.get(name) {
                    Some(got) => compare(&format!("{path}.{name}"), value, got, differences),
                    None => {
                        differences.push(format!("{path}.{name}: missing, expected {}", shown(value)));
                    }
                }
            }
            for (name, value) in got.iter().filter(|(name, _)| !expected.contains_key(*name)) {
                differences.push(format!("{path}.{name}: not expected, got {}", shown(value)));
            }
        }
        (Value::Array(expected), Value::Array(got)) => {
            for (at, (expected, got)) in expected.iter().zip(got).enumerate() {
                compare(&format!("{path}[{at}]"), expected, got, differences);
            }
            if expected.len() != got.len() {
                differences.push(format!(
                    "{path}: expected {} items, got {}",
                    expected.len(),
                    got.len()
                ));
            }
        }
        (Value::Number(one), Value::Number(other)) if same_number(one, other) => {}
        (expected, got) if expected == got => {}
        (expected, got) => {
            differences.push(format!("{path}: expected {}, got {}", shown(expected), shown(got)));
        }
    }
}

/// Returns whether two numbers are equal, however they are written.
fn same_number(one: &serde_json::Number, other: &serde_json::Number) -> bool {
    match (one.as_i64(), other.as_i64(), one.as_u64(), other.as_u64()) {
        (Some(one), Some(other), ..) => one == other,
        (.., Some(one), Some(other)) => one == other,
        _ => one.as_f64() == other.as_f64(),
    }
}

/// Returns the expectation of a matcher, if a value does not meet it.
fn unmatched(matcher: &Matcher<'_>, got: &Value) -> Option<String> {
    let (matches, expected) = match matcher {
        Matcher::Any => (true, String::new()),
        Matcher::Regex(pattern) => {
            let text = match got {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let matches = Regex::new(pattern).is_ok_and(|regex| regex.is_match(&text));
            (matches, format!("a text that matches {pattern:?}"))
        }
        Matcher::Type(word) => (is_of_type(got, word), format!("a value of type {word}")),
        Matcher::Approx { value, within } => {
            let matches = got.as_f64().is_some_and(|got| (got - value).abs() <= *within);
            (matches, format!("{value} ± {within}"))
        }
    };
    (!matches).then_some(expected)
}

fn is_of_type(value: &Value, word: &str) -> bool {
    match value {
        Value::Null => word == "null",
        Value::Bool(_) => word == "boolean",
        Value::Number(number) => {
            let is_whole =
                number.is_i64() || number.is_u64() || number.as_f64().is_some_and(|n| n.fract() == 0.0);
            word == "number" || (word == "integer" && is_whole)
        }
        Value::String(_) => word == "string",
        Value::Array(_) => word == "array",
        Value::Object(_) => word == "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(expected: Value, got: &Value) -> Vec<String> {
        let expected = Expectation { output: Some(expected), ..Expectation::default() };
        expected.differences(&Ended::Output(got.to_string()))
    }

    #[test]
    fn differences_are_reported_with_their_places() {
        assert!(check(json!({"a": 1, "b": [1.0]}), &json!({"b": [1], "a": 1.0})).is_empty());
        assert_eq!(
            check(json!({"sum": 4, "gone": 1, "l": [1, 2]}), &json!({"sum": 3, "more": "x", "l": [1]})),
            [
                "output.sum: expected 4, got 3",
                "output.gone: missing, expected 1",
                "output.l: expected 2 items, got 1",
                "output.more: not expected, got \"x\"",
            ]
        );
    }

    #[test]
    fn matchers_stand_for_what_varies() {
        let expected = json!({"id": {"$regex": "^[0-9a-f]+$"}, "at": {"$any": true}, "n": {"$type": "integer"}, "x": {"$approx": 2.75, "within": 0.01}});
        assert!(
            check(expected.clone(), &json!({"id": "0af", "at": null, "n": 3.0, "x": 2.759})).is_empty()
        );
        let wrong = check(expected, &json!({"id": "xyz", "at": 1, "n": "3", "x": 2.8}));
        assert_eq!(wrong.len(), 3, "{wrong:?}");
        assert!(check(json!({"$ref": "#"}), &json!({"$ref": "#"})).is_empty(), "a member of the output");
        for (wrong, words) in [
            (json!({"$type": "text"}), "$type: expected string, number"),
            (json!([{"$regex": "("}]), "$regex: unclosed group"),
            (json!({"a": {"$approx": "3"}}), "$approx: expected a number"),
        ] {
            assert!(problem_of(&wrong).unwrap().starts_with(words), "{wrong}");
        }
    }

    #[test]
    fn an_error_is_expected_by_its_kind_or_by_its_text() {
        let failed = Ended::Error {
            kind: "arithmetic".into(),
            outside: "failed",
            message: "f exited with code 3".into(),
        };
        let expects = |error: &str| Expectation { error: Some(error.into()), ..Expectation::default() };
        assert!(expects("failed").differences(&failed).is_empty());
        assert!(expects("arithmetic").differences(&failed).is_empty());
        assert!(expects("code 3").differences(&failed).is_empty());
        assert_eq!(expects("code 4").differences(&failed).len(), 1);
        assert_eq!(Expectation::default().differences(&failed).len(), 1);
        assert_eq!(expects("failed").differences(&Ended::Output("1".into())).len(), 1);
        let contains = Expectation { contains: Some("two\nlines".into()), ..Expectation::default() };
        assert!(
            contains.differences(&Ended::Output(json!({"t": "one, two\nlines"}).to_string())).is_empty()
        );
        assert_eq!(contains.differences(&Ended::Output("{}".into())).len(), 1);
    }
}

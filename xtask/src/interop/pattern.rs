//! Comparing what a foreign client saw with what it should have seen.

use serde_json::Value;

/// Checks that `got` has everything that `expected` has.
///
/// Objects may have more keys than expected, arrays must have as many items. A string that ends in
/// `…` is a beginning. Numbers are compared by value.
pub(crate) fn compare(expected: &Value, got: &Value, path: &str) -> Result<(), String> {
    let differs = || Err(format!("{path}: expected {expected}, got {got}"));
    match (expected, got) {
        (Value::Object(fields), Value::Object(_)) => fields
            .iter()
            .try_for_each(|(name, value)| compare(value, &got[name], &format!("{path}.{name}"))),
        (Value::Array(items), Value::Array(others)) if items.len() == others.len() => items
            .iter()
            .zip(others)
            .enumerate()
            .try_for_each(|(at, (item, other))| compare(item, other, &format!("{path}[{at}]"))),
        (Value::String(text), Value::String(other)) => match text.strip_suffix('…') {
            Some(beginning) if other.starts_with(beginning) => Ok(()),
            None if text == other => Ok(()),
            _ => differs(),
        },
        (Value::Number(number), Value::Number(other)) if number.as_f64() == other.as_f64() => Ok(()),
        (expected, got) if expected == got => Ok(()),
        _ => differs(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_met_by_what_has_at_least_that() {
        let cases = [
            (r#"{"a": 1}"#, r#"{"a": 1.0, "b": 2}"#, true),
            (r#"{"a": 1}"#, r#"{"b": 2}"#, false),
            (r#"[1]"#, r#"[1, 2]"#, false),
            (r#"["be…"]"#, r#"["beginning"]"#, true),
            (r#""be…""#, r#""end""#, false),
            (r#"{"a": [{"b": null}]}"#, r#"{"a": [{"b": null, "c": 0}]}"#, true),
        ];
        for (expected, got, met) in cases {
            let parse = |text| serde_json::from_str(text).unwrap();
            assert_eq!(compare(&parse(expected), &parse(got), "it").is_ok(), met, "{expected} {got}");
        }
    }

    #[test]
    fn a_difference_is_told_with_its_path() {
        let expected = serde_json::json!({"content": [{"text": "a"}]});
        let got = serde_json::json!({"content": [{"text": "b"}]});
        assert_eq!(
            compare(&expected, &got, "result").unwrap_err(),
            r#"result.content[0].text: expected "a", got "b""#
        );
    }
}

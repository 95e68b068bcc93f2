//! `--update`: writes the results of the calls into the files, as the expected output.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use orla_document::parse;
use serde_json::{Map, Value, json};

use super::Outcomes;
use super::case::Case;
use crate::Failure;
use crate::config::{read_text, reason};

/// Changes the cases whose output is not the expected one, and returns the new results of the cases. A
/// failed call changes nothing.
pub(super) fn apply(
    cases: &[Case],
    outcomes: Vec<(Outcomes, Option<Value>)>,
) -> Result<Vec<Outcomes>, Failure> {
    let mut changes: BTreeMap<&Path, Vec<(Option<usize>, Value)>> = BTreeMap::new();
    let mut done = Vec::new();
    for (case, (mut outcome, got)) in cases.iter().zip(outcomes) {
        if let Some(got) = got.filter(|_| !outcome.differences.is_empty() && case.expect.error.is_none())
        {
            changes.entry(&case.place.file).or_default().push((case.place.index, got));
            outcome.differences.clear();
        }
        done.push(outcome);
    }
    for (file, changes) in changes {
        let text = read_text(file, super::MAX_FILE).map_err(Failure::failed)?;
        let is_json = file.extension().is_some_and(|extension| extension == "json");
        let text = changed(&text, changes, is_json)
            .map_err(|problem| Failure::failed(format!("{}: {problem}", file.display())))?;
        std::fs::write(file, text)
            .map_err(|err| Failure::failed(format!("{}: {}", file.display(), reason(&err))))?;
    }
    Ok(done)
}

/// Returns the text of a file with other expected outputs. Comments at its beginning stay.
fn changed(text: &str, changes: Vec<(Option<usize>, Value)>, is_json: bool) -> Result<String, String> {
    let node = parse(text).map_err(|error| error.to_string())?.ok_or("it is empty")?;
    let mut document = node.to_json();
    for (index, output) in changes {
        let case = match index {
            Some(index) => document.get_mut(index),
            None => Some(&mut document),
        };
        let Some(Value::Object(case)) = case else { return Err("it has changed meanwhile".to_owned()) };
        let expect = case.entry("expect").or_insert_with(|| json!({}));
        if let Value::Object(expect) = expect {
            expect.clear();
            expect.insert("output".to_owned(), output);
        }
    }
    if is_json {
        let text = serde_json::to_string_pretty(&document).map_err(|error| error.to_string())?;
        return Ok(text + "\n");
    }
    let head = text.lines().take_while(|line| line.starts_with('#') || line.trim().is_empty());
    let mut out: String = head.flat_map(|line| [line, "\n"]).collect();
    yaml(&document, 0, &mut out);
    Ok(out)
}

/// Writes a value as YAML: mappings and lists in blocks, everything else as JSON.
fn yaml(value: &Value, indent: usize, out: &mut String) {
    match value {
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                let _ = write!(out, "{:indent$}- ", "");
                match item {
                    Value::Object(members) if !members.is_empty() => {
                        mapping(members, indent + 2, true, out);
                    }
                    Value::Array(_) => {
                        let _ = writeln!(out, "{item}");
                    }
                    _ => yaml(item, indent, out),
                }
            }
        }
        Value::Object(members) if !members.is_empty() => mapping(members, indent, false, out),
        other => {
            let _ = writeln!(out, "{other}");
        }
    }
}

fn mapping(members: &Map<String, Value>, indent: usize, mut is_begun: bool, out: &mut String) {
    for (name, value) in members {
        if !std::mem::take(&mut is_begun) {
            let _ = write!(out, "{:indent$}", "");
        }
        let is_plain = !name.is_empty()
            && name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && !["null", "true", "false", "Null", "True", "False", "NULL", "TRUE", "FALSE"]
                .contains(&&**name);
        match is_plain {
            true => out.push_str(name),
            false => out.push_str(&Value::from(&**name).to_string()),
        }
        out.push(':');
        let is_block = match value {
            Value::Array(items) => !items.is_empty(),
            Value::Object(members) => !members.is_empty(),
            _ => false,
        };
        out.push(if is_block { '\n' } else { ' ' });
        yaml(value, indent + 2, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_is_replaced_and_the_rest_stays() {
        let text = "# Cases of add.\n- {name: sums, capability: add, input: {a: 1, 'b c': \"2\"}, expect: {output: {sum: 4}}}\n- name: other\n  program: |\n    (+ 1 2)\n    3\n  expect: {output: [[1], {}]}\n";
        let changed =
            changed(text, vec![(Some(0), json!({"sum": 3, "l": [{"x": null}]}))], false).unwrap();
        assert!(
            changed.starts_with("# Cases of add.\n- name: \"sums\"\n  capability: \"add\"\n"),
            "{changed}"
        );
        let read = parse(&changed).unwrap().unwrap().to_json();
        let mut expected = parse(text).unwrap().unwrap().to_json();
        expected[0]["expect"]["output"] = json!({"sum": 3, "l": [{"x": null}]});
        assert_eq!(read, expected, "{changed}");
        let json = r#"{"capability": "a", "expect": {"contains": "x"}}"#;
        let changed = super::changed(json, vec![(None, json!(1.5))], true).unwrap();
        assert_eq!(
            serde_json::from_str::<Value>(&changed).unwrap(),
            json!({"capability": "a", "expect": {"output": 1.5}})
        );
    }
}

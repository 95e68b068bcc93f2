//! The suites of formats and query languages, each read by built-ins.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::case::{Case, Expected, Plan};

/// Returns the JSONPath compliance test suite (RFC 9535): values, and normalized paths.
pub(super) fn jsonpath(checkout: &Path) -> Result<Plan, String> {
    let suite = json_file(&checkout.join("cts.json"))?;
    let mut cases = Vec::new();
    for test in rows(&suite["tests"]) {
        let mut add = |group: &str, paths: bool, expected| {
            let (document, selector) = (&test["document"], &test["selector"]);
            let arguments = json!({"value": document, "path": selector, "paths": paths});
            cases.push(case(group, text(&test["name"]), "json.path", arguments, expected));
        };
        if test["invalid_selector"] == true {
            add("values", false, Expected::Refused);
            continue;
        }
        // Where the order is open, the suite lists all that are right.
        let one_of = |one: &str, several: &str| match test.get(one) {
            Some(result) => Expected::OneOf(vec![result.clone()]),
            None => Expected::OneOf(rows(&test[several]).cloned().collect()),
        };
        add("values", false, one_of("result", "results"));
        add("normalized paths", true, one_of("result_paths", "results_paths"));
    }
    Ok(Plan { cases, ..Plan::default() })
}

/// Returns the compliance tests of JMESPath. Its benchmarks are left out.
pub(super) fn jmespath(checkout: &Path) -> Result<Plan, String> {
    let mut cases = Vec::new();
    for file in files(&checkout.join("tests"), "json")? {
        let suite = json_file(&file)?;
        for part in rows(&suite) {
            for test in rows(&part["cases"]).filter(|test| test.get("bench").is_none()) {
                let arguments = json!({"value": part["given"], "expression": test["expression"]});
                let expected = match test.get("result") {
                    Some(result) => Expected::OneOf(vec![result.clone()]),
                    None => Expected::Refused,
                };
                cases.push(case(
                    "expressions",
                    stem(&file) + ": " + text(&test["expression"]),
                    "json.jmespath",
                    arguments,
                    expected,
                ));
            }
        }
    }
    Ok(Plan { cases, ..Plan::default() })
}

/// Returns the JSON Patch tests (RFC 6902). Tests that the suite has disabled are left out.
pub(super) fn json_patch(checkout: &Path) -> Result<Plan, String> {
    let mut cases = Vec::new();
    for (group, file) in [("tests", "tests.json"), ("tests of the RFC", "spec_tests.json")] {
        let suite = json_file(&checkout.join(file))?;
        for (index, test) in rows(&suite).enumerate() {
            if test.get("patch").is_none() || test["disabled"] == true {
                continue;
            }
            let expected = match test.get("expected") {
                Some(expected) => Expected::OneOf(vec![expected.clone()]),
                None if test.get("error").is_some() => Expected::Refused,
                None => Expected::Accepted,
            };
            let arguments = json!({"value": test["doc"], "patch": test["patch"]});
            cases.push(case(
                group,
                format!("{index}: {}", text(&test["comment"])),
                "json.patch",
                arguments,
                expected,
            ));
        }
    }
    Ok(Plan { cases, ..Plan::default() })
}

/// Returns the TOML test suite, for TOML 1.1. Files that are not UTF-8 are left out: what the built-in
/// takes is a text.
pub(super) fn toml(checkout: &Path) -> Result<Plan, String> {
    let tests = checkout.join("tests");
    let list = tests.join("files-toml-1.1.0");
    let list = fs::read_to_string(&list).map_err(|err| format!("{}: {err}", list.display()))?;
    let mut cases = Vec::new();
    for name in list.lines().filter_map(|line| line.strip_suffix(".toml")) {
        let file = tests.join(format!("{name}.toml"));
        let bytes = fs::read(&file).map_err(|err| format!("{}: {err}", file.display()))?;
        let Ok(toml) = String::from_utf8(bytes) else { continue };
        let (group, expected) = match name.starts_with("valid/") {
            true => {
                ("valid", Expected::OneOf(vec![plain(&json_file(&tests.join(format!("{name}.json")))?)]))
            }
            false => ("invalid", Expected::Refused),
        };
        cases.push(case(group, name, "toml.parse", json!({"text": toml}), expected));
    }
    Ok(Plan { cases, ..Plan::default() })
}

/// Returns the plain value of one in which the TOML suite names the type of each part.
fn plain(tagged: &Value) -> Value {
    let of = |name: &str| tagged.get(name).and_then(Value::as_str);
    match (tagged, of("type"), of("value")) {
        (_, Some("bool"), Some(value)) => json!(value == "true"),
        (_, Some("integer" | "float"), Some(value)) => {
            serde_json::from_str(value).unwrap_or_else(|_| number(value))
        }
        // The suite writes milliseconds with three digits, orla as many as it was given.
        (_, Some("datetime" | "datetime-local" | "time-local"), Some(value)) if value.contains('.') => {
            json!(value.replace("00Z", "Z").replace("00+", "+").replace("00-", "-"))
        }
        (_, Some(_), Some(value)) => json!(value),
        (Value::Object(table), ..) => {
            table.iter().map(|(key, value)| (key.clone(), plain(value))).collect()
        }
        (Value::Array(items), ..) => items.iter().map(plain).collect(),
        (other, ..) => other.clone(),
    }
}

/// Returns a number that JSON writes in another way (`+1`, `1e06`), or a text for what is not finite.
fn number(text: &str) -> Value {
    text.parse::<f64>()
        .ok()
        .filter(|number| number.is_finite())
        .map_or_else(|| json!(text), |number| json!(number))
}

/// Returns the YAML test suite: streams whose values the suite gives in JSON, and streams that are
/// invalid. Valid streams that have no JSON form are left out.
pub(super) fn yaml(checkout: &Path) -> Result<Plan, String> {
    let mut cases = Vec::new();
    for folder in yaml_tests(checkout)? {
        let yaml = folder.join("in.yaml");
        let yaml = fs::read_to_string(&yaml).map_err(|err| format!("{}: {err}", yaml.display()))?;
        let name = folder.strip_prefix(checkout).unwrap_or(&folder).display().to_string();
        let (group, expected) = if folder.join("error").exists() {
            ("invalid", Expected::Refused)
        } else if let Ok(values) = fs::read_to_string(folder.join("in.json")) {
            let values = serde_json::Deserializer::from_str(&values).into_iter();
            let values: Vec<Value> =
                values.collect::<Result<_, _>>().map_err(|err| format!("{name}: in.json: {err}"))?;
            ("valid", Expected::OneOf(vec![values.into()]))
        } else {
            continue;
        };
        cases.push(case(group, name, "yaml.parse", json!({"text": yaml, "documents": true}), expected));
    }
    Ok(Plan { cases, ..Plan::default() })
}

/// Returns the folders with an `in.yaml`: one for each test, or one for each part of a test. `name` and
/// `tags` repeat them as links.
fn yaml_tests(checkout: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for test in
        entries(checkout)?.into_iter().filter(|path| !path.ends_with("name") && !path.ends_with("tags"))
    {
        if test.join("in.yaml").exists() {
            found.push(test);
        } else if test.is_dir() {
            found.extend(entries(&test)?.into_iter().filter(|part| part.join("in.yaml").exists()));
        }
    }
    Ok(found)
}

/// Returns the spectrum of CSV files.
pub(super) fn csv(checkout: &Path) -> Result<Plan, String> {
    let mut cases = Vec::new();
    for file in files(&checkout.join("csvs"), "csv")? {
        let csv = fs::read(&file).map_err(|err| format!("{}: {err}", file.display()))?;
        let name = stem(&file);
        let expected = json_file(&checkout.join("json").join(format!("{name}.json")))?;
        let arguments = json!({"text": String::from_utf8_lossy(&csv)});
        cases.push(case("files", name, "csv.parse", arguments, Expected::OneOf(vec![expected])));
    }
    Ok(Plan { cases, ..Plan::default() })
}

fn case(group: &str, name: impl Into<String>, id: &str, arguments: Value, expected: Expected) -> Case {
    Case { group: group.to_owned(), name: name.into(), id: id.to_owned(), arguments, expected }
}

fn rows(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn stem(file: &Path) -> String {
    file.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn json_file(file: &Path) -> Result<Value, String> {
    let bytes = fs::read(file).map_err(|err| format!("{}: {err}", file.display()))?;
    serde_json::from_str(&String::from_utf8_lossy(&bytes))
        .map_err(|err| format!("{}: {err}", file.display()))
}

/// Returns the files of a folder with an extension, in the order of their names.
pub(super) fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, String> {
    let mut files = entries(folder)?;
    files.retain(|file| file.extension().is_some_and(|found| found == extension));
    Ok(files)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let problem = |err: std::io::Error| format!("{}: {err}", folder.display());
    let entries = fs::read_dir(folder).map_err(problem)?;
    let mut paths =
        entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, _>>().map_err(problem)?;
    paths.sort();
    Ok(paths)
}

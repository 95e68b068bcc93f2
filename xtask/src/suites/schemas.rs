//! The JSON Schema test suite: how a declared `output_schema` is enforced.
//!
//! Each schema of the suite is the output schema of a capability that gives what its argument says in JSON (the built-in
//! `json.parse`), so each instance goes the way of any answer. References to other documents are not followed, by design.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::case::{Case, Expected, Plan};

/// A draft's folder, the address of its meta-schema, and whether it asserts formats.
const DRAFTS: [(&str, &str, bool); 5] = [
    ("draft4", "http://json-schema.org/draft-04/schema#", true),
    ("draft6", "http://json-schema.org/draft-06/schema#", true),
    ("draft7", "http://json-schema.org/draft-07/schema#", true),
    // `format` is an annotation from here on, so the tests of single formats do not apply.
    ("draft2019-09", "https://json-schema.org/draft/2019-09/schema", false),
    ("draft2020-12", "https://json-schema.org/draft/2020-12/schema", false),
];

pub(super) fn plan(checkout: &Path) -> Result<Plan, String> {
    let mut plan = Plan::default();
    for (draft, meta, asserts_formats) in DRAFTS {
        let tests = checkout.join("tests").join(draft);
        add(&mut plan, &tests, meta, &format!("{draft} required"))?;
        add(&mut plan, &tests.join("optional"), meta, &format!("{draft} optional"))?;
        if asserts_formats {
            add(&mut plan, &tests.join("optional/format"), meta, &format!("{draft} format"))?;
        }
    }
    Ok(plan)
}

fn add(plan: &mut Plan, folder: &Path, meta: &str, group: &str) -> Result<(), String> {
    for file in super::formats::files(folder, "json")? {
        let text = fs::read_to_string(&file).map_err(|err| format!("{}: {err}", file.display()))?;
        let groups: Vec<Value> =
            serde_json::from_str(&text).map_err(|err| format!("{}: {err}", file.display()))?;
        let stem = file.file_stem().unwrap_or_default().to_string_lossy();
        for row in groups {
            let mut schema = match row["schema"].clone() {
                // A declaration is a mapping.
                Value::Bool(schema) => json!({"allOf": [schema]}),
                schema => schema,
            };
            if let Some(schema) = schema.as_object_mut() {
                schema.entry("$schema").or_insert_with(|| meta.into());
            }
            let id = format!("schema{}", plan.capabilities.len());
            plan.capabilities.push(json!({
                "id": id,
                "description": "Gives the value of a JSON text",
                "provider": {"Local": {"function": "json.parse"}},
                "output_schema": schema,
            }));
            for test in row["tests"].as_array().into_iter().flatten() {
                plan.cases.push(Case {
                    group: group.to_owned(),
                    name: format!("{stem}: {}: {}", row["description"], test["description"]),
                    id: id.clone(),
                    arguments: json!({"text": test["data"].to_string()}),
                    expected: if test["valid"] == true { Expected::Accepted } else { Expected::Refused },
                });
            }
        }
    }
    Ok(())
}

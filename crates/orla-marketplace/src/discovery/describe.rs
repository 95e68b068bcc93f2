//! Describes one capability completely, as JSON and as text. Pure functions of the catalogue's entry.

use std::time::UNIX_EPOCH;

use rtfs::{TypeExpr, Value};
use serde_json::{Map as Object, Value as Json, json};

use super::example::example;
use crate::attestation::format_instant;
use crate::catalog::Entry;
use crate::error::millis_down;
use crate::json::value_from_json;
use crate::manifest::{ANNOTATIONS, CapabilityAttestation, CapabilityProvenance, TaskSupport};
use crate::payload::JsonText;
use crate::permission::Permission;
use crate::route::Routed;
use crate::schema::{SchemaError, type_from_json_schema};

/// Returns the structured result of `capability_describe`: the description, the types in both notations,
/// the kind of provider, provenance and permissions, and an example call. Unknown parts are left out,
/// and so are the values of secrets that the capability was given.
pub fn description(entry: &Entry) -> Json {
    let described = full_description(entry);
    match &entry.policy.redaction {
        Some(redactor) => redactor.tree(described),
        None => described,
    }
}

fn full_description(entry: &Entry) -> Json {
    let manifest = &entry.manifest;
    let mut described = json!({"id": manifest.id, "name": &*entry.name});
    let mut add = |key: &str, value: Json| {
        let is_empty = match &value {
            Json::Null => true,
            Json::String(text) => text.is_empty(),
            Json::Array(items) => items.is_empty(),
            Json::Object(members) => members.is_empty(),
            _ => false,
        };
        if !is_empty {
            described[key] = value;
        }
    };
    add("title", json!(manifest.title()));
    add("description", json!(manifest.description));
    add("version", json!(manifest.version));
    add("kind", json!(manifest.provider.kind()));
    if let Ok(routed) = manifest.provider.settings::<Routed>() {
        add("route", json!(routed.route().to_string()));
        add("providers", routed.providers().map(|(name, _)| json!(name)).collect());
    }
    let input = entry.input_schema();
    add("unavailable", json!(entry.unavailable()));
    let (of_input, of_output) = (entry.input_not_enforced(), entry.output_not_enforced());
    add("input", types(manifest.input_schema.as_ref(), Some(&input), of_input));
    add("output", types(manifest.output_schema.as_ref(), entry.output_schema().as_ref(), of_output));
    let annotations = manifest.metadata.get(ANNOTATIONS);
    add("annotations", annotations.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default());
    add("task", json!(manifest.task_support().map(TaskSupport::as_str)));
    add("metadata", json!(manifest.other_metadata()));
    let permissions: Vec<&str> = entry.needs().iter().map(Permission::as_str).collect();
    add("permissions", json!(permissions));
    add("provenance", entry.provenance().as_ref().map(provenance).unwrap_or_default());
    // An invalid attestation is not shown.
    add("attestation", entry.attestation().map(attestation).unwrap_or_default());
    let schema: Json = serde_json::from_str(input.as_str()).unwrap_or_default();
    add("example", example_call(&manifest.id, &example(&schema)));
    described
}

/// Returns the same description as text, for users and models.
pub fn description_text(described: &Json) -> String {
    let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
    let mut out = format!("{} ({})", text(&described["id"]), text(&described["kind"]));
    if described["name"] != described["id"] {
        out.push_str(&format!(", as MCP tool {}", text(&described["name"])));
    }
    if let Some(title) = described["title"].as_str() {
        out.push_str(&format!("\n{title}"));
    }
    out.push_str(&format!("\n{}\n", text(&described["description"]).trim()));
    if let Some(providers) = described["providers"].as_array() {
        let names: Vec<String> = providers.iter().map(&text).collect();
        out.push_str(&format!("Route: {}: {}\n", text(&described["route"]), names.join(", ")));
    }
    if let Some(reason) = described["unavailable"].as_str() {
        out.push_str(&format!("\nUnavailable: {reason}\n"));
    }
    for (label, key) in [("Input", "input"), ("Output", "output")] {
        let types = &described[key];
        if types.is_object() {
            out.push_str(&format!("\n{label}: {}\n{}\n", text(&types["type"]), types["json_schema"]));
            if let Some(enforcement) = types["enforcement"].as_str() {
                out.push_str(&format!("{enforcement}\n"));
            }
        }
    }
    match described["task"].as_str() {
        Some("required") => out.push_str("\nIs called only as a task\n"),
        Some("optional") => out.push_str("\nMay be called as a task\n"),
        Some("forbidden") => out.push_str("\nIs never called as a task\n"),
        _ => {}
    }
    if described["metadata"].is_object() {
        out.push_str(&format!("\nMetadata: {}\n", described["metadata"]));
    }
    if let Some(permissions) = described["permissions"].as_array() {
        let permissions: Vec<String> = permissions.iter().map(text).collect();
        out.push_str(&format!("\nNeeds permission for: {}\n", permissions.join(", ")));
    }
    if described["provenance"].is_object() {
        let from = &described["provenance"];
        let version = from["version"].as_str().map(|version| format!(" {version}")).unwrap_or_default();
        out.push_str(&format!("\nComes from {}{version}\n", text(&from["source"])));
        if let Some(custody) = from["custody_chain"].as_array() {
            let custody: Vec<String> = custody.iter().map(text).collect();
            out.push_str(&format!("Through {}\n", custody.join(", ")));
        }
        if let Some(hash) = from["content_hash"].as_str() {
            out.push_str(&format!("Content hash {hash}\n"));
        }
    }
    if let Some(authority) = described["attestation"]["authority"].as_str() {
        out.push_str(&format!("\nAttested by {authority}, and unchanged since\n"));
    }
    let example = &described["example"];
    out.push_str(&format!(
        "\nExample, as the arguments of capability_call:\n{}\nand in RTFS:\n{}\n",
        example["json"],
        text(&example["rtfs"])
    ));
    out
}

/// Returns a type in both notations, if it is known.
fn types(
    declared: Option<&TypeExpr>,
    schema: Option<&JsonText>,
    not_enforced: Option<&SchemaError>,
) -> Json {
    let Some(schema) = schema else { return Json::Null };
    let json: Json = serde_json::from_str(schema.as_str()).unwrap_or_default();
    let mut types = json!({"type": type_of(declared, Some(schema)), "json_schema": json});
    if let Some(fault) = not_enforced {
        types["enforcement"] = json!(format!("not enforced: {fault}"));
    }
    types
}

/// Returns a type in RTFS notation: the declared one, or else the one derived from a JSON Schema.
pub(super) fn type_of(declared: Option<&TypeExpr>, schema: Option<&JsonText>) -> Option<String> {
    if let Some(declared) = declared {
        return Some(declared.to_string());
    }
    let schema: Json = serde_json::from_str(schema?.as_str()).ok()?;
    Some(type_from_json_schema(&schema).to_string())
}

fn provenance(from: &CapabilityProvenance) -> Json {
    let registered = from.registered_at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut provenance = json!({"source": from.source});
    if !from.content_hash.is_empty() {
        provenance["content_hash"] = json!(from.content_hash);
    }
    if let Some(version) = &from.version {
        provenance["version"] = json!(version);
    }
    if !from.custody_chain.is_empty() {
        provenance["custody_chain"] = json!(from.custody_chain);
    }
    provenance["registered_at"] = json!(millis_down(registered));
    provenance
}

fn attestation(by: &CapabilityAttestation) -> Json {
    let mut attestation =
        json!({"authority": by.authority, "created_at": format_instant(by.created_at)});
    if let Some(end) = by.expires_at {
        attestation["expires_at"] = json!(format_instant(end));
    }
    attestation
}

/// Returns a call as the arguments of `capability_call` and as RTFS.
fn example_call(id: &str, input: &Json) -> Json {
    let rtfs = match value_from_json(&input.to_string()) {
        Ok(Value::Map(map)) if map.is_empty() => format!("(call {:?})", Value::keyword(id)),
        Ok(value) => format!("(call {:?} {value:?})", Value::keyword(id)),
        Err(_) => String::new(),
    };
    let mut arguments = Object::new();
    arguments.insert("id".to_owned(), json!(id));
    arguments.insert("input".to_owned(), input.clone());
    json!({"json": arguments, "rtfs": rtfs})
}

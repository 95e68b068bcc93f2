//! Tools as capabilities.

use orla_marketplace::schema::{Validator, type_from_json_schema};
use orla_marketplace::{ANNOTATIONS, CapabilityManifest, LISTED, TITLE};
use serde_json::Value;

use super::answer::ListedTool;

/// Adds to a manifest what a tool says of itself. What the manifest says already stays, and so does its
/// description where `has_description` is set. A schema that is none is left out, with a warning.
pub fn describe(manifest: &mut CapabilityManifest, tool: &ListedTool, has_description: bool) {
    if !has_description {
        let given = tool.description.clone().filter(|text| !text.trim().is_empty());
        manifest.description = given.unwrap_or_else(|| format!("The tool {}.", tool.name));
    }
    let id = &manifest.id;
    let declared = |schema: &Option<Value>, which: &str| {
        let schema = type_from_json_schema(schema.as_ref()?);
        match Validator::compile(&schema) {
            Ok(_) => Some(schema),
            Err(err) => {
                tracing::warn!(tool = id, error = %err, "its {which} schema is none, and is not enforced");
                None
            }
        }
    };
    if manifest.input_schema.is_none() {
        manifest.input_schema = declared(&tool.input_schema, "input");
    }
    if manifest.output_schema.is_none() {
        manifest.output_schema = declared(&tool.output_schema, "output");
    }
    if let Some(title) = &tool.title {
        manifest.metadata.entry(TITLE.to_owned()).or_insert_with(|| title.clone());
    }
    if let Some(annotations) = tool.annotations.as_ref().filter(|annotations| annotations.is_object()) {
        manifest.metadata.insert(ANNOTATIONS.to_owned(), annotations.to_string());
    }
    if let Some(more) = &tool.more {
        manifest.metadata.insert(LISTED.to_owned(), more.to_string());
    }
}

//! Tools as capabilities.

use orla_marketplace::schema::type_from_json_schema;
use orla_marketplace::{ANNOTATIONS, DeclaredBy, LISTED, Registration, TASK, TITLE, TaskSupport};

use super::answer::ListedTool;

/// Adds a tool's own description to a capability. Declared parts stay, and so does the description if
/// `has_description` is set. The tool's schemas are passed on unchanged.
pub fn describe(registration: &mut Registration, tool: &ListedTool, has_description: bool) {
    let Registration { manifest, policy } = registration;
    if !has_description {
        let description = tool.description.clone().filter(|text| !text.trim().is_empty());
        manifest.description = description.unwrap_or_else(|| format!("The tool {}.", tool.name));
    }
    if manifest.input_schema.is_none() {
        manifest.input_schema = tool.input_schema.as_ref().map(type_from_json_schema);
        policy.input_declared_by = DeclaredBy::Provider;
    }
    if manifest.output_schema.is_none() {
        manifest.output_schema = tool.output_schema.as_ref().map(type_from_json_schema);
        policy.output_declared_by = DeclaredBy::Provider;
    }
    if let Some(title) = &tool.title {
        manifest.metadata.entry(TITLE.to_owned()).or_insert_with(|| title.clone());
    }
    if let Some(annotations) = tool.annotations.as_ref().filter(|annotations| annotations.is_object()) {
        manifest.metadata.insert(ANNOTATIONS.to_owned(), annotations.to_string());
    }
    // The value of a server that cannot run a tool as a task does not apply to orla.
    let support = tool.task_support().filter(|support| *support != TaskSupport::Forbidden);
    if let Some(support) = support.filter(|_| !manifest.metadata.contains_key(TASK)) {
        manifest.set_task_support(support);
    }
    if let Some(more) = &tool.more {
        manifest.metadata.insert(LISTED.to_owned(), more.to_string());
    }
}

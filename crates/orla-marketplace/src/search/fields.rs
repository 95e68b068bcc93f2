//! The searchable texts of one capability.

use std::borrow::Cow;

use serde_json::Value as Json;

use crate::manifest::{CapabilityManifest, TITLE};

/// The fields, with the weight of a word in each of them.
pub(super) const FIELDS: [f32; 5] = [NAME, TITLES, DESCRIPTION, PARAMETER, ABOUT_PARAMETER];

const NAME: f32 = 4.0;
const TITLES: f32 = 2.5;
const DESCRIPTION: f32 = 1.0;
const PARAMETER: f32 = 0.8;
const ABOUT_PARAMETER: f32 = 0.4;

/// The maximum number of bytes of a description, and of the descriptions of all parameters together.
const MAX_TEXT: usize = 16 * 1024;
/// The maximum nesting of parameters.
const MAX_DEPTH: usize = 6;

/// The searchable texts of one capability.
pub(crate) struct Words<'a> {
    /// The id, which orders equal scores.
    pub(crate) id: &'a str,
    /// The texts in the order of [`FIELDS`].
    pub(crate) texts: [Cow<'a, str>; FIELDS.len()],
}

impl<'a> Words<'a> {
    /// Collects the texts of a capability with this input schema.
    pub(crate) fn of(manifest: &'a CapabilityManifest, input_schema: &str) -> Self {
        let (id, name) = (manifest.id.as_str(), manifest.name.as_str());
        let names = if id == name { Cow::Borrowed(id) } else { Cow::Owned(format!("{id} {name}")) };
        let title = manifest.metadata.get(TITLE).map(String::as_str).unwrap_or_default();
        let (mut parameters, mut about) = (String::new(), String::new());
        if let Ok(schema) = serde_json::from_str(input_schema) {
            collect(&schema, 0, &mut parameters, &mut about);
        }
        let description = start_of(&manifest.description).into();
        Self { id, texts: [names, start_of(title).into(), description, parameters.into(), about.into()] }
    }
}

/// Collects the names and descriptions of parameters, along all keywords that hold further schemas.
fn collect(schema: &Json, depth: usize, names: &mut String, about: &mut String) {
    let Json::Object(schema) = schema else { return };
    if depth > MAX_DEPTH || names.len() + about.len() > MAX_TEXT {
        return;
    }
    for key in ["title", "description"] {
        if let Some(Json::String(text)) = schema.get(key) {
            about.push_str(start_of(text));
            about.push('\n');
        }
    }
    if let Some(Json::Object(properties)) = schema.get("properties") {
        for (name, property) in properties {
            names.push_str(start_of(name));
            names.push('\n');
            collect(property, depth + 1, names, about);
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get(key) {
            collect(inner, depth + 1, names, about);
        }
    }
    for key in ["anyOf", "oneOf", "allOf", "prefixItems"] {
        for inner in schema.get(key).and_then(Json::as_array).into_iter().flatten() {
            collect(inner, depth + 1, names, about);
        }
    }
}

fn start_of(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_found_wherever_a_schema_holds_them() {
        let schema = serde_json::json!({
            "description": "d0", "properties": {
                "a": {"type": "string", "description": "d1", "title": "t1"},
                "b": {"type": "array", "items": {"properties": {"c": true}}},
                "e": {"anyOf": [{"properties": {"f": {"description": "d2"}}}, 7]},
            },
        });
        let (mut names, mut about) = (String::new(), String::new());
        collect(&schema, 0, &mut names, &mut about);
        assert_eq!(names.split_whitespace().collect::<Vec<_>>(), ["a", "b", "c", "e", "f"]);
        assert_eq!(about.split_whitespace().collect::<Vec<_>>(), ["d0", "t1", "d1", "d2"]);
    }

    #[test]
    fn the_indexed_part_of_a_schema_is_bounded() {
        let mut schema = serde_json::json!({"properties": {"deepest": {}}});
        for _ in 0..100 {
            schema = serde_json::json!({"properties": {"x": schema}});
        }
        let (mut names, mut about) = (String::new(), String::new());
        collect(&schema, 0, &mut names, &mut about);
        assert!(!names.contains("deepest") && names.len() < 100);
        let long = "é".repeat(MAX_TEXT);
        assert_eq!(start_of(&long).len(), MAX_TEXT);
    }
}

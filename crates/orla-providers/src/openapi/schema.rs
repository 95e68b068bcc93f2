//! Converts schemas of OpenAPI 3.0 and 3.1 to self-contained JSON Schema 2020-12. Pure.
//!
//! # How it works
//!
//! Known keywords are copied in the form of 2020-12. Other keywords are left out: annotations of OpenAPI
//! (`xml`, `discriminator`, `x-…`) and invalid values. The result is therefore always a schema.
//! References become entries of `$defs`; a recursive schema stays recursive.
//!
//! For answers, only the outline is kept: types, properties, alternatives. The other constraints of a
//! document (required members, limits, closed lists) are often stricter than the server's actual
//! answers, even in the document's own examples. A successful call must not fail for that reason.
//!
//! # Bounds
//!
//! Depth, and the number of values in a schema together with all schemas that it refers to. A schema
//! that refers to itself without descending into the data is refused, because checking data against it
//! would never end.

use std::collections::{HashMap, HashSet};

use orla_marketplace::rtfs::text::excerpt;
use serde_json::{Map, Value as Json, json};

use super::document::{Dialect, Document, last_step, pointer_of};

/// The maximum nesting of one schema.
const MAX_DEPTH: usize = 64;
/// The maximum number of values in a schema with everything that it refers to.
const MAX_VALUES: usize = 50_000;
/// The maximum length of a description, in characters.
const MAX_DESCRIPTION: usize = 1_000;
/// The maximum length of an example, in bytes of JSON.
const MAX_EXAMPLE: usize = 200;

/// The keywords that are dropped from the schemas of answers.
const BEYOND_THE_OUTLINE: [&str; 26] = [
    "required",
    "pattern",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "minContains",
    "maxContains",
    "uniqueItems",
    "contains",
    "not",
    "if",
    "then",
    "else",
    "const",
    "dependentSchemas",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
];

/// The user of a schema. Requests omit read-only members, and answers omit write-only members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Request,
    Response,
}

/// Converts the schemas of one root, which share their definitions.
pub(super) struct Converter<'a> {
    document: &'a Document,
    side: Side,
    names: HashMap<String, String>,
    taken: HashSet<String>,
    waiting: Vec<String>,
    definitions: Map<String, Json>,
    values: usize,
}

impl<'a> Converter<'a> {
    pub(super) fn new(document: &'a Document, side: Side) -> Self {
        Self {
            document,
            side,
            names: HashMap::new(),
            taken: HashSet::new(),
            waiting: Vec::new(),
            definitions: Map::new(),
            values: 0,
        }
    }

    /// Converts one schema. [`definitions`](Self::definitions) converts the schemas that it refers to.
    ///
    /// # Errors
    /// A reference that cannot be followed, or a bound that is reached.
    pub(super) fn convert(&mut self, schema: &Json) -> Result<Json, String> {
        self.schema(schema, 0)
    }

    /// Returns the definitions that the converted schemas refer to: the content of `$defs`.
    ///
    /// # Errors
    /// Like [`convert`](Self::convert).
    pub(super) fn definitions(mut self) -> Result<Map<String, Json>, String> {
        while let Some(pointer) = self.waiting.pop() {
            let schema = self.document.root.pointer(&pointer).unwrap_or(&Json::Null);
            let converted = self.schema(schema, 0)?;
            let name = self.names[&pointer].clone();
            self.definitions.insert(name, converted);
        }
        if let Some(name) = circle(&self.definitions) {
            return Err(format!("the schema {name} refers to itself without end"));
        }
        Ok(self.definitions)
    }

    fn schema(&mut self, schema: &Json, depth: usize) -> Result<Json, String> {
        self.values += 1;
        if depth > MAX_DEPTH {
            return Err(format!("a schema is nested deeper than {MAX_DEPTH} levels"));
        }
        if self.values > MAX_VALUES {
            return Err(format!("a schema is larger than {MAX_VALUES} values"));
        }
        let Json::Object(members) = schema else {
            return Ok(if *schema == Json::Bool(false) { schema.clone() } else { json!({}) });
        };
        let mut out = Map::new();
        if let Some(reference) = members.get("$ref").and_then(Json::as_str) {
            out.insert("$ref".into(), format!("#/$defs/{}", self.reference(reference)?).into());
        }
        // In 3.0, the members beside a reference are ignored. A description is harmless.
        let is_alone = self.document.dialect == Dialect::Draft3_0 && out.contains_key("$ref");
        for (key, value) in members {
            if !is_alone || key == "description" {
                self.keyword(&mut out, key, value, depth)?;
            }
        }
        if self.document.dialect == Dialect::Draft3_0 {
            mend_limits(&mut out, members);
            if members.get("nullable") == Some(&Json::Bool(true)) {
                out = nullable(out);
            }
        }
        self.mend_required(&mut out, members);
        Ok(Json::Object(out))
    }

    fn keyword(
        &mut self,
        out: &mut Map<String, Json>,
        key: &str,
        value: &Json,
        depth: usize,
    ) -> Result<(), String> {
        if self.side == Side::Response && BEYOND_THE_OUTLINE.contains(&key) {
            return Ok(());
        }
        let converted = match key {
            // One value may match two alternatives that differ only in their descriptions.
            "oneOf" if self.side == Side::Response => {
                let list = self.list(value, depth)?;
                out.extend(list.map(|list| ("anyOf".to_owned(), list)));
                None
            }
            "enum" if self.side == Side::Response => {
                if value.is_array() {
                    out.insert("examples".into(), value.clone());
                }
                None
            }
            "additionalProperties" if self.side == Side::Response && !value.is_object() => None,
            "properties" => match value {
                Json::Object(members) => {
                    let mut properties = Map::new();
                    for (name, property) in members {
                        if !self.is_hidden(property) {
                            properties.insert(name.clone(), self.schema(property, depth + 1)?);
                        }
                    }
                    Some(properties.into())
                }
                _ => None,
            },
            "patternProperties" | "dependentSchemas" => match value {
                Json::Object(members) => {
                    let mut converted = Map::new();
                    for (name, member) in members {
                        converted.insert(name.clone(), self.schema(member, depth + 1)?);
                    }
                    Some(converted.into())
                }
                _ => None,
            },
            "items" if value.is_array() => {
                let list = self.list(value, depth)?;
                out.extend(list.map(|list| ("prefixItems".to_owned(), list)));
                None
            }
            "items"
            | "additionalProperties"
            | "not"
            | "contains"
            | "propertyNames"
            | "if"
            | "then"
            | "else"
            | "unevaluatedItems"
            | "unevaluatedProperties" => match value {
                Json::Object(_) | Json::Bool(_) => Some(self.schema(value, depth + 1)?),
                _ => None,
            },
            "allOf" | "anyOf" | "oneOf" | "prefixItems" => self.list(value, depth)?,
            "example" if is_short(value) => {
                out.entry("examples").or_insert_with(|| json!([value]));
                None
            }
            "examples" => value.is_array().then(|| value.clone()).filter(is_short),
            "const" | "default" => Some(value.clone()).filter(is_short),
            "format" if value == "binary" || value == "byte" => {
                out.insert("contentEncoding".into(), "base64".into());
                None
            }
            "description" | "title" => value.as_str().map(|text| shortened(text).into()),
            _ => plain(key, value),
        };
        out.extend(converted.map(|converted| (key.to_owned(), converted)));
        Ok(())
    }

    fn list(&mut self, value: &Json, depth: usize) -> Result<Option<Json>, String> {
        let Some(items) = value.as_array().filter(|items| !items.is_empty()) else { return Ok(None) };
        let items: Result<Vec<_>, _> = items.iter().map(|item| self.schema(item, depth + 1)).collect();
        items.map(|items| Some(items.into()))
    }

    /// Returns the name that a reference has among the definitions.
    fn reference(&mut self, reference: &str) -> Result<String, String> {
        let pointer = pointer_of(reference)?;
        if let Some(name) = self.names.get(&pointer) {
            return Ok(name.clone());
        }
        self.document.at(&pointer)?;
        let plain: String = last_step(&pointer)
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.') { c } else { '_' })
            .collect();
        let mut name = plain.clone();
        while !self.taken.insert(name.clone()) {
            name = format!("{plain}_{}", self.taken.len());
        }
        self.names.insert(pointer.clone(), name.clone());
        self.waiting.push(pointer);
        Ok(name)
    }

    /// Returns whether a property is only for the other side.
    fn is_hidden(&self, property: &Json) -> bool {
        let key = match self.side {
            Side::Request => "readOnly",
            Side::Response => "writeOnly",
        };
        let is_set = |schema: &Json| schema.get(key) == Some(&Json::Bool(true));
        is_set(property) || self.document.resolve(property).is_ok_and(|(target, _)| is_set(target))
    }

    /// Removes hidden properties from `required`.
    fn mend_required(&self, out: &mut Map<String, Json>, members: &Map<String, Json>) {
        let Some(Json::Array(required)) = out.get_mut("required") else { return };
        if let Some(properties) = members.get("properties") {
            required.retain(|name| {
                let property = name.as_str().and_then(|name| properties.get(name));
                property.is_none_or(|property| !self.is_hidden(property))
            });
        }
        if required.is_empty() {
            out.remove("required");
        }
    }
}

/// Returns a keyword whose value is not a schema, if the value is valid.
fn plain(key: &str, value: &Json) -> Option<Json> {
    let fits = match key {
        "type" => {
            let is_type = |value: &Json| {
                let names = ["string", "number", "integer", "boolean", "object", "array", "null"];
                value.as_str().is_some_and(|name| names.contains(&name))
            };
            let is_list = |names: &Vec<Json>| {
                if names.is_empty() || names.len() > 7 {
                    return false;
                }
                let each_once = (1..names.len()).all(|at| !names[..at].contains(&names[at]));
                names.iter().all(is_type) && each_once
            };
            is_type(value) || value.as_array().is_some_and(is_list)
        }
        "enum" => value.as_array().is_some_and(|options| !options.is_empty()),
        "format" | "contentEncoding" | "contentMediaType" | "pattern" => value.is_string(),
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => value.is_number(),
        "multipleOf" => value.as_f64().is_some_and(|number| number > 0.0),
        "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties"
        | "minContains" | "maxContains" => value.is_u64(),
        "uniqueItems" | "deprecated" => value.is_boolean(),
        "required" => {
            let names = value.as_array()?.iter().filter_map(Json::as_str);
            let mut known = HashSet::new();
            let unique: Vec<_> = names.filter(|name| known.insert(*name)).collect();
            return Some(unique.into());
        }
        _ => false,
    };
    fits.then(|| value.clone())
}

fn is_short(value: &Json) -> bool {
    value.to_string().len() <= MAX_EXAMPLE
}

pub(super) fn shortened(text: &str) -> String {
    excerpt(text.trim(), MAX_DESCRIPTION)
}

/// Converts 3.0's flags beside `minimum` and `maximum`.
fn mend_limits(out: &mut Map<String, Json>, members: &Map<String, Json>) {
    for (limit, exclusive) in [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")] {
        if members.get(exclusive) == Some(&Json::Bool(true))
            && let Some(value) = out.remove(limit)
        {
            out.insert(exclusive.into(), value);
        }
    }
}

/// Converts 3.0's `nullable`.
fn nullable(mut schema: Map<String, Json>) -> Map<String, Json> {
    if let Some(Json::Array(options)) = schema.get_mut("enum")
        && !options.contains(&Json::Null)
    {
        options.push(Json::Null);
    }
    match schema.get("type").cloned() {
        Some(Json::String(name)) => {
            schema.insert("type".into(), json!([name, "null"]));
            schema
        }
        // Without a type, the schema has a member with one, or allows any value.
        _ if ["$ref", "allOf", "anyOf", "oneOf"].iter().any(|key| schema.contains_key(*key)) => {
            let description = schema.remove("description");
            let mut outer = Map::new();
            outer.extend(description.map(|text| ("description".to_owned(), text)));
            outer.insert("anyOf".into(), json!([schema, {"type": "null"}]));
            outer
        }
        _ => schema,
    }
}

/// Returns a definition that refers to itself without descending into the data.
fn circle(definitions: &Map<String, Json>) -> Option<&str> {
    let next: HashMap<&str, Vec<&str>> =
        definitions.iter().map(|(name, schema)| (name.as_str(), in_place(schema))).collect();
    let mut done: HashSet<&str> = HashSet::new();
    for start in next.keys() {
        // Depth first, on an explicit stack; `None` marks the way back.
        let mut stack = vec![Some(*start)];
        let mut way: Vec<&str> = Vec::new();
        let mut on_way: HashSet<&str> = HashSet::new();
        while let Some(step) = stack.pop() {
            let Some(name) = step else {
                if let Some(left) = way.pop() {
                    on_way.remove(left);
                    done.insert(left);
                }
                continue;
            };
            if on_way.contains(name) {
                return definitions.get_key_value(name).map(|(name, _)| name.as_str());
            }
            if done.contains(name) {
                continue;
            }
            way.push(name);
            on_way.insert(name);
            stack.push(None);
            stack.extend(next.get(name).into_iter().flatten().copied().map(Some));
        }
    }
    None
}

/// Returns the definitions that a schema applies to the same data.
fn in_place(schema: &Json) -> Vec<&str> {
    let mut found = Vec::new();
    let mut open = vec![schema];
    while let Some(schema) = open.pop() {
        let reference = schema.get("$ref").and_then(Json::as_str);
        found.extend(reference.and_then(|reference| reference.strip_prefix("#/$defs/")));
        for key in ["allOf", "anyOf", "oneOf"] {
            open.extend(schema.get(key).and_then(Json::as_array).into_iter().flatten());
        }
        for key in ["not", "if", "then", "else"] {
            open.extend(schema.get(key));
        }
        open.extend(
            schema.get("dependentSchemas").and_then(Json::as_object).into_iter().flat_map(Map::values),
        );
    }
    found
}

#[cfg(test)]
#[path = "schema_tests.rs"]
mod tests;

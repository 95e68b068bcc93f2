//! The capabilities of a caller, as OpenAPI 3.1. No I/O.

use std::collections::HashSet;

use orla_marketplace::{Catalog, Entry, JsonText, Principal, ProviderType};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};

use super::{DOCUMENT, PATH, problem, schema};

/// The characters that are not escaped in a segment of a path.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Returns the document for the capabilities that this caller may call: the listed ones, or all.
pub(super) fn document(
    catalog: &Catalog,
    caller: Option<&Principal>,
    needs_token: bool,
    all: bool,
) -> String {
    let mut paths = Map::new();
    let mut components = Components::default();
    let permitted = catalog.permitted(caller);
    for entry in permitted.filter(|entry| if all { entry.is_available() } else { entry.is_offered() }) {
        let path = format!("{PATH}/{}", utf8_percent_encode(&entry.name, SEGMENT));
        paths.insert(path, json!({"post": operation(entry, &mut components)}));
    }
    paths.insert(format!("{PATH}/{DOCUMENT}"), json!({"get": {
        "operationId": components.operation_id("openapi.json"),
        "summary": "This document",
        "responses": {"200": {"description": "The document.", "content": {"application/json": {"schema": {"type": "object"}}}}},
    }}));
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "orla",
            "description": "Every capability that you may call. An error is a problem document (RFC 9457) whose `kind` is a stable word.",
            "version": env!("CARGO_PKG_VERSION"),
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": components.schemas,
            "parameters": {
                "IdempotencyKey": {
                    "name": "Idempotency-Key",
                    "in": "header",
                    "description": "Makes the call at most once: a day long, the same key with the same input is answered as the first time.",
                    "schema": {"type": "string", "minLength": 1, "maxLength": 256},
                },
                "Prefer": {
                    "name": "Prefer",
                    "in": "header",
                    "description": "With `respond-async`, the call becomes a task.",
                    "schema": {"type": "string"},
                },
            },
            "responses": {
                "Problem": {
                    "description": "The call gave no output.",
                    "content": {problem::MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
                },
                "Task": {
                    "description": "The call became a task, which is at the place that `Location` names.",
                    "headers": {"Location": {"schema": {"type": "string"}}},
                    "content": {"application/json": {"schema": {"type": "object"}}},
                },
            },
        },
    });
    document["components"]["schemas"]["Problem"] = json!({
        "type": "object",
        "required": ["type", "title", "status", "detail", "kind"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string", "description": "What happened and what to do, in one sentence."},
            "kind": {"type": "string", "description": "A stable word, such as `invalid-input`."},
            "violations": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["path", "expected", "got"],
                    "properties": {
                        "path": {"type": "string"},
                        "expected": {"type": "string"},
                        "got": {"type": "string"},
                    },
                },
            },
            "output": {"description": "The output before the failure."},
        },
    });
    if needs_token {
        document["components"]["securitySchemes"] =
            json!({"token": {"type": "http", "scheme": "bearer"}});
        document["security"] = json!([{"token": []}]);
    }
    document.to_string()
}

fn operation(entry: &Entry, components: &mut Components) -> Value {
    let manifest = &entry.manifest;
    let input_schema = entry.input_schema();
    let input = components.add(
        &format!("{}.input", entry.name),
        &input_schema,
        entry.input_not_enforced().is_none(),
    );
    let output = match entry.output_schema() {
        Some(schema) => components.add(
            &format!("{}.output", entry.name),
            &schema,
            entry.output_not_enforced().is_none(),
        ),
        None => json!({}),
    };
    let mut content = json!({"application/json": {"schema": output}});
    if matches!(manifest.provider, ProviderType::Stream(_)) {
        content["text/event-stream"] = json!({"schema": {"type": "string"}});
    }
    let problem = json!({"$ref": "#/components/responses/Problem"});
    let mut responses = json!({
        "200": {"description": "The output.", "content": content},
        "202": {"$ref": "#/components/responses/Task"},
    });
    for status in ["400", "403", "404", "409", "413", "415", "429", "502", "503", "504"] {
        responses[status] = problem.clone();
    }
    let mut operation = json!({
        "operationId": components.operation_id(&entry.name),
        "description": manifest.description,
        "parameters": [
            {"$ref": "#/components/parameters/IdempotencyKey"},
            {"$ref": "#/components/parameters/Prefer"},
        ],
        "requestBody": {
            "content": {"application/json": {"schema": input}},
            "required": demands_members(&input_schema),
        },
        "responses": responses,
    });
    if let Some(title) = manifest.title() {
        operation["summary"] = json!(title);
    }
    operation
}

/// Returns whether the schema excludes the empty object, which an empty body means.
fn demands_members(schema: &JsonText) -> bool {
    let schema: Value = serde_json::from_str(schema.as_str()).unwrap_or_default();
    let has_required = schema["required"].as_array().is_some_and(|names| !names.is_empty());
    has_required || schema["minProperties"].as_f64().is_some_and(|least| least > 0.0)
}

/// The schemas of a document, and the names that it uses.
#[derive(Default)]
struct Components {
    schemas: Map<String, Value>,
    operations: HashSet<String>,
}

impl Components {
    /// Adds a schema, and returns a reference to it. A schema that OpenAPI cannot express is replaced by
    /// one that allows everything.
    fn add(&mut self, name: &str, text: &JsonText, is_usable: bool) -> Value {
        let name = self.unused(name);
        let root = format!("#/components/schemas/{name}");
        let schema = serde_json::from_str(text.as_str()).ok();
        let schema = schema.filter(|_| is_usable).and_then(|schema| schema::embedded(schema, &root));
        let any = || json!({"description": "The schema of its provider cannot be shown here."});
        self.schemas.insert(name, schema.unwrap_or_else(any));
        json!({"$ref": root})
    }

    /// Returns a name for a component (OpenAPI §4.8.7): few characters are allowed.
    fn unused(&self, name: &str) -> String {
        let fit = |ch: char| if ch.is_ascii_alphanumeric() || "._-".contains(ch) { ch } else { '_' };
        let name: String = name.chars().map(fit).collect();
        let numbered = (2..).map(|number| format!("{name}.{number}"));
        let mut names = std::iter::once(name.clone()).chain(numbered);
        names.find(|name| name != "Problem" && !self.schemas.contains_key(name)).unwrap_or(name)
    }

    fn operation_id(&mut self, name: &str) -> String {
        let numbered = (2..).map(|number| format!("{name}_{number}"));
        let mut names = std::iter::once(name.to_owned()).chain(numbered);
        let id = names.find(|name| !self.operations.contains(name)).unwrap_or_default();
        self.operations.insert(id.clone());
        id
    }
}

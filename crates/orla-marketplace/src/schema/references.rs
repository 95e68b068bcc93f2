//! Finds references without a target, also where no data can reach them. Pure functions.

use jsonschema::{Draft, ReferencingError, Registry, uri};
use serde_json::Value as Json;

use super::SchemaError;
use crate::json::{push_index, push_key};

/// The address of a schema without an id.
const BASE: &str = "json-schema:///";

/// Keywords whose value is a schema, or a list of schemas.
const SCHEMAS: [&str; 16] = [
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "oneOf",
    "prefixItems",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Keywords whose value is a mapping from names to schemas.
const NAMED: [&str; 6] =
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"];

/// Checks that every reference of a schema that can be compiled has a target. The compiler resolves only
/// those that data can reach.
///
/// # Errors
/// The first reference without a target.
pub(super) fn all_resolve(schema: &Json) -> Result<(), SchemaError> {
    let fault = |path: &str, problem: &ReferencingError| SchemaError {
        path: path.strip_prefix('.').unwrap_or(path).to_owned(),
        problem: format!("this reference cannot be resolved: {problem}"),
    };
    let of_whole = |problem: ReferencingError| fault("", &problem);
    let draft = Draft::default().detect(schema);
    let resource = draft.create_resource_ref(schema);
    let base = resource.id().unwrap_or(BASE).to_owned();
    let registry = Registry::new().draft(draft).add(&base, resource).map_err(of_whole)?;
    let registry = registry.prepare().map_err(of_whole)?;
    let base = registry.resolve_uri(&uri::from_str(BASE).map_err(of_whole)?.borrow(), &base);
    let resolver = registry.resolver((*base.map_err(of_whole)?).clone());
    let mut left = vec![(schema, draft, resolver, String::new())];
    while let Some((schema, draft, resolver, path)) = left.pop() {
        let Json::Object(members) = schema else { continue };
        let draft = draft.detect(schema);
        let resolver = resolver
            .in_subresource(draft.create_resource_ref(schema))
            .map_err(|problem| fault(&path, &problem))?;
        let below = |key: &str| {
            let mut path = path.clone();
            push_key(&mut path, key);
            path
        };
        for (key, value) in members {
            match (key.as_str(), value) {
                ("$ref" | "$dynamicRef" | "$recursiveRef", Json::String(target)) => {
                    let found = resolver.lookup(target).map(drop);
                    found.map_err(|problem| fault(&below(key), &problem))?;
                }
                (key, Json::Array(items)) if SCHEMAS.contains(&key) => {
                    for (index, item) in items.iter().enumerate() {
                        let mut path = below(key);
                        push_index(&mut path, index);
                        left.push((item, draft, resolver.clone(), path));
                    }
                }
                (key, schema) if SCHEMAS.contains(&key) => {
                    left.push((schema, draft, resolver.clone(), below(key)));
                }
                (key, Json::Object(named)) if NAMED.contains(&key) => {
                    for (name, schema) in named {
                        let mut path = below(key);
                        push_key(&mut path, name);
                        left.push((schema, draft, resolver.clone(), path));
                    }
                }
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_reference_without_a_target_is_found_wherever_it_is() {
        let cases = [
            (json!({"$defs": {"a": {"$ref": "#/$defs/b"}}}), "$defs.a.$ref"),
            (json!({"definitions": {"a": {"$ref": "#/definitions/b"}}}), "definitions.a.$ref"),
            (json!({"if": {"$ref": "#/nope"}}), "if.$ref"),
            (json!({"$defs": {"a": {"allOf": [{}, {"$ref": "#nope"}]}}}), "$defs.a.allOf[1].$ref"),
            (json!({"$defs": {"a": {"$dynamicRef": "#nope"}}}), "$defs.a.$dynamicRef"),
            (
                json!({"$defs": {"a": {"$id": "https://a.example/a", "not": {"$ref": "#/$defs/b"}},
                                 "b": {}}}),
                "$defs.a.not.$ref",
            ),
            (json!({"properties": {"$ref": {"$ref": "#/$defs/x"}}}), "properties.$ref.$ref"),
        ];
        for (schema, path) in cases {
            let found = all_resolve(&schema).unwrap_err();
            assert_eq!(found.path, path, "{found}");
            assert!(found.problem.starts_with("this reference cannot be resolved: "), "{found}");
        }
    }

    #[test]
    fn data_names_and_ids_are_told_apart_from_references() {
        for schema in [
            json!({"enum": [{"$ref": "#/x"}], "const": {"$ref": "#/x"}, "default": {"$ref": "#/x"},
                   "examples": [{"$ref": "#/x"}], "x-own": {"$ref": "#/x"}}),
            json!({"properties": {"$ref": {"type": "string"}, "enum": {"$ref": "#/$defs/a"}}, "$defs": {"a": {}}}),
            json!({"$defs": {"a": {"$anchor": "here"}, "b": {"$ref": "#here"}, "c": {"$ref": "#"}}}),
            json!({"$id": "https://a.example/x/", "$defs": {
                "a": {"$id": "b", "$defs": {"c": {}}, "not": {"$ref": "#/$defs/c"}},
                "d": {"$ref": "b#/$defs/c"}, "e": {"$ref": "https://a.example/x/b"}}}),
            json!({"$defs": {"a": {"$dynamicAnchor": "node"}, "b": {"$dynamicRef": "#node"}}}),
            json!({"$defs": {"a b": {}, "c/d": {}, "e": {"$ref": "#/$defs/a%20b"}, "f": {"$ref": "#/$defs/c~1d"}}}),
            json!({"$defs": {"a": {"$ref": "https://json-schema.org/draft/2020-12/schema"}}}),
            json!({"$schema": "http://json-schema.org/draft-07/schema#",
                   "definitions": {"a": {"$id": "#own"}, "b": {"$ref": "#own"}}}),
            json!({"$schema": "https://json-schema.org/draft/2019-09/schema",
                   "$defs": {"a": {"$recursiveRef": "#"}}}),
        ] {
            assert_eq!(all_resolve(&schema), Ok(()), "{schema}");
        }
    }
}

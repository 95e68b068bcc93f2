//! What is known about a schema without compiling it: the cost of its regular expressions, and how often its
//! references multiply. Pure functions.

use std::collections::HashMap;

use regex_syntax::hir::{Class, Hir, HirKind};
use rtfs::text::excerpt;
use serde_json::{Map as Object, Value as Json};

use super::SchemaError;
use crate::json::{push_index, push_key};

/// The largest regular expression, in states of its automaton. `^\w{1,64}$` has 65, and fifty letters of any script
/// have 33,000.
pub(super) const MAX_PATTERN: u64 = 50_000;
/// The largest regular expressions of one schema together, and of all schemas of one provider.
pub(crate) const MAX_PATTERNS: u64 = 200_000;
/// How many schemas may apply to one place in the data by references alone.
const MAX_PATHS: u64 = 100_000;
/// How many references may follow one another without a step into the data. Each is a frame on the stack.
const MAX_CHAIN: usize = 500;
/// How many references a schema may have.
const MAX_REFERENCES: usize = 20_000;

/// Keywords whose value is a mapping from names to schemas.
const NAMED: [&str; 6] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];
/// Keywords whose value is data.
const DATA: [&str; 4] = ["enum", "const", "default", "examples"];
/// Keywords whose schemas apply to the same value as the schema around them.
const IN_PLACE: [&str; 7] = ["allOf", "anyOf", "oneOf", "not", "if", "then", "else"];

/// What the regular expressions of a schema cost together, in states of their automata.
///
/// # Errors
/// An expression is invalid, needs more than linear time, or is too large; or all of them together are too large.
pub(super) fn pattern_cost(schema: &Json) -> Result<u64, SchemaError> {
    let mut cost = 0;
    each_schema(schema, &mut String::new(), &mut |object, path| {
        let own = object.get("pattern").and_then(Json::as_str);
        let names = object.get("patternProperties").and_then(Json::as_object);
        let of_names =
            names.into_iter().flat_map(Object::keys).map(|name| ("patternProperties", &**name));
        for (keyword, pattern) in own.map(|pattern| ("pattern", pattern)).into_iter().chain(of_names) {
            let fault = |problem| SchemaError { path: member(path, keyword), problem };
            let size = size_of(pattern).ok_or_else(|| {
                let shown = excerpt(Json::from(pattern), 80);
                fault(format!(
                    "expected a regular expression without look-around and back-references, got {shown}"
                ))
            })?;
            if size > MAX_PATTERN {
                let shown = excerpt(Json::from(pattern), 80);
                return Err(fault(format!(
                    "the regular expression {shown} is too large to be enforced"
                )));
            }
            cost += size;
            if cost > MAX_PATTERNS {
                return Err(fault(
                    "the regular expressions of the schema are too large together".into(),
                ));
            }
        }
        Ok(())
    })?;
    Ok(cost)
}

/// The approximate number of states in the automaton of a regular expression; `None` if it cannot be used.
fn size_of(pattern: &str) -> Option<u64> {
    let translated = jsonschema_regex::to_rust_regex(pattern).ok()?;
    Some(states(&regex_syntax::parse(&translated).ok()?))
}

fn states(hir: &Hir) -> u64 {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => 1,
        HirKind::Literal(literal) => literal.0.len() as u64,
        HirKind::Class(Class::Bytes(_)) => 1,
        // A range beyond ASCII takes one to four states, most of which it shares with others.
        HirKind::Class(Class::Unicode(class)) if class.is_ascii() => 1,
        HirKind::Class(Class::Unicode(class)) => class.ranges().len() as u64,
        HirKind::Repetition(repetition) => {
            let times = repetition.max.unwrap_or(repetition.min).max(1);
            states(&repetition.sub).saturating_mul(times.into())
        }
        HirKind::Capture(capture) => states(&capture.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => {
            parts.iter().fold(1, |sum, part| sum.saturating_add(states(part)))
        }
    }
}

/// Whether a schema refers to anything.
pub(super) fn has_references(schema: &Json) -> bool {
    references(schema) > 0
}

/// How many references are in a schema, data included.
fn references(schema: &Json) -> usize {
    match schema {
        Json::Object(members) => {
            members.iter().map(|(key, value)| usize::from(is_reference(key)) + references(value)).sum()
        }
        Json::Array(items) => items.iter().map(references).sum(),
        _ => 0,
    }
}

fn is_reference(key: &str) -> bool {
    matches!(key, "$ref" | "$dynamicRef" | "$recursiveRef")
}

/// The schema without its regular expressions, which take long to compile. Its references have the same targets.
pub(super) fn without_patterns(schema: &Json) -> Json {
    match schema {
        Json::Object(members) => {
            let kept = members.iter().filter(|(key, value)| *key != "pattern" || !value.is_string());
            let kept = kept.map(|(key, value)| match (key.as_str(), value) {
                ("patternProperties", Json::Object(named)) => {
                    let literal = |(at, value): (usize, _)| (at.to_string(), without_patterns(value));
                    (key.clone(), Json::Object(named.values().enumerate().map(literal).collect()))
                }
                _ => (key.clone(), without_patterns(value)),
            });
            Json::Object(kept.collect())
        }
        Json::Array(items) => Json::Array(items.iter().map(without_patterns).collect()),
        scalar => scalar.clone(),
    }
}

/// Checks that the references of a schema do not multiply beyond a bound without a step into the data: twenty
/// definitions that each name the next one twice would be a million checks of one value. They must not follow one
/// another without end either, because each uses a part of the stack.
///
/// # Errors
/// They multiply, or there are too many of them.
pub(super) fn bounded_references(schema: &Json) -> Result<(), SchemaError> {
    if references(schema) > MAX_REFERENCES {
        let problem = format!("the schema has more than {MAX_REFERENCES} references");
        return Err(SchemaError { path: String::new(), problem });
    }
    let mut paths = Paths { root: schema, known: HashMap::new(), chain: 0 };
    each_schema(schema, &mut String::new(), &mut |object, path| {
        if paths.of_object(object) > MAX_PATHS {
            let problem = format!(
                "the references multiply: more than {MAX_PATHS} schemas would apply to one value, or more than {MAX_CHAIN} references follow one another"
            );
            return Err(SchemaError { path: path.to_owned(), problem });
        }
        Ok(())
    })
}

/// Counts the schemas that apply to one value.
struct Paths<'s> {
    root: &'s Json,
    /// By the address of the schema. One that is being counted stands for itself alone.
    known: HashMap<*const Object<String, Json>, u64>,
    /// The references that are being followed.
    chain: usize,
}

impl<'s> Paths<'s> {
    fn of(&mut self, schema: &'s Json) -> u64 {
        match schema {
            Json::Object(object) => self.of_object(object),
            Json::Array(items) => {
                items.iter().fold(0, |sum: u64, item| sum.saturating_add(self.of(item)))
            }
            _ => 1,
        }
    }

    fn of_object(&mut self, object: &'s Object<String, Json>) -> u64 {
        let address = std::ptr::from_ref(object);
        if let Some(known) = self.known.get(&address) {
            return *known;
        }
        self.known.insert(address, 1);
        let mut sum = 1_u64;
        for (key, value) in object {
            let more = match (key.as_str(), value) {
                (key, Json::String(target)) if is_reference(key) => self.of_target(target),
                ("dependentSchemas" | "dependencies", Json::Object(named)) => {
                    named.values().fold(0, |sum: u64, value| sum.saturating_add(self.of(value)))
                }
                (key, value) if IN_PLACE.contains(&key) => self.of(value),
                _ => 0,
            };
            sum = sum.saturating_add(more);
        }
        self.known.insert(address, sum);
        sum
    }

    fn of_target(&mut self, target: &str) -> u64 {
        let pointer = target.strip_prefix('#').filter(|rest| rest.is_empty() || rest.starts_with('/'));
        let Some(schema) = pointer.and_then(|pointer| self.root.pointer(pointer)) else { return 1 };
        if self.chain == MAX_CHAIN {
            return u64::MAX;
        }
        self.chain += 1;
        let paths = self.of(schema);
        self.chain -= 1;
        paths
    }
}

/// Shows each schema within a schema, with its path.
fn each_schema<'s>(
    schema: &'s Json,
    path: &mut String,
    see: &mut impl FnMut(&'s Object<String, Json>, &str) -> Result<(), SchemaError>,
) -> Result<(), SchemaError> {
    match schema {
        Json::Object(object) => {
            see(object, path.strip_prefix('.').unwrap_or(path))?;
            for (key, value) in object.iter().filter(|(key, _)| !DATA.contains(&key.as_str())) {
                let length = path.len();
                push_key(path, key);
                match value {
                    Json::Object(named) if NAMED.contains(&key.as_str()) => {
                        for (name, value) in named {
                            let length = path.len();
                            push_key(path, name);
                            each_schema(value, path, see)?;
                            path.truncate(length);
                        }
                    }
                    value => each_schema(value, path, see)?,
                }
                path.truncate(length);
            }
        }
        Json::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let length = path.len();
                push_index(path, index);
                each_schema(item, path, see)?;
                path.truncate(length);
            }
        }
        _ => {}
    }
    Ok(())
}

fn member(path: &str, key: &str) -> String {
    let mut path = path.to_owned();
    push_key(&mut path, key);
    path.strip_prefix('.').map(str::to_owned).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_pattern_costs_is_known_before_it_is_compiled() {
        for pattern in
            [r"^\w{1,64}$", "^[a-z0-9_-]+$", r"^\d{4}-\d{2}$", "^.{1,2000}$", r"^[\p{L} '-]{1,50}$"]
        {
            assert!(size_of(pattern).unwrap() <= MAX_PATTERN, "{pattern}");
        }
        for pattern in [r"^(\w{1,200}){1,500}N$", "^.{1,2097152}$", "((a{999}){999}){999}"] {
            assert!(size_of(pattern).unwrap() > MAX_PATTERN, "{pattern}");
        }
        assert_eq!(size_of("(?=x)"), None);
    }

    #[test]
    fn a_long_chain_of_references_is_refused_before_it_takes_the_stack() {
        let chain = |length: usize| {
            let link = |at: usize| (format!("a{at}"), json!({"$ref": format!("#/$defs/a{}", at + 1)}));
            let mut definitions: Object<String, Json> = (0..length).map(link).collect();
            definitions.insert(format!("a{length}"), json!({}));
            json!({"$ref": "#/$defs/a0", "$defs": definitions})
        };
        assert!(bounded_references(&chain(100)).is_ok());
        assert!(bounded_references(&chain(15_000)).is_err());
        assert!(bounded_references(&chain(50_000)).is_err());
    }

    #[test]
    fn a_fault_of_a_pattern_is_named_with_its_path() {
        let cases = [
            (json!({"items": {"pattern": "(?=x)"}}), "items.pattern"),
            (json!({"patternProperties": {"^.{1,99999}$": {}}}), "patternProperties"),
            (
                json!({"allOf": [{"properties": {"enum": {"pattern": "("}}}]}),
                "allOf[0].properties.enum.pattern",
            ),
        ];
        for (schema, path) in cases {
            assert_eq!(pattern_cost(&schema).unwrap_err().path, path);
        }
        // Data and names that look like a pattern do not count as one.
        let data = json!({"enum": [{"pattern": "("}], "properties": {"pattern": {"type": "string"}}});
        assert_eq!(pattern_cost(&data), Ok(0));
    }

    #[test]
    fn references_that_multiply_in_place_are_refused_and_those_into_the_data_are_not() {
        let chain = |length: usize| {
            let mut definitions = Object::new();
            for at in 0..length {
                let next = json!({"$ref": format!("#/$defs/d{}", at + 1)});
                definitions.insert(format!("d{at}"), json!({"allOf": [next, next]}));
            }
            definitions.insert(format!("d{length}"), json!({}));
            json!({"$ref": "#/$defs/d0", "$defs": definitions})
        };
        assert_eq!(bounded_references(&chain(5)), Ok(()));
        assert!(bounded_references(&chain(40)).is_err());
        let tree = json!({"anyOf": [{"type": "null"}, {"properties": {"l": {"$ref": "#"}, "r": {"$ref": "#"}}}]});
        assert_eq!(bounded_references(&tree), Ok(()));
    }
}

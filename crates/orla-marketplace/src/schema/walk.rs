//! Analyses a schema without compiling it: the cost of its regular expressions, and how far its
//! references multiply. Pure functions.

use std::collections::HashMap;

use percent_encoding::percent_decode_str;
use regex_syntax::hir::{Class, Hir, HirKind};
use rtfs::text::excerpt;
use serde_json::{Map as Object, Value as Json};

use super::SchemaError;
use crate::json::{push_index, push_key};

/// The maximum size of a regular expression, in states of its automaton. `^\w{1,64}$` has 65, and fifty
/// letters of any script have 33,000.
pub(super) const MAX_PATTERN: u64 = 50_000;
/// The maximum total size of the regular expressions of one schema, and of all schemas of one provider.
pub(crate) const MAX_PATTERNS: u64 = 200_000;
/// The maximum number of schemas that references alone may apply to one place in the data.
const MAX_PATHS: u64 = 100_000;
/// The maximum number of consecutive references without a step into the data. Each is a frame on the
/// stack.
const MAX_CHAIN: usize = 500;
/// The maximum number of schemas that are visited to find the targets of all references.
const MAX_LOOKS: usize = 10_000_000;
/// The maximum number of references in a schema.
const MAX_REFERENCES: usize = 20_000;

/// Keywords whose value is a mapping from names to schemas.
const NAMED: [&str; 6] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];
/// Keywords whose value is data.
const DATA: [&str; 4] = ["enum", "const", "default", "examples"];
/// Keywords whose schemas apply to the same value as the schema around them.
const IN_PLACE: [&str; 7] = ["allOf", "anyOf", "oneOf", "not", "if", "then", "else"];

/// Returns the total cost of the regular expressions of a schema, in states of their automata.
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

/// Returns the approximate number of states in the automaton of a regular expression; `None` if it
/// cannot be used.
fn size_of(pattern: &str) -> Option<u64> {
    let translated = jsonschema_regex::to_rust_regex(pattern).ok()?;
    Some(states(&regex_syntax::parse(&translated).ok()?))
}

fn states(hir: &Hir) -> u64 {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => 1,
        HirKind::Literal(literal) => literal.0.len() as u64,
        HirKind::Class(Class::Bytes(_)) => 1,
        // A range beyond ASCII takes one to four states, most of which are shared.
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

/// Returns whether a schema contains a reference.
pub(super) fn has_references(schema: &Json) -> bool {
    references(schema) > 0
}

/// Returns the number of references in a schema, data included.
fn references(schema: &Json) -> usize {
    match schema {
        Json::Object(members) => {
            members.iter().map(|(key, value)| usize::from(is_reference(key)) + references(value)).sum()
        }
        Json::Array(items) => items.iter().map(references).sum(),
        _ => 0,
    }
}

/// Returns whether a schema or a part of it has an address of its own, or a part has a dialect of its own.
pub(super) fn has_addresses(schema: &Json) -> bool {
    let any = |part: &Json| part.get("$schema").is_some() || has_addresses(part);
    match schema {
        Json::Object(members) => members.contains_key("$id") || members.values().any(any),
        Json::Array(items) => items.iter().any(any),
        _ => false,
    }
}

fn is_reference(key: &str) -> bool {
    matches!(key, "$ref" | "$dynamicRef" | "$recursiveRef")
}

/// Returns the schema without its regular expressions, which take long to compile. Its references have
/// the same targets.
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

/// Checks that the references of a schema do not multiply beyond a limit without a step into the data:
/// twenty definitions that each name the next one twice would mean a million checks of one value. Chains
/// of references must not be too long either, because each reference uses a part of the stack.
///
/// # Errors
/// They multiply, there are too many of them, or one is empty.
pub(super) fn bounded_references(schema: &Json) -> Result<(), SchemaError> {
    if references(schema) > MAX_REFERENCES {
        let problem = format!("the schema has more than {MAX_REFERENCES} references");
        return Err(SchemaError { path: String::new(), problem });
    }
    let places = Places::of(schema);
    if references(schema).saturating_mul(places.most()) > MAX_LOOKS {
        let problem = "the schema has too many references, ids and anchors".to_owned();
        return Err(SchemaError { path: String::new(), problem });
    }
    let mut reach = Reaches { places, known: HashMap::new(), chain: 0 };
    each_schema(schema, &mut String::new(), &mut |object, path| {
        // The validator ignores it.
        if object.iter().any(|(key, value)| is_reference(key) && value == "") {
            let problem = "an empty reference; write \"#\" for the whole schema".to_owned();
            return Err(SchemaError { path: path.to_owned(), problem });
        }
        let Reach { schemas, chain } = reach.of_object(object);
        if schemas > MAX_PATHS || chain > MAX_CHAIN {
            let problem = format!(
                "the references multiply: more than {MAX_PATHS} schemas would apply to one value, or more than {MAX_CHAIN} references follow one another"
            );
            return Err(SchemaError { path: path.to_owned(), problem });
        }
        Ok(())
    })
}

/// The possible targets of references. They depend on the surrounding ids, so all possible targets are
/// included.
struct Places<'s> {
    /// The possible starting points of a pointer: the whole schema, and every schema with an id.
    wholes: Vec<&'s Json>,
    anchors: HashMap<&'s str, Vec<&'s Json>>,
}

impl<'s> Places<'s> {
    fn of(schema: &'s Json) -> Self {
        let mut places = Self { wholes: vec![schema], anchors: HashMap::new() };
        places.collect(schema);
        places
    }

    fn collect(&mut self, schema: &'s Json) {
        match schema {
            Json::Object(members) => {
                let text = |key: &str| members.get(key).and_then(Json::as_str);
                let ids = ["$id", "id"].into_iter().filter_map(text);
                for id in ids.clone() {
                    self.wholes.extend((!id.starts_with('#')).then_some(schema));
                }
                // In older drafts, the fragment of an id is an anchor.
                let of_ids = ids.filter_map(|id| Some(id.split_once('#')?.1));
                for name in ["$anchor", "$dynamicAnchor"].into_iter().filter_map(text).chain(of_ids) {
                    self.anchors.entry(name).or_default().push(schema);
                }
                members.values().for_each(|value| self.collect(value));
            }
            Json::Array(items) => items.iter().for_each(|item| self.collect(item)),
            _ => {}
        }
    }

    /// Returns the maximum number of schemas that one reference may name.
    fn most(&self) -> usize {
        self.anchors.values().map(Vec::len).max().unwrap_or(0).max(self.wholes.len())
    }

    fn named(&self, reference: &str) -> Vec<&'s Json> {
        let fragment = reference.split_once('#').map_or("", |(_, fragment)| fragment);
        let fragment = percent_decode_str(fragment).decode_utf8_lossy();
        if fragment.is_empty() || fragment.starts_with('/') {
            return self.wholes.iter().filter_map(|whole| whole.pointer(&fragment)).collect();
        }
        self.anchors.get(&*fragment).cloned().unwrap_or_default()
    }
}

/// The schemas that references reach without a step into the data.
#[derive(Clone, Copy)]
struct Reach {
    /// The number of schemas that apply to one value.
    schemas: u64,
    /// The maximum number of consecutive references.
    chain: usize,
}

const ONE: Reach = Reach { schemas: 1, chain: 0 };

struct Reaches<'s> {
    places: Places<'s>,
    /// Results by the address of the schema. A schema in progress counts only itself.
    known: HashMap<*const Object<String, Json>, Reach>,
    /// The references that are being followed.
    chain: usize,
}

impl<'s> Reaches<'s> {
    fn of(&mut self, schema: &'s Json) -> Reach {
        match schema {
            Json::Object(object) => self.of_object(object),
            Json::Array(items) => self.together(Reach { schemas: 0, chain: 0 }, items),
            _ => ONE,
        }
    }

    fn together(&mut self, first: Reach, others: impl IntoIterator<Item = &'s Json>) -> Reach {
        others.into_iter().fold(first, |all, other| {
            let other = self.of(other);
            Reach {
                schemas: all.schemas.saturating_add(other.schemas),
                chain: all.chain.max(other.chain),
            }
        })
    }

    fn of_object(&mut self, object: &'s Object<String, Json>) -> Reach {
        let address = std::ptr::from_ref(object);
        if let Some(known) = self.known.get(&address) {
            return *known;
        }
        self.known.insert(address, ONE);
        let mut reach = ONE;
        for (key, value) in object {
            reach = match (key.as_str(), value) {
                (key, Json::String(target)) if is_reference(key) => {
                    let Reach { schemas, chain } = self.of_target(target);
                    let schemas = reach.schemas.saturating_add(schemas);
                    Reach { schemas, chain: reach.chain.max(chain) }
                }
                ("dependentSchemas" | "dependencies", Json::Object(named)) => {
                    self.together(reach, named.values())
                }
                (key, value) if IN_PLACE.contains(&key) => self.together(reach, [value]),
                _ => reach,
            };
        }
        self.known.insert(address, reach);
        reach
    }

    fn of_target(&mut self, target: &str) -> Reach {
        let targets = self.places.named(target);
        if targets.is_empty() {
            return ONE;
        }
        if self.chain == MAX_CHAIN {
            return Reach { schemas: u64::MAX, chain: MAX_CHAIN + 1 };
        }
        self.chain += 1;
        let reach = targets.into_iter().map(|schema| self.of(schema)).fold(ONE, |most, reach| Reach {
            schemas: most.schemas.max(reach.schemas),
            chain: most.chain.max(reach.chain),
        });
        self.chain -= 1;
        Reach { chain: reach.chain.saturating_add(1), ..reach }
    }
}

/// Passes each schema within a schema to a function, with its path.
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
    fn the_cost_of_a_pattern_is_known_before_it_is_compiled() {
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
        // The path to a definition, and whether each definition refers to the next or the previous one.
        let chain = |to: &str, is_forward: bool, length: usize| {
            let number = |at: usize| if is_forward { at } else { length - at };
            let definition = |at: usize| {
                let mut schema = json!({"$anchor": format!("a{:05}", number(at))});
                if at < length {
                    schema["$ref"] = format!("{to}a{:05}", number(at + 1)).into();
                }
                (format!("a{:05}", number(at)), schema)
            };
            let definitions: Object<String, Json> = (0..=length).map(definition).collect();
            let first = format!("{to}a{:05}", number(0));
            let whole = json!({"$defs": definitions, "properties": {"x": {"$ref": first}}});
            let inside = json!({"$id": "https://a.example/b", "$defs": whole["$defs"], "$ref": first});
            [whole, json!({"$defs": {"b": inside}, "$ref": "b"})]
        };
        for to in ["#/$defs/", "#/%24defs/", "#", "https://a.example/b#/$defs/", "b#"] {
            for is_forward in [true, false] {
                for schema in chain(to, is_forward, 100) {
                    assert_eq!(bounded_references(&schema), Ok(()), "{to}");
                }
                for schema in chain(to, is_forward, 15_000) {
                    assert!(bounded_references(&schema).is_err(), "{to} {is_forward}");
                }
            }
        }
        assert!(bounded_references(&chain("#/$defs/", true, 50_000)[0]).is_err());
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
        // Data and names that look like a pattern are not counted.
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

//! Checks data against a JSON Schema.

use std::sync::OnceLock;

use jsonschema::error::{TypeKind, ValidationErrorKind as Kind};
use jsonschema::{JsonType, PatternOptions, ValidationError};
use rtfs::TypeExpr;
use rtfs::text::excerpt;
use serde_json::Value as Json;

use super::metered::{self, Exhausted, Metered, MeteredJson};
use super::{SchemaError, json_schema_of, walk};
use crate::error::{NOTHING, REQUIRED, UNKNOWN, Violation};
use crate::json::{MAX_PATH, push_index, push_key, value_from_json};

/// The maximum number of characters of a value in an error.
const SHOWN: usize = 80;
/// The maximum number of characters of a schema in an error.
const SHOWN_EXPECTED: usize = 300;
/// The maximum nesting that can be checked, which is serde's limit.
const MAX_CHECKED_DEPTH: u16 = 127;
/// The maximum number of accesses to the data in one check: enough for any practical schema.
const STEPS: u64 = 10_000_000;
/// The additional steps of a check for each byte of the data.
const STEPS_PER_BYTE: u64 = 64;
/// The maximum number of steps to collect violations, which takes memory.
const STEPS_TO_EXPLAIN: u64 = 200_000;
/// The maximum number of violations that one check reports.
const MAX_VIOLATIONS: usize = 1_000;

/// A JSON Schema that is ready to check data.
///
/// Whether a schema can be enforced is determined on creation. Its compiled form takes several times the
/// time and memory of the schema, so it is created on first use: few of thousands of capabilities are
/// ever called.
#[derive(Debug)]
pub(super) struct JsonValidator {
    schema: Json,
    compiled: OnceLock<Result<Compiled, SchemaError>>,
    /// The cost of its regular expressions, in states of their automata.
    pattern_cost: u64,
}

type Compiled = jsonschema::Validator<MeteredJson>;

impl JsonValidator {
    /// Prepares a type, by the JSON Schema that it was made from, if any.
    ///
    /// # Errors
    /// The JSON Schema is invalid, refers to something outside of itself, has references that multiply, or has
    /// regular expressions that are too large or need more than linear time.
    pub(super) fn compile(ty: &TypeExpr) -> Result<Self, SchemaError> {
        Self::compile_json(json_schema_of(ty))
    }

    pub(super) fn compile_json(schema: Json) -> Result<Self, SchemaError> {
        jsonschema::meta::validate(&schema).map_err(|error| schema_error(&error, &schema))?;
        let pattern_cost = walk::pattern_cost(&schema)?;
        let has_references = walk::has_references(&schema);
        if has_references {
            walk::bounded_references(&schema)?;
        }
        if has_references || walk::has_addresses(&schema) {
            // Only the compiler resolves addresses and the targets of references.
            compiled_form(&walk::without_patterns(&schema))?;
        }
        Ok(Self { schema, compiled: OnceLock::new(), pattern_cost })
    }

    /// Returns the cost of its regular expressions, in states of their automata.
    pub(super) fn pattern_cost(&self) -> u64 {
        self.pattern_cost
    }

    fn compiled(&self) -> Result<&Compiled, Vec<Violation>> {
        self.compiled.get_or_init(|| compiled_form(&self.schema)).as_ref().map_err(|error| {
            let got = format!("a problem: {error}");
            vec![Violation { path: "schema".into(), expected: "a schema that can be used".into(), got }]
        })
    }

    /// Checks JSON text. `root` is the beginning of the paths, such as `input`.
    ///
    /// # Errors
    /// All violations (up to 1,000) in the order of the schema. One of them is text that is not JSON or cannot be
    /// checked (nested deeper than 127 levels, a number beyond the largest float), and data that takes too many
    /// steps.
    pub(super) fn check(&self, json_text: &str, root: &str) -> Result<(), Vec<Violation>> {
        let data: Json = match serde_json::from_str(json_text) {
            Ok(data) => data,
            Err(error) => return Err(vec![unreadable(json_text, root, &error)]),
        };
        let compiled = self.compiled()?;
        let whole =
            |expected: String| vec![Violation { path: root.to_owned(), expected, got: shown(&data) }];
        let steps = STEPS + STEPS_PER_BYTE * json_text.len() as u64;
        // The usual case, which is much faster than collecting violations.
        match metered::within(steps, || compiled.is_valid(Metered(&data))) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(Exhausted) => {
                return Err(whole(format!("a value that {steps} steps suffice to check")));
            }
        }
        let steps = STEPS_TO_EXPLAIN + STEPS_PER_BYTE * json_text.len() as u64;
        let collected = metered::within(steps, || {
            let errors = compiled.iter_errors(Metered(&data));
            let violations = errors.flat_map(|error| self.violations(root, &error, &data));
            violations.take(MAX_VIOLATIONS).collect::<Vec<_>>()
        });
        let Ok(mut violations) = collected else {
            return Err(whole(
                "a value that fits the schema (its alternatives are too many to list)".into(),
            ));
        };
        for violation in &mut violations {
            violation.path = excerpt(&violation.path, MAX_PATH);
        }
        violations.dedup();
        Err(violations)
    }

    /// Converts one error to violations: one, or one for each property or item concerned.
    fn violations(&self, root: &str, error: &ValidationError<'_>, data: &Json) -> Vec<Violation> {
        let path = path_of(root, error.instance_path().as_str(), data);
        let instance = error.instance();
        match error.kind() {
            Kind::Required { property } => {
                let path = join(&path, property.as_str().unwrap_or_default());
                vec![Violation { path, expected: REQUIRED.into(), got: NOTHING.into() }]
            }
            Kind::AdditionalProperties { unexpected } | Kind::UnevaluatedProperties { unexpected } => {
                let expected = self.no_such_property(error);
                let violation = |name: &String| Violation {
                    path: join(&path, name),
                    expected: expected.clone(),
                    got: instance.get(name).map_or_else(String::new, shown),
                };
                unexpected.iter().map(violation).collect()
            }
            _ => vec![Violation { path, expected: expected(error), got: shown(instance) }],
        }
    }

    /// Names the existing properties, if the schema lists them.
    fn no_such_property(&self, error: &ValidationError<'_>) -> String {
        let keyword = error.schema_path().as_str();
        let parent = keyword.rsplit_once('/').map_or("", |(parent, _)| parent);
        let known = self.schema.pointer(&format!("{parent}/properties")).and_then(Json::as_object);
        let names: Vec<_> = known.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        match names.as_slice() {
            [] => UNKNOWN.to_owned(),
            names => excerpt(format_args!("{UNKNOWN} (there are {})", names.join(", ")), SHOWN_EXPECTED),
        }
    }
}

fn compiled_form(schema: &Json) -> Result<Compiled, SchemaError> {
    let options = jsonschema::options_for::<MeteredJson>().offline();
    let options = options.with_pattern_options(PatternOptions::regex());
    options.build(schema).map_err(|error| schema_error(&error, schema))
}

fn unreadable(json_text: &str, root: &str, error: &serde_json::Error) -> Violation {
    let (path, problem) = match value_from_json(json_text) {
        // Our own parser knows the position.
        Err(error) => (error.path.replacen('$', root, 1), error.problem),
        Ok(value) if value.depth() > MAX_CHECKED_DEPTH => {
            let problem =
                format!("it is nested {} levels deep, at most {MAX_CHECKED_DEPTH}", value.depth());
            (root.to_owned(), format!("{problem} can be checked"))
        }
        Ok(_) => (root.to_owned(), error.to_string()),
    };
    Violation {
        path,
        expected: "JSON that can be checked".to_owned(),
        got: format!("a problem: {problem}"),
    }
}

fn schema_error(error: &ValidationError<'_>, schema: &Json) -> SchemaError {
    let mut path = relative_path(error.instance_path().as_str(), schema);
    let problem = match error.kind() {
        Kind::Referencing(problem) => {
            let problem = problem.to_string();
            let mut pointer = String::new();
            if push_reference(&mut pointer, schema, &problem) {
                path = relative_path(&pointer, schema);
            }
            format!("this reference cannot be resolved: {problem}")
        }
        Kind::Required { property } => format!("expected a property {property}, got none"),
        Kind::Format { format } if format == "regex" => format!(
            "expected a regular expression without look-around and back-references, got {}",
            shown(error.instance())
        ),
        _ => format!("expected {}, got {}", expected(error), shown(error.instance())),
    };
    SchemaError { path, problem }
}

/// Appends the pointer to the first reference that a problem concerns, if there is one.
fn push_reference(pointer: &mut String, schema: &Json, problem: &str) -> bool {
    let length = pointer.len();
    let mut step = |key: &str, below: &Json| {
        pointer.push('/');
        pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
        let is_it = key == "$ref"
            && below
                .as_str()
                .is_some_and(|to| problem.contains(&format!("'{}'", to.trim_start_matches('#'))));
        let found = is_it || push_reference(pointer, below, problem);
        if !found {
            pointer.truncate(length);
        }
        found
    };
    match schema {
        Json::Object(members) => members.iter().any(|(key, below)| step(key, below)),
        Json::Array(items) => items.iter().enumerate().any(|(at, item)| step(&at.to_string(), item)),
        _ => false,
    }
}

/// Returns the expectation of an error, in words that follow "expected".
fn expected(error: &ValidationError<'_>) -> String {
    let text = match error.kind() {
        Kind::Type { kind: TypeKind::Single(ty) } => type_in_words(*ty).to_owned(),
        Kind::Type { kind: TypeKind::Multiple(types) } => {
            types.iter().map(type_in_words).collect::<Vec<_>>().join(" or ")
        }
        Kind::Enum { options } => format!("one of {}", list(options)),
        Kind::Constant { expected_value } => expected_value.to_string(),
        Kind::Minimum { limit } => format!("at least {limit}"),
        Kind::Maximum { limit } => format!("at most {limit}"),
        Kind::ExclusiveMinimum { limit } => format!("more than {limit}"),
        Kind::ExclusiveMaximum { limit } => format!("less than {limit}"),
        Kind::MultipleOf { multiple_of } => format!("a multiple of {multiple_of}"),
        Kind::MinLength { limit } => format!("at least {}", counted(*limit, "character", "characters")),
        Kind::MaxLength { limit } => format!("at most {}", counted(*limit, "character", "characters")),
        Kind::MinItems { limit } => format!("at least {}", counted(*limit, "item", "items")),
        Kind::MaxItems { limit } => format!("at most {}", counted(*limit, "item", "items")),
        Kind::MinProperties { limit } => {
            format!("at least {}", counted(*limit, "property", "properties"))
        }
        Kind::MaxProperties { limit } => {
            format!("at most {}", counted(*limit, "property", "properties"))
        }
        Kind::AdditionalItems { limit } => {
            format!("at most {}", counted(*limit as u64, "item", "items"))
        }
        Kind::UnevaluatedItems { .. } => "no further items".to_owned(),
        Kind::UniqueItems => "items that all differ".to_owned(),
        Kind::Contains => "an item of the kind that has to be contained".to_owned(),
        Kind::Pattern { pattern } => format!("text that matches /{pattern}/"),
        Kind::Format { format } => format!("text of the format {format}"),
        Kind::ContentEncoding { content_encoding } => format!("text in {content_encoding}"),
        Kind::ContentMediaType { content_media_type } => format!("text of type {content_media_type}"),
        Kind::FalseSchema => "nothing here".to_owned(),
        Kind::Not { schema } => format!("anything but what matches {schema}"),
        Kind::PropertyNames { error } => format!("property names that are {}", expected(error)),
        Kind::Required { property } => format!("a property {property}"),
        Kind::AnyOf { context } | Kind::OneOfNotValid { context } => alternatives(error, context),
        Kind::OneOfMultipleValid { context } => {
            format!("what matches one alternative of {}, not several", context.len())
        }
        _ => error.to_string(),
    };
    excerpt(&text, SHOWN_EXPECTED)
}

/// Returns a type of JSON Schema, in the words of [`TypeExpr::in_words`].
fn type_in_words(ty: JsonType) -> &'static str {
    match ty {
        JsonType::Array => "an array",
        JsonType::Boolean => "true or false",
        JsonType::Integer => "an integer",
        JsonType::Null => "null",
        JsonType::Number => "a number",
        JsonType::Object => "an object",
        JsonType::String => "a string",
    }
}

/// Returns the expectations of the alternatives of `anyOf` or `oneOf`.
fn alternatives(error: &ValidationError<'_>, context: &[Vec<ValidationError<'static>>]) -> String {
    let base = error.instance_path().as_str();
    let mut wanted: Vec<String> = Vec::new();
    for errors in context {
        let all: Vec<_> = errors
            .iter()
            .map(|inner| match inner.instance_path().as_str().strip_prefix(base) {
                Some("") | None => expected(inner),
                Some(below) => {
                    format!("{} to be {}", relative_path(below, error.instance()), expected(inner))
                }
            })
            .collect();
        let all = all.join(" and ");
        if !wanted.contains(&all) {
            wanted.push(all);
        }
    }
    wanted.join(", or ")
}

/// `root` and the steps of a JSON pointer into `data`. Only the data shows whether a step is an index or a key
/// such as `"3"`.
fn path_of(root: &str, pointer: &str, data: &Json) -> String {
    let mut path = root.to_owned();
    let mut here = Some(data);
    for step in pointer.split('/').skip(1) {
        match (here, step.parse()) {
            (Some(Json::Array(items)), Ok(index)) => {
                push_index(&mut path, index);
                here = items.get(index);
            }
            _ => {
                let key = step.replace("~1", "/").replace("~0", "~");
                push_key(&mut path, &key);
                here = here.and_then(|here| here.get(&key));
            }
        }
    }
    path
}

/// Returns a path without a root: `items[3]`, not `.items[3]`.
fn relative_path(pointer: &str, data: &Json) -> String {
    let path = path_of("", pointer, data);
    path.strip_prefix('.').map(str::to_owned).unwrap_or(path)
}

fn join(path: &str, key: &str) -> String {
    let mut path = path.to_owned();
    push_key(&mut path, key);
    path
}

fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

fn list(options: &Json) -> String {
    let options = options.as_array().into_iter().flatten().map(Json::to_string);
    options.collect::<Vec<_>>().join(", ")
}

fn shown(value: &Json) -> String {
    excerpt(value, SHOWN)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::{schema_from_declaration, type_from_json_schema};

    fn violations(schema: &Json, data: &str) -> Vec<String> {
        let validator = JsonValidator::compile(&type_from_json_schema(schema)).unwrap();
        let violations = validator.check(data, "input").err().unwrap_or_default();
        violations.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn violations_name_the_path_the_expected_and_the_actual_value() {
        let cases: &[(&str, Json, &str, &[&str])] = &[
            ("what fits is fine", json!({"type": "integer"}), "7", &[]),
            ("a wrong type", json!({"type": "string"}), "7", &["input: expected a string, got 7"]),
            (
                "several types",
                json!({"type": ["string", "null"]}),
                "7",
                &["input: expected null or a string, got 7"],
            ),
            (
                "a path through arrays and objects",
                json!({"properties": {"items": {"items": {"properties": {"price": {"minimum": 0}}}}}}),
                r#"{"items": [{}, {"price": -1}]}"#,
                &["input.items[1].price: expected at least 0, got -1"],
            ),
            (
                "odd keys, and keys that look like an index",
                json!({"additionalProperties": {"additionalProperties": {"type": "null"}}}),
                r#"{"a b": {"3": 1}, "c/d~": {"": 2}}"#,
                &[
                    r#"input["a b"].3: expected null, got 1"#,
                    r#"input["c/d~"][""]: expected null, got 2"#,
                ],
            ),
            (
                "every missing and every superfluous property",
                json!({"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a", "b"],
                       "additionalProperties": false}),
                r#"{"c": 3, "d": [4]}"#,
                &[
                    r#"missing required property "a""#,
                    r#"missing required property "b""#,
                    r#"unknown property "c" (there are a, b)"#,
                    r#"unknown property "d" (there are a, b)"#,
                ],
            ),
            (
                "the values of an enum",
                json!({"enum": ["low", "high", 3]}),
                r#""mid""#,
                &[r#"input: expected one of "low", "high", 3, got "mid""#],
            ),
            (
                "alternatives",
                json!({"anyOf": [{"type": "string"}, {"properties": {"id": {"type": "integer"}}, "type": "object"}]}),
                r#"{"id": "x"}"#,
                &[r#"input: expected a string, or id to be an integer, got {"id":"x"}"#],
            ),
            (
                "a constant and a pattern",
                json!({"properties": {"a": {"const": 1}, "b": {"pattern": "^x+$"}}}),
                r#"{"a": 2, "b": "y"}"#,
                &[
                    r"input.a: expected 1, got 2",
                    r#"input.b: expected text that matches /^x+$/, got "y""#,
                ],
            ),
            (
                "lengths",
                json!({"properties": {"a": {"minLength": 1}, "b": {"maxItems": 2}, "c": {"uniqueItems": true}}}),
                r#"{"a": "", "b": [1, 2, 3], "c": [1, 1]}"#,
                &[
                    r#"input.a: expected at least 1 character, got """#,
                    "input.b: expected at most 2 items, got [1,2,3]",
                    "input.c: expected items that all differ, got [1,1]",
                ],
            ),
            (
                "a number that nothing can hold",
                json!({}),
                r#"{"a": [1e400]}"#,
                &[
                    "input.a[0]: expected JSON that can be checked, got a problem: 1e400 is beyond the largest number",
                ],
            ),
            (
                "no JSON at all",
                json!({}),
                "{",
                &[
                    "input: expected JSON that can be checked, got a problem: expected a key in quotes, got the end of the text",
                ],
            ),
        ];
        for (name, schema, data, expected) in cases {
            assert_eq!(violations(schema, data), *expected, "{name}");
        }
    }

    #[test]
    fn cuts_what_came_to_a_readable_length() {
        let long = format!("\"{}\"", "ü".repeat(1_000));
        let violation = &violations(&json!({"type": "null"}), &long)[0];
        assert_eq!(*violation, format!("input: expected null, got \"{}…", "ü".repeat(79)));
    }

    #[test]
    fn takes_deep_data_for_a_violation() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        let text = "input: expected JSON that can be checked, \
 got a problem: it is nested 200 levels deep, at most 127 can be checked";
        assert_eq!(violations(&json!({}), &deep), [text]);
        let too_deep = "[".repeat(100_000) + &"]".repeat(100_000);
        assert_eq!(violations(&json!({}), &too_deep).len(), 1);
    }

    #[test]
    fn bounds_the_number_of_violations() {
        let many = format!("[{}1]", "1,".repeat(5_000));
        assert_eq!(violations(&json!({"items": {"type": "null"}}), &many).len(), MAX_VIOLATIONS);
    }

    #[test]
    fn an_invalid_schema_is_refused_with_the_place() {
        let cases = [
            (
                json!({"type": "object", "properties": {"a b": {"minLength": "x"}}}),
                r#"properties["a b"].minLength: expected an integer, got "x""#,
            ),
            (
                json!({"type": "object", "properties": {"a": {"type": "integr"}}}),
                r#"properties.a.type: expected one of "array", "boolean", "integer", "null", "number", "object", "string", or an array, got "integr""#,
            ),
            (json!({"required": [1]}), "required[0]: expected a string, got 1"),
            (
                json!({"properties": {"a": {"pattern": "(?=x)"}}}),
                r#"properties.a.pattern: expected a regular expression without look-around and back-references, got "(?=x)""#,
            ),
        ];
        for (schema, text) in cases {
            assert_eq!(JsonValidator::compile_json(schema).unwrap_err().to_string(), text);
        }
    }

    #[test]
    fn an_address_that_is_no_uri_is_refused_where_it_is_declared() {
        for schema in [
            json!({"$id": "^(a"}),
            json!({"properties": {"p": {"$id": "^(a"}}}),
            json!({"$defs": {"t": {"$schema": "^(a"}}}),
        ] {
            let error = JsonValidator::compile_json(schema.clone()).unwrap_err();
            assert!(error.problem.contains("Invalid URI reference"), "{schema}: {error}");
        }
        JsonValidator::compile_json(json!({"$id": "https://example.com/a.json", "type": "object"}))
            .unwrap();
    }

    #[test]
    fn never_looks_outside_of_the_schema() {
        for reference in
            ["https://example.com/a.json", "file:///etc/passwd", "other.json", "#/$defs/none"]
        {
            let error = JsonValidator::compile_json(json!({"$ref": reference})).unwrap_err();
            assert!(error.problem.contains("cannot be resolved"), "{error}");
        }
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        let list = json!({"$defs": {"list": {"type": ["object", "null"], "properties": {"next": {"$ref": "#/$defs/list"}}}},
                          "$ref": "#/$defs/list"});
        assert_eq!(
            violations(&list, r#"{"next": {"next": 7}}"#),
            ["input.next.next: expected null or an object, got 7"]
        );
    }

    #[test]
    fn an_empty_reference_is_refused() {
        for schema in [json!({"properties": {"n": {"$ref": ""}}}), json!({"$dynamicRef": ""})] {
            let error = JsonValidator::compile_json(schema).unwrap_err();
            assert!(error.problem.contains("an empty reference"), "{error}");
        }
        assert!(JsonValidator::compile_json(json!({"enum": [{"$ref": ""}]})).is_ok());
    }

    #[test]
    fn a_schema_that_means_nothing_but_itself_does_no_harm() {
        for schema in [
            json!({"$ref": "#"}),
            json!({"allOf": [{"$ref": "#"}]}),
            json!({"anyOf": [{"$ref": "#"}, {"$ref": "#"}], "not": {"$ref": "#"}}),
            json!({"$dynamicRef": "#"}),
            json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
        ] {
            if let Ok(validator) = JsonValidator::compile_json(schema) {
                let _either_way = validator.check("{}", "input");
            }
        }
    }

    #[test]
    fn alternatives_that_multiply_are_checked_and_explained_within_a_bound() {
        let twice = |next: &str| {
            let next = json!({"$ref": format!("#/$defs/{next}")});
            json!({"anyOf": [next, next]})
        };
        let leaf = json!({"type": "object", "properties": {"c": {"$ref": "#/$defs/a"}}});
        let schema = json!({"$ref": "#/$defs/a", "$defs": {
            "a": twice("b"), "b": twice("c"), "c": twice("d"), "d": {"anyOf": [leaf, leaf]}}});
        let deep = |leaf: &str| format!("{}{leaf}{}", r#"{"c":"#.repeat(60), "}".repeat(60));
        assert_eq!(violations(&schema, &deep("{}")), [""; 0]);
        let found = violations(&schema, &deep("7"));
        assert!(found[0].contains("its alternatives are too many to list"), "{found:?}");
    }

    #[test]
    fn known_properties_are_named_through_references() {
        let schema = json!({"$defs": {"p": {"properties": {"x": {}}, "additionalProperties": false}},
                            "properties": {"p": {"$ref": "#/$defs/p"}}});
        assert_eq!(
            violations(&schema, r#"{"p": {"y": 1}}"#),
            [r#"unknown property "p.y" (there are x)"#]
        );
    }

    #[test]
    fn the_shorthand_is_enforced_like_any_schema() {
        let declared = json!({"city": "string", "limit": "integer?", "tags": "string[]?"});
        let validator = JsonValidator::compile(&schema_from_declaration(&declared).unwrap()).unwrap();
        assert_eq!(validator.check(r#"{"city": "Paris", "more": 1}"#, "input"), Ok(()));
        let violations = validator.check(r#"{"limit": 1.5, "tags": ["a", 2]}"#, "input").unwrap_err();
        let texts: Vec<_> = violations.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                r#"missing required property "city""#,
                "input.limit: expected an integer, got 1.5",
                "input.tags[1]: expected a string, got 2",
            ]
        );
    }
}

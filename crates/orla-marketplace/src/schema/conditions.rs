//! Converts the predicates of a type to keywords of JSON Schema.

use std::collections::BTreeSet;

use rtfs::json::key_name;
use rtfs::{Predicate, TypeExpr, Value};
use serde_json::{Value as Json, json};

use super::portable::is_portable;
use super::to_json::{Kind, exact_json, is_array_of_injective, is_one_of, round_trips};

/// The condition that distinguishes a URL from a URI: it names a host.
pub(super) const URL_PATTERN: &str = "^[A-Za-z][A-Za-z0-9+.-]*://[^/?#]";
/// Keywords of JSON Schema with their values.
pub(super) type Conditions = Vec<(&'static str, Json)>;

/// Returns the condition that a predicate puts on the JSON of a value, if JSON Schema can express it.
pub(super) fn conditions(
    predicate: &Predicate,
    base: &TypeExpr,
    kind: Option<Kind>,
) -> Option<Conditions> {
    let number = |key, limit: &Value| {
        let is_number = matches!(limit, Value::Int(_) | Value::BigInt(_) | Value::Float(_));
        let json =
            exact_json(limit).ok().filter(|_| is_number && matches!(kind, None | Some(Kind::Number)))?;
        Some(vec![(key, json)])
    };
    let sizes = |text: &'static str, array: &'static str, object: &'static str, n: u64| {
        let of = |keyword, of| (kind.is_none() || kind == Some(of)).then(|| (keyword, json!(n)));
        let all = [of(text, Kind::Text), of(array, Kind::Array), of(object, Kind::Object)];
        all.into_iter().flatten().filter(|(keyword, _)| !keyword.is_empty()).collect::<Conditions>()
    };
    let text = |conditions: Conditions| matches!(kind, None | Some(Kind::Text)).then_some(conditions);
    let format = |name: &str| text(vec![("format", json!(name))]);
    let non_empty = |conditions: Conditions| (!conditions.is_empty()).then_some(conditions);
    match predicate {
        Predicate::GreaterThan(x) => number("exclusiveMinimum", x),
        Predicate::AtLeast(x) => number("minimum", x),
        Predicate::LessThan(x) => number("exclusiveMaximum", x),
        Predicate::AtMost(x) => number("maximum", x),
        Predicate::InRange(from, to) => {
            Some(number("minimum", from)?.into_iter().chain(number("maximum", to)?).collect())
        }
        Predicate::MultipleOf(n) => number("multipleOf", n).filter(|_| n.compare(&0.into()).is_gt()),
        Predicate::Equals(x) => Some(vec![("const", exact_json(x).ok()?)]),
        Predicate::Differs(x) if is_one_of(x, base) => {
            Some(vec![("not", json!({ "const": exact_json(x).ok()? }))])
        }
        Predicate::Differs(_) => None,
        Predicate::MinLength(n) => non_empty(sizes("minLength", "", "", *n)),
        Predicate::MaxLength(n) => non_empty(sizes("maxLength", "", "", *n)),
        Predicate::Length(n) => non_empty(
            sizes("minLength", "", "", *n).into_iter().chain(sizes("maxLength", "", "", *n)).collect(),
        ),
        Predicate::MinCount(n) => non_empty(sizes("", "minItems", "minProperties", *n)),
        Predicate::MaxCount(n) => non_empty(sizes("", "maxItems", "maxProperties", *n)),
        Predicate::Count(n) => {
            let (min, max) =
                (sizes("", "minItems", "minProperties", *n), sizes("", "maxItems", "maxProperties", *n));
            non_empty(min.into_iter().chain(max).collect())
        }
        Predicate::NonEmpty => non_empty(sizes("minLength", "minItems", "minProperties", 1)),
        Predicate::MatchesRegex(pattern) if is_portable(pattern.as_str()) => {
            text(vec![("pattern", json!(pattern.as_str()))])
        }
        Predicate::MatchesRegex(_) => None,
        Predicate::Unique => is_array_of_injective(base).then(|| vec![("uniqueItems", json!(true))]),
        Predicate::HasKey(key) => Some(vec![("required", json!([key_name(key)?]))]),
        Predicate::RequiredKeys(keys) => {
            let names = keys.iter().map(key_name).collect::<Option<BTreeSet<_>>>()?;
            Some(vec![("required", json!(names))])
        }
        Predicate::IsUrl => text(vec![("format", json!("uri")), ("pattern", json!(URL_PATTERN))]),
        Predicate::IsEmail => format("email"),
        Predicate::IsUuid => format("uuid"),
        Predicate::IsDate => format("date"),
        Predicate::Format(name) => format(name),
    }
}

/// Returns whether the conditions of a predicate admit, among values read from JSON, only those that the
/// predicate admits.
pub(super) fn is_exact(predicate: &Predicate, kind: Option<Kind>) -> bool {
    let is_keyword = |key: &Value| matches!(key, Value::Keyword(_));
    match predicate {
        Predicate::Equals(x) => round_trips(x),
        Predicate::Differs(_) => true,
        Predicate::HasKey(key) => kind == Some(Kind::Object) && is_keyword(key),
        Predicate::RequiredKeys(keys) => kind == Some(Kind::Object) && keys.iter().all(is_keyword),
        // Most validators treat a format as an annotation.
        Predicate::IsUrl
        | Predicate::IsEmail
        | Predicate::IsUuid
        | Predicate::IsDate
        | Predicate::Format(_) => false,
        _ => kind.is_some(),
    }
}

/// Adds conditions to a schema.
pub(super) fn constrained(mut schema: Json, conditions: Conditions) -> Json {
    for (keyword, condition) in conditions {
        let Some(object) = schema.as_object_mut() else { return schema }; // the schema that admits nothing stays unchanged
        match (keyword, object.get_mut(keyword)) {
            (_, None) => {
                object.insert(keyword.to_owned(), condition);
            }
            ("required", Some(Json::Array(names))) => {
                for name in condition.as_array().into_iter().flatten() {
                    if !names.contains(name) {
                        names.push(name.clone());
                    }
                }
            }
            (_, Some(same)) if *same == condition => {}
            // The keyword occurs twice, and both conditions apply.
            _ => schema = json!({ "allOf": [schema, { keyword: condition }] }),
        }
    }
    schema
}

//! The canonical form of JSON: the same data is always the same bytes (RFC 8785).
//!
//! RFC 8785 covers only numbers that a double represents. Any other number is written as a string of its
//! digits, as appendix D recommends, so that two schemas that differ in their 20th digit differ here
//! too. A string of such digits in the data itself gets the prefix `=`, and so does one that already has
//! such prefixes. No two texts with different meanings have the same form.

use std::collections::HashMap;

use rtfs::TypeExpr;
use serde::ser::Error as _;
use serde::{Serialize, Serializer};
use serde_json::Value as Json;
use serde_json::value::RawValue;

use crate::json::RawObject;
use crate::manifest::CapabilityManifest;
use crate::provider::CustomProvider;
use crate::schema::json_schema_of;

/// The maximum nesting depth.
const MAX_DEPTH: usize = 128;

/// The reason why a text has no canonical form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no canonical form: {0}")]
pub struct CanonicalError(String);

/// Returns the canonical form of a JSON text: no white space, keys in the order of their UTF-16 code
/// units, one way to write each string and number.
///
/// # Errors
/// The text is not JSON, has a key twice, or is nested deeper than 128 levels.
pub fn canonical_json(text: &str) -> Result<String, CanonicalError> {
    let error = |err: serde_json::Error| CanonicalError(err.to_string());
    let raw = serde_json::from_str(text).map_err(error)?;
    serde_json_canonicalizer::to_string(&Element { raw, depth: 0 }).map_err(error)
}

/// Returns the canonical form of a manifest: one object with all data that clients see and that affects
/// its calls.
///
/// The form leaves out the content, which is signed separately. It also leaves out everything that is
/// not signed: the attestation, the provenance, and the settings of the provider, which the content hash
/// or the hash of the declaration covers.
///
/// # Errors
/// A schema has no canonical form.
pub fn manifest_form(manifest: &CapabilityManifest) -> Result<String, CanonicalError> {
    #[derive(Serialize)]
    struct Form<'a> {
        id: &'a str,
        name: &'a str,
        description: &'a str,
        version: &'a str,
        provider: Provider<'a>,
        permissions: &'a [String],
        metadata: &'a HashMap<String, String>,
        input_schema: Option<Box<RawValue>>,
        output_schema: Option<Box<RawValue>>,
    }

    #[derive(Serialize)]
    struct Provider<'a> {
        kind: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        declaration: Option<&'a str>,
    }

    let error = |err: serde_json::Error| CanonicalError(err.to_string());
    // A schema is inserted as text, because a tree would round its numbers.
    let schema = |schema: &Option<TypeExpr>| {
        let text = schema.as_ref().map(|schema| match schema.json_schema() {
            Some(text) => text.to_owned(),
            None => json_schema_of(schema).to_string(),
        });
        text.map(RawValue::from_string).transpose().map_err(error)
    };
    let form = Form {
        id: &manifest.id,
        name: &manifest.name,
        description: &manifest.description,
        version: &manifest.version,
        provider: Provider {
            kind: manifest.provider.kind(),
            declaration: manifest.provider.custom().and_then(CustomProvider::declaration_hash),
        },
        permissions: &manifest.permissions,
        metadata: &manifest.metadata,
        input_schema: schema(&manifest.input_schema)?,
        output_schema: schema(&manifest.output_schema)?,
    };
    canonical_json(&serde_json::to_string(&form).map_err(error)?)
}

/// A value of a JSON text that keeps information that a tree would lose: repeated keys, and the digits
/// of numbers.
struct Element<'a> {
    raw: &'a RawValue,
    depth: usize,
}

impl Serialize for Element<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.depth > MAX_DEPTH {
            return Err(S::Error::custom(format!("nested deeper than {MAX_DEPTH} levels")));
        }
        let inner = |raw| Element { raw, depth: self.depth + 1 };
        let text = self.raw.get();
        match text.as_bytes().first() {
            Some(b'{') => {
                let RawObject(members) = serde_json::from_str(text).map_err(S::Error::custom)?;
                serializer.collect_map(members.into_iter().map(|(key, value)| (key, inner(value))))
            }
            Some(b'[') => {
                let items: Vec<&RawValue> = serde_json::from_str(text).map_err(S::Error::custom)?;
                serializer.collect_seq(items.into_iter().map(inner))
            }
            Some(b'-' | b'0'..=b'9') => match double(text) {
                Some(double) => serializer.serialize_f64(double),
                None => serializer.serialize_str(text),
            },
            Some(b'"') => {
                let string: String = serde_json::from_str(text).map_err(S::Error::custom)?;
                let sign = if stands_for_a_number(&string) { "=" } else { "" };
                serializer.serialize_str(&format!("{sign}{string}"))
            }
            _ => serde_json::from_str::<Json>(text).map_err(S::Error::custom)?.serialize(serializer),
        }
    }
}

/// Returns whether a string consists of the digits of a number that no double represents, after any
/// number of `=`.
fn stands_for_a_number(string: &str) -> bool {
    let digits = string.trim_start_matches('=');
    let is_number = digits.starts_with(|first: char| first == '-' || first.is_ascii_digit())
        && serde_json::from_str::<&RawValue>(digits).is_ok_and(|raw| raw.get() == digits);
    is_number && double(digits).is_none()
}

/// Returns the double that equals a JSON number; `None` if no double has all of its digits.
fn double(text: &str) -> Option<f64> {
    let double: f64 = text.parse().ok().filter(|double: &f64| double.is_finite())?;
    (decimal(&format!("{double:e}")) == decimal(text)).then_some(double)
}

/// Returns the digits of a number without surrounding zeros, and the power of ten by which these digits
/// are multiplied.
fn decimal(number: &str) -> (String, i64) {
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = format!("{}{fraction}", whole.trim_start_matches('-'));
    let digits = all.trim_start_matches('0').trim_end_matches('0');
    if digits.is_empty() {
        return (String::new(), 0);
    }
    let length = |text: &str| i64::try_from(text.len()).unwrap_or(i64::MAX);
    let zeros = length(&all) - length(all.trim_end_matches('0'));
    // No double has an exponent that is too long for an integer.
    let exponent = exponent.parse().unwrap_or(i64::MAX);
    (digits.to_owned(), exponent.saturating_add(zeros - length(fraction)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::{LocalCapability, ProviderType};
    use crate::schema::type_from_json_schema;
    use proptest::prelude::*;

    #[test]
    fn there_is_one_way_to_write_a_value() {
        let cases = [
            ("white space goes", " { \"a\" : [ 1 , 2 ] } ", r#"{"a":[1,2]}"#),
            ("keys are sorted", r#"{"b":1,"a":2,"A":3,"":4}"#, r#"{"":4,"A":3,"a":2,"b":1}"#),
            (
                "by UTF-16 code units, in which U+10000 comes before U+FB33",
                "{\"\u{fb33}\":1,\"\u{1f600}\":2,\"\u{20ac}\":3}",
                "{\"\u{20ac}\":3,\"\u{1f600}\":2,\"\u{fb33}\":1}",
            ),
            ("escapes are the shortest", r#""\u0041\/\u000a\u001F\"""#, "\"A/\\n\\u001f\\\"\""),
            ("words stay", "[true,false,null]", "[true,false,null]"),
            ("zero has no sign", "[-0, 0.0, -0e5]", "[0,0,0]"),
            ("whole numbers have no point", "[1.0, 10e-1, 1E2]", "[1,1,100]"),
            ("doubles as in ECMAScript", "[1e21, 1e20, 1.5e-7]", "[1e+21,100000000000000000000,1.5e-7]"),
            ("small ones too", "[0.000001, 0.0000001, 123.4560]", "[0.000001,1e-7,123.456]"),
            ("every double has one form", "[0.10, 10e-2, 4.50E+1]", "[0.1,0.1,45]"),
            (
                "a number that no double holds is a string of its digits",
                "[9007199254740993, 0.12345678901234567890, -1e400, 1e99999999999999999999]",
                r#"["9007199254740993","0.12345678901234567890","-1e400","1e99999999999999999999"]"#,
            ),
        ];
        for (name, text, canonical) in cases {
            assert_eq!(canonical_json(text).as_deref(), Ok(canonical), "{name}");
        }
    }

    #[test]
    fn a_large_number_its_digits_as_text_and_its_neighbours_have_different_forms() {
        let digits = ["9007199254740992", "9007199254740993", "9007199254740994", "1e400", "-1e400"];
        let texts = digits
            .iter()
            .flat_map(|digits| ["", "=", "=="].map(|sign| format!(r#"{{"const":"{sign}{digits}"}}"#)));
        let numbers = digits.iter().map(|digits| format!(r#"{{"const":{digits}}}"#));
        let forms: Vec<String> =
            texts.chain(numbers).map(|text| canonical_json(&text).unwrap()).collect();
        let different: std::collections::HashSet<&String> = forms.iter().collect();
        assert_eq!(different.len(), forms.len(), "{forms:?}");
        assert_eq!(
            canonical_json(r#"["=", "=7", "9007199254740993 "]"#).unwrap(),
            r#"["=","=7","9007199254740993 "]"#
        );
    }

    #[test]
    fn ambiguous_json_has_no_canonical_form() {
        for text in [r#"{"a":1,"a":2}"#, r#"{"a":1,"\u0061":2}"#, "{", "[1,]", "nul", ""] {
            assert!(canonical_json(text).is_err(), "{text}");
        }
        assert!(canonical_json(&format!("{}{}", "[".repeat(5000), "]".repeat(5000))).is_err());
    }

    fn manifest() -> CapabilityManifest {
        let provider = ProviderType::Local(LocalCapability::new("f"));
        let mut manifest = CapabilityManifest::new("a.b", "Does it.", provider);
        manifest.version = "1.2.3".to_owned();
        let schema = r#"{"type":"object","properties":{"n":{"minimum":1}},"required":["n"]}"#;
        manifest.input_schema = Some(type_from_json_schema(&serde_json::from_str(schema).unwrap()));
        manifest.permissions = vec!["net:a".to_owned(), "exec".to_owned()];
        manifest.metadata.insert("k".to_owned(), "v".to_owned());
        manifest
    }

    #[test]
    fn every_field_that_promises_something_is_in_the_form() {
        type Change = fn(&mut CapabilityManifest);
        let changes: [(&str, Change); 9] = [
            ("id", |m| m.id.push('x')),
            ("name", |m| m.name.push('x')),
            ("description", |m| m.description.push('x')),
            ("version", |m| m.version.push('x')),
            ("permissions", |m| m.permissions.push("fs:read:/".to_owned())),
            ("a value of its metadata", |m| m.metadata.values_mut().for_each(|v| v.push('x'))),
            ("a key of its metadata", |m| drop(m.metadata.insert("x".to_owned(), String::new()))),
            ("input", |m| m.input_schema = None),
            ("output", |m| m.output_schema = m.input_schema.clone()),
        ];
        let before = manifest_form(&manifest()).unwrap();
        for (name, change) in changes {
            let mut changed = manifest();
            change(&mut changed);
            assert_ne!(manifest_form(&changed).unwrap(), before, "{name}");
        }
        let mut swapped = manifest();
        std::mem::swap(&mut swapped.input_schema, &mut swapped.output_schema);
        assert_ne!(manifest_form(&swapped).unwrap(), before);
        assert_eq!(manifest_form(&manifest()).unwrap(), before);
    }

    proptest! {
        #[test]
        fn the_form_of_a_form_is_itself_and_means_the_same(value in any_json()) {
            let text = value.to_string();
            let form = canonical_json(&text).unwrap();
            prop_assert_eq!(&canonical_json(&form).unwrap(), &form);
            let again: Json = serde_json::from_str(&form).unwrap();
            prop_assert_eq!(sorted(&again), sorted(&value));
        }

        #[test]
        fn one_changed_byte_of_a_manifest_is_another_form(field in 0..4usize, at in 0..8usize, byte in 32..127u8) {
            let mut changed = manifest();
            let text = match field {
                0 => &mut changed.id,
                1 => &mut changed.description,
                2 => &mut changed.version,
                _ => &mut changed.permissions[0],
            };
            let at = at % text.len();
            let same = text.as_bytes()[at] == byte;
            text.replace_range(at..=at, char::from(byte).encode_utf8(&mut [0; 4]));
            prop_assert_eq!(manifest_form(&changed).unwrap() == manifest_form(&manifest()).unwrap(), same);
        }
    }

    /// Its numbers are integers that a double holds, so that the form means the same.
    fn any_json() -> impl Strategy<Value = Json> {
        let leaf = prop_oneof![
            Just(Json::Null),
            any::<bool>().prop_map(Json::from),
            any::<i32>().prop_map(Json::from),
            ".{0,8}".prop_map(Json::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Json::from),
                prop::collection::hash_map(".{0,4}", inner, 0..4)
                    .prop_map(|map| Json::Object(map.into_iter().collect())),
            ]
        })
    }

    fn sorted(value: &Json) -> Json {
        match value {
            Json::Object(map) => {
                let mut keys: Vec<&String> = map.keys().collect();
                keys.sort();
                Json::Object(keys.into_iter().map(|key| (key.clone(), sorted(&map[key]))).collect())
            }
            Json::Array(items) => items.iter().map(sorted).collect(),
            other => other.clone(),
        }
    }
}

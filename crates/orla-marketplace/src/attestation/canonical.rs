//! The one form in which the same JSON is always the same bytes (RFC 8785).
//!
//! It departs from that document in one place: a number keeps every digit it was written with, where
//! the document rounds to what a double can hold. What is the shortest text of a double is written as
//! there. So two schemas that differ in their 20th digit differ here too.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value as Json, json};

use crate::manifest::CapabilityManifest;
use crate::schema::json_schema_of;

/// The most levels of nesting.
const MAX_DEPTH: usize = 128;
/// The largest exponent of a number that is told apart: beyond it no two programs agree.
const MAX_EXPONENT: u64 = 1_000_000;
/// The most digits of a number, from its first that is not 0 to its last.
const MAX_DIGITS: usize = 100_000;

/// Why a text has no canonical form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no canonical form: {0}")]
pub struct CanonicalError(String);

/// The canonical form of a JSON text: no white space, keys in the order of their UTF-16 code units,
/// one way to write each string and number.
///
/// # Errors
/// It is no JSON, has a key twice, or is nested deeper than 128 levels.
pub fn canonical_json(text: &str) -> Result<String, CanonicalError> {
    let raw: &RawValue = serde_json::from_str(text).map_err(|err| error(&err))?;
    let mut out = String::with_capacity(text.len());
    write(raw, &mut out, 0)?;
    Ok(out)
}

/// The canonical form of a manifest: everything that clients are shown and that decides on its calls,
/// but for what is signed beside it (the content) and what is no part of the promise: its attestation,
/// its provenance, and the settings of its provider, which the content hash covers.
///
/// # Errors
/// A schema has no canonical form.
pub fn manifest_form(manifest: &CapabilityManifest) -> Result<String, CanonicalError> {
    let mut form = Map::new();
    form.insert("id".to_owned(), json!(manifest.id));
    form.insert("name".to_owned(), json!(manifest.name));
    form.insert("description".to_owned(), json!(manifest.description));
    form.insert("version".to_owned(), json!(manifest.version));
    form.insert("provider".to_owned(), json!({ "kind": manifest.provider.kind() }));
    form.insert("permissions".to_owned(), json!(manifest.permissions));
    let metadata: Map<String, Json> =
        manifest.metadata.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    form.insert("metadata".to_owned(), Json::Object(metadata));
    let mut out = canonical_json(&Json::Object(form).to_string())?;
    // Schemas are taken as texts: a tree would round their numbers. They are signed as a second object,
    // each in its own canonical form.
    out.push('\n');
    for schema in [&manifest.input_schema, &manifest.output_schema] {
        match schema {
            None => out.push_str("null"),
            Some(schema) => {
                let text = schema.json_schema().map(ToString::to_string);
                let text = text.unwrap_or_else(|| json_schema_of(schema).to_string());
                out.push_str(&canonical_json(&text)?);
            }
        }
        out.push('\n');
    }
    Ok(out)
}

fn write(raw: &RawValue, out: &mut String, depth: usize) -> Result<(), CanonicalError> {
    if depth > MAX_DEPTH {
        return Err(CanonicalError(format!("nested deeper than {MAX_DEPTH} levels")));
    }
    let text = raw.get();
    match text.as_bytes().first() {
        Some(b'{') => {
            let Members(mut members) = serde_json::from_str(text).map_err(|err| error(&err))?;
            members.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
            if let Some(twice) = members.windows(2).find(|pair| pair[0].0 == pair[1].0) {
                return Err(CanonicalError(format!("the key {:?} stands twice", twice[0].0)));
            }
            out.push('{');
            for (at, (key, value)) in members.into_iter().enumerate() {
                out.push_str(if at == 0 { "" } else { "," });
                write_string(&key, out);
                out.push(':');
                write(value, out, depth + 1)?;
            }
            out.push('}');
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text).map_err(|err| error(&err))?;
            out.push('[');
            for (at, item) in items.into_iter().enumerate() {
                out.push_str(if at == 0 { "" } else { "," });
                write(item, out, depth + 1)?;
            }
            out.push(']');
        }
        Some(b'"') => {
            let string: String = serde_json::from_str(text).map_err(|err| error(&err))?;
            write_string(&string, out);
        }
        Some(b'-' | b'0'..=b'9') => out.push_str(&number(text)?),
        _ => out.push_str(text),
    }
    Ok(())
}

/// A string with the fewest escapes that JSON admits, which is how serde_json writes it.
fn write_string(string: &str, out: &mut String) {
    out.push_str(&Json::from(string).to_string());
}

/// A JSON number laid out as ECMAScript does, with all of its digits.
fn number(text: &str) -> Result<String, CanonicalError> {
    let (sign, text) = text.strip_prefix('-').map_or(("", text), |rest| ("-", rest));
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = format!("{whole}{fraction}");
    let leading = all.len() - all.trim_start_matches('0').len();
    let digits = all[leading..].trim_end_matches('0');
    if digits.is_empty() {
        return Ok("0".to_owned());
    }
    // The value is 0.DIGITS × 10^point. Bounds are those of the value, so that its form is within them as well.
    let exponent: i64 = exponent.trim_start_matches('+').parse().unwrap_or(i64::MAX);
    let signed = |length: usize| i64::try_from(length).unwrap_or(i64::MAX);
    let point = exponent.saturating_add(signed(whole.len()) - signed(leading));
    if point.saturating_sub(1).unsigned_abs() > MAX_EXPONENT || digits.len() > MAX_DIGITS {
        return Err(CanonicalError(format!("the number {text:.40} is out of bounds")));
    }
    let count = digits.len();
    let laid_out = match usize::try_from(point) {
        Ok(before @ 1..=21) if count <= before => format!("{digits}{}", "0".repeat(before - count)),
        Ok(before @ 1..=21) => format!("{}.{}", &digits[..before], &digits[before..]),
        _ if (-5..=0).contains(&point) => {
            format!("0.{}{digits}", "0".repeat(usize::try_from(-point).unwrap_or_default()))
        }
        _ => {
            let (first, rest) = digits.split_at(1);
            let dot = if rest.is_empty() { "" } else { "." };
            let plus = if point > 0 { "+" } else { "" };
            format!("{first}{dot}{rest}e{plus}{}", point - 1)
        }
    };
    Ok(format!("{sign}{laid_out}"))
}

fn error(err: &serde_json::Error) -> CanonicalError {
    CanonicalError(err.to_string())
}

/// The members of an object, those that stand twice included.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfAnObject;
        impl<'de> Visitor<'de> for OfAnObject {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(OfAnObject)
    }
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
            ("every digit counts", "[9007199254740993, 0.10]", "[9007199254740993,0.1]"),
            ("what no double holds stays", "[1e400]", "[1e+400]"),
            ("bounds are those of the value", "[10e999999, 0.1e1000001]", "[1e+1000000,1e+1000000]"),
        ];
        for (name, text, canonical) in cases {
            assert_eq!(canonical_json(text).as_deref(), Ok(canonical), "{name}");
        }
    }

    #[test]
    fn what_could_be_read_in_two_ways_has_no_form() {
        for text in [
            r#"{"a":1,"a":2}"#,
            r#"{"a":1,"\u0061":2}"#,
            "{",
            "[1,]",
            "1e99999999",
            "400E999999",
            "1e-9223372036854775808",
            "nul",
            "",
        ] {
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

    /// With whole numbers alone: how a fraction is rounded is the parser's matter.
    fn any_json() -> impl Strategy<Value = Json> {
        let leaf = prop_oneof![
            Just(Json::Null),
            any::<bool>().prop_map(Json::from),
            any::<i64>().prop_map(Json::from),
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

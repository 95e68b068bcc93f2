//! The table of all groups; in each, the functions are sorted by name.

mod bytes;
mod csv;
mod date;
mod hash;
mod json;
mod list;
mod math;
mod object;
mod regex;
mod set;
mod stats;
mod template;
mod text;
mod toml;
mod url;
mod uuid;
mod yaml;

use std::ops::Range;

use rtfs::{Map, Value};

use crate::arguments::Arguments;
use crate::builtin::Builtin;
use crate::error::BuiltinError;
use crate::limits::deep;

/// Sorted by name.
pub(crate) static ALL: &[(&str, &[Builtin])] = &[
    ("base64", bytes::BASE64_BUILTINS),
    ("csv", csv::BUILTINS),
    ("date", date::BUILTINS),
    ("duration", date::DURATION_BUILTINS),
    ("hash", hash::BUILTINS),
    ("hex", bytes::HEX_BUILTINS),
    ("json", json::BUILTINS),
    ("list", list::BUILTINS),
    ("math", math::BUILTINS),
    ("object", object::BUILTINS),
    ("regex", regex::BUILTINS),
    ("set", set::BUILTINS),
    ("stats", stats::BUILTINS),
    ("template", template::BUILTINS),
    ("text", text::BUILTINS),
    ("toml", toml::BUILTINS),
    ("url", url::BUILTINS),
    ("uuid", uuid::BUILTINS),
    ("yaml", yaml::BUILTINS),
];

/// Returns a map with keyword keys, as for a JSON object.
fn record<const N: usize>(fields: [(&str, Value); N]) -> Result<Value, BuiltinError> {
    let mut map = Map::new();
    for (name, value) in fields {
        deep(map.insert(Value::keyword(name), value))?;
    }
    Ok(map.into())
}

/// Returns a length as a value.
fn size(size: usize) -> Value {
    Value::Int(i64::try_from(size).unwrap_or(i64::MAX))
}

/// Returns the value of the key with this name, a keyword or a string.
fn field<'a>(map: &'a Map, name: &str) -> Option<&'a Value> {
    map.get_keyword(name).or_else(|| map.get(&Value::from(name)))
}

/// Returns the range from `start` to `end` within this length. Negative indices count from the end, and
/// out-of-range parts are cut.
fn bounds(args: &Arguments<'_>, length: usize) -> Result<Range<usize>, BuiltinError> {
    let all = i64::MIN..=i64::MAX;
    let place = |at: i64| {
        let length_i = i64::try_from(length).unwrap_or(i64::MAX);
        let from_start = if at < 0 { length_i.saturating_add(at) } else { at };
        usize::try_from(from_start.clamp(0, length_i)).unwrap_or(0)
    };
    let start = place(args.integer_or("start", all.clone(), 0)?);
    let end = args.optional_integer("end", all)?.map_or(length, place);
    Ok(start..end.max(start))
}

//! Finds similar keys.

use crate::text::nearest;
use crate::value::Value;

/// Returns the known key that a misspelt one is similar to, if any.
pub(super) fn nearest_key<'k>(key: &Value, known: impl Iterator<Item = &'k Value>) -> Option<&'k Value> {
    let name = |value: &Value| match value {
        Value::Keyword(keyword) => Some(keyword.name().to_owned()),
        Value::Str(text) => Some(text.as_str().to_owned()),
        _ => None,
    };
    let named: Vec<_> = known.filter_map(|value| Some((name(value)?, value))).collect();
    let wanted = name(key)?;
    // The same word as a text instead of a keyword, or the reverse, is a mistake as well.
    let same = named.iter().find(|entry| entry.0 == wanted).map(|entry| entry.1);
    same.or_else(|| {
        let near = nearest(&wanted, named.iter().map(|entry| entry.0.as_str()))?.to_owned();
        named.iter().find(|entry| entry.0 == near).map(|entry| entry.1)
    })
}

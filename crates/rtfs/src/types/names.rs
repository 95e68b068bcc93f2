//! The names in types, and suggestions for misspelt ones.

use super::Primitive;
use crate::text::nearest;

/// The kinds of types that have parts.
pub(super) const FORMS: [&str; 18] = [
    "union", "vector", "list", "set", "tuple", "stream", "array", "map", "record", "map-of", "dict",
    "enum", "val", "and", "not", "fn", "ref", "optional",
];

pub(super) const PREDICATES: [&str; 24] = [
    ">",
    ">=",
    "<",
    "<=",
    "=",
    "!=",
    "in-range",
    "multiple-of",
    "min-length",
    "max-length",
    "length",
    "matches-regex",
    "min-count",
    "max-count",
    "count",
    "non-empty",
    "unique",
    "has-key",
    "required-keys",
    "is-url",
    "is-email",
    "is-uuid",
    "is-date",
    "format",
];

/// The names of types in other languages.
const FOREIGN_NAMES: [(&str, &str); 10] = [
    ("integer", "int"),
    ("long", "int"),
    ("double", "float"),
    ("str", "string"),
    ("text", "string"),
    ("boolean", "bool"),
    ("null", "nil"),
    ("object", "map"),
    ("tuple-of", "tuple"),
    ("or", "union"),
];

pub(super) fn similar_name(name: &str) -> Option<&'static str> {
    let foreign = FOREIGN_NAMES.iter().find(|(other, _)| *other == name).map(|(_, ours)| *ours);
    let known = Primitive::ALL.iter().map(|primitive| primitive.name()).chain(FORMS);
    foreign.or_else(|| nearest(name, known))
}

//! The names in types, and which one was probably meant.

use super::Primitive;
use super::violation::cut;

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

/// What other languages call the types.
const ELSEWHERE: [(&str, &str); 10] = [
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
    let elsewhere = ELSEWHERE.iter().find(|(other, _)| *other == name).map(|(_, ours)| *ours);
    let known = Primitive::ALL.iter().map(|primitive| primitive.name()).chain(FORMS);
    elsewhere.or_else(|| nearest(name, known))
}

/// The known name that differs least, if it does by at most two letters and less than half of them.
pub(super) fn nearest<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let name = cut(name, 20).to_lowercase();
    let near = |known: &&str| distance(&name, known) <= (known.len() / 3).min(2);
    known.filter(near).min_by_key(|known| distance(&name, known))
}

/// How many letters have to be put in, left out or replaced.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

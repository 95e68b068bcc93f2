//! Ids, the MCP names made from them, and patterns of names. Pure functions.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// The maximum length of a name that every MCP client accepts.
pub const MAX_NAME: usize = 64;

/// Returns the MCP name for an id. `PROVIDER.NAME` becomes `PROVIDER__NAME`, and every character but
/// `a-z A-Z 0-9 _ -` becomes `_`. A longer name is cut and ends in a hash of the whole name.
pub fn mcp_name(id: &str) -> String {
    if !id.is_empty() && id.len() <= MAX_NAME && id.chars().all(is_name_char) {
        return id.to_owned();
    }
    let spaced = id.replacen('.', "__", 1);
    let name: String = spaced.chars().map(|c| if is_name_char(c) { c } else { '_' }).collect();
    match name.as_str() {
        "" => "_".to_owned(),
        short if short.len() <= MAX_NAME => name,
        long => format!("{}_{:08x}", &long[..MAX_NAME - 9], short_hash(id.as_bytes())),
    }
}

/// Returns a unique name for every id. In the lexical order of the ids, the first keeps its name and the
/// others get `_2`, `_3`, …. The same ids always give the same names. An id that is a valid name keeps
/// it, so that it means the same as an id and as a name.
pub fn mcp_names<'a>(ids: impl IntoIterator<Item = &'a str>) -> BTreeMap<&'a str, String> {
    let sorted: BTreeMap<&str, String> = ids.into_iter().map(|id| (id, mcp_name(id))).collect();
    let mut taken: HashSet<String> = HashSet::new();
    let mut names = BTreeMap::new();
    for (id, _) in sorted.iter().filter(|(id, name)| **id == name.as_str()) {
        taken.insert((*id).to_owned());
    }
    for (id, name) in sorted {
        let name = if id == name { name } else { unused(&name, |name| taken.contains(name)) };
        taken.insert(name.clone());
        names.insert(id, name);
    }
    names
}

/// Returns an MCP name if it is free; else the first of `NAME_2`, `NAME_3`, … that is free, cut to the
/// maximum length.
pub fn unused(name: &str, is_taken: impl Fn(&str) -> bool) -> String {
    if !is_taken(name) {
        return name.to_owned();
    }
    let mut number = 2_u64;
    loop {
        let suffix = format!("_{number}");
        let stem = &name[..name.len().min(MAX_NAME - suffix.len())];
        let candidate = format!("{stem}{suffix}");
        if !is_taken(&candidate) {
            return candidate;
        }
        number += 1;
    }
}

/// Returns whether every MCP client accepts the character in a tool's name.
pub fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

/// Returns 32 bits of a hash that is the same in every process and on every machine.
pub fn short_hash(bytes: &[u8]) -> u32 {
    // FNV-1a is used because `DefaultHasher` may change between releases, and names must not change.
    bytes.iter().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// A pattern of names. `*` matches any run of characters, every other character only itself. The whole
/// name must match.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern(String);

impl Pattern {
    /// Returns the pattern written as `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the pattern's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether a capability with this id and MCP name matches: the pattern matches one of the
    /// two, or it equals a prefix of the id up to a dot, such as `notes` for `notes.add`. A rule that
    /// names a capsule therefore still applies when the capsule lists a second tool.
    pub fn fits(&self, id: &str, name: &str) -> bool {
        self.covers(id) || self.matches(name)
    }

    /// Returns whether the pattern matches the id, or equals a prefix of it up to a dot.
    pub fn covers(&self, id: &str) -> bool {
        self.matches(id) || self.is_above(id)
    }

    /// Returns whether the pattern equals the beginning of an id, up to a dot.
    pub fn is_above(&self, id: &str) -> bool {
        id.strip_prefix(&*self.0).is_some_and(|rest| rest.starts_with('.'))
    }

    /// Returns whether the whole of `name` matches. Usually linear in both lengths; at worst, their
    /// product.
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut p, mut n) = (0, 0);
        let mut star: Option<(usize, usize)> = None;
        while n < name.len() {
            match pattern.get(p) {
                Some(b'*') => {
                    star = Some((p, n));
                    p += 1;
                }
                Some(byte) if *byte == name[n] => {
                    p += 1;
                    n += 1;
                }
                _ => match star {
                    Some((at, from)) => {
                        p = at + 1;
                        n = from + 1;
                        star = Some((at, n));
                    }
                    None => return false,
                },
            }
        }
        pattern[p..].iter().all(|byte| *byte == b'*')
    }
}

/// Returns a number that differs from instance to instance; not a secret.
pub(crate) fn instance_number() -> u32 {
    let mut hasher = DefaultHasher::new();
    std::process::id().hash(&mut hasher);
    std::time::SystemTime::now().hash(&mut hasher);
    hasher.finish() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_made_of_ids() {
        let cases = [
            ("ls", "ls"),
            ("weather.current", "weather__current"),
            ("a.b.c", "a__b_c"),
            ("odd name/ü", "odd_name__"),
            ("", "_"),
        ];
        for (id, name) in cases {
            assert_eq!(mcp_name(id), name, "{id}");
        }
        let long = mcp_name(&"x".repeat(200));
        assert_eq!(long.len(), MAX_NAME);
        assert_ne!(long, mcp_name(&"x".repeat(201)));
    }

    #[test]
    fn a_collision_is_numbered_in_the_order_of_the_ids() {
        let names = mcp_names(["a b", "a/b", "a_b"]);
        let expected = [("a b", "a_b_2"), ("a/b", "a_b_3"), ("a_b", "a_b")];
        assert_eq!(
            names.into_iter().collect::<Vec<_>>(),
            expected.map(|(id, name)| (id, name.to_owned()))
        );
    }

    #[test]
    fn patterns_are_anchored() {
        let cases = [
            ("ls", "ls", true),
            ("ls", "lsx", false),
            ("l*", "ls", true),
            ("*", "", true),
            ("a*b*c", "a__b_bc", true),
            ("a*b*c", "a__b_b", false),
            ("*.sh", "xsh", false),
        ];
        for (pattern, name, fits) in cases {
            assert_eq!(Pattern::new(pattern).matches(name), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn a_name_covers_the_names_below_it() {
        let cases = [
            ("notes", "notes.add", true),
            ("a.b", "a.b.c", true),
            ("notes", "notes", true),
            ("notes.add", "notes.add", true),
            ("notes__add", "notes.add", true),
            ("note", "notes.add", false),
            ("notes.", "notes.add", false),
            ("n*s", "notes.add", false),
            ("", "notes.add", false),
        ];
        for (pattern, id, fits) in cases {
            assert_eq!(Pattern::new(pattern).fits(id, &mcp_name(id)), fits, "{pattern} {id}");
        }
    }

    proptest! {
        #[test]
        fn names_are_valid_and_unique(ids in proptest::collection::hash_set(".{0,80}", 0..40)) {
            let names = mcp_names(ids.iter().map(String::as_str));
            let unique: HashSet<&String> = names.values().collect();
            prop_assert_eq!(unique.len(), ids.len());
            for name in names.values() {
                prop_assert!((1..=MAX_NAME).contains(&name.len()));
                prop_assert!(name.chars().all(is_name_char));
            }
        }
    }
}

//! The names of the language in one table (`library.txt`): their descriptions for users, and the types
//! of functions for users and for the checker (`signatures`).

/// The documentation of a name of the language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Documentation {
    /// The name and its aliases.
    pub names: &'static str,
    /// The parameters; `;` separates several ways to call it.
    pub params: &'static str,
    /// The parameter and result types, as `string int int? -> string`, if it is a function. The number
    /// of arguments is independent: the last may be omitted.
    pub types: Option<&'static str>,
    /// The description.
    pub text: &'static str,
}

impl Documentation {
    /// Returns its usage: `(get coll k)`, one line for each way to call it.
    pub fn usage(&self, name: &str) -> String {
        let way = |params: &str| match params.trim() {
            "" => format!("({name})"),
            params => format!("({name} {params})"),
        };
        self.params.split(';').map(way).collect::<Vec<_>>().join("\n")
    }
}

/// Returns all rows of the table, including those that no program can name.
pub(super) fn rows() -> impl Iterator<Item = Documentation> {
    let lines = include_str!("library.txt").lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| {
        let mut parts = line.splitn(4, " | ");
        let (names, params, types) = (parts.next()?, parts.next()?, parts.next()?);
        let types = (types != "-").then_some(types);
        Some(Documentation { names, params: params.trim(), types, text: parts.next()? })
    })
}

/// Returns the public rows, in the order of the table: special forms, then functions by topic.
pub fn documented() -> impl Iterator<Item = Documentation> {
    rows().filter(|row| !row.names.starts_with('%'))
}

/// Returns the documentation of a special form or a function of the standard library.
pub fn documentation(name: &str) -> Option<Documentation> {
    documented().find(|entry| entry.names.split(' ').any(|known| known == name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtins::Builtin;
    use std::collections::BTreeSet;

    #[test]
    fn every_name_is_documented_once_and_nothing_else_is() {
        let known: BTreeSet<&str> =
            crate::all_names().into_iter().chain(crate::special_forms().iter().copied()).collect();
        let mut seen = BTreeSet::new();
        for name in documented().flat_map(|entry| entry.names.split(' ')) {
            assert!(seen.insert(name), "{name} is there twice");
        }
        let missing: Vec<_> = known.difference(&seen).collect();
        let unknown: Vec<_> = seen.difference(&known).collect();
        assert!(missing.is_empty() && unknown.is_empty(), "missing {missing:?}, unknown {unknown:?}");
    }

    /// Returns the number of parameters in a usage, and whether it allows more.
    fn shown(way: &str) -> (usize, bool) {
        let (mut nested, mut quoted) = (0_i32, false);
        // A part in brackets or quotes counts as one.
        let apart = |c: char| {
            match c {
                '"' => quoted = !quoted,
                '[' | '{' => nested += 1,
                ']' | '}' => nested -= 1,
                _ => {}
            }
            c == ' ' && nested == 0 && !quoted
        };
        let words: Vec<_> = way.trim().split(apart).filter(|word| !word.is_empty()).collect();
        let more = words.contains(&"…");
        (words.len() - usize::from(more), more)
    }

    #[test]
    fn functions_can_be_called_as_the_table_shows() {
        let prelude = crate::compiler::prelude();
        for row in documented().filter(|row| row.types.is_some()) {
            for (name, way) in
                row.names.split(' ').flat_map(|name| row.params.split(';').map(move |way| (name, way)))
            {
                let takes = |count| match crate::builtins::lookup(name) {
                    Some(Builtin::Native(number)) => {
                        let (min, max) = crate::builtins::native(number).arity();
                        (min..=max).contains(&count)
                    }
                    Some(Builtin::Code(code)) => prelude.select(code, count).is_some(),
                    None => false,
                };
                let (count, more) = shown(way);
                assert!(takes(count) && (!more || takes(count + 5)), "{name} {way}");
            }
        }
    }

    #[test]
    fn usage_shows_each_way() {
        assert_eq!(documentation("get").unwrap().usage("get"), "(get coll k)\n(get coll k default)");
        assert_eq!(documentation("upper").unwrap().usage("upper"), "(upper s)");
        assert_eq!(documentation("capabilities").unwrap().usage("x"), "(x)\n(x \"words\")");
        assert_eq!(documentation("no-such-name"), None);
    }
}

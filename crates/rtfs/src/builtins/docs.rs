//! The names of the language, in one table (`library.txt`): what they do, for people, and the types of functions, for
//! people and for the checker (`signatures`).

/// What there is to say about a name of the language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Documentation {
    /// Its other names and itself.
    pub names: &'static str,
    /// Its parameters; several ways to call it are separated by `;`.
    pub params: &'static str,
    /// What it takes and gives, as `string int int? -> string`, if it is a function. How many arguments it takes is
    /// another matter: the last may be left out.
    pub types: Option<&'static str>,
    /// What it gives.
    pub text: &'static str,
}

impl Documentation {
    /// How it is written: `(get coll k)`, a line for each way.
    pub fn usage(&self, name: &str) -> String {
        let way = |params: &str| match params.trim() {
            "" => format!("({name})"),
            params => format!("({name} {params})"),
        };
        self.params.split(';').map(way).collect::<Vec<_>>().join("\n")
    }
}

/// Returns all of the table, with what no program can name.
pub(super) fn rows() -> impl Iterator<Item = Documentation> {
    let lines = include_str!("library.txt").lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| {
        let mut parts = line.splitn(4, " | ");
        let (names, params, types) = (parts.next()?, parts.next()?, parts.next()?);
        let types = (types != "-").then_some(types);
        Some(Documentation { names, params: params.trim(), types, text: parts.next()? })
    })
}

/// Returns all of it, in the order of the table: special forms, then functions by what they are about.
pub fn documented() -> impl Iterator<Item = Documentation> {
    rows().filter(|row| !row.names.starts_with('%'))
}

/// What there is to say about a special form or a function of the standard library.
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
        let mut said = BTreeSet::new();
        for name in documented().flat_map(|entry| entry.names.split(' ')) {
            assert!(said.insert(name), "{name} is there twice");
        }
        let missing: Vec<_> = known.difference(&said).collect();
        let unknown: Vec<_> = said.difference(&known).collect();
        assert!(missing.is_empty() && unknown.is_empty(), "missing {missing:?}, unknown {unknown:?}");
    }

    /// Returns how many parameters a way to call a function shows, and whether there may be more.
    fn shown(way: &str) -> (usize, bool) {
        let (mut nested, mut quoted) = (0_i32, false);
        // What stands in brackets or quotes is one.
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

//! What the names of the language do, for people: a table in `docs.txt`.

/// What there is to say about a name of the language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Documentation {
    /// Its other names and itself.
    pub names: &'static str,
    /// Its parameters; several ways to call it are separated by `;`.
    pub params: &'static str,
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

/// All of it, in the order of the table: special forms, then functions by what they are about.
pub fn documented() -> impl Iterator<Item = Documentation> {
    let lines = include_str!("docs.txt").lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| {
        let (names, rest) = line.split_once(" | ")?;
        let (params, text) = rest.split_once("| ")?;
        Some(Documentation { names, params: params.trim(), text })
    })
}

/// What there is to say about a special form or a function of the standard library.
pub fn documentation(name: &str) -> Option<Documentation> {
    documented().find(|entry| entry.names.split(' ').any(|known| known == name))
}

#[cfg(test)]
mod tests {
    use super::*;
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

    #[test]
    fn usage_shows_each_way() {
        assert_eq!(documentation("get").unwrap().usage("get"), "(get coll k)\n(get coll k default)");
        assert_eq!(documentation("upper").unwrap().usage("upper"), "(upper s)");
        assert_eq!(documentation("capabilities").unwrap().usage("x"), "(x)\n(x \"words\")");
        assert_eq!(documentation("no-such-name"), None);
    }
}

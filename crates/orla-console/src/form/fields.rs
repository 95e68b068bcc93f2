//! The fields of a submitted form, by the paths of their values in the input. Pure.
//!
//! `person.address.0.city` is a member `city` of the first item of `address`. In a key, `.` is written
//! `~1`, `~` is `~0`, a leading `_` is `~2`, and an empty key is `~3`, so that `_` at the beginning is
//! reserved for the names below:
//!
//! | name | means |
//! |---|---|
//! | `_json.PATH` | the value at this path as JSON text, instead of its fields |
//! | `_as.PATH` | which of several alternatives the value at this path is |
//! | `_key.PATH` | the key of an entry whose path ends in `~nNUMBER` |
//! | `_null` | a path whose value is `null` |
//! | `_open` | a path whose fields are shown although nothing is in them |

use std::collections::{BTreeMap, BTreeSet};

/// The maximum number of fields that are read of one form.
const MAX_FIELDS: usize = 20_000;

/// The fields of a submitted form.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields {
    values: BTreeMap<String, String>,
    open: BTreeSet<String>,
    null: BTreeSet<String>,
    is_truncated: bool,
}

/// Names with a prefix of their own, before the path.
const PREFIXES: [&str; 3] = ["_json.", "_as.", "_key."];

impl Fields {
    /// Takes the pairs of a form.
    pub(crate) fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut fields = Self::default();
        for (number, (name, value)) in pairs.into_iter().enumerate() {
            if number >= MAX_FIELDS {
                fields.is_truncated = true;
                break;
            }
            match &*name {
                "_open" => drop(fields.open.insert(value)),
                "_null" => drop(fields.null.insert(value)),
                _ => {
                    // Browsers write the ends of lines as CR LF.
                    let value = if value.contains('\r') { value.replace("\r\n", "\n") } else { value };
                    fields.values.entry(name).or_insert(value);
                }
            }
        }
        fields
    }

    /// Returns whether there were more fields than are read.
    pub(crate) fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    /// Returns the field of this name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    pub(super) fn json(&self, path: &str) -> Option<&str> {
        self.get(&format!("_json.{path}"))
    }

    pub(super) fn alternative(&self, path: &str) -> Option<&str> {
        self.get(&format!("_as.{path}"))
    }

    pub(super) fn key(&self, path: &str) -> Option<&str> {
        self.get(&format!("_key.{path}"))
    }

    pub(super) fn is_null(&self, path: &str) -> bool {
        self.null.contains(path)
    }

    /// Returns whether anything is said of the value at this path or below it.
    pub(super) fn mentions(&self, path: &str) -> bool {
        self.names().any(|name| is_at_or_below(path_of(name), path))
    }

    /// Returns the steps that follow this path, each once.
    pub(super) fn steps(&self, path: &str) -> BTreeSet<&str> {
        let below = self.names().filter_map(|name| match path {
            "" => Some(path_of(name)),
            path => path_of(name).strip_prefix(path)?.strip_prefix('.'),
        });
        // A name with a leading underscore is not a step of an input.
        let steps = below.map(|rest| rest.split('.').next().unwrap_or_default());
        steps.filter(|step| !step.is_empty() && !step.starts_with('_')).collect()
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.values.keys().chain(&self.open).chain(&self.null).map(String::as_str)
    }

    /// Applies a button of the form (`WHAT:PATH`). Returns whether the name is that of a button.
    pub(crate) fn apply_button(&mut self, button: &str) -> bool {
        let Some((what, path)) = button.split_once(':') else { return false };
        match what {
            "add" => {
                let next = self.numbers(path, "").last().map_or(0, |last| last + 1);
                self.open.insert(join(path, &next.to_string()));
            }
            "entry" => {
                let next = self.numbers(path, "~n").last().map_or(0, |last| last + 1);
                self.open.insert(join(path, &format!("~n{next}")));
            }
            "open" => drop(self.open.insert(path.to_owned())),
            "form" => drop(self.values.remove(&format!("_json.{path}"))),
            "show" => {}
            "remove" => self.remove(path),
            _ => return false,
        }
        true
    }

    /// Returns the numbers that steps below this path have after a prefix, in their order.
    pub(super) fn numbers(&self, path: &str, prefix: &str) -> BTreeSet<usize> {
        let steps = self.steps(path).into_iter();
        steps
            .filter_map(|step| step.strip_prefix(prefix)?.parse().ok())
            .filter(|at| *at < MAX_FIELDS)
            .collect()
    }

    /// Removes everything at this path and below. Of an array, later items move up.
    fn remove(&mut self, path: &str) {
        let (parent, step) = path.rsplit_once('.').unwrap_or(("", path));
        let removed: Option<usize> = step.parse().ok();
        let renamed = |name: String| -> Option<String> {
            let own = path_of(&name);
            if is_at_or_below(own, path) {
                return None;
            }
            let rest = match parent {
                "" => Some(own),
                parent => own.strip_prefix(parent).and_then(|rest| rest.strip_prefix('.')),
            };
            let (step, below) = rest.map_or(("", ""), |rest| match rest.find('.') {
                Some(end) => rest.split_at(end),
                None => (rest, ""),
            });
            match (removed, step.parse::<usize>()) {
                (Some(removed), Ok(at)) if at > removed => {
                    let prefix = &name[..name.len() - own.len()];
                    Some(format!("{prefix}{}{below}", join(parent, &(at - 1).to_string())))
                }
                _ => Some(name),
            }
        };
        let values = std::mem::take(&mut self.values).into_iter();
        self.values = values.filter_map(|(name, value)| Some((renamed(name)?, value))).collect();
        self.open = std::mem::take(&mut self.open).into_iter().filter_map(renamed).collect();
        self.null = std::mem::take(&mut self.null).into_iter().filter_map(renamed).collect();
    }
}

/// Returns the path that a name is about.
fn path_of(name: &str) -> &str {
    PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
}

fn is_at_or_below(path: &str, root: &str) -> bool {
    root.is_empty()
        || path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Returns a path with one more step.
pub(super) fn join(path: &str, step: &str) -> String {
    if path.is_empty() { step.to_owned() } else { format!("{path}.{step}") }
}

/// Returns a key as a step of a path.
pub(super) fn step_of(key: &str) -> String {
    if key.is_empty() {
        return "~3".to_owned();
    }
    let step = key.replace('~', "~0").replace('.', "~1");
    match step.strip_prefix('_') {
        Some(rest) => format!("~2{rest}"),
        None => step,
    }
}

/// Returns the key that a step of a path is; `None` for the number of an entry.
pub(super) fn key_of(step: &str) -> Option<String> {
    if step == "~3" {
        return Some(String::new());
    }
    let (start, rest) = match step.strip_prefix("~2") {
        Some(rest) => ("_", rest),
        None => ("", step),
    };
    let mut key = start.to_owned();
    let mut parts = rest.split('~');
    key.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let mut characters = part.chars();
        key.push(match characters.next()? {
            '0' => '~',
            '1' => '.',
            _ => return None,
        });
        key.push_str(characters.as_str());
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&str, &str)]) -> Fields {
        Fields::new(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn every_key_round_trips_through_its_step() {
        for key in ["a", "", "a.b", "~", "~n0", "_json", "__", "a_b", "~1", "ü.~_", "0"] {
            let step = step_of(key);
            assert!(!step.contains('.') && !step.starts_with('_') && !step.is_empty(), "{key}");
            assert_eq!(key_of(&step).as_deref(), Some(key));
        }
        assert_eq!(key_of("~n0"), None);
    }

    #[test]
    fn buttons_add_and_remove_items() {
        let mut form = fields(&[("a.0.x", "1"), ("a.1.x", "2"), ("_json.a.2", "{}"), ("b", "z")]);
        assert!(form.apply_button("add:a"));
        assert!(form.open.contains("a.3"));
        assert!(form.apply_button("remove:a.0"));
        assert_eq!(
            (form.get("a.0.x"), form.json("a.1"), form.get("b")),
            (Some("2"), Some("{}"), Some("z"))
        );
        assert!(form.open.contains("a.2") && !form.mentions("a.3"));
        assert!(form.apply_button("entry:m") && form.open.contains("m.~n0"));
        assert!(form.apply_button("entry:m") && form.open.contains("m.~n1"));
        assert!(!form.apply_button("run") && !form.apply_button("what:a"));
    }

    #[test]
    fn ends_of_lines_are_those_of_the_input() {
        assert_eq!(fields(&[("a", "x\r\ny")]).get("a"), Some("x\ny"));
    }
}

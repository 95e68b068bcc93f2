//! Where two JSON values differ. Pure.

use std::collections::HashMap;

use crate::exact::Json;
use crate::text::shortened;

/// The maximum length of a name in a path, and the length beyond which a path has no more parts, in bytes.
const MAX_NAME: usize = 60;
const MAX_PATH: usize = 300;

/// A place where two values differ.
#[derive(Debug, PartialEq)]
pub(crate) struct Difference<'a> {
    /// The place, such as `orders[0].total`; empty for the whole value.
    pub(crate) path: String,
    /// What the first value has there, if anything.
    pub(crate) one: Option<&'a Json>,
    /// What the other value has there, if anything.
    pub(crate) other: Option<&'a Json>,
}

/// The first places where two values differ, in their order, and whether there are more.
#[derive(Debug, PartialEq)]
pub(crate) struct Differences<'a> {
    pub(crate) places: Vec<Difference<'a>>,
    pub(crate) has_more: bool,
}

/// Returns at most `most` places where two values differ. Objects are compared by their members, in any order, and arrays
/// by position.
pub(crate) fn differences<'a>(one: &'a Json, other: &'a Json, most: usize) -> Differences<'a> {
    let mut found = Differences { places: Vec::new(), has_more: false };
    let mut path = String::new();
    found.add(&mut path, Some(one), Some(other), most);
    found
}

impl<'a> Differences<'a> {
    fn add(&mut self, path: &mut String, one: Option<&'a Json>, other: Option<&'a Json>, most: usize) {
        if self.has_more || one == other {
            return;
        }
        if let (Some(Json::Array(ones)), Some(Json::Array(others))) = (one, other) {
            for at in 0..ones.len().max(others.len()) {
                self.add_below(path, &format!("[{at}]"), (ones.get(at), others.get(at)), most);
            }
            return;
        }
        if let (Some(ones), Some(others)) = (Members::of(one), Members::of(other)) {
            for (name, value) in ones.all {
                let other = others.by_name.get(name.as_str()).copied();
                self.add_below(path, &part(path, name), (Some(value), other), most);
            }
            for (name, value) in others.all {
                if !ones.by_name.contains_key(name.as_str()) {
                    self.add_below(path, &part(path, name), (None, Some(value)), most);
                }
            }
            return;
        }
        match self.places.len() == most {
            true => self.has_more = true,
            false => self.places.push(Difference { path: path.clone(), one, other }),
        }
    }

    fn add_below(
        &mut self,
        path: &mut String,
        part: &str,
        (one, other): (Option<&'a Json>, Option<&'a Json>),
        most: usize,
    ) {
        let length = path.len();
        match length < MAX_PATH {
            true => path.push_str(part),
            false if path.ends_with('…') => {}
            false => path.push('…'),
        }
        self.add(path, one, other, most);
        path.truncate(length);
    }
}

/// The members of an object in which no name is given twice.
struct Members<'a> {
    all: &'a [(String, Json)],
    by_name: HashMap<&'a str, &'a Json>,
}

impl<'a> Members<'a> {
    fn of(json: Option<&'a Json>) -> Option<Self> {
        let Some(Json::Object(all)) = json else { return None };
        let by_name: HashMap<_, _> = all.iter().map(|(name, value)| (name.as_str(), value)).collect();
        (by_name.len() == all.len()).then_some(Self { all, by_name })
    }
}

/// Returns a name as the next part of a path: a JSON string unless it is a plain word.
fn part(path: &str, name: &str) -> String {
    let dot = if path.is_empty() { "" } else { "." };
    let is_plain = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    let (shown, cut) = shortened(name, MAX_NAME);
    let more = if cut > 0 { "…" } else { "" };
    match !shown.is_empty() && shown.chars().all(is_plain) {
        true => format!("{dot}{shown}{more}"),
        false => format!("{dot}{}{more}", Json::Text(shown.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(one: &str, other: &str, most: usize) -> (Vec<String>, bool) {
        let (one, other) = (Json::parse(one).unwrap(), Json::parse(other).unwrap());
        let found = differences(&one, &other, most);
        let text = |json: Option<&Json>| json.map_or("-".to_owned(), ToString::to_string);
        let line = |one: &Difference<'_>| format!("{} {} {}", one.path, text(one.one), text(one.other));
        (found.places.iter().map(line).collect(), found.has_more)
    }

    #[test]
    fn each_place_is_named_with_both_values() {
        let one = r#"{"a": 1, "b": {"c": [1, 2, 3]}, "only": null}"#;
        let other = r#"{"b": {"c": [1, 5]}, "a": 1, "new one": true}"#;
        let expected = ["b.c[1] 2 5", "b.c[2] 3 -", "only null -", "\"new one\" - true"];
        assert_eq!(shown(one, other, 9), (expected.map(str::to_owned).to_vec(), false));
    }

    #[test]
    fn values_of_different_kinds_differ_as_a_whole() {
        assert_eq!(shown("[1]", "1", 9), (vec![" [1] 1".to_owned()], false));
        assert_eq!(shown("1.0", "1", 9), (vec![" 1.0 1".to_owned()], false));
        assert_eq!(shown(r#"{"a": 1, "a": 2}"#, r#"{"a": 2}"#, 9).0.len(), 1);
    }

    #[test]
    fn equal_values_have_no_differences_whatever_the_order_of_members() {
        assert_eq!(shown(r#"{"a": [], "b": {}}"#, r#"{"b": {}, "a": []}"#, 9), (Vec::new(), false));
    }

    #[test]
    fn paths_are_bounded() {
        let long = "n".repeat(10_000);
        let deep =
            |value: u32| (0..40).fold(value.to_string(), |json, _| format!(r#"{{"{long}":[{json}]}}"#));
        let (one, other) = (Json::parse(&deep(1)).unwrap(), Json::parse(&deep(2)).unwrap());
        let found = differences(&one, &other, 9);
        assert_eq!(found.places.len(), 1);
        assert!(found.places[0].path.len() < MAX_PATH + 2 * MAX_NAME, "{}", found.places[0].path);
        assert!(found.places[0].path.ends_with('…'));
    }

    #[test]
    fn their_number_is_bounded() {
        assert_eq!(shown("[1, 2, 3]", "[4, 2, 6]", 2).0.len(), 2);
        assert!(!shown("[1, 2, 3]", "[4, 2, 6]", 2).1);
        assert_eq!(
            shown("[1, 2, 3]", "[4, 5, 6]", 2),
            (vec!["[0] 1 4".to_owned(), "[1] 2 5".to_owned()], true)
        );
    }
}

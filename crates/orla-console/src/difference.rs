//! Where two JSON values differ. Pure.

use std::collections::{HashMap, HashSet};

use crate::exact::Json;

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
        if self.has_more {
            return;
        }
        let length = path.len();
        match (one, other) {
            (Some(Json::Array(ones)), Some(Json::Array(others))) => {
                for at in 0..ones.len().max(others.len()) {
                    path.push_str(&format!("[{at}]"));
                    self.add(path, ones.get(at), others.get(at), most);
                    path.truncate(length);
                }
            }
            (Some(Json::Object(ones)), Some(Json::Object(others)))
                if is_unambiguous(ones) && is_unambiguous(others) =>
            {
                let of_others: HashMap<&str, &Json> =
                    others.iter().map(|(name, value)| (name.as_str(), value)).collect();
                let of_ones: HashMap<&str, &Json> =
                    ones.iter().map(|(name, value)| (name.as_str(), value)).collect();
                let pairs = ones
                    .iter()
                    .map(|(name, value)| (name, Some(value), of_others.get(name.as_str()).copied()));
                let added = others.iter().filter(|(name, _)| !of_ones.contains_key(name.as_str()));
                for (name, one, other) in
                    pairs.chain(added.map(|(name, value)| (name, None, Some(value))))
                {
                    if length > 0 {
                        path.push('.');
                    }
                    path.push_str(&part(name));
                    self.add(path, one, other, most);
                    path.truncate(length);
                }
            }
            (one, other) if one == other => {}
            _ if self.places.len() == most => self.has_more = true,
            (one, other) => self.places.push(Difference { path: path.clone(), one, other }),
        }
    }
}

/// Returns a name as a part of a path: a JSON string unless it is a plain word.
fn part(name: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    match !name.is_empty() && name.chars().all(is_plain) {
        true => name.to_owned(),
        false => Json::Text(name.to_owned()).to_string(),
    }
}

/// Returns whether no name is given twice.
fn is_unambiguous(members: &[(String, Json)]) -> bool {
    let mut names = HashSet::new();
    members.iter().all(|(name, _)| names.insert(name))
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
    fn their_number_is_bounded() {
        assert_eq!(shown("[1, 2, 3]", "[4, 2, 6]", 2).0.len(), 2);
        assert!(!shown("[1, 2, 3]", "[4, 2, 6]", 2).1);
        assert_eq!(
            shown("[1, 2, 3]", "[4, 5, 6]", 2),
            (vec!["[0] 1 4".to_owned(), "[1] 2 5".to_owned()], true)
        );
    }
}

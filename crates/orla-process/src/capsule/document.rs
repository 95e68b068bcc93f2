//! A YAML or JSON text as a tree in which every value knows its place, so that whatever is wrong with
//! it can be reported where it stands.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::Spanned;

use crate::metadata::Position;

/// A value and where it begins.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) at: Position,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    Scalar(Value),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Key {
    pub(crate) at: Position,
    pub(crate) text: String,
}

/// What is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) at: Position,
    pub(crate) problem: String,
}

/// The beginning of a text.
pub(crate) const START: Position = Position { line: 1, column: 1 };

/// Decodes UTF-8, with or without a byte order mark.
///
/// # Errors
/// The place and the byte from which on the text is none.
pub(crate) fn decode(bytes: &[u8]) -> Result<&str, Fault> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    str::from_utf8(bytes).map_err(|err| {
        let good = String::from_utf8_lossy(&bytes[..err.valid_up_to()]);
        let line = good.matches('\n').count() as u64 + 1;
        let column = good.rsplit('\n').next().unwrap_or_default().chars().count() as u64 + 1;
        Fault {
            at: Position { line, column },
            problem: format!("not UTF-8 (at byte {})", err.valid_up_to()),
        }
    })
}

/// Reads a YAML text.
///
/// # Errors
/// What is no YAML, is given twice, or grows beyond the parser's budget.
pub(crate) fn parse_yaml(text: &str) -> Result<Node, Fault> {
    let tree: Spanned<Tree> = serde_saphyr::from_str(text).map_err(|err| {
        let at = err.location().map_or(START, position);
        let message = err.without_snippet().to_string();
        Fault { at, problem: message.split(" at line ").next().unwrap_or(&message).to_owned() }
    })?;
    Ok(tree.into())
}

/// Reads a JSON text (RFC 2 §6.1).
///
/// # Errors
/// As [`parse_yaml`]; and what YAML admits and JSON does not, such as a trailing comma.
pub(crate) fn parse_json(text: &str) -> Result<Node, Fault> {
    let exact: Value = serde_json::from_str(text).map_err(|err| {
        let at = Position { line: err.line() as u64, column: (err.column() as u64).max(1) };
        let message = err.to_string();
        Fault { at, problem: message.split(" at line ").next().unwrap_or(&message).to_owned() }
    })?;
    let mut node = parse_yaml(text)?;
    // The places are the same; where YAML reads a value otherwise, JSON's reading holds.
    node.take_values(&exact);
    Ok(node)
}

impl Node {
    /// The value without the places.
    pub(crate) fn to_json(&self) -> Value {
        match &self.kind {
            Kind::Scalar(value) => value.clone(),
            Kind::List(items) => items.iter().map(Self::to_json).collect(),
            Kind::Map(members) => {
                members.iter().map(|(key, value)| (key.text.clone(), value.to_json())).collect()
            }
        }
    }

    fn take_values(&mut self, exact: &Value) {
        match (&mut self.kind, exact) {
            (Kind::List(items), Value::Array(exact)) => {
                items.iter_mut().zip(exact).for_each(|(item, exact)| item.take_values(exact));
            }
            (Kind::Map(members), Value::Object(exact)) => {
                for (key, value) in members {
                    if let Some(exact) = exact.get(&key.text) {
                        value.take_values(exact);
                    }
                }
            }
            (kind @ Kind::Scalar(_), exact) if !exact.is_array() && !exact.is_object() => {
                *kind = Kind::Scalar(exact.clone());
            }
            _ => {}
        }
    }
}

fn position(location: serde_saphyr::Location) -> Position {
    Position { line: location.line().max(1), column: location.column().max(1) }
}

/// The form in which the parser gives a tree.
enum Tree {
    Scalar(Value),
    List(Vec<Spanned<Self>>),
    Map(Vec<(Spanned<String>, Spanned<Self>)>),
}

impl From<Spanned<Tree>> for Node {
    fn from(tree: Spanned<Tree>) -> Self {
        let kind = match tree.value {
            Tree::Scalar(value) => Kind::Scalar(value),
            Tree::List(items) => Kind::List(items.into_iter().map(Self::from).collect()),
            Tree::Map(members) => Kind::Map(
                members
                    .into_iter()
                    .map(|(key, value)| {
                        (Key { at: position(key.referenced), text: key.value }, value.into())
                    })
                    .collect(),
            ),
        };
        Self { at: position(tree.referenced), kind }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_unit<E: Error>(self) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Null))
    }

    fn visit_none<E: Error>(self) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        Tree::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Tree::Map(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn place(node: &Node, path: &[&str]) -> (u64, u64) {
        let Some((first, rest)) = path.split_first() else { return (node.at.line, node.at.column) };
        match &node.kind {
            Kind::Map(members) => {
                place(&members.iter().find(|(key, _)| key.text == *first).unwrap().1, rest)
            }
            Kind::List(items) => place(&items[first.parse::<usize>().unwrap()], rest),
            Kind::Scalar(_) => panic!("no {first}"),
        }
    }

    #[test]
    fn every_value_knows_its_place_in_both_forms() {
        let yaml = parse_yaml("a: 1\nb:\n  c: [x, true]\n  d: 1.50\n").unwrap();
        assert_eq!(yaml.to_json(), json!({"a": 1, "b": {"c": ["x", true], "d": 1.5}}));
        assert_eq!((place(&yaml, &["b", "c", "1"]), place(&yaml, &["b", "d"])), ((3, 10), (4, 6)));
        let json = parse_json(
            "{\n\t\"a\": \"\\ud83d\\ude00\",\n\t\"b\": {\"c\": [\"y\", null, \"true\"]}\n}\n",
        )
        .unwrap();
        assert_eq!(json.to_json(), json!({"a": "😀", "b": {"c": ["y", null, "true"]}}));
        assert_eq!((place(&json, &["a"]), place(&json, &["b", "c", "1"])), ((2, 7), (3, 19)));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let fault = |fault: Fault| format!("{}:{}: {}", fault.at.line, fault.at.column, fault.problem);
        let json = |text: &str| fault(parse_json(text).unwrap_err());
        assert_eq!(json("{\"a\": 1,\n}"), "2:1: trailing comma");
        assert_eq!(json("{\"a\": 1"), "1:7: EOF while parsing an object");
        assert!(
            json("{\"a\": 1,\n \"a\": 2}").starts_with("2:2: "),
            "{}",
            json("{\"a\": 1,\n \"a\": 2}")
        );
        assert!(fault(parse_yaml("a: [1\nb: 2\n").unwrap_err()).starts_with("2:"));
        assert_eq!(fault(decode(b"a: 1\nb: \xff").unwrap_err()), "2:4: not UTF-8 (at byte 8)");
        assert_eq!(decode(b"\xef\xbb\xbfa").unwrap(), "a");
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in r#"[-a-c:{}\[\],&*!'"\\#|>\t\n ?0-9.]{0,60}"#) {
            let _ = (parse_yaml(&text), parse_json(&text));
        }
    }
}

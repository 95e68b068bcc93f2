//! Parses plain data directly to values, without a tree.
//!
//! Most data consists of scalars and collections, without a mistake. Such a text is parsed in one pass
//! into its values, which takes a third of the time and memory of its tree. The tree handles everything
//! else: sugar, marks, metadata, unusual tokens, and every mistake. This reader stops at the first of
//! these without a report.

use super::number;
use super::reader::{CLASSES, Class, MAX_NESTING};
use super::tree::Names;
use crate::map::{Map, Set};
use crate::scalar::{Instant, Keyword, Symbol, Uuid};
use crate::sequence::{List, Vector};
use crate::value::Value;

/// Returns all values of a text; `None` if it contains anything that is not plain.
pub(super) fn values(text: &str) -> Option<Vec<Value>> {
    let mut reader = Plain {
        text,
        at: 0,
        open: Vec::new(),
        pending: Vec::new(),
        names: Names::default(),
        keywords: Vec::new(),
    };
    while let Some(&byte) = text.as_bytes().get(reader.at) {
        reader.step(byte)?;
    }
    reader.open.is_empty().then_some(reader.pending)
}

struct Plain<'t> {
    text: &'t str,
    at: usize,
    /// The closing brackets of the open collections, and the index of their first item among the pending
    /// ones.
    open: Vec<(Closing, usize)>,
    /// Finished values of the open collections.
    pending: Vec<Value>,
    names: Names,
    /// The keyword of each name, so that equal names share one allocation.
    keywords: Vec<Keyword>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Closing {
    List,
    Vector,
    Map,
    Set,
}

impl Plain<'_> {
    /// Reads one token that begins with this byte.
    fn step(&mut self, byte: u8) -> Option<()> {
        match CLASSES[usize::from(byte)] {
            Class::Space => self.at += 1,
            Class::Token if byte == b'#' => {
                if self.text.as_bytes().get(self.at + 1) != Some(&b'{') {
                    return None;
                }
                self.at += 1;
                self.begin(Closing::Set)?;
            }
            Class::Token => self.token()?,
            Class::Delimiter => match byte {
                b'(' => self.begin(Closing::List)?,
                b'[' => self.begin(Closing::Vector)?,
                b'{' => self.begin(Closing::Map)?,
                b')' | b']' | b'}' => self.end(byte)?,
                b'"' => self.string()?,
                b';' => {
                    let rest = &self.text.as_bytes()[self.at..];
                    self.at += memchr::memchr(b'\n', rest).unwrap_or(rest.len());
                }
                _ => return None,
            },
            Class::Wide | Class::Control => return None,
        }
        Some(())
    }

    fn begin(&mut self, closing: Closing) -> Option<()> {
        self.at += 1;
        self.open.push((closing, self.pending.len()));
        (self.open.len() <= MAX_NESTING).then_some(())
    }

    fn end(&mut self, byte: u8) -> Option<()> {
        self.at += 1;
        let (closing, first) = self.open.pop()?;
        let expected = match closing {
            Closing::List => b')',
            Closing::Vector => b']',
            Closing::Map | Closing::Set => b'}',
        };
        if byte != expected {
            return None;
        }
        let items = self.pending.drain(first..);
        let value = match closing {
            Closing::List => Value::List(List::new(items.collect()).ok()?),
            Closing::Vector => Value::Vector(Vector::new(items.collect()).ok()?),
            Closing::Map => Value::Map(map(items)?),
            Closing::Set => Value::Set(set(items)?),
        };
        self.pending.push(value);
        Some(())
    }

    fn token(&mut self) -> Option<()> {
        let bytes = self.text.as_bytes();
        let start = self.at;
        let len = bytes[start..].iter().position(|&byte| CLASSES[usize::from(byte)] != Class::Token);
        let end = len.map_or(bytes.len(), |len| start + len);
        if bytes.get(end).is_some_and(|&byte| CLASSES[usize::from(byte)] == Class::Wide) {
            return None;
        }
        self.at = end;
        let token = &self.text[start..end];
        let value = match token.as_bytes() {
            [b'0'..=b'9', ..] | [b'-' | b'+', b'0'..=b'9', ..] => numeric(token)?,
            bytes if bytes.len() == 36 => return None,
            b"nil" => Value::Nil,
            b"true" => Value::Bool(true),
            b"false" => Value::Bool(false),
            [b':', name @ ..] => {
                // A single `:` and `:-` are marks; the tree handles quoted names and names with unusual
                // ends.
                let is_plain = |byte: u8| !matches!(byte, b':' | b'/');
                let (&first, &last) = (name.first()?, name.last()?);
                if name == b"-" || !is_plain(first) || !is_plain(last) {
                    return None;
                }
                Value::Keyword(self.keyword(&token[1..]))
            }
            b"?" | [b'\'', ..] => return None,
            _ => Value::Symbol(Symbol::new(token)),
        };
        self.pending.push(value);
        Some(())
    }

    fn keyword(&mut self, name: &str) -> Keyword {
        let id = self.names.intern(name) as usize;
        // Names are numbered in the order of their first occurrence.
        if id == self.keywords.len() {
            self.keywords.push(Keyword::new(name));
        }
        self.keywords[id].clone()
    }

    /// Returns a string without an escape.
    fn string(&mut self) -> Option<()> {
        let start = self.at + 1;
        let rest = &self.text.as_bytes()[start..];
        let len = memchr::memchr2(b'"', b'\\', rest)?;
        let is_multiline = len == 0 && rest.get(1) == Some(&b'"');
        if rest[len] == b'\\' || is_multiline {
            return None;
        }
        self.at = start + len + 1;
        self.pending.push(Value::from(&self.text[start..start + len]));
        Some(())
    }
}

/// Returns a token that begins as a number does.
fn numeric(token: &str) -> Option<Value> {
    if token.len() >= 20
        && let Some(value) =
            Uuid::parse(token).map(Value::Uuid).or_else(|| Instant::parse(token).map(Value::Instant))
    {
        return Some(value);
    }
    number::number(token)
}

/// Creates a map of alternating keys and values; `None` if a key is repeated.
fn map(items: impl ExactSizeIterator<Item = Value>) -> Option<Map> {
    let len = items.len();
    let map = Map::of(Pairs(items)).ok()?;
    (map.len() * 2 == len).then_some(map)
}

/// Creates a set of these members; `None` if one is repeated.
fn set(items: impl ExactSizeIterator<Item = Value>) -> Option<Set> {
    let mut set = Set::new();
    for member in items {
        if !set.insert(member).ok()? {
            return None;
        }
    }
    Some(set)
}

/// Iterates over pairs of items. A last single item is left out.
struct Pairs<I>(I);

impl<I: ExactSizeIterator<Item = Value>> Iterator for Pairs<I> {
    type Item = (Value, Value);

    fn next(&mut self) -> Option<Self::Item> {
        Some((self.0.next()?, self.0.next()?))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let pairs = self.0.len() / 2;
        (pairs, Some(pairs))
    }
}

impl<I: ExactSizeIterator<Item = Value>> ExactSizeIterator for Pairs<I> {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Source;
    use super::super::data::values_of_tree;
    use super::*;
    use crate::arbitrary::any_value;

    /// Texts of tokens that are plain, that are not, and that are mistakes.
    fn any_text() -> impl Strategy<Value = String> {
        let tokens = [
            "(",
            ")",
            "[",
            "]",
            "{",
            "}",
            "#{",
            "#(",
            "#_",
            "#|",
            "|#",
            "'",
            "`",
            "~",
            "~@",
            "^",
            "@",
            "\\",
            " ",
            " ",
            " ",
            ",",
            "\n",
            ";c\n",
            ";",
            "\"",
            "\"a\"",
            "\"\"",
            "\"\"\"",
            "\"\\n\"",
            "\"é\"",
            "a",
            "b",
            "é",
            "a'",
            "'a",
            "?",
            "x?",
            ":",
            ":-",
            ":a",
            ":b",
            ":a/b",
            "::a",
            ":a:",
            ":/",
            ":\"x y\"",
            "nil",
            "true",
            "false",
            "1",
            "-1",
            "+1",
            "-",
            "1.5",
            "1e3",
            "0x1f",
            "1_0",
            "1_",
            "12x",
            "12345678901234567890123",
            "##Inf",
            "##NaN",
            "2026-11-20T10:00:00Z",
            "550e8400-e29b-41d4-a716-446655440000",
            "a50e8400-e29b-41d4-a716-446655440000",
            "\u{feff}",
            "\u{1}",
            "\u{a0}",
        ];
        let token = prop::sample::select(tokens.to_vec());
        prop_oneof![prop::collection::vec(token, 0..24).prop_map(|tokens| tokens.concat()), "\\PC*",]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4_096, ..ProptestConfig::default() })]

        #[test]
        fn reading_without_a_tree_equals_reading_with_one(text in any_text()) {
            if let Some(plain) = values(&text) {
                let general = values_of_tree(&Source::new("", &*text));
                prop_assert_eq!(format!("{general:?}"), format!("Ok({plain:?})"));
            }
        }

        #[test]
        fn printed_values_are_read_without_a_tree_as_with_it(value in any_value()) {
            let text = value.pr_str();
            if let Some(plain) = values(&text) {
                let general = values_of_tree(&Source::new("", &*text));
                prop_assert_eq!(format!("{general:?}"), format!("Ok({plain:?})"));
            }
        }
    }

    #[test]
    fn usual_data_is_plain_and_the_rest_is_left_to_the_tree() {
        for text in [
            "",
            "1",
            "{:a [1 2.5 nil] \"b\" #{x}} ; c",
            "(f :a/b)",
            "2026-11-20T10:00:00Z",
            "{1 {}, 2 ()}",
        ] {
            assert!(values(text).is_some(), "{text}");
        }
        for text in [
            "'x",
            "^a b",
            "#(f)",
            "#_ 1",
            "?",
            ":",
            ":-",
            ":\"a b\"",
            "\"\\n\"",
            "\"\"\"a\"\"\"",
            "é",
            "(",
            ")",
            "[)",
            "{1}",
            "{1 2 1 3}",
            "#{1 1}",
            "12x",
            "::a",
            ":a/",
            "`a",
            "~a",
            "\u{feff}1",
        ] {
            assert!(values(text).is_none(), "{text}");
        }
    }

    #[test]
    fn deeply_nested_text_is_left_to_the_tree() {
        let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert!(values(&nested(MAX_NESTING)).is_some());
        assert!(values(&nested(MAX_NESTING + 1)).is_none());
    }
}

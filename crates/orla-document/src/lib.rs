//! Reads a YAML or JSON text as a tree with the position of every node. All texts that users write are
//! read here: the configuration (RFC 1 §6.2), manifests (RFC 2 §6), front matter.
//!
//! JSON is a subset of YAML's flow style, so that both give the same tree and the same messages. If a text must be
//! JSON, [`parse_json`] checks that.
//!
//! # How it works
//!
//! The parser's events are folded over a stack into [`Node`]s. Scalars stay text. The key that reads a
//! text decides its type (a number, a path, a word of a list), or YAML 1.2's core schema does in
//! [`Node::to_json`]. Merge keys (`<<`) are resolved; a mapping's own members take precedence.
//!
//! # Bounds
//!
//! Depth, and the weight of the tree with every alias expanded. A text that exceeds the weight is an
//! error at the alias that exceeds it. The code that reads the file limits the size of the text itself.
//!
//! # Deliberately absent
//!
//! Tags other than `!!str`, YAML 1.1's booleans (`yes`, `off`), several documents in one text, and
//! keys that are not scalars.

#![warn(missing_docs)]

mod builder;
mod scalar;

use granit_parser::{Marker, Parser};
use serde_json::Value;

use builder::{Builder, MAX_WEIGHT, reference_at, tab_near};

/// The maximum number of bytes of a key or tag in a message.
const SHOWN: usize = 60;

/// A position in a text; both numbers are counted from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

impl Position {
    /// The beginning of a text.
    pub const START: Self = Self { line: 1, column: 1 };

    fn of(marker: &Marker) -> Self {
        Self { line: marker.line().max(1), column: marker.col() + 1 }
    }
}

/// A value and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The beginning; the content of an alias begins at its anchor.
    pub at: Position,
    /// The kind of value.
    pub kind: Kind,
}

/// The kind of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// One word, text or number.
    Scalar(Scalar),
    /// Values in order.
    List(Vec<Node>),
    /// Keys with their values, in the order of the text. Keys are distinct.
    Map(Vec<(Key, Node)>),
}

/// A text, and whether it was written without quotes, and so may be a number, a boolean or null.
#[derive(Clone, Debug, PartialEq)]
pub struct Scalar {
    /// The text, without quotes.
    pub text: String,
    /// Whether it was written without quotes.
    pub plain: bool,
}

/// The key of a mapping and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// The beginning.
    pub at: Position,
    /// The key, without quotes.
    pub text: String,
}

/// An error of the text itself, with its place.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}:{}: {problem}", .at.line, .at.column)]
pub struct SyntaxError {
    /// The position.
    pub at: Position,
    /// The error.
    pub problem: String,
}

/// Parses a whole text, with or without a byte order mark; `None` if it is empty or contains only
/// comments and `null`.
///
/// # Errors
/// The first thing that is wrong with it.
pub fn parse(text: &str) -> Result<Option<Node>, SyntaxError> {
    parse_within(text, MAX_WEIGHT)
}

/// Like [`parse`], with another maximum weight of the tree: the bytes of its texts, and 64 for each
/// node, once aliases are expanded. For generated documents.
///
/// # Errors
/// As [`parse`].
pub fn parse_within(text: &str, max_weight: usize) -> Result<Option<Node>, SyntaxError> {
    let text = without_mark(text);
    let mut builder = Builder::new(text, max_weight);
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|err| {
            let at = Position::of(err.marker());
            let known = tab_near(text, at)
                .or_else(|| reference_at(text, at))
                .or_else(|| unknown_anchor(text, at, &err.info()));
            known.unwrap_or_else(|| error(at, &plainly(&err.info())))
        })?;
        builder.take(event, span)?;
    }
    Ok(builder.root.filter(|node| !node.is_null()))
}

/// Parses a text that must be JSON.
///
/// # Errors
/// As [`parse`], and also what YAML admits and JSON does not, such as a trailing comma.
pub fn parse_json(text: &str) -> Result<Option<Node>, SyntaxError> {
    let text = without_mark(text);
    let exact: Value = serde_json::from_str(text).map_err(|err| {
        // serde_json counts columns in bytes.
        let line = text.lines().nth(err.line().max(1) - 1).unwrap_or_default();
        let before = line.bytes().take(err.column()).filter(|byte| byte & 0xc0 != 0x80).count();
        let message = err.to_string();
        let problem = message.split(" at line ").next().unwrap_or(&message);
        error(Position { line: err.line().max(1), column: before.max(1) }, problem)
    })?;
    let mut root = parse(text)?;
    if let Some(root) = &mut root {
        // The positions are the same. If YAML parses a text differently, JSON's result is used.
        root.take_texts(&exact);
    }
    Ok(root)
}

/// Decodes UTF-8.
///
/// # Errors
/// Where the text stops being UTF-8.
pub fn decode(bytes: &[u8]) -> Result<&str, SyntaxError> {
    str::from_utf8(bytes).map_err(|err| {
        let good = String::from_utf8_lossy(&bytes[..err.valid_up_to()]);
        let good = without_mark(&good);
        let line = good.matches('\n').count() + 1;
        let column = good.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let problem = format!("not UTF-8 (at byte {})", err.valid_up_to());
        SyntaxError { at: Position { line, column }, problem }
    })
}

/// Returns the error of an alias without an anchor, if that is the parser's error.
fn unknown_anchor(text: &str, at: Position, info: &str) -> Option<SyntaxError> {
    if !info.contains("unknown anchor") {
        return None;
    }
    let line = text.lines().nth(at.line.checked_sub(1)?)?;
    let rest: String = line.chars().skip(at.column.checked_sub(1)?).collect();
    let is_name = |c: &char| !c.is_whitespace() && !",[]{}".contains(*c);
    let name: String = rest.strip_prefix('*')?.chars().take_while(is_name).collect();
    let name = excerpt(&name, SHOWN);
    Some(error(at, &format!("`*{name}` refers to nothing: no `&{name}` comes before it")))
}

/// Simplifies the parser's message.
fn plainly(info: &str) -> String {
    match info {
        "recursion limit exceeded" => "nested too deep".to_owned(),
        "mapping values are not allowed in this context" => {
            "a colon with a space after it begins a new key here: indent the line as the key before it, or put the text in quotes".to_owned()
        }
        "unclosed bracket '['" => "`[` is never closed: `]` is missing".to_owned(),
        "unclosed bracket '{'" => "`{` is never closed: `}` is missing".to_owned(),
        _ => excerpt(info, 2 * SHOWN),
    }
}

fn error(at: Position, problem: &str) -> SyntaxError {
    SyntaxError { at, problem: problem.to_owned() }
}

fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

impl Node {
    /// Returns the content of an empty text: null, at its beginning.
    pub fn nothing() -> Self {
        let scalar = Scalar { text: String::new(), plain: true };
        Self { at: Position::START, kind: Kind::Scalar(scalar) }
    }

    /// Returns whether it is null, explicitly or by omission.
    pub fn is_null(&self) -> bool {
        self.as_scalar().is_some_and(Scalar::is_null)
    }

    /// Returns the scalar, if the node is one.
    pub fn as_scalar(&self) -> Option<&Scalar> {
        match &self.kind {
            Kind::Scalar(scalar) => Some(scalar),
            Kind::List(_) | Kind::Map(_) => None,
        }
    }

    /// Returns the text, unless the node is a number, a boolean or null.
    pub fn as_text(&self) -> Option<&str> {
        self.as_scalar()?.as_text()
    }

    /// Returns the position of the part at a path such as `properties.tags[0]`, or of its nearest
    /// existing ancestor.
    pub fn place_of(&self, path: &str) -> Position {
        let path = path.strip_prefix('.').unwrap_or(path);
        let part = match &self.kind {
            Kind::Scalar(_) => None,
            Kind::List(items) => path.strip_prefix('[').and_then(|path| {
                let (index, rest) = path.split_once(']')?;
                Some((items.get(index.parse::<usize>().ok()?)?, rest))
            }),
            Kind::Map(pairs) => pairs.iter().find_map(|(key, value)| {
                let rest = path.strip_prefix(&*key.text).filter(|_| !key.text.is_empty())?;
                (rest.is_empty() || rest.starts_with(['.', '['])).then_some((value, rest))
            }),
        };
        part.map_or(self.at, |(node, rest)| node.place_of(rest))
    }

    /// Returns the value without positions, by YAML 1.2's core schema. Numbers that JSON cannot
    /// represent, such as `.inf`, stay texts.
    pub fn to_json(&self) -> Value {
        match &self.kind {
            Kind::Scalar(scalar) => scalar.to_json(),
            Kind::List(items) => items.iter().map(Self::to_json).collect(),
            Kind::Map(pairs) => {
                pairs.iter().map(|(key, value)| (key.text.clone(), value.to_json())).collect()
            }
        }
    }

    /// Returns the value as JSON text. Numbers are written as in the document if JSON allows that form.
    pub fn to_json_text(&self) -> String {
        let mut out = String::new();
        self.write_json(&mut out);
        out
    }

    fn write_json(&self, out: &mut String) {
        match &self.kind {
            Kind::Scalar(scalar) => out.push_str(&scalar.to_json_text()),
            Kind::List(items) => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    item.write_json(out);
                }
                out.push(']');
            }
            Kind::Map(pairs) => {
                out.push('{');
                for (at, (key, value)) in pairs.iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    out.push_str(&Value::from(&*key.text).to_string());
                    out.push(':');
                    value.write_json(out);
                }
                out.push('}');
            }
        }
    }

    fn take_texts(&mut self, exact: &Value) {
        match (&mut self.kind, exact) {
            (Kind::List(items), Value::Array(exact)) => {
                items.iter_mut().zip(exact).for_each(|(item, exact)| item.take_texts(exact));
            }
            (Kind::Map(pairs), Value::Object(exact)) if pairs.len() == exact.len() => {
                // Both are in the order of the text, but the two readers may interpret a key
                // differently.
                for ((key, value), (exact_key, exact)) in pairs.iter_mut().zip(exact) {
                    key.text.clone_from(exact_key);
                    value.take_texts(exact);
                }
            }
            (Kind::Scalar(scalar), Value::String(exact)) => scalar.text.clone_from(exact),
            _ => {}
        }
    }

    /// Describes the node for "expected …, got …": `text "loud"`, `number 7`, `a list`.
    pub fn describe(&self) -> String {
        match &self.kind {
            Kind::Scalar(scalar) => scalar.describe(),
            Kind::List(_) => "a list".to_owned(),
            Kind::Map(_) => "a mapping".to_owned(),
        }
    }
}

/// Returns the first `limit` characters of a text, and an ellipsis if there are more.
fn excerpt(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

#[cfg(test)]
mod tests;

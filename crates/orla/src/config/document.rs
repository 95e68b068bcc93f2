//! A YAML or JSON text as a tree that remembers where everything stood.
//!
//! JSON is read by the same reader: it is a subset of YAML's flow style, so that both forms of the
//! configuration (RFC 1 §6.2 and its draft) give the same tree and the same messages.
//!
//! # How it works
//!
//! The parser's events are folded over a stack into [`Node`]s. Scalars stay text: what a text *is*
//! (a number, a path, a word of a list) is decided by the key that asks for it.
//!
//! # Bounds
//!
//! Depth, and the weight of the tree with every alias expanded: a text that explodes is an error, at
//! the alias that goes too far. The size of the text itself is bounded by whoever reads the file.
//!
//! # Deliberately absent
//!
//! Merge keys, tags other than `!!str`, several documents in one text, and keys that are no scalars.

use std::collections::HashMap;

use granit_parser::{Event, Parser, ScalarStyle, Span, StructureStyle, Tag};

/// How deep lists and mappings may be nested.
const MAX_DEPTH: usize = 64;
/// Bytes of text, and [`NODE_WEIGHT`] for each node, that a tree may have once aliases are expanded.
const MAX_WEIGHT: usize = 8 * 1024 * 1024;
const NODE_WEIGHT: usize = 64;

/// Where something stands in its text; both counted from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

/// A value and the place where it begins.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) at: Position,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

/// A text and whether it was written without quotes, and so may be a number, a boolean or null.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scalar {
    pub(crate) text: String,
    pub(crate) plain: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Key {
    pub(crate) at: Position,
    pub(crate) text: String,
}

/// What is wrong with a text as such, and where.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SyntaxError {
    pub(crate) at: Position,
    pub(crate) problem: String,
}

/// Reads a whole text; `None` where it is empty or holds nothing but comments and `null`.
pub(crate) fn parse(text: &str) -> Result<Option<Node>, SyntaxError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut builder = Builder::new(text);
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|err| {
            let at = Position { line: err.marker().line(), column: err.marker().col() + 1 };
            tab_near(text, at).unwrap_or(SyntaxError { at, problem: err.info() })
        })?;
        builder.take(event, span)?;
    }
    Ok(builder.root.filter(|node| !node.is_null()))
}

/// Decodes UTF-8, with or without a byte order mark; the error says where the text stops being UTF-8.
pub(crate) fn decode(bytes: &[u8]) -> Result<&str, SyntaxError> {
    std::str::from_utf8(bytes).map_err(|err| {
        let good = String::from_utf8_lossy(&bytes[..err.valid_up_to()]);
        let line = good.matches('\n').count() + 1;
        let column = good.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let problem = format!("not UTF-8 text, from byte {}", err.valid_up_to());
        SyntaxError { at: Position { line, column }, problem }
    })
}

impl Node {
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.kind, Kind::Scalar(scalar) if scalar.is_null())
    }

    /// What it is, for "expected …, got …": `text "loud"`, `number 7`, `a list`.
    pub(crate) fn describe(&self) -> String {
        match &self.kind {
            Kind::Scalar(scalar) => scalar.describe(),
            Kind::List(_) => "a list".to_owned(),
            Kind::Map(_) => "a mapping".to_owned(),
        }
    }
}

impl Scalar {
    /// YAML 1.2's core schema: no text, `~` and `null`.
    pub(crate) fn is_null(&self) -> bool {
        self.plain && matches!(self.text.as_str(), "" | "~" | "null" | "Null" | "NULL")
    }

    /// The boolean it is, if it is one.
    pub(crate) fn as_bool(&self) -> Option<bool> {
        match self.text.as_str() {
            "true" | "True" | "TRUE" if self.plain => Some(true),
            "false" | "False" | "FALSE" if self.plain => Some(false),
            _ => None,
        }
    }

    /// Whether it reads as a number: `7`, `-1.5e3`, `.inf`.
    pub(crate) fn is_number(&self) -> bool {
        let digits = self.text.strip_prefix(['-', '+']).unwrap_or(&self.text);
        let starts =
            digits.strip_prefix('.').unwrap_or(digits).starts_with(|c: char| c.is_ascii_digit());
        let special = matches!(digits, ".inf" | ".Inf" | ".INF" | ".nan" | ".NaN" | ".NAN");
        self.plain && (special || starts && digits.parse::<f64>().is_ok())
    }

    /// The text it is, unless it is a number, a boolean or null.
    pub(crate) fn as_text(&self) -> Option<&str> {
        let other = self.is_null() || self.as_bool().is_some() || self.is_number();
        (!other).then_some(self.text.as_str())
    }

    fn describe(&self) -> String {
        if self.is_null() {
            return "nothing".to_owned();
        }
        if self.is_number() || self.as_bool().is_some() {
            return self.text.clone();
        }
        let mut shown: String = self.text.chars().take(60).collect();
        if shown.len() < self.text.len() {
            shown.push('…');
        }
        format!("text {shown:?}")
    }
}

struct Builder<'a> {
    lines: Vec<&'a str>,
    open: Vec<Open>,
    anchors: HashMap<usize, (Node, usize)>,
    weight: usize,
    documents: usize,
    root: Option<Node>,
}

/// A list or mapping whose end has not come yet.
struct Open {
    node: Node,
    key: Option<Key>,
    /// The keys of a mapping, with their lines.
    keys: HashMap<String, usize>,
    block: bool,
    anchor: usize,
    /// Weight of the tree before it began.
    before: usize,
}

impl<'a> Builder<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            lines: text.lines().collect(),
            open: Vec::new(),
            anchors: HashMap::new(),
            weight: 0,
            documents: 0,
            root: None,
        }
    }

    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), SyntaxError> {
        let at = Position { line: span.start.line(), column: span.start.col() + 1 };
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(error(at, "a second document begins: only one is read"));
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                let plain = plain(style, tag.as_deref(), at)?;
                let before = self.weight;
                self.weigh(NODE_WEIGHT + text.len(), at)?;
                let scalar = Scalar { text: text.into_owned(), plain };
                let node = Node { at, kind: Kind::Scalar(scalar) };
                self.finished(node, anchor, before)?;
            }
            Event::SequenceStart(style, anchor, tag) => {
                self.begin(Kind::List(Vec::new()), style, anchor, tag.as_deref(), at)?;
            }
            Event::MappingStart(style, anchor, tag) => {
                self.begin(Kind::Map(Vec::new()), style, anchor, tag.as_deref(), at)?;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(open) = self.open.pop() {
                    self.finished(open.node, open.anchor, open.before)?;
                }
            }
            Event::Alias(anchor) => {
                let Some((node, weight)) = self.anchors.get(&anchor).cloned() else {
                    return Err(error(at, "an alias cannot stand inside of what it refers to"));
                };
                self.weigh(weight, at)?;
                self.place(node)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn begin(
        &mut self,
        kind: Kind,
        style: StructureStyle,
        anchor: usize,
        tag: Option<&Tag>,
        at: Position,
    ) -> Result<(), SyntaxError> {
        no_tag(tag, at)?;
        if self.open.len() == MAX_DEPTH {
            return Err(error(at, &format!("nested deeper than {MAX_DEPTH} levels")));
        }
        let before = self.weight;
        self.weigh(NODE_WEIGHT, at)?;
        let block = style == StructureStyle::Block;
        let (node, keys) = (Node { at, kind }, HashMap::new());
        self.open.push(Open { node, key: None, keys, block, anchor, before });
        Ok(())
    }

    fn finished(&mut self, node: Node, anchor: usize, before: usize) -> Result<(), SyntaxError> {
        if anchor != 0 {
            self.anchors.insert(anchor, (node.clone(), self.weight - before));
        }
        self.place(node)
    }

    /// Puts a finished node where it belongs: the open list or mapping, or the root.
    fn place(&mut self, node: Node) -> Result<(), SyntaxError> {
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match (&mut open.node.kind, open.key.take()) {
            (Kind::List(items), _) => items.push(node),
            (Kind::Map(pairs), Some(key)) => pairs.push((key, node)),
            (Kind::Map(_), None) => {
                let Kind::Scalar(scalar) = node.kind else {
                    return Err(error(node.at, "a key must be text"));
                };
                if open.block && is_indented_by_tab(&self.lines, node.at) {
                    return Err(error(node.at, TAB));
                }
                if let Some(first) = open.keys.insert(scalar.text.clone(), node.at.line) {
                    let problem = format!("{}: given twice, first on line {first}", scalar.text);
                    return Err(SyntaxError { at: node.at, problem });
                }
                open.key = Some(Key { at: node.at, text: scalar.text });
            }
            (Kind::Scalar(_), _) => {}
        }
        Ok(())
    }

    fn weigh(&mut self, more: usize, at: Position) -> Result<(), SyntaxError> {
        self.weight = self.weight.saturating_add(more);
        if self.weight > MAX_WEIGHT {
            return Err(error(at, "too large: with its aliases expanded, the text exceeds its bound"));
        }
        Ok(())
    }
}

fn plain(style: ScalarStyle, tag: Option<&Tag>, at: Position) -> Result<bool, SyntaxError> {
    if tag.is_some_and(|tag| tag.is_yaml_core_schema_tag("str")) {
        return Ok(false);
    }
    no_tag(tag, at)?;
    Ok(style == ScalarStyle::Plain)
}

fn no_tag(tag: Option<&Tag>, at: Position) -> Result<(), SyntaxError> {
    match tag {
        Some(tag) => Err(error(at, &format!("the tag {} is not supported", tag.original()))),
        None => Ok(()),
    }
}

fn error(at: Position, problem: &str) -> SyntaxError {
    SyntaxError { at, problem: problem.to_owned() }
}

const TAB: &str = "a tab cannot indent YAML: use spaces";

/// The likeliest cause of an error at this place: a tab before the first word of this line or the next.
fn tab_near(text: &str, at: Position) -> Option<SyntaxError> {
    (at.line..=at.line + 1).find_map(|line| {
        let written = text.lines().nth(line - 1)?;
        let tab = written.chars().take_while(|c| c.is_whitespace()).position(|c| c == '\t')?;
        Some(error(Position { line, column: tab + 1 }, TAB))
    })
}

fn is_indented_by_tab(lines: &[&str], at: Position) -> bool {
    let line = lines.get(at.line - 1).copied().unwrap_or_default();
    line.chars().take(at.column - 1).any(|c| c == '\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        let err = parse(text).expect_err(text);
        format!("{}:{}: {}", err.at.line, err.at.column, err.problem)
    }

    #[test]
    fn json_gives_the_same_tree_as_yaml() {
        let yaml = parse("a: 1\nb:\n  - x\n  - 'y'\n").unwrap().unwrap();
        let json =
            parse("\u{feff}{\n\t\"a\": 1,\n\t\"b\": [\"x\", \"y\\u0021\"]\n}\n").unwrap().unwrap();
        let (Kind::Map(yaml), Kind::Map(json)) = (yaml.kind, json.kind) else { panic!("two mappings") };
        assert_eq!(yaml[0].1.kind, json[0].1.kind);
        assert_eq!(json[1].0.at, Position { line: 3, column: 2 });
        let Kind::List(items) = &json[1].1.kind else { panic!("a list") };
        assert_eq!(items[1].kind, Kind::Scalar(Scalar { text: "y!".into(), plain: false }));
    }

    #[test]
    fn nothing_is_nothing() {
        for text in ["", "\n\n", "# a comment\n", "---\n", "null", "~\n"] {
            assert_eq!(parse(text), Ok(None), "{text:?}");
        }
    }

    #[test]
    fn errors_name_their_place() {
        let cases = [
            ("a:\n\tb: 1\n", "2:1: a tab cannot indent YAML: use spaces"),
            ("a: 1\n\tb: 2\n", "2:1: a tab cannot indent YAML: use spaces"),
            ("\ta: 1\n", "1:2: a tab cannot indent YAML: use spaces"),
            ("a: 1\nb: 2\na: 3\n", "3:1: a: given twice, first on line 1"),
            ("a: &a [*a]\n", "1:8: an alias cannot stand inside of what it refers to"),
            ("a: 1\n---\nb: 2\n", "2:1: a second document begins: only one is read"),
            ("a: !include x\n", "1:13: the tag !include is not supported"),
            ("? [x]\n: 1\n", "1:3: a key must be text"),
            ("a: [\n", "1:4: unclosed bracket '['"),
        ];
        for (text, expected) in cases {
            assert_eq!(problem(text), expected, "{text:?}");
        }
    }

    #[test]
    fn aliases_that_explode_are_refused() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..12 {
            let item = format!("*a{}, ", n - 1);
            text.push_str(&format!("a{n}: &a{n} [{}]\n", item.repeat(8)));
        }
        assert!(problem(&text).contains("too large"), "{}", problem(&text));
        let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
        assert!(problem(&deep).contains("64 levels"), "{}", problem(&deep));
    }

    #[test]
    fn scalars_know_what_they_are() {
        let scalar = |text: &str| Scalar { text: text.to_owned(), plain: true };
        for number in ["0", "-1", "1.5", "1e3", ".5", ".inf", "-.INF", ".nan", "+7"] {
            assert!(scalar(number).is_number(), "{number}");
        }
        for text in ["127.0.0.1", "infinity", "nan", "1_000", "0x", "./a", "-", "e3"] {
            assert_eq!(scalar(text).as_text(), Some(text));
        }
        let quoted = Scalar { text: "8080".into(), plain: false };
        assert_eq!((quoted.as_text(), quoted.is_number()), (Some("8080"), false));
    }

    #[test]
    fn text_that_is_not_utf8_is_named_with_its_offset() {
        let err = decode(b"a: 1\nb: \xff").unwrap_err();
        assert_eq!(
            (err.at, err.problem.as_str()),
            (Position { line: 2, column: 4 }, "not UTF-8 text, from byte 8")
        );
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[-a-c:{}\\[\\],&*!'\"#|>\\t\\n ?0-9.]{0,60}") {
            let _ = parse(&text);
        }
    }
}

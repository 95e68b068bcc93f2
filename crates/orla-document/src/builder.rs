//! Folds the parser's events into a tree: resolves aliases and merge keys, and enforces limits.

use std::collections::HashMap;

use granit_parser::{Event, ScalarStyle, Span, StructureStyle, Tag};

use super::{Key, Kind, Node, Position, SHOWN, Scalar, SyntaxError, error, excerpt};

/// The maximum nesting of lists and mappings, as in JSON.
const MAX_DEPTH: usize = 128;
/// The maximum weight of a tree with aliases expanded: the bytes of its text, and [`NODE_WEIGHT`] for
/// each node.
pub(super) const MAX_WEIGHT: usize = 8 * 1024 * 1024;
const NODE_WEIGHT: usize = 64;

/// A tree that is being built.
pub(super) struct Builder<'a> {
    lines: Vec<&'a str>,
    open: Vec<Open>,
    anchors: HashMap<usize, (Node, usize)>,
    weight: usize,
    max_weight: usize,
    documents: usize,
    pub(super) root: Option<Node>,
}

/// A list or mapping that is still open.
struct Open {
    node: Node,
    key: Option<Key>,
    /// The keys of a mapping, with their lines.
    keys: HashMap<String, usize>,
    /// Whether the key that waits for its value is a merge key.
    merges: bool,
    /// The members from merge keys.
    merged: Vec<(Key, Node)>,
    block: bool,
    anchor: usize,
    /// The weight of the tree before this node.
    before: usize,
}

impl<'a> Builder<'a> {
    pub(super) fn new(text: &'a str, max_weight: usize) -> Self {
        Self {
            lines: text.lines().collect(),
            open: Vec::new(),
            anchors: HashMap::new(),
            weight: 0,
            max_weight,
            documents: 0,
            root: None,
        }
    }

    pub(super) fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), SyntaxError> {
        let at = Position::of(&span.start);
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
                if let Some(mut open) = self.open.pop() {
                    open.merge();
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
        self.open.push(Open {
            node: Node { at, kind },
            key: None,
            keys: HashMap::new(),
            merges: false,
            merged: Vec::new(),
            block,
            anchor,
            before,
        });
        Ok(())
    }

    fn finished(&mut self, node: Node, anchor: usize, before: usize) -> Result<(), SyntaxError> {
        if anchor != 0 {
            self.anchors.insert(anchor, (node.clone(), self.weight - before));
        }
        self.place(node)
    }

    /// Adds a finished node to the open list or mapping, or makes it the root.
    fn place(&mut self, node: Node) -> Result<(), SyntaxError> {
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match (&mut open.node.kind, open.key.take()) {
            (Kind::List(items), _) => items.push(node),
            (Kind::Map(_), Some(_)) if open.merges => {
                open.merges = false;
                return open.bring_in(node);
            }
            (Kind::Map(pairs), Some(key)) => pairs.push((key, node)),
            (Kind::Map(_), None) => {
                let Kind::Scalar(scalar) = node.kind else {
                    return Err(error(node.at, "a key must be text"));
                };
                if open.block && is_indented_by_tab(&self.lines, node.at) {
                    return Err(error(node.at, TAB));
                }
                if let Some(first) = open.keys.insert(scalar.text.clone(), node.at.line) {
                    let shown = excerpt(&scalar.text, SHOWN);
                    let problem = format!("{shown}: given twice, first on line {first}");
                    return Err(SyntaxError { at: node.at, problem });
                }
                open.merges = scalar.plain && scalar.text == "<<";
                open.key = Some(Key { at: node.at, text: scalar.text });
            }
            (Kind::Scalar(_), _) => {}
        }
        Ok(())
    }

    fn weigh(&mut self, more: usize, at: Position) -> Result<(), SyntaxError> {
        self.weight = self.weight.saturating_add(more);
        if self.weight > self.max_weight {
            return Err(error(at, "too large: with its aliases expanded, the text exceeds its bound"));
        }
        Ok(())
    }
}

impl Open {
    /// Records the members of a merge key's value.
    fn bring_in(&mut self, node: Node) -> Result<(), SyntaxError> {
        match node.kind {
            Kind::Map(pairs) => self.merged.extend(pairs),
            Kind::List(items) => items.into_iter().try_for_each(|item| self.bring_in(item))?,
            Kind::Scalar(_) => {
                return Err(error(node.at, "<<: expected a mapping, or a list of them"));
            }
        }
        Ok(())
    }

    /// Adds merged members to the mapping's own, which take precedence. Of merged members, the first
    /// wins.
    fn merge(&mut self) {
        let Kind::Map(pairs) = &mut self.node.kind else { return };
        for (key, node) in self.merged.drain(..) {
            if !self.keys.contains_key(&key.text) {
                self.keys.insert(key.text.clone(), key.at.line);
                pairs.push((key, node));
            }
        }
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
        Some(tag) => {
            let shown = excerpt(&tag.original(), SHOWN);
            Err(error(at, &format!("the tag {shown} is not supported")))
        }
        None => Ok(()),
    }
}

const TAB: &str = "a tab cannot indent YAML: use spaces";
const REFERENCE: &str =
    "within brackets or braces, the brace of ${…} begins a mapping: put the text in quotes";

/// Returns the likeliest cause of an error at this place: a tab before the first word of this line or
/// the next.
pub(super) fn tab_near(text: &str, at: Position) -> Option<SyntaxError> {
    (at.line..=at.line + 1).find_map(|line| {
        let written = text.lines().nth(line - 1)?;
        let tab = written.chars().take_while(|c| c.is_whitespace()).position(|c| c == '\t')?;
        Some(error(Position { line, column: tab + 1 }, TAB))
    })
}

/// Returns the cause of an error at the brace of a `${…}` without quotes, within brackets or braces.
pub(super) fn reference_at(text: &str, at: Position) -> Option<SyntaxError> {
    let column = at.column.checked_sub(2)?;
    let mut written = text.lines().nth(at.line - 1)?.chars().skip(column);
    let is_reference = (written.next(), written.next()) == (Some('$'), Some('{'));
    let at = Position { column: column + 1, ..at };
    is_reference.then(|| error(at, REFERENCE))
}

fn is_indented_by_tab(lines: &[&str], at: Position) -> bool {
    let line = lines.get(at.line - 1).copied().unwrap_or_default();
    line.chars().take(at.column - 1).any(|c| c == '\t')
}

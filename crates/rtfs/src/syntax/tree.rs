//! Forms in an arena.

use hashbrown::HashTable;

use super::diagnostic::{Source, Span};
use crate::scalar::{Keyword, hash_of, short_bits};
use crate::value::Value;

/// The forms of a text, and those that macros add to it.
pub(crate) struct Tree {
    pub(crate) source: Source,
    pub(super) nodes: Vec<Node>,
    pub(super) kids: Vec<NodeId>,
    /// Numbers, instants, UUIDs, and strings with escapes.
    pub(super) consts: Vec<Value>,
    names: Names,
    keywords: Vec<Option<Keyword>>,
    /// The top-level forms, in order.
    pub(crate) roots: Vec<NodeId>,
    /// The metadata of `^…`, by the form that it belongs to, in ascending order.
    pub(super) metadata: Vec<(NodeId, NodeId)>,
}

pub(crate) type NodeId = u32;
pub(crate) type NameId = u32;

/// A form. The meaning of `a` and `n` depends on the kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    pub(crate) span: Span,
    /// The id of a name, the index of a constant, or the index of the first part.
    pub(crate) a: u32,
    /// The number of parts.
    pub(crate) n: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Nil,
    True,
    False,
    /// A value in the table of constants.
    Const,
    /// A string that equals the text between its quotes.
    Verbatim,
    Keyword,
    Symbol,
    List,
    Vector,
    Map,
    Set,
    Quote,
    Quasiquote,
    Unquote,
    Splice,
    /// `#(…)`
    FnLiteral,
    /// A lone `?`
    Optional,
    /// A lone `:`
    Colon,
    /// `:-`
    ColonDash,
}

impl Kind {
    pub(crate) fn is_mark(self) -> bool {
        matches!(self, Self::Optional | Self::Colon | Self::ColonDash)
    }

    pub(crate) fn has_parts(self) -> bool {
        use Kind::{FnLiteral, List, Map, Quasiquote, Quote, Set, Splice, Unquote, Vector};
        matches!(self, List | Vector | Map | Set | Quote | Quasiquote | Unquote | Splice | FnLiteral)
    }
}

impl Tree {
    /// Creates an empty tree.
    pub(crate) fn empty(source: Source) -> Self {
        Self {
            source,
            nodes: Vec::new(),
            kids: Vec::new(),
            consts: Vec::new(),
            names: Names::default(),
            keywords: Vec::new(),
            roots: Vec::new(),
            metadata: Vec::new(),
        }
    }

    /// Returns how many nodes there are.
    pub(crate) fn size(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn node(&self, id: NodeId) -> Node {
        self.nodes[id as usize]
    }

    pub(crate) fn kind(&self, id: NodeId) -> Kind {
        self.nodes[id as usize].kind
    }

    pub(crate) fn span(&self, id: NodeId) -> Span {
        self.nodes[id as usize].span
    }

    /// Returns the parts of a collection or of sugar.
    pub(crate) fn kids(&self, id: NodeId) -> &[NodeId] {
        let node = self.node(id);
        if node.kind.has_parts() { &self.kids[node.a as usize..(node.a + node.n) as usize] } else { &[] }
    }

    /// Returns the parts that are not marks.
    pub(crate) fn forms(&self, id: NodeId) -> Vec<NodeId> {
        self.kids(id).iter().copied().filter(|&kid| !self.kind(kid).is_mark()).collect()
    }

    pub(crate) fn name(&self, id: NameId) -> &str {
        self.names.get(id)
    }

    pub(crate) fn intern(&mut self, name: &str) -> NameId {
        self.names.intern(name)
    }

    /// Returns whether the name occurs in the text.
    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.names.find(name).is_some()
    }

    /// Returns the name of a symbol.
    pub(crate) fn symbol(&self, id: NodeId) -> Option<&str> {
        let node = self.node(id);
        (node.kind == Kind::Symbol).then(|| self.name(node.a))
    }

    pub(crate) fn is_symbol(&self, id: NodeId, name: &str) -> bool {
        self.symbol(id) == Some(name)
    }

    /// Returns the name of a keyword.
    pub(crate) fn keyword(&self, id: NodeId) -> Option<&str> {
        let node = self.node(id);
        (node.kind == Kind::Keyword).then(|| self.name(node.a))
    }

    /// Returns the keyword of a name. Equal names share one allocation.
    pub(crate) fn keyword_value(&mut self, name: NameId) -> Keyword {
        let at = name as usize;
        if self.keywords.len() <= at {
            self.keywords.resize(at + 1, None);
        }
        let names = &self.names;
        self.keywords[at].get_or_insert_with(|| Keyword::new(names.get(name))).clone()
    }

    pub(crate) fn string(&self, id: NodeId) -> Option<&str> {
        let node = self.node(id);
        match node.kind {
            Kind::Verbatim => {
                Some(&self.source.text()[node.span.start as usize + 1..node.span.end as usize - 1])
            }
            Kind::Const => match &self.consts[node.a as usize] {
                Value::Str(text) => Some(text.as_str()),
                _ => None,
            },
            _ => None,
        }
    }

    pub(crate) fn constant(&self, at: u32) -> &Value {
        &self.consts[at as usize]
    }

    /// Returns the metadata that `^…` gives a form.
    pub(crate) fn metadata(&self, id: NodeId) -> Option<NodeId> {
        let at = self.metadata.binary_search_by_key(&id, |entry| entry.0).ok()?;
        Some(self.metadata[at].1)
    }

    pub(crate) fn push(&mut self, kind: Kind, span: Span, a: u32, n: u32) -> NodeId {
        self.nodes.push(Node { kind, span, a, n });
        (self.nodes.len() - 1) as NodeId
    }

    /// Returns a form with these parts.
    pub(crate) fn with_parts(&mut self, kind: Kind, span: Span, parts: &[NodeId]) -> NodeId {
        let a = self.kids.len() as u32;
        self.kids.extend_from_slice(parts);
        self.push(kind, span, a, parts.len() as u32)
    }

    pub(crate) fn push_const(&mut self, span: Span, value: Value) -> NodeId {
        self.consts.push(value);
        self.push(Kind::Const, span, (self.consts.len() - 1) as u32, 0)
    }

    pub(crate) fn push_symbol(&mut self, span: Span, name: &str) -> NodeId {
        let name = self.intern(name);
        self.push(Kind::Symbol, span, name, 0)
    }

    pub(crate) fn push_keyword(&mut self, span: Span, name: &str) -> NodeId {
        let name = self.intern(name);
        self.push(Kind::Keyword, span, name, 0)
    }
}

/// Interned names.
#[derive(Default)]
pub(super) struct Names {
    text: String,
    known: Vec<Name>,
    table: HashTable<u32>,
}

/// A name in the joined text of all names.
struct Name {
    key: NameKey,
    start: u32,
    end: u32,
}

/// The hash key of a name: for short names, as most are, its length and its bytes as a number.
#[derive(Clone, Copy, PartialEq, Eq)]
struct NameKey(u128);

impl NameKey {
    /// The key of all long names.
    const LONG: Self = Self(u128::MAX);

    #[inline(always)]
    fn of(name: &str) -> Self {
        short_bits(name).map_or(Self::LONG, |bits| Self(bits | (name.len() as u128) << 120))
    }

    #[inline(always)]
    fn hash(self, name: &str) -> u64 {
        if self == Self::LONG { hash_of(name) } else { hash_of(&self.0) }
    }
}

impl Names {
    pub(super) fn get(&self, id: NameId) -> &str {
        let Name { start, end, .. } = self.known[id as usize];
        &self.text[start as usize..end as usize]
    }

    fn find(&self, name: &str) -> Option<NameId> {
        let key = NameKey::of(name);
        self.find_by(key.hash(name), key, name)
    }

    #[inline(always)]
    fn find_by(&self, hash: u64, key: NameKey, name: &str) -> Option<NameId> {
        let found = match key {
            NameKey::LONG => self.table.find(hash, |&id| self.get(id) == name),
            key => self.table.find(hash, |&id| self.known[id as usize].key == key),
        };
        found.copied()
    }

    #[inline]
    pub(super) fn intern(&mut self, name: &str) -> NameId {
        let key = NameKey::of(name);
        let hash = key.hash(name);
        self.find_by(hash, key, name).unwrap_or_else(|| self.add(hash, key, name))
    }

    #[cold]
    fn add(&mut self, hash: u64, key: NameKey, name: &str) -> NameId {
        let id = self.known.len() as u32;
        let start = self.text.len() as u32;
        self.text.push_str(name);
        self.known.push(Name { key, start, end: self.text.len() as u32 });
        let Self { text, known, table } = self;
        table.insert_unique(hash, id, |&id| {
            let Name { key, start, end } = known[id as usize];
            key.hash(&text[start as usize..end as usize])
        });
        id
    }
}

//! Converts forms to values, and values to forms.

use super::diagnostic::{Diagnostic, Diagnostics, Source, Span};
use super::plain;
use super::tree::{Kind, NodeId, Tree};
use crate::map::{Map, Set};
use crate::scalar::Symbol;
use crate::sequence::{List, TooLarge};
use crate::value::Value;

/// Reads all values of a text.
///
/// Code is data: `'x` is read as `(quote x)`, `#(f %)` as `(fn [%1] (f %))`, and a mark (a single `?` or
/// `:`) as the symbol of that text.
pub fn read(source: &Source) -> Result<Vec<Value>, Diagnostics> {
    plain::values(source.text()).map_or_else(|| values_of_tree(source), Ok)
}

/// Reads all values through the tree, for any text.
pub(super) fn values_of_tree(source: &Source) -> Result<Vec<Value>, Diagnostics> {
    let mut tree = Tree::read(source.clone())?;
    let roots = tree.roots.clone();
    let deep = |tree: &Tree, id| {
        Diagnostics(vec![Diagnostic::new(source, tree.span(id), TooLarge::Levels.to_string())])
    };
    roots.into_iter().map(|id| tree.value(id).map_err(|_| deep(&tree, id))).collect()
}

impl Tree {
    /// Returns the form as data.
    pub(crate) fn value(&mut self, id: NodeId) -> Result<Value, TooLarge> {
        let node = self.node(id);
        Ok(match node.kind {
            Kind::Nil => Value::Nil,
            Kind::True => Value::Bool(true),
            Kind::False => Value::Bool(false),
            Kind::Const => self.constant(node.a).clone(),
            Kind::Verbatim => self.string(id).unwrap_or_default().into(),
            Kind::Keyword => Value::Keyword(self.keyword_value(node.a)),
            Kind::Symbol => Value::Symbol(Symbol::new(self.name(node.a))),
            Kind::Optional => Value::Symbol(Symbol::new("?")),
            Kind::Colon => Value::Symbol(Symbol::new(":")),
            Kind::ColonDash => Value::Symbol(Symbol::new(":-")),
            Kind::List => Value::List(List::new(self.kid_values(id)?)?),
            Kind::Vector => Value::vector(self.kid_values(id)?)?,
            Kind::Set => {
                let mut set = Set::new();
                for member in self.kid_values(id)? {
                    set.insert(member)?;
                }
                Value::Set(set)
            }
            Kind::Map => self.map_value(id)?,
            Kind::Quote => self.tagged("quote", id)?,
            Kind::Quasiquote => self.tagged("quasiquote", id)?,
            Kind::Unquote => self.tagged("unquote", id)?,
            Kind::Splice => self.tagged("unquote-splicing", id)?,
            Kind::FnLiteral => {
                let params = self.fn_literal_params(id);
                let params = params.iter().map(|name| Value::Symbol(Symbol::new(&**name))).collect();
                let body = List::new(self.kid_values(id)?)?;
                let function = Value::Symbol(Symbol::new("fn"));
                Value::List(List::new(vec![function, Value::vector(params)?, Value::List(body)])?)
            }
        })
    }

    fn kid_values(&mut self, id: NodeId) -> Result<Vec<Value>, TooLarge> {
        let node = self.node(id);
        (node.a..node.a + node.n).map(|at| self.value(self.kids[at as usize])).collect()
    }

    fn tagged(&mut self, name: &str, id: NodeId) -> Result<Value, TooLarge> {
        let mut items = vec![Value::Symbol(Symbol::new(name))];
        items.extend(self.kid_values(id)?);
        List::new(items).map(Value::List)
    }

    /// Converts a value in a map. A value that is marked as optional becomes `(? value)`. With the mark
    /// directly after its bracket it becomes `[:optional value]`, a type that may also be nil.
    fn map_value(&mut self, id: NodeId) -> Result<Value, TooLarge> {
        let kids = self.kids(id).to_vec();
        let mut map = Map::with_capacity(kids.len() / 2);
        let mut key = None;
        for (at, &kid) in kids.iter().enumerate() {
            if self.kind(kid).is_mark() {
                continue;
            }
            let mut value = self.value(kid)?;
            match key.take() {
                None => key = Some(value),
                Some(key) => {
                    if let Some(&mark) = kids.get(at + 1)
                        && self.kind(mark) == Kind::Optional
                    {
                        let is_glued = self.span(kid).end == self.span(mark).start;
                        value = match is_glued {
                            true => Value::vector(vec![Value::keyword("optional"), value])?,
                            false => {
                                Value::List(List::new(vec![Value::Symbol(Symbol::new("?")), value])?)
                            }
                        };
                    }
                    map.insert(key, value)?;
                }
            }
        }
        Ok(Value::Map(map))
    }

    /// Returns `%1` … of `#(…)`, and the `& %&` that may follow.
    pub(crate) fn fn_literal_params(&self, id: NodeId) -> Vec<String> {
        let (mut most, mut rest) = (0_u32, false);
        let mut open = self.kids(id).to_vec();
        while let Some(id) = open.pop() {
            match self.symbol(id) {
                Some("%") => most = most.max(1),
                Some("%&") => rest = true,
                Some(name) => {
                    if let Some(Ok(n)) = name.strip_prefix('%').map(str::parse::<u32>) {
                        most = most.max(n.min(100));
                    }
                }
                None => open.extend(self.kids(id)),
            }
        }
        let mut params: Vec<_> = (1..=most).map(|n| format!("%{n}")).collect();
        if rest {
            params.extend(["&".to_owned(), "%&".to_owned()]);
        }
        params
    }

    /// Adds a value as a form, at the place of the macro call.
    pub(crate) fn add_value(&mut self, span: Span, value: &Value) -> Result<NodeId, &'static str> {
        Ok(match value {
            Value::Nil => self.push(Kind::Nil, span, 0, 0),
            Value::Bool(true) => self.push(Kind::True, span, 0, 0),
            Value::Bool(false) => self.push(Kind::False, span, 0, 0),
            Value::Keyword(keyword) => self.push_keyword(span, keyword.name()),
            Value::Symbol(symbol) => match symbol.name() {
                "?" => self.push(Kind::Optional, span, 0, 0),
                ":" => self.push(Kind::Colon, span, 0, 0),
                ":-" => self.push(Kind::ColonDash, span, 0, 0),
                name => self.push_symbol(span, name),
            },
            Value::List(list) => self.add_all(Kind::List, span, list.items())?,
            Value::Vector(vector) => self.add_all(Kind::Vector, span, vector.items())?,
            Value::Seq(seq) => match seq.realized() {
                Some(items) => self.add_all(Kind::List, span, items.items())?,
                None => return Err("an unfinished sequence is no code"),
            },
            Value::Map(map) => {
                let entries: Vec<_> =
                    map.iter().flat_map(|(key, value)| [key.clone(), value.clone()]).collect();
                self.add_all(Kind::Map, span, &entries)?
            }
            Value::Set(set) => {
                let members: Vec<_> = set.iter().cloned().collect();
                self.add_all(Kind::Set, span, &members)?
            }
            value if value.is_function() => return Err("a function is no code"),
            value => self.push_const(span, value.clone()),
        })
    }

    fn add_all(&mut self, kind: Kind, span: Span, items: &[Value]) -> Result<NodeId, &'static str> {
        let parts =
            items.iter().map(|item| self.add_value(span, item)).collect::<Result<Vec<_>, _>>()?;
        Ok(self.with_parts(kind, span, &parts))
    }
}

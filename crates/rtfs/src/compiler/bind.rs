//! Bindings: parameters, patterns that take values apart, annotations.

use super::ir::{Id, Ir, Var};
use super::lower::Lower;
use super::macros::OWN;
use crate::syntax::{Kind, NodeId};
use crate::value::Value;

/// A parameter, or a binding with its value.
#[derive(Clone, Copy)]
pub(super) struct Param {
    pub(super) pattern: NodeId,
    pub(super) ty: Option<NodeId>,
    pub(super) value: NodeId,
}

impl Lower<'_> {
    /// Returns the type that `:- T` or `: T` at the beginning declares, and the remaining forms.
    pub(super) fn annotation<'n>(&mut self, nodes: &'n [NodeId]) -> (Option<NodeId>, &'n [NodeId]) {
        match nodes {
            [mark, ty, rest @ ..] if matches!(self.tree.kind(*mark), Kind::Colon | Kind::ColonDash) => {
                match rest {
                    [mark, rest @ ..] if self.tree.kind(*mark) == Kind::Optional => {
                        let span = self.tree.span(*ty);
                        let optional = self.tree.push_keyword(span, "optional");
                        (Some(self.tree.with_parts(Kind::Vector, span, &[optional, *ty])), rest)
                    }
                    _ => (Some(*ty), rest),
                }
            }
            _ => (None, nodes),
        }
    }

    /// `[a :- :int, b & rest]`
    pub(super) fn params(&mut self, node: NodeId) -> (Vec<Param>, Option<Param>) {
        let kids = self.tree.kids(node).to_vec();
        let (mut fixed, mut rest) = (Vec::new(), None);
        let mut nodes = &kids[..];
        let mut after_amp = false;
        while let Some((&pattern, more)) = nodes.split_first() {
            if self.tree.is_symbol(pattern, "&") && !after_amp {
                after_amp = true;
                nodes = more;
                continue;
            }
            let (ty, more) = self.annotation(more);
            nodes = more;
            let param = Param { pattern, ty, value: pattern };
            if !self.is_pattern(pattern) {
                self.fail(pattern, "a parameter is a name, or a pattern such as [a b] or {:keys [a]}");
            } else if !after_amp {
                fixed.push(param);
            } else if rest.replace(param).is_some() {
                self.fail(pattern, "only one parameter may follow `&`");
            }
        }
        if after_amp && rest.is_none() {
            self.fail(node, "a name must follow `&`");
        }
        (fixed, rest)
    }

    fn is_pattern(&self, node: NodeId) -> bool {
        match self.tree.kind(node) {
            Kind::Symbol => {
                let is_of_module = |name: &str| name.contains('/') && name.len() > 1;
                // A name that a macro of a module writes may be private to it.
                !self.tree.symbol(node).is_some_and(|name| is_of_module(name) && !name.starts_with(OWN))
            }
            Kind::Vector | Kind::Map => true,
            _ => false,
        }
    }

    /// `[pattern expr …]` with annotations.
    pub(super) fn pairs(&mut self, node: NodeId) -> Vec<Param> {
        if self.tree.kind(node) != Kind::Vector {
            self.fail(node, "bindings are expected here, as [name value]");
            return Vec::new();
        }
        let kids = self.tree.kids(node).to_vec();
        let mut nodes = &kids[..];
        let mut pairs = Vec::new();
        while let Some((&pattern, more)) = nodes.split_first() {
            let (ty, more) = self.annotation(more);
            let Some((&value, more)) = more.split_first() else {
                let text = self.text(pattern).to_owned();
                self.fail(pattern, format!("`{text}` needs a value: bindings come in pairs"));
                break;
            };
            nodes = more;
            if self.is_pattern(pattern) {
                pairs.push(Param { pattern, ty, value });
            } else {
                self.fail(
                    pattern,
                    "a binding begins with a name, or a pattern such as [a b] or {:keys [a]}",
                );
            }
        }
        pairs
    }

    /// Lowers the bindings of a `let`; its names are in scope from here on.
    pub(super) fn bindings(&mut self, node: NodeId, lets: &mut Vec<(Var, Id)>) {
        for param in self.pairs(node) {
            let name = self.tree.symbol(param.pattern).map(str::to_owned);
            let mut value = match &name {
                Some(name) if self.is_function_form(param.value) => {
                    self.named_function(param.value, name)
                }
                _ => self.expr(param.value),
            };
            if let Some(ty) = param.ty {
                let what = self.text(param.pattern).to_owned();
                value = self.checked(value, ty, &what, false);
            }
            self.destructure(param.pattern, value, lets);
        }
    }

    fn is_function_form(&self, node: NodeId) -> bool {
        let head = self.tree.kids(node).first();
        self.tree.kind(node) == Kind::List
            && head.is_some_and(|&head| self.tree.is_symbol(head, "fn"))
            && !self.is_shadowed("fn")
    }

    /// Returns a `fn` that can refer to the name it is bound to.
    fn named_function(&mut self, node: NodeId, name: &str) -> Id {
        let kids = self.tree.kids(node).to_vec();
        match kids[1..] {
            [own, ref rest @ ..] if self.tree.kind(own) == Kind::Symbol => {
                let own = self.tree.symbol(own).unwrap_or_default().to_owned();
                self.clauses(node, Some(&own), &[name.to_owned()], rest)
            }
            ref rest => self.clauses(node, None, &[name.to_owned()], rest),
        }
    }

    /// Binds the names of a pattern to the parts of a value.
    pub(super) fn destructure(&mut self, pattern: NodeId, value: Id, lets: &mut Vec<(Var, Id)>) {
        match self.tree.kind(pattern) {
            Kind::Symbol => {
                let name = self.tree.symbol(pattern).unwrap_or_default().to_owned();
                let var = if name == "_" { self.new_var() } else { self.bind_var(&name) };
                if name != "_" {
                    self.note(pattern);
                }
                lets.push((var, value));
            }
            Kind::Vector => {
                let var = self.new_var();
                lets.push((var, value));
                self.destructure_vector(pattern, var, lets);
            }
            Kind::Map => {
                let var = self.new_var();
                lets.push((var, value));
                self.destructure_map(pattern, var, lets);
            }
            _ => {
                self.fail(pattern, "a pattern is a name, [a b] or {:keys [a]}");
            }
        }
    }

    /// `[a b & rest :as all]`
    fn destructure_vector(&mut self, pattern: NodeId, var: Var, lets: &mut Vec<(Var, Id)>) {
        let span = self.tree.span(pattern);
        let kids = self.tree.kids(pattern).to_vec();
        let mut at = 0;
        let mut index = 0;
        let mut seen_rest = false;
        // The kind is checked once, so that a map or a number is an error instead of many nils.
        let whole = self.add(Ir::Local(var), span);
        let items = self.native("%sequential", vec![whole], span);
        let source = self.new_var();
        lets.push((source, items));
        while let Some(&part) = kids.get(at) {
            let whole = self.add(Ir::Local(source), span);
            if self.tree.is_symbol(part, "&") {
                let Some(&rest) = kids.get(at + 1) else {
                    self.fail(part, "a name must follow `&`");
                    return;
                };
                let n = self.constant(i64::from(index), span);
                let mut value = self.native("%rest-from", vec![whole, n], span);
                if self.tree.kind(rest) == Kind::Map {
                    value = self.native("%named", vec![value], span);
                }
                self.destructure(rest, value, lets);
                seen_rest = true;
                at += 2;
            } else if self.tree.keyword(part) == Some("as") {
                let Some(name) =
                    kids.get(at + 1).and_then(|&name| self.tree.symbol(name)).map(str::to_owned)
                else {
                    self.fail(part, "a name must follow `:as`");
                    return;
                };
                let value = self.add(Ir::Local(var), span);
                let var = self.bind_var(&name);
                self.note(kids[at + 1]);
                lets.push((var, value));
                at += 2;
            } else {
                if seen_rest {
                    self.fail(part, "nothing but `:as name` may follow the rest");
                    return;
                }
                if !self.tree.is_symbol(part, "_") {
                    let n = self.constant(i64::from(index), span);
                    let value = self.native("%nth", vec![whole, n], span);
                    self.destructure(part, value, lets);
                }
                index += 1;
                at += 1;
            }
        }
    }

    /// `{:keys [a b], x :k, :k x, "s" v, & more, :or {a 7}, :as m}`
    fn destructure_map(&mut self, pattern: NodeId, var: Var, lets: &mut Vec<(Var, Id)>) {
        let span = self.tree.span(pattern);
        let forms = self.tree.forms(pattern);
        let mut defaults = Vec::new();
        for pair in forms.chunks_exact(2) {
            if self.tree.keyword(pair[0]) == Some("or") && self.tree.kind(pair[1]) == Kind::Map {
                for entry in self.tree.forms(pair[1]).chunks_exact(2) {
                    if let Some(name) = self.tree.symbol(entry[0]).or(self.tree.keyword(entry[0])) {
                        defaults.push((name.to_owned(), entry[1]));
                    }
                }
            }
        }
        let whole = self.add(Ir::Local(var), span);
        let map = self.native("%associative", vec![whole], span);
        let source = self.new_var();
        lets.push((source, map));
        let mut keys = Vec::new();
        let mut rest = None;
        for pair in forms.chunks_exact(2) {
            let (left, right) = (pair[0], pair[1]);
            match self.tree.keyword(left) {
                Some("or") if self.tree.kind(right) == Kind::Map => continue,
                Some("as") if self.tree.kind(right) == Kind::Symbol => {
                    let name = self.tree.symbol(right).unwrap_or_default().to_owned();
                    let value = self.add(Ir::Local(var), span);
                    let var = self.bind_var(&name);
                    self.note(right);
                    lets.push((var, value));
                    continue;
                }
                Some(kind @ ("keys" | "strs" | "syms")) if self.tree.kind(right) == Kind::Vector => {
                    let kind = kind.to_owned();
                    for name_node in self.tree.forms(right) {
                        let name = self
                            .tree
                            .symbol(name_node)
                            .or(self.tree.keyword(name_node))
                            .map(str::to_owned);
                        let Some(name) = name else {
                            self.fail(name_node, "names are expected here");
                            continue;
                        };
                        let local = name.rsplit('/').next().unwrap_or(&name).to_owned();
                        let key = match kind.as_str() {
                            "keys" => Value::keyword(name.as_str()),
                            "strs" => name.as_str().into(),
                            _ => Value::Symbol(crate::Symbol::new(name.as_str())),
                        };
                        keys.push(key.clone());
                        let target = self.tree.push_symbol(self.tree.span(name_node), &local);
                        let default = defaults.iter().find(|(of, _)| *of == local).map(|entry| entry.1);
                        self.part_of_map(source, key, target, default, lets);
                    }
                    continue;
                }
                _ => {}
            }
            if self.tree.is_symbol(left, "&") {
                rest = Some(right);
                continue;
            }
            // Either order is allowed: `x :k` and `:k x`.
            let (target, key) = if self.is_constant(left) && !self.is_constant(right) {
                (right, left)
            } else {
                (left, right)
            };
            if matches!(self.tree.kind(left), Kind::Vector | Kind::Map) && self.is_constant(right) {
                self.map_entry(source, right, left, &defaults, &mut keys, lets);
            } else {
                self.map_entry(source, key, target, &defaults, &mut keys, lets);
            }
        }
        if let Some(rest) = rest {
            let whole = self.add(Ir::Local(source), span);
            let mut args = vec![whole];
            for key in keys {
                args.push(self.constant(key, span));
            }
            let value = self.native("dissoc", args, span);
            self.destructure(rest, value, lets);
        }
    }

    fn map_entry(
        &mut self,
        source: Var,
        key: NodeId,
        target: NodeId,
        defaults: &[(String, NodeId)],
        keys: &mut Vec<Value>,
        lets: &mut Vec<(Var, Id)>,
    ) {
        let Ok(key_value) = self.tree.value(key) else { return };
        if !self.is_constant(key) {
            self.fail(key, "a key in a pattern is a keyword, a string or another literal");
            return;
        }
        keys.push(key_value.clone());
        let default =
            self.tree.symbol(target).and_then(|name| defaults.iter().find(|(of, _)| of == name));
        self.part_of_map(source, key_value, target, default.map(|entry| entry.1), lets);
    }

    fn part_of_map(
        &mut self,
        source: Var,
        key: Value,
        target: NodeId,
        default: Option<NodeId>,
        lets: &mut Vec<(Var, Id)>,
    ) {
        let span = self.tree.span(target);
        let whole = self.add(Ir::Local(source), span);
        let key_id = self.constant(key, span);
        let found = self.native("%get", vec![whole, key_id], span);
        let value = match default {
            None => found,
            Some(default) => {
                let again = self.add(Ir::Local(source), span);
                let has = self.native("%has", vec![again, key_id], span);
                let default = self.expr(default);
                self.add(Ir::If(has, found, default), span)
            }
        };
        self.destructure(target, value, lets);
    }
}

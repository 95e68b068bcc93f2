//! Compiles calls of the standard library as loops in place, where their function is a literal.
//!
//! `(reduce (fn [a x] …) init coll)` becomes the loop of the prelude's `reduce` with the body of the function in it. An
//! iteration then takes no call and the function no closure. A program observes only that it takes fewer steps and less
//! depth, and that its own functions have more locals.

use super::Optimization;
use super::ir::{Each, Id, Ir, Loop, Merge, Var};
use super::lower::Lower;
use crate::syntax::{Kind, NodeId};

/// The maximum number of locals of a function that has others lowered into it, and of forms that are nested in it. A crowded
/// function moves forms out, and some forms cannot be moved.
const MAX_LOCALS: usize = 100;
const MAX_NESTED: u32 = 8;

/// A literal function: its parameters and its body.
type Literal = (NodeId, Vec<NodeId>);

impl Lower<'_> {
    /// Lowers a call of a function of the prelude in place; `None` if it must be called.
    // Out of line, so that `call_named`, which recurses, keeps a small stack frame.
    #[inline(never)]
    pub(super) fn inlined(&mut self, name: &str, node: NodeId, args: &[NodeId]) -> Option<Id> {
        let lower = match (name, args.len()) {
            ("reduce", 3) => Self::reduce,
            ("sort", 2) => Self::sort,
            _ => return None,
        };
        // The checker knows the functions of the library by their types, not by their loops.
        let is_left_out = self.session.left_out == Some(Optimization::Inlining);
        if is_left_out || self.session.checking.is_some() || !self.has_room_for(args[0]) {
            return None;
        }
        let literal = self.literal(args[0], 2)?;
        self.frames.last_mut()?.open += 1;
        let id = lower(self, node, literal, &args[1..]);
        self.frames.last_mut()?.open -= 1;
        Some(id)
    }

    /// `(reduce (fn [a x] …) init coll)`
    fn reduce(&mut self, node: NodeId, function: Literal, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        let init = self.expr(args[0]);
        let collection = self.expr(args[1]);
        let (params, body) = self.body_in_place(function);
        let first = self.new_var();
        let start = self.add(Ir::Local(first), span);
        let exit = self.add(Ir::Local(params[0]), span);
        let body = self.add(Ir::Recur(vec![body]), span);
        let each = Some(Each { item: params[1], collection, exit });
        let looped = Loop { vars: vec![(params[0], start)], each, body };
        let looped = self.add(Ir::Loop(Box::new(looped)), span);
        // The initial value is computed before the collection.
        self.add(Ir::Let(vec![(first, init)], looped), span)
    }

    /// `(sort (fn [a b] …) coll)`
    fn sort(&mut self, node: NodeId, function: Literal, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        let collection = self.expr(args[0]);
        let items = self.native("vec", vec![collection], span);
        let (params, compare) = self.body_in_place(function);
        self.add(
            Ir::Merge(Box::new(Merge { items, later: params[0], earlier: params[1], compare })),
            span,
        )
    }

    /// Returns whether the current function may have the locals of another one. A local takes at least one form.
    fn has_room_for(&self, function: NodeId) -> bool {
        let Some(frame) = self.frames.last() else { return false };
        let mut forms = frame.vars as usize;
        let mut open = vec![function];
        while let Some(node) = open.pop() {
            forms += 1;
            if forms > MAX_LOCALS {
                return false;
            }
            open.extend(self.tree.kids(node));
        }
        frame.open < MAX_NESTED
    }

    /// Returns the parts of a literal function without a name that takes exactly `n` arguments.
    fn literal(&mut self, node: NodeId, n: usize) -> Option<Literal> {
        if self.tree.kind(node) == Kind::FnLiteral {
            let names = self.tree.fn_literal_params(node);
            let is_plain = names.len() == n && names.iter().all(|name| name != "&");
            return is_plain.then(|| self.fn_literal_parts(node));
        }
        let [head, params, ref body @ ..] = *self.tree.kids(node) else { return None };
        let is_literal = self.tree.kind(node) == Kind::List
            && self.tree.is_symbol(head, "fn")
            && self.tree.kind(params) == Kind::Vector
            && !self.is_shadowed("fn");
        let patterns = self.tree.kids(params);
        let is_pattern = |&pattern: &NodeId| {
            matches!(self.tree.kind(pattern), Kind::Symbol | Kind::Vector | Kind::Map)
                && !self.tree.is_symbol(pattern, "&")
        };
        let is_plain = patterns.len() == n && patterns.iter().all(is_pattern);
        (is_literal && is_plain).then(|| (params, body.to_vec()))
    }

    /// Lowers the body of a function as a part of the current one. Returns the locals that take its arguments.
    fn body_in_place(&mut self, (params, body): Literal) -> (Vec<Var>, Id) {
        let (scope, recur) = (self.scope.len(), self.recur.take());
        self.inlined += 1;
        let function = self.arity(params, &body);
        self.inlined -= 1;
        self.scope.truncate(scope);
        self.recur = recur;
        if !self.recurs(function.body) {
            return (function.params, function.body);
        }
        // `recur` begins the function anew, not the loop around it.
        let outer: Vec<_> = function.params.iter().map(|_| self.new_var()).collect();
        let starts = outer.iter().map(|&var| self.add(Ir::Local(var), function.span));
        let vars = function.params.into_iter().zip(starts.collect::<Vec<_>>()).collect();
        let looped = Loop { vars, each: None, body: function.body };
        let body = self.add(Ir::Loop(Box::new(looped)), function.span);
        (outer, body)
    }

    /// Returns whether the form ends with a `recur` that is not of a loop within it.
    fn recurs(&self, id: Id) -> bool {
        match self.arena.get(id) {
            Ir::Recur(_) => true,
            Ir::If(_, yes, no) => self.recurs(*yes) || self.recurs(*no),
            Ir::Cond(clauses, last) => {
                clauses.iter().any(|&(_, value)| self.recurs(value)) || self.recurs(*last)
            }
            Ir::And(items) | Ir::Or(items) | Ir::Do(items) => {
                items.last().is_some_and(|&last| self.recurs(last))
            }
            Ir::Let(_, body) => self.recurs(*body),
            Ir::Check(value, _) => self.recurs(*value),
            _ => false,
        }
    }
}

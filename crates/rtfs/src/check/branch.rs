//! Branches: the information that a test gives about its value, and the state after both branches.

use std::collections::HashSet;

use super::ty::{Place, Ty, type_of};
use super::walk::{Slot, Walker};
use crate::compiler::ir::{Id, Ir, Var};
use crate::kinds::Kinds;
use crate::types::TypeExpr;
use crate::value::Value;

/// After this many clauses, failed conditions are no longer remembered, so that the time stays linear.
const REMEMBERED: usize = 64;

/// A position in the function's trail.
pub(super) type Mark = usize;

impl Walker<'_> {
    pub(super) fn mark(&mut self) -> Mark {
        self.frame().trail.len()
    }

    /// Restores the locals to their state at the mark.
    pub(super) fn undo(&mut self, mark: Mark) {
        while self.mark() > mark {
            if let Some((slot, before)) = self.frame().trail.pop() {
                self.replace(slot, before);
            }
        }
    }

    /// Returns the locals that changed since the mark, with their current types, in the order of their
    /// numbers.
    fn changes(&mut self, mark: Mark) -> Vec<(Var, Ty)> {
        let frame = self.frame();
        let local = |slot| if let Slot::Local(var) = slot { Some(var) } else { None };
        let mut vars: Vec<_> = frame.trail[mark..].iter().filter_map(|entry| local(entry.0)).collect();
        vars.sort_unstable();
        vars.dedup();
        vars.into_iter().map(|var| (var, frame.vars[var as usize].clone())).collect()
    }

    /// `if` and `cond`: tests with their values, and the value if none holds.
    pub(super) fn choice(&mut self, id: Id, clauses: &[(Id, Id)], last: Id) -> Ty {
        let is_match = self.view.matches.binary_search(&id).is_ok();
        let mut literals = HashSet::new();
        let mut result = Ty::NEVER;
        let mut base = None;
        // The types at the end of each branch that completes.
        let mut ways: Vec<Vec<(Var, Ty)>> = Vec::new();
        let mut is_over = false;
        for (at, &(test, value)) in clauses.iter().enumerate() {
            if is_over || is_match && self.repeats(test, &mut literals) {
                self.unreachable(test, "what comes before it covers everything");
                continue;
            }
            let (truth, mark, first) = self.enter(test);
            let base = *base.get_or_insert(first);
            match truth {
                Some(false) => {
                    if is_match {
                        self.unreachable(test, "the value is never like this");
                    }
                    self.undo(mark);
                }
                truth => {
                    let ty = self.walk(value);
                    if !ty.is_never() {
                        ways.push(self.changes(base));
                    }
                    result = result.or(&ty);
                    self.undo(mark);
                    is_over = truth == Some(true);
                }
            }
            if at < REMEMBERED && !is_over {
                self.assume(test, false);
            }
        }
        if !is_over {
            let ty = self.walk(last);
            if !ty.is_never() {
                ways.push(self.changes(base.unwrap_or(0)));
            }
            result = result.or(&ty);
        }
        if let Some(base) = base {
            self.undo(base);
            self.merge(&ways);
        }
        result
    }

    /// Merges the branches: a local that every branch narrows gets the union of its types.
    fn merge(&mut self, ways: &[Vec<(Var, Ty)>]) {
        let Some((first, others)) = ways.split_first() else { return };
        for (var, ty) in first {
            let mut all = ty.clone();
            let is_known = others.iter().all(|way| {
                let Ok(at) = way.binary_search_by_key(var, |entry| entry.0) else { return false };
                all = all.or(&way[at].1);
                true
            });
            if is_known {
                // A branch may have widened it.
                let all = self.slot(Slot::Local(*var)).and(&all);
                self.set(*var, all);
            }
        }
    }

    /// Walks a test and assumes that it holds. Returns whether it does, the mark to return to if that is
    /// unknown, and the mark before which everything has happened for sure.
    fn enter(&mut self, test: Id) -> (Option<bool>, Mark, Mark) {
        let Ir::And(parts) = self.view.arena.get(test) else {
            let truth = self.walk(test).truth();
            let mark = self.mark();
            // The bindings of a pattern are made only here.
            self.assume(test, true);
            return (truth, mark, mark);
        };
        let mut all = Some(true);
        let first = self.mark();
        for &part in parts {
            let truth = self.walk(part).truth();
            all = match (all, truth) {
                (Some(false), _) | (_, Some(false)) => Some(false),
                (Some(true), Some(true)) => Some(true),
                _ => None,
            };
            if truth == Some(false) {
                break;
            }
            self.assume(part, true);
        }
        (all, first, first)
    }

    /// Returns whether a clause tests only literals that earlier clauses tested.
    fn repeats(&self, test: Id, seen: &mut HashSet<String>) -> bool {
        let arena = self.view.arena;
        let tests = match arena.get(test) {
            Ir::Or(tests) => &tests[..],
            _ => &[test],
        };
        let mut is_new = false;
        for &test in tests {
            let literal = match arena.get(test) {
                Ir::Native(number, args) if crate::builtins::native(*number).name == "=" => args.get(1),
                _ => None,
            };
            match literal.map(|&literal| arena.get(literal)) {
                Some(Ir::Const(value)) if value.items().is_none() && !matches!(value, Value::Map(_)) => {
                    is_new |= seen.insert(value.pr_str());
                }
                _ => is_new = true,
            }
        }
        !is_new
    }

    fn unreachable(&mut self, test: Id, why: &str) {
        let span = self.span(test);
        self.state.warn("unreachable", span, format!("nothing ever reaches this clause: {why}"));
    }

    pub(super) fn all_of(&mut self, ids: &[Id]) -> Ty {
        let mut result = Ty::NEVER;
        let mut mark = None;
        for (at, &id) in ids.iter().enumerate() {
            let ty = self.walk(id);
            mark.get_or_insert(self.mark());
            let is_last = at + 1 == ids.len();
            if is_last || ty.truth() == Some(false) || ty.is_never() {
                result = result.or(&ty);
                break;
            }
            result = result.or(&ty.narrowed(Kinds::FALSY));
            self.assume(id, true);
        }
        mark.into_iter().for_each(|mark| self.undo(mark));
        result
    }

    pub(super) fn one_of(&mut self, ids: &[Id]) -> Ty {
        let mut result = Ty::NEVER;
        let mut mark = None;
        for (at, &id) in ids.iter().enumerate() {
            let ty = self.walk(id);
            mark.get_or_insert(self.mark());
            let is_last = at + 1 == ids.len();
            if is_last || ty.truth() == Some(true) || ty.is_never() {
                result = result.or(&ty);
                break;
            }
            result = result.or(&ty.narrowed(Kinds::ANY.without(Kinds::FALSY)));
            if at < REMEMBERED {
                self.assume(id, false);
            }
        }
        mark.into_iter().for_each(|mark| self.undo(mark));
        result
    }

    /// Narrows locals by this test, which was walked, if it holds or if it does not.
    fn assume(&mut self, test: Id, holds: bool) {
        self.doubt(test);
        self.narrow_by(test, holds);
    }

    fn narrow_by(&mut self, test: Id, holds: bool) {
        let arena = self.view.arena;
        match arena.get(test) {
            Ir::Local(var) => {
                let kinds = if holds { Kinds::ANY.without(Kinds::FALSY) } else { Kinds::FALSY };
                self.narrow(*var, kinds);
            }
            Ir::Native(number, args) => {
                let name = crate::builtins::native(*number).name;
                match (name, &args[..]) {
                    ("not", [inner]) => self.narrow_by(*inner, !holds),
                    ("=", [a, b]) => {
                        self.assume_equal(*a, *b, holds);
                        self.assume_equal(*b, *a, holds);
                    }
                    ("%has-items", [value, ..]) if holds => self.narrow_form(*value, Kinds::ORDERED),
                    ("%is", [value, ty]) => self.assume_type(*value, *ty, holds),
                    (name, [value]) => {
                        if let Some(kinds) = predicate(name) {
                            let kinds = if holds { kinds } else { Kinds::ANY.without(kinds) };
                            self.narrow_form(*value, kinds);
                        }
                    }
                    _ => {}
                }
            }
            Ir::And(parts) if holds => parts.iter().for_each(|&part| self.narrow_by(part, true)),
            Ir::Or(parts) if !holds && parts.len() <= REMEMBERED => {
                parts.iter().for_each(|&part| self.narrow_by(part, false));
            }
            _ => {}
        }
    }

    fn assume_equal(&mut self, value: Id, other: Id, holds: bool) {
        let Ir::Const(constant) = self.view.arena.get(other) else { return };
        let kinds = Kinds::of(constant);
        if holds {
            // Vectors, lists and sequences with the same items are equal.
            let kinds = if kinds.meets(Kinds::ORDERED) { Kinds::ORDERED } else { kinds };
            self.narrow_form(value, kinds);
        } else if kinds.is_within(Kinds::NIL.or(Kinds::BOOL)) {
            self.narrow_form(value, Kinds::ANY.without(kinds));
        }
    }

    fn assume_type(&mut self, value: Id, ty: Id, holds: bool) {
        let Ir::Const(data) = self.view.arena.get(ty) else { return };
        let Ok(ty) = TypeExpr::from_value(data) else { return };
        let Ir::Local(var) = self.view.arena.get(value) else { return };
        let known = type_of(&ty, self.view.session.types(), Place::Program);
        if holds {
            let both = self.frame().vars[*var as usize].and(&known);
            self.set(*var, both);
        } else if matches!(ty, TypeExpr::Primitive(_)) {
            self.narrow(*var, Kinds::ANY.without(known.kinds));
        }
    }

    fn narrow_form(&mut self, form: Id, kinds: Kinds) {
        if let Ir::Local(var) = self.view.arena.get(form) {
            self.narrow(*var, kinds);
        }
    }

    pub(super) fn narrow(&mut self, var: Var, kinds: Kinds) {
        let Some(known) = self.frame().vars.get(var as usize) else { return };
        if !known.kinds.is_within(kinds) {
            let narrowed = known.narrowed(kinds);
            self.set(var, narrowed);
        }
    }
}

/// Returns exactly the kinds for which a predicate is true.
pub(super) fn predicate(name: &str) -> Option<Kinds> {
    Some(match name {
        "nil?" => Kinds::NIL,
        "some?" => Kinds::ANY.without(Kinds::NIL),
        "true?" => Kinds::TRUE,
        "false?" => Kinds::FALSE,
        "bool?" => Kinds::BOOL,
        "int?" => Kinds::INT,
        "float?" => Kinds::FLOAT,
        "number?" => Kinds::NUMBER,
        "string?" => Kinds::STRING,
        "keyword?" => Kinds::KEYWORD,
        "symbol?" => Kinds::SYMBOL,
        "instant?" => Kinds::INSTANT,
        "uuid?" => Kinds::UUID,
        "vector?" => Kinds::VECTOR,
        "list?" => Kinds::LIST,
        "set?" => Kinds::SET,
        "map?" => Kinds::MAP,
        "fn?" => Kinds::FUNCTION,
        _ => return None,
    })
}

//! Determines the last read of each local, so that the value can be moved instead of shared. A value
//! that is not shared is changed in place.
//!
//! One backward pass over each function, in the reverse of the execution order of its code. [`in_order`]
//! is that order where it differs from the text.

use std::collections::HashSet;

use super::ir::{Arena, Function, Id, Ir, Loop, Try, Var};

/// The result of the analysis.
pub(super) struct Liveness {
    /// For each form: whether this read of a local is the last.
    last: Vec<bool>,
    /// Values of bindings that are never read.
    dead: HashSet<Id>,
    /// Whether nothing is ever moved, for comparison in tests.
    always_copy: bool,
}

impl Liveness {
    pub(super) fn is_last(&self, id: Id) -> bool {
        self.last[id as usize] && !self.always_copy
    }

    pub(super) fn is_dead(&self, init: Id) -> bool {
        self.dead.contains(&init) && !self.always_copy
    }
}

/// The maximum number of parts of a literal or call that is built in one step.
pub(super) const CHUNK: usize = 64;

/// Returns the parts in the order of evaluation. Plain locals come last, so that computing the other
/// parts from them does not force a copy.
pub(super) fn in_order<'i>(
    arena: &'i Arena,
    parts: &'i [Id],
) -> impl DoubleEndedIterator<Item = (usize, Id)> + 'i {
    let is_local = |id: Id| matches!(arena.get(id), Ir::Local(_));
    let places = || parts.iter().copied().enumerate();
    places().filter(move |&(_, id)| !is_local(id)).chain(places().filter(move |&(_, id)| is_local(id)))
}

pub(super) fn analyse(arena: &Arena, functions: &[Function], always_copy: bool) -> Liveness {
    let mut pass = Pass {
        arena,
        functions,
        result: Liveness { last: vec![false; arena.forms.len()], dead: HashSet::new(), always_copy },
        targets: Vec::new(),
    };
    for arity in functions.iter().flat_map(|function| &function.arities) {
        pass.targets.push((Live::default(), arity.params.clone()));
        pass.visit(arity.body, &mut Live::default());
        pass.targets.pop();
    }
    pass.result
}

/// A set of locals.
#[derive(Clone, Default)]
struct Live(Vec<u64>);

impl Live {
    fn contains(&self, var: Var) -> bool {
        self.0.get(var as usize / 64).is_some_and(|word| word >> (var % 64) & 1 == 1)
    }

    fn insert(&mut self, var: Var) {
        let at = var as usize / 64;
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0[at] |= 1 << (var % 64);
    }

    /// Returns whether the local was in the set.
    fn remove(&mut self, var: Var) -> bool {
        let was = self.contains(var);
        if was {
            self.0[var as usize / 64] &= !(1 << (var % 64));
        }
        was
    }

    fn union(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (word, more) in self.0.iter_mut().zip(&other.0) {
            *word |= more;
        }
    }
}

struct Pass<'a> {
    arena: &'a Arena,
    functions: &'a [Function],
    result: Liveness,
    /// The live locals at the targets of `recur`.
    targets: Vec<(Live, Vec<Var>)>,
}

impl Pass<'_> {
    /// Computes the live locals before a form from those after it.
    fn visit(&mut self, id: Id, live: &mut Live) {
        let arena = self.arena;
        match arena.get(id) {
            Ir::Const(_) | Ir::Up(_) | Ir::SelfFn | Ir::Global(_) => {}
            Ir::Local(var) => {
                self.result.last[id as usize] = !live.contains(*var);
                live.insert(*var);
            }
            Ir::CheckLocal(var, _) | Ir::Rethrow(var) => live.insert(*var),
            Ir::If(test, yes, no) => self.choice(*test, *yes, *no, live),
            Ir::Cond(clauses, last) => self.cond(clauses, *last, live),
            Ir::And(items) | Ir::Or(items) => {
                let after = live.clone();
                for (at, &item) in items.iter().enumerate().rev() {
                    if at + 1 < items.len() {
                        live.union(&after);
                    }
                    self.visit(item, live);
                }
            }
            Ir::Do(items) => {
                for &item in items.iter().rev() {
                    self.visit(item, live);
                }
            }
            Ir::Let(bindings, body) => {
                self.visit(*body, live);
                for &(var, init) in bindings.iter().rev() {
                    if !live.remove(var) {
                        self.result.dead.insert(init);
                    }
                    self.visit(init, live);
                }
            }
            Ir::Assign(var, value) => {
                live.remove(*var);
                self.visit(*value, live);
            }
            Ir::Loop(looped) => self.looped(looped, live),
            Ir::Merge(merge) => {
                // The next comparison needs the variables that this one reads.
                self.reads(merge.compare, live);
                live.remove(merge.later);
                live.remove(merge.earlier);
                self.visit(merge.compare, live);
                live.remove(merge.later);
                live.remove(merge.earlier);
                self.visit(merge.items, live);
            }
            Ir::Recur(args) => {
                let (target, vars) = self.targets.last().cloned().unwrap_or_default();
                *live = target;
                for &place in recur_order(arena, self.functions, args, &vars).iter().rev() {
                    self.visit(args[place], live);
                }
            }
            Ir::Fn(function) => {
                let functions = self.functions;
                for &capture in functions[*function].captures.iter().rev() {
                    self.visit(capture, live);
                }
            }
            Ir::Call(function, args) => {
                let parts: Vec<_> = std::iter::once(*function).chain(args.iter().copied()).collect();
                self.parts(&parts, args.len() > CHUNK, live);
            }
            Ir::Apply(a, b) | Ir::Push(a, b) => self.parts(&[*a, *b], false, live),
            Ir::CallCode(_, args) | Ir::Host(_, args) | Ir::Fork(_, args) => {
                self.parts(args, false, live);
            }
            Ir::Native(_, args) | Ir::Vector(args) | Ir::Map(args) | Ir::Set(args) => {
                self.parts(args, args.len() > CHUNK, live);
            }
            Ir::Key(_, value) | Ir::Def(_, value) | Ir::Throw(value) | Ir::Check(value, _) => {
                self.visit(*value, live);
            }
            Ir::Try(tried) => self.tried(tried, live),
        }
    }

    /// Visits parts that are evaluated into consecutive registers; if `many`, in their original order.
    fn parts(&mut self, parts: &[Id], many: bool, live: &mut Live) {
        if many {
            for &id in parts.iter().rev() {
                self.visit(id, live);
            }
            return;
        }
        for (_, id) in in_order(self.arena, parts).rev() {
            self.visit(id, live);
        }
    }

    fn choice(&mut self, test: Id, yes: Id, no: Id, live: &mut Live) {
        let mut other = live.clone();
        self.visit(no, &mut other);
        self.visit(yes, live);
        live.union(&other);
        self.visit(test, live);
    }

    fn cond(&mut self, clauses: &[(Id, Id)], last: Id, live: &mut Live) {
        let mut next = live.clone();
        self.visit(last, &mut next);
        for &(test, value) in clauses.iter().rev() {
            let mut this = live.clone();
            self.visit(value, &mut this);
            this.union(&next);
            self.visit(test, &mut this);
            next = this;
        }
        *live = next;
    }

    fn looped(&mut self, looped: &Loop, live: &mut Live) {
        // The next iteration needs the variables that the body reads from outside.
        let mut head = live.clone();
        self.reads(looped.body, &mut head);
        if let Some(each) = &looped.each {
            self.reads(each.exit, &mut head);
            head.remove(each.item);
        }
        for &(var, _) in &looped.vars {
            head.remove(var);
        }
        let mut exit = live.clone();
        if let Some(each) = &looped.each {
            self.visit(each.exit, &mut exit);
        }
        self.targets.push((head.clone(), looped.vars.iter().map(|var| var.0).collect()));
        self.visit(looped.body, live);
        self.targets.pop();
        live.union(&exit);
        if let Some(each) = &looped.each {
            live.remove(each.item);
        }
        live.union(&head);
        // Each initial value may read the preceding names.
        for &(var, init) in looped.vars.iter().rev() {
            live.remove(var);
            self.visit(init, live);
        }
        if let Some(each) = &looped.each {
            self.visit(each.collection, live);
        }
    }

    fn tried(&mut self, tried: &Try, live: &mut Live) {
        if let Some(cleanup) = tried.cleanup {
            self.visit(cleanup, live);
        }
        let mut handler = live.clone();
        if let Some(id) = tried.handler {
            self.visit(id, &mut handler);
        }
        handler.remove(tried.error);
        // The handlers need their locals until the end of the body.
        live.union(&handler);
        self.visit(tried.body, live);
        live.union(&handler);
    }

    /// Adds all locals that a form reads.
    fn reads(&self, id: Id, found: &mut Live) {
        let mut open = vec![id];
        while let Some(id) = open.pop() {
            match self.arena.get(id) {
                Ir::Const(_) | Ir::Up(_) | Ir::SelfFn | Ir::Global(_) => {}
                Ir::Local(var) | Ir::CheckLocal(var, _) | Ir::Rethrow(var) => found.insert(*var),
                Ir::If(a, b, c) => open.extend([a, b, c]),
                Ir::Cond(clauses, last) => {
                    open.extend(clauses.iter().flat_map(|(test, value)| [test, value]));
                    open.push(*last);
                }
                Ir::Let(bindings, body) => {
                    open.extend(bindings.iter().map(|binding| &binding.1));
                    open.push(*body);
                }
                Ir::Loop(looped) => {
                    open.extend(looped.vars.iter().map(|var| &var.1));
                    open.push(looped.body);
                    open.extend(looped.each.iter().flat_map(|each| [&each.collection, &each.exit]));
                }
                Ir::Merge(merge) => open.extend([merge.items, merge.compare]),
                Ir::Fn(function) => open.extend(&self.functions[*function].captures),
                Ir::Call(function, args) => {
                    open.push(*function);
                    open.extend(args);
                }
                Ir::Apply(a, b) | Ir::Push(a, b) => open.extend([a, b]),
                Ir::And(args)
                | Ir::Or(args)
                | Ir::Do(args)
                | Ir::Recur(args)
                | Ir::CallCode(_, args)
                | Ir::Native(_, args)
                | Ir::Vector(args)
                | Ir::Map(args)
                | Ir::Set(args)
                | Ir::Host(_, args)
                | Ir::Fork(_, args) => open.extend(args),
                Ir::Assign(_, value)
                | Ir::Key(_, value)
                | Ir::Def(_, value)
                | Ir::Throw(value)
                | Ir::Check(value, _) => open.push(*value),
                Ir::Try(tried) => {
                    open.push(tried.body);
                    open.extend(tried.handler.iter().chain(&tried.cleanup));
                }
            }
        }
    }
}

/// Returns whether a form reads a local.
pub(super) fn reads(arena: &Arena, functions: &[Function], id: Id, var: Var) -> bool {
    let result = Liveness { last: Vec::new(), dead: HashSet::new(), always_copy: false };
    let pass = Pass { arena, functions, result, targets: Vec::new() };
    let mut found = Live::default();
    pass.reads(id, &mut found);
    found.contains(var)
}

/// Returns the order in which the values of a `recur` are computed. If all are simple arithmetic, the
/// order minimises the values that must be saved because another one still reads the old value.
pub(super) fn recur_order(
    arena: &Arena,
    functions: &[Function],
    args: &[Id],
    vars: &[Var],
) -> Vec<usize> {
    let is_plain = |&id: &Id| match arena.get(id) {
        Ir::Const(_) | Ir::Local(_) => true,
        Ir::Native(_, args) => {
            args.iter().all(|&arg| matches!(arena.get(arg), Ir::Const(_) | Ir::Local(_)))
        }
        _ => false,
    };
    let mut left: Vec<usize> = (0..args.len().min(vars.len())).collect();
    if left.len() > 16 || !args.iter().all(is_plain) {
        return left;
    }
    let mut order = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let free = left.iter().position(|&place| {
            !left
                .iter()
                .any(|&other| other != place && reads(arena, functions, args[other], vars[place]))
        });
        order.push(left.remove(free.unwrap_or(0)));
    }
    order
}

//! The walk through a program's forms, in the order of their evaluation.

use std::collections::HashMap;
use std::sync::Arc;

use super::State;
use super::doubt::About;
use super::ty::{Field, Place, Record, Ty, type_of};
use crate::compiler::Session;
use crate::compiler::ir::{Arena, Function, Id, Ir, Loop, Try, Var};
use crate::kinds::Kinds;
use crate::machine::op::{ForkKind, HostOp};
use crate::machine::program::Check;
use crate::syntax::{Severity, Source, Span};
use crate::value::Value;

/// The maximum nesting that is examined.
const MAX_DEPTH: u32 = 1_500;

/// One text of a program, in the compiler's form.
pub(crate) struct View<'u> {
    pub(crate) arena: &'u Arena,
    pub(crate) functions: &'u [Function],
    pub(crate) checks: &'u [Arc<Check>],
    /// The forms that throw because of a mistake, in ascending order.
    pub(crate) faults: &'u [Id],
    /// The forms that `match` and `case` were expanded to, in ascending order.
    pub(crate) matches: &'u [Id],
    pub(crate) session: &'u Session,
    pub(crate) source: &'u Source,
}

impl State {
    /// Walks a text whose forms are in `body`, with this many locals.
    pub(crate) fn walk(&mut self, view: &View<'_>, body: Id, vars: u32) {
        let mut walker = Walker {
            view,
            state: self,
            frames: vec![Frame::new(vars, Vec::new(), Ty::ANY)],
            guarded: 0,
            depth: 0,
            pending: Default::default(),
        };
        walker.announce();
        walker.walk(body);
    }
}

pub(super) struct Walker<'u> {
    pub(super) view: &'u View<'u>,
    pub(super) state: &'u mut State,
    pub(super) frames: Vec<Frame>,
    /// The number of surrounding handlers, and of calls that may not happen.
    pub(super) guarded: u32,
    depth: u32,
    /// The top-level names that this text defines, and has not yet defined.
    pending: std::collections::HashSet<u32>,
}

/// A location with a known type.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    Local(Var),
    /// A variable that the function captured.
    Up(u16),
    Global(u32),
}

/// A function that is being walked.
pub(super) struct Frame {
    pub(super) vars: Vec<Ty>,
    /// The previous types of narrowed locals, for restoring them.
    pub(super) trail: Vec<(Slot, Ty)>,
    /// The sources of locals, and what the locals say about them.
    pub(super) sources: HashMap<Var, Vec<(Slot, About)>>,
    pub(super) ups: Vec<Ty>,
    /// The function's own type.
    pub(super) own: Ty,
    pub(super) targets: Vec<Target>,
}

impl Frame {
    pub(super) fn new(vars: u32, ups: Vec<Ty>, own: Ty) -> Self {
        Self {
            vars: vec![Ty::ANY; vars as usize],
            trail: Vec::new(),
            sources: HashMap::new(),
            ups,
            own,
            targets: Vec::new(),
        }
    }
}

/// The target of `recur`.
#[derive(Default)]
pub(super) struct Target {
    pub(super) vars: Vec<Var>,
    /// The types of the variables at each `recur`.
    pub(super) seen: Option<Vec<Ty>>,
    /// The values that they are given there.
    pub(super) values: Vec<(Var, Span, Ty)>,
}

impl Walker<'_> {
    /// Reports a form that cannot succeed.
    pub(super) fn error(&mut self, kind: &'static str, span: Span, message: String) {
        let severity = if self.guarded > 0 { Severity::Warning } else { Severity::Error };
        self.state.add(severity, kind, span, message);
    }

    pub(super) fn frame(&mut self) -> &mut Frame {
        self.frames.last_mut().expect("there is always a function")
    }

    pub(super) fn span(&self, id: Id) -> Span {
        self.view.arena.span(id)
    }

    /// Returns the text of a form.
    pub(super) fn text(&self, span: Span) -> &str {
        self.view.source.text().get(span.start as usize..span.end as usize).unwrap_or_default()
    }

    pub(super) fn set(&mut self, var: Var, ty: Ty) {
        self.put(Slot::Local(var), ty);
    }

    /// Returns the type of a location.
    pub(super) fn slot(&mut self, slot: Slot) -> Ty {
        match slot {
            Slot::Local(var) => self.frame().vars.get(var as usize).cloned(),
            Slot::Up(at) => self.frame().ups.get(usize::from(at)).cloned(),
            Slot::Global(global) => self.state.globals.get(&global).cloned(),
        }
        .unwrap_or(Ty::ANY)
    }

    /// Sets the type of a location, until that is undone.
    pub(super) fn put(&mut self, slot: Slot, ty: Ty) {
        if let Some(before) = self.replace(slot, ty) {
            self.frame().trail.push((slot, before));
        }
    }

    pub(super) fn replace(&mut self, slot: Slot, ty: Ty) -> Option<Ty> {
        let known = match slot {
            Slot::Local(var) => self.frame().vars.get_mut(var as usize),
            Slot::Up(at) => self.frame().ups.get_mut(usize::from(at)),
            Slot::Global(global) => self.state.globals.get_mut(&global),
        };
        known.map(|known| std::mem::replace(known, ty))
    }

    pub(super) fn walk_all(&mut self, ids: &[Id]) -> Vec<Ty> {
        ids.iter().map(|&id| self.walk(id)).collect()
    }

    /// Returns the type of a form, after reporting its mistakes. A form that never has a value has no
    /// kinds.
    pub(super) fn walk(&mut self, id: Id) -> Ty {
        if self.depth >= MAX_DEPTH {
            return Ty::ANY;
        }
        self.depth += 1;
        let ty = self.form(id);
        self.depth -= 1;
        ty
    }

    fn form(&mut self, id: Id) -> Ty {
        let arena = self.view.arena;
        match arena.get(id) {
            Ir::Const(value) => Ty::constant(value),
            Ir::Local(var) => self.slot(Slot::Local(*var)),
            Ir::Up(at) => self.slot(Slot::Up(*at)),
            Ir::SelfFn => self.frame().own.clone(),
            Ir::Global(global) => self.global(*global, id),
            Ir::If(test, yes, no) => self.choice(id, &[(*test, *yes)], *no),
            Ir::Cond(clauses, last) => self.choice(id, clauses, *last),
            Ir::And(ids) => self.all_of(ids),
            Ir::Or(ids) => self.one_of(ids),
            Ir::Do(ids) => self.sequence(ids),
            Ir::Let(lets, body) => self.bindings(lets, *body),
            Ir::Assign(var, value) => {
                let ty = self.walk(*value);
                self.set(*var, ty);
                Ty::TRUE
            }
            Ir::Loop(looped) => self.looped(looped),
            Ir::Recur(args) => self.recur(args),
            Ir::Fn(at) => self.function(*at),
            Ir::Call(function, args) => self.call(*function, args, id),
            Ir::CallCode(code, args) => self.call_code(*code, args, id),
            Ir::Native(number, args) => {
                let types = self.walk_all(args);
                self.standard(crate::builtins::native(*number).name, args, &types, self.span(id))
            }
            Ir::Key(key, map) => {
                let ty = self.walk(*map);
                self.keyed(&ty, key, self.span(id))
            }
            Ir::Apply(function, list) => {
                let called = self.walk(*function);
                self.walk(*list);
                self.callable(&called, self.span(*function));
                Ty::ANY
            }
            Ir::Vector(ids) => {
                let items = self.walk_all(ids);
                Ty::items(items)
            }
            Ir::Map(ids) => self.map(ids),
            Ir::Set(ids) => {
                self.walk_all(ids);
                Ty::of(Kinds::SET)
            }
            Ir::Push(vector, item) => {
                self.walk(*vector);
                self.walk(*item);
                Ty::of(Kinds::VECTOR)
            }
            Ir::Def(global, value) => self.define(*global, *value),
            Ir::Throw(thrown) => self.thrown(id, *thrown),
            Ir::Try(form) => self.try_form(form),
            Ir::Rethrow(_) => Ty::NEVER,
            Ir::Check(value, check) => {
                let ty = self.walk(*value);
                self.checked(&ty, *check, self.span(*value))
            }
            Ir::CheckLocal(var, check) => {
                let ty = self.frame().vars.get(*var as usize).cloned().unwrap_or(Ty::ANY);
                let ty = self.checked(&ty, *check, self.span(id));
                self.set(*var, ty);
                Ty::NIL
            }
            Ir::Host(op, args) => {
                let types = self.walk_all(args);
                if *op == HostOp::Call { self.capability(args, &types, self.span(id)) } else { Ty::ANY }
            }
            // Only the prelude uses this form.
            Ir::Merge(_) => Ty::of(Kinds::VECTOR),
            Ir::Fork(kind, thunks) => self.fork(*kind, thunks),
        }
    }

    /// Records the types of names that are defined once, as far as they are known before the program
    /// runs.
    fn announce(&mut self) {
        for ir in &self.view.arena.forms {
            let Ir::Def(global, value) = ir else { continue };
            if self.view.session.is_predefined(*global) {
                continue;
            }
            self.pending.insert(*global);
            if let Ir::Fn(at) = self.view.arena.get(*value)
                && self.is_fixed(*global)
            {
                let function = self.outline(*at);
                self.state.globals.insert(*global, function);
            }
        }
    }

    /// Returns whether a top-level name always has the same value.
    fn is_fixed(&self, global: u32) -> bool {
        self.view.session.is_defined_once(global)
    }

    fn global(&mut self, global: u32, id: Id) -> Ty {
        let is_top = self.frames.len() == 1 && self.frame().targets.is_empty();
        if is_top && self.pending.contains(&global) {
            let name = self.view.session.global_name(global);
            let message = format!("`{name}` is used before its definition, which stands further down");
            self.error("undefined", self.span(id), message);
            return Ty::ANY;
        }
        self.slot(Slot::Global(global))
    }

    fn define(&mut self, global: u32, value: Id) -> Ty {
        let ty = self.walk(value);
        self.pending.remove(&global);
        if self.is_fixed(global) {
            self.state.globals.insert(global, ty.clone());
        }
        ty
    }

    fn sequence(&mut self, ids: &[Id]) -> Ty {
        let mut last = Ty::NIL;
        for &id in ids {
            last = self.walk(id);
            if last.is_never() {
                break;
            }
        }
        last
    }

    fn bindings(&mut self, lets: &[(Var, Id)], body: Id) -> Ty {
        for &(var, value) in lets {
            let ty = self.walk(value);
            if ty.is_never() {
                return ty;
            }
            self.set(var, ty);
            self.remember(var, value);
        }
        self.walk(body)
    }

    /// Checks a throw: a mistake that is thrown at its place, or a throw of the program.
    fn thrown(&mut self, id: Id, thrown: Id) -> Ty {
        if self.view.faults.binary_search(&id).is_err() {
            self.walk(thrown);
            return Ty::NEVER;
        }
        if let Ir::Const(Value::Map(error)) = self.view.arena.get(thrown)
            && let Some(Value::Str(message)) = error.get_keyword("message")
        {
            let is_arity =
                error.get_keyword("kind").is_some_and(|kind| *kind == Value::keyword("arity"));
            let kind = if is_arity { "arity" } else { "undefined" };
            self.error(kind, self.span(id), message.as_str().to_owned());
        }
        // The surrounding code is checked as if this form were correct.
        Ty::ANY
    }

    fn try_form(&mut self, form: &Try) -> Ty {
        let mark = self.mark();
        self.guarded += u32::from(form.handler.is_some());
        let mut ty = self.walk(form.body);
        self.guarded -= u32::from(form.handler.is_some());
        self.undo(mark);
        if let Some(handler) = form.handler {
            self.set(form.error, Ty::of(Kinds::MAP));
            let handled = self.walk(handler);
            self.undo(mark);
            ty = ty.or(&handled);
        }
        if let Some(cleanup) = form.cleanup {
            self.walk(cleanup);
            self.undo(mark);
        }
        ty
    }

    fn map(&mut self, ids: &[Id]) -> Ty {
        let mut fields: Vec<Field> = Vec::new();
        let mut closed = ids.len() <= 2 * super::ty::MAX_PARTS;
        for pair in ids.chunks_exact(2) {
            let key = self.walk(pair[0]);
            let ty = self.walk(pair[1]);
            match key.value() {
                Some(key) if closed => {
                    fields.retain(|field| field.key != *key);
                    fields.push(Field { key: key.clone(), ty, optional: false });
                }
                _ => closed = false,
            }
        }
        if closed { Ty::record(Record { fields, closed }) } else { Ty::of(Kinds::MAP) }
    }

    /// Returns the type of a value after it was checked against a type of the text.
    fn checked(&mut self, ty: &Ty, check: usize, span: Span) -> Ty {
        let check = &self.view.checks[check];
        let types = self.view.session.types();
        if check.each {
            let item = type_of(&check.ty, types, Place::Program);
            return Ty::each(Kinds::VECTOR.or(Kinds::LIST), item);
        }
        if !ty.is_never() {
            let clashes = super::clash::clashes(ty, &check.ty, types, Place::Program, &check.what);
            if !clashes.is_empty() {
                self.error("type", span, clashes.join("; "));
            }
        }
        let declared = type_of(&check.ty, types, Place::Program);
        let both = ty.and(&declared);
        if both.is_never() { declared } else { both }
    }

    fn looped(&mut self, form: &Loop) -> Ty {
        let inits = form.vars.iter().map(|&(var, init)| (var, self.span(init), self.walk(init)));
        let inits: Vec<_> = inits.collect();
        let vars = form.vars.iter().map(|entry| entry.0).collect();
        let Some(each) = &form.each else {
            for (var, _, _) in &inits {
                self.set(*var, Ty::ANY);
            }
            self.frame().targets.push(Target { vars, values: inits, ..Target::default() });
            let ty = self.walk(form.body);
            self.end_of_loop(!ty.is_never());
            return ty;
        };
        let collection = self.walk(each.collection);
        self.collection(&collection, self.span(each.collection));
        // These forms collect into a vector, one after the other.
        for (var, _, _) in &inits {
            self.set(*var, Ty::of(Kinds::VECTOR));
        }
        let mark = self.mark();
        let item = if collection.kinds == Kinds::STRING {
            Ty::of(Kinds::STRING)
        } else {
            collection.each_item().0
        };
        self.set(each.item, item);
        self.frame().targets.push(Target { vars: Vec::new(), ..Target::default() });
        self.walk(form.body);
        self.frame().targets.pop();
        self.undo(mark);
        self.walk(each.exit)
    }

    /// Checks the requirements of a loop on its variables, from the beginning.
    fn end_of_loop(&mut self, ends: bool) {
        let Some(target) = self.frame().targets.pop() else { return };
        if let Some(needs) = self.needs(&target, ends) {
            self.compare_values(target, &needs);
        }
    }

    /// Returns the requirements of a function on its parameters; none if it never completes.
    pub(super) fn end_of_body(&mut self, ends: bool) -> Option<Vec<Ty>> {
        let target = self.frame().targets.pop()?;
        let needs = self.needs(&target, ends)?;
        self.compare_values(target, &needs);
        Some(needs)
    }

    fn compare_values(&mut self, target: Target, needs: &[Ty]) {
        for (var, span, ty) in target.values {
            let Some(at) = target.vars.iter().position(|&known| known == var) else { continue };
            let need = &needs[at];
            if !ty.is_never() && !need.is_never() && !ty.kinds.meets(need.kinds) {
                let message = format!("{} is needed here from then on, got {}", need.kinds, ty.shown());
                self.error("type", span, message);
            }
        }
    }

    /// Returns the types of variables on every path that completes or reaches a `recur`; none if there
    /// is no such path.
    fn needs(&self, target: &Target, ends: bool) -> Option<Vec<Ty>> {
        let now = || {
            target.vars.iter().map(|&var| self.frames[self.frames.len() - 1].vars[var as usize].clone())
        };
        match (&target.seen, ends) {
            (None, false) => None,
            (None, true) => Some(now().collect()),
            (Some(seen), false) => Some(seen.clone()),
            (Some(seen), true) => Some(seen.iter().zip(now()).map(|(a, b)| a.or(&b)).collect()),
        }
    }

    fn recur(&mut self, args: &[Id]) -> Ty {
        let types = self.walk_all(args);
        let spans: Vec<_> = args.iter().map(|&arg| self.span(arg)).collect();
        let frame = self.frame();
        if let Some(target) = frame.targets.last_mut() {
            let now = target.vars.iter().map(|&var| frame.vars[var as usize].clone());
            target.seen = Some(match target.seen.take() {
                None => now.collect(),
                Some(seen) => seen.iter().zip(now).map(|(a, b)| a.or(&b)).collect(),
            });
            let values = target.vars.iter().zip(spans).zip(types);
            target.values.extend(values.map(|((&var, span), ty)| (var, span, ty)));
        }
        Ty::NEVER
    }

    fn fork(&mut self, kind: ForkKind, thunks: &[Id]) -> Ty {
        let is_guarded = matches!(kind, ForkKind::Settle | ForkKind::Race);
        self.guarded += u32::from(is_guarded);
        let mut results = Vec::new();
        for &thunk in thunks {
            let ty = self.walk(thunk);
            results.push(match ty.as_function() {
                Some(function) if function.arities.len() == 1 => function.arities[0].result.clone(),
                _ => Ty::ANY,
            });
        }
        self.guarded -= u32::from(is_guarded);
        match kind {
            ForkKind::All if results.iter().any(Ty::is_never) => Ty::NEVER,
            ForkKind::All => Ty::items(results),
            ForkKind::Settle => Ty::of(Kinds::VECTOR),
            ForkKind::Race | ForkKind::Map => Ty::ANY,
        }
    }
}

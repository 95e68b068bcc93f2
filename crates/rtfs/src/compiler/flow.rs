//! Generates code for choices, loops, calls and errors.

use super::generate::{Generator, Jumps, MOST, Target, To};
use super::ir::{Id, Ir, Loop, Merge, Try};
use super::liveness::{self, CHUNK, in_order};
use crate::Code;
use crate::machine::merge;
use crate::machine::op::Op;
use crate::value::Value;

/// A call in a loop whose arguments are already in place.
#[derive(Clone, Copy)]
struct InPlace {
    function: Id,
    /// Whether the accumulator is the first argument, and the result the next accumulator.
    folds: bool,
    at: Id,
}

impl Generator<'_, '_> {
    /// Emits a jump over the following code, unless control never reaches it.
    pub(super) fn jump_over(&mut self, to: To, id: Id) -> Jumps {
        if to == To::Return { Vec::new() } else { vec![self.emit(Op::Jump { o: 0 }, id)] }
    }

    pub(super) fn cond(&mut self, clauses: &[(Id, Id)], last: Id, to: To, id: Id) {
        let mut ends = Vec::new();
        for &(test, value) in clauses {
            let mark = self.next;
            let next = self.unless(test);
            self.expr(value, to);
            ends.extend(self.jump_over(to, id));
            self.place(next);
            self.next = mark;
        }
        self.expr(last, to);
        self.place(ends);
    }

    pub(super) fn and_or(&mut self, items: &[Id], is_and: bool, to: To, id: Id) {
        let Some((&last, first)) = items.split_last() else {
            return self.load(&Value::Bool(is_and), to, id);
        };
        let d = self.target(to);
        let mut ends = Vec::new();
        for &item in first {
            self.expr(item, To::Register(d));
            let op = if is_and { Op::JumpIfNot { a: d, o: 0 } } else { Op::JumpIf { a: d, o: 0 } };
            ends.push(self.emit(op, item));
        }
        match to {
            To::Return => {
                self.expr(last, To::Return);
                self.place(ends);
                self.emit(Op::Return { s: d }, id);
            }
            _ => {
                self.expr(last, To::Register(d));
                self.place(ends);
                self.done(d, to, id);
            }
        }
    }

    pub(super) fn looped(&mut self, looped: &Loop, to: To, id: Id) {
        let state = looped.each.as_ref().map(|each| {
            let state = self.temps(2);
            self.locals = self.locals.max(self.next);
            self.expr(each.collection, To::Register(state));
            state
        });
        let in_place = self.in_place(looped);
        // The callee's register precedes its arguments.
        let callee = in_place.filter(|call| call.folds).map(|_| self.local());
        for &(var, init) in &looped.vars {
            let register = self.local();
            self.expr(init, To::Register(register));
            self.registers[var as usize] = Some(register);
        }
        let callee = callee.or_else(|| in_place.map(|_| self.local()));
        let vars = looped.vars.iter().map(|var| var.0).collect();
        let item = looped.each.as_ref().map(|each| {
            let register = self.local();
            self.registers[each.item as usize] = Some(register);
            register
        });
        if let Some(state) = state {
            self.emit(Op::Int { d: state + 1, i: 0 }, id);
        }
        let head = self.code.len();
        let each = item.zip(state);
        self.loops.push(Target { head, vars, each, exits: Vec::new() });
        let (Some(of), Some((x, s))) = (&looped.each, each) else {
            self.expr(looped.body, to);
            self.loops.pop();
            return;
        };
        let exit = self.emit(Op::Iter { x, s, o: 0 }, id);
        if let (Some(call), Some(a)) = (in_place, callee) {
            self.call_in_place(call, a, looped, id);
            let back = self.emit(Op::IterBack { x, s, o: 0 }, id);
            self.patch(back, head + 1);
            self.loops.pop();
            self.place(vec![exit]);
            return self.expr(of.exit, to);
        }
        self.expr(looped.body, to);
        let exits = self.loops.pop().map_or_else(Vec::new, |target| target.exits);
        if to != To::Return {
            self.emit(Op::Clear { r: s }, id);
        }
        let end = self.jump_over(to, id);
        self.place(vec![exit]);
        self.place(exits);
        self.expr(of.exit, to);
        self.place(end);
    }

    /// Returns whether the body of a loop over a collection only calls a function with the accumulator
    /// and the item, or with the item, and keeps or appends the result. Both values are then kept where
    /// the callee expects them.
    fn in_place(&self, looped: &Loop) -> Option<InPlace> {
        let arena = &self.lower.arena;
        let item = looped.each.as_ref()?.item;
        let [(acc, _)] = looped.vars[..] else { return None };
        let Ir::Recur(args) = arena.get(looped.body) else { return None };
        let &[arg] = &args[..] else { return None };
        let is = |id: Id, var| matches!(arena.get(id), Ir::Local(local) if *local == var);
        let (at, folds) = match arena.get(arg) {
            Ir::Push(vector, item) if is(*vector, acc) => (*item, false),
            _ => (arg, true),
        };
        let Ir::Call(function, args) = arena.get(at) else { return None };
        let is_plain = match arena.get(*function) {
            Ir::Local(var) => *var != acc && *var != item,
            Ir::Up(_) => true,
            _ => false,
        };
        let fits = match args[..] {
            [one, two] => folds && is(one, acc) && is(two, item),
            [one] => !folds && is(one, item),
            _ => false,
        };
        (is_plain && fits).then_some(InPlace { function: *function, folds, at })
    }

    fn call_in_place(&mut self, call: InPlace, a: u8, looped: &Loop, id: Id) {
        let acc = looped.vars.first().map_or(0, |&(var, _)| self.register_of(var));
        self.expr(call.function, To::Register(a));
        self.emit(Op::Call { a, n: if call.folds { 2 } else { 1 } }, call.at);
        self.emit(if call.folds { Op::Move { d: acc, s: a } } else { Op::Push { v: acc, s: a } }, id);
    }

    pub(super) fn merging(&mut self, merge: &Merge, to: To, id: Id) {
        let s = self.temps(merge::REGISTERS);
        self.locals = self.locals.max(self.next);
        self.expr(merge.items, To::Register(s));
        // The loop has not begun.
        self.emit(Op::Nil { d: s.saturating_add(1) }, id);
        for (var, place) in [(merge.later, merge::LATER), (merge.earlier, merge::EARLIER)] {
            self.registers[var as usize] = Some(s.saturating_add(place as u8));
        }
        let r = self.temp();
        let head = self.emit(Op::Merge { r, s, o: 0 }, id);
        self.expr(merge.compare, To::Register(r));
        let back = self.emit(Op::Jump { o: 0 }, id);
        self.patch(back, head);
        self.place(vec![head]);
        self.done(s, to, id);
    }

    pub(super) fn recur(&mut self, args: &[Id], id: Id) {
        let Some(target) = self.loops.last().cloned() else { return };
        let (arena, functions) = (&self.lower.arena, &self.lower.functions);
        // The target registers hold values that are still needed, so none of them is free.
        self.temp();
        let order = liveness::recur_order(arena, functions, args, &target.vars);
        let mut moves = Vec::new();
        for (at, &place) in order.iter().enumerate() {
            let (arg, var) = (args[place], target.vars[place]);
            let register = self.register_of(var);
            let read_later =
                order[at + 1..].iter().any(|&later| liveness::reads(arena, functions, args[later], var));
            let writes_last = match arena.get(arg) {
                Ir::Const(_)
                | Ir::Local(_)
                | Ir::Up(_)
                | Ir::Global(_)
                | Ir::Native(..)
                | Ir::Key(..)
                | Ir::Push(..) => true,
                _ => !liveness::reads(arena, functions, arg, var),
            };
            if !read_later && writes_last {
                self.expr(arg, To::Register(register));
            } else {
                let temp = self.temp();
                self.expr(arg, To::Register(temp));
                moves.push((register, temp));
            }
        }
        for (d, s) in moves {
            self.emit(Op::Move { d, s }, id);
        }
        let Some((x, s)) = target.each else {
            let at = self.emit(Op::Loop { o: 0 }, id);
            return self.patch(at, target.head);
        };
        let at = self.emit(Op::IterBack { x, s, o: 0 }, id);
        self.patch(at, target.head + 1);
        let exit = self.emit(Op::Jump { o: 0 }, id);
        if let Some(target) = self.loops.last_mut() {
            target.exits.push(exit);
        }
    }

    pub(super) fn closure(&mut self, function: usize, to: To, id: Id) {
        let function = &self.lower.functions[function];
        if function.captures.is_empty() {
            return self.load(&Value::Code(Code(function.proto)), to, id);
        }
        let a = self.temps(function.captures.len());
        for (at, &capture) in function.captures.iter().enumerate() {
            self.expr(capture, To::Register(a.saturating_add(at as u8)));
        }
        let d = self.target(to);
        self.emit(Op::Closure { d, a, n: function.captures.len() as u8, p: function.proto }, id);
        self.done(d, to, id);
    }

    /// Puts parts into consecutive registers: the topmost ones, or beginning with the target register,
    /// if no register above it is in use.
    pub(super) fn window(&mut self, parts: &[Id], to: To) -> u8 {
        let a = match to {
            To::Register(d) if usize::from(d) + 1 == self.next => {
                self.temps(parts.len().max(1) - 1);
                d
            }
            _ => self.temps(parts.len().max(1)),
        };
        self.fill(a, parts);
        a
    }

    /// Evaluates parts into registers from `a`, all of which are reserved.
    pub(super) fn fill(&mut self, a: u8, parts: &[Id]) {
        let end = self.next;
        let lower = self.lower;
        for (at, part) in in_order(&lower.arena, parts) {
            let register = usize::from(a) + at;
            // Registers above are not filled yet, except for those that wait for the plain locals.
            if !matches!(lower.arena.get(part), Ir::Local(_)) {
                self.next = register + 1;
            }
            self.expr(part, To::Register(register.min(MOST) as u8));
            self.next = end;
        }
    }

    pub(super) fn call_code(&mut self, p: u32, args: &[Id], to: To, id: Id) {
        let a = match to {
            To::Register(d) if usize::from(d) + 1 == self.next => {
                self.temps(args.len());
                d
            }
            _ => self.temps(args.len() + 1),
        };
        self.fill(a.saturating_add(1), args);
        // A function of the prelude leaves the frame, so that its errors have a place.
        let session = &self.lower.session;
        let is_prelude = (p as usize) < session.shared.len();
        if to == To::Return && !is_prelude {
            self.emit(Op::TailCode { a, n: args.len() as u8, p }, id);
            return;
        }
        self.emit(Op::CallCode { a, p }, id);
        self.done(a, to, id);
    }

    pub(super) fn call(&mut self, function: Id, args: &[Id], to: To, id: Id) {
        if args.len() > CHUNK {
            let a = self.temps(2);
            self.expr(function, To::Register(a));
            self.vector(args, To::Register(a + 1), id);
            self.emit(if to == To::Return { Op::TailApply { a } } else { Op::Apply { a } }, id);
            return self.done(a, to, id);
        }
        let parts: Vec<_> = std::iter::once(function).chain(args.iter().copied()).collect();
        let a = self.window(&parts, to);
        let n = args.len() as u8;
        if to == To::Return {
            self.emit(Op::Tail { a, n }, id);
            self.emit(Op::Return { s: a }, id);
            return;
        }
        self.emit(Op::Call { a, n }, id);
        self.done(a, to, id);
    }

    pub(super) fn tried(&mut self, tried: &Try, to: To, id: Id) {
        let d = self.target(to);
        let error = self.local();
        self.registers[tried.error as usize] = Some(error);
        let result = self.temp();
        // Locals of the body and the handlers are cleared with the frame.
        self.locals = self.locals.max(self.next);
        let Some(cleanup) = tried.cleanup else {
            self.guarded(tried, error, result, id);
            self.emit(Op::Move { d, s: result }, id);
            return self.done(d, to, id);
        };
        let failure = self.local();
        let t = self.next as u8;
        let outer = self.emit(Op::Try { d: failure, t, o: 0 }, id);
        self.guarded(tried, error, result, id);
        self.emit(Op::EndTry, id);
        self.emit(Op::Nil { d: failure }, id);
        self.place(vec![outer]);
        self.expr(cleanup, To::Nowhere);
        self.emit(Op::Rethrow { a: failure }, id);
        self.emit(Op::Move { d, s: result }, id);
        self.done(d, to, id);
    }

    /// Generates the body with its handler; the value is in `result`.
    pub(super) fn guarded(&mut self, tried: &Try, error: u8, result: u8, id: Id) {
        let Some(handler) = tried.handler else {
            return self.expr(tried.body, To::Register(result));
        };
        let t = self.next as u8;
        let entry = self.emit(Op::Try { d: error, t, o: 0 }, id);
        self.expr(tried.body, To::Register(result));
        self.emit(Op::EndTry, id);
        let end = self.emit(Op::Jump { o: 0 }, id);
        self.place(vec![entry]);
        self.expr(handler, To::Register(result));
        self.emit(Op::Clear { r: error }, id);
        self.place(vec![end]);
    }
}

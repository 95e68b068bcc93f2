//! Code for the register machine.

use std::sync::Arc;

use super::ir::{Arity, Function, Id, Ir, Loop, Try, Var};
use super::liveness::{self, CHUNK, Liveness, in_order};
use super::lower::Lower;
use crate::Code;
use crate::builtins;
use crate::machine::op::{HostOp, Op};
use crate::machine::program::{Check, Proto};
use crate::syntax::{Diagnostic, Span};
use crate::value::Value;

/// Generates code for all functions of a unit.
pub(super) fn all(lower: &mut Lower<'_>) {
    let live = liveness::analyse(&lower.arena, &lower.functions, lower.session.always_copy);
    let mut made = Vec::new();
    let mut errors = Vec::new();
    for function in &lower.functions {
        for arity in &function.arities {
            match one(lower, &live, function, arity) {
                Ok(proto) => made.push((arity.proto, proto)),
                Err(message) => errors.push(Diagnostic::new(&lower.tree.source, arity.span, message)),
            }
        }
        if function.arities.len() > 1 {
            made.push((function.proto, table(lower, function)));
        }
    }
    for (at, proto) in made {
        lower.session.protos[at as usize] = Some(Arc::new(proto));
    }
    lower.errors.extend(errors);
}

/// The table of a function with several arities.
fn table(lower: &Lower<'_>, function: &Function) -> Proto {
    let entry = |arity: &Arity| ((arity.params.len() - usize::from(arity.rest)) as u8, arity.rest, arity.proto);
    Proto {
        code: Box::default(),
        consts: Box::default(),
        types: Box::default(),
        arity: 0,
        rest: false,
        exact: -1,
        locals: 0,
        registers: 0,
        name: function.name.as_str().into(),
        spans: Box::default(),
        source: lower.tree.source.clone(),
        arities: function.arities.iter().map(entry).collect(),
    }
}

fn one(lower: &Lower<'_>, live: &Liveness, function: &Function, arity: &Arity) -> Result<Proto, String> {
    let short = Generator::new(lower, live, function, arity, false).run()?;
    match short {
        Some(proto) => Ok(proto),
        // Some jump was too long for its instruction.
        None => Generator::new(lower, live, function, arity, true).run()?.ok_or("this function is too long".to_owned()),
    }
}

/// Where a value goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum To {
    Register(u8),
    Return,
    Nowhere,
}

/// A label that is not placed yet: the instructions that jump to it.
pub(super) type Jumps = Vec<usize>;

pub(super) struct Generator<'l, 's> {
    pub(super) lower: &'l Lower<'s>,
    pub(super) live: &'l Liveness,
    function: &'l Function,
    arity: &'l Arity,
    pub(super) code: Vec<Op>,
    pub(super) consts: Vec<Value>,
    types: Vec<Check>,
    spans: Vec<(u32, Span)>,
    /// The register of each local.
    pub(super) registers: Vec<Option<u8>>,
    /// The first free register.
    pub(super) next: usize,
    most: usize,
    /// The highest register of a local, and one.
    locals: usize,
    loops: Vec<Target>,
    /// Whether only instructions with long jumps are used.
    pub(super) long: bool,
    pub(super) too_far: bool,
}

/// Where `recur` goes, and the locals that it gives values.
#[derive(Clone)]
struct Target {
    head: usize,
    vars: Vec<Var>,
    /// Whether the head takes the next item of a collection, which is a step in itself.
    steps: bool,
}

/// Registers beyond this one are too many.
const MOST: usize = 248;

impl<'l, 's> Generator<'l, 's> {
    fn new(lower: &'l Lower<'s>, live: &'l Liveness, function: &'l Function, arity: &'l Arity, long: bool) -> Self {
        Self {
            lower,
            live,
            function,
            arity,
            code: Vec::new(),
            consts: Vec::new(),
            types: Vec::new(),
            spans: Vec::new(),
            registers: vec![None; arity.vars as usize],
            next: 1,
            most: 1,
            locals: 1,
            loops: Vec::new(),
            long,
            too_far: false,
        }
    }

    /// `None` if a jump was too far for a short instruction.
    fn run(mut self) -> Result<Option<Proto>, String> {
        for &param in &self.arity.params {
            let register = self.local();
            self.registers[param as usize] = Some(register);
        }
        self.loops.push(Target { head: 0, vars: self.arity.params.clone(), steps: false });
        self.expr(self.arity.body, To::Return);
        if self.most > MOST {
            return Err("this function needs too many values at once: split it".to_owned());
        }
        if self.too_far {
            return Ok(None);
        }
        Ok(Some(Proto {
            code: self.code.into(),
            consts: self.consts.into(),
            types: self.types.into(),
            arity: (self.arity.params.len() - usize::from(self.arity.rest)) as u8,
            rest: self.arity.rest,
            exact: if self.arity.rest { -1 } else { self.arity.params.len() as i16 },
            locals: self.locals.min(255) as u8,
            registers: self.most as u16,
            name: self.function.name.as_str().into(),
            spans: self.spans.into(),
            source: self.lower.tree.source.clone(),
            arities: Box::default(),
        }))
    }

    pub(super) fn emit(&mut self, op: Op, id: Id) -> usize {
        let span = self.lower.arena.span(id);
        if self.spans.last().is_none_or(|last| last.1 != span) {
            self.spans.push((self.code.len() as u32, span));
        }
        self.code.push(op);
        self.code.len() - 1
    }

    /// A register that nobody uses; also if there is none, which is found out at the end.
    pub(super) fn temp(&mut self) -> u8 {
        self.temps(1)
    }

    /// So many registers in a row.
    pub(super) fn temps(&mut self, n: usize) -> u8 {
        let first = self.next;
        self.next += n;
        self.most = self.most.max(self.next);
        first.min(MOST) as u8
    }

    fn local(&mut self) -> u8 {
        let register = self.temp();
        self.locals = self.locals.max(self.next);
        register
    }

    pub(super) fn register_of(&self, var: Var) -> u8 {
        self.registers[var as usize].unwrap_or(0)
    }

    pub(super) fn reserve_local(&mut self, var: Var) {
        let register = self.local();
        self.registers[var as usize] = Some(register);
    }

    /// The register of a local, which it gets when it is first assigned.
    fn assigned(&mut self, var: Var) -> u8 {
        match self.registers[var as usize] {
            Some(register) => register,
            None => {
                let register = self.local();
                self.registers[var as usize] = Some(register);
                register
            }
        }
    }

    pub(super) fn constant(&mut self, value: Value) -> usize {
        self.consts.push(value);
        self.consts.len() - 1
    }

    /// The register to compute into, for a value that goes there.
    pub(super) fn target(&mut self, to: To) -> u8 {
        match to {
            To::Register(register) => register,
            To::Return | To::Nowhere => self.temp(),
        }
    }

    /// A value is in `register`: on to where it goes.
    pub(super) fn done(&mut self, register: u8, to: To, id: Id) {
        match to {
            To::Register(d) if d == register => {}
            To::Register(d) => {
                self.emit(Op::Move { d, s: register }, id);
            }
            To::Return => {
                self.emit(Op::Return { s: register }, id);
            }
            To::Nowhere => {
                if self.may_own(id) {
                    self.emit(Op::Clear { r: register }, id);
                }
            }
        }
    }

    /// Whether the value may be more than 16 bytes.
    pub(super) fn may_own(&self, id: Id) -> bool {
        match self.lower.arena.get(id) {
            Ir::Const(value) => !value.is_immediate(),
            Ir::Native(native, _) => !builtins::native(*native).is_scalar,
            Ir::CheckLocal(..) | Ir::Recur(_) | Ir::Throw(_) | Ir::Assign(..) => false,
            _ => true,
        }
    }

    /// Places a label here.
    pub(super) fn place(&mut self, jumps: Jumps) {
        let here = self.code.len();
        for at in jumps {
            self.patch(at, here);
        }
    }

    fn patch(&mut self, at: usize, target: usize) {
        let far = target as i64 - at as i64 - 1;
        match &mut self.code[at] {
            Op::Jump { o }
            | Op::Loop { o }
            | Op::JumpIf { o, .. }
            | Op::JumpIfNot { o, .. }
            | Op::TakeJumpIf { o, .. }
            | Op::TakeJumpIfNot { o, .. }
            | Op::Iter { o, .. }
            | Op::Try { o, .. } => *o = far as i32,
            Op::UnlessLt { o, .. }
            | Op::UnlessLe { o, .. }
            | Op::UnlessGt { o, .. }
            | Op::UnlessGe { o, .. }
            | Op::UnlessEq { o, .. }
            | Op::UnlessLtI { o, .. }
            | Op::UnlessLeI { o, .. }
            | Op::UnlessGtI { o, .. }
            | Op::UnlessGeI { o, .. }
            | Op::UnlessEqI { o, .. }
            | Op::UnlessConst { o, .. } => match i16::try_from(far) {
                Ok(far) => *o = far,
                Err(_) => self.too_far = true,
            },
            _ => {}
        }
    }

    /// The code of a global function for so many arguments, if it is known and takes as many.
    fn known(&self, id: Id, n: usize) -> Option<u32> {
        let Ir::Global(global) = self.lower.arena.get(id) else { return None };
        let code = self.lower.session.globals[*global as usize].code?;
        match self.lower.functions.iter().find(|function| function.proto == code) {
            Some(function) => {
                let arity = function.arities.iter().find(|arity| !arity.rest && arity.params.len() == n)?;
                Some(arity.proto)
            }
            None => {
                let found = self.lower.session.select(code, n)?;
                (!self.lower.session.has_rest(found)).then_some(found)
            }
        }
    }

    pub(super) fn load(&mut self, value: &Value, to: To, id: Id) {
        if to == To::Nowhere {
            return;
        }
        let d = self.target(to);
        let op = match value {
            Value::Nil => Op::Nil { d },
            Value::Bool(b) => Op::Bool { d, b: *b },
            Value::Int(i) if i32::try_from(*i).is_ok() => Op::Int { d, i: *i as i32 },
            value => {
                let k = self.constant(value.clone()) as u32;
                Op::Const { d, k }
            }
        };
        self.emit(op, id);
        self.done(d, to, id);
    }

    /// Code for a form. Registers in use stay as they are; the register that a value goes to is
    /// written last, unless it is the topmost.
    pub(super) fn expr(&mut self, id: Id, to: To) {
        let mark = self.next;
        self.form(id, to);
        self.next = mark;
    }

    fn form(&mut self, id: Id, to: To) {
        let lower = self.lower;
        match lower.arena.get(id) {
            Ir::Const(value) => self.load(value, to, id),
            Ir::Local(var) => self.read_local(*var, id, to),
            Ir::Up(i) => self.simple(id, to, |d| Op::Up { d, i: *i }),
            Ir::SelfFn if self.function.captures.is_empty() => {
                self.load(&Value::Code(Code(self.function.proto)), to, id);
            }
            Ir::SelfFn => self.simple(id, to, |d| Op::SelfFn { d }),
            Ir::Global(g) => match lower.session.globals[*g as usize].code {
                Some(code) => self.load(&Value::Code(Code(code)), to, id),
                None => self.simple(id, to, |d| Op::Global { d, g: *g }),
            },
            Ir::If(test, yes, no) => {
                let no_jumps = self.unless(*test);
                self.expr(*yes, to);
                let end = self.jump_over(to, id);
                self.place(no_jumps);
                self.expr(*no, to);
                self.place(end);
            }
            Ir::Cond(clauses, last) => self.cond(clauses, *last, to, id),
            Ir::And(items) => self.and_or(items, true, to, id),
            Ir::Or(items) => self.and_or(items, false, to, id),
            Ir::Do(items) => {
                let Some((&last, first)) = items.split_last() else { return self.load(&Value::Nil, to, id) };
                for &item in first {
                    self.expr(item, To::Nowhere);
                }
                self.expr(last, to);
            }
            Ir::Let(bindings, body) => {
                for &(var, init) in bindings {
                    let register = self.local();
                    self.expr(init, To::Register(register));
                    self.registers[var as usize] = Some(register);
                    if self.live.is_dead(init) && self.may_own(init) {
                        self.emit(Op::Clear { r: register }, init);
                    }
                }
                self.expr(*body, to);
            }
            Ir::Assign(var, value) => {
                let register = self.assigned(*var);
                self.expr(*value, To::Register(register));
                self.load(&Value::Bool(true), to, id);
            }
            Ir::Loop(looped) => self.looped(looped, to, id),
            Ir::Recur(args) => self.recur(args, id),
            Ir::Fn(function) => self.closure(*function, to, id),
            Ir::Call(function, args) => match self.known(*function, args.len()) {
                Some(p) if args.len() <= CHUNK => self.call_code(p, args, to, id),
                _ => self.call(*function, args, to, id),
            },
            Ir::CallCode(p, args) => self.call_code(*p, args, to, id),
            Ir::Native(native, args) => self.native(*native, args, to, id),
            Ir::Key(key, map) => self.key(key, *map, to, id),
            Ir::Apply(function, args) => {
                let a = self.window(&[*function, *args], to);
                self.emit(Op::Apply { a }, id);
                self.done(a, to, id);
            }
            Ir::Vector(items) => self.vector(items, to, id),
            Ir::Map(items) => self.map(items, to, id),
            Ir::Set(items) => self.set(items, to, id),
            Ir::Push(vector, item) => self.push(*vector, *item, to, id),
            Ir::Def(g, value) => {
                let d = self.target(to);
                self.expr(*value, To::Register(d));
                self.emit(Op::SetGlobal { s: d, g: *g }, id);
                self.done(d, to, id);
            }
            Ir::Throw(value) => {
                let a = self.temp();
                self.expr(*value, To::Register(a));
                self.emit(Op::Throw { a }, id);
            }
            Ir::Try(tried) => self.tried(tried, to, id),
            Ir::Rethrow(var) => {
                let a = self.register_of(*var);
                self.emit(Op::Rethrow { a }, id);
                self.load(&Value::Nil, to, id);
            }
            Ir::Check(value, check) => {
                let d = self.target(to);
                self.expr(*value, To::Register(d));
                let t = self.check(*check);
                self.emit(Op::Check { a: d, t }, id);
                self.done(d, to, id);
            }
            Ir::CheckLocal(var, check) => {
                let t = self.check(*check);
                let a = self.register_of(*var);
                self.emit(Op::Check { a, t }, id);
                self.load(&Value::Nil, to, id);
            }
            Ir::Host(kind, args) => {
                let n = args.len() as u8;
                let a = self.window(args, to);
                let d = if let To::Register(d) = to { d } else { a };
                self.emit(Op::Host { d, a, n, kind: *kind }, id);
                if matches!(kind, HostOp::Log | HostOp::StepBegin | HostOp::StepEnd) && to == To::Nowhere {
                    return;
                }
                self.done(d, to, id);
            }
            Ir::Fork(kind, args) => {
                if args.len() > 200 {
                    self.most = MOST + 1; // reported as too many values
                    return;
                }
                let n = args.len() as u8;
                let a = self.window(args, to);
                let d = if let To::Register(d) = to { d } else { a };
                self.emit(Op::Fork { d, a, n, kind: *kind }, id);
                self.done(d, to, id);
            }
        }
    }

    fn simple(&mut self, id: Id, to: To, op: impl FnOnce(u8) -> Op) {
        let d = self.target(to);
        self.emit(op(d), id);
        self.done(d, to, id);
    }

    fn check(&mut self, at: usize) -> u16 {
        let check = &self.lower.checks[at];
        self.types.push(Check { ty: check.ty.clone(), what: check.what.clone(), each: check.each });
        (self.types.len() - 1) as u16
    }

    fn read_local(&mut self, var: Var, id: Id, to: To) {
        let s = self.register_of(var);
        match to {
            To::Return => {
                self.emit(Op::Return { s }, id);
            }
            To::Register(d) if d != s => {
                let op = if self.live.is_last(id) { Op::Move { d, s } } else { Op::Copy { d, s } };
                self.emit(op, id);
            }
            To::Register(_) | To::Nowhere => {}
        }
    }

    /// A jump over what follows, unless nothing goes on from here.
    fn jump_over(&mut self, to: To, id: Id) -> Jumps {
        if to == To::Return { Vec::new() } else { vec![self.emit(Op::Jump { o: 0 }, id)] }
    }

    fn cond(&mut self, clauses: &[(Id, Id)], last: Id, to: To, id: Id) {
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

    fn and_or(&mut self, items: &[Id], is_and: bool, to: To, id: Id) {
        let Some((&last, first)) = items.split_last() else { return self.load(&Value::Bool(is_and), to, id) };
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

    fn looped(&mut self, looped: &Loop, to: To, id: Id) {
        let state = looped.each.as_ref().map(|each| {
            let state = self.temps(2);
            self.locals = self.locals.max(self.next);
            self.expr(each.collection, To::Register(state));
            state
        });
        for &(var, init) in &looped.vars {
            let register = self.local();
            self.expr(init, To::Register(register));
            self.registers[var as usize] = Some(register);
        }
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
        self.loops.push(Target { head, vars, steps: looped.each.is_some() });
        let (Some(each), Some(state), Some(x)) = (&looped.each, state, item) else {
            self.expr(looped.body, to);
            self.loops.pop();
            return;
        };
        let exit = self.emit(Op::Iter { x, s: state, o: 0 }, id);
        self.expr(looped.body, to);
        self.loops.pop();
        if to != To::Return {
            self.emit(Op::Clear { r: state }, id);
        }
        let end = self.jump_over(to, id);
        self.place(vec![exit]);
        self.expr(each.exit, to);
        self.place(end);
    }

    fn recur(&mut self, args: &[Id], id: Id) {
        let Some(target) = self.loops.last().cloned() else { return };
        let (arena, functions) = (&self.lower.arena, &self.lower.functions);
        // The registers that are written hold what is still to be read: none of them is free.
        self.temp();
        let order = liveness::recur_order(arena, functions, args, &target.vars);
        let mut moves = Vec::new();
        for (at, &place) in order.iter().enumerate() {
            let (arg, var) = (args[place], target.vars[place]);
            let register = self.register_of(var);
            let read_later =
                order[at + 1..].iter().any(|&later| liveness::reads(arena, functions, args[later], var));
            let writes_last = match arena.get(arg) {
                Ir::Const(_) | Ir::Local(_) | Ir::Up(_) | Ir::Global(_) | Ir::Native(..) | Ir::Key(..) | Ir::Push(..) => true,
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
        let at = self.emit(if target.steps { Op::Jump { o: 0 } } else { Op::Loop { o: 0 } }, id);
        self.patch(at, target.head);
    }

    fn closure(&mut self, function: usize, to: To, id: Id) {
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

    /// Puts parts into registers in a row: the topmost ones, or beginning with the one that the
    /// value goes to, if nothing lies above it.
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

    /// Evaluates parts into registers from `a`, all of which are taken already.
    pub(super) fn fill(&mut self, a: u8, parts: &[Id]) {
        let end = self.next;
        let lower = self.lower;
        for (at, part) in in_order(&lower.arena, parts) {
            let register = usize::from(a) + at;
            // What lies above is not filled yet, except for what waits for the plain locals.
            if !matches!(lower.arena.get(part), Ir::Local(_)) {
                self.next = register + 1;
            }
            self.expr(part, To::Register(register.min(MOST) as u8));
            self.next = end;
        }
    }

    fn call_code(&mut self, p: u32, args: &[Id], to: To, id: Id) {
        let a = match to {
            To::Register(d) if usize::from(d) + 1 == self.next => {
                self.temps(args.len());
                d
            }
            _ => self.temps(args.len() + 1),
        };
        self.fill(a.saturating_add(1), args);
        if to == To::Return {
            self.emit(Op::TailCode { a, n: args.len() as u8, p }, id);
            return;
        }
        self.emit(Op::CallCode { a, p }, id);
        self.done(a, to, id);
    }

    fn call(&mut self, function: Id, args: &[Id], to: To, id: Id) {
        if args.len() > CHUNK {
            let a = self.temps(2);
            self.expr(function, To::Register(a));
            self.vector(args, To::Register(a + 1), id);
            self.emit(Op::Apply { a }, id);
            return self.done(a, to, id);
        }
        let parts: Vec<_> = std::iter::once(function).chain(args.iter().copied()).collect();
        let a = self.window(&parts, to);
        let n = args.len() as u8;
        if to == To::Return {
            self.emit(Op::Tail { a, n }, id);
            return;
        }
        self.emit(Op::Call { a, n }, id);
        self.done(a, to, id);
    }

    fn tried(&mut self, tried: &Try, to: To, id: Id) {
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

    /// The body with its handler; the value is in `result`.
    fn guarded(&mut self, tried: &Try, error: u8, result: u8, id: Id) {
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

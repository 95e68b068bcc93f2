//! Generates code for the register machine.

use super::Optimization;
use super::ir::{Arity, Function, Id, Ir, Var};
use super::liveness::{self, CHUNK, Liveness};
use super::lower::Lower;
use crate::Code;
use crate::builtins;
use crate::machine::op::{HostOp, Op};
use crate::machine::program::{Check, Proto};
use crate::syntax::{Diagnostic, Span};
use crate::value::Value;

/// Generates code for all functions of a unit.
pub(super) fn all(lower: &mut Lower<'_>) {
    let live = liveness::analyse(
        &lower.arena,
        &lower.functions,
        lower.session.left_out == Some(Optimization::Moves),
    );
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
        lower.session.define(at, proto);
    }
    lower.errors.extend(errors);
}

/// Returns the table of a function with several arities.
fn table(lower: &Lower<'_>, function: &Function) -> Proto {
    let entry =
        |arity: &Arity| ((arity.params.len() - usize::from(arity.rest)) as u8, arity.rest, arity.proto);
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
        // A jump was too long for its instruction.
        None => Generator::new(lower, live, function, arity, true)
            .run()?
            .ok_or("this function is too long".to_owned()),
    }
}

/// The destination of a value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum To {
    Register(u8),
    Return,
    Nowhere,
}

/// An unplaced label: the instructions that jump to it.
pub(super) type Jumps = Vec<usize>;

pub(super) struct Generator<'l, 's> {
    pub(super) lower: &'l Lower<'s>,
    pub(super) live: &'l Liveness,
    pub(super) function: &'l Function,
    pub(super) arity: &'l Arity,
    pub(super) code: Vec<Op>,
    pub(super) consts: Vec<Value>,
    pub(super) types: Vec<Check>,
    pub(super) spans: Vec<(u32, Span)>,
    /// The register of each local.
    pub(super) registers: Vec<Option<u8>>,
    /// The first free register.
    pub(super) next: usize,
    pub(super) most: usize,
    /// The number of registers up to the highest local.
    pub(super) locals: usize,
    pub(super) loops: Vec<Target>,
    /// Whether only instructions with long jumps are used.
    pub(super) long: bool,
    pub(super) too_far: bool,
}

/// The target of `recur`, and the locals that it assigns.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) head: usize,
    pub(super) vars: Vec<Var>,
    /// For a loop over a collection: the registers of the item and of the state.
    pub(super) each: Option<(u8, u8)>,
    /// Jumps to the end of the loop.
    pub(super) exits: Jumps,
}

/// The maximum number of registers.
pub(super) const MOST: usize = 248;

impl<'l, 's> Generator<'l, 's> {
    pub(super) fn new(
        lower: &'l Lower<'s>,
        live: &'l Liveness,
        function: &'l Function,
        arity: &'l Arity,
        long: bool,
    ) -> Self {
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

    /// Generates the code; `None` if a jump was too far for a short instruction.
    pub(super) fn run(mut self) -> Result<Option<Proto>, String> {
        for &param in &self.arity.params {
            let register = self.local();
            self.registers[param as usize] = Some(register);
        }
        self.loops.push(Target {
            head: 0,
            vars: self.arity.params.clone(),
            each: None,
            exits: Vec::new(),
        });
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

    /// Returns an unused register. A lack of registers is reported at the end.
    pub(super) fn temp(&mut self) -> u8 {
        self.temps(1)
    }

    /// Returns the first of `n` consecutive unused registers.
    pub(super) fn temps(&mut self, n: usize) -> u8 {
        let first = self.next;
        self.next += n;
        self.most = self.most.max(self.next);
        first.min(MOST) as u8
    }

    pub(super) fn local(&mut self) -> u8 {
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

    /// Returns the register of a local, which is allocated at its first assignment.
    pub(super) fn assigned(&mut self, var: Var) -> u8 {
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

    /// Returns the register in which to compute a value for this destination.
    pub(super) fn target(&mut self, to: To) -> u8 {
        match to {
            To::Register(register) => register,
            To::Return | To::Nowhere => self.temp(),
        }
    }

    /// Moves a value from `register` to its destination.
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

    /// Returns whether the value may own heap data.
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

    pub(super) fn patch(&mut self, at: usize, target: usize) {
        let far = target as i64 - at as i64 - 1;
        match &mut self.code[at] {
            Op::Jump { o }
            | Op::Loop { o }
            | Op::JumpIf { o, .. }
            | Op::JumpIfNot { o, .. }
            | Op::TakeJumpIf { o, .. }
            | Op::TakeJumpIfNot { o, .. }
            | Op::Iter { o, .. }
            | Op::IterBack { o, .. }
            | Op::Merge { o, .. }
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

    /// Returns the code of a global function for this many arguments, if it is known and accepts them.
    pub(super) fn known(&self, id: Id, n: usize) -> Option<u32> {
        let Ir::Global(global) = self.lower.arena.get(id) else { return None };
        let code = self.lower.session.globals[*global as usize].code?;
        match self.lower.functions.iter().find(|function| function.proto == code) {
            Some(function) => {
                let arity =
                    function.arities.iter().find(|arity| !arity.rest && arity.params.len() == n)?;
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

    /// Generates code for a form. Registers in use stay unchanged; the target register is written last,
    /// unless it is the topmost.
    pub(super) fn expr(&mut self, id: Id, to: To) {
        let mark = self.next;
        self.form(id, to);
        self.next = mark;
    }

    pub(super) fn form(&mut self, id: Id, to: To) {
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
                let Some((&last, first)) = items.split_last() else {
                    return self.load(&Value::Nil, to, id);
                };
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
            Ir::Merge(merge) => self.merging(merge, to, id),
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
                self.emit(if to == To::Return { Op::TailApply { a } } else { Op::Apply { a } }, id);
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
                if matches!(kind, HostOp::Log | HostOp::StepBegin | HostOp::StepEnd) && to == To::Nowhere
                {
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

    pub(super) fn simple(&mut self, id: Id, to: To, op: impl FnOnce(u8) -> Op) {
        let d = self.target(to);
        self.emit(op(d), id);
        self.done(d, to, id);
    }

    pub(super) fn check(&mut self, at: usize) -> u16 {
        let check = &self.lower.checks[at];
        let (ty, what) = (check.ty.clone(), check.what.clone());
        self.types.push(Check { ty, what, each: check.each, is_result: check.is_result });
        (self.types.len() - 1) as u16
    }

    pub(super) fn read_local(&mut self, var: Var, id: Id, to: To) {
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
}

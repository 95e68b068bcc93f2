//! Generates code for calls of the standard library, for literals, and for conditions.

use super::generate::{Generator, Jumps, To};
use super::ir::{Id, Ir};
use super::liveness::CHUNK;
use crate::builtins::{self, Function};
use crate::machine::op::Op;
use crate::value::Value;

/// An operand in a register, and whether the register must be cleared after its use.
#[derive(Clone, Copy)]
struct Operand {
    register: u8,
    clear: bool,
}

impl Generator<'_, '_> {
    /// Evaluates operands that are read: plain locals stay in place. The first of the others may use the
    /// result register `d`, if no register above it is in use.
    fn operands<const N: usize>(&mut self, ids: [Id; N], d: Option<u8>) -> [Operand; N] {
        let arena = &self.lower.arena;
        let mut operands = [Operand { register: 0, clear: false }; N];
        let mut free = d.filter(|&d| usize::from(d) + 1 == self.next);
        for (at, id) in ids.into_iter().enumerate() {
            if !matches!(arena.get(id), Ir::Local(_)) {
                let register = free.take().unwrap_or_else(|| self.temp());
                self.expr(id, To::Register(register));
                operands[at] = Operand { register, clear: self.may_own(id) };
            }
        }
        for (at, id) in ids.into_iter().enumerate() {
            if let Ir::Local(var) = arena.get(id) {
                operands[at] =
                    Operand { register: self.register_of(*var), clear: self.live.is_last(id) };
            }
        }
        operands
    }

    fn clear<const N: usize>(&mut self, operands: [Operand; N], except: u8, id: Id) {
        for (at, operand) in operands.iter().enumerate() {
            let twice =
                operands[..at].iter().any(|other| other.register == operand.register && other.clear);
            if operand.clear && operand.register != except && !twice {
                self.emit(Op::Clear { r: operand.register }, id);
            }
        }
    }

    fn int_of(&self, id: Id) -> Option<i64> {
        match self.lower.arena.get(id) {
            Ir::Const(Value::Int(i)) => Some(*i),
            _ => None,
        }
    }

    pub(super) fn native(&mut self, native: u16, args: &[Id], to: To, id: Id) {
        let entry = builtins::native(native);
        if has_instruction(entry.name, args.len()) {
            let d = self.target(to);
            let op = self.arithmetic(entry.name, args, d);
            // Numbers own no heap data.
            self.emit(op, id);
            return self.done(d, to, id);
        }
        // Functions with several arities have an instruction for each of the usual ones.
        let native = match (entry.name, args.len()) {
            ("get", 2) => builtins::native_named("%get-any").unwrap_or(native),
            ("get", 3) => builtins::native_named("%get-or").unwrap_or(native),
            ("nth", 2) => builtins::native_named("%nth-of").unwrap_or(native),
            _ => native,
        };
        let f = native;
        match (builtins::native(native).function, args) {
            (Function::One(_), &[one]) => {
                let d = self.target(to);
                let operands = self.operands([one], Some(d));
                self.emit(Op::Read1 { f, d, a: operands[0].register }, id);
                self.clear(operands, d, id);
                self.done(d, to, id);
            }
            (Function::Two(_), &[one, two]) => {
                let d = self.target(to);
                let operands = self.operands([one, two], Some(d));
                let [a, b] = operands.map(|operand| operand.register);
                self.emit(Op::Read2 { f, d, a, b }, id);
                self.clear(operands, d, id);
                self.done(d, to, id);
            }
            (Function::Three(_), &[one, two, three]) => {
                let d = self.target(to);
                let operands = self.operands([one, two, three], Some(d));
                let [a, b, c] = operands.map(|operand| operand.register);
                self.emit(Op::Read3 { f, d, a, b, c }, id);
                self.clear(operands, d, id);
                self.done(d, to, id);
            }
            _ if args.len() > CHUNK => {
                let a = self.temps(2);
                self.load(&Value::Native(crate::Native(native)), To::Register(a), id);
                self.vector(args, To::Register(a.saturating_add(1)), id);
                self.emit(Op::Apply { a }, id);
                self.done(a, to, id);
            }
            _ => {
                let a = self.window(args, to);
                let d = if let To::Register(d) = to { d } else { a };
                self.emit(Op::Native { f, d, a, n: args.len() as u8 }, id);
                self.done(d, to, id);
            }
        }
    }

    /// Returns the instruction of an arithmetic function or comparison that has one.
    fn arithmetic(&mut self, name: &str, args: &[Id], d: u8) -> Op {
        let small = |n: i64| i32::try_from(n).ok();
        let &[x, ref rest @ ..] = args else { return Op::Nil { d } };
        let constant = rest.first().and_then(|&n| self.int_of(n));
        let added = match name {
            "inc" => Some(1),
            "dec" => Some(-1),
            "+" => constant.and_then(small),
            "-" => constant.and_then(|n| small(n.checked_neg()?)),
            _ => None,
        };
        let divisor = constant.and_then(small).filter(|&n| name == "mod" && n > 0);
        if let Some(i) = added {
            let [a] = self.operands([x], Some(d)).map(|operand| operand.register);
            return Op::AddI { d, a, i };
        }
        if let Some(i) = divisor {
            let [a] = self.operands([x], Some(d)).map(|operand| operand.register);
            return Op::ModI { d, a, i };
        }
        let Some(&y) = rest.first() else {
            let [a] = self.operands([x], Some(d)).map(|operand| operand.register);
            return Op::Not { d, a };
        };
        let [a, b] = self.operands([x, y], Some(d)).map(|operand| operand.register);
        match name {
            "+" => Op::Add { d, a, b },
            "-" => Op::Sub { d, a, b },
            "*" => Op::Mul { d, a, b },
            "<" => Op::Lt { d, a, b },
            "<=" => Op::Le { d, a, b },
            ">" => Op::Gt { d, a, b },
            ">=" => Op::Ge { d, a, b },
            "=" => Op::Eq { d, a, b },
            _ => match builtins::native_named(name) {
                Some(f) => Op::Read2 { f, d, a, b },
                None => Op::Nil { d },
            },
        }
    }

    pub(super) fn key(&mut self, key: &Value, map: Id, to: To, id: Id) {
        let k = self.constant(key.clone());
        let d = self.target(to);
        let operands = self.operands([map], Some(d));
        match u16::try_from(k) {
            Ok(k) => {
                self.emit(Op::Key { d, a: operands[0].register, k }, id);
            }
            Err(_) => {
                self.too_far = true;
                if self.long {
                    // The table of constants is full, so the key is loaded like any other value.
                    let b = self.temp();
                    self.emit(Op::Const { d: b, k: k as u32 }, id);
                    if let Some(get) = builtins::native_named("%get") {
                        self.emit(Op::Read2 { f: get, d, a: operands[0].register, b }, id);
                    }
                    self.too_far = false;
                }
            }
        }
        self.clear(operands, d, id);
        self.done(d, to, id);
    }

    pub(super) fn vector(&mut self, items: &[Id], to: To, id: Id) {
        if items.len() <= CHUNK {
            let a = self.window(items, to);
            let d = if let To::Register(d) = to { d } else { a };
            self.emit(Op::NewVector { d, a, n: items.len() as u8 }, id);
            return self.done(d, to, id);
        }
        let v = self.temp();
        self.emit(Op::NewVector { d: v, a: v, n: 0 }, id);
        for &item in items {
            let s = self.temp();
            self.expr(item, To::Register(s));
            self.emit(Op::Push { v, s }, id);
            self.next -= 1;
        }
        self.done(v, to, id);
    }

    pub(super) fn map(&mut self, items: &[Id], to: To, id: Id) {
        if items.len() <= CHUNK {
            let a = self.window(items, to);
            let d = if let To::Register(d) = to { d } else { a };
            self.emit(Op::NewMap { d, a, n: items.len() as u8 }, id);
            return self.done(d, to, id);
        }
        let m = self.temp();
        self.emit(Op::NewMap { d: m, a: m, n: 0 }, id);
        for pair in items.chunks_exact(2) {
            let k = self.temps(2);
            self.expr(pair[0], To::Register(k));
            self.expr(pair[1], To::Register(k.saturating_add(1)));
            self.emit(Op::Put { m, k, v: k.saturating_add(1) }, id);
            self.next -= 2;
        }
        self.done(m, to, id);
    }

    pub(super) fn set(&mut self, items: &[Id], to: To, id: Id) {
        if items.len() <= CHUNK {
            let a = self.window(items, to);
            let d = if let To::Register(d) = to { d } else { a };
            self.emit(Op::NewSet { d, a, n: items.len() as u8 }, id);
            return self.done(d, to, id);
        }
        let m = self.temp();
        self.emit(Op::NewSet { d: m, a: m, n: 0 }, id);
        for &item in items {
            let v = self.temp();
            self.expr(item, To::Register(v));
            self.emit(Op::Member { m, v }, id);
            self.next -= 1;
        }
        self.done(m, to, id);
    }

    pub(super) fn push(&mut self, vector: Id, item: Id, to: To, id: Id) {
        let is_local = matches!(self.lower.arena.get(vector), Ir::Local(_));
        let v = match to {
            To::Register(d) => d,
            _ => self.temp(),
        };
        let s = self.temp();
        if is_local {
            self.expr(item, To::Register(s));
            self.expr(vector, To::Register(v));
        } else {
            let first = self.temp();
            self.expr(vector, To::Register(first));
            self.expr(item, To::Register(s));
            self.emit(Op::Move { d: v, s: first }, id);
        }
        self.emit(Op::Push { v, s }, id);
        self.done(v, to, id);
    }

    /// Jumps unless a condition holds.
    pub(super) fn unless(&mut self, test: Id) -> Jumps {
        let lower = self.lower;
        match lower.arena.get(test) {
            Ir::Const(value) if value.is_truthy() => Vec::new(),
            Ir::Const(_) => vec![self.emit(Op::Jump { o: 0 }, test)],
            Ir::And(items) => items.iter().flat_map(|&item| self.unless(item)).collect(),
            Ir::Or(items) => {
                let Some((&last, first)) = items.split_last() else {
                    return vec![self.emit(Op::Jump { o: 0 }, test)];
                };
                let mut holds = Vec::new();
                for &item in first {
                    holds.extend(self.whenever(item));
                }
                let jumps = self.unless(last);
                self.place(holds);
                jumps
            }
            Ir::Assign(..) => {
                self.assign(test);
                Vec::new()
            }
            Ir::Native(native, args) => {
                let name = builtins::native(*native).name;
                if name == "not"
                    && let &[inner] = &args[..]
                {
                    return self.whenever(inner);
                }
                match self.comparison(name, args, test) {
                    Some(at) => vec![at],
                    None => self.unless_value(test),
                }
            }
            _ => self.unless_value(test),
        }
    }

    /// Jumps if a condition holds.
    fn whenever(&mut self, test: Id) -> Jumps {
        let lower = self.lower;
        let is_plain = match lower.arena.get(test) {
            Ir::Native(native, args) => {
                let name = builtins::native(*native).name;
                if name == "not"
                    && let &[inner] = &args[..]
                {
                    return self.unless(inner);
                }
                !matches!(name, "<" | "<=" | ">" | ">=" | "=")
            }
            Ir::And(_) | Ir::Or(_) | Ir::Const(_) | Ir::Assign(..) => false,
            _ => true,
        };
        if !is_plain {
            let otherwise = self.unless(test);
            let jump = self.emit(Op::Jump { o: 0 }, test);
            self.place(otherwise);
            return vec![jump];
        }
        let mark = self.next;
        let op = match lower.arena.get(test) {
            Ir::Local(var) => Op::JumpIf { a: self.register_of(*var), o: 0 },
            _ => {
                let a = self.temp();
                self.expr(test, To::Register(a));
                if self.may_own(test) { Op::TakeJumpIf { a, o: 0 } } else { Op::JumpIf { a, o: 0 } }
            }
        };
        self.next = mark;
        vec![self.emit(op, test)]
    }

    fn assign(&mut self, test: Id) {
        // The register stays reserved: the caller knows the end of its scope.
        let Ir::Assign(var, _) = self.lower.arena.get(test) else { return };
        if self.registers[*var as usize].is_none() {
            self.reserve_local(*var);
        }
        self.expr(test, To::Nowhere);
    }

    fn unless_value(&mut self, test: Id) -> Jumps {
        let mark = self.next;
        let op = match self.lower.arena.get(test) {
            Ir::Local(var) => Op::JumpIfNot { a: self.register_of(*var), o: 0 },
            _ => {
                let a = self.temp();
                self.expr(test, To::Register(a));
                if self.may_own(test) {
                    Op::TakeJumpIfNot { a, o: 0 }
                } else {
                    Op::JumpIfNot { a, o: 0 }
                }
            }
        };
        self.next = mark;
        vec![self.emit(op, test)]
    }

    /// Emits a comparison that jumps unless it holds.
    fn comparison(&mut self, name: &str, args: &[Id], id: Id) -> Option<usize> {
        let &[x, y] = args else { return None };
        if self.long || !matches!(name, "<" | "<=" | ">" | ">=" | "=") {
            return None;
        }
        let mark = self.next;
        let small = |id: Id| self.int_of(id).and_then(|n| i32::try_from(n).ok());
        let (x, y, name) = match (small(x), small(y)) {
            (Some(_), None) => {
                let swapped = match name {
                    "<" => ">",
                    "<=" => ">=",
                    ">" => "<",
                    ">=" => "<=",
                    other => other,
                };
                (y, x, swapped)
            }
            _ => (x, y, name),
        };
        let op = if let Some(i) = small(y) {
            let [a] = self.operands([x], None).map(|operand| operand.register);
            match name {
                "<" => Op::UnlessLtI { a, i, o: 0 },
                "<=" => Op::UnlessLeI { a, i, o: 0 },
                ">" => Op::UnlessGtI { a, i, o: 0 },
                ">=" => Op::UnlessGeI { a, i, o: 0 },
                _ => Op::UnlessEqI { a, i, o: 0 },
            }
        } else if let (Ir::Const(value), "=", true) =
            (self.lower.arena.get(y), name, self.consts.len() < usize::from(u16::MAX))
        {
            let k = self.constant(value.clone()) as u16;
            let [a] = self.operands([x], None).map(|operand| operand.register);
            Op::UnlessConst { a, k, o: 0 }
        } else {
            let [a, b] = self.operands([x, y], None).map(|operand| operand.register);
            match name {
                "<" => Op::UnlessLt { a, b, o: 0 },
                "<=" => Op::UnlessLe { a, b, o: 0 },
                ">" => Op::UnlessGt { a, b, o: 0 },
                ">=" => Op::UnlessGe { a, b, o: 0 },
                _ => Op::UnlessEq { a, b, o: 0 },
            }
        };
        self.next = mark;
        Some(self.emit(op, id))
    }
}

/// Returns whether a function has a separate instruction for this many arguments.
fn has_instruction(name: &str, n: usize) -> bool {
    match n {
        1 => matches!(name, "inc" | "dec" | "not"),
        2 => matches!(name, "+" | "-" | "*" | "<" | "<=" | ">" | ">=" | "=" | "mod"),
        _ => false,
    }
}

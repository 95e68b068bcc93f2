//! The interpreter's loop.
//!
//! A function has a window of 256 registers. Operands are bytes, so no access is checked. The loop exits
//! for every uncommon case: errors, lazy sequences, the host, other strands.

use std::cmp::Ordering;

use super::arith::{arithmetic, compare_ordered};
use super::call::{self, Callee};
use super::context::{Context, Fault, fault};
use super::merge;
use super::op::{ForkKind, HostOp, Op};
use super::program::{Program, Proto};
use super::strand::{Frame, Handler, Strand};
use super::unwind::{enter_helper, raise};
use crate::builtins::{self, Function};
use crate::error::Error;
use crate::function::{Closure, Code};
use crate::lazy::State;
use crate::sequence::Vector;
use crate::value::Value;

/// The reason why the loop exited.
pub(super) enum Exit {
    Done(Value),
    Failed(Error),
    /// The quota is used up.
    Quota,
    /// Memory must be measured. If this many bytes are not available, it is an error at the current
    /// instruction. If zero bytes are requested, the run ends.
    Memory(usize),
    Host {
        kind: HostOp,
        d: u8,
        a: u8,
        n: u8,
    },
    Fork {
        kind: ForkKind,
        d: u8,
        a: u8,
        n: u8,
    },
}

/// Takes the value out. A value without heap data may stay.
#[inline(always)]
fn take(slot: &mut Value) -> Value {
    // This avoids a stall on an integer that was just written.
    if let Value::Int(i) = slot { Value::Int(*i) } else { std::mem::take(slot) }
}

/// Replaces the value. An old one without heap data is not dropped.
#[inline(always)]
pub(super) fn put(slot: &mut Value, value: Value) {
    if slot.is_immediate() {
        std::mem::forget(std::mem::replace(slot, value));
    } else {
        *slot = value;
    }
}

/// Replaces the value by a copy.
#[inline(always)]
pub(super) fn copy(slot: &mut Value, value: &Value) {
    match value {
        Value::Int(i) => put(slot, Value::Int(*i)),
        Value::Code(code) => put(slot, Value::Code(*code)),
        other => {
            let value = other.clone();
            put(slot, value);
        }
    }
}

/// Takes the value out of `s` and puts it into `d`.
#[inline(always)]
fn shift(regs: &mut [Value; 256], d: usize, s: usize) {
    // An integer is copied directly: a copy of all 16 bytes would have to wait for the two parts that
    // were just written.
    if let Value::Int(i) = regs[s] {
        put(&mut regs[d], Value::Int(i));
    } else {
        let value = std::mem::take(&mut regs[s]);
        put(&mut regs[d], value);
    }
}

/// Runs a strand until something else must be done. `fuel` is the number of remaining steps.
pub(super) fn exec(
    strand: &mut Strand,
    context: &mut Context,
    globals: &mut [Option<Value>],
    program: &Program,
    max_depth: usize,
    fuel: &mut u64,
) -> Exit {
    let mut left = *fuel;
    // The strand's position, kept in locals while it runs and written back when the loop exits.
    let Strand { mut proto, mut pc, mut base, .. } = *strand;
    let exit = 'frame: loop {
        let running: &Proto = program.proto(proto);
        let window = strand.stack.get_mut(base..).and_then(<[Value]>::first_chunk_mut);
        let Some(regs): Option<&mut [Value; 256]> = window else {
            context.allocated(strand.grow(base) * 16);
            continue;
        };
        let code = &running.code[..];

        macro_rules! reg {
            ($r:expr) => {
                regs[usize::from($r)]
            };
        }
        macro_rules! set {
            ($d:expr, $value:expr) => {{
                let value = $value;
                put(&mut regs[usize::from($d)], value);
            }};
        }
        macro_rules! jump {
            ($o:expr) => {
                pc = (pc as isize + $o as isize) as usize
            };
        }
        // Counts one step. The state is unchanged if the run must pause.
        macro_rules! tick {
            () => {
                if left == 0 {
                    pc -= 1;
                    break 'frame Exit::Quota;
                }
                if context.since > context.slack {
                    pc -= 1;
                    break 'frame Exit::Memory(0);
                }
                left -= 1;
            };
        }
        // Charges the cost of the last operation beyond its step.
        macro_rules! charge {
            () => {
                if context.cost > 0 {
                    left = context.charge(left);
                }
            };
        }
        macro_rules! arith {
            ($d:expr, $a:expr, $b:expr, $op:literal, $checked:ident, $float:tt) => {{
                let value = match (&reg!($a), &reg!($b)) {
                    (Value::Int(x), Value::Int(y)) => match x.$checked(*y) {
                        Some(z) => Value::Int(z),
                        None => match arithmetic($op, &Value::Int(*x), &Value::Int(*y)) {
                            Ok(value) => value,
                            Err(fault) => break fault,
                        },
                    },
                    (Value::Float(x), Value::Float(y)) => Value::Float(x $float y),
                    (x, y) => match large(context, $op, x, y) {
                        Ok(value) => {
                            charge!();
                            value
                        }
                        Err(fault) => break fault,
                    },
                };
                set!($d, value);
            }};
        }
        macro_rules! compared {
            ($a:expr, $b:expr, $op:tt, $name:literal, $method:ident) => {
                match (&reg!($a), &reg!($b)) {
                    (Value::Int(x), Value::Int(y)) => x $op y,
                    (Value::Float(x), Value::Float(y)) => x $op y,
                    (x, y) => match ordered(context, $name, x, y) {
                        Ok(order) => {
                            charge!();
                            order.is_some_and(|order| order.$method())
                        }
                        Err(fault) => break fault,
                    },
                }
            };
        }
        macro_rules! compared_int {
            ($a:expr, $i:expr, $op:tt, $name:literal, $method:ident) => {
                match &reg!($a) {
                    Value::Int(x) => *x $op i64::from($i),
                    x => match compare_ordered($name, x, &Value::Int($i.into())) {
                        Ok(order) => order.is_some_and(|order| order.$method()),
                        Err(fault) => break fault,
                    },
                }
            };
        }
        macro_rules! native {
            ($f:expr, $d:expr, $a:expr, $n:expr) => {{
                let entry = builtins::native($f);
                let from = usize::from($a);
                match call::native(entry, context, &mut regs[from..from + usize::from($n)]) {
                    Ok(value) => set!($d, value),
                    Err(fault) => break fault,
                }
                charge!();
            }};
        }
        macro_rules! enter {
            ($p:expr, $a:expr) => {{
                if strand.frames.len() >= max_depth {
                    break too_deep(max_depth);
                }
                strand.frames.push(Frame { proto, pc: pc as u32, base });
                (proto, pc, base) = ($p, 0, base + usize::from($a));
                continue 'frame;
            }};
        }
        macro_rules! reenter {
            ($p:expr, $a:expr, $n:expr) => {{
                let (a, n) = (usize::from($a), usize::from($n));
                for at in 0..=n {
                    shift(regs, at, a + at);
                }
                let locals = usize::from(running.locals);
                if locals > n + 1 {
                    for slot in &mut regs[n + 1..locals] {
                        if !slot.is_immediate() {
                            *slot = Value::Nil;
                        }
                    }
                }
                (proto, pc) = ($p, 0);
                continue 'frame;
            }};
        }
        macro_rules! leave {
            ($s:expr) => {{
                shift(regs, 0, usize::from($s));
                for slot in &mut regs[1..usize::from(running.locals).max(1)] {
                    if !slot.is_immediate() {
                        *slot = Value::Nil;
                    }
                }
                match strand.frames.pop() {
                    Some(frame) => {
                        (proto, pc, base) = (frame.proto, frame.pc as usize, frame.base);
                        continue 'frame;
                    }
                    None => break 'frame Exit::Done(std::mem::take(&mut regs[0])),
                }
            }};
        }

        // Handles the result of an iteration.
        macro_rules! iterated {
            ($x:expr, $s:expr) => {{
                tick!();
                let s = usize::from($s);
                let Value::Int(at) = regs[s + 1] else { continue };
                let at = at as usize;
                if let Value::Vector(vector) = &mut regs[s]
                    && let Some(item) = vector.items().get(at)
                {
                    if let &Value::Int(i) = item {
                        put(&mut reg!($x), Value::Int(i));
                    } else {
                        let value = vector.take_or_clone(at).unwrap_or_default();
                        set!($x, value);
                    }
                    regs[s + 1] = Value::Int(at as i64 + 1);
                    true
                } else if let Value::Seq(seq) = &regs[s]
                    && let Some(range) = seq.as_range()
                {
                    match range.nth(at) {
                        Some(i) => {
                            put(&mut reg!($x), Value::Int(i));
                            regs[s + 1] = Value::Int(at as i64 + 1);
                            true
                        }
                        None => {
                            regs[s] = Value::Nil;
                            false
                        }
                    }
                } else {
                    match call::next_item(&mut regs[s], at) {
                        Ok((Some(value), skipped)) => {
                            regs[s + 1] = Value::Int(at.wrapping_add(skipped).wrapping_add(1) as i64);
                            set!($x, value);
                            true
                        }
                        Ok((None, _)) => {
                            regs[s] = Value::Nil;
                            false
                        }
                        Err(fault) => break fault,
                    }
                }
            }};
        }

        let problem: Box<Fault> = loop {
            let op = code[pc];
            pc += 1;
            match op {
                Op::Nil { d } => set!(d, Value::Nil),
                Op::Bool { d, b } => set!(d, Value::Bool(b)),
                Op::Int { d, i } => set!(d, Value::Int(i.into())),
                Op::Const { d, k } => set!(d, running.consts[k as usize].clone()),
                Op::Move { d, s } => shift(regs, usize::from(d), usize::from(s)),
                Op::Copy { d, s } => match reg!(s) {
                    Value::Int(i) => put(&mut reg!(d), Value::Int(i)),
                    Value::Code(code) => put(&mut reg!(d), Value::Code(code)),
                    ref other => {
                        let value = other.clone();
                        set!(d, value);
                    }
                },
                Op::Clear { r } => set!(r, Value::Nil),
                Op::Up { d, i } => {
                    if let Value::Closure(closure) = &regs[0] {
                        let value = closure.get(usize::from(i)).clone();
                        set!(d, value);
                    }
                }
                Op::SelfFn { d } => {
                    let value = regs[0].clone();
                    set!(d, value);
                }
                Op::Global { d, g } => match &globals[g as usize] {
                    Some(value) => set!(d, value.clone()),
                    None => {
                        let name = &program.globals[g as usize].name;
                        break fault(
                            "undefined",
                            format!("`{name}` has no value yet: its definition comes later"),
                        );
                    }
                },
                Op::SetGlobal { s, g } => globals[g as usize] = Some(reg!(s).clone()),

                Op::Add { d, a, b } => arith!(d, a, b, '+', checked_add, +),
                Op::Sub { d, a, b } => arith!(d, a, b, '-', checked_sub, -),
                Op::Mul { d, a, b } => arith!(d, a, b, '*', checked_mul, *),
                Op::AddI { d, a, i } => {
                    let value = match &reg!(a) {
                        Value::Int(x) if x.checked_add(i.into()).is_some() => {
                            Value::Int(x + i64::from(i))
                        }
                        x => match arithmetic(
                            if i < 0 { '-' } else { '+' },
                            x,
                            &Value::Int(i64::from(i).abs()),
                        ) {
                            Ok(value) => value,
                            Err(fault) => break fault,
                        },
                    };
                    set!(d, value);
                }
                Op::ModI { d, a, i } => match &reg!(a) {
                    Value::Int(x) => {
                        let value = Value::Int(x.rem_euclid(i.into()));
                        set!(d, value);
                    }
                    x => match builtins::modulo(x, &Value::Int(i.into())) {
                        Ok(value) => set!(d, value),
                        Err(fault) => break fault,
                    },
                },
                Op::Lt { d, a, b } => {
                    let holds = compared!(a, b, <, "<", is_lt);
                    set!(d, Value::Bool(holds));
                }
                Op::Le { d, a, b } => {
                    let holds = compared!(a, b, <=, "<=", is_le);
                    set!(d, Value::Bool(holds));
                }
                Op::Gt { d, a, b } => {
                    let holds = compared!(a, b, >, ">", is_gt);
                    set!(d, Value::Bool(holds));
                }
                Op::Ge { d, a, b } => {
                    let holds = compared!(a, b, >=, ">=", is_ge);
                    set!(d, Value::Bool(holds));
                }
                Op::Eq { d, a, b } => match call::equal(context, &reg!(a), &reg!(b)) {
                    Ok(equal) => {
                        set!(d, Value::Bool(equal));
                        charge!();
                    }
                    Err(fault) => break fault,
                },
                Op::Not { d, a } => {
                    let value = Value::Bool(!reg!(a).is_truthy());
                    set!(d, value);
                }

                Op::Jump { o } => jump!(o),
                Op::Loop { o } => {
                    tick!();
                    jump!(o);
                }
                Op::JumpIfNot { a, o } => {
                    if !reg!(a).is_truthy() {
                        jump!(o);
                    }
                }
                Op::JumpIf { a, o } => {
                    if reg!(a).is_truthy() {
                        jump!(o);
                    }
                }
                Op::TakeJumpIfNot { a, o } => {
                    if !reg!(a).is_truthy() {
                        jump!(o);
                    }
                    set!(a, Value::Nil);
                }
                Op::TakeJumpIf { a, o } => {
                    if reg!(a).is_truthy() {
                        jump!(o);
                    }
                    set!(a, Value::Nil);
                }
                Op::UnlessLt { a, b, o } => {
                    if !compared!(a, b, <, "<", is_lt) {
                        jump!(o);
                    }
                }
                Op::UnlessLe { a, b, o } => {
                    if !compared!(a, b, <=, "<=", is_le) {
                        jump!(o);
                    }
                }
                Op::UnlessGt { a, b, o } => {
                    if !compared!(a, b, >, ">", is_gt) {
                        jump!(o);
                    }
                }
                Op::UnlessGe { a, b, o } => {
                    if !compared!(a, b, >=, ">=", is_ge) {
                        jump!(o);
                    }
                }
                Op::UnlessEq { a, b, o } => match call::equal(context, &reg!(a), &reg!(b)) {
                    Ok(equal) => {
                        if !equal {
                            jump!(o);
                        }
                        charge!();
                    }
                    Err(fault) => break fault,
                },
                Op::UnlessLtI { a, o, i } => {
                    if !compared_int!(a, i, <, "<", is_lt) {
                        jump!(o);
                    }
                }
                Op::UnlessLeI { a, o, i } => {
                    if !compared_int!(a, i, <=, "<=", is_le) {
                        jump!(o);
                    }
                }
                Op::UnlessGtI { a, o, i } => {
                    if !compared_int!(a, i, >, ">", is_gt) {
                        jump!(o);
                    }
                }
                Op::UnlessGeI { a, o, i } => {
                    if !compared_int!(a, i, >=, ">=", is_ge) {
                        jump!(o);
                    }
                }
                Op::UnlessEqI { a, o, i } => {
                    if !matches!(&reg!(a), Value::Int(x) if *x == i64::from(i)) {
                        jump!(o);
                    }
                }
                Op::UnlessConst { a, k, o } => {
                    let same = match (&reg!(a), &running.consts[usize::from(k)]) {
                        (Value::Keyword(x), Value::Keyword(y)) => x == y,
                        (x, y) => match call::equal(context, x, y) {
                            Ok(same) => same,
                            Err(fault) => break fault,
                        },
                    };
                    if !same {
                        jump!(o);
                    }
                }

                Op::CallCode { a, p } => {
                    tick!();
                    enter!(p, a);
                }
                Op::Call { a, n } => {
                    tick!();
                    if let Some(p) = code_of(&reg!(a))
                        && program.proto(p).exact == i16::from(n)
                    {
                        enter!(p, a);
                    }
                    match call::callee(program, regs, a, n) {
                        Ok(Callee::Code(p)) => enter!(p, a),
                        Ok(Callee::Native(f)) => native!(f, a, a + 1, n),
                        Ok(Callee::Value(value)) => set!(a, value),
                        Err(fault) => break fault,
                    }
                }
                Op::TailCode { a, n, p } => {
                    tick!();
                    reenter!(p, a, n);
                }
                Op::Tail { a, n } => {
                    tick!();
                    if let Some(p) = code_of(&reg!(a))
                        && p >= program.prelude
                        && program.proto(p).exact == i16::from(n)
                    {
                        reenter!(p, a, n);
                    }
                    match call::callee(program, regs, a, n) {
                        Ok(Callee::Code(p)) if p < program.prelude => enter!(p, a),
                        Ok(Callee::Code(p)) => {
                            let arity = program.proto(p).arity;
                            let n = if program.proto(p).rest { arity + 1 } else { arity };
                            reenter!(p, a, n)
                        }
                        Ok(Callee::Native(f)) => native!(f, a, a + 1, n),
                        Ok(Callee::Value(value)) => set!(a, value),
                        Err(fault) => break fault,
                    }
                    leave!(a);
                }
                Op::Apply { a } => {
                    tick!();
                    match call::spread(program, context, regs, a) {
                        Ok(Callee::Code(p)) => enter!(p, a),
                        Ok(Callee::Native(_)) => {}
                        Ok(Callee::Value(value)) => set!(a, value),
                        Err(fault) => break fault,
                    }
                    charge!();
                }
                Op::TailApply { a } => {
                    tick!();
                    match call::spread(program, context, regs, a) {
                        Ok(Callee::Code(p)) if p < program.prelude => enter!(p, a),
                        Ok(Callee::Code(p)) => {
                            let arity = program.proto(p).arity;
                            let n = if program.proto(p).rest { arity + 1 } else { arity };
                            reenter!(p, a, n)
                        }
                        Ok(Callee::Native(_)) => {}
                        Ok(Callee::Value(value)) => set!(a, value),
                        Err(fault) => break fault,
                    }
                    charge!();
                    leave!(a);
                }
                Op::Return { s } => leave!(s),
                Op::Closure { d, a, n, p } => {
                    let from = usize::from(a);
                    match Closure::new(p, &mut regs[from..from + usize::from(n)]) {
                        Ok(closure) => {
                            context.allocated(96);
                            set!(d, Value::Closure(closure));
                        }
                        Err(deep) => break deep.into(),
                    }
                }

                Op::Read1 { f, d, a } => {
                    let entry = builtins::native(f);
                    let Function::One(function) = entry.function else { continue };
                    let operand = &reg!(a);
                    if context.has_lazy
                        && let Some(fault) = entry.unknown(0, operand)
                    {
                        break fault;
                    }
                    let effort = entry.effort([operand]);
                    match function(context, operand) {
                        Ok(value) => set!(d, value),
                        Err(fault) => break fault,
                    }
                    context.cost += effort;
                    charge!();
                }
                Op::Read2 { f, d, a, b } => {
                    let entry = builtins::native(f);
                    let Function::Two(function) = entry.function else { continue };
                    let (one, two) = (&reg!(a), &reg!(b));
                    if context.has_lazy
                        && let Some(fault) = entry.unknown(0, one).or_else(|| entry.unknown(1, two))
                    {
                        break fault;
                    }
                    let effort = entry.effort([one, two]);
                    match function(context, one, two) {
                        Ok(value) => set!(d, value),
                        Err(fault) => break fault,
                    }
                    context.cost += effort;
                    charge!();
                }
                Op::Read3 { f, d, a, b, c } => {
                    let entry = builtins::native(f);
                    let Function::Three(function) = entry.function else { continue };
                    let (one, two, three) = (&reg!(a), &reg!(b), &reg!(c));
                    if context.has_lazy
                        && let Some(fault) = entry.unknown(0, one).or_else(|| entry.unknown(1, two))
                    {
                        break fault;
                    }
                    let effort = entry.effort([one, two]);
                    match function(context, one, two, three) {
                        Ok(value) => set!(d, value),
                        Err(fault) => break fault,
                    }
                    context.cost += effort;
                    charge!();
                }
                Op::Native { f, d, a, n } => native!(f, d, a, n),
                Op::Key { d, a, k } => match call::lookup(&reg!(a), &running.consts[usize::from(k)]) {
                    Ok(value) => set!(d, value),
                    Err(fault) => break fault,
                },

                Op::Iter { x, s, o } => {
                    if !iterated!(x, s) {
                        jump!(o);
                    }
                }
                Op::IterBack { x, s, o } => {
                    if iterated!(x, s) {
                        jump!(o);
                    }
                }
                Op::Merge { r, s, o } => {
                    tick!();
                    let answer = take(&mut reg!(r));
                    let s = usize::from(s);
                    if let Value::Vector(items) = &regs[s]
                        && matches!(regs[s + 1], Value::Nil)
                        && let Err(fault) = context.reserve(32 * items.items().len())
                    {
                        break fault;
                    }
                    let mut moved = 0;
                    if !merge::step(&mut regs[s..s + merge::REGISTERS], &answer, &mut moved) {
                        jump!(o);
                    }
                    context.cost += moved / 16;
                    charge!();
                }
                Op::Push { v, s } => {
                    let item = take(&mut reg!(s));
                    match &mut reg!(v) {
                        Value::Vector(vector) => {
                            let room = vector.capacity();
                            if let Err(deep) = vector.push(item) {
                                break deep.into();
                            }
                            let more = vector.capacity();
                            if more != room {
                                context.allocated((more - room.min(more)) * 16);
                            }
                        }
                        other => {
                            let got = builtins::shown(other);
                            break fault("type", format!("a vector is expected here, got {got}"));
                        }
                    }
                }
                Op::NewVector { d, a, n } => {
                    let from = usize::from(a);
                    let items: Vec<_> =
                        regs[from..from + usize::from(n)].iter_mut().map(take_all).collect();
                    context.allocated(56 + items.len() * 16);
                    match Vector::new(items) {
                        Ok(vector) => set!(d, Value::Vector(vector)),
                        Err(deep) => break deep.into(),
                    }
                }
                Op::NewMap { d, a, n } => {
                    let from = usize::from(a);
                    match call::new_map(&mut regs[from..from + usize::from(n)]) {
                        Ok(map) => {
                            context.allocated(80 + usize::from(n) * 24);
                            set!(d, Value::Map(map));
                        }
                        Err(fault) => break fault,
                    }
                }
                Op::NewSet { d, a, n } => {
                    let from = usize::from(a);
                    match call::new_set(&mut regs[from..from + usize::from(n)]) {
                        Ok(members) => set!(d, Value::Set(members)),
                        Err(fault) => break fault,
                    }
                    context.allocated(80 + usize::from(n) * 32);
                }
                Op::Put { m, k, v } => {
                    if let Err(fault) = builtins::as_key(&reg!(k)) {
                        break fault;
                    }
                    let (key, value) = (take(&mut reg!(k)), take(&mut reg!(v)));
                    if let Value::Map(map) = &mut reg!(m)
                        && let Err(deep) = map.insert(key, value)
                    {
                        break deep.into();
                    }
                    context.allocated(48);
                }
                Op::Member { m, v } => {
                    if let Err(fault) = builtins::as_key(&reg!(v)) {
                        break fault;
                    }
                    let member = take(&mut reg!(v));
                    if let Value::Set(set) = &mut reg!(m)
                        && let Err(deep) = set.insert(member)
                    {
                        break deep.into();
                    }
                    context.allocated(32);
                }

                Op::Try { d, t, o } => {
                    strand.handlers.push(Handler {
                        frames: strand.frames.len(),
                        base,
                        proto,
                        pc: (pc as isize + o as isize) as usize,
                        d,
                        t,
                    });
                    if strand.handlers.len() > 2 * max_depth + 1_000 {
                        break too_deep(max_depth);
                    }
                }
                Op::EndTry => {
                    strand.handlers.pop();
                }
                Op::Throw { a } => break Error::from_value(take(&mut reg!(a))).into(),
                Op::Rethrow { a } => {
                    let value = take(&mut reg!(a));
                    if !matches!(value, Value::Nil) {
                        break Error::from_value(value).into();
                    }
                }
                Op::Check { a, t } => {
                    let check = &running.types[usize::from(t)];
                    if let Err(fault) = call::check(context, check, &reg!(a)) {
                        break fault;
                    }
                }

                Op::Host { d, a, n, kind } => {
                    break 'frame Exit::Host { kind, d, a, n };
                }
                Op::Fork { d, a, n, kind } => {
                    break 'frame Exit::Fork { kind, d, a, n };
                }
            }
        };

        (strand.proto, strand.pc, strand.base) = (proto, pc, base);
        if let Fault::Error(error) = &*problem {
            context.cost += error.message.len() as u64 / 64;
        }
        left = context.charge(left);
        let exit = handle(*problem, strand, program, max_depth);
        (proto, pc, base) = (strand.proto, strand.pc, strand.base);
        if let Some(exit) = exit {
            break exit;
        }
    };
    (strand.proto, strand.pc, strand.base) = (proto, pc, base);
    *fuel = left;
    exit
}

/// Prepares the continuation after a fault of the instruction before `pc`: a handler of the program, or
/// a function of the prelude and then the instruction again. A returned value ends the strand's turn.
#[cold]
#[inline(never)]
fn handle(problem: Fault, strand: &mut Strand, program: &Program, max_depth: usize) -> Option<Exit> {
    let (helper, argument) = match problem {
        Fault::Memory(bytes) => {
            strand.pc -= 1;
            return Some(Exit::Memory(bytes));
        }
        Fault::Error(error) => return raise(strand, program, error),
        Fault::Force(seq) | Fault::Realize(seq) if seq.realized().is_some() => {
            strand.pc -= 1;
            return None;
        }
        Fault::Force(seq) => {
            let is_stream = matches!(seq.state(), State::Stream);
            (if is_stream { "%force-stream" } else { "%force" }, Value::Seq(seq))
        }
        Fault::Realize(seq) => ("%realize", Value::Seq(seq)),
        Fault::Help(helper, argument) => (helper, argument),
    };
    let entered = enter_helper(strand, program.proto(strand.proto), helper, argument, max_depth);
    entered.err().and_then(|error| raise(strand, program, error))
}

/// Takes the value out and leaves nothing.
fn take_all(slot: &mut Value) -> Value {
    std::mem::take(slot)
}

/// Returns the order of values other than two small integers or two floats. Large ones cost steps.
#[inline(never)]
fn ordered(
    context: &mut Context,
    name: &str,
    x: &Value,
    y: &Value,
) -> Result<Option<Ordering>, Box<Fault>> {
    if !x.is_immediate() && !y.is_immediate() {
        context.cost += builtins::effort(x).min(builtins::effort(y));
    }
    compare_ordered(name, x, y)
}

/// Computes arithmetic on values other than two small integers or two floats. Large ones cost steps.
#[inline(never)]
fn large(context: &mut Context, op: char, x: &Value, y: &Value) -> Result<Value, Box<Fault>> {
    if let (Value::BigInt(_), _) | (_, Value::BigInt(_)) = (x, y) {
        context.cost += builtins::effort(x).max(builtins::effort(y));
    }
    arithmetic(op, x, y)
}

#[cold]
fn too_deep(max_depth: usize) -> Box<Fault> {
    Error::limit("depth", format!("functions call each other more than {max_depth} deep")).into()
}

/// Returns the code of a function value.
#[inline(always)]
pub(super) fn code_of(value: &Value) -> Option<u32> {
    match value {
        Value::Code(Code(p)) => Some(*p),
        Value::Closure(closure) => Some(closure.code()),
        _ => None,
    }
}

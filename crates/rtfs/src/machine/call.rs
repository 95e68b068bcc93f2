//! Calls of any callable value, and rare operations of the loop.

use super::context::{Context, Fault, fault};
use super::exec::code_of;
use super::program::{Check, Program};
use super::typing;
use crate::builtins::{self, Entry, Function, shown};
use crate::error::{Error, counted};
use crate::lazy::State;
use crate::map::{Map, Set};
use crate::sequence::List;
use crate::value::Value;

/// The result of preparing a call.
pub(super) enum Callee {
    /// This code must run; the arguments are in place.
    Code(u32),
    /// This function of the standard library must run.
    Native(u16),
    /// The call is complete, with this value.
    Value(Value),
}

/// Prepares the call of the value in `a` with the `n` arguments after it.
pub(super) fn callee(
    program: &Program,
    regs: &mut [Value; 256],
    a: u8,
    n: u8,
) -> Result<Callee, Box<Fault>> {
    let at = usize::from(a);
    let count = usize::from(n);
    if let Some(p) = code_of(&regs[at]) {
        return code(program, regs, p, at, count).map(Callee::Code);
    }
    match &regs[at] {
        Value::Native(native) => {
            let entry = builtins::native(native.0);
            let (min, max) = entry.arity();
            if count < min || count > max {
                let expects = builtins::arity_text(min, max);
                return Err(fault("arity", crate::compiler::wrong_arity(entry.name, &expects, count)));
            }
            Ok(Callee::Native(native.0))
        }
        Value::Keyword(_)
        | Value::Symbol(_)
        | Value::Map(_)
        | Value::Set(_)
        | Value::Vector(_)
        | Value::List(_) => {
            let (head, args) = (&regs[at], &regs[at + 1..at + 1 + count]);
            call_data(head, args).map(Callee::Value)
        }
        other => Err(fault("type", format!("{} cannot be called", shown(other)))),
    }
}

/// Calls a keyword or a collection as a function of a key.
fn call_data(head: &Value, args: &[Value]) -> Result<Value, Box<Fault>> {
    let (key, default) = match args {
        [key] => (key, None),
        [key, default] => (key, Some(default)),
        _ => {
            let name = shown(head);
            return Err(fault("arity", format!("{name} takes 1 or 2 arguments, got {}", args.len())));
        }
    };
    if !matches!(key, Value::Int(_) | Value::Str(_)) && !matches!(head, Value::Keyword(_)) {
        builtins::known(key)?;
    }
    let found = match head {
        Value::Keyword(_) | Value::Symbol(_) => builtins::find_key(key, head),
        Value::Vector(_) | Value::List(_) => match (default, key) {
            (None, Value::Int(_)) => return builtins::nth(head, key),
            (None, _) => {
                return Err(fault(
                    "type",
                    format!("a vector is called with an index, got {}", shown(key)),
                ));
            }
            _ => builtins::find_key(head, key),
        },
        _ => builtins::find_key(head, key),
    };
    Ok(found.or(default).cloned().unwrap_or_default())
}

/// Matches arguments with code: chooses the arity, collects the rest.
fn code(
    program: &Program,
    regs: &mut [Value; 256],
    p: u32,
    at: usize,
    n: usize,
) -> Result<u32, Box<Fault>> {
    let mut p = p;
    let mut proto = program.proto(p);
    if !proto.arities.is_empty() {
        match program.select(p, n) {
            Some(found) => {
                p = found;
                proto = program.proto(p);
            }
            None => return Err(arity(program, p, n)),
        }
    }
    let fixed = usize::from(proto.arity);
    if !proto.rest {
        return if n == fixed { Ok(p) } else { Err(arity(program, p, n)) };
    }
    if n < fixed {
        return Err(arity(program, p, n));
    }
    let rest: Vec<_> = regs[at + 1 + fixed..at + 1 + n].iter_mut().map(std::mem::take).collect();
    regs[at + 1 + fixed] = Value::List(List::new(rest)?);
    Ok(p)
}

#[cold]
fn arity(program: &Program, p: u32, n: usize) -> Box<Fault> {
    let proto = program.proto(p);
    let name = if proto.name.is_empty() { "this function" } else { &proto.name };
    let expects = program.arity_text(p);
    let message = crate::compiler::wrong_arity(name, &expects, n);
    fault("arity", if proto.name.is_empty() { message.replace('`', "") } else { message })
}

/// Prepares the call of the value in `a` with the items of the value in `a + 1`.
pub(super) fn spread(
    program: &Program,
    context: &mut Context,
    regs: &mut [Value; 256],
    a: u8,
) -> Result<Callee, Box<Fault>> {
    /// The maximum number of arguments in registers.
    const FIT: usize = 120;
    let at = usize::from(a);
    if let Value::Seq(seq) = &regs[at + 1]
        && seq.realized().is_none()
    {
        return Err(Box::new(Fault::Realize(seq.clone())));
    }
    let mut items = builtins::items_of("apply", &regs[at + 1])?;
    context.cost += items.len() as u64 / 16;
    if let Value::Native(f) = regs[at] {
        let entry = builtins::native(f.0);
        let (min, max) = entry.arity();
        if items.len() < min || items.len() > max {
            let expects = builtins::arity_text(min, max);
            return Err(fault("arity", crate::compiler::wrong_arity(entry.name, &expects, items.len())));
        }
        // The registers stay unchanged, because the call may have to be repeated.
        return native(entry, context, &mut items).map(Callee::Value);
    }
    if at + 1 + items.len() < 250 && items.len() <= FIT {
        let n = items.len();
        regs[at + 1] = Value::Nil;
        for (offset, item) in items.into_iter().enumerate() {
            regs[at + 1 + offset] = item;
        }
        return callee(program, regs, a, n as u8);
    }
    if let Some(p) = code_of(&regs[at]) {
        let n = items.len();
        let Some(p) = program.select(p, n) else { return Err(arity(program, p, n)) };
        let proto = program.proto(p);
        let fixed = usize::from(proto.arity);
        if !proto.rest || at + 2 + fixed > 250 {
            return Err(arity(program, p, n));
        }
        let mut items = items.into_iter();
        for offset in 0..fixed {
            regs[at + 1 + offset] = items.next().unwrap_or_default();
        }
        regs[at + 1 + fixed] = Value::List(List::new(items.collect())?);
        return Ok(Callee::Code(p));
    }
    let got = shown(&regs[at]);
    Err(fault(
        "arity",
        format!("{got} cannot be called with {}", counted(items.len() as u64, "argument")),
    ))
}

/// Calls a function of the standard library. The remaining arguments are dropped.
#[inline]
pub(super) fn native(
    entry: &Entry,
    context: &mut Context,
    args: &mut [Value],
) -> Result<Value, Box<Fault>> {
    if context.has_lazy {
        for (at, arg) in args.iter().enumerate() {
            if let Some(fault) = entry.unknown(at, arg) {
                return Err(fault);
            }
        }
    }
    let effort = entry.effort(args.iter());
    let value = match entry.function {
        Function::One(function) => function(context, &args[0]),
        Function::Two(function) => function(context, &args[0], &args[1]),
        Function::Three(function) => function(context, &args[0], &args[1], &args[2]),
        Function::Many(function) => function(context, args),
    }?;
    context.cost += effort;
    for arg in args {
        if !arg.is_immediate() {
            *arg = Value::Nil;
        }
    }
    Ok(value)
}

/// `=`
#[inline(always)]
pub(crate) fn equal(context: &mut Context, a: &Value, b: &Value) -> Result<bool, Box<Fault>> {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => Ok(a == b),
        (a, b) => equal_any(context, a, b),
    }
}

#[inline(never)]
fn equal_any(context: &mut Context, a: &Value, b: &Value) -> Result<bool, Box<Fault>> {
    match (a, b) {
        (Value::Seq(a), Value::Seq(b)) if a.is(b) => return Ok(true),
        (Value::Seq(seq), other) | (other, Value::Seq(seq)) => {
            if seq.realized().is_none() && (other.items().is_some() || matches!(other, Value::Seq(_))) {
                return Err(Box::new(Fault::Realize(seq.clone())));
            }
            if let Value::Seq(other) = other
                && other.realized().is_none()
            {
                return Err(Box::new(Fault::Realize(other.clone())));
            }
        }
        _ => {}
    }
    if !a.is_immediate() && !b.is_immediate() {
        context.cost += builtins::effort(a).min(builtins::effort(b));
    }
    let equal = a == b;
    if !equal && context.has_lazy && !a.is_immediate() && !b.is_immediate() {
        // Lazy parts may make them equal.
        builtins::known(a)?;
        builtins::known(b)?;
        return Ok(a == b);
    }
    Ok(equal)
}

/// `(:key map)`
#[inline]
pub(super) fn lookup(map: &Value, key: &Value) -> Result<Value, Box<Fault>> {
    Ok(match map {
        Value::Map(map) => map.get(key).cloned().unwrap_or_default(),
        other => builtins::find_key(other, key).cloned().unwrap_or_default(),
    })
}

/// Returns the next item of any collection, and how far the counter goes beyond one.
pub(super) fn next_item(slot: &mut Value, at: usize) -> Result<(Option<Value>, usize), Box<Fault>> {
    let (item, skipped) = match slot {
        Value::Vector(vector) => (vector.take_or_clone(at), 0),
        Value::Nil => (None, 0),
        Value::List(list) => (list.items().get(at).cloned(), 0),
        Value::Map(map) => {
            let mut place = at;
            while place < map.positions() && map.at(place).is_none() {
                place += 1;
            }
            match map.at(place) {
                Some((key, value)) => {
                    (Some(Value::vector(vec![key.clone(), value.clone()])?), place - at)
                }
                None => (None, 0),
            }
        }
        Value::Set(set) => {
            let mut place = at;
            while place < set.positions() && set.at(place).is_none() {
                place += 1;
            }
            (set.at(place).cloned(), place - at)
        }
        Value::Str(text) => {
            // The counter counts bytes here.
            match text.as_str().get(at..).and_then(|rest| rest.chars().next()) {
                Some(c) => (Some(Value::from(c.encode_utf8(&mut [0; 4]) as &str)), c.len_utf8() - 1),
                None => (None, 0),
            }
        }
        Value::Seq(seq) => {
            if let Some(items) = seq.realized() {
                (items.items().get(at).cloned(), 0)
            } else {
                match seq.state() {
                    State::Range(range) => (range.nth(at).map(Value::Int), 0),
                    State::Item(item, rest) => {
                        *slot = rest;
                        // The counter restarts with the rest.
                        return Ok((Some(item), usize::MAX - at));
                    }
                    State::End | State::Kept(_) => (None, 0),
                    State::Thunk(_) | State::Stream => return Err(Box::new(Fault::Force(seq.clone()))),
                }
            }
        }
        other => return Err(fault("type", format!("{} has no items to go through", shown(other)))),
    };
    Ok((item, skipped))
}

pub(super) fn new_map(values: &mut [Value]) -> Result<Map, Box<Fault>> {
    values.iter().step_by(2).try_for_each(builtins::as_key)?;
    let entries = values
        .chunks_exact_mut(2)
        .map(|pair| (std::mem::take(&mut pair[0]), std::mem::take(&mut pair[1])));
    Ok(Map::of(entries)?)
}

pub(super) fn new_set(values: &mut [Value]) -> Result<Set, Box<Fault>> {
    values.iter().try_for_each(builtins::as_key)?;
    let mut members = Set::new();
    for member in values {
        members.insert(std::mem::take(member))?;
    }
    Ok(members)
}

/// Checks an annotation.
pub(super) fn check(context: &Context, check: &Check, value: &Value) -> Result<(), Box<Fault>> {
    let wrong = if check.each {
        let items = value.items().unwrap_or_default().iter().enumerate();
        let one = |(at, item)| {
            typing::check(&check.ty, item, &context.types, &format!("{}[{at}]", check.what)).err()
        };
        items.into_iter().find_map(one)
    } else {
        typing::check(&check.ty, value, &context.types, &check.what).err()
    };
    let Some(violations) = wrong else { return Ok(()) };
    let error =
        if check.is_result { Error::broken_by_result(&violations) } else { Error::broken(&violations) };
    Err(error.into())
}

//! Construction of collections.

use super::{
    ANY, Answer, Entry, as_key, into_items, items_of, len_of, many, one, reserve_items, two, wrong,
};
use crate::error::counted;
use crate::lazy::Seq;
use crate::machine::{Context, Fault, fault, float_of};
use crate::map::{Map, Set};
use crate::sequence::{List, Vector};
use crate::value::Value;

pub(super) static ENTRIES: &[Entry] = &[
    many("vector", 0, ANY, |_, args| super::vector(args.iter_mut().map(std::mem::take).collect()))
        .lazy(),
    many("list", 0, ANY, |_, args| {
        Ok(Value::List(List::new(args.iter_mut().map(std::mem::take).collect())?))
    })
    .lazy(),
    many("hash-map", 0, ANY, hash_map).lazy().keys(0, 2),
    many("hash-set", 0, ANY, |_, args| set_of(args.iter_mut().map(std::mem::take))).compares(),
    many("vec", 1, 1, vec),
    many("set", 1, 1, set).compares(),
    many("conj", 1, ANY, conj).lazy(),
    many("cons", 2, 2, cons).lazy(),
    many("into", 2, 2, into),
    many("%concat", 0, ANY, concat),
    many("%list", 1, 1, list_of).walks(),
    one("%map", map_of).walks().compares(),
    many("assoc", 3, ANY, assoc).lazy().keys(1, 2),
    many("dissoc", 1, ANY, dissoc).keys(1, 1),
    many("disj", 1, ANY, disj).keys(1, 1),
    many("assoc-in", 3, 3, assoc_in).lazy().key(1),
    many("%range", 0, 3, range),
    two("numbers", numbers),
    two("%repeat", repeat).lazy(),
    many("%zipmap", 2, 2, zipmap).key(0),
];

fn hash_map(_: &mut Context, args: &mut [Value]) -> Answer {
    if args.len() % 2 == 1 {
        return Err(fault(
            "arity",
            format!(
                "`hash-map` takes keys and values in turn, got {}",
                counted(args.len() as u64, "argument")
            ),
        ));
    }
    let mut map = Map::new();
    for pair in args.chunks_exact_mut(2) {
        insert(&mut map, std::mem::take(&mut pair[0]), std::mem::take(&mut pair[1]))?;
    }
    Ok(Value::Map(map))
}

pub(super) fn insert(map: &mut Map, key: Value, value: Value) -> Result<(), Box<Fault>> {
    as_key(&key)?;
    map.insert(key, value)?;
    Ok(())
}

pub(super) fn set_of(items: impl Iterator<Item = Value>) -> Answer {
    let mut set = Set::new();
    for item in items {
        as_key(&item)?;
        set.insert(item)?;
    }
    Ok(Value::Set(set))
}

fn vec(context: &mut Context, args: &mut [Value]) -> Answer {
    if let Value::Vector(_) = args[0] {
        return Ok(std::mem::take(&mut args[0]));
    }
    reserve_items(context, len_of(&args[0]).unwrap_or(0))?;
    super::vector(items_of("vec", &args[0])?)
}

fn set(context: &mut Context, args: &mut [Value]) -> Answer {
    if let Value::Set(_) = args[0] {
        return Ok(std::mem::take(&mut args[0]));
    }
    reserve_items(context, 4 * len_of(&args[0]).unwrap_or(0))?;
    set_of(into_items("set", &mut args[0])?.into_iter())
}

/// Charges for a copy that is needed because the collection is shared.
fn copying(context: &mut Context, is_unique: bool, len: usize) -> Result<(), Box<Fault>> {
    if is_unique || len < 16 { Ok(()) } else { reserve_items(context, len) }
}

fn conj(context: &mut Context, args: &mut [Value]) -> Answer {
    // All steps that may have to wait come first, because the call is then repeated with the same
    // arguments.
    if let Some((coll, items)) = args.split_first() {
        match coll {
            Value::Vector(vector) => copying(context, vector.is_unique(), vector.items().len())?,
            Value::Set(set) => {
                items.iter().try_for_each(as_key)?;
                copying(context, set.is_unique(), 3 * set.len())?;
            }
            Value::Map(map) => {
                for item in items {
                    if let Some([key, _]) = item.items() {
                        as_key(key)?;
                    }
                }
                let copied = if map.is_unique() { 0 } else { 4 * map.len() };
                copying(context, false, copied + 4 * entries_in(items))?;
            }
            _ => {}
        }
    }
    added(context, args)
}

/// Returns the number of entries of the maps among these items.
fn entries_in(items: &[Value]) -> usize {
    items.iter().map(|item| if let Value::Map(map) = item { map.len() } else { 0 }).sum()
}

/// Performs `conj` when everything is known and paid for.
fn added(context: &mut Context, args: &mut [Value]) -> Answer {
    let Some((coll, items)) = args.split_first_mut() else { return Ok(Value::Nil) };
    match coll {
        Value::Vector(_) => {
            let Value::Vector(mut vector) = std::mem::take(coll) else { return Ok(Value::Nil) };
            let before = vector.capacity();
            for item in items {
                vector.push(std::mem::take(item))?;
            }
            context.allocated(vector.capacity().saturating_sub(before) * 16);
            Ok(Value::Vector(vector))
        }
        Value::Nil | Value::List(_) => {
            let mut list = match std::mem::take(coll) {
                Value::List(list) => list,
                _ => List::new(Vec::new())?,
            };
            context.allocated(16 * items.len());
            for item in items {
                list.push_front(std::mem::take(item))?;
            }
            Ok(Value::List(list))
        }
        Value::Set(_) => {
            items.iter().try_for_each(as_key)?;
            let Value::Set(mut set) = std::mem::take(coll) else { return Ok(Value::Nil) };
            context.allocated(64 * items.len());
            for item in items {
                set.insert(std::mem::take(item))?;
            }
            Ok(Value::Set(set))
        }
        Value::Map(_) => {
            let Value::Map(mut map) = std::mem::take(coll) else { return Ok(Value::Nil) };
            context.allocated(96 * items.len());
            for item in items {
                match (&*item, item.items()) {
                    (Value::Map(more), _) => {
                        for (key, value) in more.iter() {
                            map.insert(key.clone(), value.clone())?;
                        }
                    }
                    (_, Some([key, value])) => insert(&mut map, key.clone(), value.clone())?,
                    (Value::Nil, _) => {}
                    (other, _) => return Err(wrong("conj", "an entry [key value] for a map", other)),
                }
            }
            Ok(Value::Map(map))
        }
        Value::Seq(_) => {
            let mut sequence = std::mem::take(coll);
            for item in items {
                sequence = in_front(context, std::mem::take(item), sequence)?;
            }
            Ok(sequence)
        }
        other => Err(wrong("conj", "a collection", other)),
    }
}

fn in_front(context: &mut Context, item: Value, rest: Value) -> Answer {
    context.allocated(192);
    context.has_lazy = true;
    Ok(Value::Seq(Seq::cons(item, rest)?))
}

fn cons(context: &mut Context, args: &mut [Value]) -> Answer {
    let [item, coll] = args else { return Ok(Value::Nil) };
    let item = std::mem::take(item);
    match std::mem::take(coll) {
        Value::List(mut list) => {
            context.allocated(16);
            list.push_front(item)?;
            Ok(Value::List(list))
        }
        Value::Vector(vector) => {
            let mut list = vector.into_list();
            context.allocated(16 * list.items().len());
            list.push_front(item)?;
            Ok(Value::Vector(list.into_vector()))
        }
        seq @ Value::Seq(_) => in_front(context, item, seq),
        other => {
            let mut items = vec![item];
            items.extend(items_of("cons", &other)?);
            super::vector(items)
        }
    }
}

fn into(context: &mut Context, args: &mut [Value]) -> Answer {
    let [to, from] = args else { return Ok(Value::Nil) };
    let more = len_of(from).ok_or_else(|| wrong("into", "a collection", from))?;
    let entries = match to {
        Value::Map(_) => entries_in(from.items().unwrap_or_default()),
        _ => 0,
    };
    reserve_items(context, 3 * (more + len_of(to).unwrap_or(0)) + 4 * entries)?;
    if let (Value::Nil, _) = (&*to, &*from) {
        return Ok(std::mem::take(from));
    }
    if matches!(to, Value::Map(_) | Value::Set(_)) {
        super::known(from)?;
    }
    let mut all = vec![std::mem::take(to)];
    all.extend(into_items("into", from)?);
    added(context, &mut all)
}

fn concat(context: &mut Context, args: &mut [Value]) -> Answer {
    let mut len = 0;
    for arg in args.iter() {
        len += len_of(arg).ok_or_else(|| wrong("concat", "collections", arg))?;
    }
    reserve_items(context, len)?;
    let Some((first, rest)) = args.split_first_mut() else { return super::vector(Vec::new()) };
    let mut items = into_items("concat", first)?;
    for arg in rest {
        items.append(&mut into_items("concat", arg)?);
    }
    super::vector(items)
}

fn list_of(_: &mut Context, args: &mut [Value]) -> Answer {
    match std::mem::take(&mut args[0]) {
        Value::Vector(vector) => Ok(Value::List(vector.into_list())),
        other => Ok(Value::List(List::new(items_of("list", &other)?)?)),
    }
}

/// Creates a map from alternating keys and values, as quasiquote produces them.
fn map_of(context: &mut Context, coll: &Value) -> Answer {
    hash_map(context, &mut items_of("hash-map", coll)?)
}

fn assoc(context: &mut Context, args: &mut [Value]) -> Answer {
    match args.first() {
        Some(Value::Map(map)) => copying(context, map.is_unique(), 4 * map.len())?,
        Some(Value::Vector(vector)) => copying(context, vector.is_unique(), vector.items().len())?,
        _ => {}
    }
    put(context, args)
}

/// Performs `assoc` when a required copy is paid for.
#[inline]
fn put(context: &mut Context, args: &mut [Value]) -> Answer {
    let Some((coll, pairs)) = args.split_first_mut() else { return Ok(Value::Nil) };
    if pairs.len() % 2 == 1 {
        return Err(fault("arity", "`assoc` takes a collection, and keys and values in turn"));
    }
    match coll {
        Value::Map(map) => {
            if let [key, value] = pairs {
                // The usual case.
                as_key(key)?;
                super::pay_key(context, key);
                let before = map.positions();
                map.insert(std::mem::take(key), std::mem::take(value))?;
                if map.positions() != before {
                    context.allocated(64);
                }
                return Ok(std::mem::take(coll));
            }
        }
        Value::Vector(_) | Value::Nil => {}
        other => return Err(wrong("assoc", "a map or a vector", other)),
    }
    match std::mem::take(coll) {
        Value::Vector(mut vector) => {
            for pair in pairs.chunks_exact_mut(2) {
                let item = std::mem::take(&mut pair[1]);
                set_item(&mut vector, &pair[0], item)?;
            }
            Ok(Value::Vector(vector))
        }
        other => {
            let mut map = match other {
                Value::Map(map) => map,
                _ => Map::new(),
            };
            for pair in pairs.chunks_exact_mut(2) {
                let before = map.positions();
                insert(&mut map, std::mem::take(&mut pair[0]), std::mem::take(&mut pair[1]))?;
                if map.positions() != before {
                    context.allocated(64);
                }
            }
            Ok(Value::Map(map))
        }
    }
}

fn set_item(vector: &mut Vector, at: &Value, item: Value) -> Result<(), Box<Fault>> {
    let Value::Int(index) = at else { return Err(wrong("assoc", "an index for a vector", at)) };
    let len = vector.items().len();
    match usize::try_from(*index) {
        Ok(at) if at < len => vector.set(at, item)?,
        Ok(at) if at == len => vector.push(item)?,
        _ => {
            return Err(fault(
                "index",
                format!("{index} is outside of a vector of {}", counted(len as u64, "item")),
            ));
        }
    }
    Ok(())
}

fn dissoc(context: &mut Context, args: &mut [Value]) -> Answer {
    let Some((coll, keys)) = args.split_first_mut() else { return Ok(Value::Nil) };
    match coll {
        Value::Map(map) => copying(context, map.is_unique(), 4 * map.len())?,
        Value::Nil => return Ok(Value::Nil),
        other => return Err(wrong("dissoc", "a map", other)),
    }
    let Value::Map(mut map) = std::mem::take(coll) else { return Ok(Value::Nil) };
    for key in keys {
        map.remove(key);
    }
    Ok(Value::Map(map))
}

fn disj(context: &mut Context, args: &mut [Value]) -> Answer {
    let Some((coll, members)) = args.split_first_mut() else { return Ok(Value::Nil) };
    match coll {
        Value::Set(set) => copying(context, set.is_unique(), 3 * set.len())?,
        Value::Nil => return Ok(Value::Nil),
        other => return Err(wrong("disj", "a set", other)),
    }
    let Value::Set(mut set) = std::mem::take(coll) else { return Ok(Value::Nil) };
    for member in members {
        set.remove(member);
    }
    Ok(Value::Set(set))
}

/// Each collection on the path is taken out of its place, changed, and put back. A collection with no
/// other owner is not copied.
fn assoc_in(context: &mut Context, args: &mut [Value]) -> Answer {
    let keys = items_of("assoc-in", &args[1])?;
    let Some((last, path)) = keys.split_last() else {
        return Err(fault("invalid-argument", "`assoc-in` needs at least one key"));
    };
    // All copies are paid for before anything is taken, because the call may have to be repeated.
    let (mut copied, mut is_shared) = (0, false);
    let mut found = Some(&args[0]);
    for key in &keys {
        let (is_unique, len) = match found {
            Some(Value::Map(map)) => (map.is_unique(), 4 * map.len()),
            Some(Value::Vector(vector)) => (vector.is_unique(), vector.items().len()),
            _ => break,
        };
        is_shared |= !is_unique;
        copied += if is_shared { len } else { 0 };
        found = found.and_then(|coll| super::find_key(coll, key));
    }
    copying(context, false, copied)?;
    let mut outer = Vec::new();
    let mut coll = std::mem::take(&mut args[0]);
    for key in path {
        let inner = match &mut coll {
            Value::Map(map) => map.take(key).unwrap_or_default(),
            Value::Vector(vector) => match key {
                Value::Int(at) if usize::try_from(*at).is_ok_and(|at| at < vector.items().len()) => {
                    vector.take(*at as usize)
                }
                _ => Value::Nil,
            },
            _ => Value::Nil,
        };
        outer.push((std::mem::replace(&mut coll, inner), key.clone()));
    }
    let value = std::mem::take(&mut args[2]);
    coll = put(context, &mut [coll, last.clone(), value])?;
    while let Some((outside, key)) = outer.pop() {
        coll = put(context, &mut [outside, key, coll])?;
    }
    Ok(coll)
}

/// A longer range of integers is a lazy sequence.
const LONGEST_RANGE: i128 = 2_000_000;

fn range(context: &mut Context, args: &mut [Value]) -> Answer {
    let zero = Value::Int(0);
    let one = Value::Int(1);
    let (start, end, step) = match &*args {
        [] => {
            context.has_lazy = true;
            return Ok(Value::Seq(Seq::range(0, 1, None)));
        }
        [end] => (&zero, end, &one),
        [start, end] => (start, end, &one),
        [start, end, step, ..] => (start, end, step),
    };
    if let (Value::Int(start), Value::Int(end), Value::Int(step)) = (start, end, step) {
        return integers(context, *start, *end, *step);
    }
    // A limit that is not an integer does not turn integers into floats.
    if let (Value::Int(first), Value::Float(limit), Value::Int(by)) = (start, end, step)
        && limit.is_finite()
    {
        let limit = if *by > 0 { limit.ceil() } else { limit.floor() };
        return integers(context, *first, limit as i64, *by);
    }
    let numbers = (float_of(start), float_of(end), float_of(step));
    let (Some(from), Some(to), Some(by)) = numbers else {
        let other = args.iter().find(|arg| float_of(arg).is_none()).unwrap_or(&zero);
        return Err(wrong("range", "numbers", other));
    };
    if by == 0.0 || by.is_nan() {
        return Err(fault("invalid-argument", "`range` needs a step that is not 0"));
    }
    let count = ((to - from) / by).ceil().max(0.0);
    if count.is_nan() || count >= LONGEST_RANGE as f64 {
        return Err(crate::Error::limit("size", "`range` would give more than 2,000,000 items").into());
    }
    reserve_items(context, count as usize)?;
    let later = (1..count as i64).map(|n| Value::Float(from + by * n as f64));
    let first = (count >= 1.0).then(|| start.clone());
    super::vector(first.into_iter().chain(later).collect())
}

fn integers(context: &mut Context, start: i64, end: i64, step: i64) -> Answer {
    if step == 0 {
        return Err(fault("invalid-argument", "`range` needs a step that is not 0"));
    }
    let span =
        if step > 0 { i128::from(end) - i128::from(start) } else { i128::from(start) - i128::from(end) };
    let count = (span.max(0) + i128::from(step.unsigned_abs()) - 1) / i128::from(step.unsigned_abs());
    if count > LONGEST_RANGE {
        context.has_lazy = true;
        return Ok(Value::Seq(Seq::range(start, step, Some(end))));
    }
    reserve_items(context, count as usize)?;
    let numbers = (0..count as usize).map(|n| start.wrapping_add(step.wrapping_mul(n as i64)));
    Ok(Value::Vector(Vector::flat(numbers.map(Value::Int).collect())))
}

/// Returns the numbers from `a` to `b`, both included.
fn numbers(context: &mut Context, a: &Value, b: &Value) -> Answer {
    let (a, b) = (super::int_of("numbers", a)?, super::int_of("numbers", b)?);
    match b.checked_add(1) {
        Some(end) => integers(context, a, end, 1),
        None => Err(fault("invalid-argument", format!("`numbers`: {b} is too large"))),
    }
}

fn repeat(context: &mut Context, n: &Value, x: &Value) -> Answer {
    let n = super::count_of("repeat", n)?;
    reserve_items(context, n)?;
    super::vector(vec![x.clone(); n])
}

fn zipmap(context: &mut Context, args: &mut [Value]) -> Answer {
    let [keys, values] = args else { return Ok(Value::Nil) };
    reserve_items(context, 4 * len_of(keys).unwrap_or(0))?;
    let (keys, values) = (items_of("zipmap", keys)?, items_of("zipmap", values)?);
    let mut map = Map::new();
    for (key, value) in keys.into_iter().zip(values) {
        insert(&mut map, key, value)?;
    }
    Ok(Value::Map(map))
}

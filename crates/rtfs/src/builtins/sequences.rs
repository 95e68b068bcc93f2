//! Finite sequences: parts, orders, groups. The prelude handles lazy ones.

use super::{
    ANY, Answer, Entry, as_key, count_of, into_items, items_of, len_of, many, one, reserve_items, shown,
    two, wrong,
};
use crate::error::counted;
use crate::machine::{Context, Fault, arithmetic, compare_ordered, fault, float_of};
use crate::map::{Map, Set};
use crate::sequence::Vector;
use crate::value::Value;

pub(super) static ENTRIES: &[Entry] = &[
    many("%take", 2, 2, |context, args| part(context, "take", args, |len, n| 0..n.min(len))),
    many("%drop", 2, 2, |context, args| part(context, "drop", args, |len, n| n.min(len)..len)),
    many("take-last", 2, 2, |context, args| {
        part(context, "take-last", args, |len, n| len.saturating_sub(n)..len)
    }),
    many("%drop-last", 2, 2, |context, args| {
        part(context, "drop-last", args, |len, n| 0..len.saturating_sub(n))
    }),
    many("subvec", 2, 3, subvec),
    many("%split-at", 2, 2, split_at),
    many("reverse", 1, 1, reverse).walks(),
    many("%sort", 1, 1, sort).compares(),
    many("%sort-known", 2, 2, sort_known),
    many("%sort-by", 2, 2, sort_by).key(0),
    one("frequencies", frequencies).compares(),
    many("%distinct", 1, 1, distinct).compares(),
    many("%partition", 2, 3, partition),
    two("%partition-all", |context, n, coll| chunks(context, "partition-all", n, coll)),
    two("%partition-by", partition_by).key(0),
    one("%size", |_, n| {
        size("partition", n)?;
        Ok(n.clone())
    })
    .scalar(),
    many("%interleave", 0, ANY, interleave),
    two("%interpose", interpose),
    many("%zip", 1, ANY, zip),
    one("%flatten", flatten).walks(),
    one("sum", sum).walks().scalar(),
    one("mean", mean).walks().scalar(),
    one("median", median).walks().scalar(),
    many("%group", 3, 3, group).lazy().key(1),
    many("index-of", 2, 3, index_of).walks().compares(),
    many("%extreme", 3, 3, extreme).walks().key(1),
];

/// Returns some of the items, in place if they are not shared.
fn part(
    context: &mut Context,
    name: &str,
    args: &mut [Value],
    range: fn(usize, usize) -> std::ops::Range<usize>,
) -> Answer {
    let [n, coll] = args else { return Ok(Value::Nil) };
    let n = count_of(name, n)?;
    copied(context, coll, range(len_of(coll).unwrap_or(0), n).len())?;
    if let Value::Vector(_) = coll
        && let Value::Vector(mut vector) = std::mem::take(coll)
    {
        let range = range(vector.items().len(), n);
        // The end with fewer items is moved, so that little is copied.
        if vector.is_unique() {
            vector.truncate(range.end);
            vector.drop_front(range.start);
            return Ok(Value::Vector(vector));
        }
        return super::vector(vector.items()[range].to_vec());
    }
    let items = items_of(name, coll)?;
    let range = range(items.len(), n);
    super::vector(items[range].to_vec())
}

/// Charges for copied items, unless their vector is not shared. Must be called before anything is taken.
fn copied(context: &mut Context, coll: &Value, len: usize) -> Result<(), Box<Fault>> {
    let is_moved = matches!(coll, Value::Vector(vector) if vector.is_unique());
    if is_moved || len < 16 { Ok(()) } else { reserve_items(context, len) }
}

fn subvec(context: &mut Context, args: &mut [Value]) -> Answer {
    let Some(items) = args[0].items() else { return Err(wrong("subvec", "a vector", &args[0])) };
    let start = super::int_of("subvec", &args[1])?;
    let end = args.get(2).map_or(Ok(items.len() as i64), |end| super::int_of("subvec", end))?;
    let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
    match range.and_then(|(start, end)| items.get(start..end)) {
        Some(part) => {
            reserve_items(context, part.len())?;
            super::vector(part.to_vec())
        }
        None => Err(fault(
            "index",
            format!(
                "{start} to {end} is outside of a vector of {}",
                counted(items.len() as u64, "item")
            ),
        )),
    }
}

fn split_at(context: &mut Context, args: &mut [Value]) -> Answer {
    let n = count_of("split-at", &args[0])?;
    reserve_items(context, len_of(&args[1]).unwrap_or(0))?;
    let mut items = into_items("split-at", &mut args[1])?;
    let rest = items.split_off(n.min(items.len()));
    super::vector(vec![Value::vector(items)?, Value::vector(rest)?])
}

fn reverse(context: &mut Context, args: &mut [Value]) -> Answer {
    copied(context, &args[0], len_of(&args[0]).unwrap_or(0))?;
    let is_list = matches!(args[0], Value::List(_));
    let mut items = into_items("reverse", &mut args[0])?;
    items.reverse();
    if is_list { Ok(Value::List(crate::List::new(items)?)) } else { super::vector(items) }
}

/// Counts the steps of sorting this many items.
fn sorting(context: &mut Context, len: usize) {
    context.cost += (len as u64 * u64::from(len.max(2).ilog2())) / 16;
}

fn sort(context: &mut Context, args: &mut [Value]) -> Answer {
    let len = len_of(&args[0]).unwrap_or(0);
    sorting(context, len);
    reserve_items(context, len)?;
    let mut items = into_items("sort", &mut args[0])?;
    let integers: Option<Vec<i64>> =
        items.iter().map(|item| if let Value::Int(i) = item { Some(*i) } else { None }).collect();
    if let Some(mut integers) = integers {
        // Unstable sorting needs half the memory, and equal integers are indistinguishable.
        integers.sort_unstable();
        items.clear();
        items.extend(integers.into_iter().map(Value::Int));
        return Ok(Value::Vector(Vector::flat(items)));
    }
    if items.iter().all(|item| matches!(item, Value::Str(_))) {
        items.sort_by(|a, b| match (a, b) {
            (Value::Str(a), Value::Str(b)) => a.as_str().cmp(b.as_str()),
            _ => std::cmp::Ordering::Equal,
        });
    } else {
        items.sort_by(Value::compare);
    }
    super::vector(items)
}

/// Interprets the result of a comparing function: a negative number, or any true value, means "before".
pub(crate) fn before(order: &Value) -> bool {
    match order {
        Value::Int(n) => *n < 0,
        Value::Float(f) => *f < 0.0,
        Value::BigInt(big) => big.get().sign() == num_bigint::Sign::Minus,
        order => order.is_truthy(),
    }
}

/// Sorts numbers, or strings, by `<`, `>` or `compare`; returns nil in all other cases.
fn sort_known(context: &mut Context, args: &mut [Value]) -> Answer {
    let [f, coll] = args else { return Ok(Value::Nil) };
    let Value::Native(native) = f else { return Ok(Value::Nil) };
    let name = super::native(native.0).name;
    let items = coll.items().unwrap_or_default();
    let all_numbers = items.iter().all(|item| matches!(item, Value::Int(_) | Value::BigInt(_)));
    let known = all_numbers || items.iter().all(|item| matches!(item, Value::Str(_)));
    match name {
        "compare" | "<" if known => sort(context, std::slice::from_mut(coll)),
        ">" if known => {
            let len = items.len();
            sorting(context, len);
            reserve_items(context, len)?;
            let mut items = into_items("sort", coll)?;
            items.sort_by(|a, b| b.compare(a));
            super::vector(items)
        }
        _ => Ok(Value::Nil),
    }
}

/// Returns the items in the order of their keys.
fn sort_by(context: &mut Context, args: &mut [Value]) -> Answer {
    let [keys, items] = args else { return Ok(Value::Nil) };
    let len = len_of(keys).unwrap_or(0);
    sorting(context, len);
    reserve_items(context, 3 * len)?;
    let keys = items_of("sort-by", keys)?;
    let items = into_items("sort-by", items)?;
    let mut pairs: Vec<_> = keys.into_iter().zip(items).collect();
    pairs.sort_by(|a, b| a.0.compare(&b.0));
    super::vector(pairs.into_iter().map(|pair| pair.1).collect())
}

fn frequencies(context: &mut Context, coll: &Value) -> Answer {
    reserve_items(context, 4 * len_of(coll).unwrap_or(0))?;
    let mut map = Map::new();
    let mut count = |item: &Value| -> Result<(), Box<Fault>> {
        as_key(item)?;
        let count = match map.get(item) {
            Some(Value::Int(count)) => *count,
            _ => 0,
        };
        map.insert(item.clone(), Value::Int(count + 1))?;
        Ok(())
    };
    match coll.items() {
        Some(items) => items.iter().try_for_each(&mut count)?,
        None => items_of("frequencies", coll)?.iter().try_for_each(&mut count)?,
    }
    Ok(Value::Map(map))
}

fn distinct(context: &mut Context, args: &mut [Value]) -> Answer {
    reserve_items(context, 4 * len_of(&args[0]).unwrap_or(0))?;
    let items = into_items("distinct", &mut args[0])?;
    let mut seen = Set::new();
    let mut kept = Vec::new();
    for item in items {
        as_key(&item)?;
        if seen.insert(item.clone())? {
            kept.push(item);
        }
    }
    super::vector(kept)
}

fn size(name: &str, n: &Value) -> Result<usize, Box<Fault>> {
    match super::int_of(name, n)? {
        n if n > 0 => Ok(usize::try_from(n).unwrap_or(usize::MAX)),
        n => Err(fault("invalid-argument", format!("`{name}` needs a size of at least 1, got {n}"))),
    }
}

fn partition(context: &mut Context, args: &mut [Value]) -> Answer {
    let n = size("partition", &args[0])?;
    let step = if args.len() == 3 { size("partition", &args[1])? } else { n };
    let items = items_of("partition", &args[args.len() - 1])?;
    let parts = (items.len() + 1).saturating_sub(n).div_ceil(step);
    reserve_items(context, parts.saturating_mul(n.min(items.len()) + 4))?;
    let mut all = Vec::new();
    let mut at = 0_usize;
    while let Some(part) = at.checked_add(n).and_then(|end| items.get(at..end)) {
        all.push(Value::vector(part.to_vec())?);
        at += step;
    }
    super::vector(all)
}

fn chunks(context: &mut Context, name: &str, n: &Value, coll: &Value) -> Answer {
    let n = size(name, n)?;
    let items = items_of(name, coll)?;
    reserve_items(context, items.len() + 4 * (items.len() / n.max(1)))?;
    super::vector(items.chunks(n).map(|part| Value::vector(part.to_vec())).collect::<Result<_, _>>()?)
}

/// Splits into runs of items whose keys are equal.
fn partition_by(context: &mut Context, keys: &Value, coll: &Value) -> Answer {
    let (keys, mut items) = (items_of("partition-by", keys)?, items_of("partition-by", coll)?);
    items.truncate(keys.len());
    reserve_items(context, 5 * items.len())?;
    let mut all = Vec::new();
    let mut start = 0;
    for at in 1..=items.len() {
        if at == items.len() || keys[at] != keys[at - 1] {
            all.push(Value::vector(items[start..at].to_vec())?);
            start = at;
        }
    }
    super::vector(all)
}

fn interleave(context: &mut Context, args: &mut [Value]) -> Answer {
    let colls = args.iter().map(|arg| items_of("interleave", arg)).collect::<Result<Vec<_>, _>>()?;
    let shortest = colls.iter().map(Vec::len).min().unwrap_or(0);
    reserve_items(context, shortest * colls.len())?;
    super::vector((0..shortest).flat_map(|at| colls.iter().map(move |coll| coll[at].clone())).collect())
}

fn interpose(context: &mut Context, separator: &Value, coll: &Value) -> Answer {
    let items = items_of("interpose", coll)?;
    reserve_items(context, 2 * items.len())?;
    let mut all = Vec::with_capacity(2 * items.len());
    for item in items {
        if !all.is_empty() {
            all.push(separator.clone());
        }
        all.push(item);
    }
    super::vector(all)
}

fn zip(context: &mut Context, args: &mut [Value]) -> Answer {
    let colls = args.iter().map(|arg| items_of("zip", arg)).collect::<Result<Vec<_>, _>>()?;
    let shortest = colls.iter().map(Vec::len).min().unwrap_or(0);
    reserve_items(context, shortest * (colls.len() + 4))?;
    let row = |at: usize| Value::vector(colls.iter().map(|coll| coll[at].clone()).collect());
    super::vector((0..shortest).map(row).collect::<Result<_, _>>()?)
}

/// Returns the items of vectors and lists at any depth.
fn flatten(context: &mut Context, coll: &Value) -> Answer {
    let mut flat = Vec::new();
    // The remaining items are on a stack, the next one last.
    let mut open = items_of("flatten", coll)?;
    open.reverse();
    while let Some(item) = open.pop() {
        match (item.items(), &item) {
            (Some(items), _) => open.extend(items.iter().rev().cloned()),
            (None, Value::Seq(seq)) => return Err(Box::new(Fault::Realize(seq.clone()))),
            _ => flat.push(item),
        }
    }
    reserve_items(context, flat.len())?;
    super::vector(flat)
}

fn sum(_: &mut Context, coll: &Value) -> Answer {
    items_of("sum", coll)?.iter().try_fold(Value::Int(0), |sum, x| match (&sum, x) {
        (Value::Int(a), Value::Int(b)) if a.checked_add(*b).is_some() => Ok(Value::Int(a + b)),
        (sum, x) => arithmetic('+', sum, x),
    })
}

fn mean(context: &mut Context, coll: &Value) -> Answer {
    let count = len_of(coll).unwrap_or(0);
    if count == 0 {
        return Err(fault("invalid-argument", "`mean` of nothing"));
    }
    let sum = sum(context, coll)?;
    divided(&sum, count as i64)
}

fn divided(sum: &Value, by: i64) -> Answer {
    match sum {
        Value::Int(n) if n % by == 0 => Ok(Value::Int(n / by)),
        sum => match float_of(sum) {
            Some(sum) => Ok(Value::Float(sum / by as f64)),
            None => Err(wrong("mean", "numbers", sum)),
        },
    }
}

fn median(context: &mut Context, coll: &Value) -> Answer {
    sorting(context, len_of(coll).unwrap_or(0));
    let mut items = items_of("median", coll)?;
    if let Some(other) = items.iter().find(|item| float_of(item).is_none()) {
        return Err(wrong("median", "numbers", other));
    }
    items.sort_by(Value::compare);
    match items.len() {
        0 => Err(fault("invalid-argument", "`median` of nothing")),
        n if n % 2 == 1 => Ok(items[n / 2].clone()),
        n => divided(&arithmetic('+', &items[n / 2 - 1], &items[n / 2])?, 2),
    }
}

/// Appends an item to the vector that a map has at a key.
fn group(context: &mut Context, args: &mut [Value]) -> Answer {
    as_key(&args[1])?;
    let [map, key, item] = args else { return Ok(Value::Nil) };
    let (Value::Map(mut map), key, item) =
        (std::mem::take(map), std::mem::take(key), std::mem::take(item))
    else {
        return Ok(Value::Nil);
    };
    context.allocated(48);
    let mut items = match map.take(&key) {
        Some(Value::Vector(items)) => items,
        _ => {
            context.allocated(160);
            Vector::new(Vec::new())?
        }
    };
    items.push(item)?;
    map.insert(key, Value::Vector(items))?;
    Ok(Value::Map(map))
}

/// Returns the index of the first occurrence of an item, or of a substring; nil if there is none.
fn index_of(_: &mut Context, args: &mut [Value]) -> Answer {
    let from = args.get(2).map_or(Ok(0), |from| count_of("index-of", from))?;
    match &args[0] {
        Value::Str(text) => {
            let wanted = super::text_of("index-of", &args[1])?;
            let start = super::text::byte_of(text, from).unwrap_or(text.as_str().len());
            let found = text.as_str()[start..].find(wanted).map(|at| {
                let at = start + at;
                if text.is_ascii() { at } else { text.as_str()[..at].chars().count() }
            });
            Ok(found.map_or(Value::Nil, |at| Value::Int(at as i64)))
        }
        Value::Nil => Ok(Value::Nil),
        coll => match coll.items() {
            Some(items) => {
                let found = items.iter().enumerate().skip(from).find(|(_, item)| *item == &args[1]);
                Ok(found.map_or(Value::Nil, |(at, _)| Value::Int(at as i64)))
            }
            None => Err(wrong("index-of", "a string or a sequence", coll)),
        },
    }
}

/// Returns the item with the greatest or least key; the first of several.
fn extreme(_: &mut Context, args: &mut [Value]) -> Answer {
    let [greatest, keys, items] = args else { return Ok(Value::Nil) };
    let greatest = greatest.is_truthy();
    let (keys, mut items) = (items_of("max-by", keys)?, items_of("max-by", items)?);
    let mut best: Option<usize> = None;
    for (at, key) in keys.iter().enumerate() {
        let Some(known) = best else {
            best = Some(at);
            continue;
        };
        let order = compare_ordered(if greatest { "max-by" } else { "min-by" }, key, &keys[known])?;
        if order.is_some_and(|order| if greatest { order.is_gt() } else { order.is_lt() }) {
            best = Some(at);
        }
    }
    match best {
        Some(at) if at < items.len() => Ok(items.swap_remove(at)),
        Some(at) => Err(fault("index", format!("{} is outside", shown(&Value::Int(at as i64))))),
        None => Ok(Value::Nil),
    }
}

//! Access to collections: items, keys and parts.

use super::{
    Answer, Entry, items_of, len_of, many, one, pay_key, reserve_items, shown, three, two, wrong,
};
use crate::error::counted;
use crate::lazy::{Range, Seq, State};
use crate::machine::{Context, Fault, fault};
use crate::map::Map;
use crate::value::Value;

pub(super) static ENTRIES: &[Entry] = &[
    many("get", 2, 3, get).key(1).lazy(),
    two("%get-any", |context, coll, key| {
        pay_key(context, key);
        Ok(get_any(coll, key)?.unwrap_or_default())
    })
    .key(1)
    .lazy(),
    three("%get-or", |context, coll, key, default| {
        pay_key(context, key);
        Ok(get_any(coll, key)?.unwrap_or_else(|| default.clone()))
    })
    .key(1)
    .lazy(),
    two("%nth-of", |_, coll, at| nth(coll, at)).lazy(),
    two("%get", |_, coll, key| Ok(find_key(coll, key).cloned().unwrap_or_default())).lazy(),
    two("%has", |_, coll, key| Ok(Value::Bool(find_key(coll, key).is_some()))).scalar().lazy(),
    many("get-in", 2, 3, get_in).key(1).lazy(),
    many("nth", 2, 3, nth_or).lazy(),
    two("%nth", |_, coll, at| Ok(find_nth(coll, at)?.unwrap_or_default())).lazy(),
    many("%rest-from", 2, 2, rest_from).lazy(),
    many("%has-items", 3, 3, has_items).scalar().lazy(),
    one("%sequential", sequential).lazy(),
    one("%associative", associative),
    one("%named", named).walks(),
    one("%no-match", no_match),
    one("first", |_, coll| Ok(head(coll)?.unwrap_or_default())).lazy(),
    one("second", |_, coll| Ok(find_nth(coll, &Value::Int(1))?.unwrap_or_default())).lazy(),
    one("last", last),
    many("rest", 1, 1, |context, args| {
        copied(context, &args[0]);
        rest(context, &mut args[0])
    })
    .lazy(),
    many("next", 1, 1, next).lazy(),
    one("count", count).scalar(),
    one("empty?", |_, coll| Ok(Value::Bool(is_empty("empty?", coll)?))).scalar().lazy(),
    one("not-empty", |_, coll| Ok(if is_empty("not-empty", coll)? { Value::Nil } else { coll.clone() }))
        .lazy(),
    one("seq", seq).lazy(),
    two("contains?", contains).key(1).scalar().lazy(),
    two("find", find).key(1),
    one("%thunk", thunk).lazy(),
    two("%set-cell", set_cell).lazy(),
    two("%set-next", set_next).lazy(),
    two("%set-realized", set_realized).lazy(),
    one("%lazy", lazy).lazy(),
    one("%cell", cell).lazy(),
    one("%finished", finished).lazy(),
    one("%box", |_, x| boxed(x)).lazy(),
    one("%unbox", unbox).lazy(),
    many("%put-box", 3, 3, put_box).key(1).lazy(),
];

/// Returns the value of a collection at a key or index.
pub(crate) fn find_key<'v>(coll: &'v Value, key: &Value) -> Option<&'v Value> {
    match coll {
        Value::Map(map) => map.get(key),
        Value::Set(set) => set.get(key),
        Value::Vector(_) | Value::List(_) | Value::Seq(_) => match key {
            Value::Int(at) => coll.items()?.get(usize::try_from(*at).ok()?),
            _ => None,
        },
        _ => None,
    }
}

fn get(context: &mut Context, args: &mut [Value]) -> Answer {
    pay_key(context, &args[1]);
    Ok(get_any(&args[0], &args[1])?.or(args.get(2).cloned()).unwrap_or_default())
}

#[inline]
fn get_any(coll: &Value, key: &Value) -> Result<Option<Value>, Box<Fault>> {
    Ok(match (coll, key) {
        (Value::Str(text), Value::Int(at)) => usize::try_from(*at).ok().and_then(|at| char_at(text, at)),
        (Value::Seq(seq), Value::Int(at)) => match usize::try_from(*at) {
            Ok(at) => lazy_nth(seq.clone(), at)?,
            Err(_) => None,
        },
        _ => find_key(coll, key).cloned(),
    })
}

fn char_at(text: &crate::Str, at: usize) -> Option<Value> {
    if text.is_ascii() {
        return text.as_str().get(at..at + 1).map(Value::from);
    }
    text.as_str().chars().nth(at).map(|c| Value::from(c.encode_utf8(&mut [0; 4]) as &str))
}

fn get_in(_: &mut Context, args: &mut [Value]) -> Answer {
    let keys = items_of("get-in", &args[1])?;
    let mut found = Some(args[0].clone());
    for key in &keys {
        found = match &found {
            Some(Value::Str(_)) | None => None,
            Some(coll) => get_any(coll, key)?,
        };
    }
    Ok(found.or(args.get(2).cloned()).unwrap_or_default())
}

/// Returns the item at an index, if it exists. Realizes a lazy sequence as far as necessary.
fn find_nth(coll: &Value, at: &Value) -> Result<Option<Value>, Box<Fault>> {
    let Value::Int(at) = at else { return Err(wrong("nth", "an index", at)) };
    let Ok(at) = usize::try_from(*at) else { return Ok(None) };
    match coll {
        Value::Nil => Ok(None),
        Value::Vector(vector) => Ok(vector.items().get(at).cloned()),
        Value::List(list) => Ok(list.items().get(at).cloned()),
        Value::Str(text) => Ok(char_at(text, at)),
        Value::Seq(seq) => lazy_nth(seq.clone(), at),
        Value::Map(map) => map
            .iter()
            .nth(at)
            .map(|(key, value)| Ok(Value::vector(vec![key.clone(), value.clone()])?))
            .transpose(),
        Value::Set(set) => Ok(set.iter().nth(at).cloned()),
        other => Err(wrong("nth", "a sequence", other)),
    }
}

fn lazy_nth(seq: Seq, at: usize) -> Result<Option<Value>, Box<Fault>> {
    let (mut seq, mut at) = (seq, at);
    loop {
        if let Some(items) = seq.realized() {
            return Ok(items.items().get(at).cloned());
        }
        match seq.state() {
            State::End | State::Kept(_) => return Ok(None),
            State::Thunk(_) | State::Stream if at == 0 => return Err(Box::new(Fault::Force(seq))),
            // All missing items are realized together, because the call starts from the beginning again.
            State::Thunk(_) | State::Stream => return Err(force_to(seq, at)),
            State::Range(range) => return Ok(range.nth(at).map(Value::Int)),
            State::Item(item, _) if at == 0 => return Ok(Some(item)),
            State::Item(_, rest) => {
                at -= 1;
                match rest {
                    Value::Seq(rest) => seq = rest,
                    other => return find_nth(&other, &Value::Int(at as i64)),
                }
            }
        }
    }
}

/// Returns the fault that realizes the first `n + 1` items.
fn force_to(seq: Seq, n: usize) -> Box<Fault> {
    let n = Value::Int(i64::try_from(n).unwrap_or(i64::MAX).saturating_add(1));
    help("%force-to", vec![Value::Seq(seq), n])
}

/// Returns the fault that first runs a function of the prelude.
fn help(name: &'static str, args: Vec<Value>) -> Box<Fault> {
    match Value::vector(args) {
        Ok(args) => Box::new(Fault::Help(name, args)),
        Err(deep) => deep.into(),
    }
}

/// `(nth coll at)`
pub(crate) fn nth(coll: &Value, at: &Value) -> Answer {
    match find_nth(coll, at)? {
        Some(item) => Ok(item),
        None => {
            let len = len_of(coll)
                .map_or_else(String::new, |len| format!(" of {}", counted(len as u64, "item")));
            Err(fault("index", format!("{} is outside of a collection{len}", shown(at))))
        }
    }
}

fn nth_or(_: &mut Context, args: &mut [Value]) -> Answer {
    match args {
        [coll, at] => nth(coll, at),
        [coll, at, default] => Ok(find_nth(coll, at)?.unwrap_or_else(|| default.clone())),
        _ => Ok(Value::Nil),
    }
}

fn rest_from(context: &mut Context, args: &mut [Value]) -> Answer {
    let n = super::count_of("rest", &args[1])?;
    match &mut args[0] {
        Value::Vector(vector) => {
            let mut vector = vector.clone();
            context.allocated(16 * vector.items().len().saturating_sub(n));
            vector.drop_front(n);
            Ok(Value::Vector(vector))
        }
        Value::Nil => super::vector(Vec::new()),
        Value::Seq(seq) if seq.realized().is_none() => {
            let mut rest_of = Value::Seq(seq.clone());
            if n > 0 {
                lazy_nth(seq.clone(), n - 1)?;
            }
            for _ in 0..n {
                if is_empty("rest", &rest_of)? {
                    break;
                }
                rest_of = rest(context, &mut rest_of)?;
            }
            Ok(rest_of)
        }
        coll => {
            let items = all_items(context, "rest", coll)?;
            super::vector(items.into_iter().skip(n).collect())
        }
    }
}

/// Returns whether a vector pattern of this many items matches.
fn has_items(_: &mut Context, args: &mut [Value]) -> Answer {
    let [coll, n, exact] = args else { return Ok(Value::Nil) };
    let n = super::count_of("match", n)?;
    Ok(Value::Bool(match coll {
        Value::Vector(_) | Value::List(_) => {
            let len = len_of(coll).unwrap_or(0);
            if exact.is_truthy() { len == n } else { len >= n }
        }
        Value::Seq(seq) => {
            (n == 0 || lazy_nth(seq.clone(), n - 1)?.is_some())
                && !(exact.is_truthy() && lazy_nth(seq.clone(), n)?.is_some())
        }
        _ => false,
    }))
}

/// Checks that a value can be destructured by index.
fn sequential(_: &mut Context, coll: &Value) -> Answer {
    match coll {
        Value::Nil | Value::Vector(_) | Value::List(_) | Value::Seq(_) | Value::Str(_) => {
            Ok(coll.clone())
        }
        other => Err(fault("type", format!("a pattern [ ] takes a vector apart, got {}", shown(other)))),
    }
}

/// Checks that a value can be destructured by key.
fn associative(_: &mut Context, coll: &Value) -> Answer {
    match coll {
        Value::Nil => Ok(Value::Map(Map::new())),
        Value::Map(_) => Ok(coll.clone()),
        other => Err(fault("type", format!("a pattern {{ }} takes a map apart, got {}", shown(other)))),
    }
}

/// Returns the arguments after `&` as a map: alternating keys and values, or one map, or a map after the
/// others.
fn named(_: &mut Context, rest: &Value) -> Answer {
    let items = items_of("&", rest)?;
    let (pairs, last) = match items.len() % 2 {
        0 => (&items[..], None),
        _ => match items.split_last() {
            Some((Value::Map(map), pairs)) => (pairs, Some(map)),
            Some((other, _)) => {
                let message = format!(
                    "after `&` names and values are expected in turn: {} has no value",
                    shown(other)
                );
                return Err(fault("invalid-argument", message));
            }
            None => (&items[..], None),
        },
    };
    let mut map = Map::new();
    for pair in pairs.chunks_exact(2) {
        super::as_key(&pair[0])?;
        map.insert(pair[0].clone(), pair[1].clone())?;
    }
    for (key, value) in last.into_iter().flat_map(Map::iter) {
        map.insert(key.clone(), value.clone())?;
    }
    Ok(Value::Map(map))
}

fn no_match(_: &mut Context, value: &Value) -> Answer {
    let error = crate::Error::new("no-match", format!("nothing here matches {}", shown(value)));
    Err(error.with_data(value.clone()).into())
}

/// Returns the first item, if there is one.
fn head(coll: &Value) -> Result<Option<Value>, Box<Fault>> {
    match coll {
        Value::Vector(vector) => Ok(vector.items().first().cloned()),
        Value::Nil => Ok(None),
        Value::Map(map) => match map.iter().next() {
            Some((key, value)) => Ok(Some(Value::vector(vec![key.clone(), value.clone()])?)),
            None => Ok(None),
        },
        Value::Set(set) => Ok(set.iter().next().cloned()),
        Value::List(_) | Value::Str(_) | Value::Seq(_) => find_nth(coll, &Value::Int(0)),
        other => Err(wrong("first", "a collection", other)),
    }
}

fn last(context: &mut Context, coll: &Value) -> Answer {
    match coll {
        Value::Vector(_) | Value::List(_) | Value::Seq(_) => {
            Ok(coll.items().and_then(<[_]>::last).cloned().unwrap_or_default())
        }
        other => Ok(all_items(context, "last", other)?.pop().unwrap_or_default()),
    }
}

/// Returns the items of a collection, copied to examine a few of them.
fn all_items(context: &mut Context, name: &str, coll: &Value) -> Result<Vec<Value>, Box<Fault>> {
    reserve_items(context, 4 * len_of(coll).unwrap_or(0))?;
    items_of(name, coll)
}

/// Charges for the copy of a shared vector without its first items.
fn copied(context: &mut Context, coll: &Value) {
    if let Value::Vector(vector) = coll
        && !vector.is_unique()
    {
        let len = vector.items().len();
        context.allocated(16 * len);
        context.cost += len as u64 / 16;
    }
}

fn rest(context: &mut Context, coll: &mut Value) -> Answer {
    match coll {
        Value::Nil => super::vector(Vec::new()),
        Value::Vector(_) => {
            let Value::Vector(mut vector) = std::mem::take(coll) else { return Ok(Value::Nil) };
            vector.drop_front(1);
            Ok(Value::Vector(vector))
        }
        Value::List(_) => {
            let Value::List(list) = std::mem::take(coll) else { return Ok(Value::Nil) };
            let mut vector = list.into_vector();
            vector.drop_front(1);
            Ok(Value::List(vector.into_list()))
        }
        Value::Seq(seq) => match seq.realized() {
            Some(items) => {
                let mut items = items.clone();
                items.drop_front(1);
                Ok(Value::Vector(items))
            }
            None => match seq.state() {
                State::End | State::Kept(_) => super::vector(Vec::new()),
                State::Thunk(_) | State::Stream => Err(Box::new(Fault::Force(seq.clone()))),
                State::Item(_, rest) => Ok(rest),
                State::Range(Range { next, step, end }) => match next.checked_add(step) {
                    Some(next) => Ok(Value::Seq(Seq::range(next, step, end))),
                    None => super::vector(Vec::new()),
                },
            },
        },
        other => {
            let items = all_items(context, "rest", other)?;
            super::vector(items.into_iter().skip(1).collect())
        }
    }
}

/// `rest`, or nil if nothing is left.
fn next(context: &mut Context, args: &mut [Value]) -> Answer {
    copied(context, &args[0]);
    let mut coll = args[0].clone();
    args[0] = Value::Nil;
    let rest = match rest(context, &mut coll) {
        Ok(rest) => rest,
        Err(fault) => {
            args[0] = coll;
            return Err(fault);
        }
    };
    match is_empty("next", &rest) {
        Ok(true) => Ok(Value::Nil),
        Ok(false) => Ok(rest),
        Err(fault) => {
            // The following cell must be known: the call is repeated with the same collection.
            args[0] = coll;
            Err(fault)
        }
    }
}

fn count(_: &mut Context, coll: &Value) -> Answer {
    match len_of(coll) {
        Some(len) => Ok(Value::Int(len as i64)),
        None => Err(wrong("count", "a collection or a string", coll)),
    }
}

fn is_empty(name: &str, coll: &Value) -> Result<bool, Box<Fault>> {
    if let Value::Seq(seq) = coll
        && seq.realized().is_none()
    {
        return Ok(lazy_nth(seq.clone(), 0)?.is_none());
    }
    len_of(coll).map(|len| len == 0).ok_or_else(|| wrong(name, "a collection or a string", coll))
}

/// Returns the items of a collection as a sequence; nil if there are none.
fn seq(context: &mut Context, coll: &Value) -> Answer {
    if is_empty("seq", coll)? {
        return Ok(Value::Nil);
    }
    match coll {
        Value::Vector(_) | Value::List(_) | Value::Seq(_) => Ok(coll.clone()),
        other => super::vector(all_items(context, "seq", other)?),
    }
}

fn contains(context: &mut Context, coll: &Value, x: &Value) -> Answer {
    pay_key(context, x);
    if !matches!(coll, Value::Map(_) | Value::Set(_)) {
        context.cost += super::effort(coll);
    }
    Ok(Value::Bool(match coll {
        Value::Nil => false,
        Value::Map(map) => map.contains_key(x),
        Value::Set(set) => set.contains(x),
        Value::Str(text) => text.as_str().contains(super::text_of("contains?", x)?),
        Value::Seq(seq) if seq.realized().is_none() => return lazy_contains(context, seq.clone(), x),
        other => match other.items() {
            Some(items) => items.contains(x),
            None => return Err(wrong("contains?", "a collection or a string", coll)),
        },
    }))
}

/// Returns whether a lazy sequence contains an item. Realizes the sequence as far as necessary.
fn lazy_contains(context: &mut Context, seq: Seq, x: &Value) -> Answer {
    let mut seq = seq;
    loop {
        if let Some(items) = seq.realized() {
            return Ok(Value::Bool(items.items().contains(x)));
        }
        match seq.state() {
            State::End | State::Kept(_) => return Ok(Value::Bool(false)),
            State::Thunk(_) | State::Stream => {
                return Err(help("%force-until", vec![Value::Seq(seq), x.clone()]));
            }
            State::Range(Range { next, step, end }) => {
                let Value::Int(x) = *x else { return Ok(Value::Bool(false)) };
                let far = i128::from(x) - i128::from(next);
                let before_end = match end {
                    None => true,
                    Some(end) if step > 0 => x < end,
                    Some(end) => x > end,
                };
                let at = (far % i128::from(step), far / i128::from(step));
                return Ok(Value::Bool(at.0 == 0 && at.1 >= 0 && before_end));
            }
            State::Item(item, rest) => {
                if crate::machine::equal(context, &item, x)? {
                    return Ok(Value::Bool(true));
                }
                match rest {
                    Value::Seq(rest) => seq = rest,
                    other => return Ok(Value::Bool(other.items().is_some_and(|all| all.contains(x)))),
                }
            }
        }
    }
}

/// Returns the entry of a map as a vector.
fn find(_: &mut Context, coll: &Value, key: &Value) -> Answer {
    match find_key(coll, key) {
        Some(value) => super::vector(vec![key.clone(), value.clone()]),
        None => Ok(Value::Nil),
    }
}

fn seq_of(value: &Value) -> Result<&Seq, Box<Fault>> {
    match value {
        Value::Seq(seq) => Ok(seq),
        other => Err(wrong("sequence", "a sequence", other)),
    }
}

/// Returns the function that computes a cell.
fn thunk(_: &mut Context, value: &Value) -> Answer {
    match seq_of(value)?.state() {
        State::Thunk(thunk) => Ok(thunk),
        _ => Ok(Value::Nil),
    }
}

/// Stores the result of a cell's function: nil at the end, else `[item rest]`.
fn set_cell(context: &mut Context, cell: &Value, value: &Value) -> Answer {
    let seq = seq_of(cell)?;
    context.allocated(32);
    match value.items() {
        Some([item, rest]) => seq.fill(item, rest)?,
        _ => seq.set(State::End),
    }
    Ok(Value::Nil)
}

/// Stores the host's answer for a stream: nil at its end, else `[item]`.
fn set_next(context: &mut Context, cell: &Value, value: &Value) -> Answer {
    let seq = seq_of(cell)?;
    context.allocated(192);
    match (value.items(), seq.handle()) {
        (Some([item]), Some(handle)) => {
            let rest = Value::Seq(Seq::stream(handle.clone()));
            seq.set(State::Item(item.clone(), rest));
        }
        _ => seq.set(State::End),
    }
    Ok(Value::Nil)
}

fn set_realized(_: &mut Context, cell: &Value, items: &Value) -> Answer {
    let seq = seq_of(cell)?;
    if let Value::Vector(items) = items {
        seq.realize(items)?;
    }
    Ok(Value::Nil)
}

fn lazy(context: &mut Context, thunk: &Value) -> Answer {
    context.allocated(192);
    context.has_lazy = true;
    Ok(Value::Seq(Seq::lazy(thunk.clone())?))
}

/// Returns the first item of a sequence that is not empty, and the rest, in the form of a cell
/// function's result.
fn cell(context: &mut Context, seq: &Value) -> Answer {
    let Some(item) = head(seq)? else { return Ok(Value::Nil) };
    let rest = rest(context, &mut seq.clone())?;
    super::vector(vec![item, rest])
}

/// Returns the value, when no lazy part of it is unknown any more.
fn finished(_: &mut Context, value: &Value) -> Answer {
    super::data::known(value)?;
    Ok(value.clone())
}

/// Returns a cell in which `memoize` keeps its map. It is the only mutable state, which programs cannot
/// observe.
fn boxed(value: &Value) -> Answer {
    Ok(Value::Seq(Seq::kept(value.clone())))
}

fn unbox(_: &mut Context, cell: &Value) -> Answer {
    match seq_of(cell)?.state() {
        State::Kept(value) => Ok(value),
        _ => Ok(Value::Nil),
    }
}

fn put_box(context: &mut Context, args: &mut [Value]) -> Answer {
    let [cell, key, value] = args else { return Ok(Value::Nil) };
    let seq = seq_of(cell)?;
    super::as_key(key)?;
    let State::Kept(Value::Map(map)) = seq.state() else { return Ok(Value::Nil) };
    seq.set(State::End); // so that the map is not shared
    let mut map = map;
    context.allocated(96);
    map.insert(key.clone(), value.clone())?;
    seq.set(State::Kept(Value::Map(map)));
    Ok(Value::Nil)
}

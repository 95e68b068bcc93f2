//! Maps and sets.

use super::build::{insert, set_of};
use super::{ANY, Answer, Entry, as_key, items_of, len_of, many, one, reserve_items, two, wrong};
use crate::machine::{Context, Fault};
use crate::map::{Map, Set};
use crate::value::Value;

pub(super) static ENTRIES: &[Entry] = &[
    one("keys", |context, coll| entries_of(context, "keys", coll, |key, _| Ok(key.clone()))),
    one("vals", |context, coll| entries_of(context, "vals", coll, |_, value| Ok(value.clone()))),
    one("entries", |context, coll| {
        entries_of(context, "entries", coll, |key, value| {
            Ok(Value::vector(vec![key.clone(), value.clone()])?)
        })
    }),
    many("merge", 0, ANY, merge),
    two("select-keys", select_keys).key(1),
    two("rename-keys", rename_keys).key(1),
    many("union", 0, ANY, union).compares(),
    many("intersection", 1, ANY, |context, args| sift(context, "intersection", args, true)).compares(),
    many("difference", 1, ANY, |context, args| sift(context, "difference", args, false)).compares(),
    two("subset?", |_, a, b| Ok(Value::Bool(is_subset(a, b)?))).walks().compares().scalar(),
    two("superset?", |_, a, b| Ok(Value::Bool(is_subset(b, a)?))).walks().compares().scalar(),
];

fn map_of<'v>(name: &str, value: &'v Value) -> Result<Option<&'v Map>, Box<Fault>> {
    match value {
        Value::Map(map) => Ok(Some(map)),
        Value::Nil => Ok(None),
        other => Err(wrong(name, "a map", other)),
    }
}

fn entries_of(
    context: &mut Context,
    name: &str,
    coll: &Value,
    part: fn(&Value, &Value) -> Answer,
) -> Answer {
    let Some(map) = map_of(name, coll)? else { return super::vector(Vec::new()) };
    reserve_items(context, map.len())?;
    super::vector(map.iter().map(|(key, value)| part(key, value)).collect::<Result<_, _>>()?)
}

/// Merges maps; later entries win. Nil counts as the empty map. If all arguments are nil, the result is
/// nil.
fn merge(context: &mut Context, args: &mut [Value]) -> Answer {
    let mut len = 0;
    for arg in args.iter() {
        len += map_of("merge", arg)?.map_or(0, Map::len);
    }
    reserve_items(context, 4 * len)?;
    let mut args = args.iter_mut().filter(|arg| !matches!(arg, Value::Nil));
    let Some(Value::Map(mut map)) = args.next().map(std::mem::take) else {
        return Ok(Value::Map(Map::new()));
    };
    for arg in args {
        if let Value::Map(more) = &*arg {
            for (key, value) in more.iter() {
                map.insert(key.clone(), value.clone())?;
            }
        }
    }
    Ok(Value::Map(map))
}

fn select_keys(context: &mut Context, coll: &Value, keys: &Value) -> Answer {
    let mut selected = Map::new();
    let map = map_of("select-keys", coll)?;
    reserve_items(context, 4 * len_of(keys).unwrap_or(0))?;
    for key in items_of("select-keys", keys)? {
        if let Some(value) = map.and_then(|map| map.get(&key)) {
            insert(&mut selected, key, value.clone())?;
        }
    }
    Ok(Value::Map(selected))
}

/// Renames keys, which keep their positions in the map.
fn rename_keys(context: &mut Context, coll: &Value, names: &Value) -> Answer {
    let (Some(map), names) = (map_of("rename-keys", coll)?, map_of("rename-keys", names)?) else {
        return Ok(Value::Nil);
    };
    reserve_items(context, 4 * map.len())?;
    let mut renamed = Map::new();
    let new_name = |key: &Value| names.and_then(|names| names.get(key)).cloned();
    for (key, value) in map.iter() {
        // A renamed entry replaces an existing entry of that name.
        let is_replaced = new_name(key).is_none()
            && names
                .is_some_and(|names| names.iter().any(|(old, new)| new == key && map.contains_key(old)));
        if !is_replaced {
            let key = new_name(key).unwrap_or_else(|| key.clone());
            insert(&mut renamed, key, value.clone())?;
        }
    }
    Ok(Value::Map(renamed))
}

fn members(name: &str, value: &Value) -> Result<Set, Box<Fault>> {
    match value {
        Value::Set(set) => Ok(set.clone()),
        other => match set_of(items_of(name, other)?.into_iter())? {
            Value::Set(set) => Ok(set),
            _ => Ok(Set::new()),
        },
    }
}

fn union(context: &mut Context, args: &mut [Value]) -> Answer {
    reserve_items(context, 4 * args.iter().filter_map(len_of).sum::<usize>())?;
    let Some((first, rest)) = args.split_first_mut() else { return Ok(Value::Set(Set::new())) };
    let mut set = match std::mem::take(first) {
        Value::Set(set) => set,
        other => members("union", &other)?,
    };
    for arg in rest {
        for item in items_of("union", arg)? {
            as_key(&item)?;
            set.insert(item)?;
        }
    }
    Ok(Value::Set(set))
}

fn sift(context: &mut Context, name: &str, args: &[Value], keep: bool) -> Answer {
    reserve_items(context, 4 * args.iter().filter_map(len_of).sum::<usize>())?;
    let others = args[1..].iter().map(|arg| members(name, arg)).collect::<Result<Vec<_>, _>>()?;
    let first = members(name, &args[0])?;
    let stays = |item: &&Value| {
        if keep {
            others.iter().all(|set| set.contains(item))
        } else {
            !others.iter().any(|set| set.contains(item))
        }
    };
    set_of(first.iter().filter(stays).cloned())
}

fn is_subset(a: &Value, b: &Value) -> Result<bool, Box<Fault>> {
    let (a, b) = (members("subset?", a)?, members("subset?", b)?);
    Ok(a.iter().all(|item| b.contains(item)))
}

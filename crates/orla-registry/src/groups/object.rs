//! Objects (maps): their keys, values and parts.

use rtfs::{Map, Value};

use crate::arguments::{Arguments, list, name_of, text};
use crate::builtin::{Builtin, Parameter, defaulted, example, optional, required};
use crate::error::BuiltinError;
use crate::groups::field;
use crate::limits::{Budget, deep, vector};
use crate::schema::{ANY, BOOLEAN, LIST, LISTS, OBJECT, OBJECTS, TEXT, TEXTS};

type Result<T> = std::result::Result<T, BuiltinError>;

const PAIRS: &str = r#""type":"array","items":{"type":"array","minItems":2,"maxItems":2,"prefixItems":[{"type":"string"},{}]}"#;
const STEPS: &str = r#""type":"array","items":{"type":["string","integer"]}"#;
const MAP: Parameter = required("object", OBJECT, "The object.");
const KEYS: Parameter = required("keys", TEXTS, "The names of the keys.");

pub(super) static BUILTINS: &[Builtin] = &[
    Builtin {
        name: "object.entries",
        title: "Entries",
        description: "The keys with their values, as pairs.",
        parameters: &[MAP],
        output: LISTS,
        examples: &[example(r#"{"object":{"a":1,"b":2}}"#, r#"[["a",1],["b",2]]"#)],
        run: |args| {
            let entries = args.map("object")?.iter();
            vector(
                entries
                    .map(|(key, value)| vector(vec![name(key), value.clone()]))
                    .collect::<Result<_>>()?,
            )
        },
    },
    Builtin {
        name: "object.flatten",
        title: "Flatten an object",
        description: "One flat object of all values within, with keys made of the path to each: {\"a\":{\"b\":[1]}} to \
                      {\"a.b.0\":1}. Empty objects and lists stay.",
        parameters: &[MAP, defaulted("separator", TEXT, "\".\"", "What stands between the steps.")],
        output: OBJECT,
        examples: &[example(r#"{"object":{"a":{"b":[1,2]},"c":3}}"#, r#"{"a.b.0":1,"a.b.1":2,"c":3}"#)],
        run: flatten,
    },
    Builtin {
        name: "object.from_entries",
        title: "Object of pairs",
        description: "The object that has each pair's first item as a key of its second. The last of equal keys wins.",
        parameters: &[required("entries", PAIRS, "Pairs of a text and a value.")],
        output: OBJECT,
        examples: &[example(r#"{"entries":[["a",1],["b",2]]}"#, r#"{"a":1,"b":2}"#)],
        run: from_entries,
    },
    Builtin {
        name: "object.get",
        title: "Get by path",
        description: "The value at a path of keys and indices; the default where there is none.",
        parameters: &[
            required("value", ANY, "An object or list."),
            required(
                "path",
                STEPS,
                "The steps: keys as texts, places in lists from 0 (negative from the end).",
            ),
            optional("default", ANY, "What is given where the path leads nowhere; without it, null."),
        ],
        output: ANY,
        examples: &[
            example(r#"{"value":{"a":[{"b":7}]},"path":["a",0,"b"]}"#, "7"),
            example(r#"{"value":{},"path":["a"],"default":"none"}"#, r#""none""#),
            example(r#"{"value":[7],"path":[-100000000000000000000],"default":"none"}"#, r#""none""#),
        ],
        run: get,
    },
    Builtin {
        name: "object.keys",
        title: "Keys",
        description: "The names of the keys, in their order.",
        parameters: &[MAP],
        output: TEXTS,
        examples: &[example(r#"{"object":{"b":1,"a":2}}"#, r#"["b","a"]"#)],
        run: |args| vector(args.map("object")?.iter().map(|(key, _)| name(key)).collect()),
    },
    Builtin {
        name: "object.merge",
        title: "Merge objects",
        description: "All entries of several objects in one; of equal keys the last object's value wins. `deep` merges \
                      objects within as well.",
        parameters: &[
            required("objects", OBJECTS, "The objects, the weakest first."),
            defaulted(
                "deep",
                BOOLEAN,
                "false",
                "Merge objects under equal keys instead of replacing them.",
            ),
        ],
        output: OBJECT,
        examples: &[
            example(r#"{"objects":[{"a":{"x":1}},{"a":{"y":2}}]}"#, r#"{"a":{"y":2}}"#),
            example(
                r#"{"objects":[{"a":{"x":1}},{"a":{"y":2}}],"deep":true}"#,
                r#"{"a":{"x":1,"y":2}}"#,
            ),
        ],
        run: merge,
    },
    Builtin {
        name: "object.omit",
        title: "Leave out keys",
        description: "The object without some of its keys.",
        parameters: &[MAP, KEYS],
        output: OBJECT,
        examples: &[example(r#"{"object":{"a":1,"b":2},"keys":["b","c"]}"#, r#"{"a":1}"#)],
        run: |args| select(args, false),
    },
    Builtin {
        name: "object.pick",
        title: "Pick keys",
        description: "The object with some of its keys only, in its own order.",
        parameters: &[MAP, KEYS],
        output: OBJECT,
        examples: &[example(r#"{"object":{"a":1,"b":2},"keys":["b","c"]}"#, r#"{"b":2}"#)],
        run: |args| select(args, true),
    },
    Builtin {
        name: "object.rename",
        title: "Rename keys",
        description: "The object with other names for some of its keys. Should two become one, the last wins.",
        parameters: &[
            MAP,
            required(
                "names",
                r#""type":"object","additionalProperties":{"type":"string"}"#,
                "The new name of each old one.",
            ),
        ],
        output: OBJECT,
        examples: &[example(r#"{"object":{"a":1,"b":2},"names":{"a":"x"}}"#, r#"{"x":1,"b":2}"#)],
        run: rename,
    },
    Builtin {
        name: "object.values",
        title: "Values",
        description: "The values, in the order of the keys.",
        parameters: &[MAP],
        output: LIST,
        examples: &[example(r#"{"object":{"b":1,"a":2}}"#, "[1,2]")],
        run: |args| vector(args.map("object")?.iter().map(|(_, value)| value.clone()).collect()),
    },
];

fn name(key: &Value) -> Value {
    name_of(key).map_or_else(|| Value::from(key.to_string()), Value::from)
}

fn flatten(args: &Arguments<'_>) -> Result<Value> {
    let separator = args.text_or("separator", ".")?;
    let mut flat = Map::new();
    let mut budget = Budget::new();
    flatten_into(
        &args.map("object")?.clone().into(),
        &mut String::new(),
        separator,
        &mut flat,
        &mut budget,
    )?;
    Ok(flat.into())
}

fn flatten_into(
    value: &Value,
    path: &mut String,
    separator: &str,
    flat: &mut Map,
    budget: &mut Budget,
) -> Result<()> {
    let steps: Vec<(String, &Value)> = match value {
        Value::Map(map) => map.iter().map(|(key, value)| (name(key).to_string(), value)).collect(),
        Value::Vector(vector) => {
            vector.items().iter().enumerate().map(|(i, v)| (i.to_string(), v)).collect()
        }
        Value::List(list) => list.items().iter().enumerate().map(|(i, v)| (i.to_string(), v)).collect(),
        _ => Vec::new(),
    };
    if steps.is_empty() {
        // The outermost object has no path; if it is empty, the result is empty.
        if !matches!(value, Value::Map(_)) || flat_needs(path) {
            budget.text(path.len())?;
            deep(flat.insert(Value::keyword(path.as_str()), value.clone()))?;
        }
        return Ok(());
    }
    let outer = path.len();
    for (step, value) in steps {
        if outer > 0 {
            path.push_str(separator);
        }
        path.push_str(&step);
        budget.text(step.len() + separator.len())?;
        flatten_into(value, path, separator, flat, budget)?;
        path.truncate(outer);
    }
    Ok(())
}

fn flat_needs(path: &str) -> bool {
    !path.is_empty()
}

fn from_entries(args: &Arguments<'_>) -> Result<Value> {
    let mut map = Map::new();
    for (i, entry) in args.list("entries")?.iter().enumerate() {
        let at = format!("entries[{i}]");
        let pair = list(&at, entry)?;
        let [key, value] = &*pair else {
            return Err(BuiltinError::argument(at, "a pair of a text and a value", entry));
        };
        let key = match name_of(key) {
            Some(name) => name,
            None => text(&format!("{at}[0]"), key)?,
        };
        deep(map.insert(Value::keyword(key), value.clone()))?;
    }
    Ok(map.into())
}

fn get(args: &Arguments<'_>) -> Result<Value> {
    let mut here = Some(args.value("value")?);
    for (i, step) in args.list("path")?.iter().enumerate() {
        if !matches!(step, Value::Int(_) | Value::BigInt(_) | Value::Str(_) | Value::Keyword(_)) {
            return Err(BuiltinError::argument(format!("path[{i}]"), "a text or an integer", step));
        }
        here = match (here, step) {
            (Some(Value::Map(map)), step) => match name_of(step) {
                Some(name) => field(map, name),
                None => map.get(step),
            },
            (Some(Value::Vector(vector)), Value::Int(at)) => item(vector.items(), *at),
            (Some(Value::List(list)), Value::Int(at)) => item(list.items(), *at),
            _ => None,
        };
    }
    Ok(here.or(args.given("default")).cloned().unwrap_or_default())
}

fn item(items: &[Value], at: i64) -> Option<&Value> {
    let at = if at < 0 { i64::try_from(items.len()).ok()?.checked_add(at)? } else { at };
    items.get(usize::try_from(at).ok()?)
}

fn merge(args: &Arguments<'_>) -> Result<Value> {
    let recursive = args.flag("deep", false)?;
    let mut merged = Map::new();
    for (i, object) in args.list("objects")?.iter().enumerate() {
        let Value::Map(object) = object else {
            return Err(BuiltinError::argument(format!("objects[{i}]"), "an object", object));
        };
        merge_into(&mut merged, object, recursive)?;
    }
    Ok(merged.into())
}

/// Merges maps. The depth of values is limited, and with it the recursion.
fn merge_into(into: &mut Map, from: &Map, recursive: bool) -> Result<()> {
    for (key, value) in from.iter() {
        let merged = match (into.get(key), value) {
            (Some(Value::Map(old)), Value::Map(new)) if recursive => {
                let mut inner = old.clone();
                merge_into(&mut inner, new, true)?;
                inner.into()
            }
            _ => value.clone(),
        };
        deep(into.insert(key.clone(), merged))?;
    }
    Ok(())
}

fn select(args: &Arguments<'_>, wanted: bool) -> Result<Value> {
    let mut names = rtfs::Set::new();
    for (i, key) in args.list("keys")?.iter().enumerate() {
        deep(names.insert(Value::from(text(&format!("keys[{i}]"), key)?)))?;
    }
    let mut selected = Map::new();
    for (key, value) in args.map("object")?.iter() {
        if names.contains(&name(key)) == wanted {
            deep(selected.insert(key.clone(), value.clone()))?;
        }
    }
    Ok(selected.into())
}

fn rename(args: &Arguments<'_>) -> Result<Value> {
    args.map("names")?;
    let (object, names) = (args.map("object")?, &args.texts_by_name("names")?);
    let mut renamed = Map::new();
    for (key, value) in object.iter() {
        let new = match name_of(key).and_then(|name| field(names, name).map(|new| (name, new))) {
            None => key.clone(),
            Some((name, new)) => Value::keyword(text(&format!("names.{name}"), new)?),
        };
        deep(renamed.insert(new, value.clone()))?;
    }
    Ok(renamed.into())
}

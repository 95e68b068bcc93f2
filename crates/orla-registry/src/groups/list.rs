//! Lists: sorting, grouping, cutting and joining.

use std::cmp::Ordering;

use num_bigint::BigInt;
use num_integer::Integer as _;
use num_traits::{ToPrimitive as _, Zero as _};
use rtfs::{Map, Value};

use crate::arguments::{Arguments, list};
use crate::builtin::{Builtin, Parameter, defaulted, example, optional, required};
use crate::error::BuiltinError;
use crate::groups::{field, record, size};
use crate::limits::{Budget, deep, items_fit, text_fits, vector};
use crate::number::Number;
use crate::schema::{ANY, INTEGER, INTEGERS, LIST, LISTS, TEXT};

type Result<T> = std::result::Result<T, BuiltinError>;

const ITEMS: Parameter = required("items", LIST, "The list.");
const BY: Parameter = optional(
    "by",
    TEXT,
    "Compare objects by the value of this key; one without it counts as null. Without `by`, whole items are compared.",
);

pub(super) static BUILTINS: &[Builtin] = &[
    Builtin {
        name: "list.chunk",
        title: "Cut into chunks",
        description: "The list cut into lists of so many items; the last may be shorter.",
        parameters: &[
            ITEMS,
            required("size", r#""type":"integer","minimum":1"#, "Items in each chunk."),
        ],
        output: LISTS,
        examples: &[example(r#"{"items":[1,2,3,4,5],"size":2}"#, "[[1,2],[3,4],[5]]")],
        run: chunk,
    },
    Builtin {
        name: "list.filter",
        title: "Filter",
        description: "The items that compare as asked: objects by the value of a key, or whole items.",
        parameters: &[
            ITEMS,
            required(
                "operator",
                r#""enum":["=","!=","<","<=",">",">=","contains","in"]"#,
                "How the item's value is compared with `value`. Numbers by value, texts by code point, different kinds \
                 never; `contains` asks whether a text or list has `value` in it, `in` whether the text or list `value` has it.",
            ),
            required("value", ANY, "What is compared with."),
            BY,
        ],
        output: LIST,
        examples: &[
            example(
                r#"{"items":[{"n":1},{"n":5},{}],"operator":">","value":2,"by":"n"}"#,
                r#"[{"n":5}]"#,
            ),
            example(r#"{"items":["ab","c"],"operator":"contains","value":"b"}"#, r#"["ab"]"#),
        ],
        run: filter,
    },
    Builtin {
        name: "list.flatten",
        title: "Flatten",
        description: "The items of lists within the list, in their places.",
        parameters: &[
            ITEMS,
            defaulted(
                "depth",
                r#""type":"integer","minimum":0"#,
                "1",
                "How many levels of lists are opened.",
            ),
        ],
        output: LIST,
        examples: &[
            example(r#"{"items":[1,[2,[3]]]}"#, "[1,2,[3]]"),
            example(r#"{"items":[1,[2,[3]]],"depth":9}"#, "[1,2,3]"),
        ],
        run: flatten,
    },
    Builtin {
        name: "list.frequencies",
        title: "Count equal items",
        description: "How often each different item comes, the most frequent first; of equal counts, what came first.",
        parameters: &[ITEMS, BY],
        output: r#""type":"array","items":{"type":"object","properties":{"value":{},"count":{"type":"integer"}}}"#,
        examples: &[example(
            r#"{"items":["a","b","b"]}"#,
            r#"[{"value":"b","count":2},{"value":"a","count":1}]"#,
        )],
        run: frequencies,
    },
    Builtin {
        name: "list.group",
        title: "Group",
        description: "The items grouped by the value of a key, each group with its value, in the order in which the \
                      values first come.",
        parameters: &[
            ITEMS,
            required("by", TEXT, "The key of the objects; one without it belongs to null."),
        ],
        output: r#""type":"array","items":{"type":"object","properties":{"key":{},"items":{"type":"array"}}}"#,
        examples: &[example(
            r#"{"items":[{"t":"a","n":1},{"t":"b","n":2},{"t":"a","n":3}],"by":"t"}"#,
            r#"[{"key":"a","items":[{"t":"a","n":1},{"t":"a","n":3}]},{"key":"b","items":[{"t":"b","n":2}]}]"#,
        )],
        run: group,
    },
    Builtin {
        name: "list.index_of",
        title: "Find an item",
        description: "The place of the first item that equals a value, from 0; null if there is none.",
        parameters: &[ITEMS, required("value", ANY, "What is looked for.")],
        output: r#""type":["integer","null"],"minimum":0"#,
        examples: &[
            example(r#"{"items":["a","b"],"value":"b"}"#, "1"),
            example(r#"{"items":[],"value":1}"#, "null"),
        ],
        run: |args| {
            let (items, value) = (args.list("items")?, args.value("value")?);
            Ok(items.iter().position(|item| item == value).map_or(Value::Nil, size))
        },
    },
    Builtin {
        name: "list.pluck",
        title: "Take one key of each",
        description: "The value of a key of each object; null where it is missing.",
        parameters: &[ITEMS, required("key", TEXT, "The key.")],
        output: LIST,
        examples: &[example(r#"{"items":[{"a":1,"b":2},{"b":3}],"key":"a"}"#, "[1,null]")],
        run: |args| {
            let (items, key) = (args.list("items")?, args.text("key")?);
            vector(items.iter().map(|item| key_of(item, Some(key))).collect())
        },
    },
    Builtin {
        name: "list.range",
        title: "Range of integers",
        description: "The integers from one (inclusive) to another (exclusive), in steps.",
        parameters: &[
            required("to", INTEGER, "The end, not included."),
            defaulted("from", INTEGER, "0", "The first integer."),
            defaulted(
                "step",
                INTEGER,
                "1",
                "The difference between neighbours, not 0; negative counts down.",
            ),
        ],
        output: INTEGERS,
        examples: &[
            example(r#"{"to":3}"#, "[0,1,2]"),
            example(r#"{"from":10,"to":0,"step":-4}"#, "[10,6,2]"),
        ],
        run: range,
    },
    Builtin {
        name: "list.reverse",
        title: "Reverse a list",
        description: "The items in the opposite order.",
        parameters: &[ITEMS],
        output: LIST,
        examples: &[example(r#"{"items":[1,2,3]}"#, "[3,2,1]")],
        run: |args| vector(args.list("items")?.iter().rev().cloned().collect()),
    },
    Builtin {
        name: "list.slice",
        title: "Slice a list",
        description: "The items from one place to another. Negative places count from the end; what lies outside is cut.",
        parameters: &[
            ITEMS,
            defaulted("start", INTEGER, "0", "The first place, from 0."),
            optional("end", INTEGER, "The place after the last; without it, the end of the list."),
        ],
        output: LIST,
        examples: &[
            example(r#"{"items":[1,2,3,4],"start":1,"end":3}"#, "[2,3]"),
            example(r#"{"items":[1,2,3,4],"start":-2}"#, "[3,4]"),
        ],
        run: |args| {
            let items = args.list("items")?;
            let range = super::bounds(args, items.len())?;
            vector(items[range].to_vec())
        },
    },
    Builtin {
        name: "list.sort",
        title: "Sort",
        description: "The items in order: null, booleans, numbers by value, texts by code point, lists, objects. Equal \
                      items keep their order.",
        parameters: &[
            ITEMS,
            BY,
            defaulted("descending", r#""type":"boolean""#, "false", "The greatest first."),
            defaulted(
                "natural",
                r#""type":"boolean""#,
                "false",
                "Compare texts without regard to case, and runs of digits in them as numbers: a2 before A10.",
            ),
        ],
        output: LIST,
        examples: &[
            example(r#"{"items":[3,"a",1,null]}"#, r#"[null,1,3,"a"]"#),
            example(r#"{"items":[{"n":1},{"n":3}],"by":"n","descending":true}"#, r#"[{"n":3},{"n":1}]"#),
            example(r#"{"items":["f10","F2","f1"],"natural":true}"#, r#"["f1","F2","f10"]"#),
        ],
        run: sort,
    },
    Builtin {
        name: "list.sum_by",
        title: "Totals by group",
        description: "Objects grouped by one key, with the count and the sum, mean, least and greatest of the numbers \
                      under another key. Objects without such a number are counted and add nothing.",
        parameters: &[
            ITEMS,
            required("by", TEXT, "The key to group by."),
            required("value", TEXT, "The key of the numbers."),
        ],
        output: r#""type":"array","items":{"type":"object","properties":{"key":{},"count":{"type":"integer"},"sum":{"type":"number"},"mean":{"type":["number","null"]},"min":{"type":["number","null"]},"max":{"type":["number","null"]}}}"#,
        examples: &[example(
            r#"{"items":[{"t":"a","n":1},{"t":"b","n":2},{"t":"a","n":3}],"by":"t","value":"n"}"#,
            r#"[{"key":"a","count":2,"sum":4,"mean":2,"min":1,"max":3},{"key":"b","count":1,"sum":2,"mean":2,"min":2,"max":2}]"#,
        )],
        run: sum_by,
    },
    Builtin {
        name: "list.unique",
        title: "Unique items",
        description: "The first of each of the items that are equal.",
        parameters: &[ITEMS, BY],
        output: LIST,
        examples: &[
            example(r#"{"items":[1,2,1]}"#, "[1,2]"),
            example(r#"{"items":[{"a":1,"b":1},{"a":1,"b":2}],"by":"a"}"#, r#"[{"a":1,"b":1}]"#),
        ],
        run: |args| {
            let (items, by) = (args.list("items")?, args.optional_text("by")?);
            vector(groups(&items, by)?.into_iter().map(|(_, items)| items[0].clone()).collect())
        },
    },
    Builtin {
        name: "list.zip",
        title: "Zip",
        description: "The first items of all lists, then the second, and so on: rows to columns. As long as the shortest \
                      list, or with a filler as the longest.",
        parameters: &[
            required("lists", LISTS, "The lists."),
            optional(
                "fill",
                ANY,
                "Stands for what the shorter lists lack; without it, the rest is left out.",
            ),
        ],
        output: LISTS,
        examples: &[
            example(r#"{"lists":[[1,2],["a","b"]]}"#, r#"[[1,"a"],[2,"b"]]"#),
            example(r#"{"lists":[[1,2],[3]],"fill":0}"#, "[[1,3],[2,0]]"),
        ],
        run: zip,
    },
];

fn key_of(item: &Value, by: Option<&str>) -> Value {
    match (item, by) {
        (item, None) => item.clone(),
        (Value::Map(map), Some(key)) => field(map, key).cloned().unwrap_or_default(),
        _ => Value::Nil,
    }
}

/// Groups items with equal keys, in the order of the first occurrence of each key. NaN equals nothing,
/// and forms a separate group.
fn groups(items: &[Value], by: Option<&str>) -> Result<Vec<(Value, Vec<Value>)>> {
    let mut places = Map::new();
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for item in items {
        let key = key_of(item, by);
        let known = places.get(&key).and_then(|place| match place {
            Value::Int(place) => usize::try_from(*place).ok(),
            _ => None,
        });
        match known.and_then(|place| groups.get_mut(place)) {
            Some((_, members)) => members.push(item.clone()),
            None => {
                deep(places.insert(key.clone(), size(groups.len())))?;
                groups.push((key, vec![item.clone()]));
            }
        }
    }
    Ok(groups)
}

/// Returns each distinct item and its number of occurrences.
pub(super) fn count(items: &[Value]) -> Result<Vec<(Value, usize)>> {
    Ok(groups(items, None)?.into_iter().map(|(item, items)| (item, items.len())).collect())
}

fn chunk(args: &Arguments<'_>) -> Result<Value> {
    let (items, size) = (args.list("items")?, args.count("size")?);
    if size == 0 {
        return Err(BuiltinError::content("size", "expected at least 1"));
    }
    vector(items.chunks(size).map(|chunk| vector(chunk.to_vec())).collect::<Result<_>>()?)
}

#[derive(Clone, Copy)]
enum Operator {
    Equal,
    Different,
    Order(fn(Ordering) -> bool),
    Contains,
    In,
}

fn filter(args: &Arguments<'_>) -> Result<Value> {
    use Operator::{Contains, Different, Equal, In, Order};
    let words = [
        ("=", Equal),
        ("!=", Different),
        ("<", Order(Ordering::is_lt)),
        ("<=", Order(Ordering::is_le)),
        (">", Order(Ordering::is_gt)),
        (">=", Order(Ordering::is_ge)),
        ("contains", Contains),
        ("in", In),
    ];
    let items = args.list("items")?;
    args.text("operator")?;
    let operator = args.choice("operator", &words, Equal)?;
    let (value, by) = (args.value("value")?, args.optional_text("by")?);
    let mut members = rtfs::Set::new();
    if let (In, Ok(wanted)) = (operator, list("value", value)) {
        for member in wanted.iter() {
            deep(members.insert(member.clone()))?;
        }
    }
    let mut budget = Budget::new();
    let mut kept = Vec::new();
    for item in items.iter() {
        let key = key_of(item, by);
        let keep = match operator {
            Equal => same(&key, value),
            Different => !same(&key, value),
            Order(holds) => comparable(&key, value) && holds(key.compare(value)),
            Contains => contains(&key, value, &mut budget)?,
            In => match value {
                Value::Str(_) => contains(value, &key, &mut budget)?,
                _ => members.contains(&key),
            },
        };
        if keep {
            kept.push(item.clone());
        }
    }
    vector(kept)
}

fn is_number(value: &Value) -> bool {
    matches!(value, Value::Int(_) | Value::BigInt(_) | Value::Float(_))
}

/// Returns whether two values are equal, or numbers of the same value.
fn same(a: &Value, b: &Value) -> bool {
    if is_number(a) && is_number(b) { a.compare(b).is_eq() } else { a == b }
}

fn comparable(a: &Value, b: &Value) -> bool {
    is_number(a) && is_number(b) || a.type_name() == b.type_name()
}

fn contains(whole: &Value, part: &Value, budget: &mut Budget) -> Result<bool> {
    match (whole, part) {
        (Value::Str(whole), Value::Str(part)) => {
            budget.text(part.as_str().len())?;
            Ok(whole.as_str().contains(part.as_str()))
        }
        (Value::Vector(_) | Value::List(_) | Value::Set(_), part) => {
            Ok(list("items", whole)?.iter().any(|item| same(item, part)))
        }
        _ => Ok(false),
    }
}

fn flatten(args: &Arguments<'_>) -> Result<Value> {
    let depth = args.optional_count("depth")?.unwrap_or(1);
    let mut out = Vec::new();
    open(&args.list("items")?, depth, &mut out);
    vector(out)
}

/// Flattens lists. The depth of values is limited, and with it the recursion.
fn open(items: &[Value], depth: usize, out: &mut Vec<Value>) {
    for item in items {
        match item {
            Value::Vector(inner) if depth > 0 => open(inner.items(), depth - 1, out),
            Value::List(inner) if depth > 0 => open(inner.items(), depth - 1, out),
            item => out.push(item.clone()),
        }
    }
}

fn frequencies(args: &Arguments<'_>) -> Result<Value> {
    let (items, by) = (args.list("items")?, args.optional_text("by")?);
    let mut groups = groups(&items, by)?;
    groups.sort_by_key(|(_, items)| std::cmp::Reverse(items.len()));
    let rows =
        groups.into_iter().map(|(key, items)| record([("value", key), ("count", size(items.len()))]));
    vector(rows.collect::<Result<_>>()?)
}

fn group(args: &Arguments<'_>) -> Result<Value> {
    let (items, by) = (args.list("items")?, args.text("by")?);
    let groups = groups(&items, Some(by))?;
    let rows = groups.into_iter().map(|(key, items)| record([("key", key), ("items", vector(items)?)]));
    vector(rows.collect::<Result<_>>()?)
}

fn sum_by(args: &Arguments<'_>) -> Result<Value> {
    let (items, by, key) = (args.list("items")?, args.text("by")?, args.text("value")?);
    let rows = groups(&items, Some(by))?.into_iter().map(|(group, items)| {
        let mut numbers = Vec::new();
        for item in &items {
            let value = key_of(item, Some(key));
            if is_number(&value) {
                numbers.push(Number::read(&format!("items[].{key}"), &value)?);
            }
        }
        let sum = super::stats::sum(&numbers);
        let extreme = |wanted: Ordering| {
            let best = numbers
                .iter()
                .reduce(|best, next| if next.compare(best) == wanted { next } else { best });
            best.map_or(Ok(Value::Nil), |best| best.clone().into_value())
        };
        let mean = match i64::try_from(numbers.len()) {
            Ok(0) | Err(_) => Value::Nil,
            Ok(count) => sum.divide(&Number::Small(count))?.into_value()?,
        };
        record([
            ("key", group),
            ("count", size(items.len())),
            ("sum", sum.into_value()?),
            ("mean", mean),
            ("min", extreme(Ordering::Less)?),
            ("max", extreme(Ordering::Greater)?),
        ])
    });
    vector(rows.collect::<Result<_>>()?)
}

fn range(args: &Arguments<'_>) -> Result<Value> {
    let from = args.big_or("from", 0)?;
    let to = args.big("to")?;
    let step = args.big_or("step", 1)?;
    if step.is_zero() {
        return Err(BuiltinError::content("step", "it must not be 0"));
    }
    let distance = &to - &from;
    let count = if distance.sign() == step.sign() { distance.div_ceil(&step) } else { BigInt::ZERO };
    let count = items_fit(count.to_usize())?;
    let size = usize::try_from(from.bits().max(to.bits()) / 8).ok();
    text_fits(size.and_then(|size| size.checked_mul(count)))?;
    let each = std::iter::successors(Some(from), |at| Some(at + &step));
    vector(each.take(count).map(Value::from).collect())
}

fn sort(args: &Arguments<'_>) -> Result<Value> {
    let (items, by) = (args.list("items")?, args.optional_text("by")?);
    let (descending, natural) = (args.flag("descending", false)?, args.flag("natural", false)?);
    let mut keyed: Vec<(Value, &Value)> = items.iter().map(|item| (key_of(item, by), item)).collect();
    keyed.sort_by(|(a, _), (b, _)| {
        let order = match (a, b) {
            (Value::Str(a), Value::Str(b)) if natural => super::text::natural(a.as_str(), b.as_str()),
            _ => a.compare(b),
        };
        if descending { order.reverse() } else { order }
    });
    vector(keyed.into_iter().map(|(_, item)| item.clone()).collect())
}

fn zip(args: &Arguments<'_>) -> Result<Value> {
    let lists = args.list("lists")?;
    let lists = lists.iter().enumerate().map(|(i, item)| list(&format!("lists[{i}]"), item));
    let lists = lists.collect::<Result<Vec<_>>>()?;
    let fill = args.given("fill");
    let lengths = lists.iter().map(|list| list.len());
    let rows = if fill.is_some() { lengths.max() } else { lengths.min() }.unwrap_or(0);
    items_fit(rows.checked_mul(lists.len()))?;
    let row = |i: usize| {
        let at =
            |list: &std::borrow::Cow<'_, [Value]>| list.get(i).or(fill).cloned().unwrap_or_default();
        vector(lists.iter().map(at).collect())
    };
    vector((0..rows).map(row).collect::<Result<_>>()?)
}
